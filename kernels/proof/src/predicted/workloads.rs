//! Predicted workloads: the launches of a training step in bf16 at 32,768 tokens, in the order of the step.

use super::{
    Size::{self, Grows, Repeats, Whole},
    Workload,
};
use kernels::DType;
use kernels_cuda::program::Pass;

/// Group of workloads, e.g. one application of the layer, which a step repeats 12 times.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Title of the group.
    pub title: &'static str,
    /// Workloads in the order of the step.
    pub workloads: &'static [Workload],
}

/// Tokens of a step.
const T: usize = 32_768;
/// Masked tokens of a step: 15 %.
const M: usize = 4_915;

type Sizes = &'static [(&'static str, Size)];

const fn row(what: &'static str, operation: &'static str, pass: Pass, variant: &'static str, sizes: Sizes) -> Workload {
    Workload { what, operation, pass, dtype: DType::Bf16, variant, sizes, times: 1 }
}

const fn forward(what: &'static str, operation: &'static str, variant: &'static str, sizes: Sizes) -> Workload {
    row(what, operation, Pass::Forward, variant, sizes)
}

const fn backward(what: &'static str, operation: &'static str, variant: &'static str, sizes: Sizes) -> Workload {
    row(what, operation, Pass::Backward, variant, sizes)
}

const fn times(times: usize, workload: Workload) -> Workload {
    Workload { times, ..workload }
}

const fn in_f32(workload: Workload) -> Workload {
    Workload { dtype: DType::F32, ..workload }
}

/// Sizes of a product: simulated with six tiles of 128 x 128, three of 128 x 256 or four of 128 x 192, and k of 128 and 256.
macro_rules! product {
    ($m:expr, $n:expr, $k:expr) => {
        &[("m", Repeats(128, $m)), ("n", Repeats(768, $n)), ("k", Grows(128, $k))]
    };
}

/// Sizes of a product with 128 columns.
macro_rules! narrow {
    ($m:expr, $k:expr) => {
        &[("m", Repeats(128, $m)), ("n", Whole(128)), ("k", Grows(128, $k))]
    };
}

/// Sizes of row-wise operations.
macro_rules! rows {
    ($rows:literal, $letter:literal, $columns:expr) => {
        &[("T", Grows($rows, T)), ($letter, Whole($columns))]
    };
}

/// Sizes of attention: sequences of `s` tokens, heads of 64.
macro_rules! heads {
    ($s:literal, $heads:literal) => {
        &[("B", Grows(1, T / $s)), ("S", Whole($s)), ("A", Repeats(1, $heads)), ("D", Whole(64))]
    };
}

/// Workloads of one application of the layer, forward and backward: hidden size $h, $heads heads, sequences of $s tokens.
macro_rules! layer {
    ($h:literal, $heads:literal, $s:literal, $norm_rows:literal) => {
        &[
            forward("q, k, v", "gemm", "nt_bias", product!(T, 3 * $h, $h)),
            forward("attention", "attention", "", heads!($s, $heads)),
            forward("attention's output, residual", "gemm", "nt_bias_residual_epilogue", product!(T, $h, $h)),
            times(2, forward("layer norm", "layernorm", "", rows!(16, "H", $h))),
            forward("feed-forward, GELU", "gemm", "nt_bias_tanh_pre", product!(T, 4 * $h, $h)),
            forward("feed-forward's output, residual", "gemm", "nt_bias_residual_epilogue", product!(T, $h, 4 * $h)),
            times(2, backward("layer norm, backward", "layernorm", "", rows!($norm_rows, "H", $h))),
            backward("feed-forward's output, dW", "gemm", "tn_accumulate_into_f32", product!($h, 4 * $h, T)),
            backward("feed-forward's output, dx, GELU'", "gemm", "nn_tanh_backward", product!(T, 4 * $h, $h)),
            backward("feed-forward, dW", "gemm", "tn_accumulate_into_f32", product!(4 * $h, $h, T)),
            backward("feed-forward, dx", "gemm", "nn_accumulate", product!(T, $h, 4 * $h)),
            backward("attention's output, dW", "gemm", "tn_accumulate_into_f32", product!($h, $h, T)),
            backward("attention's output, dx", "gemm", "nn", product!(T, $h, $h)),
            backward("attention, backward", "attention", "", heads!($s, $heads)),
            backward("q, k, v, dW", "gemm", "tn_accumulate_into_f32", product!(3 * $h, $h, T)),
            backward("q, k, v, dx", "gemm", "nn_accumulate", product!(T, $h, 3 * $h)),
            times(2, forward("db of H", "reduce", "columns", rows!(512, "F", $h))),
            forward("db of 3 H", "reduce", "columns", rows!(512, "F", 3 * $h)),
            forward("db of 4 H", "reduce", "columns", rows!(512, "F", 4 * $h)),
        ]
    };
}

/// All predicted groups.
pub const GROUPS: [Group; 4] = [
    Group {
        title: "ALBERT-base, one application of the layer, sequences of 512",
        workloads: layer!(768, 12, 512, 528),
    },
    Group {
        title: "ALBERT-xxlarge, one application of the layer, sequences of 512",
        workloads: layer!(4096, 64, 512, 264),
    },
    Group {
        title: "ALBERT-base, once a step: embeddings, heads, optimizer",
        workloads: &[
            forward("embeddings", "embedding", "sum3", &[("T", Grows(64, T)), ("V", Whole(30_000)), ("E", Whole(128))]),
            forward("layer norm of E", "layernorm", "", rows!(16, "H", 128)),
            forward("embedding projection", "gemm", "nt_bias", product!(T, 768, 128)),
            forward("masked rows", "embedding", "rows", &[("T", Grows(64, M)), ("V", Whole(4_096)), ("E", Whole(768))]),
            forward("head's projection", "gemm", "nt_bias", narrow!(M, 768)),
            forward("logits", "gemm", "nt_bias", product!(M, 30_000, 128)),
            forward("cross-entropy", "cross_entropy", "rows", &[("M", Grows(4, M)), ("V", Whole(30_000))]),
            backward("cross-entropy, backward", "cross_entropy", "rows", &[("M", Grows(4, M)), ("V", Whole(30_000))]),
            backward("logits, dx", "gemm", "nn", narrow!(M, 30_000)),
            backward("logits, dW", "gemm", "tn_accumulate_into_f32", narrow!(30_000, M)),
            backward("embedding projection, dW", "gemm", "tn_accumulate_into_f32", narrow!(768, T)),
            backward("embedding projection, dx", "gemm", "nn", narrow!(T, 768)),
            backward(
                "embeddings, backward",
                "embedding",
                "",
                &[("T", Grows(64, T)), ("V", Whole(30_000)), ("E", Whole(128))],
            ),
            in_f32(forward(
                "norm of the gradient",
                "reduce",
                "squares",
                &[("T", Grows(64, 11_424)), ("F", Whole(1_024))],
            )),
            in_f32(forward("LAMB", "optimizer", "lamb", &[("P", Grows(65_536, 11_698_176))])),
        ],
    },
    Group {
        title: "Other lengths and settings, and what a step fuses, at 32,768 tokens",
        workloads: &[
            forward("GELU", "activation", "bias_tanh", rows!(8, "F", 768)),
            forward("softmax", "softmax", "", rows!(32, "C", 768)),
            backward("softmax, backward", "softmax", "", rows!(32, "C", 768)),
            forward("dropout", "dropout", "", rows!(32, "F", 768)),
            forward("addition", "elementwise", "add_full", rows!(32, "F", 768)),
            forward("exponential", "elementwise", "exp", rows!(32, "F", 768)),
            forward("transposition", "elementwise", "transpose", rows!(32, "F", 768)),
            forward("f32 to bf16", "elementwise", "cast", rows!(32, "F", 768)),
            forward("sums of rows", "reduce", "rows", rows!(32, "F", 768)),
            forward("attention, sequences of 128", "attention", "", heads!(128, 12)),
            backward("attention, sequences of 128, backward", "attention", "", heads!(128, 12)),
            forward("attention, dropout, sequences of 512", "attention", "dropout", heads!(512, 12)),
            backward("attention, dropout, backward", "attention", "dropout", heads!(512, 12)),
            forward(
                "product, bias, dropout, residual",
                "gemm",
                "nt_bias_dropout_residual_epilogue",
                product!(T, 768, 768),
            ),
            in_f32(forward("AdamW", "optimizer", "adamw", &[("P", Grows(65_536, 11_698_176))])),
        ],
    },
];
