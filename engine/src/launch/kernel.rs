//! The kernels of the table as the engine launches them: a name, a text, arguments.

use crate::{device::Gpu, dtype::DType, error::Result, tensor::Tensor};
use kernels_cuda::{
    activation::BiasActivation,
    arguments::{Address, Arguments},
    attention::{sm80::Flash, sm90::HopperFlash, sm90_backward::HopperBackward, sm90_short::HopperShort},
    cross_entropy::Rows,
    dropout::Apply,
    elementwise::{Function, Map, MapArgs, Part, PartArgs},
    embedding::{Gather, Scatter},
    gemm::{sm80::Product, sm90::HopperProduct, split_k::SplitKReduce},
    layernorm::LayerNorm,
    optimizer::Update,
    program::Program,
    reduce::{ColumnSums, ColumnSumsArgs, RowSums, RowSumsArgs, Term, Total, TotalArgs},
    softmax::Softmax,
};
use ptx::{Launch, Sm};
use std::hash::Hash;

/// A specialization of a kernel.
pub(crate) trait Kernel: Copy + Eq + Hash + Send + 'static {
    fn program(&self, sm: Sm) -> Program;
}

macro_rules! kernels {
    ($($kernel:ty),* $(,)?) => {$(
        impl Kernel for $kernel {
            fn program(&self, sm: Sm) -> Program {
                (*self).program(sm)
            }
        }
    )*};
}

kernels!(
    Apply,
    BiasActivation,
    ColumnSums,
    Flash,
    Gather,
    LayerNorm,
    Map,
    Part,
    Product,
    RowSums,
    Rows,
    Scatter,
    SplitKReduce,
    Softmax,
    Total,
    Update,
);

/// Hopper's own: there is one architecture to name.
macro_rules! hopper_kernels {
    ($($kernel:ty),* $(,)?) => {$(
        impl Kernel for $kernel {
            fn program(&self, _: Sm) -> Program {
                (*self).program()
            }
        }
    )*};
}

hopper_kernels!(HopperBackward, HopperFlash, HopperProduct, HopperShort);

/// The storage of floats. Panics for integers, which operations have refused before.
pub(crate) fn storage(dtype: DType) -> kernels::DType {
    match dtype {
        DType::F32 => kernels::DType::F32,
        DType::Bf16 => kernels::DType::Bf16,
        DType::U32 => unreachable!("kernels compute with floats"),
    }
}

/// True if a kernel may load 16 bytes at a time from all of these addresses.
pub(crate) fn aligned(addresses: &[Address]) -> bool {
    addresses.iter().all(|address| address.0.is_multiple_of(16))
}

impl Gpu {
    /// Starts `kernel`, unless there is nothing to do (`None`).
    pub(crate) fn run(&self, kernel: &impl Kernel, launch: Option<Launch>, arguments: &impl Arguments) -> Result<()> {
        // Drivers refuse an empty grid, which has no work.
        let Some(launch) = launch.filter(|launch| !launch.grid.contains(&0)) else { return Ok(()) };
        let function = self.function(*kernel, |sm| kernel.program(sm))?;
        self.start(function, launch, arguments)
    }

    /// The elements of `x` in the storage of `y`.
    pub(crate) fn cast(&self, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let [from, to] = [x.dtype(), y.dtype()].map(storage);
        let kernel = Map::new(Function::Cast, from, to, 1, x.len());
        let arguments = MapArgs::new(Function::Cast, &[x.address()], y.address_mut(), None, [1, x.len()]);
        self.run(&kernel, kernel.launch(1, x.len()), &arguments)
    }

    /// y = function(inputs), element by element, with a factor where the function has one.
    pub(crate) fn map(
        &self,
        function: Function,
        inputs: &[Address],
        factor: Option<f32>,
        y: &mut Tensor,
    ) -> Result<()> {
        let dtype = storage(y.dtype());
        let (rows, columns) = y.shape().rows_cols();
        let kernel = Map::new(function, dtype, dtype, rows, columns);
        let y = y.address_mut();
        let kernel = if aligned(inputs) && aligned(&[y]) { kernel } else { Map { vector: 1, ..kernel } };
        let arguments = MapArgs::new(function, inputs, y, factor, [rows, columns]);
        self.run(&kernel, kernel.launch(rows, columns), &arguments)
    }

    /// x *= factor
    pub(crate) fn scale(&self, x: &mut Tensor, factor: f32) -> Result<()> {
        let dtype = storage(x.dtype());
        let kernel = Map::new(Function::Scale, dtype, dtype, 1, x.len());
        let (count, address) = (x.len(), x.address_mut());
        let arguments = MapArgs::new(Function::Scale, &[address], address, Some(factor), [1, count]);
        self.run(&kernel, kernel.launch(1, count), &arguments)
    }

    /// y = x. The product with one, which is exact.
    pub(crate) fn copy(&self, x: &Tensor, y: &mut Tensor) -> Result<()> {
        self.map(Function::Scale, &[x.address()], Some(1.0), y)
    }

    /// y = x, `count` f32 from the given addresses on.
    pub(crate) fn copy_elements(&self, x: Address, y: Address, count: usize) -> Result<()> {
        let dtype = storage(DType::F32);
        let kernel = Map::new(Function::Scale, dtype, dtype, 1, count);
        let kernel = if aligned(&[x, y]) { kernel } else { Map { vector: 1, ..kernel } };
        let arguments = MapArgs::new(Function::Scale, &[x], y, Some(1.0), [1, count]);
        self.run(&kernel, kernel.launch(1, count), &arguments)
    }

    /// `columns` numbers of each of `rows` rows, copied. Each side: the address of the first, and how long its rows are.
    pub(crate) fn copy_columns(
        &self,
        dtype: DType,
        [rows, columns]: [usize; 2],
        (from, from_row): (Address, usize),
        (to, to_row): (Address, usize),
    ) -> Result<()> {
        // Integers are moved as the floats of the same bits.
        let dtype = if dtype == DType::Bf16 { kernels::DType::Bf16 } else { kernels::DType::F32 };
        let kernel = Part::new(dtype, &[columns, from_row, to_row], aligned(&[from, to]));
        let arguments = PartArgs { x: from, y: to, rows, columns, x_row: from_row, y_row: to_row };
        self.run(&kernel, kernel.launch(rows, columns), &arguments)
    }

    /// sum += x, `count` elements from the given addresses on.
    pub(crate) fn add_assign(&self, x: Address, sum: Address, dtype: DType, count: usize) -> Result<()> {
        let dtype = storage(dtype);
        let kernel = Map::new(Function::AddAssign, dtype, dtype, 1, count);
        let kernel = if aligned(&[x, sum]) { kernel } else { Map { vector: 1, ..kernel } };
        let arguments = MapArgs::new(Function::AddAssign, &[x], sum, None, [1, count]);
        self.run(&kernel, kernel.launch(1, count), &arguments)
    }

    /// y = 1 where x is finite, else NaN.
    pub(crate) fn one(&self, x: &Tensor, y: &mut Tensor) -> Result<()> {
        self.map(Function::One, &[x.address()], None, y)
    }

    /// y = factor · x[0], everywhere; x in f32.
    pub(crate) fn repeat(&self, x: &Tensor, factor: f32, y: &mut Tensor) -> Result<()> {
        let kernel = Map::new(Function::Repeat, storage(x.dtype()), storage(y.dtype()), 1, y.len());
        // One kernel for every length: y has an element for each predicted token, and a new kernel takes the driver milliseconds to
        // compile.
        let kernel = Map { vector: 1, ..kernel };
        let count = y.len();
        let y = y.address_mut();
        let arguments = MapArgs::new(Function::Repeat, &[x.address()], y, Some(factor), [1, count]);
        self.run(&kernel, kernel.launch(1, count), &arguments)
    }

    /// Norm and scale of the gradient `x` at `block`, a [`ClipBlock`](kernels_cuda::reduce::ClipBlock): Σ x² in f64 and a fixed
    /// order.
    pub(crate) fn clip(&self, x: &Tensor, block: Address) -> Result<()> {
        self.total(x, Term::Square, block, None)
    }

    /// y [] = factor · Σ x, added in f64 and a fixed order, stored as f32.
    pub(crate) fn scaled_sum(&self, x: &Tensor, factor: f32, y: &mut Tensor) -> Result<()> {
        self.total(x, Term::Number, y.address_mut(), Some(factor))
    }

    /// y [] = factor · Σ x², added in f64 and a fixed order, stored as f32.
    pub(crate) fn scaled_sum_of_squares(&self, x: &Tensor, factor: f32, y: &mut Tensor) -> Result<()> {
        self.total(x, Term::Square, y.address_mut(), Some(factor))
    }

    /// The total of the terms at `out`: times a factor in f32, or as a `ClipBlock`.
    fn total(&self, x: &Tensor, term: Term, out: Address, factor: Option<f32>) -> Result<()> {
        let kernel = Total::new(storage(x.dtype()), term, x.len());
        // A list of losses, of any length, has one kernel.
        let is_long = x.len() >= 1 << 16;
        let aligned = kernel.aligned && is_long && aligned(&[x.address()]);
        let (kernel, launch) = (Total { aligned, clips: factor.is_none(), ..kernel }, kernel.launch(x.len()));
        let partial = self.allocate(8 * launch.grid[0] as usize)?;
        let (x, count, partial, counter) = (x.address(), x.len(), partial.at(0), self.counters()?);
        self.run(&kernel, Some(launch), &TotalArgs { x, partial, out, counter, count, factor })
    }

    /// out `[rows]` = Σ_columns x [rows, columns], f32.
    pub(crate) fn row_sums(&self, x: &Tensor, columns: usize, out: &mut Tensor) -> Result<()> {
        let (kernel, rows) = (RowSums { dtype: storage(x.dtype()) }, out.len());
        let arguments = RowSumsArgs { x: x.address(), out: out.address_mut(), rows, columns };
        self.run(&kernel, kernel.launch(rows), &arguments)
    }

    /// outs[i] += the column sums of x[.., i], x [matrices, N, rows, columns]: one matrix after another, each in a fixed order.
    /// N is 1 or 2; the outs have ascending addresses.
    pub(crate) fn add_column_sums<const N: usize>(
        &self,
        (x, dtype): (Address, DType),
        [matrices, rows, columns]: [usize; 3],
        outs: [Address; N],
    ) -> Result<()> {
        let kernel = ColumnSums::new(storage(dtype), [rows, columns], aligned(&[x]));
        let Some(found) = kernel.launch([matrices, N], [rows, columns]) else { return Ok(()) };
        let sums = self.allocate(4 * found.partial)?;
        let arguments = ColumnSumsArgs {
            x,
            out: outs[0],
            partial: kernel.split.then(|| sums.at(0)),
            counters: kernel.split.then(|| self.counters()).transpose()?,
            rows,
            columns,
            rows_a_block: found.rows_a_block,
            matrices,
            lists: N,
            apart: (outs[N - 1].0 - outs[0].0) as usize / 4,
        };
        self.run(&kernel, Some(found.launch), &arguments)
    }
}
