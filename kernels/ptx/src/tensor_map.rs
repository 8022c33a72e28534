//! Description of a matrix in device memory for TMA, before the driver encodes it.
//!
//! ```text
//! element (c0, c1)  at   address + c0 · bytes + c1 · stride          0 ≤ c0 < sizes[0], 0 ≤ c1 < sizes[1]
//! box               in   shared memory: tile[1] rows of tile[0] elements without gaps, their 16-byte chunks swizzled
//! ```
//!
//! Dimension 0 is the one along a row, as in `cuTensorMapEncodeTiled`, whose arguments these are. A copy always moves a
//! whole box; elements outside of the matrix are zeros, so tails need no code.

use super::{DescriptorSwizzle, Storage, tile};

/// Bytes that the base address and the stride of a tensor map are multiples of.
pub const TENSOR_MAP_ALIGNMENT: u64 = 16;
/// Maximum number of elements of a box in either dimension.
const MOST_BOX: u32 = 256;

/// A matrix in device memory and the box of it that one bulk copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Address of the first element.
    pub address: u64,
    /// Type of an element.
    pub storage: Storage,
    /// Elements of a row, then rows.
    pub sizes: [u64; 2],
    /// Bytes from a row to the next.
    pub stride: u64,
    /// Elements of a row of the box, then its rows.
    pub tile: [u32; 2],
    /// Swizzle of the box in shared memory.
    pub swizzle: DescriptorSwizzle,
}

/// Reason why TMA cannot load a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorMapError {
    /// The base address is not 16-byte aligned.
    Address(u64),
    /// The row stride is not a multiple of 16 below 2^40.
    Stride(u64),
    /// An extent is 0 or above 2^32.
    Sizes([u64; 2]),
    /// The box exceeds 256, or its rows are not as wide as the swizzle.
    Tile([u32; 2]),
}

impl std::fmt::Display for TensorMapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => write!(f, "base address {address:#x}: TMA expects a multiple of 16"),
            Self::Stride(bytes) => {
                write!(f, "row stride of {bytes} bytes: TMA expects a multiple of 16 below 2^40")
            }
            Self::Sizes(sizes) => write!(f, "matrix of {sizes:?} elements and rows: TMA expects 1 to 2^32 of each"),
            Self::Tile(sizes) => write!(
                f,
                "box of {sizes:?} elements and rows: TMA expects 1 to 256 of each, and rows as wide as the swizzle"
            ),
        }
    }
}

impl std::error::Error for TensorMapError {}

impl TensorMap {
    /// The map of `rows` x `columns` elements whose rows are `leading` elements apart, in boxes of `tile_rows` rows
    /// that are 128 bytes wide with the 128-byte swizzle ([`tile`], [`DescriptorSwizzle::Bytes128`]).
    ///
    /// # Errors
    /// TMA does not support the matrix; see [`TensorMapError`].
    pub fn matrix(
        address: u64,
        storage: Storage,
        [rows, columns]: [usize; 2],
        leading: usize,
        tile_rows: u32,
    ) -> Result<Self, TensorMapError> {
        let bytes = u64::from(storage.bytes());
        let tile = [tile::LINE / storage.bytes(), tile_rows];
        let sizes = [columns as u64, rows as u64];
        let swizzle = DescriptorSwizzle::Bytes128;
        Self { address, storage, sizes, stride: leading as u64 * bytes, tile, swizzle }.checked()
    }

    fn checked(self) -> Result<Self, TensorMapError> {
        let Self { address, storage, sizes, stride, tile, swizzle } = self;
        let width = tile[0] * storage.bytes();
        let spans = match swizzle {
            DescriptorSwizzle::None => width.is_multiple_of(tile::CHUNK),
            DescriptorSwizzle::Bytes128 => width == 128,
            DescriptorSwizzle::Bytes64 => width == 64,
            DescriptorSwizzle::Bytes32 => width == 32,
        };
        if !address.is_multiple_of(TENSOR_MAP_ALIGNMENT) {
            Err(TensorMapError::Address(address))
        } else if !stride.is_multiple_of(TENSOR_MAP_ALIGNMENT) || stride >= 1 << 40 {
            Err(TensorMapError::Stride(stride))
        } else if sizes.iter().any(|&size| size == 0 || size > 1 << 32) {
            Err(TensorMapError::Sizes(sizes))
        } else if tile.iter().any(|&size| size == 0 || size > MOST_BOX) || !spans {
            Err(TensorMapError::Tile(tile))
        } else {
            Ok(self)
        }
    }

    /// Bytes of one copy, of which those outside of the matrix are zero.
    pub const fn tile_bytes(&self) -> u32 {
        self.tile[0] * self.tile[1] * self.storage.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_tma_cannot_load_are_refused_with_a_reason() {
        let map = |address, sizes, leading, rows| TensorMap::matrix(address, Storage::Bf16, sizes, leading, rows);
        let good = map(4096, [100, 72], 80, 128).expect("rows of 160 bytes");
        assert_eq!((good.sizes, good.stride, good.tile, good.tile_bytes()), ([72, 100], 160, [64, 128], 16_384));
        assert_eq!(map(4104, [100, 72], 80, 128), Err(TensorMapError::Address(4104)));
        assert_eq!(map(4096, [100, 72], 76, 128), Err(TensorMapError::Stride(152)));
        assert_eq!(map(4096, [0, 72], 80, 128), Err(TensorMapError::Sizes([72, 0])));
        assert_eq!(map(4096, [100, 72], 80, 257), Err(TensorMapError::Tile([64, 257])));
    }
}
