//! Writes shards so that a reader never sees half of one.
//!
//! A file is written under a temporary name in the same directory, flushed to the disk, renamed, and the directory is
//! flushed: after a crash or a full disk there is the whole file or none. Names of finished shards carry the hash of
//! their contents, so a second build in the same directory never overwrites what a present index refers to.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::checksum::Xxh64;
use super::error::DataError;
use super::shard::{HEADER_BYTES, ShardHeader};
use super::split::Side;
use super::vocabulary::Vocabulary;

/// A file under a temporary name; removed when dropped before [`commit`](Self::commit).
pub(super) struct TemporaryFile {
    path: PathBuf,
    pub(super) file: BufWriter<File>,
    committed: bool,
}

impl TemporaryFile {
    pub(super) fn create(folder: &Path, name: &str) -> Result<Self, DataError> {
        // No two files of this name share a temporary one, be it in two processes or twice in this one.
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".{name}.{}-{number}.tmp", std::process::id()));
        let file = File::create(&path).map_err(DataError::io(&path, "write"))?;
        Ok(Self { path, file: BufWriter::with_capacity(1 << 18, file), committed: false })
    }

    /// Flushes to the disk and takes the final name.
    pub(super) fn commit(mut self, name: &str) -> Result<(), DataError> {
        let folder = self.path.parent().expect("made by joining a folder and a name").to_path_buf();
        let path = folder.join(name);
        self.file.flush().map_err(DataError::io(&path, "write"))?;
        self.file.get_ref().sync_all().map_err(DataError::io(&path, "write"))?;
        std::fs::rename(&self.path, &path).map_err(DataError::io(&path, "rename to"))?;
        self.committed = true;
        let handle = File::open(&folder).map_err(DataError::io(&folder, "read"))?;
        handle.sync_all().map_err(DataError::io(&folder, "write"))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.committed {
            // The error that led here is what the user must see; a file that is left behind is harmless.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A shard as the index lists it.
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

/// Collects documents into one shard file.
pub(super) struct ShardWriter {
    folder: PathBuf,
    stem: String,
    header: ShardHeader,
    temporary: Option<TemporaryFile>,
    /// Bytes of the body that are not in the file yet, and the hash and number of those that are.
    pending: Vec<u8>,
    hash: Xxh64,
    written: u64,
    sentence_starts: Vec<u32>,
    document_starts: Vec<u32>,
    sources: Vec<u32>,
    hashes: Vec<u64>,
}

impl ShardWriter {
    /// Shard number `number` of `side` in `folder`. The file appears with the first document.
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
            temporary: None,
            pending: Vec::new(),
            hash: Xxh64::default(),
            written: 0,
            sentence_starts: vec![0],
            document_starts: vec![0],
            sources: Vec::new(),
            hashes: Vec::new(),
        }
    }

    pub(super) fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// Adds a document of sentences that end at `ends` in `ids`; ids are below the vocabulary size and no sentence is
    /// empty.
    pub(super) fn push(&mut self, source: u32, hash: u64, ids: &[u32], ends: &[usize]) -> Result<(), DataError> {
        let total = self.header.tokens + ids.len() as u64;
        if total >= u64::from(u32::MAX) {
            return Err(DataError::setting("document length", total, "less than 2^32 - 1 tokens a shard"));
        }
        match self.header.id_bytes {
            2 => self.pending.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes())),
            _ => self.pending.extend_from_slice(bytemuck::cast_slice(ids)),
        }
        let base = self.header.tokens as u32;
        self.sentence_starts.extend(ends.iter().map(|&end| base + end as u32));
        self.header.tokens = total;
        self.header.sentences += ends.len() as u64;
        self.header.documents += 1;
        self.document_starts.push(self.header.sentences as u32);
        self.sources.push(source);
        self.hashes.push(hash);
        self.write_pending()
    }

    /// Moves the pending bytes to the file, through the hash.
    fn write_pending(&mut self) -> Result<(), DataError> {
        let path = self.folder.join(&self.stem);
        if self.temporary.is_none() {
            let mut temporary = TemporaryFile::create(&self.folder, &self.stem)?;
            temporary.file.write_all(&[0; HEADER_BYTES]).map_err(DataError::io(&path, "write"))?;
            self.temporary = Some(temporary);
        }
        let temporary = self.temporary.as_mut().expect("created above");
        temporary.file.write_all(&self.pending).map_err(DataError::io(&path, "write"))?;
        self.hash.update(&self.pending);
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes indices and header and gives the file its name; `None` if no document came.
    pub(super) fn finish(mut self) -> Result<Option<ShardEntry>, DataError> {
        if self.header.documents == 0 {
            return Ok(None);
        }
        let sections: [Vec<u8>; 4] = [
            bytemuck::cast_slice(&self.sentence_starts).to_vec(),
            bytemuck::cast_slice(&self.document_starts).to_vec(),
            bytemuck::cast_slice(&self.sources).to_vec(),
            bytemuck::cast_slice(&self.hashes).to_vec(),
        ];
        self.pad();
        self.write_pending()?;
        for section in sections {
            self.pending = section;
            self.pad();
            self.write_pending()?;
        }
        self.header.content_hash = self.hash.digest();
        let hash = format!("{:016x}", self.header.content_hash);
        let name = format!("{}-{hash}.shard", self.stem);
        let path = self.folder.join(&name);
        let mut temporary = self.temporary.take().expect("a document was written");
        temporary.file.seek(SeekFrom::Start(0)).map_err(DataError::io(&path, "write"))?;
        temporary.file.write_all(&self.header.to_bytes()).map_err(DataError::io(&path, "write"))?;
        temporary.commit(&name)?;
        Ok(Some(ShardEntry {
            file: name,
            documents: self.header.documents,
            sentences: self.header.sentences,
            tokens: self.header.tokens,
            bytes: HEADER_BYTES as u64 + self.written,
            hash,
        }))
    }

    /// Zeros up to the next multiple of 8 bytes of the file.
    fn pad(&mut self) {
        let total = self.written as usize + self.pending.len();
        self.pending.resize(self.pending.len() + total.next_multiple_of(8) - total, 0);
    }
}
