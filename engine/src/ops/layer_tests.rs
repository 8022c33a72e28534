//! The fused layer against the same layer made of small operations, and both against f64.
//!
//! The definition is a forward pass in f64, written here; its gradients are five-point differences in f64, exact to
//! about 1e-10. The layer of small operations is the naive implementation of the tolerance rule: the greatest of its errors
//! against f64, each relative to the scale of its tensor, doubled, plus one ulp, is the bound. (The greatest over all
//! tensors, because that of one small tensor is a matter of luck.)
use super::{
    gradient_check::{Weight, differentiate, store, values, weights, workspace},
    *,
};
use crate::{ParamId, Result, Tape, Var, WeightGradients};
use kernels::Isa;

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
    let shapes: [&[usize]; 16] = [
        &[H, H],
        &[H, H],
        &[H, H],
        &[H],
        &[H],
        &[H],
        &[H, H],
        &[H],
        &[H],
        &[H],
        &[F, H],
        &[F],
        &[H, F],
        &[H],
        &[H],
        &[H],
    ];
    let weight = |(i, shape): (usize, &&[usize])| {
        let mut values = values(300 + i as u64, shape.iter().product(), 0.75);
        if [8, 14].contains(&i) {
            values.iter_mut().for_each(|gain| *gain += 1.0);
        }
        Weight { shape: shape.to_vec(), values }
    };
    shapes.iter().enumerate().map(weight).collect()
}

pub(super) fn layer(p: &[ParamId], activation: Activation, rate: f32, recompute: Recompute) -> EncoderLayer {
    let [attention, attention_output, ffn_output] = dropouts(rate);
    EncoderLayer {
        params: LayerParams {
            qkv_weight: [p[0], p[1], p[2]],
            qkv_bias: [p[3], p[4], p[5]],
            attention_weight: p[6],
            attention_bias: p[7],
            attention_norm: LayerNorm { gain: p[8], bias: p[9], eps: EPS },
            ffn_weight: p[10],
            ffn_bias: p[11],
            ffn_output_weight: p[12],
            ffn_output_bias: p[13],
            output_norm: LayerNorm { gain: p[14], bias: p[15], eps: EPS },
        },
        attention: Attention { dropout: attention, ..Attention::new(HEADS, H / HEADS) },
        activation,
        attention_output,
        ffn_output,
        recompute,
    }
}

/// What attention's dropout multiplies the probabilities of a sequence by: [A, S, S].
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

pub(super) fn fused(
    tape: &Tape<'_>,
    x: &Var,
    p: &[ParamId],
    activation: Activation,
    rate: f32,
    recompute: Recompute,
) -> Result<Var> {
    encoder_layer(tape, x, &Sequences::new(tape, &OFFSETS)?, &layer(p, activation, rate, recompute))
}

/// The layer in f64: the definition. `p` as in [`parameters`].
fn exact(x: &[f64], p: &[Vec<f64>], activation: Activation, rate: f32) -> Vec<f64> {
    let dense = |x: &[f64], w: &[f64], b: &[f64]| -> Vec<f64> {
        let k = w.len() / b.len();
        let rows = x.chunks_exact(k);
        rows.flat_map(|x| {
            b.iter().zip(w.chunks_exact(k)).map(move |(b, w)| b + x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>())
        })
        .collect()
    };
    let norm = |x: &[f64], gain: &[f64], bias: &[f64]| -> Vec<f64> {
        let row = |x: &[f64]| -> Vec<f64> {
            let mean = x.iter().sum::<f64>() / H as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / H as f64;
            let rstd = 1.0 / (variance + f64::from(EPS)).sqrt();
            (0..H).map(|j| gain[j] * (x[j] - mean) * rstd + bias[j]).collect()
        };
        x.chunks_exact(H).flat_map(row).collect()
    };
    let masked = |x: Vec<f64>, dropout: Option<Dropout>| -> Vec<f64> {
        let factor = |i: usize| match dropout {
            None => 1.0,
            Some(dropout) if dropout.keeps((i / H) as u64, i % H) => 256.0 / f64::from(256 - dropout.threshold()),
            Some(_) => 0.0,
        };
        x.into_iter().enumerate().map(|(i, x)| x * factor(i)).collect()
    };
    let [attention_dropout, attention_output, ffn_output] = dropouts(rate);
    let (q, k, v) = (dense(x, &p[0], &p[3]), dense(x, &p[1], &p[4]), dense(x, &p[2], &p[5]));
    let (d, mut context) = (H / HEADS, vec![0.0; T * H]);
    for pair in OFFSETS.windows(2) {
        let (start, s) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
        let mask = attention_mask(attention_dropout, start, s);
        for (head, i) in (0..HEADS).flat_map(|head| (0..s).map(move |i| (head, i))) {
            let at = |row: usize, c: usize| (start + row) * H + head * d + c;
            let score = |j: usize| (0..d).map(|c| q[at(i, c)] * k[at(j, c)]).sum::<f64>() / (d as f64).sqrt();
            let scores: Vec<f64> = (0..s).map(|j| score(j).exp()).collect();
            let sum: f64 = scores.iter().sum();
            for (j, c) in (0..s).flat_map(|j| (0..d).map(move |c| (j, c))) {
                let factor = f64::from(mask[(head * s + i) * s + j]);
                context[at(i, c)] += scores[j] / sum * factor * v[at(j, c)];
            }
        }
    }
    let add = |a: Vec<f64>, b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let y = norm(&add(masked(dense(&context, &p[6], &p[7]), attention_output), x), &p[8], &p[9]);
    let f: Vec<f64> = dense(&y, &p[10], &p[11])
        .into_iter()
        .map(|x| kernels_proof::activation::reference::apply(activation, x))
        .collect();
    norm(&add(masked(dense(&f, &p[12], &p[13]), ffn_output), &y), &p[14], &p[15])
}

/// Output, gradient of x, gradients of the parameters.
pub(super) struct Results {
    pub(super) parts: Vec<Vec<f64>>,
}

impl Results {
    /// The greatest difference in part `i`.
    pub(super) fn error(&self, exact: &Self, i: usize) -> f64 {
        self.parts[i].iter().zip(&exact.parts[i]).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
    }

    /// The greatest magnitude in part `i`. The key bias has no gradient, as softmax does not see a shift; its terms are as
    /// large as those of the query bias, so that is the scale of its rounding.
    pub(super) fn scale(&self, i: usize) -> f64 {
        results_scale(&self.parts[if NAMES[i] == "dbk" { i - 1 } else { i }])
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
    let cpu = kernels::Cpu::new(isa, 1).unwrap();
    let (store, ids) = store(&cpu, params);
    let mut workspace = workspace(isa, threads);
    workspace.set_weight_gradients(weight_gradients);
    let inputs = [(vec![T, H], x.to_vec())];
    let function = |tape: &Tape<'_>, x: &[Var], p: &[ParamId]| f(tape, &x[0], p);
    let (y, dx, gradients) = differentiate(&mut workspace, &inputs, &store, &ids, &function);
    let widen = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
    let mut parts = vec![widen(&y), widen(&dx[0])];
    parts.extend(ids.iter().map(|&id| widen(gradients.get(id))));
    Results { parts }
}

pub(super) const NAMES: [&str; 18] = [
    "output", "dx", "dWq", "dWk", "dWv", "dbq", "dbk", "dbv", "dWo", "dbo", "dγ1", "dβ1", "dW1", "db1", "dW2", "db2",
    "dγ2", "dβ2",
];

#[test]
fn fused_and_composed_layers_agree_with_f64() {
    let (x, params) = (values(1, T * H, 1.0), parameters());
    for isa in Isa::real() {
        for activation in [Activation::GeluTanh, Activation::GeluErf] {
            for rate in [0.0, 0.25] {
                let exact = exact_results(&x, &params, activation, rate, 1);
                let small = results(isa, 1, WeightGradients::default(), &x, &params, |tape, x, p| {
                    composed(tape, x, p, activation, rate)
                });
                let worst = (0..NAMES.len()).map(|i| small.error(&exact, i) / exact.scale(i)).fold(0.0, f64::max);
                let bound = 2.0 * worst + f64::from(f32::EPSILON);
                assert!(bound < 1e-5, "{}: small operations are off by {worst:.2e}, so nothing is checked", isa.kind());
                let mut first: Option<Results> = None;
                for recompute in [Recompute::None, Recompute::Cheap, Recompute::Layer] {
                    let whole = results(isa, 1, WeightGradients::default(), &x, &params, |tape, x, p| {
                        fused(tape, x, p, activation, rate, recompute)
                    });
                    for (i, name) in NAMES.iter().enumerate() {
                        let (error, scale) = (whole.error(&exact, i), exact.scale(i));
                        let bound = bound * scale;
                        let case = format!("{name}, {}, {activation:?}, dropout {rate}, {recompute:?}", isa.kind());
                        assert!(error <= bound, "{case}: error {error:.2e} over {bound:.2e}, scale {scale:.2e}");
                    }
                    match &first {
                        None => first = Some(whole),
                        Some(first) => assert!(first.parts == whole.parts, "{recompute:?} changes bits"),
                    }
                }
                for threads in [2, 5] {
                    let more = results(isa, threads, WeightGradients::default(), &x, &params, |tape, x, p| {
                        fused(tape, x, p, activation, rate, Recompute::None)
                    });
                    assert!(first.as_ref().unwrap().parts == more.parts, "{threads} threads change bits");
                }
            }
        }
    }
}

fn results_scale(x: &[f64]) -> f64 {
    x.iter().fold(0f64, |m, x| m.max(x.abs()))
}

#[test]
fn key_bias_gets_no_gradient_and_all_others_do() {
    let (x, params) = (values(1, T * H, 1.0), parameters());
    let isa = Isa::choose().unwrap();
    let whole = results(isa, 1, WeightGradients::default(), &x, &params, |tape, x, p| {
        fused(tape, x, p, Activation::GeluTanh, 0.0, Recompute::None)
    });
    let query = results_scale(&whole.parts[5]);
    for (name, part) in NAMES.iter().zip(&whole.parts) {
        let scale = results_scale(part);
        if *name == "dbk" {
            assert!(scale < 1e-6 * query, "{name} is {scale:.2e}, query's is {query:.2e}");
        } else {
            assert!(part.iter().all(|x| x.is_finite() && *x != 0.0), "{name} has zeros: {part:?}");
        }
    }
}

#[test]
fn layers_of_no_tokens_and_wrong_parameters_are_handled() {
    let cpu = kernels::Cpu::new(Isa::choose().unwrap(), 1).unwrap();
    let (store, p) = store(&cpu, &parameters());
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
    let x = tape.input([T, H], &[0.5f32; T * H]).unwrap();
    let sequences = Sequences::new(&tape, &OFFSETS).unwrap();
    let text = |layer: &EncoderLayer, x: &Var| encoder_layer(&tape, x, &sequences, layer).unwrap_err().to_string();
    let mut apart = good;
    apart.params.qkv_weight = [p[0], p[2], p[1]];
    let mut heads = good;
    heads.attention.heads = 3;
    let mut swapped = good;
    swapped.params.ffn_output_weight = p[10];
    let mut rate = good;
    rate.ffn_output = Some(Dropout { seed: 0, site: 0, rate: -0.5 });
    let short = tape.input([T - 1, H], &[0.5f32; (T - 1) * H]).unwrap();
    for (error, expected) in [
        (
            text(&apart, &x),
            "parameter p2: encoder_layer reads [\"p0\", \"p2\", \"p1\"] as one matrix; add them one directly after another",
        ),
        (text(&heads, &x), "encoder_layer: x is [9, 6], but [9, 9] was expected"),
        (text(&swapped, &x), "parameter p13: encoder_layer has 10 outputs, and the bias has 6 values"),
        (text(&rate, &x), "encoder_layer: a dropout rate lies in [0, 1), and this is -0.5"),
        (text(&good, &short), "encoder_layer: x is [8, 6], but [9, 6] was expected"),
        (
            Sequences::new(&tape, &[0, 4, 3]).unwrap_err().to_string(),
            "sequences: offsets begin with 0 and never fall, these are [0, 4, 3]",
        ),
        (Sequences::new(&tape, &[]).unwrap_err().to_string(), "sequences: offsets begin with 0"),
    ] {
        assert!(error.contains(expected), "got \"{error}\", expected \"{expected}\"");
    }
}
