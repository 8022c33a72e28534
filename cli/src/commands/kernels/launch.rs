//! Launch file of `albert kernels simulate`, described in `docs/simulator.md`.

use crate::npy;
use anyhow::{Context, Result, bail, ensure};
use half::f16;
use kernels::num::philox::Stream;
use ptx::{
    Launch,
    sim::{Argument, Limits, Memory, Swizzle, TensorMap, TensorType},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Number, Value};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::Path,
};

/// Contents of a launch file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub(super) entry: String,
    grid: [u32; 3],
    block: [u32; 3],
    #[serde(default)]
    shared_bytes: u32,
    #[serde(deserialize_with = "arguments")]
    args: Vec<Given>,
    /// Folder for the contents of the buffers after the launch, each as NAME.npy.
    outputs: Option<String>,
}

/// Argument; its keys determine the kind.
#[derive(Debug)]
enum Given {
    Number(Scalar),
    Buffer(Buffer),
    TensorMap(Map),
}

/// Parses arguments; errors name the position.
fn arguments<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Given>, D::Error> {
    let given = |(position, value): (usize, Value)| {
        let parsed = if value.get("buffer").is_some() {
            serde_json::from_value(value).map(Given::Buffer)
        } else if value.get("tensor_map").is_some() {
            serde_json::from_value(value).map(Given::TensorMap)
        } else {
            serde_json::from_value(value).map(Given::Number)
        };
        parsed.map_err(|error| D::Error::custom(format!("args[{position}]: {error}")))
    };
    Vec::<Value>::deserialize(list)?.into_iter().enumerate().map(given).collect()
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scalar {
    U32(u32),
    S32(i32),
    U64(u64),
    S64(i64),
    F32(f32),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Buffer {
    /// Name; a repeated name refers to the same buffer and accepts no other keys.
    buffer: String,
    dtype: Option<DType>,
    shape: Option<Vec<usize>>,
    /// NumPy file with the contents.
    from: Option<String>,
    /// Seed of random contents: floats from -1 to 1, integers from 0 to 255.
    random: Option<u64>,
    /// Value of all elements.
    fill: Option<Number>,
}

/// Tensor map of a buffer, as for `cuTensorMapEncodeTiled`: dimension 0 is the contiguous one, the last of the
/// buffer's shape.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Map {
    /// Name of a buffer among the arguments, or of a new one described here.
    tensor_map: String,
    dtype: Option<DType>,
    shape: Option<Vec<usize>>,
    from: Option<String>,
    random: Option<u64>,
    fill: Option<Number>,
    /// Elements of a tile in each dimension.
    #[serde(rename = "box")]
    tile: Vec<u32>,
    /// Strides of dimensions 1, 2, ... in bytes; contiguous by default.
    strides: Option<Vec<u64>>,
    /// `none`, `32B`, `64B` or `128B`.
    #[serde(default)]
    swizzle: Exchange,
    #[serde(default)]
    interleave: Interleave,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum Exchange {
    #[default]
    #[serde(rename = "none")]
    None,
    #[serde(rename = "32B")]
    B32,
    #[serde(rename = "64B")]
    B64,
    #[serde(rename = "128B")]
    B128,
}

/// Interleaved layouts, none of which the simulator supports.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum Interleave {
    #[default]
    #[serde(rename = "none")]
    None,
}

/// Element type of a buffer. NumPy files have no bf16 and store it as `u16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DType {
    F32,
    F64,
    F16,
    Bf16,
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
}

/// Runs `$body` with `$T` as the Rust type of the elements in files.
macro_rules! in_files {
    ($dtype:expr, $T:ident => $body:expr) => {
        in_files!(@each $dtype, $T, $body,
            F32 f32, F64 f64, F16 f16, Bf16 u16, U8 u8, S8 i8, U16 u16, S16 i16, U32 u32, S32 i32, U64 u64, S64 i64)
    };
    (@each $dtype:expr, $T:ident, $body:expr, $($variant:ident $type:ty),*) => {
        match $dtype {
            $(DType::$variant => {
                type $T = $type;
                $body
            })*
        }
    };
}

impl DType {
    /// Name in NumPy files; NumPy has no bf16, so its bits are stored as integers.
    fn in_numpy(self) -> &'static str {
        match self {
            DType::F32 => "<f4",
            DType::F64 => "<f8",
            DType::F16 => "<f2",
            DType::U8 => "|u1",
            DType::S8 => "|i1",
            DType::Bf16 | DType::U16 => "<u2",
            DType::S16 => "<i2",
            DType::U32 => "<u4",
            DType::S32 => "<i4",
            DType::U64 => "<u8",
            DType::S64 => "<i8",
        }
    }

    fn of_tensor(self) -> Option<TensorType> {
        Some(match self {
            DType::F32 => TensorType::F32,
            DType::F64 => TensorType::F64,
            DType::F16 => TensorType::F16,
            DType::Bf16 => TensorType::Bf16,
            DType::U8 => TensorType::U8,
            DType::U16 => TensorType::U16,
            DType::U32 => TensorType::U32,
            DType::S32 => TensorType::S32,
            DType::U64 => TensorType::U64,
            DType::S64 => TensorType::S64,
            DType::S8 | DType::S16 => return None,
        })
    }
}

impl Given {
    /// Name of its buffer.
    fn name(&self) -> &str {
        match self {
            Given::Number(_) => "",
            Given::Buffer(buffer) => &buffer.buffer,
            Given::TensorMap(map) => &map.tensor_map,
        }
    }
}

impl Map {
    /// The buffer, if it is defined here.
    fn buffer(&self) -> Option<Buffer> {
        let Self { tensor_map, dtype, shape, from, random, fill, .. } = self;
        let described = dtype.is_some() || shape.is_some() || from.is_some() || random.is_some() || fill.is_some();
        described.then(|| Buffer {
            buffer: tensor_map.clone(),
            dtype: *dtype,
            shape: shape.clone(),
            from: from.clone(),
            random: *random,
            fill: fill.clone(),
        })
    }
}

impl Description {
    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    pub(super) fn launch(&self) -> Launch {
        Launch { grid: self.grid, block: self.block, shared_bytes: self.shared_bytes }
    }
}

/// A buffer in the memory of the simulated device.
struct Placed {
    address: u64,
    dtype: DType,
    shape: Vec<usize>,
}

/// Memory and arguments of a launch.
pub(super) struct Prepared {
    pub(super) memory: Memory,
    pub(super) arguments: Vec<Argument>,
    buffers: BTreeMap<String, Placed>,
    /// Bytes of all buffers, and their limit.
    bytes: u64,
    most: u64,
}

impl Prepared {
    /// Prepares a launch; relative paths start at `folder`.
    pub(super) fn new(description: &Description, folder: &Path, limits: &Limits) -> Result<Self> {
        let (memory, arguments, buffers) = (Memory::new(), Vec::new(), BTreeMap::new());
        let mut prepared = Self { memory, arguments, buffers, bytes: 0, most: limits.memory_bytes };
        // Buffers first: a map may precede its buffer.
        for (position, given) in description.args.iter().enumerate() {
            let placed = match given {
                Given::Number(_) => Ok(()),
                Given::Buffer(buffer) => prepared.place(buffer, folder),
                Given::TensorMap(map) => map.buffer().map_or(Ok(()), |buffer| prepared.place(&buffer, folder)),
            };
            placed.with_context(|| format!("args[{position}], buffer `{}`", given.name()))?;
        }
        for (position, given) in description.args.iter().enumerate() {
            let argument = match given {
                Given::Number(Scalar::U32(value)) => Argument::U32(*value),
                Given::Number(Scalar::S32(value)) => Argument::U32(value.cast_unsigned()),
                Given::Number(Scalar::U64(value)) => Argument::U64(*value),
                Given::Number(Scalar::S64(value)) => Argument::U64(value.cast_unsigned()),
                Given::Number(Scalar::F32(value)) => Argument::F32(*value),
                Given::Buffer(buffer) => Argument::U64(prepared.buffers[&buffer.buffer].address),
                Given::TensorMap(map) => {
                    let what = || format!("args[{position}], tensor map of `{}`", map.tensor_map);
                    Argument::TensorMap(prepared.map(map).with_context(what)?)
                }
            };
            prepared.arguments.push(argument);
        }
        Ok(prepared)
    }

    /// Allocates and fills a buffer, if it is not allocated yet.
    fn place(&mut self, buffer: &Buffer, folder: &Path) -> Result<()> {
        let Buffer { buffer: name, dtype, shape, from, random, fill } = buffer;
        let sources = usize::from(from.is_some()) + usize::from(random.is_some()) + usize::from(fill.is_some());
        if self.buffers.contains_key(name) {
            ensure!(
                dtype.is_none() && shape.is_none() && sources == 0,
                "the buffer is already defined; give only its name"
            );
            return Ok(());
        }
        ensure!(
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)),
            "expected a name of letters, digits, `_`, `-` and `.`: it becomes a file name"
        );
        ensure!(sources <= 1, "expected one of `from`, `random` and `fill`");
        let (Some(dtype), Some(shape)) = (*dtype, shape.clone()) else {
            bail!("expected `dtype` and `shape`");
        };
        let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let bytes = elements.and_then(|elements| elements.checked_mul(in_files!(dtype, T => size_of::<T>())));
        let all = bytes.and_then(|bytes| self.bytes.checked_add(bytes as u64));
        let (Some(elements), Some(bytes), Some(all)) = (elements, bytes, all.filter(|&all| all <= self.most)) else {
            bail!("{shape:?} is too large: the buffers of a launch have at most {} bytes together", self.most);
        };
        self.bytes = all;
        let contents = match (from, random, fill) {
            (Some(file), _, _) => Some(load(&folder.join(file), dtype, &shape)?),
            (_, Some(seed), _) => Some(draw(*seed, dtype, elements)),
            (_, _, Some(value)) => Some(repeat(value, dtype, elements)?),
            _ => None,
        };
        let address = match contents {
            Some(contents) => self.memory.allocate_from(name, &contents),
            None => self.memory.allocate(name, bytes),
        };
        self.buffers.insert(name.clone(), Placed { address, dtype, shape });
        Ok(())
    }

    fn map(&self, map: &Map) -> Result<TensorMap> {
        let Interleave::None = map.interleave;
        let Some(Placed { address, dtype, shape }) = self.buffers.get(&map.tensor_map) else {
            bail!("no buffer has that name; give `dtype` and `shape` here");
        };
        let dtype = dtype.of_tensor().with_context(|| format!("tensor maps do not support {dtype:?}"))?;
        let shape: Vec<u64> = shape.iter().rev().map(|&size| size as u64).collect();
        // The other sizes of an empty buffer are arbitrary; the map is rejected for its empty dimension.
        let dense = shape.iter().scan(dtype.bytes() as u64, |bytes, &size| {
            *bytes = bytes.saturating_mul(size);
            Some(*bytes)
        });
        let dense: Vec<u64> = dense.take(shape.len().saturating_sub(1)).collect();
        let swizzle = match map.swizzle {
            Exchange::None => Swizzle::None,
            Exchange::B32 => Swizzle::B32,
            Exchange::B64 => Swizzle::B64,
            Exchange::B128 => Swizzle::B128,
        };
        Ok(TensorMap::new(*address, dtype, &shape, map.strides.as_deref().unwrap_or(&dense), &map.tile, swizzle)?)
    }

    /// Writes every buffer to the folder of outputs, if any. Returns the buffers with bytes that were never written.
    pub(super) fn save(&self, description: &Description, folder: &Path) -> Result<Vec<(String, usize)>> {
        let Some(outputs) = &description.outputs else { return Ok(Vec::new()) };
        let outputs = folder.join(outputs);
        std::fs::create_dir_all(&outputs).with_context(|| outputs.display().to_string())?;
        let mut unwritten = Vec::new();
        for (name, placed) in &self.buffers {
            let (bytes, written) = self.memory.bytes(placed.address)?;
            let missing = written.iter().filter(|&&written| written == 0).count();
            if missing > 0 {
                unwritten.push((name.clone(), missing));
            }
            let path = outputs.join(format!("{name}.npy"));
            write(&path, placed, bytes).with_context(|| path.display().to_string())?;
        }
        Ok(unwritten)
    }
}

/// Reads the elements of a NumPy file of this type and shape.
fn load(path: &Path, dtype: DType, shape: &[usize]) -> Result<Vec<u8>> {
    let read = || -> Result<Vec<u8>> {
        ensure!(std::fs::metadata(path)?.is_file(), "not a regular file");
        npy::read(
            &mut BufReader::new(File::open(path)?),
            dtype.in_numpy(),
            in_files!(dtype, T => size_of::<T>()),
            shape,
        )
    };
    read().with_context(|| path.display().to_string())
}

fn write(path: &Path, placed: &Placed, bytes: &[u8]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    npy::write(&mut file, placed.dtype.in_numpy(), &placed.shape, bytes)?;
    file.flush()?;
    Ok(())
}

/// Random floats in `[-1, 1)`, integers in `0..256`.
fn draw(seed: u64, dtype: DType, elements: usize) -> Vec<u8> {
    let mut stream = Stream::new(seed, [0, 0, 0]);
    let unit = |stream: &mut Stream| 2.0 * stream.next_f32() - 1.0;
    let small = |stream: &mut Stream| (stream.next_f32() * 256.0) as u8;
    let mut bytes = Vec::new();
    for _ in 0..elements {
        match dtype {
            DType::F32 => bytes.extend(unit(&mut stream).to_le_bytes()),
            DType::F64 => bytes.extend(f64::from(unit(&mut stream)).to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f32(unit(&mut stream)).to_le_bytes()),
            DType::Bf16 => bytes.extend(half::bf16::from_f32(unit(&mut stream)).to_le_bytes()),
            DType::U8 => bytes.push(small(&mut stream)),
            DType::S8 => bytes.push(small(&mut stream) / 2),
            DType::U16 | DType::S16 => bytes.extend(u16::from(small(&mut stream)).to_le_bytes()),
            DType::U32 | DType::S32 => bytes.extend(u32::from(small(&mut stream)).to_le_bytes()),
            DType::U64 | DType::S64 => bytes.extend(u64::from(small(&mut stream)).to_le_bytes()),
        }
    }
    bytes
}

fn repeat(value: &Number, dtype: DType, elements: usize) -> Result<Vec<u8>> {
    let misfit = || anyhow::anyhow!("`fill` is {value}; expected a value of type {dtype:?}");
    let float = || value.as_f64().ok_or_else(misfit);
    let unsigned = || value.as_u64().ok_or_else(misfit);
    let signed = || value.as_i64().ok_or_else(misfit);
    let element = match dtype {
        DType::F32 => (float()? as f32).to_le_bytes().to_vec(),
        DType::F64 => float()?.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(float()?).to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f64(float()?).to_le_bytes().to_vec(),
        DType::U8 => u8::try_from(unsigned()?).map_err(|_| misfit())?.to_le_bytes().to_vec(),
        DType::S8 => i8::try_from(signed()?).map_err(|_| misfit())?.to_le_bytes().to_vec(),
        DType::U16 => u16::try_from(unsigned()?).map_err(|_| misfit())?.to_le_bytes().to_vec(),
        DType::S16 => i16::try_from(signed()?).map_err(|_| misfit())?.to_le_bytes().to_vec(),
        DType::U32 => u32::try_from(unsigned()?).map_err(|_| misfit())?.to_le_bytes().to_vec(),
        DType::S32 => i32::try_from(signed()?).map_err(|_| misfit())?.to_le_bytes().to_vec(),
        DType::U64 => unsigned()?.to_le_bytes().to_vec(),
        DType::S64 => signed()?.to_le_bytes().to_vec(),
    };
    Ok(element.repeat(elements))
}

#[cfg(test)]
#[path = "launch/tests.rs"] // Cross-crate tests also compile this file.
mod tests;
