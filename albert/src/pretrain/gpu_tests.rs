//! Training on the simulated GPU: the same losses as on the CPU, and checkpoints that both devices can continue.

use engine::{Cpu, Device, Isa};

use super::tests::{device, recipe, world};
use crate::train::{Outcome, StartMode};

pub(super) fn gpu() -> Device {
    Device::named("cuda-sim", Cpu::new(Isa::choose().unwrap(), 1).unwrap()).unwrap()
}

/// Root mean square of the differences.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    (a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
}

/// In bf16 the two devices round at different places (a GPU multiplies weights rounded to bf16, and adds the residual to a
/// product's accumulators), so each is compared with f32, and the GPU's distance may be twice the CPU's.
#[test]
fn twelve_steps_in_bf16_have_losses_that_rounding_explains() {
    let world = world();
    let losses = |device: Device, activations: &str| {
        let recipe = recipe(&["schedule.steps=12", &format!("compute.precision={activations}")]);
        let mut trainer = world.trainer(&recipe, device);
        (0..12).map(|_| trainer.train_step().unwrap().loss).collect::<Vec<_>>()
    };
    let exact = losses(device(1), "f32");
    let (cpu, gpu) = (distance(&losses(device(1), "bf16"), &exact), distance(&losses(gpu(), "bf16"), &exact));
    println!("losses {exact:.4?}; off by {gpu:.1e} on the GPU, by {cpu:.1e} on the CPU");
    assert!(gpu <= 2.0 * cpu, "losses are off by {gpu:e} on the GPU, by {cpu:e} on the CPU");
}

#[test]
fn a_checkpoint_moves_between_devices() {
    let world = world();
    let (recipe, whole, moved) = (recipe(&[]), world.path("whole"), world.path("moved"));
    let (outcome, wanted) = world.run_on(device(1), &recipe, &whole, StartMode::New, None).unwrap();
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    let mut losses = Vec::new();
    for (device, mode, stop) in [
        (device(1), StartMode::New, Some(5)),
        (gpu(), StartMode::Resume, Some(7)),
        (device(1), StartMode::Resume, None),
    ] {
        let (_, heard) = world.run_on(device, &recipe, &moved, mode, stop).unwrap();
        losses.extend(heard.steps.iter().map(|step| step.loss));
    }
    let wanted: Vec<f64> = wanted.steps.iter().map(|step| step.loss).collect();
    assert_eq!(losses.len(), wanted.len());
    assert_eq!(losses[..5], wanted[..5], "the first part also runs on the CPU");
    let off = distance(&losses, &wanted);
    assert!(off < 1e-6, "off by {off:e}: {losses:?} and {wanted:?}");
}

/// Few tokens and many applications of one layer: the plan joins the weight gradients of all of them. Computed one by one
/// they differ in the order of f32 sums, so the two losses end closer together than rounding to bf16 would leave them.
#[test]
fn a_plan_that_joins_weight_gradients_trains_as_well() {
    let world = world();
    let run = |device: Device, activations: &str, per_use: bool| {
        let recipe = recipe(&[
            "schedule.steps=5 model.num_hidden_layers=4 data.batch.max_tokens=40 data.batch.sequences_per_step=3",
            &format!("compute.precision={activations}"),
        ]);
        let mut trainer = world.trainer(&recipe, device);
        let joins = trainer.workspace().fuses_weight_gradients("train");
        if per_use {
            trainer.loaded.workspace.set_weight_gradients(engine::WeightGradients::PerUse);
        }
        for _ in 0..5 {
            trainer.train_step().unwrap();
        }
        assert!(per_use || trainer.workspace().arena().report().misses == 0, "the plan is not that of the step");
        trainer.download().unwrap();
        (joins, trainer.params().all_values().iter().map(|&x| f64::from(x)).collect::<Vec<_>>())
    };
    let (exact, cpu) = (run(device(1), "f32", false), run(device(1), "bf16", false));
    let (joined, apart) = (run(gpu(), "bf16", false), run(gpu(), "bf16", true));
    assert_eq!((exact.0, cpu.0, joined.0), (false, false, true));
    let (rounding, off) = (distance(&cpu.1, &exact.1), distance(&joined.1, &apart.1));
    println!("parameters differ by {off:.1e}, by {rounding:.1e} from rounding to bf16");
    assert!(off > 0.0, "both were taken in one way");
    assert!(off <= rounding, "parameters differ by {off:e}, by {rounding:e} from rounding to bf16");
}
