//! Lesson 5: a row kernel, RMSNorm.

use kernels::Isa;
use kernels::rows::Row;
use kernels::simd::{Kernel, Simd};

/// Added to the mean of the squares.
pub(crate) const EPS: f32 = 1e-6;

/// y = gain·x·r with r = 1 / √(Σ x² / columns + ε), for one row.
fn exercise(isa: Isa, x: &[f32], gain: &[f32], y: &mut [f32]) {
    isa.run(Exercise { x, gain, y });
}

struct Exercise<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Exercise<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let row = Row::new(simd, self.x.len());
        // The gap: Σ x² is a `fold` of the row, as in README.md; `simd.splat(r)` is a vector of r.
        row.map(
            [self.x, self.gain],
            [self.y],
            #[inline(always)]
            |simd, [x, gain]| [simd.mul(gain, x)],
        );
    }
}

/// Compares with f64, and the bits of all instruction sets of this machine.
pub(crate) fn check(rms_norm: fn(Isa, &[f32], &[f32], &mut [f32])) {
    for columns in [1, 7, 16, 97, 768] {
        let x: Vec<f32> = (0..columns).map(|i| (i as f32 + 1.0).sin() * 3.0).collect();
        let gain: Vec<f32> = (0..columns).map(|i| 1.0 + 0.5 * (i as f32).cos()).collect();
        let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        let r = 1.0 / (squares / columns as f64 + f64::from(EPS)).sqrt();
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::real() {
            let mut y = vec![f32::NAN; columns];
            rms_norm(isa, &x, &gain, &mut y);
            for i in 0..columns {
                let (y, exact) = (f64::from(y[i]), f64::from(gain[i]) * f64::from(x[i]) * r);
                let error = (y - exact).abs() / exact.abs();
                let name = isa.kind();
                assert!(
                    error < 4.0 * f64::from(f32::EPSILON),
                    "row of {columns}, {name}: y[{i}] is {y:.4}; expected {exact:.4}"
                );
            }
            let first = first.get_or_insert_with(|| y.clone());
            assert!(*first == y, "row of {columns}: other bits on {} than on scalar", isa.kind());
        }
    }
}

exercise_tests!(check(exercise), "row of 1, scalar: y[0] is 3.7866; expected 1.5000");
