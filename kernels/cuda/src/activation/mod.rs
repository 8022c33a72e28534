//! Bias and activation on the GPU: forward, and the derivative for backward.
//!
//! ```text
//! forward     p = x (+ b)        y = act(p)          [T, F], b [F] in f32 whatever the storage
//! backward    dx = dy · act'(p)                      [T, F]
//! ```
//!
//! The bias gradient is the column sum of dx, computed by a separate reduction kernel.
//!
//! ```text
//! __global__ __launch_bounds__(128)                       // a thread computes V neighboring columns:
//! forward(x, bias, y, pre, rows, columns) {               //   16 bytes, 4 f32 or 8 bf16, or 1 element if F is
//!     column = (blockIdx.x * 128 + threadIdx.x) * V;      //   not a multiple of that
//!     if (column < columns) {
//!         b[V] = bias[column ..];                         // once for all rows
//!         for (row = blockIdx.y; row < rows; row += gridDim.y) {
//!             p[V] = x[row, column ..] + b;
//!             pre[row, column ..] = p;                    // only if backward needs it
//!             y[row, column ..] = act(p);
//! }   }   }
//! backward(pre, dy, dx, rows, columns) {                  // the same loop; dx may be dy
//!             dx[row, column ..] = dy[row, column ..] * act'(pre[row, column ..]);
//! }
//!
//!              128·V columns
//!            ┌───────────────┬─────────
//!   row 0    │ block (0,0)   │ (1,0)          grid = ⌈F / 128V⌉ × ⌈T / 4⌉ (65,535 rows of blocks at most)
//!   row 1    │ block (0,1)   │ (1,1)          row r belongs to block r mod gridDim.y
//! ```
//!
//! Memory-bound: T·F·(2 + saved) elements forward, 3·T·F backward. A warp reads 512 contiguous bytes at a time. No shared
//! memory, no barriers. At most 40 registers per thread (28 with one element per thread), so that at least 12 of the 16
//! blocks that a multiprocessor has threads for are resident; `.ci/ptx-gate.sh` asserts it.
//!
//! f32 storage computes exp by the CPU's polynomial and divides by `rcp.approx` (1 ulp) with one Newton step; bf16
//! storage uses `ex2.approx` and `rcp.approx` without refinement. x·σ(2u) is the tanh form of GELU (Hendrycks & Gimpel 2016)
//! without the cancellation of 1 + tanh u for negative u.
//!
//! Limits: T < 2³¹, F·4 < 2³¹; |x| < 10¹⁹, because x² must not overflow; base addresses are multiples of 16 (the
//! driver's allocations are).

use crate::{
    arguments::{Address as DeviceAddress, all, arguments},
    program::{Name, Pass, Program},
};
use kernels::activation::Activation;
use kernels::{DType, num::poly};
use ptx::{
    Address, B16, Bf16x2, Cache, Compare, Entry, F32, Global, Launch, Param, PointerParam, Precision, Ptr, Reg, Sm,
    Special, U32,
};

/// Threads in a block.
const THREADS: u32 = 128;
/// Rows per block, up to [`MAX_GRID_Y`] blocks: the bias is read once for them.
const ROWS: usize = 4;
/// Maximum gridDim.y.
const MAX_GRID_Y: usize = 65_535;

/// Emits act(x), for this kernel and the epilogues of products.
pub(crate) fn emit(activation: Activation, k: &Entry, x: Reg<F32>, precision: Precision) -> Reg<F32> {
    match activation {
        Activation::GeluTanh => k.mul(x, k.sigmoid(twice_tanh_argument(k, x), precision).value),
        Activation::GeluErf => k.mul(x, normal_distribution(k, x, precision)),
        Activation::Relu => k.max_nan(x, 0.0f32),
    }
}

/// Emits act'(x).
pub(crate) fn emit_derivative(activation: Activation, k: &Entry, x: Reg<F32>, precision: Precision) -> Reg<F32> {
    match activation {
        Activation::GeluTanh => {
            // s + x·s'·(2u)' with s = σ(2u)
            let s = k.sigmoid(twice_tanh_argument(k, x), precision);
            let slope =
                k.horner(k.mul(x, x), &[2.0 * poly::SQRT_2_OVER_PI, 6.0 * poly::SQRT_2_OVER_PI * poly::GELU_CUBIC]);
            k.fma(k.mul(x, s.derivative(k)), slope, s.value)
        }
        Activation::GeluErf => {
            // Φ(x) + x·φ(x)
            let bell = k.exp(k.mul(k.mul(x, x), -0.5f32), precision);
            k.fma(k.mul(x, poly::FRAC_1_SQRT_2_PI), bell, normal_distribution(k, x, precision))
        }
        Activation::Relu => k.selp(1.0f32, 0.0f32, k.setp(Compare::Gt, x, 0.0f32)),
    }
}

/// 2u with u = √(2/π)·(x + 0.044715·x³).
fn twice_tanh_argument(k: &Entry, x: Reg<F32>) -> Reg<F32> {
    let scaled = k.mul(x, 2.0 * poly::SQRT_2_OVER_PI);
    k.mul(scaled, k.horner(k.mul(x, x), &[1.0, poly::GELU_CUBIC]))
}

/// Φ(x) = ½ + ½·erf(x/√2).
fn normal_distribution(k: &Entry, x: Reg<F32>, precision: Precision) -> Reg<F32> {
    k.fma(k.erf(k.mul(x, poly::FRAC_1_SQRT_2), precision), 0.5f32, 0.5f32)
}

/// Specialization of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BiasActivation {
    /// Forward or backward.
    pub pass: Pass,
    /// Storage of all operands.
    pub dtype: DType,
    /// Activation function.
    pub activation: Activation,
    /// Forward: true if a bias is added. Backward: false.
    pub bias: bool,
    /// Forward: true if x + b is saved. Backward: false.
    pub save_pre: bool,
    /// Neighboring columns per thread: 16 bytes, or one element.
    pub vector: u32,
}

impl BiasActivation {
    /// Specialization for rows of `columns` elements: 16-byte vectors if rows are whole vectors.
    pub fn new(pass: Pass, dtype: DType, activation: Activation, save_pre: bool, columns: usize) -> Self {
        let widest = 16 / dtype.bytes();
        let vector = if columns.is_multiple_of(widest) { widest as u32 } else { 1 };
        let forward = pass == Pass::Forward;
        Self { pass, dtype, activation, bias: forward, save_pre: save_pre && forward, vector }
    }

    /// Forward without a bias: arguments `x, y, rows, columns`.
    pub fn plain(dtype: DType, activation: Activation, columns: usize) -> Self {
        Self { bias: false, ..Self::new(Pass::Forward, dtype, activation, false, columns) }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for pass in Pass::ALL {
            for dtype in [DType::Bf16, DType::F32] {
                for activation in Activation::ALL {
                    let widths = [16 / dtype.bytes(), 1];
                    for save_pre in if pass == Pass::Forward { &[true, false][..] } else { &[false] } {
                        all.extend(widths.map(|columns| Self::new(pass, dtype, activation, *save_pre, columns)));
                    }
                    if pass == Pass::Forward {
                        all.extend(widths.map(|columns| Self::plain(dtype, activation, columns)));
                    }
                }
            }
        }
        all
    }

    /// Name of the program for `sm`; the tile is threads x columns per thread.
    pub fn name(&self, sm: Sm) -> Name {
        let operation = format!("activation.{}", self.pass.name());
        let tile = format!("{THREADS}x{}", self.vector);
        Name::new(&operation, &[self.dtype.name(), sm.name(), &tile, &self.variant()])
    }

    /// Variant in the program's name: the fused operations, such as `bias_tanh_pre`.
    pub fn variant(&self) -> String {
        let bias = if self.bias { "bias_" } else { "" };
        let pre = if self.save_pre { "_pre" } else { "" };
        format!("{bias}{}{pre}", self.activation.name())
    }

    /// Launch for [T, F] = [rows, columns]; `None` if the matrix is empty.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        let blocks = columns.div_ceil(THREADS as usize * self.vector as usize);
        let grid = [blocks as u32, rows.div_ceil(ROWS).min(MAX_GRID_Y) as u32, 1];
        (rows > 0 && columns > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Maximum registers per thread.
    fn registers(&self) -> u32 {
        if self.vector == 1 { 28 } else { 40 }
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, self.registers(), |k| match (self.pass, self.dtype, self.vector) {
            (Pass::Forward, DType::F32, 4) => self.forward::<F32s<4>, 4>(k),
            (Pass::Forward, DType::F32, _) => self.forward::<F32s<1>, 1>(k),
            (Pass::Forward, DType::Bf16, 8) => self.forward::<Bf16Pairs, 8>(k),
            (Pass::Forward, DType::Bf16, _) => self.forward::<OneBf16, 1>(k),
            (Pass::Backward, DType::F32, 4) => self.backward::<F32s<4>, 4>(k),
            (Pass::Backward, DType::F32, _) => self.backward::<F32s<1>, 1>(k),
            (Pass::Backward, DType::Bf16, 8) => self.backward::<Bf16Pairs, 8>(k),
            (Pass::Backward, DType::Bf16, _) => self.backward::<OneBf16, 1>(k),
        })
    }

    fn precision(&self) -> Precision {
        match self.dtype {
            DType::F32 => Precision::Single,
            DType::Bf16 => Precision::Half,
        }
    }

    fn forward<S: Storage<V>, const V: usize>(&self, k: &Entry) {
        let params = ForwardArgs::declare(k, &|name| if name == "bias" { self.bias } else { self.save_pre });
        let ForwardParams { x, bias, y, pre, rows, columns } = params;
        self.for_each_row(k, [rows, columns], |column, rows| {
            let b: Option<[Reg<F32>; V]> = bias.map(|bias| {
                k.comment("b[V] = bias[column ..]");
                load_bias(k, column_of(k, bias, column, DType::F32))
            });
            let at_column = |param: PointerParam| column_of(k, param, column, self.dtype);
            let (x, y, pre) = (at_column(x), at_column(y), pre.map(at_column));
            rows.each(|row, pitch| {
                k.comment("p[V] = x[row, column ..] + b");
                let x = S::load(k, k.index(x, row, pitch).at(0));
                let p: [Reg<F32>; V] = std::array::from_fn(|v| b.map_or(x[v], |b| k.add(x[v], b[v])));
                if let Some(pre) = pre {
                    k.comment("pre[row, column ..] = p");
                    S::store(k, k.index(pre, row, pitch).at(0), p);
                }
                k.comment("y[row, column ..] = act(p)");
                let values = p.map(|p| emit(self.activation, k, p, self.precision()));
                S::store(k, k.index(y, row, pitch).at(0), values);
            });
        });
    }

    fn backward<S: Storage<V>, const V: usize>(&self, k: &Entry) {
        let BackwardParams { pre, dy, dx, rows, columns } = BackwardArgs::declare(k, &all);
        self.for_each_row(k, [rows, columns], |column, rows| {
            let [pre, dy, dx] = [pre, dy, dx].map(|param| column_of(k, param, column, self.dtype));
            rows.each(|row, pitch| {
                k.comment("dx[row, column ..] = dy[row, column ..] * act'(pre[row, column ..])");
                let pre = S::load(k, k.index(pre, row, pitch).at(0));
                let slope = pre.map(|p| emit_derivative(self.activation, k, p, self.precision()));
                // Not a read-only load: dx may be dy.
                let dy = S::load_mutable(k, k.index(dy, row, pitch).at(0));
                S::store(k, k.index(dx, row, pitch).at(0), std::array::from_fn(|v| k.mul(dy[v], slope[v])));
            });
        });
    }

    /// Computes the thread's first column and emits `body` for threads whose column exists.
    fn for_each_row(&self, k: &Entry, [rows, columns]: [Param<U32>; 2], body: impl FnOnce(Reg<U32>, &Rows)) {
        k.comment("column = (blockIdx.x * 128 + threadIdx.x) * V");
        let thread = k.mad_lo(k.special(Special::CtaidX), THREADS, k.special(Special::TidX));
        let column = if self.vector > 1 { k.shl(thread, self.vector.ilog2()) } else { thread };
        let columns = k.ld_param(columns);
        k.if_(k.lt(column, columns), || {
            let rows = k.ld_param(rows);
            let pitch = k.shl(columns, self.dtype.bytes().ilog2());
            body(column, &Rows { k, rows, pitch });
        });
    }
}

arguments! {
    /// Arguments of the forward pass.
    ForwardArgs, declared as ForwardParams {
        /// [T, F]
        x: DeviceAddress,
        /// `[F]` f32, if there is a bias.
        bias: Option<DeviceAddress>,
        /// [T, F]
        y: DeviceAddress,
        /// [T, F] receives x + bias, if it is saved.
        pre: Option<DeviceAddress>,
        /// T
        rows: usize,
        /// F
        columns: usize,
    }
}

arguments! {
    /// Arguments of the backward pass.
    BackwardArgs, declared as BackwardParams {
        /// [T, F]: x + bias
        pre: DeviceAddress,
        /// [T, F]
        dy: DeviceAddress,
        /// [T, F]; may be dy.
        dx: DeviceAddress,
        /// T
        rows: usize,
        /// F
        columns: usize,
    }
}

/// Loop over the rows of a block, with the row stride in bytes.
struct Rows<'a> {
    k: &'a Entry,
    rows: Reg<U32>,
    pitch: Reg<U32>,
}

impl Rows<'_> {
    /// Emits a loop of `body(row, pitch)` over the rows of this block.
    fn each(&self, body: impl FnOnce(Reg<U32>, Reg<U32>)) {
        let Self { k, rows, pitch } = *self;
        k.comment("for (row = blockIdx.y; row < rows; row += gridDim.y)");
        let (first, step) = (k.special(Special::CtaidY), k.special(Special::NctaidY));
        k.for_(first, rows, step, |row| body(row, pitch));
    }
}

/// Address of `column` in the first row of the matrix (or in the vector) that `param` points to.
fn column_of(k: &Entry, param: PointerParam, column: Reg<U32>, dtype: DType) -> Ptr<Global> {
    let base = k.cvta_to_global(k.ld_param_pointer(param));
    k.index(base, column, dtype.bytes() as u32)
}

/// Loads `V` floats of the bias, in 16-byte vectors if possible.
fn load_bias<const V: usize>(k: &Entry, bias: Ptr<Global>) -> [Reg<F32>; V] {
    let mut values = Vec::with_capacity(V);
    while V - values.len() >= 4 {
        let bytes = 4 * values.len() as i32;
        values.extend(k.ld_nc::<F32, 4>(bias.at(bytes), Cache::Keep));
    }
    while values.len() < V {
        let bytes = 4 * values.len() as i32;
        values.extend(k.ld_nc::<F32, 1>(bias.at(bytes), Cache::Keep));
    }
    values.try_into().expect("the loops load V values")
}

/// Loads and stores of `V` neighboring elements as f32 registers.
trait Storage<const V: usize> {
    /// Loads elements that no thread writes and that are read once.
    fn load(k: &Entry, address: Address<Global>) -> [Reg<F32>; V];
    /// Loads elements that this thread may write later.
    fn load_mutable(k: &Entry, address: Address<Global>) -> [Reg<F32>; V];
    /// Rounds and stores.
    fn store(k: &Entry, address: Address<Global>, values: [Reg<F32>; V]);
}

/// `V` f32.
struct F32s<const V: usize>;

impl<const V: usize> Storage<V> for F32s<V> {
    fn load(k: &Entry, address: Address<Global>) -> [Reg<F32>; V] {
        k.ld_nc(address, Cache::Stream)
    }
    fn load_mutable(k: &Entry, address: Address<Global>) -> [Reg<F32>; V] {
        k.ld(address)
    }
    fn store(k: &Entry, address: Address<Global>, values: [Reg<F32>; V]) {
        k.st(address, values);
    }
}

/// Eight bf16 in four pairs.
struct Bf16Pairs;

impl Bf16Pairs {
    fn widen(k: &Entry, pairs: [Reg<Bf16x2>; 4]) -> [Reg<F32>; 8] {
        let wide = pairs.map(|pair| k.widen_bf16x2(pair));
        std::array::from_fn(|v| wide[v / 2][v % 2])
    }
}

impl Storage<8> for Bf16Pairs {
    fn load(k: &Entry, address: Address<Global>) -> [Reg<F32>; 8] {
        Self::widen(k, k.ld_nc(address, Cache::Stream))
    }
    fn load_mutable(k: &Entry, address: Address<Global>) -> [Reg<F32>; 8] {
        Self::widen(k, k.ld(address))
    }
    fn store(k: &Entry, address: Address<Global>, values: [Reg<F32>; 8]) {
        let pairs: [Reg<Bf16x2>; 4] = std::array::from_fn(|i| k.cvt_bf16x2(values[2 * i], values[2 * i + 1]));
        k.st(address, pairs);
    }
}

/// One bf16.
struct OneBf16;

impl Storage<1> for OneBf16 {
    fn load(k: &Entry, address: Address<Global>) -> [Reg<F32>; 1] {
        k.ld_nc::<B16, 1>(address, Cache::Stream).map(|value| k.widen_bf16(value))
    }
    fn load_mutable(k: &Entry, address: Address<Global>) -> [Reg<F32>; 1] {
        k.ld::<B16, 1>(address).map(|value| k.widen_bf16(value))
    }
    fn store(k: &Entry, address: Address<Global>, values: [Reg<F32>; 1]) {
        k.st(address, values.map(|value| k.cvt_bf16(value)));
    }
}
