//! Inference with a fine-tuned model, or with an ensemble whose predictions are averaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use albert::checkpoint::{Heads, ModelFolder, TaskHead};
use albert::finite::check_finite;
use albert::loaded::LoadedModel;
use albert::model::ForwardOptions;
use albert::tokenizer::Tokenizer;
use engine::profile::Profile;
use engine::{Communicator, DType, Device, Precision, Workspace};

use super::batch::Budget;
use super::feature::Feature;
use super::loss::{Later, WindowScore};
use super::measure::golds;
use super::prediction::{Prediction, answers, average, predictions};
use super::scorer::Scorer;
use super::start::tokenizer_of;
use super::task::head_of;
use super::{Examples, Features, Featurizer, FinetuneError, SpanHead, Task};
use crate::files::{Problem, Question};
use crate::span::{Threshold, tune};

/// Maximum tokens of a batch, raised for longer examples.
const TOKENS: usize = 4096;
/// Maximum sequences of a batch, raised for examples with more options.
const SEQUENCES: usize = 128;

/// One or more fine-tuned models of the same task.
#[derive(Debug)]
pub struct Predictor {
    task: Task,
    members: Vec<Member>,
    /// Profiler shared by all members.
    profile: Arc<Profile>,
    cut: usize,
    /// Number of truncated pieces of each example of the last call.
    truncated: Vec<usize>,
}

#[derive(Debug)]
struct Member {
    tokenizer: Tokenizer,
    task: Task,
    loaded: LoadedModel,
    scorer: Scorer,
    is_planned: bool,
}

/// Model folders at `path`: its `seed-*` folders if it is a run over several seeds, otherwise `path` itself, which may
/// be missing.
pub fn members_of(path: &Path) -> Vec<PathBuf> {
    if path.join("config.json").is_file() {
        return vec![path.to_owned()];
    }
    let mut seeds: Vec<PathBuf> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("seed-") && path.join("config.json").is_file()
        })
        .collect();
    seeds.sort();
    if seeds.is_empty() { vec![path.to_owned()] } else { seeds }
}

impl Predictor {
    /// Loads the models in `folders` (see [`members_of`]); their predictions are averaged.
    ///
    /// # Errors
    /// A model cannot be read, has no task head, or was trained for another problem than the first.
    pub fn load(folders: &[PathBuf], device: &Device) -> Result<Self, FinetuneError> {
        let mut members: Vec<Member> = Vec::new();
        let profile = Arc::<Profile>::default();
        for folder in folders.iter().flat_map(|folder| members_of(folder)) {
            let member = Member::load(&folder, Workspace::with_profiler(device.clone(), Arc::clone(&profile)))?;
            if let Some(first) = members.first()
                && first.task.problem != member.task.problem
            {
                return Err(FinetuneError::Data(format!(
                    "{} was trained for a different problem than {}; give models of one task",
                    folder.display(),
                    folders[0].display()
                )));
            }
            members.push(member);
        }
        let Some(task) = members.first().map(|member| member.task.clone()) else {
            return Err(FinetuneError::Data("no model given".into()));
        };
        Ok(Self { task, members, profile, cut: 0, truncated: Vec::new() })
    }

    /// Task of the models.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Kernel timings of all models together; empty until profiling is switched on.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Sets the precision of later predictions.
    ///
    /// # Errors
    /// A weight exceeds the range of bf16, bf16 is requested for the released head of SQuAD 2.0, or the device does not have
    /// the precision.
    pub fn set_precision(&mut self, precision: Precision) -> Result<(), FinetuneError> {
        for member in &mut self.members {
            if member.task.span.head == Some(SpanHead::Released) && precision.activations() != DType::F32 {
                let problem =
                    "the released head of SQuAD 2.0 needs f32 activations; choose f32, bf16x3, bf16x6 or int8";
                return Err(FinetuneError::Data(problem.into()));
            }
            member.loaded.set_precision(precision)?;
            member.scorer.options.dtype = precision.activations();
            member.is_planned = false;
        }
        Ok(())
    }

    /// Sets the null score above which there is no answer.
    ///
    /// # Errors
    /// The models were not trained on questions without an answer, or the score is not finite.
    pub fn set_null_threshold(&mut self, score: f64) -> Result<(), FinetuneError> {
        if !matches!(self.task.problem, Problem::Span { may_be_impossible: true }) {
            let problem = "a null threshold needs a model trained on questions without an answer; this one was not";
            return Err(FinetuneError::Data(problem.into()));
        }
        if !score.is_finite() {
            return Err(FinetuneError::Data(format!("the null threshold is {score}; expected a finite number")));
        }
        self.task.span.null_threshold = Some(score);
        Ok(())
    }

    /// Sets the null threshold to the value with the best F1 on `questions`, whose answers are known; `on` is their name.
    ///
    /// # Errors
    /// As [`set_null_threshold`](Self::set_null_threshold) and [`predict`](Self::predict), or two questions share an
    /// id.
    pub fn tune_null_threshold(&mut self, questions: &[Question], on: &str) -> Result<Threshold, FinetuneError> {
        self.set_null_threshold(0.0)?;
        let predictions = self.predict(&Examples::Questions(questions.to_vec()))?;
        let answers = predictions.into_iter().map(|prediction| match prediction {
            Prediction::Answers(answers) => answers,
            _ => unreachable!("questions have answer predictions"),
        });
        let threshold = tune(&golds(questions), &answers.collect::<Vec<_>>(), on)?;
        self.set_null_threshold(threshold.value())?;
        Ok(threshold)
    }

    /// Number of models, at least one.
    pub fn models(&self) -> usize {
        self.members.len()
    }

    /// Number of truncated examples of all calls so far.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// Number of truncated pieces of each example of the last [`predict`](Self::predict), as the maximum over the models.
    pub fn truncated(&self) -> &[usize] {
        &self.truncated
    }

    /// Mean prediction for each of `examples`, in their order; [`truncated`](Self::truncated) counts truncated pieces.
    ///
    /// # Errors
    /// The examples do not fit the problem (single texts for a model of pairs, pairs for a model of single texts, no
    /// texts at all), a score is not finite, or the engine failed.
    pub fn predict(&mut self, examples: &Examples) -> Result<Vec<Prediction>, FinetuneError> {
        let begun = self.begin(examples)?;
        self.finish(examples, begun)
    }

    /// Begins to compute the predictions for `examples`: on a GPU, waits for all batches except the last of each member.
    fn begin(&mut self, examples: &Examples) -> Result<Vec<Begun>, FinetuneError> {
        if examples.is_empty() {
            return Ok(Vec::new());
        }
        self.task.expect(examples)?;
        self.members.iter_mut().map(|member| member.begin(examples)).collect()
    }

    /// Finishes the predictions for the `examples` that were begun.
    fn finish(&mut self, examples: &Examples, begun: Vec<Begun>) -> Result<Vec<Prediction>, FinetuneError> {
        self.truncated = vec![0; examples.len()];
        if examples.is_empty() {
            return Ok(Vec::new());
        }
        let mut lists = Vec::with_capacity(self.members.len());
        for (member, Begun { features: Features { list, truncated, .. }, scores }) in self.members.iter().zip(begun) {
            lists.push(member.finish(examples, &list, scores)?);
            self.truncated.iter_mut().zip(truncated).for_each(|(most, own)| *most = own.max(*most));
        }
        self.cut += self.truncated.iter().filter(|&&pieces| pieces > 0).count();
        average(lists)
    }
}

/// Features of examples whose scores are begun.
struct Begun {
    features: Features,
    scores: BegunScores,
}

enum BegunScores {
    Values(Later<Vec<f32>>),
    Windows(Later<WindowScore>),
}

/// Result of an example that may not fit a model: its prediction and truncated pieces, or the problem.
pub type OfExample = Result<(Prediction, usize), String>;

impl Predictor {
    /// As [`predict`](Self::predict), but an example that does not fit the models affects only its own prediction.
    ///
    /// # Errors
    /// A score is not finite, or the engine failed.
    pub fn predict_each(&mut self, examples: &Examples) -> Result<Vec<OfExample>, FinetuneError> {
        self.predict_each_later(examples)?(self)
    }

    /// Begins [`predict_each`](Self::predict_each); calling the result with this predictor finishes it. In between, a GPU computes.
    ///
    /// # Errors
    /// The engine failed.
    pub fn predict_each_later(
        &mut self,
        examples: &Examples,
    ) -> Result<impl FnOnce(&mut Self) -> Result<Vec<OfExample>, FinetuneError> + use<>, FinetuneError> {
        let checked: Vec<_> = (0..examples.len()).map(|at| self.task.expect(&examples.one(at))).collect();
        let fitting: Vec<usize> = (0..examples.len()).filter(|&at| checked[at].is_ok()).collect();
        let mut out: Vec<OfExample> = checked
            .into_iter()
            .map(|checked| Err(checked.err().map_or(String::new(), |error| error.to_string())))
            .collect();
        let all = if fitting.len() == examples.len() { examples.clone() } else { examples.some(&fitting) };
        let begun = match self.begin(&all) {
            Err(error @ FinetuneError::Data(_)) => Err(error),
            begun => Ok(begun?),
        };
        Ok(move |predictor: &mut Self| {
            match begun.and_then(|begun| predictor.finish(&all, begun)) {
                Ok(list) => {
                    for ((at, prediction), &truncated) in fitting.into_iter().zip(list).zip(&predictor.truncated) {
                        out[at] = Ok((prediction, truncated));
                    }
                }
                Err(FinetuneError::Data(problem)) if fitting.len() == 1 => out[fitting[0]] = Err(problem),
                Err(FinetuneError::Data(_)) => {
                    for (one, at) in fitting.into_iter().enumerate() {
                        out[at] = predictor.predict_each(&all.one(one))?.remove(0);
                    }
                }
                Err(error) => return Err(error),
            }
            Ok(out)
        })
    }
}

/// Name of a score of `feature`, for messages.
fn name(examples: &Examples, feature: &Feature) -> String {
    match examples.id(feature.example) {
        "" => "a score of the text".to_owned(),
        id => format!("a score of example {id}"),
    }
}

impl Member {
    fn load(folder: &Path, workspace: Workspace) -> Result<Self, FinetuneError> {
        let files = ModelFolder::open(folder)?;
        let tokenizer = tokenizer_of(&files)?;
        let mut task = Task::of_folder(&files, &tokenizer)?;
        if task.span.head.is_none() {
            // The weights determine the head.
            task.span.head = match files.heads().task {
                Some(TaskHead::Span) => Some(SpanHead::Logits),
                Some(TaskHead::SquadV2) => Some(SpanHead::Released),
                _ => None,
            };
        }
        let heads = Heads::for_task(head_of(&task.problem, &task.span)?);
        let (loaded, _) = LoadedModel::new(&files, heads, workspace)?;
        let scorer = Scorer {
            specials: tokenizer.specials(),
            budget: Budget { tokens: TOKENS, sequences: SEQUENCES },
            options: ForwardOptions::EVALUATION,
        };
        Ok(Self { tokenizer, task, loaded, scorer, is_planned: false })
    }

    fn begin(&mut self, examples: &Examples) -> Result<Begun, FinetuneError> {
        let featurizer = Featurizer {
            tokenizer: &self.tokenizer,
            problem: &self.task.problem,
            max_sequence_length: self.task.text.max_sequence_length,
            max_question_length: self.task.text.max_question_length,
            stride: self.task.span.stride,
            keep_windows: true,
        };
        let cpu = self.loaded.workspace.device().processor().clone();
        let features = cpu.install(|| featurizer.features(examples))?;
        let list = &features.list;
        let budget = self.scorer.budget.with_room_for(list);
        if budget != self.scorer.budget {
            (self.scorer.budget, self.is_planned) = (budget, false);
        }
        // For few examples, memory for the largest batch is not worth planning.
        let tokens: usize = list.iter().map(|feature| feature.content.tokens()).sum();
        if let (false, Some(like)) = (self.is_planned || tokens < TOKENS, list.first()) {
            self.scorer.plan(&mut self.loaded, like)?;
            self.is_planned = true;
        }
        let alone = Communicator::default();
        let scores = match examples {
            Examples::Questions(_) => {
                BegunScores::Windows(self.scorer.window_scores(&mut self.loaded, list, &alone)?)
            }
            _ => BegunScores::Values(self.scorer.scores(&mut self.loaded, list, &alone)?),
        };
        Ok(Begun { features, scores })
    }

    fn finish(
        &self,
        examples: &Examples,
        list: &[Feature],
        scores: BegunScores,
    ) -> Result<Vec<Prediction>, FinetuneError> {
        let check = |feature, values: &[f32]| check_finite(values, 1, &self.loaded.params, |_| name(examples, feature));
        match (examples, scores) {
            (Examples::Questions(questions), BegunScores::Windows(scores)) => {
                let scores = scores()?;
                list.iter().zip(&scores).try_for_each(|(feature, score)| check(feature, &score.elements()))?;
                Ok(answers(questions, list, &scores, &self.task.span.decode))
            }
            (_, BegunScores::Values(scores)) => {
                let scores = scores()?;
                list.iter().zip(&scores).try_for_each(|(feature, values)| check(feature, values))?;
                Ok(predictions(&self.task.problem, 0..examples.len(), examples, list, &scores))
            }
            _ => unreachable!("questions have windows"),
        }
    }
}
