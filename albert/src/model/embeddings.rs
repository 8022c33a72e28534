//! Ids to the encoder's input.
//!
//! ```text
//! x = map(dropout(LayerNorm_E(word[id] + segment[s] + position[p])))      [T, H]
//! ```
//!
//! Tables have width E, far below H: V·E + E·H parameters instead of V·H (Lan et al. 2020, section 3.1). The map has no
//! activation, no LayerNorm and no dropout behind it.

use engine::ops::{self, Dropout, Norm};
use engine::{EngineError, ParamId, Tape, Var};

use super::{Finder, ForwardOptions, Inputs, Linear};
use crate::config::AlbertConfig;

/// Dropout site of the embeddings; the encoder's begin behind it.
const SITE: u64 = 0;

#[derive(Clone, Debug)]
pub(super) struct Embeddings {
    word: ParamId,
    position: ParamId,
    segment: ParamId,
    norm: Norm,
    map: Option<Linear>,
    dropout_rate: f32,
}

impl Embeddings {
    pub(super) fn find(find: &Finder<'_>, config: &AlbertConfig) -> Result<Self, EngineError> {
        let map = "albert.encoder.embedding_hidden_mapping_in.";
        Ok(Self {
            word: find.param("albert.embeddings.word_embeddings.weight")?,
            position: find.param("albert.embeddings.position_embeddings.weight")?,
            segment: find.param("albert.embeddings.token_type_embeddings.weight")?,
            norm: find.norm("albert.embeddings.LayerNorm.")?,
            map: config.has_embedding_map().then(|| find.linear(map)).transpose()?,
            dropout_rate: config.hidden_dropout_prob as f32,
        })
    }

    pub(super) fn forward(
        &self,
        tape: &Tape<'_>,
        inputs: &Inputs,
        options: &ForwardOptions,
    ) -> Result<Var, EngineError> {
        let lookups = [(&inputs.ids, self.word), (&inputs.segments, self.segment), (&inputs.positions, self.position)];
        let x = ops::embedding_sum(tape, &lookups, options.dtype)?; // [T, E]
        let x = ops::layer_norm(tape, &x, self.norm)?;
        let x =
            ops::dropout(tape, &x, options.dropout.map(|seed| Dropout { seed, site: SITE, rate: self.dropout_rate }))?;
        match self.map {
            Some(map) => map.forward(tape, &x), // [T, H]
            None => Ok(x),
        }
    }
}
