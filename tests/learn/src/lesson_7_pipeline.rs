//! Lesson 7: a pipeline of two stages, filled by asynchronous copies.

use ptx::sim::{Argument, Completion, Memory, Module, Options, Schedule};
use ptx::{Compare, F32, Fence, Launch, Sm, Special};

/// Stages of the pipeline: tile t is in stage t % 2.
pub(crate) const STAGES: u32 = 2;
const TILES: u32 = 6;
/// Bytes of a tile, an element for each consumer.
const BYTES: u32 = 4 * CONSUMERS;
const CONSUMERS: u32 = 32;

/// The parities for which the consumers and the producer wait before they use the stage of `tile`.
///
/// Phases of an mbarrier are numbered 0, 1, 2, ..; a wait for parity p passes if the last complete phase has parity p. Before
/// phase 0 is complete, a wait for parity 1 passes. Consumers wait for the phase of full in which the tile arrived, the producer
/// for the one of empty in which the previous tile of this stage was read.
fn exercise(tile: u32) -> [u32; 2] {
    // The gap: one parity for both, which flips with every tile.
    [tile % 2, tile % 2]
}

/// One thread copies tiles of x, 32 consumers add them.
fn kernel(parities: fn(u32) -> [u32; 2]) -> String {
    let mut module = ptx::Module::new(Sm::Sm90a);
    module.entry("sum", [2 * CONSUMERS, 1, 1], |k| {
        let (x, y) = (k.load_pointer("x"), k.load_pointer("y"));
        let [stages, full, empty] = [("stages", BYTES), ("full", 8), ("empty", 8)]
            .map(|(name, bytes)| (k.shared_array(name, STAGES * bytes, 16), bytes));
        let slot = |(first, bytes): (ptx::Ptr<ptx::Shared>, u32), tile: u32| first.at((tile % STAGES * bytes) as i32);
        let thread = k.special(Special::TidX);
        k.if_(k.setp(Compare::Eq, thread, 0), || {
            for stage in 0..STAGES {
                k.mbarrier_init(slot(full, stage), 1);
                k.mbarrier_init(slot(empty, stage), CONSUMERS);
            }
            k.fence(Fence::MbarrierInit);
        });
        k.bar_sync();
        k.if_(k.setp(Compare::Eq, thread, CONSUMERS), || {
            for tile in 0..TILES {
                k.mbarrier_wait(slot(empty, tile), parities(tile)[1]);
                k.mbarrier_arrive_expect(slot(full, tile), BYTES);
                k.bulk_load(slot(stages, tile), x.at((tile * BYTES) as i32), BYTES, slot(full, tile));
            }
        });
        k.if_(k.lt(thread, CONSUMERS), || {
            let sum = k.variable::<F32>("sum", 0.0);
            for tile in 0..TILES {
                k.mbarrier_wait(slot(full, tile), parities(tile)[0]);
                let stage = k.index(stages.0, thread, 4).at((tile % STAGES * BYTES) as i32);
                let [element] = k.ld::<F32, 1>(stage);
                k.add_into(sum, sum, element);
                k.mbarrier_arrive(slot(empty, tile));
            }
            k.st(k.index(y, thread, 4).at(0), [sum]);
        });
    });
    module.text()
}

/// Runs the kernel with several orders of the warps and ends of the copies.
pub(crate) fn check(parities: fn(u32) -> [u32; 2]) {
    let x: Vec<f32> = (0..TILES * CONSUMERS).map(|i| i as f32).collect();
    let launch = Launch { grid: [1, 1, 1], block: [2 * CONSUMERS, 1, 1], shared_bytes: 0 };
    let text = kernel(parities);
    let module = Module::parse(&text).expect("the assembler writes PTX");
    for (schedule, completion) in [
        (Options::default().schedule, Completion::Latest),
        (Schedule::Adversarial(1), Completion::Latest),
        (Schedule::Adversarial(2), Completion::Earliest),
    ] {
        let mut memory = Memory::new();
        let (from, to) = (memory.allocate_from("x", &x), memory.allocate_from("y", &[f32::NAN; CONSUMERS as usize]));
        let arguments = [Argument::U64(from), Argument::U64(to)];
        let options = Options { schedule, completion, ..Options::default() };
        let report =
            module.launch("sum", launch, &arguments, &mut memory, &options).expect("the launch fits the kernel");
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        let y = memory.read::<f32>(to).expect("y is a buffer");
        assert_eq!(y[1], (0..TILES).map(|tile| x[(tile * CONSUMERS + 1) as usize]).sum::<f32>());
    }
}

exercise_tests!(check(exercise), "deadlock: `mbarrier.try_wait.parity.shared::cta.b64` waits forever");
