//! Readers of fine-tuning files: published data sets and custom files to examples.
//!
//! ```text
//! file ── reader ──> example ── tokenizer ──> feature ── model ──> prediction ── decoding ──> answer ── metric
//!                    this module              `finetune`, spans: `span`                          `metrics`
//! ```
//!
//! Examples contain the text of the file, unchanged. Readers stream, so a file may have any size. An example that is skipped
//! is reported as a [`Remark`].
//!
//! Limits, for any content: time is linear in the file size; memory with all examples kept is at most 64 times the file size plus 64 MiB;
//! JSON may have at most 128 levels in parts that are read, and any number in parts that are skipped; messages are short.

mod choice;
mod classes;
mod conll;
mod csv;
mod error;
mod example;
mod feature;
mod glue;
mod json;
mod lines;
pub use example::{Answer, Choice};
pub(crate) use lines::ending;
mod race;
mod reader;
mod squad;
mod submission;
mod table;

#[cfg(test)]
mod tests;

pub use crate::metrics::Level;
pub use choice::read_choices;
pub(crate) use conll::labels_of_words;
pub use conll::{TagColumns, labels_of_tagged, read_tagged};
pub(crate) use error::listed;
pub use error::{Place, TaskError};
pub use example::{Label, Problem, Question, Tagged, Text};
pub(crate) use feature::Sequence;
pub use glue::{GlueTask, Split, UnknownTask};
pub use race::{read_race, read_race_at};
pub use reader::{Example, Purpose, Reader, Remark, RemarkKind, Unusable};
pub use squad::read_squad;
pub use submission::write_submission;
pub(crate) use table::labels_of;
pub use table::{TextColumns, labels_of_texts, read_texts};
