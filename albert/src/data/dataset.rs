//! A data folder: `dataset.json` and the shards that it lists.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use engine::io::{AtomicFile, hash64, limits};
use serde::{Deserialize, Serialize};

use super::error::DataError;
use super::settings::{CorpusSettings, SplitSettings};
use super::shard::Shard;
use super::shard_writer::ShardEntry;
use super::shards::Shards;
use super::split::Side;
use super::vocabulary::Vocabulary;

/// Name of the index file.
pub const INDEX_FILE: &str = "dataset.json";
/// Format name in the index.
pub(super) const FORMAT: &str = "albert-dataset";
/// Version of the index.
pub(super) const VERSION: u32 = 1;

/// Counts of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceCounts {
    /// Path as it was given.
    pub name: String,
    /// Documents, both sides.
    pub documents: u64,
    /// Sentences, both sides.
    pub sentences: u64,
    /// Tokens, both sides.
    pub tokens: u64,
    /// Number of held-out documents.
    pub held_out_documents: u64,
    /// Number of held-out tokens.
    pub held_out_tokens: u64,
}

/// One side of the split in the index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideIndex {
    /// Number of documents.
    pub documents: u64,
    /// Number of sentences.
    pub sentences: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// The files, in order.
    pub shards: Vec<ShardEntry>,
}

/// Statistics of a build.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildReport {
    /// Bytes of text read.
    pub bytes: u64,
    /// Documents kept.
    pub documents: u64,
    /// Copies of an earlier document, ignoring case, punctuation and white space; kept, on the same side.
    pub duplicate_documents: u64,
    /// Byte-identical copies of an earlier document; dropped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_duplicates: u64,
    /// Documents without a token; dropped.
    pub empty_documents: u64,
    /// Documents of one sentence, which have no sentence pair: see `lone_sentence`.
    pub one_sentence_documents: u64,
    /// The first of them, as `file:line`.
    pub one_sentence_places: Vec<String>,
    /// Sentences without a token; dropped.
    pub empty_sentences: u64,
    /// Sentences longer than `longest_sentence`, cut into pieces.
    pub cut_sentences: u64,
    /// The first of their documents, as `file:line`.
    pub cut_places: Vec<String>,
    /// Lines with invalid UTF-8 that were repaired (`lossy`).
    pub repaired_lines: u64,
}

/// True for 0, which is not written: indexes of earlier builds lack the key, and a checksum covers the text.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Index of a data folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// `albert-dataset`.
    pub format: String,
    /// Version of this file.
    pub version: u32,
    /// Fingerprint of the tokenizer, in hexadecimal.
    pub fingerprint: String,
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Settings of reading.
    pub corpus: CorpusSettings,
    /// Settings of the split.
    pub split: SplitSettings,
    /// Counts of each source.
    pub sources: Vec<SourceCounts>,
    /// The training side.
    pub train: SideIndex,
    /// The held-out side.
    pub held_out: SideIndex,
    /// Statistics of the build.
    pub report: BuildReport,
    /// XXH64 of this file with an empty checksum, in hexadecimal.
    pub checksum: String,
}

impl Index {
    /// Text of the file.
    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("an index has string keys and finite numbers");
        text.push(b'\n');
        text
    }

    /// Copy with the right [`checksum`](Self::checksum).
    pub(super) fn with_checksum(&self) -> Self {
        let blank = Self { checksum: String::new(), ..self.clone() };
        Self { checksum: format!("{:016x}", hash64(&blank.text())), ..blank }
    }
}

/// Reads the index of `folder`.
///
/// # Errors
/// [`DataError::NoDataset`] if it is missing, [`DataError::Damaged`] if it is invalid.
pub fn read_index(folder: &Path) -> Result<Index, DataError> {
    let path = folder.join(INDEX_FILE);
    let text = match limits::read(&path, limits::LARGEST_FILE) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Err(DataError::NoDataset { path: folder.to_path_buf() });
        }
        text => text.map_err(DataError::io(&path, "read"))?,
    };
    let index: Index =
        serde_json::from_slice(&text).map_err(|error| DataError::damaged(&path, format!("not an index: {error}")))?;
    if index.format != FORMAT || index.version != VERSION {
        let problem = format!("it is {} version {}; expected {FORMAT} version {VERSION}", index.format, index.version);
        return Err(DataError::damaged(&path, problem));
    }
    if index != index.with_checksum() {
        return Err(DataError::damaged(&path, "its checksum does not match its contents"));
    }
    Ok(index)
}

/// Replaces the index of `folder` atomically through `file`.
pub(super) fn write_index(folder: &Path, mut file: AtomicFile, index: &Index) -> Result<(), DataError> {
    file.write_all(&index.text()).map_err(DataError::io(&folder.join(INDEX_FILE), "write"))?;
    Ok(file.commit()?)
}

/// An open data folder.
#[derive(Debug)]
pub struct Dataset {
    index: Index,
    train: Arc<Shards>,
    held_out: Arc<Shards>,
}

impl Dataset {
    /// Opens and verifies everything in `folder`, which must have been built with `vocabulary`.
    ///
    /// # Errors
    /// [`DataError::NoDataset`], [`DataError::Damaged`], [`DataError::OtherTokenizer`] and read errors, each naming the
    /// file.
    pub fn open(folder: &Path, vocabulary: &Vocabulary) -> Result<Self, DataError> {
        let index = read_index(folder)?;
        let side = |side: Side, listed: &SideIndex| {
            let mut shards = Vec::with_capacity(listed.shards.len());
            for entry in &listed.shards {
                let path = folder.join(&entry.file);
                if !path.exists() {
                    return Err(DataError::damaged(&path, "listed in dataset.json, but missing"));
                }
                let shard = Shard::open(&path)?;
                shard.expect(vocabulary, side)?;
                if format!("{:016x}", shard.header().content_hash) != entry.hash {
                    return Err(DataError::damaged(&path, "its hash differs from that in dataset.json"));
                }
                shards.push(shard);
            }
            Ok(Arc::new(Shards::new(side, shards)?))
        };
        let (train, held_out) = (side(Side::Train, &index.train)?, side(Side::HeldOut, &index.held_out)?);
        Ok(Self { index, train, held_out })
    }

    /// Index of the folder, from `dataset.json`.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The documents of `side`.
    pub fn side(&self, side: Side) -> &Arc<Shards> {
        match side {
            Side::Train => &self.train,
            Side::HeldOut => &self.held_out,
        }
    }
}
