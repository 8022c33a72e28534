//! Dropout of a tile of probabilities, queries along the lanes.
//!
//! A counter of the mask is (row, block of 64 columns, one of four); rows are (token, head), columns are keys. The mask of
//! a matrix is drawn in vectors of neighboring columns of a row. Here a vector is one key of neighboring tokens, whose
//! counters differ in the row word only. So one call draws the counter's 16 keys for a vector of queries, no counter twice.

use super::pack::{CHUNK, KEYS};
use crate::dropout::{BLOCK, Bytes, COUNTERS, Dropout, HALF, QUARTER, ROUNDS};
use crate::num::functions::philox4x32;
use crate::simd::{Simd, from_fn};

const _: () = assert!(KEYS.is_multiple_of(BLOCK), "a tile starts at the start of a block");

/// Mask of a panel of queries.
#[derive(Clone, Copy)]
pub(super) struct PanelMask {
    pub(super) dropout: Dropout,
    /// Row of the panel's first query in the mask, token · A + head.
    pub(super) row: u64,
    /// A: distance of the rows of neighboring tokens.
    pub(super) heads: u32,
}

/// Operation on a tile with its multipliers.
pub(super) trait MaskTile<S: Simd> {
    /// Applies the multipliers of the vector of queries at index `at` of a tile: 0, or that of what is kept.
    fn put(&mut self, simd: S, at: usize, multipliers: S::F32);
}

/// Multiplies the tile by the multipliers.
pub(super) struct Multiply<'a>(pub(super) &'a mut [f32]);

impl<S: Simd> MaskTile<S> for Multiply<'_> {
    #[inline(always)]
    fn put(&mut self, simd: S, at: usize, multipliers: S::F32) {
        let value = simd.mul(simd.load(&self.0[at..]), multipliers);
        simd.store(&mut self.0[at..], value);
    }
}

/// Stores the multipliers in the tile.
pub(super) struct Store<'a>(pub(super) &'a mut [f32]);

impl<S: Simd> MaskTile<S> for Store<'_> {
    #[inline(always)]
    fn put(&mut self, simd: S, at: usize, multipliers: S::F32) {
        simd.store(&mut self.0[at..], multipliers);
    }
}

impl PanelMask {
    /// Applies the multipliers of `queries` queries and of the `keys` keys from `first` on, a multiple of 64, to `tile`: 0, or
    /// `kept`.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(
        &self,
        simd: S,
        (keys, queries): (usize, usize),
        first: usize,
        kept: f32,
        tile: &mut impl MaskTile<S>,
    ) {
        let (zero, scale) = (simd.zero(), simd.splat(kept));
        let threshold = self.dropout.threshold();
        let bytes: [_; 4] = from_fn(|byte| Bytes::same(simd, byte, threshold));
        let [c1, c2, c3] = self.dropout.counter(self.row);
        let (c2, c3) = (simd.splat_u32(c2), simd.splat_u32(c3));
        for v in 0..queries.div_ceil(S::LANES) {
            let token = simd.add_u32(simd.iota(), simd.splat_u32((v * S::LANES) as u32));
            let (offset, _) = simd.mul_wide_u32(token, simd.splat_u32(self.heads));
            let rows = simd.add_u32(simd.splat_u32(c1), offset);
            for block in (0..keys).step_by(BLOCK) {
                for t in 0..COUNTERS.min((keys - block).div_ceil(2)) {
                    let c0 = ((first + block) / BLOCK * COUNTERS + t) as u32;
                    let counter = [simd.splat_u32(c0), rows, c2, c3];
                    let words = philox4x32::<S, ROUNDS>(simd, counter, self.dropout.key());
                    for (quarter, word) in words.into_iter().enumerate() {
                        for (byte, bytes) in bytes.iter().enumerate() {
                            let key = block + quarter * QUARTER + byte / 2 * HALF + 2 * t + byte % 2;
                            if key < keys {
                                let m = simd.select(bytes.dropped(simd, word), zero, scale);
                                tile.put(simd, key * CHUNK + v * S::LANES, m);
                            }
                        }
                    }
                }
            }
        }
    }
}
