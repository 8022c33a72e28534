//! Packing of a head's rows into scratch, widened to f32, and unpacking.
//!
//! In scratch, the D columns of a head are stored in chunks of 64 columns, the last one partly used:
//!
//! ```text
//!   chunk 0              chunk 1
//!   row 0  x0 ... x63    row 0  x64 ... x127
//!   row 1  x0 ... x63    row 1  x64 ... x127
//!   ...    (capacity rows)
//! ```
//!
//! A transposed panel of up to 64 queries is D rows of 64 queries. So every matrix in scratch has rows of 64 elements;
//! `product` explains the benefit.

use crate::extent::{area, span};
use crate::{Element, simd::Simd};

/// Columns of a chunk, a multiple of the lanes of every instruction set.
pub(super) const CHUNK: usize = 64;

/// Keys of a tile: the tile of a panel, 16 KiB, stays in L1 with its queries and a tile of keys or values.
pub(super) const KEYS: usize = 64;

/// Number of chunks of a head of `d` columns.
pub(super) const fn chunks(d: usize) -> usize {
    d.div_ceil(CHUNK)
}

/// Index and number of columns of each chunk of a head.
pub(super) fn chunk_widths(d: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..chunks(d)).map(move |c| (c, CHUNK.min(d - c * CHUNK)))
}

/// Index of row `row` of chunk `chunk` in a buffer for `capacity` rows.
#[inline(always)]
pub(super) fn at(chunk: usize, capacity: usize, row: usize) -> usize {
    (chunk * capacity + row) * CHUNK
}

/// Rows of one head in a batch: row i starts at `values[start + i * ld]`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, X> {
    pub(super) values: &'a [X],
    pub(super) start: usize,
    pub(super) ld: usize,
}

impl<X: Element> Rows<'_, X> {
    /// Packs the `width` columns from `column` on of `rows` rows, widened, rows CHUNK apart; the last vector is padded
    /// with zeros.
    #[inline(always)]
    pub(super) fn pack_chunk<S: Simd>(self, simd: S, rows: usize, column: usize, width: usize, out: &mut [f32]) {
        let start = self.start + column;
        assert!(width <= CHUNK && out.len() >= area(rows, CHUNK));
        assert!(span(rows, width, self.ld) <= self.values.len().saturating_sub(start));
        let (from, to) = (self.values.as_ptr().wrapping_add(start), out.as_mut_ptr());
        // SAFETY: by the asserts the `width` elements of every row are within `values`, and its CHUNK elements within `out`.
        unsafe {
            if width == CHUNK {
                // A constant number of vectors: few instructions, so that loads of several rows are in flight.
                for i in 0..rows {
                    pack_row(simd, from.add(i * self.ld), CHUNK, to.add(i * CHUNK));
                }
            } else {
                for i in 0..rows {
                    pack_row(simd, from.add(i * self.ld), width, to.add(i * CHUNK));
                }
            }
        }
    }

    /// Packs the `width` columns from `column` on of up to CHUNK rows, transposed: `out[x * CHUNK + i]` is column x of
    /// row i. Rows of `out` are padded to whole vectors with zeros, and rows of zeros follow up to a multiple of `block`.
    #[inline(always)]
    pub(super) fn pack_transposed<S: Simd>(
        self,
        simd: S,
        rows: usize,
        (column, width): (usize, usize),
        block: usize,
        out: &mut [f32],
    ) {
        out[width * CHUNK..width.next_multiple_of(block) * CHUNK].fill(0.0);
        for first in (0..rows).step_by(S::LANES) {
            for x in (0..width).step_by(S::LANES) {
                let (lines, count) = (S::LANES.min(rows - first), S::LANES.min(width - x));
                let from = &self.values[self.start + first * self.ld + column + x..];
                let mut square = [simd.zero(); 16];
                // Full squares have their own branch, so that they stay in registers.
                if lines == S::LANES && count == S::LANES {
                    assert!(from.len() >= (S::LANES - 1) * self.ld + S::LANES);
                    for (i, line) in square.iter_mut().enumerate().take(S::LANES) {
                        // SAFETY: line i < LANES ends within what is asserted.
                        *line = unsafe { X::load_ptr(simd, from.as_ptr().add(i * self.ld)) };
                    }
                } else {
                    for (i, line) in square.iter_mut().enumerate().take(lines) {
                        *line = X::load_partial(simd, &from[i * self.ld..][..count]);
                    }
                }
                simd.transpose(&mut square);
                let to = &mut out[x * CHUNK + first..];
                if count == S::LANES {
                    assert!(to.len() >= (S::LANES - 1) * CHUNK + S::LANES);
                    for (i, &line) in square.iter().enumerate().take(S::LANES) {
                        // SAFETY: line i < LANES ends within what is asserted.
                        unsafe { simd.store_ptr(to.as_mut_ptr().add(i * CHUNK), line) };
                    }
                } else {
                    for (i, &line) in square.iter().enumerate().take(count) {
                        simd.store(&mut to[i * CHUNK..], line);
                    }
                }
            }
        }
    }

    /// Packs all `d` columns of `rows` rows. Rows and columns of a chunk are padded with zeros to multiples of `block`.
    #[inline(always)]
    pub(super) fn pack<S: Simd>(self, simd: S, rows: usize, d: usize, capacity: usize, block: usize, out: &mut [f32]) {
        for (c, width) in chunk_widths(d) {
            let out = &mut out[at(c, capacity, 0)..at(c, capacity, rows.next_multiple_of(block))];
            let (packed, padding) = out.split_at_mut(rows * CHUNK);
            self.pack_chunk(simd, rows, c * CHUNK, width, packed);
            padding.fill(0.0);
            let padded = width.next_multiple_of(block);
            if padded > width {
                packed.chunks_exact_mut(CHUNK).for_each(|row| row[width..padded].fill(0.0));
            }
        }
    }
}

/// Widens `width` elements; the last vector is padded with zeros.
///
/// # Safety
/// `from` is valid for reading `width` elements, `to` for writing as many floats, rounded up to whole vectors.
#[inline(always)]
unsafe fn pack_row<S: Simd, X: Element>(simd: S, from: *const X, width: usize, to: *mut f32) {
    let full = width / S::LANES * S::LANES;
    // SAFETY: the caller's promise.
    unsafe {
        for x in (0..full).step_by(S::LANES) {
            simd.store_ptr(to.add(x), X::load_ptr(simd, from.add(x)));
        }
        if full < width {
            let rest = std::slice::from_raw_parts(from.add(full), width - full);
            simd.store_ptr(to.add(full), X::load_partial(simd, rest));
        }
    }
}

/// Writes row `row` of `packed`, times `factor`, to `out`, rounded to its storage type.
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
