//! Weight gradients of a layer that is applied N times, each computed as one GEMM over all applications.
//!
//! ```text
//! one by one   dW += dY₁ᵀ·X₁,  dW += dY₂ᵀ·X₂,  ...      dW is read and written N times, in f32
//! together     dW += [dY₁; dY₂; ...]ᵀ·[X₁; X₂; ...]     once, and k = N·T is long enough to fill a GPU
//!
//!              X [N·T, K]: each application writes its own rows in forward      dY [N·T, M]: in backward
//! ```
//!
//! A layer has four such weights: query, key and value; the attention's output; both of the feed-forward part. Their X are
//! kept for backward anyway; what has to be kept longer are the dY, 5·H + F elements a token and application, and the X
//! until the last of them. Biases are also summed over all rows. The gradients of gains and biases of the normalizations are
//! sums of groups of rows, kept for all applications and added up at the end, in the order in which they would have been.
//!
//! The plan chooses ([`crate::Workspace::plan`]) by the bytes that each way moves, for a matrix
//! [M, K] and elements of e bytes:
//!
//! ```text
//! saved   8·(N-1)·M·K      dW is neither read nor written N - 1 times
//! added   2·e·N·T·M        dY goes to memory and comes back; nothing where the dY of one application are more than the
//!                          cache holds, because then they do so anyway
//! ```
//!
//! and by the memory that is there. It is offered where nothing is computed again ([`Recompute`]): the products need
//! every X until the last of them, which is what computing again saves.

use super::spec::{EncoderLayer, Recompute};
use crate::{
    dtype::DType,
    error::{EngineError, Result},
    memory::Parts,
    tape::{Tape, Traffic, Var},
    tensor::Tensor,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The applications of one layer in a step, for [`super::repeated_encoder_layer`].
///
/// If the plan fuses weight gradients, they are computed in the first application's backward pass. Every
/// application's input must then be the output of the one before, and no tensor of it may be held beyond backward.
#[derive(Debug)]
pub struct SharedLayerBackward {
    joined: Option<Arc<Mutex<FusedWeightGrad>>>,
}

/// A weight of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Qkv,
    AttentionOutput,
    Ffn,
    FfnOutput,
}

/// A normalization of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norm {
    Attention,
    Output,
}

impl Weight {
    pub(super) const ALL: [Self; 4] = [Self::Qkv, Self::AttentionOutput, Self::Ffn, Self::FfnOutput];
}

#[derive(Debug)]
struct FusedWeightGrad {
    count: usize,
    tokens: usize,
    dtype: DType,
    /// Rows and columns of each weight: of dY and of X.
    sizes: [(usize, usize); 4],
    /// Applications in forward so far.
    begun: usize,
    /// Record of the last output.
    output: Option<(u32, u32)>,
    /// The number of the last application that backward has reached, and one more.
    reached: usize,
    inputs: [Option<Parts>; 4],
    gradients: [Option<Parts>; 4],
    /// Of each normalization, the sums that its backward passes left, in their order, and the groups of rows of one.
    sums: [Option<(Parts, usize)>; 2],
}

/// Sizes of the four weights of a layer.
fn sizes(tape: &Tape<'_>, layer: &EncoderLayer) -> [(usize, usize); 4] {
    let h = layer.attention.hidden();
    let f = tape.params().shape(layer.params.ffn_weight)[0];
    [(3 * h, h), (h, h), (f, h), (h, f)]
}

/// Bytes of a layer's dY that the L2 of a GPU (40 to 50 MB) keeps until the weight GEMMs load them.
const CACHE: usize = 32 << 20;

/// See the module; `None` if a matrix of all applications would be too large for a kernel.
pub(in crate::ops) fn traffic(
    sizes: &[(usize, usize); 4],
    count: usize,
    tokens: usize,
    dtype: DType,
) -> Option<Traffic> {
    let rows = count.checked_mul(tokens)?;
    let application: usize = sizes.iter().map(|(m, _)| dtype.bytes() * tokens * m).sum();
    let mut traffic = Traffic::default();
    for &(m, k) in sizes {
        u32::try_from(rows.checked_mul(m.max(k))?).ok()?;
        traffic.saved += (8 * (count - 1) * m * k) as u64;
        traffic.added += if application <= CACHE { (2 * dtype.bytes() * rows * m) as u64 } else { 0 };
    }
    Some(traffic)
}

impl SharedLayerBackward {
    /// `count` applications of `layer` in a row, to `tokens` rows of `dtype`.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(tape: &Tape<'_>, layer: &EncoderLayer, count: usize, tokens: usize, dtype: DType) -> Result<Self> {
        let possible = count > 1 && tokens > 0 && tape.is_recording() && layer.recompute == Recompute::None;
        let traffic = if possible { traffic(&sizes(tape, layer), count, tokens, dtype) } else { None };
        match traffic {
            Some(traffic) if tape.joins(traffic) => Self::joined(tape, layer, count, tokens, dtype),
            _ => Ok(Self { joined: None }),
        }
    }

    fn joined(tape: &Tape<'_>, layer: &EncoderLayer, count: usize, tokens: usize, dtype: DType) -> Result<Self> {
        let sizes = sizes(tape, layer);
        let mut inputs = [const { None }; 4];
        for (parts, (_, k)) in inputs.iter_mut().zip(sizes) {
            *parts = Some(tape.parts(count, tokens * k * dtype.bytes())?);
        }
        let gradients = [const { None }; 4];
        let joined = FusedWeightGrad {
            count,
            tokens,
            dtype,
            sizes,
            begun: 0,
            output: None,
            reached: 0,
            inputs,
            gradients,
            sums: [const { None }; 2],
        };
        Ok(Self { joined: Some(Arc::new(Mutex::new(joined))) })
    }

    /// Slots of the next application, whose input is `x`.
    pub(super) fn next(&self, x: &Var) -> Result<Option<Place>> {
        let Some(joined) = &self.joined else { return Ok(None) };
        let mut state = lock(joined);
        let problem = if state.begun == state.count {
            format!("{} applications were announced, and this is one more", state.count)
        } else if x.shape()[0] != state.tokens || x.dtype() != state.dtype {
            format!("{} rows of {} were announced, and this is {:?}", state.tokens, state.dtype, x.value())
        } else if state.begun > 0 && x.origin() != state.output {
            "the input of a repeated application must be the output of the one before, with its gradient".to_owned()
        } else {
            state.begun += 1;
            return Ok(Some(Place { joined: joined.clone(), number: state.begun - 1 }));
        };
        Err(EngineError::shape("encoder_layer", problem))
    }

    /// `y` is what the last application gave.
    pub(super) fn gave(&self, y: &Var) {
        if let Some(joined) = &self.joined {
            lock(joined).output = y.origin();
        }
    }
}

fn lock(joined: &Mutex<FusedWeightGrad>) -> MutexGuard<'_, FusedWeightGrad> {
    // A panic elsewhere ended the step.
    joined.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of several applications with fused weight gradients.
#[derive(Clone, Debug)]
pub(super) struct Place {
    joined: Arc<Mutex<FusedWeightGrad>>,
    number: usize,
}

impl Place {
    /// From 0.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Room for this application's X of `weight`.
    pub(super) fn input(&self, weight: Weight) -> Tensor {
        lock(&self.joined).input(weight, self.number)
    }

    /// Room for what is the next application's first X; `None` if this is the last.
    pub(super) fn output(&self) -> Option<Tensor> {
        let mut state = lock(&self.joined);
        (self.number + 1 < state.count).then(|| state.input(Weight::Qkv, self.number + 1))
    }

    /// Room for this application's dY of `weight`.
    pub(super) fn gradient(&self, tape: &Tape<'_>, weight: Weight) -> Result<Tensor> {
        let mut state = lock(&self.joined);
        let (columns, tokens, dtype, count) = (state.sizes[weight as usize].0, state.tokens, state.dtype, state.count);
        state.reached = state.reached.max(self.number + 1);
        let parts = match &mut state.gradients[weight as usize] {
            Some(parts) => parts,
            none => none.insert(tape.parts(count, tokens * columns * dtype.bytes())?),
        };
        Ok(Tensor::over(parts.take(self.number), [tokens, columns], dtype))
    }

    /// Room for the sums that this application's backward pass of a normalization leaves: [2, `groups`, H].
    pub(super) fn sums(&self, tape: &Tape<'_>, norm: Norm, groups: usize) -> Result<Tensor> {
        let mut state = lock(&self.joined);
        state.reached = state.reached.max(self.number + 1);
        let (count, at, columns) = (state.count, state.reached - 1 - self.number, state.sizes[Weight::Qkv as usize].1);
        let (parts, _) = match &mut state.sums[norm as usize] {
            Some(parts) => parts,
            none => none.insert((tape.parts(count, 2 * groups * columns * DType::F32.bytes())?, groups)),
        };
        Ok(Tensor::over(parts.take(at), [2, groups, columns], DType::F32))
    }

    /// The sums of all backward passes of a normalization: [passes, 2, groups, H]; `None` if they left none.
    pub(super) fn whole_sums(&self, norm: Norm) -> Option<Tensor> {
        let mut state = lock(&self.joined);
        let (parts, groups) = state.sums[norm as usize].take()?;
        let shape = [state.count, 2, groups, state.sizes[Weight::Qkv as usize].1];
        let whole = Tensor::over(parts.into_whole().expect("each pass has dropped its own"), shape, DType::F32);
        Some(whole.rows(0..state.reached).expect("no more than all"))
    }

    /// dY and X of `weight`, of all applications that backward has reached.
    pub(super) fn whole(&self, weight: Weight) -> Result<[Tensor; 2]> {
        let mut state = lock(&self.joined);
        let (tokens, dtype, rows) = (state.tokens, state.dtype, state.reached * state.tokens);
        let (m, k) = state.sizes[weight as usize];
        let (gradients, inputs) = (state.gradients[weight as usize].take(), state.inputs[weight as usize].take());
        let count = state.count;
        let whole = |parts: Option<Parts>, columns: usize| -> Result<Tensor> {
            let storage = parts.and_then(Parts::into_whole).ok_or_else(|| {
                let problem = "a tensor of a repeated layer is still held, and its weight gradients are taken together; \
                               drop it before backward, or set WeightGradients::PerUse";
                EngineError::Backward(problem.to_owned())
            })?;
            Tensor::over(storage, [count * tokens, columns], dtype).rows(0..rows)
        };
        Ok([whole(gradients, m)?, whole(inputs, k)?])
    }
}

impl FusedWeightGrad {
    fn input(&mut self, weight: Weight, number: usize) -> Tensor {
        let parts = self.inputs[weight as usize].as_mut().expect("there until the last product");
        Tensor::over(parts.take(number), [self.tokens, self.sizes[weight as usize].1], self.dtype)
    }
}
