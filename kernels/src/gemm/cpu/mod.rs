//! Loop nest of a product, generic over the microkernel. A task computes a rectangle of C; tasks share only their inputs.

pub(crate) mod blocking;
pub(crate) mod blocks;
mod macrokernel;
pub(crate) mod microkernel;
mod pack;
pub(in crate::gemm) mod packed;
mod tiles;

use crate::gemm::epilogue::{Mask, Scales, TileEpilogue};
use crate::gemm::operand::{Operand, Output};
use crate::gemm::{Batch, Beta, Gemm, Precision};
use crate::pool::{Cpu, Disjoint, part};
use crate::simd::{Kernel, Simd, from_fn};
use blocking::{Blocking, CHAIN, MOST_PANELS, SINGLE_BLOCK, chain, kc};
use blocks::{ColumnPanels, PackB, RoundedPanels, RowPanels, Steps};
pub(in crate::gemm) use blocks::{MatrixA, MatrixB};
use macrokernel::{Addend, Macrokernel, Tiles};
use microkernel::{Fma, Microkernel, MicrokernelUser};
use packed::Line;
use std::{cell::RefCell, marker::PhantomData, ops::Range};

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
            let count = floats.div_ceil(16);
            if lines.len() < count {
                // Exactly: growth by doubling would exceed `scratch_bytes` where tiles need a little more than vectors.
                lines.reserve_exact(count - lines.len());
                lines.resize(count, Line::ZERO);
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
        let (a, b) = (blocking.packed_a(), b_block.max(nr * SINGLE_BLOCK));
        let tiles = 2 + if blocking.chain_in_l1 { MOST_PANELS } else { 1 };
        let mask = Mask::len(mr, blocking.nc(0));
        [a, b, blocking.mc() * blocking.nc(CHAIN), tiles * mr * nr, mask]
    }
}

/// Sizes of the loop nests of f32 and of tiles.
fn blockings(cpu: &Cpu) -> [Blocking; 2] {
    [Blocking::of(cpu), tiles::blocking(cpu)]
}

/// Allocates the scratch of every worker thread for all precisions, so that later products allocate nothing.
pub fn warm_up(cpu: &Cpu) {
    let blockings = blockings(cpu);
    cpu.on_every_thread(|_| SCRATCH.with_borrow_mut(|scratch| blockings.iter().for_each(|sizes| scratch.fit(sizes))));
}

/// Bytes of scratch per worker thread, held from its first products or [`warm_up`] on.
pub fn scratch_bytes(cpu: &Cpu) -> usize {
    let [f32, tiles] = blockings(cpu).map(|blocking| Scratch::floats(&blocking));
    f32.into_iter().zip(tiles).map(|(a, b)| a.max(b).div_ceil(16) * 64).sum()
}

/// Product as the loop nest computes it, with operands of types A and B.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a, A, B> {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Steps: groups of each sum.
    pub depth: usize,
    /// Steps of a block; the last may have fewer.
    pub block: usize,
    /// Steps of a chain, or of a section of split operands.
    pub chain: usize,
    /// Parts of an operand.
    pub parts: usize,
    /// A.
    pub a: A,
    /// True if A is read in place.
    pub a_in_place: bool,
    /// B.
    pub b: B,
    /// True if B is read in place or was packed before.
    pub b_in_place: bool,
    /// C of all products of the batch.
    pub c: Output<'a>,
    /// Start of this product's C.
    pub c_start: usize,
    /// Leading dimension of C.
    pub ldc: usize,
    /// Factor of the old values of C.
    pub beta: Beta,
    /// Scales of quantized operands.
    pub scales: Option<Scales<'a>>,
    /// Epilogue.
    pub epilogue: TileEpilogue<'a>,
}

impl<'a, A, B> Product<'a, A, B> {
    /// A product in f32, of operands that are packed.
    fn of(spec: &Gemm, a: A, b: B, c: Output<'a>, c_start: usize, epilogue: TileEpilogue<'a>) -> Self {
        Self {
            m: spec.m,
            n: spec.n,
            depth: spec.k,
            block: kc(spec.k),
            chain: chain(spec.k),
            parts: 1,
            a,
            a_in_place: false,
            b,
            b_in_place: false,
            c,
            c_start,
            ldc: spec.ldc,
            beta: spec.beta,
            scales: None,
            epilogue,
        }
    }
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
    if spec.precision != Precision::F32 {
        return tiles::run(cpu, spec, batch, a, b, c, epilogue);
    }
    let blocking = Blocking::of(cpu);
    let a = |i: usize| MatrixA { spec, a: a.from(i * batch.stride_a) };
    let a_in_place = a(0).in_place(blocking.mr);
    match b {
        MatrixB::Packed(b) if b.is_rounded() => {
            let product = |i: usize| Product {
                a_in_place,
                b_in_place: true,
                ..Product::of(spec, a(i), RoundedPanels(b), c, i * batch.stride_c, epilogue)
            };
            run_tasks(cpu, &blocking, batch.count, product, |task| cpu.isa().run(OnFma(task)));
        }
        b => {
            let product = |i: usize| Product {
                a_in_place,
                b_in_place: b.in_place(&blocking),
                ..Product::of(spec, a(i), b.from(i * batch.stride_b), c, i * batch.stride_c, epilogue)
            };
            run_tasks(cpu, &blocking, batch.count, product, |task| cpu.isa().run(OnFma(task)));
        }
    }
}

/// Runs `count` products in tasks: `enter` runs a task with the instructions of its microkernel.
pub(crate) fn run_tasks<'a, A, B>(
    cpu: &Cpu,
    blocking: &Blocking,
    count: usize,
    product: impl Fn(usize) -> Product<'a, A, B> + Sync,
    enter: impl Fn(Task<'_, A, B>) + Sync,
) {
    if count == 0 {
        return;
    }
    let first = product(0);
    if first.m == 0 || first.n == 0 {
        return;
    }
    let (tasks_m, tasks_n) = cut(blocking, cpu.threads().div_ceil(count), &first);
    cpu.for_each(count * tasks_m * tasks_n, |task| {
        // Column-major order: neighboring tasks share their columns of B.
        let (i, column, row) = (task / (tasks_m * tasks_n), task / tasks_m % tasks_n, task % tasks_m);
        let product = product(i);
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.fit(blocking);
            enter(Task {
                blocking,
                product: &product,
                rows: part(product.m, blocking.row_unit, tasks_m, row),
                columns: part(product.n, blocking.nr, tasks_n, column),
                scratch,
            });
        });
    });
}

/// Number of tasks along the rows and the columns of C: the fewest that keep `threads` busy, because an operand that two
/// tasks read is read, and packed, twice. The number of tasks does not change the result (see the module), so it may depend
/// on the number of threads.
fn cut<A, B>(blocking: &Blocking, threads: usize, product: &Product<'_, A, B>) -> (usize, usize) {
    let Product { m, n, depth, block, .. } = *product;
    let work = m.saturating_mul(n).saturating_mul(depth.max(1));
    let wanted = match threads {
        1 => 1,
        _ if work < 1 << 20 => 1,
        _ => threads * ((work / threads) >> 28).clamp(1, 4),
    };
    let columns = blocking.nc(block * product.parts);
    let (columns, rows) = match product.c {
        Output::Bf16(_) if block < depth => (columns.min(blocking.nc(CHAIN)), blocking.mc()),
        _ => (columns, m),
    };
    let (tasks_m, tasks_n) = (m.div_ceil(rows), n.div_ceil(columns));
    let (tiles_m, tiles_n) = (m.div_ceil(blocking.mr), n.div_ceil(blocking.nr));
    // Cost of a partition, in multiply-adds per step: A is read once per column of tasks and B once per row of tasks;
    // packing an element costs as much as PACKING multiply-adds. The largest task may also run last.
    const PACKING: usize = 12;
    let weight = |in_place: bool| if in_place { 1 } else { PACKING };
    let (weight_a, weight_b) = (weight(product.a_in_place), weight(product.b_in_place));
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
pub(crate) struct Task<'a, A, B> {
    blocking: &'a Blocking,
    product: &'a Product<'a, A, B>,
    rows: Range<usize>,
    columns: Range<usize>,
    scratch: &'a mut Scratch,
}

/// A task of f32 products.
struct OnFma<T>(T);

impl Kernel for OnFma<Task<'_, MatrixA<'_>, MatrixB<'_>>> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.0.run(Fma(simd, PhantomData));
    }
}

impl Kernel for OnFma<Task<'_, MatrixA<'_>, RoundedPanels<'_>>> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.0.run(Fma(simd, PhantomData));
    }
}

impl<M: Microkernel, A: RowPanels<M>, B: ColumnPanels<M>> MicrokernelUser<M> for Task<'_, A, B> {
    #[inline(always)]
    fn run(self, m: M) {
        const { assert!(size_of::<M::A>() == 4 && size_of::<M::B>() <= 4, "scratch has 32 bits a group") };
        let Self { blocking, product, rows, columns, .. } = self;
        let Scratch { a: a_block, b: b_block, partial_sums, tile_buffer, mask } = self.scratch;
        let a_block: &mut [M::A] = bytemuck::cast_slice_mut(a_block);
        let b_block: &mut [M::B] = bytemuck::cast_slice_mut(b_block);
        let tile_buffer = Disjoint::new(bytemuck::cast_slice_mut::<Line, f32>(tile_buffer));
        let mask: &mut [f32] = bytemuck::cast_slice_mut(mask);
        let partial_sums = Disjoint::new(bytemuck::cast_slice_mut::<Line, f32>(partial_sums));
        let mut start = 0;
        loop {
            let steps = Steps { start, depth: product.block.min(product.depth - start) };
            let last = start + steps.depth == product.depth;
            let b = product.b.block(m, blocking, steps, columns.clone(), &mut *b_block);
            let addend = match (start, product.beta) {
                (0, Beta::Zero) => Addend::Nothing,
                (0, Beta::One) => Addend::C,
                _ => Addend::PartialSums,
            };
            let block_of_a = [rows.len(), steps.depth * product.parts];
            let group = match last && product.epilogue.dropout().is_some() {
                true => 1,
                false => blocking.group(block_of_a, product.a_in_place, b.is_prepacked),
            };
            let in_parts = M::IN_PARTS && group > 1 && blocking.chain_in_l1;
            let part = if in_parts { product.chain } else { steps.depth }.max(1);
            m.vectorize(Macrokernel {
                a: product.a,
                b,
                packed_a: &mut *a_block,
                mask: &mut *mask,
                tiles: Tiles {
                    steps,
                    chain: product.chain,
                    parts: product.parts,
                    row_unit: blocking.row_unit,
                    rows: rows.clone(),
                    columns: columns.clone(),
                    c: product.c,
                    c_start: product.c_start,
                    ldc: product.ldc,
                    addend,
                    last,
                    scales: product.scales,
                    epilogue: product.epilogue,
                    partial_sums,
                    partial_columns: blocking.nc(CHAIN),
                    tile_buffer,
                    group,
                    part,
                },
            });
            start += steps.depth;
            if last {
                break;
            }
        }
    }
}

/// Packs all of B into `out`, in the order of [`PackedB`]; `spec` has its sizes, layout and precision. f32 is rounded to bf16 if
/// `round`.
pub(in crate::gemm) fn pack_all(cpu: &Cpu, spec: &Gemm, b: Operand<'_>, round: bool, out: Disjoint<'_, f32>) {
    let Gemm { n, k, .. } = *spec;
    if k == 0 || n == 0 {
        return;
    }
    if spec.precision != Precision::F32 {
        return tiles::pack_all(cpu, spec, b, out);
    }
    let blocking = Blocking::of(cpu);
    let block = kc(k);
    let (blocks, tasks_n) = (k.div_ceil(block), n.div_ceil(blocking.nc(block)));
    cpu.for_each(blocks * tasks_n, |task| {
        let k0 = task / tasks_n * block;
        let depth = block.min(k - k0);
        let columns = part(n, blocking.nr, tasks_n, task % tasks_n);
        let start = k0 * n.next_multiple_of(blocking.nr) + columns.start * depth;
        let end = start + columns.len().next_multiple_of(blocking.nr) * depth;
        let pack = |out: &mut [f32]| {
            let columns = columns.clone();
            cpu.isa().run(PackB { spec, b, k0, depth, columns, step: blocking.nr * depth, out });
        };
        let columns_per_float = if round { 2 } else { 1 };
        // SAFETY: blocks of different rows and columns of B are disjoint in the packed order.
        let out = unsafe { out.slice(start / columns_per_float..end / columns_per_float) };
        if !round {
            return pack(out);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.fit(&blocking);
            let panels: &mut [f32] = &mut bytemuck::cast_slice_mut(&mut scratch.b)[..end - start];
            pack(panels);
            cpu.isa().run(RoundPanels { panels, out });
        });
    });
}

/// Rounds panels to bf16: vectors 2v and 2v + 1 of a row become the halves of a vector of words.
struct RoundPanels<'a> {
    panels: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for RoundPanels<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (pair, out) in self.panels.chunks_exact(2 * S::LANES).zip(self.out.chunks_exact_mut(S::LANES)) {
            let [low, high]: [S::U32; 2] = from_fn(|v| simd.as_bits(simd.round_bf16(simd.load(&pair[v * S::LANES..]))));
            simd.store(out, simd.as_floats(simd.or(simd.shr::<16>(low), high)));
        }
    }
}
