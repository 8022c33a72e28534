//! Shard writer.
//!
//! A shard is written by [`engine::io::write_atomically`] under a name that contains the hash of its contents: after a crash or with a
//! full disk the file is complete or missing, and another build in the same folder never overwrites the shards of an index.
//!
//! Memory: the shard until it is written, 2 or 4 bytes a token, 4 a sentence and 16 a document.

use std::hash::Hasher as _;
use std::path::{Path, PathBuf};

use engine::io::{XxHash64, write_atomically};
use serde::{Deserialize, Serialize};

use super::error::DataError;
use super::shard::{HEADER_BYTES, ShardHeader};
use super::split::Side;
use super::vocabulary::Vocabulary;

/// A shard in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// File name in the data directory.
    pub file: String,
    /// Number of documents.
    pub documents: u64,
    /// Number of sentences.
    pub sentences: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Size of the file.
    pub bytes: u64,
    /// XXH64 of the contents after the header, in hexadecimal.
    pub hash: String,
}

/// Ids at their stored width.
enum Ids {
    U16(Vec<u16>),
    U32(Vec<u32>),
}

/// Collects the documents of one shard file.
pub(super) struct ShardWriter {
    folder: PathBuf,
    stem: String,
    header: ShardHeader,
    ids: Ids,
    sentence_starts: Vec<u32>,
    document_starts: Vec<u32>,
    sources: Vec<u32>,
    hashes: Vec<u64>,
}

impl ShardWriter {
    /// Shard number `number` of `side` in `folder`.
    pub(super) fn new(folder: &Path, side: Side, number: usize, vocabulary: &Vocabulary) -> Self {
        let header = ShardHeader {
            id_bytes: ShardHeader::id_bytes_for(vocabulary.size()),
            fingerprint: vocabulary.fingerprint(),
            vocab_size: vocabulary.size() as u64,
            documents: 0,
            sentences: 0,
            tokens: 0,
            side: side as u32,
            content_hash: 0,
        };
        Self {
            folder: folder.to_path_buf(),
            stem: format!("{}-{number:05}", side.name()),
            header,
            ids: if header.id_bytes == 2 { Ids::U16(Vec::new()) } else { Ids::U32(Vec::new()) },
            sentence_starts: vec![0],
            document_starts: vec![0],
            sources: Vec::new(),
            hashes: Vec::new(),
        }
    }

    /// Tokens so far.
    pub(super) fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// Adds a document with sentences that end at `ends` in `ids`; ids must be below the vocabulary size and no
    /// sentence may be empty.
    pub(super) fn push(&mut self, source: u32, hash: u64, ids: &[u32], ends: &[usize]) -> Result<(), DataError> {
        let total = self.header.tokens + ids.len() as u64;
        if total >= u64::from(u32::MAX) {
            return Err(DataError::setting("document length", total, "less than 2^32 - 1 tokens a shard"));
        }
        match &mut self.ids {
            Ids::U16(all) => all.extend(ids.iter().map(|&id| id as u16)),
            Ids::U32(all) => all.extend_from_slice(ids),
        }
        let base = self.header.tokens as u32;
        self.sentence_starts.extend(ends.iter().map(|&end| base + end as u32));
        self.header.tokens = total;
        self.header.sentences += ends.len() as u64;
        self.header.documents += 1;
        self.document_starts.push(self.header.sentences as u32);
        self.sources.push(source);
        self.hashes.push(hash);
        Ok(())
    }

    /// Writes the file; `None` if it has no document.
    pub(super) fn finish(mut self) -> Result<Option<ShardEntry>, DataError> {
        if self.header.documents == 0 {
            return Ok(None);
        }
        let ids: &[u8] = match &self.ids {
            Ids::U16(ids) => bytemuck::cast_slice(ids),
            Ids::U32(ids) => bytemuck::cast_slice(ids),
        };
        let sections: [&[u8]; 5] = [
            ids,
            bytemuck::cast_slice(&self.sentence_starts),
            bytemuck::cast_slice(&self.document_starts),
            bytemuck::cast_slice(&self.sources),
            bytemuck::cast_slice(&self.hashes),
        ];
        let padded = sections.iter().flat_map(|s| [*s, &[0; 8][..s.len().next_multiple_of(8) - s.len()]]);
        let (mut hasher, mut bytes) = (XxHash64::with_seed(0), HEADER_BYTES as u64);
        for part in padded.clone() {
            hasher.write(part);
            bytes += part.len() as u64;
        }
        self.header.content_hash = hasher.finish();
        let hash = format!("{:016x}", self.header.content_hash);
        let file = format!("{}-{hash}.shard", self.stem);
        write_atomically(self.folder.join(&file), |out| {
            out.write_all(&self.header.to_bytes())?;
            padded.clone().try_for_each(|part| out.write_all(part))
        })?;
        let ShardHeader { documents, sentences, tokens, .. } = self.header;
        Ok(Some(ShardEntry { file, documents, sentences, tokens, bytes, hash }))
    }
}

/// True if `name` is a file name of [`ShardWriter`].
pub(super) fn is_shard_name(name: &str) -> bool {
    let digits = |part: Option<&str>, len, radix| {
        part.is_some_and(|p| p.len() == len && p.chars().all(|c| c.is_digit(radix) && !c.is_uppercase()))
    };
    let Some(mut parts) = name.strip_suffix(".shard").map(|stem| stem.split('-')) else { return false };
    let is_side = parts.next().is_some_and(|side| Side::ALL.iter().any(|s| s.name() == side));
    is_side && digits(parts.next(), 5, 10) && digits(parts.next(), 16, 16) && parts.next().is_none()
}
