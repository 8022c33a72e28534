//! `albert convert`.

use albert::checkpoint::{Heads, ModelFolder};
use albert_tests::{
    program::{albert, finish, finish_with_input},
    run_folder::{World, checkpoints},
};
use engine::io::Safetensors;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/checkpoints").join(name)
}

#[test]
fn a_checkpoint_of_googles_becomes_a_folder_and_everything_is_told() {
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("model");
    let (from, to_text) = (golden("google-albert"), to.to_string_lossy().into_owned());
    let from_text = from.to_string_lossy().into_owned();
    let arguments = ["convert", "--from", &from_text, "--to", &to_text, "--dtype", "bf16", "--heads", "4"];
    let told = finish(&mut albert(&arguments)).succeeds().stdout;
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
    finish(&mut albert(&arguments)).fails_with(&["model: is in use; choose another name"]);
}

#[test]
fn what_cannot_be_converted_leaves_no_folder() {
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("pytorch_model.bin"), "\u{80}").unwrap();
    let to = target.path().join("model").to_string_lossy().into_owned();
    let from = target.path().join("pytorch_model.bin").to_string_lossy().into_owned();
    let arguments = ["convert", "--from", &from, "--to", &to];
    finish(&mut albert(&arguments)).fails_with(&["pytorch_model.bin is a pickle", "save_pretrained"]);
    let missing = ["convert", "--from", "/nowhere/model", "--to", &to];
    finish(&mut albert(&missing)).fails_with(&["/nowhere/model: no such folder; a model folder holds config.json"]);
    assert!(!Path::new(&to).exists());
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

fn convert(from: &Path, to: &Path, dtype: &str) {
    let [from, to] = [from, to].map(|path| path.to_str().unwrap().to_owned());
    finish(&mut albert(&["convert", "--from", &from, "--to", &to, "--dtype", dtype])).succeeds();
}

/// A folder of `pretrain` converts to the bits of the training state, then to those of the model; ids, and every tensor of a
/// pass with its gradients, are those of the original folder.
#[test]
fn what_pretrain_writes_is_loaded_to_the_same_bits() {
    let world = World::new();
    finish(&mut albert(&world.pretrain("run", &["schedule.steps=6"]))).succeeds();
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

    convert(&run, &converted, "f32");
    assert_eq!(tensors(&converted.join("model.safetensors")), written);
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(fs::read(run.join(name)).unwrap(), fs::read(converted.join(name)).unwrap(), "{name}");
    }
    let line = r#"{"input_ids": [2, 9, 17, 30, 3, 11, 12, 3], "token_type_ids": [0, 0, 0, 0, 0, 1, 1, 1],
                   "labels": [-100, 8, -100, 21, -100, -100, 5, -100], "sentence_order_label": 1}"#;
    fs::write(world.path("line.jsonl"), line.replace('\n', " ") + "\n").unwrap();
    let pass = |folder: &Path, out: &str| {
        let [folder, ids, to] =
            [folder.to_str().unwrap().to_owned(), world.text_path("line.jsonl"), world.text_path(out)];
        let arguments =
            ["forward", "--model", &folder, "--ids", &ids, "-o", &to, "--layers", "--attention", "--gradients"];
        finish(&mut albert(&arguments)).succeeds();
        tensors(&world.path(out))
    };
    let before = pass(&run, "before.safetensors");
    assert!(
        before.contains_key("0.loss") && before.keys().any(|name| name.starts_with("grad.")),
        "{:?}",
        before.keys()
    );
    assert_eq!(pass(&converted, "after.safetensors"), before);
    let ids = |tokenizer: &Path| {
        let arguments = ["tokenizer", "encode", "--tokenizer", tokenizer.to_str().unwrap()];
        finish_with_input(&mut albert(&arguments), "The river flows to the sea, in 1807.\n£5 Café –\n".as_bytes())
            .stdout
    };
    let expected = ids(&world.path("tokenizer.json"));
    assert!(expected.lines().count() == 2 && expected.len() > 20, "{expected}");
    assert_eq!([ids(&run), ids(&converted)], [expected.clone(), expected]);
}

/// Every class of both families: a second conversion to f32 changes nothing, and values rounded to 16 bits are not rounded
/// again.
#[test]
fn converting_back_and_forth_gives_the_same_bits() {
    let target = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(golden("")).unwrap() {
        let from = entry.unwrap().path();
        let name = from.file_name().unwrap().to_string_lossy().into_owned();
        let to = |more: &str| target.path().join(format!("{name}.{more}"));
        let read = |more: &str| tensors(&to(more).join("model.safetensors"));
        for (first, back) in [("f32", "f32"), ("bf16", "f32"), ("f16", "f32")] {
            let (there, forth) = (format!("{first}-{back}"), format!("{first}-{back}-{first}"));
            if !to(first).exists() {
                convert(&from, &to(first), first);
            }
            convert(&to(first), &to(&there), back);
            convert(&to(&there), &to(&forth), first);
            assert_eq!(read(first), read(&forth), "{name} as {first}");
            let values = |more: &str| read(more).into_values().map(|(_, bits)| bits).collect::<Vec<_>>();
            assert_eq!(values(first), values(&there), "{name}: {first} in f32");
        }
        seen += 1;
    }
    assert!(seen >= 18, "{seen}");
}
