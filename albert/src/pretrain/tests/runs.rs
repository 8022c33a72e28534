//! Whole runs: learning, determinism, interruption, damage, rejected settings.

use super::*;

#[test]
fn learns_what_follows_from_the_context() {
    let world = world();
    let recipe = recipe(&[
        "schedule.steps=500 schedule.warmup_steps=20 evaluation.interval=100 run.checkpoint_interval=0",
        "data.batch={max_tokens=512,max_sequences=24,sequences_per_step=24}",
        "optimizer.kind=adamw optimizer.learning_rate=0.005 optimizer.bias_correction=true",
        "model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0",
    ]);
    let folder = world.path("run");
    let (outcome, heard) = world.run(&recipe, &folder, StartMode::New, 2, None).unwrap();
    let Outcome::Finished(summary) = outcome else { panic!("{outcome:?}") };
    let last = summary.evaluation.unwrap().figures;
    assert!(last.mlm_loss < last.unigram_loss - 0.5, "MLM loss {} against {}", last.mlm_loss, last.unigram_loss);
    let (accuracy, error) = (last.sentence.accuracy.unwrap(), last.sentence.standard_error.unwrap());
    assert!(accuracy > 0.5 + 3.0 * error, "sentence order {accuracy} ± {error} over {}", last.sentence.count);
    assert_eq!(heard.steps.len(), 500);
    assert!(heard.steps.iter().all(|step| step.sequences > 0 && step.sequences <= 24));
    // The folder is complete, and the model opens as a Hugging Face folder.
    for name in ["config.toml", "metrics.jsonl", "curves.svg", "config.json", "model.safetensors", "tokenizer.json"] {
        assert!(folder.join(name).is_file(), "{name} is missing");
    }
    assert!(std::fs::read_dir(&folder).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().contains("tfevents")));
    let again = PretrainRecipe::from_toml(&std::fs::read_to_string(folder.join("config.toml")).unwrap(), &[]).unwrap();
    assert_eq!(again.fingerprint(), recipe.with_vocabulary(PIECES as usize).unwrap().fingerprint());
    assert_eq!(ModelFolder::open(&folder).unwrap().heads(), Heads::PRE_TRAINING);
}

#[test]
fn is_bit_identical_for_any_thread_count() {
    let world = world();
    for (threads, name) in [(1, "one"), (2, "two"), (5, "five")] {
        world.run(&recipe(&[]), &world.path(name), StartMode::New, threads, None).unwrap();
        assert_same(&world.path("one"), &world.path(name), &format!("{threads} threads"));
    }
}

#[test]
fn interrupted_and_resumed_ends_as_if_nothing_had_happened() {
    let world = world();
    for variant in
        [&[][..], &["optimizer.kind=adamw", "optimizer.bias_correction=true", "data.instances.objective=\"sop\""]]
    {
        let recipe = recipe(variant);
        let whole = world.path(&format!("whole-{}", variant.len()));
        world.run(&recipe, &whole, StartMode::New, 1, None).unwrap();
        let parts = world.path(&format!("parts-{}", variant.len()));
        let mut mode = StartMode::New;
        for stop in [1, 5, 7, 11] {
            let (outcome, heard) = world.run(&recipe, &parts, mode, 2, Some(stop)).unwrap();
            assert!(matches!(&outcome, Outcome::Stopped { summary, .. } if summary.step == stop), "{outcome:?}");
            assert_eq!(heard.saved.last(), Some(&stop));
            // The recipe names a preset and omits a setting of the recipe with that name: the run warns once.
            let said = heard.warnings.concat().contains("`model.preset = \"tiny\"` sets the shape of the model only");
            assert_eq!(said, variant.is_empty() && mode == StartMode::New, "{:?}", heard.warnings);
            mode = StartMode::Resume;
        }
        let (outcome, heard) = world.run(&recipe, &parts, mode, 1, None).unwrap();
        assert!(matches!(outcome, Outcome::Finished(_)));
        assert_eq!((heard.first_step, heard.steps.len()), (11, 3));
        assert_same(&whole, &parts, "stopped four times");
        // A completed run has nothing left to do and prints the same messages.
        let (outcome, heard) = world.run(&recipe, &parts, StartMode::Resume, 1, None).unwrap();
        assert!(matches!(outcome, Outcome::Finished(_)) && heard.steps.is_empty());
        assert_same(&whole, &parts, "resumed at its end");
    }
}

#[test]
fn patience_ends_a_run_that_does_not_improve() {
    let world = world();
    // Updates this small do not change any weight: every evaluation is a tie.
    let recipe = recipe(&["evaluation.interval=2", "evaluation.patience=2", "optimizer.learning_rate=1e-30"]);
    let folder = world.path("run");
    let (outcome, heard) = world.run(&recipe, &folder, StartMode::New, 1, None).unwrap();
    let Outcome::Finished(summary) = outcome else { panic!("{outcome:?}") };
    assert_eq!((summary.step, summary.stopped_early, heard.evaluations.len()), (6, true, 3));
    let (outcome, heard) = world.run(&recipe, &folder, StartMode::Resume, 1, None).unwrap();
    assert!(matches!(outcome, Outcome::Finished(again) if again == summary));
    assert_eq!(heard.steps.len(), 0);
}

/// A kill leaves metrics of later steps than the checkpoint, half a line and half a checkpoint, or no checkpoint.
#[test]
fn a_killed_run_resumes_from_the_last_whole_checkpoint_or_begins_again() {
    let world = world();
    let recipe = recipe(&[]);
    let (whole, killed, early) = (world.path("whole"), world.path("killed"), world.path("early"));
    world.run(&recipe, &whole, StartMode::New, 1, None).unwrap();
    world.run(&recipe, &killed, StartMode::New, 1, Some(10)).unwrap();
    let checkpoints = Checkpoints::of_run(&killed);
    assert_eq!(checkpoints.steps().unwrap(), [10, 8]);
    let bytes = std::fs::read(checkpoints.path(10)).unwrap();
    std::fs::write(checkpoints.path(10), &bytes[..bytes.len() / 2]).unwrap();
    let metrics = std::fs::read_to_string(killed.join("metrics.jsonl")).unwrap();
    std::fs::write(killed.join("metrics.jsonl"), format!("{metrics}{{\"kind\":\"tra")).unwrap();
    std::fs::create_dir(&early).unwrap();
    std::fs::write(early.join("metrics.jsonl"), &metrics).unwrap();
    for (folder, first_step) in [(&killed, 8), (&early, 0)] {
        let (_, heard) = world.run(&recipe, folder, StartMode::Resume, 1, None).unwrap();
        assert_eq!((heard.first_step, heard.damaged.len()), (first_step, usize::from(folder == &killed)));
        assert_same(&whole, folder, &format!("resumed at step {first_step}"));
    }
}

/// The last step writes a checkpoint but is not due for an evaluation.
#[test]
fn a_finished_run_evaluates_its_end_once_however_often_it_is_resumed() {
    let world = world();
    let recipe = recipe(&["run.checkpoint_interval=7", "evaluation.interval=5", "schedule.steps=14"]);
    let (whole, folder) = (world.path("whole"), world.path("run"));
    world.run(&recipe, &whole, StartMode::New, 1, None).unwrap();
    world.run(&recipe, &folder, StartMode::New, 1, None).unwrap();
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let at_end = |text: &str| text.matches(r#""kind":"evaluation","step":14,"#).count();
    assert_eq!(at_end(&metrics), 1, "{metrics}");
    for _ in 0..2 {
        let (_, heard) = world.run(&recipe, &folder, StartMode::Resume, 1, None).unwrap();
        assert_eq!((heard.evaluations.len(), heard.saved.len(), heard.notes), (0, 0, Vec::new()));
        assert_eq!(std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap(), metrics);
    }
    // Killed after the last evaluation was recorded and before the checkpoint that counts it.
    let checkpoints = Checkpoints::of_run(&folder);
    std::fs::remove_file(checkpoints.path(14)).unwrap();
    let (_, heard) = world.run(&recipe, &folder, StartMode::Resume, 1, None).unwrap();
    assert_eq!(heard.first_step, 7);
    assert!(heard.notes.concat().contains("cut off after step 7: "), "{:?}", heard.notes);
    assert_same(&whole, &folder, "killed at its end");
    // A record that the checkpoint does not count, from a version that saved before it evaluated.
    let last = metrics.lines().last().unwrap();
    std::fs::write(folder.join("metrics.jsonl"), format!("{metrics}{last}\n")).unwrap();
    world.run(&recipe, &folder, StartMode::Resume, 1, None).unwrap();
    assert_same(&whole, &folder, "with a record too many");
}

#[test]
fn figures_of_sentences_are_called_by_their_objective() {
    let world = world();
    for (objective, name, other) in [("nsp", "nsp_accuracy", "sop_"), ("sop", "sop_accuracy", "nsp_")] {
        let (recipe, folder) = (recipe(&[&format!("data.instances.objective={objective}")]), world.path(objective));
        let (_, heard) = world.run(&recipe, &folder, StartMode::New, 1, None).unwrap();
        let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
        let lines = text.lines().count();
        assert_eq!((text.matches(name).count(), text.matches(other).count()), (lines, 0), "{text}");
        assert_eq!(heard.steps[0].figures.sentence.objective.name().to_lowercase(), objective);
        assert!(heard.evaluations.iter().all(|(record, _)| record.figures.sentence.count > 0));
    }
}

#[test]
fn a_change_of_the_number_of_steps_is_repeated_by_the_recipe_that_the_run_leaves() {
    let world = world();
    let run = |name: &str, steps: u64, stop_at: Option<u64>| {
        let stop = AtomicBool::new(false);
        let stop_at = stop_at.map(|at| (&stop, at));
        let mut observer = Listener { stop: stop_at, replan: Some((6, steps)), ..Listener::default() };
        pretrain(&recipe(&[]), &world.sources, (&world.path(name), StartMode::New), device(1), &stop, &mut observer)
            .unwrap()
    };
    let left_by = |name: &str| {
        let text = std::fs::read_to_string(world.path(name).join("config.toml")).unwrap();
        PretrainRecipe::from_toml(&text, &[]).unwrap()
    };
    for steps in [9, 21] {
        let [changed, repeated, stopped] = ["changed", "repeated", "stopped"].map(|name| format!("{name}-{steps}"));
        let Outcome::Finished(summary) = run(&changed, steps, None) else { panic!("{steps} steps were planned") };
        assert_eq!(summary.step, steps);
        let own = left_by(&changed);
        assert_eq!(own.schedule.replans, [Replan { after: 6, steps }]);
        let records: Vec<PretrainRecord> = read_metrics(&world.path(&changed).join("metrics.jsonl")).unwrap();
        let evaluated = records.into_iter().filter_map(|record| match record {
            Record::Evaluation(record) => Some(record.step),
            Record::Train(_) => None,
        });
        let due = (1..=steps).filter(|&step| step % 5 == 0 || step == steps);
        assert!(evaluated.eq(due), "evaluated after every step behind the first plan");
        world.run(&own, &world.path(&repeated), StartMode::New, 1, None).unwrap();
        assert_same(&world.path(&changed), &world.path(&repeated), "repeated from its recipe");
        // Stopped after the change; then as if killed: the checkpoint is older than the change, config.toml is not.
        run(&stopped, steps, Some(7));
        std::fs::remove_file(Checkpoints::of_run(&world.path(&stopped)).path(7)).unwrap();
        assert_eq!(Checkpoints::of_run(&world.path(&stopped)).steps().unwrap(), [4]);
        world.run(&left_by(&stopped), &world.path(&stopped), StartMode::Resume, 1, None).unwrap();
        assert_same(&world.path(&changed), &world.path(&stopped), "killed after the change");
    }
    for (after, steps) in [(0, 9), (6, 5), (6, 1)] {
        let wrong = format!("schedule.replans=[{{after={after}, steps={steps}}}]");
        let error = PretrainRecipe::from_toml(RECIPE, &[wrong.parse().unwrap()]).unwrap_err().to_string();
        assert!(error.contains("schedule.replans"), "{error}");
    }
}

#[test]
fn a_diverging_run_stops_and_keeps_the_last_good_checkpoint() {
    let world = world();
    let folder = world.path("run");
    let recipe = recipe(&[
        "optimizer.kind=adamw optimizer.learning_rate=10 optimizer.clip_norm=0 run.divergence_margin=0.5",
        "schedule.steps=400 schedule.warmup_steps=0 run.checkpoint_interval=20 evaluation.interval=0",
    ]);
    let (outcome, heard) = world.run(&recipe, &folder, StartMode::New, 1, None).unwrap();
    let Outcome::Diverged { problem, step, checkpoint } = outcome else { panic!("{outcome:?}") };
    assert!(problem.contains("not finite") || problem.contains("above its lowest value"), "{problem}");
    assert!(step <= 400 && checkpoint.as_deref().is_none_or(Path::is_file), "{step}, {checkpoint:?}");
    assert_eq!(checkpoint.is_some(), !heard.saved.is_empty());
    assert!(folder.join("curves.svg").is_file());
}
