//! Speed of the engine on a GPU at the sizes of ALBERT: products, attention, encoder.
//!
//! Forward passes run several times on one tape, backward passes on as many tapes as a round needs (a tape has one backward
//! pass); then the host waits for the device. Single launches are not timed, because that would include the host. Inputs of
//! products alternate, so that none is in L2 from the previous call. Results are medians of several rounds. Names are those
//! of `benches/cuda/peers.py`, which times the same work in PyTorch.

use engine::{
    Device, Init, ParamBuilder, ParamStore, Result, Tape, Tensor, Var, Workspace,
    ops::{self, Activation, Attention, EncoderLayer, LayerNorm, LayerParams, Recompute, Sequences},
};
use half::bf16;
use kernels_cuda::program::Pass;
use std::{fmt, time::Instant};

/// Bytes of inputs that alternate: several times the largest L2.
const ALTERNATING: usize = 256 << 20;
/// Random elements per tensor.
const DRAWN: usize = 1 << 22;

/// Number of repetitions.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of rounds.
    turns: usize,
    /// Minimum seconds of a round of forward passes.
    turn: f64,
    /// Number of tapes per round of attention's backward pass.
    tapes: usize,
}

impl Effort {
    /// Repetitions for measurements on a GPU.
    pub const FULL: Self = Self { turns: 7, turn: 0.02, tapes: 4 };
    /// Repetitions for a simulated GPU.
    pub const LEAST: Self = Self { turns: 1, turn: 0.0, tapes: 1 };
}

/// Sequences, tokens of each, heads and head size of attention.
type Sizes = (usize, usize, usize, usize);

/// Kind and size of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// (rows, outputs, inputs) of a product.
    Product(usize, usize, usize),
    /// Attention, forward or backward.
    Attention(Pass, Sizes),
    /// Repeated application of one layer with the given feed-forward size, forward and backward, without dropout.
    Encoder(Sizes, usize, usize),
}

/// Seconds of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Median of the rounds.
    pub median: f64,
    /// Fastest round.
    pub fastest: f64,
    /// Slowest round.
    pub slowest: f64,
}

impl Times {
    /// Statistics of at least one round.
    fn of(mut turns: Vec<f64>) -> Self {
        turns.sort_by(f64::total_cmp);
        Self { median: turns[turns.len() / 2], fastest: turns[0], slowest: turns[turns.len() - 1] }
    }
}

impl Work {
    /// Measurements, most important first: ALBERT-base and xxlarge at 32,768 and 8,192 tokens, and a product of 8192³.
    /// `small` selects sizes for a simulated GPU, to test only the code path.
    pub fn all(small: bool) -> Vec<Self> {
        let both = |sizes| Pass::ALL.map(|pass| Self::Attention(pass, sizes));
        if small {
            let sizes = (2, 64, 2, 64);
            let products = [Self::Product(128, 256, 64), Self::Product(128, 128, 128)];
            return [&products[..], &both(sizes), &[Self::Encoder((1, 64, 1, 64), 128, 1)]].concat();
        }
        let products = [
            (32_768, 2304, 768),
            (32_768, 768, 768),
            (32_768, 3072, 768),
            (32_768, 768, 3072),
            (8192, 8192, 8192),
            (8192, 12_288, 4096),
            (8192, 16_384, 4096),
            (8192, 4096, 16_384),
        ];
        let attentions: [Sizes; 3] = [(64, 512, 12, 64), (256, 128, 12, 64), (16, 512, 64, 64)];
        let products = products.map(|(m, n, k)| Self::Product(m, n, k));
        let encoders = [
            Self::Encoder((64, 512, 12, 64), 3072, 12),
            Self::Encoder((256, 128, 12, 64), 3072, 12),
            Self::Encoder((16, 512, 64, 64), 16_384, 12),
        ];
        [&products[..], &attentions.map(both).concat(), &encoders].concat()
    }

    /// Kind: `gemm`, `attention` or `encoder`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Product(..) => "gemm",
            Self::Attention(..) => "attention",
            Self::Encoder(..) => "encoder",
        }
    }

    /// FLOPs: each product once, backward twice forward.
    pub fn flops(self) -> f64 {
        match self {
            Self::Product(m, n, k) => 2.0 * (m * n * k) as f64,
            Self::Attention(pass, (b, s, a, d)) => {
                let products = if pass == Pass::Forward { 2.0 } else { 5.0 };
                products * 2.0 * (b * s * s * a * d) as f64
            }
            // 8·H² + 4·H·F + 4·S·H per token and layer forward, twice that backward; recomputation in attention is not counted.
            Self::Encoder((b, s, a, d), f, layers) => {
                let h = a * d;
                3.0 * (layers * b * s * (8 * h * h + 4 * h * f + 4 * s * h)) as f64
            }
        }
    }

    /// Minimum bytes of device memory traffic.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Product(m, n, k) => 2.0 * (m * k + n * k + m * n) as f64,
            Self::Attention(pass, (b, s, a, d)) => {
                let matrices = if pass == Pass::Forward { 4 } else { 8 };
                2.0 * (matrices * b * s * a * d) as f64
            }
            Self::Encoder((b, s, a, d), f, layers) => 6.0 * (layers * b * s * (8 * a * d + 2 * f)) as f64,
        }
    }

    /// Runs the measurement.
    ///
    /// # Errors
    /// There is not enough memory, or a kernel failed.
    pub fn measure(self, device: &Device, effort: Effort) -> Result<Times> {
        match self {
            Self::Product(m, n, k) => product(device, effort, m, n, k),
            Self::Attention(Pass::Forward, sizes) => attention_forward(device, effort, sizes),
            Self::Attention(Pass::Backward, sizes) => attention_backward(device, effort, sizes),
            Self::Encoder(sizes, f, layers) => encoder(device, effort, sizes, f, layers),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Product(m, n, k) => write!(out, "gemm {m}x{n}x{k}"),
            Self::Attention(pass, (b, s, a, d)) => write!(out, "attention {} B={b} S={s} A={a} D={d}", pass.name()),
            Self::Encoder((b, s, a, d), f, layers) => {
                write!(out, "encoder both ways B={b} S={s} A={a} D={d} F={f} N={layers}")
            }
        }
    }
}

/// Times `work`, whose argument is the number of the call.
fn time(device: &Device, effort: Effort, mut work: impl FnMut(usize) -> Result<()>) -> Result<Times> {
    let gpu = device.gpu().expect("a GPU is timed");
    let mut calls = 0;
    let mut turn = |times: usize| {
        let start = Instant::now();
        for _ in 0..times {
            work(calls)?;
            calls += 1;
        }
        gpu.synchronize()?;
        Ok::<_, engine::EngineError>(start.elapsed().as_secs_f64() / times as f64)
    };
    // The first call loads kernels; the second determines the calls per round.
    turn(1)?;
    let times = (effort.turn / turn(1)?).ceil().clamp(1.0, 200.0) as usize;
    Ok(Times::of((0..effort.turns).map(|_| turn(times)).collect::<Result<Vec<_>>>()?))
}

/// Random bf16 elements: zeros would use less power and so raise the clock. [`DRAWN`] elements are repeated, because drawing
/// all of them would take longer than the measurement.
fn random(len: usize, name: u32) -> Vec<bf16> {
    let drawn: Vec<bf16> = measure::random(len.min(DRAWN), name).into_iter().map(bf16::from_f32).collect();
    drawn.iter().copied().cycle().take(len).collect()
}

/// Copies the elements to the device.
fn upload(tape: &Tape<'_>, shape: &[usize], elements: &[bf16]) -> Result<Tensor> {
    Ok(tape.input(shape, elements)?.value().clone())
}

fn product(device: &Device, effort: Effort, m: usize, n: usize, k: usize) -> Result<Times> {
    let mut builder = ParamBuilder::new();
    let weight = builder.add("weight", [n, k], Init::Uniform(0.5))?;
    let params = builder.build(device.processor(), 1)?;
    let mut workspace = Workspace::new(device.clone());
    let tape = workspace.infer(&params, None);
    let count = (ALTERNATING / (2 * m * k)).clamp(2, 8);
    let inputs = (0..count)
        .map(|i| Ok(tape.constant(upload(&tape, &[m, k], &random(m * k, 10 + i as u32))?)))
        .collect::<Result<Vec<_>>>()?;
    time(device, effort, |call| ops::linear(&tape, &inputs[call % count], weight, None).map(drop))
}

fn sequences(tape: &Tape<'_>, count: usize, length: usize) -> Result<Sequences> {
    let offsets: Vec<u32> = (0..=count).map(|i| (i * length) as u32).collect();
    Sequences::new(tape, &offsets)
}

fn attention_forward(device: &Device, effort: Effort, (b, s, a, d): Sizes) -> Result<Times> {
    let params = ParamBuilder::new().build(device.processor(), 0)?;
    let mut workspace = Workspace::new(device.clone());
    let tape = workspace.infer(&params, None);
    let qkv = tape.constant(upload(&tape, &[b * s, 3 * a * d], &random(3 * b * s * a * d, 2))?);
    let sequences = sequences(&tape, b, s)?;
    time(device, effort, |_| ops::attention(&tape, &qkv, &sequences, &Attention::new(a, d)).map(drop))
}

fn attention_backward(device: &Device, effort: Effort, (b, s, a, d): Sizes) -> Result<Times> {
    let params = ParamBuilder::new().build(device.processor(), 0)?;
    let (qkv, dy) = (random(3 * b * s * a * d, 2), random(b * s * a * d, 3));
    let (_, backward) = both_ways(
        device,
        &params,
        effort,
        |tape| {
            let x = tape.leaf(upload(tape, &[b * s, 3 * a * d], &qkv)?)?;
            Ok(Inputs { x, sequences: sequences(tape, b, s)?, dy: upload(tape, &[b * s, a * d], &dy)? })
        },
        |tape, inputs| ops::attention(tape, &inputs.x, &inputs.sequences, &Attention::new(a, d)),
    )?;
    Ok(Times::of(backward))
}

/// Inputs of a step on the device.
struct Inputs {
    x: Var,
    sequences: Sequences,
    dy: Tensor,
}

/// Seconds of forward and of backward per round, on `tapes` tapes one after another.
fn both_ways(
    device: &Device,
    params: &ParamStore,
    effort: Effort,
    prepare: impl Fn(&Tape<'_>) -> Result<Inputs>,
    forward: impl Fn(&Tape<'_>, &Inputs) -> Result<Var>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let gpu = device.gpu().expect("a GPU is timed");
    let mut gradients = params.gradients(device)?;
    let mut workspaces: Vec<_> = (0..effort.tapes).map(|_| Workspace::new(device.clone())).collect();
    let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
    for turn in 0..effort.turns + 2 {
        let tapes: Vec<_> = workspaces.iter_mut().map(|workspace| workspace.train(params, None)).collect();
        let inputs = tapes.iter().map(&prepare).collect::<Result<Vec<_>>>()?;
        gpu.synchronize()?;
        let start = Instant::now();
        let outputs =
            tapes.iter().zip(&inputs).map(|(tape, inputs)| forward(tape, inputs)).collect::<Result<Vec<_>>>()?;
        gpu.synchronize()?;
        let between = Instant::now();
        for ((tape, y), inputs) in tapes.iter().zip(&outputs).zip(inputs) {
            tape.backward_from(y, inputs.dy, &mut gradients)?;
        }
        gpu.synchronize()?;
        // The first rounds load kernels and allocate memory.
        if turn >= 2 {
            let count = tapes.len() as f64;
            forwards.push((between - start).as_secs_f64() / count);
            backwards.push(between.elapsed().as_secs_f64() / count);
        }
    }
    Ok((forwards, backwards))
}

fn encoder(device: &Device, effort: Effort, (b, s, a, d): Sizes, f: usize, layers: usize) -> Result<Times> {
    let (tokens, h) = (b * s, a * d);
    let mut builder = ParamBuilder::new();
    let mut count = 0;
    let mut add = |shape: &[usize], init| {
        count += 1;
        builder.add(format!("parameter {count}"), shape, init)
    };
    let normal = Init::TruncatedNormal(0.02);
    let mut three =
        |shape: &[usize], init| Ok::<_, engine::EngineError>([add(shape, init)?, add(shape, init)?, add(shape, init)?]);
    let (qkv_weight, qkv_bias) = (three(&[h, h], normal)?, three(&[h], Init::Zeros)?);
    let params = LayerParams {
        qkv_weight,
        qkv_bias,
        attention_weight: add(&[h, h], normal)?,
        attention_bias: add(&[h], Init::Zeros)?,
        attention_norm: LayerNorm { gain: add(&[h], Init::Ones)?, bias: add(&[h], Init::Zeros)?, eps: 1e-12 },
        ffn_weight: add(&[f, h], normal)?,
        ffn_bias: add(&[f], Init::Zeros)?,
        ffn_output_weight: add(&[h, f], normal)?,
        ffn_output_bias: add(&[h], Init::Zeros)?,
        output_norm: LayerNorm { gain: add(&[h], Init::Ones)?, bias: add(&[h], Init::Zeros)?, eps: 1e-12 },
    };
    let layer = EncoderLayer {
        params,
        attention: Attention::new(a, d),
        activation: Activation::GeluTanh,
        attention_output: None,
        ffn_output: None,
        recompute: Recompute::None,
    };
    let store = builder.build(device.processor(), 1)?;
    let (x, dy) = (random(tokens * h, 4), random(tokens * h, 5));
    let (forward, backward) = both_ways(
        device,
        &store,
        Effort { tapes: 1, ..effort },
        |tape| {
            let x = tape.leaf(upload(tape, &[tokens, h], &x)?)?;
            Ok(Inputs { x, sequences: sequences(tape, b, s)?, dy: upload(tape, &[tokens, h], &dy)? })
        },
        |tape, inputs| {
            let once = |x: Var| ops::encoder_layer(tape, &x, &inputs.sequences, &layer);
            (0..layers).try_fold(inputs.x.clone(), |x, _| once(x))
        },
    )?;
    Ok(Times::of(forward.iter().zip(&backward).map(|(forward, backward)| forward + backward).collect()))
}
