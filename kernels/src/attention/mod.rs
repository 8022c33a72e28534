//! Attention over ragged sequences (Vaswani et al. 2017, section 3.2.1), without storing scores in memory.
//!
//! For each sequence and head, with q, k, v and out [S, D]:
//!
//! ```text
//! P = softmax(scale · q kᵀ)      out = (P ∘ M) v      lse = ln Σ_key exp(scale · q kᵀ)
//!
//! dv = (P ∘ M)ᵀ dout             δ  = Σ_d dout ∘ out
//! dS = P ∘ (dout vᵀ ∘ M - δ)     dq = scale · dS k       dk = scale · dSᵀ q
//! ```
//!
//! M is the dropout mask (1 without dropout). Backward recomputes M from its counters and P from lse. On CPUs, tiles of 64
//! keys x 64 queries stay in L1 and are combined with a running maximum (Dao et al. 2022, FlashAttention; Milakov &
//! Gimelshein 2018 for the online softmax). Unlike there, lanes are queries, so that the softmax needs no reductions across
//! lanes and only q (and dout) are transposed; see `cpu/forward.rs` and `cpu/backward.rs`.
//!
//! A batch is a matrix of tokens with contiguous sequences; `cu_seqlens[b]` is the first token of sequence b:
//!
//! ```text
//!            <-- H = A·D -->
//! token 0   [ q | k | v ]  \                          out [T, H]
//!       1   [ q | k | v ]   } sequence 0: 0..3        lse [T, A]
//!       2   [ q | k | v ]  /
//!       3   [ q | k | v ]  }  sequence 1: 3..4        cu_seqlens = [0, 3, 4]
//! ```
//!
//! Tokens that an attention mask hides are at the end of their sequence and are only queries: `Ragged::keys` has the number
//! of tokens of each sequence that are keys.
//!
//! Cost for S keys: 4·S·D FLOP per query and head forward, 10·S·D backward, in both passes an exponential per score; memory
//! traffic O(S·D). Scratch is thread-local and bounded by D (1 MiB at D = 64). Tasks depend on the shape only: (sequence,
//! head, 256 queries) forward, (sequence, head) backward; results do not depend on the number of threads.
//!
//! On CPUs f32 is multiplied in f32, and bf16 on tiles ([`tiles`](crate::tiles)): there P and dS are rounded to bf16 before they
//! are multiplied, and the scale of dropout is applied after the product.
//!
//! Limits: D <= 256; no causal mask, no bias. For sequences beyond the bound of [`backward_scratch_len`], backward
//! accumulates dq in the caller's scratch.
//!
//! Two sequences, of two tokens and one, with one head of two elements:
//!
//! ```
//! use kernels::{Cpu, attention::{Attention, Operands, forward}};
//!
//! // Rows of q, k and v.
//! let qkv = [[1.0f32, 0.0, 0.0, 0.0, 1.0, 2.0], [0.0, 1.0, 0.0, 0.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0, 5.0, 6.0]].concat();
//! let spec = Attention::new(1, 2);
//! let operands = Operands { sequences: (&[0, 2, 3][..]).into(), q: &qkv, k: &qkv[2..], v: &qkv[4..], ld: 6 };
//! let (mut out, mut lse) = ([0.0f32; 6], [0.0f32; 3]);
//! forward(&Cpu::detect()?, &spec, operands, &mut out, &mut lse);
//! // Equal scores: the mean of v, within each sequence.
//! assert!(out.iter().zip([2.0, 3.0, 2.0, 3.0, 5.0, 6.0]).all(|(x, y)| (x - y).abs() < 1e-5));
//! # Ok::<(), kernels::CpuError>(())
//! ```
#![allow(unsafe_code)]

mod cpu;

pub use cpu::{scratch_bytes, warm_up};

use crate::Element;
use crate::dropout::Dropout;
use crate::extent::{area, span};
use crate::pool::{Cpu, Disjoint};

/// Maximum head size.
pub const MAX_HEAD_SIZE: usize = 256;

/// Heads, scale and dropout of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// A: number of heads.
    pub heads: usize,
    /// D: elements per head, at most [`MAX_HEAD_SIZE`].
    pub head_size: usize,
    /// Factor of the scores before the softmax, usually 1/√D; greater than 0.
    pub scale: f32,
    /// Dropout of the probabilities: element (token · A + head, key within its sequence) of the mask.
    pub dropout: Option<Dropout>,
}

impl Attention {
    /// Attention as in the paper, scale 1/√D, without dropout.
    pub fn new(heads: usize, head_size: usize) -> Self {
        Self { heads, head_size, scale: (1.0 / (head_size as f64).sqrt()) as f32, dropout: None }
    }

    /// H = A · D
    pub fn hidden(&self) -> usize {
        self.heads * self.head_size
    }

    /// Checks the arguments that both passes take; returns T.
    pub fn tokens(&self, Ragged { cu_seqlens, keys }: Ragged<'_>) -> usize {
        assert!(self.heads > 0, "attention: no heads");
        assert!((1..=MAX_HEAD_SIZE).contains(&self.head_size), "attention: head size {}", self.head_size);
        let hidden = self.heads.checked_mul(self.head_size);
        assert!(hidden.is_some(), "attention: {} heads are more elements than memory can address", self.heads);
        assert!(self.scale > 0.0 && self.scale.is_finite(), "attention: scale {}", self.scale);
        assert_eq!(cu_seqlens.first(), Some(&0), "attention: cu_seqlens begins with 0");
        assert!(cu_seqlens.is_sorted(), "attention: cu_seqlens falls");
        let tokens = cu_seqlens[cu_seqlens.len() - 1] as usize;
        if !keys.is_empty() {
            assert_eq!(keys.len(), cu_seqlens.len() - 1, "attention: keys are not [B]");
            for (&keys, bounds) in keys.iter().zip(cu_seqlens.windows(2)) {
                let length = bounds[1] - bounds[0];
                assert!(keys <= length && keys >= length.min(1), "attention: {keys} keys in a sequence of {length}");
            }
        }
        if let Some(dropout) = &self.dropout {
            assert!((0.0..1.0).contains(&dropout.rate), "attention: dropout rate {}", dropout.rate);
            assert!(u32::try_from(area(tokens, self.heads)).is_ok(), "attention: more than 2^32 rows of dropout");
        }
        tokens
    }

    /// Checks that an operand of length `len` holds `tokens` rows with row stride `ld`.
    fn assert_rows(&self, name: &str, len: usize, tokens: usize, ld: usize) {
        assert!(ld >= self.hidden(), "attention: rows of {name} are {ld} apart, but {} wide", self.hidden());
        let least = span(tokens, self.hidden(), ld);
        assert!(len >= least, "attention: {name} holds {len} elements, {tokens} rows take {least}");
    }
}

/// Contiguous sequences of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Ragged<'a> {
    /// [B + 1] the first token of each sequence, then T; starts with 0, not decreasing.
    pub cu_seqlens: &'a [u32],
    /// `[B]` number of tokens of each sequence, from its first on, that are keys: at least 1, unless the sequence is empty.
    /// The others are only queries. Empty slice: every token is a key.
    pub keys: &'a [u32],
}

impl<'a> From<&'a [u32]> for Ragged<'a> {
    /// Every token is a key.
    fn from(cu_seqlens: &'a [u32]) -> Self {
        Self { cu_seqlens, keys: &[] }
    }
}

impl<'a> From<&'a Vec<u32>> for Ragged<'a> {
    /// Every token is a key.
    fn from(cu_seqlens: &'a Vec<u32>) -> Self {
        Self { cu_seqlens, keys: &[] }
    }
}

impl Ragged<'_> {
    /// First token, end and number of keys of sequence `b`.
    pub fn sequence(&self, b: usize) -> (usize, usize, usize) {
        let (start, end) = (self.cu_seqlens[b] as usize, self.cu_seqlens[b + 1] as usize);
        (start, end, self.keys.get(b).map_or(end - start, |&keys| keys as usize))
    }

    /// T
    fn tokens(&self) -> usize {
        self.cu_seqlens[self.count()] as usize
    }

    /// B
    pub fn count(&self) -> usize {
        self.cu_seqlens.len() - 1
    }
}

/// Operands of a pass. Row t of `q`, `k` and `v` starts at `t * ld` and is H wide: three slices of one [T, 3H] buffer, or
/// three buffers.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a, X> {
    /// Sequences of the batch.
    pub sequences: Ragged<'a>,
    /// Queries.
    pub q: &'a [X],
    /// Keys.
    pub k: &'a [X],
    /// Values.
    pub v: &'a [X],
    /// Elements between the starts of two rows.
    pub ld: usize,
}

/// Inputs of the backward pass: results of the forward pass, and the gradient that arrives.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a, X> {
    /// Result of [`forward`], [T, H].
    pub out: &'a [X],
    /// Its logarithms, [T, A].
    pub lse: &'a [f32],
    /// Gradient of `out`, [T, H].
    pub dout: &'a [X],
}

/// Outputs dq, dk and dv of backward: [T, H] each, rows `ld` apart.
#[derive(Debug)]
pub struct Gradients<'a, X> {
    values: [Disjoint<'a, X>; 3],
    starts: [usize; 3],
    ld: usize,
    /// H, if all three share a buffer.
    fused: Option<usize>,
}

impl<'a, X: Element> Gradients<'a, X> {
    /// Fused in rows of one buffer: dq in columns 0..H, dk in H..2H, dv in 2H..3H; rows `ld` >= 3H apart.
    ///
    /// # Panics
    /// If `hidden` is 0 or `ld` is less than 3 · `hidden`, because the three would overlap.
    pub fn fused(buffer: &'a mut [X], hidden: usize, ld: usize) -> Self {
        assert!(hidden > 0, "attention: dq, dk and dv in one buffer overlap if H is 0");
        let width = area(3, hidden);
        assert!(ld >= width, "attention: rows of [dq|dk|dv] are {ld} apart, but {width} wide");
        let buffer = Disjoint::new(buffer);
        Self { values: [buffer; 3], starts: [0, hidden, 2 * hidden], ld, fused: Some(hidden) }
    }

    /// Three buffers, rows `ld` >= H apart.
    pub fn separate(dq: &'a mut [X], dk: &'a mut [X], dv: &'a mut [X], ld: usize) -> Self {
        Self { values: [dq, dk, dv].map(Disjoint::new), starts: [0; 3], ld, fused: None }
    }
}

/// out = softmax(scale · q kᵀ) v for each sequence and head, and the log of the sum of exponentials.
///
/// Empty sequences are allowed. `out` [T, H]; `lse` [T, A], natural logarithm.
///
/// # Panics
/// If the lengths do not match.
pub fn forward<X: Element>(
    cpu: &Cpu,
    spec: &Attention,
    Operands { sequences, q, k, v, ld }: Operands<'_, X>,
    out: &mut [X],
    lse: &mut [f32],
) {
    let tokens = spec.tokens(sequences);
    for (name, values) in [("q", q), ("k", k), ("v", v)] {
        spec.assert_rows(name, values.len(), tokens, ld);
    }
    assert_eq!(out.len(), area(tokens, spec.hidden()), "attention: out is not [T, H]");
    assert_eq!(lse.len(), area(tokens, spec.heads), "attention: lse is not [T, A]");
    cpu::forward(cpu, spec, sequences, [q, k, v], ld, out, lse);
}

/// Floats of scratch that [`backward`] needs for `tokens` tokens in sequences of at most `longest`: 0 if `longest` is at
/// most 512 (D <= 64; 256 for D <= 128, 128 beyond), else T · H.
pub fn backward_scratch_len(spec: &Attention, tokens: usize, longest: usize) -> usize {
    if longest <= cpu::resident_keys(spec.head_size) { 0 } else { area(tokens, spec.hidden()) }
}

/// Gradients of q, k and v from the gradient of `out`.
///
/// `spec` and operands as in [`forward`]. `gradients` are overwritten. `scratch` holds at least [`backward_scratch_len`] floats of any value.
///
/// # Panics
/// If the lengths do not match.
pub fn backward<X: Element>(
    cpu: &Cpu,
    spec: &Attention,
    Operands { sequences, q, k, v, ld }: Operands<'_, X>,
    Upstream { out, lse, dout }: Upstream<'_, X>,
    gradients: Gradients<'_, X>,
    scratch: &mut [f32],
) {
    let tokens = spec.tokens(sequences);
    for (name, values) in [("q", q), ("k", k), ("v", v)] {
        spec.assert_rows(name, values.len(), tokens, ld);
    }
    for (name, values) in [("out", out), ("dout", dout)] {
        assert_eq!(values.len(), area(tokens, spec.hidden()), "attention: {name} is not [T, H]");
    }
    assert_eq!(lse.len(), area(tokens, spec.heads), "attention: lse is not [T, A]");
    for (i, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
        let len = gradients.values[i].len().saturating_sub(gradients.starts[i]);
        spec.assert_rows(name, len, tokens, gradients.ld);
    }
    if let Some(hidden) = gradients.fused {
        assert_eq!(hidden, spec.hidden(), "attention: dq, dk and dv are {hidden} columns apart");
    }
    let longest = sequences.cu_seqlens.windows(2).map(|b| (b[1] - b[0]) as usize).max().unwrap_or(0);
    let least = backward_scratch_len(spec, tokens, longest);
    assert!(scratch.len() >= least, "attention: scratch holds {} floats, {least} are needed", scratch.len());
    cpu::backward(cpu, spec, sequences, &cpu::Saved { q, k, v, ld, out, lse, dout }, &gradients, scratch);
}
