//! Matrix products with B packed inside the timed call (`ours`) and packed in advance (`prepacked`); for int8, B is quantized in
//! advance and A inside the call.

use super::{Case, Random, sizes};
use crate::{
    interleaved::Contender,
    report::{About, Bound},
};
use anyhow::Result;
use clap::ValueEnum;
use half::bf16;
use kernels::{
    Cpu,
    gemm::{Epilogue, Gemm, Layout, PackedB, Precision, gemm, gemm_packed},
    int8::{self, QuantizedWeight},
};
use std::sync::Arc;

/// (n, k) of the forward products of ALBERT-base: attention output, fused query-key-value, feed-forward in and out,
/// embedding projection, MLM projection, vocabulary.
pub const BASE_SHAPES: [(usize, usize); 7] =
    [(768, 768), (2304, 768), (3072, 768), (768, 3072), (768, 128), (128, 768), (30_000, 128)];

/// (m, n) of the weight gradients of ALBERT-base: projections, feed-forward in and out, embedding map.
const WEIGHT_SHAPES: [(usize, usize); 5] = [(768, 768), (768, 2304), (768, 3072), (3072, 768), (128, 768)];

/// Layout of the operands of a product: n as multiplied, t transposed; first A, then B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Neither transposed: dx = dy·W
    Nn,
    /// B transposed: y = x·Wᵀ
    Nt,
    /// A transposed: dW = dyᵀ·x
    Tn,
    /// Both transposed
    Tt,
}

impl Form {
    /// Returns true for A and for B if it is stored transposed.
    pub const fn transposed(self) -> [bool; 2] {
        match self {
            Self::Nn => [false, false],
            Self::Nt => [false, true],
            Self::Tn => [true, false],
            Self::Tt => [true, true],
        }
    }

    /// The product C `[m, n]` = A `[m, k]` · B `[k, n]` with operands in this layout.
    pub const fn gemm(self, m: usize, n: usize, k: usize) -> Gemm {
        match self {
            Self::Nn => Gemm::nn(m, n, k),
            Self::Nt => Gemm::nt(m, n, k),
            Self::Tn => Gemm::tn(m, n, k),
            Self::Tt => Gemm::tt(m, n, k),
        }
    }

    /// Two-letter name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nn => "nn",
            Self::Nt => "nt",
            Self::Tn => "tn",
            Self::Tt => "tt",
        }
    }
}

/// Problem C `[m, n]` = A `[m, k]` · B `[k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Layout of A and B.
    pub form: Form,
    /// Precision. A, B and C are stored in bf16 if it is bf16, otherwise in f32.
    pub precision: Precision,
    /// Product of 8-bit integers, in place of `precision`; only for [`Form::Nt`].
    pub int8: bool,
    /// Also times third-party GEMM, in f32 (requires the feature `peers`).
    pub peers: bool,
}

impl Product {
    /// A product without peers.
    pub fn new([m, n, k]: [usize; 3], form: Form, precision: Precision) -> Self {
        Self { m, n, k, form, precision, int8: false, peers: false }
    }

    /// Forward products of ALBERT-base over `tokens` tokens: projections, feed-forward, embedding map, vocabulary.
    pub fn forward(tokens: usize, form: Form, precision: Precision) -> impl Iterator<Item = Self> {
        BASE_SHAPES.into_iter().map(move |(n, k)| Self::new([tokens, n, k], form, precision))
    }

    /// Weight gradients of ALBERT-base over `tokens` tokens, A transposed; that of the vocabulary over masked tokens only.
    pub fn backward(tokens: usize, precision: Precision) -> impl Iterator<Item = Self> {
        let of = move |size| Self::new(size, Form::Tn, precision);
        WEIGHT_SHAPES.into_iter().map(move |(m, n)| of([m, n, tokens])).chain([of([30_000, 128, tokens * 3 / 20])])
    }

    /// Attention output and feed-forward products of ALBERT-xxlarge over `tokens` tokens.
    pub fn wide(tokens: usize, form: Form, precision: Precision) -> impl Iterator<Item = Self> {
        [(4096, 4096), (16_384, 4096)].into_iter().map(move |(n, k)| Self::new([tokens, n, k], form, precision))
    }

    pub(super) fn prepare(&self, cpu: &Cpu) -> Result<Case> {
        let contenders = if self.int8 {
            vec![self.quantized(cpu)]
        } else if self.precision == Precision::Bf16 {
            let [a, b] = self.operands();
            self.contenders::<bf16>(cpu, &a, &b)
        } else {
            let [a, b] = self.operands();
            let mut all = self.contenders::<f32>(cpu, &a, &b);
            all.extend(self.peers(cpu, &a, &b));
            all
        };
        Ok(Case { about: self.about(), contenders })
    }

    pub(super) fn about(&self) -> About {
        let &Self { m, n, k, form, precision, .. } = self;
        let bytes = if precision == Precision::Bf16 { 2 } else { 4 };
        About {
            kernel: "gemm",
            case: format!("{} {m}x{n}x{k}", form.name()),
            sizes: sizes([("m", m), ("n", n), ("k", k)]),
            dtype: if self.int8 { "int8" } else { precision.name() },
            bound: Bound::Arithmetic,
            flops: self.spec().flops(),
            bytes: (bytes * (m * k + k * n + m * n)) as u64,
            tokens: None,
        }
    }

    fn spec(&self) -> Gemm {
        self.form.gemm(self.m, self.n, self.k).with_precision(self.precision)
    }

    #[cfg(feature = "peers")]
    fn peers(&self, cpu: &Cpu, a: &Arc<Vec<f32>>, b: &Arc<Vec<f32>>) -> Vec<Contender> {
        let &Self { m, n, k, form, peers, .. } = self;
        if peers { crate::peers::contenders(cpu, [m, n, k], form.transposed(), [a, b]) } else { Vec::new() }
    }

    /// No peers: the feature is off.
    #[cfg(not(feature = "peers"))]
    fn peers(&self, _: &Cpu, _: &Arc<Vec<f32>>, _: &Arc<Vec<f32>>) -> [Contender; 0] {
        []
    }

    fn quantized(&self, cpu: &Cpu) -> Contender {
        let [a, b] = self.operands::<f32>();
        let weight = QuantizedWeight::new(cpu, self.n, self.k, &b);
        let (cpu, mut c) = (cpu.clone(), f32::random(self.m * self.n, 3));
        let mut scratch = vec![0; weight.scratch_len(self.m)];
        let place = cpu.clone();
        let call = move || int8::linear(&cpu, &a, &weight, &mut c, Epilogue::NONE, &mut scratch);
        Contender::new("ours", call).within_pass(&place)
    }

    fn operands<X: Random>(&self) -> [Arc<Vec<X>>; 2] {
        let &Self { m, n, k, .. } = self;
        [(m * k, 1), (k * n, 2)].map(|(len, name)| Arc::new(X::random(len, name)))
    }

    fn contenders<X: Random>(&self, cpu: &Cpu, a: &Arc<Vec<X>>, b: &Arc<Vec<X>>) -> Vec<Contender> {
        let &Self { m, n, k, .. } = self;
        let spec = self.spec();
        let ours = {
            let (cpu, a, b, mut c) = (cpu.clone(), Arc::clone(a), Arc::clone(b), X::random(m * n, 3));
            move || gemm(&cpu, &spec, &a[..], &b[..], &mut c, Epilogue::NONE)
        };
        let prepacked = {
            let mut packed = PackedB::with_precision(cpu.isa(), spec.precision, k, n);
            let (layout, ldb) = (spec.b, if spec.b == Layout::Normal { n } else { k });
            packed.pack(cpu, layout, ldb, &b[..]);
            let (cpu, a, mut c) = (cpu.clone(), Arc::clone(a), X::random(m * n, 3));
            move || gemm_packed(&cpu, &spec, &a[..], &packed, &mut c, Epilogue::NONE)
        };
        vec![Contender::new("ours", ours).within_pass(cpu), Contender::new("prepacked", prepacked).within_pass(cpu)]
    }
}
