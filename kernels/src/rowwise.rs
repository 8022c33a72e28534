//! Loop over the columns of a row, LANES at a time, shared by all row kernels.
//!
//! A kernel defines a step on LANES neighboring columns ([`Columns::step`]), which reads like its equation. [`sweep`] loops
//! over the row with four vectors per iteration, and handles the tail: the last vector ends at the row's end and overlaps
//! the previous one. There are four kinds of streams:
//!
//! ```text
//! x: [&[X]; _]         read       activations in their storage type (f32 or bf16)
//! p: [&[f32]; _]       read       parameters, gradients of parameters, statistics
//! u: [&mut [f32]; _]   updated    f32 read and written back (sums over rows, optimizer state)
//! y: [&mut [X]; _]     written    outputs in their storage type
//! ```
//!
//! and any number of sums over the row. The order of a sum is a function of the row's length, the same for every
//! instruction set. It has four groups of 16 accumulators, since an addition has a latency of four cycles:
//!
//! ```text
//! columns of                     are added to accumulators, the first column to the first
//!   whole blocks of 64             0 .. 16     16 .. 32     32 .. 48     48 .. 64
//!   then whole blocks of 16        0 .. 16
//!   then r < 16                    16 - r .. 16      (0 .. r if the row has only these)
//! then                          (  0 .. 16  +  16 .. 32  )  +  (  32 .. 48  +  48 .. 64  )
//! and of the 16                 the upper half is added to the lower half until one is left
//! ```
#![allow(unsafe_code)]

use crate::{
    Element,
    simd::{MAX_LANES, Simd, WIDTH, Wide, from_fn, prefetch, prefetch_l2, reduce_sixteen},
};
use std::ops::Range;

/// Prefetch distance in bytes for rows in L3 or memory: the hardware prefetcher stops at page boundaries.
const AHEAD: usize = 2048;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Step of a row kernel on LANES neighboring columns. The module lists the kinds of streams.
///
/// `step` must be `#[inline(always)]`. It may be called with a column twice, and with zeros past the end of a row of fewer
/// than LANES columns; results of these are neither stored nor summed.
pub(crate) trait Columns<const NX: usize, const NP: usize, const NU: usize, const NY: usize, const SUMS: usize> {
    /// Computes the outputs from the inputs, updates `u` and adds to `sums`.
    fn step<S: Simd>(
        &self,
        simd: S,
        x: [S::F32; NX],
        p: [S::F32; NP],
        u: &mut [S::F32; NU],
        sums: &mut [S::F32; SUMS],
    ) -> [S::F32; NY];

    /// Initial value of an accumulator: the identity of `combine`.
    const IDENTITY: f32 = 0.0;
    /// Combines two accumulators: the sum unless the kernel overrides it.
    #[inline(always)]
    fn combine<S: Simd>(simd: S, a: S::F32, b: S::F32) -> S::F32 {
        simd.add(a, b)
    }
    /// Reduces the lanes of an accumulator.
    #[inline(always)]
    fn fold<S: Simd>(simd: S, a: S::F32) -> f32 {
        simd.reduce_sum(a)
    }
}

/// Processes the first `len` columns of all streams and returns the sums. Panics if a stream is shorter.
///
/// Prefetches x and y at a fixed distance ahead, also past the end of the row.
#[inline(always)]
pub(crate) fn sweep<
    S: Simd,
    X: Element,
    C: Columns<NX, NP, NU, NY, SUMS>,
    const NX: usize,
    const NP: usize,
    const NU: usize,
    const NY: usize,
    const SUMS: usize,
>(
    simd: S,
    len: usize,
    columns: &C,
    x: [&[X]; NX],
    p: [&[f32]; NP],
    u: [&mut [f32]; NU],
    y: [&mut [X]; NY],
) -> [f32; SUMS] {
    let (read, written): ([_; NX], [_; NY]) = (from_fn(|i| x[i].as_ptr()), from_fn(|i| y[i].as_ptr()));
    let ahead = |c| {
        for stream in read.into_iter().chain(written) {
            for line in lines(stream.wrapping_add(c), block::<S>(SUMS)) {
                prefetch(line.wrapping_add(AHEAD));
            }
        }
    };
    Streams { x, p, u, y }.sweep(simd, len, columns, ahead)
}

/// [`sweep`] for kernels with several sweeps per row: prefetches the rows at `far` into L2 at the pace of the sweep.
///
/// Such a kernel reads a row in its first sweep and writes one in its last, and memory is idle in between. Prefetching later
/// rows during the other sweeps overlaps memory and arithmetic (LayerNorm over 4096 x 3072: 1.4 times as fast).
#[inline(always)]
pub(crate) fn sweep_prefetching<
    S: Simd,
    X: Element,
    C: Columns<NX, NP, NU, NY, SUMS>,
    const NX: usize,
    const NP: usize,
    const NU: usize,
    const NY: usize,
    const SUMS: usize,
    const FAR: usize,
>(
    simd: S,
    len: usize,
    columns: &C,
    far: [*const X; FAR],
    x: [&[X]; NX],
    p: [&[f32]; NP],
    u: [&mut [f32]; NU],
    y: [&mut [X]; NY],
) -> [f32; SUMS] {
    let ahead = |c| {
        for stream in far {
            for line in lines(stream.wrapping_add(c), block::<S>(SUMS)) {
                prefetch_l2(line);
            }
        }
    };
    Streams { x, p, u, y }.sweep(simd, len, columns, ahead)
}

/// Address of the row `rows` rows after `row`, for prefetching only: the row may not exist.
#[inline(always)]
pub(crate) fn rows_on<X>(rows: usize, row: &[X]) -> *const X {
    row.as_ptr().wrapping_add(rows * row.len())
}

/// Cache lines of the columns of one iteration from `p` on.
#[inline(always)]
fn lines<X>(p: *const X, columns: usize) -> impl Iterator<Item = *const u8> {
    (0..columns * size_of::<X>()).step_by(LINE).map(move |line| p.cast::<u8>().wrapping_add(line))
}

/// Vectors of a group: 16 columns if there are sums, else one vector.
#[inline(always)]
const fn group_vectors<S: Simd>(sums: usize) -> usize {
    if sums == 0 { 1 } else { MAX_LANES / S::LANES }
}

/// Maximum vectors of a group, with at least four lanes each.
const MAX_VECTORS: usize = MAX_LANES / 4;

/// Columns of one iteration of the loop over a row.
#[inline(always)]
const fn block<S: Simd>(sums: usize) -> usize {
    group_vectors::<S>(sums) * WIDTH * S::LANES
}

/// [`sweep`] that updates streams of the storage type, without prefetching.
#[inline(always)]
pub(crate) fn sweep_in_place<
    S: Simd,
    X: Element,
    C: Columns<NX, NP, NU, 0, SUMS>,
    const NX: usize,
    const NP: usize,
    const NU: usize,
    const SUMS: usize,
>(
    simd: S,
    len: usize,
    columns: &C,
    x: [&[X]; NX],
    p: [&[f32]; NP],
    u: [&mut [X]; NU],
) -> [f32; SUMS] {
    Streams { x, p, u, y: [] }.sweep(simd, len, columns, |_| {})
}

/// The streams of a row.
struct Streams<'a, X, U, const NX: usize, const NP: usize, const NU: usize, const NY: usize> {
    x: [&'a [X]; NX],
    p: [&'a [f32]; NP],
    u: [&'a mut [U]; NU],
    y: [&'a mut [X]; NY],
}

impl<X: Element, U: Element, const NX: usize, const NP: usize, const NU: usize, const NY: usize>
    Streams<'_, X, U, NX, NP, NU, NY>
{
    /// Loop of all sweeps; calls `ahead(c)`, which prefetches, at column `c`.
    #[inline(always)]
    fn sweep<S: Simd, C: Columns<NX, NP, NU, NY, SUMS>, const SUMS: usize>(
        mut self,
        simd: S,
        len: usize,
        columns: &C,
        ahead: impl Fn(usize),
    ) -> [f32; SUMS] {
        for x in &self.x {
            assert!(x.len() >= len);
        }
        for p in &self.p {
            assert!(p.len() >= len);
        }
        for u in &self.u {
            assert!(u.len() >= len);
        }
        for y in &self.y {
            assert!(y.len() >= len);
        }
        // What a constant block excludes is not even compiled: that halves the time to compile this crate.
        if const { S::LANES == 1 } {
            // SAFETY: no stream is shorter than `len`.
            unsafe { self.each_column(simd, len, columns, ahead) }
        } else {
            // SAFETY: as above.
            unsafe { self.each_vector(simd, len, columns, ahead) }
        }
    }

    /// [`Self::sweep`] for vectors of several lanes.
    ///
    /// # Safety
    /// Every stream has at least `len` elements.
    #[inline(always)]
    unsafe fn each_vector<S: Simd, C: Columns<NX, NP, NU, NY, SUMS>, const SUMS: usize>(
        &mut self,
        simd: S,
        len: usize,
        columns: &C,
        ahead: impl Fn(usize),
    ) -> [f32; SUMS] {
        let vectors = const { group_vectors::<S>(SUMS) };
        let (group, block) = (vectors * S::LANES, block::<S>(SUMS));
        let identity = simd.splat(C::IDENTITY);
        // Four vectors of accumulators for each of the `vectors` steps of a block.
        let mut wide = [[[identity; WIDTH]; SUMS]; MAX_VECTORS];
        let mut c = 0;
        while len - c >= block {
            ahead(c);
            macro_rules! step {
                ($step:expr) => {{
                    let c = c + $step * WIDTH * S::LANES;
                    // SAFETY: the columns of the block are within `len`, and no stream is shorter than `len`.
                    unsafe { self.full(Wide(simd), columns, c, &mut wide[$step]) };
                }};
            }
            // Constant indices keep the accumulators in registers.
            step!(0);
            if const { group_vectors::<S>(SUMS) > 1 } {
                step!(1);
            }
            if const { group_vectors::<S>(SUMS) > 2 } {
                step!(2);
                step!(3);
            }
            c += block;
        }
        // Vector v of quarter q of the 64 accumulators.
        let accumulator = |k: usize, q: usize, v: usize| wide[(q * vectors + v) / WIDTH][k][(q * vectors + v) % WIDTH];
        let mut sums = [[identity; SUMS]; MAX_VECTORS];
        for (v, sums) in sums.iter_mut().enumerate().take(vectors) {
            *sums = from_fn(|k| accumulator(k, 0, v));
        }
        while len - c >= group {
            for (v, sums) in sums.iter_mut().enumerate().take(vectors) {
                // SAFETY: as above.
                unsafe { self.full(simd, columns, c + v * S::LANES, sums) };
            }
            c += group;
        }
        if c < len {
            let first = len.saturating_sub(group);
            for (v, sums) in sums.iter_mut().enumerate().take(vectors) {
                let start = first + v * S::LANES;
                // SAFETY: as above; vectors that end at the row's end or before are within `len`.
                unsafe {
                    if start + S::LANES <= c || start >= len {
                        continue;
                    } else if start < c {
                        self.overlapping(simd, columns, start, c, sums);
                    } else if const { group_vectors::<S>(SUMS) > 1 } && start + S::LANES <= len {
                        self.full(simd, columns, start, sums);
                    } else {
                        self.partial(simd, columns, start..len, sums);
                    }
                }
            }
        }
        let mut totals = [0.0; SUMS];
        if const { SUMS == 0 } {
            return totals;
        }
        for (k, total) in totals.iter_mut().enumerate() {
            let mut lanes = [identity; MAX_LANES];
            for (v, lanes) in lanes.iter_mut().enumerate().take(vectors) {
                let first = C::combine(simd, sums[v][k], accumulator(k, 1, v));
                *lanes = C::combine(simd, first, C::combine(simd, accumulator(k, 2, v), accumulator(k, 3, v)));
            }
            *total = reduce_sixteen::<S>(lanes, |a, b| C::combine(simd, a, b), |a| C::fold(simd, a));
        }
        totals
    }

    /// [`Self::sweep`] for vectors of one lane.
    ///
    /// # Safety
    /// Every stream has at least `len` elements.
    #[inline(always)]
    unsafe fn each_column<S: Simd, C: Columns<NX, NP, NU, NY, SUMS>, const SUMS: usize>(
        &mut self,
        simd: S,
        len: usize,
        columns: &C,
        ahead: impl Fn(usize),
    ) -> [f32; SUMS] {
        const BLOCK: usize = WIDTH * MAX_LANES;
        let mut sums = [[simd.splat(C::IDENTITY); SUMS]; BLOCK];
        let (blocks, groups) = (len - len % BLOCK, len - len % MAX_LANES);
        for c in 0..len {
            if c % block::<S>(SUMS) == 0 {
                ahead(c);
            }
            let accumulator = match c {
                c if c < blocks => c % BLOCK,
                c if c < groups => c % MAX_LANES,
                // The last columns are added to the last of 16 accumulators, if there are that many columns.
                c if groups > 0 => c + MAX_LANES - len,
                c => c,
            };
            // SAFETY: the caller's promise.
            unsafe { self.full(simd, columns, c, &mut sums[accumulator]) };
        }
        from_fn(|k| {
            let lane = |i: usize| {
                let pair = |i: usize| C::combine(simd, sums[i][k], sums[i + MAX_LANES][k]);
                C::combine(simd, pair(i), pair(i + 2 * MAX_LANES))
            };
            reduce_sixteen::<S>(from_fn(lane), |a, b| C::combine(simd, a, b), |a| C::fold(simd, a))
        })
    }

    /// One full vector of columns from `c` on.
    ///
    /// # Safety
    /// Every stream has at least `c + LANES` elements.
    #[inline(always)]
    unsafe fn full<S: Simd, C: Columns<NX, NP, NU, NY, SUMS>, const SUMS: usize>(
        &mut self,
        simd: S,
        columns: &C,
        c: usize,
        sums: &mut [S::F32; SUMS],
    ) {
        let (mut vx, mut vp, mut vu) = ([simd.zero(); NX], [simd.zero(); NP], [simd.zero(); NU]);
        // SAFETY: the caller guarantees LANES elements from c on in every stream.
        unsafe {
            for (vector, x) in vx.iter_mut().zip(&self.x) {
                *vector = X::load_ptr(simd, x.as_ptr().add(c));
            }
            for (vector, p) in vp.iter_mut().zip(&self.p) {
                *vector = simd.load_ptr(p.as_ptr().add(c));
            }
            for (vector, u) in vu.iter_mut().zip(&self.u) {
                *vector = U::load_ptr(simd, u.as_ptr().add(c));
            }
            let vy = columns.step(simd, vx, vp, &mut vu, sums);
            for (vector, u) in vu.iter().zip(&mut self.u) {
                U::store_ptr(simd, u.as_mut_ptr().add(c), *vector);
            }
            for (vector, y) in vy.iter().zip(&mut self.y) {
                X::store_ptr(simd, y.as_mut_ptr().add(c), *vector);
            }
        }
    }

    /// Last vector of a row, from `c` on. Columns below `done` are recomputed, but neither summed nor updated a second time.
    /// Faster than a partial vector, which goes through memory in bf16.
    ///
    /// # Safety
    /// Every stream has at least `c + LANES` elements.
    #[inline(always)]
    unsafe fn overlapping<S: Simd, C: Columns<NX, NP, NU, NY, SUMS>, const SUMS: usize>(
        &mut self,
        simd: S,
        columns: &C,
        c: usize,
        done: usize,
        sums: &mut [S::F32; SUMS],
    ) {
        let recomputed = simd.first(done - c);
        let (sums_before, mut u_before) = (*sums, [simd.zero(); NU]);
        // SAFETY: the caller guarantees LANES elements from c on in every stream.
        unsafe {
            for (vector, u) in u_before.iter_mut().zip(&self.u) {
                *vector = U::load_ptr(simd, u.as_ptr().add(c));
            }
            self.full(simd, columns, c, sums);
            for (before, u) in u_before.iter().zip(&mut self.u) {
                let updated = U::load_ptr(simd, u.as_ptr().add(c));
                U::store_ptr(simd, u.as_mut_ptr().add(c), simd.select(recomputed, *before, updated));
            }
        }
        for (sum, before) in sums.iter_mut().zip(&sums_before) {
            *sum = simd.select(recomputed, *before, *sum);
        }
    }

    /// Fewer than LANES columns at the end of a row.
    #[inline(always)]
    fn partial<S: Simd, C: Columns<NX, NP, NU, NY, SUMS>, const SUMS: usize>(
        &mut self,
        simd: S,
        columns: &C,
        range: Range<usize>,
        sums: &mut [S::F32; SUMS],
    ) {
        let (mut vx, mut vp, mut vu) = ([simd.zero(); NX], [simd.zero(); NP], [simd.zero(); NU]);
        for (vector, x) in vx.iter_mut().zip(&self.x) {
            *vector = X::load_partial(simd, &x[range.clone()]);
        }
        for (vector, p) in vp.iter_mut().zip(&self.p) {
            *vector = simd.load_partial(&p[range.clone()]);
        }
        for (vector, u) in vu.iter_mut().zip(&self.u) {
            *vector = U::load_partial(simd, &u[range.clone()]);
        }
        let before = *sums;
        let vy = columns.step(simd, vx, vp, &mut vu, sums);
        for (vector, u) in vu.iter().zip(&mut self.u) {
            U::store_partial(simd, &mut u[range.clone()], *vector);
        }
        for (vector, y) in vy.iter().zip(&mut self.y) {
            X::store_partial(simd, &mut y[range.clone()], *vector);
        }
        let inside = simd.first(range.len());
        for (sum, before) in sums.iter_mut().zip(&before) {
            *sum = simd.select(inside, *sum, *before);
        }
    }
}
