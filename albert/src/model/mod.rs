//! The model, equation by equation.
//!
//! ```text
//! ids, segments, positions [T]
//!   x = word[id] + segment[s] + position[p]         [T, E]     tables of width E
//!   x = dropout(LayerNorm_E(x))                     [T, E]
//!   x = x·Wᵀ + b                                    [T, H]     the map; absent where E = H needs none
//!   N times, block (see `encoder`):
//!     y = LayerNorm(x + dropout(attention(x)))      [T, H]
//!     x = LayerNorm(y + dropout(ffn(y)))            [T, H]
//! heads: see `heads`
//! ```
//!
//! A batch is ragged: the T tokens of B sequences one after another, cut by `cu_seqlens`; there is no padding and no
//! mask. Attention is between the tokens of one sequence, in both directions.
//!
//! Cost: see `cost::Flops`. Source: Lan et al. 2020, section 3; the released code, which norms in width E before the map
//! and drops out the output of the feed-forward network. Limits: absolute positions, tied embeddings.

mod composed;
mod embeddings;
mod encoder;
mod inputs;
#[cfg(test)]
mod tests;

pub use encoder::Blocks;
pub use engine::ops::Recompute;
pub use inputs::{Inputs, Tokens};

use engine::ops::{self, Norm};
use engine::philox::philox4x32;
use engine::{DType, EngineError, Init, ParamBuilder, ParamId, ParamStore, Tape, Var};

use crate::checkpoint::{ParameterSpec, Start, parameters};
use crate::config::{Activation, AlbertConfig, ConfigError, Heads};
use crate::heads::{MlmHead, Pooler, SentenceHead, Task};
use embeddings::Embeddings;
use encoder::Encoder;

/// A model: which parameters play which part. The values are in a [`ParamStore`].
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

/// How a pass is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardOptions {
    /// Storage of activations: f32 or bf16.
    pub dtype: DType,
    /// Key of the dropout masks of this pass; `None` drops nothing, as in evaluation.
    pub dropout: Option<u64>,
    /// How the encoder's blocks are computed.
    pub blocks: Blocks,
}

impl ForwardOptions {
    /// Evaluation in f32.
    pub const EVALUATION: Self = Self { dtype: DType::F32, dropout: None, blocks: Blocks::Fused(Recompute::None) };
}

/// The key of the dropout masks of micro-batch `micro` of optimizer step `step`: a fresh one each time, the same
/// whenever the step is done again.
pub fn dropout_key(seed: u64, step: u64, micro: u32) -> u64 {
    // The last counter word keeps these numbers apart from others drawn under the same seed.
    let counter = [step as u32, (step >> 32) as u32, micro, u32::from_be_bytes(*b"drop")];
    let [low, high, _, _] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
    u64::from(high) << 32 | u64::from(low)
}

/// Why a model cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A number of the configuration is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Model {
    /// Lays the parameters out and draws their initial values: a normal of deviation `initializer_range` cut at two
    /// deviations for matrices and tables, 0 for biases, 1 for gains. A value depends on the seed and the parameter's
    /// name alone.
    ///
    /// # Errors
    /// The configuration is impossible, or there is not enough memory.
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

    /// Lays the parameters out, all zero: for values that are read from a file. [`ParamStore::draw`] draws the others as
    /// [`Self::new`] does.
    ///
    /// # Errors
    /// The configuration is impossible, or there is not enough memory.
    pub fn allocate(config: &AlbertConfig, heads: Heads) -> Result<(Self, ParamStore), ModelError> {
        config.validate()?;
        let mut builder = ParamBuilder::new();
        for ParameterSpec { name, shape, start } in parameters(config, heads) {
            let init = match start {
                Start::TruncatedNormal => Init::TruncatedNormal(config.initializer_range as f32),
                Start::Zeros => Init::Zeros,
                Start::Ones => Init::Ones,
            };
            builder.add(name, &shape[..], init)?;
        }
        let params = builder.allocate()?;
        Ok((Self::over(config, heads, &params)?, params))
    }

    /// The model whose parameters are those of `params`, by name.
    fn over(config: &AlbertConfig, heads: Heads, params: &ParamStore) -> Result<Self, ModelError> {
        let find = Finder { params, eps: config.layer_norm_eps as f32 };
        Ok(Self {
            config: config.clone(),
            heads,
            embeddings: Embeddings::find(&find, config)?,
            encoder: Encoder::find(&find, config)?,
            pooler: heads.pooler.then(|| Pooler::find(&find)).transpose()?,
            mlm: heads.mlm.then(|| MlmHead::find(&find, config)).transpose()?,
            sentence: heads.sop.then(|| SentenceHead::find(&find)).transpose()?,
            task: heads.task.map(|task| Task::find(&find, config, task)).transpose()?,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &AlbertConfig {
        &self.config
    }

    /// The heads that the model has.
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

    /// The head of the task, if the model has one.
    pub fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    /// The encoder's output `[T, H]`.
    ///
    /// # Errors
    /// An id, segment or position is beyond its table, or the engine failed.
    pub fn encode(&self, tape: &Tape<'_>, inputs: &Inputs, options: &ForwardOptions) -> Result<Var, EngineError> {
        self.encode_with(tape, inputs, options, |_, _| Ok(()))
    }

    /// The same, and what is between the blocks: `seen` is called with 0 and the encoder's input, then with n and the
    /// output of block n.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), or what `seen` says.
    pub fn encode_with(
        &self,
        tape: &Tape<'_>,
        inputs: &Inputs,
        options: &ForwardOptions,
        mut seen: impl FnMut(usize, &Var) -> Result<(), EngineError>,
    ) -> Result<Var, EngineError> {
        let x = self.embeddings.forward(tape, inputs, options)?; // [T, H]
        seen(0, &x)?;
        self.encoder.forward(tape, x, inputs, options, &mut seen)
    }

    /// The attention probabilities `[A, S, S]` of block `block` for each sequence, from the block's input `x` `[T, H]`,
    /// in order. For looking at: the fused blocks never store them.
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

/// Looks parameters up by name.
pub(crate) struct Finder<'p> {
    params: &'p ParamStore,
    eps: f32,
}

impl Finder<'_> {
    pub(crate) fn param(&self, name: &str) -> Result<ParamId, EngineError> {
        self.params.find(name).ok_or_else(|| EngineError::Parameter {
            name: name.to_owned(),
            problem: "the store does not have it; build the store from the same configuration".to_owned(),
        })
    }

    pub(crate) fn linear(&self, prefix: &str) -> Result<Linear, EngineError> {
        Ok(Linear { weight: self.param(&format!("{prefix}weight"))?, bias: self.param(&format!("{prefix}bias"))? })
    }

    pub(crate) fn norm(&self, prefix: &str) -> Result<Norm, EngineError> {
        Ok(Norm {
            gain: self.param(&format!("{prefix}weight"))?,
            bias: self.param(&format!("{prefix}bias"))?,
            eps: self.eps,
        })
    }
}

/// The two parameters of y = x·Wᵀ + b.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linear {
    pub(crate) weight: ParamId,
    pub(crate) bias: ParamId,
}

impl Linear {
    pub(crate) fn forward(self, tape: &Tape<'_>, x: &Var) -> Result<Var, EngineError> {
        ops::linear(tape, x, self.weight, Some(self.bias))
    }
}

impl From<Activation> for ops::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::GeluTanh => Self::GeluTanh,
            Activation::GeluErf => Self::GeluErf,
            Activation::Relu => Self::Relu,
        }
    }
}
