//! The host's part of a training step on a GPU, measured with a driver that does nothing (`tests/fake/cuda.rs`): driver calls
//! and heap allocations of a step, and our own time between launches. `cargo test --release -p albert-tests --test gpu_host
//! -- --nocapture` prints them.
//!
//! Steady state: the steps after the first four, which build most kernels and fill the free lists of memory, without the last, which
//! the end of the run waits for. Batches are ragged, so counts differ from step to step, and limits are on the mean. Limits are
//! what was reached.
#![allow(unsafe_code)]

use albert::{
    pretrain::{PretrainFigures, PretrainRecipe, PretrainSources, Pretraining, pretrain},
    tokenizer::Tokenizer,
    train::{Observer, Outcome, Setting, StartMode, StepReport},
};
use albert_tests::{
    allocator::{Counting, arm_from, disarm},
    fake::compile,
    program::run,
    run_folder::World,
};
use engine::{Cpu, Device, Isa, ParamBuilder, Workspace};
use std::{fs, path::Path, sync::atomic::AtomicBool};

#[path = "../fake/cuda_counts.rs"]
mod counts;
use counts::Counts;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The loaded library; it stays for as long as the process.
struct Fake(extern "C" fn() -> Counts);

impl Fake {
    /// Compiles and loads it; `None` without a compiler.
    fn load(folder: &Path) -> Option<Self> {
        let library = folder.join("fake.so");
        if !compile("cuda.rs", &library, &["-O", "-C", "link-arg=-Wl,-soname,libcuda.so"], &[]) {
            return None;
        }
        // SAFETY: the library has no initializers; its function has the declared type, and the library is never closed.
        unsafe {
            let library = Box::leak(Box::new(libloading::Library::new(&library).expect("it was just compiled")));
            Some(Self(*library.get("fake_cuda_counts").expect("the source has it")))
        }
    }
}

const FIRST: u64 = 4;
const LAST: u64 = 12;

struct Watch<'a> {
    fake: &'a Fake,
    before: Counts,
    after: Counts,
    allocations: usize,
}

impl Observer<Pretraining> for Watch<'_> {
    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        match report.step {
            FIRST => {
                self.before = (self.fake.0)();
                arm_from(1);
            }
            LAST => {
                self.allocations = disarm().0;
                self.after = (self.fake.0)();
            }
            _ => {}
        }
    }
}

/// Most that a step does.
#[derive(Clone, Copy)]
struct Limits {
    launches: f64,
    uploads: f64,
    reads: f64,
    waits: f64,
    maps: f64,
    allocations: f64,
    /// Microseconds of our own before a launch.
    between: f64,
}

fn measure(world: &World, fake: &Fake, (sequences, length): (usize, usize), most: &Limits) -> Vec<String> {
    let settings = format!(
        "compute.precision=bf16 data.instances.max_sequence_length={length} data.batch.sequences_per_step={sequences} \
         data.batch.lanes=1 data.batch.max_tokens={} \
         data.batch.max_sequences={sequences} schedule.steps={} schedule.warmup_steps=1 \
         evaluation.interval=0 run.checkpoint_interval=0 run.log_interval=1000",
        sequences * length,
        LAST + 1
    );
    let settings: Vec<&str> = settings.split_whitespace().collect();
    let recipe = PretrainRecipe::named("base", &Setting::all(&settings).unwrap()).unwrap();
    let tokenizer = Tokenizer::load(&world.path("tokenizer.json")).unwrap();
    let recipe = recipe.with_vocabulary(tokenizer.vocab_size()).unwrap();
    let sources = PretrainSources::open(&world.path("data"), &tokenizer).unwrap();
    let device = Device::named("cuda", Cpu::new(Isa::choose().unwrap(), 1).unwrap()).unwrap();
    let stop = AtomicBool::new(false);
    let mut watch = Watch { fake, before: Counts::NONE, after: Counts::NONE, allocations: 0 };
    let folder = world.path(&format!("run-{sequences}x{length}"));
    let outcome = pretrain(&recipe, &sources, (&folder, StartMode::New), device, &stop, &mut watch).unwrap();
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    let Watch { before, after, allocations, .. } = watch;
    let a_step = |count: u64| count as f64 / (LAST - FIRST) as f64;
    let [launches, uploads, reads, waits, maps] = [
        after.launches - before.launches,
        after.uploads - before.uploads,
        after.reads - before.reads,
        after.waits - before.waits,
        after.maps - before.maps,
    ]
    .map(a_step);
    let allocations = a_step(allocations as u64);
    let of_ours = after.launches - before.launches - (after.long - before.long);
    let between = (after.between - before.between) as f64 / 1e3 / of_ours as f64;
    println!(
        "base {sequences}x{length}, a step: {launches} launches, {uploads} uploads of {:.0} bytes, {reads} reads, {waits} waits, {} reads without a wait, {} fills, {maps} maps, \
         {} context calls, {} of memory, {} calls in all, {allocations} heap allocations, {between:.2} us of ours a launch",
        a_step(after.uploaded_bytes - before.uploaded_bytes),
        a_step(after.later_reads - before.later_reads),
        a_step(after.fills - before.fills),
        a_step(after.contexts - before.contexts),
        a_step(after.allocations - before.allocations),
        a_step(after.calls - before.calls)
    );
    [
        ("launches", launches, most.launches),
        ("uploads", uploads, most.uploads),
        ("reads", reads, most.reads),
        ("waits", waits, most.waits),
        ("tensor maps", maps, most.maps),
        ("heap allocations", allocations, most.allocations),
        ("us of ours before each launch", between, most.between),
    ]
    .into_iter()
    .filter(|(_, count, most)| count > most)
    .map(|(what, count, most)| format!("{sequences}x{length}, a step: {count} {what}; expected at most {most}"))
    .collect()
}

/// What is read later is what was uploaded, through more slots than there are at once, of many sizes, and past the largest.
fn copies_are_whole() {
    let device = Device::named("cuda", Cpu::new(Isa::choose().unwrap(), 1).unwrap()).unwrap();
    let params = ParamBuilder::new().build(device.processor(), 0).unwrap();
    let mut workspace = Workspace::new(device);
    let tape = workspace.infer(&params, None);
    let input =
        |count: usize, first: u32| -> Vec<u32> { (0..count as u32).map(|i| first ^ i.rotate_left(7)).collect() };
    let sizes = [1, 70_000, 3, 20_000, 16_384, 5_000_000, 40_000, 2, 1, 1, 70_001, 9, 10, 11];
    let mut readings = Vec::new();
    for (i, &count) in sizes.iter().enumerate() {
        let reading = |first| tape.input([count], &input(count, first)).unwrap().value().read_later::<u32>().unwrap();
        drop(reading(1));
        readings.push(reading(i as u32));
    }
    for (i, reading) in readings.into_iter().enumerate().rev() {
        assert!(reading.wait().unwrap() == input(sizes[i], i as u32), "{} numbers", sizes[i]);
    }
}

#[test]
fn a_step_on_a_gpu_costs_the_host_few_calls() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/data/public_domain.txt")).unwrap();
    let world = World::of_text(&text.lines().take(8000).collect::<Vec<_>>().join("\n"));
    let Some(fake) = Fake::load(&world.path("")) else { return };
    let [text, tokenizer, data] = ["text.txt", "tokenizer.json", "data"].map(|name| world.text_path(name));
    run(&format!("tokenizer train {text} --vocab-size 1000 -o {tokenizer}")).succeeds();
    run(&format!("data build {text} --tokenizer {tokenizer} -o {data}")).succeeds();
    copies_are_whole();
    let (launches, uploads, reads, waits, maps, allocations, between) = (261.0, 1.0, 0.0, 0.0, 360.0, 1000.0, 0.4);
    let small = Limits { launches, uploads, reads, waits, maps, allocations, between };
    let large = Limits { launches: 270.0, allocations: 1800.0, ..small };
    let mut problems = measure(&world, &fake, (1, 512), &small);
    problems.extend(measure(&world, &fake, (64, 512), &large));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
