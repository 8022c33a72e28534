//! What a run begins with: the encoder of a model folder under the head of a task.

use std::path::Path;

use engine::{Cpu, EngineError, ParamStore};

use super::{FinetuneError, Recipe, SpanHead, SpanRecipe, name_of};
use crate::checkpoint::{Heads, LoadReport, ModelFolder, ParameterSpec, TaskHead, parameters};
use crate::config::{AlbertConfig, Family};
use crate::model::Model;
use crate::tasks::Problem;
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
}

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
        Problem::Classes { labels: names } => TaskHead::Sequence { labels: labels(names)? },
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
        Problem::Classes { labels } | Problem::Tags { labels } => labels,
        Problem::Number | Problem::Choice | Problem::Span { .. } => &[],
    }
}

impl Start {
    /// Loads what `recipe` begins with. The head is fresh, unless `input.from` has one of the same kind and labels; the
    /// pooler is fresh where the folder has none; everything is with `input.from_scratch`.
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
        let (model, mut params) = Model::new(&config, heads, cpu, recipe.seed)?;
        let same_labels =
            reading.labels.is_empty() || labels_of(problem).is_empty() || reading.labels == labels_of(problem);
        let has_head = is_earlier && files.heads().task == Some(head) && same_labels;
        let wanted = if has_head { heads } else { Heads { task: None, ..heads } };
        let take = |spec: &ParameterSpec, values: &[f32]| {
            let id = params.find(&spec.name).ok_or_else(|| EngineError::Parameter {
                name: spec.name.clone(),
                problem: "the model of the task does not have it".into(),
            })?;
            params.values_mut(id)?.copy_from_slice(values);
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
        Ok(Self { config, family: reading.family, tokenizer, model, params, report })
    }
}

/// The tokenizer of a model folder.
pub(super) fn tokenizer_of(files: &ModelFolder) -> Result<Tokenizer, FinetuneError> {
    let folder: &Path = files.path();
    let tokenizer = Tokenizer::load(folder)?;
    tokenizer.expect_vocab_size(files.config().config.vocab_size)?;
    Ok(tokenizer)
}
