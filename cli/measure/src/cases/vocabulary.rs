//! Projection to the vocabulary with its cross-entropy, as in the MLM head.
//!
//! ```text
//! forward    z = h·Wᵀ + b, losses and predictions of the rows; the logits are kept, as in training
//! backward   dz of the logits, dh = dz·W, dW += dzᵀ·h, db += Σ dz
//! ```
//!
//! FLOPs are those of the products: 2·M·V·E forward, twice that backward.

use super::{Case, Dtype, Random, sizes};
use crate::{
    interleaved::Contender,
    report::{About, Bound},
};
use half::bf16;
use kernels::{
    Cpu,
    cross_entropy::{Losses, Projection, TableGradients, Upstream, backward, forward, scratch_len},
    gemm::Precision,
    num::philox::Stream,
};

/// Projection of labeled rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Labeled rows M.
    pub rows: usize,
    /// Vocabulary size V.
    pub classes: usize,
    /// Width of a row E.
    pub width: usize,
    /// Times the backward pass instead of the forward pass.
    pub backward: bool,
    /// Storage type of h; the weight is f32, as in training.
    pub dtype: Dtype,
}

impl Vocabulary {
    pub(super) fn prepare(&self, cpu: &Cpu) -> Case {
        let call = match self.dtype {
            Dtype::F32 => self.contender::<f32>(cpu.clone()),
            Dtype::Bf16 => self.contender::<bf16>(cpu.clone()),
        };
        Case { about: self.about(), contenders: vec![call.within_pass(cpu)] }
    }

    pub(super) fn about(&self) -> About {
        let &Self { rows, classes, width, backward, dtype } = self;
        let (pass, products) = if backward { ("backward", 2) } else { ("forward", 1) };
        let operands = rows * width * dtype.bytes() + 4 * (classes * width + rows * classes);
        About {
            kernel: "vocabulary",
            case: format!("{pass} {rows}x{classes}x{width}"),
            sizes: sizes([("rows", rows), ("classes", classes), ("width", width)]),
            dtype: dtype.name(),
            bound: Bound::Arithmetic,
            flops: 2 * products * (rows * classes * width) as u64,
            bytes: products * operands as u64,
            tokens: None,
        }
    }

    fn contender<X: Random>(&self, cpu: Cpu) -> Contender {
        let &Self { rows, classes, width, .. } = self;
        let (hidden, weight) = (X::random(rows * width, 1), crate::random(classes * width, 2));
        let bias = crate::random(classes, 3);
        let mut stream = Stream::new(1, [4, 0, 0]);
        let labels: Vec<u32> = (0..rows).map(|_| stream.below(classes as u32)).collect();
        let (mut losses, mut norms) = (vec![0f32; rows], vec![0f32; 2 * rows]);
        let (mut predictions, mut kept) = (vec![0u32; rows], vec![0f32; rows * classes]);
        let mut scratch = vec![0f32; scratch_len(rows, width, classes)];
        let (mut dhidden, mut dweight, mut dbias) = (hidden.clone(), weight.clone(), bias.clone());
        let dlosses = vec![1.0 / rows as f32; rows];
        let backwards = self.backward;
        let mut call = move |backwards: bool| {
            let precision = if X::DTYPE == kernels::DType::Bf16 { Precision::Bf16 } else { Precision::F32 };
            let projection =
                Projection { width, hidden: &hidden, weight: &weight, bias: &bias, labels: &labels, precision };
            if backwards {
                let (dh, dw, db) = (&mut dhidden, &mut dweight, &mut dbias);
                backward(
                    &cpu,
                    &projection,
                    Upstream { norms: &norms, dlosses: &dlosses },
                    &kept,
                    TableGradients { dhidden: dh, dweight: dw, dbias: db },
                    &mut scratch,
                );
            } else {
                let kept = Some(&mut kept[..]);
                forward(
                    &cpu,
                    &projection,
                    Losses { losses: &mut losses, norms: &mut norms, predictions: &mut predictions },
                    kept,
                    &mut scratch,
                );
            }
        };
        // Backward reads the logits stored by this call.
        call(false);
        Contender::new("ours", move || call(backwards))
    }
}
