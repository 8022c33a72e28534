//! The kernels of the table as the engine launches them: a name, a text, arguments.

use super::{
    Gpu,
    driver::{Argument, DeviceAddress},
};
use crate::{dtype::DType, error::Result, memory::Arena, tensor::Tensor};
use kernels::{
    dropout::cuda::Apply,
    elementwise::cuda::{Function, Map},
    gemm::{Fused, Gemm, Write, cuda::Product, cuda_split::SumSlices},
    layernorm::cuda::LayerNorm,
    operation::{Launch, Name, Program},
    optimizer::cuda::Update,
    ptx::{Sm, Storage},
    reduce::cuda::{AddTotals, ColumnSums, Term, Total},
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

kernels!(AddTotals, Apply, ColumnSums, LayerNorm, Map, Product, SumSlices, Total, Update);

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
    /// [n] f32, where a bias is added.
    pub(crate) bias: Option<DeviceAddress>,
    /// Of A and B.
    pub(crate) inputs: DType,
    /// Of C.
    pub(crate) output: DType,
}

impl Gpu {
    /// Starts `kernel`, unless there is nothing to do (`None`).
    pub(crate) fn run(&self, kernel: &impl Kernel, launch: Option<Launch>, arguments: &[Argument]) -> Result<()> {
        match launch {
            None => Ok(()),
            Some(launch) => self.launch(&kernel.name(self.sm()), |sm| kernel.program(sm), launch, arguments),
        }
    }

    /// C (+)= A·B (+ bias). A product with few tiles and a long k is cut along k, and the parts added in order.
    pub(crate) fn product(&self, spec: &Gemm, operands: &Operands) -> Result<()> {
        let Operands { a, b, c, bias, inputs, output } = *operands;
        let multiprocessors = self.info().multiprocessors as usize;
        let fused = if bias.is_some() { Fused::Bias } else { Fused::None };
        let [inputs, stored] = [inputs, output].map(|dtype| Storage::from(storage(dtype)));
        let mut product = Product::new(spec, inputs, stored, fused, multiprocessors);
        product.aligned &= aligned(&[a, b, c]);
        let (slices, chunk) = match bias {
            None if output == DType::F32 => product.split(spec, multiprocessors),
            _ => (1, spec.k),
        };
        // k_step and k_chunk, and the distances of layers, of which one alone has operands of its own: C.
        let sizes = |ldc: usize, slices: usize, chunk: usize| {
            let stride = if slices > 1 { spec.m * spec.n } else { 0 };
            [spec.m, spec.n, spec.k, spec.lda, spec.ldb, ldc, chunk, chunk, 0, 0, stride].map(size)
        };
        if slices == 1 {
            let mut arguments = vec![a.into(), b.into(), c.into()];
            arguments.extend(bias.map(Argument::from));
            arguments.extend(sizes(spec.ldc, 1, spec.k));
            return self.run(&product, product.launch(spec.m, spec.n, 1), &arguments);
        }
        let partial = Tensor::new(&Arena::on_gpu(self), [slices, spec.m, spec.n], DType::F32)?;
        let mut whole = Gemm { ldc: spec.n, write: Write::Overwrite, ..*spec };
        whole.k = spec.k;
        let mut first = Product::new(&whole, inputs, Storage::F32, Fused::None, multiprocessors);
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
        let kernel = Map::new(function, dtype, dtype, 1, y.len());
        let mut arguments: Vec<Argument> = inputs.iter().map(|input| input.address().into()).collect();
        arguments.push(y.address_mut().into());
        arguments.extend(factor.map(Argument::F32));
        arguments.extend([size(1), size(y.len())]);
        self.run(&kernel, kernel.launch(1, y.len()), &arguments)
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

    /// Σ x² over all elements, in f64 and a fixed order.
    pub(crate) fn sum_of_squares(&self, x: &Tensor) -> Result<f64> {
        let kernel = Total::new(storage(x.dtype()), Term::Square, x.len());
        let Some(launch) = kernel.launch(x.len()) else { return Ok(0.0) };
        let parts = launch.grid[0] as usize;
        // f64 numbers in tensors of twice as many words; the sum stands behind the parts.
        let sums = Tensor::new(&Arena::on_gpu(self), [2 * (parts + 1)], DType::U32)?;
        let (partial, out) = (sums.address(), sums.address().element(parts, 8));
        self.run(&kernel, Some(launch), &[x.address().into(), partial.into(), size(x.len())])?;
        self.run(&AddTotals, Some(AddTotals.launch()), &[partial.into(), out.into(), size(parts)])?;
        let words = sums.rows(2 * parts..2 * parts + 2)?.elements::<u32>()?.into_owned();
        Ok(f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32))
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
