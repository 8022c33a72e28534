//! Pre-training recipe: every setting of a run, in TOML.
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
//! Missing keys have the released values (Lan et al. 2020, section 4.1 and the released scripts), except that a step is one
//! batch. Unknown keys are rejected. Every key can be overridden by `section.key=value`. Some defaults depend on other keys:
//! `intermediate_size` is 4 · `hidden_size` if only the latter is given, and `max_sequence_length` is the number of positions, at
//! most 512. `schedule.warmup_steps` defaults to `schedule.warmup_share` · `schedule.steps`; `config.toml` records the number of
//! steps.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::PretrainError;
use super::named::RECIPES;
use crate::config::AlbertConfig;
use crate::cost::{Recompute, Report, Training, Workload};
use crate::data::{DataSettings, Objective};
use crate::train::{
    ComputeSettings, EvaluationSettings, OptimizerSettings, RunSettings, ScheduleSettings, Setting, TrainPrecision,
    TrainSettings, expect, fingerprint, insert, lay_over, lookup, parse, recipe_of, remove,
};

/// All settings of a pre-training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PretrainRecipe {
    /// Seed of the initial values, of dropout and of the data.
    pub seed: u64,
    /// Input files of the run; they may move before a run is resumed.
    pub input: PretrainInput,
    /// Configuration of the model.
    pub model: AlbertConfig,
    /// Sentence pairs, masking and batches.
    pub data: DataSettings,
    /// Initial values that differ from the released code.
    pub first_values: FirstValues,
    /// Weights of the losses.
    pub loss: LossSettings,
    /// Optimizer and its settings.
    pub optimizer: OptimizerSettings,
    /// Learning-rate schedule.
    pub schedule: ScheduleSettings,
    /// Storage type and checkpointing of activations.
    pub compute: ComputeSettings,
    /// Evaluations on held-out text; for the text, see `data.evaluation`.
    pub evaluation: EvaluationSettings,
    /// Reports and checkpoints; may change when a run is resumed.
    pub run: RunSettings,
    /// True if `model.vocab_size` was given, not taken from a preset.
    #[serde(skip)]
    is_vocab_size_given: bool,
    /// See [`PretrainRecipe::warnings`].
    #[serde(skip)]
    warnings: Vec<String>,
    /// See [`PretrainRecipe::base`].
    #[serde(skip)]
    base: Option<String>,
    /// See [`PretrainRecipe::fit_batch`].
    #[serde(skip)]
    fits_memory: bool,
}

/// Files that the run reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PretrainInput {
    /// Folder of shards, built by `albert data build`.
    pub data: PathBuf,
    /// Tokenizer that encoded the shards.
    pub tokenizer: PathBuf,
    /// Model folder to start from instead of random values, for example one with fewer layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_from: Option<PathBuf>,
    /// Name prefixes of parameters that may be missing in `start_from`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fresh: Vec<String>,
}

/// Initial bias of the MLM head's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputBias {
    /// Zeros, as released.
    #[default]
    Zeros,
    /// Logarithm of each piece's frequency in the training text: the model starts at the unigram baseline instead of
    /// learning it in hundreds of steps. Useful for short runs.
    Unigram,
}

/// Initial values of parameters; matrices and tables are always drawn with `model.initializer_range`.
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

/// Text of the recipe called `name` in [`RECIPES`].
fn text_of(name: &str) -> Result<&'static str, PretrainError> {
    let found = RECIPES.iter().find(|recipe| recipe.name == name);
    found.map(|recipe| recipe.text).ok_or_else(|| {
        let known: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        PretrainError::Recipe(format!("no recipe is called `{name}`; expected one of {}", known.join(", ")))
    })
}

/// Settings that set the model of a recipe to `config`.
pub fn settings_of(config: &AlbertConfig) -> Vec<Setting> {
    let table = Table::try_from(config).expect("a configuration is a table");
    let setting = |(key, value)| Setting::new(&format!("model.{key}"), value).expect("a value of TOML");
    table.into_iter().map(setting).collect()
}

impl PretrainRecipe {
    /// Returns the recipe called `name` in [`RECIPES`], overridden by `settings`.
    ///
    /// # Errors
    /// No recipe has this name, or a setting is invalid.
    pub fn named(name: &str, settings: &[Setting]) -> Result<Self, PretrainError> {
        Self::from_toml(text_of(name)?, settings)
    }

    /// Reads a recipe, overridden by `settings` in order. A file that begins with `recipe = "NAME"` overrides the
    /// recipe of that name in [`RECIPES`], both model shape and schedule.
    ///
    /// # Errors
    /// The text is not TOML, a key is unknown, or a value is invalid.
    pub fn from_toml(text: &str, settings: &[Setting]) -> Result<Self, PretrainError> {
        let (mut table, recipe_name) = over_base(parse(text)?)?;
        for setting in settings {
            setting.write_to(&mut table)?;
            // The alternative that is given last replaces the other one.
            match setting.key().as_str() {
                "schedule.warmup_steps" => remove(&mut table, &WARMUP_SHARE),
                "schedule.warmup_share" => remove(&mut table, &WARMUP_STEPS),
                _ => {}
            }
        }
        let max_tokens = ["data", "batch", "max_tokens"];
        let fits_memory = lookup(&table, &max_tokens) == Some(&Value::String("auto".into()));
        if fits_memory {
            remove(&mut table, &max_tokens);
        }
        let mut model = match table.remove("model") {
            None => Table::new(),
            Some(Value::Table(model)) => model,
            Some(_) => return Err(PretrainError::Recipe("`model` must be a table: [model]".into())),
        };
        let is_vocab_size_given = model.contains_key("vocab_size");
        let (preset, given) = (model.get("preset").cloned(), table.clone());
        let share = given_share(&mut table)?;
        let model = model_over_preset(&mut model)?;
        let sequence = ["data", "instances", "max_sequence_length"];
        let positions = model.max_position_embeddings;
        if lookup(&table, &sequence).is_none() {
            let longest = Value::Integer(positions.min(512) as i64);
            insert(&mut table, &sequence, longest)?;
        }
        if fits_memory {
            // A placeholder until `fit_batch`.
            let longest = lookup(&table, &sequence).cloned().expect("it was just given");
            insert(&mut table, &max_tokens, longest)?;
        }
        let model = Value::try_from(&model).expect("a configuration is a table");
        table.insert("model".into(), model);
        let mut full = defaults();
        lay_over(&mut full, table, &[]);
        let mut recipe: Self = recipe_of(full)?;
        if let Some(share) = share {
            recipe.schedule.warmup_steps = (share * recipe.schedule.steps as f64).round() as u64;
        }
        recipe.is_vocab_size_given = is_vocab_size_given;
        recipe.base = recipe_name;
        recipe.fits_memory = fits_memory;
        recipe.validate()?;
        if let Some(Value::String(preset)) = preset {
            recipe.warnings.extend(recipe.unlike_recipe_of(&preset, &given)?);
        }
        Ok(recipe)
    }

    /// True with `data.batch.max_tokens = "auto"`, until [`fit_batch`](Self::fit_batch) or
    /// [`keep_batch_of`](Self::keep_batch_of) is called; such a recipe cannot be run.
    pub fn fits_memory(&self) -> bool {
        self.fits_memory
    }

    /// Copies the number of tokens and sequences per batch from `before`, the recipe of the resumed run.
    pub fn keep_batch_of(&mut self, before: &Self) {
        self.data.batch.max_tokens = before.data.batch.max_tokens;
        self.data.batch.max_sequences = before.data.batch.max_sequences;
        self.fits_memory = false;
    }

    /// Sets the batch to the largest power of two of sequences that fits in `memory` bytes together with the model, capped at
    /// one step, and returns its number of tokens, which is stored in `config.toml`.
    ///
    /// # Errors
    /// Not even one sequence fits.
    pub fn fit_batch(&mut self, memory: u64) -> Result<usize, PretrainError> {
        let longest = self.data.instances.max_sequence_length;
        // `auto` may still choose f32.
        let activation_bytes = if self.compute.precision == TrainPrecision::Bf16 { 2 } else { 4 };
        let checkpointing = self.compute.checkpointing.unwrap_or(Recompute::ON_CPU);
        let training = Training { activation_bytes, checkpointing };
        let takes = |sequences: usize| {
            let masked_per_sequence = self.data.masking.max_predictions;
            let workload = Workload { sequences, sequence_length: longest, masked_per_sequence };
            Report::new(&self.model, workload, training).memory.total()
        };
        let of_step = self.data.batch.sequences_per_step.max(1);
        let most = if self.data.batch.sequences_per_step == 0 { self.data.batch.max_sequences } else { of_step };
        let mut sequences = 0;
        let mut next = 1;
        while next <= most.next_power_of_two() && takes(next) <= memory {
            sequences = next;
            next *= 2;
        }
        if sequences == 0 {
            return Err(PretrainError::Recipe(format!(
                "`data.batch.max_tokens = \"auto\"`: one sequence takes {} MiB of memory, but {} MiB are free",
                takes(1) >> 20,
                memory >> 20
            )));
        }
        self.data.batch.max_tokens = sequences * longest;
        self.data.batch.max_sequences = self.data.batch.max_sequences.max(sequences);
        self.fits_memory = false;
        Ok(self.data.batch.max_tokens)
    }

    /// Name of the recipe that the file begins with, if any.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Warnings about settings that may be unintended, as sentences. A recipe that was written with all its values has
    /// no warnings.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Warns about training settings that are not in `given` and differ from the recipe named like the model's `preset`: a
    /// preset sets only the shape of the model.
    fn unlike_recipe_of(&self, preset: &str, given: &Table) -> Result<Option<String>, PretrainError> {
        let Some(recipe) = RECIPES.iter().find(|recipe| recipe.name == preset) else { return Ok(None) };
        let mut named = parse(recipe.text)?;
        // Steps are compared; the number of warm-up steps follows from them.
        remove(&mut named, &WARMUP_SHARE);
        let resolved = Table::try_from(self).expect("a recipe is a table");
        let mut unlike = Vec::new();
        for (path, value) in leaves(&named) {
            let keys: Vec<&str> = path.split('.').collect();
            let own = lookup(&resolved, &keys);
            let is_report = ["evaluation", "run"].contains(&keys[0]) || keys.starts_with(&["data", "evaluation"]);
            // Lanes affect who may compute a step, not what is learned.
            let is_lanes = keys == ["data", "batch", "lanes"];
            if keys[0] != "model" && !is_report && !is_lanes && lookup(given, &keys).is_none() && own != Some(&value) {
                let own = own.map_or("absent".to_owned(), Value::to_string);
                unlike.push(format!("{path} = {own} ({preset}: {value})"));
            }
        }
        Ok((!unlike.is_empty()).then(|| {
            format!(
                "`model.preset = \"{preset}\"` sets the shape of the model only; these settings are the defaults, \
                 not those of the recipe `{preset}`: {}; set them, or begin the file with recipe = \"{preset}\"",
                unlike.join(", ")
            )
        }))
    }

    /// The recipe as TOML with every value resolved, for `config.toml`.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe is a table")
    }

    /// Sets the vocabulary size to that of the tokenizer.
    ///
    /// # Errors
    /// The recipe has a different `vocab_size`, or its batch is not fitted.
    pub fn with_vocabulary(mut self, size: usize) -> Result<Self, PretrainError> {
        if self.fits_memory {
            let problem = "`data.batch.max_tokens = \"auto\"` is for `albert pretrain`; give a number of tokens here";
            return Err(PretrainError::Recipe(problem.into()));
        }
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

    /// Settings that determine the results of the run, as JSON: all except `input` and `run`.
    pub fn fingerprint(&self) -> serde_json::Value {
        fingerprint(self)
    }

    /// [`Self::fingerprint`] after `done` steps, without later changes of the number of steps.
    pub(super) fn fingerprint_after(&self, done: u64) -> serde_json::Value {
        let mut so_far = self.clone();
        so_far.schedule.replans.retain(|replan| replan.after <= done);
        fingerprint(&so_far)
    }

    /// Settings for the training core.
    pub(super) fn train_settings(&self) -> TrainSettings {
        let Self { seed, optimizer, schedule, compute, evaluation, run, .. } = self.clone();
        TrainSettings { seed, optimizer, schedule, compute, evaluation, run }
    }

    /// Checks every setting, alone and in combination.
    ///
    /// # Errors
    /// The first invalid setting.
    pub(crate) fn validate(&self) -> Result<(), PretrainError> {
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
        let weight = |key, value| expect(key, value, (0.0..1e6).contains(&value), "at least 0");
        self.optimizer.check()?;
        self.schedule.check(self.optimizer.learning_rate)?;
        weight("loss.mlm_weight", self.loss.mlm_weight)?;
        weight("loss.sentence_weight", self.loss.sentence_weight)?;
        self.run.check()?;
        let sentence_weight =
            if self.data.instances.objective == Objective::None { 0.0 } else { self.loss.sentence_weight };
        if self.loss.mlm_weight + sentence_weight <= 0.0 {
            return wrong("`loss.mlm_weight` and `loss.sentence_weight` leave nothing to train on".into());
        }
        Ok(())
    }
}

/// Lays `table` over the recipe that its key `recipe` names, if any, and returns that name.
fn over_base(mut table: Table) -> Result<(Table, Option<String>), PretrainError> {
    let name = match table.remove("recipe") {
        None => return Ok((table, None)),
        Some(Value::String(name)) => name,
        Some(_) => {
            return Err(PretrainError::Recipe("`recipe` must be the name of a recipe, such as \"tiny\"".into()));
        }
    };
    let mut base = parse(text_of(&name)?)?;
    lay_over(&mut base, table, &[["warmup_steps", "warmup_share"]]);
    Ok((base, Some(name)))
}

const WARMUP_STEPS: [&str; 2] = ["schedule", "warmup_steps"];
const WARMUP_SHARE: [&str; 2] = ["schedule", "warmup_share"];
/// Default warm-up as a share of the steps: 3,125 of 125,000 steps, as released.
const RELEASED_WARMUP: f64 = 0.025;

/// Removes `schedule.warmup_share` from a recipe and returns it; `None` if `schedule.warmup_steps` is given instead.
fn given_share(table: &mut Table) -> Result<Option<f64>, PretrainError> {
    let has_steps = lookup(table, &WARMUP_STEPS).is_some();
    let Some(given) = lookup(table, &WARMUP_SHARE).cloned() else {
        return Ok((!has_steps).then_some(RELEASED_WARMUP));
    };
    remove(table, &WARMUP_SHARE);
    if has_steps {
        return Err(PretrainError::Recipe("give either `schedule.warmup_steps` or `schedule.warmup_share`".into()));
    }
    let share = given.as_float().or_else(|| given.as_integer().map(|whole| whole as f64));
    match share {
        Some(share) if (0.0..=1.0).contains(&share) => Ok(Some(share)),
        _ => Err(PretrainError::Recipe(format!("`schedule.warmup_share` is {given}, expected 0 to 1"))),
    }
}

/// All values of a table and its subtables, with their paths.
fn leaves(table: &Table) -> Vec<(String, Value)> {
    let of = |(key, value): (&String, &Value)| match value {
        Value::Table(inner) => {
            leaves(inner).into_iter().map(|(path, value)| (format!("{key}.{path}"), value)).collect()
        }
        value => vec![(key.clone(), value.clone())],
    };
    table.iter().flat_map(of).collect()
}

/// Defaults of all settings except those of the model.
fn defaults() -> Table {
    fn table(value: impl Serialize) -> Value {
        Value::try_from(value).expect("settings are a table")
    }
    let evaluation = EvaluationSettings { interval: 5_000, patience: None };
    let run = RunSettings {
        log_interval: 10,
        checkpoint_interval: Some(5_000),
        divergence_margin: 2.0,
        communication_timeout: None,
        shard_optimizer: false,
    };
    let sections = [
        ("seed", Value::Integer(12_345)),
        ("input", table(PretrainInput::default())),
        ("data", table(DataSettings::default())),
        ("first_values", table(FirstValues::default())),
        ("loss", table(LossSettings::default())),
        ("optimizer", table(OptimizerSettings::default())),
        ("schedule", table(ScheduleSettings::default())),
        ("compute", table(ComputeSettings::default())),
        ("evaluation", table(evaluation)),
        ("run", table(run)),
    ];
    sections.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Lays `model` over the values of its preset (`base` by default).
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
    recipe_of(merged).map_err(|error| PretrainError::Recipe(format!("in [model]: {error}")))
}
