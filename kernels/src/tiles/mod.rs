//! Products of bf16 as a matrix unit computes them: tiles of 32 x 32 sums in f32.
//!
//! ```text
//! for each block of 32 k, in order:          C[i, j]: f32
//!     even = odd = +0
//!     for each pair p of the block, in order:
//!         even = fma(A[i, 2p],     B[2p, j],     even)
//!         odd  = fma(A[i, 2p + 1], B[2p + 1, j], odd)
//!     C[i, j] = C[i, j] + (even + odd)
//! ```
//!
//! Every operation rounds to nearest even, reads a denormal as zero of its sign, and returns zero of its sign for a result
//! whose magnitude, rounded to 24 bits, is below 2^-126. This is what Intel's TDPBF16PS computes (Intel SDM, volume 2;
//! checked against the instruction on 8 million elements). Here it is the definition, and each kind of [`Tiles`] gives its
//! bits, but for sign and payload of a NaN:
//!
//! | kind | machines | how |
//! |---|---|---|
//! | `amx` | x86-64 with AMX | the instruction, tiles of 16 x 16 |
//! | `fma` | x86-64 with AVX-512, or AVX2 and FMA; aarch64 | multiply-adds of f32 vectors, with flushing of denormals switched on |
//! | `emulated` | all | plain Rust, slow |
//!
//! A bf16 product has 16 significant bits, so a multiply-add of f32 rounds the same exact value.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod emulated;
#[cfg(target_arch = "x86_64")]
mod fma;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use amx::Amx;
pub(crate) use emulated::Emulated;

#[cfg(target_arch = "x86_64")]
use crate::num::philox::Stream;
use crate::simd::{Isa, IsaKind, Simd};
use std::fmt;

/// Terms of a sum that are added to C at once.
pub(crate) const BLOCK: usize = 32;

/// k with the zeros that fill its last block.
pub(crate) const fn padded(k: usize) -> usize {
    k.next_multiple_of(BLOCK)
}

/// Rows and columns of a tile of a [`MatrixUnit`].
pub(crate) const SIDE: usize = 32;

/// Layout of packed panels: A \[k\]\[H\], B \[k\]\[NR\].
pub(crate) const PACKED: usize = 0;
/// A in rows, [`STRIDE`] apart; B \[k\], its rows as far apart.
pub(crate) const ROWS: usize = 1;
/// A in columns, [`STRIDE`] apart; B \[k\], its rows as far apart.
pub(crate) const COLUMNS: usize = 2;

/// Floats between rows or columns that are not packed.
pub(crate) const STRIDE: usize = 64;

/// Floats from a row of A to the next, and from a step of k to the next.
const fn strides_of_a(layout: usize, height: usize) -> [usize; 2] {
    match layout {
        ROWS => [STRIDE, 1],
        COLUMNS => [1, STRIDE],
        _ => [1, height],
    }
}

/// Vectors whose multiply-adds flush denormals.
pub(crate) trait FlushingFma: Simd {
    /// Adds `blocks` blocks of terms to H rows and NR columns of C. The operands have the layout L.
    ///
    /// # Safety
    /// `a` is valid for reading 32 · `blocks` steps of H rows, `b` for as many of NR columns, `c` for reading and writing H
    /// rows of NR floats, `ldc` apart, and `even` for H · NR floats that overlap neither. H is at most the rows of the
    /// register tile.
    unsafe fn multiply<const H: usize, const L: usize>(
        self,
        blocks: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        ldc: usize,
        even: *mut f32,
    );
}

/// Name of what computes tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TileKind {
    /// Plain Rust.
    Emulated,
    /// Multiply-adds of f32 vectors.
    Fma,
    /// Advanced Matrix Extensions of x86-64.
    Amx,
}

impl TileKind {
    /// All kinds, slow to fast.
    pub const ALL: [Self; 3] = [Self::Emulated, Self::Fma, Self::Amx];

    /// Name as printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Fma => "fma",
            Self::Amx => "amx",
        }
    }
}

impl fmt::Display for TileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Unit that computes tiles, with the vectors of an instruction set; owning the value proves that the machine has it.
#[derive(Clone, Copy, Debug)]
pub struct Tiles(Unit);

/// The token inside [`Tiles`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Emulated,
    Fma,
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
}

impl Tiles {
    /// Tiles of a kind, with the vectors of `isa`.
    ///
    /// # Errors
    /// Why this machine, or the instruction set, does not have them.
    pub fn new(kind: TileKind, isa: Isa) -> Result<Self, String> {
        match (kind, isa.kind()) {
            (TileKind::Emulated, _) => Ok(Self(Unit::Emulated)),
            (TileKind::Fma, IsaKind::Avx512 | IsaKind::Avx2 | IsaKind::Neon) => Ok(Self(Unit::Fma)),
            (TileKind::Fma, isa) => Err(format!("fma tiles need avx512, avx2 or neon, not {isa}")),
            #[cfg(target_arch = "x86_64")]
            (TileKind::Amx, IsaKind::Avx512) => Amx::detect().map(|amx| Self(Unit::Amx(amx))),
            #[cfg(not(target_arch = "x86_64"))]
            (TileKind::Amx, IsaKind::Avx512) => unreachable!("AVX-512 is of x86-64"),
            (TileKind::Amx, isa) => Err(format!("amx tiles need avx512, not {isa}")),
        }
    }

    /// The fastest tiles, with the vectors of `isa`.
    pub(crate) fn fastest(isa: Isa) -> Self {
        let found = TileKind::ALL.into_iter().rev().find_map(|kind| Self::new(kind, isa).ok());
        found.unwrap_or(Self(Unit::Emulated))
    }

    /// All tiles that this machine has, with the vectors of `isa`, for tests.
    pub fn testable(isa: Isa) -> Vec<Self> {
        TileKind::ALL.into_iter().filter_map(|kind| Self::new(kind, isa).ok()).collect()
    }

    /// Kind of tiles.
    pub const fn kind(self) -> TileKind {
        match self.0 {
            Unit::Emulated => TileKind::Emulated,
            Unit::Fma => TileKind::Fma,
            #[cfg(target_arch = "x86_64")]
            Unit::Amx(_) => TileKind::Amx,
        }
    }

    /// The token.
    pub(crate) const fn unit(self) -> Unit {
        self.0
    }
}

/// Multiplies normally distributed numbers in L1, `rounds` times, and returns the FLOPs: a loop that measures the peak of a
/// matrix unit. With zeros its clock would be higher. `None` without such a unit.
pub(crate) fn loop_of_peak(tiles: Tiles, rounds: u32) -> Option<f64> {
    /// Blocks of terms: panels of 16 KiB.
    #[cfg(target_arch = "x86_64")]
    const BLOCKS: usize = 8;
    match tiles.unit() {
        #[cfg(target_arch = "x86_64")]
        Unit::Amx(unit) => {
            let mut stream = Stream::new(1, [0x7065_616b, 0, 0]);
            let mut number = || u32::from(half::bf16::from_f64(stream.normal()).to_bits());
            let mut panel = || (0..SIDE * BLOCKS * BLOCK / 2).map(|_| number() | number() << 16).collect::<Vec<u32>>();
            let (a, b, mut c) = (panel(), panel(), vec![0f32; SIDE * SIDE]);
            let section = [Section { a: a.as_ptr(), b: b.as_ptr() }];
            let _configured = unit.configure();
            for _ in 0..rounds {
                // SAFETY: both panels have BLOCKS blocks, C has 32 x 32 floats, and the unit is configured.
                unsafe { unit.multiply(&section, BLOCKS, BLOCKS * BLOCK / 2, c.as_mut_ptr(), SIDE, false) };
            }
            std::hint::black_box(c);
            Some(2.0 * (SIDE * SIDE * BLOCKS * BLOCK) as f64 * f64::from(rounds))
        }
        _ => {
            let _ = rounds;
            None
        }
    }
}

/// Some k of a product: a panel of A with one of B.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Section {
    /// Pairs of bf16 along k, or groups of bytes: 32 rows.
    pub a: *const u32,
    /// The same: row p has those of 32 columns for pair p. Rows follow each other.
    pub b: *const u32,
}

impl Section {
    /// No memory.
    pub(crate) const NONE: Self = Self { a: std::ptr::null(), b: std::ptr::null() };
}

/// A unit that multiplies panels of pairs. The value is a token: owning it proves that the machine has the unit.
///
/// # Safety
/// An implementation must only be constructible where its instructions exist.
pub(crate) unsafe trait MatrixUnit: Copy + Send + Sync {
    /// State of a thread that uses the unit.
    type Configured;

    /// Makes the unit usable by this thread, until the value is dropped.
    fn configure(self) -> Self::Configured;

    /// C\[32, 32\] = C + Σ A · B over sections of `blocks` times [`BLOCK`] terms, in order; C is zero before unless `add`.
    ///
    /// # Safety
    /// This thread holds `configure`'s value. For each section, `a` is valid for reading 32 rows of 16 · `blocks` pairs,
    /// `lda` pairs apart, and `b` for 16 · `blocks` rows of 32 pairs. `c` is valid for reading and writing 32 rows of 32
    /// floats, `ldc` apart.
    unsafe fn multiply(self, sections: &[Section], blocks: usize, lda: usize, c: *mut f32, ldc: usize, add: bool);

    /// C\[32, 32\] = A · B of bytes, four neighboring k in a group where [`multiply`](Self::multiply) has a pair: those of A
    /// are unsigned, those of B signed, and the sums i32 modulo 2^32. A block has 16 groups.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply), for i32 and one section.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    unsafe fn multiply_bytes(self, section: Section, blocks: usize, lda: usize, c: *mut i32, ldc: usize);
}

/// Groups of a block: pairs of bf16, or four bytes.
pub(crate) const GROUPS: usize = 16;
