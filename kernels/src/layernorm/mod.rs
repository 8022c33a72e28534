//! LayerNorm over the last dimension, fused with the residual that precedes it (Ba, Kiros, Hinton 2016).
//!
//! ```text
//! s = x + r              mean = Σ s / H        rstd = 1 / √(Σ (s - mean)² / H + ε)
//! x̂ = (s - mean) · rstd  y = γ · x̂ + β                                            [T, H]
//!
//! g  = γ · dy            ds = rstd · (g - Σ g / H - x̂ · Σ (g · x̂) / H)             [T, H]
//! dγ += Σ_t dy · x̂       dβ += Σ_t dy                                              [H]
//! ```
//!
//! ds is the gradient of both x and r. s is rounded to its storage type before use, so y does not depend on whether s is
//! saved.
//!
//! ```text
//! forward, a row at a time, in L1 after the first pass:     stats [T, 2]
//!   1  s = x + r, Σ s        2  Σ (s - mean)²       3  y      mean, rstd: saved for backward, with s
//! backward, a row at a time:
//!   1  Σ g, Σ g·x̂, and dγ, dβ of this block of rows           2  ds
//! ```
//!
//! The variance is computed in a second pass: one-pass formulas cancel if |mean| is large. ALBERT normalizes after the sum
//! (post-LN) with ε = 1e-12 (Lan et al. 2019; released code), so statistics are always f32.
//!
//! dγ and dβ: each of at most 64 blocks of rows is summed in scratch, then the blocks are added pairwise in a tree; the
//! order depends on the shape only.
//!
//! Cost: forward reads x and r and writes s and y, backward reads s and dy and writes ds, each once: memory-bound.
//! Limits: none on H; rows are independent.
//!
//! ```
//! use kernels::{Cpu, layernorm::{Forward, Spec, forward}};
//!
//! let spec = Spec { rows: 1, columns: 4, eps: 1e-12 };
//! let (x, gain, bias) = ([1.0f32, 2.0, 3.0, 4.0], [1.0; 4], [0.0; 4]);
//! let (mut y, mut stats) = ([0.0f32; 4], [0.0; 2]);
//! let operands = Forward { x: &x, residual: None, gain: &gain, bias: &bias, s: None, y: &mut y, stats: &mut stats };
//! forward(&Cpu::detect()?, &spec, operands);
//! assert!((stats[0] - 2.5).abs() < 1e-6); // the mean
//! assert!((y[0] + y[3]).abs() < 1e-6 && y[0] < y[1]);
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;

pub use cpu::{Backward, Forward, backward, backward_scratch_len, forward};

/// Sizes and ε of a normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Rows, T.
    pub rows: usize,
    /// Elements of a row, H (or E).
    pub columns: usize,
    /// ε, added to the variance under the root.
    pub eps: f32,
}
