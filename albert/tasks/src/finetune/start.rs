//! Initial model of a run: the encoder of a model folder with a task head.

use std::collections::HashMap;
use std::fmt;

use albert::checkpoint::{Heads, LoadReport, ModelFolder, TaskHead};
use albert::config::{AlbertConfig, Family};
use albert::model::Model;
use albert::tokenizer::Tokenizer;
use engine::param::ParamInfo;
use engine::{Cpu, EngineError, ParamStore};

use super::task::head_of;
use super::{FinetuneError, FinetuneRecipe};
use crate::files::{Problem, listed};

/// A model with a task head, and the origin of its parameters.
#[derive(Debug)]
pub struct Start {
    /// Configuration, with the recipe's dropout.
    pub config: AlbertConfig,
    /// Model family, whose parameter names the folder uses.
    pub family: Family,
    /// Tokenizer of the folder.
    pub tokenizer: Tokenizer,
    /// Model with its task head.
    pub model: Model,
    /// Parameters of the model.
    pub params: ParamStore,
    /// Loaded, ignored and randomly initialized tensors. Every randomly initialized parameter is listed.
    pub report: LoadReport,
    /// Origin of the head's parameters.
    pub head: HeadOrigin,
}

/// Origin of a task head's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HeadOrigin {
    /// Initialized at random, because the run starts from a pre-trained model.
    #[default]
    Initialized,
    /// Initialized at random, because the head of the earlier model does not fit for this reason.
    Refused(String),
    /// Loaded from the earlier model.
    Loaded,
    /// Loaded from the earlier model, which has the same labels in another order: for each row, its label and the row
    /// of that label in the earlier model.
    Mapped(Vec<(String, usize)>),
}

impl HeadOrigin {
    /// Origin of the head `own` with `labels`, for the earlier model's head `earlier` with labels `theirs`.
    fn new(own: TaskHead, labels: &[String], earlier: Option<TaskHead>, theirs: &[String]) -> Self {
        if earlier != Some(own) {
            return Self::Refused("the earlier model has no head of this kind and number of labels".into());
        }
        if labels.is_empty() || theirs.is_empty() || labels == theirs {
            return Self::Loaded;
        }
        let places: HashMap<&String, usize> = theirs.iter().zip(0..).collect();
        let row = |label: &String| Some((label.clone(), *places.get(label)?));
        // Both sides have the same number of labels, without duplicates here, so finding each yields a permutation.
        match labels.iter().map(row).collect() {
            Some(rows) => Self::Mapped(rows),
            None => Self::Refused(format!("the earlier model has other labels: {}", listed(theirs))),
        }
    }

    /// True if the values of the earlier model are used.
    fn is_taken(&self) -> bool {
        matches!(self, Self::Loaded | Self::Mapped(_))
    }

    /// Copies a parameter of the head, whose first dimension is the label.
    fn copy(&self, values: &[f32], out: &mut [f32]) {
        let Self::Mapped(rows) = self else { return out.copy_from_slice(values) };
        let width = values.len() / rows.len();
        for (own, (_, theirs)) in out.chunks_exact_mut(width).zip(rows) {
            own.copy_from_slice(&values[theirs * width..][..width]);
        }
    }
}

impl fmt::Display for HeadOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Initialized => f.write_str("the head is initialized at random"),
            Self::Refused(reason) => write!(f, "the head is initialized at random: {reason}"),
            Self::Loaded => f.write_str("the head is loaded from the earlier model"),
            Self::Mapped(rows) => {
                let all: Vec<String> = rows.iter().map(|(label, row)| format!("{label:?} from row {row}")).collect();
                let shown = all.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
                let more = match all.len().saturating_sub(LISTED) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                write!(f, "the head is loaded from the earlier model, its rows mapped by label: {shown}{more}")
            }
        }
    }
}

/// Maximum number of labels listed in a message.
const LISTED: usize = 10;

impl Start {
    /// Loads the initial model of `recipe`. The head is initialized at random unless `input.from` has one of the same
    /// kind with the same labels in any order, the pooler if the folder has none, and all parameters with
    /// `input.from_scratch`.
    ///
    /// # Errors
    /// The recipe does not name a model, or the model does not fit the recipe.
    pub(crate) fn load(recipe: &FinetuneRecipe, problem: &Problem, cpu: &Cpu) -> Result<Self, FinetuneError> {
        let (folder, is_earlier) = match (&recipe.input.from, &recipe.input.model) {
            (Some(from), _) => (from, true),
            (None, Some(model)) => (model, false),
            (None, None) => {
                let problem = "no model to start from; give --model DIR (`input.model`) or --from DIR (`input.from`)";
                return Err(FinetuneError::Recipe(problem.into()));
            }
        };
        let files = ModelFolder::open(folder)?;
        let tokenizer = tokenizer_of(&files)?;
        let reading = files.config();
        recipe.expect_positions(&reading.config)?;
        let head = head_of(problem, &recipe.span)?;
        let heads = Heads::for_task(head);
        let config = recipe.config(&reading.config);
        let (model, mut params) = Model::allocate(&config, heads)?;
        let origin = match is_earlier {
            true => HeadOrigin::new(head, problem.labels(), files.heads().task, &reading.labels),
            false => HeadOrigin::Initialized,
        };
        let wanted = if origin.is_taken() { heads } else { Heads { task: None, ..heads } };
        let take = |spec: &ParamInfo, values: &[f32]| {
            let id = params.find(&spec.name).ok_or_else(|| EngineError::Parameter {
                name: spec.name.clone(),
                problem: "not a parameter of the task's model".into(),
            })?;
            let out = params.values_mut(id)?;
            match spec.name.starts_with("classifier.") {
                true => origin.copy(values, out),
                false => out.copy_from_slice(values),
            }
            Ok(())
        };
        let mut report = match recipe.input.from_scratch {
            true => LoadReport::default(),
            false => files.load(wanted, &["albert.pooler."], take)?,
        };
        let known = |name: &String| report.loaded.contains(name) || report.fresh.contains(name);
        let fresh: Vec<String> =
            params.ids().map(|id| params.name(id).to_owned()).filter(|name| !known(name)).collect();
        report.fresh.extend(fresh);
        params.draw(cpu, recipe.seed, |info| report.fresh.contains(&info.name))?;
        Ok(Self { config, family: reading.family, tokenizer, model, params, report, head: origin })
    }
}

/// Loads the tokenizer of a model folder.
pub(super) fn tokenizer_of(files: &ModelFolder) -> Result<Tokenizer, FinetuneError> {
    Ok(files.tokenizer()?)
}
