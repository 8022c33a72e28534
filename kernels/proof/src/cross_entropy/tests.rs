use super::reference;
use crate::check::*;
use kernels::cross_entropy::*;

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
    let by = |x: &[f64], loss: &dyn Fn(&[f64]) -> f64| slopes(x, 1e-6, loss);
    assert_slopes("dhidden", &gradients.dhidden, &by(&hidden, &|h| loss(h, &weight, &bias)), 1e-8);
    assert_slopes("dweight", &gradients.dweight, &by(&weight, &|w| loss(&hidden, w, &bias)), 1e-8);
    assert_slopes("dbias", &gradients.dbias, &by(&bias, &|b| loss(&hidden, &weight, b)), 1e-8);
}

#[test]
fn the_first_of_equal_logits_is_predicted_and_ignored_rows_are_not_counted() {
    for cpu in testable_cpus() {
        let logits = [1.0f32, 3.0, 3.0, -1.0, 0.0, 0.0, 2.0, 5.0, 4.0];
        let (mut losses, mut norms, mut predictions) = ([f32::NAN; 3], [f32::NAN; 6], [9; 3]);
        let labels = [1, 2, IGNORED];
        rows_forward(
            &cpu,
            3,
            &logits,
            &labels,
            Losses { losses: &mut losses, norms: &mut norms, predictions: &mut predictions },
        );
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
        rows_forward(
            &cpu,
            21,
            &logits,
            &[5],
            Losses { losses: &mut loss, norms: &mut norms, predictions: &mut prediction },
        );
        assert!(loss[0].is_nan(), "{} NaN at {at}: {}", cpu.isa().kind(), loss[0]);
    }
}
