//! Reductions with SIMD.

use crate::extent::area;
use crate::pool::Cpu;
use crate::rows::{Max, Row, Rows, Sum, TASK, for_each_block, rows_per_task};
use crate::{
    Element,
    simd::{Kernel, Simd, compiled_here},
};

/// Maximum blocks of a reduction to a scalar; their results are on the stack.
const MAX_BLOCKS: usize = 256;
/// Elements that are summed in f32 lanes before they are added in f64.
const F32_RUN: usize = 4096;
/// Maximum blocks of rows of column sums; their partial sums are in scratch.
const MAX_ROW_BLOCKS: usize = 64;
/// Minimum rows of such a block.
const MIN_BLOCK_ROWS: usize = 16;

compiled_here! {
    /// Computes Σ x in f32 lanes for 4096 elements at a time and in f64 beyond. 0 if `x` is empty.
    pub fn sum<X>(cpu: &Cpu, x: &[X]) -> f64 = sum_body;
}

fn sum_body<X: Element>(cpu: &Cpu, x: &[X]) -> f64 {
    let isa = cpu.isa();
    reduce(cpu, x, |x| isa.run(Total { x, squares: false }), |a, b| a + b, 0.0)
}

compiled_here! {
    /// Computes Σ x², the square of the L2 norm, like [`sum`]. Not finite if an element is not.
    pub fn sum_of_squares<X>(cpu: &Cpu, x: &[X]) -> f64 = sum_of_squares_body;
}

fn sum_of_squares_body<X: Element>(cpu: &Cpu, x: &[X]) -> f64 {
    let isa = cpu.isa();
    reduce(cpu, x, |x| isa.run(Total { x, squares: true }), |a, b| a + b, 0.0)
}

compiled_here! {
    /// Maximum of `x`; -∞ if it is empty, NaN if any element is NaN.
    pub fn max<X>(cpu: &Cpu, x: &[X]) -> f32 = max_body;
}

fn max_body<X: Element>(cpu: &Cpu, x: &[X]) -> f32 {
    let isa = cpu.isa();
    let greater = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
    reduce(cpu, x, |x| isa.run(Greatest { x }), greater, f64::NEG_INFINITY) as f32
}

/// Reduces each block to a scalar and folds the scalars in order of blocks.
fn reduce<X: Element>(
    cpu: &Cpu,
    x: &[X],
    block_result: impl Fn(&[X]) -> f64 + Send + Sync,
    fold: impl Fn(f64, f64) -> f64,
    identity: f64,
) -> f64 {
    let block = x.len().div_ceil(MAX_BLOCKS).max(2 * TASK).next_multiple_of(F32_RUN);
    let blocks = x.len().div_ceil(block);
    let mut results = [identity; MAX_BLOCKS];
    cpu.for_each_chunk(&mut results[..blocks], 1, |i, result| {
        result[0] = block_result(&x[i * block..((i + 1) * block).min(x.len())]);
    });
    results[..blocks].iter().fold(identity, |a, &b| fold(a, b))
}

/// Sum of elements or of their squares, in runs of f32.
struct Total<'a, X> {
    x: &'a [X],
    squares: bool,
}

impl<X: Element> Kernel for Total<'_, X> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let mut total = 0.0;
        for run in self.x.chunks(F32_RUN) {
            total += f64::from(if self.squares { sum_of_squares_of(simd, run) } else { sum_of(simd, run) });
        }
        total
    }
}

/// Σ x
#[inline(always)]
fn sum_of<S: Simd, X: Element>(simd: S, x: &[X]) -> f32 {
    let row = Row::new(simd, x.len());
    let [sum] = row.fold(
        Sum,
        [x],
        #[inline(always)]
        |simd, [x], [sum]| *sum = simd.add(*sum, x),
    );
    sum
}

/// Σ x²
#[inline(always)]
fn sum_of_squares_of<S: Simd, X: Element>(simd: S, x: &[X]) -> f32 {
    let row = Row::new(simd, x.len());
    let [sum] = row.fold(
        Sum,
        [x],
        #[inline(always)]
        |simd, [x], [sum]| *sum = simd.mul_add(x, x, *sum),
    );
    sum
}

struct Greatest<'a, X> {
    x: &'a [X],
}

impl<X: Element> Kernel for Greatest<'_, X> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let row = Row::new(simd, self.x.len());
        // Also 1 if there is a NaN, which `max` alone may lose.
        let [greatest, nans] = row.fold(
            Max,
            [self.x],
            #[inline(always)]
            |simd, [x], [greatest, nans]| {
                // Every value except NaN is below infinity or above zero.
                let above = simd.select(simd.lt(simd.zero(), x), simd.zero(), simd.splat(1.0));
                let nan = simd.select(simd.lt(x, simd.splat(f32::INFINITY)), simd.zero(), above);
                *greatest = simd.max(x, *greatest);
                *nans = simd.max(nan, *nans);
            },
        );
        f64::from(if nans > 0.0 { f32::NAN } else { greatest })
    }
}

compiled_here! {
    /// Computes out\[t\] = Σ_f x\[t, f\] for `x` [T, columns], `out` `[T]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn row_sums<X>(cpu: &Cpu, columns: usize, x: &[X], out: &mut [f32]) = row_sums_body;
}

fn row_sums_body<X: Element>(cpu: &Cpu, columns: usize, x: &[X], out: &mut [f32]) {
    assert_eq!(
        x.len(),
        area(out.len(), columns),
        "row_sums: {} elements are not {} rows of {columns}",
        x.len(),
        out.len()
    );
    let isa = cpu.isa();
    for_each_block(cpu, out.len(), rows_per_task(columns), Rows::new(out, 1), |rows, out| {
        let x = &x[rows.start * columns..rows.end * columns];
        isa.run(RowSums { columns, x, out });
    });
}

struct RowSums<'a, X> {
    columns: usize,
    x: &'a [X],
    out: &'a mut [f32],
}

impl<X: Element> Kernel for RowSums<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (i, out) in self.out.iter_mut().enumerate() {
            let row = &self.x[i * self.columns..][..self.columns];
            *out = sum_of(simd, row);
        }
    }
}

/// Rows of a block of column sums: at most 64 blocks of at least 16 rows.
pub(crate) fn row_block(rows: usize) -> usize {
    rows.div_ceil(MAX_ROW_BLOCKS).max(MIN_BLOCK_ROWS)
}

/// Length of the scratch of [`column_sums`].
pub const fn column_sums_scratch_len(rows: usize, columns: usize) -> usize {
    let (even, least) = (rows.div_ceil(MAX_ROW_BLOCKS), MIN_BLOCK_ROWS);
    area(rows.div_ceil(if even > least { even } else { least }), columns)
}

compiled_here! {
    /// Adds Σ_t x\[t, f\] to out\[f\] for `x` [T, F], `out` `[F]`; `scratch` of [`column_sums_scratch_len`].
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn column_sums<X>(
        cpu: &Cpu,
        rows: usize,
        columns: usize,
        x: &[X],
        out: &mut [f32],
        scratch: &mut [f32],
    ) = column_sums_body;
}

fn column_sums_body<X: Element>(cpu: &Cpu, rows: usize, columns: usize, x: &[X], out: &mut [f32], scratch: &mut [f32]) {
    assert_eq!(x.len(), area(rows, columns), "column_sums: {} elements are not {rows} rows of {columns}", x.len());
    assert_eq!(out.len(), columns, "column_sums: out must hold one number a column");
    let block = row_block(rows);
    let room = column_sums_scratch_len(rows, columns);
    assert!(scratch.len() >= room, "column_sums: scratch holds {} floats, {room} are needed", scratch.len());
    let partial = &mut scratch[..room];
    let isa = cpu.isa();
    for_each_block(cpu, rows.div_ceil(block), 1, Rows::new(&mut *partial, columns), |i, partial| {
        let x = &x[i.start * block * columns..(i.end * block).min(rows) * columns];
        isa.run(PartialSums { columns, x, partial });
    });
    add_blocks(cpu, partial, columns, out);
}

/// Column sums of one block of rows.
struct PartialSums<'a, X> {
    columns: usize,
    x: &'a [X],
    partial: &'a mut [f32],
}

impl<X: Element> Kernel for PartialSums<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { columns, x, partial } = self;
        partial.fill(0.0);
        if columns == 0 {
            return;
        }
        // Four rows at a time, so that the partial sums are loaded and stored once per four rows.
        let mut fours = x.chunks_exact(4 * columns);
        for four in &mut fours {
            let row = |i: usize| &four[i * columns..][..columns];
            let rows = [row(0), row(1), row(2), row(3)];
            add_rows(simd, rows, partial);
        }
        for row in fours.remainder().chunks(columns) {
            add_rows(simd, [row], partial);
        }
    }
}

/// sums += Σ rows
#[inline(always)]
fn add_rows<S: Simd, X: Element, const N: usize>(simd: S, rows: [&[X]; N], sums: &mut [f32]) {
    Row::new(simd, sums.len()).update(
        rows,
        [sums],
        #[inline(always)]
        |simd, rows, [sums]| {
            let mut sum = rows[0];
            for &row in &rows[1..] {
                sum = simd.add(sum, row);
            }
            *sums = simd.add(*sums, sum);
        },
    );
}

/// Adds Σ_block partial\[block, c\] to out\[c\], blocks added pairwise as a tree.
pub(crate) fn add_blocks(cpu: &Cpu, partial: &[f32], columns: usize, out: &mut [f32]) {
    assert_eq!(out.len(), columns);
    if partial.is_empty() {
        return;
    }
    let isa = cpu.isa();
    let blocks = partial.len() / columns;
    assert!(blocks <= MAX_ROW_BLOCKS);
    for_each_block(cpu, columns, rows_per_task(blocks), Rows::new(out, 1), |range, out| {
        isa.run(AddBlocks { partial, columns, first: range.start, out });
    });
}

struct AddBlocks<'a> {
    partial: &'a [f32],
    columns: usize,
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for AddBlocks<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (i, out) in self.out.chunks_mut(S::LANES).enumerate() {
            let column = self.first + i * S::LANES;
            // Sums of complete subtrees without a partner of equal size: at most one per bit of the number of blocks.
            let mut waiting = [simd.zero(); MAX_ROW_BLOCKS.ilog2() as usize + 1];
            let mut depth = 0;
            for (n, row) in self.partial.chunks_exact(self.columns).enumerate() {
                let mut sum = simd.load_partial(&row[column..column + out.len()]);
                for _ in 0..(n + 1).trailing_zeros() {
                    depth -= 1;
                    sum = simd.add(waiting[depth], sum);
                }
                waiting[depth] = sum;
                depth += 1;
            }
            let mut sum = waiting[depth - 1];
            for &left in waiting[..depth - 1].iter().rev() {
                sum = simd.add(left, sum);
            }
            let before = simd.load_partial(out);
            simd.store_partial(out, simd.add(before, sum));
        }
    }
}
