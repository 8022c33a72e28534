//! A shard: one file of tokenized documents, read in place.
//!
//! ```text
//!   0  magic "ALBSHARD"          40  sentences     u64       section (each padded to 8 bytes)
//!   8  version          u32      48  tokens        u64       ids               tokens x u16 or u32
//!  12  bytes an id      u32      56  side          u32       sentence starts   (sentences + 1) x u32, into ids
//!  16  fingerprint      u64      60  reserved, 0   u32       document starts   (documents + 1) x u32, into sentences
//!  24  vocabulary size  u64      64  hash of the rest        document sources  documents x u32
//!  32  documents        u64      72  hash of bytes 0..72     document hashes   documents x u64
//! ```
//! All little-endian; ids are u16 if the vocabulary has at most 65,536 pieces. The header has its own hash, which distinguishes a damaged
//! header from a damaged body, and its counts determine the file size, which distinguishes a truncated file from a changed one. Opening
//! reads every byte once (about 8 GB/s from memory); the file is mapped, not copied.
//!
//! Limits: 2^32 - 1 tokens a shard; little-endian machines.

use std::ops::Range;
use std::path::{Path, PathBuf};

use engine::io::{Mmap, hash64};

use super::error::DataError;
use super::split::Side;
use super::vocabulary::Vocabulary;

#[cfg(target_endian = "big")]
compile_error!("shards are read in place and contain little-endian numbers");

/// First bytes of a shard.
pub(crate) const MAGIC: [u8; 8] = *b"ALBSHARD";
/// Version of the layout.
pub(crate) const VERSION: u32 = 1;
/// Bytes before the first section.
pub const HEADER_BYTES: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardHeader {
    /// Bytes per id, 2 or 4.
    pub id_bytes: u32,
    /// Fingerprint of the tokenizer.
    pub fingerprint: u64,
    /// Vocabulary size, V.
    pub vocab_size: u64,
    /// Number of documents.
    pub documents: u64,
    /// Number of sentences.
    pub sentences: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// 0 train, 1 held out.
    pub side: u32,
    /// XXH64 of everything after the header.
    pub content_hash: u64,
}

impl ShardHeader {
    /// Bytes per id for a vocabulary of `vocab_size` pieces.
    pub(crate) fn id_bytes_for(vocab_size: usize) -> u32 {
        if vocab_size <= 1 << 16 { 2 } else { 4 }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.id_bytes.to_le_bytes());
        let words = [self.fingerprint, self.vocab_size, self.documents, self.sentences, self.tokens];
        for (i, word) in words.into_iter().enumerate() {
            bytes[16 + 8 * i..24 + 8 * i].copy_from_slice(&word.to_le_bytes());
        }
        bytes[56..60].copy_from_slice(&self.side.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.content_hash.to_le_bytes());
        let hash = hash64(&bytes[..72]);
        bytes[72..].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < HEADER_BYTES {
            return Err(format!("cut short: {} bytes, and a shard has at least {HEADER_BYTES}", bytes.len()));
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        if bytes[..8] != MAGIC {
            return Err("not a shard: it does not begin with ALBSHARD".into());
        }
        if half(8) != VERSION {
            return Err(format!("shard version {}; expected {VERSION}", half(8)));
        }
        if word(72) != hash64(&bytes[..72]) {
            return Err("its header is damaged".into());
        }
        let header = Self {
            id_bytes: half(12),
            fingerprint: word(16),
            vocab_size: word(24),
            documents: word(32),
            sentences: word(40),
            tokens: word(48),
            side: half(56),
            content_hash: word(64),
        };
        let counts_fit = [header.documents, header.sentences, header.tokens].iter().all(|&n| n < u64::from(u32::MAX));
        if !counts_fit || !matches!(header.id_bytes, 2 | 4) || header.side > 1 {
            return Err("its header has impossible counts".into());
        }
        Ok(header)
    }

    fn sections(&self) -> Sections {
        let mut end = HEADER_BYTES;
        let mut section = |bytes: u64| {
            let start = end;
            // No overflow: counts are below 2^32 and items at most 8 bytes.
            end = start + (bytes as usize).next_multiple_of(8);
            start..start + bytes as usize
        };
        Sections {
            ids: section(self.tokens * u64::from(self.id_bytes)),
            sentence_starts: section((self.sentences + 1) * 4),
            document_starts: section((self.documents + 1) * 4),
            _sources: section(self.documents * 4),
            hashes: section(self.documents * 8),
            end,
        }
    }
}

/// Byte ranges of the sections in the file.
#[derive(Clone, Debug)]
struct Sections {
    ids: Range<usize>,
    sentence_starts: Range<usize>,
    document_starts: Range<usize>,
    _sources: Range<usize>,
    hashes: Range<usize>,
    end: usize,
}

/// An opened and verified shard.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    bytes: Mmap,
    header: ShardHeader,
    sections: Sections,
}

impl Shard {
    /// Opens `path` and checks header, size, hash, index order and id range.
    ///
    /// # Errors
    /// [`DataError::File`] if it cannot be read, [`DataError::Damaged`] if it is not a whole, unchanged shard.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        // A map begins at a page, so the sections are aligned for their types.
        let bytes = Mmap::open(path)?;
        let header = ShardHeader::from_bytes(&bytes).map_err(|problem| DataError::damaged(path, problem))?;
        let sections = header.sections();
        let shard = Self { path: path.to_path_buf(), bytes, header, sections };
        shard.verify().map_err(|problem| DataError::damaged(path, problem))?;
        Ok(shard)
    }

    fn verify(&self) -> Result<(), String> {
        let (found, expected) = (self.bytes.len(), self.sections.end);
        if found < expected {
            return Err(format!("cut short: {found} of {expected} bytes"));
        }
        if found > expected {
            return Err(format!("{} bytes longer than its header says", found - expected));
        }
        let hash = hash64(&self.bytes[HEADER_BYTES..]);
        if hash != self.header.content_hash {
            return Err(format!(
                "its contents are damaged (hash {hash:016x}, expected {:016x})",
                self.header.content_hash
            ));
        }
        // Always true for files of our writer; a forged file must not cause a panic later.
        let rises = |starts: &[u32], last: u64| {
            starts[0] == 0 && u64::from(starts[starts.len() - 1]) == last && starts.is_sorted_by(|a, b| a < b)
        };
        if !rises(self.sentence_starts(), self.header.tokens) || !rises(self.document_starts(), self.header.sentences) {
            return Err("its index is out of order".into());
        }
        let largest = match self.ids() {
            Ids::U16(ids) => ids.iter().copied().max().map(u64::from),
            Ids::U32(ids) => ids.iter().copied().max().map(u64::from),
        };
        if largest.is_some_and(|id| id >= self.header.vocab_size) {
            return Err("it has ids beyond its vocabulary".into());
        }
        Ok(())
    }

    /// Checks that the shard was built with `vocabulary` for `side`.
    ///
    /// # Errors
    /// [`DataError::OtherTokenizer`], or [`DataError::Damaged`] for a shard of the wrong side.
    pub(crate) fn expect(&self, vocabulary: &Vocabulary, side: Side) -> Result<(), DataError> {
        if self.header.fingerprint != vocabulary.fingerprint() || self.header.vocab_size != vocabulary.size() as u64 {
            return Err(DataError::OtherTokenizer {
                path: self.path.clone(),
                found: self.header.fingerprint,
                expected: vocabulary.fingerprint(),
            });
        }
        if Side::ALL[self.header.side as usize] != side {
            return Err(DataError::damaged(&self.path, format!("not a shard of the {} split", side.name())));
        }
        Ok(())
    }

    pub(crate) fn header(&self) -> &ShardHeader {
        &self.header
    }

    /// All token ids, document after document.
    pub fn ids(&self) -> Ids<'_> {
        let bytes = &self.bytes[self.sections.ids.clone()];
        match self.header.id_bytes {
            2 => Ids::U16(bytemuck::cast_slice(bytes)),
            _ => Ids::U32(bytemuck::cast_slice(bytes)),
        }
    }

    /// Sentence s is tokens `starts[s]..starts[s + 1]`.
    pub fn sentence_starts(&self) -> &[u32] {
        bytemuck::cast_slice(&self.bytes[self.sections.sentence_starts.clone()])
    }

    /// Document d is sentences `starts[d]..starts[d + 1]`.
    pub fn document_starts(&self) -> &[u32] {
        bytemuck::cast_slice(&self.bytes[self.sections.document_starts.clone()])
    }

    /// Content hash of each document.
    pub(crate) fn document_hashes(&self) -> &[u64] {
        bytemuck::cast_slice(&self.bytes[self.sections.hashes.clone()])
    }
}

/// Token ids of a shard.
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    /// Vocabularies of at most 65,536 pieces.
    U16(&'a [u16]),
    /// Larger vocabularies.
    U32(&'a [u32]),
}

impl Ids<'_> {
    /// Appends the ids in `range` to `out`.
    #[inline]
    pub fn append_to(self, range: Range<usize>, out: &mut Vec<u32>) {
        match self {
            Self::U16(ids) => out.extend(ids[range].iter().map(|&id| u32::from(id))),
            Self::U32(ids) => out.extend_from_slice(&ids[range]),
        }
    }

    /// The id at `index`.
    #[inline]
    pub(crate) fn get(self, index: usize) -> u32 {
        match self {
            Self::U16(ids) => u32::from(ids[index]),
            Self::U32(ids) => ids[index],
        }
    }

    /// Number of ids.
    pub fn len(self) -> usize {
        match self {
            Self::U16(ids) => ids.len(),
            Self::U32(ids) => ids.len(),
        }
    }

    /// True if there are no ids.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}
