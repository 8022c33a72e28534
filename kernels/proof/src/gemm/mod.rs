//! Row of the product in the table of operations: sizes, cost, check against f64.

mod problem;
pub mod reference;
pub(crate) mod sm80_cases;
pub(crate) mod sm90_cases;
#[cfg(test)]
mod tests;
mod variants;

use crate::gemm::problem::{AT, FORMS, Problem, epilogues, only_on_gpu, read, suffix};
use crate::{
    case::{Case, Outcome},
    check::{On, on_any_runner},
    operation::Operation,
    runner::Runner,
};
use half::bf16;
use kernels::gemm::{Beta, EpilogueKind, Precision};
use kernels::{Cost, DType};
use kernels_cuda::program::Pass;
use ptx::Sm;

/// Matrix products with their epilogues.
pub const OPERATION: Operation = Operation { name: "gemm", cases, cost, check, ptx: sm80_cases::programs };

/// Products of ALBERT-base as (n, k): attention output, fused query-key-value, feed-forward in and out, embedding
/// projection, MLM projection, vocabulary.
pub const BASE_SHAPES: [(usize, usize); 7] =
    [(768, 768), (2304, 768), (3072, 768), (768, 3072), (768, 128), (128, 768), (30_000, 128)];

/// Rows of the timed cases: short, long, and the largest batch of tokens.
pub const BASE_ROWS: [usize; 4] = [128, 512, 2048, 4096];

/// Maximum multiply-adds of a case that is checked against the naive reference loops.
const CHECKED_WORK: usize = 1 << 21;

/// No epilogue.
const PLAIN: (Beta, EpilogueKind) = (Beta::Zero, EpilogueKind::None);

fn case(form: &str, (beta, kind): (Beta, EpilogueKind), dtype: DType, m: usize, n: usize, k: usize) -> Case {
    // y = x·Wᵀ is a forward pass; dx = dy·W and dW = dyᵀ·x are backward passes.
    let pass = if form.ends_with('t') { Pass::Forward } else { Pass::Backward };
    Case { pass, dtype, variant: format!("{form}{}", suffix(beta, kind)), dims: vec![("m", m), ("n", n), ("k", k)] }
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let tiny = [(0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 1, 1), (13, 31, 17), (15, 33, 385), (67, 129, 61)];
    for dtype in DType::ALL {
        for (form, ..) in FORMS {
            for (m, n, k) in tiny {
                all.extend(epilogues().into_iter().map(|epilogue| case(form, epilogue, dtype, m, n, k)));
            }
        }
    }
    // Rows of whole 16-byte vectors, the GPU's fast path: more k-tiles than pipeline stages, tiles with tails.
    for (form, ..) in FORMS {
        for (m, n, k) in [(72, 136, 200), (130, 8, 40)] {
            all.extend(epilogues().into_iter().map(|epilogue| case(form, epilogue, DType::Bf16, m, n, k)));
        }
        for (m, n, k) in [(72, 72, 40), (72, 8, 8), (24, 8, 56)] {
            all.extend(epilogues().into_iter().map(|epilogue| case(form, epilogue, DType::F32, m, n, k)));
        }
    }
    // Fewer k-tiles than pipeline stages: one, and two if A is stored transposed.
    for (form, ..) in FORMS {
        all.extend(epilogues().into_iter().map(|epilogue| case(form, epilogue, DType::Bf16, 72, 8, 24)));
    }
    all.push(case("tn", PLAIN, DType::Bf16, 136, 8, 40));
    // Unaligned rows, in the first k-tiles of a pipeline, and columns that end inside any vector of a panel.
    for (form, ..) in FORMS {
        all.extend(
            [(5, 17, 33), (5, 49, 65)]
                .map(|(m, n, k)| case(form, (Beta::Zero, EpilogueKind::Bias), DType::Bf16, m, n, k)),
        );
    }
    // Several tiles per warpgroup of a block, and more k-tiles than any pipeline has stages.
    for (form, epilogue) in
        [("nt", PLAIN), ("tn", (Beta::Zero, EpilogueKind::BiasDropoutResidual { dropout: true, residual: true }))]
    {
        all.push(case(form, epilogue, DType::Bf16, 264, 40, 184));
    }
    // The same with every epilogue and more k-tiles per tile than stages, so that a ping-pong consumer waits for its
    // turn; all columns and rows of a tile; and several tiles of a pair of blocks.
    for (form, ..) in &FORMS[..2] {
        for (m, n, k) in [(16, 392, 264), (136, 200, 72), (648, 8, 328)] {
            all.extend(epilogues().into_iter().map(|epilogue| case(form, epilogue, DType::Bf16, m, n, k)));
        }
    }
    // Hopper's wide tiles: several of them, all their rows; and unaligned rows of C, in one block and in a pair.
    for (m, n, k) in [(16, 392, 264), (136, 200, 72), (648, 8, 328)] {
        all.extend(["tn", "tt"].map(|form| case(form, PLAIN, DType::Bf16, m, n, k)));
    }
    all.push(case("nt", (Beta::Zero, EpilogueKind::Bias), DType::Bf16, 40, 125, 72));
    all.push(case("nt", (Beta::Zero, EpilogueKind::Bias), DType::Bf16, 264, 13, 392));
    all.push(case("nt", (Beta::Zero, EpilogueKind::Bias), DType::Bf16, 136, 13, 72));
    all.extend(variants::cases());
    // On tiles: partial ones, partial blocks and sections of k, several blocks.
    for precision in [Precision::Bf16, Precision::Bf16x3, Precision::Bf16x6] {
        let dtype = if precision == Precision::Bf16 { DType::Bf16 } else { DType::F32 };
        let mut on_tiles = |form: &str, epilogue, [m, n, k]: [usize; 3]| {
            let case = case(form, epilogue, dtype, m, n, k);
            all.push(Case { variant: format!("{}{AT}{precision}", case.variant), ..case });
        };
        for (form, ..) in FORMS {
            for (m, n, k) in [(5, 3, 0), (1, 1, 1), (33, 31, 33), (67, 129, 161)] {
                on_tiles(form, PLAIN, [m, n, k]);
            }
            on_tiles(form, (Beta::One, EpilogueKind::Bias), [35, 70, 300]);
        }
        epilogues().into_iter().for_each(|epilogue| on_tiles("nt", epilogue, [35, 40, 65]));
        on_tiles("nn", PLAIN, [17, 40, 1060]);
    }
    for (form, ..) in &FORMS[..3] {
        for m in BASE_ROWS {
            all.extend(BASE_SHAPES.map(|(n, k)| case(form, PLAIN, DType::F32, m, n, k)));
        }
    }
    all
}

/// Cost of a case: every operand is moved once; an epilogue adds one operation per element and its matrices.
fn cost(case: &Case) -> Cost {
    let (spec, kind) = read(case);
    let [a, b, c] = spec.spans().map(|span| (span * case.dtype.bytes()) as u64);
    let accumulates = spec.beta == Beta::One;
    let matrices = 1 + u64::from(kind.saves_pre()) + u64::from(accumulates || kind.reads_matrix());
    let bias = if kind.has_bias() { 4 * spec.n as u64 } else { 0 };
    let fused = if accumulates || kind != EpilogueKind::None { (spec.m * spec.n) as u64 } else { 0 };
    Cost { flops: spec.flops() + fused, bytes: a + b + matrices * c + bias }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    let skipped = |reason: &str| Outcome::Skipped { reason: reason.to_string() };
    let (spec, kind) = read(case);
    let only_on_gpu = only_on_gpu(&case.variant);
    if spec.m * spec.n * spec.k > CHECKED_WORK && !runner.takes_large() {
        return skipped("larger cases are timed, not checked");
    }
    match runner {
        Runner::Cpu(_) | Runner::Recording(_) if only_on_gpu => return skipped("only a GPU has this variant"),
        Runner::Gpu(_) if spec.precision != Precision::F32 => {
            return skipped("only a CPU multiplies in this precision");
        }
        Runner::Gpu(gpu)
            if gpu.sm() == Sm::Sm90a && !only_on_gpu && !sm90_cases::has_program(&spec, case.dtype, kind) =>
        {
            return skipped("the program for sm_80 serves sm_90a too");
        }
        _ => {}
    }
    on_any_runner(case, runner, |on| match (on, case.dtype) {
        (On::Gpu(gpu), _) if only_on_gpu => variants::check(case, spec, kind, gpu),
        (On::Gpu(gpu), DType::F32) => Problem::<f32, f32>::new(spec, kind).check_simulated(gpu),
        (On::Gpu(gpu), DType::Bf16) => Problem::<bf16, bf16>::new(spec, kind).check_simulated(gpu),
        (On::Cpu(cpu), DType::F32) => Problem::<f32, f32>::of(on.data(), spec, kind).check_or_record(on, cpu),
        (On::Cpu(cpu), DType::Bf16) => Problem::<bf16, bf16>::of(on.data(), spec, kind).check_or_record(on, cpu),
    })
}
