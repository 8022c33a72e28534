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
//! and any number of sums over the row. A sum has four independent accumulators (an addition has a latency of four cycles),
//! folded in a fixed order, so the result depends only on the lane width.
#![allow(unsafe_code)]

use crate::simd::{Element, Simd, WIDTH, Wide, from_fn, prefetch, prefetch_l2};

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
            for line in lines::<S, X>(stream.wrapping_add(c)) {
                prefetch(line.wrapping_add(AHEAD));
            }
        }
    };
    each_vector(simd, len, columns, ahead, x, p, u, y)
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
            for line in lines::<S, X>(stream.wrapping_add(c)) {
                prefetch_l2(line);
            }
        }
    };
    each_vector(simd, len, columns, ahead, x, p, u, y)
}

/// Address of the row `rows` rows after `row`, for prefetching only: the row may not exist.
#[inline(always)]
pub(crate) fn rows_on<X>(rows: usize, row: &[X]) -> *const X {
    row.as_ptr().wrapping_add(rows * row.len())
}

/// Cache lines of the columns of one iteration from `p` on.
#[inline(always)]
fn lines<S: Simd, X>(p: *const X) -> impl Iterator<Item = *const u8> {
    (0..WIDTH * S::LANES * size_of::<X>()).step_by(LINE).map(move |line| p.cast::<u8>().wrapping_add(line))
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
    each_vector(simd, len, columns, |_| {}, x, p, u, [])
}

/// Loop of all sweeps; calls `ahead(c)`, which prefetches, at column `c`.
#[inline(always)]
fn each_vector<
    S: Simd,
    X: Element,
    U: Element,
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
    ahead: impl Fn(usize),
    x: [&[X]; NX],
    p: [&[f32]; NP],
    mut u: [&mut [U]; NU],
    mut y: [&mut [X]; NY],
) -> [f32; SUMS] {
    for x in &x {
        assert!(x.len() >= len);
    }
    for p in &p {
        assert!(p.len() >= len);
    }
    for u in &u {
        assert!(u.len() >= len);
    }
    for y in &y {
        assert!(y.len() >= len);
    }
    let mut wide_sums = [[simd.splat(C::IDENTITY); WIDTH]; SUMS];
    let mut c = 0;
    while len - c >= WIDTH * S::LANES {
        ahead(c);
        // SAFETY: WIDTH · LANES columns from c on are within `len`, and no stream is shorter than `len`.
        unsafe { full(Wide(simd), columns, &x, &p, &mut u, &mut y, c, &mut wide_sums) };
        c += WIDTH * S::LANES;
    }
    let mut sums = from_fn(|i| wide_sums[i][0]);
    while len - c >= S::LANES {
        // SAFETY: as above.
        unsafe { full(simd, columns, &x, &p, &mut u, &mut y, c, &mut sums) };
        c += S::LANES;
    }
    if c < len && len >= S::LANES {
        // SAFETY: `len >= LANES`, so the last LANES columns are within `len`.
        unsafe { overlapping(simd, columns, &x, &p, &mut u, &mut y, len - S::LANES, c, &mut sums) };
    } else if c < len {
        let before = sums;
        partial(simd, columns, &x, &p, &mut u, &mut y, len, &mut sums);
        let inside = simd.first(len);
        for k in 0..SUMS {
            sums[k] = simd.select(inside, sums[k], before[k]);
        }
    }
    let mut totals = [0.0; SUMS];
    for k in 0..SUMS {
        let [_, b, c, d] = wide_sums[k];
        let pairs = (C::combine(simd, sums[k], b), C::combine(simd, c, d));
        totals[k] = C::fold(simd, C::combine(simd, pairs.0, pairs.1));
    }
    totals
}

/// One full vector of columns from `c` on.
///
/// # Safety
/// Every stream has at least `c + LANES` elements.
#[inline(always)]
unsafe fn full<
    S: Simd,
    X: Element,
    U: Element,
    C: Columns<NX, NP, NU, NY, SUMS>,
    const NX: usize,
    const NP: usize,
    const NU: usize,
    const NY: usize,
    const SUMS: usize,
>(
    simd: S,
    columns: &C,
    x: &[&[X]; NX],
    p: &[&[f32]; NP],
    u: &mut [&mut [U]; NU],
    y: &mut [&mut [X]; NY],
    c: usize,
    sums: &mut [S::F32; SUMS],
) {
    let (mut vx, mut vp, mut vu) = ([simd.zero(); NX], [simd.zero(); NP], [simd.zero(); NU]);
    // SAFETY: the caller guarantees LANES elements from c on in every stream.
    unsafe {
        for i in 0..NX {
            vx[i] = X::load_ptr(simd, x[i].as_ptr().add(c));
        }
        for i in 0..NP {
            vp[i] = simd.load_ptr(p[i].as_ptr().add(c));
        }
        for i in 0..NU {
            vu[i] = U::load_ptr(simd, u[i].as_ptr().add(c));
        }
        let vy = columns.step(simd, vx, vp, &mut vu, sums);
        for i in 0..NU {
            U::store_ptr(simd, u[i].as_mut_ptr().add(c), vu[i]);
        }
        for i in 0..NY {
            X::store_ptr(simd, y[i].as_mut_ptr().add(c), vy[i]);
        }
    }
}

/// Last vector of a row, from `c` on. Columns below `done` are recomputed, but neither summed nor updated a second time.
/// Faster than a partial vector, which goes through memory in bf16.
///
/// # Safety
/// Every stream has at least `c + LANES` elements.
#[inline(always)]
unsafe fn overlapping<
    S: Simd,
    X: Element,
    U: Element,
    C: Columns<NX, NP, NU, NY, SUMS>,
    const NX: usize,
    const NP: usize,
    const NU: usize,
    const NY: usize,
    const SUMS: usize,
>(
    simd: S,
    columns: &C,
    x: &[&[X]; NX],
    p: &[&[f32]; NP],
    u: &mut [&mut [U]; NU],
    y: &mut [&mut [X]; NY],
    c: usize,
    done: usize,
    sums: &mut [S::F32; SUMS],
) {
    let recomputed = simd.first(done - c);
    let (sums_before, mut u_before) = (*sums, [simd.zero(); NU]);
    // SAFETY: the caller guarantees LANES elements from c on in every stream.
    unsafe {
        for i in 0..NU {
            u_before[i] = U::load_ptr(simd, u[i].as_ptr().add(c));
        }
        full(simd, columns, x, p, u, y, c, sums);
        for i in 0..NU {
            let updated = U::load_ptr(simd, u[i].as_ptr().add(c));
            U::store_ptr(simd, u[i].as_mut_ptr().add(c), simd.select(recomputed, u_before[i], updated));
        }
    }
    for k in 0..SUMS {
        sums[k] = simd.select(recomputed, sums_before[k], sums[k]);
    }
}

/// Row of `len` < LANES columns.
#[inline(always)]
fn partial<
    S: Simd,
    X: Element,
    U: Element,
    C: Columns<NX, NP, NU, NY, SUMS>,
    const NX: usize,
    const NP: usize,
    const NU: usize,
    const NY: usize,
    const SUMS: usize,
>(
    simd: S,
    columns: &C,
    x: &[&[X]; NX],
    p: &[&[f32]; NP],
    u: &mut [&mut [U]; NU],
    y: &mut [&mut [X]; NY],
    len: usize,
    sums: &mut [S::F32; SUMS],
) {
    let (mut vx, mut vp, mut vu) = ([simd.zero(); NX], [simd.zero(); NP], [simd.zero(); NU]);
    for i in 0..NX {
        vx[i] = X::load_partial(simd, &x[i][..len]);
    }
    for i in 0..NP {
        vp[i] = simd.load_partial(&p[i][..len]);
    }
    for i in 0..NU {
        vu[i] = U::load_partial(simd, &u[i][..len]);
    }
    let vy = columns.step(simd, vx, vp, &mut vu, sums);
    for i in 0..NU {
        U::store_partial(simd, &mut u[i][..len], vu[i]);
    }
    for i in 0..NY {
        X::store_partial(simd, &mut y[i][..len], vy[i]);
    }
}
