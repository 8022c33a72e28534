//! The wire format of protocol buffers, as far as a SentencePiece model needs it.
//!
//! ```text
//! message = field*       field = varint(number << 3 | type) payload
//! type 0 varint   1 eight bytes   2 varint length, then that many bytes   5 four bytes
//! ```
//!
//! Nothing is copied: fields borrow from the message. A length is checked against what is left before it is used, so a
//! lying file costs nothing. Groups (types 3 and 4, long deprecated) are refused.
//! Source: Protocol Buffers, "Encoding".

use engine::io::{read_varint, write_varint};

/// What one field holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Payload<'a> {
    Varint(u64),
    Eight,
    Bytes(&'a [u8]),
    Four([u8; 4]),
}

/// One field of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) payload: Payload<'a>,
    /// The field as it stands in the file, tag included.
    pub(super) raw: &'a [u8],
    /// Where the payload starts in the file.
    pub(super) at: usize,
}

impl<'a> Field<'a> {
    /// The payload as bytes.
    pub(super) fn bytes(&self) -> Result<&'a [u8], String> {
        match self.payload {
            Payload::Bytes(bytes) => Ok(bytes),
            _ => Err(self.wrong("a string or a message")),
        }
    }

    /// The payload as text.
    pub(super) fn text(&self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()?).map_err(|error| {
            format!("byte {}: a text that is not UTF-8; the file is damaged", self.at + error.valid_up_to())
        })
    }

    /// The payload as an integer.
    pub(super) fn varint(&self) -> Result<u64, String> {
        match self.payload {
            Payload::Varint(value) => Ok(value),
            _ => Err(self.wrong("an integer")),
        }
    }

    /// The payload as a number.
    pub(super) fn float(&self) -> Result<f32, String> {
        match self.payload {
            Payload::Four(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(self.wrong("a 32-bit number")),
        }
    }

    fn wrong(&self, expected: &str) -> String {
        format!("byte {}: field {} is not {expected}; this is no SentencePiece model", self.at, self.number)
    }
}

/// The fields of a message, in their order.
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the message starts in the file.
    base: usize,
}

impl<'a> Fields<'a> {
    /// The fields of `message`, which starts at byte `base` of the file.
    pub(super) fn new(message: &'a [u8], base: usize) -> Self {
        Self { bytes: message, at: 0, base }
    }

    fn varint(&mut self) -> Result<u64, String> {
        let (value, length) = read_varint(&self.bytes[self.at..])
            .map_err(|problem| format!("byte {}: {problem}", self.base + self.at))?;
        self.at += length;
        Ok(value)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], String> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(len).ok().filter(|&len| len <= left) {
            Some(len) => {
                self.at += len;
                Ok(&self.bytes[self.at - len..self.at])
            }
            None => Err(format!(
                "byte {}: a field of {len} bytes where only {left} are left; the file is cut short or damaged",
                self.base + self.at
            )),
        }
    }

    fn read(&mut self) -> Result<Field<'a>, String> {
        let start = self.at;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|&number| number > 0);
        let Some(number) = number else {
            return Err(format!(
                "byte {}: field number {}; this is no SentencePiece model",
                self.base + start,
                tag >> 3
            ));
        };
        let mut payload_at = self.base + self.at;
        let payload = match tag & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Payload::Eight
            }
            2 => {
                let len = self.varint()?;
                payload_at = self.base + self.at;
                Payload::Bytes(self.take(len)?)
            }
            5 => Payload::Four(self.take(4)?.try_into().expect("four bytes were taken")),
            other => {
                let at = self.base + start;
                return Err(format!("byte {at}: wire type {other}; this is no SentencePiece model"));
            }
        };
        Ok(Field { number, payload, raw: &self.bytes[start..self.at], at: payload_at })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.bytes.len() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.at = self.bytes.len();
        }
        Some(field)
    }
}

/// Appends an integer field.
pub(super) fn write_integer(out: &mut Vec<u8>, number: u32, value: u64) {
    write_varint(out, u64::from(number) << 3);
    write_varint(out, value);
}

/// Appends a string or message field.
pub(super) fn write_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    write_varint(out, u64::from(number) << 3 | 2);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a 32-bit number.
pub(super) fn write_float(out: &mut Vec<u8>, number: u32, value: f32) {
    write_varint(out, u64::from(number) << 3 | 5);
    out.extend_from_slice(&value.to_le_bytes());
}
