//! Logistic regression on made points, step by step: which side of a line is a point on?
//!
//! What `nn::Training` does in one call is written out: gradients, tape, backward pass, optimizer.
//!
//! `cargo run --release -p albert-engine --example logistic_regression`
use engine::optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions};
use engine::{Device, Init, ParamBuilder, Result, Workspace, ops, philox::Stream};

fn main() -> Result<()> {
    train().map(drop)
}

/// Returns the first and the last loss.
pub fn train() -> Result<[f32; 2]> {
    let device = Device::cpu()?;

    // The model: two weights and a bias per class.
    let mut builder = ParamBuilder::new();
    let weight = builder.add("weight", [2, 2], Init::TruncatedNormal(0.1))?; // [classes, inputs]
    let bias = builder.add("bias", [2], Init::Zeros)?;
    let mut params = builder.build(device.processor(), 1)?;
    let mut gradients = params.gradients(&device)?;
    let adam = AdamConfig { weight_decay: 0.0, ..AdamConfig::default() };
    let mut optimizer = Optimizer::new(&params, OptimizerKind::AdamW, adam, |_| ParamOptions {
        weight_decay: false,
        trust_ratio: false,
    })?;

    // The data: 256 points of a square, class 1 above the line y = 0.5·x + 0.1.
    let mut stream = Stream::new(7, [0; 3]);
    let points: Vec<f32> = (0..512).map(|_| 2.0 * stream.next_f32() - 1.0).collect();
    let classes: Vec<u32> = points.chunks(2).map(|p| u32::from(p[1] > 0.5 * p[0] + 0.1)).collect();

    let mut workspace = Workspace::new(device);
    let mut losses = [0.0; 2];
    for step in 0..=200 {
        gradients.clear()?;
        {
            let tape = workspace.train(&params, None);
            let x = tape.input([256, 2], &points)?; // [256, 2]
            let labels = tape.input([256], &classes)?; // [256]
            let logits = ops::linear(&tape, &x, weight, Some(bias))?; // [256, 2]
            let result = ops::cross_entropy(&tape, &logits, &labels, 256.0)?;
            tape.backward(&result.loss, &mut gradients)?;
            losses[usize::from(step > 0)] = tape.item(&result.loss)?;
            if step % 50 == 0 {
                let right = result.correct()?;
                println!("step {step:3}  loss {:.4}  {right} of 256 right", losses[usize::from(step > 0)]);
            }
        }
        optimizer.step(&mut params, &gradients, 0.05)?;
    }
    println!("the line: {:?}, {:?}", params.values(weight), params.values(bias));
    Ok(losses)
}
