//! The host's part of a training step and of inference on a GPU, measured with a driver that does nothing (`tests/fake/cuda.rs`):
//! driver calls and heap allocations of a step, and the program's time between launches. `cargo test --release -p albert-tests --test
//! gpu_host -- --nocapture` prints them.
//!
//! Steady state: the steps after the first four, which build the kernels and fill the free lists of memory, without the last, for
//! which the end of the run waits. Batches are ragged, so counts differ between steps, and limits are on the mean. Limits are the
//! measured values.
#![allow(unsafe_code)]

use albert::{
    data::Objective,
    embed::Embedder,
    fill_mask::MaskFiller,
    pretrain::{PretrainFigures, PretrainRecipe, PretrainSources, Pretraining, pretrain, sentence_accuracy},
    tokenizer::Tokenizer,
    train::{Observer, Outcome, Setting, StartMode, StepReport},
};
use albert_tasks::{
    files::Text,
    finetune::{Examples, Predictor},
};
use albert_tests::{
    allocator::{Counting, arm_from, disarm},
    fake::compile,
    program::run,
    run_folder::World,
};
use engine::device::{PtxKernel, driver::Value};
use engine::{Cpu, Device, Isa, ParamBuilder, Precision, Workspace};
use ptx::{Launch, Module, Sm};
use std::{fs, path::Path, sync::atomic::AtomicBool};

#[path = "../fake/cuda_counts.rs"]
mod counts;
use counts::Counts;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The loaded library, which remains loaded for the lifetime of the process.
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
    /// Heap allocations of each step that built no kernel. Writing the text of a kernel takes thousands, and a batch whose size
    /// needs another tile or cluster may come late.
    allocations: Vec<usize>,
}

impl Observer<Pretraining> for Watch<'_> {
    fn stepped(&mut self, report: &StepReport<PretrainFigures>) {
        let (allocations, _) = disarm();
        if report.step > LAST {
            return;
        }
        let earlier = std::mem::replace(&mut self.after, (self.fake.0)());
        match report.step {
            ..FIRST => return,
            FIRST => self.before = self.after,
            _ if earlier.modules == self.after.modules => self.allocations.push(allocations),
            _ => {}
        }
        arm_from(1);
    }
}

/// Maximum counts of a step.
#[derive(Clone, Copy)]
struct Limits {
    launches: f64,
    uploads: f64,
    reads: f64,
    waits: f64,
    maps: f64,
    allocations: f64,
    /// Microseconds that the program spends before a launch.
    between: f64,
}

fn measure(world: &World, fake: &Fake, (sequences, length): (usize, usize), most: &Limits) -> Vec<String> {
    let settings = format!(
        "compute.precision=bf16 data.instances.max_sequence_length={length} data.batch.sequences_per_step={sequences} \
         data.batch.lanes=1 data.batch.max_tokens={} data.batch.max_sequences={sequences} schedule.steps={} schedule.warmup_steps=1 \
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
    let mut watch = Watch { fake, before: Counts::NONE, after: Counts::NONE, allocations: Vec::new() };
    let folder = world.path(&format!("run-{sequences}x{length}"));
    let outcome = pretrain(&recipe, &sources, (&folder, StartMode::New), device.clone(), &stop, &mut watch).unwrap();
    assert!(matches!(outcome, Outcome::Finished(_)), "{outcome:?}");
    let Watch { before, after, allocations, .. } = watch;
    let held_out = measure_held_out(fake, (&folder, &recipe), &sources, device);
    let a_step = |count: u64| count as f64 / (LAST - FIRST) as f64;
    let [launches, uploads, reads, waits, maps] = [
        after.launches - before.launches,
        after.uploads - before.uploads,
        after.reads - before.reads,
        after.waits - before.waits,
        after.maps - before.maps,
    ]
    .map(a_step);
    let allocations = allocations.iter().sum::<usize>().checked_div(allocations.len()).expect("a steady step") as f64;
    let of_ours = after.launches - before.launches - (after.long - before.long);
    let between = (after.between - before.between) as f64 / 1e3 / of_ours as f64;
    let early = a_step(after.early - before.early);
    println!(
        "base {sequences}x{length}, {} kernels built, a step: {launches} launches, {early} of them early, {uploads} uploads of {:.0} bytes, {reads} reads, {waits} waits, {} reads without a wait, {} fills, {maps} maps, \
         {} context calls, {} of memory, {} calls in all, {allocations} heap allocations, {between:.2} us of ours a launch",
        after.modules - before.modules,
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
    .chain(held_out)
    .collect()
}

/// Data read later equals the uploaded data: through more slots than exist at a time, of many sizes, and beyond the largest.
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

/// Parameters that are read past the arguments would be other memory; kernels of two types may have one name.
fn arguments_are_counted() {
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    struct Of<const PARAMETERS: usize>;
    impl<const PARAMETERS: usize> PtxKernel for Of<PARAMETERS> {
        fn entry(&self) -> String {
            "counted".to_owned()
        }
        fn module(&self, sm: Sm) -> Module {
            let mut module = Module::new(sm);
            module.entry("counted", [32, 1, 1], |k| {
                (0..PARAMETERS).for_each(|i| drop(k.pointer_param(&format!("p{i}"))));
            });
            module
        }
    }
    let device = Device::named("cuda", Cpu::new(Isa::choose().unwrap(), 1).unwrap()).unwrap();
    let gpu = device.gpu().unwrap();
    let launch = Launch { grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
    for count in [0, 1, 3] {
        let error = gpu.launch_ptx(&Of::<2>, launch, &vec![Value::U32(0); count]).unwrap_err().to_string();
        assert!(error.contains(&format!("{count} arguments; expected 2")), "{error}");
    }
    gpu.launch_ptx(&Of::<2>, launch, &[Value::U32(0); 2]).unwrap();
    gpu.launch_ptx(&Of::<1>, launch, &[Value::U32(0)]).unwrap();
}

/// An evaluation on held-out text, including the loading of its model: waits are those of loading and of the last batch, for 2
/// batches and for 73.
fn measure_held_out(
    fake: &Fake,
    (folder, recipe): (&Path, &PretrainRecipe),
    sources: &PretrainSources,
    device: Device,
) -> Option<String> {
    let before = (fake.0)();
    sentence_accuracy(folder, recipe, sources, Objective::Sop, device).unwrap();
    let after = (fake.0)();
    let [reads, waits, later_reads] =
        [after.reads - before.reads, after.waits - before.waits, after.later_reads - before.later_reads];
    println!("held-out text: {later_reads} reads without a wait, {reads} reads, {waits} waits");
    (reads > 0 || waits > 9)
        .then(|| format!("held-out text: {reads} reads and {waits} waits; expected at most 0 and 9"))
}

/// Checks the counts of inference batches since `before`; the host waits for the last `end` ones. Each has one upload and one
/// read without a wait, and no memory allocation by the driver.
fn check_batches(what: &str, before: Counts, after: Counts, end: u64) -> Option<String> {
    let [uploads, later_reads, reads, waits, allocations, launches] = [
        after.uploads - before.uploads,
        after.later_reads - before.later_reads,
        after.reads - before.reads,
        after.waits - before.waits,
        after.allocations - before.allocations,
        after.launches - before.launches,
    ];
    let counts = format!(
        "{what}, {uploads} uploads: {later_reads} reads without a wait, {reads} reads, {waits} waits, {allocations} allocations, {} launches each",
        launches as f64 / uploads as f64
    );
    println!("{counts}");
    let is_right = uploads >= 8 && uploads == later_reads && reads == 0 && waits <= end && allocations == 0;
    (!is_right).then(|| {
        format!("{counts}; expected as many reads without a wait, no other, at most {end} waits and no allocation")
    })
}

/// Inference with the model of base trained first: batches of a stream, and of an evaluation.
fn measure_inference(world: &World, fake: &Fake) -> Vec<String> {
    let device = || Device::named("cuda", Cpu::new(Isa::choose().unwrap(), 1).unwrap()).unwrap();
    let model = world.path("run-1x512");
    let text = fs::read_to_string(world.path("text.txt")).unwrap();
    let texts: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let mut embedder = Embedder::load(&model, None, device()).unwrap();
    embedder.set_precision(Precision::Bf16).unwrap();
    let (mut begun, mut before) = (None, Counts::NONE);
    for (at, texts) in texts.chunks(512).take(10).enumerate() {
        let next = embedder.embed_later(texts, false).unwrap();
        begun.replace(next).map(|earlier| earlier(&embedder).unwrap());
        if at == 5 {
            before = (fake.0)();
        }
    }
    let mut problems = vec![check_batches("embed", before, (fake.0)(), 0)];
    drop(begun);

    let mut filler = MaskFiller::load(&model, device()).unwrap();
    let mut begun = None;
    for at in 0..24 {
        let next = filler.fill_later("the [MASK] of the river", 3).unwrap();
        begun.replace(next).map(|earlier| earlier(&filler).unwrap());
        if at == 8 {
            before = (fake.0)();
        }
    }
    problems.push(check_batches("fill-mask", before, (fake.0)(), 0));
    drop(begun);

    for name in ["task/train.tsv", "task/dev.tsv"] {
        world.write(name, "text\tlabel\nrain\twet\nsun\tdry\n");
    }
    let [task, tuned] = ["task", "tuned"].map(|name| world.text_path(name));
    run(&format!("finetune classify --model {} --data {task} -o {tuned} --steps 1", model.display())).succeeds();
    let mut predictor = Predictor::load(&[world.path("tuned")], &device()).unwrap();
    let text = |text: &&str| Text { id: String::new(), first: (*text).to_owned(), second: None, label: None };
    let examples = Examples::Texts(texts.iter().take(4000).map(text).collect());
    for _ in 0..2 {
        before = (fake.0)();
        predictor.predict(&examples).unwrap();
    }
    problems.push(check_batches("an evaluation", before, (fake.0)(), 1));
    problems.into_iter().flatten().collect()
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
    arguments_are_counted();
    // A step with a number of tokens that occurred before encodes no tensor map; at 64x512 no number occurs twice.
    let (launches, uploads, reads, waits, maps, allocations, between) = (240.0, 1.0, 0.0, 0.0, 26.0, 130.0, 0.4);
    let small = Limits { launches, uploads, reads, waits, maps, allocations, between };
    let large = Limits { launches: 246.0, maps: 206.0, allocations: 134.0, ..small };
    let mut problems = measure(&world, &fake, (1, 512), &small);
    problems.extend(measure(&world, &fake, (64, 512), &large));
    problems.extend(measure_inference(&world, &fake));
    let Counts { early, unordered, .. } = (fake.0)();
    if early == 0 || unordered > 0 {
        problems.push(format!(
            "{early} launches may start before the previous one is complete, which disagrees with the kernel's text {unordered} \
             times; expected some, and 0"
        ));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
