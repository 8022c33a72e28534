//! Sentence embeddings: pooled from the hidden states of `forward`, independent of the rest of the batch, with each kind of
//! tokenizer; and errors. `tests/oracle/minilm.py` compares them with transformers on a real model.

use albert::{
    config::AlbertConfig,
    embed::{Embedder, Pooling},
    forward::{Example, Forward, OutputSelection},
    tokenizer::Tokenizer,
};
use albert_tests::{
    program::{Finished, run},
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

/// A small model with random weights and the golden SentencePiece model; the embedding table has two more rows than pieces.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    random_model(folder.path(), |pieces| AlbertConfig {
        vocab_size: pieces + 2,
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

fn embed(folder: &Path, pooling: Pooling, normalize: bool) -> Vec<Vec<f32>> {
    let mut embedder = Embedder::load(folder, Some(pooling), Device::cpu().unwrap()).unwrap();
    let embedded = embedder.embed(&TEXTS, normalize).unwrap();
    embedded.vectors.chunks_exact(embedded.width).map(<[f32]>::to_vec).collect()
}

#[test]
fn a_vector_is_pooled_from_the_hidden_states_of_its_text_alone() {
    let folder = folder();
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    let mut forward = Forward::load(folder.path(), Device::cpu().unwrap()).unwrap();
    let [mean, cls, pooler] =
        [Pooling::Mean, Pooling::Cls, Pooling::Pooler].map(|pooling| embed(folder.path(), pooling, false));
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
    let folder = folder();
    let plain = embed(folder.path(), Pooling::Mean, false);
    for (unit, vector) in embed(folder.path(), Pooling::Mean, true).iter().zip(&plain) {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
        let (length, cosine) = (dot(unit, unit).sqrt(), dot(unit, vector) / dot(vector, vector).sqrt());
        assert!((length - 1.0).abs() < 1e-6 && (cosine - 1.0).abs() < 1e-6, "length {length}, cosine {cosine}");
    }
}

/// Runs `forward` for a text with the folder's model.
fn forward(folder: &Path, more: &str) -> Finished {
    let (model, out) = (folder.display(), folder.join("out.safetensors"));
    let text = TEXTS[0];
    run(&format!("forward --model {model} --text '{text}' -o {} {more}", out.display()))
}

#[test]
fn eight_bits_give_nearly_the_vectors_of_f32() {
    let folder = folder();
    let single = embed(folder.path(), Pooling::Mean, true);
    let mut embedder = Embedder::load(folder.path(), Some(Pooling::Mean), Device::cpu().unwrap()).unwrap();
    embedder.set_precision(engine::Precision::Int8).unwrap();
    let eight = embedder.embed(&TEXTS, true).unwrap();
    for (single, eight) in single.iter().zip(eight.vectors.chunks_exact(eight.width)) {
        let cosine: f64 = single.iter().zip(eight).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        assert!((0.99..0.999_999_99).contains(&cosine), "the cosine with f32 is {cosine}");
    }
}

#[test]
fn weights_are_rounded_for_inference_in_f32_on_the_cpu_alone() {
    let folder = folder();
    for (more, problem) in [
        ("--weights bf16 --precision bf16", "--weights bf16 multiplies in f32; remove --precision bf16 or --weights"),
        ("--weights bf16 --device cuda-sim", "--weights bf16: only the CPU has it; remove --device or --weights"),
        ("--weights bf16 --gradients", "neither --precision int8 nor --weights bf16 has a backward pass"),
        ("--precision int8 --gradients", "neither --precision int8 nor --weights bf16 has a backward pass"),
    ] {
        forward(folder.path(), more).fails_with(&[problem]);
    }
    let texts = folder.path().join("texts.txt");
    std::fs::write(&texts, TEXTS[0]).unwrap();
    let embed = |more: &str| {
        let (model, texts) = (folder.path().display(), texts.display());
        run(&format!("embed --model {model} {texts} {more}")).succeeds().stdout
    };
    assert_eq!(embed("--weights f32"), embed(""));
    assert_ne!(embed("--weights bf16"), embed(""));
}

/// Deviations of the last hidden state from f32.
#[test]
fn every_precision_is_as_near_to_f32_as_its_bits() {
    let folder = folder();
    for (precision, range) in [
        ("--precision int8", 1e-5..0.1),
        ("--precision bf16", 1e-4..0.1),
        ("--precision bf16x3", 1e-8..1e-4),
        ("--precision bf16x6", 1e-9..3e-6),
        ("--weights bf16", 1e-5..0.05),
    ] {
        let printed = forward(folder.path(), &format!("{precision} --compare")).succeeds().stdout;
        let row = printed.lines().find(|line| line.starts_with("hidden.2")).expect("a row for the last hidden state");
        let relative: f64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!(range.contains(&relative), "{precision}:\n{printed}");
    }
    let automatic = format!("embed --model {} --precision auto /dev/null", folder.path().display());
    run(&automatic).succeeds().says(&["precision: "]);
}

#[test]
fn weights_beyond_bf16_are_refused_in_bf16_alone() {
    let folder = folder();
    let mut embedder = Embedder::load(folder.path(), Some(Pooling::Mean), Device::cpu().unwrap()).unwrap();
    embedder.set_precision(engine::Precision::Bf16).unwrap();
    let file = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::MAX.to_le_bytes());
    // Under another name the checksum is not verified.
    let key = bytes.windows(10).position(|bytes| bytes == b"\"checksum\"").expect("the file has a checksum");
    bytes[key + 1] = b'C';
    std::fs::write(&file, bytes).unwrap();
    let parts = ["precision = bf16: ", "contains 3.4028235e38", "at most 3.39e38", "choose f32"];
    forward(folder.path(), "--precision bf16").fails_with(&parts);
}
