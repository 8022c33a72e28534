//! Whole runs on synthetic tasks: their files, resuming, and rejected input.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use albert::report::read_metrics;
use albert::train::{
    EvaluationRecord, NoopObserver, Observer, Outcome, Setting, StartMode, Started, StepReport, Worker,
};
use engine::Communicator;

use super::tests::{device, made_up, pretrained, problems, recipe, task};
use super::*;
use crate::files::{Label, Problem};

/// Observer that records its calls and can set the stop flag after a number of steps.
#[derive(Default)]
struct Listener<'s> {
    head: HeadOrigin,
    stop: Option<(&'s AtomicBool, u64)>,
    steps: Vec<StepReport<FinetuneFigures>>,
    evaluations: Vec<EvaluationRecord<DevFigures>>,
    fresh: Vec<String>,
}

impl Observer<Finetuning> for Listener<'_> {
    fn started(&mut self, started: &Started<'_, FinetuneDetails>) {
        self.fresh.clone_from(&started.details.report.fresh);
        self.head.clone_from(&started.details.head);
    }
    fn stepped(&mut self, report: &StepReport<FinetuneFigures>) {
        self.steps.push(*report);
        if let Some((stop, at)) = self.stop {
            stop.store(report.step >= at, Ordering::Relaxed);
        }
    }
    fn evaluated(&mut self, record: &EvaluationRecord<DevFigures>, _: bool) {
        self.evaluations.push(record.clone());
    }
}

fn run(
    recipe: &FinetuneRecipe,
    problem: &Problem,
    folder: &Path,
    mode: StartMode,
    worker: impl Into<Worker>,
    stop_at: Option<u64>,
) -> Result<(Outcome<FinetuneSummary>, Listener<'static>), FinetuneError> {
    let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mut listener = Listener { stop: stop_at.map(|at| (stop, at)), ..Listener::default() };
    let (train, dev) = (made_up(problem, 200, 1), made_up(problem, 60, 2));
    let task = task(problem);
    let sources = FinetuneSources { task: &task, train: &train, dev: Some(&dev) };
    let outcome = finetune(recipe, &sources, (folder, mode), worker, stop, &mut listener)?;
    Ok((outcome, listener))
}

/// Runs a new training in one thread to its end.
fn train(recipe: &FinetuneRecipe, problem: &Problem, folder: &Path) -> (FinetuneSummary, Listener<'static>) {
    let (outcome, heard) = run(recipe, problem, folder, StartMode::New, device(1), None).unwrap();
    let Outcome::Finished(summary) = outcome else { panic!("{outcome:?}") };
    (summary, heard)
}

/// The metrics records with times and speeds set to 0.
fn timeless(folder: &Path) -> Vec<FinetuneRecord> {
    let mut records: Vec<FinetuneRecord> = read_metrics(&folder.join("metrics.jsonl")).unwrap();
    for record in &mut records {
        match record {
            Record::Train(record) => (record.tokens_per_second, record.seconds) = (0.0, 0.0),
            Record::Evaluation(record) => record.seconds = 0.0,
        }
    }
    records
}

fn assert_same(one: &Path, other: &Path, what: &str) {
    assert_eq!(timeless(one), timeless(other), "{what}");
    for file in ["model.safetensors", "predictions.jsonl", "config.toml", "task.json", "config.json"] {
        assert!(std::fs::read(one.join(file)).unwrap() == std::fs::read(other.join(file)).unwrap(), "{what}: {file}");
    }
}

const SHORT: [&str; 4] =
    ["schedule.steps=40", "evaluation.interval=10", "run.checkpoint_interval=8", "dropout.encoder=0.1"];

#[test]
fn a_run_leaves_its_best_model_which_is_measured_the_same_when_opened() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    for (at, problem) in problems().iter().enumerate() {
        let folder = runs.path().join(at.to_string());
        let recipe = recipe(pretrained.path(), &SHORT);
        let (summary, heard) = train(&recipe, problem, &folder);
        let best = summary.best.unwrap();
        assert_eq!(heard.evaluations.len(), 4);
        let all = heard.evaluations.iter().map(|record| (record.step, &record.figures.measured));
        let first_of_best = all.reduce(|best, own| if own.1.is_better_than(best.1) { own } else { best }).unwrap();
        assert_eq!((summary.best_step, &best), first_of_best, "{problem:?}");
        // Every metric except a threshold is a fraction.
        for (name, value) in best.figures.iter().filter(|(name, _)| !name.starts_with("threshold")) {
            assert!((-1.0..=1.0).contains(value), "{problem:?}: {name} {value}");
        }
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
        assert_eq!(
            lines.lines().nth(7).unwrap(),
            predictions[7].to_json("7", &task(problem), 0, dev.passage(7)),
            "{problem:?}"
        );
        // Only questions that may have no answer have a threshold; the tuned one is at least as good as 0.
        match &dev {
            Examples::Questions(questions) if *problem == (Problem::Span { may_be_impossible: true }) => {
                let threshold = predictor.tune_null_threshold(questions, "dev.json").unwrap();
                assert!(threshold.to_string().ends_with("(tuned on dev.json)"), "{threshold}");
                let tuned = measure(predictor.task(), &dev, &predictions).unwrap().unwrap();
                assert!(tuned.main() >= measured.main(), "{threshold}: {tuned:?}");
                predictor.set_null_threshold(-1e9).unwrap();
                let line = predictions[7].to_json("7", predictor.task(), 0, dev.passage(7));
                assert!(line.contains(r#""answer":"""#), "{line}");
                assert!(predictor.set_null_threshold(f64::NAN).is_err());
            }
            _ => {
                let message = predictor.set_null_threshold(1.0).unwrap_err().to_string();
                assert!(message.contains("questions without an answer"), "{message}");
            }
        }
        // Up to rounding, the prediction for an example does not depend on the other examples.
        let Examples::Texts(list) = &dev else { continue };
        let alone = predictor.predict(&Examples::Texts(vec![list[7].clone()])).unwrap();
        if let (Prediction::Class(a), Prediction::Class(b)) = (&alone[0], &predictions[7]) {
            a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} and {b}"));
        }
    }
}

#[test]
fn any_number_of_ranks_gives_the_files_of_one() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let all = problems();
    for (at, (problem, head)) in
        [(&all[1], "logits"), (&all[3], "logits"), (&all[5], "logits"), (&all[6], "released")].into_iter().enumerate()
    {
        let head = format!("span.head={head:?}");
        let lanes = ["batch.examples_per_step=8", "batch.lanes=4", "schedule.steps=12", "evaluation.interval=6", &head];
        let recipe = recipe(pretrained.path(), &lanes);
        let alone = runs.path().join(format!("{at}-alone"));
        train(&recipe, problem, &alone);
        for ranks in [2, 3] {
            let folder = runs.path().join(format!("{at}-{ranks}"));
            std::thread::scope(|scope| {
                for communicator in Communicator::threads(ranks) {
                    let worker = Worker { device: device(1), communicator };
                    scope.spawn(|| run(&recipe, problem, &folder, StartMode::New, worker, None).unwrap());
                }
            });
            assert_same(&folder, &alone, &format!("{problem:?}, {ranks} ranks"));
        }
    }
}

#[test]
fn a_stop_saves_without_an_interval_and_says_so_where_nothing_is_kept() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let problem = &problems()[0];
    let usual = recipe(pretrained.path(), &["schedule.steps=40", "evaluation.interval=10", "dropout.encoder=0.1"]);
    assert_eq!(usual.run.checkpoint_interval, None);
    let [whole, parts, none] = ["whole", "parts", "none"].map(|name| runs.path().join(name));
    run(&usual, problem, &whole, StartMode::New, device(2), None).unwrap();
    assert!(!whole.join("checkpoints").exists(), "a run that was not stopped keeps no state");
    let (outcome, _) = run(&usual, problem, &parts, StartMode::New, device(1), Some(17)).unwrap();
    let Outcome::Stopped { saved: Some(path), .. } = outcome else { panic!("{outcome:?}") };
    assert!(path.is_file(), "{}", path.display());
    let other = usual.with("", &["optimizer.learning_rate=0.01".parse().unwrap()]).unwrap();
    let message = run(&other, problem, &parts, StartMode::Resume, device(1), None).err().unwrap().to_string();
    assert!(message.contains("`optimizer.learning_rate` = 0.003, but now it is 0.01"), "{message}");
    let (_, heard) = run(&usual, problem, &parts, StartMode::Resume, device(2), None).unwrap();
    assert_eq!(heard.steps.first().map(|report| report.step), Some(18));
    assert_same(&parts, &whole, "stopped and resumed");
    // Resumed once more, the finished run does no further step.
    let (_, heard) = run(&usual, problem, &parts, StartMode::Resume, device(1), None).unwrap();
    assert_eq!(heard.steps.len(), 0);

    let never = usual.with("", &["run.checkpoint_interval=0".parse().unwrap()]).unwrap();
    let (outcome, _) = run(&never, problem, &none, StartMode::New, device(1), Some(17)).unwrap();
    assert!(matches!(outcome, Outcome::Stopped { saved: None, .. }), "{outcome:?}");
    assert!(!none.join("checkpoints").exists());
}

#[test]
fn a_head_follows_its_labels_into_another_order() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let (early, late) =
        (problems()[0].clone(), Problem::Classes { labels: ["late", "early"].map(str::to_owned).to_vec() });
    let first = runs.path().join("first");
    train(&recipe(pretrained.path(), &[]), &early, &first);
    let little = ["schedule.steps=1", "optimizer.learning_rate=1e-6", "dropout.classifier=0"];
    let from = format!("input.from={}", first.display());
    let recipe = recipe(pretrained.path(), &[&little[..], &[&from]].concat());
    let start = Start::load(&recipe, &late, device(1).processor()).unwrap();
    assert_eq!(start.head, HeadOrigin::Mapped(vec![("late".into(), 1), ("early".into(), 0)]));
    assert_eq!(start.report.fresh, Vec::<String>::new());
    let told = start.head.to_string();
    assert!(told.ends_with(r#"its rows mapped by label: "late" from row 1, "early" from row 0"#), "{told}");
    let same = Start::load(&recipe, &early, device(1).processor()).unwrap();
    assert_eq!(same.head, HeadOrigin::Loaded);
    for name in ["classifier.weight", "classifier.bias"] {
        let values = |start: &Start| start.params.values(start.params.find(name).unwrap()).to_vec();
        let (mapped, own) = (values(&start), values(&same));
        let rows: Vec<_> = own.chunks(own.len() / 2).rev().flatten().copied().collect();
        assert_eq!(mapped, rows, "{name}");
    }
    // The loaded head is used in the new order: the labels of the examples are swapped along with the names.
    let swapped = |seed| {
        let Examples::Texts(mut list) = made_up(&early, 60, seed) else { unreachable!() };
        for text in &mut list {
            text.label = text.label.map(|label| match label {
                Label::Class(class) => Label::Class(1 - class),
                number => number,
            });
        }
        Examples::Texts(list)
    };
    let (train, dev, task) = (swapped(1), swapped(2), task(&late));
    let sources = FinetuneSources { task: &task, train: &train, dev: Some(&dev) };
    let (stop, folder) = (AtomicBool::new(false), runs.path().join("second"));
    let mut heard = Listener::default();
    finetune(&recipe, &sources, (&folder, StartMode::New), device(1), &stop, &mut heard).unwrap();
    assert!(heard.evaluations[0].figures.measured.main() > 0.95, "{:?}", heard.evaluations[0]);
}

#[test]
fn what_does_not_fit_is_counted_and_what_is_no_text_refused() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let [two, three, ..] = problems();
    let [single, pairs] = [(two, "single"), (three, "pairs")].map(|(problem, name)| {
        let folder = runs.path().join(name);
        train(&recipe(pretrained.path(), &["schedule.steps=1"]), &problem, &folder);
        folder
    });
    let text = |first: &str, second: Option<&str>| {
        Examples::Texts(vec![Text {
            id: "7".into(),
            first: first.into(),
            second: second.map(str::to_owned),
            label: None,
        }])
    };
    let mut predictor = Predictor::load(&[single], &device(1)).unwrap();
    predictor.predict(&text(&"a ".repeat(33), None)).unwrap();
    // Thirty pieces fit between the two special tokens.
    assert_eq!((predictor.truncated(), predictor.cut()), (&[3][..], 1));
    predictor.predict(&text("a b", None)).unwrap();
    assert_eq!((predictor.truncated(), predictor.cut()), (&[0][..], 1));
    let mut refused = |examples: Examples| predictor.predict(&examples).unwrap_err().to_string();
    assert!(refused(text(" \n", None)).contains("example \"7\": the text is empty"));
    assert!(refused(text("a", Some("b"))).contains("trained on single texts, but this is a pair"));
    let mut predictor = Predictor::load(&[pairs], &device(1)).unwrap();
    predictor.predict(&text("a b", Some("c"))).unwrap();
    let mut refused = |examples: Examples| predictor.predict(&examples).unwrap_err().to_string();
    assert!(refused(text("a", None)).contains("trained on pairs, but this is one text; give a second"));
    assert!(refused(text("", Some("a"))).contains("the first text is empty"));
}

#[test]
fn a_collapse_is_warned_of_once() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let dead = ["schedule.steps=100", "evaluation.interval=10", "optimizer.learning_rate=1e-9"];
    let (_, heard) = train(&recipe(pretrained.path(), &dead), &problems()[1], &runs.path().join("dead"));
    let warnings = heard.evaluations.iter().filter(|record| record.figures.collapse.is_some()).count();
    assert_eq!((heard.evaluations.len(), warnings), (10, 1));
}

#[test]
fn an_earlier_fine_tuning_lends_its_head_where_labels_agree() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let [_, three, number, ..] = problems();
    let recipe = recipe(pretrained.path(), &[]);
    let first = runs.path().join("first");
    train(&recipe, &three, &first);
    let from = Setting::new("input.from", &first).unwrap();
    let little = ["schedule.steps=1", "optimizer.learning_rate=1e-6"].map(|word| word.parse().unwrap());
    let from = recipe.with("", &[&little[..], &[from]].concat()).unwrap();
    let (_, heard) = train(&from, &three, &runs.path().join("same"));
    assert_eq!(heard.fresh, Vec::<String>::new());
    assert!(heard.evaluations[0].figures.measured.main() > 0.9, "the head is not that of the earlier run");
    let other = Problem::Classes { labels: ["x", "y", "z"].map(str::to_owned).to_vec() };
    for (at, problem) in [number, other].iter().enumerate() {
        let (_, heard) = train(&from, problem, &runs.path().join(at.to_string()));
        assert_eq!(heard.fresh, ["classifier.weight", "classifier.bias"], "{problem:?}");
    }
    // Models of one task can be averaged, models of two tasks cannot.
    let mut both = Predictor::load(&[first.clone(), runs.path().join("same")], &device(1)).unwrap();
    let dev = made_up(&three, 20, 2);
    let mean = both.predict(&dev).unwrap();
    let single = Predictor::load(std::slice::from_ref(&first), &device(1)).unwrap().predict(&dev).unwrap();
    assert!(mean != single && mean.len() == single.len());
    let message = Predictor::load(&[first, runs.path().join("0")], &device(1)).unwrap_err().to_string();
    assert!(message.contains("trained for a different problem"), "{message}");
}

#[test]
fn a_run_without_learning_is_called_a_collapse_and_patience_ends_it() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let problem = &problems()[1];
    // Updates this small do not change any weight: every evaluation is a tie, and the earliest model is kept.
    let dead =
        ["schedule.steps=200", "evaluation.interval=5", "evaluation.patience=3", "optimizer.learning_rate=1e-30"];
    let (summary, heard) = train(&recipe(pretrained.path(), &dead), problem, &runs.path().join("dead"));
    assert!(summary.stopped_early && summary.step < 200, "{summary:?}");
    assert_eq!(heard.evaluations.iter().filter(|record| record.figures.is_best).count(), 1);
    let text = summary.collapse.expect("a model that learns nothing");
    assert!(text.contains("optimizer.learning_rate=2.5e-31, now 1e-30"), "{text}");
    let alive = recipe(pretrained.path(), &["schedule.steps=60"]);
    let (_, heard) = train(&alive, problem, &runs.path().join("alive"));
    assert_eq!(heard.evaluations.last().unwrap().figures.collapse, None);
}

#[test]
fn refuses_what_cannot_be_learnt() {
    let (pretrained, runs) = (pretrained(), tempfile::tempdir().unwrap());
    let recipe = recipe(pretrained.path(), &[]);
    let problem = &problems()[0];
    let of = |train: &Examples, problem: &Problem, recipe: &FinetuneRecipe| {
        let task = task(problem);
        let sources = FinetuneSources { task: &task, train, dev: None };
        let stop = AtomicBool::new(false);
        let folder = runs.path().join("run");
        finetune(recipe, &sources, (&folder, StartMode::New), device(1), &stop, &mut NoopObserver)
            .unwrap_err()
            .to_string()
    };
    let Examples::Texts(mut list) = made_up(problem, 5, 1) else { unreachable!() };
    list[3].label = None;
    let one = Problem::Classes { labels: vec!["only".into()] };
    let long = recipe.with("", &["text.max_sequence_length=64".parse().unwrap()]).unwrap();
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
