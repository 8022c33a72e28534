//! Fine-tuning recipe: every setting of a run, in TOML.
//!
//! ```toml
//! seed = 1
//! [text]
//! max_sequence_length = 128
//! [batch]
//! examples_per_step = 32
//! [dropout]
//! encoder = 0.0
//! [optimizer]
//! learning_rate = 2e-5
//! [schedule]
//! epochs = 3.0                # or steps
//! warmup_share = 0.1          # or warmup_steps
//! [evaluation]
//! interval = 200
//! patience = 5
//! ```
//!
//! Defaults depend on the model's size, or come from the paper's table (see `presets`). Unknown keys are rejected.
//! Every key can be overridden by `section.key=value`; `steps` and `epochs` replace each other, and so do
//! `warmup_steps` and `warmup_share`.

use std::path::PathBuf;

use albert::config::AlbertConfig;
use albert::train::{
    ComputeSettings, EvaluationSettings, OptimizerKind, OptimizerSettings, RunSettings, ScheduleKind, ScheduleSettings,
    Setting, TrainSettings, check_decay, expect, fingerprint, lay_over, parse, recipe_of,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use super::{DataSettings, FinetuneError, TaskName};
use crate::span::DecodeSettings;

/// All settings of a fine-tuning run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinetuneRecipe {
    /// Seed of the head's initialization, of dropout and of the order of examples.
    pub seed: u64,
    /// Initial model and files of examples.
    pub input: FinetuneInput,
    /// Names of columns and keys in the input files.
    pub data: DataSettings,
    /// Length limits of sequences.
    pub text: TextSettings,
    /// Answer spans.
    pub span: SpanRecipe,
    /// Batch sizes.
    pub batch: BatchSettings,
    /// Dropout rates in training.
    pub dropout: DropoutSettings,
    /// Optimizer and its settings.
    pub optimizer: OptimizerSettings,
    /// Learning-rate schedule.
    pub schedule: FinetuneSchedule,
    /// Storage type and checkpointing of activations.
    pub compute: ComputeSettings,
    /// Evaluations on the dev set.
    pub evaluation: EvaluationSettings,
    /// Reports and checkpoints; may change when a run is resumed.
    pub run: RunSettings,
}

/// Initial model; its files may move before a run is resumed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FinetuneInput {
    /// Folder of a pre-trained model, for encoder and pooler; the head is initialized at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// Folder of a fine-tuned model, in place of `model`; its head is also loaded if it has the same labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// Load only configuration and tokenizer of `model`, with random weights: a baseline without pre-training.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_scratch: bool,
    /// Name of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskName>,
    /// Folder of the examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// File of the training examples, in place of `data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<PathBuf>,
    /// File of the dev examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev: Option<PathBuf>,
}

/// Length limits of sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    /// Maximum sequence length in tokens, `[CLS]` and `[SEP]` included.
    pub max_sequence_length: usize,
    /// Maximum pieces of a question: for multiple choice, of question and option (the end is kept); for answer spans,
    /// of the question alone (the start is kept).
    pub max_question_length: usize,
}

/// Heads for answer spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanHead {
    /// Two logits per token, as for SQuAD 1.1 and in Hugging Face; the span of `[CLS]` alone means no answer.
    Logits,
    /// The released head of SQuAD 2.0: the end depends on the start, and a classifier predicts questions without an
    /// answer. Hugging Face does not have this head.
    Released,
}

/// Settings for answer spans; ignored for other problems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanRecipe {
    /// Head; by default the released one if questions may have no answer, otherwise two logits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<SpanHead>,
    /// Offset in pieces between the starts of consecutive windows over a passage.
    pub stride: usize,
    /// Null score above which there is no answer; 0 by default. For a margin, a null score of 0 means that "no
    /// answer" is as likely as the best answer; for a no-answer logit, that its probability is one half.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null_threshold: Option<f64>,
    /// Number and length of candidate answers.
    pub decode: DecodeSettings,
}

impl Default for SpanRecipe {
    fn default() -> Self {
        Self { head: None, stride: 128, null_threshold: None, decode: DecodeSettings::default() }
    }
}

/// Batch sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSettings {
    /// Examples per optimizer step, the effective batch size.
    pub examples_per_step: usize,
    /// Maximum tokens of a micro-batch; splitting a step into micro-batches affects only rounding and dropout.
    pub max_tokens: usize,
    /// Maximum sequences of a micro-batch.
    pub max_sequences: usize,
    /// Equal parts of a step whose gradients are summed in a tree, a power of two; a rank computes whole lanes, so this is the
    /// maximum number of ranks. No micro-batch crosses a lane.
    #[serde(default = "one", skip_serializing_if = "albert::data::is_one")]
    pub lanes: usize,
}

fn one() -> usize {
    1
}

/// Dropout rates in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropoutSettings {
    /// Rate of hidden states and attention in the encoder; the model's own rates by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder: Option<f64>,
    /// Rate before the head; the model's own rate if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classifier: Option<f64>,
}

/// Learning-rate schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinetuneSchedule {
    /// Shape of the schedule.
    pub kind: ScheduleKind,
    /// Optimizer steps of the whole run; alternative to `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Passes over the examples; the run has ⌊examples · epochs / `examples_per_step`⌋ steps, as released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Steps of linear warm-up; alternative to `warmup_share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Warm-up as a share of the steps, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_share: Option<f64>,
    /// Exponent of the decay; 1 is linear.
    pub power: f64,
    /// Learning rate at the end.
    pub end_learning_rate: f64,
}

/// Resolved numbers of steps of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Steps of the whole run.
    pub total: u64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Steps between evaluations.
    pub evaluation: u64,
}

/// Maximum number of evaluations of a run without a set interval, approximately.
const EVALUATIONS: u64 = 20;

/// Minimum number of steps between evaluations without a set interval, in runs of at least three times as many.
const APART: u64 = 10;

/// Pairs of alternative keys; the one given last replaces the other.
const ALTERNATIVES: [[&str; 2]; 2] = [["steps", "epochs"], ["warmup_steps", "warmup_share"]];

impl FinetuneRecipe {
    /// Default recipe for a model. Learning rates depend on the model's width: wide models collapse to one class at
    /// BERT's rates, and xlarge and xxlarge also need gradients clipped at 0.1.
    pub fn for_model(config: &AlbertConfig) -> Self {
        let learning_rate = match config.hidden_size {
            0..=256 => 1e-4,
            257..=512 => 5e-5,
            513..=768 => 2e-5,
            _ => 1e-5,
        };
        let is_xlarge = config.hidden_size >= 2048;
        Self {
            seed: 12_345,
            input: FinetuneInput::default(),
            data: DataSettings::default(),
            text: TextSettings {
                max_sequence_length: config.max_position_embeddings.min(512),
                max_question_length: 128.min(config.max_position_embeddings / 2),
            },
            span: SpanRecipe::default(),
            batch: BatchSettings { examples_per_step: 32, max_tokens: 4096, max_sequences: 64, lanes: 1 },
            dropout: DropoutSettings { encoder: None, classifier: Some(0.1) },
            optimizer: OptimizerSettings {
                kind: OptimizerKind::AdamW,
                learning_rate,
                bias_correction: true,
                clip_norm: if is_xlarge { 0.1 } else { 1.0 },
                ..OptimizerSettings::default()
            },
            schedule: FinetuneSchedule {
                kind: ScheduleKind::Smooth,
                steps: None,
                epochs: Some(3.0),
                warmup_steps: None,
                warmup_share: Some(0.1),
                power: 1.0,
                end_learning_rate: 0.0,
            },
            compute: ComputeSettings::default(),
            evaluation: EvaluationSettings { interval: 0, patience: Some(0) },
            run: RunSettings {
                log_interval: 10,
                checkpoint_interval: None,
                divergence_margin: 0.0,
                communication_timeout: None,
                shard_optimizer: false,
            },
        }
    }

    /// Default recipe for a task: [`FinetuneRecipe::for_model`], with shorter windows and questions for answer spans.
    #[must_use]
    pub fn for_task(task: TaskName, config: &AlbertConfig) -> Self {
        let mut recipe = Self::for_model(config);
        if task.is_about_spans() {
            let longest = &mut recipe.text.max_sequence_length;
            *longest = (*longest).min(384);
            recipe.text.max_question_length = 64.min(*longest / 2);
            recipe.span.stride = 128.min(*longest / 3);
        }
        recipe
    }

    /// Overrides this recipe with the settings of `text` (TOML), then with `settings` in order.
    ///
    /// # Errors
    /// The text is not TOML, a key is unknown, or a value is invalid.
    pub fn with(&self, text: &str, settings: &[Setting]) -> Result<Self, FinetuneError> {
        let mut table = Table::try_from(self).expect("a recipe is a table");
        lay_over(&mut table, parse(text)?, &ALTERNATIVES);
        for setting in settings {
            let mut one = Table::new();
            setting.write_to(&mut one)?;
            lay_over(&mut table, one, &ALTERNATIVES);
        }
        Self::of(table)
    }

    /// Parses the output of [`FinetuneRecipe::to_toml`].
    ///
    /// # Errors
    /// As [`FinetuneRecipe::with`], or a setting is missing.
    pub fn from_toml(text: &str) -> Result<Self, FinetuneError> {
        Self::of(parse(text)?)
    }

    fn of(table: Table) -> Result<Self, FinetuneError> {
        let recipe: Self = recipe_of(table)?;
        recipe.validate()?;
        Ok(recipe)
    }

    /// The recipe as TOML, the content of `config.toml`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe is a table")
    }

    /// Settings that determine the results of the run, as JSON: all except `input` and `run`.
    pub(crate) fn fingerprint(&self) -> serde_json::Value {
        fingerprint(self)
    }

    /// Numbers of steps of a run over `examples` examples.
    ///
    /// # Errors
    /// The warm-up is longer than the run.
    pub fn steps(&self, examples: usize) -> Result<Steps, FinetuneError> {
        let per_step = self.batch.examples_per_step as f64;
        let of_epochs = |epochs: f64| (examples as f64 * epochs / per_step).floor().max(1.0) as u64;
        let schedule = &self.schedule;
        let total = schedule.steps.unwrap_or_else(|| of_epochs(schedule.epochs.unwrap_or(0.0)));
        let share = schedule.warmup_share.unwrap_or(0.0);
        let warmup = schedule.warmup_steps.unwrap_or((share * total as f64) as u64);
        if warmup > total {
            return Err(FinetuneError::Recipe(format!(
                "`schedule.warmup_steps` is {warmup}, but the run has {total} steps; lower it or set \
                 `schedule.warmup_share`"
            )));
        }
        let epoch = of_epochs(1.0);
        // An epoch of a tiny training set may be one step.
        let usual = || total.div_ceil(EVALUATIONS).max(total.div_ceil(3).min(APART)).next_multiple_of(epoch);
        let evaluation = if self.evaluation.interval == 0 { usual() } else { self.evaluation.interval };
        Ok(Steps { total, warmup, evaluation })
    }

    /// Settings for the training core of a run of `steps`.
    pub(super) fn train_settings(&self, steps: Steps) -> TrainSettings {
        let Self { seed, optimizer, schedule, compute, evaluation, run, .. } = self.clone();
        let FinetuneSchedule { kind, power, end_learning_rate, .. } = schedule;
        let schedule = ScheduleSettings {
            kind,
            steps: steps.total,
            warmup_steps: steps.warmup,
            power,
            end_learning_rate,
            replans: Vec::new(),
        };
        let evaluation = EvaluationSettings { interval: steps.evaluation, ..evaluation };
        TrainSettings { seed, optimizer, schedule, compute, evaluation, run }
    }

    /// Configuration of `model` with the recipe's dropout.
    pub(super) fn config(&self, model: &AlbertConfig) -> AlbertConfig {
        let mut config = model.clone();
        if let Some(rate) = self.dropout.encoder {
            (config.hidden_dropout_prob, config.attention_probs_dropout_prob) = (rate, rate);
        }
        if let Some(rate) = self.dropout.classifier {
            config.classifier_dropout_prob = rate;
        }
        config
    }

    /// Checks every setting, alone and in combination.
    ///
    /// # Errors
    /// The first invalid setting.
    pub(crate) fn validate(&self) -> Result<(), FinetuneError> {
        let wrong = |message: String| Err(FinetuneError::Recipe(message));
        if self.input.from_scratch && self.input.from.is_some() {
            return wrong(
                "`input.from_scratch` discards the weights that `input.from` loads; set only one of them".into(),
            );
        }
        self.optimizer.check()?;
        let (schedule, rate) = (&self.schedule, |key, rate: Option<f64>| {
            let rate = rate.unwrap_or(0.0);
            expect(key, rate, (0.0..1.0).contains(&rate), "at least 0, below 1")
        });
        let (epochs, share) = (schedule.epochs.unwrap_or(1.0), schedule.warmup_share.unwrap_or(0.0));
        expect("schedule.epochs", epochs, epochs > 0.0 && epochs <= 1e6, "above 0, at most 1000000")?;
        expect("schedule.warmup_share", share, (0.0..=1.0).contains(&share), "0 to 1")?;
        check_decay(schedule.power, schedule.end_learning_rate, self.optimizer.learning_rate)?;
        let dev_share = self.data.dev_share;
        expect("data.dev_share", dev_share, (0.0..=0.5).contains(&dev_share), "0 (nothing is held out) to 0.5")?;
        let threshold = self.span.null_threshold.unwrap_or(0.0);
        expect("span.null_threshold", threshold, threshold.is_finite(), "a finite number")?;
        rate("dropout.encoder", self.dropout.encoder)?;
        rate("dropout.classifier", self.dropout.classifier)?;
        self.run.check()?;
        if schedule.steps.is_some() == schedule.epochs.is_some() {
            return wrong("give either `schedule.steps` or `schedule.epochs`".into());
        }
        if schedule.warmup_steps.is_some() && schedule.warmup_share.is_some() {
            return wrong("give either `schedule.warmup_steps` or `schedule.warmup_share`".into());
        }
        if schedule.steps.is_some_and(|steps| steps == 0 || steps > 1 << 40) {
            return wrong(format!("`schedule.steps` is {}, expected 1 to 2^40", schedule.steps.unwrap_or(0)));
        }
        let BatchSettings { examples_per_step, max_tokens, max_sequences, lanes } = self.batch;
        if lanes == 0 || !examples_per_step.is_multiple_of(lanes) {
            return wrong(format!("`batch.lanes` is {lanes}, expected a divisor of `batch.examples_per_step`"));
        }
        let longest = self.text.max_sequence_length;
        let question = self.text.max_question_length;
        for (key, value, low, high) in [
            ("text.max_sequence_length", longest, 8, 1 << 20),
            ("text.max_question_length", question, 1, 1 << 20),
            ("batch.examples_per_step", examples_per_step, 1, 1 << 24),
            ("batch.max_tokens", max_tokens, longest, 1 << 30),
            ("batch.max_sequences", max_sequences, 1, 1 << 24),
            ("span.stride", self.span.stride, 1, 1 << 20),
            ("span.decode.n_best", self.span.decode.n_best, 1, 1 << 10),
            ("span.decode.max_answer", self.span.decode.max_answer, 1, 1 << 20),
        ] {
            if !(low..=high).contains(&value) {
                return wrong(format!("`{key}` is {value}, expected {low} to {high}"));
            }
        }
        Ok(())
    }

    /// Checks the recipe against the model.
    ///
    /// # Errors
    /// The maximum sequence length exceeds the model's positions.
    pub(super) fn expect_positions(&self, model: &AlbertConfig) -> Result<(), FinetuneError> {
        let (longest, positions) = (self.text.max_sequence_length, model.max_position_embeddings);
        if longest <= positions {
            return Ok(());
        }
        Err(FinetuneError::Recipe(format!(
            "`text.max_sequence_length` is {longest}, but the model has {positions} positions"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> FinetuneRecipe {
        FinetuneRecipe::for_model(&AlbertConfig::preset("base").unwrap())
    }

    fn with(overrides: &[&str]) -> Result<FinetuneRecipe, FinetuneError> {
        base().with("", &Setting::all(overrides)?)
    }

    #[test]
    fn is_read_back_as_written() {
        for recipe in [base(), with(&["schedule.steps=10", "dropout.encoder=0.2", "input.model=/m"]).unwrap()] {
            assert_eq!(FinetuneRecipe::from_toml(&recipe.to_toml()).unwrap(), recipe);
        }
    }

    #[test]
    fn steps_and_epochs_replace_each_other() {
        let recipe = with(&["schedule.steps=100"]).unwrap();
        assert_eq!((recipe.schedule.steps, recipe.schedule.epochs), (Some(100), None));
        assert_eq!(recipe.steps(1000).unwrap(), Steps { total: 100, warmup: 10, evaluation: 31 });
        let recipe = recipe.with("[schedule]\nepochs = 2.0\nwarmup_steps = 7", &[]).unwrap();
        // SQuAD 1.1 of the paper: 87,599 questions, 48 a step, two epochs.
        let recipe = recipe.with("", &["batch.examples_per_step=48".parse().unwrap()]).unwrap();
        assert_eq!(recipe.steps(87_599).unwrap(), Steps { total: 3649, warmup: 7, evaluation: 1824 });
        let message = recipe.steps(3).unwrap_err().to_string();
        assert!(message.contains("the run has 1 steps"), "{message}");
    }

    #[test]
    fn a_tiny_training_set_is_not_evaluated_after_every_step() {
        let recipe = with(&["schedule.steps=100", "batch.examples_per_step=16"]).unwrap();
        // Epochs of one, one, two and seven steps.
        for (examples, evaluation) in [(3, 10), (16, 10), (40, 10), (112, 14)] {
            assert_eq!(recipe.steps(examples).unwrap().evaluation, evaluation, "{examples} examples");
        }
        let recipe = with(&["schedule.epochs=3", "batch.examples_per_step=16"]).unwrap();
        assert_eq!(recipe.steps(160).unwrap().evaluation, 10);
        assert_eq!(with(&["schedule.steps=6"]).unwrap().steps(3).unwrap().evaluation, 2);
        assert_eq!(with(&["schedule.steps=9", "evaluation.interval=2"]).unwrap().steps(3).unwrap().evaluation, 2);
    }

    #[test]
    fn rates_follow_the_size_of_the_model() {
        let of = |name| {
            let recipe = FinetuneRecipe::for_model(&AlbertConfig::preset(name).unwrap());
            recipe.validate().unwrap();
            (recipe.optimizer.learning_rate, recipe.optimizer.clip_norm)
        };
        assert_eq!(of("base"), (2e-5, 1.0));
        assert_eq!(of("large"), (1e-5, 1.0));
        assert_eq!((of("xlarge"), of("xxlarge")), ((1e-5, 0.1), (1e-5, 0.1)));
        assert_eq!(of("tiny"), (1e-4, 1.0));
    }

    #[test]
    fn refuses_what_cannot_be() {
        // Shorter sequences are valid without other changes.
        with(&["text.max_sequence_length=16"]).unwrap();
        for (change, expected) in [
            ("schedule.epochs=0", "`schedule.epochs` is 0, expected above 0"),
            ("schedule.steps=0", "`schedule.steps` is 0"),
            ("schedule.warmup_share=1.5", "`schedule.warmup_share` is 1.5, expected 0 to 1"),
            ("dropout.encoder=1", "`dropout.encoder` is 1"),
            ("batch.examples_per_step=0", "`batch.examples_per_step` is 0, expected 1"),
            ("batch.max_tokens=100", "`batch.max_tokens` is 100, expected 512"),
            ("text.max_sequence_length=4", "`text.max_sequence_length` is 4, expected 8"),
            ("optimizer.learning_rate=-1", "`optimizer.learning_rate` is -1"),
            ("optimizer.momentum=0.9", "unknown field `momentum`"),
            ("seed=x", "seed"),
            ("nonsense", "`nonsense` is not a setting; write section.key=value"),
        ] {
            let message = with(&[change]).unwrap_err().to_string();
            assert!(message.contains(expected), "{change}: {message}");
        }
        let message = base().with("[optimizer\n", &[]).unwrap_err().to_string();
        assert!(message.contains("not TOML: line 1"), "{message}");
    }
}
