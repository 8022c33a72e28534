//! Sequential execution of the runs of a plan, by any number of processes that share the folder.
//!
//! A process locks a run's folder while it works there, so no run is done twice; a killed process releases its lock.
//! The output folder is locked while the plan and the tables are written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use albert::checkpoint::ModelFolder;
use albert::data::Objective;
use albert::pretrain::{PretrainError, PretrainSources, Pretraining, pretrain, sentence_accuracy};
use albert::tokenizer::Tokenizer;
use albert::train::{FolderLock, METRICS, Observer, Outcome, StartMode};
use engine::io::{create_dir_synced, limits, write_atomically};
use engine::{Device, EngineError};

use super::AblationError;
use super::plan::{Budget, Plan, TaskPlan, Variant, folder_name};
use super::result::{PretrainResult, RunResult, TaskResult};
use super::table::{Table, tables};
use crate::finetune::{
    DataFiles, DataSource, FinetuneError, FinetuneRecipe, FinetuneSources, FinetuneSummary, Finetuning, Loaded, Task,
    finetune,
};

const RESULT: &str = "result.json";

/// A stage that is about to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage<'a> {
    /// Number of the stage, from 1.
    pub number: usize,
    /// Number of all stages of the plan.
    pub of: usize,
    /// Name of the row.
    pub row: &'a str,
    /// Seed of the run.
    pub seed: u64,
    /// Name of the task; `None` for pre-training.
    pub task: Option<&'a str>,
}

/// Progress callbacks of an ablation.
pub trait Watcher {
    /// Called before the first stage with the budget of each variant, the number of seeds and the number of stages
    /// already done.
    fn planned(&mut self, _budgets: &[Budget], _seeds: usize, _done: usize) {}
    /// Called before each stage.
    fn begins(&mut self, _stage: Stage<'_>) {}
    /// Observer of the next pre-training run.
    fn pretraining(&mut self) -> &mut dyn Observer<Pretraining>;
    /// Observer of the next fine-tuning run.
    fn finetuning(&mut self) -> &mut dyn Observer<Finetuning>;
}

/// Outcome of [`ablate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// All stages are done.
    Finished,
    /// `stop` was set; the next call resumes the ablation.
    Stopped,
    /// Other processes have locked this many unfinished runs, and no other run is left.
    Elsewhere(usize),
}

/// Runs the stages of the plan in `text` that are neither finished nor locked by another process, in `folder`. `stop`
/// may be set at any time.
///
/// # Errors
/// The plan cannot be run, `folder` contains another plan, or a file cannot be written. A run that diverges is not an
/// error; it is reported in the table.
pub fn ablate(
    text: &str,
    folder: &Path,
    device: &Device,
    stop: &AtomicBool,
    watcher: &mut dyn Watcher,
) -> Result<RunOutcome, AblationError> {
    let plan = Plan::from_toml(text)?;
    let tokenizer = Tokenizer::load(&plan.input.tokenizer)?;
    let sources = PretrainSources::open(&plan.input.data, &tokenizer)?;
    let variants = plan.variants(tokenizer.vocab_size())?;
    keep_plan(folder, text)?;
    let mut runner = Runner { plan: &plan, sources, folder, device, stop, results: BTreeMap::new() };
    runner.read(&variants)?;
    let budgets: Vec<Budget> = variants.iter().map(Variant::budget).collect();
    watcher.planned(&budgets, plan.seeds.len(), runner.done());
    runner.write_tables(&variants)?;
    loop {
        let (mut taken, mut elsewhere) = (0, 0);
        // Seeds in the outer loop, so that every row has a first result early.
        for (s, &seed) in plan.seeds.iter().enumerate() {
            for (v, variant) in variants.iter().enumerate() {
                if runner.is_done(variant, seed) && !runner.has_states(variant, seed) {
                    continue;
                }
                let Some(_claim) = FolderLock::take(&runner.place(variant, seed))? else {
                    elsewhere += 1;
                    continue;
                };
                taken += 1;
                let before = s * variants.len() + v;
                if runner.run(&variants, variant, seed, before, watcher)? == RunOutcome::Stopped {
                    return Ok(RunOutcome::Stopped);
                }
            }
        }
        match (taken, elsewhere) {
            (_, 0) => return Ok(RunOutcome::Finished),
            (0, _) => return Ok(RunOutcome::Elsewhere(elsewhere)),
            // Other processes may have finished or been killed in the meantime.
            _ => runner.read(&variants)?,
        }
    }
}

/// Writes the plan to the folder; rejects a folder with another plan.
fn keep_plan(folder: &Path, text: &str) -> Result<(), AblationError> {
    let _lock = FolderLock::wait(folder)?;
    let path = folder.join("plan.toml");
    match std::fs::read_to_string(&path) {
        Ok(found) if Plan::from_toml(&found).ok() != Plan::from_toml(text).ok() => {
            Err(AblationError::Folder(format!("{} contains another plan; choose another folder", path.display())))
        }
        Ok(_) => Ok(()),
        Err(_) => Ok(write_atomically(path, |out| out.write_all(text.as_bytes()))?),
    }
}

/// Runs stages and stores their results by folder and seed.
struct Runner<'a> {
    plan: &'a Plan,
    sources: PretrainSources,
    folder: &'a Path,
    device: &'a Device,
    stop: &'a AtomicBool,
    results: BTreeMap<(String, u64), RunResult>,
}

impl Runner<'_> {
    fn place(&self, variant: &Variant, seed: u64) -> PathBuf {
        self.folder.join(&variant.folder).join(format!("seed-{seed}"))
    }

    /// Runs all stages of a claimed run; `before` runs precede it in the plan.
    fn run(
        &mut self,
        variants: &[Variant],
        variant: &Variant,
        seed: u64,
        before: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<RunOutcome, AblationError> {
        // Another process may have finished stages of this run before it released the lock.
        self.read(std::slice::from_ref(variant))?;
        let plan = self.plan;
        self.forget_states_of_finished(variant, seed)?;
        let stages = 1 + plan.tasks.len();
        let of = variants.len() * plan.seeds.len() * stages;
        let stage = |at, task| Stage { number: before * stages + at, of, row: &variant.name, seed, task };
        if self.pretrain(variant, seed, watcher, stage(1, None))? == RunOutcome::Stopped {
            return Ok(RunOutcome::Stopped);
        }
        self.write_tables(variants)?;
        for (at, task) in plan.tasks.iter().enumerate() {
            if self.finetune(variant, seed, task, watcher, stage(2 + at, Some(&task.name)))? == RunOutcome::Stopped {
                return Ok(RunOutcome::Stopped);
            }
            self.write_tables(variants)?;
        }
        Ok(RunOutcome::Finished)
    }

    /// Reads the results of earlier calls and of other processes.
    fn read(&mut self, variants: &[Variant]) -> Result<(), AblationError> {
        for variant in variants {
            for &seed in &self.plan.seeds {
                let path = self.place(variant, seed).join(RESULT);
                let recipe = variant.recipe.fingerprint();
                let result = match std::fs::read_to_string(&path) {
                    Err(_) => RunResult { recipe, ..RunResult::default() },
                    Ok(text) => {
                        let found: RunResult = serde_json::from_str(&text).map_err(|error| {
                            AblationError::Folder(format!("{} is damaged: {error}; delete it", path.display()))
                        })?;
                        if found.recipe != recipe {
                            let problem = format!("{} was made with another recipe; delete its folder", path.display());
                            return Err(AblationError::Folder(problem));
                        }
                        found
                    }
                };
                self.results.insert((variant.folder.clone(), seed), result);
            }
        }
        Ok(())
    }

    /// True if every stage under a seed is done or skipped.
    fn is_done(&self, variant: &Variant, seed: u64) -> bool {
        let result = &self.results[&(variant.folder.clone(), seed)];
        let has = |task: &TaskPlan| result.tasks.contains_key(&task.name);
        result.problem.is_some() || (result.pretrained.is_some() && self.plan.tasks.iter().all(has))
    }

    /// Folders of the finished stages under a seed.
    fn finished(&self, variant: &Variant, seed: u64) -> impl Iterator<Item = PathBuf> {
        let result = &self.results[&(variant.folder.clone(), seed)];
        let pretrained = result.pretrained.is_some().then(|| "pretrain".to_owned());
        let tuned = self.plan.tasks.iter().filter(|task| result.tasks.contains_key(&task.name));
        let place = self.place(variant, seed);
        pretrained.into_iter().chain(tuned.map(|task| folder_name(&task.name))).map(move |name| place.join(name))
    }

    /// True if a finished stage has training states: the process was killed after it wrote the result.
    fn has_states(&self, variant: &Variant, seed: u64) -> bool {
        self.finished(variant, seed).any(|folder| folder.join(STATES).exists())
    }

    fn forget_states_of_finished(&self, variant: &Variant, seed: u64) -> Result<(), AblationError> {
        self.finished(variant, seed).try_for_each(|folder| forget_states(&folder))
    }

    /// Number of stages that are done or skipped.
    fn done(&self) -> usize {
        let of = |result: &RunResult| match result.problem {
            Some(_) => 1 + self.plan.tasks.len(),
            None => usize::from(result.pretrained.is_some()) + result.tasks.len(),
        };
        self.results.values().map(of).sum()
    }

    /// Changes a result and writes it to its file.
    fn note(&mut self, variant: &Variant, seed: u64, change: impl FnOnce(&mut RunResult)) -> Result<(), AblationError> {
        let place = self.place(variant, seed);
        let result = self.results.get_mut(&(variant.folder.clone(), seed)).expect("every run was read");
        change(result);
        create_dir_synced(&place)?;
        let mut text = serde_json::to_string_pretty(result).expect("a result has string keys");
        text.push('\n');
        Ok(write_atomically(place.join(RESULT), |out| out.write_all(text.as_bytes()))?)
    }

    fn pretrain(
        &mut self,
        variant: &Variant,
        seed: u64,
        watcher: &mut dyn Watcher,
        stage: Stage<'_>,
    ) -> Result<RunOutcome, AblationError> {
        let result = &self.results[&(variant.folder.clone(), seed)];
        if result.pretrained.is_some() || result.problem.is_some() {
            return Ok(RunOutcome::Finished);
        }
        if self.stop.load(Ordering::Relaxed) {
            return Ok(RunOutcome::Stopped);
        }
        watcher.begins(stage);
        let failed = |source: PretrainError| AblationError::Row { row: variant.name.clone(), source: Box::new(source) };
        let mut recipe = variant.recipe.clone();
        recipe.seed = seed;
        let folder = self.place(variant, seed).join(PRETRAINING);
        let (mode, device, observer) = (StartMode::Resume, self.device.clone(), watcher.pretraining());
        let outcome = pretrain(&recipe, &self.sources, (&folder, mode), device, self.stop, observer).map_err(failed)?;
        let summary = match outcome {
            Outcome::Finished(summary) => summary,
            Outcome::Stopped { .. } => return Ok(RunOutcome::Stopped),
            Outcome::Diverged { problem, step, .. } => {
                let problem = format!("pre-training, step {step}: {problem}");
                self.note(variant, seed, |result| result.problem = Some(problem))?;
                return Ok(RunOutcome::Finished);
            }
        };
        let last = folder.join("last");
        let ask = |objective| sentence_accuracy(&last, &recipe, &self.sources, objective, self.device.clone());
        let pretrained = PretrainResult {
            steps: summary.step,
            tokens: summary.tokens,
            seconds: summary.seconds,
            mlm_accuracy: summary.evaluation.map(|record| record.figures.mlm_accuracy),
            nsp: ask(Objective::Nsp).map_err(failed)?,
            sop: ask(Objective::Sop).map_err(failed)?,
        };
        self.note(variant, seed, |result| result.pretrained = Some(pretrained))?;
        forget_states(&folder)?;
        Ok(RunOutcome::Finished)
    }

    fn finetune(
        &mut self,
        variant: &Variant,
        seed: u64,
        task: &TaskPlan,
        watcher: &mut dyn Watcher,
        stage: Stage<'_>,
    ) -> Result<RunOutcome, AblationError> {
        let result = &self.results[&(variant.folder.clone(), seed)];
        if result.tasks.contains_key(&task.name) || result.problem.is_some() {
            return Ok(RunOutcome::Finished);
        }
        if self.stop.load(Ordering::Relaxed) {
            return Ok(RunOutcome::Stopped);
        }
        watcher.begins(stage);
        let failed = |source: FinetuneError| AblationError::Task { task: task.name.clone(), source: Box::new(source) };
        let place = self.place(variant, seed);
        let outcome = self.tune(task, seed, &place, watcher.finetuning()).map_err(failed)?;
        let summary = match outcome {
            Outcome::Finished(summary) => summary,
            Outcome::Stopped { .. } => return Ok(RunOutcome::Stopped),
            Outcome::Diverged { problem, step, .. } => {
                let problem = format!("{}, step {step}: {problem}", task.name);
                self.note(variant, seed, |result| result.problem = Some(problem))?;
                return Ok(RunOutcome::Finished);
            }
        };
        let best = summary.best.ok_or_else(|| failed(FinetuneError::Data("no dev set to score".into())))?;
        let Some((metric, score)) = best.figures.into_iter().next() else {
            return Err(failed(FinetuneError::Data("no metric was measured on the dev set".into())));
        };
        let scored = TaskResult { metric, score, seconds: summary.seconds };
        self.note(variant, seed, |result| {
            result.tasks.insert(task.name.clone(), scored);
        })?;
        forget_states(&place.join(folder_name(&task.name)))?;
        Ok(RunOutcome::Finished)
    }

    fn tune(
        &self,
        task: &TaskPlan,
        seed: u64,
        place: &Path,
        observer: &mut dyn Observer<Finetuning>,
    ) -> Result<Outcome<FinetuneSummary>, FinetuneError> {
        let model = place.join(PRETRAINING).join("last");
        let config = ModelFolder::open(&model)?.config().config.clone();
        let mut recipe = FinetuneRecipe::for_task(task.task, &config).with("", &task.set)?;
        recipe.seed = seed;
        recipe.input.model = Some(model);
        let source = DataSource { task: task.task, settings: &recipe.data };
        let Loaded { problem, train, dev, .. } = source.load(DataFiles::Folder(&task.data))?;
        let of_model = Task::new(task.task, problem, &recipe);
        let sources = FinetuneSources { task: &of_model, train: &train, dev: dev.as_ref() };
        let folder = place.join(folder_name(&task.name));
        finetune(&recipe, &sources, (&folder, StartMode::Resume), self.device.clone(), self.stop, observer)
    }

    /// Writes both table files, with the results of other processes.
    fn write_tables(&mut self, variants: &[Variant]) -> Result<(), AblationError> {
        let _lock = FolderLock::wait(self.folder)?;
        self.read(variants)?;
        let of = |variant: &Variant| {
            let seeds = self.plan.seeds.iter();
            seeds.map(|&seed| self.results[&(variant.folder.clone(), seed)].clone()).collect::<Vec<_>>()
        };
        let results: Vec<Vec<RunResult>> = variants.iter().map(of).collect();
        let tables = tables(self.plan, variants, &results);
        let markdown: String = tables.iter().map(|table| format!("{table}\n")).collect();
        let mut json = serde_json::to_string_pretty(&tables).expect("a table has string keys");
        json.push('\n');
        write_atomically(self.folder.join("table.md"), |out| out.write_all(markdown.as_bytes()))?;
        Ok(write_atomically(self.folder.join(TABLE), |out| out.write_all(json.as_bytes()))?)
    }
}

/// Results of an ablation, read from its folder.
#[derive(Clone, Debug)]
pub struct Ablation {
    /// Tables of all sections.
    pub tables: Vec<Table>,
    /// Folders of pre-training with their names, each row under its first seed.
    pub runs: Vec<(PathBuf, String)>,
}

/// Reads the results in `folder`; `None` if it is not the folder of an ablation.
///
/// # Errors
/// A file cannot be read, or the table is damaged.
pub fn read(folder: &Path) -> Result<Option<Ablation>, AblationError> {
    let path = folder.join(TABLE);
    if !path.exists() {
        return Ok(None);
    }
    let text =
        limits::read_text(&path, limits::LARGEST_SETTINGS).map_err(|error| EngineError::io(&path, "read", error))?;
    let tables = serde_json::from_str(&text)
        .map_err(|error| AblationError::Folder(format!("{}: no table of an ablation: {error}", path.display())))?;
    let mut runs = Vec::new();
    for (name, row) in folders(folder)? {
        let seeds = folders(&row)?.into_iter().filter_map(|(name, place)| {
            let seed: u64 = name.strip_prefix("seed-")?.parse().ok()?;
            let run = place.join(PRETRAINING);
            run.join(METRICS).exists().then_some((seed, run))
        });
        runs.extend(seeds.min().map(|(seed, run)| (run, format!("{name} seed {seed}"))));
    }
    Ok(Some(Ablation { tables, runs }))
}

/// Names and paths of the folders in `folder`, sorted.
fn folders(folder: &Path) -> Result<Vec<(String, PathBuf)>, AblationError> {
    let mut found = Vec::new();
    let failed = |error| EngineError::io(folder, "read", error);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            found.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path));
        }
    }
    found.sort();
    Ok(found)
}

/// Folder of pre-training within the folder of a run.
const PRETRAINING: &str = "pretrain";

/// File with the tables, for programs.
const TABLE: &str = "table.json";

/// Folder of a run's training states.
const STATES: &str = "checkpoints";

/// Removes the training states of a finished run; its model is kept.
fn forget_states(run: &Path) -> Result<(), AblationError> {
    let states = run.join(STATES);
    match std::fs::remove_dir_all(&states) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(EngineError::io(&states, "remove the states of a finished run", error).into())
        }
        _ => Ok(()),
    }
}
