//! An operation of one's own, with a parameter: RMSNorm, its gradient check, and its rows in the profile.
//!
//! ```text
//! y = g·x·r          r = 1 / √(Σ x² / C + ε)     for each row of C elements
//! dg += Σ_rows dy·x·r          dx = r·g·dy - x·r³/C·Σ g·dy·x
//! ```
//!
//! Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
//!
//! `cargo run --release -p albert-engine --example own_operation`
use engine::nn::{Module, Training};
use engine::optim::{AdamConfig, OptimizerKind};
use engine::{
    BackwardContext, Cost, DType, Device, EngineError, Init, Op, ParamBuilder, ParamId, ParamScope, Result, Tape,
    Tensor, Var, Workspace, philox::Stream,
};

/// A layer like those of `engine::nn`: it declares its parameter and holds the id.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    gain: ParamId,
    eps: f32,
}

impl RmsNorm {
    /// A normalization of rows of `width` elements.
    ///
    /// # Errors
    /// The scope has a parameter called `gain`.
    pub fn new(scope: &mut ParamScope<'_>, width: usize) -> Result<Self> {
        Ok(Self { gain: scope.add("gain", [width], Init::Ones)?, eps: 1e-6 })
    }
}

impl Module for RmsNorm {
    fn forward(&self, tape: &Tape<'_>, x: &Var) -> Result<Var> {
        // First the shapes and types.
        let expected = tape.params().shape(self.gain);
        if x.dtype() != DType::F32 || x.shape().last() != expected.last() {
            return Err(EngineError::shape("rms_norm", format!("x is {:?}, the gain {expected:?}", x.value())));
        }
        // Then memory and the kernel, with its cost: a dry run skips the closure, the profiler measures it.
        let (rows, columns) = x.shape().rows_cols();
        let mut y = tape.alloc(*x.shape(), DType::F32)?;
        let mut scales = tape.alloc([rows], DType::F32)?;
        tape.launch("rms_norm", cost(x.value(), 2), |_| {
            let gain = tape.params().values(self.gain);
            let rows =
                x.value().slice::<f32>().chunks_exact(columns).zip(y.slice_mut::<f32>().chunks_exact_mut(columns));
            for ((x, y), scale) in rows.zip(scales.slice_mut::<f32>()) {
                let squares: f32 = x.iter().map(|x| x * x).sum();
                *scale = 1.0 / (squares / columns as f32 + self.eps).sqrt();
                y.iter_mut().zip(x.iter().zip(gain)).for_each(|(y, (x, g))| *y = g * x * *scale);
            }
        })?;
        // Last the record of the backward pass, which keeps what it needs.
        tape.record_with_parameters(&[x], y, || RmsNormOp { gain: self.gain, x: x.value().clone(), scales })
    }
}

struct RmsNormOp {
    gain: ParamId,
    x: Tensor,
    scales: Tensor,
}

impl Op for RmsNormOp {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let (_, columns) = dy.shape().rows_cols();
        let mut dx = ctx.tape.alloc(*dy.shape(), DType::F32)?;
        let mut dg = ctx.tape.alloc([columns], DType::F32)?;
        ctx.tape.launch("rms_norm.backward", cost(&dy, 3), |_| {
            let (gain, dg) = (ctx.tape.params().values(self.gain), dg.slice_mut::<f32>());
            dg.fill(0.0);
            let rows = self.x.slice::<f32>().chunks_exact(columns).zip(dy.slice::<f32>().chunks_exact(columns));
            let outputs = dx.slice_mut::<f32>().chunks_exact_mut(columns);
            for (((x, dy), dx), &r) in rows.zip(outputs).zip(self.scales.slice::<f32>()) {
                let sum: f32 = (0..columns).map(|c| gain[c] * dy[c] * x[c]).sum();
                for c in 0..columns {
                    dg[c] += dy[c] * x[c] * r;
                    dx[c] = r * gain[c] * dy[c] - x[c] * r * r * r / columns as f32 * sum;
                }
            }
        })?;
        ctx.accumulate_param_grad(self.gain, &dg)?;
        ctx.accumulate_grad(0, dx)
    }
}

fn cost(x: &Tensor, streams: usize) -> Cost {
    Cost { flops: 4 * x.len() as u64, bytes: (4 * streams * x.len()) as u64 }
}

fn main() -> Result<()> {
    let (worst, rows) = check()?;
    println!("largest difference from the difference quotient {worst:.1e}; profiled: {rows:?}");
    println!("loss after 100 steps {:.4}", train()?);
    Ok(())
}

const SHAPE: [usize; 2] = [3, 5];

/// Compares all gradients of L = Σ w·y with difference quotients; gives the largest difference and the kernels profiled.
pub fn check() -> Result<(f64, Vec<&'static str>)> {
    let mut builder = ParamBuilder::new();
    let norm = RmsNorm::new(&mut builder.scope("norm"), SHAPE[1])?;
    let device = Device::cpu()?;
    let mut params = builder.build(device.processor(), 0)?;
    let mut stream = Stream::new(3, [0; 3]);
    let mut draw = |n: usize| (0..n).map(|_| 2.0 * stream.next_f32() - 1.0).collect::<Vec<f32>>();
    let (mut x, w) = (draw(15), draw(15));
    params.values_mut(norm.gain)?.copy_from_slice(&draw(5));

    let mut workspace = Workspace::new(device.clone());
    workspace.profile().set(true);
    let mut gradients = params.gradients(&device)?;
    let dx = {
        let tape = workspace.train(&params, None);
        let leaf = tape.leaf(Tensor::from_slice(SHAPE, &x)?)?;
        let y = norm.forward(&tape, &leaf)?;
        let leaves = tape.backward_from(&y, Tensor::from_slice(SHAPE, &w)?, &mut gradients)?;
        leaves.get(&leaf).expect("y depends on x").to_vec()?
    };
    let mut rows: Vec<_> = workspace.profile().rows().into_iter().map(|(name, _)| name).collect();
    rows.retain(|name| name.starts_with("rms_norm"));
    rows.sort_unstable();

    let mut loss = |params: &engine::ParamStore, x: &[f32]| -> Result<f64> {
        let tape = workspace.infer(params, None);
        let y = norm.forward(&tape, &tape.input(SHAPE, x)?)?.value().to_vec()?;
        Ok(y.iter().zip(&w).map(|(y, w)| f64::from(*y) * f64::from(*w)).sum())
    };
    const STEP: f32 = 1.0 / 64.0;
    let mut worst = 0.0f64;
    let mut hold = |gradient: f32, [below, above]: [f64; 2]| {
        worst = worst.max((f64::from(gradient) - (above - below) / f64::from(2.0 * STEP)).abs());
    };
    for at in 0..x.len() {
        let middle = x[at];
        x[at] = middle - STEP;
        let below = loss(&params, &x)?;
        x[at] = middle + STEP;
        hold(dx[at], [below, loss(&params, &x)?]);
        x[at] = middle;
    }
    for at in 0..SHAPE[1] {
        let middle = params.values(norm.gain)[at];
        params.values_mut(norm.gain)?[at] = middle - STEP;
        let below = loss(&params, &x)?;
        params.values_mut(norm.gain)?[at] = middle + STEP;
        hold(gradients.get(norm.gain)[at], [below, loss(&params, &x)?]);
        params.values_mut(norm.gain)?[at] = middle;
    }
    Ok((worst, rows))
}

/// Learns gains that make the output a given one.
fn train() -> Result<f32> {
    let mut builder = ParamBuilder::new();
    let norm = RmsNorm::new(&mut builder.scope("norm"), SHAPE[1])?;
    let device = Device::cpu()?;
    let params = builder.build(device.processor(), 0)?;
    let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;
    let x: Vec<f32> = (0..15).map(|i| (i as f32).sin()).collect();
    for _ in 0..100 {
        training.step(0.02, |t| t.input(SHAPE, &x)?.apply(&norm)?.mean_squared_error(&t.input(SHAPE, &[0.5; 15])?))?;
    }
    training.infer(|t| t.input(SHAPE, &x)?.apply(&norm)?.mean_squared_error(&t.input(SHAPE, &[0.5; 15])?)?.item())
}
