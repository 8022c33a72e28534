//! Protocol-buffer messages, field by field.
//!
//! ```text
//! message = field*       field = varint(number << 3 | type) payload
//! type 0 varint   1 eight bytes   2 varint length, then that many bytes   5 four bytes
//! varint: 7 bits a byte, the lowest first; bit 7 is set in all bytes but the last
//! ```
//!
//! Fields borrow from the message. A length is checked against the bytes that are left before it is used, so memory stays
//! proportional to the input. Errors name the byte of the file. Groups (types 3 and 4, deprecated) are refused.
//! Source: Protocol Buffers, "Encoding".

/// Payload of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer, a boolean or an enumeration.
    Varint(u64),
    /// Eight bytes, little-endian.
    Fixed64(u64),
    /// A string, a message or packed numbers.
    Bytes(&'a [u8]),
    /// Four bytes, little-endian.
    Fixed32(u32),
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// Field number, at least 1.
    pub number: u32,
    /// Payload.
    pub value: Value<'a>,
    /// The encoded field, tag included.
    pub raw: &'a [u8],
    /// Position of the payload in the file.
    pub at: usize,
}

impl<'a> Field<'a> {
    /// The payload as bytes.
    ///
    /// # Errors
    /// The field has another wire type.
    pub fn bytes(&self) -> Result<&'a [u8], String> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(self.wrong("a string or a message")),
        }
    }

    /// The payload as text.
    ///
    /// # Errors
    /// The field has another wire type, or it is not UTF-8.
    pub fn text(&self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()?).map_err(|error| {
            format!("byte {}: text that is not UTF-8; the file is damaged", self.at + error.valid_up_to())
        })
    }

    /// The payload as an integer.
    ///
    /// # Errors
    /// The field has another wire type.
    pub fn varint(&self) -> Result<u64, String> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(self.wrong("an integer")),
        }
    }

    /// The payload as an f32.
    ///
    /// # Errors
    /// The field has another wire type.
    pub fn float(&self) -> Result<f32, String> {
        match self.value {
            Value::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(self.wrong("a 32-bit number")),
        }
    }

    fn wrong(&self, expected: &str) -> String {
        format!("byte {}: field {} is not {expected}; the file is damaged or of another format", self.at, self.number)
    }
}

/// Reader of bytes that never reads past their end. As an iterator it yields the fields of a message and ends after an error.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// Position of `bytes` in the file.
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reader of `bytes`, which start at byte `at` of the file.
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn bytes(&mut self, length: u64) -> Result<&'a [u8], String> {
        let left = self.bytes.len();
        let taken = usize::try_from(length).ok().and_then(|length| self.bytes.split_at_checked(length));
        let (taken, rest) = taken.ok_or_else(|| {
            format!("byte {}: {length} bytes expected, {left} left; the file is cut short or damaged", self.at)
        })?;
        (self.bytes, self.at) = (rest, self.at + taken.len());
        Ok(taken)
    }

    /// The next varint.
    ///
    /// # Errors
    /// The bytes end inside the number, or it has more than 64 bits.
    pub fn varint(&mut self) -> Result<u64, String> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let Some((&byte, rest)) = self.bytes.split_first() else {
                return Err(format!("byte {start}: the file ends inside a number; it is cut short"));
            };
            (self.bytes, self.at) = (rest, self.at + 1);
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(format!("byte {start}: a number of more than 64 bits; the file is damaged"))
    }

    fn field(&mut self) -> Result<Field<'a>, String> {
        let (start, message) = (self.at, self.bytes);
        let tag = self.varint()?;
        let wrong = |what: String| format!("byte {start}: {what}; the file is damaged or of another format");
        let number = u32::try_from(tag >> 3).ok().filter(|&number| number > 0);
        let number = number.ok_or_else(|| wrong(format!("field number {}", tag >> 3)))?;
        let length = if tag & 7 == 2 { self.varint()? } else { 0 };
        let at = self.at;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.bytes(8)?.try_into().expect("eight bytes"))),
            2 => Value::Bytes(self.bytes(length)?),
            5 => Value::Fixed32(u32::from_le_bytes(self.bytes(4)?.try_into().expect("four bytes"))),
            other => return Err(wrong(format!("wire type {other}"))),
        };
        Ok(Field { number, value, raw: &message[..self.at - start], at })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Field<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_empty() {
            return None;
        }
        Some(self.field().inspect_err(|_| self.bytes = &[]))
    }
}

/// Appends `value` to `out`, one to ten bytes.
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends field `number`.
pub fn write_field(out: &mut Vec<u8>, number: u32, value: Value<'_>) {
    let tag = u64::from(number) << 3;
    match value {
        Value::Varint(value) => {
            write_varint(out, tag);
            write_varint(out, value);
        }
        Value::Fixed64(bits) => {
            write_varint(out, tag | 1);
            out.extend(bits.to_le_bytes());
        }
        Value::Bytes(bytes) => {
            write_varint(out, tag | 2);
            write_varint(out, bytes.len() as u64);
            out.extend(bytes);
        }
        Value::Fixed32(bits) => {
            write_varint(out, tag | 5);
            out.extend(bits.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_64_bits_is_read_as_it_was_written() {
        for value in (0..64).flat_map(|bit| [1u64 << bit, (1u64 << bit) - 1]).chain([u64::MAX, u64::MAX - 1]) {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, value);
            let length = bytes.len();
            bytes.push(0xff);
            let mut reader = Reader::new(&bytes, 0);
            assert_eq!((reader.varint(), reader.at), (Ok(value), length));
            let error = Reader::new(&bytes[..length - 1], 7).varint().unwrap_err();
            assert_eq!(error, "byte 7: the file ends inside a number; it is cut short");
        }
    }

    #[test]
    fn rejects_each_bit_beyond_the_64th() {
        let error = "byte 0: a number of more than 64 bits; the file is damaged";
        for tenth in 2..=255 {
            let bytes = [[0x80; 9].as_slice(), &[tenth, 0]].concat();
            assert_eq!(Reader::new(&bytes, 0).varint().unwrap_err(), error, "tenth byte {tenth:#x}");
        }
        assert_eq!(Reader::new(&[0x80; 11], 0).varint().unwrap_err(), error);
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        let values = [Value::Varint(300), Value::Fixed64(5), Value::Bytes(b"abc"), Value::Fixed32(1.5f32.to_bits())];
        let mut message = Vec::new();
        for (number, value) in (15..).zip(values) {
            write_field(&mut message, number, value);
        }
        let fields: Vec<Field> = Reader::new(&message, 0).map(Result::unwrap).collect();
        assert_eq!(fields.iter().map(|field| field.value).collect::<Vec<_>>(), values);
        assert_eq!(fields.iter().map(|field| field.raw).collect::<Vec<_>>().concat(), message);
        assert_eq!(fields[2].text(), Ok("abc"));
        assert_eq!(&message[fields[2].at..][..3], b"abc");
        // Tag 15 and 300 take three bytes, tag 16 two.
        let cut = Reader::new(&message[..9], 0).last().unwrap().unwrap_err();
        assert_eq!(cut, "byte 5: 8 bytes expected, 4 left; the file is cut short or damaged");
        for (bytes, what) in [(&[0, 0][..], "field number 0"), (&[0x0b], "wire type 3")] {
            let error = Reader::new(bytes, 4).next().unwrap().unwrap_err();
            assert_eq!(error, format!("byte 4: {what}; the file is damaged or of another format"));
        }
    }
}
