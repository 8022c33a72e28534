//! The definition of the module in plain Rust.

use super::{GROUPS, MatrixUnit, SIDE, Section};

/// Token of the emulated unit; available on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emulated;

/// Zero of the same sign if `x` is denormal.
#[inline(always)]
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// a · b + c, rounded once and flushed; `a` and `b` are bf16 and, like `c`, not denormal.
#[inline(always)]
pub(super) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let sum = a.mul_add(b, c);
    // Whether a result is tiny is decided by its magnitude rounded to 24 bits without bound on the exponent: a sum just below
    // 2^-126 rounds up to it in f32 and is tiny nevertheless.
    if sum.abs() == f32::MIN_POSITIVE && is_below_normal(a, b, c) {
        return 0f32.copysign(sum);
    }
    flush(sum)
}

/// True if |a · b + c|, which rounds to 2^-126 in f32, is below it when rounded to 24 bits with any exponent.
#[cold]
fn is_below_normal(a: f32, b: f32, c: f32) -> bool {
    const SCALE: f64 = (1u64 << 60) as f64;
    // Exact in f64: c is a multiple of 2^-149, and a · b has 16 bits, which end above 2^-178 unless it is too small to matter.
    let exact = f64::from(a).mul_add(f64::from(b), f64::from(c));
    // Scaled by 2^60 the rounding to 24 bits is that of a normal f32.
    (((exact * SCALE) as f32).abs() as f64) < f64::from(f32::MIN_POSITIVE) * SCALE
}

/// a + b, flushed. A sum of f32 that is tiny is exact, so it is tiny before rounding too.
#[inline(always)]
pub(super) fn add(a: f32, b: f32) -> f32 {
    flush(a + b)
}

/// The bf16 of a pair, the one of even k first.
#[inline(always)]
pub(super) fn halves(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// C + the sum over a block of pairs.
#[inline(always)]
pub(super) fn block(c: f32, pairs: impl Iterator<Item = (u32, u32)>) -> f32 {
    let mut chains = [0f32; 2];
    for (a, b) in pairs {
        let (a, b) = (halves(a), halves(b));
        for (half, chain) in chains.iter_mut().enumerate() {
            *chain = fma(flush(a[half]), flush(b[half]), *chain);
        }
    }
    add(flush(c), add(chains[0], chains[1]))
}

// SAFETY: needs no special instructions.
unsafe impl MatrixUnit for Emulated {
    type Configured = ();

    fn configure(self) {}

    unsafe fn multiply(self, sections: &[Section], blocks: usize, lda: usize, c: *mut f32, ldc: usize, add: bool) {
        for i in 0..SIDE {
            for j in 0..SIDE {
                // SAFETY: the caller guarantees 32 x 32 elements of C, and the pairs of each section.
                unsafe {
                    let c = c.add(i * ldc + j);
                    let mut sum = if add { c.read() } else { 0.0 };
                    for section in sections {
                        for first in (0..blocks).map(|block| block * GROUPS) {
                            let pair = |p: usize| (*section.a.add(i * lda + p), *section.b.add(p * SIDE + j));
                            sum = block(sum, (first..first + GROUPS).map(pair));
                        }
                    }
                    c.write(sum);
                }
            }
        }
    }

    unsafe fn multiply_bytes(self, section: Section, blocks: usize, lda: usize, c: *mut i32, ldc: usize) {
        for i in 0..SIDE {
            for j in 0..SIDE {
                // SAFETY: the caller guarantees 32 x 32 elements of C, and the groups of the section.
                unsafe {
                    let product = |p: usize| {
                        let (a, b) = (*section.a.add(i * lda + p), *section.b.add(p * SIDE + j));
                        let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
                        products.map(|(a, b)| i32::from(a) * i32::from(b as i8)).sum::<i32>()
                    };
                    c.add(i * ldc + j).write((0..blocks * GROUPS).map(product).fold(0, i32::wrapping_add));
                }
            }
        }
    }
}
