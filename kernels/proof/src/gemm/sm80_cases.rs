//! The product's PTX programs: the list of specializations, and the cases in the simulator.

use super::sm90_cases;
use crate::gemm::problem::Problem;
use crate::runner::{Device, GpuRunner};
use kernels::DType;
use kernels::gemm::{Beta, Epilogue, EpilogueKind, Gemm};
use kernels::{Element, activation::Activation};
use kernels_cuda::gemm::{
    ProductArgs,
    sm80::Product,
    sm90::HopperProduct,
    split_k::SplitKReduce,
    tiles::{Blocking, HopperTile},
};
use kernels_cuda::{
    arguments::Address,
    gpu_spec::GpuSpec,
    program::{Name, Program, storage_of},
};
use ptx::{Sm, Storage, sim::Approximation};

/// Multiprocessors of the GPU for which the table's programs are chosen.
const MULTIPROCESSORS: usize = GpuSpec::H200.multiprocessors;

/// Programs for an encoder layer, its heads and their gradients: every blocking in every form, every epilogue on the
/// largest tiles, and an example of each other option.
pub(crate) fn programs(sm: Sm) -> Vec<Program> {
    if sm == Sm::Sm90a {
        return sm90_cases::programs();
    }
    let product = |spec: &Gemm, storage, output, epilogue, blocking| Product {
        blocking,
        aligned: true,
        ..Product::new(spec, storage, output, epilogue, MULTIPROCESSORS)
    };
    let (bf16, f32) = (Storage::Bf16, Storage::F32);
    let [nt, nn, tn] = [Gemm::nt(8, 8, 8), Gemm::nn(8, 8, 8), Gemm::tn(8, 8, 8)];
    let mut all = vec![product(&nt, bf16, bf16, EpilogueKind::None, Blocking::SMALL)];
    for blocking in Blocking::ALL {
        all.extend([nt, nn, tn].map(|form| product(&form, bf16, bf16, EpilogueKind::None, blocking)));
        all.push(product(&tn.accumulate(), bf16, f32, EpilogueKind::None, blocking));
    }
    let large = Blocking::LARGE;
    for epilogue in EpilogueKind::all().into_iter().filter(|kind| *kind != EpilogueKind::None) {
        let form = if matches!(epilogue, EpilogueKind::ActivationBackward(_)) { nn } else { nt };
        all.push(product(&form, bf16, bf16, epilogue, large));
        all.push(product(&form, f32, f32, epilogue, Blocking::SINGLE));
    }
    all.extend([nt, nn, tn].map(|form| product(&form, f32, f32, EpilogueKind::None, Blocking::SINGLE)));
    all.push(product(&tn.accumulate(), f32, f32, EpilogueKind::None, Blocking::SINGLE));
    all.push(product(&tn, bf16, f32, EpilogueKind::None, large));
    all.extend([nt, nn, tn].map(|form| product(&form, Storage::F16, Storage::F16, EpilogueKind::None, large)));
    for (form, storage) in [(nt, bf16), (nn, bf16), (tn, bf16), (nt, f32)] {
        let blocking = if storage == f32 { Blocking::SINGLE } else { Blocking::SMALL };
        all.push(Product { aligned: false, ..product(&form, storage, storage, EpilogueKind::Bias, blocking) });
    }
    let mut seen = std::collections::HashSet::new();
    let sums = [Beta::Zero, Beta::One].map(|beta| SplitKReduce { beta }.program(sm));
    all.retain(|product| seen.insert(*product));
    all.iter().map(|product| product.program(sm)).chain(sums).collect()
}

/// Runs a program on a problem: C and the saved pre-activation, with their gaps.
type Run<'a, Y> = Box<dyn FnOnce() -> Result<(Vec<Y>, Vec<Y>), String> + 'a>;

impl<X: Element, Y: Element> Problem<X, Y> {
    /// Checks the PTX against the error bound: on every tile without an epilogue, on the smallest and a large one with
    /// an epilogue, and with the approximate instructions at either end of their error range if the program uses them.
    pub(crate) fn check_simulated(&self, gpu: &GpuRunner<'_>) -> Result<f64, String> {
        let expected = std::cell::OnceCell::new();
        let compare = |c: &[Y], pre: &[Y]| {
            let (exact, naive) = expected.get_or_init(|| {
                let truncates = X::DTYPE != DType::F32;
                let naive = if truncates { self.tensor_core_errors() } else { self.naive_errors() };
                (self.define::<f64>(), naive)
            });
            self.hold(c, pre, *naive, exact)
        };
        let nt = Gemm::nt(self.spec.m, self.spec.n, self.spec.k);
        let approximate = match self.kind {
            // In one form: the epilogue does not depend on the layout of the operands.
            EpilogueKind::BiasActivation { activation: a, .. } | EpilogueKind::ActivationBackward(a) => {
                a != Activation::Relu && self.spec == nt
            }
            _ => false,
        };
        let mut worst = 0.0f64;
        for approximation in if approximate { &Approximation::ALL[..] } else { &Approximation::ALL[..1] } {
            for (name, run) in self.runs(gpu, *approximation) {
                let held = run().and_then(|(c, pre)| gpu.compared(|| compare(&c, &pre)));
                worst = worst.max(held.map_err(|error| format!("{name} {approximation:?}: {error}"))?);
            }
        }
        Ok(worst)
    }

    /// Names and runs of the programs that a check covers. For Hopper its own programs, on one block that computes
    /// several tiles; cases without one are skipped earlier ([`sm90_cases::has_program`]).
    fn runs<'a>(&'a self, gpu: &'a GpuRunner<'_>, approximation: Approximation) -> Vec<(Name, Run<'a, Y>)> {
        let aligned = self.product(Blocking::SMALL).aligned;
        if gpu.sm() == Sm::Sm90a {
            let product = self.hopper().expect("TMA supports the operands of every case that is not skipped");
            // With an epilogue: all tiles except SQUARE if C is wide, all except WIDE otherwise.
            let plain = (self.spec.beta, self.kind) == (Beta::Zero, EpilogueKind::None) || X::DTYPE != Y::DTYPE;
            let wide = self.spec.n > HopperTile::SQUARE.n as usize;
            let tried = |tile: &HopperTile| plain || *tile != if wide { HopperTile::SQUARE } else { HopperTile::WIDE };
            let run = |tile| -> (Name, Run<'a, Y>) {
                let product = HopperProduct { tile, ..product };
                (product.name(), Box::new(move || self.simulate_hopper(gpu, &product, 1, approximation)))
            };
            return HopperTile::all(product.beta).filter(tried).map(run).collect();
        }
        let blockings = match (storage_of(X::DTYPE), self.spec.beta, self.kind) {
            (Storage::F32, ..) => vec![Blocking::SINGLE],
            (_, Beta::Zero, EpilogueKind::None) if aligned => Blocking::ALL.to_vec(),
            // Gradient of a weight.
            (_, Beta::One, EpilogueKind::None) if aligned && X::DTYPE != Y::DTYPE => Blocking::ALL.to_vec(),
            _ if aligned => vec![Blocking::SMALL, Blocking::LARGE],
            _ => vec![Blocking::SMALL],
        };
        let run = |blocking| -> (Name, Run<'a, Y>) {
            let product = self.product(blocking);
            (product.name(gpu.sm()), Box::new(move || self.simulate(gpu, &product, approximation)))
        };
        blockings.into_iter().map(run).collect()
    }

    /// Specialization for the problem.
    pub(crate) fn product(&self, blocking: Blocking) -> Product {
        let (storage, output) = (storage_of(X::DTYPE), storage_of(Y::DTYPE));
        Product { blocking, ..Product::new(&self.spec, storage, output, self.kind, MULTIPROCESSORS) }
    }

    /// Runs the program: C and the saved pre-activation, with their gaps.
    fn simulate(
        &self,
        gpu: &GpuRunner<'_>,
        product: &Product,
        approximation: Approximation,
    ) -> Result<(Vec<Y>, Vec<Y>), String> {
        let mut device = gpu.device();
        let span = self.spec.spans()[2];
        let nothing = vec![Y::from_f32(f32::NAN); span];
        let before = if self.spec.beta == Beta::One { &self.matrix } else { &nothing };
        let [a, b] = [device.buffer("a", &self.a), device.buffer("b", &self.b)];
        let (c, pre) = (device.buffer("c", before), device.buffer("pre", &nothing));
        let arguments = ProductArgs::new(&self.spec, [a, b, c], self.epilogue(&mut device, pre));
        let launch = product.launch(self.spec.m, self.spec.n, 1);
        device.start(&product.program(gpu.sm()), launch, &arguments, approximation)?;
        Ok((device.read(c)?, device.read(pre)?))
    }

    /// The epilogue of the problem with its data in device memory.
    pub(crate) fn epilogue(&self, device: &mut Device<'_>, pre: Address) -> Epilogue<Address> {
        let (bias, matrix) = (device.buffer("bias", &self.bias), device.buffer("matrix", &self.matrix));
        Epilogue::of_kind(self.kind, bias, matrix, pre, Self::DROPOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{assert_within, store, uniform, widen};
    use crate::gemm::{problem::FORMS, reference};
    use half::bf16;
    use kernels::gemm::Layout;
    use kernels_cuda::gemm::split_k::SplitKReduceArgs;

    #[test]
    fn partial_sums_of_split_k_are_added_in_order() {
        let (rows, columns, slices) = (72, 40, 3);
        let (partial, before) = (uniform::<f32>(1, slices * 72 * 40, 1.0), uniform::<f32>(3, 72 * 40, 1.0));
        for beta in [Beta::Zero, Beta::One] {
            let sum = SplitKReduce { beta };
            let gpu = GpuRunner::simulator(Sm::Sm80);
            let mut device = gpu.device();
            let (partial_at, c) = (device.buffer("partial", &partial), device.buffer("c", &before));
            let arguments = SplitKReduceArgs { partial: partial_at, c, rows, columns, ldc: columns, slices };
            let launch = sum.launch(rows, columns);
            device.start(&sum.program(Sm::Sm80), launch, &arguments, Approximation::Device).expect("the pass runs");
            let c: Vec<f32> = device.read(c).expect("C is there");
            for (i, &c) in c.iter().enumerate() {
                let plain = (1..slices).fold(partial[i], |sum, z| sum + partial[z * 72 * 40 + i]);
                let wanted = if beta == Beta::One { before[i] + plain } else { plain };
                assert_eq!(c.to_bits(), wanted.to_bits(), "{beta:?}: element {i} is {c:e}, expected {wanted:e}");
            }
        }
    }

    #[test]
    fn batch_elements_are_independent_products() {
        let spec = Gemm::nt(40, 24, 72);
        let product = Product {
            blocking: Blocking::SMALL,
            ..Product::new(&spec, Storage::Bf16, Storage::Bf16, EpilogueKind::None, 1)
        };
        let [span_a, span_b, span_c] = spec.spans();
        let (a, b) = (uniform::<bf16>(1, 3 * span_a, 1.0), uniform::<bf16>(2, 3 * span_b, 1.0));
        let gpu = GpuRunner::simulator(Sm::Sm80);
        let mut device = gpu.device();
        let at = [device.buffer("a", &a), device.buffer("b", &b), device.buffer("c", &vec![bf16::NAN; 3 * span_c])];
        let one = ProductArgs::new(&spec, at, Epilogue::NONE);
        let arguments = ProductArgs { stride_a: span_a, stride_b: span_b, stride_c: span_c, ..one };
        let (program, launch) = (product.program(Sm::Sm80), product.launch(spec.m, spec.n, 3));
        device.start(&program, launch, &arguments, Approximation::Device).expect("the batch runs");
        let c: Vec<bf16> = device.read(at[2]).expect("C is there");
        for (i, c) in c.chunks(span_c).enumerate() {
            let (a, b) = (&a[i * span_a..][..span_a], &b[i * span_b..][..span_b]);
            let naive = reference::product(&spec, &widen::<f32, bf16>(a), &widen::<f32, bf16>(b));
            let exact = reference::product(&spec, &widen::<f64, bf16>(a), &widen::<f64, bf16>(b));
            assert_within(&format!("layer {i}"), "c", c, &store(&naive), &exact);
        }
    }

    /// Leading dimensions larger than rows, NaN in the gaps, in every form.
    #[test]
    fn leading_dimensions_may_exceed_rows() {
        for (form, a, b) in FORMS {
            for gap in [3, 8] {
                let spec = Gemm::new(50, 24, 70, a, b);
                let wider = |leading: usize| leading.next_multiple_of(8) + gap;
                let spec = spec.with_leading_dimensions(wider(spec.lda), wider(spec.ldb), 24 + gap);
                let gpu = GpuRunner::simulator(Sm::Sm80);
                let dropout = EpilogueKind::BiasDropoutResidual { dropout: true, residual: true };
                let gelu = EpilogueKind::BiasActivation { activation: Activation::GeluErf, save_pre: true };
                for checked in [
                    Problem::<bf16, bf16>::new(spec, dropout).check_simulated(&gpu),
                    Problem::<f32, f32>::new(spec, gelu).check_simulated(&gpu),
                    Problem::<bf16, f32>::new(spec.accumulate(), EpilogueKind::None).check_simulated(&gpu),
                ] {
                    checked.unwrap_or_else(|message| panic!("{form}, gap {gap}: {message}"));
                }
            }
        }
    }

    #[test]
    fn blocking_grows_with_the_number_of_tiles() {
        let blocking =
            |m, n| Product::new(&Gemm::nt(m, n, 768), Storage::Bf16, Storage::Bf16, EpilogueKind::None, 132).blocking;
        assert_eq!(blocking(32_768, 3072), Blocking::DEEP);
        assert_eq!(blocking(2048, 768), Blocking::MIDDLE);
        assert_eq!(blocking(128, 768), Blocking::SMALL);
        let spec = Gemm::tn(768, 768, 32_768);
        let product = Product {
            a: Layout::Transposed,
            ..Product::new(&spec, Storage::Bf16, Storage::F32, EpilogueKind::None, 132)
        };
        let gradient = Gemm::tn(72, 40, 700);
        let small = Product::new(&gradient, Storage::Bf16, Storage::F32, EpilogueKind::None, 8);
        assert_eq!(small.blocking, Blocking::SMALL);
        assert_eq!(small.split(&gradient, 8), (3, 256), "2 tiles, 8 multiprocessors, at least 256 of k per split");
        let (layers, chunk) = product.split(&spec, 132);
        assert!(layers * chunk >= spec.k && (layers - 1) * chunk < spec.k, "{layers} splits of {chunk}");
    }
}
