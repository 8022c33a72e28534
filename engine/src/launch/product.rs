//! Matrix products on a GPU: which kernel, which tiles, how k is cut, and the arguments.
//!
//! ```text
//! Gpu::product ─┬─ sm_90a, operands that TMA supports  HopperProduct: wgmma, tensor maps
//!               └─ else                                              Product: mma.sync, cp.async
//! few tiles and a long k (a weight's gradient): slices of k into f32 sums, then SplitKReduce adds them in order
//! ```
//!
//! The choice depends on shapes, addresses and the device alone, so two runs on one device agree to the bit.

use super::{aligned, storage};
use crate::{device::Gpu, dtype::DType, error::Result};
use kernels::gemm::{Beta, Epilogue, EpilogueKind, Gemm};
use kernels_cuda::arguments::Address;
use kernels_cuda::gemm::{
    HopperProductArgs, ProductArgs,
    sm80::Product,
    sm90::HopperProduct,
    split_k::{SplitKReduce, SplitKReduceArgs},
};
use kernels_cuda::program::storage_of;
use ptx::{Sm, TensorMap};

/// A matrix product's operands: addresses and storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) a: Address,
    pub(crate) b: Address,
    pub(crate) c: Address,
    /// Of A and B.
    pub(crate) inputs: DType,
    /// Of C.
    pub(crate) output: DType,
}

/// The kernel of a product.
enum GemmKernel {
    Ampere(Product),
    Hopper(HopperProduct, [TensorMap; 2]),
}

/// A product with what it is of.
struct GemmProblem<'a> {
    spec: &'a Gemm,
    operands: &'a Operands,
    epilogue: &'a Epilogue<Address>,
}

impl GemmProblem<'_> {
    fn choose(&self, gpu: &Gpu) -> GemmKernel {
        let Self { spec, operands: Operands { a, b, c, inputs, output }, epilogue } = *self;
        let multiprocessors = gpu.info().multiprocessors as usize;
        let [inputs, output] = [*inputs, *output].map(|dtype| storage_of(storage(dtype)));
        let whole = aligned(&[*c]) && epilogue.addresses().all(|address| aligned(&[address]));
        if gpu.sm() == Sm::Sm90a
            && let Some(mut product) = HopperProduct::new(spec, inputs, output, epilogue.kind(), multiprocessors)
            && let Ok(maps) = product.maps(spec, [a.0, b.0])
        {
            product.aligned &= whole;
            return GemmKernel::Hopper(product, maps);
        }
        let mut product = Product::new(spec, inputs, output, epilogue.kind(), multiprocessors);
        product.aligned &= whole && aligned(&[*a, *b]);
        GemmKernel::Ampere(product)
    }

    /// Starts `chosen` for layers of `chunk` of k each, with a C of its own for each.
    fn start(&self, gpu: &Gpu, chosen: &GemmKernel, (layers, chunk): (usize, usize)) -> Result<()> {
        let Operands { a, b, c, .. } = *self.operands;
        let (spec, multiprocessors) = (self.spec, gpu.info().multiprocessors as usize);
        let epilogue = *self.epilogue;
        let stride_c = if layers > 1 { spec.m * spec.n } else { 0 };
        match chosen {
            GemmKernel::Ampere(product) => {
                let one = ProductArgs::new(spec, [a, b, c], epilogue);
                let arguments = ProductArgs { k_step: chunk, k_chunk: chunk, stride_c, ..one };
                gpu.run(product, product.launch(spec.m, spec.n, layers), &arguments)
            }
            GemmKernel::Hopper(product, maps) => {
                let arguments = HopperProductArgs::new(spec, *maps, c, epilogue, (layers, chunk), stride_c);
                gpu.run(product, product.launch(spec.m, spec.n, layers, multiprocessors), &arguments)
            }
        }
    }
}

impl Gpu {
    /// C (+)= epilogue(A·B). A product with few tiles and a long k is cut along k, and the parts added in order.
    pub(crate) fn product(&self, spec: &Gemm, operands: &Operands, epilogue: &Epilogue<Address>) -> Result<()> {
        let whole = GemmProblem { spec, operands, epilogue };
        let start = || whole.start(self, &whole.choose(self), (1, spec.k));
        if epilogue.kind() != EpilogueKind::None || operands.output != DType::F32 {
            return start();
        }
        let multiprocessors = self.info().multiprocessors as usize;
        // In slices the sums are written as they are, whatever becomes of the old C.
        let dense = Gemm { ldc: spec.n, beta: Beta::Zero, ..*spec };
        let parts = GemmProblem { spec: &dense, operands, epilogue }.choose(self);
        let (slices, chunk) = match &parts {
            GemmKernel::Ampere(product) => product.split(spec, multiprocessors),
            GemmKernel::Hopper(product, _) => product.split(spec, multiprocessors),
        };
        if slices == 1 {
            return start();
        }
        let partial = self.allocate(4 * slices * spec.m * spec.n)?;
        let into_partial = Operands { c: partial.at(0), ..*operands };
        GemmProblem { spec: &dense, operands: &into_partial, epilogue }.start(self, &parts, (slices, chunk))?;
        let sum = SplitKReduce { beta: spec.beta };
        let (partial, c) = (partial.at(0), operands.c);
        let arguments = SplitKReduceArgs { partial, c, rows: spec.m, columns: spec.n, ldc: spec.ldc, slices };
        self.run(&sum, sum.launch(spec.m, spec.n), &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{memory::Arena, shared_tests::*, tensor::Tensor};

    use half::bf16;
    use kernels::num::philox::Stream;

    fn random(gpu: &Gpu, count: usize, seed: u64) -> Tensor {
        let mut stream = Stream::new(seed, [0; 3]);
        let values: Vec<bf16> = (0..count).map(|_| bf16::from_f32(stream.next_f32() - 0.5)).collect();
        let mut tensor = Tensor::new(&Arena::on_gpu(gpu), [count], DType::Bf16).unwrap();
        tensor.copy_from(&values).unwrap();
        tensor
    }

    /// Whether Hopper's kernel is chosen, and C; A begins `offset` numbers behind a multiple of 16 bytes.
    fn product(gpu: &Gpu, spec: &Gemm, offset: usize) -> (bool, Vec<f32>) {
        let (a, b) = (random(gpu, spec.m * spec.k + offset, 1), random(gpu, spec.k * spec.n, 2));
        let mut c = Tensor::new(&Arena::on_gpu(gpu), [spec.m * spec.n], DType::F32).unwrap();
        c.copy_from(&vec![1.0f32; spec.m * spec.n]).unwrap();
        let operands = Operands {
            a: a.address().element(offset, 2),
            b: b.address(),
            c: c.address_mut(),
            inputs: DType::Bf16,
            output: DType::F32,
        };
        let chosen = GemmProblem { spec, operands: &operands, epilogue: &Epilogue::NONE }.choose(gpu);
        gpu.product(spec, &operands, &Epilogue::NONE).unwrap();
        (matches!(chosen, GemmKernel::Hopper(..)), c.to_vec().unwrap())
    }

    #[test]
    fn hopper_takes_what_its_copy_engine_can_bring_and_the_results_agree() {
        let [ampere, hopper] = [(8, 0), (9, 0)].map(gpu);
        for (spec, offset, served) in [
            (Gemm::nt(40, 24, 72), 0, true),
            (Gemm::nt(40, 24, 72), 3, false),
            (Gemm::nn(33, 21, 40), 0, false),
            // k is cut into slices.
            (Gemm::tn(16, 24, 700).accumulate(), 0, true),
        ] {
            let ((first, wanted), (second, got)) = (product(&ampere, &spec, offset), product(&hopper, &spec, offset));
            assert_eq!((first, second), (false, served), "{spec:?} from number {offset} on");
            for (at, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                assert!((got - wanted).abs() < 1e-4, "{spec:?}: {got} at {at}, on Ampere {wanted}");
            }
        }
    }
}
