//! What a run begins with: the encoder of a model folder under the head of a task.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use engine::{Cpu, EngineError, ParamStore};

use super::{FinetuneError, Recipe, SpanHead, SpanRecipe, name_of};
use crate::checkpoint::{Heads, LoadReport, ModelFolder, ParameterSpec, TaskHead, parameters};
use crate::config::{AlbertConfig, Family};
use crate::model::Model;
use crate::tasks::{Problem, listed};
use crate::tokenizer::Tokenizer;

/// A model under the head of a task, and where its parameters are from.
#[derive(Debug)]
pub struct Start {
    /// The configuration, with the recipe's dropout.
    pub config: AlbertConfig,
    /// Whose names the folder uses.
    pub family: Family,
    /// The tokenizer of the folder.
    pub tokenizer: Tokenizer,
    /// The model.
    pub model: Model,
    /// Its parameters.
    pub params: ParamStore,
    /// What was loaded, what is fresh, what the folder holds besides. Nothing is fresh that is not listed.
    pub report: LoadReport,
    /// Origin of the head's parameters.
    pub head: HeadOrigin,
}

/// Where the head of a task is from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HeadOrigin {
    /// It is initialized at random, as for a pre-trained model.
    #[default]
    Initialized,
    /// It is initialized at random though the earlier model has one, because of this.
    Refused(String),
    /// It is that of the earlier model.
    Loaded,
    /// It is that of the earlier model, whose labels are the same in another order: a label of this task and the row
    /// that it has there, row by row.
    Mapped(Vec<(String, usize)>),
}

impl HeadOrigin {
    /// Of a head `own` under `labels`, where the earlier model has the head `earlier` under `theirs`.
    fn new(own: TaskHead, labels: &[String], earlier: Option<TaskHead>, theirs: &[String]) -> Self {
        if earlier != Some(own) {
            return Self::Refused("the earlier model has no head of this kind and number of labels".into());
        }
        if labels.is_empty() || theirs.is_empty() || labels == theirs {
            return Self::Loaded;
        }
        let places: HashMap<&String, usize> = theirs.iter().zip(0..).collect();
        let row = |label: &String| Some((label.clone(), *places.get(label)?));
        // As many labels on both sides, and none twice here: where each is found, it is a permutation.
        match labels.iter().map(row).collect() {
            Some(rows) => Self::Mapped(rows),
            None => Self::Refused(format!("the earlier model has other labels: {}", listed(theirs))),
        }
    }

    /// Whether the values of the earlier model are taken.
    fn is_taken(&self) -> bool {
        matches!(self, Self::Loaded | Self::Mapped(_))
    }

    /// Copies a parameter of the head, whose first dimension is that of the labels.
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
            Self::Loaded => f.write_str("the head is that of the earlier model"),
            Self::Mapped(rows) => {
                let all: Vec<String> = rows.iter().map(|(label, row)| format!("{label:?} from row {row}")).collect();
                let shown = all.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
                let more = match all.len().saturating_sub(LISTED) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                write!(f, "the head is that of the earlier model, its rows mapped by label: {shown}{more}")
            }
        }
    }
}

/// Labels that a message names.
const LISTED: usize = 10;

/// The head that a problem is solved with.
pub(super) fn head_of(problem: &Problem, span: &SpanRecipe) -> Result<TaskHead, FinetuneError> {
    let labels = |labels: &[String]| match labels.len() {
        0 | 1 => Err(FinetuneError::Data(format!(
            "{} of {} classes; at least two are needed to tell apart",
            name_of(problem),
            labels.len()
        ))),
        count => Ok(count),
    };
    Ok(match problem {
        Problem::Classes { labels: names } | Problem::Labels { labels: names } => {
            TaskHead::Sequence { labels: labels(names)? }
        }
        Problem::Number => TaskHead::Sequence { labels: 1 },
        Problem::Tags { labels: names } => TaskHead::Token { labels: labels(names)? },
        Problem::Choice => TaskHead::Choice,
        Problem::Span { may_be_impossible } => match span.head {
            Some(SpanHead::Logits) => TaskHead::Span,
            Some(SpanHead::Released) => TaskHead::SquadV2,
            None if *may_be_impossible => TaskHead::SquadV2,
            None => TaskHead::Span,
        },
    })
}

/// The names of the classes; empty where there are none.
pub(super) fn labels_of(problem: &Problem) -> &[String] {
    match problem {
        Problem::Classes { labels } | Problem::Labels { labels } | Problem::Tags { labels } => labels,
        Problem::Number | Problem::Choice | Problem::Span { .. } => &[],
    }
}

impl Start {
    /// Loads what `recipe` begins with. The head is fresh, unless `input.from` has one of the same kind and labels, in any
    /// order; the pooler is fresh where the folder has none; everything is with `input.from_scratch`.
    ///
    /// # Errors
    /// There is no model, or it does not fit.
    pub fn load(recipe: &Recipe, problem: &Problem, cpu: &Cpu) -> Result<Self, FinetuneError> {
        let (folder, is_earlier) = match (&recipe.input.from, &recipe.input.model) {
            (Some(from), _) => (from, true),
            (None, Some(model)) => (model, false),
            (None, None) => {
                let problem =
                    "a run begins with a model: give --model DIR (`input.model`), or --from DIR (`input.from`)";
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
            true => HeadOrigin::new(head, labels_of(problem), files.heads().task, &reading.labels),
            false => HeadOrigin::Initialized,
        };
        let wanted = if origin.is_taken() { heads } else { Heads { task: None, ..heads } };
        let take = |spec: &ParameterSpec, values: &[f32]| {
            let id = params.find(&spec.name).ok_or_else(|| EngineError::Parameter {
                name: spec.name.clone(),
                problem: "the model of the task does not have it".into(),
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
            parameters(&config, heads).into_iter().map(|spec| spec.name).filter(|name| !known(name)).collect();
        report.fresh.extend(fresh);
        params.draw(cpu, recipe.seed, |info| report.fresh.contains(&info.name))?;
        Ok(Self { config, family: reading.family, tokenizer, model, params, report, head: origin })
    }
}

/// The tokenizer of a model folder.
pub(super) fn tokenizer_of(files: &ModelFolder) -> Result<Tokenizer, FinetuneError> {
    let folder: &Path = files.path();
    let tokenizer = Tokenizer::load(folder)?;
    tokenizer.expect_vocab_size(files.config().config.vocab_size)?;
    Ok(tokenizer)
}
