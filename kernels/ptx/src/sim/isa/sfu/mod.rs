//! Special function unit of a Hopper GPU: `ex2`, `rcp`, `rsqrt`, `lg2` and `tanh` in f32, bit by bit.
//!
//! # The unit
//!
//! All five functions share one datapath, a table look-up with quadratic interpolation in fixed point (Oberman and Siu,
//! *A High-Performance Area-Efficient Multifunction Interpolator*, 2005):
//!
//! ```text
//!           23 bits of the fraction
//!          ┌─────────┬──────────────┐
//!          │ segment │      xl      │             sum = C0·2^a + C1·xl·2^b + C2·xl²·2^c + bias
//!          └────┬────┴──────┬───────┘
//!            tables      squarer                 result = sum, truncated to 24 bits
//!          C0, C1, C2      xl²
//! ```
//!
//! 1. The upper bits of the fraction select one of 64 segments of the function (128 for `rcp`; 64 for each of [1, 2) and
//!    [2, 4) for `rsqrt`) and its row of three integers: C0 of 26, C1 of 16 and C2 of 10 bits with a sign that belongs
//!    to the function. The rows of `tanh` are in units of 2^-24; its octaves have 1 to 16 segments each.
//! 2. The lower 17 bits (16 for `rcp`, shifted left by one) are `xl`.
//! 3. The squarer drops the columns below 2^19 of its partial products, so that xl² has 15 bits ([`squared`]). Its error
//!    of up to 2^-12.5 of the full scale is why a parabola alone does not reproduce the device.
//! 4. The products are exact. [`Table`] has the shifts that align them and the constant that centers the error.
//! 5. The sum is truncated to 24 significant bits. Nothing is rounded to nearest.
//!
//! # Range reduction
//!
//! | function | fraction | result |
//! |---|---|---|
//! | `ex2` | x in fixed point with 23 bits below the point, truncated; negative ones as one's complement unless the low 23 bits are zero | 2^k·sum, k the bits above the point |
//! | `rcp` | fraction of x | 2^-e·sum |
//! | `rsqrt` | fraction of x, lowest bit of the exponent | 2^-⌊e/2⌋·sum; exact at powers of four |
//! | `lg2` | fraction of x | e + sum in 36 bits below the point; negative ones as one's complement; 0 at 1 |
//! | `tanh` | fraction of x, in each octave of [2^-8, 8) | sum; x below, 1 above |
//!
//! `.ftz` reads subnormal numbers as zero and writes results below 2^-126 as zero. Without it the compiler scales:
//! `ex2` of x < -126 is ex2(x/2)²; `rcp` is s·rcp(s·x) with s = 2^24 for subnormal x and s = 1/4 from 2^126 up. Both
//! round once more, to nearest. `rsqrt` and `lg2` scale subnormal x by 2^24.
//!
//! # How it was found
//!
//! One GPU recorded the results of each function for all 2^23 fractions. With a row's C1 and C2 from a least-squares
//! fit, rounded to integers, each result bounds xl² from both sides, and the bounds of all segments together show the
//! squarer's output bit by bit. With that squarer each segment has exactly one solution in integers. Source:
//! `examples/sfu.rs`, which derives `tables.rs` from recordings and compares the functions with all of them, including
//! a checksum over all 2^32 inputs.

mod tables;

use tables::{EX2_ROWS, LG2_ROWS, RCP_ROWS, RSQRT_ROWS, TANH_ROWS};

const NAN: u32 = 0x7FFF_FFFF;
const INFINITY: u32 = 0x7F80_0000;
const ONE: u32 = 0x3F80_0000;
const SIGN: u32 = 0x8000_0000;
const FRACTION: u32 = 0x007F_FFFF;

/// Coefficients of one function and the alignment of its products.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// C0, C1 and C2 of each segment.
    pub rows: &'static [[i32; 3]],
    /// Left shifts of C0, C1·xl and C2·xl².
    pub shifts: [u32; 3],
    /// Constant of the sum.
    pub bias: i64,
    /// Weight of the sum's lowest bit, as a power of two.
    pub unit: i32,
}

/// 2^x for x in [0, 1).
pub const EX2: Table = Table { rows: &EX2_ROWS, shifts: [14, 1, 1], bias: 12_228, unit: -39 };
/// 1/x for x in [1, 2).
pub const RCP: Table = Table { rows: &RCP_ROWS, shifts: [14, 0, 1], bias: 4_046, unit: -40 };
/// 1/√x for x in [1, 4).
pub const RSQRT: Table = Table { rows: &RSQRT_ROWS, shifts: [14, 0, 2], bias: -1, unit: -40 };
/// log₂ x for x in [1, 2).
pub const LG2: Table = Table { rows: &LG2_ROWS, shifts: [14, 2, 3], bias: 3_348, unit: -40 };
/// tanh x for x in [2^-8, 8); [`tanh_segment`] numbers the segments.
pub const TANH: Table = Table { rows: &TANH_ROWS, shifts: [17, 0, 2], bias: 0, unit: -41 };

impl Table {
    /// The interpolated value of a segment, in units of [`Table::unit`].
    #[inline(always)]
    fn sum(&self, segment: u32, xl: u32) -> i64 {
        let [c0, c1, c2] = self.rows[segment as usize];
        let [constant, linear, quadratic] = self.shifts;
        let products = [i64::from(c1) * i64::from(xl), i64::from(c2) * i64::from(squared(xl))];
        (i64::from(c0) << constant) + (products[0] << linear) + (products[1] << quadratic) + self.bias
    }
}

/// xl²/2^19 as the squarer computes it, for xl below 2^17.
///
/// Of the partial products 2^(i+k+1) of bits k < i and 2^(2i) of each bit, those below 2^19 are dropped. That leaves the
/// exact square of the upper seven bits, and for each of them a product with the lower ten bits, truncated on its own.
#[inline(always)]
pub fn squared(xl: u32) -> u32 {
    let (upper, lower) = (xl >> 10 & 0x7F, xl & 0x3FF);
    // The seven products are bytes of one word, which takes half the time of seven shifts.
    let products = LOWER[lower as usize] & UPPER[upper as usize];
    let pairs = (products & 0x00FF_00FF_00FF_00FF) + (products >> 8 & 0x00FF_00FF_00FF_00FF);
    2 * upper * upper + (pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48) as u32
}

/// Byte i: the lower ten bits times bit i of the upper ones, truncated.
static LOWER: [u64; 1024] = {
    let mut words = [0; 1024];
    let mut at = 0;
    while at < 7 * 1024 {
        let (lower, i) = (at / 7, at % 7);
        words[lower] |= (lower as u64 >> (8 - i)) << (8 * i);
        at += 1;
    }
    words
};

/// Byte i: ones if bit i is set.
static UPPER: [u64; 128] = {
    let mut words = [0; 128];
    let mut at = 0;
    while at < 7 * 128 {
        let (upper, i) = (at / 7, at % 7);
        words[upper] |= ((upper as u64 >> i & 1) * 0xFF) << (8 * i);
        at += 1;
    }
    words
};

/// The float sum·2^scale, truncated to 24 bits; zero below 2^-126.
#[inline]
fn float(sum: u64, scale: i32) -> u32 {
    let zeros = sum.leading_zeros();
    let exponent = 190 - zeros.cast_signed() + scale;
    if exponent <= 0 { 0 } else { ((exponent - 1).cast_unsigned() << 23) + (sum << zeros >> 40) as u32 }
}

/// Sign, biased exponent and fraction.
#[inline]
fn fields(x: u32) -> (u32, u32, u32) {
    (x & SIGN, x >> 23 & 0xFF, x & FRACTION)
}

/// `ex2.approx.f32` of the bits of a float.
pub fn ex2(x: u32, ftz: bool) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match exponent {
        0 => return ONE,
        255 if fraction != 0 => return NAN,
        134.. if sign == 0 => return INFINITY,
        134.. if ftz || exponent > 134 => return 0,
        _ => {}
    }
    let value = f32::from_bits(x);
    if !ftz && value < -126.0 {
        let root = f32::from_bits(ex2((0.5 * value).to_bits(), true));
        return (root * root).to_bits();
    }
    let significand = fraction | 1 << 23;
    let fixed = match exponent {
        127.. => significand << (exponent - 127),
        _ => significand.checked_shr(127 - exponent).unwrap_or(0),
    };
    let fixed = match sign {
        0 => fixed,
        _ if fixed & FRACTION == 0 => fixed.wrapping_neg(),
        _ => !fixed,
    };
    let sum = EX2.sum(fixed >> 17 & 0x3F, fixed & 0x1_FFFF);
    float(sum.cast_unsigned(), (fixed.cast_signed() >> 23) + EX2.unit)
}

/// `rcp.approx.f32` of the bits of a float.
pub fn rcp(x: u32, ftz: bool) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    let scale: f32 = match exponent {
        255 => return if fraction != 0 { NAN } else { sign },
        0 if ftz || fraction == 0 => return sign | INFINITY,
        0 => 16_777_216.0,
        253.. if !ftz => 0.25,
        _ => {
            let sum = RCP.sum(fraction >> 16, (fraction & 0xFFFF) << 1);
            return sign | float(sum.cast_unsigned(), 127 - exponent.cast_signed() + RCP.unit);
        }
    };
    let y = f32::from_bits(rcp((scale * f32::from_bits(x)).to_bits(), true));
    (scale * y).to_bits()
}

/// `rsqrt.approx.f32` of the bits of a float.
pub fn rsqrt(x: u32, ftz: bool) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match exponent {
        0 if ftz || fraction == 0 => return sign | INFINITY,
        255 if fraction != 0 => return NAN,
        _ if sign != 0 => return NAN,
        255 => return 0,
        0 => {
            let y = f32::from_bits(rsqrt((16_777_216.0 * f32::from_bits(x)).to_bits(), true));
            return (4_096.0 * y).to_bits();
        }
        _ => {}
    }
    let (half, odd) = ((exponent.cast_signed() - 127) >> 1, (exponent + 1) & 1);
    if odd == 0 && fraction == 0 {
        return (127 - half).cast_unsigned() << 23;
    }
    let sum = RSQRT.sum(odd << 6 | fraction >> 17, fraction & 0x1_FFFF);
    float(sum.cast_unsigned(), RSQRT.unit - half)
}

/// Low bits of the sum that `lg2` drops before it adds the exponent: 36 stay below the point.
const LG2_DROPPED: u32 = 4;

/// `lg2.approx.f32` of the bits of a float.
pub fn lg2(x: u32, ftz: bool) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match exponent {
        0 if ftz || fraction == 0 => return SIGN | INFINITY,
        255 if fraction != 0 => return NAN,
        _ if sign != 0 => return NAN,
        255 => return INFINITY,
        0 => return (f32::from_bits(lg2((16_777_216.0 * f32::from_bits(x)).to_bits(), true)) - 24.0).to_bits(),
        _ if x == ONE => return 0,
        _ => {}
    }
    let fraction = LG2.sum(fraction >> 17, fraction & 0x1_FFFF) >> LG2_DROPPED;
    let unit = LG2.unit + LG2_DROPPED.cast_signed();
    let sum = ((i64::from(exponent) - 127) << -unit) + fraction;
    if sum < 0 { SIGN | float((!sum).cast_unsigned(), unit) } else { float(sum.cast_unsigned(), unit) }
}

/// Exponent of the first octave of [`TANH`].
const FIRST_OCTAVE: u32 = 119;
/// Number of the first segment of each octave, and the bits of the fraction that select a segment in it.
const OCTAVES: [(u32, u32); 11] =
    [(0, 0), (1, 0), (2, 0), (3, 1), (5, 1), (7, 2), (11, 2), (15, 2), (19, 3), (27, 4), (43, 3)];

/// Segment and xl of `tanh`, in [2^-8, 8).
#[inline]
pub fn tanh_segment(x: u32) -> Option<(u32, u32)> {
    let (_, exponent, fraction) = fields(x);
    let (first, bits) = *OCTAVES.get(exponent.checked_sub(FIRST_OCTAVE)? as usize)?;
    Some((first + (fraction >> (23 - bits)), fraction >> (6 - bits) & 0x1_FFFF))
}

/// `tanh.approx.f32` of the bits of a float.
pub fn tanh(x: u32) -> u32 {
    let (sign, exponent, fraction) = fields(x);
    match tanh_segment(x) {
        Some((segment, xl)) => sign | float(TANH.sum(segment, xl).cast_unsigned(), TANH.unit),
        None if exponent < FIRST_OCTAVE => x,
        None if exponent == 255 && fraction != 0 => NAN,
        None => sign | ONE,
    }
}
