//! The model, equation by equation.
//!
//! ```text
//! ids, segments, positions [T]
//!   x = word[id] + segment[s] + position[p]         [T, E]     tables of width E
//!   x = dropout(LayerNorm_E(x))                     [T, E]
//!   x = x·Wᵀ + b                                    [T, H]     the map; absent for E = H without a map
//!   N times, block (see `encoder`):
//!     y = LayerNorm(x + dropout(attention(x)))      [T, H]
//!     x = LayerNorm(y + dropout(ffn(y)))            [T, H]
//! heads: see `heads`
//! ```
//!
//! A batch is ragged: the T tokens of B sequences are concatenated, and `cu_seqlens` contains their offsets; there is
//! no padding and no mask. Attention is between the tokens of one sequence, in both directions.
//!
//! Cost: see `cost::Flops`. Source: Lan et al. 2020, section 3; the released code, which normalizes in width E before
//! the map and applies dropout to the output of the feed-forward network. Limits: absolute positions, tied embeddings.

mod block;
mod composed;
mod embeddings;
mod encoder;
mod inputs;
#[cfg(test)]
pub(crate) mod tests;

pub use encoder::Blocks;
pub use engine::ops::Recompute;
pub use inputs::{Inputs, Tokens};

use engine::param::ParamInfo;
use engine::philox::philox4x32;
use engine::{DType, EngineError, Init, ParamBuilder, ParamStore, Tape, Var};

use crate::config::{AlbertConfig, ConfigError, Heads};
use crate::heads::{MlmHead, Pooler, SentenceHead, Task};
use embeddings::Embeddings;
use encoder::Encoder;

/// A model: its layers, with the ids of their parameters. The values are in a [`ParamStore`].
#[derive(Clone, Debug)]
pub struct Model {
    config: AlbertConfig,
    heads: Heads,
    embeddings: Embeddings,
    encoder: Encoder,
    pooler: Option<Pooler>,
    mlm: Option<MlmHead>,
    sentence: Option<SentenceHead>,
    task: Option<Task>,
}

/// Options of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardOptions {
    /// Storage of activations: f32 or bf16.
    pub dtype: DType,
    /// Key of the dropout masks of this pass; `None` disables dropout, as in evaluation.
    pub dropout: Option<u64>,
    /// Implementation of the encoder's blocks.
    pub blocks: Blocks,
}

impl ForwardOptions {
    /// Evaluation in f32.
    pub const EVALUATION: Self = Self { dtype: DType::F32, dropout: None, blocks: Blocks::Fused(Recompute::None) };

    /// Evaluation in the precision of a step.
    pub fn evaluation(tape: &Tape<'_>) -> Self {
        Self { dtype: tape.activations(), ..Self::EVALUATION }
    }
}

/// Key of the dropout masks of micro-batch `micro` of optimizer step `step`: different for each, and equal if the step is
/// repeated.
pub fn dropout_key(seed: u64, step: u64, micro: u32) -> u64 {
    // The last counter word separates these from all further numbers drawn from the same seed.
    let counter = [step as u32, (step >> 32) as u32, micro, u32::from_be_bytes(*b"drop")];
    let [low, high, _, _] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
    u64::from(high) << 32 | u64::from(low)
}

/// Error of building a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Parameters of the model with `heads`, in memory order: embeddings, map, for each block in the order of its first use
/// query, key and value next to each other and the rest, then the heads.
///
/// Names and shapes are Hugging Face's, Linear weights `[out, in]`. A shared parameter exists once, under the name of the
/// first layer that uses it.
pub fn parameters(config: &AlbertConfig, heads: Heads) -> Vec<ParamInfo> {
    let (_, builder) = Model::declare(config, heads).expect("the names of a model's parameters differ");
    builder.infos().to_vec()
}

impl Model {
    /// Builds the model and declares its parameters: names, shapes and initial values in memory order. Nothing is
    /// allocated or drawn.
    ///
    /// # Errors
    /// Two parameters have the same name; never for a valid configuration.
    pub fn declare(config: &AlbertConfig, heads: Heads) -> Result<(Self, ParamBuilder), EngineError> {
        let mut builder = ParamBuilder::with_weights(Init::TruncatedNormal(config.initializer_range as f32));
        let mut albert = builder.scope("albert");
        let embeddings = Embeddings::new(&mut albert, config)?;
        let encoder = Encoder::new(&mut builder, config)?;
        let (h, words) = (config.hidden_size, embeddings.words());
        let pooler = heads.pooler.then(|| Pooler::new(&mut builder.scope("albert.pooler"), h)).transpose()?;
        let mlm = heads.mlm.then(|| MlmHead::new(&mut builder.scope("predictions"), config, words)).transpose()?;
        let sentence = heads.sop.then(|| SentenceHead::new(&mut builder.scope("sop_classifier"), h)).transpose()?;
        let task = heads.task.map(|task| Task::new(&mut builder, config, task)).transpose()?;
        Ok((Self { config: config.clone(), heads, embeddings, encoder, pooler, mlm, sentence, task }, builder))
    }

    /// Declares the parameters and draws their initial values: a normal distribution with deviation
    /// `initializer_range`, cut at two deviations, for matrices and tables, 0 for biases, 1 for gains. A value
    /// depends only on the seed and the parameter's name.
    ///
    /// # Errors
    /// The configuration is invalid, or there is not enough memory.
    pub fn new(
        config: &AlbertConfig,
        heads: Heads,
        cpu: &engine::Cpu,
        seed: u64,
    ) -> Result<(Self, ParamStore), ModelError> {
        let (model, mut params) = Self::allocate(config, heads)?;
        params.draw(cpu, seed, |_| true)?;
        Ok((model, params))
    }

    /// Declares the parameters as zeros, for values read from a file. [`ParamStore::draw`] draws the remaining ones as
    /// [`Self::new`] does.
    ///
    /// # Errors
    /// The configuration is invalid, or there is not enough memory.
    pub fn allocate(config: &AlbertConfig, heads: Heads) -> Result<(Self, ParamStore), ModelError> {
        config.validate()?;
        let (model, builder) = Self::declare(config, heads)?;
        Ok((model, builder.allocate()?))
    }

    /// The configuration.
    pub fn config(&self) -> &AlbertConfig {
        &self.config
    }

    /// Heads of the model.
    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// The MLM head, if the model has it.
    pub fn mlm(&self) -> Option<&MlmHead> {
        self.mlm.as_ref()
    }

    /// The pooler, if the model has it.
    pub fn pooler(&self) -> Option<&Pooler> {
        self.pooler.as_ref()
    }

    /// The sentence-order head, if the model has it.
    pub fn sentence(&self) -> Option<&SentenceHead> {
        self.sentence.as_ref()
    }

    /// The task head, if the model has one.
    pub fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    /// Runs the encoder and returns its output `[T, H]`.
    ///
    /// # Errors
    /// An id, segment or position is beyond its table, or the engine failed.
    pub fn encode(&self, tape: &Tape<'_>, inputs: &Inputs, options: &ForwardOptions) -> Result<Var, EngineError> {
        self.encode_with(tape, inputs, options, |_, _| Ok(()))
    }

    /// As [`encode`](Self::encode), but calls `on_layer` with 0 and the encoder's input, then with n and the output of
    /// block n.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), or as `on_layer`.
    pub fn encode_with(
        &self,
        tape: &Tape<'_>,
        inputs: &Inputs,
        options: &ForwardOptions,
        mut on_layer: impl FnMut(usize, &Var) -> Result<(), EngineError>,
    ) -> Result<Var, EngineError> {
        let x = self.embeddings.forward(tape, inputs, options)?; // [T, H]
        on_layer(0, &x)?;
        self.encoder.forward(tape, x, inputs, options, &mut on_layer)
    }

    /// Attention probabilities `[A, S, S]` of block `block` for each sequence in order, from the block's input `x` `[T,
    /// H]`. For inspection: the fused blocks never store them.
    ///
    /// # Errors
    /// There is no such block, or the engine failed.
    pub fn attention_probabilities(
        &self,
        tape: &Tape<'_>,
        x: &Var,
        inputs: &Inputs,
        block: usize,
    ) -> Result<Vec<Var>, EngineError> {
        self.encoder.attention_probabilities(tape, x, inputs, block)
    }
}
