//! Checkpoints of TensorFlow 1 (`tf.train.Saver`, format V2), read without TensorFlow.
//!
//! ```text
//! model.ckpt-best.index                  a sorted table (see `table`): "" -> header, name -> place, shape, type, CRC-32C
//! model.ckpt-best.data-00000-of-00001    the tensors' bytes, little-endian, row by row
//! model.ckpt-best.meta                   the graph: not needed
//! ```
//!
//! Opening reads the index and maps the data. A tensor's checksum is verified when it is read: one pass over its bytes.
//! Limits: little-endian files, no partitioned variables; element types f32, f16, bf16 and f64.

mod proto;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::EngineError;
use engine::io::{Mmap, masked_crc};
use proto::{BundleEntry, BundleHeader};

/// Bytes per element of TensorFlow's `DataType`, by its number; 0 for types without a fixed size.
fn element_size(dtype: u64) -> usize {
    match dtype {
        4 | 6 | 10 | 11 | 12 => 1,
        5 | 14 | 15 | 16 | 17 | 19 => 2,
        1 | 3 | 13 | 22 => 4,
        2 | 8 | 9 | 23 => 8,
        18 => 16,
        _ => 0,
    }
}

const FLOAT: u64 = 1;
const DOUBLE: u64 = 2;
const BFLOAT16: u64 = 14;
const HALF: u64 = 19;

/// An opened checkpoint.
#[derive(Debug)]
pub(super) struct Bundle {
    index: PathBuf,
    entries: BTreeMap<String, BundleEntry>,
    shards: BTreeMap<u64, (PathBuf, Mmap)>,
}

impl Bundle {
    /// Opens the checkpoint with the index file `index`.
    ///
    /// # Errors
    /// A file is missing or damaged, or its index is inconsistent.
    pub(super) fn open(index: &Path) -> Result<Self, EngineError> {
        let wrong = |problem: String| EngineError::file(index, format!("not a valid TensorFlow index: {problem}"));
        let map = Mmap::open(index)?;
        let (mut header, mut entries) = (None, BTreeMap::new());
        table::read(&map, |key, value| {
            if key.is_empty() {
                header = Some(BundleHeader::read(value)?);
                return Ok(());
            }
            let name = std::str::from_utf8(key).map_err(|_| "a tensor's name is not UTF-8".to_owned())?;
            let entry = BundleEntry::read(value).map_err(|problem| format!("tensor {name}: {problem}"))?;
            entries.insert(name.to_owned(), entry);
            Ok(())
        })
        .map_err(wrong)?;
        let header = header.ok_or_else(|| wrong("the entry that describes the checkpoint is missing".to_owned()))?;
        if header.big_endian {
            return Err(wrong("it was written on a big-endian machine; write it on a little-endian one".to_owned()));
        }
        if header.min_consumer > 1 {
            return Err(wrong(format!("it is version {}; expected 0 or 1", header.min_consumer)));
        }
        let mut bundle = Self { index: index.to_owned(), entries, shards: BTreeMap::new() };
        bundle.open_shards(header.shards)?;
        bundle.check()?;
        Ok(bundle)
    }

    /// Maps the data files that contain tensors.
    fn open_shards(&mut self, count: u64) -> Result<(), EngineError> {
        let prefix = self.index.with_extension("");
        let name = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (tensor, entry) in &self.entries {
            if entry.shard >= count {
                let problem = format!("tensor {tensor} is in part {}, but there are {count} parts", entry.shard);
                return Err(EngineError::file(&self.index, problem));
            }
            if !self.shards.contains_key(&entry.shard) {
                let path = prefix.with_file_name(format!("{name}.data-{:05}-of-{count:05}", entry.shard));
                if !path.is_file() {
                    let problem = format!("its data is not in the same folder: there is no file {}", path.display());
                    return Err(EngineError::file(&self.index, problem));
                }
                let map = Mmap::open(&path)?;
                self.shards.insert(entry.shard, (path, map));
            }
        }
        Ok(())
    }

    /// Checks that every tensor has as many bytes as its shape requires, and that its file contains them.
    fn check(&self) -> Result<(), EngineError> {
        for (name, entry) in &self.entries {
            let wrong = |problem: String| EngineError::file(&self.index, format!("tensor {name} {problem}"));
            let (path, shard) = &self.shards[&entry.shard];
            let inside = entry.offset.checked_add(entry.size).is_some_and(|end| end <= shard.len() as u64);
            if !inside {
                return Err(wrong(format!(
                    "is {} bytes from byte {} on, but {} has {} bytes; it was cut short, fetch it again",
                    entry.size,
                    entry.offset,
                    path.display(),
                    shard.len()
                )));
            }
            let size = element_size(entry.dtype);
            let expected = entry.shape.iter().try_fold(size, |bytes, &n| bytes.checked_mul(n));
            if size > 0 && !entry.in_parts && expected.map(|bytes| bytes as u64) != Some(entry.size) {
                return Err(wrong(format!("of shape {:?} has {} bytes, which do not fit", entry.shape, entry.size)));
            }
        }
        Ok(())
    }

    /// Names of all tensors, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Shape of a tensor as it is stored.
    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// Reads a float tensor as f32 and verifies its checksum; `transposed` swaps the two dimensions of a matrix.
    ///
    /// # Errors
    /// The tensor is missing or damaged, has another shape, or is not of floats.
    pub(super) fn floats(&self, name: &str, transposed: bool) -> Result<Vec<f32>, EngineError> {
        let wrong = |problem: String| EngineError::file(&self.index, format!("tensor {name} {problem}"));
        let entry = self.entries.get(name).ok_or_else(|| wrong("is missing".to_owned()))?;
        if entry.in_parts {
            return Err(wrong("is stored in parts; save it from one unpartitioned variable".to_owned()));
        }
        let (path, shard) = &self.shards[&entry.shard];
        let bytes = &shard[entry.offset as usize..][..entry.size as usize];
        let found = masked_crc(bytes);
        if found != entry.crc {
            return Err(wrong(format!(
                "has the checksum {found:08x} in {}, but the index says {:08x}: one of them is damaged, fetch them again",
                path.display(),
                entry.crc
            )));
        }
        let values = match entry.dtype {
            FLOAT => convert(bytes, f32::from_le_bytes),
            DOUBLE => convert(bytes, |b| f64::from_le_bytes(b) as f32),
            BFLOAT16 => convert(bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
            HALF => convert(bytes, |b| half::f16::from_le_bytes(b).to_f32()),
            other => return Err(wrong(format!("is of TensorFlow's type {other}; floats were expected"))),
        };
        match *entry.shape {
            [rows, columns] if transposed => Ok(transpose(&values, rows, columns)),
            _ => Ok(values),
        }
    }
}

fn convert<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<N>().0.iter().map(|bytes| convert(*bytes)).collect()
}

/// Transposes `[rows, columns]` in square blocks that stay in cache.
fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const SIDE: usize = 32;
    let mut out = vec![0.0; values.len()];
    for top in (0..rows).step_by(SIDE) {
        for left in (0..columns).step_by(SIDE) {
            for row in top..rows.min(top + SIDE) {
                for column in left..columns.min(left + SIDE) {
                    out[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    out
}
