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

use super::{PretrainError, RECIPES};
use crate::config::AlbertConfig;
use crate::data::{DataSettings, Objective};
use crate::training::{
    ComputeSettings, OptimizerSettings, Replan, ScheduleSettings, expect, insert, lookup, one_line, parse, set,
};

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
    /// See [`Recipe::warnings`].
    #[serde(skip)]
    warnings: Vec<String>,
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
}

impl Default for RunSettings {
    fn default() -> Self {
        Self { log_interval: 10, checkpoint_interval: 5_000, divergence_margin: 2.0 }
    }
}

impl Recipe {
    /// Reads a recipe; `overrides` are `section.key=value`, applied in order.
    ///
    /// # Errors
    /// Text that is no TOML, an unknown key, or a value that is impossible.
    pub fn from_toml(text: &str, overrides: &[String]) -> Result<Self, PretrainError> {
        let mut table = parse(text).map_err(PretrainError::Recipe)?;
        for text in overrides {
            set(&mut table, text).map_err(PretrainError::Recipe)?;
        }
        let mut model = match table.remove("model") {
            None => Table::new(),
            Some(Value::Table(model)) => model,
            Some(_) => return Err(PretrainError::Recipe("`model` must be a table: [model]".into())),
        };
        let is_vocab_size_given = model.contains_key("vocab_size");
        let (preset, given) = (model.get("preset").cloned(), table.clone());
        let model = model_over_preset(&mut model)?;
        let sequence = ["data", "instances", "max_sequence_length"];
        let positions = model.max_position_embeddings;
        if lookup(&table, &sequence).is_none() {
            let longest = Value::Integer(positions.min(512) as i64);
            insert(&mut table, &sequence, longest).map_err(PretrainError::Recipe)?;
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
        if let Some(Value::String(preset)) = preset {
            recipe.warnings.extend(recipe.unlike_recipe_of(&preset, &given)?);
        }
        Ok(recipe)
    }

    /// Settings that may not be what was meant, in sentences for a person. Only a recipe as it was given has them, not one
    /// that was written with all its values.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Says which settings of training that are not in `given` differ from those of the recipe that is called as the
    /// model's `preset`: a preset sets the shape of the model and nothing else.
    fn unlike_recipe_of(&self, preset: &str, given: &Table) -> Result<Option<String>, PretrainError> {
        let Some((_, _, text)) = RECIPES.iter().find(|(name, _, _)| *name == preset) else { return Ok(None) };
        let named = parse(text).map_err(PretrainError::Recipe)?;
        let resolved = Table::try_from(self).expect("a recipe is a table");
        let mut unlike = Vec::new();
        for (path, value) in leaves(&named) {
            let keys: Vec<&str> = path.split('.').collect();
            let own = lookup(&resolved, &keys);
            let is_report = ["evaluation", "run"].contains(&keys[0]) || keys.starts_with(&["data", "evaluation"]);
            if keys[0] != "model" && !is_report && lookup(given, &keys).is_none() && own != Some(&value) {
                let own = own.map_or("absent".to_owned(), Value::to_string);
                unlike.push(format!("{path} = {own} ({preset}: {value})"));
            }
        }
        Ok((!unlike.is_empty()).then(|| {
            format!(
                "`model.preset = \"{preset}\"` sets the shape of the model only; these settings are the released \
                 defaults, not those of the recipe `{preset}`: {}; set them, or start from the recipe `{preset}`",
                unlike.join(", ")
            )
        }))
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

    /// [`Self::fingerprint`] of a run of which `done` steps are done: without changes of the number of steps that are still
    /// to come.
    pub(super) fn fingerprint_after(&self, done: u64) -> serde_json::Value {
        let mut so_far = self.clone();
        so_far.schedule.replans.retain(|replan| replan.after <= done);
        so_far.fingerprint()
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
        self.optimizer.check().map_err(PretrainError::Recipe)?;
        let learning_rate = self.optimizer.learning_rate;
        let ScheduleSettings { steps, warmup_steps, power, end_learning_rate, .. } = self.schedule;
        let checks = [
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
        expect(&checks).map_err(PretrainError::Recipe)?;
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
        let mut before = 0;
        for Replan { after, steps } in &self.schedule.replans {
            if *after < before.max(1) || steps < after || warmup_steps > *steps || *steps > 1 << 40 {
                return wrong(format!(
                    "`schedule.replans` has {steps} steps after step {after}, expected rising `after` from 1 and no fewer \
                     `steps` than that or `schedule.warmup_steps`"
                ));
            }
            before = after + 1;
        }
        if self.run.log_interval == 0 {
            return wrong("`run.log_interval` is 0, expected at least 1".into());
        }
        Ok(())
    }
}

/// The values of a table and of those in it, with their paths.
fn leaves(table: &Table) -> Vec<(String, Value)> {
    let of = |(key, value): (&String, &Value)| match value {
        Value::Table(inner) => {
            leaves(inner).into_iter().map(|(path, value)| (format!("{key}.{path}"), value)).collect()
        }
        value => vec![(key.clone(), value.clone())],
    };
    table.iter().flat_map(of).collect()
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
