//! Bias and activation: GELU in both forms (Hendrycks & Gimpel 2016) and ReLU.
//!
//! ```text
//! forward     p = x + b          y = act(p)          [T, F], b [F]
//! backward    dx = dy · act'(p)                      [T, F]
//!
//! gelu_tanh   ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))   the activation of ALBERT's released code
//! gelu_erf    x·Φ(x) = ½·x·(1 + erf(x/√2))               `gelu` in third-party loaders
//! relu        max(x, 0), with derivative 0 at 0
//! ```
//!
//! The bias gradient is the column sum of dx ([`crate::reduce::column_sums`]). p is computed in f32 and rounded only
//! when stored, so y does not depend on whether `pre` is saved; backward reads the stored p.
//!
//! Cost: forward moves T·F·(2, or 3 with `pre`) elements, backward T·F·3; about 23 (tanh; backward 32) or 35 (erf) vector
//! instructions for LANES elements, no division. Each element is one chain of multiply-adds, so four vectors are
//! interleaved.
//!
//! Formulas of a vector: [`crate::num::functions`].
//!
//! The epilogue of a GEMM calls [`Activation::apply`], in the backward pass `derivative`, on its register tile and gives the
//! same bits.
//!
//! ```
//! use kernels::{Cpu, activation::{Activation, bias_activation_forward}};
//!
//! let (x, bias, mut y) = ([-2.0f32, 1.0, 0.5, -1.0], [1.0, 0.5], [0.0f32; 4]); // [2, 2] and [2]
//! bias_activation_forward(&Cpu::detect()?, Activation::Relu, &x, Some(&bias), None, &mut y);
//! assert_eq!(y, [0.0, 1.5, 1.5, 0.0]);
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;

pub use cpu::{backward, bias_activation_forward};

use crate::num::functions;
use crate::simd::Simd;

/// Activation function, applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), with which ALBERT was trained.
    GeluTanh,
    /// x·Φ(x) = ½·x·(1 + erf(x/√2)).
    GeluErf,
    /// max(x, 0)
    Relu,
}

impl Activation {
    /// All activations.
    pub const ALL: [Self; 3] = [Self::GeluTanh, Self::GeluErf, Self::Relu];

    /// Name in the variant of a kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GeluTanh => "tanh",
            Self::GeluErf => "erf",
            Self::Relu => "relu",
        }
    }

    /// act(x) on one vector.
    #[inline(always)]
    pub fn apply<S: Simd>(self, simd: S, x: S::F32) -> S::F32 {
        match self {
            Self::GeluTanh => functions::gelu_tanh(simd, x),
            Self::GeluErf => functions::gelu_erf(simd, x),
            // In this order a NaN is propagated.
            Self::Relu => simd.max(simd.zero(), x),
        }
    }

    /// act'(x) on one vector.
    #[inline(always)]
    pub(crate) fn derivative<S: Simd>(self, simd: S, x: S::F32) -> S::F32 {
        match self {
            Self::GeluTanh => functions::gelu_tanh_derivative(simd, x),
            Self::GeluErf => functions::gelu_erf_derivative(simd, x),
            Self::Relu => simd.select(simd.lt(simd.zero(), x), simd.splat(1.0), simd.zero()),
        }
    }
}
