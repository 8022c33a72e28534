//! Products on tiles ([`crate::tiles`]) in the loop nest of f32: two microkernels and their operands.
//!
//! | microkernel | group of A, of B | packed A | packed B |
//! |---|---|---|---|
//! | [`vectors::FmaTile`] | f32, f32 | \[part\]\[k\]\[rows\] | panels of NR columns: \[part\]\[k\]\[NR\] |
//! | [`pairs::PairTile`] | pair of bf16 along k, the same | \[part\]\[32 rows\]\[k/2\] | panels of 32 columns: \[part\]\[k/2\]\[32\] |
//!
//! k is padded with zeros to a multiple of 32, which adds +0 to the chains. Parts are those of [`Precision`]: a block of k
//! is split when it is packed, and its sections, blocks of [`SPLIT`] terms of a part of A and a part of B, are multiplied in
//! the order of [`Precision::terms`].

pub(super) mod pairs;
pub(super) mod split;
pub(super) mod vectors;

use super::Product;
use super::blocking::{Blocking, CHAIN, SINGLE_BLOCK};
use super::blocks::{MatrixA, MatrixB, Steps};
use super::microkernel::Destination;
use super::packed::WHOLE_PANEL;
use crate::gemm::operand::{Operand, Output};
use crate::gemm::precision::Precision;
use crate::gemm::{Batch, Gemm, TileEpilogue};
use crate::pool::{Cpu, Disjoint};
use crate::register_tile::RegisterTile;
use crate::simd::{Isa, Kernel, Simd};
use crate::tiles::{self, Emulated, TileKind, Unit, padded};
use std::ops::Range;

/// Terms of a section of split operands. It determines the order of additions, hence the bits.
pub(super) const SPLIT: usize = 128;

/// Terms of a block of k, padded: a block is a whole number of sections, so it does not change the order of additions.
const fn block(k: usize, precision: Precision, pairs: bool) -> usize {
    let padded = padded(k);
    let most = match precision {
        // Panels of pairs with 256 terms are 16 KiB each: two fit L1 beside the tile.
        Precision::Bf16 if pairs => 256,
        Precision::Bf16 if padded <= SINGLE_BLOCK => SINGLE_BLOCK,
        Precision::Bf16 => CHAIN,
        _ if pairs => SPLIT,
        _ => 2 * SPLIT,
    };
    if padded < most { padded } else { most }
}

/// The product in steps: groups of k, those of a block, and those of a section.
fn product<'a>(
    spec: &'a Gemm,
    pairs: bool,
    a: MatrixA<'a>,
    b: MatrixB<'a>,
    c: Output<'a>,
    c_start: usize,
    epilogue: TileEpilogue<'a>,
) -> Product<'a, MatrixA<'a>, MatrixB<'a>> {
    let group = if pairs { 2 } else { 1 };
    let precision = spec.precision;
    let section = if precision == Precision::Bf16 { usize::MAX } else { SPLIT / group };
    Product {
        depth: padded(spec.k) / group,
        block: block(spec.k, precision, pairs) / group,
        chain: section,
        parts: precision.parts(),
        a_in_place: pairs && pairs::in_place(&a).is_some(),
        b_in_place: matches!(b, MatrixB::Packed(_)),
        ..Product::of(spec, a, b, c, c_start, epilogue)
    }
}

/// True if the tiles of `cpu` read pairs, false if they are in vector registers.
fn reads_pairs(cpu: &Cpu) -> bool {
    cpu.tiles().kind() != TileKind::Fma
}

/// Sizes of the loop nest for the tiles and the L2 of `cpu`.
pub(super) fn blocking(cpu: &Cpu) -> Blocking {
    let lanes = cpu.isa().kind().lanes();
    if reads_pairs(cpu) {
        let tile = RegisterTile::of_unit(tiles::SIDE, tiles::SIDE / lanes);
        Blocking::new(tile, lanes, cpu.caches()).in_whole_tiles()
    } else {
        Blocking::of(cpu)
    }
}

/// Runs `batch.count` checked products whose precision is not f32.
pub(super) fn run(
    cpu: &Cpu,
    spec: &Gemm,
    batch: &Batch,
    a: Operand<'_>,
    b: MatrixB<'_>,
    c: Output<'_>,
    epilogue: TileEpilogue<'_>,
) {
    let pairs = reads_pairs(cpu);
    let one = |i: usize| {
        let a = MatrixA { spec, a: a.from(i * batch.stride_a) };
        product(spec, pairs, a, b.from(i * batch.stride_b), c, i * batch.stride_c, epilogue)
    };
    let precision = spec.precision;
    match (cpu.tiles().unit(), cpu.isa()) {
        #[cfg(target_arch = "x86_64")]
        (Unit::Fma, Isa::Avx512(simd)) => vectors::run(cpu, simd, precision, batch.count, one),
        #[cfg(target_arch = "x86_64")]
        (Unit::Fma, Isa::Avx2(simd)) => vectors::run(cpu, simd, precision, batch.count, one),
        #[cfg(target_arch = "aarch64")]
        (Unit::Fma, Isa::Neon(simd)) => vectors::run(cpu, simd, precision, batch.count, one),
        (Unit::Fma, isa) => unreachable!("fma tiles exist with avx512, avx2 and neon, not with {isa}"),
        #[cfg(target_arch = "x86_64")]
        (Unit::Amx(unit), Isa::Avx512(simd)) => pairs::run(cpu, simd, unit, precision, batch.count, one),
        #[cfg(target_arch = "x86_64")]
        (Unit::Amx(_), isa) => unreachable!("amx tiles exist beside avx512, not beside {isa}"),
        (Unit::Emulated, isa) => isa.run(OnEmulated { cpu, precision, count: batch.count, one }),
    }
}

/// Products on emulated tiles, with the vectors of an instruction set.
struct OnEmulated<'c, F> {
    cpu: &'c Cpu,
    precision: Precision,
    count: usize,
    one: F,
}

impl<'a, F: Fn(usize) -> Product<'a, MatrixA<'a>, MatrixB<'a>> + Sync> Kernel for OnEmulated<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        pairs::run(self.cpu, simd, Emulated, self.precision, self.count, self.one);
    }
}

/// Packs all of B into `out`, in the order of [`PackedB`](super::packed::PackedB).
pub(super) fn pack_all(cpu: &Cpu, spec: &Gemm, b: Operand<'_>, out: Disjoint<'_, f32>) {
    let Gemm { n, k, precision, .. } = *spec;
    let b = MatrixB::Unpacked(spec, b);
    let panel = padded(k) * WHOLE_PANEL / if precision == Precision::Bf16 { 2 } else { 1 };
    cpu.for_each(n.div_ceil(WHOLE_PANEL), |j| {
        let columns = j * WHOLE_PANEL..n.min((j + 1) * WHOLE_PANEL);
        // SAFETY: panels are disjoint.
        let out = unsafe { out.slice(j * panel..(j + 1) * panel) };
        cpu.isa().run(PackPanel { b, k, columns, pairs: precision == Precision::Bf16, out });
    });
}

/// Packs a panel of 32 columns and all k.
struct PackPanel<'a, 'o> {
    b: MatrixB<'a>,
    k: usize,
    columns: Range<usize>,
    pairs: bool,
    out: &'o mut [f32],
}

impl Kernel for PackPanel<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { b, k, columns, pairs, out } = self;
        if pairs {
            let steps = Steps { start: 0, depth: padded(k) / 2 };
            pairs::PackColumns { b, steps, columns, parts: 1, out: bytemuck::cast_slice_mut(out) }.run(simd);
        } else {
            let mut rows = out.chunks_exact_mut(tiles::BLOCK * WHOLE_PANEL);
            for (k, square) in (0..).step_by(tiles::BLOCK).zip(rows.by_ref()) {
                pairs::load_square(simd, b, k, columns.clone(), square.try_into().expect("a chunk is a square"));
            }
        }
    }
}

/// C = 0 in a tile.
///
/// # Safety
/// `to` is valid for writing `height` rows of `width` floats, a multiple of LANES.
#[inline(always)]
unsafe fn clear<S: Simd>(simd: S, height: usize, width: usize, to: Destination<'_>) {
    for i in 0..height {
        for at in (0..width).step_by(S::LANES) {
            // SAFETY: the caller's promise.
            unsafe { simd.store_ptr(to.c.add(i * to.ldc + at), simd.zero()) };
        }
    }
}

/// C = C + bias in a tile, if there is a bias.
///
/// # Safety
/// `to` is valid for reading and writing `height` rows of `width` floats, a multiple of LANES.
#[inline(always)]
unsafe fn add_bias<S: Simd>(simd: S, height: usize, width: usize, to: Destination<'_>) {
    let Some(bias) = to.bias else { return };
    for at in (0..width).step_by(S::LANES) {
        let bias = simd.load(&bias[at..]);
        for i in 0..height {
            // SAFETY: the caller's promise.
            unsafe {
                let c = to.c.add(i * to.ldc + at);
                simd.store_ptr(c, simd.add(simd.load_ptr(c), bias));
            }
        }
    }
}
