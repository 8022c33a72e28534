//! Arguments of the attention kernels.

use crate::arguments::{Address, arguments};
use kernels::dropout::Dropout;
use ptx::TensorMap;

arguments! {
    /// Arguments of all kernels except δ's; fields that a kernel does not use are `None`. Row t of q, k and v starts at
    /// element t · ld, head h at column h · head_size.
    AttentionArgs, declared as AttentionParams {
        /// q, without tensor maps
        q: Option<Address>,
        /// k, without tensor maps
        k: Option<Address>,
        /// v, without tensor maps
        v: Option<Address>,
        /// [T, H], in backward without tensor maps, and where δ is computed
        dout: Option<Address>,
        /// Tensor map of q.
        map_q: Option<TensorMap>,
        /// Tensor map of k.
        map_k: Option<TensorMap>,
        /// Tensor map of v.
        map_v: Option<TensorMap>,
        /// Tensor map of dout, in backward.
        map_dout: Option<TensorMap>,
        /// Tensor map of out, in forward with tensor maps.
        map_out: Option<TensorMap>,
        /// [B + 1] u32: first token of each sequence, then T.
        cu_seqlens: Address,
        /// `[B]` u32: tokens of each sequence that are keys.
        keys: Address,
        /// [T, H], in forward, and where δ is computed
        out: Option<Address>,
        /// [T, A] f32
        lse: Address,
        /// [T, A] f32, in backward: read, or written where it is computed
        delta: Option<Address>,
        /// Rows `gradient_ld` elements apart.
        dq: Option<Address>,
        /// Rows `gradient_ld` elements apart.
        dk: Option<Address>,
        /// Rows `gradient_ld` elements apart.
        dv: Option<Address>,
        /// Dropout of the probabilities.
        dropout: Option<Dropout>,
        /// Elements from a row of q, k and v to the next.
        ld: usize,
        /// D
        head_size: usize,
        /// Factor of the scores.
        score_scale: f32,
        /// Elements from a row of dq, dk and dv to the next, in backward.
        gradient_ld: Option<usize>,
        /// B, for persistent kernels.
        sequences: Option<usize>,
        /// Upper bound of the tokens of a sequence, for the persistent forward kernel.
        longest: Option<usize>,
    }
}

/// Sequences and head of a call.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// [B + 1] u32: first token of each sequence, then T.
    pub cu_seqlens: Address,
    /// `[B]` u32: tokens of each sequence that are keys.
    pub keys: Address,
    /// Dropout of the probabilities.
    pub dropout: Option<Dropout>,
    /// Elements from a row of q, k and v to the next.
    pub ld: usize,
    /// D
    pub head_size: usize,
    /// Factor of the scores.
    pub score_scale: f32,
}

impl AttentionArgs {
    /// Arguments common to all kernels.
    fn new(shape: &Shape, lse: Address) -> Self {
        let Shape { cu_seqlens, keys, dropout, ld, head_size, score_scale } = *shape;
        Self {
            q: None,
            k: None,
            v: None,
            dout: None,
            map_q: None,
            map_k: None,
            map_v: None,
            map_dout: None,
            map_out: None,
            cu_seqlens,
            keys,
            out: None,
            lse,
            delta: None,
            dq: None,
            dk: None,
            dv: None,
            dropout,
            ld,
            head_size,
            score_scale,
            gradient_ld: None,
            sequences: None,
            longest: None,
        }
    }

    /// Arguments of the forward pass, which writes `out` and `lse`.
    pub fn forward(shape: &Shape, out: Address, lse: Address) -> Self {
        Self { out: Some(out), ..Self::new(shape, lse) }
    }

    /// Arguments of the backward pass, which reads `lse` and reads or writes `delta`; gradients have rows `gradient_ld` elements apart.
    pub fn backward(shape: &Shape, lse: Address, delta: Address, gradient_ld: usize) -> Self {
        Self { delta: Some(delta), gradient_ld: Some(gradient_ld), ..Self::new(shape, lse) }
    }

    /// Adds q, k and v at these addresses.
    pub fn with_matrices(self, [q, k, v]: [Address; 3]) -> Self {
        Self { q: Some(q), k: Some(k), v: Some(v), ..self }
    }

    /// Adds tensor maps of q, k, v and out, and the number and the greatest length of the sequences.
    pub fn with_maps(self, [q, k, v, out]: [TensorMap; 4], sequences: usize, longest: usize) -> Self {
        let (map_q, map_k, map_v, map_out) = (Some(q), Some(k), Some(v), Some(out));
        Self { map_q, map_k, map_v, map_out, sequences: Some(sequences), longest: Some(longest), ..self }
    }

    /// Adds tensor maps of q, k, v and dout.
    pub fn with_maps_and_dout(self, [q, k, v, dout]: [TensorMap; 4]) -> Self {
        Self { map_q: Some(q), map_k: Some(k), map_v: Some(v), map_dout: Some(dout), ..self }
    }
}

/// Optional arguments of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Parameters {
    /// Tensor maps of the matrices instead of addresses.
    pub maps: bool,
    /// dout, δ and gradient_ld instead of out.
    pub backward: bool,
    /// True if the kernel computes δ, from out and dout.
    pub computes_delta: bool,
    pub dq: bool,
    /// dk and dv.
    pub dk: bool,
    pub dropout: bool,
    pub sequences: bool,
}

impl Parameters {
    /// True if the kernel has the optional argument `name`.
    pub(super) fn has(self, name: &str) -> bool {
        match name {
            "q" | "k" | "v" => !self.maps,
            "dout" => self.backward && (!self.maps || self.computes_delta),
            "map_q" | "map_k" | "map_v" => self.maps,
            "map_dout" => self.maps && self.backward,
            "map_out" | "longest" => self.maps && !self.backward,
            "out" => !self.backward || self.computes_delta,
            "delta" | "gradient_ld" => self.backward,
            "dq" => self.dq,
            "dk" | "dv" => self.dk,
            "dropout" => self.dropout,
            "sequences" => self.sequences,
            _ => unreachable!("{name} is not optional"),
        }
    }
}

arguments! {
    /// Arguments of the δ kernel.
    DeltaArgs, declared as DeltaParams {
        /// [T, H]
        out: Address,
        /// [T, H]
        dout: Address,
        /// [T, A] f32
        delta: Address,
        /// T · A
        rows: usize,
        /// D
        head_size: usize,
    }
}
