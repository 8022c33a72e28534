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
//! ds is the gradient of x and of r alike. s is rounded to its storage type before anything is computed from it, so y
//! does not depend on whether s is kept.
//!
//! ```text
//! forward, a row at a time, in L1 after the first pass:     stats [T, 2]
//!   1  s = x + r, Σ s        2  Σ (s - mean)²       3  y      mean, rstd: all that backward keeps beside s
//! backward, a row at a time:
//!   1  Σ g, Σ g·x̂, and dγ, dβ of this block of rows           2  ds
//! ```
//!
//! The variance is that of the second pass: a one-pass formula loses it where |mean| is large. ALBERT normalizes after
//! the sum (post-LN) with ε = 1e-12 (Lan et al. 2019; released code), hence f32 statistics always.
//!
//! dγ and dβ: at most 64 blocks of rows each sum their own in scratch, then the blocks are added pairwise as a tree:
//! the order depends on the shape alone.
//!
//! Cost: forward reads x and r and writes s and y, backward reads s and dy and writes ds, each once: bound by memory.
//! Limits: none on H; rows are independent.

mod cases;
mod cpu;
pub mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

pub use cases::OPERATION;
pub use cpu::{backward, backward_scratch_len, forward};

/// Sizes and ε of a normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Rows, T.
    pub rows: usize,
    /// Numbers in a row, H (or E).
    pub columns: usize,
    /// Added to the variance, inside the root.
    pub eps: f32,
}
