//! Solutions of all exercises, with their tests.

use crate::lesson_1_model::{self, Layer};
use crate::lesson_3_gradient::{self, H, Matrix, Vector};
use crate::lesson_4_tiles::{self, Machine};
use crate::lesson_5_rows::{self, EPS};
use crate::lesson_7_pipeline::{self, STAGES};
use crate::{lesson_2_masks, lesson_6_race, lesson_8_sums};
use engine::{Result, nn::Value, philox::Stream};
use kernels::Isa;
use kernels::rows::{Row, Sum};
use kernels::simd::{Kernel, Simd};
use std::array::from_fn;

fn encoder<'t>(layer: &Layer, mut x: Value<'t>) -> Result<Value<'t>> {
    for _ in 0..lesson_1_model::N {
        let y = x.add(&layer.attention(&x)?)?.apply(&layer.attention_norm)?;
        x = y.add(&layer.feed_forward(&y)?)?.apply(&layer.output_norm)?;
    }
    Ok(x)
}

fn span(left: usize, stream: &mut Stream) -> usize {
    [1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3][stream.below(11) as usize].min(left)
}

fn gradient(w: &Matrix, y: &[Vector]) -> Matrix {
    let mut dw = [[0.0; H]; H];
    let mut dy = [1.0; H];
    for i in (0..y.len() - 1).rev() {
        let dz: Vector = from_fn(|row| dy[row] * (1.0 - y[i + 1][row].powi(2)));
        for row in 0..H {
            for column in 0..H {
                dw[row][column] += dz[row] * y[i][column];
            }
        }
        dy = from_fn(|column| (0..H).map(|row| w[row][column] * dz[row]).sum());
    }
    dw
}

/// Blocks of 16 x 16: 16 lines of each matrix, 48 of the 64 in the cache.
fn tiles(machine: &mut Machine) {
    let blocks = || (0..lesson_4_tiles::N).step_by(16);
    for (i, j) in blocks().flat_map(|i| blocks().map(move |j| (i, j))) {
        for p in blocks() {
            for i in i..i + 16 {
                for p in p..p + 16 {
                    (j..j + 16).for_each(|j| machine.multiply_add(i, j, p));
                }
            }
        }
    }
}

fn rms_norm(isa: Isa, x: &[f32], gain: &[f32], y: &mut [f32]) {
    isa.run(RmsNorm { x, gain, y });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let row = Row::new(simd, self.x.len());
        let [squares] = row.fold(
            Sum,
            [self.x],
            #[inline(always)]
            |simd, [x], [sum]| *sum = simd.mul_add(x, x, *sum),
        );
        let r = 1.0 / (squares / self.x.len() as f32 + EPS).sqrt();
        row.map(
            [self.x, self.gain],
            [self.y],
            #[inline(always)]
            |simd, [x, gain]| [simd.mul(gain, simd.mul(x, simd.splat(r)))],
        );
    }
}

fn parities(tile: u32) -> [u32; 2] {
    let parity = tile / STAGES % 2;
    [parity, 1 - parity]
}

fn sum(threads: usize, x: &[f32]) -> f32 {
    lesson_8_sums::sum_of_blocks(threads, 1000, x)
}

#[test]
fn lesson_1() {
    lesson_1_model::check(encoder).unwrap();
}

#[test]
fn lesson_2() {
    lesson_2_masks::check(span);
}

#[test]
fn lesson_3() {
    lesson_3_gradient::check(gradient);
}

#[test]
fn lesson_4() {
    lesson_4_tiles::check(tiles);
}

#[test]
fn lesson_5() {
    lesson_5_rows::check(rms_norm);
}

#[test]
fn lesson_6() {
    lesson_6_race::check(&lesson_6_race::EXERCISE.replace("HALVE:\n", "HALVE:\n    bar.sync 0;\n"));
}

#[test]
fn lesson_7() {
    lesson_7_pipeline::check(parities);
}

#[test]
fn lesson_8() {
    lesson_8_sums::check(sum);
}
