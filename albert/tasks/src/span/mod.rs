//! Extractive question answering: windows over passages, and answers from token scores.
//!
//! ```text
//! question, passage ── features ──> windows ── model ──> scores of tokens ── decode ──> answers, null score
//!                      [CLS] question [SEP] part of the passage [SEP]
//! ```
//!
//! | file            | content                                                         |
//! |-----------------|-----------------------------------------------------------------|
//! | `features.rs`   | windows, position of the correct answer                         |
//! | `decode.rs`     | the n best answers, from both heads; the null score             |
//! | `threshold.rs`  | thresholds on null scores                                       |
//! | `ensemble.rs`   | ensembles of models                                             |
//!
//! Tokens have source bytes, so answers are substrings of the original passage. This module does not depend on a model.

mod decode;
mod ensemble;
mod features;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
mod threshold;

pub use decode::Candidate;
pub use decode::{Answers, DecodeSettings};
pub(crate) use decode::{BeamStart, WindowScores, decode, log_softmax, top};
pub(crate) use ensemble::average;
pub(crate) use features::{GoldSpan, SpanFeature, SpanSettings, features};
pub use threshold::Threshold;
pub(crate) use threshold::tune;
