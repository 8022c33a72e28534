//! Loop nest of a product, generic over the instruction set. A task computes a rectangle of C; tasks share only their
//! inputs.

pub(in crate::gemm) mod blocking;
mod blocks;
mod macrokernel;
mod microkernel;
mod pack;
pub(in crate::gemm) mod packed;

use crate::gemm::epilogue::{Mask, TileEpilogue};
use crate::gemm::operand::{Operand, Output};
use crate::gemm::{Batch, Beta, Gemm, Layout};
use crate::pool::{Cpu, Disjoint, part};
use crate::simd::{Kernel, Simd};
use blocking::{Blocking, CHAIN, SINGLE_BLOCK, chain, kc};
use blocks::{BlockA, BlockB, PackB, a_usable_in_place, b_usable_in_place};
use macrokernel::{Addend, Macrokernel, Tiles};
use packed::{Line, PackedB};
use std::{cell::RefCell, ops::Range};

/// B in either of its forms: a matrix to be packed as needed, or packed panels.
#[derive(Clone, Copy)]
pub(in crate::gemm) enum MatrixB<'a> {
    Unpacked(Operand<'a>),
    Packed(&'a PackedB),
}

/// Packed blocks and partial sums of one thread, allocated by its first product.
struct Scratch {
    a: Vec<Line>,
    b: Vec<Line>,
    partial_sums: Vec<Line>,
    tile_buffer: Vec<Line>,
    mask: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::EMPTY) };
}

impl Scratch {
    const EMPTY: Self = Self { a: vec![], b: vec![], partial_sums: vec![], tile_buffer: vec![], mask: vec![] };

    fn fit(&mut self, blocking: &Blocking) {
        let fit = |lines: &mut Vec<Line>, floats: usize| {
            if lines.len() * 16 < floats {
                lines.resize(floats.div_ceil(16), Line::ZERO);
            }
        };
        let [a, b, partial_sums, tile_buffer, mask] = Self::floats(blocking);
        fit(&mut self.a, a);
        fit(&mut self.b, b);
        fit(&mut self.partial_sums, partial_sums);
        fit(&mut self.tile_buffer, tile_buffer);
        fit(&mut self.mask, mask);
    }

    /// Floats in a, b, partial_sums, tile_buffer and mask.
    fn floats(blocking: &Blocking) -> [usize; 5] {
        let Blocking { mr, nr, b_block, .. } = *blocking;
        let mask = Mask::len(mr, blocking.nc(0));
        [mr * SINGLE_BLOCK, b_block.max(nr * SINGLE_BLOCK), blocking.mc() * blocking.nc(CHAIN), mr * nr, mask]
    }
}

/// Allocates the scratch of every worker thread, so that later products allocate nothing.
pub fn warm_up(cpu: &Cpu) {
    let blocking = Blocking::of(cpu);
    cpu.on_every_thread(|_| SCRATCH.with_borrow_mut(|scratch| scratch.fit(&blocking)));
}

/// Bytes of scratch per worker thread, held from its first product or [`warm_up`] on.
pub fn scratch_bytes(cpu: &Cpu) -> usize {
    Scratch::floats(&Blocking::of(cpu)).iter().map(|floats| floats.div_ceil(16) * 64).sum()
}

/// Runs `batch.count` checked products.
pub(in crate::gemm) fn run(
    cpu: &Cpu,
    spec: &Gemm,
    batch: &Batch,
    a: Operand<'_>,
    b: MatrixB<'_>,
    c: Output<'_>,
    epilogue: TileEpilogue<'_>,
) {
    if spec.m == 0 || spec.n == 0 || batch.count == 0 {
        return;
    }
    let blocking = Blocking::of(cpu);
    let (tasks_m, tasks_n) = cut(&blocking, cpu.threads().div_ceil(batch.count), spec, a, b, c);
    cpu.for_each(batch.count * tasks_m * tasks_n, |task| {
        // Column-major order: neighboring tasks share their columns of B.
        let (i, column, row) = (task / (tasks_m * tasks_n), task / tasks_m % tasks_n, task % tasks_m);
        let b = match b {
            MatrixB::Unpacked(b) => MatrixB::Unpacked(b.from(i * batch.stride_b)),
            packed => packed,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.fit(&blocking);
            cpu.isa().run(Task {
                blocking: &blocking,
                spec,
                rows: part(spec.m, 1, tasks_m, row),
                columns: part(spec.n, blocking.nr, tasks_n, column),
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

/// Number of tasks along the rows and the columns of C: the fewest that keep `threads` busy, because an operand that two
/// tasks read is read, and packed, twice. The number of tasks does not change the result (see the module), so it may depend
/// on the number of threads.
fn cut(
    blocking: &Blocking,
    threads: usize,
    spec: &Gemm,
    a: Operand<'_>,
    b: MatrixB<'_>,
    c: Output<'_>,
) -> (usize, usize) {
    let Gemm { m, n, k, .. } = *spec;
    let work = m.saturating_mul(n).saturating_mul(k.max(1));
    let wanted = match threads {
        1 => 1,
        _ if work < 1 << 20 => 1,
        _ => threads * ((work / threads) >> 28).clamp(1, 4),
    };
    let depth = kc(k);
    let (tasks_n, rows) = match c {
        Output::Bf16(_) if depth < k => (n.div_ceil(blocking.nc(CHAIN)), blocking.mc()),
        _ => (n.div_ceil(blocking.nc(depth)), m),
    };
    let tasks_m = m.div_ceil(rows);
    let (tiles_m, tiles_n) = (m.div_ceil(blocking.mr), n.div_ceil(blocking.nr));
    // Cost of a partition, in multiply-adds per step of k: A is read once per column of tasks and B once per row of tasks;
    // packing an element costs as much as PACKING multiply-adds. The largest task may also run last.
    const PACKING: usize = 12;
    let weight = |usable_in_place: bool| if usable_in_place { 1 } else { PACKING };
    let weight_a = weight(a_usable_in_place(spec, a));
    let weight_b = weight(match b {
        MatrixB::Packed(_) => true,
        MatrixB::Unpacked(b) => b_usable_in_place(blocking, spec, b),
    });
    let cost = |(tasks_m, tasks_n): (usize, usize)| {
        let largest = (tiles_m.div_ceil(tasks_m) * blocking.mr) * (tiles_n.div_ceil(tasks_n) * blocking.nr);
        weight_a * tasks_n * m + weight_b * tasks_m * n + (largest * tasks_m * tasks_n).saturating_sub(m * n) / 2
    };
    let cuts = (tasks_n..=tasks_n.max(tiles_n.min(wanted))).map(|tasks_n| {
        let needed = wanted.div_ceil(tasks_n).min(tiles_m);
        (tasks_m.max(needed), tasks_n)
    });
    let enough = |&(tasks_m, tasks_n): &(usize, usize)| tasks_m * tasks_n >= wanted.min(tiles_m * tiles_n);
    cuts.filter(enough).min_by_key(|&cut| cost(cut)).unwrap_or((tasks_m, tasks_n))
}

/// Computes a rectangle of C.
struct Task<'a> {
    blocking: &'a Blocking,
    spec: &'a Gemm,
    rows: Range<usize>,
    columns: Range<usize>,
    a: Operand<'a>,
    b: MatrixB<'a>,
    c: Output<'a>,
    c_start: usize,
    epilogue: TileEpilogue<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for Task<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (blocking, spec) = (self.blocking, self.spec);
        let Scratch { a: a_block, b: b_block, partial_sums, tile_buffer, mask } = self.scratch;
        let a_block: &mut [f32] = bytemuck::cast_slice_mut(a_block);
        let b_block: &mut [f32] = bytemuck::cast_slice_mut(b_block);
        let tile_buffer = Disjoint::new(bytemuck::cast_slice_mut::<Line, f32>(tile_buffer));
        let mask: &mut [f32] = bytemuck::cast_slice_mut(mask);
        let partial_sums = Disjoint::new(bytemuck::cast_slice_mut::<Line, f32>(partial_sums));
        let block = kc(spec.k);
        let mut k0 = 0;
        loop {
            let depth = block.min(spec.k - k0);
            let last = k0 + depth == spec.k;
            let columns = self.columns.clone();
            let b = match self.b {
                MatrixB::Packed(b) => BlockB::packed(b, blocking.nr, k0, depth, columns.start),
                MatrixB::Unpacked(b) => BlockB::plain(simd, blocking, spec, b, k0, depth, columns, &mut *b_block),
            };
            let addend = match (k0, spec.beta) {
                (0, Beta::Zero) => Addend::Nothing,
                (0, Beta::One) => Addend::C,
                _ => Addend::PartialSums,
            };
            let a = BlockA { spec, a: self.a, k0, depth, rows: self.rows.clone() };
            let draws_mask = last && self.epilogue.dropout().is_some();
            let by_columns = b.is_prepacked && a.fits_l2(blocking) && !draws_mask;
            simd.vectorize(Macrokernel {
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
                    addend,
                    last,
                    epilogue: self.epilogue,
                    partial_sums,
                    partial_columns: blocking.nc(CHAIN),
                    tile_buffer,
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
    let blocking = Blocking::of(cpu);
    let spec = Gemm { ldb, ..Gemm::new(0, n, k, Layout::Normal, layout) };
    let block = kc(k);
    let (blocks, tasks_n) = (k.div_ceil(block), n.div_ceil(blocking.nc(block)));
    cpu.for_each(blocks * tasks_n, |task| {
        let k0 = task / tasks_n * block;
        let depth = block.min(k - k0);
        let columns = part(n, blocking.nr, tasks_n, task % tasks_n);
        let start = k0 * n.next_multiple_of(blocking.nr) + columns.start * depth;
        let end = start + columns.len().next_multiple_of(blocking.nr) * depth;
        // SAFETY: blocks of different rows and columns of B are disjoint in the packed order.
        let out = unsafe { out.slice(start..end) };
        cpu.isa().run(PackB { spec: &spec, b, k0, depth, columns, out });
    });
}
