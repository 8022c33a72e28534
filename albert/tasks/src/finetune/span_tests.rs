//! Losses and parameter gradients of the span heads, compared with their equations in f64.

use std::collections::BTreeMap;

use albert::model::{ForwardOptions, Inputs};
use engine::Workspace;

use super::batch::Batch;
use super::loss::{loss, scores};
use super::tests::{device, features, made_up, pretrained, recipe};
use super::*;
use crate::files::Problem;

/// Parameters by name.
type Values = BTreeMap<String, Vec<f64>>;

fn dense(values: &Values, name: &str, x: &[f64]) -> Vec<f64> {
    let (weight, bias) = (&values[&format!("{name}.weight")], values.get(&format!("{name}.bias")));
    let products = weight.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>());
    products.enumerate().map(|(at, product)| product + bias.map_or(0.0, |bias| bias[at])).collect()
}

fn norm(values: &Values, eps: f64, name: &str, x: &[f64]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
    let (gain, bias) = (&values[&format!("{name}.weight")], &values[&format!("{name}.bias")]);
    x.iter().zip(gain).zip(bias).map(|((x, gain), bias)| gain * (x - mean) / deviation + bias).collect()
}

fn log_sum(z: &[f64]) -> f64 {
    let most = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    most + z.iter().map(|z| (z - most).exp()).sum::<f64>().ln()
}

/// Mean loss over the windows of `batch`, with encoder output `x` [T, H].
fn expected(values: &Values, batch: &Batch, x: &[Vec<f64>], is_released: bool) -> f64 {
    let mut sum = 0.0;
    for (at, pair) in batch.cu_seqlens.windows(2).enumerate() {
        let rows = pair[0] as usize..pair[1] as usize;
        let (x, hidden) = (&x[rows.clone()], &batch.hidden[rows]);
        let [start, end] = [0, 1].map(|side| batch.answers[side][at] as usize);
        if !is_released {
            let z: Vec<Vec<f64>> = x.iter().map(|x| dense(values, "qa_outputs", x)).collect();
            for (side, right) in [start, end].into_iter().enumerate() {
                let z: Vec<f64> = z.iter().map(|z| z[side]).collect();
                sum += 0.5 * (log_sum(&z) - z[right]);
            }
            continue;
        }
        let seen = |z: f64, token: usize| if hidden[token] { f64::NEG_INFINITY } else { z };
        let s: Vec<f64> =
            x.iter().enumerate().map(|(t, x)| seen(dense(values, "start_logits.dense", x)[0], t)).collect();
        let e: Vec<f64> = x
            .iter()
            .enumerate()
            .map(|(t, row)| {
                let both = [&row[..], &x[start][..]].concat();
                let h: Vec<f64> = dense(values, "end_logits.dense_0", &both).into_iter().map(f64::tanh).collect();
                seen(dense(values, "end_logits.dense_1", &norm(values, 1e-12, "end_logits.LayerNorm", &h))[0], t)
            })
            .collect();
        let lse = log_sum(&s);
        let pooled: Vec<f64> = (0..x[0].len())
            .map(|column| x.iter().zip(&s).map(|(row, s)| (s - lse).exp() * row[column]).sum())
            .collect();
        let h = dense(values, "answer_class.dense_0", &[&pooled[..], &x[0][..]].concat());
        let a = dense(values, "answer_class.dense_1", &h.into_iter().map(f64::tanh).collect::<Vec<_>>())[0];
        let answered = log_sum(&[0.0, a]) - a * f64::from(batch.impossible[at]);
        sum += 0.5 * (lse - s[start]) + 0.5 * (log_sum(&e) - e[end]) + 0.5 * answered;
    }
    sum / batch.weight as f64
}

#[test]
fn losses_and_gradients_are_those_of_the_equations() {
    let folder = pretrained();
    for is_released in [false, true] {
        let problem = Problem::Span { may_be_impossible: is_released };
        let recipe = recipe(folder.path(), &[]);
        let device = device(1);
        let Start { model, params, tokenizer, .. } = Start::load(&recipe, &problem, device.processor()).unwrap();
        let mut batch = Batch::default();
        batch.clear();
        let windows = features(&problem, &made_up(&problem, 6, 1));
        windows.iter().for_each(|window| batch.push(window, tokenizer.specials()));
        assert!(!is_released || (batch.impossible.contains(&0) && batch.impossible.contains(&1)));
        let mut workspace = Workspace::new(device);
        let mut gradients = params.gradients(workspace.device()).unwrap();
        let got = {
            let tape = workspace.train(&params, None);
            let scores = scores(&model, &tape, &batch, &ForwardOptions::EVALUATION).unwrap();
            let loss = loss(&model, &tape, &batch, &scores, None, batch.weight as f32).unwrap();
            tape.backward(&loss.total, &mut gradients).unwrap();
            f64::from(tape.item(&loss.total).unwrap())
        };
        let tape = workspace.infer(&params, None);
        let inputs = Inputs::new(&tape, &batch).unwrap();
        let x = model.encode(&tape, &inputs, &ForwardOptions::EVALUATION).unwrap().value().to_vec().unwrap();
        let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let x: Vec<Vec<f64>> = x.chunks_exact(model.config().hidden_size).map(wide).collect();
        let is_head = |name: &str| ["qa_", "start_", "end_", "answer_"].iter().any(|head| name.starts_with(head));
        let ids: Vec<_> = params.ids().filter(|&id| is_head(params.name(id))).collect();
        let mut values: Values = ids.iter().map(|&id| (params.name(id).to_owned(), wide(params.values(id)))).collect();
        let exact = expected(&values, &batch, &x, is_released);
        assert!((got - exact).abs() < 1e-5 * exact, "released {is_released}: {got}, expected {exact}");
        for id in ids {
            let (name, range) = (params.name(id), params.info(id).range.clone());
            for at in [0, range.len() / 2, range.len() - 1] {
                const STEP: f64 = 1e-5;
                let mut moved = |by: f64| {
                    values.get_mut(name).unwrap()[at] += by;
                    let loss = expected(&values, &batch, &x, is_released);
                    values.get_mut(name).unwrap()[at] -= by;
                    loss
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let gradient = f64::from(gradients.all()[range.start + at]);
                assert!((gradient - slope).abs() < 2e-6 + 1e-4 * slope.abs(), "{name}[{at}]: {gradient} and {slope}");
            }
        }
    }
}
