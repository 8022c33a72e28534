use super::reference;
use crate::check::*;
use kernels::softmax::*;

#[test]
fn is_bit_identical_for_any_thread_count() {
    let (x, dy) = (uniform::<f32>(1, 1531 * 37, 5.0), uniform::<f32>(2, 1531 * 37, 1.0));
    assert_same_for_any_thread_count(&"[1531, 37]", |cpu| {
        let mut outputs = [(); 2].map(|()| vec![f32::NAN; x.len()]);
        let [y, dx] = &mut outputs;
        forward(cpu, 37, &x, y);
        backward(cpu, 37, y, &dy, dx);
        outputs.concat()
    });
}

#[test]
fn shifted_scores_give_the_same_bits() {
    for cpu in testable_cpus() {
        let x: Vec<f32> = (0..19).map(|i| i as f32 * 0.25).collect();
        let far: Vec<f32> = x.iter().map(|x| x + 65_536.0).collect();
        let (mut y, mut y_far) = (vec![f32::NAN; 19], vec![f32::NAN; 19]);
        forward(&cpu, 19, &x, &mut y);
        forward(&cpu, 19, &far, &mut y_far);
        assert_eq!(y, y_far, "{}", cpu.isa().kind());
    }
}

/// Central differences of Σ y·dy in f64 against the definition of backward.
#[test]
fn gradient_matches_central_differences() {
    let wide = |seed| widen::<f64, f32>(&uniform::<f32>(seed, 21, 2.0));
    let (x, dy) = (wide(1), wide(2));
    let loss = |x: &[f64]| reference::forward(7, x).iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>();
    let dx = reference::backward(7, &reference::forward(7, &x), &dy);
    assert_slopes("dx", &dx, &slopes(&x, 1e-6, loss), 1e-8);
}
