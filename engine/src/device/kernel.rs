//! The kernels of the table as the engine launches them: a name, a text, arguments.

use super::{
    Gpu,
    driver::{Argument, DeviceAddress},
};
use crate::{dtype::DType, error::Result, memory::Arena, tensor::Tensor};
use kernels::{
    attention::cuda::Flash,
    cross_entropy::cuda::Rows,
    dropout::{Dropout, cuda::Apply},
    elementwise::cuda::{Function, Map},
    embedding::cuda::{AddPieces, Gather, SumPieces},
    gelu::cuda::BiasActivation,
    gemm::{Fused, Gemm, Write, cuda::Product, cuda_split::SumSlices},
    layernorm::cuda::LayerNorm,
    operation::{Launch, Name, Program},
    optimizer::cuda::Update,
    ptx::{Sm, Storage},
    reduce::cuda::{AddTotals, ColumnSums, RowSums, Term, Total},
    softmax::cuda::Softmax,
};

/// A specialisation of a kernel.
pub(crate) trait Kernel {
    fn name(&self, sm: Sm) -> Name;
    fn program(&self, sm: Sm) -> Program;
}

macro_rules! kernels {
    ($($kernel:ty),* $(,)?) => {$(
        impl Kernel for $kernel {
            fn name(&self, sm: Sm) -> Name {
                (*self).name(sm)
            }
            fn program(&self, sm: Sm) -> Program {
                (*self).program(sm)
            }
        }
    )*};
}

kernels!(
    AddPieces,
    AddTotals,
    Apply,
    BiasActivation,
    ColumnSums,
    Flash,
    Gather,
    LayerNorm,
    Map,
    Product,
    RowSums,
    Rows,
    SumPieces,
    SumSlices,
    Softmax,
    Total,
    Update,
);

/// The storage of floats. Panics for integers, which operations have refused before.
pub(crate) fn storage(dtype: DType) -> kernels::DType {
    match dtype {
        DType::F32 => kernels::DType::F32,
        DType::Bf16 => kernels::DType::Bf16,
        DType::U32 => unreachable!("kernels compute with floats"),
    }
}

/// An argument: a size or a count.
pub(crate) fn size(value: usize) -> Argument {
    Argument::U32(u32::try_from(value).expect("tensors on a GPU have fewer than 2^32 elements"))
}

/// Whether a kernel may move 16 bytes at a time from all of these addresses.
pub(crate) fn aligned(addresses: &[DeviceAddress]) -> bool {
    addresses.iter().all(|address| address.0.is_multiple_of(16))
}

impl DeviceAddress {
    /// The address of element `index` of elements of so many bytes.
    pub(crate) fn element(self, index: usize, bytes: usize) -> Self {
        Self(self.0 + (index * bytes) as u64)
    }
}

impl From<DeviceAddress> for Argument {
    fn from(address: DeviceAddress) -> Self {
        Argument::Address(address)
    }
}

/// A matrix product's operands: addresses and storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) a: DeviceAddress,
    pub(crate) b: DeviceAddress,
    pub(crate) c: DeviceAddress,
    /// Of A and B.
    pub(crate) inputs: DType,
    /// Of C.
    pub(crate) output: DType,
}

/// What follows the sums of a product, with the operands that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish {
    pub(crate) fused: Fused,
    /// [n] f32.
    pub(crate) bias: Option<DeviceAddress>,
    /// Like C: a pre-activation or a residual, which is read.
    pub(crate) matrix: Option<DeviceAddress>,
    /// Like C: where the pre-activation is kept.
    pub(crate) pre: Option<DeviceAddress>,
    pub(crate) dropout: Option<Dropout>,
}

impl Finish {
    /// The sums as they are.
    pub(crate) const NOTHING: Finish =
        Finish { fused: Fused::None, bias: None, matrix: None, pre: None, dropout: None };

    /// The bias added, where there is one.
    pub(crate) fn bias(bias: Option<DeviceAddress>) -> Self {
        let fused = if bias.is_some() { Fused::Bias } else { Fused::None };
        Finish { fused, bias, ..Self::NOTHING }
    }

    /// Addresses and numbers, in the order in which a product declares them.
    fn arguments(&self) -> Vec<Argument> {
        let addresses = [self.bias, self.matrix, self.pre].into_iter().flatten();
        let mut arguments: Vec<Argument> = addresses.map(Argument::from).collect();
        arguments.extend(self.dropout.iter().flat_map(dropout_arguments));
        arguments
    }

    fn is_aligned(&self) -> bool {
        aligned(&[self.bias, self.matrix, self.pre].into_iter().flatten().collect::<Vec<_>>())
    }
}

/// The arguments of a kernel that drops elements.
pub(crate) fn dropout_arguments(dropout: &Dropout) -> impl Iterator<Item = Argument> + use<> {
    let (words, scale) = dropout.cuda_arguments();
    words.map(Argument::U32).into_iter().chain([Argument::F32(scale)])
}

impl Gpu {
    /// Starts `kernel`, unless there is nothing to do (`None`).
    pub(crate) fn run(&self, kernel: &impl Kernel, launch: Option<Launch>, arguments: &[Argument]) -> Result<()> {
        match launch {
            None => Ok(()),
            Some(launch) => self.launch(&kernel.name(self.sm()), |sm| kernel.program(sm), launch, arguments),
        }
    }

    /// C (+)= finish(A·B). A product with few tiles and a long k is cut along k, and the parts added in order.
    pub(crate) fn product(&self, spec: &Gemm, operands: &Operands, finish: &Finish) -> Result<()> {
        let Operands { a, b, c, inputs, output } = *operands;
        let multiprocessors = self.info().multiprocessors as usize;
        let [inputs, stored] = [inputs, output].map(|dtype| Storage::from(storage(dtype)));
        let mut product = Product::new(spec, inputs, stored, finish.fused, multiprocessors);
        product.aligned &= aligned(&[a, b, c]) && finish.is_aligned();
        let (slices, chunk) = match finish.fused {
            Fused::None if output == DType::F32 => product.split(spec, multiprocessors),
            _ => (1, spec.k),
        };
        // k_step and k_chunk, and the distances of layers, of which one alone has operands of its own: C.
        let sizes = |ldc: usize, slices: usize, chunk: usize| {
            let stride = if slices > 1 { spec.m * spec.n } else { 0 };
            [spec.m, spec.n, spec.k, spec.lda, spec.ldb, ldc, chunk, chunk, 0, 0, stride].map(size)
        };
        if slices == 1 {
            let mut arguments = vec![a.into(), b.into(), c.into()];
            arguments.extend(finish.arguments());
            arguments.extend(sizes(spec.ldc, 1, spec.k));
            return self.run(&product, product.launch(spec.m, spec.n, 1), &arguments);
        }
        let partial = Tensor::new(&Arena::on_gpu(self), [slices, spec.m, spec.n], DType::F32)?;
        let dense = Gemm { ldc: spec.n, write: Write::Overwrite, ..*spec };
        let mut first = Product::new(&dense, inputs, Storage::F32, Fused::None, multiprocessors);
        (first.blocking, first.aligned) = (product.blocking, first.aligned && aligned(&[a, b]));
        let mut arguments: Vec<Argument> = vec![a.into(), b.into(), partial.address().into()];
        arguments.extend(sizes(spec.n, slices, chunk));
        self.run(&first, first.launch(spec.m, spec.n, slices), &arguments)?;
        let sum = SumSlices { write: spec.write };
        let arguments = [partial.address().into(), c.into(), size(spec.m), size(spec.n), size(spec.ldc), size(slices)];
        self.run(&sum, sum.launch(spec.m, spec.n), &arguments)
    }

    /// The elements of `x` in the storage of `y`.
    pub(crate) fn cast(&self, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let [from, to] = [x.dtype(), y.dtype()].map(storage);
        let kernel = Map::new(Function::Cast, from, to, 1, x.len());
        let arguments = [x.address().into(), y.address_mut().into(), size(1), size(x.len())];
        self.run(&kernel, kernel.launch(1, x.len()), &arguments)
    }

    /// y = function(inputs), element by element, with a factor where the function has one.
    pub(crate) fn map(
        &self,
        function: Function,
        inputs: &[&Tensor],
        factor: Option<f32>,
        y: &mut Tensor,
    ) -> Result<()> {
        let dtype = storage(y.dtype());
        let (rows, columns) = y.shape().rows_cols();
        let kernel = Map::new(function, dtype, dtype, rows, columns);
        let mut addresses: Vec<DeviceAddress> = inputs.iter().map(|input| input.address()).collect();
        addresses.push(y.address_mut());
        let kernel = if aligned(&addresses) { kernel } else { Map { vector: 1, ..kernel } };
        let mut arguments: Vec<Argument> = addresses.into_iter().map(Argument::from).collect();
        arguments.extend(factor.map(Argument::F32));
        arguments.extend([size(rows), size(columns)]);
        self.run(&kernel, kernel.launch(rows, columns), &arguments)
    }

    /// x *= factor
    pub(crate) fn scale(&self, x: &mut Tensor, factor: f32) -> Result<()> {
        let dtype = storage(x.dtype());
        let kernel = Map::new(Function::Scale, dtype, dtype, 1, x.len());
        let (count, address) = (x.len(), x.address_mut());
        let arguments = [address.into(), address.into(), Argument::F32(factor), size(1), size(count)];
        self.run(&kernel, kernel.launch(1, count), &arguments)
    }

    /// y = x. The product with one, which is exact.
    pub(crate) fn copy(&self, x: &Tensor, y: &mut Tensor) -> Result<()> {
        self.map(Function::Scale, &[x], Some(1.0), y)
    }

    /// sum += x, `count` elements from the given addresses on.
    pub(crate) fn add_assign(&self, x: DeviceAddress, sum: DeviceAddress, dtype: DType, count: usize) -> Result<()> {
        let dtype = storage(dtype);
        let kernel = Map::new(Function::AddAssign, dtype, dtype, 1, count);
        let kernel = if aligned(&[x, sum]) { kernel } else { Map { vector: 1, ..kernel } };
        self.run(&kernel, kernel.launch(1, count), &[x.into(), sum.into(), size(1), size(count)])
    }

    /// y = factor · x[0], everywhere; x in f32.
    pub(crate) fn repeat(&self, x: &Tensor, factor: f32, y: &mut Tensor) -> Result<()> {
        let kernel = Map::new(Function::Repeat, storage(x.dtype()), storage(y.dtype()), 1, y.len());
        let count = y.len();
        let arguments = [x.address().into(), y.address_mut().into(), Argument::F32(factor), size(1), size(count)];
        self.run(&kernel, kernel.launch(1, count), &arguments)
    }

    /// Σ x² over all elements, in f64 and a fixed order.
    pub(crate) fn sum_of_squares(&self, x: &Tensor) -> Result<f64> {
        // An f64 in a tensor of two words.
        let sum = Tensor::new(&Arena::on_gpu(self), [2], DType::U32)?;
        self.total(x, Term::Square, sum.address(), None)?;
        let words = sum.elements::<u32>()?;
        Ok(f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32))
    }

    /// y [] = factor · Σ x, added in f64 and a fixed order, stored as f32.
    pub(crate) fn scaled_sum(&self, x: &Tensor, factor: f32, y: &mut Tensor) -> Result<()> {
        self.total(x, Term::Number, y.address_mut(), Some(factor))
    }

    /// y [] = factor · Σ x², added in f64 and a fixed order, stored as f32.
    pub(crate) fn scaled_sum_of_squares(&self, x: &Tensor, factor: f32, y: &mut Tensor) -> Result<()> {
        self.total(x, Term::Square, y.address_mut(), Some(factor))
    }

    /// The total of the terms at `out`: in f64, or times a factor in f32.
    fn total(&self, x: &Tensor, term: Term, out: DeviceAddress, factor: Option<f32>) -> Result<()> {
        let kernel = Total { aligned: false, ..Total::new(storage(x.dtype()), term, x.len()) };
        let kernel = if aligned(&[x.address()]) { Total::new(kernel.dtype, term, x.len()) } else { kernel };
        let launch = kernel.launch(x.len());
        let parts = launch.map_or(0, |launch| launch.grid[0] as usize);
        let partial = Tensor::new(&Arena::on_gpu(self), [2 * parts.max(1)], DType::U32)?;
        self.run(&kernel, launch, &[x.address().into(), partial.address().into(), size(x.len())])?;
        let add = AddTotals { scaled: factor.is_some() };
        let mut arguments = vec![partial.address().into(), out.into(), size(parts)];
        arguments.extend(factor.map(Argument::F32));
        self.run(&add, Some(add.launch()), &arguments)
    }

    /// out [rows] = Σ_columns x [rows, columns], f32.
    pub(crate) fn row_sums(&self, x: &Tensor, columns: usize, out: &mut Tensor) -> Result<()> {
        let (kernel, rows) = (RowSums { dtype: storage(x.dtype()) }, out.len());
        let arguments = [x.address().into(), out.address_mut().into(), size(rows), size(columns)];
        self.run(&kernel, kernel.launch(rows), &arguments)
    }

    /// out [columns] += Σ_rows x [rows, columns], in a fixed order.
    pub(crate) fn add_column_sums(
        &self,
        x: DeviceAddress,
        dtype: DType,
        rows: usize,
        columns: usize,
        out: DeviceAddress,
    ) -> Result<()> {
        let one = |dtype, accumulate, from: DeviceAddress, to: DeviceAddress| {
            let kernel = ColumnSums::new(storage(dtype), accumulate, columns, columns);
            if aligned(&[from, to]) { kernel } else { ColumnSums { vector: 1, ..kernel } }
        };
        let arguments = |from: DeviceAddress, to: DeviceAddress, rows, rows_a_block| {
            [from.into(), to.into(), size(rows), size(columns), size(columns), Argument::U32(rows_a_block)]
        };
        let direct = one(dtype, true, x, out);
        let Some(launch) = direct.launch(rows, columns, false) else { return Ok(()) };
        if launch.row_blocks == 1 {
            return self.run(&direct, Some(launch.launch), &arguments(x, out, rows, launch.rows_a_block));
        }
        let partial = Tensor::new(&Arena::on_gpu(self), [launch.row_blocks, columns], DType::F32)?;
        let first = one(dtype, false, x, partial.address());
        let launch = first.launch(rows, columns, false).expect("there are columns");
        self.run(&first, Some(launch.launch), &arguments(x, partial.address(), rows, launch.rows_a_block))?;
        let second = one(DType::F32, true, partial.address(), out);
        let rows = launch.row_blocks;
        let launch = second.launch(rows, columns, true).expect("there are columns");
        self.run(&second, Some(launch.launch), &arguments(partial.address(), out, rows, launch.rows_a_block))
    }
}
