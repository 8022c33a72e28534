//! GEMM in six steps from three loops to the kernel, one optimization per rung. Every rung computes C = A·B of row-major
//! matrices, neither transposed, on one thread.
//!
//! ```text
//! 1  three loops       for i, for j, Σ over p                  walking B down a column touches one cache line per element
//! 2  rows of B         for i, for p, row of C += A[i,p]·row    whole cache lines are used; the compiler vectorizes
//! 3  vectors           the same with the widest FMA            C is loaded and stored once for every p
//! 4  a tile            6 rows x 2 vectors of C in registers    C is written once; B is read 6 times less often
//! 5  packed blocks     kc 256, nc 1024, mc 96                  operands are packed in order of use and stay in cache
//! 6  the kernel        tiles, blocks and prefetches tuned for the machine, masked edges: `kernels::gemm`
//! ```
//!
//! The rungs are teaching code: edges are handled in the simplest correct way. Hot loops of rungs 3 to 5 use indices, because
//! iterators and closures may be compiled to calls without the vector instructions (docs/new-kernel.md). Source: Goto and van de
//! Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.

use super::{Case, sizes};
use crate::{
    interleaved::Contender,
    report::{About, Bound},
};
use kernels::{
    Cpu,
    gemm::{Epilogue, Gemm, gemm},
    simd::{Kernel, Simd},
};

/// Number of rungs.
pub const RUNGS: usize = 6;
const NAMES: [&str; RUNGS] = ["three loops", "rows of B", "vectors", "a tile", "packed blocks", "the kernel"];

/// Rows of a tile. Two vectors wide, it has 12 accumulators: enough to hide the latency of two FMA units, few enough for
/// 16 registers.
const TILE_ROWS: usize = 6;
/// Depth of a block (kc): a panel of B, two AVX-512 vectors wide, uses 32 KiB of L1.
const DEPTH: usize = 256;
/// Columns of a block of B (nc): 1 MiB, half of a 2 MiB L2.
const WIDTH: usize = 1024;
/// Rows of a block of A (mc): 96 KiB.
const HEIGHT: usize = 96;

/// One rung at one problem size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Rung number, 1 to [`RUNGS`].
    pub number: usize,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
}

impl Rung {
    pub(super) fn prepare(&self, cpu: &Cpu) -> Case {
        let &Self { m, n, k, .. } = self;
        let (rung, own, a, b, mut c) =
            (*self, cpu.clone(), crate::random(m * k, 1), crate::random(k * n, 2), crate::random(m * n, 3));
        let ours = Contender::new("ours", move || rung.run(&own, &a, &b, &mut c)).within_pass(cpu);
        Case { about: self.about(), contenders: vec![ours] }
    }

    pub(super) fn about(&self) -> About {
        let &Self { number, m, n, k } = self;
        About {
            kernel: "gemm",
            case: format!("{number} {} {m}x{n}x{k}", NAMES[number - 1]),
            sizes: sizes([("rung", number), ("m", m), ("n", n), ("k", k)]),
            dtype: "f32",
            bound: Bound::Arithmetic,
            flops: Gemm::nn(m, n, k).flops(),
            bytes: 4 * (m * k + k * n + m * n) as u64,
            tokens: None,
        }
    }

    fn run(&self, cpu: &Cpu, a: &[f32], b: &[f32], c: &mut [f32]) {
        let &Self { number, m, n, k } = self;
        let product = Product { m, n, k, a, b };
        match number {
            1 => product.three_loops(c),
            2 => product.rows_of_b(c),
            3 => cpu.isa().run(Vectors { product, c }),
            4 => cpu.isa().run(Tile { product, c }),
            5 => cpu.isa().run(Packed { product, c }),
            _ => gemm(cpu, &Gemm::nn(m, n, k), a, b, c, Epilogue::NONE),
        }
    }
}

/// Operands A `[m, k]` and B `[k, n]`.
#[derive(Clone, Copy)]
struct Product<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: &'a [f32],
    b: &'a [f32],
}

impl Product<'_> {
    fn three_loops(&self, c: &mut [f32]) {
        let &Self { m, n, k, a, b } = self;
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum();
            }
        }
    }

    fn rows_of_b(&self, c: &mut [f32]) {
        let &Self { n, k, a, b, .. } = self;
        c.fill(0.0);
        for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
            for (&a, b) in a.iter().zip(b.chunks_exact(n)) {
                c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
            }
        }
    }
}

struct Vectors<'a> {
    product: Product<'a>,
    c: &'a mut [f32],
}

impl Kernel for Vectors<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { product: Product { m, n, k, a, b }, c } = self;
        let whole = n / S::LANES * S::LANES;
        c.fill(0.0);
        for i in 0..m {
            let c = &mut c[i * n..][..n];
            for p in 0..k {
                let (b, factor) = (&b[p * n..][..n], simd.splat(a[i * k + p]));
                let mut j = 0;
                while j < whole {
                    let sum = simd.mul_add(factor, simd.load(&b[j..]), simd.load(&c[j..]));
                    simd.store(&mut c[j..], sum);
                    j += S::LANES;
                }
                for j in whole..n {
                    c[j] += a[i * k + p] * b[j];
                }
            }
        }
    }
}

struct Tile<'a> {
    product: Product<'a>,
    c: &'a mut [f32],
}

impl Kernel for Tile<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { product, c } = self;
        let Product { m, n, k, a, b } = product;
        let width = 2 * S::LANES;
        if n < width || m < TILE_ROWS {
            return Vectors { product, c }.run(simd);
        }
        for column in 0..n.div_ceil(width) {
            // The last tiles overlap their neighbors; both compute the same values.
            let j = (column * width).min(n - width);
            for tile in 0..m.div_ceil(TILE_ROWS) {
                let i = (tile * TILE_ROWS).min(m - TILE_ROWS);
                let mut rows = [a; TILE_ROWS];
                for row in 0..TILE_ROWS {
                    rows[row] = &a[(i + row) * k..][..k];
                }
                let mut sums = [[simd.zero(); 2]; TILE_ROWS];
                for p in 0..k {
                    let b = &b[p * n + j..][..width];
                    let (left, right) = (simd.load(b), simd.load(&b[S::LANES..]));
                    for row in 0..TILE_ROWS {
                        let factor = simd.splat(rows[row][p]);
                        sums[row][0] = simd.mul_add(factor, left, sums[row][0]);
                        sums[row][1] = simd.mul_add(factor, right, sums[row][1]);
                    }
                }
                for row in 0..TILE_ROWS {
                    let c = &mut c[(i + row) * n + j..][..width];
                    simd.store(c, sums[row][0]);
                    simd.store(&mut c[S::LANES..], sums[row][1]);
                }
            }
        }
    }
}

struct Packed<'a> {
    product: Product<'a>,
    c: &'a mut [f32],
}

impl Kernel for Packed<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { product: Product { m, n, k, a, b }, c } = self;
        let width = 2 * S::LANES;
        let mut panels_of_b = vec![0f32; DEPTH * WIDTH.next_multiple_of(width)];
        let mut panels_of_a = vec![0f32; DEPTH * HEIGHT.next_multiple_of(TILE_ROWS)];
        c.fill(0.0);
        for j in (0..n).step_by(WIDTH) {
            let columns = WIDTH.min(n - j);
            for p in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - p);
                pack(&mut panels_of_b, width, &b[p * n + j..], [1, n], columns, depth);
                for i in (0..m).step_by(HEIGHT) {
                    let rows = HEIGHT.min(m - i);
                    pack(&mut panels_of_a, TILE_ROWS, &a[i * k + p..], [k, 1], rows, depth);
                    let mut column = 0;
                    while column < columns {
                        let b = &panels_of_b[column * depth..][..width * depth];
                        let mut row = 0;
                        while row < rows {
                            let a = &panels_of_a[row * depth..][..TILE_ROWS * depth];
                            let c = &mut c[(i + row) * n + j + column..];
                            add_tile(simd, a, b, c, n, [TILE_ROWS.min(rows - row), width.min(columns - column)]);
                            row += TILE_ROWS;
                        }
                        column += width;
                    }
                }
            }
        }
    }
}

/// Packs `lines` lines (rows of A or columns of B) of `depth` elements into panels of `width` lines. Within a panel, element q
/// of all lines is contiguous. The last panel is padded with zeros. `strides` are those between lines and between elements.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "an iterator can become a call without the vector instructions")]
fn pack(panels: &mut [f32], width: usize, from: &[f32], strides: [usize; 2], lines: usize, depth: usize) {
    for panel in 0..lines.div_ceil(width) {
        let first = panel * width;
        let count = width.min(lines - first);
        for q in 0..depth {
            let together = &mut panels[first * depth + q * width..][..width];
            for at in 0..count {
                together[at] = from[(first + at) * strides[0] + q * strides[1]];
            }
            for at in count..width {
                together[at] = 0.0;
            }
        }
    }
}

/// Adds a panel of A times a panel of B to the first `rows` x `columns` of C, whose rows are `ldc` apart.
#[inline(always)]
fn add_tile<S: Simd>(simd: S, a: &[f32], b: &[f32], c: &mut [f32], ldc: usize, [rows, columns]: [usize; 2]) {
    let width = 2 * S::LANES;
    let mut sums = [[simd.zero(); 2]; TILE_ROWS];
    for p in 0..a.len() / TILE_ROWS {
        let (a, b) = (&a[p * TILE_ROWS..][..TILE_ROWS], &b[p * width..][..width]);
        let (left, right) = (simd.load(b), simd.load(&b[S::LANES..]));
        for row in 0..TILE_ROWS {
            let factor = simd.splat(a[row]);
            sums[row][0] = simd.mul_add(factor, left, sums[row][0]);
            sums[row][1] = simd.mul_add(factor, right, sums[row][1]);
        }
    }
    for row in 0..TILE_ROWS {
        if row < rows {
            let c = &mut c[row * ldc..][..columns];
            if columns == width {
                let (left, right) = (simd.load(c), simd.load(&c[S::LANES..]));
                simd.store(c, simd.add(left, sums[row][0]));
                simd.store(&mut c[S::LANES..], simd.add(right, sums[row][1]));
                continue;
            }
            let mut line = [0f32; 32];
            simd.store(&mut line, sums[row][0]);
            simd.store(&mut line[S::LANES..], sums[row][1]);
            for column in 0..columns {
                c[column] += line[column];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Isa;

    #[test]
    fn every_rung_computes_the_same_product() {
        for isa in Isa::real() {
            let cpu = Cpu::new(isa, 1).unwrap();
            for (m, n, k) in [(1, 1, 1), (5, 31, 3), (7, 33, 257), (13, 70, 40), (97, 1025, 2)] {
                let (a, b) = (crate::random(m * k, 1), crate::random(k * n, 2));
                let exact = |i: usize, j: usize| -> f64 {
                    (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[p * n + j])).sum()
                };
                for number in 1..=RUNGS {
                    let mut c = vec![f32::NAN; m * n];
                    Rung { number, m, n, k }.run(&cpu, &a, &b, &mut c);
                    for (place, &value) in c.iter().enumerate() {
                        let expected = exact(place / n, place % n);
                        let bound = 1e-6 * k as f64;
                        let error = (f64::from(value) - expected).abs();
                        assert!(error < bound, "rung {number}, {m}x{n}x{k}, {}: {value}, {expected}", isa.kind());
                    }
                }
            }
        }
    }
}
