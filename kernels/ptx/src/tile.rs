//! Tiles in shared memory: rows of elements whose 16-byte chunks are swizzled, so that accesses are free of bank
//! conflicts.
//!
//! Shared memory has 32 banks of 4 bytes: 128 bytes, a *line*, can be served at once. `ldmatrix` reads eight chunks of
//! 16 bytes from eight rows; with rows of 128 bytes all eight would start in the same bank. So chunk c of row r is
//! stored in the place of chunk c xor f(r):
//!
//! ```text
//! 64 elements of 16 bits, 128 bytes a row, f(r) = r mod 8         32 elements, 64 bytes: two rows a line, f(r) = ⌊r/2⌋ mod 4
//!
//!          banks 0-3 4-7  …                                                banks 0-3 …
//! row 0      │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │                  rows 0, 1    │ 0 │ 1 │ 2 │ 3 │ 0 │ 1 │ 2 │ 3 │
//! row 1      │ 1 │ 0 │ 3 │ 2 │ 5 │ 4 │ 7 │ 6 │                  rows 2, 3    │ 1 │ 0 │ 3 │ 2 │ 1 │ 0 │ 3 │ 2 │
//! row 2      │ 2 │ 3 │ 0 │ 1 │ 6 │ 7 │ 4 │ 5 │                  rows 4, 5    │ 2 │ 3 │ 0 │ 1 │ 2 │ 3 │ 0 │ 1 │
//!   …                                                              …
//! ```
//!
//! With 128 bytes a row this is also the 128-byte swizzle of Hopper's TMA and tensor cores.
//!
//! Other chunks are at constant distances from the address of one: by whole periods of f down the rows, an addition
//! ([`Step::add`]); within a line, an exclusive or ([`Step::flip`]).

use super::{Entry, Ptr, Reg, Shared, U32};

/// Bytes of a chunk: what one `cp.async`, one row of `ldmatrix` and one vector access move.
pub const CHUNK: u32 = 16;
/// Bytes that the banks serve at once.
pub const LINE: u32 = 128;

/// Permutation of the chunks of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Identity.
    None,
    /// f(r) = the index of the row's line, modulo the chunks of a row within a line: for reads of chunks of eight
    /// adjacent rows.
    Line,
    /// f(r) = r mod 8 with its three bits reversed, for rows of whole lines: for accumulators of `mma`, which are
    /// written in pairs of 8 bytes from four adjacent rows and read in chunks.
    Reversed,
}

/// A tile in shared memory, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows.
    pub rows: u32,
    /// Elements in a row.
    pub columns: u32,
    /// Bytes of an element.
    pub element: u32,
    /// Permutation of the chunks.
    pub swizzle: Swizzle,
}

/// From one address of a tile to another: (address + add) xor flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes added: fits an instruction's constant offset.
    pub add: i32,
    /// Bits flipped.
    pub flip: u32,
}

impl Tile {
    /// A tile of 16-bit elements with the swizzle for `ldmatrix`.
    ///
    /// # Panics
    /// If a row is not 32, 64 or a multiple of 128 bytes.
    pub const fn of_halves(rows: u32, columns: u32) -> Self {
        Self { rows, columns, element: 2, swizzle: Swizzle::Line }.checked()
    }

    const fn checked(self) -> Self {
        let pitch = self.pitch();
        let whole = pitch.is_multiple_of(LINE);
        match self.swizzle {
            Swizzle::None => assert!(pitch.is_multiple_of(CHUNK), "a row is whole chunks"),
            Swizzle::Line => assert!(whole || pitch == 32 || pitch == 64, "a row is 32, 64 or a multiple of 128 bytes"),
            Swizzle::Reversed => assert!(whole, "a row is whole lines"),
        }
        self
    }

    /// A tile with this swizzle.
    ///
    /// # Panics
    /// If the rows do not suit the swizzle.
    pub const fn new(rows: u32, columns: u32, element: u32, swizzle: Swizzle) -> Self {
        Self { rows, columns, element, swizzle }.checked()
    }

    /// Bytes of a row.
    pub const fn pitch(&self) -> u32 {
        self.columns * self.element
    }

    /// Bytes of the tile.
    pub const fn bytes(&self) -> u32 {
        self.rows * self.pitch()
    }

    /// Chunks of a row.
    pub const fn chunks(&self) -> u32 {
        self.pitch() / CHUNK
    }

    /// f(`row`), by which the chunks of a row are permuted.
    pub const fn exchange(&self, row: u32) -> u32 {
        match self.swizzle {
            Swizzle::None => 0,
            Swizzle::Line if self.pitch() >= LINE => row % 8,
            Swizzle::Line => row / (LINE / self.pitch()) % self.chunks(),
            Swizzle::Reversed => row % 2 * 4 + row / 2 % 2 * 2 + row / 4 % 2,
        }
    }

    /// Rows after which the exchange repeats.
    pub const fn period(&self) -> u32 {
        match self.swizzle {
            Swizzle::None => 1,
            _ => 8,
        }
    }

    /// Bytes from the tile's start to (row, column).
    pub const fn offset(&self, row: u32, column: u32) -> u32 {
        let byte = column * self.element;
        row * self.pitch() + ((byte / CHUNK) ^ self.exchange(row)) * CHUNK + byte % CHUNK
    }

    /// The (row, column) at `offset` bytes from the tile's start: the inverse of [`offset`](Self::offset).
    pub const fn at(&self, offset: u32) -> (u32, u32) {
        let (row, byte) = (offset / self.pitch(), offset % self.pitch());
        (row, (((byte / CHUNK) ^ self.exchange(row)) * CHUNK + byte % CHUNK) / self.element)
    }

    /// The step from (r, c) to (r + rows, c + columns), the same for every r and for every c whose offset within a line
    /// has none of the bits of `columns`.
    ///
    /// # Panics
    /// If `rows` is not a multiple of the swizzle's period, or `columns` are not whole chunks.
    pub const fn step(&self, rows: u32, columns: u32) -> Step {
        let bytes = columns * self.element;
        assert!(rows.is_multiple_of(self.period()), "rows of a step must be a multiple of the swizzle's period");
        assert!(bytes.is_multiple_of(CHUNK), "columns of a step must be whole chunks");
        match self.swizzle {
            Swizzle::None => Step { add: (rows * self.pitch() + bytes) as i32, flip: 0 },
            _ => Step { add: (rows * self.pitch() + bytes / LINE * LINE) as i32, flip: bytes % LINE },
        }
    }

    /// Writes the address of chunk `chunk` of row `row` of a tile at `base`, which is a multiple of [`LINE`].
    #[track_caller]
    pub fn chunk_address(&self, k: &Entry, base: Ptr<Shared>, row: Reg<U32>, chunk: Reg<U32>) -> Ptr<Shared> {
        let exchanged = match self.swizzle {
            Swizzle::None => chunk,
            Swizzle::Line if self.pitch() >= LINE => k.xor(chunk, k.and(row, 7u32)),
            Swizzle::Line => {
                let line = k.shr(row, (LINE / self.pitch()).ilog2());
                k.xor(chunk, k.and(line, self.chunks() - 1))
            }
            Swizzle::Reversed => {
                let low = k.shl(k.and(row, 1u32), 2);
                let middle = k.and(row, 2u32);
                let high = k.and(k.shr(row, 2), 1u32);
                k.xor(chunk, k.or(k.or(low, middle), high))
            }
        };
        k.index(k.index(base, row, self.pitch()), exchanged, CHUNK)
    }
}

impl Step {
    /// Writes the address that this step leads to from `from`, all but the constant offset that it returns: nothing, or
    /// one exclusive or.
    #[track_caller]
    pub fn take(self, k: &Entry, from: Ptr<Shared>) -> super::Address<Shared> {
        let place = if self.flip == 0 { from } else { k.flip(from, self.flip) };
        place.at(self.add)
    }
}
