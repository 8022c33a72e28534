//! Dense layer in 8-bit integers, for inference: y = epilogue(x·Wᵀ) with weights quantized once and activations row by row.
//!
//! ```text
//! weights       W[j, :] ≈ w_j · V[j, :]            V in -127 ..= 127, w_j = max|W[j, :]| / 127      (output channel j)
//! activations   x[i, :] ≈ s_i · q[i, :] + o_i      q in 0 ..= 255,    o_i = min x[i, :], s_i = (max - min) / 255
//!
//! y[i, j] = s_i·w_j · Σ_k q[i, k]·V[j, k]  +  o_i · (w_j · Σ_k V[j, k])  +  b[j], then the rest of the epilogue
//!           └ f32 ┘   └ exact, in i32 ┘             └ precomputed ┘
//! ```
//!
//! The scheme is the affine one of Jacob et al. 2018 (section 2.1) with the offset kept as a float, so that a rounded zero
//! point costs no accuracy for rows that are never negative or far from zero.
//!
//! | instructions | products per instruction | operands |
//! |---|---|---|
//! | AMX (`tdpbusd`) | 16,384 | bytes |
//! | AVX-512 VNNI, AVX-VNNI (`vpdpbusd`) | 64, 32 | bytes |
//! | AVX2 (`vpmaddwd`, `vpaddd`) | 16 in two instructions | 16 bits |
//! | NEON with dotprod (`sdot`) | 16 | bytes |
//! | NEON (`smlal`) | 4 | 16 bits |
//! | scalar | 1 | bytes |
//!
//! Weights are stored in bytes. For operands of 16 bits they are widened as they are loaded, once for all rows of a tile, and
//! activations are quantized to 16 bits.
//!
//! AVX2's own product of bytes, `vpmaddubsw`, saturates sums of two products at 16 bits. With 16 bits an element it takes as
//! many multiplications for a product and no shorter range, and q is the same everywhere. NEON's `sdot` has signed operands:
//! it multiplies q - 128, and each row of V is padded to a sum of zero, so that the 128 cancels.
//!
//! Sums of integers are exact, so results have the same bits for any number of threads and for all instructions. f32 computes
//! 16 products per AVX-512 instruction: int8 products are at most four times as fast, and the other operations (quantization,
//! GELU, attention, LayerNorm) take a larger share of the time.
//!
//! The loop nest is that of f32 products ([`gemm`](crate::gemm)): a step multiplies a group of four k, or two for operands of
//! 16 bits, where theirs multiplies one f32. Quantized rows are read in place; weights are packed in panels of NR columns,
//! with k padded with zeros.
//!
//! ```text
//!   │ column 0   │ column 1   │ … │ column NR-1 │   k 0..4
//!   │ k0 k1 k2 k3│ k0 k1 k2 k3│   │ k0 k1 k2 k3 │
//!   │ …                                         │   k 4..8
//! ```
//!
//! Limits: f32 in and out; k up to 65,536, where Σ 255·127 still fits an i32.
#![allow(unsafe_code)]

mod cpu;
mod dot;
#[cfg(test)]
mod tests;

use crate::gemm::{ALIASING_STRIDE, Gemm, Output, SliceEpilogue};
use crate::{extent::area, pool::Cpu};
pub(crate) use dot::DotKind;
use dot::with_dot;

/// Maximum k: a longer sum of products could overflow an i32.
pub const MAX_K: usize = 1 << 16;

/// Maximum quantized activation.
pub const LEVELS: f32 = 255.0;

/// Weight matrix [n, k] in 8 bits, in the order in which one instruction set reads it.
#[derive(Clone, Debug)]
pub struct QuantizedWeight {
    kind: DotKind,
    n: usize,
    k: usize,
    /// Groups of a row, with those that fill whole tiles or balance it.
    depth: usize,
    panels: Vec<Line>,
    /// w_j
    scale: Vec<f32>,
    /// w_j · Σ_k V[j, k]
    offset: Vec<f32>,
}

/// A cache line of weights.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([i8; 64]);

// SAFETY: 64 bytes without padding; every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Line {}

impl QuantizedWeight {
    /// Quantizes W, `n` contiguous rows of `k` elements, for the instructions of `cpu`.
    ///
    /// # Panics
    /// If `w` does not hold n·k elements, or k is above [`MAX_K`].
    #[track_caller]
    pub fn new(cpu: &Cpu, n: usize, k: usize, w: &[f32]) -> Self {
        Self::of_kind(DotKind::of(cpu), n, k, w)
    }

    #[track_caller]
    fn of_kind(kind: DotKind, n: usize, k: usize, w: &[f32]) -> Self {
        assert!(k <= MAX_K, "sums over {k} products of 8 bits do not fit an i32; the most is {MAX_K}");
        assert_eq!(w.len(), area(n, k), "a weight of {n} x {k}");
        let (width, group) = (kind.columns(), kind.group());
        let rows = || w.chunks_exact(k.max(1)).map(levels);
        let sums = rows().map(|(_, v)| v.map(i32::from).sum::<i32>().unsigned_abs());
        let greatest = if kind.is_balanced() { sums.max().unwrap_or(0) } else { 0 };
        let depth = kind.depth(k + greatest.div_ceil(127) as usize);
        let mut panels = vec![Line([0; 64]); (n.next_multiple_of(width) * depth * group).div_ceil(64)];
        let (mut scale, mut offset) = (vec![0.0; n], vec![0.0; n]);
        for (j, (step, v)) in rows().enumerate() {
            let panel = j / width * width * depth * group;
            let mut store = |p: usize, v: i8| {
                let at = panel + (p / group * width + j % width) * group + p % group;
                bytemuck::cast_slice_mut::<_, i8>(&mut panels)[at] = v;
            };
            let mut sum = 0i32;
            for (p, v) in v.enumerate() {
                store(p, v);
                sum += i32::from(v);
            }
            let mut rest = if kind.is_balanced() { -sum } else { 0 };
            for p in k..depth * group {
                let v = rest.clamp(-127, 127);
                store(p, v as i8);
                rest -= v;
            }
            scale[j] = step;
            offset[j] = step * sum as f32;
        }
        Self { kind, n, k, depth, panels, scale, offset }
    }

    /// (n, k): outputs and inputs of the layer.
    pub fn size(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.panels[..]) + size_of_val(&self.scale[..]) + size_of_val(&self.offset[..])
    }

    /// Words of scratch that [`linear`] needs for m rows: the quantized rows, with scale and offset.
    pub const fn scratch_len(&self, m: usize) -> usize {
        let [rows, _] = self.kind.padding();
        area(m.next_multiple_of(rows), self.row_stride()).saturating_add(area(m, 2))
    }

    /// Words from one quantized row to the next. Rows a multiple of 4 KiB apart would compete for the same cache sets, so
    /// they are a cache line farther apart.
    const fn row_stride(&self) -> usize {
        let groups = self.depth;
        if groups > 0 && groups.is_multiple_of(ALIASING_STRIDE) { groups + 16 } else { groups }
    }

    /// True if the weight was quantized for the instructions of `cpu`.
    pub fn fits(&self, cpu: &Cpu) -> bool {
        self.kind == DotKind::of(cpu)
    }
}

/// w_j and V\[j, :\] of a row of W.
fn levels(row: &[f32]) -> (f32, impl Iterator<Item = i8>) {
    let greatest = row.iter().fold(0f32, |greatest, x| greatest.max(x.abs()));
    let inverse = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
    (greatest / 127.0, row.iter().map(move |&x| (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8))
}

/// y = epilogue(x·Wᵀ) for m rows: x [m, k], y [m, n], both without gaps. Epilogues as for [`gemm`](crate::gemm::gemm).
///
/// # Panics
/// If the sizes do not match, or the weight was quantized for other instructions than those of `cpu`.
#[track_caller]
pub fn linear(
    cpu: &Cpu,
    x: &[f32],
    weight: &QuantizedWeight,
    y: &mut [f32],
    epilogue: SliceEpilogue<'_, f32>,
    scratch: &mut [u32],
) {
    assert!(weight.fits(cpu), "the weight was quantized for {:?}; quantize it on the same Cpu", weight.kind);
    multiply(cpu, x, weight, y, epilogue, scratch);
}

/// [`linear`] with the instructions that the weight was quantized for.
#[track_caller]
fn multiply(
    cpu: &Cpu,
    x: &[f32],
    weight: &QuantizedWeight,
    y: &mut [f32],
    epilogue: SliceEpilogue<'_, f32>,
    scratch: &mut [u32],
) {
    let (n, k) = weight.size();
    let m = y.len().checked_div(n).unwrap_or(0);
    assert_eq!((x.len(), y.len()), (area(m, k), area(m, n)), "{m} rows through a weight of {n} x {k}");
    let needed = weight.scratch_len(m);
    assert!(scratch.len() >= needed, "{m} rows of {k} need {needed} words of scratch");
    let epilogue = epilogue.check(&Gemm::nt(m, n, k));
    if m > 0 {
        with_dot!(weight.kind, dot => cpu::run(cpu, dot, x, weight, m, Output::new(y), epilogue, scratch));
    }
}
