//! Transposition in tiles that fit L1 in both layouts.

use crate::extent::area;
use crate::pool::Cpu;
use crate::rows::{Rows, for_each_block};
use crate::{Element, simd::compiled_here};

/// Rows and columns of a tile: 32 x 32 f32 are 4 KiB read and 4 KiB written.
const TILE: usize = 32;

compiled_here! {
    /// y [columns, rows] = xᵀ for x [rows, columns].
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn transpose<X>(cpu: &Cpu, rows: usize, columns: usize, x: &[X], y: &mut [X]) = transpose_body;
}

fn transpose_body<X: Element>(cpu: &Cpu, rows: usize, columns: usize, x: &[X], y: &mut [X]) {
    let fits = |len: usize| len == area(rows, columns);
    assert!(fits(x.len()) && fits(y.len()), "transpose: x or y is not {rows} x {columns}");
    if x.is_empty() {
        return;
    }
    for_each_block(cpu, columns, TILE, Rows::new(y, rows), |of_y, y| {
        for first in (0..rows).step_by(TILE) {
            let tile = first..(first + TILE).min(rows);
            for (i, column) in of_y.clone().enumerate() {
                for (y, row) in y[i * rows..][tile.clone()].iter_mut().zip(tile.clone()) {
                    *y = x[row * columns + column];
                }
            }
        }
    });
}
