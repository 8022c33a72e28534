//! Safetensors files.
//!
//! ```text
//! | header length, u64 LE | header, JSON, padded with blanks to 8 bytes | tensors, side by side, little-endian |
//!   {"__metadata__": {"checksum": "xxh64:...", ...}, "name": {"dtype": "F32", "shape": [..], "data_offsets": [a, b]}}
//! ```
//!
//! Read through a memory map: opening costs the header, and the bytes of a tensor are paged in on access. Files written here
//! contain an XXH64 of every name, type, shape, metadata entry and data byte, which is verified on opening (one pass over the
//! file). Third-party files have none: only their structure is checked (see [`header`]), and memory stays within their size.
//!
//! Limits: F32, F16, BF16 (read as f32) and I64 in; F32, F16 and BF16 (rounded to nearest even) and I64 out;
//! little-endian machines.
mod header;

use super::{Mmap, write_atomically};
use crate::error::{EngineError, Result};
use half::{bf16, f16};
use header::Header;
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    hash::Hasher as _,
    io::{self, Write},
    path::{Path, PathBuf},
};
use twox_hash::XxHash64;

const CHECKSUM: &str = "checksum";
const PREFIX: &str = "xxh64:";

/// Storage of floats in a file; in memory they are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileDType {
    /// 32-bit floats, bit for bit as in memory.
    #[default]
    F32,
    /// bfloat16, rounded to nearest even.
    Bf16,
    /// IEEE half precision, rounded to nearest even.
    F16,
}

/// A file of tensors, open for reading.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    map: Mmap,
    start: usize,
    header: Header,
    checked: bool,
}

impl Safetensors {
    /// Opens the file at `path`, checks its structure, and its checksum where it has one.
    ///
    /// # Errors
    /// The file is missing, cut short, damaged or no safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let map = Mmap::open(path)?;
        let (start, header) = Header::read(&map)
            .map_err(|problem| EngineError::file(path, format!("not a whole safetensors file: {problem}")))?;
        let mut file = Self { path: path.to_owned(), map, start, header, checked: false };
        if let Some(stated) = file.metadata().get(CHECKSUM).filter(|s| s.starts_with(PREFIX)) {
            let found = file.digest();
            if *stated != found {
                let problem = format!(
                    "the checksum is {found}, but the file says {stated}: it was damaged after it was written; use an \
                     older copy"
                );
                return Err(EngineError::file(path, problem));
            }
            file.checked = true;
        }
        Ok(file)
    }

    /// The same for files that only this program writes: a checksum is required.
    ///
    /// # Errors
    /// As [`Safetensors::open`], and if the checksum is missing.
    pub fn open_checked(path: impl AsRef<Path>) -> Result<Self> {
        let file = Self::open(path)?;
        if file.checked {
            return Ok(file);
        }
        Err(EngineError::file(&file.path, "the checksum is missing; the file is damaged or of another program"))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of all tensors, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.header.tensors.iter().map(|tensor| tensor.name.clone()).collect()
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.header.find(name).is_some()
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.find(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Storage of a tensor of floats; `None` for other types, or if there is no such tensor.
    pub fn dtype(&self, name: &str) -> Option<FileDType> {
        match self.header.find(name)?.dtype {
            Dtype::F32 => Some(FileDType::F32),
            Dtype::F16 => Some(FileDType::F16),
            Dtype::BF16 => Some(FileDType::Bf16),
            _ => None,
        }
    }

    /// The entries of `__metadata__`, including the checksum.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// Fills `out` with a float tensor of the expected `shape`, converted to f32.
    ///
    /// # Errors
    /// The tensor is missing, has another shape or is not of a float type.
    ///
    /// # Panics
    /// If the length of `out` differs from `shape`.
    pub fn read_f32(&self, name: &str, shape: &[usize], out: &mut [f32]) -> Result<()> {
        assert_eq!(out.len(), shape.iter().product::<usize>(), "room for {shape:?}");
        let (dtype, bytes) = self.bytes(name, shape)?;
        match dtype {
            Dtype::F32 => fill(out, bytes, f32::from_le_bytes),
            Dtype::F16 => fill(out, bytes, |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => fill(out, bytes, |b| bf16::from_le_bytes(b).to_f32()),
            other => return Err(self.wrong_type(name, other, "F32, F16 or BF16")),
        }
        Ok(())
    }

    /// A float tensor as f32, borrowed from the file if it is aligned F32, as in files written here.
    ///
    /// # Errors
    /// As [`Safetensors::read_f32`].
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>> {
        match self.bytes(name, shape)? {
            (Dtype::F32, bytes) if bytemuck::try_cast_slice::<u8, f32>(bytes).is_ok() => {
                Ok(Cow::Borrowed(bytemuck::cast_slice(bytes)))
            }
            // After the look-up, so that a header cannot cause an allocation beyond the file size.
            _ => {
                let mut out = vec![0.0; shape.iter().product()];
                self.read_f32(name, shape, &mut out)?;
                Ok(Cow::Owned(out))
            }
        }
    }

    /// A float tensor as a vector of f32.
    ///
    /// # Errors
    /// As [`Safetensors::read_f32`].
    pub fn f32s(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.floats(name, shape).map(Cow::into_owned)
    }

    /// An integer tensor.
    ///
    /// # Errors
    /// The tensor is missing, has another shape or is not I64.
    pub fn i64s(&self, name: &str, shape: &[usize]) -> Result<Vec<i64>> {
        match self.bytes(name, shape)? {
            (Dtype::I64, bytes) => {
                let mut out = vec![0; bytes.len() / 8];
                fill(&mut out, bytes, i64::from_le_bytes);
                Ok(out)
            }
            (other, _) => Err(self.wrong_type(name, other, "I64")),
        }
    }

    fn bytes(&self, name: &str, shape: &[usize]) -> Result<(Dtype, &[u8])> {
        let Some(tensor) = self.header.find(name) else {
            let problem = format!("tensor {name} {shape:?} is missing; the file has {}", self.some_names());
            return Err(EngineError::file(&self.path, problem));
        };
        if tensor.shape != shape {
            let problem = format!("tensor {name} has shape {:?}, but {shape:?} was expected", tensor.shape);
            return Err(EngineError::file(&self.path, problem));
        }
        Ok((tensor.dtype, &self.map[self.start..][tensor.bytes.clone()]))
    }

    fn some_names(&self) -> String {
        let names = self.names();
        let shown = names.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        match names.len() {
            0 => "no tensors".into(),
            n if n > 8 => format!("{shown} and {} more", n - 8),
            _ => shown,
        }
    }

    fn wrong_type(&self, name: &str, found: Dtype, expected: &str) -> EngineError {
        EngineError::file(&self.path, format!("tensor {name} is of type {found}, but {expected} was expected"))
    }

    fn digest(&self) -> String {
        let mut hasher = XxHash64::with_seed(0);
        for tensor in &self.header.tensors {
            hash_entry(&mut hasher, &tensor.name, tensor.dtype, &tensor.shape);
        }
        for (key, value) in self.metadata().iter().filter(|(key, _)| *key != CHECKSUM) {
            hash_metadata(&mut hasher, key, value);
        }
        hasher.write(&self.map[self.start..]);
        digest_text(&hasher)
    }
}

fn hash_entry(hasher: &mut XxHash64, name: &str, dtype: Dtype, shape: &[usize]) {
    hasher.write(format!("{name}\0{dtype}{shape:?}\0").as_bytes());
}

fn hash_metadata(hasher: &mut XxHash64, key: &str, value: &str) {
    hasher.write(format!("{key}\0{value}\0").as_bytes());
}

fn digest_text(hasher: &XxHash64) -> String {
    format!("{PREFIX}{:016x}", hasher.finish())
}

fn fill<T, const N: usize>(out: &mut [T], bytes: &[u8], convert: impl Fn([u8; N]) -> T) {
    for (item, bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *item = convert(*bytes);
    }
}

/// Elements of a tensor and their stored type.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// f32.
    F32(&'a [f32]),
    /// f32, stored as bf16.
    Bf16(&'a [f32]),
    /// f32, stored as f16: infinite beyond 65,504.
    F16(&'a [f32]),
    /// Integers.
    I64(&'a [i64]),
}

impl<'a> Data<'a> {
    /// Floats, stored as `dtype`.
    pub fn floats(items: &'a [f32], dtype: FileDType) -> Self {
        match dtype {
            FileDType::F32 => Self::F32(items),
            FileDType::Bf16 => Self::Bf16(items),
            FileDType::F16 => Self::F16(items),
        }
    }
}

impl Data<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Data::F32(_) => Dtype::F32,
            Data::Bf16(_) => Dtype::BF16,
            Data::F16(_) => Dtype::F16,
            Data::I64(_) => Dtype::I64,
        }
    }

    fn len(&self) -> usize {
        match self {
            Data::F32(items) | Data::Bf16(items) | Data::F16(items) => items.len(),
            Data::I64(items) => items.len(),
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Data::F32(items) => write_items(items, out, |x| x.to_le_bytes()),
            Data::Bf16(items) => write_items(items, out, |x| bf16::from_f32(x).to_le_bytes()),
            Data::F16(items) => write_items(items, out, |x| f16::from_f32(x).to_le_bytes()),
            Data::I64(items) => write_items(items, out, i64::to_le_bytes),
        }
    }
}

fn write_items<T: Copy, const N: usize>(
    items: &[T],
    out: &mut dyn Write,
    convert: impl Fn(T) -> [u8; N],
) -> io::Result<()> {
    let mut buffer = [0u8; 4096];
    for chunk in items.chunks(4096 / N) {
        for (bytes, &item) in buffer.as_chunks_mut::<N>().0.iter_mut().zip(chunk) {
            *bytes = convert(item);
        }
        out.write_all(&buffer[..chunk.len() * N])?;
    }
    Ok(())
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct TensorOut<'a> {
    /// Name, unique in the file.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Data<'a>,
}

/// Writes `tensors` to `path`, whole or not at all (see [`write_atomically`]), with `metadata` and a checksum.
///
/// # Errors
/// A name is used twice or is `__metadata__`, a shape does not match its data, or the file cannot be written.
pub fn save_safetensors(path: impl AsRef<Path>, tensors: &[TensorOut], metadata: &[(&str, &str)]) -> Result<()> {
    let path = path.as_ref();
    let mut names = BTreeSet::new();
    for tensor in tensors {
        if tensor.name == "__metadata__" || !names.insert(&tensor.name) {
            return Err(EngineError::file(path, format!("the name {} cannot be used for two tensors", tensor.name)));
        }
        if tensor.shape.iter().product::<usize>() != tensor.data.len() {
            let problem =
                format!("tensor {} has {} elements, but shape {:?}", tensor.name, tensor.data.len(), tensor.shape);
            return Err(EngineError::file(path, problem));
        }
    }
    // Wide elements first, so that every tensor is aligned; then by name, as in other writers.
    let mut order: Vec<&TensorOut> = tensors.iter().collect();
    order.sort_by_key(|t| (usize::MAX - t.data.dtype().bitsize(), &t.name));

    let header = header(&order, metadata, path)?;
    write_atomically(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        order.iter().try_for_each(|tensor| tensor.data.write(out))
    })
}

fn header(order: &[&TensorOut], metadata: &[(&str, &str)], path: &Path) -> Result<Vec<u8>> {
    let mut hasher = XxHash64::with_seed(0);
    let mut entries = Map::new();
    let mut at = 0;
    for tensor in order {
        let dtype = tensor.data.dtype();
        hash_entry(&mut hasher, &tensor.name, dtype, &tensor.shape);
        let end = at + tensor.data.len() * dtype.bitsize() / 8;
        let entry = json!({ "dtype": dtype.to_string(), "shape": tensor.shape, "data_offsets": [at, end] });
        entries.insert(tensor.name.clone(), entry);
        at = end;
    }
    let metadata: BTreeMap<_, _> = metadata.iter().copied().filter(|(key, _)| *key != CHECKSUM).collect();
    metadata.iter().for_each(|(key, value)| hash_metadata(&mut hasher, key, value));
    struct Into<'a>(&'a mut XxHash64);
    impl Write for Into<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for tensor in order {
        tensor.data.write(&mut Into(&mut hasher)).map_err(|e| EngineError::io(path, "hash the tensors", e))?;
    }
    let mut head = Map::new();
    let mut stated: Map<String, Value> = metadata.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    stated.insert(CHECKSUM.into(), digest_text(&hasher).into());
    head.insert("__metadata__".into(), stated.into());
    head.extend(entries);
    let mut text = serde_json::to_vec(&head).map_err(|e| EngineError::file(path, format!("no header: {e}")))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(text)
}

#[cfg(test)]
mod tests;
