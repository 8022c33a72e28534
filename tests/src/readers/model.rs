//! Texts that describe models, tokenizers, runs and data sets.

use super::{golden_files, tokenizer::small_tokenizer, with_file, with_folder};
use crate::run_folder::copy;
use albert::{
    AlbertConfig,
    checkpoint::ModelFolder,
    data::{
        CorpusSettings, Source, SplitSettings, build,
        dataset::{INDEX_FILE, read_index},
    },
    forward,
    pretrain::{HeldOutFigures, PretrainRecipe, PretrainRecord},
    report::read_metrics,
    train::{EvaluationRecord, TrainRecord},
};
use albert_tasks::{ablate, finetune::FinetuneRecipe};
use engine::Communicator;
use std::fs;

fn base() -> AlbertConfig {
    AlbertConfig::preset("base").expect("a preset")
}

/// Reads a model configuration of Hugging Face or Google; an accepted one is written and read back.
pub(super) fn config(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let google = AlbertConfig::from_google_json(text).is_ok();
    let Ok(reading) = AlbertConfig::from_hf_json(text) else { return google };
    let again = AlbertConfig::from_hf_json(&reading.config.to_hf_json("AlbertModel"));
    assert!(again.is_ok(), "a configuration that was read is written so that it cannot be read: {again:?}");
    true
}

pub(super) fn config_seeds() -> Vec<Vec<u8>> {
    golden_files(&[
        "checkpoints/albert-ForTokenClassification/config.json",
        "checkpoints/bert-ForPreTraining/config.json",
        "checkpoints/google-albert/albert_config.json",
    ])
}

/// Reads a recipe as each kind of recipe.
pub(super) fn recipe(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let pretrained = PretrainRecipe::from_toml(text, &[]).inspect(|recipe| {
        let again = PretrainRecipe::from_toml(&recipe.to_toml(), &[]);
        assert!(again.is_ok(), "a recipe that was read is written so that it cannot be read: {again:?}");
    });
    let finetuned = FinetuneRecipe::from_toml(text);
    let plan = ablate::Plan::from_toml(text).map(|plan| drop(plan.variants(100)));
    pretrained.is_ok() | finetuned.is_ok() | plan.is_ok()
}

pub(super) fn recipe_seeds() -> Vec<Vec<u8>> {
    let plan = include_str!("inputs/ablation.toml");
    let own = include_str!("inputs/own.toml");
    let tuned = FinetuneRecipe::for_model(&base()).to_toml();
    [crate::run_folder::RECIPE, plan, own, &tuned].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Reads a line of input of `albert forward`.
pub(super) fn forward_line(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    forward::Example::from_json(text, &base()).is_ok()
}

pub(super) fn forward_line_seeds() -> Vec<Vec<u8>> {
    [
        r#"{"input_ids": [2, 51, 88, 3], "attention_mask": [1, 1, 1, 1], "token_type_ids": [0, 0, 0, 0], "labels": 1}"#,
        r#"{"input_ids": [[2, 51, 3], [2, 88, 3]], "labels": 0}"#,
        r#"{"input_ids": [2, 3], "labels": [-100, 5], "sentence_order_label": 1}"#,
        r#"{"input_ids": [2, 3, 3], "start_positions": 1, "end_positions": 2, "is_impossible": 0, "p_mask": [0, 0, 1]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Reads the index of a model in several files.
pub(super) fn shard_index(bytes: &[u8]) -> bool {
    with_folder(|folder| {
        let folder = folder.join("sharded");
        if !folder.is_dir() {
            copy(&super::golden().join("checkpoints/bert-ForSequenceClassification-sharded"), &folder);
        }
        fs::write(folder.join("model.safetensors.index.json"), bytes).expect("a file in the temporary folder");
        let Ok(model) = ModelFolder::open(&folder) else { return false };
        model.load(model.heads(), &[], |_, _| Ok(())).is_ok()
    })
}

pub(super) fn shard_index_seeds() -> Vec<Vec<u8>> {
    golden_files(&["checkpoints/bert-ForSequenceClassification-sharded/model.safetensors.index.json"])
}

/// Reads the index of a data set.
pub(super) fn dataset_index(bytes: &[u8]) -> bool {
    with_file("dataset.json", bytes, |path| read_index(path.parent().expect("a folder")).is_ok())
}

pub(super) fn dataset_index_seeds() -> Vec<Vec<u8>> {
    let text = "the a b c\nb a the\n\nc b a 20, 1\nthe the a\n".repeat(20);
    let source = Source::Memory { name: "a.txt".into(), text: text.into_bytes().into() };
    let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
    with_folder(|folder| {
        let folder = folder.join("built");
        build(vec![source], &folder, &corpus, &split, &small_tokenizer(), &Communicator::default())
            .expect("a data set can be built");
        vec![fs::read(folder.join(INDEX_FILE)).expect("a data set has an index")]
    })
}

/// Reads the metrics of a run.
pub(super) fn metrics(bytes: &[u8]) -> bool {
    with_file("metrics.jsonl", bytes, |path| read_metrics::<PretrainRecord>(path).is_ok())
}

pub(super) fn metrics_seeds() -> Vec<Vec<u8>> {
    let records = [
        PretrainRecord::Train(TrainRecord { step: 10, loss: 7.5, ..TrainRecord::default() }),
        PretrainRecord::Evaluation(EvaluationRecord {
            step: 10,
            figures: HeldOutFigures { mlm_loss: 6.5, ..HeldOutFigures::default() },
            ..EvaluationRecord::default()
        }),
    ];
    let lines = records.map(|record| serde_json::to_string(&record).expect("a record has string keys") + "\n");
    vec![lines.concat().into_bytes()]
}
