//! Loop nest of a product, generic over the instruction set. A task computes a rectangle of C; tasks share only their
//! inputs.

mod blocks;
mod macrokernel;
mod microkernel;
mod pack;
pub(in crate::gemm) mod packed;
pub(in crate::gemm) mod tile;

use crate::gemm::epilogue::{Mask, TileEpilogue};
use crate::gemm::operand::{Operand, Output};
use crate::gemm::{Batch, Beta, Gemm, Layout};
use crate::pool::{Cpu, Disjoint, part};
use crate::simd::{Kernel, Simd};
use blocks::{BlockA, BlockB, PackB, a_lies_well, b_lies_well};
use macrokernel::{Old, Sweep, Tiles};
use packed::{Line, PackedB};
use std::{cell::RefCell, ops::Range};
use tile::{Tile, chain};

/// B in either of its forms: a matrix to be packed as needed, or packed panels.
#[derive(Clone, Copy)]
pub(in crate::gemm) enum Right<'a> {
    Plain(Operand<'a>),
    Packed(&'a PackedB),
}

/// Packed blocks and partial sums of one thread, allocated by its first product.
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

    /// Floats in a, b, sums, spill and mask.
    fn floats(tile: &Tile) -> [usize; 5] {
        let sums = tile.task_columns * tile.task_rows;
        let mask = Mask::len(tile.mr, tile.columns(0));
        [tile.mr * tile.whole, tile.task_columns * tile.kc, sums, tile.mr * tile.nr, mask]
    }
}

/// Allocates the scratch of every worker thread, so that later products allocate nothing.
pub fn warm_up(cpu: &Cpu) {
    let tile = Tile::of(cpu.isa().kind());
    cpu.on_every_thread(|_| SCRATCH.with_borrow_mut(|scratch| scratch.fit(&tile)));
}

/// Bytes of scratch per worker thread, held from its first product or [`warm_up`] on.
pub fn scratch_bytes(cpu: &Cpu) -> usize {
    Scratch::floats(&Tile::of(cpu.isa().kind())).iter().map(|floats| floats.div_ceil(16) * 64).sum()
}

/// Runs `batch.count` checked products.
pub(in crate::gemm) fn run(
    cpu: &Cpu,
    spec: &Gemm,
    batch: &Batch,
    a: Operand<'_>,
    b: Right<'_>,
    c: Output<'_>,
    epilogue: TileEpilogue<'_>,
) {
    if spec.m == 0 || spec.n == 0 || batch.count == 0 {
        return;
    }
    let tile = Tile::of(cpu.isa().kind());
    let (down, across) = cut(&tile, cpu.threads().div_ceil(batch.count), spec, a, b, c);
    cpu.for_each(batch.count * down * across, |task| {
        // Column-major order: neighboring tasks share their columns of B.
        let (i, column, row) = (task / (down * across), task / down % across, task % down);
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
                epilogue,
                scratch,
            });
        });
    });
}

/// Number of tasks along the rows and the columns of C. As few as keep `threads` busy, because an operand that two
/// tasks read is read, and packed, twice. The cut does not change the result (see the module), so it may depend on the
/// number of threads.
fn cut(tile: &Tile, threads: usize, spec: &Gemm, a: Operand<'_>, b: Right<'_>, c: Output<'_>) -> (usize, usize) {
    let Gemm { m, n, k, .. } = *spec;
    let work = m.saturating_mul(n).saturating_mul(k.max(1));
    let wanted = match threads {
        1 => 1,
        _ if work < 1 << 20 => 1,
        _ => threads * ((work / threads) >> 28).clamp(1, 4),
    };
    let depth = tile.depth(k);
    let (across, rows) = match c {
        Output::Bf16(_) if depth < k => (n.div_ceil(tile.task_columns), tile.task_rows),
        _ => (n.div_ceil(tile.columns(depth)), m),
    };
    let down = m.div_ceil(rows);
    let (units_down, units_across) = (m.div_ceil(tile.mr), n.div_ceil(tile.nr));
    // Cost of a cut, in multiply-adds per step of k: A is read once per column of tasks and B once per row of tasks;
    // packing an element costs as much as PACKING multiply-adds. The largest task may also run last.
    const PACKING: usize = 12;
    let weight = |lies_well: bool| if lies_well { 1 } else { PACKING };
    let weight_a = weight(a_lies_well(spec, a));
    let weight_b = weight(match b {
        Right::Packed(_) => true,
        Right::Plain(b) => b_lies_well(tile, spec, b),
    });
    let cost = |(down, across): (usize, usize)| {
        let largest = (units_down.div_ceil(down) * tile.mr) * (units_across.div_ceil(across) * tile.nr);
        weight_a * across * m + weight_b * down * n + (largest * down * across).saturating_sub(m * n) / 2
    };
    let cuts = (across..=across.max(units_across.min(wanted))).map(|across| {
        let needed = wanted.div_ceil(across).min(units_down);
        (down.max(needed), across)
    });
    let enough = |&(down, across): &(usize, usize)| down * across >= wanted.min(units_down * units_across);
    cuts.filter(enough).min_by_key(|&cut| cost(cut)).unwrap_or((down, across))
}

/// Computes a rectangle of C.
struct Task<'a> {
    spec: &'a Gemm,
    rows: Range<usize>,
    columns: Range<usize>,
    a: Operand<'a>,
    b: Right<'a>,
    c: Output<'a>,
    c_start: usize,
    epilogue: TileEpilogue<'a>,
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
        let spill = Disjoint::new(bytemuck::cast_slice_mut::<Line, f32>(spill));
        let mask: &mut [f32] = bytemuck::cast_slice_mut(mask);
        let sums = Disjoint::new(bytemuck::cast_slice_mut::<Line, f32>(sums));
        let block = tile.depth(spec.k);
        let mut k0 = 0;
        loop {
            let depth = block.min(spec.k - k0);
            let last = k0 + depth == spec.k;
            let columns = self.columns.clone();
            let b = match self.b {
                Right::Packed(b) => BlockB::packed(b, &tile, k0, depth, columns.start),
                Right::Plain(b) => BlockB::plain(simd, spec, b, k0, depth, columns, &mut *b_block),
            };
            let old = match (k0, spec.beta) {
                (0, Beta::Zero) => Old::Nothing,
                (0, Beta::One) => Old::C,
                _ => Old::Sums,
            };
            let a = BlockA { spec, a: self.a, k0, depth, rows: self.rows.clone() };
            let draws_mask = last && self.epilogue.dropout().is_some();
            let by_columns = b.is_far && a.stays() && !draws_mask;
            simd.vectorize(Sweep {
                a,
                b,
                packed_a: &mut *a_block,
                mask: &mut *mask,
                tiles: Tiles {
                    depth,
                    chain: chain(spec.k),
                    rows: self.rows.clone(),
                    columns: self.columns.clone(),
                    c: self.c,
                    c_start: self.c_start,
                    ldc: spec.ldc,
                    old,
                    last,
                    epilogue: self.epilogue,
                    sums,
                    spill,
                    by_columns,
                },
            });
            k0 += depth;
            if last {
                break;
            }
        }
    }
}

/// Packs all of B into `out`, in the order of [`PackedB`].
pub(in crate::gemm) fn pack_all(
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
    let block = tile.depth(k);
    let (blocks, across) = (k.div_ceil(block), n.div_ceil(tile.task_columns));
    cpu.for_each(blocks * across, |task| {
        let k0 = task / across * block;
        let depth = block.min(k - k0);
        let columns = part(n, tile.nr, across, task % across);
        let start = k0 * tile.padded(n) + columns.start * depth;
        let end = start + tile.padded(columns.len()) * depth;
        // SAFETY: blocks of different rows and columns of B are disjoint in the packed order.
        let out = unsafe { out.slice(start..end) };
        cpu.isa().run(PackB { spec: &spec, b, k0, depth, columns, out });
    });
}
