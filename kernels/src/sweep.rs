//! One pass over the columns of a row, LANES at a time: the loop that every row kernel shares.
//!
//! A kernel says what happens to LANES neighboring columns ([`Columns::step`]), which reads like its equation;
//! [`sweep`] walks the row, four vectors side by side, and takes care of the tail: the last vector ends with the row and
//! overlaps the one before. There are four kinds of streams:
//!
//! ```text
//! x: [&[X]; _]         read       activations in their storage type (f32 or bf16)
//! p: [&[f32]; _]       read       parameters, gradients of parameters, statistics
//! u: [&mut [f32]; _]   updated    f32 that is read and written back (sums over rows, optimizer state)
//! y: [&mut [X]; _]     written    outputs in their storage type
//! ```
//!
//! and any number of sums over the row. Sums are kept in four independent accumulators (latency of an addition: four
//! cycles), folded in a fixed order, so the result depends on the lane width but on nothing else.
#![allow(unsafe_code)]

use crate::simd::{Element, Simd, WIDTH, Wide, prefetch, prefetch_l2};

/// Bytes by which rows that do not come from a near cache are asked for ahead: the machine's own guess ends with each
/// page.
const AHEAD: usize = 2048;
/// Bytes of a cache line.
const LINE: usize = 64;

/// What is done with LANES neighboring columns. See the module for the kinds of streams.
///
/// Mark `step` `#[inline(always)]`. It may see a column twice, and zeros beyond the end of a row of fewer than LANES
/// columns: what it makes of them is neither stored nor summed.
pub(crate) trait Columns<const NX: usize, const NP: usize, const NU: usize, const NY: usize, const SUMS: usize> {
    /// Takes the columns' inputs, updates `u` and adds to `sums`; gives the outputs.
    fn step<S: Simd>(
        &self,
        simd: S,
        x: [S::F32; NX],
        p: [S::F32; NP],
        u: &mut [S::F32; NU],
        sums: &mut [S::F32; SUMS],
    ) -> [S::F32; NY];

    /// What an accumulator starts with: adding it changes nothing.
    const IDENTITY: f32 = 0.0;
    /// How two accumulators become one: their sum, unless the kernel wants another fold.
    #[inline(always)]
    fn combine<S: Simd>(simd: S, a: S::F32, b: S::F32) -> S::F32 {
        simd.add(a, b)
    }
    /// How the lanes of an accumulator become one number.
    #[inline(always)]
    fn fold<S: Simd>(simd: S, a: S::F32) -> f32 {
        simd.reduce_sum(a)
    }
}

/// Walks the first `len` columns of all streams and returns the sums. Panics if a stream is shorter.
///
/// Asks for what its streams will need next, as if the row went on.
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
    let (read, written) = (x.map(<[X]>::as_ptr), y.each_ref().map(|y| y.as_ptr()));
    let ask = |c| {
        for stream in read.into_iter().chain(written) {
            for line in lines::<S, X>(stream.wrapping_add(c)) {
                prefetch(line.wrapping_add(AHEAD));
            }
        }
    };
    walk(simd, len, columns, ask, x, p, u, y)
}

/// [`sweep`] of a row that is swept several times: asks, at its own pace, for what lies at `far` and behind it.
///
/// A kernel reads a row in its first sweep and writes one in its last, and memory would rest in between. Asked for while
/// another sweep computes, rows read and rows written come side by side (LayerNorm over 4096 x 3072: 1.4 times as fast).
#[inline(always)]
pub(crate) fn sweep_asking<
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
    let ask = |c| {
        for stream in far {
            for line in lines::<S, X>(stream.wrapping_add(c)) {
                prefetch_l2(line);
            }
        }
    };
    walk(simd, len, columns, ask, x, p, u, y)
}

/// Where the row lies that is `rows` rows behind `row`, if there is one: only to be asked for.
#[inline(always)]
pub(crate) fn rows_on<X>(rows: usize, row: &[X]) -> *const X {
    row.as_ptr().wrapping_add(rows * row.len())
}

/// The cache lines of the columns of one step from `p` on.
#[inline(always)]
fn lines<S: Simd, X>(p: *const X) -> impl Iterator<Item = *const u8> {
    (0..WIDTH * S::LANES * size_of::<X>()).step_by(LINE).map(move |line| p.cast::<u8>().wrapping_add(line))
}

/// [`sweep`] that updates streams of the storage type, and asks for nothing.
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
    walk(simd, len, columns, |_| {}, x, p, u, [])
}

/// The loop behind them; `ask(c)` asks for what is needed later, when column `c` is reached.
#[inline(always)]
fn walk<
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
    ask: impl Fn(usize),
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
        ask(c);
        // SAFETY: WIDTH · LANES columns from c on lie within `len`, which no stream is shorter than.
        unsafe { full(Wide(simd), columns, &x, &p, &mut u, &mut y, c, &mut wide_sums) };
        c += WIDTH * S::LANES;
    }
    let mut sums = wide_sums.map(|sums| sums[0]);
    while len - c >= S::LANES {
        // SAFETY: as above.
        unsafe { full(simd, columns, &x, &p, &mut u, &mut y, c, &mut sums) };
        c += S::LANES;
    }
    if c < len && len >= S::LANES {
        // SAFETY: LANES columns up to `len` lie within `len`.
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
/// Every stream holds at least `c + LANES` numbers.
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
    // SAFETY: the caller guarantees LANES numbers from c on in every stream.
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

/// The last vector of a row, from `c` on, whose columns below `done` were done before: they are computed once more, but
/// neither summed nor updated again. Cheaper than a partial vector, which for bf16 goes through memory.
///
/// # Safety
/// Every stream holds at least `c + LANES` numbers.
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
    let again = simd.first(done - c);
    let (sums_before, mut u_before) = (*sums, [simd.zero(); NU]);
    // SAFETY: the caller guarantees LANES numbers from c on in every stream.
    unsafe {
        for i in 0..NU {
            u_before[i] = U::load_ptr(simd, u[i].as_ptr().add(c));
        }
        full(simd, columns, x, p, u, y, c, sums);
        for i in 0..NU {
            let updated = U::load_ptr(simd, u[i].as_ptr().add(c));
            U::store_ptr(simd, u[i].as_mut_ptr().add(c), simd.select(again, u_before[i], updated));
        }
    }
    for k in 0..SUMS {
        sums[k] = simd.select(again, sums_before[k], sums[k]);
    }
}

/// A row of `len` < LANES columns.
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
