//! Microkernel: computes one register tile of C.
//!
//! ```text
//!            NR columns: NV vectors              per step of k: NV loads of B, H broadcasts of A,
//!          ┌────────┬────────┐                   H·NV fused multiply-adds into H·NV registers
//!   H ≤ MR │ accu-  │ accu-  │
//!   rows   │ mula-  │ mula-  │   AVX-512: 14 x 2 accumulators + 2 of B + 1 of A = 31 of 32 registers
//!          │ tors   │ tors   │   AVX2:     6 x 2 accumulators + 2 of B + 1 of A = 15 of 16 registers
//!          └────────┴────────┘
//! ```

use crate::extent::span;
use crate::pool::part;
use crate::simd::{Simd, from_fn, prefetch, prefetch_l2};

/// Prefetch distance of the operands, in steps of k.
const AHEAD: usize = 8;

/// H rows of A for some steps of k: row i at step p is `a[i · row_stride + p · k_stride]`; `row_stride` or `k_stride` is 1.
#[derive(Clone, Copy)]
pub(super) struct PanelA<'a> {
    pub a: &'a [f32],
    pub row_stride: usize,
    pub k_stride: usize,
}

/// NR columns of B for some steps of k: step p starts at `b[p · k_stride]`.
#[derive(Clone, Copy)]
pub(super) struct PanelB<'a> {
    pub b: &'a [f32],
    pub k_stride: usize,
}

/// Prefetches issued during a tile: the next tile's lines of C and of the epilogue's matrix, and a part of the next
/// panel of B. They are issued one row at a time, because a core has about a dozen line-fill buffers and the operands
/// need some of them.
#[derive(Clone, Copy)]
pub(super) struct NextTile {
    /// C at the next tile; any address.
    pub c: *const f32,
    /// The epilogue's matrix at the next tile, or `c` if it has none; any address.
    pub matrix: *const f32,
    /// Leading dimension of both.
    pub ldc: usize,
    /// Part of the next panel of B; any address.
    pub b: *const f32,
    /// Cache lines of `b` to prefetch per row.
    pub lines: usize,
}

impl NextTile {
    /// Null addresses: the prefetches have no effect.
    pub(super) const NONE: Self =
        Self { c: std::ptr::null(), matrix: std::ptr::null(), ldc: 0, b: std::ptr::null(), lines: 0 };

    /// Prefetches row `i`, `width` columns wide.
    #[inline(always)]
    fn prefetch_row(self, i: usize, width: usize) {
        for matrix in [self.c, self.matrix] {
            let row = matrix.wrapping_add(i.wrapping_mul(self.ldc));
            for line in (0..width).step_by(16) {
                prefetch(row.wrapping_add(line));
            }
        }
        for line in i * self.lines..(i + 1) * self.lines {
            prefetch_l2(self.b.wrapping_add(16 * line));
        }
    }
}

impl PanelA<'_> {
    /// Panics if the panel does not hold `height` rows of `depth` steps.
    #[inline(always)]
    pub(super) fn check(&self, height: usize, depth: usize) {
        assert!(self.row_stride == 1 || self.k_stride == 1);
        let reach =
            if self.k_stride == 1 { span(height, depth, self.row_stride) } else { span(depth, height, self.k_stride) };
        assert!(self.a.len() >= reach);
    }
}

impl PanelB<'_> {
    /// Panics if the panel does not hold `width` columns of `depth` steps.
    #[inline(always)]
    pub(super) fn check(&self, width: usize, depth: usize) {
        assert!(self.b.len() >= span(depth, width, self.k_stride));
    }
}

/// A\[H, depth\] · B\[depth, NR\], summed in chains of `chain` steps (at least 1 unless `depth` is 0), which are added
/// in order. The sum of the previous chains is kept in `partial`, in L1, because registers do not hold two sets of
/// accumulators; the store and the load of the tile cost a hundredth of a chain.
///
/// # Safety
/// `panel_a` holds H rows and `panel_b` NV vectors of `depth` steps (their `check`); `partial` is valid for reading and
/// writing H · NV vectors.
#[inline(always)]
pub(super) unsafe fn product<S: Simd, const H: usize, const NV: usize>(
    simd: S,
    [depth, chain]: [usize; 2],
    panel_a: PanelA<'_>,
    panel_b: PanelB<'_>,
    next: NextTile,
    partial: *mut f32,
) -> [[S::F32; NV]; H] {
    let mut start = 0;
    loop {
        let steps = chain.min(depth - start);
        let last = start + steps == depth;
        let (a, b) =
            (&panel_a.a[start * panel_a.k_stride..], PanelB { b: &panel_b.b[start * panel_b.k_stride..], ..panel_b });
        let next = last.then_some(next);
        // SAFETY: the caller's promise, for steps start .. start + steps.
        unsafe {
            let mut acc = if panel_a.k_stride == 1 && H > 1 {
                product_strided(simd, steps, a.as_ptr(), panel_a.row_stride, b, next)
            } else {
                product_packed(simd, steps, a.as_ptr(), panel_a.k_stride, b, next)
            };
            if start > 0 {
                add_rows(simd, &mut acc, partial, NV * S::LANES);
            }
            if last {
                return acc;
            }
            store_rows(simd, &acc, partial, NV * S::LANES);
        }
        start += steps;
    }
}

/// Prefetches NR columns of B at `b`.
#[inline(always)]
fn prefetch_b<S: Simd, const NV: usize>(b: *const f32) {
    for line in (0..NV * S::LANES).step_by(16) {
        prefetch(b.wrapping_add(line));
    }
}

/// [`product`] of an A whose H elements of a step are contiguous: packed, or stored transposed.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn product_packed<S: Simd, const H: usize, const NV: usize>(
    simd: S,
    depth: usize,
    mut a: *const f32,
    group: usize,
    panel_b: PanelB<'_>,
    next: Option<NextTile>,
) -> [[S::F32; NV]; H] {
    let mut acc = [[simd.zero(); NV]; H];
    let mut b = panel_b.b.as_ptr();
    let (a_ahead, b_ahead) = (AHEAD.wrapping_mul(group), AHEAD.wrapping_mul(panel_b.k_stride));
    // One loop if nothing is prefetched between rows: each loop exit costs a branch misprediction.
    let parts = if next.is_some() { H } else { 1 };
    for i in 0..parts {
        if let Some(next) = next {
            next.prefetch_row(i, NV * S::LANES);
        }
        for _ in part(depth, 1, parts, i) {
            prefetch_b::<S, NV>(b.wrapping_add(b_ahead));
            prefetch(a.wrapping_add(a_ahead));
            prefetch(a.wrapping_add(a_ahead.wrapping_add(H - 1)));
            // SAFETY: the caller's promise; the pointers advance by one step.
            unsafe {
                let row: [S::F32; NV] = from_fn(|v| simd.load_ptr(b.add(v * S::LANES)));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let factor = simd.splat(*a.add(i));
                    for v in 0..NV {
                        acc[v] = simd.mul_add(factor, row[v], acc[v]);
                    }
                }
            }
            a = a.wrapping_add(group);
            b = b.wrapping_add(panel_b.k_stride);
        }
    }
    acc
}

/// [`product`] of an A whose rows are contiguous along k, read in place. Five pointers address up to 15 rows, three
/// each.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn product_strided<S: Simd, const H: usize, const NV: usize>(
    simd: S,
    depth: usize,
    a: *const f32,
    row_stride: usize,
    panel_b: PanelB<'_>,
    next: Option<NextTile>,
) -> [[S::F32; NV]; H] {
    const { assert!(H <= 15) };
    let mut acc = [[simd.zero(); NV]; H];
    let mut b = panel_b.b.as_ptr();
    let b_ahead = AHEAD.wrapping_mul(panel_b.k_stride);
    // Five variables: an array would be kept in memory.
    let row = |i: usize| a.wrapping_add(i.wrapping_mul(row_stride));
    let (mut a0, mut a1, mut a2) = (row(0), row(3), row(6));
    let (mut a3, mut a4) = (row(9), row(12));
    // One loop if nothing is prefetched between rows: each loop exit costs a branch misprediction.
    let parts = if next.is_some() { H } else { 1 };
    for i in 0..parts {
        if let Some(next) = next {
            next.prefetch_row(i, NV * S::LANES);
        }
        for _ in part(depth, 1, parts, i) {
            prefetch_b::<S, NV>(b.wrapping_add(b_ahead));
            // SAFETY: the caller's promise; the pointers advance by one step, and pointers to rows past H are not read.
            unsafe {
                let row: [S::F32; NV] = from_fn(|v| simd.load_ptr(b.add(v * S::LANES)));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let three = if i < 3 {
                        a0
                    } else if i < 6 {
                        a1
                    } else if i < 9 {
                        a2
                    } else if i < 12 {
                        a3
                    } else {
                        a4
                    };
                    let factor = simd.splat(*three.wrapping_add(i % 3 * row_stride));
                    for v in 0..NV {
                        acc[v] = simd.mul_add(factor, row[v], acc[v]);
                    }
                }
            }
            (a0, a1, a2) = (in_register(a0), in_register(a1), in_register(a2));
            (a3, a4) = (in_register(a3), in_register(a4));
            b = b.wrapping_add(panel_b.k_stride);
        }
    }
    acc
}

/// Pointer to the next step of a row. The empty assembly hides that all pointers advance alike: the compiler would
/// otherwise give each row its own pointer, more than there are registers.
#[allow(clippy::pointers_in_nomem_asm_block)]
#[inline(always)]
fn in_register(mut p: *const f32) -> *const f32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no instruction: the pointer is unchanged, and nothing is read or written.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags));
    }
    p = p.wrapping_add(1);
    p
}

/// Stores C = acc (+ C) (+ bias) from registers.
///
/// # Safety
/// `c` is valid for reading and writing H rows of NV vectors, `ldc` apart.
#[inline(always)]
pub(super) unsafe fn write<S: Simd, const H: usize, const NV: usize>(
    simd: S,
    mut acc: [[S::F32; NV]; H],
    c: *mut f32,
    ldc: usize,
    add: bool,
    bias: Option<&[f32]>,
) {
    // By reference: iterators over arrays by value do not unroll and would spill the accumulators.
    if add {
        // SAFETY: the caller's promise.
        unsafe { add_rows(simd, &mut acc, c, ldc) };
    }
    if let Some(bias) = bias {
        let bias: [S::F32; NV] = from_fn(|v| simd.load(&bias[v * S::LANES..]));
        for row in &mut acc {
            for (acc, &bias) in row.iter_mut().zip(&bias) {
                *acc = simd.add(*acc, bias);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store_rows(simd, &acc, c, ldc) };
}

/// acc = C + acc
///
/// # Safety
/// `c` is valid for reading H rows of NV vectors, `ldc` apart.
#[inline(always)]
unsafe fn add_rows<S: Simd, const H: usize, const NV: usize>(
    simd: S,
    acc: &mut [[S::F32; NV]; H],
    c: *const f32,
    ldc: usize,
) {
    for (i, row) in acc.iter_mut().enumerate() {
        for (v, acc) in row.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *acc = simd.add(unsafe { simd.load_ptr(c.add(i * ldc + v * S::LANES)) }, *acc);
        }
    }
}

/// C = acc
///
/// # Safety
/// `c` is valid for writing H rows of NV vectors, `ldc` apart.
#[inline(always)]
unsafe fn store_rows<S: Simd, const H: usize, const NV: usize>(
    simd: S,
    acc: &[[S::F32; NV]; H],
    c: *mut f32,
    ldc: usize,
) {
    for (i, row) in acc.iter().enumerate() {
        for (v, &acc) in row.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { simd.store_ptr(c.add(i * ldc + v * S::LANES), acc) };
        }
    }
}
