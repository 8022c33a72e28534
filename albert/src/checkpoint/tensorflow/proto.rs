//! The three protocol-buffer messages of TensorFlow's index, and the few wire types that they use.
//!
//! ```text
//! BundleHeader   1 num_shards   2 endianness (0 little)   3 version { 1 producer, 2 min_consumer }
//! BundleEntry    1 dtype   2 shape { 2 dim { 1 size } repeated, 3 unknown_rank }   3 shard_id   4 offset   5 size
//!                6 crc32c (fixed32, masked)   7 slices (a tensor that is stored in parts)
//! ```
//!
//! Fields that are not named are passed over, as the encoding foresees.

use engine::io::read_varint;

/// A reader of bytes that never reads beyond them.
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| format!("{length} bytes are announced where {} are left", self.0.len()))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A varint.
    pub(super) fn varint(&mut self) -> Result<u64, String> {
        let (number, length) = read_varint(self.0).map_err(|problem| problem.to_string())?;
        self.0 = &self.0[length..];
        Ok(number)
    }

    /// A varint that counts bytes.
    pub(super) fn length(&mut self) -> Result<usize, String> {
        let number = self.varint()?;
        usize::try_from(number).map_err(|_| format!("a length of {number} bytes"))
    }

    /// The next field of a message: its number and value.
    fn field(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Other(self.take(8)?),
            2 => {
                let length = self.length()?;
                Value::Message(self.take(length)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes"))),
            other => return Err(format!("a field of unknown wire type {other}")),
        };
        Ok(Some((tag >> 3, value)))
    }
}

enum Value<'a> {
    Number(u64),
    Message(&'a [u8]),
    Fixed32(u32),
    Other(#[allow(dead_code, reason = "64-bit fields occur in no message that is read")] &'a [u8]),
}

/// What the entry with the empty key says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BundleHeader {
    pub(super) shards: u64,
    pub(super) big_endian: bool,
    pub(super) min_consumer: u64,
}

impl BundleHeader {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let (mut header, mut bytes) = (Self::default(), Bytes::new(bytes));
        while let Some(field) = bytes.field()? {
            match field {
                (1, Value::Number(shards)) => header.shards = shards,
                (2, Value::Number(endianness)) => header.big_endian = endianness != 0,
                (3, Value::Message(version)) => {
                    let mut version = Bytes::new(version);
                    while let Some(field) = version.field()? {
                        if let (2, Value::Number(consumer)) = field {
                            header.min_consumer = consumer;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(header)
    }
}

/// Where one tensor lies.
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
        let (mut entry, mut bytes) = (Self::default(), Bytes::new(bytes));
        while let Some(field) = bytes.field()? {
            match field {
                (1, Value::Number(dtype)) => entry.dtype = dtype,
                (2, Value::Message(shape)) => entry.shape = read_shape(shape)?,
                (3, Value::Number(shard)) => entry.shard = shard,
                (4, Value::Number(offset)) => entry.offset = offset,
                (5, Value::Number(size)) => entry.size = size,
                (6, Value::Fixed32(crc)) => entry.crc = crc,
                (7, Value::Message(_)) => entry.in_parts = true,
                _ => {}
            }
        }
        if entry.dtype == 0 {
            return Err("it has no type".to_owned());
        }
        Ok(entry)
    }
}

fn read_shape(bytes: &[u8]) -> Result<Vec<usize>, String> {
    let (mut shape, mut bytes) = (Vec::new(), Bytes::new(bytes));
    while let Some(field) = bytes.field()? {
        match field {
            (2, Value::Message(dim)) => {
                let (mut size, mut dim) = (0, Bytes::new(dim));
                while let Some(field) = dim.field()? {
                    if let (1, Value::Number(number)) = field {
                        size = number;
                    }
                }
                // Negative sizes mean "unknown" in graphs; they arrive as numbers beyond 2^63.
                let size = i64::try_from(size).map_err(|_| "a shape with a negative size".to_owned())?;
                shape.push(size as usize);
            }
            (3, Value::Number(1)) => return Err("a shape of unknown rank".to_owned()),
            _ => {}
        }
    }
    Ok(shape)
}
