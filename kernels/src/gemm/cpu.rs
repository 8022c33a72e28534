//! The loop nest, generic over the instruction set. One task computes a rectangle of C; nothing is shared between
//! tasks but what they read.

use super::epilogue::Finish;
use super::packed::{Line, PackedB};
use super::tile::Tile;
use super::{Batch, Gemm, Layout, Operand, Write, pack};
use crate::pool::{Cpu, Disjoint};
use crate::simd::{DType, Element, Kernel, Simd};
use half::bf16;
use std::{array::from_fn, cell::RefCell, ops::Range};

/// B as it comes.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    Plain(Operand<'a>),
    Packed(&'a PackedB),
}

/// C without its storage type.
#[derive(Clone, Copy)]
pub(super) enum Output<'a> {
    F32(Disjoint<'a, f32>),
    Bf16(Disjoint<'a, bf16>),
}

impl<'a> Output<'a> {
    pub(super) fn new<C: Element>(c: &'a mut [C]) -> Self {
        match C::DTYPE {
            DType::F32 => Self::F32(Disjoint::new(bytemuck::cast_slice_mut(c))),
            DType::Bf16 => Self::Bf16(Disjoint::new(bytemuck::cast_slice_mut(c))),
        }
    }
    /// # Safety
    /// No other thread writes these `count` elements from `start` on.
    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, start: usize, count: usize) -> S::F32 {
        // SAFETY: the caller's promise; the slice is gone when this returns.
        unsafe {
            match self {
                Self::F32(c) => f32::load_partial(simd, c.slice(start..start + count)),
                Self::Bf16(c) => bf16::load_partial(simd, c.slice(start..start + count)),
            }
        }
    }
    /// # Safety
    /// No other thread touches these `count` elements from `start` on.
    #[inline(always)]
    unsafe fn store<S: Simd>(self, simd: S, start: usize, count: usize, value: S::F32) {
        // SAFETY: the caller's promise; the slice is gone when this returns.
        unsafe {
            match self {
                Self::F32(c) => f32::store_partial(simd, c.slice(start..start + count), value),
                Self::Bf16(c) => bf16::store_partial(simd, c.slice(start..start + count), value),
            }
        }
    }
}

/// Packed blocks and partial sums of one thread: allocated once, at the first product on it.
struct Scratch {
    a: Vec<Line>,
    b: Vec<Line>,
    sums: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { a: vec![], b: vec![], sums: vec![] }) };
}

impl Scratch {
    fn fit(&mut self, tile: &Tile) {
        let fit = |lines: &mut Vec<Line>, floats: usize| {
            if lines.len() * 16 < floats {
                lines.resize(floats.div_ceil(16), Line::ZERO);
            }
        };
        fit(&mut self.a, tile.mc * tile.kc);
        fit(&mut self.b, tile.task_columns * tile.kc);
        fit(&mut self.sums, tile.task_columns * tile.task_rows);
    }
}

/// Allocates the scratch of every worker thread, so that no later product does.
pub fn warm_up(cpu: &Cpu) {
    let tile = Tile::of(cpu.isa().kind());
    cpu.on_every_thread(|_| SCRATCH.with_borrow_mut(|scratch| scratch.fit(&tile)));
}

/// Part `i` of `parts` equal parts of `len` units of `unit` items; the last unit may be short.
fn part(len: usize, unit: usize, parts: usize, i: usize) -> Range<usize> {
    let units = len.div_ceil(unit);
    let bound = |i: usize| (units * i / parts * unit).min(len);
    bound(i)..bound(i + 1)
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
    let (down, across) = cut(&tile, spec.m, spec.n);
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
fn cut(tile: &Tile, m: usize, n: usize) -> (usize, usize) {
    let down = m.div_ceil(tile.task_rows);
    let across = n.div_ceil(tile.task_columns);
    // A small matrix is cut further, so that it is not one thread's alone.
    let across = if down * across < 4 { (n.div_ceil(tile.nr)).min(across.max(4 / down)) } else { across };
    (down, across)
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
        let Scratch { a: a_block, b: b_block, sums } = self.scratch;
        let a_block: &mut [f32] = bytemuck::cast_slice_mut(a_block);
        let b_block: &mut [f32] = bytemuck::cast_slice_mut(b_block);
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

/// Heights of the panels of `rows` rows: as equal as can be, none above `mr`. Gives (start, height).
#[inline(always)]
fn panels(rows: usize, mr: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = rows.div_ceil(mr);
    (0..count).map(move |i| {
        let range = part(rows, 1, count, i);
        (range.start, range.len())
    })
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
        if self.depth == 0 {
            return;
        }
        let (along, leading) = (self.spec.a == Layout::Normal, self.spec.lda);
        for (start, height) in panels(self.rows.len(), Tile::of_lanes(S::LANES).mr) {
            let row = self.rows.start + start;
            let at = if along { row * leading + self.k0 } else { self.k0 * leading + row };
            let block = pack::Block { source: self.a.from(at), leading, along, count: height, depth: self.depth };
            pack::panel(simd, block, height, &mut self.out[start * self.depth..]);
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
        if self.depth == 0 {
            return;
        }
        for (panel, out) in self.out.chunks_exact_mut(nr * self.depth).take(self.columns.len().div_ceil(nr)).enumerate()
        {
            let column = self.columns.start + panel * nr;
            let count = nr.min(self.columns.end - column);
            let at = if along { column * leading + self.k0 } else { self.k0 * leading + column };
            let block = pack::Block { source: self.b.from(at), leading, along, count, depth: self.depth };
            pack::panel(simd, block, nr, out);
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

/// What a tile is added to.
#[derive(Clone, Copy, PartialEq)]
enum Old {
    /// Nothing: it is the first block of the sum.
    Nothing,
    /// The values of C before the product.
    C,
    /// What the blocks of k before this one gave: in C if it is f32, else in the task's own buffer.
    Sums,
}

/// All tiles of a packed block of A with a packed block of B.
struct Sweep<'a> {
    a: &'a [f32],
    b: &'a [f32],
    depth: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    c: Output<'a>,
    c_start: usize,
    ldc: usize,
    old: Old,
    last: bool,
    finish: Finish<'a>,
    sums: Disjoint<'a, f32>,
    origin: (usize, usize),
}

impl Kernel for Sweep<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let tile = Tile::of_lanes(S::LANES);
        for column in self.columns.clone().step_by(tile.nr) {
            let b = &self.b[(column - self.columns.start) * self.depth..][..tile.nr * self.depth];
            for (start, height) in panels(self.rows.len(), tile.mr) {
                let a = &self.a[start * self.depth..][..height * self.depth];
                let mut out = [0f32; 14 * 32];
                macro_rules! heights {
                    ($nv:literal: $($h:literal)*) => {
                        match height {
                            $($h => product::<S, $h, $nv>(simd, self.depth, a, b, &mut out),)*
                            _ => unreachable!("no tile has {height} rows"),
                        }
                    };
                }
                match S::LANES {
                    16 => heights!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                    8 | 4 => heights!(2: 1 2 3 4 5 6),
                    _ => heights!(8: 1 2 3 4),
                }
                for (row, sums) in out.chunks_exact(tile.nr).take(height).enumerate() {
                    self.finish_row(simd, self.rows.start + start + row, column, sums);
                }
            }
        }
    }
}

/// out[H, NR] = A panel · B panel, in registers.
#[inline(always)]
fn product<S: Simd, const H: usize, const NV: usize>(simd: S, depth: usize, a: &[f32], b: &[f32], out: &mut [f32]) {
    assert!(a.len() >= depth * H && b.len() >= depth * NV * S::LANES && out.len() >= H * NV * S::LANES);
    let mut sums = [[simd.zero(); NV]; H];
    let (mut a, mut b) = (a.as_ptr(), b.as_ptr());
    for _ in 0..depth {
        // SAFETY: the asserted lengths hold `depth` groups of H and NR floats; the pointers move one group a step.
        unsafe {
            let row: [S::F32; NV] = from_fn(|v| simd.load_ptr(b.add(v * S::LANES)));
            for (i, sums) in sums.iter_mut().enumerate() {
                let factor = simd.splat(*a.add(i));
                for v in 0..NV {
                    sums[v] = simd.mul_add(factor, row[v], sums[v]);
                }
            }
            a = a.add(H);
            b = b.add(NV * S::LANES);
        }
    }
    for (i, sums) in sums.into_iter().enumerate() {
        for (v, sum) in sums.into_iter().enumerate() {
            simd.store(&mut out[(i * NV + v) * S::LANES..], sum);
        }
    }
}

impl Sweep<'_> {
    #[inline(always)]
    fn finish_row<S: Simd>(&self, simd: S, row: usize, column: usize, sums: &[f32]) {
        for (v, sum) in sums.chunks_exact(S::LANES).enumerate() {
            let column = column + v * S::LANES;
            if column >= self.columns.end {
                break;
            }
            let count = S::LANES.min(self.columns.end - column);
            let inside = row * self.ldc + column;
            let at = self.c_start + inside;
            let partial = {
                let at = (row - self.origin.0) * Tile::of_lanes(S::LANES).task_columns + column - self.origin.1;
                at..at + count
            };
            let mut value = simd.load(sum);
            // SAFETY: a task touches its own rectangle of C alone, and its thread's own buffer of sums.
            unsafe {
                let old = match (self.old, self.c) {
                    (Old::Nothing, _) => None,
                    (Old::Sums, Output::Bf16(_)) => Some(simd.load_partial(self.sums.slice(partial.clone()))),
                    _ => Some(self.c.load(simd, at, count)),
                };
                if let Some(old) = old {
                    value = simd.add(old, value);
                }
                if self.last {
                    self.c.store(simd, at, count, self.finish.apply(simd, value, column, inside, count));
                } else if let Output::F32(_) = self.c {
                    self.c.store(simd, at, count, value);
                } else {
                    simd.store_partial(self.sums.slice(partial), value);
                }
            }
        }
    }
}
