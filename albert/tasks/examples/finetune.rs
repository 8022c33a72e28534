//! Fine-tunes a model on labelled sentences and predicts the label of another sentence.
//!
//! `cargo run --release -p albert-tasks --example finetune -- MODEL_FOLDER DATA_FOLDER RUN_FOLDER "a sentence"`
//!
//! `DATA_FOLDER` has `train.tsv` and `dev.tsv` with the columns `text` and `label`; without `dev.tsv`, a tenth of the
//! training set is held out. The run writes the model that is best on the dev set to `RUN_FOLDER`. Without arguments, a
//! tiny model is trained first; it learns to tell true from false in 16 sentences and is evaluated on 8 new ones.
mod tiny;

use albert::Device;
use albert::checkpoint::ModelFolder;
use albert::train::{EvaluationRecord, Observer, Outcome, Setting, StartMode};
use albert_tasks::files::{Problem, Text};
use albert_tasks::finetune::{
    self, DataFiles, DataSource, DevFigures, Examples, FinetuneRecipe, FinetuneSources, Finetuning, Prediction,
    Predictor, Task, TaskName,
};
use std::{error::Error, fs, path::Path, sync::atomic::AtomicBool};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [model, data, run, sentence] => {
            train(Path::new(model), Path::new(data), Path::new(run), &[])?;
            predict(Path::new(run), sentence)?;
        }
        _ => {
            let (model, folder) = (tiny::folder()?, tempfile::tempdir()?);
            write_examples(folder.path())?;
            let run = folder.path().join("run");
            train(model.path(), folder.path(), &run, &TINY)?;
            predict(&run, "a cat drinks milk")?;
        }
    }
    Ok(())
}

/// Prints the metrics of every evaluation on the dev set.
struct Print;

impl Observer<Finetuning> for Print {
    fn evaluated(&mut self, record: &EvaluationRecord<DevFigures>, is_best: bool) {
        let DevFigures { measured, train_loss, .. } = &record.figures;
        print!("step {:4}  training loss {train_loss:.3}", record.step);
        measured.figures.iter().for_each(|(name, value)| print!("  {name} {value:.3}"));
        println!("{}", if is_best { "  best so far" } else { "" });
    }
}

/// Fine-tunes `model` on the files in `data` and returns the accuracy of the best model on the dev set.
///
/// `settings` override the recipe, like those of `albert finetune --set`.
pub fn train(model: &Path, data: &Path, run: &Path, settings: &[&str]) -> Result<f64, Box<dyn Error>> {
    // Every setting of the run. The defaults depend on the task and on the size of the model.
    let name = TaskName::Classify;
    let mut recipe = FinetuneRecipe::for_task(name, &ModelFolder::open(model)?.config().config);
    recipe.input.model = Some(model.to_owned());
    let recipe = recipe.with("", &Setting::all(settings)?)?;

    // The labels are those of the training file.
    let loaded = DataSource { task: name, settings: &recipe.data }.load(DataFiles::Folder(data))?;
    loaded.remarks.iter().for_each(|remark| println!("{remark}"));
    let task = Task::new(name, loaded.problem, &recipe);
    let sources = FinetuneSources { task: &task, train: &loaded.train, dev: loaded.dev.as_ref() };

    let stop = AtomicBool::new(false); // a signal handler may set it
    match finetune::finetune(&recipe, &sources, (run, StartMode::New), Device::cpu()?, &stop, &mut Print)? {
        Outcome::Finished(summary) => Ok(summary.best.ok_or("no dev set")?.main()),
        outcome => Err(format!("the run has not finished: {outcome:?}").into()),
    }
}

/// Returns the most probable label of `sentence`.
pub fn predict(run: &Path, sentence: &str) -> Result<String, Box<dyn Error>> {
    let mut predictor = Predictor::load(&[run.to_owned()], &Device::cpu()?)?;
    let Problem::Classes { labels } = predictor.task().problem.clone() else { return Err("expected classes".into()) };
    let text = Text { id: String::new(), first: sentence.to_owned(), second: None, label: None };
    let predictions = predictor.predict(&Examples::Texts(vec![text]))?;
    let [Prediction::Class(probabilities)] = &predictions[..] else { return Err("expected one class".into()) };
    let (label, probability) =
        labels.iter().zip(probabilities).max_by(|a, b| a.1.total_cmp(b.1)).ok_or("the model has no labels")?;
    println!("{sentence}: {label} ({:.1} %)", 100.0 * probability);
    Ok(label.clone())
}

/// Settings for a tiny model and 16 examples.
pub const TINY: [&str; 4] =
    ["batch.examples_per_step=8", "schedule.epochs=40", "optimizer.learning_rate=1e-3", "evaluation.interval=10"];

/// Writes true sentences ("the cat drinks milk") and false ones ("the cat eats meat").
///
/// Those of the dev set begin with "a".
pub fn write_examples(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut files = ["text\tlabel\n".to_owned(), "text\tlabel\n".to_owned()];
    let words = [0, 1, 2, 3].map(|at| tiny::SENTENCES[at].split(' ').collect::<Vec<_>>());
    for (at, animal) in words.iter().map(|words| words[1]).enumerate() {
        for (label, does) in [("true", &words[at][2..]), ("false", &words[(at + 1) % 4][2..])] {
            for (article, file) in [("the", 0), ("my", 0), ("a", 1)] {
                files[file] += &format!("{article} {animal} {}\t{label}\n", does.join(" "));
            }
        }
    }
    fs::write(folder.join("train.tsv"), &files[0])?;
    Ok(fs::write(folder.join("dev.tsv"), &files[1])?)
}
