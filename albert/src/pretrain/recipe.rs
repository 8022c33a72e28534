//! A pre-training recipe: every number of a run as a named setting, in TOML.
//!
//! ```toml
//! seed = 12345
//! [model]                     # a preset and any key of `AlbertConfig` over it
//! preset = "base"
//! [data.batch]                # and [data.instances], [data.masking]: see `data::settings`
//! sequences_per_step = 4096
//! [optimizer]
//! kind = "lamb"
//! learning_rate = 0.00176
//! [schedule]
//! steps = 125000
//! ```
//!
//! What is left out has the released value (Lan et al. 2020, section 4.1 and the released scripts). Unknown keys are
//! refused. Every key can be overridden by `section.key=value`. Two defaults depend on others: `intermediate_size` is
//! 4 · `hidden_size` where only the latter is given, and `max_sequence_length` is the number of positions, at most 512.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::PretrainError;
use crate::config::AlbertConfig;
use crate::cost::Checkpointing;
use crate::data::{DataSettings, Objective};

/// Every setting of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Seed of the first values, of dropout and of the data.
    pub seed: u64,
    /// Files that the run reads; they may move between a start and a resumption.
    pub input: Input,
    /// The model.
    pub model: AlbertConfig,
    /// From sentences to masked batches.
    pub data: DataSettings,
    /// What parameters are before the first step, where it differs from the released code.
    pub first_values: FirstValues,
    /// How both losses add up.
    pub loss: LossSettings,
    /// How gradients become steps.
    pub optimizer: OptimizerSettings,
    /// The learning rate over the steps.
    pub schedule: ScheduleSettings,
    /// How steps are computed.
    pub compute: ComputeSettings,
    /// Measurements on held-out text.
    pub evaluation: EvaluationSettings,
    /// Reports and checkpoints; may change when a run is resumed.
    pub run: RunSettings,
    /// Whether `model.vocab_size` was given, not taken from a preset.
    #[serde(skip)]
    is_vocab_size_given: bool,
}

/// Files that the run reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Input {
    /// Folder of shards, made by `albert data build`.
    pub data: PathBuf,
    /// The tokenizer that made them.
    pub tokenizer: PathBuf,
    /// A model folder to start from instead of random values, such as one of fewer layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_from: Option<PathBuf>,
    /// Beginnings of the names of parameters that `start_from` need not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fresh: Vec<String>,
}

/// The bias of the MLM head's output before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputBias {
    /// As released.
    #[default]
    Zeros,
    /// The logarithm of each piece's frequency in the training text: the model begins at the unigram baseline instead of
    /// spending hundreds of steps on learning it. Worth it in short runs.
    Unigram,
}

/// What parameters are before the first step; matrices and tables are always drawn with `model.initializer_range`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FirstValues {
    /// Bias of the MLM head's output.
    pub output_bias: OutputBias,
}

/// loss = `mlm_weight` · MLM + `sentence_weight` · sentence loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossSettings {
    /// Weight of the mean cross-entropy of masked pieces.
    pub mlm_weight: f64,
    /// Weight of the mean cross-entropy of sentence labels.
    pub sentence_weight: f64,
}

impl Default for LossSettings {
    fn default() -> Self {
        Self { mlm_weight: 1.0, sentence_weight: 1.0 }
    }
}

/// The optimisers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// Adam's direction, scaled for every tensor by ‖w‖/‖u‖ (You et al. 2019): released pre-training.
    Lamb,
    /// Adam with decoupled weight decay.
    Adamw,
}

/// Numbers of the optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerSettings {
    /// Which one.
    pub kind: OptimizerKind,
    /// Rate at the top of the schedule.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to √v, outside the root.
    pub epsilon: f64,
    /// Times the weights, added to the direction; not for biases and LayerNorms.
    pub weight_decay: f64,
    /// Divide the moments by 1 - βᵗ; the released code does not.
    pub bias_correction: bool,
    /// Gradients of a larger global norm are scaled down to it; 0 turns clipping off.
    pub clip_norm: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Lamb,
            learning_rate: 0.00176,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-6,
            weight_decay: 0.01,
            bias_correction: false,
            clip_norm: 1.0,
        }
    }
}

/// The shapes of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Decay is counted from step 0 while the warm-up runs, so that the rate drops at its end and is 0 in the first
    /// step: as released.
    Released,
    /// Warm-up from one part to all of the rate, then decay from there.
    Smooth,
}

/// The learning rate over the steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    /// Its shape.
    pub kind: ScheduleKind,
    /// Optimiser steps of the whole run.
    pub steps: u64,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Exponent of the decay; 1 is linear.
    pub power: f64,
    /// Rate at the end.
    pub end_learning_rate: f64,
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self { kind: ScheduleKind::Released, steps: 125_000, warmup_steps: 3_125, power: 1.0, end_learning_rate: 0.0 }
    }
}

/// Storage of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationType {
    /// 32 bits.
    F32,
    /// 16 bits; sums, statistics, parameters and gradients stay f32.
    Bf16,
}

/// How steps are computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeSettings {
    /// Storage of activations.
    pub activations: ActivationType,
    /// What forward keeps for backward.
    pub checkpointing: Checkpointing,
}

impl Default for ComputeSettings {
    fn default() -> Self {
        Self { activations: ActivationType::F32, checkpointing: Checkpointing::None }
    }
}

/// Measurements on held-out text; which text, see `data.evaluation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSettings {
    /// Steps between evaluations; 0 leaves the one at the end. (Released: every 5,000.)
    pub interval: u64,
}

impl Default for EvaluationSettings {
    fn default() -> Self {
        Self { interval: 5_000 }
    }
}

/// Reports and checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSettings {
    /// Steps between records in the metrics.
    pub log_interval: u64,
    /// Steps between checkpoints; 0 leaves the one at the end. (Released: 5,000.)
    pub checkpoint_interval: u64,
    /// Stop if the smoothed loss is this many nats above its lowest value so far; 0 turns that off. A loss or gradient
    /// that is not finite always stops the run.
    pub divergence_margin: f64,
    /// Measure every kernel, and tell the observer at the end.
    pub profile: bool,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self { log_interval: 10, checkpoint_interval: 5_000, divergence_margin: 2.0, profile: false }
    }
}

impl Recipe {
    /// Reads a recipe; `overrides` are `section.key=value`, applied in order.
    ///
    /// # Errors
    /// Text that is no TOML, an unknown key, or a value that is impossible.
    pub fn from_toml(text: &str, overrides: &[String]) -> Result<Self, PretrainError> {
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            PretrainError::Recipe(format!("not TOML: line {line}: {}", error.message()))
        })?;
        for text in overrides {
            set(&mut table, text)?;
        }
        let mut model = match table.remove("model") {
            None => Table::new(),
            Some(Value::Table(model)) => model,
            Some(_) => return Err(PretrainError::Recipe("`model` must be a table: [model]".into())),
        };
        let is_vocab_size_given = model.contains_key("vocab_size");
        let model = model_over_preset(&mut model)?;
        let sequence = ["data", "instances", "max_sequence_length"];
        let positions = model.max_position_embeddings;
        if lookup(&table, &sequence).is_none() {
            insert(&mut table, &sequence, Value::Integer(positions.min(512) as i64))?;
        }
        let model = Value::try_from(&model).expect("a configuration is a table");
        table.insert("model".into(), model);
        for (section, default) in sections() {
            table.entry(section).or_insert(default);
        }
        let mut recipe: Self =
            Value::Table(table).try_into().map_err(|error: toml::de::Error| PretrainError::Recipe(one_line(&error)))?;
        recipe.is_vocab_size_given = is_vocab_size_given;
        recipe.validate()?;
        Ok(recipe)
    }

    /// The text of `config.toml`: every value resolved. Reading it gives the same recipe.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe is a table")
    }

    /// Fits the model to the tokenizer.
    ///
    /// # Errors
    /// The recipe gives another `vocab_size`.
    pub fn with_vocabulary(mut self, size: usize) -> Result<Self, PretrainError> {
        if self.is_vocab_size_given && self.model.vocab_size != size {
            return Err(PretrainError::Recipe(format!(
                "`model.vocab_size` is {}, but the tokenizer has {size} pieces; leave the key out to take the tokenizer's",
                self.model.vocab_size
            )));
        }
        self.model.vocab_size = size;
        self.is_vocab_size_given = true;
        self.validate()?;
        Ok(self)
    }

    /// The settings that decide the numbers of the run: all but `input` and `run`, as JSON.
    pub fn fingerprint(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).expect("a recipe has string keys");
        if let Some(keys) = value.as_object_mut() {
            keys.shift_remove("input");
            keys.shift_remove("run");
        }
        // Through text, as a checkpoint stores it, so that both sides of a comparison were read by the same parser.
        serde_json::from_str(&value.to_string()).expect("what was just written")
    }

    /// Checks every setting, alone and beside the others.
    ///
    /// # Errors
    /// The first impossible one.
    pub fn validate(&self) -> Result<(), PretrainError> {
        self.model.validate()?;
        self.data.validate()?;
        let wrong = |message: String| Err(PretrainError::Recipe(message));
        let (longest, positions) = (self.data.instances.max_sequence_length, self.model.max_position_embeddings);
        if longest > positions {
            return wrong(format!(
                "`data.instances.max_sequence_length` is {longest}, but the model has {positions} positions \
                 (`model.max_position_embeddings`)"
            ));
        }
        if self.data.instances.objective != Objective::None && self.model.type_vocab_size < 2 {
            return wrong("`model.type_vocab_size` is 1, but sequences of two segments need 2".into());
        }
        let OptimizerSettings { learning_rate, beta1, beta2, epsilon, weight_decay, clip_norm, .. } = self.optimizer;
        let ScheduleSettings { steps, warmup_steps, power, end_learning_rate, .. } = self.schedule;
        let checks = [
            (
                "optimizer.learning_rate",
                learning_rate,
                learning_rate > 0.0 && learning_rate <= 10.0,
                "above 0, at most 10",
            ),
            ("optimizer.beta1", beta1, (0.0..1.0).contains(&beta1), "at least 0, below 1"),
            ("optimizer.beta2", beta2, (0.0..1.0).contains(&beta2), "at least 0, below 1"),
            ("optimizer.epsilon", epsilon, epsilon > 0.0 && epsilon < 1.0, "above 0, below 1"),
            ("optimizer.weight_decay", weight_decay, (0.0..10.0).contains(&weight_decay), "at least 0, below 10"),
            ("optimizer.clip_norm", clip_norm, clip_norm >= 0.0 && clip_norm.is_finite(), "at least 0 (0 is off)"),
            ("schedule.power", power, power > 0.0 && power <= 100.0, "above 0, at most 100"),
            (
                "schedule.end_learning_rate",
                end_learning_rate,
                (0.0..=learning_rate).contains(&end_learning_rate),
                "at least 0, at most `optimizer.learning_rate`",
            ),
            ("loss.mlm_weight", self.loss.mlm_weight, (0.0..1e6).contains(&self.loss.mlm_weight), "at least 0"),
            (
                "loss.sentence_weight",
                self.loss.sentence_weight,
                (0.0..1e6).contains(&self.loss.sentence_weight),
                "at least 0",
            ),
            (
                "run.divergence_margin",
                self.run.divergence_margin,
                self.run.divergence_margin >= 0.0,
                "at least 0 (0 is off)",
            ),
        ];
        for (key, value, holds, expected) in checks {
            if !holds {
                return wrong(format!("`{key}` is {value}, expected {expected}"));
            }
        }
        let sentence_weight =
            if self.data.instances.objective == Objective::None { 0.0 } else { self.loss.sentence_weight };
        if self.loss.mlm_weight + sentence_weight <= 0.0 {
            return wrong("`loss.mlm_weight` and `loss.sentence_weight` leave nothing to train on".into());
        }
        if steps == 0 || steps > 1 << 40 || warmup_steps > steps {
            return wrong(format!(
                "`schedule.steps` is {steps} and `schedule.warmup_steps` {warmup_steps}, expected at least one step and \
                 no more steps of warm-up than that"
            ));
        }
        if self.run.log_interval == 0 {
            return wrong("`run.log_interval` is 0, expected at least 1".into());
        }
        Ok(())
    }
}

/// The defaults of the sections that a recipe may leave out.
fn sections() -> Vec<(&'static str, Value)> {
    fn table(value: impl Serialize) -> Value {
        Value::try_from(value).expect("settings are a table")
    }
    vec![
        ("seed", Value::Integer(12_345)),
        ("input", table(Input::default())),
        ("data", table(DataSettings::default())),
        ("first_values", table(FirstValues::default())),
        ("loss", table(LossSettings::default())),
        ("optimizer", table(OptimizerSettings::default())),
        ("schedule", table(ScheduleSettings::default())),
        ("compute", table(ComputeSettings::default())),
        ("evaluation", table(EvaluationSettings::default())),
        ("run", table(RunSettings::default())),
    ]
}

/// `model` with the values of its preset (`base` if it names none) where it has none of its own.
fn model_over_preset(model: &mut Table) -> Result<AlbertConfig, PretrainError> {
    let preset = match model.remove("preset") {
        None => "base".to_owned(),
        Some(Value::String(name)) => name,
        Some(other) => return Err(PretrainError::Recipe(format!("`model.preset` is {other}, expected a name"))),
    };
    if let Some(&Value::Integer(hidden)) = model.get("hidden_size") {
        model.entry("intermediate_size").or_insert(Value::Integer(hidden.saturating_mul(4)));
    }
    let mut merged = Table::try_from(AlbertConfig::preset(&preset)?).expect("a configuration is a table");
    merged.extend(std::mem::take(model));
    Value::Table(merged)
        .try_into()
        .map_err(|error: toml::de::Error| PretrainError::Recipe(format!("in [model]: {}", one_line(&error))))
}

/// The message with the key that it is about, which the parser puts on a line of its own.
fn one_line(error: &toml::de::Error) -> String {
    error.to_string().trim().replace('\n', " ")
}

/// Applies one `section.key=value`.
fn set(table: &mut Table, text: &str) -> Result<(), PretrainError> {
    let Some((path, value)) = text.split_once('=') else {
        return Err(PretrainError::Recipe(format!("`{text}` is no override; write section.key=value")));
    };
    let keys: Vec<&str> = path.trim().split('.').collect();
    if keys.iter().any(|key| key.is_empty()) {
        return Err(PretrainError::Recipe(format!("`{text}`: the key is empty; write section.key=value")));
    }
    let value = value.trim();
    // What TOML does not understand as a value is a string without its quotes.
    let parsed = format!("v = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("v"));
    insert(table, &keys, parsed.unwrap_or_else(|| Value::String(value.to_owned())))
}

fn insert(table: &mut Table, keys: &[&str], value: Value) -> Result<(), PretrainError> {
    let (last, sections) = keys.split_last().expect("a key has a name");
    let mut at = table;
    for section in sections {
        let entry = at.entry(*section).or_insert_with(|| Value::Table(Table::new()));
        at = entry.as_table_mut().ok_or_else(|| {
            PretrainError::Recipe(format!("`{}`: `{section}` is a value, not a section", keys.join(".")))
        })?;
    }
    at.insert((*last).to_owned(), value);
    Ok(())
}

fn lookup<'t>(table: &'t Table, keys: &[&str]) -> Option<&'t Value> {
    let (first, rest) = keys.split_first()?;
    rest.iter().try_fold(table.get(*first)?, |value, key| value.get(*key))
}
