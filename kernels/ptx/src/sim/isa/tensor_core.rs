//! Sums of the tensor cores, D = A·B + C, in the bits of the device.
//!
//! A tensor core multiplies L pairs of elements, aligns the products and C to the largest of their exponents, cuts each
//! below F fraction bits, adds them exactly, and cuts the sum to f32. With L = 3 and F = 7:
//!
//! ```text
//!                         F fraction bits
//! x0 · y0  = +        1.0 1 1 0 0 0 1|                 has the largest exponent
//! x1 · y1  = -      1 1.0 1 0 0 1 0 0|                 a product is below 4: up to two bits before the point
//! x2 · y2  = +          0 0 1 1.0 1 1|0 1 1            smaller by four bits; the last three are cut
//! C        = -        0.1 0 0 0 0 0 0|0 0 0 0 1        of its 24 bits the last ones are cut
//!            ----------------------------
//! sum      = -      1 0.0 0 1 1 0 0 0                  an integer of units 2^-F, with room for carries
//! D                                                    its upper 24 bits
//! ```
//!
//! Everything is cut toward zero. K is more than L, so that D is C of the next block. The exponent of a product is the sum
//! of the exponent *fields* of its operands, also where the product of the mantissas reaches 2. A subnormal operand has the
//! exponent of the smallest normal number, and a product or a C of zero has none. A NaN, infinity minus infinity and zero
//! times infinity give the NaN 0x7FFFFFFF. [`sum`] is this rule, and [`multiply`] computes the same bits for 16 rows and 8
//! columns at a time.
//!
//! | instruction and elements | F | L | D | source |
//! |---|--:|--:|---|---|
//! | Hopper: `mma` and `wgmma`, bf16 and f16 | 25 | 16 | 24 bits | recorded |
//! | Hopper: tf32 | 25 | 8 | 24 bits | `mma` recorded, `wgmma` not |
//! | Hopper: `wgmma`, e4m3 and e5m2 | 13 | 32 | upper 14 of the 24 bits | recorded |
//! | Hopper: `mma`, e4m3 and e5m2 | 25 | 16 | 24 bits; rounded to nearest where C is added | recorded |
//! | Ampere: bf16 and f16 | 24 | 8 | 24 bits | published for an A100 (Fasi et al. 2021, PeerJ CS 7:e330), not recorded |
//! | Ampere: tf32 | 24 | 4 | 24 bits | as above |
//!
//! Hopper has no 8-bit `mma`: the elements are converted to f16 and multiplied in two blocks from zero, the even pairs along
//! K and then the odd ones, and C is added in f32. Sums in f16, whose rule is not known, are those of f32, rounded.
//!
//! Recorded: on an H200 each instruction ran on random tiles of ten kinds (normal, exponents ±10 and ±40, cancelling,
//! subnormal, infinite and NaN, integers, large C, one large element, raw bits). F, L, the alignment and the rounding were
//! varied until every one of 1,062,400 elements agreed. `sim/tests/tensor_cores.rs` repeats that with a sample, on which
//! every change of the rule shows.

use super::Type;
use half::f16;

/// Added to the exponent of a product with a zero: below every exponent, so that it is never the largest.
const ZERO: i16 = -4000;
/// Exponent of an infinity or a NaN: the largest, even of a product with a zero.
const SPECIAL: i16 = 12_000;
/// Exponents of finite products other than zero are between -`FINITE` and `FINITE`.
const FINITE: i16 = 1000;

/// Generation of the tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorCore {
    /// `sm_80` to `sm_89`
    Ampere,
    /// `sm_90`, `sm_90a`
    Hopper,
    /// By the rule of Hopper.
    Later,
}

impl TensorCore {
    /// The generation of a module's `.target`.
    pub(crate) fn of_target(target: &str) -> Self {
        let number = target.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic);
        match number.parse::<u32>() {
            Ok(..90) => TensorCore::Ampere,
            Ok(90) => TensorCore::Hopper,
            _ => TensorCore::Later,
        }
    }
}

/// Constants of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Fraction bits of the aligned terms, F; at most 25.
    fraction_bits: i16,
    /// Products that are added at a time, L.
    block: usize,
    /// Fraction bits of a sum, R.
    result_bits: i16,
}

impl Rule {
    /// The rule of `mma` for elements of type `ty`; those of 8 bits are multiplied as f16.
    pub(crate) fn mma(core: TensorCore, ty: Type) -> Self {
        let (fraction_bits, block) = if core == TensorCore::Ampere { (24, 8) } else { (25, 16) };
        Rule { fraction_bits, block: if ty == Type::Tf32 { block / 2 } else { block }, result_bits: 23 }
    }

    /// The rule of `wgmma`, which is on Hopper alone.
    pub(crate) fn wgmma(ty: Type) -> Self {
        match ty {
            Type::E4m3 | Type::E5m2 => Rule { fraction_bits: 13, block: 32, result_bits: 13 },
            _ => Rule::mma(TensorCore::Hopper, ty),
        }
    }
}

/// A value, and the exponent with which it is aligned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Term {
    value: f64,
    exponent: i16,
}

impl Term {
    /// The element of type `ty` with these bits, without the upper ones.
    #[inline(always)]
    pub(crate) fn of(bits: u32, ty: Type) -> Self {
        match ty {
            Type::F16 => Term::narrow(bits, 5, 10, 0x7C00),
            Type::E5m2 => Term::narrow(bits, 5, 2, 0x7C),
            Type::E4m3 => Term::narrow(bits, 4, 3, 0x7F),
            Type::Bf16 => Term::of_f32(f32::from_bits(bits << 16)),
            // The lower 13 bits are not looked at.
            _ => Term::of_f32(f32::from_bits(bits & !0x1FFF)),
        }
    }

    #[inline]
    fn of_f32(x: f32) -> Self {
        Term { value: f64::from(x), exponent: aligned(x.to_bits() & 0x7FFF_FFFF, 23, 127, 0x7F80_0000) }
    }

    /// A type with a smaller exponent than f32; magnitudes from `special` on are not finite.
    #[inline(always)]
    fn narrow(bits: u32, exponent_bits: u32, mantissa_bits: u32, special: u32) -> Self {
        let (width, bias) = (exponent_bits + mantissa_bits, (1 << (exponent_bits - 1)) - 1);
        let (sign, magnitude) = (bits >> width << 31, bits & ((1 << width) - 1));
        // As an f32 whose exponent is 127 - bias too small; that of infinity and NaN is the largest.
        let largest = if magnitude >= special { 0xFF << 23 } else { 0 };
        let wide = f32::from_bits(sign | magnitude << (23 - mantissa_bits) | largest);
        let exponent = aligned(magnitude, mantissa_bits, bias, special);
        Term { value: f64::from(wide) * power(127 - bias), exponent }
    }
}

/// The exponent of an element by its bits without the sign.
#[inline]
fn aligned(magnitude: u32, mantissa_bits: u32, bias: i16, special: u32) -> i16 {
    let finite = ((magnitude >> mantissa_bits) as i16).max(1) - bias;
    let exponent = if magnitude == 0 { ZERO } else { finite };
    if magnitude >= special { SPECIAL } else { exponent }
}

/// 2^exponent
#[inline]
fn power(exponent: i16) -> f64 {
    f64::from_bits(((1023 + i64::from(exponent)) as u64) << 52)
}

/// Sum of the products of one block and C, the rule itself.
#[cold]
fn sum(rule: Rule, terms: impl Iterator<Item = Term> + Clone) -> f32 {
    let largest = terms.clone().map(|term| term.exponent).max().unwrap_or(ZERO);
    if largest > FINITE {
        // Infinite, or NaN for a NaN, infinity minus infinity and infinity times zero; finite terms do not change it.
        return terms.map(|term| term.value).sum::<f64>() as f32;
    }
    if largest < -FINITE {
        return 0.0;
    }
    // f64 is exact here: a term is an integer below 2^27 once it is cut.
    let unit = power(largest - rule.fraction_bits);
    let total: f64 = terms.map(|term| (term.value / unit).trunc()).sum();
    // A sum of negative zeros is zero.
    cut((total + 0.0) * unit, rule.result_bits)
}

/// Rounds toward zero to the fraction bits of a number or of the smallest normal one; from 2^128 on to infinity.
fn cut(x: f64, fraction_bits: i16) -> f32 {
    let exponent = (x.to_bits() >> 52 & 0x7FF) as i16 - 1023;
    let unit = power(exponent.max(-126) - fraction_bits);
    ((x / unit).trunc() * unit) as f32
}

/// The bits of an element of type `ty`, converted to f16. Its exponent is another one if it is subnormal.
pub(crate) fn to_f16(bits: u32, ty: Type) -> u32 {
    f16::from_f64(Term::of(bits, ty).value).to_bits().into()
}

/// Values and exponents of elements of type `ty`.
#[inline]
fn decode<const N: usize>(bits: &[u32; N], ty: Type, values: &mut [f64; N], exponents: &mut [i16; N]) {
    // A loop for each type has vector instructions.
    match ty {
        Type::F16 => decode_by(|bits| Term::of(bits, Type::F16), bits, values, exponents),
        Type::Bf16 => decode_by(|bits| Term::of(bits, Type::Bf16), bits, values, exponents),
        _ => decode_by(|bits| Term::of(bits, ty), bits, values, exponents),
    }
}

#[inline]
fn decode_by<const N: usize>(
    of: impl Fn(u32) -> Term,
    bits: &[u32; N],
    values: &mut [f64; N],
    exponents: &mut [i16; N],
) {
    for ((bits, value), exponent) in bits.iter().zip(values).zip(exponents) {
        Term { value: *value, exponent: *exponent } = of(*bits);
    }
}

/// D elements along K of 16 rows of A.
#[derive(Clone, Debug)]
pub(crate) struct Rows<const D: usize> {
    values: [[f64; D]; 16],
    exponents: [[i16; D]; 16],
}

impl<const D: usize> Rows<D> {
    pub(crate) fn of(bits: &[[u32; D]; 16], ty: Type) -> Self {
        let mut rows = Rows { values: [[0.0; D]; 16], exponents: [[0; D]; 16] };
        for (row, bits) in bits.iter().enumerate() {
            decode(bits, ty, &mut rows.values[row], &mut rows.exponents[row]);
        }
        rows
    }

    /// Changes the sign of every element.
    pub(crate) fn negate(&mut self) {
        self.values.iter_mut().flatten().for_each(|value| *value = -*value);
    }
}

/// D elements along K of 8 columns of B.
#[derive(Clone, Debug)]
pub(crate) struct Columns<const D: usize> {
    values: [[f64; 8]; D],
    /// `BELOW_HALF` with the sign of a product by a positive and by a negative element.
    below: [[[f64; 8]; D]; 2],
    exponents: [[i16; 8]; D],
}

impl<const D: usize> Columns<D> {
    pub(crate) fn of(bits: &[[u32; 8]; D], ty: Type) -> Self {
        let mut columns = Columns { values: [[0.0; 8]; D], below: [[[0.0; 8]; D]; 2], exponents: [[0; 8]; D] };
        for (k, bits) in bits.iter().enumerate() {
            decode(bits, ty, &mut columns.values[k], &mut columns.exponents[k]);
            columns.below[0][k] = columns.values[k].map(|value| BELOW_HALF.copysign(value));
            columns.below[1][k] = columns.values[k].map(|value| BELOW_HALF.copysign(-value));
        }
        columns
    }
}

/// Accumulators of 16 rows and 8 columns.
pub(crate) type Tile = [[f32; 8]; 16];

/// C += A·B for `depth` elements along K, behind which there are zeros.
pub(crate) fn multiply<const D: usize>(rule: Rule, depth: usize, a: &Rows<D>, b: &Columns<D>, c: &mut Tile) {
    match rule.block {
        4 => multiply_blocks::<4, D>(rule, depth, a, b, c),
        8 => multiply_blocks::<8, D>(rule, depth, a, b, c),
        16 => multiply_blocks::<16, D>(rule, depth, a, b, c),
        _ => multiply_blocks::<32, D>(rule, depth, a, b, c),
    }
}

/// Blocks of L products.
fn multiply_blocks<const L: usize, const D: usize>(
    rule: Rule,
    depth: usize,
    a: &Rows<D>,
    b: &Columns<D>,
    c: &mut Tile,
) {
    for at in 0..depth.div_ceil(L) {
        let columns = Block::<L> {
            values: &b.values.as_chunks().0[at],
            below: [&b.below[0].as_chunks().0[at], &b.below[1].as_chunks().0[at]],
            exponents: &b.exponents.as_chunks().0[at],
        };
        for ((values, exponents), c) in a.values.iter().zip(&a.exponents).zip(c.iter_mut()) {
            add_row(rule, &values.as_chunks().0[at], &exponents.as_chunks().0[at], columns, c);
        }
    }
}

/// Elements of one block of [`Columns`].
#[derive(Clone, Copy)]
struct Block<'a, const L: usize> {
    values: &'a [[f64; 8]; L],
    below: [&'a [[f64; 8]; L]; 2],
    exponents: &'a [[i16; 8]; L],
}

/// 1.5 · 2^52: f64 has no fraction bits from there on, so adding it rounds to the nearest integer, and the low bits of the
/// result are that integer.
const INTEGERS: f64 = 6_755_399_441_055_744.0;
/// x - `BELOW_HALF` rounded to nearest is x ≥ 0 cut to an integer, if x has at most 24 significant bits.
const BELOW_HALF: f64 = 0.5 - 1.0 / (1 << 25) as f64;

/// Terms with this exponent or a larger one have no sum that is a subnormal number of f32, with 25 fraction bits.
const REGULAR: i16 = 25 - 126;

/// [`sum`] for a row of A and eight columns of B, in operations that have vector instructions on every CPU.
#[expect(clippy::needless_range_loop, reason = "the compiler vectorizes iterators over K instead of over columns")]
#[inline]
fn add_row<const L: usize>(rule: Rule, x: &[f64; L], exponents: &[i16; L], b: Block<'_, L>, c: &mut [f32; 8]) {
    let before = *c;
    let mut largest = before.map(|c| Term::of_f32(c).exponent);
    for k in 0..L {
        for j in 0..8 {
            largest[j] = largest[j].max(exponents[k] + b.exponents[k][j]);
        }
    }
    // Each term adds the bits of `INTEGERS`; all but one of them are subtracted here.
    let surplus = INTEGERS.to_bits().wrapping_mul(L as u64);
    let aligned = largest.map(|largest| largest.max(REGULAR));
    let scale = aligned.map(|largest| power(rule.fraction_bits - largest));
    let mut total: [u64; 8] = std::array::from_fn(|j| {
        let c = f64::from(before[j]);
        (c * scale[j] - BELOW_HALF.copysign(c) + INTEGERS).to_bits().wrapping_sub(surplus)
    });
    for k in 0..L {
        let below = &b.below[usize::from(x[k].is_sign_negative())][k];
        for j in 0..8 {
            let integer = x[k] * b.values[k][j] * scale[j] - below[j] + INTEGERS;
            total[j] = total[j].wrapping_add(integer.to_bits());
        }
    }
    let kept = u64::MAX << (52 - rule.result_bits);
    for j in 0..8 {
        let value = (f64::from_bits(total[j]) - INTEGERS) * power(aligned[j] - rule.fraction_bits);
        c[j] = f64::from_bits(value.to_bits() & kept) as f32;
    }
    // Finite without subnormal results, or nothing but zeros.
    let is_regular = |largest: i16| (largest <= FINITE) & !(-FINITE..REGULAR).contains(&largest);
    if !largest.iter().fold(true, |all, largest| all & is_regular(*largest)) {
        for j in (0..8).filter(|j| !is_regular(largest[*j])) {
            let of = |k: usize| Term { value: x[k] * b.values[k][j], exponent: exponents[k] + b.exponents[k][j] };
            c[j] = sum(rule, (0..L).map(of).chain([Term::of_f32(before[j])]));
        }
    }
}
