//! Checked header of a safetensors file.
//!
//! Tensors must be contiguous from byte 0 of the data to its end, each with exactly the bytes of its shape and type. So no two
//! overlap, and all bytes belong to a tensor. Arithmetic is checked: a header may contain any 64-bit number.
//!
//! Cost: memory proportional to the header, which has at most 100 MB, as in other readers of the format.
use crate::io::limits;
use safetensors::{Dtype, tensor::TensorInfo};
use serde::{
    Deserializer,
    de::{Error, MapAccess, Visitor},
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Range,
};

const LARGEST: u64 = 100_000_000;
/// PyTorch's limit; messages contain shapes.
const MOST_DIMENSIONS: usize = 64;

/// One tensor of the file.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Its bytes in the data, which follows the header.
    pub(super) bytes: Range<usize>,
}

/// A checked header.
#[derive(Debug)]
pub(super) struct Header {
    /// Ordered by bytes, empty ones by name.
    pub(super) tensors: Vec<Entry>,
    pub(super) metadata: BTreeMap<String, String>,
    by_name: HashMap<String, usize>,
}

impl Header {
    /// Start of the data, and the header of `file`.
    pub(super) fn read(file: &[u8]) -> Result<(usize, Self), String> {
        let again = "it was cut short or is no such file, fetch or write it again";
        let Some((length, rest)) = file.split_first_chunk() else {
            return Err(format!("it has {} bytes, and its header alone takes 8 or more; {again}", file.len()));
        };
        let length = u64::from_le_bytes(*length);
        if let Some(what) = limits::mistaken(file).filter(|_| length > rest.len() as u64) {
            return Err(what.to_owned());
        }
        if length > rest.len() as u64 {
            return Err(format!(
                "its first 8 bytes announce a header of {length} bytes, but {} follow; {again}",
                rest.len()
            ));
        }
        if length > LARGEST {
            return Err(format!("its header of {length} bytes is larger than the {LARGEST} that the format allows"));
        }
        let (header, data) = rest.split_at(length as usize);
        let text = std::str::from_utf8(header).map_err(|error| format!("its header is not text ({error}); {again}"))?;
        let mut reader = serde_json::Deserializer::from_str(text);
        let parsed = reader.deserialize_map(Entries).and_then(|parsed| reader.end().map(|()| parsed));
        let (tensors, metadata) = parsed.map_err(|error| format!("its header cannot be read: {error}"))?;
        check(&tensors, data.len())?;
        let by_name = tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        Ok((8 + header.len(), Self { tensors, metadata, by_name }))
    }

    pub(super) fn find(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|&at| &self.tensors[at])
    }
}

/// Checks that the tensors are contiguous from 0 to `length`.
fn check(tensors: &[Entry], length: usize) -> Result<(), String> {
    let mut before: Option<&Entry> = None;
    for tensor in tensors {
        let Entry { name, dtype, shape, bytes: Range { start, end } } = tensor;
        let size = shape
            .iter()
            .try_fold(1, |product: usize, &size| product.checked_mul(size))
            .and_then(|items| items.checked_mul(dtype.bitsize()))
            .ok_or_else(|| format!("tensor {name} of shape {shape:?} is larger than any file"))?;
        if end.checked_sub(*start).and_then(|bytes| bytes.checked_mul(8)) != Some(size) {
            return Err(format!(
                "tensor {name} of type {dtype} and shape {shape:?} takes {} bytes, but its offsets are {start} and {end}",
                size.div_ceil(8)
            ));
        }
        let expected = before.map_or(0, |before| before.bytes.end);
        if *start != expected {
            let place = before.map_or("the beginning".to_owned(), |before| format!("tensor {}", before.name));
            let what = if *start < expected { "overlaps with" } else { "leaves a gap behind" };
            return Err(format!(
                "tensor {name} begins at byte {start} of the data, not at {expected}: it {what} {place}"
            ));
        }
        before = Some(tensor);
    }
    let end = before.map_or(0, |last| last.bytes.end);
    if end != length {
        return Err(format!(
            "its tensors end at byte {end} of the data, but {length} bytes of data are there; it was cut short or \
             something was appended, fetch or write it again"
        ));
    }
    Ok(())
}

/// Reads the object entry by entry, which detects duplicate names.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = (Vec<Entry>, BTreeMap<String, String>);

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object that names tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut tensors, mut metadata) = (Vec::new(), None);
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let entries: Option<BTreeMap<String, String>> = map.next_value()?;
                if metadata.replace(entries.unwrap_or_default()).is_some() {
                    return Err(A::Error::custom("__metadata__ is repeated"));
                }
                continue;
            }
            let info: TensorInfo =
                map.next_value().map_err(|error| A::Error::custom(format!("tensor {name}: {error}")))?;
            if info.shape.len() > MOST_DIMENSIONS {
                let found = info.shape.len();
                let problem = format!("tensor {name} has {found} dimensions, expected {MOST_DIMENSIONS} at most");
                return Err(A::Error::custom(problem));
            }
            let (start, end) = info.data_offsets;
            tensors.push(Entry { name, dtype: info.dtype, shape: info.shape, bytes: start..end });
        }
        tensors.sort_by(|a, b| (a.bytes.start, a.bytes.end, &a.name).cmp(&(b.bytes.start, b.bytes.end, &b.name)));
        let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(A::Error::custom(format!("tensor {} is repeated", pair[0]))),
            None => Ok((tensors, metadata.unwrap_or_default())),
        }
    }
}
