//! An encoder layer as a value: its parameters, and the settings of one application.
use super::super::{attention::Attention, norm::LayerNorm};
use crate::param::ParamId;
use kernels::{activation::Activation, dropout::Dropout};
use serde::{
    Deserialize, Serialize,
    de::{IntoDeserializer, value},
};
use std::str::FromStr;

/// Activations that backward recomputes instead of forward keeping them; the module lists the cost of each. In recipes and on
/// the command line: `none`, `cheap`, `layer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing: forward keeps everything that backward reads.
    #[default]
    None,
    /// The activation and both normalizations, which need no GEMM.
    Cheap,
    /// The whole layer, from its input.
    Layer,
}

impl Recompute {
    /// The default on a CPU, where recomputing what `Cheap` leaves out takes no longer than storing and loading it.
    pub const ON_CPU: Self = Self::Cheap;
    /// The default on a GPU, where another pass over memory costs time, and weight gradients may be fused.
    pub const ON_GPU: Self = Self::None;
}

impl FromStr for Recompute {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::deserialize(text.into_deserializer()).map_err(|error: value::Error| error.to_string())
    }
}

/// The parameters of a layer. Weights are [out, in].
#[derive(Clone, Copy, Debug)]
pub struct LayerParams {
    /// Query, key and value weights [H, H], added to the store one directly after another.
    pub qkv_weight: [ParamId; 3],
    /// Query, key and value biases `[H]`, likewise.
    pub qkv_bias: [ParamId; 3],
    /// Wo [H, H].
    pub attention_weight: ParamId,
    /// `[H]`
    pub attention_bias: ParamId,
    /// LN₁.
    pub attention_norm: LayerNorm,
    /// W₁ [F, H].
    pub ffn_weight: ParamId,
    /// `[F]`
    pub ffn_bias: ParamId,
    /// W₂ [H, F].
    pub ffn_output_weight: ParamId,
    /// `[H]`
    pub ffn_output_bias: ParamId,
    /// LN₂.
    pub output_norm: LayerNorm,
}

/// A layer as a value: parameters and settings of one application.
#[derive(Clone, Copy, Debug)]
pub struct EncoderLayer {
    /// The parameters.
    pub params: LayerParams,
    /// Heads, head size, scale, and dropout on the attention probabilities.
    pub attention: Attention,
    /// Between the two products of the feed-forward part.
    pub activation: Activation,
    /// Dropout before the first residual.
    pub attention_output: Option<Dropout>,
    /// Dropout before the second residual.
    pub ffn_output: Option<Dropout>,
    /// Activations that backward recomputes.
    pub recompute: Recompute,
}
