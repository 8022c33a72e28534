//! Bits of every kind of tiles against each other, against a second definition, and against constants.

use super::emulated::{add_flushed, fma, halves};
use super::{BLOCK, Emulated, MatrixUnit, SIDE, Section, TileKind, Tiles, Unit};
use crate::num::philox::Stream;
use crate::simd::{Isa, IsaKind};
use half::bf16;

/// Pairs of a block.
const PAIRS: usize = BLOCK / 2;

/// Blocks of the sums.
const BLOCKS: usize = 3;

/// Operands of one tile: A in rows of pairs, B in rows of 32 pairs, and C.
struct Problem {
    a: Vec<u32>,
    b: Vec<u32>,
    c: Vec<f32>,
}

/// Kinds of data, and the hash of C for each, of 8 problems.
const DATA: [(&str, u64); 9] = [
    ("normal", 0x0ad1_1d18_e2e7_dcde),
    ("wide exponents", 0x9ca8_86c1_d954_bfb9),
    ("products near 2^-126", 0x992f_bb8c_9b54_6ff3),
    ("few of them", 0xea62_3b63_e025_32b3),
    ("sums near 2^-126", 0x13ea_4075_7f7e_f39a),
    ("sums that round up to 2^-126", 0xeb7a_5763_8ba0_85e1),
    ("denormal", 0x2e69_fdb3_eb61_d3a5),
    ("huge", 0xa484_0209_57c8_c2a5),
    ("any bits", 0xa1d1_270f_f7d3_0425),
];

impl Problem {
    fn new(data: &str, draw: u64) -> Self {
        let mut stream = Stream::new(draw, [0x7469_6c65, data.len() as u32, 0]);
        let unit = |stream: &mut Stream| stream.normal() as f32;
        let power = |e: i32| 2f64.powi(e) as f32;
        let number = |stream: &mut Stream| -> u16 {
            let (x, bits) = (unit(stream), stream.next_u32());
            let rounded = |x: f32| bf16::from_f32(x).to_bits();
            match data {
                "normal" => rounded(x),
                "wide exponents" => rounded(x * power((bits % 41) as i32 - 20)),
                "products near 2^-126" => rounded(x * power(-62 - (bits % 4) as i32)),
                "few of them" if bits.is_multiple_of(8) => rounded(x * power(-63 - (bits >> 8 & 1) as i32)),
                "few of them" => 0,
                // Powers of two: sums that are 2^-126 less a little.
                "sums near 2^-126" if bits.is_multiple_of(4) => {
                    rounded(power(-63 - (bits >> 8) as i32 % 14).copysign(x) * [1.0, 1.5][bits as usize >> 16 & 1])
                }
                // Products of 2^-126, 2^-139 and 2^-152: sums that are 2^-126 less a quarter of an ulp.
                "sums that round up to 2^-126" if bits.is_multiple_of(4) => {
                    rounded(power([-63, -76][bits as usize >> 8 & 1]).copysign(x))
                }
                "sums near 2^-126" | "sums that round up to 2^-126" => 0,
                "denormal" if bits.is_multiple_of(2) => (bits >> 8) as u16 & 0x807f,
                "denormal" | "huge" => rounded(x * 1e38),
                _ => bits as u16,
            }
        };
        let mut pairs = |len: usize| -> Vec<u32> {
            (0..len).map(|_| u32::from(number(&mut stream)) | u32::from(number(&mut stream)) << 16).collect()
        };
        let (a, b) = (pairs(SIDE * BLOCKS * PAIRS), pairs(SIDE * BLOCKS * PAIRS));
        let mut sum = |_| {
            let (x, bits) = (stream.normal() as f32, stream.next_u32());
            match data {
                "products near 2^-126" => x * power(-125),
                "few of them" | "sums near 2^-126" | "sums that round up to 2^-126" => {
                    f32::from_bits(if bits & 1 == 0 { 0 } else { bits & 0x8080_ffff })
                }
                "denormal" => f32::from_bits(bits & 0x807f_ffff),
                "any bits" => f32::from_bits(bits),
                _ => x,
            }
        };
        let c = (0..SIDE * SIDE).map(&mut sum).collect();
        Self { a, b, c }
    }

    /// C by a unit.
    fn by<U: MatrixUnit>(&self, unit: U) -> Vec<f32> {
        let _configured = unit.configure();
        let section = Section { a: self.a.as_ptr(), b: self.b.as_ptr() };
        between_bands(&self.c, |c| {
            // SAFETY: the operands have 32 rows and columns of BLOCKS blocks.
            unsafe { unit.multiply(&[section], BLOCKS, BLOCKS * PAIRS, c.as_mut_ptr(), SIDE, true) };
        })
    }

    /// C by multiply-adds of vectors, in register tiles of every height.
    fn by_vectors<S: super::FlushingFma>(&self, simd: S) -> Vec<f32> {
        use crate::register_tile::{RegisterTile, for_height};
        let (k, nr) = (BLOCKS * BLOCK, RegisterTile::of::<S>().columns(S::LANES));
        let mut c = self.c.clone();
        let mut row = 0;
        for height in (1..=RegisterTile::of::<S>().rows).cycle() {
            let height = height.min(SIDE - row);
            let a: Vec<f32> = (0..k)
                .flat_map(|p| (row..row + height).map(move |i| halves(self.a[i * BLOCKS * PAIRS + p / 2])[p % 2]))
                .collect();
            for column in (0..SIDE).step_by(nr) {
                let b: Vec<f32> = (0..k)
                    .flat_map(|p| (column..column + nr).map(move |j| halves(self.b[p / 2 * SIDE + j])[p % 2]))
                    .collect();
                let at = row * SIDE + column;
                assert!(at + (height - 1) * SIDE + nr <= c.len());
                between_bands(&vec![f32::NAN; height * nr], |even| {
                    for_height!(RegisterTile::of::<S>(), height, |H, _NV| {
                        // SAFETY: the operands have H rows and NR columns of BLOCKS blocks; the tile is within C.
                        unsafe {
                            let (c, even) = (c.as_mut_ptr().add(at), even.as_mut_ptr());
                            simd.multiply::<H, { super::PACKED }>(BLOCKS, a.as_ptr(), b.as_ptr(), c, SIDE, even);
                        }
                    });
                });
            }
            row += height;
            if row == SIDE {
                return c;
            }
        }
        unreachable!("the heights repeat")
    }

    /// C by any tiles.
    fn by_tiles(&self, tiles: Tiles, isa: Isa) -> Vec<f32> {
        match (tiles.unit(), isa) {
            (Unit::Emulated, _) => self.by(Emulated),
            #[cfg(target_arch = "x86_64")]
            (Unit::Fma, Isa::Avx2(simd)) => self.by_vectors(simd),
            #[cfg(target_arch = "x86_64")]
            (Unit::Fma, Isa::Avx512(simd)) => self.by_vectors(simd),
            #[cfg(target_arch = "aarch64")]
            (Unit::Fma, Isa::Neon(simd)) => self.by_vectors(simd),
            (Unit::Fma, _) => unreachable!("fma tiles beside {isa}"),
            #[cfg(target_arch = "x86_64")]
            (Unit::Amx(amx), _) => self.by(amx),
        }
    }

    /// C by a definition with some change.
    fn changed(&self, by: Change) -> Vec<f32> {
        let flushes = by != Change::NoFlushing;
        let zeroed = |x: f32| if flushes && x.is_subnormal() { 0f32.copysign(x) } else { x };
        let fma = |a: f32, b: f32, c: f32| if flushes { fma(zeroed(a), zeroed(b), c) } else { a.mul_add(b, c) };
        let add = |a: f32, b: f32| if flushes { add_flushed(a, b) } else { a + b };
        let length = match by {
            Change::Block(terms) => terms / 2,
            _ => PAIRS,
        };
        let pair =
            |i: usize, j: usize, p: usize| (halves(self.a[i * BLOCKS * PAIRS + p]), halves(self.b[p * SIDE + j]));
        let element = |i: usize, j: usize| {
            let mut c = zeroed(self.c[i * SIDE + j]);
            let all: Vec<usize> = (0..BLOCKS * PAIRS).collect();
            for block in all.chunks(length) {
                let (mut even, mut odd) = (0f32, 0f32);
                for &p in block {
                    let (a, b) = pair(i, j, p);
                    if by == Change::OneChain {
                        even = fma(a[1], b[1], fma(a[0], b[0], even));
                    } else {
                        (even, odd) = (fma(a[0], b[0], even), fma(a[1], b[1], odd));
                    }
                }
                c = add(c, add(even, odd));
            }
            c
        };
        (0..SIDE * SIDE).map(|at| element(at / SIDE, at % SIDE)).collect()
    }
}

/// Change of the definition.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Nothing,
    NoFlushing,
    OneChain,
    Block(usize),
}

/// Hash of C of all problems.
fn hash(data: &str, c: impl Fn(&Problem) -> Vec<f32>) -> u64 {
    let all: Vec<f32> = (0..8).flat_map(|draw| c(&Problem::new(data, draw))).collect();
    let bits = all.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }.to_bits());
    // FNV-1a.
    let bytes = bits.flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// `values` after `write`, which must not write the marked elements around them.
#[track_caller]
fn between_bands(values: &[f32], write: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let band = [f32::from_bits(0x7fa5_a5a5); 64];
    let mut all = [&band, values, &band].concat();
    write(&mut all[64..][..values.len()]);
    let (before, after) = (&all[..64], &all[64 + values.len()..]);
    assert!(before.iter().chain(after).all(|x| x.to_bits() == band[0].to_bits()), "an element outside was written");
    all[64..][..values.len()].to_vec()
}

#[test]
fn every_kind_gives_the_bits_of_the_definition() {
    let mut kinds = vec![];
    for (data, wanted) in DATA {
        let emulated = hash(data, |problem| problem.by(Emulated));
        assert_eq!(emulated, wanted, "emulated tiles, {data}: {emulated:#018x}");
        assert_eq!(hash(data, |problem| problem.changed(Change::Nothing)), wanted, "{data}");
        for isa in Isa::real() {
            for tiles in Tiles::testable(isa) {
                if tiles.kind() == TileKind::Emulated {
                    continue;
                }
                let found = hash(data, |problem| problem.by_tiles(tiles, isa));
                assert_eq!(found, wanted, "{} tiles beside {isa}, {data}: {found:#018x}", tiles.kind());
                kinds.push(format!("{} beside {isa}", tiles.kind()));
            }
        }
    }
    kinds.sort();
    kinds.dedup();
    println!("emulated tiles compared with: {}", kinds.join(", "));
    for (isa, kind) in
        [(IsaKind::Avx2, TileKind::Fma), (IsaKind::Avx512, TileKind::Fma), (IsaKind::Avx512, TileKind::Amx)]
    {
        let found = Isa::new(isa).ok_or(format!("no {isa}")).and_then(|isa| Tiles::new(kind, isa));
        if let Err(reason) = found {
            println!("SKIPPED: {kind} tiles beside {isa}: {reason}");
        }
    }
}

/// The data can tell the definition from its likely mistakes.
#[test]
fn a_changed_order_or_missing_flushing_gives_other_bits() {
    let differs = |change: Change| {
        let differs = |&(data, wanted): &(&str, u64)| hash(data, |problem| problem.changed(change)) != wanted;
        DATA.iter().filter(|data| differs(data)).map(|(data, _)| *data).collect::<Vec<_>>()
    };
    let flushed =
        ["products near 2^-126", "few of them", "sums near 2^-126", "sums that round up to 2^-126", "denormal"];
    assert_eq!(differs(Change::NoFlushing), flushed);
    for change in [Change::OneChain, Change::Block(16), Change::Block(64)] {
        let found = differs(change);
        assert!(found.contains(&"normal") && found.contains(&"wide exponents"), "{change:?} is seen on {found:?} only");
    }
    assert_eq!(differs(Change::Nothing), [""; 0]);
}

#[test]
fn the_floating_point_mode_of_the_thread_is_unchanged() {
    let tiny = std::hint::black_box(f32::MIN_POSITIVE);
    for isa in Isa::real() {
        let problem = Problem::new("denormal", 1);
        for tiles in Tiles::testable(isa) {
            drop(problem.by_tiles(tiles, isa));
            let kind = tiles.kind();
            assert_eq!(
                (tiny / 2.0).to_bits(),
                0x0040_0000,
                "{kind} tiles, {isa}: denormal results are flushed afterwards"
            );
        }
    }
}

#[test]
fn tiles_need_their_instruction_set() {
    let scalar = Isa::new(IsaKind::Scalar).unwrap();
    assert_eq!(Tiles::fastest(scalar).kind(), TileKind::Emulated);
    assert_eq!(Tiles::new(TileKind::Fma, scalar).unwrap_err(), "fma tiles need avx512, avx2 or neon, not scalar");
    assert_eq!(Tiles::new(TileKind::Amx, scalar).unwrap_err(), "amx tiles need avx512, not scalar");
}
