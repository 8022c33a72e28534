//! Attention over a batch of sequences of one length, forward and backward.
//!
//! FLOPs of the matrix products: 4·S·D per query and head forward (q·kᵀ, probabilities·v), 8·S·D backward (four products);
//! scores recomputed in backward are not counted.

use super::{Case, Dtype, Random, sizes};
use crate::{
    interleaved::Contender,
    report::{About, Bound},
};
use half::bf16;
use kernels::{
    Cpu,
    attention::{Attention as Spec, Gradients, Operands, Upstream, backward, backward_scratch_len, forward},
};

/// Self-attention of B sequences of S tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Number of sequences B.
    pub sequences: usize,
    /// Tokens per sequence S.
    pub length: usize,
    /// Number of heads A.
    pub heads: usize,
    /// Head size D.
    pub head_size: usize,
    /// Times the backward pass instead of the forward pass.
    pub backward: bool,
    /// Storage type of q, k, v and the output.
    pub dtype: Dtype,
}

impl Attention {
    pub(super) fn prepare(&self, cpu: &Cpu) -> Case {
        let call = match self.dtype {
            Dtype::F32 => self.contender::<f32>(cpu),
            Dtype::Bf16 => self.contender::<bf16>(cpu),
        };
        Case { about: self.about(), contenders: vec![call] }
    }

    pub(super) fn about(&self) -> About {
        let &Self { sequences: b, length: s, heads: a, head_size: d, backward, dtype } = self;
        let pass = if backward { "backward" } else { "forward" };
        About {
            kernel: "attention",
            case: format!("{pass} B{b} S{s} A{a} D{d}"),
            sizes: sizes([("sequences", b), ("length", s), ("heads", a), ("head_size", d)]),
            dtype: dtype.name(),
            bound: Bound::Arithmetic,
            flops: (if backward { 8 } else { 4 }) * (b * s * s * a * d) as u64,
            bytes: ((if backward { 8 } else { 4 }) * dtype.bytes() * b * s * a * d) as u64,
            tokens: Some((b * s) as u64),
        }
    }

    fn contender<X: Random>(&self, cpu: &Cpu) -> Contender {
        let (cpu, spec, tokens) = (cpu.clone(), Spec::new(self.heads, self.head_size), self.sequences * self.length);
        let (h, ld) = (spec.hidden(), 3 * spec.hidden());
        let offsets: Vec<u32> = (0..=self.sequences).map(|i| (i * self.length) as u32).collect();
        let qkv = X::random(tokens * ld, 1);
        let (mut out, mut lse) = (X::random(tokens * h, 2), vec![0f32; tokens * self.heads]);
        let ahead = move |cpu: &Cpu, qkv: &[X], out: &mut [X], lse: &mut [f32]| {
            let [q, k, v] = [0, h, 2 * h].map(|start| &qkv[start..]);
            forward(cpu, &spec, Operands { sequences: (&offsets).into(), q, k, v, ld }, out, lse);
        };
        if !self.backward {
            let pass = cpu.clone();
            return Contender::new("ours", move || ahead(&cpu, &qkv, &mut out, &mut lse)).within_pass(&pass);
        }
        ahead(&cpu, &qkv, &mut out, &mut lse);
        let offsets: Vec<u32> = (0..=self.sequences).map(|i| (i * self.length) as u32).collect();
        let (dout, mut gradient) = (X::random(tokens * h, 3), X::random(tokens * ld, 4));
        let mut scratch = vec![0f32; backward_scratch_len(&spec, tokens, self.length)];
        let pass = cpu.clone();
        Contender::new("ours", move || {
            let [q, k, v] = [0, h, 2 * h].map(|start| &qkv[start..]);
            let gradients = Gradients::fused(&mut gradient, h, ld);
            backward(
                &cpu,
                &spec,
                Operands { sequences: (&offsets).into(), q, k, v, ld },
                Upstream { out: &out, lse: &lse, dout: &dout },
                gradients,
                &mut scratch,
            );
        })
        .within_pass(&pass)
    }
}
