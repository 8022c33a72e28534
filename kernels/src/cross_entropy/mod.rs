//! Softmax cross-entropy: fused with the projection onto a vocabulary; of plain rows for few classes; and of rows of
//! different lengths, where the label is one token of each sequence.
//!
//! ```text
//! z = h·Wᵀ + b               h [M, E], W [V, E], b [V]      logits [M, V]
//! g = max z      s = Σ exp(z - g)      loss = ln s + (g - z[label])      prediction = argmax z
//!
//! dz = (exp(z - g) / s - onehot(label)) · dloss
//! dh = dz·W              dW += dzᵀ·h              db += Σ_rows dz
//! ```
//!
//! Logits are computed in chunks that stay in L2 from the product to the sums of their rows. A forward pass without a
//! backward pass reuses one buffer; otherwise all logits are kept (the largest matrix of a step: 600 x 30,000 are 72 MB),
//! which costs less than recomputing the product.
//!
//! ```text
//!            V: chunks of 512 classes
//!         ┌──────┬──────┬──────┐      for each chunk of rows, for each chunk of classes:
//!   512   │ z    │      │      │        forward   z = h·Wᵀ + b       running (max, Σ exp) of each row: online softmax
//!   rows  ├──────┼──────┼──────┤        backward  dz from the kept z
//!         │      │      │      │                  dh += dz·W    dW[chunk] += dzᵀ·h    db[chunk] += Σ dz
//!         └──────┴──────┴──────┘
//! ```
//!
//! The running maximum and sum are those of Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
//!
//! A row's normalizer is the pair (g, 1/s). A single f32 log-sum-exp would have a rounding error of half an ulp of about
//! ln V, which biases all probabilities of the row in the same direction: gradients before the vocabulary would be up to three
//! times as far from f64 as PyTorch's.
//!
//! Cost: forward 2·M·V·E FLOP, backward 4·M·V·E; W is read once for every 512 rows.
//! Chunks are cut by shape, rows and columns of a chunk by [`crate::gemm`] and [`crate::reduce`]: equal bits for any
//! number of threads. A label of [`IGNORED`] has no loss and no gradient.
//!
//! Limits: sums over classes are f32. Equal greatest logits: the first class is the prediction.
//!
//! ```
//! use kernels::{Cpu, cross_entropy::{IGNORED, Losses, rows_forward}};
//!
//! let logits = [0.0f32, 0.0, 0.0, 2.0]; // [2, 2]
//! let (mut losses, mut norms, mut predictions) = ([0.0; 2], [0.0; 4], [0; 2]);
//! let results = Losses { losses: &mut losses, norms: &mut norms, predictions: &mut predictions };
//! rows_forward(&Cpu::detect()?, 2, &logits, &[1, IGNORED], results);
//! assert!((losses[0] - 2f32.ln()).abs() < 1e-6 && losses[1] == 0.0);
//! assert_eq!(predictions, [0, 1]);
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;
mod projection;

pub use cpu::{Losses, Upstream, rows_backward, rows_forward, sequences_backward, sequences_forward};
pub use projection::{Projection, TableGradients, backward, forward, scratch_len};

/// Label of a row without loss and gradient.
pub const IGNORED: u32 = u32::MAX;

/// Counts the rows with a label, and those with a correct prediction.
pub fn count_correct(labels: &[u32], predictions: &[u32]) -> (usize, usize) {
    let labeled = || labels.iter().zip(predictions).filter(|(label, _)| **label != IGNORED);
    (labeled().count(), labeled().filter(|(label, prediction)| label == prediction).count())
}
