//! `albert convert` as a user meets it.

use albert::checkpoint::{Heads, ModelFolder};
use albert_tests::program::{albert, finish};
use std::path::{Path, PathBuf};

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
        "97 no part of a model (buffers, moments, counts): bert/embeddings/LayerNorm/beta/adam_m,",
        "keys of the configuration without meaning here: net_structure_type",
        "config.json, model.safetensors",
    ] {
        assert!(told.contains(part), "`{part}` is not said:\n{told}");
    }
    let open = ModelFolder::open(&to).unwrap();
    assert_eq!((open.heads(), open.config().config.num_attention_heads), (Heads::PRE_TRAINING, 4));
    finish(&mut albert(&arguments)).fails_with(&["model: is in use; a conversion writes a folder of its own"]);
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
