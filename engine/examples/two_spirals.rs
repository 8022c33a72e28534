//! A net of one's own from training to use: two spirals, accuracy on other points, a file, and the net read back from it.
//!
//! `cargo run --release -p albert-engine --example two_spirals`
use engine::io::Safetensors;
use engine::nn::{Graph, Linear, Training, Value};
use engine::optim::{AdamConfig, OptimizerKind, Schedule};
use engine::{Device, ParamBuilder, Result, Workspace, philox::Stream};
use std::path::Path;

const POINTS: usize = 400;
const HIDDEN: usize = 48;
const STEPS: u64 = 400;

/// The layers hold the names of their parameters; the values are in a `ParamStore`.
#[derive(Debug)]
pub struct Net {
    first: Linear,
    second: Linear,
    output: Linear,
}

impl Net {
    /// Declares the parameters.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(params: &mut ParamBuilder) -> Result<Self> {
        Ok(Self {
            first: Linear::new(&mut params.scope("first"), 2, HIDDEN)?,
            second: Linear::new(&mut params.scope("second"), HIDDEN, HIDDEN)?,
            output: Linear::new(&mut params.scope("output"), HIDDEN, 2)?,
        })
    }

    /// Logits [N, 2] of points [N, 2], for training and inference. `'t` is the lifetime of the step.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn logits<'t>(&self, t: Graph<'t>, points: &[f32]) -> Result<Value<'t>> {
        let x = t.input([points.len() / 2, 2], points)?;
        x.apply(&self.first)?.tanh()?.apply(&self.second)?.tanh()?.apply(&self.output)
    }
}

/// N points [N, 2] and the spiral of each: radius and angle grow together, with noise.
fn spirals(seed: u64) -> (Vec<f32>, Vec<u32>) {
    let mut stream = Stream::new(seed, [0; 3]);
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for i in 0..POINTS {
        let (spiral, along) = ((i % 2) as u32, stream.next_f32());
        let angle = 7.0 * along + std::f32::consts::PI * spiral as f32;
        let radius = 0.1 + along + 0.03 * (stream.next_f32() - 0.5);
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        labels.push(spiral);
    }
    (points, labels)
}

/// Share of rows of `logits` [N, 2] whose largest element is that of the label.
fn accuracy(logits: &[f32], labels: &[u32]) -> f64 {
    let right = logits.chunks(2).zip(labels).filter(|(logits, label)| u32::from(logits[1] > logits[0]) == **label);
    right.count() as f64 / labels.len() as f64
}

/// A net and its training, at the end.
fn train() -> Result<(Net, Training)> {
    let (x, labels) = spirals(1);
    let device = Device::cpu()?;
    let mut params = ParamBuilder::new();
    let net = Net::new(&mut params)?;
    let params = params.build(device.processor(), 1)?;
    let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;
    let schedule = Schedule::smooth(0.02, STEPS, 20);
    for step in 0..STEPS {
        let loss =
            training.step(schedule.rate(step), |t| net.logits(t, &x)?.cross_entropy(&t.input([POINTS], &labels)?))?;
        if step % 50 == 0 || step + 1 == STEPS {
            println!("step {step:3}  loss {loss:.4}");
        }
    }
    Ok((net, training))
}

/// The net in `path`, applied to `points`.
fn load(path: &Path, points: &[f32]) -> Result<Vec<f32>> {
    let mut params = ParamBuilder::new();
    let net = Net::new(&mut params)?;
    let params = params.load(&Safetensors::open(path)?)?;
    let mut workspace = Workspace::new(Device::cpu()?);
    let tape = workspace.infer(&params, None);
    net.logits(Graph::new(&tape), points)?.value().to_vec()
}

/// Trains, saves to `path` and loads; gives the accuracy on points that were not trained on, and the logits before and after.
///
/// # Errors
/// The file cannot be written or read, or there is not enough memory.
pub fn run(path: &Path) -> Result<(f64, [Vec<f32>; 2])> {
    let (points, labels) = spirals(2);
    let (net, mut training) = train()?;
    let before = training.infer(|t| net.logits(t, &points)?.value().to_vec())?;
    training.params().save(path)?;
    let after = load(path, &points)?;
    Ok((accuracy(&before, &labels), [before, after]))
}

fn main() -> Result<()> {
    let path = std::env::temp_dir().join("two_spirals.safetensors");
    let (accuracy, [before, after]) = run(&path)?;
    println!("{:.1} % of {POINTS} other points right; {}", 100.0 * accuracy, path.display());
    println!("the loaded net gives the same logits: {}", before == after);
    Ok(())
}
