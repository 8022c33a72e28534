//! Sums on the GPU, in an order that depends on the shape alone.
//!
//! ```text
//! column sums     out[f] (+)= Σ_t x[t, f]                    the gradient of a bias
//! totals          Σ x, Σ x²                                  in f64: a loss; a gradient's norm, and its scale
//! row sums        out[t] = Σ_f x[t, f]
//! ```
//!
//! ```text
//! __global__ __launch_bounds__(256) columns(x, out, rows, .., matrices, stride, across) {           // 32 lanes x 8 warps
//!     x += across * blockIdx.z                                                    // matrices with an out of their own
//!     for (; matrices--; x += stride)                                             // and such with one, in order
//!         a lane has V neighboring columns (16 bytes);  warp w adds rows w, w + 8, ... of the block's rows in f32
//!         shared[w][..] = sums; __syncthreads();  warp 0: out[blockIdx.y, ..] (+)= shared[0] + shared[1] + ... in order
//! }
//!                  32·V columns
//!            ┌────┬────┬───                       launch 1: blocks of rows -> partial [blocks of rows, columns] f32
//!  rows a    │    │    │                          launch 2: the partial sums -> out, one block of rows
//!  block     ├────┼────┼───                       one block of rows: launch 1 only
//!            │    │    │
//!
//! __global__ __launch_bounds__(256) total(x, partial, count) {
//!     each thread: f32 sums of 16 elements at a time, added in f64;  a tree over the block; partial[blockIdx.x] in f64
//! }
//! __global__ __launch_bounds__(256) add(partial, out, count, factor)                          // one block, in f64
//! __global__ __launch_bounds__(256) clip(partial, out, count)                                 // the same, and the scale
//! ```
//!
//! Bound by memory: x once. Limits: counts below 2³².

use crate::arguments::{Address, Load, all, arguments};
use crate::program::{Name, Program, storage_of};
use kernels::DType;
use ptx::{Compare, Entry, F32, F64, Fold, Global, Launch, Ptr, Read, Reg, Shared, Sm, Special, Storage, U32};

/// Threads in a block.
const THREADS: u32 = 256;
/// Warps in a block.
const WARPS: u32 = THREADS / 32;
/// Target number of blocks of column sums: two per multiprocessor of an H200.
const WANTED_BLOCKS: usize = 264;
/// Minimum rows of a block.
const MIN_BLOCK_ROWS: usize = 64;
/// Elements that a block of a total adds.
const TOTAL_RUN: usize = 16_384;
/// Elements that a thread adds in f32 before it adds the sum in f64.
const F32_RUN: u32 = 16;

/// Specialization of the column sums ([`ColumnSumsArgs`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnSums {
    /// Storage of x; out is f32.
    pub dtype: DType,
    /// True if the sums are added to out, false if they overwrite it.
    pub accumulate: bool,
    /// Columns of a lane: 16 bytes, or one column.
    pub vector: u32,
}

/// Launch of column sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnLaunch {
    /// Grid and block.
    pub launch: Launch,
    /// Value of the last argument.
    pub rows_a_block: usize,
    /// Rows of `out`, one per block of rows.
    pub row_blocks: usize,
}

impl ColumnSums {
    /// Specialization for rows `pitch` elements apart.
    pub fn new(dtype: DType, accumulate: bool, columns: usize, pitch: usize) -> Self {
        let widest = 16 / dtype.bytes();
        let whole = columns.is_multiple_of(widest) && pitch.is_multiple_of(widest);
        Self { dtype, accumulate, vector: if whole { widest as u32 } else { 1 } }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let of = |dtype: DType| [false, true].map(|accumulate| [8, 1].map(|n| Self::new(dtype, accumulate, n, n)));
        [DType::Bf16, DType::F32].into_iter().flat_map(of).flatten().collect()
    }

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        let tile = format!("{WARPS}x{}", 32 * self.vector);
        let parts = [self.dtype.name(), sm.name(), &tile, "accumulate"];
        Name::new("reduce.columns", &parts[..if self.accumulate { 4 } else { 3 }])
    }

    /// Launch for x [rows, columns] with enough blocks of rows to fill the device, or one block of rows if `in_one`; `None`
    /// if there are no columns.
    pub fn launch(&self, rows: usize, columns: usize, in_one: bool) -> Option<ColumnLaunch> {
        let column_blocks = columns.div_ceil(32 * self.vector as usize);
        let wanted = if in_one { 1 } else { (WANTED_BLOCKS / column_blocks.max(1)).max(1) };
        let rows_a_block = rows.div_ceil(wanted).max(if in_one { 1 } else { MIN_BLOCK_ROWS });
        let row_blocks = rows.div_ceil(rows_a_block).max(1);
        let grid = [column_blocks as u32, row_blocks as u32, 1];
        let launch = Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 };
        (columns > 0).then_some(ColumnLaunch { launch, rows_a_block, row_blocks })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 64, |k| {
            k.maxnreg(64);
            self.body(k);
        })
    }

    fn body(&self, k: &Entry) {
        let params = ColumnSumsArgs::declare(k, &all);
        let (x, out) = (params.x.load(k), params.out.load(k));
        let [rows, columns, pitch, height] =
            [&params.rows, &params.columns, &params.pitch, &params.rows_a_block].map(|size| size.load(k));
        let [matrices, stride, across] = [&params.matrices, &params.stride, &params.across].map(|size| size.load(k));
        let (storage, v) = (storage_of(self.dtype), self.vector);
        let partial = k.shared_array("partial", THREADS * v * 4, 16);
        let thread = k.special(Special::TidX);
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31u32));
        let origin = k.mul_lo(k.special(Special::CtaidX), 32 * v);
        let column = k.mad_lo(lane, v, origin);
        let within = k.lt(column, columns);
        let block = k.special(Special::CtaidY);
        let (first, bytes) = (k.mul_lo(block, height), k.shl(pitch, storage.bytes().ilog2()));
        let end = k.min_u32(k.add(first, height), rows);
        let x =
            k.index(k.index(x, k.mul_lo(k.special(Special::CtaidZ), across), storage.bytes()), column, storage.bytes());
        let block = k.mad_lo(k.special(Special::CtaidZ), k.special(Special::NctaidY), block);
        let sums = k.registers::<F32>("sum", v as usize);
        k.for_(0u32, matrices, 1u32, |matrix| {
            let x = k.index(x, k.mul_lo(matrix, stride), storage.bytes());
            sums.iter().for_each(|&sum| k.assign(sum, 0.0f32));
            k.comment("warp w adds rows w, w + 8, ...: four of them under way at a time");
            k.for_(k.add(first, warp), end, 4 * WARPS, |row| {
                let rows = [0, 1, 2, 3].map(|i| k.add(row, i * WARPS));
                let loaded = rows.map(|row| {
                    let exists = k.and(within, k.lt(row, end));
                    let at = k.index(x, row, bytes).at(0);
                    if v > 1 {
                        return k.load_numbers_if(storage, at, v, exists);
                    }
                    vec![k.load_number_if(storage, at, exists, Read::Mutable)]
                });
                for values in loaded {
                    sums.iter().zip(values).for_each(|(&sum, value)| k.add_into(sum, sum, value));
                }
            });
            k.comment("the warps' sums in order");
            for (i, &sum) in (0u32..).zip(&sums) {
                let place = k.add(k.mad_lo(warp, 32 * v, lane), 32 * i);
                k.st(k.index(partial, place, 4u32).at(0), [sum]);
            }
            k.bar_sync();
            let column = k.add(k.mad_lo(lane, v, origin), warp);
            k.if_(k.and(k.lt(warp, v), k.lt(column, columns)), || {
                let from = k.index(partial, thread, 4u32);
                let part = |warp: u32| k.ld::<F32, 1>(from.at((warp * 32 * v * 4) as i32))[0];
                let mut total = (1..WARPS).fold(part(0), |sum, warp| k.add(sum, part(warp)));
                let to = k.index(k.index(out, block, k.shl(columns, 2)), column, 4u32).at(0);
                if self.accumulate {
                    total = k.add(k.load_elements(Storage::F32, to, 1, Read::Mutable)[0], total);
                }
                k.st(to, [total]);
            });
            k.comment("before the next matrix");
            k.bar_sync();
        });
    }
}

/// Term of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// x
    Number,
    /// x²
    Square,
}

/// First launch of a total, or the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Total {
    /// Storage of x.
    pub dtype: DType,
    /// Term that is summed.
    pub term: Term,
    /// True if the elements are whole vectors of 16 bytes.
    pub aligned: bool,
    /// True if one block adds all elements and writes what [`AddTotals::Scaled`] would.
    pub scaled: bool,
}

/// Second launch of a total, one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddTotals {
    /// `out` is f32: the total times `factor`.
    Scaled,
    /// `out` is a [`ClipBlock`].
    Clip,
}

/// Clipping of a gradient to a global norm, in device memory, as words.
///
/// ```text
/// 0  total   f64   Σ g², written
/// 2  limit   f64   of the norm √total
/// 4  scale   f32   min(1, limit / norm), written; NaN if the norm is not finite, and from then on
/// ```
///
/// Optimizers update nothing where the scale is NaN: neither in the step that is not finite nor in those after it, which the
/// host started before it knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClipBlock;

impl ClipBlock {
    /// Number of words.
    pub const WORDS: usize = 5;
    /// Bytes before the limit.
    const LIMIT: i32 = 8;
    /// Bytes before the scale.
    pub const SCALE: usize = 16;

    /// The words before the first step.
    pub fn words(limit: f64) -> [u32; Self::WORDS] {
        let limit = limit.to_bits();
        [0, 0, limit as u32, (limit >> 32) as u32, 1f32.to_bits()]
    }

    /// The total.
    pub fn total(words: [u32; 2]) -> f64 {
        f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32)
    }
}

/// Row sums. Arguments: `x, out, rows, columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowSums {
    /// Storage of x; out is f32.
    pub dtype: DType,
}

impl Total {
    /// Specialization for `count` elements.
    pub fn new(dtype: DType, term: Term, count: usize) -> Self {
        Self { dtype, term, aligned: count.is_multiple_of(16 / dtype.bytes()), scaled: false }
    }

    /// Specialization for a list of losses, of any length up to [`Total::ONE_BLOCK`].
    pub fn of_losses() -> Self {
        Self { dtype: DType::F32, term: Term::Number, aligned: false, scaled: true }
    }

    /// Maximum elements of one block.
    pub const ONE_BLOCK: usize = TOTAL_RUN;

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            for term in [Term::Square, Term::Number] {
                all.extend([8, 1].map(|count| Self::new(dtype, term, count)));
            }
        }
        all.push(Self::of_losses());
        all
    }

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        let operation = if self.term == Term::Number { "reduce.sum" } else { "reduce.squares" };
        let tile = TOTAL_RUN.to_string();
        let variant = if self.scaled { "scaled" } else { "unaligned" };
        let parts = [self.dtype.name(), sm.name(), &tile, variant];
        Name::new(operation, &parts[..if self.aligned { 3 } else { 4 }])
    }

    /// Launch; the grid's first size is the number of partial sums. `None` for no elements, whose total is 0.
    pub fn launch(&self, count: usize) -> Option<Launch> {
        let grid = [count.div_ceil(TOTAL_RUN) as u32, 1, 1];
        (count > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 64, |k| {
            k.maxnreg(64);
            self.body(k);
        })
    }

    fn body(&self, k: &Entry) {
        let params = TotalArgs::declare(k, &|_| self.scaled);
        let (x, partial, count) = (params.x.load(k), params.partial.load(k), params.count.load(k));
        let factor = params.factor.load(k);
        let storage = storage_of(self.dtype);
        let (v, thread, block) = (storage.vector(), k.special(Special::TidX), k.special(Special::CtaidX));
        let total = k.variable::<F64>("total", 0.0f64);
        let first = k.mad_lo(block, TOTAL_RUN as u32, k.mul_lo(thread, v));
        let end = k.min_u32(k.mul_lo(k.add(block, 1u32), TOTAL_RUN as u32), count);
        k.for_(first, end, THREADS * F32_RUN, |first| {
            let mut sum = k.mov(0.0f32);
            for i in 0..F32_RUN / v {
                let first = k.add(first, i * THREADS * v);
                let at = k.index(x, first, storage.bytes()).at(0);
                let values = match self.aligned {
                    true => k.load_numbers_if(storage, at, v, k.lt(first, end)),
                    false => k.load_numbers_below(storage, at, v, [first, end], Read::Once),
                };
                for value in values {
                    sum = match self.term {
                        Term::Number => k.add(sum, value),
                        Term::Square => k.fma(value, value, sum),
                    };
                }
            }
            k.add_into(total, total, k.cvt_f64(sum));
        });
        add_block(k, "tree", thread, total, |total| match factor {
            None => k.st(k.index(partial, block, 8u32).at(0), [total]),
            Some(factor) => store_scaled(k, total, factor, partial),
        });
    }
}

impl AddTotals {
    /// Name of the program for `sm`.
    pub fn name(self, sm: Sm) -> Name {
        let operation = if self == Self::Clip { "reduce.clip" } else { "reduce.add" };
        Name::new(operation, &["f64f32", sm.name(), &THREADS.to_string()])
    }

    /// Launch of one block.
    pub fn launch(self) -> Launch {
        Launch { grid: [1, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 }
    }

    /// Emits the program for `sm`.
    pub fn program(self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 40, |k| {
            let params = AddTotalsArgs::declare(k, &|_| self == Self::Scaled);
            let (partial, out) = (params.partial.load(k), params.out.load(k));
            let (count, factor) = (params.count.load(k), params.factor.load(k));
            let thread = k.special(Special::TidX);
            let total = k.variable::<F64>("total", 0.0f64);
            k.for_(thread, count, THREADS, |i| {
                let [value] = k.ld::<F64, 1>(k.index(partial, i, 8u32).at(0));
                k.add_into(total, total, value);
            });
            add_block(k, "tree", thread, total, |total| match factor {
                None => clip(k, total, out),
                Some(factor) => store_scaled(k, total, factor, out),
            });
        })
    }
}

/// Stores total · factor in f32.
fn store_scaled(k: &Entry, total: Reg<F64>, factor: Reg<F32>, out: Ptr<Global>) {
    k.st(out.at(0), [k.cvt_f32_f64(k.mul(total, k.cvt_f64(factor)))]);
}

/// Writes the total and the scale of a [`ClipBlock`].
fn clip(k: &Entry, total: Reg<F64>, block: Ptr<Global>) {
    k.st(block.at(0), [total]);
    let norm = k.sqrt(total);
    let ([limit], [before]) =
        (k.ld::<F64, 1>(block.at(ClipBlock::LIMIT)), k.ld::<F32, 1>(block.at(ClipBlock::SCALE as i32)));
    let scale = k.selp(k.cvt_f32_f64(k.div(limit, norm)), 1.0f32, k.setp(Compare::Gt, norm, limit));
    // A comparison with NaN is false.
    let goes_on = k.and(k.setp(Compare::Lt, norm, f64::INFINITY), k.setp(Compare::Eq, before, before));
    k.st(block.at(ClipBlock::SCALE as i32), [k.selp(scale, f32::NAN, goes_on)]);
}

/// Sums `value` over the block's 256 threads as a tree in a shared array called `name`, and calls `finish` with the sum in
/// thread 0.
pub(crate) fn add_block(k: &Entry, name: &str, thread: Reg<U32>, value: Reg<F64>, finish: impl FnOnce(Reg<F64>)) {
    let tree: Ptr<Shared> = k.shared_array(name, THREADS * 8, 8);
    let mine = k.index(tree, thread, 8u32);
    k.st(mine.at(0), [value]);
    let mut half = THREADS / 2;
    while half > 0 {
        k.bar_sync();
        k.if_(k.lt(thread, half), || {
            let ([a], [b]) = (k.ld::<F64, 1>(mine.at(0)), k.ld::<F64, 1>(mine.at(8 * half as i32)));
            k.st(mine.at(0), [k.add(a, b)]);
        });
        half /= 2;
    }
    k.if_(k.setp(Compare::Eq, thread, 0u32), || finish(k.ld::<F64, 1>(tree.at(0))[0]));
}

impl RowSums {
    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        Name::new("reduce.rows", &[self.dtype.name(), sm.name(), &format!("{WARPS}x32")])
    }

    /// Launch for x [rows, columns]; `None` if there are no rows.
    pub fn launch(&self, rows: usize) -> Option<Launch> {
        let grid = [rows.div_ceil(WARPS as usize) as u32, 1, 1];
        (rows > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 40, |k| {
            let params = RowSumsArgs::declare(k, &all);
            let (x, out) = (params.x.load(k), params.out.load(k));
            let (rows, columns) = (params.rows.load(k), params.columns.load(k));
            let (storage, thread) = (storage_of(self.dtype), k.special(Special::TidX));
            let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31u32));
            let row = k.mad_lo(k.special(Special::CtaidX), WARPS, warp);
            k.if_(k.lt(row, rows), || {
                let from = k.index(x, row, k.shl(columns, storage.bytes().ilog2()));
                let sum = k.variable("sum", 0.0f32);
                k.for_(lane, columns, 32u32, |column| {
                    let at = k.index(from, column, storage.bytes()).at(0);
                    k.add_into(sum, sum, k.load_elements(storage, at, 1, Read::Once)[0]);
                });
                let sum = k.fold_lanes(sum, 32, Fold::Sum);
                k.if_(k.setp(Compare::Eq, lane, 0u32), || k.st(k.index(out, row, 4u32).at(0), [sum]));
            });
        })
    }
}

arguments! {
    /// Arguments of [`ColumnSums`].
    ColumnSumsArgs, declared as ColumnSumsParams {
        /// [rows, columns], rows `pitch` elements apart
        x: Address,
        /// [blocks of rows, columns] f32
        out: Address,
        /// Rows of x.
        rows: usize,
        /// Columns.
        columns: usize,
        /// Elements from a row of x to the next.
        pitch: usize,
        /// Rows that a block adds.
        rows_a_block: usize,
        /// Matrices that are added to a row of `out`, in order; 1 if it is overwritten.
        matrices: usize,
        /// Elements from one of them to the next.
        stride: usize,
        /// Elements to the first matrix of the next third grid index, which has rows of `out` of its own.
        across: usize,
    }
}

arguments! {
    /// Arguments of [`Total`].
    TotalArgs, declared as TotalParams {
        /// `[count]`
        x: Address,
        /// `[blocks]` f64, or one f32 with a factor
        partial: Address,
        /// Elements of x.
        count: usize,
        /// Factor of the total, where one block adds all.
        factor: Option<f32>,
    }
}

arguments! {
    /// Arguments of [`AddTotals`].
    AddTotalsArgs, declared as AddTotalsParams {
        /// `[count]` f64
        partial: Address,
        /// One f32, or a [`ClipBlock`].
        out: Address,
        /// Partial totals.
        count: usize,
        /// Factor of the total, of [`AddTotals::Scaled`].
        factor: Option<f32>,
    }
}

arguments! {
    /// Arguments of [`RowSums`].
    RowSumsArgs, declared as RowSumsParams {
        /// [rows, columns]
        x: Address,
        /// `[rows]` f32
        out: Address,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    }
}
