//! Softmax cross-entropy of rows of logits on the GPU, and of sequences of them.
//!
//! ```text
//! g = max z      s = Σ exp(z - g)      loss = ln s + (g - z[label])      prediction = first argmax z
//! dz = (exp(z - g) · (1/s) - onehot(label)) · dloss
//! ```
//!
//! With a projection, a chunk of rows takes a product for the logits (`gemm::cuda`, f32 out, bias fused), these kernels, and
//! two products of the gradient. Chunks of rows fit the scratch and have all classes, so there is no state between chunks.
//!
//! ```text
//! __global__ __launch_bounds__(256)                                    // WARPS warps share a row: 1, or 8 for many classes
//! forward(logits, labels, losses, norms, predictions, rows, classes) {
//!     each lane: maximum of its logits and its first position;      shuffles, then shared memory: g and the first argmax
//!     each lane: Σ exp(z - g) of its logits;                        the same way: s
//!     lane 0: losses[row], norms[row] = (g, 1/s), predictions[row]
//! }
//! __global__ __launch_bounds__(256)
//! backward(logits, labels, norms, dlosses, apart, factor, dlogits, rows, classes) {    // row: blockIdx.y, + gridDim.y ..
//!     dloss = dlosses[row * apart] * factor;                               // a mean of losses has one gradient: apart = 0
//!     dlogits[row, c] = (exp(z - norms[row].0) * norms[row].1 - (c == labels[row])) * dloss;          // may be logits
//! }
//! ```
//!
//! For sequences (spans, options) row b is the tokens from `offsets[b]` to offsets[b + 1]: `offsets` follows the other
//! pointers, and there is no `classes`.
//!
//! Cost: forward reads the logits twice, the second time from L2; exp is the f32 polynomial for every storage. Losses and normalizers are f32, and the gradient at a
//! label of probability 1 is exactly 0. A label of [`kernels::cross_entropy::IGNORED`] has no loss and no gradient.
//!
//! Limits: rows · classes < 2³²; no sequence is empty.

use crate::arguments::{Address, Load, arguments};
use crate::program::{Name, Pass, Program, storage_of};
use crate::row_team::{THREADS, Team};
use kernels::DType;
use ptx::{Compare, Entry, F32, Fold, Global, Launch, Precision, Ptr, Read, Reg, Sm, Special, U32};

/// Minimum classes for one block per row.
const LONG: usize = 1024;
/// Maximum gridDim.y.
const MAX_GRID_Y: usize = 65_535;

/// Layout of the rows of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Row m starts at m · classes.
    Classes,
    /// Row b is from offsets\[b\] to offsets\[b + 1\].
    Offsets,
}

arguments! {
    /// Rows of logits: [`TableArgs::rows`] or [`TableArgs::sequences`].
    TableArgs, declared as TableParams {
        /// [rows + 1] u32: first logit of each sequence, then the end of the last.
        offsets: Option<Address>,
        /// Rows, or sequences.
        rows: usize,
        /// Logits of a row, without offsets.
        classes: Option<usize>,
    }
}

impl TableArgs {
    /// Describes rows of `classes` logits.
    pub fn rows(rows: usize, classes: usize) -> Self {
        Self { offsets: None, rows, classes: Some(classes) }
    }

    /// Describes `count` sequences between `offsets`.
    pub fn sequences(offsets: Address, count: usize) -> Self {
        Self { offsets: Some(offsets), rows: count, classes: None }
    }
}

arguments! {
    /// Arguments of the forward pass.
    ForwardArgs, declared as ForwardParams {
        /// The rows of `table`.
        logits: Address,
        /// `[rows]` u32
        labels: Address,
        /// `[rows]` f32
        losses: Address,
        /// [rows, 2] f32: maximum logit, 1 / Σ exp.
        norms: Address,
        /// `[rows]` u32
        predictions: Address,
        /// Rows of logits.
        table: TableArgs,
    }
}

arguments! {
    /// Arguments of the backward pass.
    BackwardArgs, declared as BackwardParams {
        /// The rows of `table`.
        logits: Address,
        /// `[rows]` u32
        labels: Address,
        /// [rows, 2] f32, of forward
        norms: Address,
        /// `[rows]` f32, or one for all
        dlosses: Address,
        /// Elements from the gradient of a loss to that of the next row: 1, or 0 if there is one for all.
        apart: usize,
        /// Factor of the gradients of the losses.
        factor: f32,
        /// Like the logits; may be the logits.
        dlogits: Address,
        /// Rows of logits.
        table: TableArgs,
    }
}

/// Specialization of the loss of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Forward or backward.
    pub pass: Pass,
    /// Layout of the rows.
    pub extent: Extent,
    /// Storage of the logits.
    pub dtype: DType,
    /// Backward: storage of the logits' gradient. Forward: equal to `dtype`.
    pub gradient: DType,
    /// Forward: warps that share a row. Backward: 1.
    pub warps: u32,
}

impl Rows {
    /// Specialization of forward for rows of `classes` logits.
    pub fn forward(dtype: DType, classes: usize) -> Self {
        let warps = if classes >= LONG { THREADS / 32 } else { 1 };
        Self { pass: Pass::Forward, extent: Extent::Classes, dtype, gradient: dtype, warps }
    }

    /// Specialization of backward with gradients stored as `gradient`: bf16 if products follow.
    pub fn backward(dtype: DType, gradient: DType) -> Self {
        Self { pass: Pass::Backward, extent: Extent::Classes, dtype, gradient, warps: 1 }
    }

    /// Specialization for sequences, one block each in forward: they are few and long.
    pub fn sequences(pass: Pass, dtype: DType) -> Self {
        let rows = match pass {
            Pass::Forward => Self::forward(dtype, LONG),
            Pass::Backward => Self::backward(dtype, dtype),
        };
        Self { extent: Extent::Offsets, ..rows }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let both = [DType::F32, DType::Bf16];
        let mut all: Vec<Self> = both.iter().flat_map(|&d| [LONG, 2].map(|n| Self::forward(d, n))).collect();
        all.extend([(0, 0), (0, 1), (1, 1)].map(|(from, to)| Self::backward(both[from], both[to])));
        all.extend(Pass::ALL.iter().flat_map(|&pass| both.map(|dtype| Self::sequences(pass, dtype))));
        all
    }

    /// Name of the program for `sm`; the tile is rows x threads of a row.
    pub fn name(&self, sm: Sm) -> Name {
        let types = match self.dtype == self.gradient {
            true => self.dtype.name().to_string(),
            false => format!("{}{}", self.dtype.name(), self.gradient.name()),
        };
        let tile = match self.pass {
            Pass::Forward => format!("{}x{}", self.rows_at_once(), 32 * self.warps),
            Pass::Backward => format!("1x{THREADS}"),
        };
        Name::new(&format!("cross_entropy.{}", self.pass.name()), &[&types, sm.name(), &tile, self.variant()])
    }

    fn variant(&self) -> &'static str {
        match self.extent {
            Extent::Classes => "rows",
            Extent::Offsets => "sequences",
        }
    }

    fn rows_at_once(&self) -> u32 {
        THREADS / (32 * self.warps)
    }

    /// Launch for [rows, classes], or `rows` sequences of at most `classes` tokens; `None` if there is nothing to compute.
    pub fn launch(&self, rows: usize, classes: usize) -> Option<Launch> {
        let grid = match self.pass {
            Pass::Forward => [rows.div_ceil(self.rows_at_once() as usize) as u32, 1, 1],
            Pass::Backward => [classes.div_ceil(THREADS as usize) as u32, rows.min(MAX_GRID_Y) as u32, 1],
        };
        (rows > 0 && classes > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        const REGISTERS: u32 = 48;
        Program::emit(self.name(sm), sm, THREADS, REGISTERS, |k| {
            k.maxnreg(REGISTERS);
            match self.pass {
                Pass::Forward => self.write_forward(k),
                Pass::Backward => self.write_backward(k),
            }
        })
    }

    /// Loads the last parameters.
    fn table(k: &Entry, params: &TableParams) -> Table {
        let TableParams { offsets, rows, classes } = params;
        let offsets = offsets.load(k);
        let rows = rows.load(k);
        let place = match offsets {
            Some(offsets) => Place::Offsets(offsets),
            None => Place::Classes(classes.load(k).expect("rows have offsets or classes")),
        };
        Table { rows, place }
    }

    /// True if the kernel has the parameter `name`.
    fn has(&self, name: &str) -> bool {
        (self.extent == Extent::Offsets) == (name == "offsets")
    }

    fn write_forward(&self, k: &Entry) {
        let params = ForwardArgs::declare(k, &|name| self.has(name));
        let ForwardParams { logits, labels, losses, norms, predictions, .. } = &params;
        let [logits, labels, losses, norms, predictions] =
            [logits, labels, losses, norms, predictions].map(|param| param.load(k));
        let table = Self::table(k, &params.table);
        let storage = storage_of(self.dtype);
        let team = Team::find(k, self.warps);
        let row = k.mad_lo(k.special(Special::CtaidX), self.rows_at_once(), team.within);
        // A team without a row computes the last row and stores nothing, because all threads take part in the barriers.
        let exists = k.lt(row, table.rows);
        let row = k.min_u32(row, k.sub(table.rows, 1u32));
        let (first, classes) = table.row(k, row);
        let z = k.index(logits, first, storage.bytes());
        let number = |c| k.load_elements(storage, k.index(z, c, storage.bytes()).at(0), 1, Read::Mutable)[0];
        k.comment("the greatest logit, and where it stands first");
        let greatest = k.variable("greatest", f32::NEG_INFINITY);
        let class = k.variable("class", 0u32);
        k.for_(team.position, classes, 32 * self.warps, |c| {
            let value = number(c);
            let more = k.setp(Compare::Gt, value, greatest);
            k.assign(class, k.selp(c, class, more));
            k.assign(greatest, k.max_nan(greatest, value));
        });
        let (greatest, class) = team.argmax(k, greatest, class);
        k.comment("sum of exp(z - greatest)");
        let sum = k.variable("sum", 0.0f32);
        k.for_(team.position, classes, 32 * self.warps, |c| {
            k.add_into(sum, sum, k.exp(k.sub(number(c), greatest), Precision::Single));
        });
        let sum = team.fold(k, sum, Fold::Sum);
        let leads = k.setp(Compare::Eq, team.position, 0u32);
        k.if_(k.and(exists, leads), || {
            let [label] = k.ld::<U32, 1>(k.index(labels, row, 4u32).at(0));
            let labeled = k.lt(label, classes);
            let of_label = number(k.selp(label, 0u32, labeled));
            let loss = k.add(k.ln(sum, Precision::Single), k.sub(greatest, of_label));
            k.st(k.index(losses, row, 4u32).at(0), [k.selp(loss, 0.0f32, labeled)]);
            k.st(k.index(norms, row, 8u32).at(0), [greatest, k.div(k.mov(1.0f32), sum)]);
            k.st(k.index(predictions, row, 4u32).at(0), [class]);
        });
    }

    fn write_backward(&self, k: &Entry) {
        let params = BackwardArgs::declare(k, &|name| self.has(name));
        let BackwardParams { logits, labels, norms, dlosses, dlogits, .. } = &params;
        let [logits, labels, norms, dlosses, dlogits] =
            [logits, labels, norms, dlosses, dlogits].map(|param| param.load(k));
        let (apart, factor) = (params.apart.load(k), params.factor.load(k));
        let table = Self::table(k, &params.table);
        let (from, to) = (storage_of(self.dtype), storage_of(self.gradient));
        let class = k.mad_lo(k.special(Special::CtaidX), THREADS, k.special(Special::TidX));
        let each_row = |of: &dyn Fn(Reg<U32>)| {
            k.for_(k.special(Special::CtaidY), table.rows, k.special(Special::NctaidY), of);
        };
        let gradient = |row, at, classes| {
            let [label] = k.ld::<U32, 1>(k.index(labels, row, 4u32).at(0));
            let [greatest, inverse] = k.ld::<F32, 2>(k.index(norms, row, 8u32).at(0));
            let [dloss] = k.ld::<F32, 1>(k.index(dlosses, k.mul_lo(row, apart), 4u32).at(0));
            let dloss = k.mul(dloss, factor);
            let z = k.load_elements(from, k.index(logits, at, from.bytes()).at(0), 1, Read::Mutable)[0];
            let p = k.mul(k.exp(k.sub(z, greatest), Precision::Single), inverse);
            let hot = k.selp(1.0f32, 0.0f32, k.setp(Compare::Eq, class, label));
            let dz = k.mul(k.sub(p, hot), dloss);
            let dz = k.selp(dz, 0.0f32, k.lt(label, classes));
            k.store_elements(to, k.index(dlogits, at, to.bytes()).at(0), &[dz]);
        };
        match table.place {
            Place::Classes(classes) => k.if_(k.lt(class, classes), || {
                each_row(&|row| gradient(row, k.mad_lo(row, classes, class), classes));
            }),
            Place::Offsets(_) => each_row(&|row| {
                let (first, classes) = table.row(k, row);
                k.if_(k.lt(class, classes), || gradient(row, k.add(first, class), classes));
            }),
        }
    }
}

/// Rows of a launch, in registers.
struct Table {
    rows: Reg<U32>,
    place: Place,
}

/// [`Extent`] in registers.
enum Place {
    Classes(Reg<U32>),
    Offsets(Ptr<Global>),
}

impl Table {
    /// First logit of a row, and number of its classes.
    fn row(&self, k: &Entry, row: Reg<U32>) -> (Reg<U32>, Reg<U32>) {
        match self.place {
            Place::Classes(classes) => (k.mul_lo(row, classes), classes),
            Place::Offsets(offsets) => {
                let at = k.index(offsets, row, 4u32);
                let [first, end] = [0, 4].map(|byte| k.ld::<U32, 1>(at.at(byte))[0]);
                (first, k.sub(end, first))
            }
        }
    }
}
