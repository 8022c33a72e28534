//! Dropout that is recomputed, not stored (Srivastava et al. 2014; counter-based after Salmon et al. 2011).
//!
//! ```text
//! y = x · m(row, column)      m = 0 with probability T / 256, else 256 / (256 - T)      T = round(256 · rate)
//! ```
//!
//! m is a pure function of (seed, site, row, column): backward calls the same kernel on the gradient, any thread may
//! compute any part, and a fused epilogue gives the same bits as this kernel. `site` identifies the use (layer, and which
//! of its dropouts). For a new mask in each step, the caller mixes the step into `seed`.
//!
//! An element takes one random byte, so rates are multiples of 1/256: 0.1 is 26/256, 0.1016. A rate above 0 drops at
//! least 1/256 of the elements, and every rate keeps at least 1/256. The factor of the kept elements is that of the
//! realized rate, so the expectation of y is x.
//!
//! A row is cut into blocks of 64 columns. Four Philox4x32-7 counters make a block's 64 bytes:
//!
//! ```text
//! counter      [4·b + t, row low, row high ^ site high, site low]       t = 0..4, b = column / 64
//! key          seed
//!
//!               column 64·b +  0 .. 15   16 .. 31   32 .. 47   48 .. 63
//! word           of counter t    0          1          2          3
//!
//!               column of 16     0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
//! counter       t                0  0  1  1  2  2  3  3  0  0  1  1  2  2  3  3
//! byte          of its word      0  1  0  1  0  1  0  1  2  3  2  3  2  3  2  3
//! ```
//!
//! which are the columns that a lane of the tensor cores holds in its accumulators: columns 2t and 2t + 1 of each eight,
//! for lane mod 4 = t. So in attention, one counter is all that a lane needs for a row of 64 keys. An element is dropped if
//! its byte is below T. The byte is compared in place, as the upper bits of a word: (word & 0xff·2ⁿ) < T·2ⁿ.
//!
//! Cost: T·F·(read + write), and seven rounds of two 32×32-bit multiplications for every 16 elements. Vectors hold
//! neighboring columns of a row, eight of which are four counters: each is computed four times with AVX-512, twice with
//! AVX2.
//!
//! Source of the rounds and bytes: Philox4x32-7 passes BigCrush (Salmon et al. 2011); FlashAttention draws its masks
//! likewise.
//!
//! Limits: fewer than 2³⁶ columns; rows or sites may exceed 2³², but not both, because their high words are xored.
//!
//! The same mask forward and backward, without storing it:
//!
//! ```
//! use kernels::{Cpu, dropout::{Dropout, apply}};
//!
//! let (cpu, dropout) = (Cpu::detect()?, Dropout { seed: 1, site: 0, rate: 0.5 });
//! let (x, mut y, mut dx) = ([1.0f32; 64], [0.0f32; 64], [0.0f32; 64]);
//! apply(&cpu, &dropout, 64, &x, &mut y);
//! apply(&cpu, &dropout, 64, &[1.0; 64], &mut dx);
//! assert_eq!(y, dx);
//! assert!(y.iter().all(|&y| y == 0.0 || y == 2.0));
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;

pub use cpu::apply;

use crate::num::functions;
use crate::num::philox::philox4x32_rounds;
use crate::simd::Simd;

/// Columns of a block of counters.
pub const BLOCK: usize = 64;
/// Rounds of Philox for a counter.
pub const ROUNDS: usize = 7;
/// Counters of a block.
pub const COUNTERS: usize = 4;
/// Columns of a block that share a word of the counters.
pub const QUARTER: usize = BLOCK / 4;
/// Columns after which the counters of a quarter repeat, two bytes further.
pub const HALF: usize = QUARTER / 2;

/// Dropout mask, a function of seed, site, row and column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Seed of the run, mixed with the step.
    pub seed: u64,
    /// Index of the dropout in the model.
    pub site: u64,
    /// Probability of being dropped, 0 <= rate < 1, realized as the nearest multiple of 1/256 (from 1/256 to 255/256
    /// unless it is 0).
    pub rate: f32,
}

impl Dropout {
    /// Factor of kept values, 256 / (256 - [`threshold`](Self::threshold)): 1 over the probability of being kept.
    ///
    /// # Panics
    /// If the rate is not in [0, 1).
    #[inline]
    pub fn scale(self) -> f32 {
        self.check();
        256.0 / (256 - self.threshold()) as f32
    }

    /// Panics if the rate is not in [0, 1).
    #[inline]
    #[track_caller]
    pub(crate) fn check(self) {
        assert!((0.0..1.0).contains(&self.rate), "dropout rate {} is not in [0, 1)", self.rate);
    }

    /// Threshold of the bytes: elements with a smaller byte are dropped. At most 255, and 0 only if the rate is 0.
    #[inline]
    pub fn threshold(self) -> u32 {
        let nearest = (256.0 * self.rate).round() as u32;
        nearest.clamp(u32::from(self.rate > 0.0), 255)
    }

    /// Philox key.
    #[inline]
    pub fn key(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    /// Upper three words of a row's counters.
    #[inline]
    pub(crate) fn counter(self, row: u64) -> [u32; 3] {
        [row as u32, (row >> 32) as u32 ^ (self.site >> 32) as u32, self.site as u32]
    }

    /// True if the element is kept: the definition, one element at a time.
    pub fn keeps(self, row: u64, column: usize) -> bool {
        let (block, r) = (column / BLOCK, column % BLOCK);
        let (t, byte) = (r % HALF / 2, r % QUARTER / HALF * 2 + r % 2);
        let [c1, c2, c3] = self.counter(row);
        let words = philox4x32_rounds::<ROUNDS>([(block * COUNTERS + t) as u32, c1, c2, c3], self.key());
        u32::from(words[r / QUARTER].to_le_bytes()[byte]) >= self.threshold()
    }

    /// Multipliers (0 or [`scale`](Self::scale)) of the 64 columns from 64 · `block` on.
    #[inline(always)]
    pub fn block<S: Simd>(self, simd: S, row: u64, block: usize, out: &mut [f32; BLOCK]) {
        let [c1, c2, c3] = self.counter(row);
        for first in (0..HALF).step_by(S::LANES) {
            let t = simd.and(simd.shr::<1>(columns_from(simd, first)), simd.splat_u32(COUNTERS as u32 - 1));
            let c0 = simd.add_u32(t, simd.splat_u32((block * COUNTERS) as u32));
            let counter = [c0, simd.splat_u32(c1), simd.splat_u32(c2), simd.splat_u32(c3)];
            let words = functions::philox4x32::<S, ROUNDS>(simd, counter, self.key());
            // Both halves of a quarter come from the same words, unless a vector covers both.
            for column in (first..QUARTER).step_by(HALF.max(S::LANES)) {
                let bytes = Bytes::of_columns(simd, columns_from(simd, column), self.threshold());
                for (quarter, word) in words.into_iter().enumerate() {
                    let multipliers = simd.select(bytes.dropped(simd, word), simd.zero(), simd.splat(self.scale()));
                    simd.store(&mut out[quarter * QUARTER + column..], multipliers);
                }
            }
        }
    }
}

/// Comparison of one byte of each word of a vector with the threshold.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<S: Simd> {
    /// The byte's bits.
    mask: S::U32,
    /// The threshold in the byte's place.
    threshold: S::U32,
}

impl<S: Simd> Bytes<S> {
    /// The byte of each lane is that of its column of a quarter.
    #[inline(always)]
    fn of_columns(simd: S, columns: S::U32, threshold: u32) -> Self {
        // 2^8 for odd columns, times 2^16 for those of the upper half.
        let one = simd.splat_u32(1);
        let low = simd.and(columns, one);
        let high = simd.and(simd.shr::<3>(columns), one);
        let odd = simd.add_u32(one, product(simd, low, (1 << 8) - 1));
        let upper = simd.add_u32(one, product(simd, high, (1 << 16) - 1));
        let (place, _) = simd.mul_wide_u32(odd, upper);
        Self { mask: product(simd, place, 0xff), threshold: product(simd, place, threshold) }
    }

    /// Byte `byte` of every lane.
    #[inline(always)]
    pub(crate) fn same(simd: S, byte: usize, threshold: u32) -> Self {
        Self { mask: simd.splat_u32(0xff << (8 * byte)), threshold: simd.splat_u32(threshold << (8 * byte)) }
    }

    /// True for words whose byte is below the threshold: the bits below the byte are cleared, as are those above.
    #[inline(always)]
    pub(crate) fn dropped(self, simd: S, words: S::U32) -> S::Mask {
        simd.lt_u32(simd.and(words, self.mask), self.threshold)
    }
}

/// Columns `first ..` of the lanes.
#[inline(always)]
fn columns_from<S: Simd>(simd: S, first: usize) -> S::U32 {
    simd.add_u32(simd.iota(), simd.splat_u32(first as u32))
}

/// Lower half of the product of each lane with `factor`.
#[inline(always)]
fn product<S: Simd>(simd: S, lanes: S::U32, factor: u32) -> S::U32 {
    simd.mul_wide_u32(lanes, simd.splat_u32(factor)).0
}
