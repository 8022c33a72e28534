//! The model and both losses in f64, as plainly as possible, with Hugging Face's names.

use std::collections::BTreeMap;

use crate::config::{Activation, AlbertConfig, BlockId};
use crate::data::Batch;

type Matrix = Vec<Vec<f64>>;

/// Parameters by name.
pub(super) type Values = BTreeMap<String, Vec<f64>>;

pub(super) struct Reference<'a> {
    pub(super) config: &'a AlbertConfig,
    pub(super) values: &'a Values,
}

impl Reference<'_> {
    /// Mean MLM loss and mean sentence loss.
    pub(super) fn losses(&self, batch: &Batch) -> [f64; 2] {
        let (mut mlm, mut sentence) = (0.0, 0.0);
        for (sequence, bounds) in batch.cu_seqlens.windows(2).enumerate() {
            let rows = bounds[0] as usize..bounds[1] as usize;
            let x = self.encode(&batch.ids[rows.clone()], &batch.segments[rows.clone()], &batch.positions[rows]);
            for (&position, &label) in batch.masked_positions.iter().zip(&batch.masked_labels) {
                if (bounds[0]..bounds[1]).contains(&position) {
                    mlm += self.mlm_loss(&x[(position - bounds[0]) as usize], label as usize);
                }
            }
            let pooled: Vec<f64> = dense(self.values, "albert.pooler", &x[0]).iter().map(|x| x.tanh()).collect();
            sentence +=
                nll(&dense(self.values, "sop_classifier.classifier", &pooled), batch.sop_labels[sequence] as usize);
        }
        [mlm / batch.masked_positions.len() as f64, sentence / batch.sequences() as f64]
    }

    fn encode(&self, ids: &[u32], segments: &[u32], positions: &[u32]) -> Matrix {
        let e = self.config.embedding_size;
        let row = |table: &str, at: u32| {
            &self.values[&format!("albert.embeddings.{table}_embeddings.weight")][at as usize * e..][..e]
        };
        let mut x: Matrix = (0..ids.len())
            .map(|t| {
                let (word, position) = (row("word", ids[t]), row("position", positions[t]));
                let segment = row("token_type", segments[t]);
                let sum: Vec<f64> = (0..e).map(|i| word[i] + position[i] + segment[i]).collect();
                let x = norm(self.values, self.config.layer_norm_eps, "albert.embeddings.LayerNorm", &sum);
                if self.config.has_embedding_map() {
                    dense(self.values, "albert.encoder.embedding_hidden_mapping_in", &x)
                } else {
                    x
                }
            })
            .collect();
        for block in self.config.blocks() {
            x = self.block(&x, block.attention, block.ffn);
        }
        x
    }

    fn block(&self, x: &Matrix, attention: BlockId, ffn: BlockId) -> Matrix {
        let prefix =
            |id: BlockId| format!("albert.encoder.albert_layer_groups.{}.albert_layers.{}", id.group, id.inner);
        let (attention, ffn) = (prefix(attention), prefix(ffn));
        let project = |which: &str| -> Matrix {
            x.iter().map(|x| dense(self.values, &format!("{attention}.attention.{which}"), x)).collect()
        };
        let [q, k, v] = ["query", "key", "value"].map(project);
        let d = self.config.head_size();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        (0..x.len())
            .map(|t| {
                let context: Vec<f64> = (0..self.config.hidden_size)
                    .map(|column| {
                        let head = column / d * d..column / d * d + d;
                        let scores: Vec<f64> =
                            k.iter().map(|k| dot(&q[t][head.clone()], &k[head.clone()]) / (d as f64).sqrt()).collect();
                        let sum: f64 = scores.iter().map(|s| s.exp()).sum();
                        scores.iter().zip(&v).map(|(s, v)| s.exp() / sum * v[column]).sum()
                    })
                    .collect();
                let o = dense(self.values, &format!("{attention}.attention.dense"), &context);
                let y = norm(
                    self.values,
                    self.config.layer_norm_eps,
                    &format!("{attention}.attention.LayerNorm"),
                    &add(&o, &x[t]),
                );
                let inside: Vec<f64> =
                    dense(self.values, &format!("{ffn}.ffn"), &y).iter().map(|&x| self.act(x)).collect();
                let f = dense(self.values, &format!("{ffn}.ffn_output"), &inside);
                norm(self.values, self.config.layer_norm_eps, &format!("{ffn}.full_layer_layer_norm"), &add(&f, &y))
            })
            .collect()
    }

    fn mlm_loss(&self, x: &[f64], label: usize) -> f64 {
        let h: Vec<f64> = dense(self.values, "predictions.dense", x).iter().map(|&x| self.act(x)).collect();
        let h = norm(self.values, self.config.layer_norm_eps, "predictions.LayerNorm", &h);
        let table = &self.values["albert.embeddings.word_embeddings.weight"];
        let logits: Vec<f64> = table
            .chunks(h.len())
            .zip(&self.values["predictions.bias"])
            .map(|(row, bias)| row.iter().zip(&h).map(|(a, b)| a * b).sum::<f64>() + bias)
            .collect();
        nll(&logits, label)
    }

    fn act(&self, x: f64) -> f64 {
        match self.config.hidden_act {
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            Activation::GeluErf => x * normal_cdf(x),
            Activation::Relu => x.max(0.0),
        }
    }
}

/// W·x + b for one row x.
fn dense(values: &Values, name: &str, x: &[f64]) -> Vec<f64> {
    let bias = values.get(&format!("{name}.bias"));
    let rows = values[&format!("{name}.weight")].chunks_exact(x.len()).enumerate();
    rows.map(|(at, row)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias.map_or(0.0, |bias| bias[at]))
        .collect()
}

fn norm(values: &Values, eps: f64, name: &str, x: &[f64]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
    let (gain, bias) = (&values[&format!("{name}.weight")], &values[&format!("{name}.bias")]);
    x.iter().zip(gain).zip(bias).map(|((x, gain), bias)| gain * (x - mean) / deviation + bias).collect()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn nll(logits: &[f64], label: usize) -> f64 {
    logits.iter().map(|z| z.exp()).sum::<f64>().ln() - logits[label]
}

/// Φ(x) by its series around 0, exact to f64 for the |x| < 6 that a small model has.
fn normal_cdf(x: f64) -> f64 {
    assert!(x.abs() < 6.0, "the series is not meant for {x}");
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt()
}
