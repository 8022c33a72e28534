//! Texts that describe models, tokenizers, runs and data sets.

use super::{binary::encodes, golden_files, with_file, with_folder};
use albert::{
    AlbertConfig, ablate,
    checkpoint::ModelFolder,
    data::{
        CorpusSettings, Source, SplitSettings, build,
        dataset::{INDEX_FILE, read_index},
    },
    finetune, forward, pretrain,
    report::{EvaluationRecord, Record, TrainRecord, read_metrics},
    tokenizer::{Cleaning, Piece, PieceKind, SPECIAL_PIECES, Tokenizer},
};
use std::fs;

/// A vocabulary of a few pieces.
pub(super) fn small_tokenizer() -> Tokenizer {
    let special = SPECIAL_PIECES.iter().map(|&text| {
        let kind = if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
        Piece::new(text, 0.0, kind)
    });
    let normal = ["▁", "▁the", "a", "b", "c", "1", ",", "1,", "▁20", "é", "日本", "ing"];
    let normal = normal.iter().zip(1i16..).map(|(&text, rank)| Piece::normal(text, -f64::from(rank)));
    Tokenizer::from_pieces(special.chain(normal).collect(), Cleaning::default()).expect("a valid vocabulary")
}

fn base() -> AlbertConfig {
    AlbertConfig::preset("base").expect("a preset")
}

pub(super) fn tokenizer_json(bytes: &[u8]) -> bool {
    with_file("tokenizer.json", bytes, |path| Tokenizer::load(path).is_ok_and(|tokenizer| encodes(&tokenizer)))
}

pub(super) fn tokenizer_json_seeds() -> Vec<Vec<u8>> {
    let ours = with_folder(|folder| {
        let path = folder.join("seed.json");
        small_tokenizer().save(&path).expect("a tokenizer of ours can be written");
        fs::read(&path).expect("a seed")
    });
    let word_piece = r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":"[UNK]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},{"id":4,"content":"[MASK]","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"[PAD]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4,"the":5,"ca":6,"##fe":7}}}"###;
    let unigram = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[{"type":"Replace","pattern":{"String":"``"},"content":"\""},{"type":"NFKD"},{"type":"StripAccents"},{"type":"Lowercase"},{"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"post_processor":null,"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"model":{"type":"Unigram","unk_id":1,"vocab":[["<pad>",0.0],["<unk>",0.0],["[CLS]",0.0],["[SEP]",0.0],["[MASK]",0.0],["▁the",-1.5],["a",-2.0],["▁",-3.0]],"byte_fallback":false}}"#;
    vec![ours, word_piece.as_bytes().to_vec(), unigram.as_bytes().to_vec()]
}

pub(super) fn vocab_txt(bytes: &[u8]) -> bool {
    with_file("vocab.txt", bytes, |path| Tokenizer::load(path).is_ok_and(|tokenizer| encodes(&tokenizer)))
}

pub(super) fn vocab_txt_seeds() -> Vec<Vec<u8>> {
    vec![b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nca\n##fe\n##s\n20\n,\n".to_vec()]
}

/// A model's configuration, of Hugging Face or of Google; one that is accepted is written and read again.
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

/// A recipe, read as each kind of recipe.
pub(super) fn recipe(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let pretrained = pretrain::Recipe::from_toml(text, &[]).inspect(|recipe| {
        let again = pretrain::Recipe::from_toml(&recipe.to_toml(), &[]);
        assert!(again.is_ok(), "a recipe that was read is written so that it cannot be read: {again:?}");
    });
    let finetuned = finetune::Recipe::from_toml(text);
    let plan = ablate::Plan::from_toml(text).map(|plan| drop(plan.variants(100)));
    pretrained.is_ok() | finetuned.is_ok() | plan.is_ok()
}

pub(super) fn recipe_seeds() -> Vec<Vec<u8>> {
    let plan = include_str!("../../../benches/tasks/ablation.toml");
    let own = include_str!("../../../benches/tasks/own.toml");
    let tuned = finetune::Recipe::for_model(&base()).to_toml();
    [crate::run_folder::RECIPE, plan, own, &tuned].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// A line of input of `albert forward`.
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

/// The index of a model in several files.
pub(super) fn shard_index(bytes: &[u8]) -> bool {
    with_folder(|folder| {
        let folder = folder.join("sharded");
        if !folder.is_dir() {
            fs::create_dir(&folder).expect("a folder");
            let golden = super::golden().join("checkpoints/bert-ForSequenceClassification-sharded");
            for file in fs::read_dir(golden).expect("golden files") {
                let file = file.expect("a golden file");
                fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
            }
        }
        fs::write(folder.join("model.safetensors.index.json"), bytes).expect("a file in the temporary folder");
        let Ok(model) = ModelFolder::open(&folder) else { return false };
        model.load(model.heads(), &[], |_, _| Ok(())).is_ok()
    })
}

pub(super) fn shard_index_seeds() -> Vec<Vec<u8>> {
    golden_files(&["checkpoints/bert-ForSequenceClassification-sharded/model.safetensors.index.json"])
}

/// The index of a data set.
pub(super) fn dataset_index(bytes: &[u8]) -> bool {
    with_file("dataset.json", bytes, |path| read_index(path.parent().expect("a folder")).is_ok())
}

pub(super) fn dataset_index_seeds() -> Vec<Vec<u8>> {
    let text = "the a b c\nb a the\n\nc b a 20, 1\nthe the a\n".repeat(20);
    let source = Source::Memory { name: "a.txt".into(), text: text.into_bytes().into() };
    let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
    with_folder(|folder| {
        let folder = folder.join("built");
        build(vec![source], &folder, &corpus, &split, &small_tokenizer(), |_| ()).expect("a data set can be built");
        vec![fs::read(folder.join(INDEX_FILE)).expect("a data set has an index")]
    })
}

/// The metrics of a run.
pub(super) fn metrics(bytes: &[u8]) -> bool {
    with_file("metrics.jsonl", bytes, |path| read_metrics::<Record>(path).is_ok())
}

pub(super) fn metrics_seeds() -> Vec<Vec<u8>> {
    let records = [
        Record::Train(TrainRecord { step: 10, loss: 7.5, ..TrainRecord::default() }),
        Record::Evaluation(EvaluationRecord { step: 10, mlm_loss: 6.5, ..EvaluationRecord::default() }),
    ];
    let lines = records.map(|record| serde_json::to_string(&record).expect("a record has string keys") + "\n");
    vec![lines.concat().into_bytes()]
}
