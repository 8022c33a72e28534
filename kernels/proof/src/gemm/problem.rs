//! Operands of a case of the product: specification from the case's name, random elements, check against f64.

use super::reference;
use crate::{
    case::Case,
    check::{Guarded, On, Real, greatest_error, store, widen, within_error},
    recorded::{Data, Output},
};
use kernels::gemm::{Beta, Epilogue, EpilogueKind, Gemm, Layout, PackedB, Precision, gemm, gemm_packed};
use kernels::{Cpu, Element, dropout::Dropout};

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

/// Names and layouts of the four forms.
pub(super) const FORMS: [(&str, Layout, Layout); 4] = [
    ("nt", Layout::Normal, Layout::Transposed),
    ("nn", Layout::Normal, Layout::Normal),
    ("tn", Layout::Transposed, Layout::Normal),
    ("tt", Layout::Transposed, Layout::Transposed),
];

/// Suffixes of the variants that only a GPU has.
pub(super) const INTO_F32: &str = "_into_f32";
pub(super) const F16: &str = "_f16";
pub(super) const SLICES: &str = "_slices";

/// A variant without the suffix of a GPU-only case.
fn plain(variant: &str) -> &str {
    [INTO_F32, F16, SLICES].into_iter().find_map(|word| variant.strip_suffix(word)).unwrap_or(variant)
}

/// True if the variant only runs on a GPU.
pub(super) fn only_on_gpu(variant: &str) -> bool {
    plain(variant) != variant
}

/// Between a variant and its precision, if that is not f32.
pub(super) const AT: &str = "_at_";

/// Specification and epilogue of a case.
pub(super) fn read(case: &Case) -> (Gemm, EpilogueKind) {
    let (variant, precision) = case.variant.split_once(AT).unwrap_or((&case.variant, Precision::F32.name()));
    let precision: Precision = precision.parse().unwrap_or_else(|error| panic!("{case}: {error}"));
    let (form, rest) = plain(variant).split_at(2);
    let (_, a, b) = FORMS.into_iter().find(|(name, ..)| *name == form).unwrap_or_else(|| panic!("{case}: no form"));
    let found = epilogues().into_iter().find(|&(beta, kind)| suffix(beta, kind) == rest);
    let (beta, kind) = found.unwrap_or_else(|| panic!("{case}: unknown epilogue `{rest}`"));
    (Gemm { beta, precision, ..Gemm::new(case.dim("m"), case.dim("n"), case.dim("k"), a, b) }, kind)
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
    let mut out = vec![X::from_f32(f32::NAN); if rows * columns == 0 { 0 } else { (rows - 1) * leading + columns }];
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

    pub(super) fn of(data: Data, spec: Gemm, kind: EpilogueKind) -> Self {
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
    pub(super) fn check_or_record(&self, on: &On<'_>, cpu: &Cpu) -> Result<f64, String> {
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
