//! Tiles of a matrix unit: panels of pairs of bf16.

use super::add_bias;
use super::split::split;
use crate::gemm::Layout;
use crate::gemm::cpu::blocking::Blocking;
use crate::gemm::cpu::blocks::{
    ALIASING_STRIDE, BlockA, BlockB, ColumnPanels, MatrixA, MatrixB, Panels, RowPanels, Steps,
};
use crate::gemm::cpu::microkernel::{
    Destination, Entered, Microkernel, MicrokernelUser, NextTile, PanelA, PanelB, Part, Tile,
};
use crate::gemm::cpu::packed::WHOLE_PANEL;
use crate::gemm::cpu::{Product, pack, run_tasks};
use crate::gemm::operand::Operand;
use crate::gemm::precision::Precision;
use crate::pool::Cpu;
use crate::register_tile::RegisterTile;
use crate::simd::{Kernel, Simd};
use crate::tiles::{BLOCK, MatrixUnit, SIDE, Section};
use half::bf16;
use std::ops::Range;

/// Pairs of a block of terms.
const PAIRS: usize = BLOCK / 2;

/// Tiles of 32 x 32 sums of a matrix unit, and the vectors of the epilogue.
#[derive(Clone, Copy)]
pub(super) struct PairTile<S, U> {
    simd: S,
    unit: U,
    precision: Precision,
}

/// Runs `count` products.
pub(super) fn run<'a, S: Simd, U: MatrixUnit + 'static>(
    cpu: &Cpu,
    simd: S,
    unit: U,
    precision: Precision,
    count: usize,
    product: impl Fn(usize) -> Product<'a, MatrixA<'a>, MatrixB<'a>> + Sync,
) {
    let blocking = super::blocking(cpu);
    // The macrokernel configures the unit, and packing does not need it.
    run_tasks(cpu, &blocking, count, product, |task| task.run(PairTile { simd, unit, precision }));
}

impl<S: Simd, U: MatrixUnit + 'static> Tile for PairTile<S, U> {
    type Simd = S;
    type A = u32;
    type B = u32;
    const SIZE: RegisterTile = RegisterTile::of_unit(SIDE, SIDE / S::LANES);
    const QUANTIZED: bool = false;
    const FROM_OLD_VALUES: bool = true;
    const WHOLE: bool = true;
    const DEFERS: bool = true;

    #[inline(always)]
    fn simd(self) -> S {
        self.simd
    }
    #[inline(always)]
    fn vectorize<K: MicrokernelUser<Self>>(self, kernel: K) {
        let _configured = self.unit.configure();
        self.simd.vectorize(Entered(self, kernel));
    }
}

impl<S: Simd, U: MatrixUnit + 'static> Microkernel for PairTile<S, U> {
    #[inline(always)]
    unsafe fn tile<const H: usize>(
        self,
        height: usize,
        Part { depth, chain: section, .. }: Part,
        a: PanelA<'_, u32>,
        b: PanelB<'_, u32>,
        next: NextTile,
        to: Destination<'_>,
    ) {
        assert!(height == SIDE && b.k_stride == SIDE && depth.is_multiple_of(PAIRS) && depth <= section);
        next.prefetch(height, SIDE, depth);
        let mut sections = [Section::NONE; Precision::MOST_TERMS];
        let terms = self.precision.terms();
        for (section, &[of_a, of_b]) in sections.iter_mut().zip(terms) {
            *section = Section {
                a: a.a.as_ptr().wrapping_add(of_a * a.part_stride),
                b: b.b.as_ptr().wrapping_add(of_b * b.part_stride),
            };
        }
        // SAFETY: the caller's promise; the macrokernel runs inside `vectorize`, which configures the unit.
        unsafe {
            self.unit.multiply(&sections[..terms.len()], depth / PAIRS, a.row_stride, to.c, to.ldc, to.add);
            add_bias(self.simd, height, SIDE, to);
        }
    }
}

/// A as pairs read in place, if it can be: rows of an even number of bf16 from an even address, which do not map to few
/// cache sets.
pub(super) fn in_place<'a>(a: &MatrixA<'a>) -> Option<&'a [u32]> {
    let Operand::Bf16(elements) = a.a else { return None };
    let suits = a.spec.a == Layout::Normal
        && a.spec.precision == Precision::Bf16
        && a.spec.lda.is_multiple_of(2)
        && a.spec.k.is_multiple_of(BLOCK)
        && !(a.spec.lda / 2).is_multiple_of(ALIASING_STRIDE);
    let whole = &elements[..elements.len() / 2 * 2];
    if suits { bytemuck::try_cast_slice(whole).ok() } else { None }
}

impl<'a, S: Simd, U: MatrixUnit + 'static> RowPanels<PairTile<S, U>> for MatrixA<'a> {
    #[inline(always)]
    fn block<'o>(&self, m: PairTile<S, U>, steps: Steps, panels: Panels, out: &'o mut [u32]) -> BlockA<'o, u32>
    where
        'a: 'o,
    {
        let (Steps { start, depth }, parts) = (steps, m.precision.parts());
        let pairs = in_place(self).filter(|_| depth > 0);
        let stride = self.spec.lda / 2;
        let whole = pairs.map(|pairs| (&pairs[panels.first_row() * stride + start..], stride));
        // In place, only the last panel can have fewer rows: it is packed.
        let packed = panels.iter().filter(|&(_, height)| depth > 0 && (whole.is_none() || height < SIDE));
        for ((row, height), out) in packed.zip(out.chunks_exact_mut((parts * SIDE * depth).max(1))) {
            m.simd.vectorize(PackRows { a: *self, start, depth, row, height, parts, out });
        }
        BlockA::Rows { whole, packed: out, depth, parts }
    }
}

/// Packs rows of A, as many as exist, and zeros for the rest of 32.
struct PackRows<'a, 'o> {
    a: MatrixA<'a>,
    /// First pair of k.
    start: usize,
    /// Pairs, padded.
    depth: usize,
    row: usize,
    height: usize,
    parts: usize,
    out: &'o mut [u32],
}

impl Kernel for PackRows<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { a: MatrixA { spec, a }, start, depth, row, height, parts, out } = self;
        let out: &mut [bf16] = bytemuck::cast_slice_mut(out);
        let width = 2 * depth;
        assert!(out.len() >= parts * SIDE * width && depth.is_multiple_of(PAIRS) && height <= SIDE);
        // Rows of A are "lines" of the panel's steps, so that a step holds some k of a row.
        let mut square = [0f32; BLOCK * SIDE];
        for p in (0..width).step_by(BLOCK) {
            let k = 2 * start + p;
            let exist = BLOCK.min(spec.k - k);
            let at = if spec.a == Layout::Normal { row * spec.lda + k } else { k * spec.lda + row };
            let block = pack::Block {
                source: a.from(at),
                leading: spec.lda,
                k_contiguous: spec.a == Layout::Transposed,
                count: exist,
                depth: height,
            };
            pack::panel(simd, block, BLOCK, &mut square);
            for i in 0..SIDE {
                for at in (0..BLOCK).step_by(S::LANES) {
                    let x = if i < height { simd.load(&square[i * BLOCK + at..]) } else { simd.zero() };
                    for (part, &x) in split(simd, x, parts).iter().enumerate().take(parts) {
                        bf16_store(simd, &mut out[(part * SIDE + i) * width + p + at..], x);
                    }
                }
            }
        }
    }
}

/// Stores LANES elements.
#[inline(always)]
fn bf16_store<S: Simd>(simd: S, out: &mut [bf16], x: S::F32) {
    <bf16 as crate::Element>::store(simd, out, x);
}

impl<'a, S: Simd, U: MatrixUnit + 'static> ColumnPanels<PairTile<S, U>> for MatrixB<'a> {
    #[inline(always)]
    fn block<'o>(
        &self,
        m: PairTile<S, U>,
        _: &Blocking,
        steps: Steps,
        columns: Range<usize>,
        out: &'o mut [u32],
    ) -> BlockB<'o, u32>
    where
        'a: 'o,
    {
        let parts = m.precision.parts();
        if let Self::Packed(b) = *self
            && parts == 1
            && steps.depth > 0
        {
            let (pairs, step) = b.panels_of_pairs(steps.start, columns.start);
            return BlockB::packed(pairs, SIDE, step, 0).packed_before();
        }
        m.simd.vectorize(PackColumns { b: *self, steps, columns, parts, out: &mut *out });
        BlockB::packed(out, SIDE, parts * SIDE * steps.depth, SIDE * steps.depth)
    }
}

/// Packs columns of B in panels of 32.
pub(in crate::gemm::cpu) struct PackColumns<'a, 'o> {
    pub b: MatrixB<'a>,
    pub steps: Steps,
    pub columns: Range<usize>,
    pub parts: usize,
    pub out: &'o mut [u32],
}

impl Kernel for PackColumns<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { b, steps: Steps { start, depth }, columns, parts, out } = self;
        let panel = SIDE * depth;
        assert!(out.len() >= columns.len().div_ceil(SIDE) * parts * panel && depth.is_multiple_of(PAIRS));
        let mut square = [0f32; BLOCK * SIDE];
        for p in (0..depth).step_by(PAIRS) {
            for j in (0..columns.len()).step_by(SIDE) {
                let column = columns.start + j;
                load_square(simd, b, 2 * (start + p), column..columns.end.min(column + SIDE), &mut square);
                let out = &mut out[j / SIDE * parts * panel + p * SIDE..];
                pair_up(simd, &square, parts, panel, bytemuck::cast_slice_mut(out));
            }
        }
    }
}

/// 32 steps of at most 32 columns of B from `k` on, with zeros for what does not exist.
#[inline(always)]
pub(super) fn load_square<S: Simd>(
    simd: S,
    b: MatrixB<'_>,
    k: usize,
    columns: Range<usize>,
    square: &mut [f32; BLOCK * SIDE],
) {
    let column = columns.start;
    match b {
        MatrixB::Unpacked(spec, b) => {
            let (k_contiguous, ldb) = (spec.b == Layout::Transposed, spec.ldb);
            let at = if k_contiguous { column * ldb + k } else { k * ldb + column };
            let exist = BLOCK.min(spec.k - k);
            let block =
                pack::Block { source: b.from(at), leading: ldb, k_contiguous, count: columns.len(), depth: exist };
            pack::panel(simd, block, SIDE, square);
            square[exist * SIDE..].fill(0.0);
        }
        MatrixB::Packed(b) => square.copy_from_slice(b.steps(k, BLOCK, column)),
    }
}

/// Pairs of neighboring steps of 32 floats, in parts that are `panel` pairs apart.
#[inline(always)]
fn pair_up<S: Simd>(simd: S, square: &[f32; BLOCK * SIDE], parts: usize, panel: usize, out: &mut [f32]) {
    const { assert!(WHOLE_PANEL == SIDE) };
    for (p, steps) in square.chunks_exact(2 * SIDE).enumerate() {
        for at in (0..SIDE).step_by(S::LANES) {
            let (even, odd) = (simd.load(&steps[at..]), simd.load(&steps[SIDE + at..]));
            let (even, odd) = (split(simd, even, parts), split(simd, odd, parts));
            for part in 0..parts {
                let pair = simd.or(simd.shr::<16>(simd.as_bits(even[part])), simd.as_bits(odd[part]));
                simd.store(&mut out[part * panel + p * SIDE + at..], simd.as_floats(pair));
            }
        }
    }
}
