//! Mask filling: the pieces with the highest probability at each `[MASK]` of a text.

use std::path::Path;

use engine::{Device, EngineError, Workspace, profile::Profile};

use crate::checkpoint::{CheckpointError, Heads, ModelFolder};
use crate::finite::{NotFinite, check_finite};
use crate::model::{ForwardOptions, Inputs, Model, ModelError, Tokens};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Error of loading a [`MaskFiller`] or of filling masks.
#[derive(Debug, thiserror::Error)]
pub enum FillMaskError {
    /// The model folder cannot be loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tokenizer cannot be loaded or does not fit the model.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model cannot be built or evaluated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An output is NaN or infinite.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// The text has no mask or is too long.
    #[error("{0}")]
    Text(String),
}

/// A piece and its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Id of the piece.
    pub id: u32,
    /// The piece as the vocabulary spells it, `▁` for the start of a word.
    pub piece: String,
    /// Probability, by a softmax over all pieces.
    pub probability: f64,
}

/// A model with its tokenizer, ready to fill masks.
#[derive(Debug)]
pub struct MaskFiller {
    model: Model,
    params: engine::ParamStore,
    tokenizer: Tokenizer,
    workspace: Workspace,
}

impl MaskFiller {
    /// Loads the model in `folder` to `device`. A missing tensor is an error, never initialized at random.
    ///
    /// # Errors
    /// A file is missing or damaged, or the model has no MLM head.
    pub fn load(folder: &Path, device: Device) -> Result<Self, FillMaskError> {
        let files = ModelFolder::open(folder)?;
        let tokenizer = Tokenizer::load(files.path())?;
        tokenizer.expect_vocab_size(files.config().config.vocab_size)?;
        let cpu = device.processor();
        let (model, params, _) = files.model(Heads::MASKED_LM, &[], cpu, 0)?;
        Ok(Self { model, params, tokenizer, workspace: Workspace::new(device) })
    }

    /// Kernel timings; empty until profiling is switched on.
    pub fn profile(&self) -> &Profile {
        self.workspace.profile()
    }

    /// The `top` most probable pieces for every `[MASK]` of `text`, best first.
    ///
    /// # Errors
    /// The text has no `[MASK]` or is longer than the model's positions, a score is not finite, or the engine failed.
    pub fn fill(&mut self, text: &str, top: usize) -> Result<Vec<Vec<Candidate>>, FillMaskError> {
        let specials = self.tokenizer.specials();
        let mut ids = vec![specials.cls];
        ids.extend(self.tokenizer.encode_with_specials(text)?.ids);
        ids.push(specials.sep);
        let masked: Vec<u32> =
            (0..).zip(&ids).filter(|&(_, &id)| id == specials.mask).map(|(position, _)| position).collect();
        if masked.is_empty() {
            return Err(FillMaskError::Text("the text has no [MASK]; write it where a piece is missing".to_owned()));
        }
        let (tokens, most) = (ids.len(), self.model.config().max_position_embeddings);
        if tokens > most {
            return Err(FillMaskError::Text(format!(
                "the text has {tokens} tokens, and the model has {most} positions"
            )));
        }
        let head = self.model.mlm().expect("the model was loaded with this head");
        let tape = self.workspace.infer(&self.params, None);
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let text =
            Tokens { ids: &ids, segments: &vec![0; tokens], positions: &positions, cu_seqlens: &[0, tokens as u32] };
        let inputs = Inputs::new(&tape, text)?;
        let x = self.model.encode(&tape, &inputs, &ForwardOptions::EVALUATION)?; // [T, H]
        let at = tape.input([masked.len()], &masked)?;
        let logits = head.logits(&tape, &x, &at)?.value().to_vec()?; // [M, V]
        drop(tape);
        // Rows of the embedding table past the last piece are padding.
        let pieces = self.tokenizer.vocab_size();
        let width = self.model.config().vocab_size;
        check_finite(&logits, width, &self.params, |mask| format!("the score of a piece for mask {}", mask + 1))?;
        let rows = logits.chunks_exact(width);
        Ok(rows.map(|logits| self.best(&logits[..pieces], top)).collect())
    }

    fn best(&self, logits: &[f32], top: usize) -> Vec<Candidate> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        // Ties are broken by id, so that the result does not depend on the sort.
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        let candidate = |id: u32| Candidate {
            id,
            piece: self.tokenizer.piece(id).to_owned(),
            probability: f64::from(logits[id as usize] - max).exp() / sum,
        };
        order.into_iter().take(top).map(candidate).collect()
    }
}
