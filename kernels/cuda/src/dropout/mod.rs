//! Dropout on the GPU, and its mask for the epilogues of other kernels: bit-identical to the CPU.
//!
//! ```text
//! y = x · m(row, column)                            [T, F]; backward is the same kernel on the gradient
//! ```
//!
//! A counter's word has two bytes in each half of a quarter (see [`kernels::dropout`]). A thread computes 8 neighboring columns of
//! each quarter of a block of 64, so that it moves 16 bytes at once: a half of each word of the block's four counters. Its
//! neighbor computes the same counters for the other halves. (Whole words would take 4 bytes at once, or 32 columns of
//! two sectors each: the counters are cheaper.) The halves of two counters are packed in one register, in the order of
//! the columns.
//!
//! ```text
//! __global__ __launch_bounds__(128)
//! apply(x, y, seed_low, seed_high, site_low, site_high, threshold, scale, rows, columns) {
//!     lane  = thread % ACROSS;  half = lane % 2;                      // ACROSS threads side by side in a row
//!     first = 64 * (blockIdx.x * ACROSS / 2 + lane / 2) + 8 * half;   // columns first .. +8 of each quarter
//!     for (row = blockIdx.y * (128 / ACROSS) + thread / ACROSS; row < rows; row += gridDim.y * (128 / ACROSS)) {
//!         bytes[4][8] = half `half` of the words of philox(4 * (first / 64) .. +4, row);
//!         for (quarter = 0; quarter < 4; quarter++)
//!             y[row, first + 16 * quarter ..] = x[..] * (bytes[quarter][..] < threshold ? 0 : scale);
//! }   }
//!
//!   columns 64·b +    0 .. 8   8 .. 16   16 .. 24   24 .. 32   32 …
//!   thread            2b       2b + 1    2b         2b + 1     2b …        neighbors fill whole sectors of 32 bytes
//! ```
//!
//! Cost: 2·T·F elements of memory traffic, and 10 instructions an element as ptxas compiles them (bf16), 6.5 of them for the
//! mask: on an H200 (128 a cycle of a multiprocessor) they take 0.44 of the time of the traffic. Rows that are not a multiple
//! of 16 bytes are loaded and stored element by element.
//!
//! Limits: T < 2³², F < 2³⁰.

#[cfg(test)]
mod tests;

use crate::arguments::{Address, Argument, Load, Value, all, arguments};
use crate::program::{Name, Program, storage_of};
use kernels::DType;
use kernels::dropout::{BLOCK, COUNTERS, Dropout, HALF, QUARTER, ROUNDS};
use ptx::{Entry, F32, Launch, Param, PhiloxKey, Read, Reg, Sm, Special, U32};

/// Threads in a block.
const THREADS: u32 = 128;
/// Threads side by side in a row.
const ACROSS: [u32; 4] = [2, 8, 32, THREADS];
/// Maximum gridDim.y.
const MAX_GRID_Y: usize = 65_535;

/// Declared parameters of a mask: `seed_low, seed_high, site_low, site_high` (u32), `threshold` (u32), `scale` (f32).
#[derive(Clone, Debug)]
pub(crate) struct MaskParams {
    words: [Param<U32>; 5],
    scale: Param<F32>,
}

/// Mask with its parameters in registers.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    key: PhiloxKey<ROUNDS>,
    site: [Reg<U32>; 2],
    threshold: Reg<U32>,
    scale: Reg<F32>,
}

/// Comparison of single bytes: the threshold in the place of each byte of a word, and the scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    thresholds: [Reg<U32>; 4],
    scale: Reg<F32>,
}

/// Comparison of the four bytes of a word at once: the threshold in every byte, and its lower seven bits in every byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    threshold: Reg<U32>,
    low: Reg<U32>,
}

/// Random bytes of eight neighboring columns of each quarter of a block, two registers a quarter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eights([[Reg<U32>; 2]; 4]);

/// Arguments of a mask: five words and the scale.
impl Argument for Dropout {
    type Param = MaskParams;
    fn declare(k: &Entry, _: &str, _: &dyn Fn(&str) -> bool) -> MaskParams {
        MaskParams::declare(k)
    }
    fn push(&self, values: &mut Vec<Value>) {
        let [low, high] = self.key();
        let words = [low, high, self.site as u32, (self.site >> 32) as u32, self.threshold()];
        values.extend(words.map(Value::U32));
        values.push(Value::F32(self.scale()));
    }
}

arguments! {
    /// Arguments of [`Apply`].
    ApplyArgs, declared as ApplyParams {
        /// [T, F]
        x: Address,
        /// [T, F]; may be x.
        y: Address,
        /// The mask.
        dropout: Dropout,
        /// T
        rows: usize,
        /// F
        columns: usize,
    }
}

impl MaskParams {
    /// Declares the parameters.
    pub(crate) fn declare(k: &Entry) -> Self {
        let words = ["seed_low", "seed_high", "site_low", "site_high", "threshold"].map(|name| k.param(name));
        Self { words, scale: k.param("scale") }
    }

    /// Loads the parameters and computes the keys of all rounds.
    pub(crate) fn load(self, k: &Entry) -> Mask {
        let [seed_low, seed_high, site_low, site_high, threshold] = self.words.map(|word| k.ld_param(word));
        let key = k.philox_key([seed_low, seed_high]);
        Mask { key, site: [site_low, site_high], threshold, scale: k.ld_param(self.scale) }
    }
}

impl Mask {
    /// Words of one counter.
    pub(crate) fn words(&self, k: &Entry, row: Reg<U32>, counter: Reg<U32>) -> [Reg<U32>; 4] {
        let [site_low, site_high] = self.site;
        k.philox4x32([counter, row, site_high, site_low], &self.key)
    }

    /// Multiplier, 0 or the scale, of byte `byte` of a word.
    pub(crate) fn multiplier(&self, k: &Entry, word: Reg<U32>, byte: Reg<U32>) -> Reg<F32> {
        let byte = k.and(k.shr(word, k.shl(byte, 3)), 0xffu32);
        k.selp(0.0f32, self.scale, k.lt(byte, self.threshold))
    }

    /// Factor of kept elements.
    pub(crate) fn scale(&self) -> Reg<F32> {
        self.scale
    }

    /// Comparison of single bytes.
    pub(crate) fn bytes(&self, k: &Entry) -> Bytes {
        let of_byte = |byte: u32| if byte == 0 { self.threshold } else { k.shl(self.threshold, 8 * byte) };
        Bytes { thresholds: [0, 1, 2, 3].map(of_byte), scale: self.scale }
    }

    /// Comparison of whole words.
    pub(crate) fn whole_words(&self, k: &Entry) -> Words {
        let threshold = k.mul_lo(self.threshold, 0x0101_0101u32);
        Words { threshold, low: k.and(threshold, 0x7f7f_7f7fu32) }
    }

    /// Selector of the bytes of half `half`, for [`Mask::eights`].
    pub(crate) fn selector(k: &Entry, half: Reg<U32>) -> Reg<U32> {
        k.mad_lo(half, 0x2222u32, k.mov(0x5410u32))
    }

    /// Bytes of columns 64·b + 8·half .. + 8 of each quarter of a row, for `first` = 4·b.
    pub(crate) fn eights(&self, k: &Entry, row: Reg<U32>, first: Reg<U32>, selector: Reg<U32>) -> Eights {
        let counters = [0, 1, 2, 3].map(|t| {
            let counter = if t == 0 { first } else { k.add(first, t) };
            self.words(k, row, counter)
        });
        let pair = |quarter: usize, t: usize| k.prmt_by(counters[t][quarter], counters[t + 1][quarter], selector);
        Eights([0, 1, 2, 3].map(|quarter| [0, 2].map(|t| pair(quarter, t))))
    }
}

impl Bytes {
    /// Multiplier, 0 or the scale, of byte `byte` of a word.
    pub(crate) fn multiplier(&self, k: &Entry, word: Reg<U32>, byte: usize) -> Reg<F32> {
        // Not extracted: the bytes above are cleared, and those below are less than one unit of the threshold.
        let word = if byte == 3 { word } else { k.and(word, u32::MAX >> (24 - 8 * byte)) };
        k.selp(0.0f32, self.scale, k.lt(word, self.thresholds[byte]))
    }
}

impl Words {
    /// Bits of 32 elements from eight words: bit 8·j + i is set if byte j of word i keeps its element.
    pub(crate) fn kept(&self, k: &Entry, words: [Reg<U32>; 8]) -> Reg<U32> {
        const TOP: u32 = 0x8080_8080;
        const MAJORITY_WITHOUT_B: u8 = 0xB2;
        const A_WHERE_B_ELSE_C: u8 = 0xE2;
        let kept = words.map(|word| {
            // byte - threshold without borrows between bytes: bit 7 of `rest` is set unless the lower seven bits borrow. The
            // byte does not borrow if two of its bit 7, the inverse of the threshold's and that of `rest` are set.
            let rest = k.sub(k.or(word, TOP), self.low);
            k.lop3(word, self.threshold, rest, MAJORITY_WITHOUT_B)
        });
        kept[1..].iter().fold(kept[0], |bits, &kept| k.lop3(kept, TOP, k.shr(bits, 1), A_WHERE_B_ELSE_C))
    }
}

impl Eights {
    /// Multipliers of the eight columns in `quarter`.
    pub(crate) fn quarter(&self, k: &Entry, bytes: &Bytes, quarter: usize) -> [Reg<F32>; 8] {
        std::array::from_fn(|i| bytes.multiplier(k, self.0[quarter][i / 4], i % 4))
    }
}

/// Specialization of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Apply {
    /// Storage of x and y.
    pub dtype: DType,
    /// Threads side by side in a row: 2, 8, 32 or 128.
    pub across: u32,
    /// True if rows are a multiple of eight elements.
    pub aligned: bool,
}

impl Apply {
    /// Specialization for rows of `columns` elements.
    pub fn new(dtype: DType, columns: usize) -> Self {
        let wanted = 2 * columns.div_ceil(BLOCK) as u32;
        let across = ACROSS.into_iter().find(|across| *across >= wanted).unwrap_or(THREADS);
        Self { dtype, across, aligned: columns.is_multiple_of(8) }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let of = |dtype| ACROSS.map(|across| Self { dtype, across, aligned: true });
        let mut all: Vec<_> = [DType::F32, DType::Bf16].into_iter().flat_map(of).collect();
        all.extend(all.clone().into_iter().map(|kernel| Self { aligned: false, ..kernel }));
        all
    }

    /// Name of the program for `sm`; the tile is rows x threads.
    pub fn name(&self, sm: Sm) -> Name {
        let tile = format!("{}x{}", THREADS / self.across, self.across);
        let parts = [self.dtype.name(), sm.name(), &tile, "unaligned"];
        Name::new("dropout", &parts[..if self.aligned { 3 } else { 4 }])
    }

    /// Launch for [T, F]; `None` if there is nothing to compute.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        let blocks = columns.div_ceil(BLOCK * self.across as usize / 2);
        let rows_of_blocks = rows.div_ceil((THREADS / self.across) as usize).min(MAX_GRID_Y);
        let grid = [blocks as u32, rows_of_blocks as u32, 1];
        (rows > 0 && columns > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Maximum registers per thread.
    fn registers(&self) -> u32 {
        96
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, self.registers(), |k| self.body(k))
    }

    fn body(&self, k: &Entry) {
        k.maxnreg(self.registers());
        let params = ApplyArgs::declare(k, &all);
        let (x, y, mask) = (params.x.load(k), params.y.load(k), params.dropout.load(k));
        let (rows, columns) = (params.rows.load(k), params.columns.load(k));
        let storage = storage_of(self.dtype);
        k.comment("columns first .. first + 8 of each quarter of a block of 64");
        let (thread, down) = (k.special(Special::TidX), THREADS / self.across);
        let lane = k.and(thread, self.across - 1);
        let lane = k.mad_lo(k.special(Special::CtaidX), self.across, lane);
        let (block, half) = (k.shr(lane, 1), k.and(lane, 1u32));
        let first = k.mad_lo(block, BLOCK as u32, k.shl(half, HALF.ilog2()));
        let (counter, selector) = (k.shl(block, COUNTERS.ilog2()), Mask::selector(k, half));
        let bytes = mask.bytes(k);
        let pitch = k.shl(columns, storage.bytes().ilog2());
        let [x, y] = [x, y].map(|matrix| k.index(matrix, first, storage.bytes()));
        let offset = |quarter: u32| (QUARTER as u32 * quarter * storage.bytes()) as i32;
        k.comment("for each row of this thread");
        let row = k.mad_lo(k.special(Special::CtaidY), down, k.shr(thread, self.across.ilog2()));
        k.for_(row, rows, k.shl(k.special(Special::NctaidY), down.ilog2()), |row| {
            k.if_(k.lt(first, columns), || {
                let eights = mask.eights(k, row, counter, selector);
                let [x, y] = [x, y].map(|matrix| k.index(matrix, row, pitch));
                for quarter in 0..4 {
                    let column = k.add(first, QUARTER as u32 * quarter);
                    let (x, y) = (x.at(offset(quarter)), y.at(offset(quarter)));
                    let factors = eights.quarter(k, &bytes, quarter as usize);
                    let multiplied = |x: Vec<Reg<F32>>| -> Vec<Reg<F32>> {
                        x.into_iter().zip(factors).map(|(x, factor)| k.mul(x, factor)).collect()
                    };
                    // Not read-only loads: y may be x.
                    k.if_(k.lt(column, columns), || match self.aligned {
                        true => {
                            let x = k.load_elements(storage, x, 8, Read::Mutable);
                            k.store_elements(storage, y, &multiplied(x));
                        }
                        false => {
                            let x = k.load_numbers_below(storage, x, 8, [column, columns], Read::Mutable);
                            k.store_numbers_below(storage, y, &multiplied(x), column, columns);
                        }
                    });
                }
            });
        });
    }
}
