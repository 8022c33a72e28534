//! Linear, LayerNorm and Embedding: parameters declared where the layer is built.
use crate::{
    error::Result,
    ops::{self, LayerNorm},
    param::{Init, ParamId, ParamScope},
    tape::{Tape, Var},
};

/// A function of one variable, with or without parameters.
pub trait Module {
    /// The output for `x`. [`Graph::value`](super::Graph::value) turns `x` into a [`Value`](super::Value), which has operations as methods.
    ///
    /// # Errors
    /// `x` does not fit, or the device failed.
    fn forward(&self, tape: &Tape<'_>, x: &Var) -> Result<Var>;
}

/// y = x·Wᵀ + b over the last dimension: parameters `weight` [n, k] and `bias` `[n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// W [n, k].
    pub weight: ParamId,
    /// b `[n]`.
    pub bias: Option<ParamId>,
}

impl Linear {
    /// A layer from k = `inputs` to n = `outputs` elements. By default W is uniform in ±1/√k; b is zero.
    ///
    /// # Errors
    /// The scope has parameters of these names.
    pub fn new(scope: &mut ParamScope<'_>, inputs: usize, outputs: usize) -> Result<Self> {
        let weight = Self::add_weight(scope, inputs, outputs)?;
        Ok(Self { weight, bias: Some(Self::add_bias(scope, outputs)?) })
    }

    /// A layer without b.
    ///
    /// # Errors
    /// The scope has a parameter of this name.
    pub fn without_bias(scope: &mut ParamScope<'_>, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self { weight: Self::add_weight(scope, inputs, outputs)?, bias: None })
    }

    /// Layers of one input whose weights are one matrix [N·n, k] in memory, and whose biases are one vector, so that a
    /// fused operation reads them as one wide layer: query, key and value of an attention.
    ///
    /// # Errors
    /// The scope has parameters of these names.
    pub fn contiguous<const N: usize>(
        scope: &mut ParamScope<'_>,
        names: [&str; N],
        inputs: usize,
        outputs: usize,
    ) -> Result<[Self; N]> {
        let mut weights = Vec::with_capacity(N);
        for name in names {
            weights.push(Self::add_weight(&mut scope.scope(name), inputs, outputs)?);
        }
        let mut layers = Vec::with_capacity(N);
        for (name, weight) in names.into_iter().zip(weights) {
            layers.push(Self { weight, bias: Some(Self::add_bias(&mut scope.scope(name), outputs)?) });
        }
        Ok(layers.try_into().expect("one layer a name"))
    }

    fn add_weight(scope: &mut ParamScope<'_>, inputs: usize, outputs: usize) -> Result<ParamId> {
        scope.add_weight("weight", [outputs, inputs], Init::Uniform(1.0 / (inputs as f32).sqrt()))
    }

    fn add_bias(scope: &mut ParamScope<'_>, outputs: usize) -> Result<ParamId> {
        scope.add("bias", [outputs], Init::Zeros)
    }
}

impl Module for Linear {
    fn forward(&self, tape: &Tape<'_>, x: &Var) -> Result<Var> {
        ops::linear(tape, x, self.weight, self.bias)
    }
}

impl LayerNorm {
    /// A normalization of rows of `width` elements: parameters `weight` (γ, ones) and `bias` (β, zeros).
    ///
    /// # Errors
    /// The scope has parameters of these names.
    pub fn new(scope: &mut ParamScope<'_>, width: usize, eps: f32) -> Result<Self> {
        Ok(Self {
            gain: scope.add("weight", [width], Init::Ones)?,
            bias: scope.add("bias", [width], Init::Zeros)?,
            eps,
        })
    }
}

impl Module for LayerNorm {
    fn forward(&self, tape: &Tape<'_>, x: &Var) -> Result<Var> {
        ops::layer_norm(tape, x, *self)
    }
}

/// Rows of a table, picked by ids: parameter `weight` [rows, width].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// [rows, width].
    pub table: ParamId,
}

impl Embedding {
    /// A table of `rows` rows of `width` elements, by default normal with deviation 0.02.
    ///
    /// # Errors
    /// The scope has a parameter of this name.
    pub fn new(scope: &mut ParamScope<'_>, rows: usize, width: usize) -> Result<Self> {
        Ok(Self { table: scope.add_weight("weight", [rows, width], Init::TruncatedNormal(0.02))? })
    }
}

impl Module for Embedding {
    /// `ids` [..] give [.., width].
    fn forward(&self, tape: &Tape<'_>, ids: &Var) -> Result<Var> {
        ops::embedding(tape, ids, self.table)
    }
}
