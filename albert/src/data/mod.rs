//! Pre-training data: text files to ragged batches.
//!
//! ```text
//! text files --corpus--> documents --build--> shards (one file: ids, sentence and document index, hashes)
//!                                               |
//!                          epoch's instances (16 bytes each, shuffled) = f(seed, epoch)
//!                                               |
//!                          batch: [CLS] A [SEP] B [SEP], masked = f(seed, epoch, position)
//! ```
//! Every random choice is drawn from a Philox stream that is keyed by its purpose, the epoch and the position of the instance
//! in the epoch. A run therefore resumes exactly from a cursor (epoch, position), and instances depend neither on threads nor
//! on batch sizes.
//!
//! Source: Lan et al. 2020, section 3.1 (SOP) and 4.1 (masking), and the released data script, whose defects are
//! fixed by default (`settings`).

pub(crate) mod batch;
pub mod build;
#[cfg(test)]
mod build_tests;
pub(crate) mod corpus;
pub mod dataset;
mod encode;
pub(crate) mod error;
pub(crate) mod evaluation;
#[cfg(test)]
mod evaluation_tests;
pub mod inspect;
pub(crate) mod instances;
mod json_lines;
pub(crate) mod masking;
#[cfg(test)]
mod masking_tests;
pub(crate) mod prefetch;
#[cfg(test)]
mod rank_tests;
pub(crate) mod sampler;
#[cfg(test)]
mod sampler_tests;
pub(crate) mod sentences;
pub(crate) mod settings;
pub mod shard;
mod shard_writer;
pub(crate) mod shards;
pub(crate) mod sources;
pub mod split;
#[cfg(test)]
mod testing;
pub(crate) mod vocabulary;
mod words;

pub(crate) use batch::BatchCapacity;
pub use batch::{Batch, Cursor};
pub use build::{build, build_with};
pub use corpus::{Document, Documents};
pub use dataset::{BuildReport, Dataset, Index};
pub use error::DataError;
pub(crate) use evaluation::{Baseline, EvaluationSet, Unigram};
pub use inspect::{Inspection, inspect};
pub use shards::Shards;

pub use masking::MaskingStatistics;
pub use prefetch::Prefetch;
pub use sampler::Sampler;
pub use settings::is_one;
pub use settings::{
    BatchSettings, CorpusSettings, DataSettings, Duplicates, EvaluationSettings, InstanceSettings, LoneSentence,
    MaskingSettings, Objective, SplitSettings, TextLayout,
};

pub use shard_writer::ShardEntry;
pub use sources::{Source, bytes_read, files};
pub use split::{Side, Splitter};
pub use vocabulary::Vocabulary;
pub use words::count_words;
