//! Element-wise operations, casts, transposition and copies of some columns on the GPU.
//!
//! ```text
//! __global__ __launch_bounds__(256) map(inputs.., y, [factor,] rows, columns) {   // V neighboring elements per thread: 8,
//!     i = (blockIdx.x * 256 + threadIdx.x) * V;                                   //   or 1 if 8 does not divide the length
//!     if (i < rows * columns) y[i .. i + V] = f(a[i ..], b[broadcast(i) ..]);
//! }
//! __global__ __launch_bounds__(256) transpose(x, y, rows, columns) {              // 32 x 32 elements per block
//!     tile[32][32 + 1] = x[..];  __syncthreads();  y[..] = columns of tile;       // loads and stores are coalesced
//! }
//! __global__ __launch_bounds__(256) part(x, y, rows, columns, x_row, y_row) {     // x_row, y_row: elements of a row; x and
//!     y[r * y_row + c .. + V] = x[r * x_row + c .. + V];                          //   y point to the first column copied
//! }
//! ```
//!
//! Memory-bound: every operand once. Arguments: the operands in the order of the functions of [`kernels::elementwise`], the result (for
//! `add_assign` and `add_scaled` the sum), the factor if there is one, rows, columns.
//!
//! Limits: T·F < 2³²; the division is correctly rounded, elementary functions as in `ptx::functions`.

use crate::arguments::{Address, Load, all, arguments};
use crate::program::{Name, Program, storage_of};
use kernels::DType;
use kernels::elementwise::{Binary, Broadcast, Unary};
use ptx::{Compare, Entry, F32, Global, Launch, Precision, Ptr, Read, Reg, Sm, Special, Storage, U32};

/// Threads in a block.
const THREADS: u32 = 256;
/// Elements per thread if the length allows.
const VECTOR: u32 = 8;
/// Rows and columns of a tile of the transposition.
const TILE: u32 = 32;

/// Function applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// a ∘ b
    Binary(Binary, Broadcast),
    /// f(x)
    Unary(Unary),
    /// dy · f', from the operand kept by forward and dy
    UnaryBackward(Unary),
    /// factor · x
    Scale,
    /// factor · `x[0]`, everywhere; x in f32
    Repeat,
    /// 1 where x is finite, else NaN: the gradient that backward starts from
    One,
    /// y + x
    AddAssign,
    /// y + factor · x, y in f32
    AddScaled,
    /// x in another storage
    Cast,
}

/// Specialization of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// Function of the map.
    pub function: Function,
    /// Storage of the operands.
    pub from: DType,
    /// Storage of the result.
    pub to: DType,
    /// Elements per thread.
    pub vector: u32,
}

impl Map {
    /// Specialization for operands [rows, columns] stored as `from`.
    pub fn new(function: Function, from: DType, to: DType, rows: usize, columns: usize) -> Self {
        let spread = matches!(function, Function::Binary(_, Broadcast::Row | Broadcast::Column));
        let run = if spread { columns } else { rows * columns };
        let vector = if run.is_multiple_of(VECTOR as usize) { VECTOR } else { 1 };
        Self { function, from, to, vector }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let mut functions = vec![Function::Scale, Function::One, Function::AddAssign];
        for operation in Binary::ALL {
            functions.extend(Broadcast::ALL.map(|broadcast| Function::Binary(operation, broadcast)));
        }
        for unary in Unary::ALL {
            functions.extend([Function::Unary(unary), Function::UnaryBackward(unary)]);
        }
        let both = [DType::Bf16, DType::F32];
        let mut all = Vec::new();
        for vector in [VECTOR, 1] {
            let of = |function, from, to| Self { function, from, to, vector };
            all.extend([(both[1], both[0]), (both[0], both[1])].map(|(from, to)| of(Function::Cast, from, to)));
            all.extend(both.map(|dtype| of(Function::AddScaled, dtype, DType::F32)));
            all.extend(both.map(|dtype| of(Function::Repeat, DType::F32, dtype)));
            all.extend(both.iter().flat_map(|&dtype| functions.iter().map(move |&f| of(f, dtype, dtype))));
        }
        all
    }

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        let variant = match self.function {
            Function::Binary(operation, broadcast) => format!("{}_{}", word(&operation), word(&broadcast)),
            Function::Unary(unary) => word(&unary),
            Function::UnaryBackward(unary) => format!("{}_backward", word(&unary)),
            Function::Scale => "scale".into(),
            Function::Repeat => "repeat".into(),
            Function::One => "one".into(),
            Function::AddAssign => "add_assign".into(),
            Function::AddScaled => "add_scaled".into(),
            Function::Cast => "cast".into(),
        };
        let types = match self.from == self.to {
            true => self.from.name().to_string(),
            false => format!("{}{}", self.from.name(), self.to.name()),
        };
        Name::new("elementwise", &[&types, sm.name(), &format!("{THREADS}x{}", self.vector), &variant])
    }

    /// Launch for [rows, columns]; `None` if the matrix is empty.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        let blocks = (rows * columns).div_ceil((THREADS * self.vector) as usize) as u32;
        (blocks > 0).then_some(Launch { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        const REGISTERS: u32 = 56;
        Program::emit(self.name(sm), sm, THREADS, REGISTERS, |k| {
            k.maxnreg(REGISTERS);
            self.body(k);
        })
    }

    fn body(&self, k: &Entry) {
        let params = MapArgs::declare(k, &|name| self.function.has(name));
        let MapParams { x, a, b, kept, dy, .. } = &params;
        let inputs: Vec<Ptr<Global>> = [x, a, b, kept, dy].into_iter().flatten().map(|input| input.load(k)).collect();
        let (y, factor) = (params.y.load(k), params.factor.load(k));
        let (rows, columns) = (params.rows.load(k), params.columns.load(k));
        let (from, to) = (storage_of(self.from), storage_of(self.to));
        let thread = k.mad_lo(k.special(Special::CtaidX), THREADS, k.special(Special::TidX));
        let i = k.mul_lo(thread, self.vector);
        k.if_(k.lt(i, k.mul_lo(rows, columns)), || {
            let at = |matrix: Ptr<Global>, i, storage: Storage| k.index(matrix, i, storage.bytes()).at(0);
            let load =
                |matrix, i, storage| k.load_elements(storage, at(matrix, i, storage), self.vector, Read::Mutable);
            let first = match self.function {
                Function::Repeat => self.spread(k, Broadcast::Scalar, inputs[0], i, columns),
                _ => load(inputs[0], i, from),
            };
            let values: Vec<Reg<F32>> = match self.function {
                Function::Binary(operation, broadcast) => {
                    let second = self.spread(k, broadcast, inputs[1], i, columns);
                    first.into_iter().zip(second).map(|(a, b)| binary(k, operation, a, b)).collect()
                }
                Function::Unary(f) => first.into_iter().map(|x| unary(k, f, x, self.precision())).collect(),
                Function::UnaryBackward(f) => {
                    let dy = load(inputs[1], i, from);
                    first.into_iter().zip(dy).map(|(kept, dy)| k.mul(slope(k, f, kept), dy)).collect()
                }
                Function::Scale | Function::Repeat => {
                    first.into_iter().map(|x| k.mul(x, factor.expect("declared"))).collect()
                }
                Function::One => first.into_iter().map(|x| k.fma(x, 0.0f32, 1.0f32)).collect(),
                Function::AddAssign => first.into_iter().zip(load(y, i, to)).map(|(x, y)| k.add(y, x)).collect(),
                Function::AddScaled => {
                    let factor = factor.expect("declared");
                    first.into_iter().zip(load(y, i, to)).map(|(x, y)| k.fma(x, factor, y)).collect()
                }
                Function::Cast => first,
            };
            k.store_elements(to, at(y, i, to), &values);
        });
    }

    /// Second operand of `self.vector` elements from index `i` on.
    fn spread(&self, k: &Entry, broadcast: Broadcast, b: Ptr<Global>, i: Reg<U32>, columns: Reg<U32>) -> Vec<Reg<F32>> {
        let storage = storage_of(self.from);
        let load = |i, count| k.load_elements(storage, k.index(b, i, storage.bytes()).at(0), count, Read::Again);
        match broadcast {
            Broadcast::Full => load(i, self.vector),
            Broadcast::Row => load(k.rem_u32(i, columns), self.vector),
            Broadcast::Column => vec![load(k.div_u32(i, columns), 1)[0]; self.vector as usize],
            Broadcast::Scalar => vec![load(k.mov(0u32), 1)[0]; self.vector as usize],
        }
    }

    fn precision(&self) -> Precision {
        if self.to == DType::F32 { Precision::Single } else { Precision::Half }
    }
}

fn binary(k: &Entry, operation: Binary, a: Reg<F32>, b: Reg<F32>) -> Reg<F32> {
    match operation {
        Binary::Add => k.add(a, b),
        Binary::Sub => k.sub(a, b),
        Binary::Mul => k.mul(a, b),
        Binary::Div => k.div(a, b),
        Binary::SubFrom => k.sub(b, a),
        Binary::DivInto => k.div(b, a),
    }
}

fn unary(k: &Entry, function: Unary, x: Reg<F32>, precision: Precision) -> Reg<F32> {
    match function {
        Unary::Exp => k.exp(x, precision),
        Unary::Ln => k.ln(x, precision),
        Unary::Tanh => {
            // (1 - e) / (1 + e) with e = e^(-2|x|) does not overflow.
            let e = k.exp(k.mul(k.abs(x), -2.0f32), precision);
            let magnitude = k.mul(k.sub(1.0f32, e), k.reciprocal(k.add(e, 1.0f32), precision));
            k.copysign(x, magnitude)
        }
        Unary::Sigmoid => k.sigmoid(x, precision).value,
        Unary::Relu => k.max_nan(x, 0.0f32),
    }
}

fn slope(k: &Entry, function: Unary, kept: Reg<F32>) -> Reg<F32> {
    match function {
        Unary::Exp => kept,
        Unary::Ln => k.div(k.mov(1.0f32), kept),
        Unary::Tanh => k.fma(k.neg(kept), kept, 1.0f32),
        Unary::Sigmoid => k.mul(kept, k.sub(1.0f32, kept)),
        Unary::Relu => k.selp(1.0f32, 0.0f32, k.setp(Compare::Gt, kept, 0.0f32)),
    }
}

/// Specialization of the transposition. Arguments: `x, y, rows, columns` of x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// Storage.
    pub dtype: DType,
}

impl Transpose {
    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        Name::new("elementwise.transpose", &[self.dtype.name(), sm.name(), &format!("{TILE}x{TILE}")])
    }

    /// Launch for x [rows, columns]; `None` if the matrix is empty.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        let tiles = |n: usize| n.div_ceil(TILE as usize);
        let grid = [(tiles(rows) * tiles(columns)) as u32, 1, 1];
        (grid[0] > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 40, |k| self.body(k))
    }

    fn body(&self, k: &Entry) {
        const ROWS: u32 = THREADS / TILE;
        let params = TransposeArgs::declare(k, &all);
        let (x, y) = (params.x.load(k), params.y.load(k));
        let (rows, columns) = (params.rows.load(k), params.columns.load(k));
        let size = self.dtype.bytes() as u32;
        let tile = k.shared_array("tile", TILE * (TILE + 1) * 4, 4);
        let thread = k.special(Special::TidX);
        let (down, along) = (k.shr(thread, 5), k.and(thread, TILE - 1));
        let tiles = k.shr(k.add(columns, TILE - 1), TILE.ilog2());
        let block = k.special(Special::CtaidX);
        let (row, column) = (k.shl(k.div_u32(block, tiles), 5), k.shl(k.rem_u32(block, tiles), 5));
        let storage = storage_of(self.dtype);
        // Predicate (the element exists) and address of elements (first + down + ROWS·i, second + along) of a matrix
        // [height, width].
        let walk = |first: Reg<U32>, second: Reg<U32>, height: Reg<U32>, width: Reg<U32>, matrix: Ptr<Global>| {
            let (row, column) = (k.add(first, down), k.add(second, along));
            let within = k.lt(column, width);
            (0..TILE / ROWS).map(move |i| {
                let row = k.add(row, ROWS * i);
                let at = k.index(k.index(matrix, row, k.mul_lo(width, size)), column, size).at(0);
                (k.and(within, k.lt(row, height)), at)
            })
        };
        let place = k.index(tile, k.mad_lo(down, TILE + 1, along), 4u32);
        for (i, (exists, at)) in (0..).zip(walk(row, column, rows, columns, x)) {
            let value = k.load_number_if(storage, at, exists, Read::Once);
            k.st(place.at(i * (ROWS * (TILE + 1) * 4) as i32), [value]);
        }
        k.bar_sync();
        let place = k.index(tile, k.mad_lo(along, TILE + 1, down), 4u32);
        for (i, (exists, at)) in (0..).zip(walk(column, row, columns, rows, y)) {
            let [value] = k.ld::<F32, 1>(place.at(i * (ROWS * 4) as i32));
            k.when(exists, || k.store_elements(storage, at, &[value]));
        }
    }
}

/// Specialization of the copy of some columns of a matrix to columns of another. Arguments: `x, y` at their first column,
/// rows and columns of the part, elements of a row of x and of y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Storage.
    pub dtype: DType,
    /// Elements per thread.
    pub vector: u32,
}

impl Part {
    /// Specialization for these numbers of columns, row lengths and first columns; `is_aligned` is true if both matrices
    /// start at multiples of a vector.
    pub fn new(dtype: DType, columns: &[usize], is_aligned: bool) -> Self {
        let whole = is_aligned && columns.iter().all(|n| n.is_multiple_of(VECTOR as usize));
        Self { dtype, vector: if whole { VECTOR } else { 1 } }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let both = [DType::Bf16, DType::F32];
        both.into_iter().flat_map(|dtype| [VECTOR, 1].map(|vector| Self { dtype, vector })).collect()
    }

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        Name::new("elementwise.part", &[self.dtype.name(), sm.name(), &format!("{THREADS}x{}", self.vector)])
    }

    /// Launch for a part [rows, columns]; `None` if it is empty.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<Launch> {
        let blocks = (rows * columns).div_ceil((THREADS * self.vector) as usize) as u32;
        (blocks > 0).then_some(Launch { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        Program::emit(self.name(sm), sm, THREADS, 40, |k| self.body(k))
    }

    fn body(&self, k: &Entry) {
        let params = PartArgs::declare(k, &all);
        let [x, y] = [&params.x, &params.y].map(|matrix| matrix.load(k));
        let [rows, columns, x_row, y_row] =
            [&params.rows, &params.columns, &params.x_row, &params.y_row].map(|size| size.load(k));
        let storage = storage_of(self.dtype);
        let thread = k.mad_lo(k.special(Special::CtaidX), THREADS, k.special(Special::TidX));
        let i = k.mul_lo(thread, self.vector);
        k.if_(k.lt(i, k.mul_lo(rows, columns)), || {
            let (row, column) = (k.div_u32(i, columns), k.rem_u32(i, columns));
            let at = |matrix, length| k.index(matrix, k.mad_lo(row, length, column), storage.bytes()).at(0);
            let values = k.load_elements(storage, at(x, x_row), self.vector, Read::Mutable);
            k.store_elements(storage, at(y, y_row), &values);
        });
    }
}

arguments! {
    /// Arguments of [`Map`]: the inputs of its [`Function`], the others `None` ([`MapArgs::new`]).
    MapArgs, declared as MapParams {
        /// Input of a function of one operand.
        x: Option<Address>,
        /// Left operand of [`Function::Binary`].
        a: Option<Address>,
        /// Right operand of [`Function::Binary`].
        b: Option<Address>,
        /// Operand kept by forward, of [`Function::UnaryBackward`].
        kept: Option<Address>,
        /// Gradient, of [`Function::UnaryBackward`].
        dy: Option<Address>,
        /// [rows, columns]; the sum of [`Function::AddAssign`] and [`Function::AddScaled`].
        y: Address,
        /// Factor of [`Function::Scale`], [`Function::Repeat`] and [`Function::AddScaled`].
        factor: Option<f32>,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    }
}

impl MapArgs {
    /// Arguments of `function` on `inputs`, in the order of the function's operands.
    ///
    /// # Panics
    /// If the function has another number of inputs, or `factor` is missing or superfluous.
    pub fn new(
        function: Function,
        inputs: &[Address],
        y: Address,
        factor: Option<f32>,
        [rows, columns]: [usize; 2],
    ) -> Self {
        let mut inputs = inputs.iter().copied();
        let mut next = |name: &str| {
            function.has(name).then(|| inputs.next().unwrap_or_else(|| panic!("{function:?} has an input {name}")))
        };
        let [x, a, b, kept, dy] = ["x", "a", "b", "kept", "dy"].map(&mut next);
        assert!(inputs.next().is_none(), "{function:?} has fewer inputs");
        assert_eq!(factor.is_some(), function.has("factor"), "{function:?}: factor");
        Self { x, a, b, kept, dy, y, factor, rows, columns }
    }
}

impl Function {
    /// True if [`Map`] has the parameter `name` for this function.
    fn has(self, name: &str) -> bool {
        match (self, name) {
            (Function::Binary(..), _) => matches!(name, "a" | "b"),
            (Function::UnaryBackward(_), _) => matches!(name, "kept" | "dy"),
            (Function::Scale | Function::Repeat | Function::AddScaled, "factor") => true,
            _ => name == "x",
        }
    }
}

arguments! {
    /// Arguments of [`Transpose`].
    TransposeArgs, declared as TransposeParams {
        /// [rows, columns]
        x: Address,
        /// [columns, rows]
        y: Address,
        /// Rows of x.
        rows: usize,
        /// Columns of x.
        columns: usize,
    }
}

arguments! {
    /// Arguments of [`Part`].
    PartArgs, declared as PartParams {
        /// First element to copy, in rows of `x_row` elements.
        x: Address,
        /// Destination of the first element, in rows of `y_row` elements.
        y: Address,
        /// Rows.
        rows: usize,
        /// Columns to copy.
        columns: usize,
        /// Elements of a row of x.
        x_row: usize,
        /// Elements of a row of y.
        y_row: usize,
    }
}
