//! The paper's hyper-parameters (Lan et al. 2020, table 14), one row per task.
//!
//! For RACE the v1 row diverges on v2 models, for which the released notes give a rate of 1e-5 without dropout:
//! [`Preset::Paper`] uses those values, [`Preset::PaperV1`] the row as printed. Optimizer and schedule are the released
//! ones: AdamW without bias correction, gradients clipped at 1, decay counted from step 0.

use serde::{Deserialize, Serialize};

use super::{Recipe, ScheduleSettings, TaskName};
use crate::config::AlbertConfig;
use crate::tasks::GlueTask;
use crate::training::{OptimizerKind, OptimizerSettings, ScheduleKind};

/// A named set of hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The paper's table with the corrections for v2 models.
    Paper,
    /// The paper's table as printed.
    PaperV1,
}

/// A row: learning rate, examples per step, encoder dropout, steps, warm-up steps, maximum sequence length.
type Row = (f64, usize, f64, u64, u64, usize);

fn row(task: TaskName, preset: Preset) -> Option<Row> {
    let TaskName::Glue(task) = task else {
        return match (task, preset) {
            (TaskName::Race, Preset::Paper) => Some((1e-5, 32, 0.0, 12_000, 1000, 512)),
            (TaskName::Race, Preset::PaperV1) => Some((2e-5, 32, 0.1, 12_000, 1000, 512)),
            (TaskName::Squad1, _) => Some((5e-5, 48, 0.0, 3649, 365, 384)),
            (TaskName::Squad2, _) => Some((3e-5, 48, 0.0, 8144, 814, 512)),
            _ => None,
        };
    };
    Some(match task {
        GlueTask::Cola => (1e-5, 16, 0.0, 5336, 320, 512),
        GlueTask::Stsb => (2e-5, 16, 0.0, 3598, 214, 512),
        GlueTask::Sst2 => (1e-5, 32, 0.0, 20_935, 1256, 512),
        GlueTask::Mnli | GlueTask::MnliMismatched => (3e-5, 128, 0.0, 10_000, 1000, 512),
        GlueTask::Qnli => (1e-5, 32, 0.0, 33_112, 1986, 512),
        GlueTask::Qqp => (5e-5, 128, 0.1, 14_000, 1000, 512),
        GlueTask::Rte => (3e-5, 32, 0.1, 800, 200, 512),
        GlueTask::Mrpc => (2e-5, 32, 0.0, 800, 200, 512),
        GlueTask::Wnli => (2e-5, 16, 0.1, 2000, 250, 512),
        GlueTask::Ax => return None,
    })
}

impl Recipe {
    /// The recipe of `preset` for `task`, with sequences limited to the model's positions; `None` if the paper has no
    /// row for the task.
    pub fn preset(preset: Preset, task: TaskName, config: &AlbertConfig) -> Option<Self> {
        let (learning_rate, examples_per_step, encoder, steps, warmup, longest) = row(task, preset)?;
        let mut recipe = Self::for_task(task, config);
        recipe.text.max_sequence_length = longest.min(config.max_position_embeddings);
        recipe.batch.examples_per_step = examples_per_step;
        recipe.dropout.encoder = Some(encoder);
        recipe.dropout.classifier = Some(0.1);
        recipe.optimizer =
            OptimizerSettings { kind: OptimizerKind::AdamW, learning_rate, ..OptimizerSettings::default() };
        recipe.schedule = ScheduleSettings {
            kind: ScheduleKind::Released,
            steps: Some(steps),
            epochs: None,
            warmup_steps: Some(warmup),
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
                let Some(recipe) = Recipe::preset(preset, task, &base) else { continue };
                recipe.validate().unwrap();
                assert!(!recipe.optimizer.bias_correction && recipe.optimizer.clip_norm == 1.0);
                assert_eq!(recipe.optimizer.weight_decay, 0.01);
                let steps = recipe.steps(1000).unwrap();
                assert!(steps.warmup * 4 <= steps.total, "{task:?}");
            }
        }
        let race = |preset| {
            let recipe = Recipe::preset(preset, TaskName::Race, &base).unwrap();
            (recipe.optimizer.learning_rate, recipe.dropout.encoder)
        };
        assert_eq!((race(Preset::Paper), race(Preset::PaperV1)), ((1e-5, Some(0.0)), (2e-5, Some(0.1))));
        // The steps of a row do not depend on the number of examples.
        let cola = Recipe::preset(Preset::Paper, TaskName::Glue(GlueTask::Cola), &base).unwrap();
        assert_eq!(cola.steps(8551).unwrap().total, 5336);
        assert!(Recipe::preset(Preset::Paper, TaskName::Classify, &base).is_none());
    }
}
