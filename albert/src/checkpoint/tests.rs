use std::collections::BTreeMap;
use std::path::Path;

use engine::io::{Data, Safetensors, TensorOut, save_safetensors};
use engine::param::ParamInfo;
use serde_json::json;

use super::*;
use crate::config::{AlbertConfig, EmbeddingMap, Sharing};
use crate::model::parameters;

fn small(sharing: Sharing) -> AlbertConfig {
    AlbertConfig { sharing, ..crate::config::tests::small(40, [8, 12, 20], [4, 3], 16) }
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

type Values = BTreeMap<String, Vec<f32>>;

/// Values that differ from tensor to tensor and from element to element.
fn values(config: &AlbertConfig, heads: Heads) -> Values {
    let specs = parameters(config, heads);
    let of = |(at, spec): (usize, &ParamInfo)| {
        (0..spec.shape.elements()).map(|i| (at * 1009 + i) as f32 * 0.01 - 3.0).collect()
    };
    specs.iter().enumerate().map(|(at, spec)| (spec.name.clone(), of((at, spec)))).collect()
}

/// A folder with a model, and its values.
fn saved(config: &AlbertConfig, heads: Heads) -> (tempfile::TempDir, Values) {
    let (folder, values) = (tempfile::tempdir().unwrap(), values(config, heads));
    save_model(folder.path(), config, heads, &[("tokenizer.json", b"{}".to_vec())], |name| &values[name]).unwrap();
    (folder, values)
}

fn load(folder: &Path, heads: Heads, fresh: &[&str]) -> Result<(Values, LoadReport), CheckpointError> {
    let mut found = BTreeMap::new();
    let report = ModelFolder::open(folder)?.load(heads, fresh, |spec, data| {
        found.insert(spec.name.clone(), data.to_vec());
        Ok(())
    })?;
    Ok((found, report))
}

/// Rewrites the weights with some tensors changed, renamed or removed.
fn rewrite(folder: &Path, change: impl Fn(&str, &mut [f32]) -> Option<String>) {
    let path = folder.join("model.safetensors");
    let file = Safetensors::open(&path).unwrap();
    let changed = |name: String| {
        let shape = file.shape(&name).unwrap().to_vec();
        let mut data = file.f32s(&name, &shape).unwrap();
        change(&name, &mut data).map(|name| (name, shape, data))
    };
    let tensors: Vec<_> = file.names().into_iter().filter_map(changed).collect();
    let out: Vec<_> = tensors
        .iter()
        .map(|(name, shape, data)| TensorOut { name: name.clone(), shape: shape.clone(), data: Data::F32(data) })
        .collect();
    save_safetensors(&path, &out, &[]).unwrap();
}

#[test]
fn only_matrices_and_tables_are_regularized() {
    for spec in CLASSES.iter().flat_map(|&heads| parameters(&small(Sharing::None), heads)) {
        let excluded = spec.name.ends_with("bias") || spec.name.to_lowercase().contains("norm");
        assert_eq!(spec.is_weight(), !excluded, "{}", spec.name);
    }
}

#[test]
fn every_strategy_and_class_comes_back_bit_for_bit_and_is_recognized() {
    let maps = [(8, EmbeddingMap::Always), (12, EmbeddingMap::Always), (12, EmbeddingMap::WhenSizesDiffer)];
    let of_map = |sharing, (embedding_size, embedding_map)| {
        (AlbertConfig { embedding_size, embedding_map, ..small(sharing) }, Heads::PRE_TRAINING)
    };
    let strategies = STRATEGIES.into_iter().flat_map(|sharing| maps.map(|map| of_map(sharing, map)));
    for (config, heads) in strategies.chain(CLASSES.map(|heads| (small(Sharing::Groups(2)), heads))) {
        let (folder, saved) = saved(&config, heads);
        let (loaded, report) = load(folder.path(), heads, &[]).unwrap();
        assert_eq!(loaded, saved, "{config:?} {heads:?}");
        assert_eq!((report.fresh.len(), report.ignored.len()), (0, 0), "{config:?} {heads:?}: {report:?}");
        let open = ModelFolder::open(folder.path()).unwrap();
        assert_eq!((&open.config().config, open.heads()), (&config, heads));
    }
}

/// A reader that supports only groups (such as Hugging Face) finds every tensor of every layer, with equal shared halves.
#[test]
fn strategies_beyond_groups_are_stored_as_groups_with_copies() {
    for sharing in [Sharing::Attention, Sharing::Ffn] {
        let (folder, _) = saved(&small(sharing), Heads::MODEL);
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
fn copies_that_differ_and_a_map_that_is_no_identity_where_none_is_configured_are_refused() {
    let square = AlbertConfig { embedding_size: 12, ..small(Sharing::All) };
    for (config, tensor, expected) in [
        (small(Sharing::Attention), "groups.2.albert_layers.0.attention.value.weight", "differs from"),
        (square, "embedding_hidden_mapping_in.weight", "is not the identity"),
    ] {
        let (folder, _) = saved(&config, Heads::MODEL);
        rewrite(folder.path(), |name, data| {
            if name.contains(tensor) {
                data[1] += 1e-3;
            }
            Some(name.to_owned())
        });
        let message = load(folder.path(), Heads::MODEL, &[]).unwrap_err().to_string();
        assert!(message.contains(tensor) && message.contains(expected), "{message}");
    }
}

#[test]
fn missing_tensors_are_an_error_where_only_some_are_asked_for_fresh() {
    let (folder, _) = saved(&small(Sharing::All), Heads::MASKED_LM);
    let message = load(folder.path(), Heads::PRE_TRAINING, &["sop_classifier"]).unwrap_err().to_string();
    assert!(message.contains("2 of the model's tensors are missing: albert.pooler.weight"), "{message}");
}

#[test]
fn what_the_model_has_no_use_for_is_listed() {
    let (folder, _) = saved(&small(Sharing::All), Heads::PRE_TRAINING);
    rewrite(folder.path(), |name, _| Some(name.replace("sop_classifier.classifier.", "classifier.")));
    let (_, report) = load(folder.path(), Heads::MASKED_LM, &[]).unwrap();
    assert_eq!(report.ignored, ["albert.pooler.bias", "albert.pooler.weight", "classifier.bias", "classifier.weight"]);
}

#[test]
fn says_what_a_model_folder_is() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| ModelFolder::open(path).unwrap_err().to_string();
    assert!(message(&folder.path().join("nowhere")).contains("nowhere: no such folder"));
    assert!(message(folder.path()).contains("no config.json; a model folder contains"));
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

/// A run with states of some steps.
fn states(steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::of_run(folder.path());
    for &step in steps {
        let data = [step as f32, 2.0, 3.0];
        let group = |group| TensorGroup { group, tensors: vec![("w", &[3], &data)] };
        checkpoints.save(&header(step), &[group("parameter"), group("first_moment")]).unwrap();
    }
    (folder, checkpoints)
}

#[test]
fn the_last_two_states_stay() {
    assert!(states(&[]).1.newest().unwrap().is_none());
    let (_folder, checkpoints) = states(&[100, 200, 300, 1000]);
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
        let (_folder, checkpoints) = states(&[]);
        let config = json!({ "compute": { "activations": precision } });
        checkpoints.save(&StateHeader { version, config, ..header(100) }, &[]).unwrap();
        let note = checkpoints.newest().unwrap().unwrap().earlier_version();
        assert_eq!(note.is_some(), differs.is_some(), "version {version}: {note:?}");
        if let (Some(note), Some(differs)) = (note, differs) {
            assert!(note.contains(&format!("is a state of version {version}")) && note.contains(differs), "{note}");
        }
    }
}

#[test]
fn a_file_of_another_step_or_kind_is_passed_over() {
    let (_folder, checkpoints) = states(&[100]);
    std::fs::copy(checkpoints.path(100), checkpoints.path(900)).unwrap();
    save_safetensors(checkpoints.path(950), &[], &[]).unwrap();
    let found = checkpoints.newest().unwrap().unwrap();
    assert_eq!(found.header.step, 100);
    assert!(found.damaged[0].contains("no training state"), "{:?}", found.damaged);
    assert!(found.damaged[1].contains("at step 100, expected version 1 to 4 at step 900"), "{:?}", found.damaged);
}

#[test]
fn resuming_with_a_key_that_the_state_lacks_names_the_key() {
    let (_folder, checkpoints) = states(&[7]);
    let found = checkpoints.newest().unwrap().unwrap();
    let added = json!({"seed": 1, "optimizer": {"kind": "lamb", "learning_rate": 0.1, "clip": 1.0}});
    let message = found.expect_config(&added).unwrap_err().to_string();
    assert!(message.contains("`optimizer.clip` = absent, but now it is 1.0"), "{message}");
}

#[test]
fn what_a_kill_during_a_save_leaves_is_removed_on_resuming() {
    let (folder, checkpoints) = states(&[200, 300]);
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
    let ((from, _), target) = (saved(&small(Sharing::All), Heads::MASKED_LM), tempfile::tempdir().unwrap());
    let to = target.path().join("model");
    // One conversion is still running when the other starts.
    let first = engine::io::AtomicFolder::create(&to).unwrap();
    std::fs::write(first.path().join("half"), "written").unwrap();
    let error = convert::convert(from.path(), &to, ConvertOptions::default()).unwrap_err().to_string();
    assert!(error.contains("model: another process is writing this folder; wait for it or stop it"), "{error}");
    assert!(first.path().join("half").exists(), "the folder of the first is left alone");
}

#[test]
fn only_what_the_file_lacks_is_drawn() {
    let config = small(Sharing::All);
    let (folder, wanted) = saved(&config, Heads::ENCODER);
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
