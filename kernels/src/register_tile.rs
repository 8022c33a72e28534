//! Register tiles: rows and vectors of accumulators that a microkernel keeps in registers, for each vector width.
//!
//! [`RegisterTile::of_lanes`] is the only table of vectors; tiles of a matrix unit are square (`tiles::SIDE`). The loops over
//! tiles (GEMM, attention, int8) cut rows by it, and [`for_height`] instantiates a microkernel for exactly the heights that it allows, so the two cannot disagree.

use crate::simd::Simd;

/// Accumulators of a microkernel: `rows` x `vectors` vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterTile {
    /// MR.
    pub rows: usize,
    /// NV.
    pub vectors: usize,
}

/// Maximum rows for which [`for_height`] has an arm.
pub(crate) const TALLEST: usize = 14;

impl RegisterTile {
    /// `rows` x `vectors`, both of which [`for_height`] must have an arm for.
    pub(crate) const fn new(rows: usize, vectors: usize) -> Self {
        assert!(rows >= 1 && rows <= TALLEST && (vectors == 2 || vectors == 8), "for_height has no arm for this tile");
        Self { rows, vectors }
    }

    /// `rows` x `vectors` of a unit that is not a vector register: [`for_height`] has no arms for it.
    pub(crate) const fn of_unit(rows: usize, vectors: usize) -> Self {
        Self { rows, vectors }
    }

    /// Tile for vectors of `lanes`.
    pub const fn of_lanes(lanes: usize) -> Self {
        match lanes {
            16 => Self::new(14, 2),
            8 => Self::new(6, 2),
            4 => Self::new(12, 2),
            1 => Self::new(4, 8),
            _ => panic!("no register tile for this number of lanes"),
        }
    }

    /// NR for vectors of `lanes`.
    pub(crate) const fn columns(&self, lanes: usize) -> usize {
        self.vectors * lanes
    }

    /// Tile for S: accumulators, a row of B and an element of A fit the registers. (Not asserted for one lane.)
    pub(crate) const fn of<S: Simd>() -> Self {
        let tile = Self::of_lanes(S::LANES);
        assert!(S::LANES == 1 || (tile.rows + 1) * tile.vectors < S::REGISTERS, "the tile does not fit the registers");
        tile
    }
}

/// Evaluates `$body` with the constants `$h`, equal to `$height`, and `$nv`, equal to the vectors of `$tile` (a constant
/// expression). Only heights up to the rows of `$tile` are instantiated.
///
/// # Panics
/// If `$height` is 0 or above the rows of `$tile`.
macro_rules! for_height {
    ($tile:expr, $height:expr, |$h:ident, $nv:ident| $body:expr) => {
        if const { $tile.vectors == 2 } {
            for_height!(@arms $tile, $height, $h, $nv = 2, $body; 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
        } else {
            for_height!(@arms $tile, $height, $h, $nv = 8, $body; 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
        }
    };
    (@arms $tile:expr, $height:expr, $h:ident, $nv:ident = $vectors:literal, $body:expr; $($row:literal)*) => {
        match $height {
            $($row => if const { $row <= $tile.rows && $tile.vectors == $vectors } {
                const $h: usize = $row;
                const $nv: usize = $vectors;
                $body
            } else {
                $crate::register_tile::no_tile($row)
            },)*
            height => $crate::register_tile::no_tile(height),
        }
    };
}
pub(crate) use for_height;

/// Panics: rows were cut with another tile than the microkernel's.
#[cold]
#[inline(never)]
pub(crate) fn no_tile(height: usize) -> ! {
    unreachable!("no tile has {height} rows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_microkernel_exists_for_every_height_of_the_table_and_for_no_other() {
        fn arm<const LANES: usize>(height: usize) -> Option<(usize, usize)> {
            catch_unwind(|| for_height!(RegisterTile::of_lanes(LANES), height, |H, NV| (H, NV))).ok()
        }
        fn check<const LANES: usize>() {
            let tile = RegisterTile::of_lanes(LANES);
            for height in 0..=TALLEST + 1 {
                let wanted = (1..=tile.rows).contains(&height).then_some((height, tile.vectors));
                assert_eq!(arm::<LANES>(height), wanted, "{height} rows on {LANES} lanes");
            }
        }
        check::<1>();
        check::<4>();
        check::<8>();
        check::<16>();
    }
}
