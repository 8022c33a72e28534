//! The loop over the columns of a row.
#![allow(unsafe_code)]

use super::streams::{At, Four, One, Overlapping, Partial, Read, Update, Whole, Write, lines};
use crate::simd::{MAX_LANES, Simd, WIDTH, Wide, from_fn, prefetch_l2, reduce_sixteen};

/// Reduction of the lanes of an accumulator to one element.
pub trait Fold {
    /// First value of an accumulator: `combine` does not change what it is combined with.
    const IDENTITY: f32;
    /// Combines two accumulators, lane by lane.
    fn combine<S: Simd>(simd: S, a: S::F32, b: S::F32) -> S::F32;
    /// Combines the lanes of an accumulator.
    fn lanes<S: Simd>(simd: S, a: S::F32) -> f32;
}

/// The sum.
#[derive(Clone, Copy, Debug)]
pub struct Sum;

impl Fold for Sum {
    const IDENTITY: f32 = 0.0;
    #[inline(always)]
    fn combine<S: Simd>(simd: S, a: S::F32, b: S::F32) -> S::F32 {
        simd.add(a, b)
    }
    #[inline(always)]
    fn lanes<S: Simd>(simd: S, a: S::F32) -> f32 {
        simd.reduce_sum(a)
    }
}

/// The maximum.
#[derive(Clone, Copy, Debug)]
pub struct Max;

impl Fold for Max {
    const IDENTITY: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn combine<S: Simd>(simd: S, a: S::F32, b: S::F32) -> S::F32 {
        simd.max(a, b)
    }
    #[inline(always)]
    fn lanes<S: Simd>(simd: S, a: S::F32) -> f32 {
        simd.reduce_max(a)
    }
}

/// Prefetching policy of a sweep.
pub trait Prefetch: Copy {
    /// Called before the columns from `first` on.
    fn ahead<S: Simd>(self, first: usize, columns: usize, read: &impl Read<S>, written: &impl Write<S>);
}

/// Prefetches the slices of the sweep a fixed distance ahead.
#[derive(Clone, Copy, Debug)]
pub struct Near;

impl Prefetch for Near {
    #[inline(always)]
    fn ahead<S: Simd>(self, first: usize, columns: usize, read: &impl Read<S>, written: &impl Write<S>) {
        read.prefetch(first, columns);
        written.prefetch(first, columns);
    }
}

/// Prefetches other rows, at the pace of the sweep.
#[derive(Clone, Copy, Debug)]
pub struct Rows<X, const N: usize>([*const X; N]);

impl<X: Copy, const N: usize> Prefetch for Rows<X, N> {
    #[inline(always)]
    fn ahead<S: Simd>(self, first: usize, columns: usize, _: &impl Read<S>, _: &impl Write<S>) {
        for row in self.0 {
            for line in lines(row.wrapping_add(first), columns) {
                prefetch_l2(line);
            }
        }
    }
}

/// Prefetches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Prefetch for Nothing {
    #[inline(always)]
    fn ahead<S: Simd>(self, _: usize, _: usize, _: &impl Read<S>, _: &impl Write<S>) {}
}

/// A row of `columns` columns: its sweeps call a closure with the vectors of neighboring columns, from the first to the last.
///
/// Closures have the attribute `#[inline(always)]`. They may get columns twice, and zeros past the end of a row of fewer columns
/// than a vector has lanes; the results of these are neither stored nor folded. Every method panics if a slice is shorter than
/// the row.
#[derive(Clone, Copy, Debug)]
pub struct Row<S, P = Near> {
    simd: S,
    columns: usize,
    prefetch: P,
}

impl<S: Simd> Row<S> {
    /// A row whose sweeps prefetch what they read and write a fixed distance ahead, also past the end of the row.
    #[inline(always)]
    pub fn new(simd: S, columns: usize) -> Self {
        Self { simd, columns, prefetch: Near }
    }

    /// The row if its slices are in a cache: nothing is prefetched.
    #[inline(always)]
    pub fn cached(self) -> Row<S, Nothing> {
        Row { simd: self.simd, columns: self.columns, prefetch: Nothing }
    }

    /// The row if its sweeps prefetch other rows into L2: those that are `distance` rows after `rows`, if they exist.
    ///
    /// A kernel with several sweeps per row reads a row in its first sweep and writes one in its last, and memory is idle in
    /// between. Prefetching later rows in the other sweeps overlaps memory and arithmetic (LayerNorm over 4096 x 3072: 1.4 times
    /// as fast).
    #[inline(always)]
    pub fn fetching<X, const N: usize>(self, distance: usize, rows: [&[X]; N]) -> Row<S, Rows<X, N>> {
        let later = from_fn(|i| rows[i].as_ptr().wrapping_add(distance * rows[i].len()));
        Row { simd: self.simd, columns: self.columns, prefetch: Rows(later) }
    }
}

impl<S: Simd, P: Prefetch> Row<S, P> {
    /// Writes what `f` returns for the vectors of `read`.
    #[inline(always)]
    pub fn map<R: Read<S>, W: Write<S>>(self, read: R, write: W, mut f: impl FnMut(Wide<S>, R::Vectors) -> W::Vectors) {
        sweep(
            self,
            Sum,
            read,
            (),
            write,
            #[inline(always)]
            |simd, x, (), []: &mut [_; 0]| f(simd, x),
        );
    }

    /// `f` changes the vectors of `update` in place.
    #[inline(always)]
    pub fn update<R: Read<S>, U: Update<S>>(
        self,
        read: R,
        update: U,
        mut f: impl FnMut(Wide<S>, R::Vectors, &mut U::Vectors),
    ) {
        sweep(
            self,
            Sum,
            read,
            update,
            (),
            #[inline(always)]
            |simd, x, u, []: &mut [_; 0]| f(simd, x, u),
        );
    }

    /// Folds N accumulators, to which `f` adds the vectors of `read`.
    #[inline(always)]
    pub fn fold<F: Fold, R: Read<S>, const N: usize>(
        self,
        fold: F,
        read: R,
        mut f: impl FnMut(Wide<S>, R::Vectors, &mut [Four<S>; N]),
    ) -> [f32; N] {
        sweep(
            self,
            fold,
            read,
            (),
            (),
            #[inline(always)]
            |simd, x, (), sums| f(simd, x, sums),
        )
    }

    /// [`map`](Self::map) and [`fold`](Self::fold) in one sweep.
    #[inline(always)]
    pub fn map_fold<F: Fold, R: Read<S>, W: Write<S>, const N: usize>(
        self,
        fold: F,
        read: R,
        write: W,
        mut f: impl FnMut(Wide<S>, R::Vectors, &mut [Four<S>; N]) -> W::Vectors,
    ) -> [f32; N] {
        sweep(
            self,
            fold,
            read,
            (),
            write,
            #[inline(always)]
            |simd, x, (), sums| f(simd, x, sums),
        )
    }

    /// [`update`](Self::update) and [`fold`](Self::fold) in one sweep.
    #[inline(always)]
    pub fn update_fold<F: Fold, R: Read<S>, U: Update<S>, const N: usize>(
        self,
        fold: F,
        read: R,
        update: U,
        mut f: impl FnMut(Wide<S>, R::Vectors, &mut U::Vectors, &mut [Four<S>; N]),
    ) -> [f32; N] {
        sweep(
            self,
            fold,
            read,
            update,
            (),
            #[inline(always)]
            |simd, x, u, sums| f(simd, x, u, sums),
        )
    }
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

/// All sweeps: `step` gets the vectors of `read` and `update` and N accumulators, and returns the vectors of `write`.
#[inline(always)]
fn sweep<S: Simd, P: Prefetch, F: Fold, R: Read<S>, U: Update<S>, W: Write<S>, const N: usize>(
    row: Row<S, P>,
    _: F,
    read: R,
    update: U,
    write: W,
    step: impl FnMut(Wide<S>, R::Vectors, &mut U::Vectors, &mut [Four<S>; N]) -> W::Vectors,
) -> [f32; N] {
    Sweep { read, update, write, step }.run::<S, P, F, N>(row)
}

/// The slices of a sweep and its closure.
struct Sweep<R, U, W, C> {
    read: R,
    update: U,
    write: W,
    step: C,
}

impl<R, U, W, C> Sweep<R, U, W, C> {
    /// The sweep; returns the N folded accumulators.
    #[inline(always)]
    fn run<S: Simd, P: Prefetch, F: Fold, const N: usize>(mut self, row: Row<S, P>) -> [f32; N]
    where
        R: Read<S>,
        U: Update<S>,
        W: Write<S>,
        C: FnMut(Wide<S>, R::Vectors, &mut U::Vectors, &mut [Four<S>; N]) -> W::Vectors,
    {
        let columns = row.columns;
        let reach = self.read.reaches(columns) && self.update.reaches(columns) && self.write.reaches(columns);
        assert!(reach, "a slice is shorter than its row of {columns} columns");
        // What a constant block excludes is not even compiled: that halves the time to compile this crate.
        if const { S::LANES == 1 } {
            // SAFETY: no slice is shorter than the row.
            unsafe { self.each_column::<S, P, F, N>(row) }
        } else {
            // SAFETY: as above.
            unsafe { self.each_vector::<S, P, F, N>(row) }
        }
    }

    /// [`Self::run`] for vectors of several lanes.
    ///
    /// # Safety
    /// No slice is shorter than the row.
    #[inline(always)]
    unsafe fn each_vector<S: Simd, P: Prefetch, F: Fold, const N: usize>(&mut self, row: Row<S, P>) -> [f32; N]
    where
        R: Read<S>,
        U: Update<S>,
        W: Write<S>,
        C: FnMut(Wide<S>, R::Vectors, &mut U::Vectors, &mut [Four<S>; N]) -> W::Vectors,
    {
        let Row { simd, columns: len, prefetch } = row;
        let vectors = const { group_vectors::<S>(N) };
        let (group, block) = (vectors * S::LANES, block::<S>(N));
        let identity = simd.splat(F::IDENTITY);
        // Four vectors of accumulators for each of the `vectors` steps of a block.
        let mut wide = [[[identity; WIDTH]; N]; MAX_VECTORS];
        let mut c = 0;
        while len - c >= block {
            prefetch.ahead(c, block, &self.read, &self.write);
            macro_rules! step {
                ($step:expr) => {{
                    let at = Whole(c + $step * WIDTH * S::LANES);
                    // SAFETY: the columns of the block are within the row, and no slice is shorter.
                    unsafe { self.step(simd, at, &mut wide[$step]) };
                }};
            }
            // Constant indices keep the accumulators in registers.
            step!(0);
            if const { group_vectors::<S>(N) > 1 } {
                step!(1);
            }
            if const { group_vectors::<S>(N) > 2 } {
                step!(2);
                step!(3);
            }
            c += block;
        }
        // Vector v of quarter q of the 64 accumulators.
        let accumulator = |k: usize, q: usize, v: usize| wide[(q * vectors + v) / WIDTH][k][(q * vectors + v) % WIDTH];
        let mut sums = [[identity; N]; MAX_VECTORS];
        for (v, sums) in sums.iter_mut().enumerate().take(vectors) {
            *sums = from_fn(|k| accumulator(k, 0, v));
        }
        while len - c >= group {
            for (v, sums) in sums.iter_mut().enumerate().take(vectors) {
                // SAFETY: as above.
                unsafe { self.single(simd, One(c + v * S::LANES), sums) };
            }
            c += group;
        }
        if c < len {
            let first = len.saturating_sub(group);
            for (v, sums) in sums.iter_mut().enumerate().take(vectors) {
                let start = first + v * S::LANES;
                // SAFETY: as above; vectors that end at the row's end or before are within the row.
                unsafe {
                    if start + S::LANES <= c || start >= len {
                        continue;
                    } else if start < c {
                        self.single(simd, Overlapping { first: start, done: c }, sums);
                    } else if const { group_vectors::<S>(N) > 1 } && start + S::LANES <= len {
                        self.single(simd, One(start), sums);
                    } else {
                        self.single(simd, Partial { first: start, count: len - start }, sums);
                    }
                }
            }
        }
        let mut totals = [0.0; N];
        if const { N == 0 } {
            return totals;
        }
        for (k, total) in totals.iter_mut().enumerate() {
            let mut lanes = [identity; MAX_LANES];
            for (v, lanes) in lanes.iter_mut().enumerate().take(vectors) {
                let first = F::combine(simd, sums[v][k], accumulator(k, 1, v));
                *lanes = F::combine(simd, first, F::combine(simd, accumulator(k, 2, v), accumulator(k, 3, v)));
            }
            *total = reduce_sixteen::<S>(lanes, |a, b| F::combine(simd, a, b), |a| F::lanes(simd, a));
        }
        totals
    }

    /// [`Self::run`] for vectors of one lane.
    ///
    /// # Safety
    /// No slice is shorter than the row.
    #[inline(always)]
    unsafe fn each_column<S: Simd, P: Prefetch, F: Fold, const N: usize>(&mut self, row: Row<S, P>) -> [f32; N]
    where
        R: Read<S>,
        U: Update<S>,
        W: Write<S>,
        C: FnMut(Wide<S>, R::Vectors, &mut U::Vectors, &mut [Four<S>; N]) -> W::Vectors,
    {
        const BLOCK: usize = WIDTH * MAX_LANES;
        let Row { simd, columns: len, prefetch } = row;
        let identity = simd.splat(F::IDENTITY);
        // Accumulators of four neighboring columns.
        let mut sums = [[[identity; WIDTH]; N]; MAX_LANES];
        let (blocks, groups) = (len - len % BLOCK, len - len % MAX_LANES);
        for c in (0..groups).step_by(WIDTH) {
            if c % block::<S>(N) == 0 {
                prefetch.ahead(c, block::<S>(N), &self.read, &self.write);
            }
            let first = if c < blocks { c % BLOCK } else { c % MAX_LANES };
            // SAFETY: four columns before the end of the row.
            unsafe { self.step(simd, Whole(c), &mut sums[first / WIDTH]) };
        }
        for c in groups..len {
            // The last columns are added to the last of 16 accumulators, if there are that many columns.
            let lane = if groups > 0 { c + MAX_LANES - len } else { c };
            let mut sum = from_fn(|k| sums[lane / WIDTH][k][lane % WIDTH]);
            // SAFETY: a column before the end of the row.
            unsafe { self.single(simd, One(c), &mut sum) };
            for k in 0..N {
                sums[lane / WIDTH][k][lane % WIDTH] = sum[k];
            }
        }
        from_fn(|k| {
            let sum = |i: usize| sums[i / WIDTH][k][i % WIDTH];
            let lane = |i: usize| {
                let pair = |i: usize| F::combine(simd, sum(i), sum(i + MAX_LANES));
                F::combine(simd, pair(i), pair(i + 2 * MAX_LANES))
            };
            reduce_sixteen::<S>(from_fn(lane), |a, b| F::combine(simd, a, b), |a| F::lanes(simd, a))
        })
    }

    /// A step on one vector.
    ///
    /// # Safety
    /// The columns are within each slice.
    #[inline(always)]
    unsafe fn single<S: Simd, const N: usize>(&mut self, simd: S, at: impl At, sums: &mut [S::F32; N])
    where
        R: Read<S>,
        U: Update<S>,
        W: Write<S>,
        C: FnMut(Wide<S>, R::Vectors, &mut U::Vectors, &mut [Four<S>; N]) -> W::Vectors,
    {
        let mut four = from_fn(
            #[inline(always)]
            |k| [sums[k]; WIDTH],
        );
        // SAFETY: the caller's promise.
        unsafe { self.step(simd, at, &mut four) };
        for (k, sum) in sums.iter_mut().enumerate() {
            *sum = at.first_time(simd, four[k], [*sum; WIDTH])[0];
        }
    }

    /// A step.
    ///
    /// # Safety
    /// The columns are within each slice.
    #[inline(always)]
    unsafe fn step<S: Simd, const N: usize>(&mut self, simd: S, at: impl At, sums: &mut [Four<S>; N])
    where
        R: Read<S>,
        U: Update<S>,
        W: Write<S>,
        C: FnMut(Wide<S>, R::Vectors, &mut U::Vectors, &mut [Four<S>; N]) -> W::Vectors,
    {
        // SAFETY: the caller's promise.
        unsafe {
            let old = self.update.load(simd, at);
            let mut new = old;
            let written = (self.step)(Wide(simd), self.read.load(simd, at), &mut new, sums);
            self.update.store(simd, at, U::first_time(simd, at, new, old));
            self.write.store(simd, at, written);
        }
    }
}
