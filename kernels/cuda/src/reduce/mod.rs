//! Sums on the GPU, in an order that depends on the shape alone.
//!
//! ```text
//! column sums     out[f] (+)= Σ_t x[t, f]                    the gradient of a bias
//! totals          Σ x, Σ x²                                  in f64: a loss; a gradient's norm, and its scale
//! row sums        out[t] = Σ_f x[t, f]
//! ```
//!
//! ```text
//! __global__ __launch_bounds__(256) columns(x, out, rows, .., matrices, lists) {                    // 32 lanes x 8 warps
//!     list = blockIdx.z % lists                                                   // lists of matrices, each with its out
//!     for (its matrices, in order)                                                // one block has all rows
//!         a lane has V neighboring columns (16 bytes);  warp w adds rows w, w + 8, ... of the matrix in f32
//!         shared[w][..] = sums; __syncthreads();  warp 0: out[list] += shared[0] + shared[1] + ... in order
//! }
//!                  32·V columns
//!            ┌────┬────┬───                       many rows: each block adds a block of rows of one matrix
//!  rows a    │    │    │                                     -> partial [blocks of rows, columns] f32
//!  block     ├────┼────┼───                       the last block to end adds the partial sums of its columns as above
//!            │    │    │
//!
//! __global__ __launch_bounds__(256) total(x, partial, out, ..) {
//!     each thread: f32 sums of 16 elements at a time, added in f64;  a tree over the block; partial[blockIdx.x] in f64
//!     the last block to end: thread t adds partial t, t + 256, ... in f64;  a tree; out, or the scale of a gradient
//! }
//! ```
//!
//! An integer counter tells the last block; the order of the additions depends neither on it nor on the block.
//!
//! Bound by memory: x once. Limits: counts below 2³².

use crate::arguments::{Address, Load, all, arguments};
use crate::program::{Name, Program, storage_of};
use kernels::DType;
use ptx::{
    Address as At, Compare, Entry, F32, F64, Fence, Fold, Global, Launch, Ptr, Read, Reg, Shared, Sm, Special, Storage,
    U32,
};

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

/// Counters in device memory that the kernels share: 0 between launches.
pub const COUNTERS: usize = WANTED_BLOCKS;

/// Specialization of the column sums ([`ColumnSumsArgs`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnSums {
    /// Storage of x; out is f32.
    pub dtype: DType,
    /// True if several blocks add the rows of a matrix.
    pub split: bool,
    /// Columns of a lane: 16 bytes, or one column.
    pub vector: u32,
}

/// Launch of column sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnLaunch {
    /// Grid and block.
    pub launch: Launch,
    /// Rows that a block adds.
    pub rows_a_block: usize,
    /// Partial sums: f32 elements of scratch memory; 0 if the rows of a matrix are not split.
    pub partial: usize,
}

impl ColumnSums {
    /// Specialization for matrices [rows, columns], `aligned` if they start at a multiple of 16 bytes.
    pub fn new(dtype: DType, [rows, columns]: [usize; 2], aligned: bool) -> Self {
        let widest = 16 / dtype.bytes();
        let whole = aligned && columns.is_multiple_of(widest);
        let vector = if whole { widest as u32 } else { 1 };
        let split = Self { dtype, split: true, vector }.row_blocks(rows, columns).1 > 1;
        Self { dtype, split, vector }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let of = |dtype| [1, MIN_BLOCK_ROWS + 1].map(|rows| [8, 1].map(|n| Self::new(dtype, [rows, n], true)));
        [DType::Bf16, DType::F32].into_iter().flat_map(of).flatten().collect()
    }

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        let tile = format!("{WARPS}x{}", 32 * self.vector);
        let parts = [self.dtype.name(), sm.name(), &tile, "split"];
        Name::new("reduce.columns", &parts[..if self.split { 4 } else { 3 }])
    }

    /// Rows of a block and blocks of rows of a matrix, enough to fill the device.
    fn row_blocks(&self, rows: usize, columns: usize) -> (usize, usize) {
        let wanted = (WANTED_BLOCKS / self.column_blocks(columns).max(1)).max(1);
        let rows_a_block = rows.div_ceil(wanted).max(MIN_BLOCK_ROWS);
        (rows_a_block, rows.div_ceil(rows_a_block).max(1))
    }

    fn column_blocks(&self, columns: usize) -> usize {
        columns.div_ceil(32 * self.vector as usize)
    }

    /// Launch for `matrices` matrices [rows, columns] in each of `lists` lists, 1 or 2; `None` if `columns` is 0.
    pub fn launch(&self, [matrices, lists]: [usize; 2], [rows, columns]: [usize; 2]) -> Option<ColumnLaunch> {
        assert!([1, 2].contains(&lists), "{lists} lists; COUNTERS and the index of a list are for 1 or 2");
        let (rows_a_block, row_blocks) = if self.split { self.row_blocks(rows, columns) } else { (rows, 1) };
        let depth = if self.split { matrices * lists } else { lists };
        let grid = [self.column_blocks(columns) as u32, row_blocks as u32, depth as u32];
        let launch = Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 };
        let partial = if self.split { depth * row_blocks * columns } else { 0 };
        (columns > 0).then_some(ColumnLaunch { launch, rows_a_block, partial })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 64, |k| {
            k.maxnreg(64);
            self.body(k);
        })
    }

    fn body(&self, k: &Entry) {
        let params = ColumnSumsArgs::declare(k, &|_| self.split);
        let (x, out) = (params.x.load(k), params.out.load(k));
        let (partial, counters) = (params.partial.load(k), params.counters.load(k));
        let [rows, columns, height] = [&params.rows, &params.columns, &params.rows_a_block].map(|size| size.load(k));
        let [matrices, lists, apart] = [&params.matrices, &params.lists, &params.apart].map(|size| size.load(k));
        let storage = storage_of(self.dtype);
        let block = ColumnBlock::new(k, self.vector, columns);
        let z = k.special(Special::CtaidZ);
        let list = k.and(z, k.sub(lists, 1u32));
        // Adds the matrices of the list at `x`, of `rows` rows each.
        let add = |storage: Storage, x: Ptr<Global>, rows: Reg<U32>| {
            let out = k.index(out, k.mul_lo(list, apart), 4u32);
            k.for_(0u32, matrices, 1u32, |matrix| {
                let first = k.mul_lo(k.mad_lo(matrix, lists, list), rows);
                let x = k.index(x, k.mul_lo(first, columns), storage.bytes());
                block.add(k, (storage, x), [k.mov(0u32), rows], |total, column| {
                    let to = k.index(out, column, 4u32).at(0);
                    k.st(to, [k.add(k.load_elements(Storage::F32, to, 1, Read::Mutable)[0], total)]);
                });
                k.comment("before the next matrix");
                k.bar_sync();
            });
        };
        let (Some(partial), Some(counters)) = (partial, counters) else { return add(storage, x, rows) };
        let y = k.special(Special::CtaidY);
        let row_blocks = k.special(Special::NctaidY);
        let first = k.mul_lo(y, height);
        let end = k.min_u32(k.add(first, height), rows);
        let x = k.index(x, k.mul_lo(k.mul_lo(z, rows), columns), storage.bytes());
        let to = k.index(partial, k.mul_lo(k.mad_lo(z, row_blocks, y), columns), 4u32);
        block.add(k, (storage, x), [first, end], |total, column| k.st(k.index(to, column, 4u32).at(0), [total]));
        let counter = k.mad_lo(list, k.special(Special::NctaidX), k.special(Special::CtaidX));
        let last = k.sub(k.mul_lo(matrices, row_blocks), 1u32);
        last_block(k, block.thread, k.index(counters, counter, 4u32).at(0), last, || {
            add(Storage::F32, partial, row_blocks);
        });
    }
}

/// Threads of a block that add 32·V columns.
struct ColumnBlock {
    vector: u32,
    columns: Reg<U32>,
    thread: Reg<U32>,
    warp: Reg<U32>,
    /// First column of the lane.
    column: Reg<U32>,
    /// Column of which the thread adds the sums of the warps.
    own: Reg<U32>,
    sums: Vec<Reg<F32>>,
    shared: Ptr<Shared>,
}

impl ColumnBlock {
    fn new(k: &Entry, vector: u32, columns: Reg<U32>) -> Self {
        let shared = k.shared_array("sums", THREADS * vector * 4, 16);
        let thread = k.special(Special::TidX);
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31u32));
        let column = k.mad_lo(lane, vector, k.mul_lo(k.special(Special::CtaidX), 32 * vector));
        let (own, sums) = (k.add(column, warp), k.registers::<F32>("sum", vector as usize));
        Self { vector, columns, thread, warp, column, own, sums, shared }
    }

    /// Adds rows `first .. end` of x and calls `store` with each column's sum and its index.
    fn add(
        &self,
        k: &Entry,
        (storage, x): (Storage, Ptr<Global>),
        [first, end]: [Reg<U32>; 2],
        store: impl FnOnce(Reg<F32>, Reg<U32>),
    ) {
        let Self { vector: v, columns, thread, warp, column, own, ref sums, shared } = *self;
        let (within, lane) = (k.lt(column, columns), k.and(thread, 31u32));
        let (x, bytes) = (k.index(x, column, storage.bytes()), k.shl(columns, storage.bytes().ilog2()));
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
        for (i, &sum) in (0u32..).zip(sums) {
            let place = k.add(k.mad_lo(warp, 32 * v, lane), 32 * i);
            k.st(k.index(shared, place, 4u32).at(0), [sum]);
        }
        k.bar_sync();
        k.if_(k.and(k.lt(warp, v), k.lt(own, columns)), || {
            let from = k.index(shared, thread, 4u32);
            let part = |warp: u32| k.ld::<F32, 1>(from.at((warp * 32 * v * 4) as i32))[0];
            store((1..WARPS).fold(part(0), |sum, warp| k.add(sum, part(warp))), own);
        });
    }
}

/// Calls `finish` in the last of the blocks that count to `last`, in all its threads; it sees the stores of all of them. The
/// counter is then 0 again.
pub(crate) fn last_block(k: &Entry, thread: Reg<U32>, counter: At<Global>, last: Reg<U32>, finish: impl FnOnce()) {
    k.comment("the last block to end");
    let before: Ptr<Shared> = k.shared_array("before", 4, 4);
    k.bar_sync();
    // The barriers order the other threads' accesses before the first fence and after the second.
    k.if_(k.setp(Compare::Eq, thread, 0u32), || {
        k.fence(Fence::Device);
        k.st(before.at(0), [k.atom_inc(counter, last)]);
        k.fence(Fence::Device);
    });
    k.bar_sync();
    let [before] = k.ld::<U32, 1>(before.at(0));
    k.if_(k.setp(Compare::Eq, before, last), finish);
}

/// Term of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// x
    Number,
    /// x²
    Square,
}

/// Specialization of the totals ([`TotalArgs`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Total {
    /// Storage of x.
    pub dtype: DType,
    /// Term that is summed.
    pub term: Term,
    /// True if the elements are whole vectors of 16 bytes.
    pub aligned: bool,
    /// True if `out` is a [`ClipBlock`], false if it is f32: the total times `factor`.
    pub clips: bool,
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
        Self { dtype, term, aligned: count.is_multiple_of(16 / dtype.bytes()), clips: false }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            for term in [Term::Square, Term::Number] {
                all.extend([8, 1].map(|count| Self::new(dtype, term, count)));
            }
        }
        all.extend([8, 1].map(|count| Self { clips: true, ..Self::new(DType::F32, Term::Square, count) }));
        all
    }

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        let operation = match (self.clips, self.term) {
            (true, _) => "reduce.clip",
            (false, Term::Number) => "reduce.sum",
            (false, Term::Square) => "reduce.squares",
        };
        let tile = TOTAL_RUN.to_string();
        let parts = [self.dtype.name(), sm.name(), &tile, "unaligned"];
        Name::new(operation, &parts[..if self.aligned { 3 } else { 4 }])
    }

    /// Launch; the grid's first size is the number of partial sums.
    pub fn launch(&self, count: usize) -> Launch {
        let grid = [count.div_ceil(TOTAL_RUN).max(1) as u32, 1, 1];
        Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 }
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 64, |k| {
            k.maxnreg(64);
            self.body(k);
        })
    }

    fn body(&self, k: &Entry) {
        let params = TotalArgs::declare(k, &|_| !self.clips);
        let [x, partial, out, counter] =
            [&params.x, &params.partial, &params.out, &params.counter].map(|pointer| pointer.load(k));
        let (count, factor) = (params.count.load(k), params.factor.load(k));
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
        add_block(k, "tree", thread, total, |total| k.st(k.index(partial, block, 8u32).at(0), [total]));
        let blocks = k.special(Special::NctaidX);
        last_block(k, thread, counter.at(0), k.sub(blocks, 1u32), || {
            k.assign(total, 0.0f64);
            k.for_(thread, blocks, THREADS, |i| {
                let [value] = k.ld::<F64, 1>(k.index(partial, i, 8u32).at(0));
                k.add_into(total, total, value);
            });
            add_block(k, "last_tree", thread, total, |total| match factor {
                None => clip(k, total, out),
                Some(factor) => k.st(out.at(0), [k.cvt_f32_f64(k.mul(total, k.cvt_f64(factor)))]),
            });
        });
    }
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
        /// [matrices, lists, rows, columns]
        x: Address,
        /// `[columns]` f32 of the first list
        out: Address,
        /// [matrices, lists, blocks of rows, columns] f32, where rows are split.
        partial: Option<Address>,
        /// [`COUNTERS`] zeros, where rows are split.
        counters: Option<Address>,
        /// Rows of x.
        rows: usize,
        /// Columns.
        columns: usize,
        /// Rows that a block adds.
        rows_a_block: usize,
        /// Matrices that are added to an `out`, in order.
        matrices: usize,
        /// 1 or 2
        lists: usize,
        /// Elements from an `out` to that of the next list.
        apart: usize,
    }
}

arguments! {
    /// Arguments of [`Total`].
    TotalArgs, declared as TotalParams {
        /// `[count]`
        x: Address,
        /// `[blocks]` f64
        partial: Address,
        /// One f32, or a [`ClipBlock`].
        out: Address,
        /// A zero.
        counter: Address,
        /// Elements of x.
        count: usize,
        /// Factor of the total, where `out` is f32.
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
