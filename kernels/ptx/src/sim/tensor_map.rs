//! Tensor maps: descriptions of tensors in global memory for `cp.async.bulk.tensor`.
//!
//! ```text
//! element (c0, c1, …)  at  address + c0·bytes + c1·strides[0] + c2·strides[1] + …      0 ≤ ci < shape[i]
//! tile                     tile[0] · tile[1] · … elements, c0 fastest, in shared memory without gaps
//! swizzle                  address ^= ((address / 128) mod 2, 4, 8) · 16, for 32, 64 and 128 bytes
//! ```
//!
//! Dimension 0 is the contiguous one, as in `cuTensorMapEncodeTiled`. The 128 bytes that a kernel gets hold the fields
//! in an encoding of this simulator; that of the device is not documented, and kernels do not read it.

use super::{Error, isa::Type, limits::ensure};

named! {
    /// The element type of a tensor.
    pub enum TensorType {
        /// 8 bits.
        U8 "u8",
        /// 16 bits, unsigned.
        U16 "u16",
        /// 32 bits, unsigned.
        U32 "u32",
        /// 32 bits, signed.
        S32 "s32",
        /// 64 bits, unsigned.
        U64 "u64",
        /// 64 bits, signed.
        S64 "s64",
        /// Half precision.
        F16 "f16",
        /// bfloat16.
        Bf16 "bf16",
        /// Single precision.
        F32 "f32",
        /// Double precision.
        F64 "f64",
    }
}

impl TensorType {
    #[rustfmt::skip]
    const ALL: [TensorType; 10] = [
        Self::U8, Self::U16, Self::U32, Self::S32, Self::U64, Self::S64, Self::F16, Self::Bf16, Self::F32, Self::F64,
    ];

    /// The type called `name`, as PTX spells it.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        self.ty().bits() as usize / 8
    }

    pub(crate) fn ty(self) -> Type {
        Type::named(self.name()).unwrap_or_default()
    }
}

/// Permutation of the 16-byte pieces of a tile in shared memory, which spreads columns over banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// Identity.
    None,
    /// Within 32 bytes.
    B32,
    /// Within 64 bytes.
    B64,
    /// Within 128 bytes.
    B128,
}

impl Swizzle {
    const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

    /// Bytes of the innermost dimension of a tile.
    pub fn span(self) -> Option<usize> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 => Some(128),
        }
    }

    /// Swizzled address of the byte at `address` of shared memory.
    #[inline]
    pub fn apply(self, address: u64) -> u64 {
        let mask = match self {
            Swizzle::None => 0,
            Swizzle::B32 => 1,
            Swizzle::B64 => 3,
            Swizzle::B128 => 7,
        };
        address ^ ((address >> 7 & mask) << 4)
    }
}

/// A tensor in global memory, and the tile that one copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of the first element.
    pub address: u64,
    /// Type of an element.
    pub dtype: TensorType,
    /// Number of dimensions, 1 to 5; only so many entries of the arrays count.
    pub rank: usize,
    /// Elements of each dimension, the contiguous one first.
    pub shape: [u64; 5],
    /// Bytes from one element to the next of dimensions 1, 2, …
    pub strides: [u64; 4],
    /// Elements of a tile in each dimension.
    pub tile: [u32; 5],
    /// Distance between the elements that are taken of each dimension.
    pub element_strides: [u32; 5],
    /// Swizzle of the tile in shared memory.
    pub swizzle: Swizzle,
    /// Elements outside the tensor are NaN, not zero.
    pub fill_nan: bool,
}

/// Bytes of the largest tile: all shared memory that a block can have.
const MOST_TILE: u64 = 227 << 10;

/// First eight of the 128 bytes.
const MAGIC: u64 = 0x7061_4D72_6F73_6E54;

/// The tensor map of an operation, as the simulated TMA reads it.
impl From<crate::TensorMap> for TensorMap {
    fn from(map: crate::TensorMap) -> Self {
        let storage = match map.storage {
            crate::Storage::F32 => TensorType::F32,
            crate::Storage::Bf16 => TensorType::Bf16,
            crate::Storage::F16 => TensorType::F16,
        };
        let swizzle = match map.swizzle {
            crate::DescriptorSwizzle::None => Swizzle::None,
            crate::DescriptorSwizzle::Bytes32 => Swizzle::B32,
            crate::DescriptorSwizzle::Bytes64 => Swizzle::B64,
            crate::DescriptorSwizzle::Bytes128 => Swizzle::B128,
        };
        TensorMap::new(map.address, storage, &map.sizes, &[map.stride], &map.tile, swizzle)
            .expect("a tensor map is checked when it is made")
    }
}

impl TensorMap {
    /// A map of a tensor of `shape` whose rows are `strides` bytes apart (one fewer than dimensions), moved in tiles.
    ///
    /// # Errors
    /// [`Error::Launch`] where the driver would refuse the map, and for tiles with a swizzle whose innermost dimension
    /// is not exactly as wide as the swizzle.
    pub fn new(
        address: u64,
        dtype: TensorType,
        shape: &[u64],
        strides: &[u64],
        tile: &[u32],
        swizzle: Swizzle,
    ) -> Result<Self, Error> {
        let check = |holds: bool, message: &dyn Fn() -> String| ensure(holds, || format!("tensor map: {}", message()));
        let (rank, gaps, extents) = (shape.len(), strides.len(), tile.len());
        check((1..=5).contains(&rank) && gaps + 1 == rank && extents == rank, &|| {
            format!("{rank} dimensions with {gaps} strides and a tile of {extents} dimensions")
        })?;
        check(address.is_multiple_of(16), &|| format!("address {address:#x}; expected a multiple of 16"))?;
        for n in shape {
            check((1..=1 << 32).contains(n), &|| format!("dimension of {n} elements; expected 1 to 2^32"))?;
        }
        for bytes in strides {
            let fits = bytes.is_multiple_of(16) && *bytes < 1 << 40;
            check(fits, &|| format!("stride of {bytes} bytes; expected a multiple of 16 below 2^40"))?;
        }
        for n in tile {
            check((1..=256).contains(n), &|| format!("tile with {n} elements in a dimension; expected 1 to 256"))?;
        }
        let inner = tile[0] as usize * dtype.bytes();
        check(inner.is_multiple_of(16), &|| format!("tile with rows of {inner} bytes; expected a multiple of 16"))?;
        let span = swizzle.span().unwrap_or(inner);
        check(span == inner, &|| {
            format!("tile with rows of {inner} bytes; expected {span}, the width of the swizzle")
        })?;
        let bytes = tile.iter().map(|n| u64::from(*n)).product::<u64>() * dtype.bytes() as u64;
        check(bytes <= MOST_TILE, &|| {
            format!("tile of {bytes} bytes; expected at most {MOST_TILE}, all shared memory")
        })?;
        let mut map = TensorMap {
            address,
            dtype,
            rank,
            shape: [1; 5],
            strides: [0; 4],
            tile: [1; 5],
            element_strides: [1; 5],
            swizzle,
            fill_nan: false,
        };
        map.shape[..rank].copy_from_slice(shape);
        map.strides[..rank - 1].copy_from_slice(strides);
        map.tile[..rank].copy_from_slice(tile);
        Ok(map)
    }

    /// A map of a row-major matrix of `rows` × `columns` elements without gaps.
    ///
    /// # Errors
    /// As [`TensorMap::new`].
    pub fn matrix(
        address: u64,
        dtype: TensorType,
        [rows, columns]: [u64; 2],
        tile: [u32; 2],
        swizzle: Swizzle,
    ) -> Result<Self, Error> {
        let stride = columns * dtype.bytes() as u64;
        Self::new(address, dtype, &[columns, rows], &[stride], &[tile[1], tile[0]], swizzle)
    }

    /// Bytes of a tile in shared memory.
    pub fn tile_bytes(&self) -> usize {
        self.taken().iter().product::<usize>() * self.dtype.bytes()
    }

    /// Elements that a tile has in each dimension.
    pub(crate) fn taken(&self) -> [usize; 5] {
        std::array::from_fn(|i| self.tile[i].div_ceil(self.element_strides[i]) as usize)
    }

    /// The 128 bytes that a kernel gets.
    pub fn to_bytes(&self) -> [u8; 128] {
        let swizzle = Swizzle::ALL.iter().position(|swizzle| *swizzle == self.swizzle).unwrap_or(0);
        let dtype = TensorType::ALL.iter().position(|ty| *ty == self.dtype).unwrap_or(0);
        let kinds = [dtype as u8, self.rank as u8, swizzle as u8, u8::from(self.fill_nan), 0, 0, 0, 0];
        let mut words = vec![MAGIC, self.address, u64::from_le_bytes(kinds)];
        words.extend(self.shape);
        words.extend(self.strides);
        let mut bytes = [0; 128];
        bytes.chunks_exact_mut(8).zip(&words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        for i in 0..5 {
            bytes[96 + 2 * i..][..2].copy_from_slice(&(self.tile[i] as u16).to_le_bytes());
            bytes[106 + i] = self.element_strides[i] as u8;
        }
        bytes
    }

    /// The map that 128 bytes hold, if they hold one.
    pub fn from_bytes(bytes: &[u8; 128]) -> Option<Self> {
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap_or_default());
        let [dtype, rank, swizzle, fill_nan, ..] = word(2).to_le_bytes();
        let valid = word(0) == MAGIC && (1..=5).contains(&rank);
        let map = valid.then(|| TensorMap {
            address: word(1),
            dtype: TensorType::ALL[usize::from(dtype) % 10],
            rank: usize::from(rank),
            shape: std::array::from_fn(|i| word(3 + i)),
            strides: std::array::from_fn(|i| word(8 + i)),
            tile: std::array::from_fn(|i| u32::from(u16::from_le_bytes([bytes[96 + 2 * i], bytes[97 + 2 * i]]))),
            element_strides: std::array::from_fn(|i| u32::from(bytes[106 + i])),
            swizzle: Swizzle::ALL[usize::from(swizzle) % 4],
            fill_nan: fill_nan != 0,
        });
        map.filter(TensorMap::is_sound)
    }

    /// Whether the fields are such that a copy by this map can be computed with.
    fn is_sound(&self) -> bool {
        let tile = self.tile.iter().fold(self.dtype.bytes() as u64, |all, n| all.saturating_mul(u64::from(*n)));
        tile <= MOST_TILE
            && tile > 0
            && self.shape.iter().all(|n| (1..=1 << 32).contains(n))
            && self.strides.iter().all(|bytes| *bytes < 1 << 40)
            && self.element_strides.iter().all(|n| (1..=8).contains(n))
    }

    /// The rows of the tile at `corner`.
    pub(crate) fn rows(&self, corner: [i64; 5]) -> Vec<Row> {
        let taken = self.taken();
        let bytes = self.dtype.bytes();
        let step = i64::from(self.element_strides[0]);
        let count: usize = taken[1..].iter().product();
        let rows = (0..count).map(|row| {
            let (mut rest, mut address, mut inside) = (row, self.address.cast_signed(), true);
            for i in 1..5 {
                let at = corner[i] + (rest % taken[i]) as i64 * i64::from(self.element_strides[i]);
                rest /= taken[i];
                inside &= (0..self.shape[i].cast_signed()).contains(&at);
                address = address.wrapping_add(at.wrapping_mul(self.strides[i - 1].cast_signed()));
            }
            // Elements corner, corner + step, … within 0..shape.
            let first = (-corner[0]).max(0).unsigned_abs().div_ceil(step.unsigned_abs()) as usize;
            let behind =
                (self.shape[0].cast_signed() - corner[0]).max(0).unsigned_abs().div_ceil(step.unsigned_abs()) as usize;
            let last = if inside { behind.min(taken[0]) } else { 0 };
            Row {
                offset: row * taken[0] * bytes,
                address: address.wrapping_add(corner[0] * bytes as i64).cast_unsigned(),
                elements: first.min(last)..last,
                step: step.unsigned_abs() * bytes as u64,
            }
        });
        rows.collect()
    }
}

/// A row of a tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Byte within the tile.
    pub(crate) offset: usize,
    /// Address of the row's first element, within the tensor or not.
    pub(crate) address: u64,
    /// Those within the tensor.
    pub(crate) elements: std::ops::Range<usize>,
    /// Bytes from one element to the next in global memory.
    pub(crate) step: u64,
}
