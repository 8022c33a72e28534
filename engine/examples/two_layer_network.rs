//! A network with one hidden layer learns what no line can: which points lie inside a circle.
//!
//! `cargo run --release -p engine --example two_layer_network`
use engine::optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, Schedule, clip_global_norm};
use engine::{Device, Init, ParamBuilder, Result, Workspace, ops, philox::Stream};

const POINTS: usize = 512;
const HIDDEN: usize = 32;
const STEPS: u64 = 300;

fn main() -> Result<()> {
    train().map(drop)
}

/// Gives the first and the last loss.
pub fn train() -> Result<[f32; 2]> {
    let device = Device::cpu()?;
    let cpu = device.processor().clone();

    let mut builder = ParamBuilder::new();
    let w1 = builder.add("hidden.weight", [HIDDEN, 2], Init::TruncatedNormal(0.5))?;
    let b1 = builder.add("hidden.bias", [HIDDEN], Init::Zeros)?;
    let w2 = builder.add("output.weight", [2, HIDDEN], Init::TruncatedNormal(0.2))?;
    let b2 = builder.add("output.bias", [2], Init::Zeros)?;
    let mut params = builder.build(&cpu, 1)?;
    let mut gradients = params.gradients(&device)?;
    // Weights decay, biases do not.
    let rule = |info: &engine::param::ParamInfo| ParamOptions {
        weight_decay: info.name.ends_with("weight"),
        trust_ratio: false,
    };
    let mut optimizer = Optimizer::new(&params, OptimizerKind::AdamW, AdamConfig::default(), rule)?;
    let schedule = Schedule::smooth(0.03, STEPS, 20);

    let mut stream = Stream::new(7, [0; 3]);
    let points: Vec<f32> = (0..2 * POINTS).map(|_| 2.0 * stream.next_f32() - 1.0).collect();
    let inside: Vec<u32> = points.chunks(2).map(|p| u32::from(p[0] * p[0] + p[1] * p[1] < 0.6)).collect();

    let mut workspace = Workspace::new(device);
    let mut losses = [0.0; 2];
    for step in 0..STEPS {
        gradients.clear()?;
        let tape = workspace.train(&params, None);
        let x = tape.input([POINTS, 2], &points)?; // [512, 2]
        let labels = tape.input([POINTS], &inside)?; // [512]
        let h = ops::linear(&tape, &x, w1, Some(b1))?; // [512, 32]
        let h = ops::activation(&tape, &h, ops::Activation::GeluTanh)?;
        let logits = ops::linear(&tape, &h, w2, Some(b2))?; // [512, 2]
        let result = ops::cross_entropy(&tape, &logits, &labels, POINTS as f32)?;
        tape.backward(&result.loss, &mut gradients)?;
        losses[usize::from(step > 0)] = tape.item(&result.loss)?;
        if step % 50 == 0 || step + 1 == STEPS {
            let right = result.correct()?;
            println!("step {step:3}  loss {:.4}  {right} of {POINTS} right", losses[usize::from(step > 0)]);
        }
        drop((tape, x, labels, h, logits, result));
        clip_global_norm(&mut gradients, 1.0, Some(1.0), step)?;
        optimizer.step(&mut params, &gradients, schedule.rate(step))?;
    }
    Ok(losses)
}
