//! What a model is fine-tuned on: files as they are published, read into examples.
//!
//! ```text
//! file ── reader ──> example ── tokenizer ──> feature ── model ──> prediction ── decoding ──> answer ── metric
//!                    this module              `finetune`, spans: `span`                          `metrics`
//! ```
//!
//! An example is text, as the file has it; nothing is cut or lowered here. Readers stream, so a file may be of any
//! size. A reader never leaves an example out silently.
//!
//! Limits of every reader, whatever the file holds: time is linear in its size; with all examples kept, memory is at
//! most 64 times its size and 64 MiB; JSON is nested 128 deep at most where it is read, and to any depth where it is
//! skipped; messages are short.

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
mod race;
mod reader;
mod squad;
mod submission;
mod table;

#[cfg(test)]
mod tests;

pub use choice::read_choices;
pub use conll::{TagColumns, labels_of_tagged, read_tagged};
pub(crate) use error::listed;
pub use error::{Place, TaskError};
pub use example::{Answer, Choice, Label, Level, Problem, Question, Tagged, Text};
pub use feature::Sequence;
pub use glue::{GlueTask, Split, UnknownTask};
pub use race::{read_race, read_race_at};
pub use reader::{Example, Purpose, Reader, Remark, RemarkKind};
pub use squad::read_squad;
pub use submission::write_submission;
pub use table::{TextColumns, labels_of_texts, read_texts};
