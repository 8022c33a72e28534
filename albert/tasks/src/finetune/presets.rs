//! Hyper-parameters of the paper (Lan et al. 2020, table 14), one row per task.
//!
//! For RACE the v1 row diverges on v2 models, for which the released notes list a rate of 1e-5 without dropout:
//! [`Preset::Paper`] uses those values, [`Preset::PaperV1`] the row as printed. Optimizer and schedule are the released
//! ones: AdamW without bias correction, gradients clipped at 1, decay counted from step 0.

use albert::config::AlbertConfig;
use albert::train::{OptimizerKind, OptimizerSettings, ScheduleKind};
use serde::{Deserialize, Serialize};

use super::{FinetuneRecipe, FinetuneSchedule, TaskName};
use crate::files::GlueTask;

/// A named set of hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The paper's table with the corrections for v2 models.
    Paper,
    /// The paper's table as printed.
    PaperV1,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    learning_rate: f64,
    examples_per_step: usize,
    encoder_dropout: f64,
    steps: u64,
    warmup_steps: u64,
    max_sequence_length: usize,
}

impl Row {
    const fn new(
        learning_rate: f64,
        examples_per_step: usize,
        encoder_dropout: f64,
        [steps, warmup_steps]: [u64; 2],
    ) -> Self {
        Self { learning_rate, examples_per_step, encoder_dropout, steps, warmup_steps, max_sequence_length: 512 }
    }
}

fn row(task: TaskName, preset: Preset) -> Option<Row> {
    let TaskName::Glue(task) = task else {
        return match (task, preset) {
            (TaskName::Race, Preset::Paper) => Some(Row::new(1e-5, 32, 0.0, [12_000, 1000])),
            (TaskName::Race, Preset::PaperV1) => Some(Row::new(2e-5, 32, 0.1, [12_000, 1000])),
            (TaskName::Squad1, _) => Some(Row { max_sequence_length: 384, ..Row::new(5e-5, 48, 0.0, [3649, 365]) }),
            (TaskName::Squad2, _) => Some(Row::new(3e-5, 48, 0.0, [8144, 814])),
            _ => None,
        };
    };
    Some(match task {
        GlueTask::Cola => Row::new(1e-5, 16, 0.0, [5336, 320]),
        GlueTask::Stsb => Row::new(2e-5, 16, 0.0, [3598, 214]),
        GlueTask::Sst2 => Row::new(1e-5, 32, 0.0, [20_935, 1256]),
        GlueTask::Mnli | GlueTask::MnliMismatched => Row::new(3e-5, 128, 0.0, [10_000, 1000]),
        GlueTask::Qnli => Row::new(1e-5, 32, 0.0, [33_112, 1986]),
        GlueTask::Qqp => Row::new(5e-5, 128, 0.1, [14_000, 1000]),
        GlueTask::Rte => Row::new(3e-5, 32, 0.1, [800, 200]),
        GlueTask::Mrpc => Row::new(2e-5, 32, 0.0, [800, 200]),
        GlueTask::Wnli => Row::new(2e-5, 16, 0.1, [2000, 250]),
        GlueTask::Ax => return None,
    })
}

impl FinetuneRecipe {
    /// Recipe of `preset` for `task`, with sequences limited to the model's positions; `None` if the paper has no row
    /// for the task.
    pub fn preset(preset: Preset, task: TaskName, config: &AlbertConfig) -> Option<Self> {
        let Row { learning_rate, examples_per_step, encoder_dropout, steps, warmup_steps, max_sequence_length } =
            row(task, preset)?;
        let mut recipe = Self::for_task(task, config);
        recipe.text.max_sequence_length = max_sequence_length.min(config.max_position_embeddings);
        recipe.batch.examples_per_step = examples_per_step;
        recipe.dropout.encoder = Some(encoder_dropout);
        recipe.dropout.classifier = Some(0.1);
        recipe.optimizer =
            OptimizerSettings { kind: OptimizerKind::AdamW, learning_rate, ..OptimizerSettings::default() };
        recipe.schedule = FinetuneSchedule {
            kind: ScheduleKind::Released,
            steps: Some(steps),
            epochs: None,
            warmup_steps: Some(warmup_steps),
            warmup_share: None,
            power: 1.0,
            end_learning_rate: 0.0,
        };
        recipe.evaluation.interval = if task == TaskName::Glue(GlueTask::Qnli) { 200 } else { 100 };
        Some(recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_valid_recipes_and_race_is_corrected() {
        let base = AlbertConfig::preset("base").unwrap();
        for task in TaskName::all() {
            for preset in [Preset::Paper, Preset::PaperV1] {
                let Some(recipe) = FinetuneRecipe::preset(preset, task, &base) else { continue };
                recipe.validate().unwrap();
                assert!(!recipe.optimizer.bias_correction && recipe.optimizer.clip_norm == 1.0);
                assert_eq!(recipe.optimizer.weight_decay, 0.01);
                let steps = recipe.steps(1000).unwrap();
                assert!(steps.warmup * 4 <= steps.total, "{task:?}");
            }
        }
        let race = |preset| {
            let recipe = FinetuneRecipe::preset(preset, TaskName::Race, &base).unwrap();
            (recipe.optimizer.learning_rate, recipe.dropout.encoder)
        };
        assert_eq!((race(Preset::Paper), race(Preset::PaperV1)), ((1e-5, Some(0.0)), (2e-5, Some(0.1))));
        // The steps of a row do not depend on the number of examples.
        let cola = FinetuneRecipe::preset(Preset::Paper, TaskName::Glue(GlueTask::Cola), &base).unwrap();
        assert_eq!(cola.steps(8551).unwrap().total, 5336);
        assert!(FinetuneRecipe::preset(Preset::Paper, TaskName::Classify, &base).is_none());
    }
}
