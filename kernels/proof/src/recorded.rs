//! Data of the inputs of a case, and the recorded bits of its outputs.

use kernels::Element;
use kernels::num::philox::Stream;

/// Values of the inputs of a case.
///
/// They replace the floating-point inputs only; labels, ids, offsets and the elements that a case sets to a special value
/// are the same for all data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The inputs of the check, uniformly distributed.
    Uniform,
    /// The inputs of the check times 2^-130.
    Subnormal,
    /// The inputs of the check times 2^100.
    Huge,
    /// The inputs of the check with a NaN in every 97 elements.
    NotANumber,
    /// The inputs of the check with an infinity of alternating sign in every 97 elements.
    Infinite,
}

impl Data {
    /// All data.
    pub const ALL: [Self; 5] = [Self::Uniform, Self::Subnormal, Self::Huge, Self::NotANumber, Self::Infinite];

    /// Name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Subnormal => "subnormal",
            Self::Huge => "huge",
            Self::NotANumber => "nan",
            Self::Infinite => "infinite",
        }
    }

    /// `len` random elements in [-scale, scale), determined by the seed, rounded to storage and turned into this data.
    pub(crate) fn uniform<X: Element>(self, seed: u64, len: usize, scale: f32) -> Vec<X> {
        let mut stream = Stream::new(seed, [0x6368_6563, 0, 0]);
        self.alter(seed, (0..len).map(|_| X::from_f32(scale * (2.0 * stream.next_f32() - 1.0))).collect())
    }

    /// Turns the elements of a check, drawn with `seed`, into this data. The seed selects the elements that are not finite,
    /// so that operands have them at different indices.
    pub(crate) fn alter<X: Element>(self, seed: u64, mut elements: Vec<X>) -> Vec<X> {
        let scale = |factor: f32, elements: &mut [X]| {
            elements.iter_mut().for_each(|x| *x = X::from_f32(x.to_f32() * factor));
        };
        let replaced = elements.iter_mut().enumerate().skip(seed as usize % 97).step_by(97);
        match self {
            Self::Uniform => {}
            // 2^-130 and 2^100.
            Self::Subnormal => scale(f32::from_bits(1 << 19), &mut elements),
            Self::Huge => scale(f32::from_bits((127 + 100) << 23), &mut elements),
            Self::NotANumber => replaced.for_each(|(_, x)| *x = X::from_f32(f32::NAN)),
            Self::Infinite => replaced.for_each(|(i, x)| {
                let sign = if (i as u64 / 97 + seed).is_multiple_of(2) { 1.0 } else { -1.0 };
                *x = X::from_f32(sign * f32::INFINITY);
            }),
        }
        elements
    }
}

impl std::fmt::Display for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Output of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Name, such as `y` or `dweight`. A case that runs twice has two outputs of each name.
    pub name: String,
    /// Bits of the elements: one word for f32, for bf16 (widened) and for u32, two words for f64, the lower first. Every NaN
    /// is the positive quiet one without payload, because the instruction sets differ in sign and payload.
    pub bits: Vec<u32>,
    /// Words of an element.
    pub words: usize,
}

impl Output {
    /// Output of f32 or bf16.
    pub fn new<X: Element>(name: &str, elements: &[X]) -> Self {
        let bits = |x: &X| {
            let x = x.to_f32();
            if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
        };
        Self::of_u32(name, elements.iter().map(bits).collect())
    }

    /// Output of u32.
    pub fn of_u32(name: &str, bits: Vec<u32>) -> Self {
        Self { name: name.to_string(), bits, words: 1 }
    }

    /// Output of f64.
    pub fn of_f64(name: &str, elements: &[f64]) -> Self {
        let words = |x: &f64| {
            let bits = if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() };
            [bits as u32, (bits >> 32) as u32]
        };
        Self { words: 2, ..Self::of_u32(name, elements.iter().flat_map(words).collect()) }
    }

    /// FNV-1a over the little-endian bytes: the same on every platform and in every version.
    pub fn hash(&self) -> u64 {
        fnv_1a(FNV_START, self.bits.iter().flat_map(|word| word.to_le_bytes()))
    }
}

/// FNV-1a hash of no bytes.
pub const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a hash of the bytes behind `hash` and `bytes`.
pub fn fnv_1a(hash: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
