use super::reference;
use crate::check::*;
use kernels::cross_entropy::*;
use kernels::gemm::Precision;

#[test]
fn is_bit_identical_for_any_thread_count() {
    let (rows, width, classes) = (600, 24, 1500);
    let (hidden, weight) = (uniform::<f32>(1, rows * width, 1.0), uniform::<f32>(2, classes * width, 1.0));
    let (bias, labels) = (uniform::<f32>(3, classes, 1.0), super::labels(&reference::equal(rows, classes)));
    let dlosses = uniform::<f32>(4, rows, 1.0);
    let precision = Precision::F32;
    let projection = Projection { width, hidden: &hidden, weight: &weight, bias: &bias, labels: &labels, precision };
    assert_same_for_any_thread_count(&"[600, 24, 1500]", |cpu| {
        let mut scratch = vec![f32::NAN; scratch_len(rows, width, classes)];
        let (mut losses, mut norms) = (vec![f32::NAN; rows], vec![f32::NAN; 2 * rows]);
        let (mut predictions, mut dhidden) = (vec![0; rows], vec![f32::NAN; hidden.len()]);
        let (mut dweight, mut dbias) = (vec![0.0; weight.len()], vec![0.0; classes]);
        let mut kept = vec![f32::NAN; rows * classes];
        forward(cpu, &projection, &mut losses, &mut norms, &mut predictions, Some(&mut kept), &mut scratch);
        backward(cpu, &projection, &norms, &kept, &dlosses, &mut dhidden, &mut dweight, &mut dbias, &mut scratch);
        let predictions = predictions.into_iter().map(|p| p as f32).collect();
        [losses, norms, predictions, dhidden, dweight, dbias].concat()
    });
}

/// Central differences of Σ loss·dloss in f64 against the definition of backward.
#[test]
fn the_gradient_is_the_slope_of_forward() {
    let (rows, width, classes) = (5, 3, 4);
    let wide = |seed, len| widen::<f64, f32>(&uniform::<f32>(seed, len, 1.5));
    let (hidden, weight, bias) = (wide(1, rows * width), wide(2, classes * width), wide(3, classes));
    let (dlosses, labels) = (wide(4, rows), super::labels(&reference::equal(rows, classes)));
    let loss = |hidden: &[f64], weight: &[f64], bias: &[f64]| -> f64 {
        let logits = reference::logits(width, hidden, weight, bias);
        let (losses, _) = reference::rows_forward(&reference::equal(rows, classes), &logits, &labels);
        losses.iter().zip(&dlosses).map(|(loss, d)| loss * d).sum()
    };
    let logits = reference::logits(width, &hidden, &weight, &bias);
    let (_, norms) = reference::rows_forward(&reference::equal(rows, classes), &logits, &labels);
    let dlogits = reference::rows_backward(&reference::equal(rows, classes), &logits, &labels, &norms, &dlosses);
    let gradients = reference::projection_backward(width, &hidden, &weight, &dlogits);
    let slope = |x: &[f64], i: usize, loss: &dyn Fn(&[f64]) -> f64| {
        let (mut up, mut down) = (x.to_vec(), x.to_vec());
        up[i] += 1e-6;
        down[i] -= 1e-6;
        (loss(&up) - loss(&down)) / 2e-6
    };
    let close = |what: &str, i: usize, slope: f64, gradient: f64| {
        assert!((slope - gradient).abs() < 1e-8, "{what}[{i}]: {gradient} for {slope}");
    };
    for i in 0..hidden.len() {
        close("dhidden", i, slope(&hidden, i, &|h| loss(h, &weight, &bias)), gradients.dhidden[i]);
    }
    for i in 0..weight.len() {
        close("dweight", i, slope(&weight, i, &|w| loss(&hidden, w, &bias)), gradients.dweight[i]);
    }
    for i in 0..classes {
        close("dbias", i, slope(&bias, i, &|b| loss(&hidden, &weight, b)), gradients.dbias[i]);
    }
}

#[test]
fn the_first_of_equal_logits_is_predicted_and_ignored_rows_are_not_counted() {
    for cpu in testable_cpus() {
        let logits = [1.0f32, 3.0, 3.0, -1.0, 0.0, 0.0, 2.0, 5.0, 4.0];
        let (mut losses, mut norms, mut predictions) = ([f32::NAN; 3], [f32::NAN; 6], [9; 3]);
        let labels = [1, 2, IGNORED];
        rows_forward(&cpu, 3, &logits, &labels, &mut losses, &mut norms, &mut predictions);
        assert_eq!(predictions, [1, 1, 1], "{}", cpu.isa().kind());
        assert_eq!(count_correct(&labels, &predictions), (2, 1));
        assert_eq!(losses[2], 0.0);
    }
}

#[test]
fn a_nan_among_the_logits_shows_in_the_loss() {
    for (cpu, at) in testable_cpus().into_iter().flat_map(|cpu| [0, 3, 20].map(|at| (cpu.clone(), at))) {
        let mut logits = uniform::<f32>(1, 21, 1.0);
        logits[at] = f32::NAN;
        let (mut loss, mut norms, mut prediction) = ([0.0], [0.0; 2], [0]);
        rows_forward(&cpu, 21, &logits, &[5], &mut loss, &mut norms, &mut prediction);
        assert!(loss[0].is_nan(), "{} NaN at {at}: {}", cpu.isa().kind(), loss[0]);
    }
}

#[test]
fn a_label_beyond_the_classes_is_refused() {
    let cpu = testable_cpus().remove(0);
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rows_forward(&cpu, 2, &[0.5f32, 1.0], &[2], &mut [0.0], &mut [0.0; 2], &mut [0]);
    }));
    assert!(refused.is_err());
}
