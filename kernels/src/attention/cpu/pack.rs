//! Heads cut out of the rows of a batch, widened to f32, and put back.
//!
//! A head's D columns of some rows lie in scratch in chunks of 64 columns, the last one partly used:
//!
//! ```text
//!   chunk 0              chunk 1
//!   row 0  x0 ... x63    row 0  x64 ... x127
//!   row 1  x0 ... x63    row 1  x64 ... x127
//!   ...    (capacity rows)
//! ```
//!
//! so that the distance of two rows is the same whatever D is: the compiler folds it into the addresses of the product
//! loops, and rows of a batch, a power of two apart more often than not, do not compete for the same lines of L1.

use crate::simd::{Element, Simd};

/// Columns of a chunk, a multiple of every number of lanes.
pub(super) const CHUNK: usize = 64;

/// Chunks of a head of `d` columns.
pub(super) const fn chunks(d: usize) -> usize {
    d.div_ceil(CHUNK)
}

/// The chunks of a head: their number and the columns of each.
pub(super) fn chunk_widths(d: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..chunks(d)).map(move |c| (c, CHUNK.min(d - c * CHUNK)))
}

/// Row `row` of chunk `chunk` where there is room for `capacity` rows.
#[inline(always)]
pub(super) fn at(chunk: usize, capacity: usize, row: usize) -> usize {
    (chunk * capacity + row) * CHUNK
}

/// Some rows of one head in a batch: row i is `width` numbers from `values[start + i * ld]`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, X> {
    pub(super) values: &'a [X],
    pub(super) start: usize,
    pub(super) ld: usize,
}

impl<X: Element> Rows<'_, X> {
    /// The `width` columns from `column` on of `rows` rows, widened, rows CHUNK apart; the vector that is begun is
    /// filled with zeros.
    #[inline(always)]
    pub(super) fn pack_chunk<S: Simd>(self, simd: S, rows: usize, column: usize, width: usize, out: &mut [f32]) {
        let full = width / S::LANES * S::LANES;
        for (i, to) in out.chunks_exact_mut(CHUNK).take(rows).enumerate() {
            let from = &self.values[self.start + i * self.ld + column..][..width];
            let mut x = 0;
            while x < full {
                simd.store(&mut to[x..], X::load(simd, &from[x..]));
                x += S::LANES;
            }
            if full < width {
                simd.store(&mut to[full..], X::load_partial(simd, &from[full..]));
            }
        }
    }

    /// All `d` columns of `rows` rows.
    #[inline(always)]
    pub(super) fn pack<S: Simd>(self, simd: S, rows: usize, d: usize, capacity: usize, out: &mut [f32]) {
        for (c, width) in chunk_widths(d) {
            self.pack_chunk(simd, rows, c * CHUNK, width, &mut out[at(c, capacity, 0)..at(c, capacity, rows)]);
        }
    }
}

/// Writes row `row` of `packed`, times `factor`, as the numbers of `out`.
#[inline(always)]
pub(super) fn unpack_row<S: Simd, X: Element>(
    simd: S,
    packed: &[f32],
    capacity: usize,
    row: usize,
    factor: f32,
    out: &mut [X],
) {
    let factor = simd.splat(factor);
    for (c, to) in out.chunks_mut(CHUNK).enumerate() {
        let from = &packed[at(c, capacity, row)..][..CHUNK];
        let full = to.len() / S::LANES * S::LANES;
        let mut x = 0;
        while x < full {
            X::store(simd, &mut to[x..], simd.mul(simd.load(&from[x..]), factor));
            x += S::LANES;
        }
        if full < to.len() {
            X::store_partial(simd, &mut to[full..], simd.mul(simd.load(&from[full..]), factor));
        }
    }
}

/// `to[x * width + row] = from[row * CHUNK + x]` for `columns` columns and `rows` rows; the rest of a row of `to` is 0.
#[inline(always)]
pub(super) fn transpose(from: &[f32], rows: usize, columns: usize, width: usize, to: &mut [f32]) {
    assert!(rows <= width && columns <= CHUNK && from.len() >= rows * CHUNK && to.len() >= columns * width);
    let (rows4, columns4) = (rows / 4 * 4, columns / 4 * 4);
    for r in (0..rows4).step_by(4) {
        for x in (0..columns4).step_by(4) {
            let mut block = [[0.0f32; 4]; 4];
            for (i, line) in block.iter_mut().enumerate() {
                line.copy_from_slice(&from[(r + i) * CHUNK + x..][..4]);
            }
            for i in 0..4 {
                let column = [block[0][i], block[1][i], block[2][i], block[3][i]];
                to[(x + i) * width + r..][..4].copy_from_slice(&column);
            }
        }
        for x in columns4..columns {
            for i in r..r + 4 {
                to[x * width + i] = from[i * CHUNK + x];
            }
        }
    }
    for x in 0..columns {
        for r in rows4..rows {
            to[x * width + r] = from[r * CHUNK + x];
        }
        to[x * width + rows..][..width - rows].fill(0.0);
    }
}
