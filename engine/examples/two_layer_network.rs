//! A network with one hidden layer learns what no line can: which points lie inside a circle.
//!
//! `cargo run --release -p albert-engine --example two_layer_network`
use engine::nn::{Linear, Training};
use engine::optim::{AdamConfig, OptimizerKind, Schedule};
use engine::{Device, ParamBuilder, Result, philox::Stream};

const POINTS: usize = 512;
const HIDDEN: usize = 32;
const STEPS: u64 = 500;

fn main() -> Result<()> {
    train().map(drop)
}

/// Returns the first and the last loss.
pub fn train() -> Result<[f32; 2]> {
    // The data: points of a square, class 1 inside the circle.
    let mut stream = Stream::new(7, [0; 3]);
    let points: Vec<f32> = (0..2 * POINTS).map(|_| 2.0 * stream.next_f32() - 1.0).collect();
    let inside: Vec<u32> = points.chunks(2).map(|p| u32::from(p[0] * p[0] + p[1] * p[1] < 0.6)).collect();

    // The model: [512, 2] -> [512, 32] -> [512, 2].
    let mut net = ParamBuilder::new();
    let hidden = Linear::new(&mut net.scope("hidden"), 2, HIDDEN)?;
    let output = Linear::new(&mut net.scope("output"), HIDDEN, 2)?;

    let device = Device::cpu()?;
    let params = net.build(device.processor(), 1)?;
    let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;
    let schedule = Schedule::smooth(0.03, STEPS, 20);
    let mut losses = [0.0; 2];
    for step in 0..STEPS {
        let loss = training.step(schedule.rate(step), |t| {
            let h = t.input([POINTS, 2], &points)?.apply(&hidden)?.gelu()?;
            h.apply(&output)?.cross_entropy(&t.input([POINTS], &inside)?)
        })?;
        losses[usize::from(step > 0)] = loss;
        if step % 50 == 0 || step + 1 == STEPS {
            println!("step {step:3}  loss {loss:.4}");
        }
    }
    Ok(losses)
}
