//! LayerNorm on CPUs.

use super::Spec;
use crate::extent::area;
use crate::pool::Cpu;
use crate::reduce::{add_blocks, column_sums_scratch_len, row_block};
use crate::rows::{Row, Rows, Sum, for_each_block, rows_per_task};
use crate::{
    DType, Element,
    simd::{Kernel, Simd, compiled_here},
};
use std::ops::Range;

/// Operands of [`forward`]; the last three are written.
#[derive(Debug)]
pub struct Forward<'a, X> {
    /// Input [T, H].
    pub x: &'a [X],
    /// Added to `x` before the norm.
    pub residual: Option<&'a [X]>,
    /// γ `[H]`.
    pub gain: &'a [f32],
    /// β `[H]`.
    pub bias: &'a [f32],
    /// The sum s [T, H], which backward needs; `x` without a residual.
    pub s: Option<&'a mut [X]>,
    /// Result [T, H].
    pub y: &'a mut [X],
    /// Mean and rstd of each row, [T, 2].
    pub stats: &'a mut [f32],
}

/// Operands of [`backward`]; `ds` is written, the gradients of the parameters are added to.
#[derive(Debug)]
pub struct Backward<'a, X> {
    /// The sum that was normalized, [T, H].
    pub s: &'a [X],
    /// Its mean and rstd, [T, 2].
    pub stats: &'a [f32],
    /// γ `[H]`.
    pub gain: &'a [f32],
    /// Gradient of the result, [T, H].
    pub dy: &'a [X],
    /// Gradient of the sum, [T, H].
    pub ds: &'a mut [X],
    /// Gradient of γ `[H]`.
    pub dgain: &'a mut [f32],
    /// Gradient of β `[H]`.
    pub dbias: &'a mut [f32],
}

compiled_here! {
    /// y of x (+ residual).
    ///
    /// # Panics
    /// If the lengths do not match `spec`.
    pub fn forward<X>(
        cpu: &Cpu,
        spec: &Spec,
        operands: Forward<'_, X>,
    ) = forward_body;
}

fn forward_body<X: Element>(
    cpu: &Cpu,
    spec: &Spec,
    Forward { x, residual, gain, bias, s: sum_out, y, stats }: Forward<'_, X>,
) {
    let Spec { rows, columns, eps } = *spec;
    let fits = |len: usize| len == area(rows, columns);
    assert!(fits(x.len()) && fits(y.len()), "layernorm: x or y is not {spec:?}");
    assert!(residual.is_none_or(|r| fits(r.len())), "layernorm: the residual is not {spec:?}");
    assert!(sum_out.as_ref().is_none_or(|s| fits(s.len())), "layernorm: the sum is not {spec:?}");
    assert!(gain.len() == columns && bias.len() == columns, "layernorm: gain or bias is not {spec:?}");
    assert_eq!(stats.len(), area(2, rows), "layernorm: stats are not {spec:?}");
    let isa = cpu.isa();
    let outputs = (Rows::new(y, columns), Rows::optional(sum_out, columns), Rows::new(stats, 2));
    for_each_block(cpu, rows, rows_per_task(columns), outputs, |rows, (y, sum_out, stats)| {
        isa.run(ForwardRows { columns, eps, rows, x, residual, gain, bias, sum_out, y, stats });
    });
}

struct ForwardRows<'a, X> {
    columns: usize,
    eps: f32,
    rows: Range<usize>,
    x: &'a [X],
    residual: Option<&'a [X]>,
    gain: &'a [f32],
    bias: &'a [f32],
    sum_out: Option<&'a mut [X]>,
    y: &'a mut [X],
    stats: &'a mut [f32],
}

impl<X: Element> Kernel for ForwardRows<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { columns, eps, rows, x, residual, gain, bias, mut sum_out, y, stats } = self;
        for (i, row) in rows.enumerate() {
            let of_input = row * columns..(row + 1) * columns;
            let of_output = i * columns..(i + 1) * columns;
            let x = &x[of_input.clone()];
            let residual = residual.map(|r| &r[of_input]);
            let sum_out = sum_out.as_deref_mut().map(|s| &mut s[of_output.clone()]);
            let normalize = Normalize { gain, bias, eps, y: &mut y[of_output] };
            let stats = &mut stats[2 * i..2 * i + 2];
            let row = Row::new(simd, columns);
            match (residual, sum_out) {
                (Some(r), Some(s)) => {
                    let row = row.fetching(1, [&*s, &*normalize.y]);
                    let [sum] = row.map_fold(
                        Sum,
                        [x, r],
                        [&mut *s],
                        #[inline(always)]
                        |simd, parts, [sum]| {
                            let s = stored_sum::<X, _, 2>(simd, parts);
                            *sum = simd.add(*sum, s);
                            [s]
                        },
                    );
                    normalize.finish(simd, [&*s], sum, stats, [x, r]);
                }
                (Some(r), None) => {
                    let row = row.fetching(1, [&*normalize.y]);
                    let [sum] = row.fold(
                        Sum,
                        [x, r],
                        #[inline(always)]
                        |simd, parts, [sum]| {
                            *sum = simd.add(*sum, stored_sum::<X, _, 2>(simd, parts));
                        },
                    );
                    normalize.finish(simd, [x, r], sum, stats, [x, r]);
                }
                (None, s) => {
                    let row = row.fetching(1, [&*normalize.y]);
                    let [sum] = row.fold(
                        Sum,
                        [x],
                        #[inline(always)]
                        |simd, [x], [sum]| *sum = simd.add(*sum, x),
                    );
                    normalize.finish(simd, [x], sum, stats, [x]);
                    if let Some(s) = s {
                        s.copy_from_slice(x);
                    }
                }
            }
        }
    }
}

/// Parameters of passes 2 and 3 over a row.
struct Normalize<'a, X> {
    gain: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    y: &'a mut [X],
}

impl<X: Element> Normalize<'_, X> {
    /// Passes 2 and 3 over s, the sum of `parts`; pass 2 prefetches later rows of `read`, the inputs of pass 1.
    #[inline(always)]
    fn finish<S: Simd, const PARTS: usize, const READ: usize>(
        self,
        simd: S,
        parts: [&[X]; PARTS],
        sum: f32,
        stats: &mut [f32],
        read: [&[X]; READ],
    ) {
        let Self { gain, bias, eps, y } = self;
        let row = Row::new(simd, y.len());
        let mean = sum / y.len() as f32;
        let [squares] = row.fetching(2, read).fold(
            Sum,
            parts,
            #[inline(always)]
            |simd, parts, [squares]| {
                let deviation = simd.sub(stored_sum::<X, _, PARTS>(simd, parts), simd.splat(mean));
                *squares = simd.mul_add(deviation, deviation, *squares);
            },
        );
        let rstd = 1.0 / (squares / y.len() as f32 + eps).sqrt();
        // y = (s - mean) · rstd · γ + β
        row.cached().map(
            (parts, [gain, bias]),
            [y],
            #[inline(always)]
            |simd, (parts, [gain, bias])| {
                let s = stored_sum::<X, _, PARTS>(simd, parts);
                let x = simd.mul(simd.sub(s, simd.splat(mean)), simd.splat(rstd));
                [simd.mul_add(x, gain, bias)]
            },
        );
        stats.copy_from_slice(&[mean, rstd]);
    }
}

/// s from its one or two parts, rounded to storage.
#[inline(always)]
fn stored_sum<X: Element, S: Simd, const PARTS: usize>(simd: S, parts: [S::F32; PARTS]) -> S::F32 {
    if PARTS == 1 {
        return parts[0];
    }
    let sum = simd.add(parts[0], parts[1]);
    match X::DTYPE {
        DType::F32 => sum,
        DType::Bf16 => simd.round_bf16(sum),
    }
}

/// Length of the scratch of [`backward`].
pub const fn backward_scratch_len(spec: &Spec) -> usize {
    column_sums_scratch_len(spec.rows, area(2, spec.columns))
}

compiled_here! {
    /// Gradients from s, its statistics and dy. `scratch` holds [`backward_scratch_len`] floats.
    ///
    /// # Panics
    /// If the lengths do not match `spec`.
    pub fn backward<X>(
        cpu: &Cpu,
        spec: &Spec,
        operands: Backward<'_, X>,
        scratch: &mut [f32],
    ) = backward_body;
}

fn backward_body<X: Element>(
    cpu: &Cpu,
    spec: &Spec,
    Backward { s, stats, gain, dy, ds, dgain, dbias }: Backward<'_, X>,
    scratch: &mut [f32],
) {
    let Spec { rows, columns, .. } = *spec;
    let fits = |len: usize| len == area(rows, columns);
    assert!(fits(s.len()) && fits(dy.len()) && fits(ds.len()), "layernorm: s, dy or ds is not {spec:?}");
    assert!(gain.len() == columns && dgain.len() == columns && dbias.len() == columns, "layernorm: not {spec:?}");
    assert_eq!(stats.len(), area(2, rows), "layernorm: stats are not {spec:?}");
    let room = backward_scratch_len(spec);
    assert!(scratch.len() >= room, "layernorm: scratch holds {} floats, {room} are needed", scratch.len());
    if fits(0) {
        return;
    }
    let block = row_block(rows);
    let blocks = rows.div_ceil(block);
    // [2, blocks, H]: dgain of all blocks, then dbias of all blocks.
    let (gains, biases) = scratch[..room].split_at_mut(blocks * columns);
    let isa = cpu.isa();
    let outputs = (Rows::new(ds, block * columns), Rows::new(&mut *gains, columns), Rows::new(&mut *biases, columns));
    for_each_block(cpu, blocks, 1, outputs, |i, (ds, dgain, dbias)| {
        let rows = i.start * block..(i.end * block).min(rows);
        let of_block = rows.start * columns..rows.end * columns;
        let (s, dy) = (&s[of_block.clone()], &dy[of_block]);
        isa.run(BackwardRows { columns, s, stats: &stats[2 * rows.start..2 * rows.end], gain, dy, ds, dgain, dbias });
    });
    add_blocks(cpu, gains, columns, dgain);
    add_blocks(cpu, biases, columns, dbias);
}

/// Block of rows with its partial sums of dgain and dbias.
struct BackwardRows<'a, X> {
    columns: usize,
    s: &'a [X],
    stats: &'a [f32],
    gain: &'a [f32],
    dy: &'a [X],
    ds: &'a mut [X],
    dgain: &'a mut [f32],
    dbias: &'a mut [f32],
}

impl<X: Element> Kernel for BackwardRows<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { columns, s, stats, gain, dy, ds, dgain, dbias } = self;
        dgain.fill(0.0);
        dbias.fill(0.0);
        let rows = s.chunks(columns).zip(dy.chunks(columns)).zip(ds.chunks_mut(columns)).zip(stats.chunks(2));
        for (((s, dy), ds), stats) in rows {
            let (mean, rstd) = (stats[0], stats[1]);
            let row = Row::new(simd, columns);
            // Σ g and Σ g·x̂ of the row; dγ += dy·x̂, dβ += dy.
            let sums = row.fetching(1, [&*ds]).update_fold(
                Sum,
                ([s, dy], [gain]),
                [&mut *dgain, &mut *dbias],
                #[inline(always)]
                |simd, ([s, dy], [gain]), [dgain, dbias], [sum_g, sum_gx]| {
                    let x = simd.mul(simd.sub(s, simd.splat(mean)), simd.splat(rstd));
                    let g = simd.mul(dy, gain);
                    *dgain = simd.mul_add(dy, x, *dgain);
                    *dbias = simd.add(*dbias, dy);
                    *sum_g = simd.add(*sum_g, g);
                    *sum_gx = simd.mul_add(g, x, *sum_gx);
                },
            );
            // ds = rstd · (g - mean g - x̂ · mean (g·x̂))
            let (mean_g, mean_gx) = (sums[0] / columns as f32, sums[1] / columns as f32);
            row.fetching(2, [s, dy]).map(
                ([s, dy], [gain]),
                [ds],
                #[inline(always)]
                |simd, ([s, dy], [gain])| {
                    let rstd = simd.splat(rstd);
                    let x = simd.mul(simd.sub(s, simd.splat(mean)), rstd);
                    let g = simd.sub(simd.mul(dy, gain), simd.splat(mean_g));
                    [simd.mul(rstd, simd.neg_mul_add(x, simd.splat(mean_gx), g))]
                },
            );
        }
    }
}
