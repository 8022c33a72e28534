//! The loop nest, generic over the instruction set. One task computes a rectangle of C; nothing is shared between
//! tasks but what they read.

use super::epilogue::{Finish, Mask};
use super::packed::{Line, PackedB};
use super::sweep::{Old, Output, Sweep, panels, part};
use super::tile::Tile;
use super::{Batch, Gemm, Layout, Operand, Write, pack};
use crate::pool::{Cpu, Disjoint};
use crate::simd::{Kernel, Simd};
use std::{cell::RefCell, ops::Range};

/// B as it comes.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    Plain(Operand<'a>),
    Packed(&'a PackedB),
}

/// Packed blocks and partial sums of one thread: allocated once, at the first product on it.
struct Scratch {
    a: Vec<Line>,
    b: Vec<Line>,
    sums: Vec<Line>,
    spill: Vec<Line>,
    mask: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { a: vec![], b: vec![], sums: vec![], spill: vec![], mask: vec![] }) };
}

impl Scratch {
    fn fit(&mut self, tile: &Tile) {
        let fit = |lines: &mut Vec<Line>, floats: usize| {
            if lines.len() * 16 < floats {
                lines.resize(floats.div_ceil(16), Line::ZERO);
            }
        };
        let [a, b, sums, spill, mask] = Self::floats(tile);
        fit(&mut self.a, a);
        fit(&mut self.b, b);
        fit(&mut self.sums, sums);
        fit(&mut self.spill, spill);
        fit(&mut self.mask, mask);
    }

    /// Floats of a, b, sums, spill and mask.
    fn floats(tile: &Tile) -> [usize; 5] {
        let sums = tile.task_columns * tile.task_rows;
        let mask = Mask::len(tile.mr, tile.task_columns);
        [tile.mc * tile.kc, tile.task_columns * tile.kc, sums, tile.mr * tile.nr, mask]
    }
}

/// Allocates the scratch of every worker thread, so that no later product does.
pub fn warm_up(cpu: &Cpu) {
    let tile = Tile::of(cpu.isa().kind());
    cpu.on_every_thread(|_| SCRATCH.with_borrow_mut(|scratch| scratch.fit(&tile)));
}

/// Bytes of scratch that each worker thread holds from its first product, or [`warm_up`], on.
pub fn scratch_bytes(cpu: &Cpu) -> usize {
    Scratch::floats(&Tile::of(cpu.isa().kind())).iter().map(|floats| floats.div_ceil(16) * 64).sum()
}

/// Runs `batch.count` checked products.
pub(super) fn run(
    cpu: &Cpu,
    spec: &Gemm,
    batch: &Batch,
    a: Operand<'_>,
    b: Right<'_>,
    c: Output<'_>,
    finish: Finish<'_>,
) {
    if spec.m == 0 || spec.n == 0 || batch.count == 0 {
        return;
    }
    let tile = Tile::of(cpu.isa().kind());
    let (down, across) = cut(&tile, spec.m, spec.n, spec.k, matches!(b, Right::Packed(_)));
    cpu.for_each(batch.count * down * across, |task| {
        let (i, row, column) = (task / (down * across), task / across % down, task % across);
        let b = match b {
            Right::Plain(b) => Right::Plain(b.from(i * batch.stride_b)),
            packed => packed,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.fit(&tile);
            cpu.isa().run(Task {
                spec,
                rows: part(spec.m, 1, down, row),
                columns: part(spec.n, tile.nr, across, column),
                a: a.from(i * batch.stride_a),
                b,
                c,
                c_start: i * batch.stride_c,
                finish,
                scratch,
            });
        });
    });
}

/// Tasks down the rows and across the columns of C, from its shape alone.
fn cut(tile: &Tile, m: usize, n: usize, k: usize, packed: bool) -> (usize, usize) {
    let work = m * n * k.max(1);
    let wanted = if work < 1 << 20 { 1 } else { (work >> 25).clamp(2, 8) };
    let (down, across) = (m.div_ceil(tile.task_rows), n.div_ceil(tile.task_columns));
    let (most_down, most_across) = (m.div_ceil(tile.mr), n.div_ceil(tile.nr));
    let packing = |(down, across): (usize, usize)| across * m + if packed { 0 } else { down * n };
    let cuts = (across..=across.max(most_across.min(wanted))).map(|across| {
        let needed = wanted.div_ceil(across).min(most_down);
        (down.max(needed), across)
    });
    let enough = |&(down, across): &(usize, usize)| down * across >= wanted.min(most_down * most_across);
    cuts.filter(enough).min_by_key(|&cut| packing(cut)).unwrap_or((down, across))
}

/// A rectangle of C.
struct Task<'a> {
    spec: &'a Gemm,
    rows: Range<usize>,
    columns: Range<usize>,
    a: Operand<'a>,
    b: Right<'a>,
    c: Output<'a>,
    c_start: usize,
    finish: Finish<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for Task<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (tile, spec) = (Tile::of_lanes(S::LANES), self.spec);
        let Scratch { a: a_block, b: b_block, sums, spill, mask } = self.scratch;
        let a_block: &mut [f32] = bytemuck::cast_slice_mut(a_block);
        let b_block: &mut [f32] = bytemuck::cast_slice_mut(b_block);
        let spill: &mut [f32] = bytemuck::cast_slice_mut(spill);
        let mask: &mut [f32] = bytemuck::cast_slice_mut(mask);
        let sums = Disjoint::new(bytemuck::cast_slice_mut::<Line, f32>(sums));
        let mut k0 = 0;
        loop {
            let depth = tile.kc.min(spec.k - k0);
            let last = k0 + depth == spec.k;
            let b = match self.b {
                Right::Packed(b) => b.block(k0, depth, self.columns.start),
                Right::Plain(b) => {
                    simd.vectorize(PackB { spec, b, k0, depth, columns: self.columns.clone(), out: &mut *b_block });
                    &*b_block
                }
            };
            let blocks = self.rows.len().div_ceil(tile.mc);
            for i in 0..blocks {
                let rows = part(self.rows.len(), 1, blocks, i);
                let rows = self.rows.start + rows.start..self.rows.start + rows.end;
                simd.vectorize(PackA { spec, a: self.a, k0, depth, rows: rows.clone(), out: &mut *a_block });
                simd.vectorize(Sweep {
                    a: a_block,
                    b,
                    depth,
                    rows: rows.clone(),
                    columns: self.columns.clone(),
                    c: self.c,
                    c_start: self.c_start,
                    ldc: spec.ldc,
                    old: match (k0, spec.write) {
                        (0, Write::Overwrite) => Old::Nothing,
                        (0, Write::Accumulate) => Old::C,
                        _ => Old::Sums,
                    },
                    last,
                    finish: self.finish,
                    sums,
                    spill: &mut *spill,
                    mask: &mut *mask,
                    origin: (self.rows.start, self.columns.start),
                });
            }
            k0 += depth;
            if last {
                break;
            }
        }
    }
}

struct PackA<'a> {
    spec: &'a Gemm,
    a: Operand<'a>,
    k0: usize,
    depth: usize,
    rows: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for PackA<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (along, leading) = (self.spec.a == Layout::Normal, self.spec.lda);
        let steps = if along { self.depth.max(1) } else { pack::STEPS };
        for p in (0..self.depth).step_by(steps) {
            let depth = steps.min(self.depth - p);
            for (start, height) in panels(self.rows.len(), Tile::of_lanes(S::LANES).mr) {
                let (row, k) = (self.rows.start + start, self.k0 + p);
                let at = if along { row * leading + k } else { k * leading + row };
                let block = pack::Block { source: self.a.from(at), leading, along, count: height, depth };
                pack::panel(simd, block, height, &mut self.out[start * self.depth + p * height..][..depth * height]);
            }
        }
    }
}

struct PackB<'a> {
    spec: &'a Gemm,
    b: Operand<'a>,
    k0: usize,
    depth: usize,
    columns: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for PackB<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let nr = Tile::of_lanes(S::LANES).nr;
        let (along, leading) = (self.spec.b == Layout::Transposed, self.spec.ldb);
        let steps = if along { self.depth.max(1) } else { pack::STEPS };
        for p in (0..self.depth).step_by(steps) {
            let depth = steps.min(self.depth - p);
            for start in (0..self.columns.len()).step_by(nr) {
                let (column, k) = (self.columns.start + start, self.k0 + p);
                let count = nr.min(self.columns.end - column);
                let at = if along { column * leading + k } else { k * leading + column };
                let block = pack::Block { source: self.b.from(at), leading, along, count, depth };
                pack::panel(simd, block, nr, &mut self.out[start * self.depth + p * nr..][..depth * nr]);
            }
        }
    }
}

/// Packs all of B, as [`PackedB`] has it.
pub(super) fn pack_all(
    cpu: &Cpu,
    k: usize,
    n: usize,
    layout: Layout,
    ldb: usize,
    b: Operand<'_>,
    out: Disjoint<'_, f32>,
) {
    if k == 0 || n == 0 {
        return;
    }
    let tile = Tile::of(cpu.isa().kind());
    let spec = Gemm { ldb, ..Gemm::new(0, n, k, Layout::Normal, layout) };
    let (blocks, across) = (k.div_ceil(tile.kc), n.div_ceil(tile.task_columns));
    cpu.for_each(blocks * across, |task| {
        let k0 = task / across * tile.kc;
        let depth = tile.kc.min(k - k0);
        let columns = part(n, tile.nr, across, task % across);
        let start = k0 * tile.padded(n) + columns.start * depth;
        let end = start + tile.padded(columns.len()) * depth;
        // SAFETY: blocks of different rows and columns of B are disjoint in the packed order.
        let out = unsafe { out.slice(start..end) };
        cpu.isa().run(PackB { spec: &spec, b, k0, depth, columns, out });
    });
}
