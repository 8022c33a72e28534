//! Third-party folders reproduce the vectors of sentence-transformers and the ids of transformers, or are rejected by name.
//!
//! `tests/oracle/third_party.py` wrote `golden/folders`: a folder, changes of its files, and the results after each.

use albert::{
    checkpoint::folder_keys::{KEYS, Use, as_markdown},
    embed::Embedder,
    tokenizer::Tokenizer,
};
use albert_tasks::finetune::Predictor;
use albert_tests::{program::run, run_folder::copy};
use engine::Device;
use serde_json::{Map, Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/folders")
}

/// The base folder after the changes `files`.
fn folder(files: &Map<String, Value>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&golden().join("base"), folder.path());
    for (name, change) in files {
        let path = folder.path().join(name);
        let Some(keys) = change.as_object() else {
            fs::remove_file(path).unwrap();
            continue;
        };
        let content = match keys.get("") {
            Some(content) => content.clone(),
            None => {
                let mut content: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
                for (pointer, value) in keys {
                    let (parent, key) = pointer.rsplit_once('/').unwrap();
                    content.pointer_mut(parent).unwrap()[key] = value.clone();
                }
                content
            }
        };
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn changes(files: Value) -> Map<String, Value> {
    files.as_object().unwrap().clone()
}

fn cases() -> (Value, Vec<Value>) {
    let text = fs::read_to_string(golden().join("cases.jsonl")).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}

fn vectors(folder: &Path, texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
    let mut embedder = Embedder::load(folder, None, Device::cpu().unwrap()).map_err(|error| error.to_string())?;
    let embedded = embedder.embed(texts, false).map_err(|error| error.to_string())?;
    Ok(embedded.vectors.chunks_exact(embedded.width).map(<[f32]>::to_vec).collect())
}

/// Checks that `found` equals `expected` up to 1e-5 of the largest element.
fn difference(found: &[Vec<f32>], expected: &Value) -> Result<(), String> {
    for (row, (found, expected)) in found.iter().zip(expected.as_array().unwrap()).enumerate() {
        let expected: Vec<f64> = expected.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        if found.len() != expected.len() {
            return Err(format!("{} columns, expected {}", found.len(), expected.len()));
        }
        let most = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        let worst = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs() / most).fold(0.0, f64::max);
        if worst > 1e-5 {
            return Err(format!("text {row} differs by {worst:.2e}"));
        }
    }
    Ok(())
}

#[test]
fn every_change_gives_the_results_of_sentence_transformers_and_transformers() {
    let (head, cases) = cases();
    let texts: Vec<&str> = head["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let mut wrong = Vec::new();
    for case in &cases {
        let folder = folder(case["files"].as_object().unwrap());
        let same = vectors(folder.path(), &texts).and_then(|found| difference(&found, &case["vectors"]));
        if let Err(problem) = same {
            wrong.push(format!("{}: {problem}", case["case"]));
            continue;
        }
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        for (pair, expected) in head["pairs"].as_array().unwrap().iter().zip(case["pairs"].as_array().unwrap()) {
            let encode = |at: usize| tokenizer.encode(pair[at].as_str().unwrap()).unwrap();
            let (ids, second) = tokenizer.frame().two(&encode(0), &encode(1));
            let segments: Vec<u32> = (0..ids.len()).map(|at| u32::from(at >= second)).collect();
            if json!([ids, segments]) != *expected {
                wrong.push(format!("{}: {pair} is {ids:?} {segments:?}, expected {expected}", case["case"]));
            }
        }
    }
    assert!(cases.len() >= 80 && wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Every obeyed key of these files is changed by a case; shapes and training settings of `config.json` are tested elsewhere.
#[test]
fn every_obeyed_key_is_changed_by_a_case() {
    let (_, cases) = cases();
    let text = cases.iter().map(|case| case["files"].to_string()).collect::<String>();
    let base: String = ["tokenizer.json", "tokenizer_config.json", "modules.json", "config.json"]
        .map(|name| fs::read_to_string(golden().join("base").join(name)).unwrap())
        .concat();
    let elsewhere = "max_len keep_accents ids_by merges unk_id byte_fallback fuse_unk ignore_merges left right \
                     precompiled_charsmap prepend invert delimiter length str_rep split replacement prepend_scheme \
                     end_of_word_suffix model_type architectures * clean_text handle_chinese_chars";
    let elsewhere: Vec<&str> = elsewhere.split(' ').collect();
    for row in KEYS.iter().filter(|row| row.used == Use::Obeyed) {
        let of_config = row.file == "config.json" && !["hidden_act", "tokenizer_class"].contains(&row.keys);
        for key in row.keys.split_whitespace().filter(|key| !of_config && !elsewhere.contains(key)) {
            let is_changed = text.contains(&format!("\"{key}\"")) || text.contains(&format!("/{key}\""));
            assert!(is_changed || base.contains(&format!("\"{key}\"")), "{}: no case changes {key}", row.file);
        }
    }
}

#[test]
fn irrelevant_keys_change_nothing() {
    let texts = ["The quick brown fox", "a newtok"];
    let expected = vectors(folder(&Map::new()).path(), &texts).unwrap();
    let mut files = Map::new();
    for name in ["config.json", "tokenizer_config.json", "1_Pooling/config.json"] {
        let keys = KEYS.iter().filter(|row| row.file == name && row.used == Use::Irrelevant);
        let keys = keys.flat_map(|row| row.keys.split_whitespace()).map(|key| (format!("/{key}"), json!(7)));
        files.insert(name.to_owned(), keys.collect::<Map<_, _>>().into());
    }
    assert_eq!(vectors(folder(&files).path(), &texts).unwrap(), expected);
}

#[test]
fn unknown_keys_are_named_in_one_note_or_refused() {
    let keys: Map<String, Value> = (0..11).map(|at| (format!("/key_{at:02}"), json!(1))).collect();
    let folder = folder(&changes(json!({"config.json": keys, "tokenizer.json": {"/normalizer/squash": true}})));
    let embed =
        |folder: &TempDir, more: &str| run(&format!("embed --model {} /dev/null {more}", folder.path().display()));
    let said = embed(&folder, "").succeeds().stderr;
    let notes: Vec<&str> = said.lines().filter(|line| line.starts_with("note: ")).collect();
    let [note] = notes[..] else { panic!("{said}") };
    assert!(note.contains("key_00 (config.json), key_01 (config.json), "), "{note}");
    assert!(note.ends_with("key_09 (config.json) and 2 more"), "{note}");
    embed(&folder, "--strict").fails_with(&["key_09", "(--strict)"]);
    let folder = self::folder(&changes(json!({"config.json": {"/quantization_config": {"bits": 4}}})));
    embed(&folder, "").fails_with(&["config.json: `quantization_config` is {\"bits\":4}; expected none"]);
}

#[test]
fn what_cannot_be_obeyed_is_refused_by_name() {
    let kind = |name: &str| {
        json!({"modules.json": {"": [{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_X", "type": format!("sentence_transformers.models.{name}")}]}})
    };
    let post = json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 1}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {}});
    let vocabulary = json!({"": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"});
    let in_tokenizer = |key: &str, value: Value| json!({"tokenizer.json": {key: value}});
    let in_settings = |key: &str, value: &str| json!({"tokenizer_config.json": {key: value}});
    let in_config = |key: &str, value: &str| json!({"config.json": {key: value}});
    let of_words = |more: Value| {
        let mut files = changes(json!({"tokenizer.json": null, "vocab.txt": vocabulary}));
        files.extend(changes(more));
        Value::Object(files)
    };
    let japanese = json!({"tokenizer_config.json": {"/tokenizer_class": "BertJapaneseTokenizer"}});
    let added = json!({"added_tokens.json": {"": {"x": 9}}, "tokenizer_config.json": {"": {}}});
    let pooling = json!({"1_Pooling/config.json": {"": {"pooling_mode": "attention"}}});
    let short = json!({"sentence_bert_config.json": {"": {"max_seq_length": 1}}});
    for (files, part) in [
        (kind("Dense"), "module sentence_transformers.models.Dense: expected Transformer"),
        (in_tokenizer("/post_processor", post), "post_processor: expected special pieces around one text"),
        (in_tokenizer("/model/type", json!("Phrase")), "not a tokenizer.json that"),
        (in_settings("/truncation_side", "middle"), "truncation_side: expected \"left\" or \"right\""),
        (in_settings("/cls_token", "[START]"), "cls_token is \"[START]\", which the vocabulary lacks"),
        (of_words(japanese), "tokenizer_class BertJapaneseTokenizer is not supported from this file"),
        (of_words(added), "the added token \"x\" has id 9"),
        (in_config("/hidden_act", "silu"), "hidden_act"),
        (in_config("/position_embedding_type", "relative_key"), "position_embedding_type"),
        (pooling, "pooling attention: expected cls, max"),
        (short, "1 tokens at most, but the tokenizer adds 2"),
    ] {
        let error = vectors(folder(&changes(files)).path(), &["a"]).unwrap_err();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

/// Converts `from` to a folder in it.
fn converted(from: &TempDir) -> PathBuf {
    let (from, to) = (from.path().display(), from.path().join("to"));
    run(&format!("convert --from {from} --to {}", to.display())).succeeds();
    to
}

#[test]
fn convert_keeps_what_a_folder_of_sentence_transformers_says() {
    let texts = ["The quick brown fox", "she was glad"];
    for (name, files) in [
        (
            "flat",
            json!({"modules.json": {"": [{"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]},
            "1_Pooling/config.json": {"": {"pooling_mode_cls_token": true}},
            "sentence_bert_config.json": {"": {"max_seq_length": 5}}, "tokenizer_config.json": {"/truncation_side": "left"},
            "config_sentence_transformers.json": {"": {"prompts": {"q": "query: "}, "default_prompt_name": "q"}}}),
        ),
        ("plain", json!({"modules.json": null})),
    ] {
        let from = folder(&changes(files));
        let to = converted(&from);
        assert_eq!(vectors(&to, &texts).unwrap(), vectors(from.path(), &texts).unwrap(), "{name}");
    }
    // In the old layout the model is in a separate folder.
    let from = folder(&changes(json!({"modules.json": {"": [
        {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]}})));
    fs::create_dir(from.path().join("0_Transformer")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::rename(from.path().join(name), from.path().join("0_Transformer").join(name)).unwrap();
    }
    let to = converted(&from);
    assert_eq!(vectors(&to, &texts).unwrap(), vectors(from.path(), &texts).unwrap());
}

#[test]
fn a_prompt_is_chosen_by_name_or_as_text() {
    let files =
        json!({"config_sentence_transformers.json": {"": {"prompts": {"q": "query: "}, "default_prompt_name": "q"}}});
    let folder = folder(&changes(files));
    let text = folder.path().join("text.txt");
    let embed = |line: &str, more: &str| {
        fs::write(&text, line).unwrap();
        run(&format!("embed --model {} {} {more}", folder.path().display(), text.display()))
    };
    let plain = embed("query: a\n", "--prompt-text ''").succeeds().stdout;
    for more in ["", "--prompt q", "--prompt-text 'query: '"] {
        assert_eq!(embed("a\n", more).succeeds().stdout, plain, "{more}");
    }
    embed("a\n", "--prompt r").fails_with(&["the model has no prompt \"r\"; its prompts are: q"]);
}

#[test]
fn weights_of_other_kinds_are_named_with_a_remedy() {
    for (file, part) in [
        ("pytorch_model-00001-of-00002.bin", "is a pickle"),
        ("flax_model.msgpack", "from_flax=True"),
        ("pytorch_model.bin", "save_pretrained"),
        ("tf_model.h5", "from_tf=True"),
        ("tf_model.h5", "contains Keras weights"),
        ("model.onnx", "is an exported model"),
        ("adapter_model.safetensors", "is an adapter of peft"),
        ("model.fp16.safetensors", "copy it to model.safetensors"),
        ("model-00001-of-00002.safetensors", "model.safetensors.index.json is not there"),
        ("checkpoint-5/config.json", "the model may be in "),
    ] {
        let folder = folder(&Map::new());
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
        fs::write(folder.path().join(file), "x").unwrap();
        if file.ends_with("config.json") {
            fs::remove_dir_all(folder.path().join("1_Pooling")).unwrap();
            fs::remove_file(folder.path().join("modules.json")).unwrap();
        }
        let error = vectors(folder.path(), &["a"]).unwrap_err();
        assert!(error.contains("no model.safetensors") && error.contains(part), "{file}: {error}");
    }
    let cache = tempfile::tempdir().unwrap();
    fs::create_dir_all(cache.path().join("snapshots/0123")).unwrap();
    let error = vectors(cache.path(), &["a"]).unwrap_err();
    assert!(
        error.contains("it is a folder of the Hugging Face cache; use") && error.contains("snapshots/0123"),
        "{error}"
    );
    let error = vectors(Path::new("organization/model-of-the-hub"), &["a"]).unwrap_err();
    assert!(error.contains("hf download organization/model-of-the-hub --local-dir FOLDER"), "{error}");
}

/// Adds `prefix` to the names of all tensors; the file then has no checksum of ours.
fn prefixed(folder: &Path, prefix: &str) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let name = |name: String| if name == "__metadata__" { name } else { format!("{prefix}{name}") };
    let header: Map<String, Value> = header.into_iter().map(|(key, value)| (name(key), value)).collect();
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let parts = [&(text.len() as u64).to_le_bytes()[..], &text, &bytes[8 + length..]];
    fs::write(path, parts.concat()).unwrap();
}

#[test]
fn prefixes_of_wrappers_are_no_part_of_a_name() {
    let expected = vectors(folder(&Map::new()).path(), &["a"]).unwrap();
    for prefix in ["_orig_mod.", "model.", "module._orig_mod.", "model.bert.", "_orig_mod.module.model.bert."] {
        let folder = folder(&Map::new());
        prefixed(folder.path(), prefix);
        assert_eq!(vectors(folder.path(), &["a"]).unwrap(), expected, "{prefix}");
    }
    let folder = folder(&Map::new());
    prefixed(folder.path(), "student.bert.");
    let error = vectors(folder.path(), &["a"]).unwrap_err();
    assert!(error.contains("the names of the file begin with \"student.bert.\""), "{error}");
}

#[test]
fn names_of_classes_are_those_of_the_folder() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/checkpoints/bert-ForSequenceClassification");
    for (labels, expected) in [
        (json!({"id2label": {"0": 0, "1": 1, "2": 2}}), Ok(["0", "1", "2"])),
        (json!({"label2id": {"b": 1, "a": 0, "c": 2}}), Ok(["a", "b", "c"])),
        (json!({"id2label": {"2": "c", "0": "a", "1": "b"}, "label2id": {"x": 0}}), Ok(["a", "b", "c"])),
        (json!({"id2label": {"0": "a", "1": "b", "2": "a"}}), Err("has several classes with the name \"a\"")),
        (json!({"id2label": {"1": "a", "2": "b", "3": "c"}}), Err("does not name each class from 0 to 2 once")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        copy(&source, folder.path());
        let path = folder.path().join("config.json");
        let mut config: Map<String, Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        config.remove("id2label");
        config.remove("label2id");
        config.extend(labels.as_object().unwrap().clone());
        let rows = config["vocab_size"].as_u64().unwrap() as usize;
        fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
        let pieces = ["[CLS]", "[MASK]", "[PAD]", "[SEP]", "[UNK]"].map(str::to_owned).into_iter();
        let pieces: Vec<String> = pieces.chain((5..rows).map(|at| format!("p{at:04}"))).collect();
        fs::write(folder.path().join("vocab.txt"), pieces.join("\n")).unwrap();
        let found = Predictor::load(&[folder.path().to_owned()], &Device::cpu().unwrap());
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.task().problem.labels(), expected, "{labels}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{labels}: {error}"),
            (found, _) => panic!("{labels}: {:?}", found.map(|found| found.task().clone())),
        }
    }
}

#[test]
fn the_page_has_the_table_of_keys() {
    let page = include_str!("../../../docs/folders.md");
    let table = as_markdown();
    let found = page.split_once("<!-- table -->\n").map(|(_, rest)| rest);
    assert_eq!(found, Some(table.as_str()), "docs/folders.md: replace everything after <!-- table --> by\n{table}");
}
