//! How fast the engine is on a GPU at the sizes of ALBERT: products, attention, the encoder.
//!
//! Products and attention's forward pass run several times on one tape, then the device is waited for: single launches are
//! not timed, because the host would be timed with them. What goes back runs once a turn, because a tape goes back once. The
//! median of several turns counts. Names are those of
//! `benches/cuda/peers.py`, which times the same work in PyTorch.

use engine::{
    Device, Init, ParamBuilder, ParamStore, Result, Tape, Tensor, Var, Workspace,
    ops::{self, Activation, Attention, EncoderLayer, LayerParams, Norm, Recompute, Sequences},
};
use half::bf16;
use std::{fmt, time::Instant};

/// Turns of which the median counts.
const TURNS: usize = 7;
/// Seconds that a turn should take at least.
const TURN: f64 = 0.02;

/// What one kind of work took.
#[derive(Clone, Debug)]
pub struct Row {
    /// `gemm 32768x3072x768`, `attention forward B=64 S=512 A=12 D=64`
    pub name: String,
    /// Median of one piece of work.
    pub seconds: f64,
    /// Floating-point operations of it.
    pub flops: f64,
    /// Bytes that it has to move at least.
    pub bytes: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (speed, bandwidth) = (self.flops / self.seconds / 1e12, self.bytes / self.seconds / 1e12);
        let micros = self.seconds * 1e6;
        write!(f, "{:44} {micros:10.1} us {speed:8.1} TFLOP/s {bandwidth:6.2} TB/s", self.name)
    }
}

/// (rows, outputs, inputs) of the products: ALBERT-base and xxlarge at 32,768 tokens, and the one that everybody quotes.
const PRODUCTS: [(usize, usize, usize); 8] = [
    (32_768, 2304, 768),
    (32_768, 768, 768),
    (32_768, 3072, 768),
    (32_768, 768, 3072),
    (8192, 12_288, 4096),
    (8192, 16_384, 4096),
    (8192, 4096, 16_384),
    (8192, 8192, 8192),
];

/// (sequences, tokens of each, heads, head size) of attention: base at 512 tokens and at 128, xxlarge.
const ATTENTIONS: [(usize, usize, usize, usize); 3] = [(64, 512, 12, 64), (256, 128, 12, 64), (16, 512, 64, 64)];

/// Everything, one row after another.
///
/// # Errors
/// There is not enough memory, or a kernel failed.
pub fn measure(device: &Device) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (m, n, k) in PRODUCTS {
        rows.push(product(device, m, n, k)?);
    }
    for sizes in ATTENTIONS {
        rows.extend(attention(device, sizes)?);
    }
    rows.push(encoder(device, (64, 512, 12, 64), 3072)?);
    rows.push(encoder(device, (16, 512, 64, 64), 16_384)?);
    Ok(rows)
}

/// The median time of `work`.
fn time(device: &Device, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let gpu = device.gpu().expect("a GPU is timed");
    let mut turn = |times: usize| {
        let start = Instant::now();
        for _ in 0..times {
            work()?;
        }
        gpu.synchronize()?;
        Ok::<_, engine::EngineError>(start.elapsed().as_secs_f64() / times as f64)
    };
    // The first call loads kernels; the second says how many fit a turn.
    turn(1)?;
    let times = (TURN / turn(1)?).ceil().clamp(1.0, 200.0) as usize;
    let mut turns = (0..TURNS).map(|_| turn(times)).collect::<Result<Vec<_>>>()?;
    turns.sort_by(f64::total_cmp);
    Ok(turns[TURNS / 2])
}

/// Random numbers in bf16 on the device: zeros would take less power, and the clock would be higher than it ever is.
fn random(tape: &Tape<'_>, shape: &[usize], name: u32) -> Result<Tensor> {
    let values: Vec<bf16> = crate::random(shape.iter().product(), name).into_iter().map(bf16::from_f32).collect();
    Ok(tape.input(shape, &values)?.value().clone())
}

fn product(device: &Device, m: usize, n: usize, k: usize) -> Result<Row> {
    let mut builder = ParamBuilder::new();
    let weight = builder.add("weight", [n, k], Init::Uniform(0.5))?;
    let params = builder.build(device.processor(), 1)?;
    let mut workspace = Workspace::new(device.clone());
    let tape = workspace.infer(&params, None);
    let x = tape.constant(random(&tape, &[m, k], 1)?);
    let seconds = time(device, || ops::linear(&tape, &x, weight, None).map(drop))?;
    let bytes = 2.0 * (m * k + n * k + m * n) as f64;
    Ok(Row { name: format!("gemm {m}x{n}x{k}"), seconds, flops: 2.0 * (m * n * k) as f64, bytes })
}

fn sequences(tape: &Tape<'_>, count: usize, length: usize) -> Result<Sequences> {
    let offsets: Vec<u32> = (0..=count).map(|i| (i * length) as u32).collect();
    Sequences::new(tape, &offsets)
}

fn attention(device: &Device, (b, s, a, d): (usize, usize, usize, usize)) -> Result<[Row; 2]> {
    let params = ParamBuilder::new().build(device.processor(), 0)?;
    let (spec, tokens, hidden) = (Attention::new(a, d), b * s, a * d);
    let row = |pass: &str, seconds, products: f64, matrices: f64| Row {
        name: format!("attention {pass} B={b} S={s} A={a} D={d}"),
        seconds,
        flops: products * 2.0 * (tokens * s * hidden) as f64,
        bytes: matrices * 2.0 * (tokens * hidden) as f64,
    };
    let mut workspace = Workspace::new(device.clone());
    let forward = {
        let tape = workspace.infer(&params, None);
        let qkv = tape.constant(random(&tape, &[tokens, 3 * hidden], 2)?);
        let sequences = sequences(&tape, b, s)?;
        time(device, || ops::attention(&tape, &qkv, &sequences, &spec).map(drop))?
    };
    // A tape can go back once, so both ways are timed together, and forward is taken off.
    let both = both_ways(
        device,
        &params,
        |tape| {
            let qkv = tape.leaf(random(tape, &[tokens, 3 * hidden], 2)?)?;
            Ok(Inputs { x: qkv, sequences: sequences(tape, b, s)?, dy: random(tape, &[tokens, hidden], 3)? })
        },
        |tape, inputs| ops::attention(tape, &inputs.x, &inputs.sequences, &spec),
    )?;
    Ok([row("forward", forward, 2.0, 4.0), row("backward", both - forward, 5.0, 8.0)])
}

/// What a step has on the device before the clock starts.
struct Inputs {
    x: Var,
    sequences: Sequences,
    dy: Tensor,
}

/// The median time of forward and backward.
fn both_ways(
    device: &Device,
    params: &ParamStore,
    prepare: impl Fn(&Tape<'_>) -> Result<Inputs>,
    forward: impl Fn(&Tape<'_>, &Inputs) -> Result<Var>,
) -> Result<f64> {
    let gpu = device.gpu().expect("a GPU is timed");
    let mut gradients = params.gradients_on(device)?;
    let mut workspace = Workspace::new(device.clone());
    let mut turns = Vec::new();
    for turn in 0..TURNS + 2 {
        let tape = workspace.train(params, None);
        let inputs = prepare(&tape)?;
        gpu.synchronize()?;
        let start = Instant::now();
        let y = forward(&tape, &inputs)?;
        tape.backward_from(&y, inputs.dy, &mut gradients)?;
        gpu.synchronize()?;
        // The first turns load kernels and find memory.
        if turn >= 2 {
            turns.push(start.elapsed().as_secs_f64());
        }
    }
    turns.sort_by(f64::total_cmp);
    Ok(turns[TURNS / 2])
}

/// Twelve applications of one layer, as ALBERT has them, forward and both ways, with dropout off.
fn encoder(device: &Device, (b, s, a, d): (usize, usize, usize, usize), f: usize) -> Result<Row> {
    const LAYERS: usize = 12;
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
        attention_norm: Norm { gain: add(&[h], Init::Ones)?, bias: add(&[h], Init::Zeros)?, eps: 1e-12 },
        ffn_weight: add(&[f, h], normal)?,
        ffn_bias: add(&[f], Init::Zeros)?,
        ffn_output_weight: add(&[h, f], normal)?,
        ffn_output_bias: add(&[h], Init::Zeros)?,
        output_norm: Norm { gain: add(&[h], Init::Ones)?, bias: add(&[h], Init::Zeros)?, eps: 1e-12 },
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
    let seconds = both_ways(
        device,
        &store,
        |tape| {
            let x = tape.leaf(random(tape, &[tokens, h], 4)?)?;
            Ok(Inputs { x, sequences: sequences(tape, b, s)?, dy: random(tape, &[tokens, h], 5)? })
        },
        |tape, inputs| {
            let once = |x: Var| ops::encoder_layer(tape, &x, &inputs.sequences, &layer);
            (0..LAYERS).try_fold(inputs.x.clone(), |x, _| once(x))
        },
    )?;
    // 8·H² + 4·H·F + 4·S·H a token and layer forward, twice that backward; what attention computes again does not count.
    let flops = 3.0 * LAYERS as f64 * tokens as f64 * (8 * h * h + 4 * h * f + 4 * s * h) as f64;
    let bytes = 3.0 * LAYERS as f64 * 2.0 * (tokens * (8 * h + 2 * f)) as f64;
    Ok(Row { name: format!("encoder both ways B={b} S={s} A={a} D={d} F={f} N={LAYERS}"), seconds, flops, bytes })
}
