//! Tiles in vector registers: panels of bf16 widened to f32.

use super::split::split_in_place;
use super::{add_bias, clear};
use crate::gemm::Layout;
use crate::gemm::cpu::blocking::Blocking;
use crate::gemm::cpu::blocks::{BlockA, BlockB, ColumnPanels, MatrixA, MatrixB, PackB, Panels, RowPanels, Steps};
use crate::gemm::cpu::microkernel::{
    Destination, Entered, Microkernel, MicrokernelUser, NextTile, PanelA, PanelB, Part, Tile,
};
use crate::gemm::cpu::packed::WHOLE_PANEL;
use crate::gemm::cpu::{Product, pack, run_tasks};
use crate::gemm::operand::Operand;
use crate::gemm::precision::Precision;
use crate::pool::Cpu;
use crate::register_tile::{RegisterTile, for_height};
use crate::simd::{Kernel, Simd};
use crate::tiles::{BLOCK, FlushingFma, PACKED};
use std::ops::Range;

/// Multiply-adds that flush denormals, in the order of tiles.
#[derive(Clone, Copy)]
pub(super) struct FmaTile<S> {
    simd: S,
    precision: Precision,
}

/// Runs `count` products.
pub(super) fn run<'a, S: FlushingFma>(
    cpu: &Cpu,
    simd: S,
    precision: Precision,
    count: usize,
    product: impl Fn(usize) -> Product<'a, MatrixA<'a>, MatrixB<'a>> + Sync,
) {
    let blocking = super::blocking(cpu);
    run_tasks(cpu, &blocking, count, product, |task| FmaTile { simd, precision }.vectorize(task));
}

impl<S: FlushingFma> Tile for FmaTile<S> {
    type Simd = S;
    type A = f32;
    type B = f32;
    const SIZE: RegisterTile = RegisterTile::of::<S>();
    const QUANTIZED: bool = false;
    const FROM_OLD_VALUES: bool = true;

    #[inline(always)]
    fn simd(self) -> S {
        self.simd
    }
    #[inline(always)]
    fn vectorize<K: MicrokernelUser<Self>>(self, kernel: K) {
        self.simd.vectorize(Entered(self, kernel));
    }
}

impl<S: FlushingFma> Microkernel for FmaTile<S> {
    #[inline(always)]
    unsafe fn tile<const H: usize>(
        self,
        height: usize,
        Part { depth, chain: section, .. }: Part,
        a: PanelA<'_, f32>,
        b: PanelB<'_, f32>,
        next: NextTile,
        to: Destination<'_>,
    ) {
        let Self { simd, precision } = self;
        assert!(a.k_stride == height && b.k_stride == Self::NR && depth.is_multiple_of(BLOCK), "packed panels");
        next.prefetch(height, Self::NR, depth);
        // SAFETY: the caller's promise. Panels hold each part's `depth` steps, the sections are within them, and `partial` is
        // not in C.
        unsafe {
            if !to.add {
                clear(simd, height, Self::NR, to);
            }
            for start in (0..depth).step_by(section.min(depth.max(1))) {
                let blocks = section.min(depth - start) / BLOCK;
                for &[of_a, of_b] in precision.terms() {
                    let a = a.a.as_ptr().add(of_a * a.part_stride + start * height);
                    let b = b.b.as_ptr().add(of_b * b.part_stride + start * Self::NR);
                    for_height!(Self::SIZE, height, |H, _NV| {
                        simd.multiply::<H, PACKED>(blocks, a, b, to.c, to.ldc, to.partial)
                    });
                }
            }
            add_bias(simd, height, Self::NR, to);
        }
    }
}

impl<'a, S: FlushingFma> RowPanels<FmaTile<S>> for MatrixA<'a> {
    #[inline(always)]
    fn block<'o>(&self, m: FmaTile<S>, steps: Steps, panels: Panels, out: &'o mut [f32]) -> BlockA<'o, f32>
    where
        'a: 'o,
    {
        let (Steps { start, depth }, parts) = (steps, m.precision.parts());
        let (k_contiguous, lda) = (self.spec.a == Layout::Normal, self.spec.lda);
        for (row, height) in panels.iter().filter(|_| depth > 0) {
            let at = if k_contiguous { row * lda + start } else { start * lda + row };
            let exist = depth.min(self.spec.k - start);
            let block =
                pack::Block { source: self.a.from(at), leading: lda, k_contiguous, count: height, depth: exist };
            let out = &mut out[(row - panels.first_row()) * depth * parts..][..height * depth * parts];
            m.simd.vectorize(PackRows { block, padded: depth, parts, out });
        }
        BlockA::Columns { a: out, depth, parts }
    }
}

/// Packs rows of A as `padded` steps, and splits them.
struct PackRows<'a> {
    block: pack::Block<'a>,
    padded: usize,
    parts: usize,
    out: &'a mut [f32],
}

impl Kernel for PackRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { block, padded, parts, out } = self;
        let count = padded * block.count;
        let (exist, padding) = out[..count].split_at_mut(block.depth * block.count);
        pack::panel(simd, block, block.count, exist);
        padding.fill(0.0);
        if parts > 1 || matches!(block.source, Operand::F32(_)) {
            split_in_place(simd, out, count, parts);
        }
    }
}

impl<'a, S: FlushingFma> ColumnPanels<FmaTile<S>> for MatrixB<'a> {
    #[inline(always)]
    fn block<'o>(
        &self,
        m: FmaTile<S>,
        _: &Blocking,
        steps: Steps,
        columns: Range<usize>,
        out: &'o mut [f32],
    ) -> BlockB<'o, f32>
    where
        'a: 'o,
    {
        let (nr, parts) = (FmaTile::<S>::NR, m.precision.parts());
        m.simd.vectorize(PackColumns { b: *self, steps, columns, parts, out: &mut *out });
        BlockB::packed(out, nr, nr * steps.depth * parts, nr * steps.depth)
    }
}

/// Packs columns of B in panels of NR, and splits them.
struct PackColumns<'a, 'o> {
    b: MatrixB<'a>,
    steps: Steps,
    columns: Range<usize>,
    parts: usize,
    out: &'o mut [f32],
}

impl Kernel for PackColumns<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { b, steps: Steps { start, depth }, columns, parts, out } = self;
        let nr = RegisterTile::of_lanes(S::LANES).columns(S::LANES);
        let count = depth * nr;
        let panels = columns.len().div_ceil(nr);
        if depth == 0 {
            return;
        }
        assert!(columns.start.is_multiple_of(nr) && out.len() >= panels * parts * count);
        if let MatrixB::Unpacked(spec, b) = b {
            let exist = depth.min(spec.k - start);
            let columns = columns.clone();
            PackB { spec, b, k0: start, depth: exist, columns, step: parts * count, out: &mut *out }.run(simd);
            for panel in out.chunks_exact_mut(parts * count).take(panels) {
                panel[exist * nr..count].fill(0.0);
                if parts > 1 || matches!(b, Operand::F32(_)) {
                    split_in_place(simd, panel, count, parts);
                }
            }
            return;
        }
        for (panel, out) in out.chunks_exact_mut(parts * count).take(panels).enumerate() {
            let column = columns.start + panel * nr;
            match b {
                MatrixB::Packed(b) if b.precision() == Precision::Bf16 => {
                    let pairs = &b.pairs(start / 2, depth / 2, column);
                    widen(simd, &pairs[column % WHOLE_PANEL..], nr, out);
                }
                MatrixB::Packed(b) => {
                    let rows = b.steps(start, depth, column);
                    for (row, out) in rows.chunks_exact(WHOLE_PANEL).zip(out.chunks_exact_mut(nr)) {
                        out.copy_from_slice(&row[column % WHOLE_PANEL..][..nr]);
                    }
                    split_in_place(simd, out, count, parts);
                }
                MatrixB::Unpacked(..) => unreachable!("packed above"),
            }
        }
    }
}

/// Widens rows of pairs, `WHOLE_PANEL` apart, to two steps of `nr` floats each.
#[inline(always)]
fn widen<S: Simd>(simd: S, pairs: &[u32], nr: usize, out: &mut [f32]) {
    let pairs: &[f32] = bytemuck::cast_slice(pairs);
    for (row, out) in pairs.chunks(WHOLE_PANEL).zip(out.chunks_exact_mut(2 * nr)) {
        let (even, odd) = out.split_at_mut(nr);
        for at in (0..nr).step_by(S::LANES) {
            let pair = simd.as_bits(simd.load(&row[at..]));
            simd.store(&mut even[at..], simd.as_floats(simd.shl::<16>(pair)));
            simd.store(&mut odd[at..], simd.as_floats(simd.and(pair, simd.splat_u32(0xffff_0000))));
        }
    }
}
