//! Dropout that is recomputed, not stored (Srivastava et al. 2014; counter-based after Salmon et al. 2011).
//!
//! ```text
//! y = x · m(row, column)      m = 0 with probability rate, else 1 / (1 - rate)
//! ```
//!
//! m is a pure function of (seed, site, row, column): backward calls the same kernel on the gradient, any thread may
//! compute any part, and a fused epilogue gives the same bits as this kernel. `site` identifies the use (layer, and which
//! of its dropouts). For a new mask in each step, the caller mixes the step into `seed`.
//!
//! A row is cut into blocks of 64 columns. Sixteen Philox4x32-10 counters make a block's 64 words:
//!
//! ```text
//! counter      [16·b + i, row low, row high ^ site high, site low]      i = 0..16, b = column / 64
//! key          seed
//!
//!               column 64·b +  0 .. 15   16 .. 31   32 .. 47   48 .. 63
//! word           of counter i    0          1          2          3       with i = column % 16
//! ```
//!
//! so that the words of neighboring columns are one word of neighboring counters, in up to 16 lanes: no transpose.
//! An element is dropped if its word is below rate · 2³².
//!
//! Cost: T·F·(read + write), and ten rounds of two 32×32-bit multiplications for every four elements, about 70 cycles
//! for a block of 64 with AVX-512: less than memory takes to move the block.
//!
//! Limits: fewer than 2³⁴ columns; rows or sites may exceed 2³², but not both, because their high words are xored.

mod cases;
mod cpu;
pub mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;

pub use cases::OPERATION;
pub use cpu::apply;

use crate::num::functions;
use crate::num::philox::philox4x32;
use crate::simd::Simd;

/// Columns of a block of counters.
pub const BLOCK: usize = 64;
/// Counters of a block.
const COUNTERS: usize = 16;

/// Dropout mask, a function of seed, site, row and column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Seed of the run, mixed with the step.
    pub seed: u64,
    /// Index of the dropout in the model.
    pub site: u64,
    /// Probability of being dropped, 0 <= rate < 1.
    pub rate: f32,
}

impl Dropout {
    /// Factor of kept values, 1 / (1 - rate).
    ///
    /// # Panics
    /// If the rate is not in [0, 1).
    #[inline]
    pub fn scale(self) -> f32 {
        self.check();
        1.0 / (1.0 - self.rate)
    }

    /// Panics if the rate is not in [0, 1).
    #[inline]
    #[track_caller]
    pub(crate) fn check(self) {
        assert!((0.0..1.0).contains(&self.rate), "dropout rate {} is not in [0, 1)", self.rate);
    }

    /// Threshold of the words: elements with a smaller word are dropped.
    #[inline]
    pub fn threshold(self) -> u32 {
        (f64::from(self.rate) * 4_294_967_296.0) as u32
    }

    /// Philox key.
    #[inline]
    pub fn key(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    /// Upper three words of a row's counters.
    #[inline]
    pub fn counter(self, row: u64) -> [u32; 3] {
        [row as u32, (row >> 32) as u32 ^ (self.site >> 32) as u32, self.site as u32]
    }

    /// True if the element is kept: the definition, one element at a time.
    pub fn keeps(self, row: u64, column: usize) -> bool {
        let (block, r) = (column / BLOCK, column % BLOCK);
        let [c1, c2, c3] = self.counter(row);
        let words = philox4x32([(block * COUNTERS + r % COUNTERS) as u32, c1, c2, c3], self.key());
        words[r / COUNTERS] >= self.threshold()
    }

    /// Multipliers (0 or [`scale`](Self::scale)) of LANES columns from `column` on, a multiple of LANES.
    ///
    /// Computes the words of all four quarters of the block and uses one; for a whole block, [`block`](Self::block) is four
    /// times cheaper.
    #[inline(always)]
    pub fn lanes<S: Simd>(self, simd: S, row: u64, column: usize) -> S::F32 {
        debug_assert!(column.is_multiple_of(S::LANES));
        let words = self.words(simd, row, column / BLOCK, column % COUNTERS);
        let word = match column % BLOCK / COUNTERS {
            0 => words[0],
            1 => words[1],
            2 => words[2],
            _ => words[3],
        };
        self.multipliers(simd, word)
    }

    /// Multipliers (0 or [`scale`](Self::scale)) of the 64 columns from 64 · `block` on.
    #[inline(always)]
    pub fn block<S: Simd>(self, simd: S, row: u64, block: usize, out: &mut [f32; BLOCK]) {
        let mut first = 0;
        while first < COUNTERS {
            let words = self.words(simd, row, block, first);
            for (quarter, word) in words.into_iter().enumerate() {
                simd.store(&mut out[quarter * COUNTERS + first..], self.multipliers(simd, word));
            }
            first += S::LANES;
        }
    }

    /// Words of LANES counters of a block from its counter `first` on.
    #[inline(always)]
    fn words<S: Simd>(self, simd: S, row: u64, block: usize, first: usize) -> [S::U32; 4] {
        let [c1, c2, c3] = self.counter(row);
        let c0 = simd.add_u32(simd.iota(), simd.splat_u32((block * COUNTERS + first) as u32));
        functions::philox4x32(simd, [c0, simd.splat_u32(c1), simd.splat_u32(c2), simd.splat_u32(c3)], self.key())
    }

    #[inline(always)]
    fn multipliers<S: Simd>(self, simd: S, words: S::U32) -> S::F32 {
        let dropped = simd.lt_u32(words, simd.splat_u32(self.threshold()));
        simd.select(dropped, simd.zero(), simd.splat(self.scale()))
    }
}
