//! The fused layer against the same layer made of small operations, and both against f64.
//!
//! The definition is a forward pass in f64, of the references of its kernels; its gradients are five-point differences in f64,
//! exact to about 1e-10. The layer of small operations is the naive implementation of the tolerance rule: the greatest of its errors
//! against f64, each relative to the scale of its tensor, doubled, plus one ulp, is the bound. (The greatest over all
//! tensors, because that of one small tensor is a matter of luck.)
use super::{gradient_check::*, *};
use crate::{WeightGradients, shared_tests::*};
use kernels::gemm::{EpilogueKind, Gemm};
use kernels::layernorm::Spec;

const HEADS: usize = 2;
pub(super) const H: usize = 6;
const F: usize = 10;
pub(super) const OFFSETS: [u32; 5] = [0, 3, 3, 4, 9];
pub(super) const T: usize = 9;
const EPS: f32 = 1e-12;

fn dropouts(rate: f32) -> [Option<Dropout>; 3] {
    [11, 12, 13].map(|site| (rate > 0.0).then_some(Dropout { seed: 77, site, rate }))
}

/// q, k, v weights and biases, then the others in the order of [`LayerParams`].
pub(super) fn parameters() -> Vec<Weight> {
    let rows = [H, H, H, H, H, H, H, H, H, H, F, F, H, H, H, H];
    // None for vectors.
    let columns = [H, H, H, 0, 0, 0, H, 0, 0, 0, H, 0, F, 0, 0, 0];
    let weight = |(i, (rows, columns)): (usize, (usize, usize))| {
        let mut values = values(300 + i as u64, rows * columns.max(1), 0.75);
        if [8, 14].contains(&i) {
            values.iter_mut().for_each(|gain| *gain += 1.0);
        }
        Weight { shape: if columns == 0 { vec![rows] } else { vec![rows, columns] }, values }
    };
    rows.into_iter().zip(columns).enumerate().map(weight).collect()
}

/// Parameters in the order of [`parameters`].
pub(super) fn layer(p: &[ParamId], activation: Activation, rate: f32, recompute: Recompute) -> EncoderLayer {
    let [attention, attention_output, ffn_output] = dropouts(rate);
    EncoderLayer {
        params: layer_params(p, EPS),
        attention: Attention { dropout: attention, ..Attention::new(HEADS, H / HEADS) },
        activation,
        attention_output,
        ffn_output,
        recompute,
    }
}

pub(super) fn layer_params(p: &[ParamId], eps: f32) -> LayerParams {
    LayerParams {
        qkv_weight: [p[0], p[1], p[2]],
        qkv_bias: [p[3], p[4], p[5]],
        attention_weight: p[6],
        attention_bias: p[7],
        attention_norm: LayerNorm { gain: p[8], bias: p[9], eps },
        ffn_weight: p[10],
        ffn_bias: p[11],
        ffn_output_weight: p[12],
        ffn_output_bias: p[13],
        output_norm: LayerNorm { gain: p[14], bias: p[15], eps },
    }
}

/// Factors of attention's dropout on the probabilities of a sequence, [A, S, S].
fn attention_mask(dropout: Option<Dropout>, start: usize, s: usize) -> Vec<f32> {
    let factor = |head: usize, query: usize, key: usize| match dropout {
        None => 1.0,
        Some(dropout) if dropout.keeps(((start + query) * HEADS + head) as u64, key) => dropout.scale(),
        Some(_) => 0.0,
    };
    (0..HEADS * s * s).map(|i| factor(i / (s * s), i / s % s, i % s)).collect()
}

/// The layer of small operations.
fn composed(tape: &Tape<'_>, x: &Var, p: &[ParamId], activation_kind: Activation, rate: f32) -> Result<Var> {
    let layer = layer(p, activation_kind, rate, Recompute::None);
    let dense = |x: &Var, w: usize, b: usize| {
        let y = matmul(tape, x, &tape.param(p[w])?, Transpose::B)?;
        add(tape, &y, &tape.param(p[b])?)
    };
    let d = H / HEADS;
    let (q, k, v) = (dense(x, 0, 3)?, dense(x, 1, 4)?, dense(x, 2, 5)?);
    let mut contexts = Vec::new();
    for pair in OFFSETS.windows(2) {
        let (start, end) = (pair[0] as usize, pair[1] as usize);
        let s = end - start;
        // [S, H] to [A, S, D]
        let heads = |x: &Var| transpose(tape, &reshape(tape, &slice(tape, x, 0, start..end)?, [s, HEADS, d])?, 0, 1);
        let scores = matmul(tape, &heads(&q)?, &heads(&k)?, Transpose::B)?;
        let probabilities = softmax(tape, &scale(tape, &scores, layer.attention.scale)?)?;
        let mask = tape.input([HEADS, s, s], &attention_mask(layer.attention.dropout, start, s))?;
        let context = matmul(tape, &mul(tape, &probabilities, &mask)?, &heads(&v)?, Transpose::NONE)?;
        contexts.push(reshape(tape, &transpose(tape, &context, 0, 1)?, [s, H])?);
    }
    let context = concat(tape, &contexts.iter().collect::<Vec<_>>(), 0)?;
    let output = dropout(tape, &dense(&context, 6, 7)?, layer.attention_output)?;
    let y = layer_norm(tape, &add(tape, &output, x)?, layer.params.attention_norm)?;
    let f = activation(tape, &dense(&y, 10, 11)?, activation_kind)?;
    let output = dropout(tape, &dense(&f, 12, 13)?, layer.ffn_output)?;
    layer_norm(tape, &add(tape, &output, &y)?, layer.params.output_norm)
}

/// Activation, dropout, and what is computed again.
type Variant = (Activation, f32, Recompute);

pub(super) fn fused(tape: &Tape<'_>, x: &Var, p: &[ParamId], (activation, rate, recompute): Variant) -> Result<Var> {
    encoder_layer(tape, x, &Sequences::new(tape, &OFFSETS)?, &layer(p, activation, rate, recompute))
}

/// The layer in f64: the definition. `p` as in [`parameters`].
fn exact(x: &[f64], p: &[Vec<f64>], activation: Activation, rate: f32) -> Vec<f64> {
    use kernels_proof::{attention, dropout, gemm::reference as gemm, layernorm};
    let [of_attention, of_output, of_ffn] = dropouts(rate);
    let dense = |x: &[f64], weight: usize, bias: usize| -> Vec<f64> {
        let n = p[bias].len();
        let k = p[weight].len() / n;
        let product = gemm::product(&Gemm::nt(x.len() / k, n, k), x, &p[weight]);
        gemm::epilogue(EpilogueKind::Bias, &product, &p[bias], &[], None).0
    };
    let masked_sum = |x: Vec<f64>, dropout: Option<Dropout>, residual: &[f64]| {
        let masked = dropout.map_or_else(|| x.clone(), |dropout| dropout::reference::apply(&dropout, H, &x));
        gemm::add(&masked, residual)
    };
    let norm = |x: &[f64], gain: usize| {
        layernorm::reference::forward(&Spec { rows: T, columns: H, eps: EPS }, x, &p[gain], &p[gain + 1]).y
    };
    let attention = Attention { dropout: of_attention, ..Attention::new(HEADS, H / HEADS) };
    let (q, k, v) = (dense(x, 0, 3), dense(x, 1, 4), dense(x, 2, 5));
    let (context, _) = attention::reference::forward(&attention, &OFFSETS[..], &q, &k, &v, H);
    let y = norm(&masked_sum(dense(&context, 6, 7), of_output, x), 8);
    let (_, f) = kernels_proof::activation::reference::forward(activation, &dense(&y, 10, 11), None);
    norm(&masked_sum(dense(&f, 12, 13), of_ffn, &y), 14)
}

/// Output, gradient of x, gradients of the parameters.
pub(super) struct Results {
    pub(super) parts: Vec<Vec<f64>>,
}

impl Results {
    /// The greatest difference in part `i`, and the greatest magnitude. The key bias has no gradient, as softmax does not see a
    /// shift; its terms are as large as those of the query bias, so that is the scale of its rounding.
    fn error(&self, exact: &Self, i: usize) -> (f64, f64) {
        let error = self.parts[i].iter().zip(&exact.parts[i]).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs()));
        let scale = &exact.parts[if NAMES[i] == "dbk" { i - 1 } else { i }];
        (error, scale.iter().fold(0.0, |m, x| m.max(x.abs())))
    }

    /// Error allowed in other results: twice the largest relative error of these, and an ulp. A bound above `most` would check
    /// nothing.
    pub(super) fn bound(&self, exact: &Self, most: f64, case: &str) -> f64 {
        let worst =
            (0..NAMES.len()).map(|i| self.error(exact, i)).fold(0.0, |m: f64, (error, scale)| m.max(error / scale));
        let bound = 2.0 * worst + f64::from(f32::EPSILON);
        assert!(bound < most, "{case}: off by {worst:.2e}, so nothing is checked");
        bound
    }

    pub(super) fn within(&self, bound: f64, exact: &Self, case: &str) {
        for (i, name) in NAMES.iter().enumerate() {
            let (error, scale) = self.error(exact, i);
            let bound = bound * scale;
            assert!(
                scale > 0.0 && error <= bound,
                "{name}, {case}: error {error:.2e} over {bound:.2e}, scale {scale:.2e}"
            );
        }
    }
}

/// Of a layer that is applied `times` times.
pub(super) fn exact_results(x: &[f32], params: &[Weight], activation: Activation, rate: f32, times: usize) -> Results {
    let widen = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
    let mut inputs: Vec<Vec<f64>> = std::iter::once(widen(x)).chain(params.iter().map(|p| widen(&p.values))).collect();
    let forward =
        |inputs: &[Vec<f64>]| (0..times).fold(inputs[0].clone(), |x, _| exact(&x, &inputs[1..], activation, rate));
    let w = widen(&weights(T * H));
    let loss = |inputs: &[Vec<f64>]| -> f64 { forward(inputs).iter().zip(&w).map(|(y, w)| y * w).sum() };
    let mut parts = vec![forward(&inputs)];
    for i in 0..inputs.len() {
        let derivative = |j: usize, inputs: &mut Vec<Vec<f64>>| {
            let (x, h) = (inputs[i][j], 1e-3);
            let mut at = |steps: f64| {
                inputs[i][j] = x + steps * h;
                loss(inputs)
            };
            let difference = (at(-2.0) - 8.0 * at(-1.0) + 8.0 * at(1.0) - at(2.0)) / (12.0 * h);
            inputs[i][j] = x;
            difference
        };
        parts.push((0..inputs[i].len()).map(|j| derivative(j, &mut inputs)).collect());
    }
    Results { parts }
}

pub(super) fn results(
    isa: Isa,
    threads: usize,
    weight_gradients: WeightGradients,
    x: &[f32],
    params: &[Weight],
    f: impl Fn(&Tape<'_>, &Var, &[ParamId]) -> Result<Var>,
) -> Results {
    let (store, ids) = store(&cpu(1), params);
    let mut workspace = workspace(isa, threads);
    workspace.set_weight_gradients(weight_gradients);
    let inputs = [(vec![T, H], x.to_vec())];
    let function = |tape: &Tape<'_>, x: &[Var], p: &[ParamId]| f(tape, &x[0], p);
    let (y, dx, gradients) = differentiate(&mut workspace, DType::F32, &inputs, (&store, &ids), weights, &function);
    let widen = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
    let mut parts = vec![widen(&y), widen(&dx[0])];
    parts.extend(ids.iter().map(|&id| widen(gradients.get(id))));
    Results { parts }
}

pub(super) const NAMES: [&str; 18] = [
    "output", "dx", "dWq", "dWk", "dWv", "dbq", "dbk", "dbv", "dWo", "dbo", "dγ1", "dβ1", "dW1", "db1", "dW2", "db2",
    "dγ2", "dβ2",
];

type Layer<'a> = &'a dyn Fn(&Tape<'_>, &Var, &[ParamId]) -> Result<Var>;

#[test]
fn fused_and_composed_layers_agree_with_f64() {
    let (x, params) = (values(1, T * H, 1.0), parameters());
    for isa in Isa::real() {
        for activation in [Activation::GeluTanh, Activation::GeluErf] {
            for rate in [0.0, 0.25] {
                let exact = exact_results(&x, &params, activation, rate, 1);
                let run = |threads, f: Layer<'_>| results(isa, threads, WeightGradients::default(), &x, &params, f);
                let case = format!("{}, {activation:?}, dropout {rate}", isa.kind());
                let bound = run(1, &|tape, x, p| composed(tape, x, p, activation, rate)).bound(&exact, 1e-5, &case);
                let fused =
                    |threads, recompute| run(threads, &|tape, x, p| fused(tape, x, p, (activation, rate, recompute)));
                let whole = fused(1, Recompute::None);
                whole.within(bound, &exact, &case);
                for (threads, recompute) in
                    [(1, Recompute::Cheap), (1, Recompute::Layer), (2, Recompute::None), (5, Recompute::None)]
                {
                    let same = whole.parts == fused(threads, recompute).parts;
                    assert!(same, "{case}: {recompute:?} with {threads} threads changes bits");
                }
            }
        }
    }
}

#[test]
fn layers_of_no_tokens_and_wrong_parameters_are_handled() {
    let (store, p) = store(&cpu(1), &parameters());
    let mut workspace = workspace(Isa::choose().unwrap(), 1);
    let good = layer(&p, Activation::GeluTanh, 0.0, Recompute::None);
    let mut gradients = store.gradients(workspace.device()).unwrap();
    {
        let tape = workspace.train(&store, None);
        let none = tape.input([0, H], &[0f32; 0]).unwrap();
        let y = encoder_layer(&tape, &none, &Sequences::new(&tape, &[0]).unwrap(), &good).unwrap();
        tape.backward(&sum(&tape, &y).unwrap(), &mut gradients).unwrap();
        assert!(gradients.all().iter().all(|&g| g == 0.0));
    }
    let tape = workspace.infer(&store, None);
    let sequences = Sequences::new(&tape, &OFFSETS).unwrap();
    let refuses = |change: &dyn Fn(&mut EncoderLayer), rows: usize, expected: &str| {
        let mut layer = good;
        change(&mut layer);
        let x = tape.input([rows, H], &vec![0.5f32; rows * H]).unwrap();
        refused(encoder_layer(&tape, &x, &sequences, &layer), expected);
    };
    let apart =
        "parameter p2: encoder_layer reads [\"p0\", \"p2\", \"p1\"] as one matrix; add them one directly after another";
    refuses(&|layer| layer.params.qkv_weight = [p[0], p[2], p[1]], T, apart);
    refuses(&|layer| layer.attention.heads = 3, T, "encoder_layer: x is [9, 6], but [9, 9] was expected");
    let swapped = "parameter p13: encoder_layer has 10 outputs, and the bias has 6 values";
    refuses(&|layer| layer.params.ffn_output_weight = p[10], T, swapped);
    let rate = Some(Dropout { seed: 0, site: 0, rate: -0.5 });
    let expected = "encoder_layer: a dropout rate lies in [0, 1), and this is -0.5";
    refuses(&|layer| layer.ffn_output = rate, T, expected);
    refuses(&|_| (), T - 1, "encoder_layer: x is [8, 6], but [9, 6] was expected");
    let falling = "sequences: offsets begin with 0 and never fall, these are [0, 4, 3]";
    refused(Sequences::new(&tape, &[0, 4, 3]), falling);
    refused(Sequences::new(&tape, &[]), "sequences: offsets begin with 0");
}
