use std::collections::BTreeMap;
use std::path::Path;

use engine::io::{Data, Safetensors, TensorOut, save_safetensors};
use engine::param::ParamInfo;
use serde_json::json;

use super::*;
use crate::config::{AlbertConfig, EmbeddingMap, Family, Sharing};
use crate::model::parameters;

fn small(sharing: Sharing) -> AlbertConfig {
    AlbertConfig {
        vocab_size: 40,
        embedding_size: 8,
        hidden_size: 12,
        num_hidden_layers: 4,
        num_attention_heads: 3,
        intermediate_size: 20,
        max_position_embeddings: 16,
        sharing,
        ..AlbertConfig::preset("tiny").unwrap()
    }
}

const CLASSES: [Heads; 10] = [
    Heads::MODEL,
    Heads::ENCODER,
    Heads::MASKED_LM,
    Heads::PRE_TRAINING,
    Heads::sequence_classification(1),
    Heads::sequence_classification(3),
    Heads::token_classification(9),
    Heads::MULTIPLE_CHOICE,
    Heads::QUESTION_ANSWERING,
    Heads::SQUAD_V2,
];

const STRATEGIES: [Sharing; 5] = [Sharing::All, Sharing::Attention, Sharing::Ffn, Sharing::None, Sharing::Groups(2)];

/// Values that differ from tensor to tensor and from element to element.
fn values(config: &AlbertConfig, heads: Heads) -> BTreeMap<String, Vec<f32>> {
    let specs = parameters(config, heads);
    let of = |(at, spec): (usize, &ParamInfo)| {
        (0..spec.shape.elements()).map(|i| (at * 1009 + i) as f32 * 0.01 - 3.0).collect()
    };
    specs.iter().enumerate().map(|(at, spec)| (spec.name.clone(), of((at, spec)))).collect()
}

fn save(folder: &Path, config: &AlbertConfig, heads: Heads) -> BTreeMap<String, Vec<f32>> {
    let values = values(config, heads);
    save_model(folder, config, heads, &[("tokenizer.json", b"{}".to_vec())], |name| &values[name]).unwrap();
    values
}

fn load(
    folder: &Path,
    heads: Heads,
    fresh: &[&str],
) -> Result<(BTreeMap<String, Vec<f32>>, LoadReport), CheckpointError> {
    let mut found = BTreeMap::new();
    let report = ModelFolder::open(folder)?.load(heads, fresh, |spec, data| {
        found.insert(spec.name.clone(), data.to_vec());
        Ok(())
    })?;
    Ok((found, report))
}

/// Rewrites the weights with some tensors changed, renamed or removed.
fn rewrite(folder: &Path, change: impl Fn(&str, &mut Vec<usize>, &mut Vec<f32>) -> Option<String>) {
    let path = folder.join("model.safetensors");
    let file = Safetensors::open(&path).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = file
        .names()
        .into_iter()
        .filter_map(|name| {
            let mut shape = file.shape(&name).unwrap().to_vec();
            let mut data = file.f32s(&name, &shape).unwrap();
            change(&name, &mut shape, &mut data).map(|name| (name, shape, data))
        })
        .collect();
    let out: Vec<_> = tensors
        .iter()
        .map(|(name, shape, data)| TensorOut { name: name.clone(), shape: shape.clone(), data: Data::F32(data) })
        .collect();
    save_safetensors(&path, &out, &[]).unwrap();
}

#[test]
fn names_and_shapes_are_hugging_faces() {
    let config = AlbertConfig::preset("base").unwrap();
    let mut names: Vec<_> =
        stored_tensors(&config, Heads::PRE_TRAINING, Family::Albert).into_iter().map(|t| (t.name, t.shape)).collect();
    names.sort();
    let layer = |rest: &str| format!("albert.encoder.albert_layer_groups.0.albert_layers.0.{rest}");
    let mut expected = vec![
        ("albert.embeddings.word_embeddings.weight".to_owned(), vec![30_000, 128]),
        ("albert.embeddings.position_embeddings.weight".to_owned(), vec![512, 128]),
        ("albert.embeddings.token_type_embeddings.weight".to_owned(), vec![2, 128]),
        ("albert.embeddings.LayerNorm.weight".to_owned(), vec![128]),
        ("albert.embeddings.LayerNorm.bias".to_owned(), vec![128]),
        ("albert.encoder.embedding_hidden_mapping_in.weight".to_owned(), vec![768, 128]),
        ("albert.encoder.embedding_hidden_mapping_in.bias".to_owned(), vec![768]),
        (layer("full_layer_layer_norm.weight"), vec![768]),
        (layer("full_layer_layer_norm.bias"), vec![768]),
        (layer("attention.LayerNorm.weight"), vec![768]),
        (layer("attention.LayerNorm.bias"), vec![768]),
        (layer("ffn.weight"), vec![3072, 768]),
        (layer("ffn.bias"), vec![3072]),
        (layer("ffn_output.weight"), vec![768, 3072]),
        (layer("ffn_output.bias"), vec![768]),
        ("albert.pooler.weight".to_owned(), vec![768, 768]),
        ("albert.pooler.bias".to_owned(), vec![768]),
        ("predictions.LayerNorm.weight".to_owned(), vec![128]),
        ("predictions.LayerNorm.bias".to_owned(), vec![128]),
        ("predictions.dense.weight".to_owned(), vec![128, 768]),
        ("predictions.dense.bias".to_owned(), vec![128]),
        ("predictions.bias".to_owned(), vec![30_000]),
        ("predictions.decoder.bias".to_owned(), vec![30_000]),
        ("sop_classifier.classifier.weight".to_owned(), vec![2, 768]),
        ("sop_classifier.classifier.bias".to_owned(), vec![2]),
    ];
    for which in ["query", "key", "value", "dense"] {
        expected.push((layer(&format!("attention.{which}.weight")), vec![768, 768]));
        expected.push((layer(&format!("attention.{which}.bias")), vec![768]));
    }
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn only_matrices_and_tables_are_regularized() {
    for spec in CLASSES.iter().flat_map(|&heads| parameters(&small(Sharing::None), heads)) {
        let excluded = spec.name.ends_with("bias") || spec.name.to_lowercase().contains("norm");
        assert_eq!(spec.is_weight(), !excluded, "{}", spec.name);
    }
}

#[test]
fn every_strategy_comes_back_bit_for_bit() {
    for sharing in STRATEGIES {
        for (embedding_size, embedding_map) in
            [(8, EmbeddingMap::Always), (12, EmbeddingMap::Always), (12, EmbeddingMap::WhenSizesDiffer)]
        {
            let config = AlbertConfig { embedding_size, embedding_map, ..small(sharing) };
            let folder = tempfile::tempdir().unwrap();
            let saved = save(folder.path(), &config, Heads::PRE_TRAINING);
            let (loaded, report) = load(folder.path(), Heads::PRE_TRAINING, &[]).unwrap();
            assert_eq!(loaded, saved, "{sharing} E = {embedding_size} {embedding_map:?}");
            assert_eq!((report.fresh.len(), report.ignored.len()), (0, 0), "{sharing}: {report:?}");
            let open = ModelFolder::open(folder.path()).unwrap();
            assert_eq!(open.config().config, config);
            assert_eq!(open.heads(), Heads::PRE_TRAINING);
        }
    }
}

#[test]
fn every_class_comes_back_bit_for_bit_and_is_recognized() {
    for heads in CLASSES {
        let folder = tempfile::tempdir().unwrap();
        let saved = save(folder.path(), &small(Sharing::Groups(2)), heads);
        let open = ModelFolder::open(folder.path()).unwrap();
        assert_eq!(open.heads(), heads);
        let (loaded, report) = load(folder.path(), heads, &[]).unwrap();
        assert_eq!(loaded, saved, "{heads:?}");
        assert_eq!((report.fresh.len(), report.ignored.len()), (0, 0), "{heads:?}: {report:?}");
    }
}

/// A reader that knows groups alone (as Hugging Face does) finds every tensor of every layer, with equal shared halves.
#[test]
fn strategies_beyond_groups_are_stored_as_groups_with_copies() {
    for sharing in [Sharing::Attention, Sharing::Ffn] {
        let config = small(sharing);
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &config, Heads::MODEL);
        let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["num_hidden_groups"], 4);
        std::fs::write(folder.path().join("config.json"), text.replace(&format!("\"{sharing}\""), "\"none\"")).unwrap();
        let (unshared, report) = load(folder.path(), Heads::MODEL, &[]).unwrap();
        assert_eq!(report.ignored, Vec::<String>::new());
        let of = |layer: usize, rest: &str| {
            &unshared[&format!("albert.encoder.albert_layer_groups.{layer}.albert_layers.0.{rest}")]
        };
        for layer in 1..4 {
            let same =
                ["attention.key.weight", "attention.LayerNorm.bias", "ffn.weight", "full_layer_layer_norm.weight"]
                    .map(|rest| of(layer, rest) == of(0, rest));
            let expected = sharing == Sharing::Attention;
            assert_eq!(same, [expected, expected, !expected, !expected], "{sharing}, layer {layer}");
        }
    }
}

#[test]
fn copies_that_differ_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &small(Sharing::Attention), Heads::MODEL);
    rewrite(folder.path(), |name, _, data| {
        if name.contains("groups.2.albert_layers.0.attention.value.weight") {
            data[5] += 1e-3;
        }
        Some(name.to_owned())
    });
    let message = load(folder.path(), Heads::MODEL, &[]).unwrap_err().to_string();
    assert!(message.contains("groups.2.albert_layers.0.attention.value.weight: differs from"), "{message}");
}

#[test]
fn a_map_that_is_no_identity_is_refused_where_none_is_configured() {
    let config = AlbertConfig { embedding_size: 12, ..small(Sharing::All) };
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &config, Heads::MODEL);
    rewrite(folder.path(), |name, _, data| {
        if name.contains("embedding_hidden_mapping_in.weight") {
            data[1] = 0.5;
        }
        Some(name.to_owned())
    });
    let message = load(folder.path(), Heads::MODEL, &[]).unwrap_err().to_string();
    assert!(message.contains("is not the identity"), "{message}");
}

#[test]
fn missing_tensors_are_an_error_unless_asked_for_fresh_by_name() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &small(Sharing::All), Heads::MASKED_LM);
    let message = load(folder.path(), Heads::PRE_TRAINING, &["sop_classifier"]).unwrap_err().to_string();
    assert!(message.contains("2 of the model's tensors are missing: albert.pooler.weight"), "{message}");
    let (_, report) = load(folder.path(), Heads::PRE_TRAINING, &["sop_classifier", "albert.pooler"]).unwrap();
    let fresh = [
        "albert.pooler.weight",
        "albert.pooler.bias",
        "sop_classifier.classifier.weight",
        "sop_classifier.classifier.bias",
    ];
    assert_eq!(report.fresh, fresh);
    assert_eq!(report.ignored, Vec::<String>::new());
}

#[test]
fn what_the_model_has_no_use_for_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &small(Sharing::All), Heads::PRE_TRAINING);
    rewrite(folder.path(), |name, _, _| Some(name.replace("sop_classifier.classifier.", "classifier.")));
    let (_, report) = load(folder.path(), Heads::MASKED_LM, &[]).unwrap();
    assert_eq!(report.ignored, ["albert.pooler.bias", "albert.pooler.weight", "classifier.bias", "classifier.weight"]);
}

#[test]
fn other_writers_names_are_understood() {
    let folder = tempfile::tempdir().unwrap();
    let saved = save(folder.path(), &small(Sharing::All), Heads::PRE_TRAINING);
    // A bare model has no prefix, and some writers keep the tied bias under the decoder's name.
    rewrite(folder.path(), |name, _, _| {
        Some(match name {
            "predictions.bias" => return None,
            name => name.strip_prefix("albert.").unwrap_or(name).to_owned(),
        })
    });
    let (loaded, report) = load(folder.path(), Heads::PRE_TRAINING, &[]).unwrap();
    assert_eq!(loaded, saved);
    assert_eq!(report.ignored, Vec::<String>::new());
}

#[test]
fn a_wrong_shape_names_tensor_and_both_shapes() {
    let folder = tempfile::tempdir().unwrap();
    save(folder.path(), &small(Sharing::All), Heads::MODEL);
    rewrite(folder.path(), |name, shape, _| {
        if name.ends_with("ffn.weight") {
            shape.reverse();
        }
        Some(name.to_owned())
    });
    let message = load(folder.path(), Heads::MODEL, &[]).unwrap_err().to_string();
    assert!(message.contains("ffn.weight: its shape is [12, 20], but config.json makes it [20, 12]"), "{message}");
}

#[test]
fn says_what_a_model_folder_is() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| ModelFolder::open(path).unwrap_err().to_string();
    assert!(message(&folder.path().join("nowhere")).contains("nowhere: no such folder"));
    assert!(message(folder.path()).contains("no config.json; a model folder holds"));
    std::fs::write(folder.path().join("config.json"), small(Sharing::All).to_hf_json("AlbertModel")).unwrap();
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    let text = message(folder.path());
    assert!(
        text.contains("no model.safetensors")
            && text.contains("pytorch_model.bin is a pickle")
            && text.contains("transformers"),
        "{text}"
    );
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    assert!(message(folder.path()).contains("config.json: model configuration: `num_hidden_layers` is missing"));
}

fn header(step: u64) -> StateHeader {
    StateHeader {
        version: StateHeader::VERSION,
        step,
        config: json!({"seed": 1, "optimizer": {"kind": "lamb", "learning_rate": 0.1}}),
        cursor: json!({"epoch": 0, "index": step}),
        inputs: json!({"tokenizer": "00ff"}),
        progress: json!({}),
    }
}

fn save_state(checkpoints: &Checkpoints, step: u64) {
    let data = [step as f32, 2.0, 3.0];
    let group = |group| TensorGroup { group, tensors: vec![("w", &[3], &data)] };
    checkpoints.save(&header(step), &[group("parameter"), group("first_moment")]).unwrap();
}

#[test]
fn the_last_two_states_stay() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of_run(folder.path());
    assert!(checkpoints.newest().unwrap().is_none());
    for step in [100, 200, 300, 1000] {
        save_state(&checkpoints, step);
    }
    assert_eq!(checkpoints.steps().unwrap(), [1000, 300]);
    let found = checkpoints.newest().unwrap().unwrap();
    assert_eq!((&found.header, found.damaged.len()), (&header(1000), 0));
    let mut out = [0.0; 3];
    found.read("first_moment", "w", &[3], &mut out).unwrap();
    assert_eq!(out, [1000.0, 2.0, 3.0]);
    assert!(found.read("second_moment", "w", &[3], &mut out).is_err());
}

#[test]
fn a_state_of_an_earlier_version_is_read_and_says_what_differs() {
    for (version, precision, differs) in [
        (1, "f32", Some("rounds some sums and draws dropout differently")),
        (2, "bf16", Some("which draws dropout differently")),
        (3, "f32", None),
        (3, "bf16", Some("which multiplies bf16 differently")),
        (4, "bf16", None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::of_run(folder.path());
        let config = serde_json::json!({ "compute": { "activations": precision } });
        checkpoints.save(&StateHeader { version, config, ..header(100) }, &[]).unwrap();
        let note = checkpoints.newest().unwrap().unwrap().earlier_version();
        assert_eq!(note.is_some(), differs.is_some(), "version {version}: {note:?}");
        if let (Some(note), Some(differs)) = (note, differs) {
            assert!(note.contains(&format!("is a state of version {version}")) && note.contains(differs), "{note}");
        }
    }
}

#[test]
fn a_damaged_last_state_falls_back_to_the_one_before_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of_run(folder.path());
    save_state(&checkpoints, 100);
    save_state(&checkpoints, 200);
    let last = checkpoints.path(200);
    let whole = std::fs::read(&last).unwrap();
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("cut", whole[..whole.len() - 5].to_vec()),
        ("flipped", {
            let mut bytes = whole.clone();
            *bytes.last_mut().unwrap() ^= 0x10;
            bytes
        }),
    ] {
        std::fs::write(&last, bytes).unwrap();
        let found = checkpoints.newest().unwrap().unwrap();
        assert_eq!(found.header.step, 100, "{what}");
        assert!(
            found.damaged.len() == 1 && found.damaged[0].contains("step-0000000200"),
            "{what}: {:?}",
            found.damaged
        );
    }
    // Going on from 100 replaces the damaged file and keeps the good one beside it.
    save_state(&checkpoints, 200);
    assert_eq!(checkpoints.newest().unwrap().unwrap().header.step, 200);
    assert_eq!(checkpoints.steps().unwrap(), [200, 100]);
    for step in [100, 200] {
        std::fs::write(checkpoints.path(step), "x").unwrap();
    }
    let message = checkpoints.newest().unwrap_err().to_string();
    assert!(message.contains("none of the 2 checkpoints is whole"), "{message}");
}

#[test]
fn a_file_of_another_step_or_kind_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of_run(folder.path());
    save_state(&checkpoints, 100);
    std::fs::copy(checkpoints.path(100), checkpoints.path(900)).unwrap();
    save_safetensors(checkpoints.path(950), &[], &[]).unwrap();
    let found = checkpoints.newest().unwrap().unwrap();
    assert_eq!(found.header.step, 100);
    assert!(found.damaged[0].contains("no training state"), "{:?}", found.damaged);
    assert!(found.damaged[1].contains("at step 100, expected version 1 to 4 at step 900"), "{:?}", found.damaged);
}

#[test]
fn resuming_with_another_configuration_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of_run(folder.path());
    save_state(&checkpoints, 7);
    let found = checkpoints.newest().unwrap().unwrap();
    found.expect_config(&header(7).config).unwrap();
    let other = json!({"seed": 1, "optimizer": {"kind": "lamb", "learning_rate": 0.2}});
    let message = found.expect_config(&other).unwrap_err().to_string();
    assert!(message.contains("`optimizer.learning_rate` = 0.1, but now it is 0.2"), "{message}");
    let added = json!({"seed": 1, "optimizer": {"kind": "lamb", "learning_rate": 0.1, "clip": 1.0}});
    let message = found.expect_config(&added).unwrap_err().to_string();
    assert!(message.contains("`optimizer.clip` = absent, but now it is 1.0"), "{message}");
}

#[test]
fn what_a_kill_during_a_save_leaves_is_removed_on_resuming() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of_run(folder.path());
    for step in [200, 300] {
        save_state(&checkpoints, step);
    }
    // Killed between the rename of the third and the removal of the first, and once while it wrote a fourth.
    std::fs::copy(checkpoints.path(200), checkpoints.path(100)).unwrap();
    std::fs::write(folder.path().join("checkpoints/.step-0000000400.safetensors.partial"), "half").unwrap();
    std::fs::write(folder.path().join("checkpoints/.mine.partial"), "of another program").unwrap();
    let found = checkpoints.newest().unwrap().unwrap();
    checkpoints.tidy(found.header.step).unwrap();
    assert_eq!(checkpoints.steps().unwrap(), [300, 200]);
    let entries = std::fs::read_dir(folder.path().join("checkpoints")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, [".mine.partial", "step-0000000200.safetensors", "step-0000000300.safetensors"]);
}

#[test]
fn of_two_conversions_to_one_folder_one_is_refused() {
    let (from, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let wanted = save(from.path(), &small(Sharing::All), Heads::MASKED_LM);
    let to = target.path().join("model");
    let convert = || convert::convert(from.path(), &to, ConvertOptions::default());
    // One that goes on while the other begins.
    let first = engine::io::AtomicFolder::create(&to).unwrap();
    std::fs::write(first.path().join("half"), "written").unwrap();
    let error = convert().unwrap_err().to_string();
    assert!(error.contains("model: another process is writing this folder; wait for it or stop it"), "{error}");
    assert!(first.path().join("half").exists(), "the folder of the first is left alone");
    drop(first);
    // Both run at once; whichever commits first, the model is complete.
    for _ in 0..10 {
        let outcomes = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(convert));
            threads.map(|thread| thread.join().unwrap().map_err(|error| error.to_string()))
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        assert_eq!(load(&to, Heads::MASKED_LM, &[]).unwrap().0, wanted);
        assert!(to.join("config.json").exists() && to.join("tokenizer.json").exists());
        assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
        std::fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn only_what_the_file_lacks_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let config = small(Sharing::All);
    let wanted = save(folder.path(), &config, Heads::ENCODER);
    let cpu = engine::Cpu::new(engine::Isa::choose().unwrap(), 1).unwrap();
    let fresh = ["sop_classifier", "albert.pooler", "predictions"];
    let files = ModelFolder::open(folder.path()).unwrap();
    let (_, params, report) = files.model(Heads::PRE_TRAINING, &fresh, &cpu, 5).unwrap();
    let (_, drawn) = crate::model::Model::new(&config, Heads::PRE_TRAINING, &cpu, 5).unwrap();
    assert!(!report.fresh.is_empty());
    for id in params.ids() {
        let name = params.name(id);
        let expected = wanted.get(name).map_or(drawn.values(drawn.find(name).unwrap()), Vec::as_slice);
        assert_eq!(params.values(id), expected, "{name}");
        assert_eq!(report.fresh.iter().any(|fresh| fresh == name), !wanted.contains_key(name), "{name}");
    }
}
