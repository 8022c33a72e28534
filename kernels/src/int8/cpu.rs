//! Quantization of the rows of x, and their product in the loop nest of [`gemm`](crate::gemm).

use super::dot::Dot;
use super::{LEVELS, QuantizedWeight};
use crate::gemm::{
    Beta, Blocking, MicrokernelUser, Output, PanelsOfGroups, Product, RowsOfGroups, Scales, TileEpilogue, chain,
    run_tasks,
};
use crate::pool::{Cpu, Disjoint};
use crate::simd::Simd;
use std::ops::Range;

/// Rows that a task quantizes.
const ROWS: usize = 16;

/// y = epilogue(x·Wᵀ) for m rows of x.
pub(super) fn run<D: Dot>(
    cpu: &Cpu,
    dot: D,
    x: &[f32],
    weight: &QuantizedWeight,
    m: usize,
    y: Output<'_>,
    mut epilogue: TileEpilogue<'_>,
    scratch: &mut [u32],
) {
    let (n, k) = weight.size();
    let (parameters, groups) = scratch[..weight.scratch_len(m)].split_at_mut(2 * m);
    let (row_scale, row_offset) = bytemuck::cast_slice_mut::<u32, f32>(parameters).split_at_mut(m);
    let groups: &mut [D::A] = bytemuck::cast_slice_mut(groups);
    let stride = weight.row_stride();
    let to = Rows {
        groups: Disjoint::new(&mut *groups),
        stride,
        scale: Disjoint::new(&mut *row_scale),
        offset: Disjoint::new(&mut *row_offset),
    };
    cpu.for_each(m.div_ceil(ROWS), |task| {
        let rows = task * ROWS..m.min((task + 1) * ROWS);
        dot.vectorize(Quantize { x, k, depth: weight.depth, rows, to: &to });
    });
    let depth = weight.depth;
    let product = Product {
        m,
        n,
        depth,
        // Sums of integers are exact in any order.
        block: depth,
        chain: chain(depth),
        parts: 1,
        a: RowsOfGroups { groups: &*groups, stride },
        a_in_place: true,
        b: PanelsOfGroups { groups: bytemuck::cast_slice(&weight.panels) },
        b_in_place: true,
        c: y,
        c_start: 0,
        ldc: n,
        beta: Beta::Zero,
        scales: Some(Scales {
            row_scale,
            row_offset,
            column_scale: &weight.scale,
            column_offset: &weight.offset,
            bias: epilogue.take_bias(),
        }),
        epilogue,
    };
    let blocking = Blocking::new(D::SIZE, D::Simd::LANES, cpu.caches());
    let blocking = if D::WHOLE { blocking.in_whole_tiles() } else { blocking };
    run_tasks(cpu, &blocking, 1, |_| product, |task| dot.vectorize(task));
}

/// Destination of quantized rows.
struct Rows<'a, G> {
    groups: Disjoint<'a, G>,
    /// Groups from one row to the next.
    stride: usize,
    scale: Disjoint<'a, f32>,
    offset: Disjoint<'a, f32>,
}

/// Quantization of some rows of x.
struct Quantize<'a, 'r, G> {
    x: &'a [f32],
    k: usize,
    /// Groups of a row.
    depth: usize,
    rows: Range<usize>,
    to: &'r Rows<'a, G>,
}

impl<D: Dot> MicrokernelUser<D> for Quantize<'_, '_, D::A> {
    #[inline(always)]
    fn run(self, dot: D) {
        for row in self.rows {
            let x = &self.x[row * self.k..][..self.k];
            let start = row * self.to.stride;
            // SAFETY: a task has its rows to itself.
            let (groups, scale, offset) = unsafe {
                let groups = self.to.groups.slice(start..start + self.depth);
                (groups, self.to.scale.slice(row..row + 1), self.to.offset.slice(row..row + 1))
            };
            let inverse;
            (scale[0], offset[0], inverse) = range(dot, x);
            quantize(dot, x, offset[0], inverse, bytemuck::cast_slice_mut(groups));
        }
    }
}

/// s, o and 1/s of a row. s is NaN if an element is not finite; then all results of the row are NaN.
#[inline(always)]
fn range<D: Dot>(dot: D, x: &[f32]) -> (f32, f32, f32) {
    let (simd, lanes) = (dot.simd(), D::Simd::LANES);
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
    // -0 becomes +0: which of the two is the least depends on the order.
    low += 0.0;
    let width = high - low;
    if x.is_empty() {
        return (0.0, 0.0, 0.0);
    }
    let inverse = LEVELS / width;
    if zero == 0.0 && inverse.is_finite() {
        (width / LEVELS, low, inverse)
    } else {
        // All elements are equal within the resolution of f32, or one is not finite.
        (zero, low, 0.0)
    }
}

/// Quantizes a row to `q`, whole groups, which are zero past the row's end.
#[inline(always)]
fn quantize<D: Dot>(dot: D, x: &[f32], low: f32, inverse: f32, q: &mut [D::Activation]) {
    let (simd, lanes) = (dot.simd(), D::Simd::LANES);
    let (lows, inverses) = (simd.splat(low), simd.splat(inverse));
    let (q, padding) = q.split_at_mut(x.len());
    let (mut from, mut to) = (x.chunks_exact(lanes), q.chunks_exact_mut(lanes));
    for (x, q) in from.by_ref().zip(to.by_ref()) {
        let rounded = simd.round_to_int(simd.mul(simd.sub(simd.load(x), lows), inverses));
        // SAFETY: the chunk has LANES elements.
        unsafe { dot.narrow(q.as_mut_ptr(), rounded) };
    }
    for (&x, q) in from.remainder().iter().zip(to.into_remainder()) {
        *q = (((x - low) * inverse).round_ties_even() as u8).into();
    }
    padding.fill(0.into());
}
