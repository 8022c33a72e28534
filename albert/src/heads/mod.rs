//! Task heads on top of the encoder.
//!
//! ```text
//! MLM        h = LayerNorm_E(act(x[masked]·Wᵀ + b))      [M, E]       only masked positions, gathered first
//!            z = h·word_embeddingsᵀ + bias               [M, V]       never stored as a whole
//!            loss = Σ nll / M
//! pooler     p = tanh(x[first]·Wᵀ + b)                   [B, H]       the [CLS] token of each sequence
//! sentence   z = p·Wᵀ + b                                [B, 2]       0 in order, 1 swapped
//!            loss = Σ nll / B
//! task       see `task`: classification of sequences and tokens, regression, choices, spans
//! ```
//!
//! Source: the released code.

mod mlm;
mod sentence;
mod span;
mod squad_v2;
mod task;

pub use mlm::MlmHead;
pub use sentence::{Pooler, SentenceHead};
pub use span::SpanHead;
pub use squad_v2::SquadV2Head;
pub use task::{Classifier, Task};

/// Dropout site of the heads, greater than all of the encoder's.
const SITE: u64 = u32::MAX as u64;
