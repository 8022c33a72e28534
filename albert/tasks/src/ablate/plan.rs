//! The plan of an ablation, in TOML.
//!
//! ```toml
//! seeds = [1, 2, 3]
//! [input]
//! data = "runs/data"                        # shards, and the tokenizer that made them
//! tokenizer = "runs/tokenizer.json"
//! [base.model]                              # pre-training recipe shared by all rows
//! preset = "tiny"
//! [base.schedule]
//! steps = 2000
//! [[task]]                                  # fine-tuned from the last model of every row
//! name = "reviews"
//! task = "classify"
//! data = "runs/reviews"
//! set = ["schedule.epochs=3"]
//! [[section]]
//! title = "Sharing (table 4)"
//! [[section.row]]
//! name = "all shared"
//! set = ["model.sharing=\"all\""]
//! ```
//!
//! Two budgets are equal if steps, sequences per step and maximum sequence length are equal. A plan may mix budgets;
//! the table then shows a note.

use std::collections::BTreeSet;
use std::path::PathBuf;

use albert::cost::{Flops, ParameterCounts, Recompute, Workload};
use albert::pretrain::PretrainRecipe;
use albert::train::Setting;
use serde::{Deserialize, Serialize};

use super::AblationError;
use crate::finetune::TaskName;

/// A set of recipes to compare.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Seeds; every row is run once per seed.
    pub seeds: Vec<u64>,
    /// Input of pre-training.
    pub input: Input,
    /// Pre-training recipe shared by all rows.
    #[serde(default)]
    pub base: toml::Table,
    /// Tasks for fine-tuning; every row runs all of them.
    #[serde(default, rename = "task")]
    pub tasks: Vec<TaskPlan>,
    /// Sections, each printed as one table.
    #[serde(rename = "section")]
    pub sections: Vec<Section>,
}

/// Input of pre-training.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Folder of shards.
    pub data: PathBuf,
    /// Tokenizer that encoded the shards.
    pub tokenizer: PathBuf,
}

/// A fine-tuning task of a plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPlan {
    /// Name in the table; also determines the folder names.
    pub name: String,
    /// Task type.
    pub task: TaskName,
    /// Folder of the task's files.
    pub data: PathBuf,
    /// Settings over the default recipe for the model's size, each `section.key=value`.
    #[serde(default)]
    pub set: Vec<Setting>,
}

/// A section of a plan, printed as one table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Title of the table.
    pub title: String,
    /// Rows, in order.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// A row of a table: one recipe.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name in the table.
    pub name: String,
    /// Settings over the base recipe, each `section.key=value`.
    #[serde(default)]
    pub set: Vec<Setting>,
}

/// A recipe to run, shared by all rows that resolve to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Folder name.
    pub folder: String,
    /// Name of the first row with this recipe.
    pub name: String,
    /// The recipe; each run replaces its seed.
    pub recipe: PretrainRecipe,
    /// (section, row) indices of the rows with this recipe.
    pub rows: Vec<(usize, usize)>,
}

/// Budget of one run of a variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// Name of the variant.
    pub name: String,
    /// Optimizer steps.
    pub steps: u64,
    /// Sequences per step.
    pub sequences: usize,
    /// Upper bound of the tokens: steps · sequences · maximum sequence length.
    pub tokens: u64,
    /// Parameters of the encoder.
    pub parameters: u64,
    /// Floating-point operations of pre-training if all sequences have the maximum length.
    pub flops: f64,
}

impl Plan {
    /// Parses a plan.
    ///
    /// # Errors
    /// The text is not TOML, has an unknown key, repeats a name or a seed, or has no seed or row.
    pub fn from_toml(text: &str) -> Result<Self, AblationError> {
        let wrong = |problem: String| Err(AblationError::Plan(problem));
        let plan: Self = toml::from_str(text).map_err(|error| AblationError::Plan(error.to_string()))?;
        if plan.seeds.is_empty() || plan.seeds.iter().collect::<BTreeSet<_>>().len() != plan.seeds.len() {
            return wrong(format!("`seeds` is {:?}; give at least one seed, each once", plan.seeds));
        }
        if plan.sections.iter().all(|section| section.rows.is_empty()) {
            return wrong("no rows; add a [[section]] with a [[section.row]]".into());
        }
        for section in &plan.sections {
            let mut names = BTreeSet::new();
            if let Some(twice) = section.rows.iter().find(|row| !names.insert(&row.name)) {
                return wrong(format!("section {:?} has two rows named {:?}", section.title, twice.name));
            }
        }
        let mut names = BTreeSet::from(["pretrain".to_owned()]);
        if let Some(twice) = plan.tasks.iter().find(|task| !names.insert(folder_name(&task.name))) {
            return wrong(format!("two tasks would have the folder {:?}; rename one", folder_name(&twice.name)));
        }
        Ok(plan)
    }

    /// Distinct recipes in the order of the rows; `vocabulary` is the size of the tokenizer.
    ///
    /// # Errors
    /// The recipe of a row is invalid.
    pub fn variants(&self, vocabulary: usize) -> Result<Vec<Variant>, AblationError> {
        let base = toml::to_string(&self.base).expect("a table is TOML");
        let mut variants: Vec<Variant> = Vec::new();
        for (s, section) in self.sections.iter().enumerate() {
            for (r, row) in section.rows.iter().enumerate() {
                let recipe = PretrainRecipe::from_toml(&base, &row.set)
                    .and_then(|recipe| recipe.with_vocabulary(vocabulary))
                    .map_err(|source| AblationError::Row { row: row.name.clone(), source: Box::new(source) })?;
                match variants.iter_mut().find(|variant| variant.recipe == recipe) {
                    Some(variant) => variant.rows.push((s, r)),
                    None => {
                        let folder = unused(&folder_name(&row.name), &variants);
                        variants.push(Variant { folder, name: row.name.clone(), recipe, rows: vec![(s, r)] });
                    }
                }
            }
        }
        Ok(variants)
    }
}

/// First of `name`, `name-2`, `name-3`, ... that no variant uses.
fn unused(name: &str, variants: &[Variant]) -> String {
    let is_free = |name: &String| variants.iter().all(|variant| variant.folder != *name);
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(is_free).expect("there are more numbers than variants")
}

/// Folder name that is valid on every file system: lower-case letters, digits and dashes.
pub(super) fn folder_name(name: &str) -> String {
    let plain: String = name.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "row".to_owned() } else { words.join("-") }
}

impl Variant {
    /// Budget of one run.
    pub fn budget(&self) -> Budget {
        let PretrainRecipe { model, data, schedule, compute, .. } = &self.recipe;
        let (sequences, longest) = (data.batch.sequences_per_step.max(1), data.instances.max_sequence_length);
        let masked = (data.masking.probability * longest as f64).round() as usize;
        let masked_per_sequence = masked.clamp(1, data.masking.max_predictions.max(1));
        let workload = Workload { sequences, sequence_length: longest, masked_per_sequence };
        let steps = schedule.steps;
        // Neither device recomputes a GEMM of a layer by default, so the count is the same.
        let checkpointing = compute.checkpointing.unwrap_or(Recompute::ON_CPU);
        Budget {
            name: self.name.clone(),
            steps,
            sequences,
            tokens: steps * (sequences * longest) as u64,
            parameters: ParameterCounts::new(model).encoder(),
            flops: steps as f64 * Flops::training(model, &workload, checkpointing),
        }
    }
}
