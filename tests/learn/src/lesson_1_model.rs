//! Lesson 1: the encoder, one layer applied N times.

use engine::nn::{Embedding, LayerNorm, Linear, Training, Value};
use engine::ops::Transpose;
use engine::optim::{AdamConfig, OptimizerKind};
use engine::{Device, Init, ParamBuilder, Result, philox::Stream};

/// Applications of the layer.
pub(crate) const N: usize = 3;
/// Width, tokens of a sequence, sequences of a batch.
const H: usize = 16;
const S: usize = 6;
const B: usize = 32;
/// Words 0 to 6, and the mask.
const V: usize = 8;
const MASK: u32 = 7;

/// The encoder, x `[B, S, H]` to `[B, S, H]`: N times
///
/// ```text
/// y = attention_norm(x + attention(x))
/// x = output_norm(y + feed_forward(y))
/// ```
fn exercise<'t>(layer: &Layer, x: Value<'t>) -> Result<Value<'t>> {
    // The gap: one half of the layer, once, without the sum.
    layer.feed_forward(&x)?.apply(&layer.output_norm)
}

pub(crate) struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    pub(crate) attention_norm: LayerNorm,
    ffn: Linear,
    ffn_output: Linear,
    pub(crate) output_norm: LayerNorm,
}

impl Layer {
    fn new(net: &mut ParamBuilder) -> Result<Self> {
        Ok(Self {
            query: Linear::new(&mut net.scope("query"), H, H)?,
            key: Linear::new(&mut net.scope("key"), H, H)?,
            value: Linear::new(&mut net.scope("value"), H, H)?,
            attention_output: Linear::new(&mut net.scope("attention_output"), H, H)?,
            attention_norm: LayerNorm::new(&mut net.scope("attention_norm"), H, 1e-12)?,
            ffn: Linear::new(&mut net.scope("ffn"), H, 4 * H)?,
            ffn_output: Linear::new(&mut net.scope("ffn_output"), 4 * H, H)?,
            output_norm: LayerNorm::new(&mut net.scope("output_norm"), H, 1e-12)?,
        })
    }

    /// softmax(q·kᵀ/√H)·v·Woᵀ + bo, with one head.
    pub(crate) fn attention<'t>(&self, x: &Value<'t>) -> Result<Value<'t>> {
        let scores =
            x.apply(&self.query)?.matmul(&x.apply(&self.key)?, Transpose::B)?.scale(1.0 / (H as f32).sqrt())?;
        scores.softmax()?.matmul(&x.apply(&self.value)?, Transpose::NONE)?.apply(&self.attention_output)
    }

    /// GELU(y·W1ᵀ + b1)·W2ᵀ + b2
    pub(crate) fn feed_forward<'t>(&self, y: &Value<'t>) -> Result<Value<'t>> {
        y.apply(&self.ffn)?.gelu()?.apply(&self.ffn_output)
    }
}

/// Trains on sequences of two words that alternate, one of them masked.
pub(crate) fn check(encoder: for<'t> fn(&Layer, Value<'t>) -> Result<Value<'t>>) -> Result<()> {
    const STEPS: usize = 150;
    // Wider than the default of 0.02, which suits H = 768.
    let mut net = ParamBuilder::with_weights(Init::TruncatedNormal(0.2));
    let words = Embedding::new(&mut net.scope("words"), V, H)?;
    let positions = Embedding::new(&mut net.scope("positions"), S, H)?;
    let layer = Layer::new(&mut net)?;
    let device = Device::cpu()?;
    let params = net.build(device.processor(), 1)?;
    let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;
    training.workspace().profile().set(true);
    let mut stream = Stream::new(2, [0; 3]);
    let mut loss = 0.0;
    for _ in 0..STEPS {
        let (mut ids, mut masked, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for sequence in 0..B {
            let (pair, at) = ([stream.below(7), stream.below(7)], stream.below(S as u32) as usize);
            ids.extend((0..S).map(|i| pair[i % 2]));
            masked.push((sequence * S + at) as u32);
            labels.push(std::mem::replace(&mut ids[sequence * S + at], MASK));
        }
        let places: Vec<u32> = (0..(B * S) as u32).map(|i| i % S as u32).collect();
        loss = training.step(0.003, |t| {
            let x = t.input([B, S], &ids)?.apply(&words)?.add(&t.input([B, S], &places)?.apply(&positions)?)?;
            let x = encoder(&layer, x)?.reshape([B * S, H])?.gather_rows(&t.input([B], &masked)?)?;
            // The decoder is the table of words.
            let logits = x.apply(&Linear { weight: words.table, bias: None })?;
            logits.cross_entropy(&t.input([B], &labels)?)
        })?;
    }
    let rows = training.workspace().profile().rows();
    let calls = rows.iter().find(|(name, _)| *name == "softmax").map_or(0, |(_, row)| row.calls as usize);
    assert_eq!(calls, N * STEPS, "applications of attention in {STEPS} steps, with a loss of {loss:.2} at the end");
    assert!(loss < 0.1, "loss {loss:.2} after {STEPS} steps; expected less than 0.1");
    Ok(())
}

exercise_tests!(check(exercise).unwrap(), "applications of attention in 150 steps, with a loss of 1.96 at the end");
