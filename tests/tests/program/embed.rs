//! Sentence embeddings: pooled from the hidden states of `forward`, independent of the rest of the batch, with each kind of
//! tokenizer; and errors. `tests/oracle/minilm.py` compares them with transformers on a real model.

use albert::{
    config::AlbertConfig,
    embed::{Embedder, Pooling},
    forward::{Example, Forward, OutputSelection},
    tokenizer::Tokenizer,
};
use albert_tests::{
    program::{albert, finish},
    run_folder::random_model,
};
use engine::Device;
use std::path::Path;

const TEXTS: [&str; 5] = [
    "The ferry leaves at seven.",
    "",
    "She had 1,872 days, and he £ 20 – or so they said in the café by the river.",
    "a",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen",
];

/// A small model with random weights and the golden SentencePiece model; the embedding table has `padding` more rows than
/// pieces.
fn folder(padding: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    random_model(folder.path(), |pieces| AlbertConfig {
        vocab_size: pieces + padding,
        embedding_size: 8,
        hidden_size: 24,
        intermediate_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        max_position_embeddings: 24,
        initializer_range: 0.2,
        ..AlbertConfig::preset("tiny").unwrap()
    });
    folder
}

fn embed(folder: &Path, texts: &[String], pooling: Pooling, normalize: bool) -> Vec<Vec<f32>> {
    let mut embedder = Embedder::load(folder, Some(pooling), Device::cpu().unwrap()).unwrap();
    let embedded = embedder.embed(texts, normalize).unwrap();
    embedded.vectors.chunks_exact(embedded.width).map(<[f32]>::to_vec).collect()
}

fn texts() -> Vec<String> {
    TEXTS.map(str::to_owned).to_vec()
}

#[test]
fn a_vector_is_pooled_from_the_hidden_states_of_its_text_alone() {
    let folder = folder(2);
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let mut forward = Forward::load(folder.path(), Device::cpu().unwrap()).unwrap();
    let [mean, cls, pooler] =
        [Pooling::Mean, Pooling::Cls, Pooling::Pooler].map(|pooling| embed(folder.path(), &texts(), pooling, false));
    let longest = forward.model().config().max_position_embeddings;
    let mut cut = 0;
    for (line, text) in TEXTS.iter().enumerate() {
        let mut ids = tokenizer.encode_single(text).unwrap();
        if ids.len() > longest {
            ids.drain(longest - 1..ids.len() - 1);
            cut += 1;
        }
        let example = Example::from_ids(&ids, &vec![0; ids.len()], forward.model().config()).unwrap();
        let tensors = forward.run(&example, OutputSelection::default()).unwrap();
        let tensor = |name: &str| &tensors.iter().find(|tensor| tensor.name == name).unwrap().values;
        let hidden: Vec<&[f32]> = tensor("hidden.2").chunks_exact(24).collect();
        for column in 0..24 {
            let exact = hidden.iter().map(|row| f64::from(row[column])).sum::<f64>() / hidden.len() as f64;
            assert_eq!(mean[line][column], exact as f32, "{text:?}, column {column}");
        }
        assert_eq!(cls[line], hidden[0], "{text:?}");
        assert_eq!(&pooler[line], tensor("pooled"), "{text:?}");
    }
    assert!(cut > 0, "no text is longer than the model's positions");
}

#[test]
fn a_normalized_vector_has_length_one_and_the_same_direction() {
    let folder = folder(0);
    let plain = embed(folder.path(), &texts(), Pooling::Mean, false);
    for (unit, vector) in embed(folder.path(), &texts(), Pooling::Mean, true).iter().zip(&plain) {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
        let (length, cosine) = (dot(unit, unit).sqrt(), dot(unit, vector) / dot(vector, vector).sqrt());
        assert!((length - 1.0).abs() < 1e-6 && (cosine - 1.0).abs() < 1e-6, "length {length}, cosine {cosine}");
    }
}

#[test]
fn a_tokenizer_of_another_vocabulary_is_refused() {
    let folder = folder(128);
    let path = folder.path().to_str().unwrap();
    for arguments in
        [vec!["embed", "--model", path], vec!["forward", "--model", path, "--text", "a", "-o", "/dev/null"]]
    {
        let parts = ["pieces and the model", "use the tokenizer that the model was trained with"];
        finish(&mut albert(&arguments)).fails_with(&parts);
    }
}

#[test]
fn what_is_missing_is_named() {
    let folder = folder(0);
    std::fs::remove_file(folder.path().join("spiece.model")).unwrap();
    let arguments = ["embed", "--model", folder.path().to_str().unwrap()];
    finish(&mut albert(&arguments)).fails_with(&["tokenizer.json, spiece.model or vocab.txt"]);
}

#[test]
fn eight_bits_give_nearly_the_vectors_of_f32_and_the_command_says_how_near() {
    let folder = folder(0);
    let single = embed(folder.path(), &texts(), Pooling::Mean, true);
    let mut embedder = Embedder::load(folder.path(), Some(Pooling::Mean), Device::cpu().unwrap()).unwrap();
    embedder.set_precision(engine::Precision::Int8).unwrap();
    let eight = embedder.embed(&texts(), true).unwrap();
    for (single, eight) in single.iter().zip(eight.vectors.chunks_exact(eight.width)) {
        let cosine: f64 = single.iter().zip(eight).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        assert!((0.99..0.999_999_99).contains(&cosine), "the cosine with f32 is {cosine}");
    }
    let path = folder.path().to_str().unwrap();
    let out = folder.path().join("out.safetensors");
    let arguments =
        ["forward", "--model", path, "--text", TEXTS[0], "--precision", "int8", "-o", out.to_str().unwrap()];
    let printed = finish(&mut albert(&[&arguments[..], &["--compare"]].concat())).succeeds().stdout;
    let row = printed.lines().find(|line| line.starts_with("hidden.2")).expect("a row for the last hidden state");
    let relative: f64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!((1e-5..0.1).contains(&relative), "{printed}");
    finish(&mut albert(&[&arguments[..], &["--gradients"]].concat()))
        .fails_with(&["--gradients needs another --precision than int8"]);
}

/// Deviations of the last hidden state from f32.
#[test]
fn every_precision_is_as_near_to_f32_as_its_bits() {
    let folder = folder(0);
    let path = folder.path().to_str().unwrap();
    let out = folder.path().join("out.safetensors");
    for (precision, range) in [("bf16", 1e-4..0.1), ("bf16x3", 1e-8..1e-4), ("bf16x6", 1e-9..3e-6)] {
        let arguments = ["forward", "--model", path, "--text", TEXTS[0], "--precision", precision, "--compare"];
        let printed = finish(&mut albert(&[&arguments[..], &["-o", out.to_str().unwrap()]].concat())).succeeds().stdout;
        let row = printed.lines().find(|line| line.starts_with("hidden.2")).expect("a row for the last hidden state");
        let relative: f64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!(range.contains(&relative), "{precision}:\n{printed}");
    }
    let automatic = ["embed", "--model", path, "--precision", "auto", "/dev/null"];
    finish(&mut albert(&automatic)).succeeds().says(&["precision: "]);
}

#[test]
fn weights_beyond_bf16_are_refused_in_bf16_alone() {
    let folder = folder(0);
    let mut embedder = Embedder::load(folder.path(), Some(Pooling::Mean), Device::cpu().unwrap()).unwrap();
    embedder.set_precision(engine::Precision::Bf16).unwrap();
    let file = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::MAX.to_le_bytes());
    // Under another name the checksum is not tested.
    let key = bytes.windows(10).position(|bytes| bytes == b"\"checksum\"").expect("the file has a checksum");
    bytes[key + 1] = b'C';
    std::fs::write(&file, bytes).unwrap();
    let path = folder.path().to_str().unwrap();
    let out = folder.path().join("out.safetensors");
    let arguments =
        ["forward", "--model", path, "--text", TEXTS[0], "-o", out.to_str().unwrap(), "--precision", "bf16"];
    finish(&mut albert(&arguments)).fails_with(&[
        "precision = bf16: ",
        "holds 3.4028235e38",
        "at most 3.39e38",
        "choose f32",
    ]);
}
