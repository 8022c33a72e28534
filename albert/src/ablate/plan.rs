//! What is compared: a plan in TOML.
//!
//! ```toml
//! seeds = [1, 2, 3]
//! [input]
//! data = "runs/data"                        # shards, and the tokenizer that made them
//! tokenizer = "runs/tokenizer.json"
//! [base.model]                              # a pre-training recipe that all rows share
//! preset = "tiny"
//! [base.schedule]
//! steps = 2000
//! [[task]]                                  # fine-tuned from every row's last model
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
//! A budget is equal if steps, sequences a step and their longest length are. Rows with other budgets may stand in a plan,
//! and the table says so.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::AblationError;
use crate::cost::{Flops, ParameterCounts, Recompute, Workload};
use crate::finetune::TaskName;
use crate::pretrain::Recipe;

/// A set of recipes to be compared.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Seeds that every row is run under.
    pub seeds: Vec<u64>,
    /// What pre-training reads.
    pub input: Input,
    /// The recipe that all rows share.
    #[serde(default)]
    pub base: toml::Table,
    /// Tasks that every row is fine-tuned on.
    #[serde(default, rename = "task")]
    pub tasks: Vec<TaskPlan>,
    /// Tables.
    #[serde(rename = "section")]
    pub sections: Vec<Section>,
}

/// What pre-training reads.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Folder of shards.
    pub data: PathBuf,
    /// The tokenizer that made them.
    pub tokenizer: PathBuf,
}

/// A task that every row is fine-tuned on.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPlan {
    /// Its name in the table and of its folders.
    pub name: String,
    /// What kind of task it is.
    pub task: TaskName,
    /// Folder of its files.
    pub data: PathBuf,
    /// Settings over the defaults for the model's size.
    #[serde(default)]
    pub set: Vec<String>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Its title.
    pub title: String,
    /// Its rows, in order.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// A recipe of a table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name in the table.
    pub name: String,
    /// Settings over the base.
    #[serde(default)]
    pub set: Vec<String>,
}

/// A recipe that is run, for one row or several.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Name of its folder.
    pub folder: String,
    /// The name of the first row that has it.
    pub name: String,
    /// The recipe; its seed is that of a run.
    pub recipe: Recipe,
    /// (section, row) of the rows that have it.
    pub rows: Vec<(usize, usize)>,
}

/// What a run of a variant may use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// The variant.
    pub name: String,
    /// Optimizer steps.
    pub steps: u64,
    /// Sequences a step.
    pub sequences: usize,
    /// Tokens at most: steps · sequences · longest.
    pub tokens: u64,
    /// Parameters of the encoder.
    pub parameters: u64,
    /// Floating-point operations of pre-training if all sequences have the longest length.
    pub flops: f64,
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// Text that is no TOML, an unknown key, names that stand twice, nothing to run.
    pub fn from_toml(text: &str) -> Result<Self, AblationError> {
        let wrong = |problem: String| Err(AblationError::Plan(problem));
        let plan: Self = toml::from_str(text).map_err(|error| AblationError::Plan(error.to_string()))?;
        if plan.seeds.is_empty() || plan.seeds.iter().collect::<BTreeSet<_>>().len() != plan.seeds.len() {
            return wrong(format!("`seeds` is {:?}; give at least one seed, each once", plan.seeds));
        }
        if plan.sections.iter().all(|section| section.rows.is_empty()) {
            return wrong("there is no row; add a [[section]] with a [[section.row]]".into());
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

    /// The recipes that are to be run, in the order of the rows, each once; `vocabulary` is the tokenizer's size.
    ///
    /// # Errors
    /// A row's recipe cannot be.
    pub fn variants(&self, vocabulary: usize) -> Result<Vec<Variant>, AblationError> {
        let base = toml::to_string(&self.base).expect("a table is TOML");
        let mut variants: Vec<Variant> = Vec::new();
        for (s, section) in self.sections.iter().enumerate() {
            for (r, row) in section.rows.iter().enumerate() {
                let recipe =
                    Recipe::from_toml(&base, &row.set)
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

/// `name`, or `name-2`, ...: what no variant has yet.
fn unused(name: &str, variants: &[Variant]) -> String {
    let is_free = |name: &String| variants.iter().all(|variant| variant.folder != *name);
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(is_free).expect("there are more numbers than variants")
}

/// A name that every file system takes: letters, digits and dashes.
pub(super) fn folder_name(name: &str) -> String {
    let plain: String = name.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "row".to_owned() } else { words.join("-") }
}

impl Variant {
    /// What a run of it may use.
    pub fn budget(&self) -> Budget {
        let Recipe { model, data, schedule, compute, .. } = &self.recipe;
        let (sequences, longest) = (data.batch.sequences_per_step.max(1), data.instances.max_sequence_length);
        let masked = (data.masking.probability * longest as f64).round() as usize;
        let masked_per_sequence = masked.clamp(1, data.masking.max_predictions.max(1));
        let workload = Workload { sequences, sequence_length: longest, masked_per_sequence };
        let steps = schedule.steps;
        // What either device chooses by itself computes no product again.
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
