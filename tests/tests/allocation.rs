//! Memory of a training step: after the first step no thread makes a large heap allocation, and the memory use printed
//! before the first step is the actual use.
//!
//! Measured: increase of the peak of live heap bytes, including the arena, from before the model is built to the last
//! step. Mapped files (the shards) and stacks are not included. Predicted: `MemoryPlan::total`.

use std::{panic::resume_unwind, path::Path, sync::atomic::AtomicBool, thread};

use albert::{
    pretrain::{PretrainDetails, PretrainFigures, PretrainRecipe, PretrainSources, Pretraining, pretrain},
    tokenizer::Tokenizer,
    train::{MemoryPlan, Observer, Outcome, Setting, StartMode, Started, StepReport},
};
use albert_tests::{
    allocator::{Counting, arm, disarm, live_and_peak, reset_peak},
    run_folder::World,
};
use engine::{Cpu, Device, Isa};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const STEPS: u64 = 6;

/// Counts between the end of the first step and the end of the last.
#[derive(Default)]
struct Measure {
    plan: MemoryPlan,
    large: (usize, usize),
    peak: usize,
    tokens: u64,
}

impl Observer<Pretraining> for Measure {
    fn started(&mut self, started: &Started<'_, PretrainDetails>) {
        self.plan = started.memory;
    }
    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        self.tokens += report.tokens;
        match report.step {
            1 => arm(),
            STEPS => {
                self.large = disarm();
                self.peak = live_and_peak().1;
            }
            _ => {}
        }
    }
}

/// Wide enough that all other memory of a run (names, tables, a log) is small compared with tensors.
const MODEL: &str = "model.hidden_size=128 model.embedding_size=64 model.num_attention_heads=4 data.batch.max_tokens=2048 \
                     data.batch.max_sequences=64 data.batch.sequences_per_step=64 evaluation.interval=0 \
                     run.checkpoint_interval=0 run.log_interval=1000";

/// Runs a variant on `threads` new threads, which `kept` keeps alive: an ending thread frees its memory at an unknown time.
fn measure(world: &World, folder: &Path, threads: usize, variant: &str, kept: &mut Vec<Device>) -> (Measure, usize) {
    let settings = format!("{MODEL} schedule.steps={STEPS} {variant}");
    let settings: Vec<&str> = settings.split_whitespace().collect();
    let text = std::fs::read_to_string(world.path("recipe.toml")).unwrap();
    let recipe = PretrainRecipe::from_toml(&text, &Setting::all(&settings).unwrap()).unwrap();
    let tokenizer = Tokenizer::load(&world.path("tokenizer.json")).unwrap();
    let sources = PretrainSources::open(&world.path("data"), &tokenizer).unwrap();
    let device = Device::Cpu(Cpu::new(Isa::choose().unwrap(), threads).unwrap());
    kept.push(device.clone());
    let stop = AtomicBool::new(false);
    let mut measured = Measure::default();
    let (before, _) = live_and_peak();
    reset_peak();
    let outcome = pretrain(&recipe, &sources, (folder, StartMode::New), device, &stop, &mut measured).unwrap();
    assert!(matches!(outcome, Outcome::Finished(_)), "{variant:?}: {outcome:?}");
    (measured, before)
}

#[test]
fn a_warm_step_asks_for_nothing_large_and_the_plan_is_what_a_run_takes() {
    let world = World::new();
    let (mut problems, mut kept) = (Vec::new(), Vec::new());
    for (i, (threads, variant)) in [
        (1, ""),
        (2, "compute.checkpointing=none"),
        (2, "compute.checkpointing=layer model.num_hidden_layers=6"),
        (2, "compute.precision=bf16"),
        (2, "model.sharing=none optimizer.kind=adamw"),
        (2, "data.batch.sequences_per_step=200"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = world.path(&format!("run-{i}"));
        // The caller is one of the threads and keeps its scratch memory, so each run has a new caller.
        let run = || measure(&world, &folder, threads, variant, &mut kept);
        let joined = thread::scope(|scope| scope.spawn(run).join());
        let (measured, before) = joined.unwrap_or_else(|panic| resume_unwind(panic));
        let (count, largest) = measured.large;
        let (peak, planned) = (measured.peak - before, measured.plan.total());
        let ratio = planned as f64 / peak as f64;
        println!("{variant:?}: {count} large requests; planned {planned}, measured {peak} bytes, ratio {ratio:.4}");
        assert!(measured.tokens > 10_000, "{variant:?}: {} tokens are too few", measured.tokens);
        if count > 0 {
            problems.push(format!("{variant:?}: {count} requests of 4 KiB or more, the largest of {largest} bytes"));
        }
        if (ratio - 1.0).abs() > 0.05 {
            problems.push(format!("{variant:?}: planned {planned} bytes, measured {peak}; {:?}", measured.plan));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
