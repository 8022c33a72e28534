//! NumPy files (`.npy`) of one array in row order.
//!
//! ```text
//! 93 "NUMPY"  version 1 0  length of the header, u16
//! {'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }   spaces up to a multiple of 64 bytes, newline
//! elements, little-endian
//! ```
//!
//! Versions 2 and 3 have a length of 32 bits. Source: NumPy's documentation, `numpy.lib.format`.

use anyhow::{Context, Result, ensure};
use std::io::{self, Read, Write};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Maximum size of a header in bytes; that of a plain array is far shorter.
const LONGEST: u32 = 4096;

/// Type and shape of an array.
#[derive(Debug, PartialEq, Eq)]
struct Header<'a> {
    /// Type of the elements, such as `<f4`.
    descr: &'a str,
    column_order: bool,
    shape: Vec<usize>,
}

impl<'a> Header<'a> {
    /// Parses the Python literal; `None` if it is not the header of a plain array.
    fn parse(text: &'a str) -> Option<Self> {
        let (mut descr, mut column_order, mut shape) = (None, None, None);
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        while !rest.is_empty() {
            let (key, after) = quoted(rest)?;
            let value = after.trim_start().strip_prefix(':')?.trim_start();
            rest = match key {
                "descr" => {
                    let (found, after) = quoted(value)?;
                    descr = Some(found);
                    after
                }
                "fortran_order" => {
                    column_order = Some(value.starts_with("True"));
                    value.strip_prefix("True").or_else(|| value.strip_prefix("False"))?
                }
                "shape" => {
                    let (sizes, after) = value.strip_prefix('(')?.split_once(')')?;
                    let sizes = sizes.split(',').map(str::trim).filter(|size| !size.is_empty());
                    shape = Some(sizes.map(|size| size.parse().ok()).collect::<Option<_>>()?);
                    after
                }
                _ => return None,
            };
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        Some(Self { descr: descr?, column_order: column_order?, shape: shape? })
    }
}

/// Splits `text` into the quoted string at its start, without quotes, and the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// Writes an array. `descr` is the type of the elements, such as `<f4`; `bytes` contains the elements, little-endian.
pub(crate) fn write(out: &mut dyn Write, descr: &str, shape: &[usize], bytes: &[u8]) -> io::Result<()> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let sizes = if shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let start = MAGIC.len() + 4;
    let length = (start + header.len() + 1).next_multiple_of(64) - start;
    header.extend(std::iter::repeat_n(' ', length - 1 - header.len()));
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&u16::try_from(length).map_err(io::Error::other)?.to_le_bytes())?;
    writeln!(out, "{header}")?;
    out.write_all(bytes)
}

/// Reads the elements, little-endian, of an array of this type and shape.
///
/// # Errors
/// Not a NumPy file; another type, shape or order; too few or too many elements; a header above 4,096 bytes.
pub(crate) fn read(input: &mut dyn Read, descr: &str, size: usize, shape: &[usize]) -> Result<Vec<u8>> {
    let mut start = [0; 10];
    input.read_exact(&mut start).context("not a NumPy file: shorter than 10 bytes")?;
    ensure!(start.starts_with(MAGIC), "not a NumPy file: it does not begin with \\x93NUMPY");
    let mut length = u32::from(u16::from_le_bytes([start[8], start[9]]));
    if start[6] > 1 {
        let mut upper = [0; 2];
        input.read_exact(&mut upper).context("the file ends in its header")?;
        length |= u32::from(u16::from_le_bytes(upper)) << 16;
    }
    ensure!(length <= LONGEST, "the file's header has {length} bytes; expected at most {LONGEST}");
    let mut header = vec![0; length as usize];
    input.read_exact(&mut header).context("the file ends in its header")?;
    let header = std::str::from_utf8(&header).ok().and_then(Header::parse);
    let header = header.context("the file's header is not that of an array of numbers")?;
    ensure!(header.descr == descr, "the file has elements of type {}; expected {descr}", header.descr);
    ensure!(header.shape == shape, "the file has shape {:?}, the launch {shape:?}", header.shape);
    ensure!(!header.column_order || shape.len() < 2, "the file is in column order; save it in row order");
    let expected = size * shape.iter().product::<usize>();
    let mut bytes = Vec::with_capacity(expected);
    input.take(expected as u64 + 1).read_to_end(&mut bytes)?;
    ensure!(
        bytes.len() == expected,
        "the file has {} bytes of elements; expected {expected}",
        match bytes.len() {
            short if short < expected => short.to_string(),
            _ => format!("more than {expected}"),
        }
    );
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str) -> Option<Header<'_>> {
        Header::parse(text)
    }

    #[test]
    fn headers_of_numpy_and_of_other_writers_are_read() {
        let plain = |column_order, shape: &[usize]| Some(Header { descr: "<f4", column_order, shape: shape.to_vec() });
        assert_eq!(header("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }   \n"), plain(false, &[3, 2]));
        assert_eq!(header("{\"shape\":(7,),\"fortran_order\":True,\"descr\":\"<f4\"}"), plain(true, &[7]));
        assert_eq!(header("{'descr': '<f4', 'fortran_order': False, 'shape': ()}"), plain(false, &[]));
        for refused in [
            "",
            "{}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,}",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'é': False, 'shape': (3,)}",
            "{é",
        ] {
            assert_eq!(header(refused), None, "{refused}");
        }
    }

    /// Output of `numpy.save` (NumPy 2.4.6) for an array with this header, which fits into 128 bytes including the ten before it.
    fn by_numpy(header: &str, elements: &[u8]) -> Vec<u8> {
        [b"\x93NUMPY\x01\0v\0", format!("{header:<117}\n").as_bytes(), elements].concat()
    }

    #[test]
    fn a_written_file_is_that_of_numpy() {
        for (shape, sizes) in [(&[][..], "()"), (&[6], "(6,)"), (&[3, 2], "(3, 2)"), (&[1, 2, 3], "(1, 2, 3)")] {
            let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32 - 2.5).collect();
            let elements = bytemuck::cast_slice(&values);
            let mut file = Vec::new();
            write(&mut file, "<f4", shape, elements).unwrap();
            let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {sizes}, }}");
            assert_eq!(file, by_numpy(&header, elements), "{shape:?}");
            assert_eq!(read(&mut &file[..], "<f4", 4, shape).unwrap(), elements);
        }
    }

    #[test]
    fn a_file_of_numpy_is_read_and_what_does_not_fit_is_named() {
        let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }";
        let elements = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];
        let file = by_numpy(header, &elements);
        assert_eq!(read(&mut &file[..], "<u2", 2, &[2, 3]).unwrap(), elements);
        for version in [2, 3] {
            let start = [&b"\x93NUMPY"[..], &[version, 0, b't', 0, 0, 0]].concat();
            let file = [&start, format!("{header:<115}\n").as_bytes(), &elements].concat();
            assert_eq!(read(&mut &file[..], "<u2", 2, &[2, 3]).unwrap(), elements, "version {version}");
        }
        let refused = |file: &[u8], descr, shape: &[usize]| {
            format!("{:#}", read(&mut &*file, descr, 2, shape).expect_err("it is refused"))
        };
        assert!(refused(&file, "<i2", &[2, 3]).contains("type <u2; expected <i2"));
        assert!(refused(&file, "<u2", &[3, 2]).contains("shape [2, 3], the launch [3, 2]"));
        assert!(refused(&file[..file.len() - 1], "<u2", &[2, 3]).contains("11 bytes of elements; expected 12"));
        assert!(refused(&[&file[..], &[0]].concat(), "<u2", &[2, 3]).contains("more than 12"));
        assert!(refused(&file[..9], "<u2", &[2, 3]).contains("shorter than 10 bytes"));
        assert!(refused(&file[..20], "<u2", &[2, 3]).contains("ends in its header"));
        assert!(refused(&file[1..], "<u2", &[2, 3]).contains("does not begin with"));
    }
}
