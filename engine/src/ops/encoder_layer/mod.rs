//! One post-LN transformer layer as a single operation with a backward pass written by hand.
//!
//! ```text
//! x [T, H] ─┬─ qkv = x·Wqkvᵀ + b ── attention ── ·Woᵀ + b ── dropout ── (+) ── LN₁ ─┬─ y
//!           └──────────────────────────────────────────────────────────┘           │
//! y [T, H] ─┬─ pre = y·W₁ᵀ + b ── act ── f [T, F] ── ·W₂ᵀ + b ── dropout ── (+) ── LN₂ ── x'
//!           └──────────────────────────────────────────────────────────┘
//! ```
//!
//! (Vaswani et al. 2017 with the normalization after the residual, as BERT and ALBERT have it; dropout on the output of
//! the feed-forward part as in the released code, `ffn_output: None` for the variant without.)
//! Query, key and value are one GEMM over three parameters that are contiguous in the store.
//!
//! Activations that forward keeps for backward ([`Recompute`]), in elements of the storage type per token:
//!
//! ```text
//!           x  qkv  ctx  s₁  y  pre  f  s₂
//! none      H   3H    H   H  H    F  F   H     8·H + 2·F   weight gradients may be taken together
//! cheap     -   3H    H   H  -    F  -   H     6·H + F     + two LayerNorms and one activation: no slower on a processor,
//!                                                          where x, y and f would go to memory and come back
//! layer     H    -    -   -  -    -  -   -       H         + one forward pass
//! ```
//!
//! With `cheap`, x of a layer that follows another is recomputed from that one's s₂; the first one's is kept.
//! s is the sum that a LayerNorm normalizes; statistics (2 floats a row each) and the softmax's (A floats) are kept
//! with them. Cost: 8·H² + 4·H·F + 4·S·H FLOPs a token forward, twice that and 2·S·H more backward.
mod shared;
mod spec;

pub use shared::SharedLayerBackward;
#[cfg(test)]
pub(super) use shared::traffic;
pub use spec::{EncoderLayer, LayerParams, Recompute};

use super::{
    attention::{self, Sequences},
    check,
    dropout::check_rate,
    elementwise::activate,
    linear::Dense,
    norm::{LayerNorm, NormOutputs},
};
use crate::{
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    param::{ParamId, Side},
    shape::Shape,
    tape::{BackwardContext, Op, Recomputable, Tape, Var, copy},
    tensor::Tensor,
};
use kernels::{
    Cost,
    dropout::Dropout,
    gemm::{Epilogue, FeedForward, feed_forward, rows_of_block},
};
use shared::{Norm, Place, Weight};

/// Applies `layer` to x [T, H].
///
/// # Errors
/// Shapes of x, the sequences and the parameters do not fit, or a dropout rate is not in [0, 1).
pub fn encoder_layer(tape: &Tape<'_>, x: &Var, sequences: &Sequences, layer: &EncoderLayer) -> Result<Var> {
    apply(tape, x, Layer::new(tape, x, sequences, layer)?)
}

/// Applies `layer` once of several times in a step; the plan may fuse the weight gradients of all applications.
///
/// # Errors
/// As [`encoder_layer`]; or `x` is not what the application before gave, where they are taken together.
pub fn repeated_encoder_layer(
    tape: &Tape<'_>,
    x: &Var,
    sequences: &Sequences,
    layer: &EncoderLayer,
    applications: &SharedLayerBackward,
) -> Result<Var> {
    let layer = Layer::new(tape, x, sequences, layer)?;
    let y = apply(tape, x, Layer { place: applications.next(x)?, ..layer })?;
    applications.gave(&y);
    Ok(y)
}

fn apply(tape: &Tape<'_>, x: &Var, layer: Layer) -> Result<Var> {
    let out = layer.place.as_ref().and_then(Place::output);
    let mut out = match out {
        Some(out) => out,
        None => tape.alloc(*x.shape(), x.dtype())?,
    };
    if layer.recomputes_all(tape) {
        layer.infer(tape, x.value(), &mut out)?;
        return tape.record_with_parameters(&[x], out, || -> EncoderLayerOp { unreachable!("nothing is recorded") });
    }
    let kept = match &layer.place {
        // The applications before wrote the inputs of the others in place.
        Some(place) if place.number() == 0 => {
            let mut kept = place.input(Weight::Qkv);
            copy(tape, x.value(), &mut kept)?;
            kept
        }
        _ => x.value().clone(),
    };
    let saved = layer.forward(tape, &kept, Some(&mut out))?;
    match layer.spec.recompute {
        Recompute::None => {
            let op = || EncoderLayerOp { layer, x: Input::Kept(kept), saved: Some(saved) };
            tape.record_with_parameters(&[x], out, op)
        }
        Recompute::Cheap => {
            let (sum, norm) = (saved.s2.clone(), layer.spec.params.output_norm);
            let input = x.recompute().map_or(Input::Kept(kept), |recompute| Input::Recomputed(recompute.clone()));
            let op = || EncoderLayerOp { layer, x: input, saved: Some(saved) };
            let y = tape.record_with_parameters(&[x], out, op)?;
            Ok(if tape.is_recording() { y.with_recompute(move |tape| normalize(tape, norm, &sum)) } else { y })
        }
        Recompute::Layer => {
            drop(saved);
            let op = || EncoderLayerOp { layer, x: Input::Kept(kept), saved: None };
            tape.record_with_parameters(&[x], out, op)
        }
    }
}

/// LN of a stored sum, as forward computed it.
fn normalize(tape: &Tape<'_>, norm: LayerNorm, sum: &Tensor) -> Result<Tensor> {
    let mut y = tape.alloc(*sum.shape(), sum.dtype())?;
    let mut stats = tape.alloc(Shape::from([sum.shape()[0], 2]), DType::F32)?;
    norm.forward(tape, sum, None, None, &mut y, &mut stats)?;
    Ok(y)
}

/// Input of a layer, for its backward pass.
enum Input {
    Kept(Tensor),
    /// Recomputed by the layer before.
    Recomputed(Recomputable),
}

impl Input {
    fn tensor(self, tape: &Tape<'_>) -> Result<Tensor> {
        match self {
            Self::Kept(x) => Ok(x),
            Self::Recomputed(recompute) => recompute.compute(tape),
        }
    }
}

/// A layer with checked sizes.
struct Layer {
    spec: EncoderLayer,
    sequences: Sequences,
    qkv: Dense,
    attention_output: Dense,
    ffn: Dense,
    ffn_output: Dense,
    /// Its slots among several applications, where weight gradients are fused.
    place: Option<Place>,
}

/// Activations kept for backward; [`Recompute::Cheap`] drops y and f.
struct Saved {
    qkv: Tensor,
    context: Tensor,
    lse: Tensor,
    s1: Tensor,
    stats1: Tensor,
    y: Option<Tensor>,
    pre: Tensor,
    f: Option<Tensor>,
    s2: Tensor,
    stats2: Tensor,
}

const NAME: &str = "encoder_layer";

impl Layer {
    fn new(tape: &Tape<'_>, x: &Var, sequences: &Sequences, spec: &EncoderLayer) -> Result<Self> {
        check::float(NAME, x)?;
        attention::check_spec(NAME, &spec.attention)?;
        check_rate(NAME, spec.attention_output)?;
        check_rate(NAME, spec.ffn_output)?;
        let h = spec.attention.hidden();
        check::shape(NAME, "x", x, &[sequences.tokens(), h])?;
        let params = &spec.params;
        params.attention_norm.check(tape, NAME, x)?;
        params.output_norm.check(tape, NAME, x)?;
        let dense = |weights: &[ParamId], biases: &[ParamId], n: Option<usize>, k: usize| {
            let dense = Dense::new(tape, NAME, weights, biases)?;
            if dense.k != k || n.is_some_and(|n| n != dense.n) {
                let expected = n.map_or("..".into(), |n| n.to_string());
                let problem = format!("{NAME}: [{}, {}], but [{expected}, {k}] was expected", dense.n, dense.k);
                return Err(EngineError::parameter(tape.params().name(weights[0]), problem));
            }
            Ok(dense)
        };
        let ffn = dense(&[params.ffn_weight], &[params.ffn_bias], None, h)?;
        Ok(Self {
            spec: *spec,
            sequences: sequences.clone(),
            qkv: dense(&params.qkv_weight, &params.qkv_bias, Some(3 * h), h)?,
            attention_output: dense(&[params.attention_weight], &[params.attention_bias], Some(h), h)?,
            ffn_output: dense(&[params.ffn_output_weight], &[params.ffn_output_bias], Some(h), ffn.n)?,
            ffn,
            place: None,
        })
    }

    /// True if only the output of a forward pass on the CPU is needed.
    fn recomputes_all(&self, tape: &Tape<'_>) -> bool {
        let dropout = active(self.spec.attention_output).or(active(self.spec.ffn_output));
        !tape.is_recording() && matches!(tape.device(), Device::Cpu(_)) && dropout.is_none()
    }

    /// The forward pass where nothing is kept: the activation is done on the sums of its product, the residual's sum stays
    /// in the registers of the normalization, and memory is given back as soon as it has been read.
    fn infer(&self, tape: &Tape<'_>, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let (t, h, dtype) = (x.shape()[0], self.spec.attention.hidden(), x.dtype());
        let params = &self.spec.params;
        let normalized = |norm: LayerNorm, branch: &Tensor, residual: &Tensor, y: &mut Tensor| {
            let mut stats = tape.alloc([t, 2], DType::F32)?;
            norm.forward(tape, branch, Some(residual), None, y, &mut stats)
        };
        let mut context = tape.alloc([t, h], dtype)?;
        {
            let mut qkv = tape.alloc([t, 3 * h], dtype)?;
            self.qkv.infer(tape, "layer.qkv", x, None, &mut qkv)?;
            let mut lse = tape.alloc([t, self.spec.attention.heads], DType::F32)?;
            attention::forward(tape, &self.spec.attention, &self.sequences, &qkv, &mut context, &mut lse)?;
        }
        let mut branch = tape.alloc([t, h], dtype)?;
        self.attention_output.infer(tape, "layer.attention_output", &context, None, &mut branch)?;
        let mut y = context;
        normalized(params.attention_norm, &branch, x, &mut y)?;
        let mut f = tape.alloc([t, self.ffn.n], dtype)?;
        match self.rows_of_block(tape, &y) {
            Some(block) => self.feed_forward(tape, block, &y, None, &mut f, None, &mut branch)?,
            None => {
                self.ffn.infer(tape, "layer.ffn", &y, Some(self.spec.activation), &mut f)?;
                self.ffn_output.infer(tape, "layer.ffn_output", &f, None, &mut branch)?;
            }
        }
        normalized(params.output_norm, &branch, &y, out)
    }

    /// The forward pass. Without `out` it stops before LN₂'s output: all that is missing then is known already.
    fn forward(&self, tape: &Tape<'_>, x: &Tensor, out: Option<&mut Tensor>) -> Result<Saved> {
        let (t, h, dtype) = (x.shape()[0], self.spec.attention.hidden(), x.dtype());
        let params = &self.spec.params;
        let keep = tape.is_recording() && self.spec.recompute == Recompute::None || out.is_none();
        let mut qkv = tape.alloc([t, 3 * h], dtype)?;
        self.qkv.forward(tape, "layer.qkv", x, self.qkv.plain(), &mut qkv)?;
        let mut context = self.input(tape, Weight::AttentionOutput, [t, h].into(), dtype)?;
        let mut lse = tape.alloc([t, self.spec.attention.heads], DType::F32)?;
        attention::forward(tape, &self.spec.attention, &self.sequences, &qkv, &mut context, &mut lse)?;

        let attended = Sublayer {
            name: "layer.attention_output",
            dense: &self.attention_output,
            dropout: self.spec.attention_output,
            norm: params.attention_norm,
        };
        let mut y = self.input(tape, Weight::Ffn, [t, h].into(), dtype)?;
        let (s1, stats1) = attended.forward(tape, &context, x, &mut y)?;

        let fed = Sublayer {
            name: "layer.ffn_output",
            dense: &self.ffn_output,
            dropout: self.spec.ffn_output,
            norm: params.output_norm,
        };
        let mut own = match &out {
            Some(_) => None,
            None => Some(tape.alloc([t, h], dtype)?),
        };
        let out = out.or(own.as_mut()).expect("one of the two");
        let mut pre = tape.alloc([t, self.ffn.n], dtype)?;
        let mut f = self.input(tape, Weight::FfnOutput, *pre.shape(), dtype)?;
        let (s2, stats2) = match self.rows_of_block(tape, &y).filter(|_| active(fed.dropout).is_none()) {
            Some(block) => {
                let mut s2 = tape.alloc([t, h], dtype)?;
                self.feed_forward(tape, block, &y, Some(&mut pre), &mut f, Some(&y), &mut s2)?;
                let stats2 = fed.normalize(tape, &s2, out)?;
                (s2, stats2)
            }
            None => {
                let epilogue = Epilogue::bias_activation(self.ffn.bias(), self.spec.activation, Some(&mut pre));
                self.ffn.forward(tape, "layer.ffn", &y, epilogue, &mut f)?;
                fed.forward(tape, &f, &y, out)?
            }
        };
        let (f, y) = (keep.then_some(f), keep.then_some(y));
        Ok(Saved { qkv, context, lse, s1, stats1, y, pre, f, s2, stats2 })
    }

    /// Rows of a block if both products of the feed-forward part are taken together.
    fn rows_of_block(&self, tape: &Tape<'_>, y: &Tensor) -> Option<usize> {
        match tape.device() {
            Device::Cpu(cpu) => rows_of_block(cpu, tape.precision(y.dtype()), y.shape()[0], self.ffn.n),
            Device::Cuda(_) => None,
        }
    }

    /// pre = y·W₁ᵀ + b, f = act(pre) and out = f·W₂ᵀ + b + residual, by blocks of rows.
    #[expect(clippy::too_many_arguments)]
    fn feed_forward(
        &self,
        tape: &Tape<'_>,
        block: usize,
        y: &Tensor,
        pre: Option<&mut Tensor>,
        f: &mut Tensor,
        residual: Option<&Tensor>,
        out: &mut Tensor,
    ) -> Result<()> {
        let (rows, dtype) = (y.shape()[0], y.dtype());
        let precision = tape.precision(dtype);
        let panels = [&self.ffn, &self.ffn_output].map(|dense| dense.panels(tape, precision, Side::Forward));
        let [first, second] = [&self.ffn, &self.ffn_output].map(|dense| dense.cost(rows, dtype));
        let cost = Cost { flops: first.flops + second.flops, bytes: first.bytes + second.bytes };
        tape.launch("layer.feed_forward", cost, |cpu| {
            let [first, second] = panels.each_ref().map(|panels| panels.as_deref().expect("packed for the CPU"));
            let values = tape.params().all_values();
            floats!(dtype, X => feed_forward(cpu, block, FeedForward {
                precision,
                sizes: [rows, self.ffn.k, self.ffn.n],
                x: y.slice::<X>(),
                weights: [first, second],
                biases: [&values[self.ffn.bias()], &values[self.ffn_output.bias()]],
                activation: self.spec.activation,
                pre: pre.map(|pre| pre.slice_mut::<X>()),
                inner: f.slice_mut::<X>(),
                residual: residual.map(|residual| residual.slice::<X>()),
                y: out.slice_mut::<X>(),
            }));
        })
    }

    /// Memory for the operand that multiplies `weight`.
    fn input(&self, tape: &Tape<'_>, weight: Weight, shape: Shape, dtype: DType) -> Result<Tensor> {
        match &self.place {
            Some(place) => Ok(place.input(weight)),
            None => tape.alloc(shape, dtype),
        }
    }

    /// Memory for the gradient of the output of `weight`.
    fn gradient(&self, tape: &Tape<'_>, weight: Weight, shape: Shape, dtype: DType) -> Result<Tensor> {
        match &self.place {
            Some(place) => place.gradient(tape, weight),
            None => tape.alloc(shape, dtype),
        }
    }

    /// dW += dyᵀ·x and db += Σ dy; or nothing, where they wait for the other applications.
    fn weight_gradient(
        &self,
        ctx: &mut BackwardContext<'_, '_>,
        weight: Weight,
        dy: &Tensor,
        x: &Tensor,
    ) -> Result<()> {
        match &self.place {
            Some(_) => Ok(()),
            None => self.dense(weight).0.backward_weight(ctx, self.dense(weight).1, dy, x),
        }
    }

    /// The weight gradients of all applications, once none is left to come.
    fn fused_weight_gradients(&self, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Some(place) = self.place.as_ref().filter(|place| place.number() == 0) else { return Ok(()) };
        for weight in Weight::ALL {
            let ([dy, x], (dense, name)) = (place.whole(weight)?, self.dense(weight));
            dense.backward_weight(ctx, name, &dy, &x)?;
        }
        let params = &self.spec.params;
        for (which, norm) in [(Norm::Output, params.output_norm), (Norm::Attention, params.attention_norm)] {
            if let Some(sums) = place.whole_sums(which) {
                norm.add_partial_sums(ctx, &sums)?;
            }
        }
        Ok(())
    }

    fn dense(&self, weight: Weight) -> (&Dense, &'static str) {
        match weight {
            Weight::Qkv => (&self.qkv, "layer.qkv.backward.weight"),
            Weight::AttentionOutput => (&self.attention_output, "layer.attention_output.backward.weight"),
            Weight::Ffn => (&self.ffn, "layer.ffn.backward.weight"),
            Weight::FfnOutput => (&self.ffn_output, "layer.ffn_output.backward.weight"),
        }
    }

    fn activate(&self, tape: &Tape<'_>, pre: &Tensor) -> Result<Tensor> {
        let mut f = self.input(tape, Weight::FfnOutput, *pre.shape(), pre.dtype())?;
        activate(tape, "layer.activation", self.spec.activation, pre, &mut f)?;
        Ok(f)
    }

    /// Backward of a normalization and of the dropout before it: the gradient of the sum, and that of the branch where it is another
    /// tensor. Gradients of the branches of several applications are kept until the last, and sums over groups of rows as well.
    fn norm_backward(
        &self,
        ctx: &mut BackwardContext<'_, '_>,
        which: Norm,
        (s, stats): (Tensor, Tensor),
        dy: Tensor,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (tape, dtype, shape) = (ctx.tape, dy.dtype(), *dy.shape());
        let EncoderLayer { params, attention_output, ffn_output, .. } = &self.spec;
        let (norm, weight, dropout) = match which {
            Norm::Attention => (params.attention_norm, Weight::AttentionOutput, active(*attention_output)),
            Norm::Output => (params.output_norm, Weight::FfnOutput, active(*ffn_output)),
        };
        let mut ds = tape.alloc(shape, dtype)?;
        let (mut branch, mut partial) = (None, None);
        if let Some(place) = &self.place {
            // What the products take is not ds itself, which is added to before they do.
            branch = if dropout.is_none() { Some(place.gradient(tape, weight)?) } else { None };
            partial = norm.groups(tape, &s).map(|groups| place.sums(tape, which, groups)).transpose()?;
        }
        norm.backward(ctx, (&s, &stats), &dy, NormOutputs { ds: &mut ds, copy: branch.as_mut(), partial })?;
        drop((s, stats, dy));
        if let Some(dropout) = dropout {
            let masked = branch.insert(self.gradient(tape, weight, shape, dtype)?);
            super::dropout::masked(tape, &dropout, &ds, masked)?;
        }
        Ok((ds, branch))
    }

    /// dx from dout, in the order of the module's picture from its end.
    fn backward(&self, ctx: &mut BackwardContext<'_, '_>, x: Input, saved: Saved, dout: Tensor) -> Result<Tensor> {
        let (tape, dtype, shape) = (ctx.tape, dout.dtype(), *dout.shape());
        let Saved { qkv, context, lse, s1, stats1, y, pre, f, s2, stats2 } = saved;
        let params = &self.spec.params;

        // LN₂: ds2 is the gradient of both branches of the sum.
        let (ds2, branch) = self.norm_backward(ctx, Norm::Output, (s2, stats2), dout)?;
        // Feed-forward
        let f = match f {
            Some(f) => f,
            None => self.activate(tape, &pre)?,
        };
        let dbranch = branch.as_ref().unwrap_or(&ds2);
        self.weight_gradient(ctx, Weight::FfnOutput, dbranch, &f)?;
        drop(f);
        // dpre = (dbranch·W₂)·act'(pre)
        let mut dpre = self.gradient(tape, Weight::Ffn, *pre.shape(), dtype)?;
        let activation = (self.spec.activation, &pre);
        self.ffn_output.backward_input_activation(
            tape,
            "layer.ffn_output.backward.input",
            dbranch,
            activation,
            &mut dpre,
        )?;
        drop((branch, pre));
        let y = match y {
            Some(y) => y,
            None => normalize(tape, params.attention_norm, &s1)?,
        };
        self.weight_gradient(ctx, Weight::Ffn, &dpre, &y)?;
        drop(y);
        // dy = ds2 + dpre·W₁
        let mut dy = ds2;
        self.ffn.add_backward_input(tape, "layer.ffn.backward.input", &dpre, &mut dy)?;
        drop(dpre);

        // LN₁
        let (ds1, branch) = self.norm_backward(ctx, Norm::Attention, (s1, stats1), dy)?;
        // Attention
        let dbranch = branch.as_ref().unwrap_or(&ds1);
        self.weight_gradient(ctx, Weight::AttentionOutput, dbranch, &context)?;
        let mut dcontext = tape.alloc(shape, dtype)?;
        self.attention_output.backward_input(tape, "layer.attention_output.backward.input", dbranch, &mut dcontext)?;
        drop(branch);
        let mut dqkv = self.gradient(tape, Weight::Qkv, *qkv.shape(), dtype)?;
        let spec = &self.spec.attention;
        attention::backward(tape, spec, &self.sequences, &qkv, &context, &lse, &dcontext, &mut dqkv)?;
        drop((qkv, context, lse, dcontext));
        let x = x.tensor(tape)?;
        self.weight_gradient(ctx, Weight::Qkv, &dqkv, &x)?;
        drop(x);
        // dx = ds1 + dqkv·Wqkv
        let mut dx = ds1;
        self.qkv.add_backward_input(tape, "layer.qkv.backward.input", &dqkv, &mut dx)?;
        Ok(dx)
    }
}

/// The end of each half of the layer: s = dropout(x·Wᵀ + b) + residual, y = LN(s).
struct Sublayer<'a> {
    name: &'static str,
    dense: &'a Dense,
    dropout: Option<Dropout>,
    norm: LayerNorm,
}

impl Sublayer<'_> {
    /// s and the statistics of the normalization; y is written.
    fn forward(&self, tape: &Tape<'_>, x: &Tensor, residual: &Tensor, y: &mut Tensor) -> Result<(Tensor, Tensor)> {
        let mut s = tape.alloc(*residual.shape(), residual.dtype())?;
        let epilogue = Epilogue::bias_dropout_residual(self.dense.bias(), active(self.dropout), Some(residual));
        self.dense.forward(tape, self.name, x, epilogue, &mut s)?;
        let stats = self.normalize(tape, &s, y)?;
        Ok((s, stats))
    }

    /// The statistics of s; y is written.
    fn normalize(&self, tape: &Tape<'_>, s: &Tensor, y: &mut Tensor) -> Result<Tensor> {
        let mut stats = tape.alloc([s.shape()[0], 2], DType::F32)?;
        self.norm.forward(tape, s, None, None, y, &mut stats)?;
        Ok(stats)
    }
}

fn active(dropout: Option<Dropout>) -> Option<Dropout> {
    dropout.filter(|dropout| dropout.rate > 0.0)
}

struct EncoderLayerOp {
    layer: Layer,
    x: Input,
    saved: Option<Saved>,
}

impl Op for EncoderLayerOp {
    fn name(&self) -> &'static str {
        NAME
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let Self { layer, x, saved } = *self;
        let (x, saved) = match saved {
            Some(saved) => (x, saved),
            None => {
                let x = x.tensor(ctx.tape)?;
                let saved = layer.forward(ctx.tape, &x, None)?;
                (Input::Kept(x), saved)
            }
        };
        let dx = layer.backward(ctx, x, saved, dy)?;
        layer.fused_weight_gradients(ctx)?;
        ctx.accumulate_grad(0, dx)
    }
}
