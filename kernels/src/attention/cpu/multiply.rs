//! Attention's products: on vectors for f32 storage, on tiles ([`crate::tiles`]) for bf16.
//!
//! On tiles every operand is bf16: queries, keys, values and gradients are stored so, and P and dS are rounded before they are
//! multiplied. Sums, maxima and exponentials are f32. Terms are padded with zeros to whole blocks of 32.

use super::pack::CHUNK;
use super::product::{Begin, Product};
use crate::Element;
use crate::extent::span;
use crate::pool::Cpu;
use crate::register_tile::{RegisterTile, TALLEST, for_height};
use crate::simd::{Isa, Kernel, Simd};
use crate::tiles::{self, COLUMNS, Emulated, FlushingFma, MatrixUnit, ROWS, SIDE, STRIDE, Section, Unit};
use half::bf16;

/// Computes products of scratch matrices.
pub(super) trait Multiplier: Copy {
    /// True if operands must be bf16, and zeros up to whole blocks.
    const ROUNDS: bool;
    /// Terms of a block.
    const BLOCK: usize = if Self::ROUNDS { tiles::BLOCK } else { 1 };

    /// Computes `product`.
    fn multiply<S: Simd, const TRANSPOSED: bool>(self, simd: S, product: Product<'_, TRANSPOSED>);
}

/// A task that multiplies.
pub(super) trait MultiplierUser {
    /// Runs the task.
    fn run<S: Simd, M: Multiplier>(self, simd: S, multiplier: M);
}

/// Storage of attention's operands, which decides what multiplies them.
pub(super) trait Storage: Element {
    /// Runs a task on the calling thread.
    fn run<T: MultiplierUser>(cpu: &Cpu, task: T);
}

/// A task with its multiplier.
struct With<M, T>(M, T);

impl<M: Multiplier, T: MultiplierUser> Kernel for With<M, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.1.run(simd, self.0);
    }
}

impl Storage for f32 {
    fn run<T: MultiplierUser>(cpu: &Cpu, task: T) {
        cpu.isa().run(With(Vectors, task));
    }
}

impl Storage for bf16 {
    fn run<T: MultiplierUser>(cpu: &Cpu, task: T) {
        match (cpu.tiles().unit(), cpu.isa()) {
            #[cfg(target_arch = "x86_64")]
            (Unit::Fma, Isa::Avx512(simd)) => simd.vectorize(With(Flushing(simd), task)),
            #[cfg(target_arch = "x86_64")]
            (Unit::Fma, Isa::Avx2(simd)) => simd.vectorize(With(Flushing(simd), task)),
            #[cfg(target_arch = "x86_64")]
            (Unit::Amx(unit), Isa::Avx512(simd)) => {
                let _configured = unit.configure();
                simd.vectorize(With(Pairs(unit), task));
            }
            #[cfg(target_arch = "x86_64")]
            (Unit::Amx(_), isa) => unreachable!("amx tiles exist with avx512, not with {isa}"),
            #[cfg(target_arch = "aarch64")]
            (Unit::Fma, Isa::Neon(simd)) => simd.vectorize(With(Flushing(simd), task)),
            (Unit::Fma, isa) => unreachable!("fma tiles exist with avx512, avx2 and neon, not with {isa}"),
            (Unit::Emulated, isa) => isa.run(With(Pairs(Emulated), task)),
        }
    }
}

/// Multiply-adds of f32.
#[derive(Clone, Copy)]
struct Vectors;

impl Multiplier for Vectors {
    const ROUNDS: bool = false;

    #[inline(always)]
    fn multiply<S: Simd, const TRANSPOSED: bool>(self, simd: S, product: Product<'_, TRANSPOSED>) {
        simd.vectorize(product);
    }
}

/// Tiles in vector registers.
#[derive(Clone, Copy)]
struct Flushing<F>(F);

impl<F: FlushingFma> Multiplier for Flushing<F> {
    const ROUNDS: bool = true;

    #[inline(always)]
    fn multiply<S: Simd, const TRANSPOSED: bool>(self, _: S, product: Product<'_, TRANSPOSED>) {
        const { assert!(STRIDE == CHUNK) };
        let Product { rows, columns, terms, a, b, begin, c, prefetches } = product;
        if rows == 0 || columns == 0 || terms == 0 {
            return;
        }
        let tile = const { RegisterTile::of::<F>() };
        let nr = tile.columns(F::LANES);
        let (terms, width) = (terms.next_multiple_of(tiles::BLOCK), columns.next_multiple_of(nr));
        let (left_rows, left_columns) = if TRANSPOSED { (terms, rows) } else { (rows, terms) };
        assert!(width <= CHUNK && left_columns <= CHUNK);
        assert!(a.len() >= span(left_rows, left_columns, CHUNK));
        assert!(b.len() >= span(terms, width, CHUNK));
        assert!(c.len() >= span(rows, width, CHUNK));
        start(self.0, begin, rows, width, c);
        let mut even = [0f32; TALLEST * SIDE];
        assert!(tile.rows * nr <= even.len());
        let tiles = rows.div_ceil(tile.rows);
        for i in 0..tiles {
            let row = rows * i / tiles;
            let height = rows * (i + 1) / tiles - row;
            for column in (0..width).step_by(nr) {
                for_height!(RegisterTile::of::<F>(), height, |H, _NV| {
                    // SAFETY: the asserts bound rows row .. row + H of A and C, columns column .. column + NR of B and C, and
                    // all their terms; `even` is another buffer.
                    unsafe {
                        let (a, b) = (a.as_ptr(), b.as_ptr().add(column));
                        let (c, even) = (c.as_mut_ptr().add(row * CHUNK + column), even.as_mut_ptr());
                        let blocks = terms / tiles::BLOCK;
                        if TRANSPOSED {
                            self.0.multiply::<H, COLUMNS>(blocks, a.add(row), b, c, CHUNK, even);
                        } else {
                            self.0.multiply::<H, ROWS>(blocks, a.add(row * CHUNK), b, c, CHUNK, even);
                        }
                    }
                });
                prefetches.prefetch_some();
            }
        }
    }
}

/// Tiles of a matrix unit, which this thread has configured. The operands are converted to pairs for each product.
#[derive(Clone, Copy)]
struct Pairs<U>(U);

/// Rows, columns and terms of the largest product.
const LARGEST: usize = 64;

impl<U: MatrixUnit> Multiplier for Pairs<U> {
    const ROUNDS: bool = true;

    #[inline(always)]
    fn multiply<S: Simd, const TRANSPOSED: bool>(self, simd: S, product: Product<'_, TRANSPOSED>) {
        let Product { rows, columns, terms, a, b, begin, c, prefetches } = product;
        if rows == 0 || columns == 0 || terms == 0 {
            return;
        }
        let terms = terms.next_multiple_of(SIDE);
        let (width, height) = (columns.next_multiple_of(SIDE), rows.next_multiple_of(SIDE));
        assert!(terms <= LARGEST && width <= LARGEST && height <= LARGEST);
        assert!(c.len() >= (height - 1) * LARGEST + width);
        start(simd, begin, rows, width, c);
        // Rows of A, and rows of 32 pairs of B.
        let mut left = [0u32; LARGEST * LARGEST / 2];
        let mut right = [0f32; LARGEST / 2 * LARGEST];
        simd.vectorize(ToRows::<TRANSPOSED> { a, rows, terms, to: bytemuck::cast_slice_mut(&mut left) });
        simd.vectorize(ToPairs { b, terms, width, to: &mut right });
        let right: &[u32] = bytemuck::cast_slice(&right);
        for row in (0..height).step_by(SIDE) {
            for column in (0..width).step_by(SIDE) {
                let section = Section {
                    a: left[row * LARGEST / 2..].as_ptr(),
                    b: right[column / SIDE * (LARGEST / 2 * SIDE)..].as_ptr(),
                };
                // SAFETY: `Storage::run` configures the unit. The operands have 64 x 64 elements, and the assert bounds C.
                unsafe {
                    let c = c.as_mut_ptr().add(row * LARGEST + column);
                    self.0.multiply(&[section], terms / tiles::BLOCK, LARGEST / 2, c, LARGEST, true);
                }
                prefetches.prefetch_some();
            }
        }
    }
}

/// Makes C what the product is added to: `rows` rows of `width` columns, a multiple of LANES.
#[inline(always)]
fn start<S: Simd>(simd: S, begin: Begin<'_>, rows: usize, width: usize, c: &mut [f32]) {
    let factors = match begin {
        Begin::Old => return,
        Begin::Zero => None,
        Begin::Scaled(factors) => Some(factors),
    };
    for (i, row) in c.chunks_mut(LARGEST).enumerate().take(rows) {
        let factor = factors.map(|factors| simd.splat(factors[i]));
        for x in (0..width).step_by(S::LANES) {
            let value = factor.map_or(simd.zero(), |factor| simd.mul(simd.load(&row[x..]), factor));
            simd.store(&mut row[x..], value);
        }
    }
}

/// Rows of A in bf16, [`LARGEST`] apart; rows that do not exist are left.
struct ToRows<'a, const TRANSPOSED: bool> {
    a: &'a [f32],
    rows: usize,
    terms: usize,
    to: &'a mut [bf16],
}

impl<const TRANSPOSED: bool> Kernel for ToRows<'_, TRANSPOSED> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { a, rows, terms, to } = self;
        for p in (0..terms).step_by(S::LANES) {
            for i in (0..rows).step_by(S::LANES) {
                let lines = S::LANES.min(rows - i);
                let mut square = [simd.zero(); 16];
                for (line, x) in square.iter_mut().enumerate().take(S::LANES) {
                    let (row, column) = if TRANSPOSED { (p + line, i) } else { (i + line, p) };
                    if TRANSPOSED || line < lines {
                        *x = simd.load(&a[row * LARGEST + column..]);
                    }
                }
                if TRANSPOSED {
                    simd.transpose(&mut square);
                }
                for (line, &x) in square.iter().enumerate().take(lines) {
                    bf16::store(simd, &mut to[(i + line) * LARGEST + p..], x);
                }
            }
        }
    }
}

/// Pairs of rows of B, in panels of 32 columns.
struct ToPairs<'a> {
    b: &'a [f32],
    terms: usize,
    width: usize,
    to: &'a mut [f32; LARGEST / 2 * LARGEST],
}

impl Kernel for ToPairs<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { b, terms, width, to } = self;
        for (p, rows) in b.chunks(2 * LARGEST).enumerate().take(terms / 2) {
            for x in (0..width).step_by(S::LANES) {
                let even = simd.shr::<16>(simd.as_bits(simd.load(&rows[x..])));
                let odd = simd.and(simd.as_bits(simd.load(&rows[LARGEST + x..])), simd.splat_u32(0xffff_0000));
                let at = x / SIDE * (LARGEST / 2 * SIDE) + p * SIDE + x % SIDE;
                simd.store(&mut to[at..], simd.as_floats(simd.or(even, odd)));
            }
        }
    }
}

/// Rounds a tile of `keys` rows and `queries` columns to bf16, and fills its rows and columns with zeros up to whole blocks.
#[inline(always)]
pub(super) fn round<S: Simd>(simd: S, tile: &mut [f32], keys: usize, queries: usize) {
    let columns = queries.next_multiple_of(tiles::BLOCK);
    for (key, row) in tile.chunks_exact_mut(LARGEST).enumerate().take(keys.next_multiple_of(tiles::BLOCK)) {
        let filled = if key < keys { queries } else { 0 };
        for x in (0..filled).step_by(S::LANES) {
            let rounded = simd.round_bf16(simd.load(&row[x..]));
            simd.store(&mut row[x..], rounded);
        }
        row[filled..columns].fill(0.0);
    }
}
