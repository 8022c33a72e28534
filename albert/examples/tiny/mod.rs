//! A tiny model that memorizes eight sentences, so that the examples run without a download.

use std::error::Error;

use albert::Device;
use albert::checkpoint::save_model;
use albert::config::{AlbertConfig, Heads};
use albert::model::{ForwardOptions, Inputs, Model, Tokens};
use albert::tokenizer::{Cleaning, Piece, PieceKind, SPECIAL_PIECES, Tokenizer};
use engine::nn::Training;
use engine::optim::{AdamConfig, OptimizerKind};

pub(crate) const SENTENCES: [&str; 8] = [
    "the cat drinks milk",
    "the dog eats meat",
    "the bird sings songs",
    "the fish swims deep",
    "my cat drinks milk",
    "my dog eats meat",
    "a bird sings songs",
    "a fish swims deep",
];

/// A vocabulary of the words of the sentences.
fn tokenizer() -> Result<Tokenizer, Box<dyn Error>> {
    let kind = |text: &str| if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
    let mut pieces: Vec<Piece> = SPECIAL_PIECES.iter().map(|text| Piece::new(*text, 0.0, kind(text))).collect();
    let mut words: Vec<&str> = SENTENCES.iter().flat_map(|sentence| sentence.split(' ')).collect();
    words.sort_unstable();
    words.dedup();
    pieces.extend(words.into_iter().map(|word| Piece::normal(format!("▁{word}"), -1.0)));
    Ok(Tokenizer::from_pieces(pieces, Cleaning::default())?)
}

/// Trains the model to predict one masked word of each sentence and writes its folder.
pub(crate) fn folder() -> Result<tempfile::TempDir, Box<dyn Error>> {
    let tokenizer = tokenizer()?;
    let config = AlbertConfig {
        vocab_size: tokenizer.vocab_size(),
        embedding_size: 16,
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        max_position_embeddings: 16,
        // Larger than the paper's 0.02, with which a model this narrow first learns only word frequencies.
        initializer_range: 0.1,
        ..AlbertConfig::preset("tiny")?
    };
    let device = Device::cpu()?;
    let (model, params) = Model::new(&config, Heads::MASKED_LM, device.processor(), 1)?;
    let head = model.mlm().expect("the model has this head");
    let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;

    // All sentences are one ragged batch: [CLS] the cat drinks milk [SEP] [CLS] ...
    let sentences = tokenizer.encode_batch(&SENTENCES)?;
    let (mut ids, mut positions, mut cu_seqlens) = (Vec::new(), Vec::new(), vec![0]);
    let specials = tokenizer.specials();
    for sentence in &sentences {
        ids.extend([specials.cls].iter().chain(sentence).chain(&[specials.sep]).copied());
        positions.extend(0..sentence.len() as u32 + 2);
        cu_seqlens.push(ids.len() as u32);
    }
    let segments = vec![0; ids.len()];
    let words = sentences[0].len() as u32;
    for step in 0..1000 {
        // One word of each sentence is masked; `words` steps mask each word once.
        let starts = &cu_seqlens[..SENTENCES.len()];
        let masked: Vec<u32> = (step..).zip(starts).map(|(word, start)| start + 1 + word % words).collect();
        let labels: Vec<u32> = masked.iter().map(|&at| ids[at as usize]).collect();
        let mut ids = ids.clone();
        masked.iter().for_each(|&at| ids[at as usize] = specials.mask);
        let tokens = Tokens { ids: &ids, segments: &segments, positions: &positions, cu_seqlens: &cu_seqlens };
        training.step(0.001, |t| {
            let x = model.encode(&t, &Inputs::new(&t, tokens)?, &ForwardOptions::EVALUATION)?; // [T, H]
            let (at, labels) = (t.input([masked.len()], &masked)?, t.input([masked.len()], &labels)?);
            Ok(t.value(head.loss(&t, &x, &at, &labels, masked.len() as f32)?.loss))
        })?;
    }
    let folder = tempfile::tempdir()?;
    let params = training.params();
    let values = |name: &str| params.values(params.find(name).expect("a parameter of the model"));
    save_model(folder.path(), &config, Heads::MASKED_LM, &tokenizer.to_files()?, values)?;
    Ok(folder)
}
