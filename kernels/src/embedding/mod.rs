//! Embedding: rows of tables gathered and summed; gradients scattered back in a fixed order.
//!
//! ```text
//! out[t] = Σ_k table_k[ids_k[t]]                  [T, E]: word + segment + position of a token
//! dtable[v] += Σ_{t: ids[t] = v} dout[t]          [V, E]
//! ```
//!
//! Backward sorts the tokens by id (counting sort, stable), so that one task sums each row of the table in order of tokens:
//! no atomics, and equal bits for any number of threads.
//!
//! ```text
//! ids      4 1 4 0 1                       tasks: blocks of rows of the table
//! offsets  0 1 3 3 3 5    (V + 1)          ┌ 0 ┐ dtable[0] += dout[3]
//! order    3 | 1 4 | | | 0 2               ├ 1 ┤ dtable[1] += dout[1] + dout[4]
//!          0   1         4                 └ 4 ┘ dtable[4] += dout[0] + dout[2]
//! ```
//!
//! Cost: forward reads T·E elements of each table and writes T·E; backward reads T·E, and reads and writes every used row.
//! Sorting takes T + V steps of one thread, a few microseconds.
//!
//! Tables are the f32 masters: a step reads few rows of a table, so a bf16 copy would cost more than it saves. Activations
//! are f32 or bf16. Limits: ids and T below 2³².
//!
//! ```
//! use kernels::{Cpu, embedding::{Lookup, forward}};
//!
//! let (words, positions) = ([1.0f32, 2.0, 3.0, 4.0], [0.5f32, 0.25]); // [2, 2] and [1, 2]
//! let mut out = [0.0f32; 4];
//! let lookups = [Lookup { ids: &[1, 0], table: &words }, Lookup { ids: &[0, 0], table: &positions }];
//! forward(&Cpu::detect()?, 2, lookups, &mut out);
//! assert_eq!(out, [3.5, 4.25, 1.5, 2.25]);
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;

pub use cpu::{backward, backward_scratch_len, forward};

/// Table, and its row for each token.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// `[T]`, each below V
    pub ids: &'a [u32],
    /// [V, E]
    pub table: &'a [f32],
}
