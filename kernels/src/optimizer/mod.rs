//! LAMB and AdamW over flat buffers that hold many tensors (You et al. 2020; Loshchilov & Hutter 2019).
//!
//! ```text
//! g  = scale · gradient                                  scale: clipping and accumulation, so gradients are read once
//! m  = β1·m + (1-β1)·g        v = β2·v + (1-β2)·g²
//! u  = m / (√v + ε)  [+ λ·w where decayed]
//! r  = ‖w‖ / ‖u‖  where adapted and both norms are positive, else 1        LAMB; AdamW has r = 1
//! w  = w - lr·r·u
//! ```
//!
//! as in ALBERT's released code: ε outside the root, no bias correction, norms of whole tensors (every [`Segment`] has its
//! own ratio), no bound on r. With `bias_correction` m and v are divided by 1-β1ᵗ and 1-β2ᵗ first, as in the papers.
//!
//! ```text
//! w, g, m, v   ├─ word table ─┼─ W_map ─┼b┼─ W_q ─┼b┼ ...        one flat buffer each, cut into segments
//! tasks        ├──┼──┼──┼──┼──┼──┼──┼──┼─┼──┼──┼──┼─┤            blocks of at most 32,768, never across segments
//! ```
//!
//! LAMB is two passes with a barrier, because r needs all of u: the first updates m and v and stores ‖w‖² and ‖u‖² of
//! each block in scratch, the second recomputes u (reading m and v takes as many bytes as writing and reading u, which
//! would need a buffer or overwrite the gradient). AdamW is one pass. Norms: f32 lanes for 4096 elements, f64 beyond,
//! blocks added in order: equal bits for any number of threads.
//!
//! Cost: LAMB reads 4 + 3 and writes 2 + 1 elements a parameter, AdamW reads 4 and writes 3: bound by memory.
//! Limits: f32 state; segments in order, without overlap.
//!
//! ```
//! use kernels::{Cpu, optimizer::{AdamConfig, Buffers, Segment, Step, adamw}};
//!
//! let (mut params, grads, mut m, mut v) = ([1.0f32, -1.0], [0.5f32, -0.5], [0.0f32; 2], [0.0f32; 2]);
//! let config = AdamConfig { bias_correction: true, ..AdamConfig::default() };
//! let step = Step { number: 1, learning_rate: 0.1, gradient_scale: 1.0 };
//! let segments = [Segment { range: 0..2, decay: false, adapt: false }];
//! adamw(&Cpu::detect()?, &config, &step, &segments, Buffers { params: &mut params, grads: &grads, m: &mut m, v: &mut v });
//! assert!((params[0] - 0.9).abs() < 1e-5 && (params[1] + 0.9).abs() < 1e-5); // a first step is the learning rate
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;

pub use cpu::{Buffers, adamw, lamb, lamb_scratch_len};

use std::ops::Range;

/// Tensor in the flat buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its elements of the buffers.
    pub range: Range<usize>,
    /// True if weight decay applies. Released ALBERT: not for biases and LayerNorm.
    pub decay: bool,
    /// True if LAMB scales its step by ‖w‖ / ‖u‖. Released ALBERT: where decay applies.
    pub adapt: bool,
}

/// Constants of a run. [`Default`] gives the released values. f64, because of 1-β: 1 - 0.999 has a relative error of 1e-5
/// in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamConfig {
    /// Decay of the mean of gradients, β1.
    pub beta1: f64,
    /// Decay of the mean of squared gradients, β2.
    pub beta2: f64,
    /// Added to √v, ε.
    pub eps: f64,
    /// λ
    pub weight_decay: f64,
    /// True if m and v are corrected for their initialization to zero. Released ALBERT: no.
    pub bias_correction: bool,
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-6, weight_decay: 0.01, bias_correction: false }
    }
}

/// Values of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Index of the update, from 1; used only with `bias_correction`.
    pub number: u64,
    /// lr
    pub learning_rate: f32,
    /// Factor of the gradients, applied when they are read. The engine clips before, and passes 1.
    pub gradient_scale: f32,
}

/// Bias corrections of m and v, 1 / (1 - β^number); 1 without `bias_correction`.
///
/// # Panics
/// If they are wanted and the step's number is 0.
pub fn corrections(hyper: &AdamConfig, step: &Step) -> [f32; 2] {
    if !hyper.bias_correction {
        return [1.0; 2];
    }
    assert!(step.number > 0, "optimizer: steps are counted from 1");
    [hyper.beta1, hyper.beta2].map(|beta| (1.0 / (1.0 - libm::pow(beta, step.number as f64))) as f32)
}
