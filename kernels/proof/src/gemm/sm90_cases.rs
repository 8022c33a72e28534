//! Programs of Hopper's product and its cases in the simulator.

use crate::gemm::problem::Problem;
use crate::runner::GpuRunner;
use kernels::gemm::{Beta, EpilogueKind, Gemm};
use kernels::{DType, Element};
use kernels_cuda::gemm::{HopperProductArgs, sm90::HopperProduct, tiles::HopperTile};
use kernels_cuda::{
    gpu_spec::GpuSpec,
    program::{Program, storage_of},
};
use ptx::{Storage, sim::Approximation};

/// Multiprocessors of the GPU for which the table's programs are chosen.
const MULTIPROCESSORS: usize = GpuSpec::H200.multiprocessors;

/// Programs for an encoder layer, its heads and their gradients: every tile in every form, every epilogue on the two large
/// tiles, and an example of each other option.
pub(crate) fn programs() -> Vec<Program> {
    let product = |spec: &Gemm, storage, output, epilogue, tile| {
        let product = HopperProduct::new(spec, storage, output, epilogue, MULTIPROCESSORS);
        HopperProduct { tile, ..product.expect("TMA loads rows of 16 bytes") }
    };
    let (bf16, f32) = (Storage::Bf16, Storage::F32);
    let [nt, nn, tn] = [Gemm::nt(8, 8, 8), Gemm::nn(8, 8, 8), Gemm::tn(8, 8, 8)];
    let mut all = Vec::new();
    for tile in HopperTile::ALL {
        all.extend([nt, nn, tn].map(|form| product(&form, bf16, bf16, EpilogueKind::None, tile)));
        all.push(product(&tn, bf16, f32, EpilogueKind::None, tile));
    }
    for tile in HopperTile::all(Beta::One) {
        all.push(product(&tn.accumulate(), bf16, f32, EpilogueKind::None, tile));
    }
    for epilogue in EpilogueKind::all().into_iter().filter(|kind| *kind != EpilogueKind::None) {
        let form = if matches!(epilogue, EpilogueKind::ActivationBackward(_)) { nn } else { nt };
        all.extend([HopperTile::WIDE, HopperTile::PING_PONG].map(|tile| product(&form, bf16, bf16, epilogue, tile)));
    }
    all.push(product(&Gemm::tt(8, 8, 8), bf16, bf16, EpilogueKind::None, HopperTile::SQUARE));
    all.push(product(&nt, Storage::F16, Storage::F16, EpilogueKind::None, HopperTile::WIDE));
    all.push(HopperProduct { aligned: false, ..product(&nt, bf16, bf16, EpilogueKind::Bias, HopperTile::SQUARE) });
    let paired: Vec<_> = all.iter().map(|product| HopperProduct { paired: true, ..*product }).collect();
    all.iter().chain(&paired).map(HopperProduct::program).collect()
}

/// Specialization for operands stored as `x` and C stored as `y`; `None` if TMA does not support the operands.
fn hopper_product(spec: &Gemm, x: DType, y: DType, kind: EpilogueKind) -> Option<HopperProduct> {
    HopperProduct::new(spec, storage_of(x), storage_of(y), kind, MULTIPROCESSORS)
}

/// True if Hopper's product supports a case of the table whose matrices are all stored as `dtype`.
pub(crate) fn has_program(spec: &Gemm, dtype: DType, kind: EpilogueKind) -> bool {
    hopper_product(spec, dtype, dtype, kind).is_some()
}

impl<X: Element, Y: Element> Problem<X, Y> {
    /// Specialization for the problem; `None` if TMA does not support the operands.
    pub(crate) fn hopper(&self) -> Option<HopperProduct> {
        hopper_product(&self.spec, X::DTYPE, Y::DTYPE, self.kind)
    }

    /// Runs the program on at most `multiprocessors` blocks: C and the saved pre-activation, with their gaps.
    pub(crate) fn simulate_hopper(
        &self,
        gpu: &GpuRunner<'_>,
        product: &HopperProduct,
        multiprocessors: usize,
        approximation: Approximation,
    ) -> Result<(Vec<Y>, Vec<Y>), String> {
        let mut device = gpu.device();
        let spec = &self.spec;
        let nothing = vec![Y::from_f32(f32::NAN); spec.spans()[2]];
        let before = if spec.beta == Beta::One { &self.matrix } else { &nothing };
        let operands = [device.buffer("a", &self.a), device.buffer("b", &self.b)];
        let maps = product.maps(spec, operands.map(|buffer| buffer.0)).map_err(|error| error.to_string())?;
        let (c, pre) = (device.buffer("c", before), device.buffer("pre", &nothing));
        let epilogue = self.epilogue(&mut device, pre);
        let arguments = HopperProductArgs::new(spec, maps, c, epilogue, (1, spec.k), 0);
        let launch = product.launch(spec.m, spec.n, 1, multiprocessors);
        device.start(&product.program(), launch, &arguments, approximation)?;
        Ok((device.read(c)?, device.read(pre)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::problem::FORMS;
    use half::bf16;
    use ptx::{Sm, TensorMapError};

    const EPILOGUE: EpilogueKind = EpilogueKind::BiasDropoutResidual { dropout: true, residual: true };

    /// The pipeline continues across tiles and wraps around, with every tile size and in every form. The block that
    /// computes a tile does not change its bits, nor does a pair of blocks that share B.
    #[test]
    fn results_are_the_same_bits_for_any_number_of_blocks() {
        for (form, a, b) in FORMS {
            let spec = Gemm::new(136, 264, 328, a, b);
            let problem = Problem::<bf16, bf16>::new(spec, EPILOGUE);
            let (exact, naive) = (problem.define::<f64>(), problem.naive_errors());
            let product = problem.hopper().expect("rows of whole chunks");
            for tile in HopperTile::ALL {
                let run = |paired, blocks| {
                    let gpu = GpuRunner::simulator(Sm::Sm90a);
                    let product = HopperProduct { tile, paired, ..product };
                    let ran = problem.simulate_hopper(&gpu, &product, blocks, Approximation::Device);
                    ran.unwrap_or_else(|error| panic!("{form} {tile:?}, {blocks} blocks, paired {paired}: {error}"))
                };
                let (c, pre) = run(false, 1);
                problem.hold(&c, &pre, naive, &exact).unwrap_or_else(|error| panic!("{form} {tile:?}: {error}"));
                let bits = |c: &[bf16]| c.iter().map(|c| c.to_bits()).collect::<Vec<_>>();
                for (paired, blocks) in [(false, 3), (false, 132), (true, 2), (true, 132)] {
                    let same = bits(&run(paired, blocks).0) == bits(&c);
                    assert!(same, "{form} {tile:?}: {blocks} blocks, paired {paired}, give other bits than 1");
                }
            }
        }
    }

    /// Leading dimensions larger than rows, NaN in the gaps; rows of C aligned or not.
    #[test]
    fn leading_dimensions_may_exceed_rows() {
        for (form, a, b) in FORMS {
            for (n, gap) in [(24, 8), (24, 3), (if form.ends_with('t') { 37 } else { 40 }, 1)] {
                let spec = Gemm::new(72, n, 72, a, b);
                let spec = spec.with_leading_dimensions(spec.lda + 8, spec.ldb + 16, n + gap);
                let problem = Problem::<bf16, bf16>::new(spec, EPILOGUE);
                assert!(problem.hopper().is_some(), "{spec:?} is served");
                let gpu = GpuRunner::simulator(Sm::Sm90a);
                let sums = Problem::<bf16, f32>::new(spec.accumulate(), EpilogueKind::None);
                for checked in [problem.check_simulated(&gpu), sums.check_simulated(&gpu)] {
                    checked.unwrap_or_else(|error| panic!("{form} {spec:?}: {error}"));
                }
            }
        }
    }

    #[test]
    fn operands_that_tma_does_not_support_are_rejected() {
        let new = |spec: &Gemm, storage| HopperProduct::new(spec, storage, Storage::Bf16, EpilogueKind::None, 132);
        for spec in [Gemm::nt(64, 64, 60), Gemm::nn(64, 60, 64), Gemm::tn(60, 64, 64), Gemm::nt(64, 64, 0)] {
            assert_eq!(new(&spec, Storage::Bf16), None, "{spec:?}");
        }
        let spec = Gemm::nt(64, 61, 64);
        assert_eq!(new(&spec, Storage::F32), None, "f32 operands");
        let product = new(&spec, Storage::Bf16).expect("rows of A and B are whole chunks");
        assert!(!product.aligned, "rows of C are not");
        assert_eq!(product.maps(&spec, [4096, 4104]), Err(TensorMapError::Address(4104)));
        assert!(product.maps(&spec, [4096, 4112]).is_ok());
    }

    #[test]
    fn tile_and_split_have_the_fewest_cycles() {
        let tile = |m, n, k| {
            let product = HopperProduct::new(&Gemm::nt(m, n, k), Storage::Bf16, Storage::Bf16, EpilogueKind::None, 132);
            product.expect("whole chunks").tile
        };
        assert_eq!(tile(32_768, 3072, 768), HopperTile::PING_PONG, "the epilogue takes a third of the sums' time");
        assert_eq!(tile(32_768, 768, 3072), HopperTile::WIDE, "and here a twelfth");
        assert_eq!(tile(8192, 8192, 8192), HopperTile::WIDE);
        assert_eq!(tile(512, 768, 768), HopperTile::SQUARE, "one round of any");
        let spec = Gemm::tn(72, 40, 712);
        let product =
            HopperProduct::new(&spec, Storage::Bf16, Storage::F32, EpilogueKind::None, 8).expect("whole chunks");
        assert_eq!(product.split(&spec, 8), (3, 256), "one tile for eight multiprocessors, and 256 of k at least");
    }
}
