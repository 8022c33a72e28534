//! A model whose weights are NaN or overflow never returns output, but an error that names the tensor.

use std::path::{Path, PathBuf};

use albert::AlbertConfig;
use albert::checkpoint::{ConvertOptions, Heads, SaveFormat, convert, save_model, save_model_as};
use albert::config::{Family, ProblemType};
use albert::embed::{Embedder, Pooling};
use albert::fill_mask::MaskFiller;
use albert::forward::{Example, Forward, NamedTensor, OutputSelection};
use albert::loaded::InferenceError;
use albert::model::Model;
use albert::tokenizer::{Cleaning, Piece, PieceKind, SPECIAL_PIECES, Tokenizer};
use albert_tasks::files::{Problem, Text};
use albert_tasks::finetune::{Examples, Prediction, Predictor};
use engine::{Cpu, Device};

const TABLE: &str = "albert.embeddings.word_embeddings.weight";

fn tokenizer() -> Tokenizer {
    let kind = |text: &str| if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
    let special = SPECIAL_PIECES.iter().map(|text| Piece::new(*text, 0.0, kind(text)));
    let normal = ["▁", "a", "b"].map(|text| Piece::normal(text, -1.0));
    Tokenizer::from_pieces(special.chain(normal).collect(), Cleaning::default()).unwrap()
}

fn device() -> Device {
    Device::cpu().unwrap()
}

/// Folder of a small model with random weights, modified by `change`.
fn folder(heads: Heads, problem_type: Option<ProblemType>, change: impl Fn(&str, &mut [f32])) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer();
    let config = AlbertConfig {
        vocab_size: tokenizer.vocab_size(),
        embedding_size: 8,
        hidden_size: 16,
        intermediate_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        max_position_embeddings: 16,
        initializer_range: 0.5,
        ..AlbertConfig::preset("tiny").unwrap()
    };
    let (_, mut params) = Model::new(&config, heads, &Cpu::detect().unwrap(), 3).unwrap();
    let ids: Vec<_> = params.ids().collect();
    for id in ids {
        let name = params.name(id).to_owned();
        change(&name, params.values_mut(id).unwrap());
    }
    let values = |name: &str| params.values(params.find(name).unwrap());
    save_model(folder.path(), &config, heads, &tokenizer.to_files().unwrap(), values).unwrap();
    let format = SaveFormat { problem_type, ..SaveFormat::default() };
    save_model_as(folder.path(), &config, heads, format, values).unwrap();
    folder
}

fn with_nan(name: &str, values: &mut [f32]) {
    if name == TABLE {
        values[8 * 6] = f32::NAN;
    }
}

fn run(path: &Path, line: &str, selection: OutputSelection) -> Result<Vec<NamedTensor>, InferenceError> {
    let mut forward = Forward::load(path, device()).unwrap();
    let example = Example::from_json(line, forward.model().config()).unwrap();
    forward.run(&example, selection)
}

#[test]
fn embeddings_masks_and_tensors_of_a_damaged_model_are_errors() {
    let folder = folder(Heads::PRE_TRAINING, None, with_nan);
    let expected = format!("is not finite; 1 elements of the model's tensor {TABLE} are NaN or infinite: use another");
    let mut embedder = Embedder::load(folder.path(), Some(Pooling::Mean), device()).unwrap();
    // Texts that do not use the damaged row still work.
    assert!(embedder.embed(&["b"], true).is_ok());
    let texts = ["b", "b b", "a"].map(str::to_owned);
    let error = embedder.embed(&texts, true).unwrap_err().to_string();
    assert!(error.starts_with(&format!("the embedding of text 3 {expected}")), "{error}");

    let mut filler = MaskFiller::load(folder.path(), device()).unwrap();
    let error = filler.fill("a [MASK]", 3).unwrap_err().to_string();
    assert!(error.starts_with(&format!("the score of a piece for mask 1 {expected}")), "{error}");

    let error = run(folder.path(), r#"{"input_ids": [2, 6, 3]}"#, OutputSelection::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("tensor hidden.2 {expected}")), "{error}");
    // The MLM head multiplies by the whole table.
    let error = run(folder.path(), r#"{"input_ids": [2, 7, 3]}"#, OutputSelection::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("tensor prediction_logits {expected}")), "{error}");
}

#[test]
fn overflow_of_finite_weights_is_told_from_damage() {
    let folder = folder(Heads::MODEL, None, |name, values| {
        if name.contains("pooler") || name.contains("ffn") {
            values.iter_mut().for_each(|value| *value *= 1e30);
        }
    });
    let mut embedder = Embedder::load(folder.path(), Some(Pooling::Mean), device()).unwrap();
    let error = embedder.embed(&["a b"], false).unwrap_err().to_string();
    assert!(error.contains("the model's tensors are finite, but too large"), "{error}");
}

fn text(first: &str) -> Examples {
    Examples::Texts(vec![Text { id: "7".into(), first: first.into(), second: None, label: None }])
}

#[test]
fn predictions_of_a_damaged_model_are_errors() {
    for heads in [Heads::sequence_classification(3), Heads::sequence_classification(1)] {
        let folder = folder(heads, None, with_nan);
        let mut predictor = Predictor::load(&[PathBuf::from(folder.path())], &device()).unwrap();
        assert!(predictor.predict(&text("b")).is_ok());
        let error = predictor.predict(&text("a")).unwrap_err().to_string();
        assert!(error.starts_with("a score of example 7 is not finite; 1 elements"), "{error}");
    }
}

#[test]
fn several_labels_at_once_are_sigmoids_and_keep_their_problem_type() {
    let multi = Some(ProblemType::MultiLabelClassification);
    let folder = folder(Heads::sequence_classification(3), multi, |_, _| {});
    let logits = |out: &[NamedTensor]| out.iter().find(|named| named.name == "logits").unwrap().values.clone();
    let z = logits(&run(folder.path(), r#"{"input_ids": [2, 5, 6, 3]}"#, OutputSelection::default()).unwrap());
    let sigmoid: Vec<f64> = z.iter().map(|&z| 1.0 / (1.0 + (-f64::from(z)).exp())).collect();

    let mut predictor = Predictor::load(&[PathBuf::from(folder.path())], &device()).unwrap();
    assert!(matches!(predictor.task().problem, Problem::Labels { .. }));
    let predictions = predictor.predict(&text("a")).unwrap();
    let Prediction::Class(p) = &predictions[0] else { panic!("{predictions:?}") };
    assert!(p.iter().zip(&sigmoid).all(|(p, s)| (f64::from(*p) - s).abs() < 1e-6), "{p:?} {sigmoid:?}");
    let json = predictions[0].to_json("7", predictor.task(), 0, "");
    let likely: Vec<String> = (0..3).filter(|&at| sigmoid[at] >= 0.5).map(|at| format!("\"LABEL_{at}\"")).collect();
    assert!(json.contains(&format!("\"labels\":[{}]", likely.join(","))), "{json}");

    // The mean of -y·log p - (1 - y)·log (1 - p).
    let selection = OutputSelection { loss: true, ..OutputSelection::default() };
    let expected = -(sigmoid[0].ln() + (1.0 - sigmoid[1]).ln() + sigmoid[2].ln()) / 3.0;
    for labels in ["[1, 0, 1]", "[1.0, 0.0, 1.0]"] {
        let out =
            run(folder.path(), &format!(r#"{{"input_ids": [2, 5, 6, 3], "labels": {labels}}}"#), selection).unwrap();
        let loss = f64::from(out.iter().find(|named| named.name == "loss").unwrap().values[0]);
        assert!((loss - expected).abs() < 1e-5, "{labels}: {loss}, expected {expected}");
    }
    for labels in ["1", "[1, 0]", "[0.5, 0.0, 1.0]", "[2, 0, 1]"] {
        let line = format!(r#"{{"input_ids": [2, 5, 3], "labels": {labels}}}"#);
        let error = run(folder.path(), &line, selection).unwrap_err().to_string();
        assert!(error.contains("several at once") || error.contains("`labels` contains 2"), "{labels}: {error}");
    }

    let to = folder.path().join("converted");
    convert(folder.path(), &to, ConvertOptions::default()).unwrap();
    let text = std::fs::read_to_string(to.join("config.json")).unwrap();
    assert_eq!(AlbertConfig::from_hf_json(&text).unwrap().problem_type, multi, "{text}");
    assert_eq!(AlbertConfig::from_hf_json(&text).unwrap().family, Family::Albert);
}
