//! Whole runs on made-up tasks: what they leave, going on, what they are refused for.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::Device;

use super::tests::{device, made_up, pretrained, problems, recipe, task};
use super::*;
use crate::report::read_metrics;

/// Keeps what it hears; sets the stop flag after some steps.
#[derive(Default)]
struct Listener<'s> {
    stop: Option<(&'s AtomicBool, u64)>,
    steps: Vec<StepReport>,
    evaluations: Vec<EvaluationRecord>,
    fresh: Vec<String>,
}

impl Observer for Listener<'_> {
    fn started(&mut self, started: &Started<'_>) {
        self.fresh.clone_from(&started.report.fresh);
    }
    fn stepped(&mut self, report: &StepReport) {
        self.steps.push(*report);
        if let Some((stop, at)) = self.stop {
            stop.store(report.step >= at, Ordering::Relaxed);
        }
    }
    fn evaluated(&mut self, record: &EvaluationRecord) {
        self.evaluations.push(record.clone());
    }
}

fn run(
    recipe: &Recipe,
    problem: &Problem,
    folder: &Path,
    begin: Begin,
    device: Device,
    stop_at: Option<u64>,
) -> Result<(Outcome, Listener<'static>), FinetuneError> {
    let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mut listener = Listener { stop: stop_at.map(|at| (stop, at)), ..Listener::default() };
    let (train, dev) = (made_up(problem, 200, 1), made_up(problem, 60, 2));
    let task = task(problem);
    let sources = Sources { task: &task, train: &train, dev: Some(&dev) };
    let outcome = finetune(recipe, &sources, folder, begin, device, stop, &mut listener)?;
    Ok((outcome, listener))
}

/// What is left of the metrics without times.
fn timeless(folder: &Path) -> Vec<Record> {
    let mut records: Vec<Record> = read_metrics(&folder.join("metrics.jsonl")).unwrap();
    for record in &mut records {
        match record {
            Record::Train(record) => (record.tokens_per_second, record.seconds) = (0.0, 0.0),
            Record::Evaluation(record) => record.seconds = 0.0,
        }
    }
    records
}

const SHORT: [&str; 4] =
    ["schedule.steps=40", "evaluation.interval=10", "run.checkpoint_interval=8", "dropout.encoder=0.1"];

#[test]
fn a_run_leaves_its_best_model_which_is_measured_the_same_when_opened() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    for (at, problem) in problems().iter().enumerate() {
        let folder = runs.path().join(at.to_string());
        let recipe = recipe(pretrained.path(), &SHORT);
        let (outcome, heard) = run(&recipe, problem, &folder, Begin::New, device(2), None).unwrap();
        let Outcome::Finished(summary) = outcome else { panic!("{outcome:?}") };
        let best = summary.best.unwrap();
        assert_eq!(heard.evaluations.len(), 4);
        let highest = heard.evaluations.iter().map(|record| record.measured.main()).fold(f64::MIN, f64::max);
        assert_eq!(best.main(), highest, "{problem:?}");
        for file in ["config.toml", "task.json", "config.json", "tokenizer.json", "curves.svg", "report.html"] {
            assert!(folder.join(file).is_file(), "{file}");
        }
        let mut predictor = Predictor::load(std::slice::from_ref(&folder), &device(1)).unwrap();
        assert_eq!((predictor.task().name, &predictor.task().problem), (task(problem).name, problem));
        let dev = made_up(problem, 60, 2);
        let predictions = predictor.predict(&dev).unwrap();
        let measured = measure(&task(problem), &dev, &predictions).unwrap().unwrap();
        assert_eq!(measured.figures, best.figures, "{problem:?}");
        let lines = std::fs::read_to_string(folder.join("predictions.jsonl")).unwrap();
        assert_eq!(lines.lines().count(), 60);
        assert_eq!(lines.lines().nth(7).unwrap(), predictions[7].to_json("7", &task(problem)), "{problem:?}");
        // A threshold is for questions that may have no answer; the best one is no worse than 0.
        match &dev {
            Examples::Questions(questions) if *problem == (Problem::Span { may_be_impossible: true }) => {
                let threshold = predictor.tune_null_threshold(questions, "dev.json").unwrap();
                assert!(threshold.to_string().ends_with("(tuned on dev.json)"), "{threshold}");
                let tuned = measure(predictor.task(), &dev, &predictions).unwrap().unwrap();
                assert!(tuned.main() >= measured.main(), "{threshold}: {tuned:?}");
                predictor.set_null_threshold(-1e9).unwrap();
                let line = predictions[7].to_json("7", predictor.task());
                assert!(line.contains(r#""answer":"""#), "{line}");
                assert!(predictor.set_null_threshold(f64::NAN).is_err());
            }
            _ => {
                let message = predictor.set_null_threshold(1.0).unwrap_err().to_string();
                assert!(message.contains("questions without an answer"), "{message}");
            }
        }
        // One example alone has the prediction that it has among others, but for rounding.
        let Examples::Texts(list) = &dev else { continue };
        let alone = predictor.predict(&Examples::Texts(vec![list[7].clone()])).unwrap();
        if let (Prediction::Class(a), Prediction::Class(b)) = (&alone[0], &predictions[7]) {
            a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} and {b}"));
        }
    }
}

#[test]
fn an_interrupted_run_ends_as_one_that_was_not() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let problem = &problems()[3];
    let recipe = recipe(pretrained.path(), &SHORT);
    let [whole, parts] = ["whole", "parts"].map(|name| runs.path().join(name));
    run(&recipe, problem, &whole, Begin::New, device(2), None).unwrap();
    let (outcome, _) = run(&recipe, problem, &parts, Begin::New, device(1), Some(13)).unwrap();
    assert!(matches!(outcome, Outcome::Stopped(Summary { step: 13, .. })), "{outcome:?}");
    let message = run(&recipe, problem, &parts, Begin::New, device(1), None).err().unwrap().to_string();
    assert!(message.contains("already holds a run; resume it"), "{message}");
    let theirs = std::fs::File::open(parts.join(".lock")).unwrap();
    theirs.lock().unwrap();
    let message = run(&recipe, problem, &parts, Begin::Resume, device(1), None).err().unwrap().to_string();
    assert!(message.contains("another process trains there"), "{message}");
    drop(theirs);
    let other = recipe.with("", &["optimizer.learning_rate=0.01".into()]).unwrap();
    let message = run(&other, problem, &parts, Begin::Resume, device(1), None).err().unwrap().to_string();
    assert!(message.contains("`optimizer.learning_rate` = 0.003, but now it is 0.01"), "{message}");
    run(&recipe, problem, &parts, Begin::Resume, device(2), None).unwrap();
    assert_eq!(timeless(&parts), timeless(&whole));
    for file in ["model.safetensors", "predictions.jsonl", "config.toml"] {
        assert!(std::fs::read(parts.join(file)).unwrap() == std::fs::read(whole.join(file)).unwrap(), "{file}");
    }
}

#[test]
fn an_earlier_fine_tuning_lends_its_head_where_labels_agree() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let [_, three, number, ..] = problems();
    let recipe = recipe(pretrained.path(), &[]);
    let first = runs.path().join("first");
    run(&recipe, &three, &first, Begin::New, device(1), None).unwrap();
    let little = ["schedule.steps=1", "optimizer.learning_rate=1e-6"].map(str::to_owned).to_vec();
    let from = recipe.with("", &[little, vec![format!("input.from={}", first.display())]].concat()).unwrap();
    let (_, heard) = run(&from, &three, &runs.path().join("same"), Begin::New, device(1), None).unwrap();
    assert_eq!(heard.fresh, Vec::<String>::new());
    assert!(heard.evaluations[0].measured.main() > 0.9, "the head is not that of the earlier run");
    let other = Problem::Classes { labels: ["x", "y", "z"].map(str::to_owned).to_vec() };
    for (at, problem) in [number, other].iter().enumerate() {
        let folder = runs.path().join(at.to_string());
        let (_, heard) = run(&from, problem, &folder, Begin::New, device(1), None).unwrap();
        assert_eq!(heard.fresh, ["classifier.weight", "classifier.bias"], "{problem:?}");
    }
    // Two models of one task have a mean; of two tasks, none.
    let mut both = Predictor::load(&[first.clone(), runs.path().join("same")], &device(1)).unwrap();
    let dev = made_up(&three, 20, 2);
    let mean = both.predict(&dev).unwrap();
    let single = Predictor::load(std::slice::from_ref(&first), &device(1)).unwrap().predict(&dev).unwrap();
    assert!(mean != single && mean.len() == single.len());
    let message = Predictor::load(&[first, runs.path().join("0")], &device(1)).unwrap_err().to_string();
    assert!(message.contains("made for another problem"), "{message}");
}

#[test]
fn a_run_without_learning_is_called_a_collapse_and_patience_ends_it() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let problem = &problems()[1];
    let dead = ["schedule.steps=200", "evaluation.interval=5", "evaluation.patience=3", "optimizer.learning_rate=1e-9"];
    let (outcome, heard) =
        run(&recipe(pretrained.path(), &dead), problem, &runs.path().join("dead"), Begin::New, device(1), None)
            .unwrap();
    let Outcome::Finished(summary) = outcome else { panic!("{outcome:?}") };
    assert!(summary.stopped_early && summary.step < 200, "{summary:?}");
    assert_eq!(heard.evaluations.iter().filter(|record| record.is_best).count(), 1);
    let text = summary.collapse.expect("a model that learns nothing");
    assert!(text.contains("optimizer.learning_rate=2.5e-10, now 1e-9"), "{text}");
    let alive = recipe(pretrained.path(), &["schedule.steps=60"]);
    let (_, heard) = run(&alive, problem, &runs.path().join("alive"), Begin::New, device(1), None).unwrap();
    assert_eq!(heard.evaluations.last().unwrap().collapse, None);
}

#[test]
fn refuses_what_cannot_be_learnt() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let recipe = recipe(pretrained.path(), &[]);
    let problem = &problems()[0];
    let of = |train: &Examples, problem: &Problem, recipe: &Recipe| {
        let task = task(problem);
        let sources = Sources { task: &task, train, dev: None };
        let stop = AtomicBool::new(false);
        let folder = runs.path().join("run");
        finetune(recipe, &sources, &folder, Begin::New, device(1), &stop, &mut Silent).unwrap_err().to_string()
    };
    let Examples::Texts(mut list) = made_up(problem, 5, 1) else { unreachable!() };
    list[3].label = None;
    let one = Problem::Classes { labels: vec!["only".into()] };
    let long = recipe.with("", &["text.max_sequence_length=64".into()]).unwrap();
    for (train, problem, recipe, expected) in [
        (Examples::Texts(Vec::new()), problem, &recipe, "the training set has no examples"),
        (Examples::Texts(list), problem, &recipe, "example 4 of the training set has no label"),
        (made_up(problem, 5, 1), &one, &recipe, "classification of 1 classes"),
        (made_up(problem, 5, 1), problem, &long, "`text.max_sequence_length` is 64, but the model has 32 positions"),
    ] {
        let message = of(&train, problem, recipe);
        assert!(message.contains(expected), "{message}");
    }
    let message = Predictor::load(&[pretrained.path().to_owned()], &device(1)).unwrap_err().to_string();
    assert!(message.contains("the model has no head for this"), "{message}");
}
