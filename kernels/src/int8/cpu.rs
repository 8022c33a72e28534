//! Loop nest: rows are quantized into panels; the register tile multiplies a panel of rows with a panel of columns.
//!
//! ```text
//! quantized rows, a panel of H <= ROWS rows:      │ row 0      │ row 1      │ … │ row H-1    │   k 0..4
//!                                                 │ k0 k1 k2 k3│ k0 k1 k2 k3│   │ k0 k1 k2 k3│
//!                                                 │ …                                        │   k 4..8
//! ```
//!
//! A step of the tile multiplies the four activations of each row, broadcast, by the groups of four of all columns. The
//! accumulators are in registers for all of k: a panel of 32 columns and k = 768 is 24 KiB, resident in L1 for all rows of a
//! task.

use super::dot::{Dot, DotKernel, Ints, VECTORS};
use super::{QuantizedWeight, scratch_len};
use crate::activation::Activation;
use crate::pool::part;
use crate::pool::{Cpu, Disjoint};
use crate::register_tile::{RegisterTile, TALLEST, for_height};
use crate::simd::{Simd, from_fn};
use std::ops::Range;

/// Arguments of the layer.
pub(super) struct Product<'a> {
    pub x: &'a [f32],
    pub weight: &'a QuantizedWeight,
    pub bias: Option<&'a [f32]>,
    pub activation: Option<Activation>,
}

/// Maximum panels of rows per task: their quantized rows and a panel of columns fit L2 together.
const PANELS: usize = 8;
/// Number of tasks of a product with enough columns.
const TASKS: usize = 8;
/// Columns of the widest tile.
const WIDEST: usize = 32;

/// Division of the rows into panels.
#[derive(Clone, Copy)]
struct Panels {
    /// Number of rows.
    rows: usize,
    /// Number of panels.
    count: usize,
    /// Bytes of a row: k rounded up to groups of four.
    stride: usize,
}

impl Panels {
    /// Rows of a panel; the heights of panels differ by at most 1.
    #[inline(always)]
    fn rows(&self, i: usize) -> Range<usize> {
        part(self.rows, 1, self.count, i)
    }
    /// Bytes of these rows.
    #[inline(always)]
    fn bytes(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start * self.stride..rows.end * self.stride
    }
}

/// Quantized rows.
#[derive(Clone, Copy)]
struct Quantized<'a> {
    /// Contiguous panels.
    bytes: &'a [u8],
    /// s_i
    scale: &'a [f32],
    /// o_i
    offset: &'a [f32],
}

/// Quantizes the m rows of x, then computes y in tasks.
pub(super) fn run<D: Dot>(cpu: &Cpu, dot: D, product: &Product<'_>, m: usize, y: &mut [f32], scratch: &mut [u32]) {
    let (n, k) = product.weight.size();
    let panels = Panels { rows: m, count: m.div_ceil(D::ROWS), stride: 4 * k.div_ceil(4) };
    let (parameters, bytes) = scratch[..scratch_len(m, k)].split_at_mut(2 * m);
    let (scale, offset) = parameters.split_at_mut(m);
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(bytes);
    let (scale, offset): (&mut [f32], &mut [f32]) = (bytemuck::cast_slice_mut(scale), bytemuck::cast_slice_mut(offset));
    let to = Outputs {
        bytes: Disjoint::new(&mut *bytes),
        scale: Disjoint::new(&mut *scale),
        offset: Disjoint::new(&mut *offset),
    };
    cpu.for_each(panels.count, |panel| dot.vectorize(Quantize { x: product.x, k, panels, panel, to }));
    let quantized = Quantized { bytes, scale, offset };
    let down = panels.count.div_ceil(PANELS);
    let width = VECTORS * D::Float::LANES;
    let across = TASKS.div_ceil(down).min(n.div_ceil(width));
    let y = Disjoint::new(y);
    cpu.for_each(down * across, |task| {
        let columns = part(n, width, across, task % across);
        let of_task = part(panels.count, 1, down, task / across);
        dot.vectorize(Task { product, quantized, panels, of_task, columns, y });
    });
}

/// Destination of quantized rows.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    bytes: Disjoint<'a, u8>,
    scale: Disjoint<'a, f32>,
    offset: Disjoint<'a, f32>,
}

/// Quantization of one panel of rows of x.
struct Quantize<'a> {
    x: &'a [f32],
    k: usize,
    panels: Panels,
    panel: usize,
    to: Outputs<'a>,
}

impl<D: Dot> DotKernel<D> for Quantize<'_> {
    #[inline(always)]
    fn run(self, dot: D) {
        let rows = self.panels.rows(self.panel);
        // SAFETY: panels are disjoint, in bytes and in rows, and one task has each.
        let (bytes, scale, offset) = unsafe {
            let bytes = self.to.bytes.slice(self.panels.bytes(&rows));
            (bytes, self.to.scale.slice(rows.clone()), self.to.offset.slice(rows.clone()))
        };
        for (i, row) in rows.clone().enumerate() {
            let x = &self.x[row * self.k..][..self.k];
            let (inverse, low);
            (scale[i], low, inverse) = range(dot, x);
            offset[i] = low;
            quantize(dot, x, low, inverse, bytes, i, rows.len());
        }
    }
}

/// s, o and 1/s of a row. s is NaN if an element is not finite; then all results of the row are NaN.
#[inline(always)]
fn range<D: Dot>(dot: D, x: &[f32]) -> (f32, f32, f32) {
    let (simd, lanes) = (dot.float(), D::Float::LANES);
    let (mut least, mut greatest) = (simd.splat(f32::INFINITY), simd.splat(f32::NEG_INFINITY));
    let mut finite = simd.zero();
    let mut chunks = x.chunks_exact(lanes);
    for chunk in chunks.by_ref() {
        let x = simd.load(chunk);
        least = simd.min(least, x);
        greatest = simd.max(greatest, x);
        finite = simd.mul_add(x, simd.zero(), finite);
    }
    let (mut low, mut high) = (-simd.reduce_max(simd.neg(least)), simd.reduce_max(greatest));
    let mut zero = simd.reduce_sum(finite);
    for &x in chunks.remainder() {
        (low, high, zero) = (low.min(x), high.max(x), zero + x * 0.0);
    }
    let width = high - low;
    if x.is_empty() {
        return (0.0, 0.0, 0.0);
    }
    let inverse = D::LEVELS / width;
    if zero == 0.0 && inverse.is_finite() {
        (width / D::LEVELS, low, inverse)
    } else {
        // All elements are equal within the resolution of f32, or one is not finite.
        (zero, low, 0.0)
    }
}

/// Quantizes row `i` of a panel of `height` rows.
#[inline(always)]
fn quantize<D: Dot>(dot: D, x: &[f32], low: f32, inverse: f32, bytes: &mut [u8], i: usize, height: usize) {
    let (simd, lanes) = (dot.float(), D::Float::LANES);
    let (lows, inverses) = (simd.splat(low), simd.splat(inverse));
    let place = |p: usize| (p / 4 * height + i) * 4 + p % 4;
    let whole = if lanes < 4 { 0 } else { x.len() / lanes * lanes };
    for first in (0..whole).step_by(lanes) {
        let q = simd.round_to_int(simd.mul(simd.sub(simd.load(&x[first..]), lows), inverses));
        let mut narrow = [0u8; 16];
        // SAFETY: no instruction set has more than 16 lanes.
        unsafe { dot.narrow(narrow.as_mut_ptr(), q) };
        for (word, group) in narrow[..lanes].as_chunks::<4>().0.iter().enumerate() {
            bytes[place(first + 4 * word)..][..4].copy_from_slice(group);
        }
    }
    for (p, &x) in x.iter().enumerate().skip(whole) {
        bytes[place(p)] = ((x - low) * inverse).round_ties_even() as u8;
    }
    for p in x.len()..x.len().next_multiple_of(4) {
        bytes[place(p)] = 0;
    }
}

/// Task: computes a rectangle of y.
struct Task<'a> {
    product: &'a Product<'a>,
    quantized: Quantized<'a>,
    panels: Panels,
    /// The task's panels.
    of_task: Range<usize>,
    columns: Range<usize>,
    y: Disjoint<'a, f32>,
}

impl<D: Dot> DotKernel<D> for Task<'_> {
    #[inline(always)]
    fn run(self, dot: D) {
        let width = VECTORS * D::Float::LANES;
        let stride = self.panels.stride;
        let weights: &[i8] = bytemuck::cast_slice(&self.product.weight.panels);
        let mut sums = [0f32; TALLEST * WIDEST];
        for column in self.columns.clone().step_by(width) {
            let panel = &weights[column * stride..][..width * stride];
            for rows in self.of_task.clone().map(|panel| self.panels.rows(panel)) {
                let bytes = &self.quantized.bytes[self.panels.bytes(&rows)];
                for_height!(RegisterTile::new(D::ROWS, VECTORS), rows.len(), |H, NV| {
                    tile::<D, H, NV>(dot, bytes, panel, &mut sums);
                });
                for (i, row) in rows.enumerate() {
                    self.finish(dot, row, column, &sums[i * width..][..width]);
                }
            }
        }
    }
}

/// Sums of H rows and a panel of columns, as floats, in contiguous rows of the panel's width.
#[inline(always)]
fn tile<D: Dot, const H: usize, const NV: usize>(dot: D, rows: &[u8], panel: &[i8], out: &mut [f32; TALLEST * WIDEST]) {
    let lanes = D::Float::LANES;
    let groups = rows.len() / (4 * H);
    assert!(panel.len() >= groups * NV * lanes * 4 && H * NV * lanes <= out.len());
    let mut sums: [[Ints<D>; NV]; H] = [[dot.float().splat_u32(0); NV]; H];
    let (mut a, mut b) = (rows.as_ptr(), panel.as_ptr());
    for _ in 0..groups {
        // SAFETY: `rows` holds `groups` groups of H · 4 bytes, `panel` as many of NV · LANES · 4.
        unsafe {
            let weights: [Ints<D>; NV] = from_fn(|v| dot.weights(b.add(4 * lanes * v)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let activations = dot.activations(a.add(4 * i));
                for v in 0..NV {
                    sums[v] = dot.dot(sums[v], activations, weights[v]);
                }
            }
            a = a.add(4 * H);
            b = b.add(4 * lanes * NV);
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (v, &sum) in sums.iter().enumerate() {
            let float = dot.float().int_to_float(sum);
            // SAFETY: H · NV · LANES floats fit `out`.
            unsafe { dot.float().store_ptr(out.as_mut_ptr().add((i * NV + v) * lanes), float) };
        }
    }
}

impl Task<'_> {
    /// Computes s·w·sum + o·(w·Σv) + b for a row of a tile, applies the activation and stores the row.
    #[inline(always)]
    fn finish<D: Dot>(&self, dot: D, row: usize, column: usize, sums: &[f32]) {
        let (simd, lanes) = (dot.float(), D::Float::LANES);
        let Product { weight, bias, activation, .. } = self.product;
        let (scale, offset) = (simd.splat(self.quantized.scale[row]), simd.splat(self.quantized.offset[row]));
        for (v, sum) in sums.chunks_exact(lanes).enumerate() {
            let first = column + v * lanes;
            if first >= self.columns.end {
                return;
            }
            let range = first..(first + lanes).min(self.columns.end);
            let of = |values: &[f32]| simd.load_partial(&values[range.clone()]);
            let constant = bias.map_or(simd.zero(), of);
            let constant = simd.mul_add(offset, of(&weight.offset), constant);
            let mut y = simd.mul_add(simd.load(sum), simd.mul(scale, of(&weight.scale)), constant);
            if let Some(activation) = activation {
                y = activation.apply(simd, y);
            }
            let start = row * weight.n;
            // SAFETY: the rectangles of y of different tasks do not overlap.
            simd.store_partial(unsafe { self.y.slice(start + range.start..start + range.end) }, y);
        }
    }
}
