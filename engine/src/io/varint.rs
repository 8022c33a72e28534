//! Variable-length integers of protocol buffers and LevelDB.
//!
//! ```text
//! seven bits a byte, the lowest first; the top bit says that another byte follows
//! 64 bits take ten bytes, of which the tenth holds one bit
//! ```
//!
//! Source: Protocol Buffers, "Encoding".

use std::fmt;

/// Why bytes are no varint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarintError {
    /// The bytes end inside the number.
    CutShort,
    /// The number has more than 64 bits.
    Overflow,
}

impl fmt::Display for VarintError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::CutShort => "the file ends inside a number; it is cut short",
            Self::Overflow => "a number of more than 64 bits; the file is damaged",
        })
    }
}

/// The number at the start of `bytes`, and how many bytes it takes.
///
/// # Errors
/// The bytes end inside the number, or it has more than 64 bits.
pub fn read_varint(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    let mut value = 0u64;
    for at in 0..10 {
        let &byte = bytes.get(at).ok_or(VarintError::CutShort)?;
        let bits = u64::from(byte & 0x7f);
        if at == 9 && byte > 1 {
            return Err(VarintError::Overflow);
        }
        value |= bits << (7 * at);
        if byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(VarintError::Overflow)
}

/// Appends `value` to `out`, one to ten bytes.
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
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
            assert_eq!(read_varint(&bytes), Ok((value, length)));
            assert_eq!(read_varint(&bytes[..length - 1]), Err(VarintError::CutShort));
        }
    }

    #[test]
    fn rejects_each_bit_beyond_the_64th() {
        for tenth in 2..=255 {
            let bytes = [[0x80; 9].as_slice(), &[tenth, 0]].concat();
            assert_eq!(read_varint(&bytes), Err(VarintError::Overflow), "tenth byte {tenth:#x}");
        }
        assert_eq!(read_varint(&[0x80; 11]), Err(VarintError::Overflow));
    }
}
