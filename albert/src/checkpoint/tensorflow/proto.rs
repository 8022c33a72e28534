//! Protocol-buffer messages of a TensorFlow index.
//!
//! ```text
//! BundleHeader   1 num_shards   2 endianness (0 little)   3 version { 1 producer, 2 min_consumer }
//! BundleEntry    1 dtype   2 shape { 2 dim { 1 size } repeated, 3 unknown_rank }   3 shard_id   4 offset   5 size
//!                6 crc32c (fixed32, masked)   7 slices (a tensor that is stored in parts)
//! ```
//!
//! Other fields are skipped.

use engine::io::proto::{Reader, Value};

/// Value of the entry with the empty key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BundleHeader {
    pub(super) shards: u64,
    pub(super) big_endian: bool,
    pub(super) min_consumer: u64,
}

impl BundleHeader {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut header = Self::default();
        for field in Reader::new(bytes, 0) {
            let field = field?;
            match (field.number, field.value) {
                (1, Value::Varint(shards)) => header.shards = shards,
                (2, Value::Varint(endianness)) => header.big_endian = endianness != 0,
                (3, Value::Bytes(version)) => {
                    header.min_consumer = last_integer(version, 2)?.unwrap_or(header.min_consumer);
                }
                _ => {}
            }
        }
        Ok(header)
    }
}

/// Location and type of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BundleEntry {
    pub(super) dtype: u64,
    pub(super) shape: Vec<usize>,
    pub(super) shard: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) crc: u32,
    pub(super) in_parts: bool,
}

impl BundleEntry {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut entry = Self::default();
        for field in Reader::new(bytes, 0) {
            let field = field?;
            match (field.number, field.value) {
                (1, Value::Varint(dtype)) => entry.dtype = dtype,
                (2, Value::Bytes(shape)) => entry.shape = read_shape(shape)?,
                (3, Value::Varint(shard)) => entry.shard = shard,
                (4, Value::Varint(offset)) => entry.offset = offset,
                (5, Value::Varint(size)) => entry.size = size,
                (6, Value::Fixed32(crc)) => entry.crc = crc,
                (7, Value::Bytes(_)) => entry.in_parts = true,
                _ => {}
            }
        }
        if entry.dtype == 0 {
            return Err("it has no type".to_owned());
        }
        Ok(entry)
    }
}

/// The last integer field `number` of a message.
fn last_integer(message: &[u8], number: u32) -> Result<Option<u64>, String> {
    let mut found = None;
    for field in Reader::new(message, 0) {
        let field = field?;
        if let (true, Value::Varint(value)) = (field.number == number, field.value) {
            found = Some(value);
        }
    }
    Ok(found)
}

fn read_shape(bytes: &[u8]) -> Result<Vec<usize>, String> {
    let mut shape = Vec::new();
    for field in Reader::new(bytes, 0) {
        let field = field?;
        match (field.number, field.value) {
            (2, Value::Bytes(dim)) => {
                let size = last_integer(dim, 1)?.unwrap_or(0);
                // Negative sizes mean "unknown" in graphs; they arrive as numbers beyond 2^63.
                let size = i64::try_from(size).map_err(|_| "a shape with a negative size".to_owned())?;
                shape.push(size as usize);
            }
            (3, Value::Varint(1)) => return Err("a shape of unknown rank".to_owned()),
            _ => {}
        }
    }
    Ok(shape)
}
