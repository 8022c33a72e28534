//! Embeddings: token ids to the encoder's input.
//!
//! ```text
//! x = map(dropout(LayerNorm_E(word[id] + segment[s] + position[p])))      [T, H]
//! ```
//!
//! Tables have width E, far below H: V·E + E·H parameters instead of V·H (Lan et al. 2020, section 3.1). The map is not
//! followed by an activation, LayerNorm or dropout.

use engine::nn::{Embedding, LayerNorm, Linear, Module};
use engine::ops::{self, Dropout};
use engine::{EngineError, ParamId, ParamScope, Tape, Var};

use super::{ForwardOptions, Inputs};
use crate::config::AlbertConfig;

/// Dropout site of the embeddings; the encoder's sites follow it.
const SITE: u64 = 0;

#[derive(Clone, Debug)]
pub(super) struct Embeddings {
    word: Embedding,
    position: Embedding,
    segment: Embedding,
    norm: LayerNorm,
    map: Option<Linear>,
    dropout_rate: f32,
}

impl Embeddings {
    pub(super) fn new(albert: &mut ParamScope<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        let (e, h) = (config.embedding_size, config.hidden_size);
        let mut scope = albert.scope("embeddings");
        let mut table = |name, rows| Embedding::new(&mut scope.scope(name), rows, e);
        let word = table("word_embeddings", config.vocab_size)?;
        let position = table("position_embeddings", config.max_position_embeddings)?;
        let segment = table("token_type_embeddings", config.type_vocab_size)?;
        let norm = LayerNorm::new(&mut scope.scope("LayerNorm"), e, config.layer_norm_eps as f32)?;
        let map = match config.has_embedding_map() {
            true => Some(Linear::new(&mut albert.scope("encoder").scope("embedding_hidden_mapping_in"), e, h)?),
            false => None,
        };
        Ok(Self { word, position, segment, norm, map, dropout_rate: config.hidden_dropout_prob as f32 })
    }

    /// Word table, which is also the decoder of the MLM head.
    pub(super) fn words(&self) -> ParamId {
        self.word.table
    }

    pub(super) fn forward(
        &self,
        tape: &Tape<'_>,
        inputs: &Inputs,
        options: &ForwardOptions,
    ) -> Result<Var, EngineError> {
        let Self { word, segment, position, .. } = self;
        let lookups =
            [(&inputs.ids, word.table), (&inputs.segments, segment.table), (&inputs.positions, position.table)];
        let x = ops::embedding_sum(tape, &lookups, options.dtype)?; // [T, E]
        let x = self.norm.forward(tape, &x)?;
        let x =
            ops::dropout(tape, &x, options.dropout.map(|seed| Dropout { seed, site: SITE, rate: self.dropout_rate }))?;
        match self.map {
            Some(map) => map.forward(tape, &x), // [T, H]
            None => Ok(x),
        }
    }
}
