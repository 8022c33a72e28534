//! Polynomials by Horner's rule, from the same coefficient tables that the CPU kernels use.

use super::{Entry, F32, Reg};

impl Entry {
    /// c₀ + c₁x + … + cₙxⁿ for `coefficients` in ascending order: n fused multiply-adds.
    ///
    /// # Panics
    /// If there are fewer than two coefficients.
    #[track_caller]
    pub fn horner(&self, x: Reg<F32>, coefficients: &[f32]) -> Reg<F32> {
        let [rest @ .., next, last] = coefficients else { panic!("a polynomial has at least two coefficients") };
        let first = self.fma(x, *last, *next);
        rest.iter().rev().fold(first, |sum, &c| self.fma(sum, x, c))
    }
}
