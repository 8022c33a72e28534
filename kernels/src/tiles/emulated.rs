//! The definition of the module in plain Rust.

use super::{GROUPS, MatrixUnit, SIDE, Section};

/// Token of the emulated unit; available on every machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emulated;

/// Zero of the same sign if `x` is denormal.
#[inline(always)]
pub(super) fn flush(x: f32) -> f32 {
    // Without a branch, so that loops over columns vectorize.
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
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

/// a + b, flushed. A sum of f32 that is tiny is exact, so it is also tiny before rounding.
#[inline(always)]
pub(super) fn add_flushed(a: f32, b: f32) -> f32 {
    flush(a + b)
}

/// The bf16 of a pair, the one of even k first.
#[inline(always)]
pub(super) fn halves(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// Multiply-adds of N columns: chain = a · b + chain.
#[inline(always)]
pub(super) fn step<const N: usize>(a: f32, b: &[f32; N], chain: &mut [f32; N]) {
    let old = *chain;
    let mut has_least = false;
    for j in 0..N {
        let sum = a.mul_add(b[j], old[j]);
        has_least |= sum.abs() == f32::MIN_POSITIVE;
        chain[j] = flush(sum);
    }
    // Such a sum may be tiny: again, one by one.
    if has_least {
        for j in 0..N {
            chain[j] = fma(a, b[j], old[j]);
        }
    }
}

// SAFETY: needs no special instructions.
unsafe impl MatrixUnit for Emulated {
    type Configured = ();

    fn configure(self) {}

    #[inline(always)]
    unsafe fn multiply(self, sections: &[Section], blocks: usize, lda: usize, c: *mut f32, ldc: usize, add: bool) {
        for i in 0..SIDE {
            // SAFETY: the caller guarantees 32 x 32 elements of C, and the pairs of each section.
            unsafe {
                let c = c.add(i * ldc).cast::<[f32; SIDE]>();
                let mut sums = if add { c.read_unaligned() } else { [0.0; SIDE] };
                for section in sections {
                    for first in (0..blocks).map(|block| block * GROUPS) {
                        let [mut even, mut odd] = [[0f32; SIDE]; 2];
                        for p in first..first + GROUPS {
                            let pair = section.b.add(p * SIDE).cast::<[u32; SIDE]>().read_unaligned();
                            let [mut b0, mut b1] = [[0f32; SIDE]; 2];
                            for j in 0..SIDE {
                                let [even, odd] = halves(pair[j]);
                                (b0[j], b1[j]) = (flush(even), flush(odd));
                            }
                            let [a0, a1] = halves(*section.a.add(i * lda + p));
                            step(flush(a0), &b0, &mut even);
                            step(flush(a1), &b1, &mut odd);
                        }
                        for j in 0..SIDE {
                            sums[j] = add_flushed(flush(sums[j]), add_flushed(even[j], odd[j]));
                        }
                    }
                }
                c.write_unaligned(sums);
            }
        }
    }

    #[inline(always)]
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
