//! Objective of fine-tuning: the examples of a task, evaluated on its dev set.

use std::ops::Range;
use std::path::Path;

use albert::checkpoint::{CheckpointError, LoadReport, SaveFormat, TaskHead, save_model_as};
use albert::config::Family;
use albert::loaded::LoadedModel;
use albert::report::ReportError;
use albert::train::{
    About, BatchShape, Evaluated, EvaluationRecord, Objective, Pass, Position, ProgressOf, RecordOf, Replan,
    RunObjective, StepReport, TrainPrecision, TrainSettings, Trainer, Window, Worker,
};
use engine::io::{hash64, write_atomically};
use engine::ops::{CrossEntropyOutput, LossReading};
use engine::{Communicator, Cpu, EngineError, Gradients, Lanes, Reading};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::batch::{Batch, Budget, Order};
use super::feature::Feature;
use super::figures::{DevFigures, FinetuneFigures, LossSums, StepSums};
use super::loss::{loss, scores};
use super::measure::{CollapseCheck, FEW_STEPS, Measurer, collapse};
use super::prediction::{Prediction, answers, predictions};
use super::report::draw;
use super::scorer::{Scorer, fewest_options};
use super::start::HeadOrigin;
use super::{
    Examples, Features, Featurizer, FinetuneError, FinetuneRecipe, FinetuneSummary, Measured, Start, Task, baseline,
    chance, measure,
};

/// Task and examples of a run.
#[derive(Clone, Copy, Debug)]
pub struct FinetuneSources<'a> {
    /// Task of the model.
    pub task: &'a Task,
    /// Training examples.
    pub train: &'a Examples,
    /// Dev examples, if there are any.
    pub dev: Option<&'a Examples>,
}

/// Examples of a task for a model with the task's head.
#[derive(Debug)]
pub struct Finetuning {
    recipe: FinetuneRecipe,
    /// Lanes of this rank.
    lanes: Range<usize>,
    task: Task,
    pub(super) scorer: Scorer,
    pub(super) features: Vec<Feature>,
    /// Number of options, if all examples have the same number.
    options: Option<usize>,
    order: Order,
    /// Maximum sequence length of the model.
    positions: usize,
    dev: Option<Dev>,
    family: Family,
    /// Files of the tokenizer, kept with the model.
    tokenizer: Vec<(&'static str, Vec<u8>)>,
    about: About<FinetuneDetails>,
}

/// Dev set.
#[derive(Debug)]
struct Dev {
    examples: Examples,
    features: Vec<Feature>,
    /// Number of truncated pieces of each example.
    truncated: Vec<usize>,
}

/// Losses of a micro-batch in transfer to the host.
#[derive(Debug)]
pub struct LossReadings {
    /// The loss itself.
    total: Reading<f32>,
    classified: Option<LossReading>,
    /// Weight of the micro-batch in the loss of the step.
    weight: u64,
    /// Weight of the step, by which the total is divided.
    denominator: f32,
}

/// Details of a run, known before its first step.
#[derive(Clone, Debug, PartialEq)]
pub struct FinetuneDetails {
    /// Seed of the run.
    pub seed: u64,
    /// Loaded, ignored and randomly initialized tensors.
    pub report: LoadReport,
    /// Origin of the head's parameters.
    pub head: HeadOrigin,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Number of training examples.
    pub examples: usize,
    /// Number of truncated examples of the training set and of the dev set.
    pub cut: [usize; 2],
    /// Ids of training questions whose answer starts or ends inside a piece, or is covered by no piece.
    pub inexact: Vec<String>,
    /// Number of dev examples.
    pub dev_examples: usize,
    /// Training loss of the constant answer named by `baseline`.
    pub chance: f64,
    /// Baseline with the loss `chance`, as a phrase for messages.
    pub baseline: &'static str,
}

/// State of a run between evaluations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinetuneState {
    pub(super) best_step: u64,
    pub(super) best: Option<Measured>,
    pub(super) collapse: Option<String>,
    /// Sums since the last evaluation.
    pub(super) since: Window<StepSums>,
}

/// Features of the training set and, with all windows, of the dev set.
fn features_of(
    recipe: &FinetuneRecipe,
    sources: &FinetuneSources<'_>,
    start: &Start,
    cpu: &Cpu,
) -> Result<(Features, Option<Features>), FinetuneError> {
    let featurizer = Featurizer {
        tokenizer: &start.tokenizer,
        problem: &sources.task.problem,
        max_sequence_length: recipe.text.max_sequence_length,
        max_question_length: recipe.text.max_question_length,
        stride: recipe.span.stride,
        keep_windows: false,
    };
    let train = cpu.install(|| featurizer.features(sources.train))?;
    let featurizer = Featurizer { keep_windows: true, ..featurizer };
    let dev = sources.dev.map(|examples| cpu.install(|| featurizer.features(examples))).transpose()?;
    Ok((train, dev))
}

/// Rejects a training set without examples or with an unknown label, and a precision that the head does not support.
fn expect_trainable(train: &[Feature], head: Option<TaskHead>, precision: TrainPrecision) -> Result<(), FinetuneError> {
    if let Some(unknown) = train.iter().find(|feature| !feature.target.is_known()) {
        let problem = format!("example {} of the training set has no label", unknown.example + 1);
        return Err(FinetuneError::Data(problem));
    }
    if train.is_empty() {
        return Err(FinetuneError::Data("the training set has no examples".into()));
    }
    let has_room = matches!(precision, TrainPrecision::F32 | TrainPrecision::Bf16x3 | TrainPrecision::Bf16x6);
    if head == Some(TaskHead::SquadV2) && !has_room {
        return Err(FinetuneError::Recipe(
            "`compute.precision` must be \"f32\", \"bf16x3\" or \"bf16x6\" with the released head of SQuAD 2.0; or give \
             span.head=logits"
                .into(),
        ));
    }
    Ok(())
}

impl Finetuning {
    /// Creates the trainer for the model of the recipe with the task's head, the optimizer before its first step, and planned memory.
    ///
    /// # Errors
    /// There are no examples, one has no label, recipe, model and examples do not match, or there is not enough memory.
    pub(crate) fn trainer(
        recipe: &FinetuneRecipe,
        sources: &FinetuneSources<'_>,
        worker: impl Into<Worker>,
    ) -> Result<Trainer<Self>, FinetuneError> {
        let worker = worker.into();
        let lanes = Lanes::new(&worker.communicator, "batch.lanes", recipe.batch.lanes)?;
        let problem = &sources.task.problem;
        let cpu = worker.device.processor();
        let start = Start::load(recipe, problem, cpu)?;
        let (train, dev) = features_of(recipe, sources, &start, cpu)?;
        let cut = [train.cut(), dev.as_ref().map_or(0, Features::cut)];
        let dev = sources.dev.zip(dev).map(|(examples, Features { list, truncated, .. })| Dev {
            examples: examples.clone(),
            features: list,
            truncated,
        });
        expect_trainable(&train.list, start.model.heads().task, recipe.compute.precision)?;
        let steps = recipe.steps(train.list.len())?;
        let budget = Budget { tokens: recipe.batch.max_tokens, sequences: recipe.batch.max_sequences };
        let all = train.list.iter().chain(dev.iter().flat_map(|dev| &dev.features));
        let objective = Self {
            recipe: recipe.clone(),
            lanes: lanes.own(),
            task: sources.task.of_examples(sources.train),
            scorer: Scorer {
                specials: start.tokenizer.specials(),
                budget: budget.with_room_for(all),
                options: recipe.compute.options(&worker.device, None),
            },
            options: fewest_options(&train.list).1,
            order: Order::new(recipe.seed, train.list.len()),
            positions: start.config.max_position_embeddings,
            family: start.family,
            tokenizer: start.tokenizer.to_files()?,
            about: About {
                details: FinetuneDetails {
                    seed: recipe.seed,
                    report: start.report,
                    head: start.head,
                    warmup: steps.warmup,
                    examples: sources.train.len(),
                    cut,
                    inexact: train.inexact.iter().map(|&at| sources.train.id(at).to_owned()).collect(),
                    dev_examples: sources.dev.map_or(0, Examples::len),
                    chance: chance(problem, &train.list),
                    baseline: baseline(problem),
                },
                warnings: Vec::new(),
                inputs: json!({ "examples": format!("{:016x}", fingerprint_of(&train.list)) }),
                evaluated: sources.dev.map_or(0, Examples::len),
            },
            features: train.list,
            dev,
        };
        Trainer::over(objective, recipe.train_settings(steps), (start.model, start.params), worker, lanes)
    }
}

impl Objective for Finetuning {
    type Error = FinetuneError;
    type Batch = Batch;
    /// Number of terms in the loss of the step.
    type Denominator = f32;
    type Losses = Option<LossReadings>;
    type Sums = LossSums;
    type Figures = FinetuneFigures;
    type Evaluation = DevFigures;
    type State = FinetuneState;

    fn draw(&mut self, step: u64, room: &mut Vec<Batch>) -> usize {
        let Self { features, order, scorer, lanes, .. } = self;
        let settings = &self.recipe.batch;
        let (start, per_lane) = (step * settings.examples_per_step as u64, settings.examples_per_step / settings.lanes);
        let mut batches = 0;
        for lane in lanes.clone() {
            let first = start + (lane * per_lane) as u64;
            for at in first..first + per_lane as u64 {
                let feature = &features[order.at(at)];
                if at == first || !room[batches - 1].has_room_for(feature, scorer.budget) {
                    if batches == room.len() {
                        room.push(Batch::default());
                    }
                    room[batches].clear();
                    room[batches].lane = lane;
                    batches += 1;
                }
                room[batches - 1].push(feature, scorer.specials);
            }
        }
        batches
    }

    fn shape(batch: &Batch) -> BatchShape<'_> {
        BatchShape { cu_seqlens: &batch.cu_seqlens, masked: 0, lane: batch.lane }
    }

    fn counts(&self, batches: &[Batch]) -> [u64; 2] {
        [batches.iter().map(|batch| batch.weight).sum::<usize>() as u64, 0]
    }

    fn denominator(&self, [weight, _]: [u64; 2]) -> f32 {
        weight as f32
    }

    fn run(
        &self,
        pass: &Pass<'_, '_>,
        batch: &Batch,
        denominator: f32,
        gradients: &mut Gradients,
    ) -> Result<Option<LossReadings>, EngineError> {
        let Pass { model, tape, options } = pass;
        let scores = scores(model, tape, batch, options)?;
        let loss = loss(model, tape, batch, &scores, self.options, denominator)?;
        tape.backward(&loss.total, gradients)?;
        if tape.is_dry() {
            return Ok(None);
        }
        Ok(Some(LossReadings {
            total: loss.total.value().to_vec_later()?,
            classified: loss.classified.as_ref().map(CrossEntropyOutput::read_later).transpose()?,
            weight: batch.weight as u64,
            denominator,
        }))
    }

    fn sums(losses: Option<LossReadings>) -> Result<LossSums, EngineError> {
        let mut sums = LossSums::default();
        let Some(LossReadings { total, classified, weight, denominator }) = losses else { return Ok(sums) };
        // The sum of the micro-batch was divided by the weight of the step.
        sums.loss.add(f64::from(total.wait()?[0]) * f64::from(denominator), weight);
        if let Some(classified) = classified {
            sums.correct.add(classified.wait()?.1 as u64, weight);
        }
        Ok(sums)
    }

    fn figures(&self, sums: &LossSums) -> (f64, FinetuneFigures) {
        (sums.loss.value().unwrap_or(0.0), FinetuneFigures { accuracy: sums.correct.value() })
    }

    fn largest(&self) -> Batch {
        let (like, _) = fewest_options(&self.features);
        Batch::largest(self.scorer.budget, self.positions, like)
    }

    fn plan_evaluation(&self, loaded: &mut LoadedModel, _settings: &TrainSettings) -> Result<usize, FinetuneError> {
        let dev = self.dev.as_ref().map(|dev| &dev.features[..]).filter(|dev| !dev.is_empty());
        let (like, _) = fewest_options(dev.unwrap_or(&self.features));
        Ok(self.scorer.plan(loaded, like)?)
    }

    fn room(&self) -> (Vec<Batch>, usize) {
        let tokens: usize = self.features.iter().map(|feature| feature.content.tokens()).sum();
        (Vec::new(), 4 * tokens)
    }
}

impl RunObjective for Finetuning {
    type Details = FinetuneDetails;
    type Summary = FinetuneSummary;

    const KEEPS_STATE: bool = false;

    fn about(&self) -> &About<FinetuneDetails> {
        &self.about
    }

    fn stepped(&self, state: &mut FinetuneState, report: &StepReport<FinetuneFigures>) {
        state.since.add(report);
    }

    fn evaluate(
        &mut self,
        loaded: &mut LoadedModel,
        settings: &TrainSettings,
        communicator: &Communicator,
        progress: &mut ProgressOf<Self>,
        position: Position,
    ) -> Result<Option<Evaluated<DevFigures>>, FinetuneError> {
        let Some(dev) = &self.dev else { return Ok(None) };
        let (measured, lines) = self.predict(loaded, dev, communicator)?;
        let (step, state) = (position.step, &mut progress.objective);
        let since = std::mem::take(&mut state.since);
        let train_loss = since.mean_loss();
        let is_best = state.best.as_ref().is_none_or(|best| measured.is_better_than(best));
        let check = CollapseCheck {
            problem: &self.task.problem,
            measured: &measured,
            // The last evaluation may follow the previous one after a single step, whose loss is mostly noise.
            loss: (since.steps >= settings.evaluation.interval.min(FEW_STEPS)).then_some(train_loss),
            chance: self.about.details.chance,
            step,
            is_warm: step >= self.about.details.warmup && since.steps > 0,
            is_last: position.is_over(if is_best { 0 } else { progress.worse + 1 }),
        };
        let collapse = collapse(&self.recipe, check);
        // One warning per collapse, not per evaluation.
        let is_news = state.collapse.is_none();
        state.collapse.clone_from(&collapse);
        if is_best {
            state.best_step = step;
            state.best = Some(measured.clone());
        }
        let figures = DevFigures { measured, train_loss, is_best, collapse: collapse.filter(|_| is_news) };
        Ok(Some(Evaluated { figures, is_best, files: vec![("predictions.jsonl", lines)] }))
    }

    fn config(&self) -> String {
        self.recipe.to_toml()
    }

    fn fingerprint(&self, _step: u64) -> Value {
        self.recipe.fingerprint()
    }

    fn replan(&mut self, _replan: Replan) -> Result<(), FinetuneError> {
        Err(FinetuneError::Recipe("the number of steps of fine-tuning cannot change during a run".into()))
    }

    fn prepare(&self, folder: &Path) -> Result<(), FinetuneError> {
        self.task.save(folder)
    }

    fn save_model(&self, loaded: &LoadedModel, folder: &Path) -> Result<(), CheckpointError> {
        for (name, content) in &self.tokenizer {
            write_atomically(folder.join(name), |out| out.write_all(content))?;
        }
        let LoadedModel { model, params, .. } = loaded;
        let format = SaveFormat { family: self.family, labels: self.task.problem.labels(), ..SaveFormat::default() };
        save_model_as(folder, model.config(), model.heads(), format, |name| {
            params.values(params.find(name).expect("the store was built from the same list"))
        })
    }

    fn report(&self, folder: &Path, records: &[RecordOf<Self>], state: &FinetuneState) -> Result<(), ReportError> {
        draw(folder, records, &self.task, state.best.as_ref(), &self.recipe)
    }

    fn summary(
        &self,
        position: Position,
        progress: &ProgressOf<Self>,
        _last: Option<&EvaluationRecord<DevFigures>>,
    ) -> FinetuneSummary {
        let FinetuneState { best_step, best, collapse, .. } = progress.objective.clone();
        let stopped_early = position.stopped_early(progress.worse);
        let (seed, step, seconds) = (self.recipe.seed, position.step, progress.seconds);
        FinetuneSummary { seed, step, seconds, stopped_early, best_step, best, collapse }
    }

    fn finish(&self, folder: &Path, summary: &FinetuneSummary) -> Result<(), FinetuneError> {
        summary.save(folder)
    }
}

impl Finetuning {
    /// Metrics on the dev set, and its predictions as JSON lines.
    fn predict(
        &self,
        loaded: &mut LoadedModel,
        dev: &Dev,
        communicator: &Communicator,
    ) -> Result<(Measured, String), FinetuneError> {
        let (task, Dev { examples, features, truncated }) = (&self.task, dev);
        let mut lines = String::new();
        let mut write = |first: usize, predictions: &[Prediction]| {
            for (at, prediction) in (first..).zip(predictions) {
                lines += &prediction.to_json(examples.id(at), task, truncated[at], examples.passage(at));
                lines.push('\n');
            }
        };
        if let Examples::Questions(questions) = examples {
            let scores = self.scorer.window_scores(loaded, features, communicator)?()?;
            let predictions = answers(questions, features, &scores, &task.span.decode);
            write(0, &predictions);
            let measured = measure(task, examples, &predictions)?.expect("questions are measured");
            return Ok((measured, lines));
        }
        let mut measurer = Measurer::new(task, examples);
        let (mut rest, mut first) = (&features[..], 0);
        while first < examples.len() {
            let part = part_of(rest, task.problem.labels().len());
            rest = &rest[part.len()..];
            let end = rest.first().map_or(examples.len(), |next| next.example);
            let scores = self.scorer.scores(loaded, part, communicator)?()?;
            let predictions = predictions(&task.problem, first..end, examples, part, &scores);
            measurer.add(first, &predictions);
            write(first, &predictions);
            first = end;
        }
        let measured = measurer.finish().ok_or_else(|| {
            FinetuneError::Data("no example of the dev set has a label; nothing can be measured".into())
        })?;
        Ok((measured, lines))
    }
}

/// Maximum number of scores in memory during an evaluation: 64 MiB.
const SCORES: usize = 1 << 24;

/// Longest prefix of `features` of whole examples with at most [`SCORES`] scores over `classes` classes; at least one
/// example.
fn part_of(features: &[Feature], classes: usize) -> &[Feature] {
    let (mut end, mut rows) = (0, 0);
    for example in features.chunk_by(|a, b| a.example == b.example) {
        rows += example.iter().map(Feature::rows).sum::<usize>();
        if end > 0 && rows.saturating_mul(classes.max(1)) > SCORES {
            break;
        }
        end += example.len();
    }
    &features[..end]
}

/// Hash of the training features, so that a run is not resumed with other examples.
fn fingerprint_of(features: &[Feature]) -> u64 {
    features.iter().fold(0, |hash, feature| {
        let text = format!("{hash:016x} {:?} {:?}", feature.content, feature.target);
        hash64(text.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::super::feature::{Content, Target};
    use super::*;
    use crate::files::Sequence;

    #[test]
    fn parts_are_of_whole_examples_and_bounded() {
        let feature = |example| Feature {
            example,
            content: Content::One(Sequence { ids: vec![0; 4], second: 4 }),
            target: Target::Words { words: vec![0, 1], pieces: vec![1, 2], tags: vec![0, 0] },
        };
        // Two features per example, two rows per feature.
        let features: Vec<Feature> = (0..200).map(|at| feature(at / 2)).collect();
        assert_eq!(part_of(&features, 2).len(), 200);
        // Ten examples have 40 rows.
        assert_eq!(part_of(&features, SCORES / 40).len(), 20);
        assert_eq!(part_of(&features, SCORES / 39).len(), 18);
        assert_eq!(part_of(&features, usize::MAX).len(), 2);
        assert_eq!(part_of(&features[..0], 2).len(), 0);
    }
}
