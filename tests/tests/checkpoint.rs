//! Third-party checkpoints. transformers and TensorFlow wrote the folders in `golden/checkpoints` (`oracle/checkpoint.py`);
//! every value is a function of its tensor's name.

use albert::checkpoint::{
    CheckpointError, ConvertOptions, Heads, LoadReport, ModelFolder, SaveFormat, convert, save_model_as, stored_name,
    torch_name,
};
use albert::config::{Activation, Family};
use albert::model::parameters;
use albert_tests::run_folder::copy;
use engine::io::{Data, FileDType, Safetensors, TensorOut, save_safetensors};
use half::{bf16, f16};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

type Values = BTreeMap<String, Vec<f32>>;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/checkpoints").join(name)
}

/// Folders without variations: one per class of each family, with their heads.
fn classes() -> Vec<(String, Family, Heads)> {
    let classes = [
        ("Model", Heads::MODEL),
        ("ForPreTraining", Heads::PRE_TRAINING),
        ("ForMaskedLM", Heads::MASKED_LM),
        ("ForSequenceClassification", Heads::sequence_classification(3)),
        ("ForTokenClassification", Heads::token_classification(5)),
        ("ForQuestionAnswering", Heads::QUESTION_ANSWERING),
        ("ForMultipleChoice", Heads::MULTIPLE_CHOICE),
    ];
    let families = [("albert", Family::Albert), ("bert", Family::Bert)].into_iter();
    families
        .flat_map(|(prefix, family)| classes.map(|(class, heads)| (format!("{prefix}-{class}"), family, heads)))
        .collect()
}

/// Values of a tensor in `oracle/checkpoint.py`.
fn made(name: &str, len: usize) -> Vec<f32> {
    let state = name.bytes().fold(0x811C_9DC5u32, |state, byte| (state ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (0..len as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(state) >> 8) as f32 / 16_777_216.0 - 0.5)
        .collect()
}

/// Tensor name that determines the values of a parameter: the base model was saved without a prefix.
fn made_from(parameter: &str, family: Family, class: &str) -> String {
    let name = stored_name(parameter, family);
    if !class.ends_with("-Model") {
        return name;
    }
    name.strip_prefix("albert.").or_else(|| name.strip_prefix("bert.")).unwrap_or(&name).to_owned()
}

fn load_with(path: &Path, heads: Heads, fresh: &[&str]) -> Result<(Values, LoadReport), CheckpointError> {
    let mut values = Values::new();
    let report = ModelFolder::open(path)?.load(heads, fresh, |spec, data| {
        values.insert(spec.name.clone(), data.to_vec());
        Ok(())
    })?;
    Ok((values, report))
}

fn load(path: &Path, heads: Heads) -> (Values, LoadReport) {
    load_with(path, heads, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn message(path: &Path, heads: Heads) -> String {
    load_with(path, heads, &[]).map(|_| ()).expect_err("it must not load").to_string()
}

/// Asserts that the golden folder `name` is rejected after `harm`, with an error that contains all `parts`.
#[track_caller]
fn refused(name: &str, heads: Heads, parts: &[&str], harm: impl FnOnce(&Path)) {
    let folder = scratch(name);
    harm(folder.path());
    let error = message(folder.path(), heads);
    for part in parts {
        assert!(error.contains(part), "{error:?} does not contain {part:?}");
    }
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Copy of a golden folder that may be damaged.
fn scratch(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&golden(name), folder.path());
    folder
}

/// Replaces every tensor by the result of `change`, zero or more tensors.
fn rewrite(folder: &Path, change: impl Fn(&str, Vec<f32>) -> Vec<(String, Vec<f32>)>) {
    let path = folder.join("model.safetensors");
    let file = Safetensors::open(&path).unwrap();
    let tensors: Vec<_> = file
        .names()
        .into_iter()
        .flat_map(|name| {
            let shape = file.shape(&name).unwrap().to_vec();
            let values = file.f32s(&name, &shape).unwrap();
            change(&name, values).into_iter().map(move |(name, values)| (name, shape.clone(), values))
        })
        .collect();
    let out: Vec<_> = tensors
        .iter()
        .map(|(name, shape, values)| TensorOut { name: name.clone(), shape: shape.clone(), data: Data::F32(values) })
        .chain([TensorOut { name: "bert.embeddings.position_ids".into(), shape: vec![1, 2], data: Data::I64(&[0, 1]) }])
        .collect();
    save_safetensors(&path, &out, &[("format", "pt")]).unwrap();
}

#[test]
fn every_class_of_transformers_loads_whole_and_comes_back_bit_for_bit_under_the_same_names() {
    for (class, family, heads) in classes() {
        let open = ModelFolder::open(&golden(&class)).unwrap();
        assert_eq!((open.heads(), open.config().family), (heads, family), "{class}");
        let (values, report) = load(&golden(&class), heads);
        let left_over = (report.fresh.len(), report.ignored, report.not_needed);
        assert_eq!(left_over, (0, vec![], vec![]), "{class}");
        let specs = parameters(&open.config().config, heads);
        assert_eq!(values.len(), specs.len(), "{class}");
        for spec in specs {
            let expected = made(&made_from(&spec.name, family, &class), spec.shape.elements());
            assert_eq!(values[&spec.name], expected, "{class} {}", spec.name);
        }
        let folder = tempfile::tempdir().unwrap();
        let format = SaveFormat { family, labels: &open.config().labels, ..SaveFormat::default() };
        save_model_as(folder.path(), &open.config().config, heads, format, |name| &values[name]).unwrap();
        let (again, report) = load(folder.path(), heads);
        assert_eq!(again, values, "{class}");
        assert_eq!((report.ignored.len(), report.not_needed.len()), (0, 0), "{class}: {report:?}");
        let written = ModelFolder::open(folder.path()).unwrap();
        assert_eq!(written.config().config, open.config().config, "{class}");
        assert_eq!((written.heads(), written.config().family), (heads, family), "{class}");
        let names = |folder: &Path| {
            let mut names = Safetensors::open(folder.join("model.safetensors")).unwrap().names();
            names.sort();
            names
        };
        if !class.ends_with("-Model") {
            // The bias of the MLM head under both of its names: with only one of them transformers 4.46 loses it.
            let mut written = names(folder.path());
            written.retain(|name| !name.ends_with("predictions.decoder.bias"));
            assert_eq!(written, names(&golden(&class)), "{class}");
            assert_eq!(names(folder.path()).len(), written.len() + usize::from(heads.mlm), "{class}");
        }
    }
}

#[test]
fn narrow_files_are_converted_and_sharded_ones_joined() {
    for (folder, family, heads, round) in [
        (
            "albert-ForMaskedLM-bf16",
            Family::Albert,
            Heads::MASKED_LM,
            (|x| bf16::from_f32(x).to_f32()) as fn(f32) -> f32,
        ),
        ("bert-ForPreTraining-f16", Family::Bert, Heads::PRE_TRAINING, |x| f16::from_f32(x).to_f32()),
        ("bert-ForSequenceClassification-sharded", Family::Bert, Heads::sequence_classification(3), |x| x),
    ] {
        let (values, report) = load(&golden(folder), heads);
        assert!(report.ignored.is_empty(), "{folder}: {report:?}");
        for (name, values) in values {
            let expected: Vec<f32> = made(&stored_name(&name, family), values.len()).into_iter().map(round).collect();
            assert_eq!(values, expected, "{folder} {name}");
        }
    }
}

/// Google's names, transposed kernels, optimizer moments and the step count.
#[test]
fn a_checkpoint_of_tensorflow_holds_the_same_as_through_hugging_face() {
    let google = golden("google-albert");
    for path in [google.clone(), google.join("model.ckpt-best"), google.join("model.ckpt-best.index")] {
        let (values, report) = load(&path, Heads::PRE_TRAINING);
        assert_eq!(values, load(&golden("albert-ForPreTraining"), Heads::PRE_TRAINING).0, "{}", path.display());
        assert_eq!(report.ignored, Vec::<String>::new());
        assert_eq!(report.not_needed.len(), 2 * values.len() + 1, "two moments each and the step: {report:?}");
    }
    let open = ModelFolder::open(&google).unwrap();
    assert_eq!(open.heads(), Heads::PRE_TRAINING);
    assert_eq!(open.config().config.hidden_act, Activation::GeluTanh);
    assert_eq!(open.name_in_file("albert.pooler.weight"), Some("bert/pooler/dense/kernel"));
}

#[test]
fn convert_writes_what_it_read_in_every_element_type() {
    let target = tempfile::tempdir().unwrap();
    let expected = load(&golden("google-albert"), Heads::PRE_TRAINING).0;
    for (dtype, round) in [
        (FileDType::F32, (|x| x) as fn(f32) -> f32),
        (FileDType::Bf16, |x| bf16::from_f32(x).to_f32()),
        (FileDType::F16, |x| f16::from_f32(x).to_f32()),
    ] {
        let to = target.path().join(torch_name(dtype));
        let done = convert(&golden("google-albert"), &to, ConvertOptions { dtype, attention_heads: None }).unwrap();
        assert_eq!(
            (done.heads, done.files),
            (Heads::PRE_TRAINING, vec!["config.json".into(), "model.safetensors".into()])
        );
        assert_eq!(done.report.loaded.len(), expected.len());
        let file = Safetensors::open_checked(to.join("model.safetensors")).unwrap();
        assert!(file.names().iter().all(|name| file.dtype(name) == Some(dtype)), "{dtype:?}");
        for (name, values) in load(&to, Heads::PRE_TRAINING).0 {
            let rounded: Vec<f32> = expected[&name].iter().map(|&x| round(x)).collect();
            assert_eq!(values, rounded, "{dtype:?} {name}");
        }
        let config = fs::read_to_string(to.join("config.json")).unwrap();
        assert!(config.contains(torch_name(dtype)) && config.contains("\"gelu_new\""), "{config}");
    }
}

#[test]
fn convert_copies_the_tokenizer_and_keeps_the_labels() {
    let from = scratch("bert-ForSequenceClassification-sharded");
    fs::write(from.path().join("vocab.txt"), "[PAD]\n").unwrap();
    let config = fs::read_to_string(from.path().join("config.json")).unwrap();
    fs::write(from.path().join("config.json"), config.replace("\"LABEL_1\"", "\"neutral\"")).unwrap();
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("model");
    let done = convert(from.path(), &to, ConvertOptions::default()).unwrap();
    assert_eq!(done.files, ["config.json", "model.safetensors", "vocab.txt"]);
    assert_eq!(ModelFolder::open(&to).unwrap().config().labels, ["LABEL_0", "neutral", "LABEL_2"]);
    let heads = Heads::sequence_classification(3);
    assert_eq!(load(&to, heads).0, load(from.path(), heads).0);
}

#[test]
fn convert_leaves_nothing_half_written() {
    let target = tempfile::tempdir().unwrap();
    let names = || fs::read_dir(target.path()).unwrap().map(|file| file.unwrap().file_name()).collect::<Vec<_>>();
    let to = target.path().join("model");
    let from = scratch("albert-ForMaskedLM");
    rewrite(from.path(), |name, mut values| {
        values[0] = 1e5;
        vec![(name.to_owned(), values)]
    });
    let options = ConvertOptions { dtype: FileDType::F16, attention_heads: None };
    let error = convert(from.path(), &to, options).unwrap_err().to_string();
    assert!(error.contains("contains 100000, but f16 ends at 65504"), "{error}");
    assert!(names().is_empty(), "{:?}", names());
    // The leftover of a killed conversion is replaced; a folder in use is an error.
    fs::create_dir(target.path().join(".model.partial")).unwrap();
    fs::write(target.path().join(".model.partial/rest"), "x").unwrap();
    convert(from.path(), &to, ConvertOptions::default()).unwrap();
    assert_eq!(names(), ["model"]);
    assert!(!to.join("rest").exists());
}

/// Old names of LayerNorm parameters, the prefix of DataParallel, stored tied copies, a buffer of position ids.
#[test]
fn old_names_tied_copies_and_buffers_are_understood() {
    let folder = scratch("bert-ForPreTraining");
    let expected = load(folder.path(), Heads::PRE_TRAINING).0;
    rewrite(folder.path(), |name, values| {
        let old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        let mut out = vec![(format!("module.{old}"), values.clone())];
        if name == "bert.embeddings.word_embeddings.weight" {
            out.push(("cls.predictions.decoder.weight".to_owned(), values));
        } else if name == "cls.predictions.bias" {
            out = vec![("cls.predictions.decoder.bias".to_owned(), values)];
        }
        out
    });
    let (values, report) = load(folder.path(), Heads::PRE_TRAINING);
    assert_eq!(values, expected);
    assert_eq!(report.ignored, Vec::<String>::new());
    assert_eq!(report.not_needed, ["bert.embeddings.position_ids"]);
}

#[test]
fn a_decoder_that_is_not_tied_is_refused_where_it_is_used() {
    let folder = scratch("albert-ForPreTraining");
    rewrite(folder.path(), |name, mut values| {
        let mut out = vec![(name.to_owned(), values.clone())];
        if name == "albert.embeddings.word_embeddings.weight" {
            values[7] += 0.5;
            out.push(("predictions.decoder.weight".to_owned(), values));
        }
        out
    });
    let error = message(folder.path(), Heads::PRE_TRAINING);
    let expected = "predictions.decoder.weight: differs from albert.embeddings.word_embeddings.weight";
    assert!(error.contains(expected), "{error}");
    let (_, report) = load(folder.path(), Heads::MODEL);
    assert!(report.ignored.contains(&"predictions.decoder.weight".to_owned()), "{report:?}");
}

/// The released checkpoints of Hugging Face have no sentence-order head.
#[test]
fn a_missing_head_is_an_error_unless_named() {
    let folder = scratch("albert-ForPreTraining");
    rewrite(
        folder.path(),
        |name, values| {
            if name.starts_with("sop") { vec![] } else { vec![(name.to_owned(), values)] }
        },
    );
    let error = message(folder.path(), Heads::PRE_TRAINING);
    assert!(error.contains("2 of the model's tensors are missing: sop_classifier.classifier.weight"), "{error}");
    let (_, report) = load_with(folder.path(), Heads::PRE_TRAINING, &["sop_classifier"]).unwrap();
    assert_eq!(report.fresh, ["sop_classifier.classifier.weight", "sop_classifier.classifier.bias"]);
    assert_eq!(ModelFolder::open(folder.path()).unwrap().heads(), Heads { sop: false, ..Heads::PRE_TRAINING });
}

#[test]
fn a_missing_tensor_of_a_bert_is_named_as_in_its_file() {
    let name = "encoder.layer.0.attention.self.query.weight";
    let rest = |found: &str, values| if found.ends_with(name) { vec![] } else { vec![(found.to_owned(), values)] };
    let missing = format!("1 of the model's tensors are missing: bert.{name}");
    refused("bert-Model", Heads::MODEL, &[&missing], |folder| rewrite(folder, rest));
}

#[test]
fn an_albert_is_not_written_as_a_bert() {
    let open = ModelFolder::open(&golden("albert-Model")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let format = SaveFormat { family: Family::Bert, ..SaveFormat::default() };
    let error = save_model_as(folder.path(), &open.config().config, Heads::MODEL, format, |_| &[]).unwrap_err();
    assert!(error.to_string().contains("this model is an ALBERT"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_index_that_lies_is_refused() {
    const INDEX: &str = "model.safetensors.index.json";
    for (from, to, expected) in [
        ("classifier.bias", "classifier.bios", "for tensor classifier.bios, which is not in it"),
        ("\"model-00003", "\"../model-00003", "expected the name of a file in the same folder"),
        ("model-00002-of", "model-00007-of", "it names model-00007-of-00003.safetensors, which is not there"),
        ("weight_map", "map", "`weight_map`"),
        ("{", "", "not JSON"),
    ] {
        refused(
            "bert-ForSequenceClassification-sharded",
            Heads::sequence_classification(3),
            &[INDEX, expected],
            |folder| {
                let text = fs::read_to_string(folder.join(INDEX)).unwrap();
                assert!(text.contains(from), "the index does not hold {from}");
                fs::write(folder.join(INDEX), text.replace(from, to)).unwrap();
            },
        );
    }
}

#[test]
fn damage_to_a_checkpoint_of_tensorflow_is_found() {
    const INDEX: &str = "model.ckpt-best.index";
    const DATA: &str = "model.ckpt-best.data-00000-of-00001";
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change, &[&str]); 6] = [
        (INDEX, |bytes| bytes.truncate(20), &[INDEX, "it has 20 bytes, and the footer of an index alone has 48"]),
        (INDEX, |bytes| bytes.truncate(bytes.len() - 1), &[INDEX, "it does not end with the magic number"]),
        (INDEX, |bytes| bytes[100] ^= 4, &[INDEX, "the checksum of the block at byte 0 is"]),
        (INDEX, |bytes| *bytes.iter_mut().rev().nth(44).unwrap() ^= 4, &[INDEX]),
        (DATA, |bytes| bytes.truncate(bytes.len() - 1), &["it was cut short"]),
        (DATA, |bytes| bytes[4] ^= 1, &["has the checksum", "one of them is damaged"]),
    ];
    for (file, damage, parts) in cases {
        refused("google-albert", Heads::PRE_TRAINING, parts, |folder| change(&folder.join(file), damage));
    }
    let removed = |folder: &Path| fs::remove_file(folder.join(DATA)).unwrap();
    refused("google-albert", Heads::PRE_TRAINING, &["its data is not in the same folder"], removed);
}

#[test]
fn a_folder_of_several_checkpoints_wants_one_named() {
    let folder = scratch("google-albert");
    for suffix in ["index", "data-00000-of-00001"] {
        let name = |stem: &str| folder.path().join(format!("{stem}.{suffix}"));
        fs::copy(name("model.ckpt-best"), name("model.ckpt-7")).unwrap();
    }
    let error = message(folder.path(), Heads::PRE_TRAINING);
    assert!(error.contains("there are 2 checkpoints; name one of them"), "{error}");
    load(&folder.path().join("model.ckpt-7"), Heads::PRE_TRAINING);
    let list = "model_checkpoint_path: \"/some/where/model.ckpt-7\"\nall_model_checkpoint_paths: \"x\"\n";
    fs::write(folder.path().join("checkpoint"), list).unwrap();
    load(folder.path(), Heads::PRE_TRAINING);
}

#[test]
fn shapes_and_configurations_that_do_not_fit_are_named() {
    let shapes = "its shape is [12, 8], but config.json makes it [13, 8]";
    let cases = [
        ("\"intermediate_size\": 12", "\"intermediate_size\": 13", shapes),
        ("\"hidden_size\": 8", "\"hidden_width\": 8", "`hidden_size` is missing"),
        ("\"hidden_size\": 8", "\"hidden_size\": -8", "`hidden_size` is -8, expected a whole number"),
        ("\"hidden_size\": 8", "\"hidden_size\": 1e99", "expected a whole number"),
        ("\"hidden_size\": 8", "\"hidden_size\": 1e999", "not a JSON object"),
        ("\"hidden_size\": 8", "\"hidden_size\": 2147483648", "expected a number from 1 to"),
        ("\"hidden_size\": 8", "\"hidden_size\": 18446744073709551616", "expected a whole number"),
        ("\"hidden_size\": 8", "\"hidden_size\": NaN", "not a JSON object"),
        ("\"hidden_size\": 8", "\"hidden_size\": 1.5", "expected a whole number"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4096", "describes 4096 layers with separate weights"),
        ("\"num_attention_heads\": 2", "\"num_attention_heads\": 0", "`num_attention_heads` is 0"),
        ("\"model_type\": \"bert\"", "\"model_type\": \"gpt2\"", "\"albert\" or \"bert\""),
        ("\"use_cache\": true", "\"is_decoder\": true", "attention is in both directions"),
        ("{", "[", "config.json: model configuration: not a JSON object"),
    ];
    for (from, to, expected) in cases {
        refused("bert-Model", Heads::MODEL, &[expected], |folder| {
            let text = fs::read_to_string(folder.join("config.json")).unwrap();
            assert!(text.contains(from), "the case does not hold {from}");
            fs::write(folder.join("config.json"), text.replacen(from, to, 1)).unwrap();
        });
    }
}
