//! Runs with several ranks, as threads: their files equal those of a run with one.

use super::*;
use crate::train::Worker;
use engine::Communicator;
use std::time::Duration;

/// Runs each of `recipes` on a separate rank with `threads` threads; the last rank receives a stop request after `stop_at`
/// steps. Results are in the order of ranks.
fn run_ranks(
    world: &World,
    recipes: &[&PretrainRecipe],
    folder: &Path,
    mode: StartMode,
    threads: usize,
    stop_at: Option<u64>,
) -> Vec<Result<Outcome<PretrainSummary>, PretrainError>> {
    std::thread::scope(|scope| {
        let ranks = Communicator::threads(recipes.len()).into_iter().zip(recipes);
        let spawn = |(communicator, recipe): (Communicator, &&'_ PretrainRecipe)| {
            communicator.set_timeout(Duration::from_secs(120));
            let (recipe, is_asked) = ((*recipe).clone(), communicator.rank() + 1 == recipes.len());
            scope.spawn(move || {
                let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
                // One rank receives the request, and all stop.
                let stop_at = stop_at.filter(|_| is_asked);
                let mut listener = Listener { stop: stop_at.map(|at| (stop, at)), ..Listener::default() };
                let worker = Worker { device: device(threads), communicator };
                pretrain(&recipe, &world.sources, (folder, mode), worker, stop, &mut listener)
            })
        };
        let running: Vec<_> = ranks.map(spawn).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Asserts that a run with several ranks writes the same files as a run in one process.
fn run_as(world: &World, recipe: &PretrainRecipe, ranks: usize, threads: usize, alone: &Path, what: &str) {
    let folder = world.path(what);
    for outcome in run_ranks(world, &vec![recipe; ranks], &folder, StartMode::New, threads, None) {
        assert!(matches!(outcome, Ok(Outcome::Finished(_))), "{what}: {outcome:?}");
    }
    assert_same(alone, &folder, what);
}

const LANES: &str = "data.batch={max_tokens=40,max_sequences=6,sequences_per_step=16,lanes=8} schedule.steps=9";

#[test]
fn any_number_of_ranks_gives_the_files_of_one() {
    let world = world();
    for (i, dtype) in ["f32", "bf16"].into_iter().enumerate() {
        let activations = format!("compute.precision={dtype}");
        let recipe = recipe(&[LANES, &activations]);
        let alone = world.path(&format!("alone-{i}"));
        world.run(&recipe, &alone, StartMode::New, 1, None).unwrap();
        for (ranks, threads) in [(1, 2), (2, 1), (2, 2), (3, 1), (4, 1), (5, 2), (8, 1)] {
            run_as(&world, &recipe, ranks, threads, &alone, &format!("{ranks} ranks of {threads} threads, {dtype}"));
        }
    }
}

/// In the last step of an epoch, some ranks have no sequence.
#[test]
fn the_end_of_an_epoch_is_that_of_one_process() {
    let world = world();
    let batch = "data.batch={max_tokens=512,max_sequences=16,sequences_per_step=512,lanes=8}";
    let recipe = recipe(&[batch, "schedule.steps=4 schedule.warmup_steps=1"]);
    let alone = world.path("alone");
    let (_, heard) = world.run(&recipe, &alone, StartMode::New, 1, None).unwrap();
    let sequences: Vec<u64> = heard.steps.iter().map(|step| step.sequences).collect();
    assert!(sequences.iter().any(|count| *count < 512 * 7 / 8), "no step leaves a rank of 8 without: {sequences:?}");
    for ranks in [3, 8] {
        run_as(&world, &recipe, ranks, 1, &alone, &format!("{ranks} ranks"));
    }
}

/// Each rank stores the moments of its part, and a checkpoint stores all. The run continues with other numbers of ranks.
#[test]
fn a_shared_optimizer_and_a_changed_number_of_ranks_give_the_files_of_one_process() {
    let world = world();
    for kind in ["lamb", "adamw"] {
        let kind_setting = format!("optimizer.kind={kind}");
        let whole = recipe(&[LANES, &kind_setting]);
        let shared = recipe(&[LANES, &kind_setting, "run.shard_optimizer=true"]);
        let (alone, parts) = (world.path(&format!("alone-{kind}")), world.path(&format!("parts-{kind}")));
        world.run(&whole, &alone, StartMode::New, 1, None).unwrap();
        let mut mode = StartMode::New;
        for (recipe, ranks, stop) in
            [(&shared, 4, Some(3)), (&whole, 2, Some(4)), (&shared, 3, Some(6)), (&shared, 8, None)]
        {
            for outcome in run_ranks(&world, &vec![recipe; ranks], &parts, mode, 1, stop) {
                match (stop, outcome.unwrap()) {
                    (None, Outcome::Finished(_)) => {}
                    (Some(at), Outcome::Stopped { summary, .. }) => assert_eq!(summary.step, at),
                    (_, other) => panic!("{ranks} ranks: {other:?}"),
                }
            }
            mode = StartMode::Resume;
        }
        assert_same(&alone, &parts, kind);
    }
}

#[test]
fn lanes_change_the_order_of_sums_and_nothing_else() {
    let world = world();
    let losses = |name: &str, lanes: &str| {
        let batch = format!("data.batch={{max_tokens=400,max_sequences=4,sequences_per_step=16,lanes={lanes}}}");
        let recipe = recipe(&[&batch, "model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0"]);
        let (_, heard) = world.run(&recipe, &world.path(name), StartMode::New, 1, None).unwrap();
        heard.steps.iter().map(|step| step.loss).collect::<Vec<_>>()
    };
    let (one, four) = (losses("one", "1"), losses("four", "4"));
    assert_ne!(one, four);
    assert!(one.iter().zip(&four).all(|(x, y)| (x - y).abs() < 1e-3), "{one:?}\n{four:?}");
}

#[test]
fn ranks_that_differ_and_more_ranks_than_lanes_are_refused() {
    let world = world();
    let (mine, theirs) = (recipe(&[LANES]), recipe(&[LANES, "seed=8"]));
    let folder = world.path("differ");
    let mut outcomes = run_ranks(&world, &[&mine, &theirs], &folder, StartMode::New, 1, None).into_iter();
    let message = outcomes.nth(1).unwrap().unwrap_err().to_string();
    assert!(message.contains("rank 0 has `config.seed` = 7, rank 1 has 8"), "{message}");
    assert!(!folder.join("metrics.jsonl").exists(), "nothing is written");
    let recipe = recipe(&["schedule.steps=2"]);
    for outcome in run_ranks(&world, &[&recipe; 2], &world.path("few"), StartMode::New, 1, None) {
        let message = outcome.unwrap_err().to_string();
        assert!(message.contains("set data.batch.lanes = 2"), "{message}");
    }
}
