//! Packing of a block of A or B into the order in which the microkernel reads it, widened to f32.

use crate::extent::{area, span};
use crate::gemm::operand::Operand;
use crate::{
    Element,
    simd::{Simd, prefetch},
};

/// Steps packed at a time if k runs down columns: a stored row is read from end to end, and the cache lines of the packed
/// block are still in L1 for the next rows.
pub(super) const STEPS: usize = 16;

/// Block of an operand: `depth` steps of k, `count` rows of A or columns of B ("lines").
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// The operand from the first element of the block on.
    pub source: Operand<'a>,
    /// Elements between the starts of two stored rows.
    pub leading: usize,
    /// True if k runs along stored rows (A normal, B transposed), false if it runs down columns.
    pub k_contiguous: bool,
    /// Rows of A or columns of B.
    pub count: usize,
    /// Steps of k.
    pub depth: usize,
}

/// Packs the block as `depth` groups of `width` >= `count` elements, padded with zeros:
/// out[p · width + i] = line i at step p. The rest of `out` is unspecified afterwards.
#[inline(always)]
pub(super) fn panel<S: Simd>(simd: S, block: Block<'_>, width: usize, out: &mut [f32]) {
    match block.source {
        Operand::F32(x) => typed(simd, x, block, width, out),
        Operand::Bf16(x) => typed(simd, x, block, width, out),
    }
}

#[inline(always)]
fn typed<S: Simd, X: Element>(simd: S, x: &[X], block: Block<'_>, width: usize, out: &mut [f32]) {
    let Block { leading, k_contiguous, count, depth, .. } = block;
    let (rows, columns) = if k_contiguous { (count, depth) } else { (depth, count) };
    assert!(count > 0 && depth > 0 && count <= width);
    assert!(span(rows, columns, leading) <= x.len());
    assert!(area(depth, width) <= out.len());
    // SAFETY: the asserts are the conditions of both functions.
    unsafe {
        if k_contiguous {
            transpose(simd, x, block, width, out);
        } else {
            copy(simd, x, block, width, out);
        }
    }
}

/// Stores a vector of a group at `p`: the first `n` lanes, or all of them if `whole`, since the next group overwrites
/// the rest. (Masked stores are slow on some CPUs.)
///
/// # Safety
/// `p` is valid for writing LANES floats if `whole`, and else n.
#[inline(always)]
unsafe fn put<S: Simd>(simd: S, p: *mut f32, whole: bool, n: usize, value: S::F32) {
    // SAFETY: the caller's promise.
    unsafe {
        if whole || n == S::LANES {
            simd.store_ptr(p, value);
        } else {
            simd.store_ptr_partial(p, n, value);
        }
    }
}

/// Packs lines stored along rows: LANES x LANES squares are transposed in registers.
///
/// # Safety
/// `x` holds `count` rows of `depth`, `leading` apart; `out` holds `depth` groups of `width`.
#[inline(always)]
unsafe fn transpose<S: Simd, X: Element>(simd: S, x: &[X], block: Block<'_>, width: usize, out: &mut [f32]) {
    let (Block { leading, count, depth, .. }, out_len) = (block, out.len());
    // The group is narrower than a vector, and a full vector at its start fits `out`.
    let whole = |p: usize| width < S::LANES && p * width + S::LANES <= out_len;
    for first in (0..width).step_by(S::LANES) {
        let valid = count.saturating_sub(first).min(S::LANES);
        let lanes = S::LANES.min(width - first);
        for p in (0..depth).step_by(S::LANES) {
            let steps = S::LANES.min(depth - p);
            let square = if steps == S::LANES {
                // Without a valid row the address is past the operand and may wrap.
                let start = x.as_ptr().wrapping_add(first.wrapping_mul(leading).wrapping_add(p));
                // SAFETY: rows first .. first + valid hold LANES elements from p on; with no valid row nothing is read.
                unsafe { X::load_transposed(simd, start, leading, valid) }
            } else {
                let mut square = [simd.zero(); 16];
                for (i, row) in square.iter_mut().enumerate().take(valid) {
                    let start = (first + i) * leading + p;
                    *row = X::load_partial(simd, &x[start..start + steps]);
                }
                simd.transpose(&mut square);
                square
            };
            for (step, &group) in square.iter().enumerate().take(S::LANES) {
                if step < steps {
                    let p = p + step;
                    // SAFETY: group p < depth starts there, and a full vector stays within `out`.
                    unsafe { put(simd, out.as_mut_ptr().add(p * width + first), whole(p), lanes, group) };
                }
            }
        }
    }
}

/// Packs lines stored across rows: each step is a run of `count` contiguous elements.
///
/// # Safety
/// `x` holds `depth` rows of `count`, `leading` apart; `out` as for [`transpose`].
#[inline(always)]
unsafe fn copy<S: Simd, X: Element>(simd: S, x: &[X], block: Block<'_>, width: usize, out: &mut [f32]) {
    let (Block { leading, count, depth, .. }, out_len) = (block, out.len());
    if count == width && width.is_multiple_of(S::LANES) {
        let (mut from, mut to) = (x.as_ptr(), out.as_mut_ptr());
        for _ in 0..depth {
            for first in (0..width).step_by(S::LANES) {
                // SAFETY: the row holds `width` elements, a multiple of LANES, and so does the group.
                unsafe { simd.store_ptr(to.add(first), X::load_ptr(simd, from.add(first))) };
            }
            (from, to) = (from.wrapping_add(leading), to.wrapping_add(width));
        }
        return;
    }
    // The group is narrower than a vector, and a full vector at its start fits `out`.
    let (whole, exact) = (|p: usize| width < S::LANES && p * width + S::LANES <= out_len, count == width);
    for p in 0..depth {
        // Rows of the next call: the hardware prefetcher does not follow strides this large.
        prefetch(x.as_ptr().wrapping_add((p + STEPS).wrapping_mul(leading)));
        for first in (0..width).step_by(S::LANES) {
            let valid = count.saturating_sub(first).min(S::LANES);
            let start = p * leading + first;
            // Without padding, lanes past the row are overwritten by the next group or not stored.
            let value = if valid == S::LANES || exact && start + S::LANES <= x.len() {
                // SAFETY: the row holds LANES elements from `first` on, or `x` does.
                unsafe { X::load_ptr(simd, x.as_ptr().add(start)) }
            } else {
                #[cfg(planted_bug = "pack")]
                if is_planted() && valid > 0 {
                    // SAFETY: none. Reads one element past the row, which is past the operand in the last row: the
                    // fault that .ci/asan.sh must detect.
                    std::hint::black_box(unsafe { x.as_ptr().add(start + valid).read_volatile() });
                }
                X::load_partial(simd, &x[start.min(x.len())..][..valid])
            };
            let lanes = S::LANES.min(width - first);
            // SAFETY: group p < depth starts there, and a full vector stays within `out`.
            unsafe { put(simd, out.as_mut_ptr().add(p * width + first), whole(p), lanes, value) };
        }
    }
}

/// True if the planted fault of `copy` is enabled.
#[cfg(planted_bug = "pack")]
fn is_planted() -> bool {
    static PLANTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *PLANTED.get_or_init(|| std::env::var_os("PLANTED_BUG").is_some_and(|name| name == "pack"))
}
