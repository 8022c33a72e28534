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
//!
//! The loop nest knows a microkernel by the trait [`Microkernel`] only. Those that keep their tile in vector registers
//! implement [`MultiplyAdd`], a few instructions, and share this file's loops: f32 ([`Fma`]) and int8.

use super::blocking::packs_transposed;
use crate::extent::{index, span};
use crate::pool::part;
use crate::register_tile::{RegisterTile, TALLEST, for_height};
use crate::simd::{Kernel, Simd, from_fn, prefetch, prefetch_l2};
use bytemuck::Pod;
use std::{marker::PhantomData, ops::Range};

/// Prefetch distance of the operands, in steps.
const AHEAD: usize = 8;

/// Size of a tile and what it is computed from. A value is a token, as of [`Simd`]: it proves that the machine has the
/// instructions.
///
/// A and B are stored in *groups*, an f32 or several neighboring k: a *step* multiplies a group of A with a group of B. Sizes
/// and strides count groups. A group of rounded weights is two columns instead ([`Stored`]).
pub(crate) trait Tile: Copy + Send + Sync {
    /// f32 arithmetic of the epilogue. Vectors have as many lanes as the tile's.
    type Simd: Simd;
    /// Group of A.
    type A: Pod + Send + Sync;
    /// Group of B.
    type B: Pod + Send + Sync;
    /// MR rows and NV vectors.
    const SIZE: RegisterTile;
    /// NR: columns of the tile and of a packed panel of B.
    const NR: usize = Self::SIZE.columns(Self::Simd::LANES);
    /// Groups of B of a step: fewer than NR if a group has several columns.
    const B_GROUPS: usize = Self::NR;
    /// True if sums are of quantized values, which are scaled before the epilogue.
    const QUANTIZED: bool;
    /// True if MR rows are computed whether or not they exist.
    const WHOLE: bool = false;
    /// True if a tile is added to its old values block by block of k, false if it is summed first.
    const FROM_OLD_VALUES: bool = false;
    /// True if the epilogue of a tile is computed after the next tile's instructions, because a unit of its own executes them.
    const DEFERS: bool = false;
    /// True if the sums that a tile stores are i32, which the epilogue converts.
    const STORES_INTEGERS: bool = false;

    /// Token of the epilogue's arithmetic.
    fn simd(self) -> Self::Simd;
    /// Runs `kernel` with the instructions enabled for everything that is inlined into it.
    fn vectorize<K: MicrokernelUser<Self>>(self, kernel: K);
}

/// Computes tiles of C.
pub(crate) trait Microkernel: Tile {
    /// True if the loops over tiles are compiled for each height, because the kernel's registers are.
    const BY_HEIGHT: bool = false;
    /// True if a tile can be computed in several parts of k.
    const IN_PARTS: bool = false;

    /// Stores A\[height, depth\] · B\[depth, NR\] of a part of k to `to`: summed in chains, which are added in order.
    /// Prefetches `next`.
    ///
    /// # Safety
    /// `height` is 1 to MR, and H if the kernel is compiled for each height, else H is 0. `a` holds `height` rows and `b` NR
    /// columns of the part's steps (their `check`). `to` is valid for reading and writing `height` rows of NR floats,
    /// `to.partial` for `height` · NR floats.
    unsafe fn tile<const H: usize>(
        self,
        height: usize,
        part: Part,
        a: PanelA<'_, Self::A>,
        b: PanelB<'_, Self::B>,
        next: NextTile,
        to: Destination<'_>,
    );
}

/// Steps of a block that one call multiplies.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// Steps.
    pub depth: usize,
    /// Steps of a chain, or of a section of split operands: at least 1 unless `depth` is 0.
    pub chain: usize,
    /// True if the tile begins with this part, false if the sums of those before are in [`Destination::partial`].
    pub first: bool,
    /// True if the tile ends with this part, false if the sums go to [`Destination::partial`].
    pub last: bool,
}

/// Code that is generic over the microkernel. `run` and the functions that it calls are `#[inline(always)]`.
pub(crate) trait MicrokernelUser<M> {
    /// Runs the code.
    fn run(self, m: M);
}

/// Destination of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Destination<'a> {
    /// First element.
    pub c: *mut f32,
    /// Elements between the starts of two rows.
    pub ldc: usize,
    /// True to add the tile to the old values.
    pub add: bool,
    /// Bias to add, NR elements or more.
    pub bias: Option<&'a [f32]>,
    /// Buffer of a tile outside C, for sums on the way: of the previous chains and parts, or of even k.
    pub partial: *mut f32,
}

/// Instructions of a tile in vector registers: a sum of products of groups per lane.
///
/// # Safety
/// An implementation must only be constructible on machines with its instructions and those of `Simd`.
pub(crate) unsafe trait MultiplyAdd: Tile {
    /// A group of A or of B per lane.
    type Groups: Copy;
    /// A sum per lane.
    type Sums: Copy;

    /// Zero in every lane.
    fn zero(self) -> Self::Sums;
    /// Loads vector `v` of the columns of a step.
    ///
    /// # Safety
    /// `b` is valid for reading the groups of a step, and `v` is less than NV.
    unsafe fn load(self, b: *const Self::B, v: usize) -> Self::Groups;
    /// Loads a group of A into every lane.
    ///
    /// # Safety
    /// `a` is valid for reading a group.
    unsafe fn broadcast(self, a: *const Self::A) -> Self::Groups;
    /// sum + a · b
    fn multiply_add(self, a: Self::Groups, b: Self::Groups, sum: Self::Sums) -> Self::Sums;
    /// Sums as they are stored on the way.
    fn to_bits(self, sums: Self::Sums) -> F32s<Self>;
    /// Stored sums of the chains before, and those of a chain.
    fn add(self, before: F32s<Self>, sums: Self::Sums) -> Self::Sums;
    /// Sums in f32.
    fn to_f32(self, sums: Self::Sums) -> F32s<Self>;

    /// [`Microkernel::tile`] of H rows and NV vectors, the vectors of NR. The sum of the previous chains is kept in
    /// `to.partial`, in L1, because registers do not hold two sets of accumulators; the store and the load of the tile cost a
    /// hundredth of a chain.
    ///
    /// # Safety
    /// As [`Microkernel::tile`].
    #[inline(always)]
    unsafe fn registers<const H: usize, const NV: usize>(
        self,
        part: Part,
        panel_a: PanelA<'_, Self::A>,
        panel_b: PanelB<'_, Self::B>,
        next: NextTile,
        to: Destination<'_>,
    ) {
        // Without B to prefetch, a line that is read.
        let next_b = if next.b_step == 0 { panel_b.b.as_ptr().cast() } else { next.b };
        let mut start = 0;
        let mut has_sums = !part.first;
        loop {
            let depth = part.chain.min(part.depth - start);
            let ends = start + depth == part.depth;
            let steps = Chain {
                depth,
                a: panel_a.a[start * panel_a.k_stride..].as_ptr(),
                b: panel_b.b[start * panel_b.k_stride..].as_ptr(),
                b_stride: panel_b.k_stride,
                next: ends.then_some(next),
                next_b: next_b.wrapping_add(start.wrapping_mul(next.b_step)),
                next_b_step: next.b_step,
            };
            // SAFETY: the caller's promise, for steps start .. start + depth.
            unsafe {
                let mut sums: [[Self::Sums; NV]; H] = if panel_a.k_stride == 1 && H > 1 {
                    product_strided(self, steps, panel_a.row_stride)
                } else {
                    product_packed(self, steps, panel_a.k_stride)
                };
                if has_sums {
                    add_partial(self, &mut sums, to.partial);
                }
                if ends && part.last {
                    return write(self.simd(), to_f32(self, &sums), to);
                }
                store_partial(self, &sums, to.partial);
            }
            if ends {
                return;
            }
            start += depth;
            has_sums = true;
        }
    }
}

/// Vector of the f32 arithmetic of T.
pub(crate) type F32s<T> = <<T as Tile>::Simd as Simd>::F32;

impl<T: MultiplyAdd> Microkernel for T {
    // Emulated vectors have no registers.
    const BY_HEIGHT: bool = !T::Simd::EMULATED;
    const IN_PARTS: bool = true;

    #[inline(always)]
    unsafe fn tile<const H: usize>(
        self,
        height: usize,
        part: Part,
        a: PanelA<'_, T::A>,
        b: PanelB<'_, T::B>,
        next: NextTile,
        to: Destination<'_>,
    ) {
        if const { H > 0 } {
            // SAFETY: the caller's promise.
            unsafe {
                if const { T::SIZE.vectors == 2 } {
                    self.registers::<H, 2>(part, a, b, next, to);
                } else {
                    self.registers::<H, 8>(part, a, b, next, to);
                }
            }
            return;
        }
        // One row at a time: the same bits from less code. Row i of `partial` is unused until row i of the tile is stored.
        for i in 0..height {
            let a = PanelA { a: &a.a[(i * a.row_stride).min(a.a.len())..], ..a };
            for_height!(RegisterTile::new(1, T::SIZE.vectors), 1, |ONE, NV| {
                // SAFETY: the caller's promise, for row i.
                unsafe {
                    let to = Destination { c: to.c.add(i * to.ldc), partial: to.partial.add(i * T::NR), ..to };
                    self.registers::<ONE, NV>(part, a, b, NextTile::NONE, to);
                }
            });
        }
    }
}

/// Storage of B in f32 products, in groups of 32 bits.
pub(super) trait Stored: Pod + Send + Sync {
    /// Columns of a group.
    const COLUMNS: usize;

    /// Loads vector `v` of the columns of a step, as f32.
    ///
    /// # Safety
    /// `b` is valid for reading the groups of a step, and `v` is less than their vectors of columns.
    unsafe fn load<S: Simd>(simd: S, b: *const Self, v: usize) -> S::F32;
}

impl Stored for f32 {
    const COLUMNS: usize = 1;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, b: *const f32, v: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { simd.load_ptr(b.add(v * S::LANES)) }
    }
}

/// Two bf16: columns of vectors 2v and 2v + 1, in the low and the high half of a word. An instruction widens a vector, and both
/// come from one load.
impl Stored for u32 {
    const COLUMNS: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(simd: S, b: *const u32, v: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        let words = simd.as_bits(unsafe { simd.load_ptr(b.cast::<f32>().add(v / 2 * S::LANES)) });
        let is_low = v.is_multiple_of(2);
        simd.as_floats(if is_low { simd.shl::<16>(words) } else { simd.and(words, simd.splat_u32(0xffff_0000)) })
    }
}

/// Multiply-adds of f32 on the vectors of S, with B stored as B.
#[derive(Clone, Copy)]
pub(super) struct Fma<S, B = f32>(pub S, pub PhantomData<B>);

impl<S: Simd, B: Stored> Tile for Fma<S, B> {
    type Simd = S;
    type A = f32;
    type B = B;
    const SIZE: RegisterTile = RegisterTile::of::<S>();
    const B_GROUPS: usize = Self::NR / B::COLUMNS;
    const QUANTIZED: bool = false;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }
    #[inline(always)]
    fn vectorize<K: MicrokernelUser<Self>>(self, kernel: K) {
        self.0.vectorize(Entered(self, kernel));
    }
}

// SAFETY: it owns a token of S, and executes only instructions of S.
unsafe impl<S: Simd, B: Stored> MultiplyAdd for Fma<S, B> {
    type Groups = S::F32;
    type Sums = S::F32;

    #[inline(always)]
    fn zero(self) -> S::F32 {
        self.0.zero()
    }
    #[inline(always)]
    unsafe fn load(self, b: *const B, v: usize) -> S::F32 {
        // SAFETY: the caller's promise.
        unsafe { B::load(self.0, b, v) }
    }
    #[inline(always)]
    unsafe fn broadcast(self, a: *const f32) -> S::F32 {
        // SAFETY: the caller's promise.
        self.0.splat(unsafe { *a })
    }
    #[inline(always)]
    fn multiply_add(self, a: S::F32, b: S::F32, sum: S::F32) -> S::F32 {
        self.0.mul_add(a, b, sum)
    }
    #[inline(always)]
    fn to_bits(self, sums: S::F32) -> S::F32 {
        sums
    }
    #[inline(always)]
    fn add(self, before: S::F32, sums: S::F32) -> S::F32 {
        self.0.add(before, sums)
    }
    #[inline(always)]
    fn to_f32(self, sums: S::F32) -> S::F32 {
        sums
    }
}

/// `K` with the token of its microkernel.
pub(crate) struct Entered<M, K>(pub M, pub K);

impl<M, K: MicrokernelUser<M>> Kernel for Entered<M, K> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.1.run(self.0);
    }
}

/// H rows of A for some steps: row i at step p is `a[i · row_stride + p · k_stride]`; `row_stride` or `k_stride` is 1. Parts of
/// split operands are `part_stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct PanelA<'a, G> {
    pub a: &'a [G],
    pub row_stride: usize,
    pub k_stride: usize,
    pub part_stride: usize,
}

/// NR columns of B for some steps: step p starts at `b[p · k_stride]`. Parts of split operands are `part_stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct PanelB<'a, G> {
    pub b: &'a [G],
    pub k_stride: usize,
    pub part_stride: usize,
}

/// Prefetches issued during a tile: the next tile's lines of C and of the epilogue's matrix, one row at a time, and a part of
/// the B after this panel, step by step, because a core has about a dozen line-fill buffers and the operands need some of
/// them.
#[derive(Clone, Copy)]
pub(crate) struct NextTile {
    /// C at the next tile; any address. Null: neither C nor the matrix is prefetched.
    pub c: *const f32,
    /// The epilogue's matrix at the next tile, or `c` if it has none; any address.
    pub matrix: *const f32,
    /// Leading dimension of both.
    pub ldc: usize,
    /// B to prefetch; any address.
    pub b: *const u8,
    /// Bytes of `b` per step; 0 if B is not prefetched.
    pub b_step: usize,
}

impl NextTile {
    /// Nothing to prefetch. A prefetch from page 0 would have no effect but a walk through the page table each time.
    pub(super) const NONE: Self =
        Self { c: std::ptr::null(), matrix: std::ptr::null(), ldc: 0, b: std::ptr::null(), b_step: 0 };

    /// Prefetches `height` rows of C and of the matrix, `width` columns wide, and B for `depth` steps.
    #[inline(always)]
    pub(super) fn prefetch(self, height: usize, width: usize, depth: usize) {
        self.prefetch_rows(0..height, width);
        for line in (0..depth * self.b_step).step_by(64) {
            prefetch_l2(self.b.wrapping_add(line));
        }
    }

    /// Prefetches some rows, `width` columns wide.
    #[inline(always)]
    fn prefetch_rows(self, rows: Range<usize>, width: usize) {
        if self.c.is_null() {
            return;
        }
        for i in rows {
            for matrix in [self.c, self.matrix] {
                let row = matrix.wrapping_add(i.wrapping_mul(self.ldc));
                for line in (0..width).step_by(16) {
                    prefetch(row.wrapping_add(line));
                }
            }
        }
    }
}

impl<G> PanelA<'_, G> {
    /// Panics if the panel does not hold `parts` parts of `height` rows of `depth` steps.
    #[inline(always)]
    pub(super) fn check(&self, height: usize, depth: usize, parts: usize) {
        assert!(self.row_stride == 1 || self.k_stride == 1);
        let reach =
            if self.k_stride == 1 { span(height, depth, self.row_stride) } else { span(depth, height, self.k_stride) };
        assert!(self.a.len() >= index(parts - 1, self.part_stride, reach));
    }
}

impl<G> PanelB<'_, G> {
    /// Panics if the panel does not hold `parts` parts of `width` columns of `depth` steps.
    #[inline(always)]
    pub(super) fn check(&self, width: usize, depth: usize, parts: usize) {
        assert!(self.b.len() >= index(parts - 1, self.part_stride, span(depth, width, self.k_stride)));
    }
}

/// Steps of a chain.
struct Chain<T: Tile> {
    depth: usize,
    a: *const T::A,
    b: *const T::B,
    /// Groups from a step of B to the next.
    b_stride: usize,
    /// The next tile, if this is its last chain.
    next: Option<NextTile>,
    /// B to prefetch, and bytes of it per step.
    next_b: *const u8,
    next_b_step: usize,
}

/// Sums in f32.
#[inline(always)]
fn to_f32<T: MultiplyAdd, const H: usize, const NV: usize>(t: T, sums: &[[T::Sums; NV]; H]) -> [[F32s<T>; NV]; H] {
    // By index: iterators over two arrays may stay calls.
    let mut acc = [[t.simd().zero(); NV]; H];
    for i in 0..H {
        for v in 0..NV {
            acc[i][v] = t.to_f32(sums[i][v]);
        }
    }
    acc
}

/// sums = partial + sums
///
/// # Safety
/// `partial` is valid for reading H rows of NV vectors.
#[inline(always)]
unsafe fn add_partial<T: MultiplyAdd, const H: usize, const NV: usize>(
    t: T,
    sums: &mut [[T::Sums; NV]; H],
    partial: *const f32,
) {
    for (i, row) in sums.iter_mut().enumerate() {
        for (v, sums) in row.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let before = unsafe { t.simd().load_ptr(partial.add((i * NV + v) * T::Simd::LANES)) };
            *sums = t.add(before, *sums);
        }
    }
}

/// partial = sums
///
/// # Safety
/// `partial` is valid for writing H rows of NV vectors.
#[inline(always)]
unsafe fn store_partial<T: MultiplyAdd, const H: usize, const NV: usize>(
    t: T,
    sums: &[[T::Sums; NV]; H],
    partial: *mut f32,
) {
    for (i, row) in sums.iter().enumerate() {
        for (v, &sums) in row.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { t.simd().store_ptr(partial.add((i * NV + v) * T::Simd::LANES), t.to_bits(sums)) };
        }
    }
}

/// Prefetches a step of B at `b`.
#[inline(always)]
fn prefetch_b<T: MultiplyAdd>(b: *const T::B) {
    for line in (0..T::B_GROUPS).step_by(64 / size_of::<T::B>()) {
        prefetch(b.wrapping_add(line));
    }
}

/// Rows of C whose prefetches are issued together, for a tile of `rows` rows: about eight cache lines. A core has about a dozen
/// line-fill buffers, and the operands need some of them; each part of a loop costs a branch misprediction.
const fn rows_at_once(rows: usize, width: usize) -> usize {
    let lines = rows * width.div_ceil(16);
    if lines <= 8 { TALLEST } else { rows.div_ceil(lines.div_ceil(8)) }
}

/// Sums of a chain of an A whose H groups of a step are contiguous: packed, or stored transposed, steps `group` groups apart.
///
/// # Safety
/// `chain` has its steps of H rows of A and NV vectors of B.
#[inline(always)]
unsafe fn product_packed<T: MultiplyAdd, const H: usize, const NV: usize>(
    t: T,
    chain: Chain<T>,
    group: usize,
) -> [[T::Sums; NV]; H] {
    let mut acc = [[t.zero(); NV]; H];
    let Chain { depth, mut a, mut b, b_stride, next, mut next_b, next_b_step } = chain;
    let (a_ahead, b_ahead) = (AHEAD.wrapping_mul(group), AHEAD.wrapping_mul(b_stride));
    // One loop if nothing is prefetched: each loop exit costs a branch misprediction.
    let rows = const { rows_at_once(H, NV * T::Simd::LANES) };
    let parts = if next.is_some() { const { H.div_ceil(rows_at_once(H, NV * T::Simd::LANES)) } } else { 1 };
    for i in 0..parts {
        if let Some(next) = next {
            next.prefetch_rows(i * rows..H.min((i + 1) * rows), NV * T::Simd::LANES);
        }
        for _ in part(depth, 1, parts, i) {
            prefetch_b::<T>(b.wrapping_add(b_ahead));
            if const { !packs_transposed(T::SIZE.rows) } {
                prefetch(a.wrapping_add(a_ahead));
                prefetch(a.wrapping_add(a_ahead.wrapping_add(H - 1)));
            }
            prefetch_l2(next_b);
            // SAFETY: the caller's promise; the pointers advance by one step.
            unsafe {
                let row: [T::Groups; NV] = from_fn(|v| t.load(b, v));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let factor = t.broadcast(a.add(i));
                    for v in 0..NV {
                        acc[v] = t.multiply_add(factor, row[v], acc[v]);
                    }
                }
            }
            a = a.wrapping_add(group);
            b = b.wrapping_add(b_stride);
            next_b = next_b.wrapping_add(next_b_step);
        }
    }
    acc
}

/// Sums of a chain of an A whose rows are contiguous along k, read in place. Five pointers address up to 15 rows, three each.
///
/// # Safety
/// `chain` has its steps of H rows of A, `row_stride` groups apart, and NV vectors of B.
#[inline(always)]
unsafe fn product_strided<T: MultiplyAdd, const H: usize, const NV: usize>(
    t: T,
    chain: Chain<T>,
    row_stride: usize,
) -> [[T::Sums; NV]; H] {
    const { assert!(H <= 15) };
    let mut acc = [[t.zero(); NV]; H];
    let Chain { depth, a, mut b, b_stride, next, mut next_b, next_b_step } = chain;
    let b_ahead = AHEAD.wrapping_mul(b_stride);
    // Five variables: an array would be kept in memory.
    let row = |i: usize| a.wrapping_add(i.wrapping_mul(row_stride));
    let (mut a0, mut a1, mut a2) = (row(0), row(3), row(6));
    let (mut a3, mut a4) = (row(9), row(12));
    // One loop if nothing is prefetched: each loop exit costs a branch misprediction.
    let rows = const { rows_at_once(H, NV * T::Simd::LANES) };
    let parts = if next.is_some() { const { H.div_ceil(rows_at_once(H, NV * T::Simd::LANES)) } } else { 1 };
    for i in 0..parts {
        if let Some(next) = next {
            next.prefetch_rows(i * rows..H.min((i + 1) * rows), NV * T::Simd::LANES);
        }
        for _ in part(depth, 1, parts, i) {
            prefetch_b::<T>(b.wrapping_add(b_ahead));
            prefetch_l2(next_b);
            // SAFETY: the caller's promise; the pointers advance by one step, and pointers to rows past H are not read.
            unsafe {
                let row: [T::Groups; NV] = from_fn(|v| t.load(b, v));
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
                    let factor = t.broadcast(three.wrapping_add(i % 3 * row_stride));
                    for v in 0..NV {
                        acc[v] = t.multiply_add(factor, row[v], acc[v]);
                    }
                }
            }
            (a0, a1, a2) = (in_register(a0), in_register(a1), in_register(a2));
            (a3, a4) = (in_register(a3), in_register(a4));
            b = b.wrapping_add(b_stride);
            next_b = next_b.wrapping_add(next_b_step);
        }
    }
    acc
}

/// Pointer to the next step of a row. The empty assembly hides that all pointers advance alike: the compiler would
/// otherwise give each row its own pointer, more than there are registers.
#[allow(clippy::pointers_in_nomem_asm_block)]
#[inline(always)]
fn in_register<G>(mut p: *const G) -> *const G {
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
/// `to` is valid for reading and writing H rows of NV vectors.
#[inline(always)]
unsafe fn write<S: Simd, const H: usize, const NV: usize>(simd: S, mut acc: [[S::F32; NV]; H], to: Destination<'_>) {
    let Destination { c, ldc, add, bias, .. } = to;
    // By reference: iterators over arrays by value do not unroll and would spill the accumulators.
    if add {
        // SAFETY: the caller's promise.
        unsafe { add_rows(simd, &mut acc, c, ldc) };
    }
    if let Some(bias) = bias {
        let bias: [S::F32; NV] = from_fn(|v| simd.load(&bias[v * S::LANES..]));
        for row in &mut acc {
            for v in 0..NV {
                row[v] = simd.add(row[v], bias[v]);
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
