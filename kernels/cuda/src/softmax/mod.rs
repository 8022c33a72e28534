//! Softmax of rows on the GPU.
//!
//! ```text
//! y = exp(x - max x) / Σ exp(x - max x)         dx = y · (dy - Σ dy · y)          [T, C]
//! ```
//!
//! ```text
//! __global__ __launch_bounds__(256)                                // WARPS warps share a row: 1, or 8 for long rows
//! forward(x, y, rows, columns) {
//!     g = max of the row;  s = Σ exp(x - g);  y = exp(x - g) * (1 / s);       // lanes, then shuffles, then warps
//! }
//! backward(y, dy, dx, rows, columns) {
//!     d = Σ dy · y;  dx = y * (dy - d);                                             // dx may be dy
//! }
//! ```
//!
//! Forward reads a row three times, backward twice, from the caches except for the first time: memory-bound. Attention and
//! the loss have their own softmax, which does not store scores.

use crate::{
    arguments::{Address, Load, all, arguments},
    program::{Name, Pass, Program, storage_of},
    row_team::{THREADS, Team},
};
use kernels::DType;
use ptx::{Entry, F32, Fold, Launch, Precision, Read, Reg, Sm, Special, U32};

/// Minimum columns of rows that take a block each.
const LONG: usize = 1024;

/// Specialization of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// Forward or backward.
    pub pass: Pass,
    /// Storage of all matrices.
    pub dtype: DType,
    /// Warps that share a row.
    pub warps: u32,
}

arguments! {
    /// Arguments of the forward pass.
    ForwardArgs, declared as ForwardParams {
        /// [rows, columns]
        x: Address,
        /// [rows, columns]
        y: Address,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    }
}

arguments! {
    /// Arguments of the backward pass.
    BackwardArgs, declared as BackwardParams {
        /// [rows, columns], from forward
        y: Address,
        /// [rows, columns]
        dy: Address,
        /// [rows, columns]
        dx: Address,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    }
}

impl Softmax {
    /// Specialization for rows of `columns` elements.
    pub fn new(pass: Pass, dtype: DType, columns: usize) -> Self {
        Self { pass, dtype, warps: if columns >= LONG { THREADS / 32 } else { 1 } }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let of = |pass, dtype| [LONG, 1].map(|columns| Self::new(pass, dtype, columns));
        let both = [DType::Bf16, DType::F32];
        Pass::ALL.into_iter().flat_map(|pass| both.into_iter().flat_map(move |dtype| of(pass, dtype))).collect()
    }

    /// Name of the program for `sm`; the tile is rows x threads per row.
    pub fn name(&self, sm: Sm) -> Name {
        let tile = format!("{}x{}", self.rows_at_once(), 32 * self.warps);
        Name::new(&format!("softmax.{}", self.pass.name()), &[self.dtype.name(), sm.name(), &tile])
    }

    fn rows_at_once(&self) -> u32 {
        THREADS / (32 * self.warps)
    }

    /// Launch for [rows, columns]; `None` if the matrix is empty.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        let grid = [rows.div_ceil(self.rows_at_once() as usize) as u32, 1, 1];
        (rows > 0 && columns > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        const REGISTERS: u32 = 40;
        Program::emit(self.name(sm), sm, THREADS, REGISTERS, |k| {
            k.maxnreg(REGISTERS);
            self.body(k);
        })
    }

    fn body(&self, k: &Entry) {
        let (matrices, shape) = match self.pass {
            Pass::Forward => {
                let params = ForwardArgs::declare(k, &all);
                (vec![params.x.load(k), params.y.load(k)], [params.rows, params.columns])
            }
            Pass::Backward => {
                let params = BackwardArgs::declare(k, &all);
                (vec![params.y.load(k), params.dy.load(k), params.dx.load(k)], [params.rows, params.columns])
            }
        };
        let [rows, columns] = shape.map(|size| size.load(k));
        let storage = storage_of(self.dtype);
        let team = Team::find(k, self.warps);
        let row = k.mad_lo(k.special(Special::CtaidX), self.rows_at_once(), team.within);
        // A team without a row computes the last row and does not store it, because all threads must reach the barriers.
        let exists = k.lt(row, rows);
        let row = k.mul_lo(k.min_u32(row, k.sub(rows, 1u32)), columns);
        let element = |matrix: usize, c| k.index(matrices[matrix], k.add(row, c), storage.bytes()).at(0);
        let load = |matrix, c| k.load_elements(storage, element(matrix, c), 1, Read::Mutable)[0];
        let each = |end: Reg<U32>, body: &dyn Fn(Reg<U32>)| k.for_(team.position, end, 32 * self.warps, body);
        let fold = |name, first: f32, step: &dyn Fn(Reg<F32>, Reg<U32>) -> Reg<F32>| {
            let value = k.variable::<F32>(name, first);
            each(columns, &|c| k.assign(value, step(value, c)));
            value
        };
        let end = k.selp(columns, 0u32, exists);
        if self.pass == Pass::Forward {
            let greatest = fold("greatest", f32::NEG_INFINITY, &|max, c| k.max_nan(max, load(0, c)));
            let greatest = team.fold(k, greatest, Fold::Max);
            let exp = |c| k.exp(k.sub(load(0, c), greatest), Precision::Single);
            let sum = team.fold(k, fold("sum", 0.0, &|sum, c| k.add(sum, exp(c))), Fold::Sum);
            let inverse = k.div(k.mov(1.0f32), sum);
            each(end, &|c| k.store_elements(storage, element(1, c), &[k.mul(exp(c), inverse)]));
        } else {
            let dot = fold("dot", 0.0, &|sum, c| k.fma(load(0, c), load(1, c), sum));
            let dot = team.fold(k, dot, Fold::Sum);
            each(end, &|c| k.store_elements(storage, element(2, c), &[k.mul(load(0, c), k.sub(load(1, c), dot))]));
        }
    }
}
