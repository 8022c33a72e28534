//! Mask filling: the most probable pieces at each `[MASK]` of a text.

use std::path::Path;

use engine::{Device, List, Precision, Workspace, profile::Profile};

use crate::checkpoint::ModelFolder;
use crate::config::Heads;
use crate::finite::check_finite;
use crate::loaded::{InferenceError, LoadedModel};
use crate::model::{ForwardOptions, Inputs, Tokens};
use crate::tokenizer::Tokenizer;

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

/// Candidates for each mask of a text.
type Filled = Result<Vec<Vec<Candidate>>, InferenceError>;

/// A model with its tokenizer, ready to fill masks.
#[derive(Debug)]
pub struct MaskFiller {
    loaded: LoadedModel,
    tokenizer: Tokenizer,
}

impl MaskFiller {
    /// Loads the model in `folder` onto `device`. A missing tensor is an error, never initialized at random.
    ///
    /// # Errors
    /// A file is missing or damaged, or the model has no MLM head.
    pub fn load(folder: &Path, device: Device) -> Result<Self, InferenceError> {
        let files = ModelFolder::open(folder)?;
        let tokenizer = files.tokenizer()?;
        let (loaded, _) = LoadedModel::new(&files, Heads::MASKED_LM, Workspace::new(device))?;
        Ok(Self { loaded, tokenizer })
    }

    /// Kernel timings; empty until profiling is switched on.
    pub fn profile(&self) -> &Profile {
        self.loaded.workspace.profile()
    }

    /// Sets the precision of later calls.
    ///
    /// # Errors
    /// A weight exceeds the range of bf16, or the device does not have the precision.
    pub fn set_precision(&mut self, precision: Precision) -> Result<(), InferenceError> {
        Ok(self.loaded.set_precision(precision)?)
    }

    /// Returns the `top` most probable pieces for every `[MASK]` of `text`, best first.
    ///
    /// # Errors
    /// The text has no `[MASK]` or is longer than the model's positions, a score is not finite, or the engine failed.
    pub fn fill(&mut self, text: &str, top: usize) -> Filled {
        self.fill_later(text, top)?(self)
    }

    /// Begins [`fill`](Self::fill); calling the result with this filler finishes it. In between, a GPU computes.
    ///
    /// # Errors
    /// The text has no `[MASK]` or is longer than the model's positions, or the engine failed.
    pub fn fill_later(
        &mut self,
        text: &str,
        top: usize,
    ) -> Result<impl FnOnce(&Self) -> Filled + use<>, InferenceError> {
        let specials = self.tokenizer.specials();
        let ids = self.tokenizer.frame().one(&self.tokenizer.encode_with_specials(text)?.ids);
        let masked: Vec<u32> =
            (0..).zip(&ids).filter(|&(_, &id)| id == specials.mask).map(|(position, _)| position).collect();
        if masked.is_empty() {
            return Err(InferenceError::Input("the text has no [MASK]; write it where a piece is missing".to_owned()));
        }
        let config = self.loaded.model.config();
        let (tokens, most, width) = (ids.len(), config.max_position_embeddings, config.vocab_size);
        if tokens > most {
            return Err(InferenceError::Input(format!(
                "the text has {tokens} tokens, but the model has {most} positions"
            )));
        }
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let (segments, cu_seqlens) = (vec![0; tokens], [0, tokens as u32]);
        let text = Tokens { ids: &ids, segments: &segments, positions: &positions, cu_seqlens: &cu_seqlens };
        let logits = self.loaded.infer(|model, tape| {
            let head = model.mlm().expect("the model was loaded with this head");
            let (inputs, [at]) = Inputs::with_lists(tape, text, [List::Rows(&masked)])?;
            let x = model.encode(tape, &inputs, &ForwardOptions::evaluation(tape))?; // [T, H]
            head.logits(tape, &x, &at)?.value().to_vec_later() // [M, V]
        })?;
        Ok(move |filler: &Self| {
            let logits = logits.wait()?;
            check_finite(&logits, width, &filler.loaded.params, |mask| {
                format!("the score of a piece for mask {}", mask + 1)
            })?;
            // Rows of the embedding table past the last piece are padding.
            let pieces = filler.tokenizer.vocab_size();
            Ok(logits.chunks_exact(width).map(|logits| filler.best(&logits[..pieces], top)).collect())
        })
    }

    fn best(&self, logits: &[f32], top: usize) -> Vec<Candidate> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x - max))).sum();
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        // Ties are broken by id, so that the result does not depend on the sort.
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        let candidate = |id: u32| Candidate {
            id,
            piece: self.tokenizer.piece(id).to_owned(),
            probability: libm::exp(f64::from(logits[id as usize] - max)) / sum,
        };
        order.into_iter().take(top).map(candidate).collect()
    }
}
