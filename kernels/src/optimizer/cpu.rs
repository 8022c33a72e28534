//! LAMB and AdamW with SIMD.
#![allow(unsafe_code)]

use super::{AdamConfig, Segment, Step, corrections};
use crate::pool::Cpu;
use crate::rows::{Row, RowOutputs, Rows, Sum};
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Maximum parameters of a task.
const BLOCK: usize = 32 * 1024;
/// Elements whose squares are summed in f32 lanes before they are added in f64.
const F32_RUN: usize = 4096;

fn blocks_of(segment: &Segment) -> usize {
    segment.range.len().div_ceil(BLOCK)
}

fn all_blocks(segments: &[Segment]) -> usize {
    segments.iter().map(blocks_of).sum()
}

/// Segment index and parameters of block `number`.
fn block(segments: &[Segment], number: usize) -> (usize, Range<usize>) {
    let mut within = number;
    for (i, segment) in segments.iter().enumerate() {
        let blocks = blocks_of(segment);
        if within < blocks {
            let start = segment.range.start + within * BLOCK;
            return (i, start..(start + BLOCK).min(segment.range.end));
        }
        within -= blocks;
    }
    unreachable!("block {number} of {}", all_blocks(segments))
}

/// Panics unless lengths agree and segments are in order, disjoint and inside the buffers.
fn check(segments: &[Segment], lengths: [usize; 4]) {
    assert!(lengths.iter().all(|&len| len == lengths[0]), "optimizer: buffers of different lengths: {lengths:?}");
    let mut end = 0;
    for Segment { range, .. } in segments {
        let fits = end <= range.start && range.start <= range.end && range.end <= lengths[0];
        assert!(fits, "optimizer: segment {range:?} overlaps, is out of order, or lies beyond {}", lengths[0]);
        end = range.end;
    }
}

/// Length of the scratch of [`lamb`].
pub fn lamb_scratch_len(segments: &[Segment]) -> usize {
    segments.len() + 2 * all_blocks(segments)
}

/// Buffers of a step, all of one length.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// Parameters, updated.
    pub params: &'a mut [f32],
    /// Their gradients.
    pub grads: &'a [f32],
    /// First moments, updated.
    pub m: &'a mut [f32],
    /// Second moments, updated.
    pub v: &'a mut [f32],
}

/// Updates parameters and moments by one step of LAMB. `scratch` of [`lamb_scratch_len`]
/// starts with the trust ratios of the segments afterwards.
///
/// # Panics
/// If lengths differ, or segments overlap, are out of order or lie outside the buffers.
pub fn lamb(
    cpu: &Cpu,
    hyper: &AdamConfig,
    step: &Step,
    segments: &[Segment],
    buffers: Buffers<'_>,
    scratch: &mut [f64],
) {
    let Buffers { params, grads, m, v } = buffers;
    check(segments, [params.len(), grads.len(), m.len(), v.len()]);
    let isa = cpu.isa();
    let direction = Direction::new(hyper, step);
    let blocks = all_blocks(segments);
    let room = lamb_scratch_len(segments);
    assert!(scratch.len() >= room, "optimizer: scratch holds {} elements, {room} are needed", scratch.len());
    let (ratios, norms) = scratch[..room].split_at_mut(segments.len());

    let weights = &*params;
    let outputs = (Rows::new(&mut *m, 1), Rows::new(&mut *v, 1));
    cpu.for_each_chunk(norms, 2, |number, norms| {
        let (i, range) = block(segments, number);
        // SAFETY: different blocks do not overlap, because segments do not (`check`); each block runs once.
        let (m, v) = unsafe { outputs.part(range.clone()) };
        let direction = direction.of(&segments[i]);
        isa.run(Moments { direction, params: &weights[range.clone()], grads: &grads[range], m, v, norms });
    });

    let mut rest = &*norms;
    for (segment, ratio) in segments.iter().zip(ratios.iter_mut()) {
        let (own, others) = rest.split_at(2 * blocks_of(segment));
        rest = others;
        let squares = own.chunks(2).fold([0.0, 0.0], |sum, norms| [sum[0] + norms[0], sum[1] + norms[1]]);
        let [w, u] = squares.map(f64::sqrt);
        // A NaN norm compares unequal to 0, so the ratio and the weights become NaN.
        *ratio = if segment.adapt && w != 0.0 && u != 0.0 { w / u } else { 1.0 };
    }

    let (m, v, ratios) = (&*m, &*v, &*ratios);
    let params = Rows::new(params, 1);
    cpu.for_each(blocks, |number| {
        let (i, range) = block(segments, number);
        // SAFETY: as above.
        let params = unsafe { params.part(range.clone()) };
        let size = step.learning_rate * ratios[i] as f32;
        let direction = direction.of(&segments[i]);
        isa.run(Apply { direction, size, params, m: &m[range.clone()], v: &v[range] });
    });
}

/// Updates parameters and moments by one step of AdamW: [`lamb`] with all ratios 1, in one pass.
///
/// # Panics
/// If lengths differ, or segments overlap, are out of order or lie outside the buffers.
pub fn adamw(cpu: &Cpu, hyper: &AdamConfig, step: &Step, segments: &[Segment], buffers: Buffers<'_>) {
    let Buffers { params, grads, m, v } = buffers;
    check(segments, [params.len(), grads.len(), m.len(), v.len()]);
    let isa = cpu.isa();
    let direction = Direction::new(hyper, step);
    let outputs = (Rows::new(params, 1), Rows::new(m, 1), Rows::new(v, 1));
    cpu.for_each(all_blocks(segments), |number| {
        let (i, range) = block(segments, number);
        // SAFETY: different blocks do not overlap, because segments do not (`check`); each block runs once.
        let (params, m, v) = unsafe { outputs.part(range.clone()) };
        let direction = direction.of(&segments[i]);
        isa.run(Fused { direction, size: step.learning_rate, params, grads: &grads[range], m, v });
    });
}

/// Coefficients of u.
#[derive(Clone, Copy)]
struct Direction {
    gradient_scale: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    eps: f32,
    weight_decay: f32,
    correct_m: f32,
    correct_v: f32,
}

impl Direction {
    fn new(hyper: &AdamConfig, step: &Step) -> Self {
        let [correct_m, correct_v] = corrections(hyper, step);
        Self {
            gradient_scale: step.gradient_scale,
            beta1: hyper.beta1 as f32,
            one_minus_beta1: (1.0 - hyper.beta1) as f32,
            beta2: hyper.beta2 as f32,
            one_minus_beta2: (1.0 - hyper.beta2) as f32,
            eps: hyper.eps as f32,
            weight_decay: hyper.weight_decay as f32,
            correct_m,
            correct_v,
        }
    }

    fn of(self, segment: &Segment) -> Self {
        Self { weight_decay: if segment.decay { self.weight_decay } else { 0.0 }, ..self }
    }

    /// Updated m and v.
    #[inline(always)]
    fn moments<S: Simd>(self, simd: S, gradient: S::F32, m: S::F32, v: S::F32) -> (S::F32, S::F32) {
        let g = simd.mul(gradient, simd.splat(self.gradient_scale));
        let m = simd.mul_add(simd.splat(self.beta1), m, simd.mul(simd.splat(self.one_minus_beta1), g));
        let v = simd.mul_add(simd.splat(self.beta2), v, simd.mul(simd.splat(self.one_minus_beta2), simd.mul(g, g)));
        (m, v)
    }

    /// u = m / (√v + ε) + λ·w
    #[inline(always)]
    fn update<S: Simd>(self, simd: S, w: S::F32, m: S::F32, v: S::F32) -> S::F32 {
        let m = simd.mul(m, simd.splat(self.correct_m));
        let root = simd.sqrt(simd.mul(v, simd.splat(self.correct_v)));
        let adam = simd.div(m, simd.add(root, simd.splat(self.eps)));
        simd.mul_add(simd.splat(self.weight_decay), w, adam)
    }
}

/// First pass of LAMB over a block.
struct Moments<'a> {
    direction: Direction,
    params: &'a [f32],
    grads: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    norms: &'a mut [f64],
}

impl Kernel for Moments<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { direction, params, grads, m, v, norms } = self;
        norms.fill(0.0);
        let inputs = params.chunks(F32_RUN).zip(grads.chunks(F32_RUN));
        for ((w, g), (m, v)) in inputs.zip(m.chunks_mut(F32_RUN).zip(v.chunks_mut(F32_RUN))) {
            let row = Row::new(simd, w.len()).cached();
            let squares: [f32; 2] = row.update_fold(
                Sum,
                [w, g],
                [m, v],
                #[inline(always)]
                |simd, [w, g], [m, v], [ww, uu]| {
                    (*m, *v) = direction.moments(simd, g, *m, *v);
                    let u = direction.update(simd, w, *m, *v);
                    *ww = simd.mul_add(w, w, *ww);
                    *uu = simd.mul_add(u, u, *uu);
                },
            );
            norms.iter_mut().zip(squares).for_each(|(norm, square)| *norm += f64::from(square));
        }
    }
}

/// Second pass of LAMB over a block: w -= size · u
struct Apply<'a> {
    direction: Direction,
    size: f32,
    params: &'a mut [f32],
    m: &'a [f32],
    v: &'a [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { direction, size, params, m, v } = self;
        let row = Row::new(simd, m.len()).cached();
        row.update(
            [m, v],
            [params],
            #[inline(always)]
            |simd, [m, v], [w]| {
                *w = simd.neg_mul_add(simd.splat(size), direction.update(simd, *w, m, v), *w);
            },
        );
    }
}

/// AdamW over a block.
struct Fused<'a> {
    direction: Direction,
    size: f32,
    params: &'a mut [f32],
    grads: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl Kernel for Fused<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { direction, size, params, grads, m, v } = self;
        let row = Row::new(simd, grads.len()).cached();
        row.update(
            [grads],
            [params, m, v],
            #[inline(always)]
            |simd, [g], [w, m, v]| {
                (*m, *v) = direction.moments(simd, g, *m, *v);
                *w = simd.neg_mul_add(simd.splat(size), direction.update(simd, *w, *m, *v), *w);
            },
        );
    }
}
