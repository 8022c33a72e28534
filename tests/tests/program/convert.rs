//! `albert convert`.

use albert::checkpoint::{Heads, ModelFolder};
use albert_tests::{
    program::run,
    run_folder::{World, checkpoints},
};
use engine::io::Safetensors;
use std::{collections::BTreeMap, fs, path::Path};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/checkpoints");

#[test]
fn a_checkpoint_of_googles_becomes_a_folder_and_everything_is_told() {
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("model");
    let line = format!("convert --from {GOLDEN}/google-albert --to {} --dtype bf16 --heads 4", to.display());
    let told = run(&line).succeeds().stdout;
    for part in [
        "AlbertForPreTraining: 2 layers, H 8, E 4, V 30; weights as bfloat16",
        "note: 4 attention heads of 2 columns; the weights cannot confirm this number",
        "loaded 48 tensors, 0 missing",
        "97 not model weights (buffers, moments, counters): bert/embeddings/LayerNorm/beta/adam_m,",
        "configuration keys ignored: net_structure_type",
        "config.json, model.safetensors",
    ] {
        assert!(told.contains(part), "`{part}` is not said:\n{told}");
    }
    let open = ModelFolder::open(&to).unwrap();
    assert_eq!((open.heads(), open.config().config.num_attention_heads), (Heads::PRE_TRAINING, 4));
    run(&line).fails_with(&["model: is in use; choose another name"]);
    let other = line.replace("/model ", "/other ");
    run(&other.replace("--heads 4", "--heads 3")).fails_with(&["albert_config.json", "not a multiple"]);
}

#[test]
fn what_cannot_be_converted_leaves_no_folder() {
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().display();
    fs::write(target.path().join("pytorch_model.bin"), "\u{80}").unwrap();
    let convert = |from: &str| run(&format!("convert --from {from} --to {folder}/model"));
    convert(&format!("{folder}/pytorch_model.bin")).fails_with(&["pytorch_model.bin is a pickle", "save_pretrained"]);
    convert("/nowhere/model").fails_with(&["/nowhere/model: no such folder; a model folder contains config.json"]);
    assert!(!target.path().join("model").exists());
}

/// Shapes, element types and bits of every tensor of a file.
fn tensors(path: &Path) -> BTreeMap<String, (String, Vec<u32>)> {
    let file = Safetensors::open(path).unwrap_or_else(|error| panic!("{error}"));
    let of = |name: String| {
        let shape = file.shape(&name).unwrap().to_vec();
        let bits = file.f32s(&name, &shape).unwrap().iter().map(|x| x.to_bits()).collect();
        (name.clone(), (format!("{:?} {shape:?}", file.dtype(&name).unwrap()), bits))
    };
    file.names().into_iter().map(of).collect()
}

/// Converting a folder of `pretrain` preserves the bits of the training state, and converting the result those of the model;
/// ids, and every tensor of a forward pass with its gradients, equal those of the original folder.
#[test]
fn what_pretrain_writes_is_loaded_to_the_same_bits() {
    let world = World::new();
    world.run_pretrain("run", &["schedule.steps=6"]).succeeds();
    let (run, converted) = (world.path("run/last"), world.path("converted"));
    let written = tensors(&run.join("model.safetensors"));
    let state = tensors(checkpoints(&world.path("run")).last().unwrap());
    let mut found = 0;
    for (name, value) in &state {
        if let Some(name) = name.strip_prefix("parameter/") {
            assert_eq!(&written[name], value, "{name}");
            found += 1;
        }
    }
    assert!(found >= 25, "the state holds {:?}", state.keys());
    let mut loaded = BTreeMap::new();
    let open = ModelFolder::open(&run).unwrap();
    open.load(Heads::PRE_TRAINING, &[], |spec, values| {
        loaded.insert(spec.name.clone(), values.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        Ok(())
    })
    .unwrap();
    assert_eq!(loaded.len(), found);
    assert!(loaded.iter().all(|(name, bits)| written[name].1 == *bits));

    world.run("convert --from run/last --to converted --dtype f32").succeeds();
    assert_eq!(tensors(&converted.join("model.safetensors")), written);
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(fs::read(run.join(name)).unwrap(), fs::read(converted.join(name)).unwrap(), "{name}");
    }
    let line = r#"{"input_ids": [2, 9, 17, 30, 3, 11, 12, 3], "token_type_ids": [0, 0, 0, 0, 0, 1, 1, 1],
                   "labels": [-100, 8, -100, 21, -100, -100, 5, -100], "sentence_order_label": 1}"#;
    world.write("line.jsonl", line.replace('\n', " ") + "\n");
    let pass = |folder: &str, out: &str| {
        let forward = format!("forward --model {folder} --ids line.jsonl -o {out}");
        world.run(&format!("{forward} --layers --attention --gradients")).succeeds();
        tensors(&world.path(out))
    };
    let before = pass("run/last", "before.safetensors");
    let has_gradients = before.keys().any(|name| name.starts_with("grad."));
    assert!(before.contains_key("0.loss") && has_gradients, "{:?}", before.keys());
    assert_eq!(pass("converted", "after.safetensors"), before);
    let ids = |tokenizer: &str| {
        let text = "The river flows to the sea, in 1807.\n£5 Café –\n".as_bytes();
        world.run_with_input(&format!("tokenizer encode --tokenizer {tokenizer}"), text).stdout
    };
    let expected = ids("tokenizer.json");
    assert!(expected.lines().count() == 2 && expected.len() > 20, "{expected}");
    assert_eq!([ids("run/last"), ids("converted")], [expected.clone(), expected]);
}
