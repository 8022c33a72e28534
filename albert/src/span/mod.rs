//! Answers as parts of passages: windows that a model reads, and answers from what it says of them.
//!
//! ```text
//! question, passage ── features ──> windows ── model ──> scores of tokens ── decode ──> answers, null score
//!                      [CLS] question [SEP] part of the passage [SEP]
//! ```
//!
//! | file            | what                                                            |
//! |-----------------|-----------------------------------------------------------------|
//! | `features.rs`   | windows, the tokens of the right answer, which window owns what |
//! | `decode.rs`     | the n best answers, from both heads; the null score             |
//! | `threshold.rs`  | from which null score on there is no answer                     |
//! | `ensemble.rs`   | several models as one                                           |
//!
//! Tokens know the bytes of the passage that they cover, so answers are cut from the passage as it was written.
//! Nothing here needs a model.

mod decode;
mod ensemble;
mod features;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
mod threshold;

pub use decode::{Answers, BeamStart, Candidate, DecodeSettings, WindowScores, decode, log_softmax, top};
pub use ensemble::{Absent, average};
pub use features::{GoldSpan, SpanError, SpanFeature, SpanFeatures, SpanSettings, features, locate, windows_of};
pub use threshold::{Threshold, tune};
