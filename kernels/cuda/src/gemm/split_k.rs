//! Second pass of split-K: C (+)= Σ_z `partial[z]`, in order of z.
//!
//! ```text
//! __global__ __launch_bounds__(256)
//! sum(partial, c, rows, columns, ldc, slices) {          // partial [slices, rows, columns] f32, C f32, rows ldc apart
//!     for (i = blockIdx.x * 256 + threadIdx.x; i < rows * columns; i += gridDim.x * 256) {
//!         s = partial[0][i];  for (z = 1; z < slices; z++) s += partial[z][i];
//!         c[i / columns, i % columns] (+)= s;
//! }   }
//! ```
//!
//! The order is the same in every launch, so the gradient of a weight has the same bits from run to run. Bound by
//! memory: 4·(slices + 1) bytes per element, 4 more if β = 1. Limits: rows · columns · slices < 2³².

use crate::arguments::{Address, Load, all, arguments};
use crate::program::{Name, Program};
use kernels::gemm::Beta;
use ptx::{Entry, F32, Global, Launch, Ptr, Read, Reg, Sm, Special, Storage};

/// Threads in a block.
const THREADS: u32 = 256;
/// Maximum number of blocks: enough to fill any device several times.
const MAX_BLOCKS: usize = 4096;

arguments! {
    /// Arguments of [`SplitKReduce`].
    SplitKReduceArgs, declared as SplitKReduceParams {
        /// [slices, rows, columns] f32
        partial: Address,
        /// [rows, columns] f32
        c: Address,
        /// Rows of C.
        rows: usize,
        /// Columns of C.
        columns: usize,
        /// Leading dimension of C, elements.
        ldc: usize,
        /// Splits of k.
        slices: usize,
    }
}

/// Specialization of the second pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitKReduce {
    /// Factor of the old values of C.
    pub beta: Beta,
}

impl SplitKReduce {
    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        let parts = ["f32", sm.name(), &THREADS.to_string(), "accumulate"];
        Name::new("gemm.slices", &parts[..if self.beta == Beta::One { 4 } else { 3 }])
    }

    /// Launch for C [rows, columns]; `None` if C is empty.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        let blocks = (rows * columns).div_ceil(THREADS as usize).min(MAX_BLOCKS) as u32;
        (blocks > 0).then_some(Launch { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 40, |k| self.body(k))
    }

    fn body(&self, k: &Entry) {
        let params = SplitKReduceArgs::declare(k, &all);
        let (partial, c) = (params.partial.load(k), params.c.load(k));
        let [rows, columns, ldc, slices] =
            [&params.rows, &params.columns, &params.ldc, &params.slices].map(|size| size.load(k));
        let count = k.mul_lo(rows, columns);
        let plane = k.mul_wide(count, 4u32);
        let first = k.mad_lo(k.special(Special::CtaidX), THREADS, k.special(Special::TidX));
        let step = k.mul_lo(k.special(Special::NctaidX), THREADS);
        k.for_(first, count, step, |i| {
            let from = k.mov_pointer(k.index(partial, i, 4u32));
            let sum = k.variable("sum", self.load(k, from, Read::Once));
            k.for_(1u32, slices, 1u32, |_| {
                k.advance(from, plane);
                k.add_into(sum, sum, self.load(k, from, Read::Once));
            });
            let row = k.div_u32(i, columns);
            let column = k.sub(i, k.mul_lo(row, columns));
            let to = k.index(k.index(c, k.mul_lo(row, ldc), 4u32), column, 4u32);
            if self.beta == Beta::One {
                k.add_into(sum, self.load(k, to, Read::Mutable), sum);
            }
            k.st(to.at(0), [sum]);
        });
    }

    fn load(&self, k: &Entry, at: Ptr<Global>, read: Read) -> Reg<F32> {
        k.load_elements(Storage::F32, at.at(0), 1, read)[0]
    }
}
