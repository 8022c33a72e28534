//! LayerNorm with the residual before it on the GPU, forward and backward.
//!
//! ```text
//! s = x + r            y = γ·(s - mean)·rstd + β                              [T, H]      (see [`kernels::layernorm`])
//! g = γ·dy             ds = rstd·(g - Σg/H - x̂·Σ(g·x̂)/H)                      [T, H]
//! ```
//!
//! A row is held in the registers of 1, 2, 4 or 8 warps: it is read once, and both passes over it (mean, then variance
//! around the mean) use registers.
//!
//! ```text
//! __global__ forward(x, residual, gain, bias, s, y, stats, rows, columns, eps) {          // WARPS warps share a row
//!     for (row = first; row < rows; row += rows of the grid) {
//!         v[N][8] = x[row, ..] + residual[row, ..], rounded to storage;                   // 8 neighboring elements a lane
//!         s[row, ..] = v;                                                                 // if it is saved
//!         mean = sum(v) / columns;  rstd = 1 / sqrt(sum((v - mean)²) / columns + eps);    // shuffles; across warps
//!         y[row, ..] = gain * (v - mean) * rstd + bias;  stats[row] = (mean, rstd);       //   through shared memory
//! }   }
//! __global__ backward(s, stats, gain, dy, ds, copy, dgain_partial, dbias_partial, rows, columns) {
//!     for (row ...) {
//!         xhat = (s - mean) * rstd;  g = gain * dy;
//!         ds[row, ..] = rstd * (g - sum(g) / columns - xhat * sum(g * xhat) / columns);   // and copy[row, ..]
//!         dgain[N][8] += dy * xhat;  dbias[N][8] += dy;                                   // in registers, row after row
//!     }
//!     dgain_partial[row group, ..] = dgain;  dbias_partial[row group, ..] = dbias;
//! }
//!
//! lane l of warp w of a row owns columns 8·(32·WARPS·i + 32·w + l) .. + 8, i = 0 .. N
//! ```
//!
//! The partial sums of the parameters' gradients, one row for each of at most `MAX_GROUPS` groups of rows, are added by
//! `reduce::ColumnSums` in a fixed order: no atomics, the same bits in every run.
//!
//! Memory-bound: forward (2 + residual + saved sum)·T·H elements, backward 3·T·H. Registers: 112 forward (32 elements a
//! lane), 128 backward (16 elements and 32 accumulators).
//!
//! # Arguments
//!
//! ```text
//! forward     x, [residual], gain, bias, [s], y, stats, rows, columns, eps
//! backward    s, stats, gain, dy, ds, [copy], dgain_partial, dbias_partial, rows, columns
//! ```
//!
//! Limits: H ≤ 8192; T < 2³². Rows whose length is not a multiple of 8 are loaded and stored element by element.

use crate::arguments::{Address, Load, arguments};
use crate::program::{Name, Pass, Program, storage_of};
use kernels::DType;
use ptx::{Compare, Entry, F32, Fold, Global, Launch, Param, Pred, Ptr, Read, Reg, Shared, Sm, Special, Storage, U32};

/// Minimum threads of a block; more if a row takes more.
const THREADS: u32 = 128;
/// Maximum groups of rows whose gradients of gain and bias are summed separately: two blocks per multiprocessor of an H200.
pub(crate) const MAX_GROUPS: usize = 264;
/// Maximum H.
pub const MAX_COLUMNS: usize = 8192;

/// Specialization of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNorm {
    /// Forward or backward.
    pub pass: Pass,
    /// Storage of the [T, H] matrices.
    pub dtype: DType,
    /// Forward: true if a residual is added to x.
    pub residual: bool,
    /// Forward: true if the sum is saved for backward.
    pub save_sum: bool,
    /// Backward: true if ds is written twice.
    pub copies: bool,
    /// Warps that share a row.
    pub warps: u32,
    /// Vectors of eight elements per lane.
    pub vectors: u32,
    /// True if rows are whole vectors.
    pub aligned: bool,
}

impl LayerNorm {
    /// Forward for rows of `columns` elements; `None` beyond [`MAX_COLUMNS`].
    pub fn forward(dtype: DType, residual: bool, save_sum: bool, columns: usize) -> Option<Self> {
        Self::sized(Pass::Forward, dtype, columns, 4).map(|kernel| Self { residual, save_sum, ..kernel })
    }

    /// Backward for rows of `columns` elements; `None` beyond [`MAX_COLUMNS`].
    pub fn backward(dtype: DType, copies: bool, columns: usize) -> Option<Self> {
        Self::sized(Pass::Backward, dtype, columns, 2).map(|kernel| Self { copies, ..kernel })
    }

    /// Specialization with the fewest warps per row that hold it in at most `most` vectors per lane.
    fn sized(pass: Pass, dtype: DType, columns: usize, most: usize) -> Option<Self> {
        let warps = columns.div_ceil(256 * most).next_power_of_two().max(1);
        let vectors = columns.div_ceil(256 * warps).max(1) as u32;
        let aligned = columns.is_multiple_of(8);
        let (residual, save_sum, copies, warps) = (false, false, false, warps as u32);
        let kernel = Self { pass, dtype, residual, save_sum, copies, warps, vectors, aligned };
        (columns <= MAX_COLUMNS).then_some(kernel)
    }

    /// Specializations for ALBERT's widths: E = 128; H = 768 (base), 1024 (large), 2048 (xlarge), 4096 (xxlarge), and one
    /// for rows that are not whole vectors.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for columns in [768, 128, 1024, 2048, 4096, 7] {
            for dtype in [DType::Bf16, DType::F32] {
                for (residual, save_sum) in [(true, true), (true, false), (false, true), (false, false)] {
                    all.extend(Self::forward(dtype, residual, save_sum, columns));
                }
                all.extend([false, true].into_iter().filter_map(|copies| Self::backward(dtype, copies, columns)));
            }
        }
        let mut seen = std::collections::HashSet::new();
        all.retain(|kernel| seen.insert(*kernel));
        all
    }

    /// Name of the program for `sm`; the tile is rows x warps x vectors.
    pub fn name(&self, sm: Sm) -> Name {
        let tile = format!("{}x{}x{}", self.rows_at_once(), self.warps, self.vectors);
        let words =
            [(self.residual, "residual"), (self.save_sum, "sum"), (self.copies, "copy"), (!self.aligned, "unaligned")];
        let words: Vec<&str> = words.into_iter().filter(|(used, _)| *used).map(|(_, word)| word).collect();
        let variant = words.join("_");
        let parts = [self.dtype.name(), sm.name(), &tile, &variant];
        Name::new(&format!("layernorm.{}", self.pass.name()), &parts[..if variant.is_empty() { 3 } else { 4 }])
    }

    fn threads(&self) -> u32 {
        THREADS.max(32 * self.warps)
    }

    /// Rows that a block computes at a time.
    fn rows_at_once(&self) -> u32 {
        self.threads() / (32 * self.warps)
    }

    fn blocks(&self, rows: usize) -> usize {
        let least = rows.div_ceil(self.rows_at_once() as usize);
        match self.pass {
            Pass::Forward => least.min(1 << 20),
            Pass::Backward => least.min((MAX_GROUPS / self.rows_at_once() as usize).max(1)),
        }
    }

    /// Number of groups: backward writes partial sums [groups, H] for each of the two parameters.
    pub fn groups(&self, rows: usize) -> usize {
        self.blocks(rows) * self.rows_at_once() as usize
    }

    /// Launch for [T, H]; `None` if the matrix is empty.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        (rows > 0 && columns > 0).then(|| self.launch_on(self.blocks(rows)))
    }

    fn launch_on(&self, blocks: usize) -> Launch {
        Launch { grid: [blocks as u32, 1, 1], block: [self.threads(), 1, 1], shared_bytes: 0 }
    }

    /// [`LayerNorm::launch`] with a third of the blocks, so that a block computes several rows, and its number of groups.
    pub fn folded(&self, rows: usize, columns: usize) -> (Option<Launch>, usize) {
        let blocks = self.blocks(rows).div_ceil(3);
        let launch = (rows > 0 && columns > 0).then(|| self.launch_on(blocks));
        (launch, blocks * self.rows_at_once() as usize)
    }

    /// Maximum registers per thread.
    fn registers(&self) -> u32 {
        match self.pass {
            Pass::Forward => 112,
            Pass::Backward => 128,
        }
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, self.threads(), self.registers(), |k| {
            k.maxnreg(self.registers());
            match self.pass {
                Pass::Forward => self.write_forward(k),
                Pass::Backward => self.write_backward(k),
            }
        })
    }

    fn write_forward(&self, k: &Entry) {
        let params = ForwardArgs::declare(k, &|name| if name == "residual" { self.residual } else { self.save_sum });
        let (x, residual) = (params.x.load(k), params.residual.load(k));
        let (gain, bias, s) = (params.gain.load(k), params.bias.load(k), params.s.load(k));
        let (y, stats) = (params.y.load(k), params.stats.load(k));
        let rows = Rows::find(k, self, [&params.rows, &params.columns]);
        let eps = params.eps.load(k);
        let storage = rows.storage;
        rows.each(|row, exists| {
            k.comment("v = x + residual, rounded to storage");
            let mut v = rows.load(x, row, storage);
            if let Some(residual) = residual {
                let r = rows.load(residual, row, storage);
                v = zip(v, r, |v, r| k.rounded(storage, k.add(v, r)));
            }
            if let Some(s) = s {
                rows.store(s, row, exists, &v);
            }
            k.comment("mean and rstd");
            let [mean] = rows.sums([rows.fold(&v, |sum, v| k.add(sum, v))]).map(|sum| rows.mean(sum));
            let centred: Vec<_> = v.iter().map(|&v| k.sub(v, mean)).collect();
            // Elements past the end of the row are 0 - mean here and must not be summed.
            let counted = rows.only_existing(&centred);
            let squares = rows.fold(&counted, |sum, v| k.fma(v, v, sum));
            let [variance] = rows.sums([squares]).map(|sum| rows.mean(sum));
            let rstd = k.div(k.mov(1.0f32), k.sqrt(k.add(variance, eps)));
            k.comment("y = gain * (v - mean) * rstd + bias");
            let (gain, bias) = (rows.load_vector(gain), rows.load_vector(bias));
            let y_of = zip(zip(centred, gain, |v, gain| k.mul(k.mul(v, rstd), gain)), bias, |v, bias| k.add(v, bias));
            rows.store(y, row, exists, &y_of);
            k.if_(k.and(exists, rows.leads), || k.st(k.index(stats, row, 8u32).at(0), [mean, rstd]));
        });
    }

    fn write_backward(&self, k: &Entry) {
        let params = BackwardArgs::declare(k, &|_| self.copies);
        let copy = params.copy.load(k);
        let [s, stats, gain, dy, ds] =
            [&params.s, &params.stats, &params.gain, &params.dy, &params.ds].map(|param| param.load(k));
        let partial = [&params.dgain_partial, &params.dbias_partial].map(|param| param.load(k));
        let rows = Rows::find(k, self, [&params.rows, &params.columns]);
        let storage = rows.storage;
        let elements = 8 * self.vectors as usize;
        let (dgain, dbias) = (k.registers::<F32>("dgain", elements), k.registers::<F32>("dbias", elements));
        dgain.iter().chain(&dbias).for_each(|&sum| k.assign(sum, 0.0f32));
        rows.each(|row, exists| {
            let [mean, rstd] = k.ld::<F32, 2>(k.index(stats, row, 8u32).at(0));
            k.comment("xhat = (s - mean) * rstd; g = gain * dy; a row that does not exist counts as zeros");
            let s = rows.load(s, row, storage);
            let dy: Vec<_> = rows.load(dy, row, storage).into_iter().map(|dy| k.selp(dy, 0.0f32, exists)).collect();
            let xhat: Vec<_> = s.into_iter().map(|s| k.mul(k.sub(s, mean), rstd)).collect();
            for (((&dgain, &dbias), &dy), &xhat) in dgain.iter().zip(&dbias).zip(&dy).zip(&xhat) {
                k.fma_into(dgain, dy, xhat, dgain);
                k.add_into(dbias, dbias, dy);
            }
            // gain is zero past the end of the row, and so is g.
            let g = zip(dy, rows.load_vector(gain), |dy, gain| k.mul(dy, gain));
            let sum_g = rows.fold(&g, |sum, g| k.add(sum, g));
            let products: Vec<_> = g.iter().copied().zip(xhat.iter().copied()).collect();
            let first = k.mov(0.0f32);
            let sum_gx = products.into_iter().fold(first, |sum, (g, xhat)| k.fma(g, xhat, sum));
            let [mean_g, mean_gx] = rows.sums([sum_g, sum_gx]).map(|sum| rows.mean(sum));
            k.comment("ds = rstd * (g - mean(g) - xhat * mean(g * xhat))");
            let minus = k.neg(mean_gx);
            let of = |g: Reg<F32>, xhat: Reg<F32>| k.mul(k.fma(xhat, minus, k.sub(g, mean_g)), rstd);
            let values = zip(g, xhat, of);
            for matrix in [Some(ds), copy].into_iter().flatten() {
                rows.store(matrix, row, exists, &values);
            }
        });
        k.comment("the sums of this group of rows");
        let yes = k.condition(true);
        let group = rows.group();
        for (partial, sums) in partial.into_iter().zip([dgain, dbias]) {
            rows.store_as(Storage::F32, partial, group, yes, &sums);
        }
    }
}

arguments! {
    /// Arguments of the forward pass.
    ForwardArgs, declared as ForwardParams {
        /// [T, H]
        x: Address,
        /// [T, H], if it is added.
        residual: Option<Address>,
        /// `[H]` f32
        gain: Address,
        /// `[H]` f32
        bias: Address,
        /// [T, H] receives x + residual, if it is saved.
        s: Option<Address>,
        /// [T, H]
        y: Address,
        /// [T, 2] f32: mean and 1/σ of each row.
        stats: Address,
        /// T
        rows: usize,
        /// H
        columns: usize,
        /// Added to the variance.
        eps: f32,
    }
}

arguments! {
    /// Arguments of the backward pass.
    BackwardArgs, declared as BackwardParams {
        /// [T, H], from forward
        s: Address,
        /// [T, 2], from forward
        stats: Address,
        /// `[H]` f32
        gain: Address,
        /// [T, H]
        dy: Address,
        /// [T, H]
        ds: Address,
        /// [T, H] receives the same, if it is kept apart.
        copy: Option<Address>,
        /// [groups, H] f32: sums over the rows of a group.
        dgain_partial: Address,
        /// [groups, H] f32
        dbias_partial: Address,
        /// T
        rows: usize,
        /// H
        columns: usize,
    }
}

fn zip(a: Vec<Reg<F32>>, b: Vec<Reg<F32>>, f: impl Fn(Reg<F32>, Reg<F32>) -> Reg<F32>) -> Vec<Reg<F32>> {
    a.into_iter().zip(b).map(|(a, b)| f(a, b)).collect()
}

/// Rows of a block, and this lane's columns in them.
struct Rows<'a> {
    k: &'a Entry,
    kernel: LayerNorm,
    storage: Storage,
    rows: Reg<U32>,
    columns: Reg<U32>,
    /// H as a float.
    width: Reg<F32>,
    /// Index of this warp's row among the rows of a step.
    within: Reg<U32>,
    /// Index of this warp among the warps of its row.
    warp: Reg<U32>,
    /// First column of each vector, and for the last one a predicate: true if it exists. The others always exist.
    vectors: Vec<(Reg<U32>, Option<Reg<Pred>>)>,
    /// True for the first lane of the row.
    leads: Reg<Pred>,
    /// Shared memory in which the warps of a row exchange their sums: [rows at once, warps, 2] floats.
    exchange: Option<Ptr<Shared>>,
}

impl<'a> Rows<'a> {
    fn find(k: &'a Entry, kernel: &LayerNorm, shape: [&Param<U32>; 2]) -> Self {
        let [rows, columns] = shape.map(|size| size.load(k));
        let thread = k.special(Special::TidX);
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31u32));
        let (within, warp) = (k.shr(warp, kernel.warps.ilog2()), k.and(warp, kernel.warps - 1));
        let position = k.mad_lo(warp, 32, lane);
        let vector = |i: u32| {
            let column = k.shl(k.add(position, 32 * kernel.warps * i), 3);
            (column, (i + 1 == kernel.vectors).then(|| k.lt(column, columns)))
        };
        let vectors = (0..kernel.vectors).map(vector).collect();
        let leads = k.setp(Compare::Eq, position, 0u32);
        let bytes = kernel.rows_at_once() * kernel.warps * 8;
        let exchange = (kernel.warps > 1).then(|| k.shared_array("exchange", bytes, 8));
        let storage = storage_of(kernel.dtype);
        let width = k.cvt_f32_u32(columns);
        Self { k, kernel: *kernel, storage, rows, columns, width, within, warp, vectors, leads, exchange }
    }

    /// Emits a loop of `body(row, exists)` over the rows of this warp. All warps of a block make the same number of
    /// iterations, because they must reach the same barriers; a warp whose row does not exist computes the last row and does
    /// not store it.
    fn each(&self, body: impl FnOnce(Reg<U32>, Reg<Pred>)) {
        let (k, at_once) = (self.k, self.kernel.rows_at_once());
        let first = k.mul_lo(k.special(Special::CtaidX), at_once);
        let step = k.mul_lo(k.special(Special::NctaidX), at_once);
        let last = k.sub(self.rows, 1u32);
        k.for_(first, self.rows, step, |first| {
            let row = k.add(first, self.within);
            let exists = k.lt(row, self.rows);
            body(k.min_u32(row, last), exists);
        });
    }

    /// Index of the group of rows that this warp sums.
    fn group(&self) -> Reg<U32> {
        self.k.mad_lo(self.k.special(Special::CtaidX), self.kernel.rows_at_once(), self.within)
    }

    /// This lane's elements of a row, zeros past its end.
    fn load(&self, matrix: Ptr<Global>, row: Reg<U32>, storage: Storage) -> Vec<Reg<F32>> {
        let k = self.k;
        let row = k.index(matrix, row, k.shl(self.columns, storage.bytes().ilog2()));
        self.load_from(row, storage)
    }

    /// This lane's elements of a vector [H] in f32.
    fn load_vector(&self, vector: Ptr<Global>) -> Vec<Reg<F32>> {
        self.load_from(vector, Storage::F32)
    }

    fn load_from(&self, row: Ptr<Global>, storage: Storage) -> Vec<Reg<F32>> {
        let k = self.k;
        let of = |&(column, exists): &(Reg<U32>, Option<Reg<Pred>>)| {
            let at = k.index(row, column, storage.bytes()).at(0);
            match (self.kernel.aligned, exists) {
                (true, None) => k.load_elements(storage, at, 8, Read::Mutable),
                (true, Some(exists)) => k.load_numbers_if(storage, at, 8, exists),
                (false, _) => k.load_numbers_below(storage, at, 8, [column, self.columns], Read::Mutable),
            }
        };
        self.vectors.iter().flat_map(of).collect()
    }

    fn store(&self, matrix: Ptr<Global>, row: Reg<U32>, exists: Reg<Pred>, values: &[Reg<F32>]) {
        self.store_as(self.storage, matrix, row, exists, values);
    }

    fn store_as(&self, storage: Storage, matrix: Ptr<Global>, row: Reg<U32>, exists: Reg<Pred>, values: &[Reg<F32>]) {
        let k = self.k;
        let row = k.index(matrix, row, k.shl(self.columns, storage.bytes().ilog2()));
        for (&(column, within), values) in self.vectors.iter().zip(values.chunks_exact(8)) {
            let at = k.index(row, column, storage.bytes()).at(0);
            let stored = within.map_or(exists, |within| k.and(exists, within));
            k.if_(stored, || match self.kernel.aligned {
                true => k.store_elements(storage, at, values),
                false => k.store_numbers_below(storage, at, values, column, self.columns),
            });
        }
    }

    /// `values` with zeros for elements past the end of the row.
    fn only_existing(&self, values: &[Reg<F32>]) -> Vec<Reg<F32>> {
        let k = self.k;
        let keep = |(i, &value): (usize, &Reg<F32>)| {
            let (column, Some(vector_exists)) = self.vectors[i / 8] else { return value };
            let exists = match self.kernel.aligned {
                true => vector_exists,
                false => k.lt(k.add(column, i as u32 % 8), self.columns),
            };
            k.selp(value, 0.0f32, exists)
        };
        values.iter().enumerate().map(keep).collect()
    }

    /// This lane's part of a sum.
    fn fold(&self, values: &[Reg<F32>], add: impl Fn(Reg<F32>, Reg<F32>) -> Reg<F32>) -> Reg<F32> {
        let first = self.k.mov(0.0f32);
        values.iter().fold(first, |sum, &value| add(sum, value))
    }

    /// Sums over the row, in every lane of its warps: a tree within each warp, then the warps in order.
    fn sums<const N: usize>(&self, parts: [Reg<F32>; N]) -> [Reg<F32>; N] {
        let k = self.k;
        let parts = parts.map(|part| k.fold_lanes(part, 32, Fold::Sum));
        let Some(exchange) = self.exchange else { return parts };
        let warps = self.kernel.warps;
        let own = k.mad_lo(self.within, warps, self.warp);
        let first = k.index(exchange, k.mul_lo(self.within, warps), 8);
        let lane = k.special(Special::LaneId);
        k.bar_sync();
        k.if_(k.setp(Compare::Eq, lane, 0u32), || {
            for (i, part) in (0..).zip(parts) {
                k.st(k.index(exchange, own, 8).at(4 * i), [part]);
            }
        });
        k.bar_sync();
        std::array::from_fn(|i| {
            let part = |warp: u32| k.ld::<F32, 1>(first.at(8 * warp as i32 + 4 * i as i32))[0];
            (1..warps).fold(part(0), |sum, warp| k.add(sum, part(warp)))
        })
    }

    fn mean(&self, sum: Reg<F32>) -> Reg<F32> {
        self.k.div(sum, self.width)
    }
}
