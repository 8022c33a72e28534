//! Row of the product in the table of operations: sizes, cost, check against f64.

use super::{
    Beta, Epilogue, EpilogueKind, Gemm, Layout, PackedB, Precision,
    cuda::{cases as cuda_cases, sm90_cases, variants},
    gemm, gemm_packed, reference,
};
use crate::{
    Cpu, DType, Element,
    bits::{Data, Output},
    check::{Guarded, On, Real, greatest_error, on_any_runner, store, widen, within_error},
    dropout::Dropout,
    operation::{Case, Cost, Operation, Outcome, Pass},
    runner::Runner,
};
use half::bf16;
use ptx::Sm;

/// Matrix products with their epilogues.
pub const OPERATION: Operation = Operation { name: "gemm", cases, cost, check, ptx: cuda_cases::programs };

/// Products of ALBERT-base as (n, k): attention output, fused query-key-value, feed-forward in and out, embedding
/// projection, MLM projection, vocabulary.
pub const BASE_SHAPES: [(usize, usize); 7] =
    [(768, 768), (2304, 768), (3072, 768), (768, 3072), (768, 128), (128, 768), (30_000, 128)];

/// Rows of the timed cases: short, long, and the largest batch of tokens.
pub const BASE_ROWS: [usize; 4] = [128, 512, 2048, 4096];

/// Maximum multiply-adds of a case that is checked against the naive reference loops.
const CHECKED_WORK: usize = 1 << 21;

/// All valid combinations of β and kind of epilogue.
pub(super) fn epilogues() -> Vec<(Beta, EpilogueKind)> {
    let betas = |kind: EpilogueKind| [Beta::Zero, Beta::One].into_iter().take(if kind.accumulates() { 2 } else { 1 });
    EpilogueKind::all().into_iter().flat_map(|kind| betas(kind).map(move |beta| (beta, kind))).collect()
}

/// Suffix of a case's variant.
pub(super) fn suffix(beta: Beta, kind: EpilogueKind) -> String {
    let words = [if beta == Beta::One { "accumulate".to_string() } else { String::new() }, kind.words()];
    words.into_iter().filter(|word| !word.is_empty()).map(|word| format!("_{word}")).collect()
}

/// No epilogue.
const PLAIN: (Beta, EpilogueKind) = (Beta::Zero, EpilogueKind::None);

/// Names and layouts of the four forms.
pub(super) const FORMS: [(&str, Layout, Layout); 4] = [
    ("nt", Layout::Normal, Layout::Transposed),
    ("nn", Layout::Normal, Layout::Normal),
    ("tn", Layout::Transposed, Layout::Normal),
    ("tt", Layout::Transposed, Layout::Transposed),
];

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
    // turn; and all columns and rows of a tile.
    for (form, ..) in &FORMS[..2] {
        for (m, n, k) in [(16, 392, 264), (136, 200, 72)] {
            all.extend(epilogues().into_iter().map(|epilogue| case(form, epilogue, DType::Bf16, m, n, k)));
        }
    }
    // Hopper's wide tiles: several of them, all their rows; and unaligned rows of C.
    for (m, n, k) in [(16, 392, 264), (136, 200, 72)] {
        all.extend(["tn", "tt"].map(|form| case(form, PLAIN, DType::Bf16, m, n, k)));
    }
    all.push(case("nt", (Beta::Zero, EpilogueKind::Bias), DType::Bf16, 40, 125, 72));
    all.push(case("nt", (Beta::Zero, EpilogueKind::Bias), DType::Bf16, 264, 13, 392));
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

/// Between a variant and its precision, if that is not f32.
const AT: &str = "_at_";

/// Specification and epilogue of a case.
pub(super) fn read(case: &Case) -> (Gemm, EpilogueKind) {
    let (variant, precision) = case.variant.split_once(AT).unwrap_or((&case.variant, Precision::F32.name()));
    let precision: Precision = precision.parse().unwrap_or_else(|error| panic!("{case}: {error}"));
    let (form, rest) = variants::plain(variant).split_at(2);
    let (_, a, b) = FORMS.into_iter().find(|(name, ..)| *name == form).unwrap_or_else(|| panic!("{case}: no form"));
    let found = epilogues().into_iter().find(|&(beta, kind)| suffix(beta, kind) == rest);
    let (beta, kind) = found.unwrap_or_else(|| panic!("{case}: unknown epilogue `{rest}`"));
    (Gemm { beta, precision, ..Gemm::new(case.dim("m"), case.dim("n"), case.dim("k"), a, b) }, kind)
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
    let only_on_gpu = variants::only_on_gpu(&case.variant);
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

/// Random operands of a product; `X` stores A and B, `Y` stores C and matrices like C.
pub(super) struct Problem<X, Y> {
    pub spec: Gemm,
    pub kind: EpilogueKind,
    /// A in its layout, NaN between the rows.
    pub a: Vec<X>,
    pub b: Vec<X>,
    pub bias: Vec<f32>,
    /// Old values of C, residual or pre-activation: [m, n] with the leading dimension of C, NaN between the rows.
    pub matrix: Vec<Y>,
}

/// `rows` rows of random elements with NaN between them.
fn rows<X: Element>(data: Data, seed: u64, rows: usize, columns: usize, leading: usize) -> Vec<X> {
    let values = data.uniform::<X>(seed, rows * columns, 1.0);
    let mut out = vec![X::from_f32(f32::NAN); super::span(rows, columns, leading)];
    for (i, row) in values.chunks_exact(columns.max(1)).enumerate() {
        out[i * leading..][..columns].copy_from_slice(row);
    }
    out
}

/// Copies the rows without the gaps between them.
fn dense<X: Copy>(x: &[X], rows: usize, columns: usize, leading: usize) -> Vec<X> {
    if columns == 0 {
        return Vec::new();
    }
    (0..rows).flat_map(|i| &x[i * leading..][..columns]).copied().collect()
}

impl<X: Element, Y: Element> Problem<X, Y> {
    pub(super) const DROPOUT: Dropout = Dropout { seed: 77, site: 5, rate: 0.3 };

    pub(super) fn new(spec: Gemm, kind: EpilogueKind) -> Self {
        Self::of(Data::Uniform, spec, kind)
    }

    fn of(data: Data, spec: Gemm, kind: EpilogueKind) -> Self {
        let (ar, ac) = if spec.a == Layout::Normal { (spec.m, spec.k) } else { (spec.k, spec.m) };
        let (br, bc) = if spec.b == Layout::Normal { (spec.k, spec.n) } else { (spec.n, spec.k) };
        Self {
            spec,
            kind,
            a: rows(data, 1, ar, ac, spec.lda),
            b: rows(data, 2, br, bc, spec.ldb),
            bias: data.uniform(3, spec.n, 1.0),
            matrix: rows(data, 4, spec.m, spec.n, spec.ldc),
        }
    }

    /// Runs the kernel: C and the saved pre-activation with their gaps, between guard bands.
    pub(super) fn compute(&self, cpu: &Cpu, packed: Option<&PackedB>) -> (Guarded<Y>, Guarded<Y>) {
        let span = self.spec.spans()[2];
        let mut pre = Guarded::<Y>::poisoned(span);
        let mut c = match self.spec.beta {
            Beta::One => Guarded::new(&self.matrix),
            Beta::Zero => Guarded::poisoned(span),
        };
        let epilogue = Epilogue::of_kind(self.kind, &self.bias[..], &self.matrix[..], &mut pre[..], Self::DROPOUT);
        match packed {
            Some(packed) => gemm_packed(cpu, &self.spec, &self.a, packed, &mut c, epilogue),
            None => gemm(cpu, &self.spec, &self.a, &self.b, &mut c, epilogue),
        }
        (c, pre)
    }

    /// C and the pre-activation by the reference, without gaps.
    pub(super) fn define<R: Real>(&self) -> (Vec<R>, Vec<R>) {
        self.finish(reference::product(&self.spec, &widen::<R, X>(&self.a), &widen::<R, X>(&self.b)))
    }

    /// C and the pre-activation from A · B.
    fn finish<R: Real>(&self, acc: Vec<R>) -> (Vec<R>, Vec<R>) {
        let Gemm { m, n, ldc, .. } = self.spec;
        let matrix = widen::<R, Y>(&dense(&self.matrix, m, n, ldc));
        let acc = if self.spec.beta == Beta::One { reference::add(&matrix, &acc) } else { acc };
        let dropout = self.kind.has_dropout().then_some(Self::DROPOUT);
        reference::epilogue(self.kind, &acc, &widen::<R, f32>(&self.bias), &matrix, dropout)
    }

    /// Greatest errors of C and the pre-activation of a naive implementation, on 48 x 48 elements of the same k.
    pub(super) fn naive_errors(&self) -> (f64, f64) {
        let Gemm { k, a, b, beta, .. } = self.spec;
        let sample = Problem::<X, Y>::new(Gemm { beta, ..Gemm::new(48, 48, k, a, b) }, self.kind);
        let (naive, exact) = (sample.define::<f32>(), sample.define::<f64>());
        // Two parts of an operand have 16 bits, 8 fewer than f32: up to 256 times the error for one term, 10 for many.
        let factor = if self.spec.precision == Precision::Bf16x3 { 64.0 } else { 1.0 };
        let error = |naive: &[f32], exact: &[f64]| factor * greatest_error(&store::<Y>(naive), exact);
        (error(&naive.0, &exact.0), error(&naive.1, &exact.1))
    }

    /// As [`Problem::naive_errors`], the greater of the naive implementation's and of one whose sums are those of tensor
    /// cores.
    pub(super) fn tensor_core_errors(&self) -> (f64, f64) {
        let Gemm { k, a, b, beta, .. } = self.spec;
        let sample = Problem::<X, Y>::new(Gemm { beta, ..Gemm::new(48, 48, k, a, b) }, self.kind);
        let sums = reference::truncated_product(&sample.spec, &widen::<f32, X>(&sample.a), &widen(&sample.b));
        let (truncated, exact) = (sample.finish::<f32>(sums), sample.define::<f64>());
        let error = |sums: &[f32], exact: &[f64]| greatest_error(&store::<Y>(sums), exact);
        let naive = self.naive_errors();
        (naive.0.max(error(&truncated.0, &exact.0)), naive.1.max(error(&truncated.1, &exact.1)))
    }

    /// Checks C and the saved pre-activation, with gaps, against the error bound; returns the error over the bound.
    pub(super) fn hold(
        &self,
        c: &[Y],
        pre: &[Y],
        naive: (f64, f64),
        exact: &(Vec<f64>, Vec<f64>),
    ) -> Result<f64, String> {
        let Gemm { m, n, ldc, .. } = self.spec;
        let mut gaps = (0..c.len()).filter(|i| i % ldc >= n);
        if let Some(i) = gaps.find(|&i| !c[i].to_f32().is_nan() || !pre[i].to_f32().is_nan()) {
            return Err(format!("element {i} in the gap between rows was written"));
        }
        let mut worst = within_error("c", &dense(c, m, n, ldc), naive.0, &exact.0)?;
        if self.kind.saves_pre() {
            worst = worst.max(within_error("pre", &dense(pre, m, n, ldc), naive.1, &exact.1)?);
        }
        Ok(worst)
    }

    /// [`check`](Self::check), or records C and the saved pre-activation, without gaps, with B plain and packed.
    fn check_or_record(&self, on: &On<'_>, cpu: &Cpu) -> Result<f64, String> {
        if !on.is_recording() {
            return self.check(cpu);
        }
        let Gemm { m, n, k, b, ldb, ldc, .. } = self.spec;
        let mut packed = PackedB::with_precision(cpu.isa(), self.spec.precision, k, n);
        packed.pack(cpu, b, ldb, &self.b);
        for packed in [None, Some(&packed)] {
            let (c, pre) = self.compute(cpu, packed);
            c.intact().and(pre.intact())?;
            let saved = self.kind.saves_pre().then_some(("pre", &pre));
            let outputs = [("c", &c)].into_iter().chain(saved);
            on.records(|| outputs.map(|(name, x)| Output::new(name, &dense(x, m, n, ldc))).collect());
        }
        Ok(0.0)
    }

    /// Checks the kernel against the error bound, with B plain and packed; returns the error over the bound.
    pub(super) fn check(&self, cpu: &Cpu) -> Result<f64, String> {
        let Gemm { m, n, k, b, ldb, ldc, .. } = self.spec;
        let mut packed = PackedB::with_precision(cpu.isa(), self.spec.precision, k, n);
        packed.pack(cpu, b, ldb, &self.b);
        let (exact, naive) = (self.define::<f64>(), self.naive_errors());
        let mut worst = 0.0f64;
        let mut first: Option<Vec<u32>> = None;
        for packed in [None, Some(&packed)] {
            let (c, pre) = self.compute(cpu, packed);
            let place = format!("{:?} {:?} packed {}", self.spec, self.kind, packed.is_some());
            c.assert_intact(&place);
            pre.assert_intact(&place);
            worst = worst.max(self.hold(&c, &pre, naive, &exact).map_err(|error| format!("{place}: {error}"))?);
            let c = dense(&c, m, n, ldc);
            let bits: Vec<u32> = c.iter().map(|c| c.to_f32().to_bits()).collect();
            match &first {
                Some(first) if *first != bits => {
                    return Err(format!("{place}: bits differ from the run without packed B"));
                }
                _ => first = Some(bits),
            }
        }
        Ok(worst)
    }
}
