//! Philox4x32: random numbers as a pure function of a counter and a key.
//!
//! Rounds of multiply, swap and xor over a 128-bit counter under a 64-bit key (Salmon, Moraes, Dror, Shaw, "Parallel
//! Random Numbers: As Easy as 1, 2, 3", SC 2011): [`ROUNDS`] by default. Seven rounds, Philox4x32-7, pass the same
//! statistical tests (BigCrush, section 5 there) without a margin; dropout, which draws most of all numbers, uses them.
//! No state: dropout, masking and initialization are drawn from (seed, what for, where), so they are the same for any
//! number of threads, recomputed instead of stored, and resumed by knowing the step alone.

/// First multiplier of a round.
pub const M0: u32 = 0xD251_1F53;
/// Second multiplier of a round.
pub const M1: u32 = 0xCD9E_8D57;
/// Increment of the first key word each round.
pub const W0: u32 = 0x9E37_79B9;
/// Increment of the second key word each round.
pub const W1: u32 = 0xBB67_AE85;
/// Number of rounds of [`philox4x32`].
pub const ROUNDS: usize = 10;

/// The four 32-bit words of Philox4x32-10 for `counter` under `key`.
#[inline]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox4x32_rounds::<ROUNDS>(counter, key)
}

/// The four 32-bit words of Philox4x32-N for `counter` under `key`.
#[inline]
pub fn philox4x32_rounds<const N: usize>(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..N {
        let p0 = u64::from(M0) * u64::from(c0);
        let p1 = u64::from(M1) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(W0);
        k1 = k1.wrapping_add(W1);
    }
    [c0, c1, c2, c3]
}

/// A sequential reader of one Philox stream, for code that draws a few numbers for one item.
///
/// The key is the seed; the upper three counter words name the stream (what the numbers are for and which item they
/// belong to), the lowest counts blocks of four words. Two streams with different names share no number.
#[derive(Clone, Debug)]
pub struct Stream {
    key: [u32; 2],
    name: [u32; 3],
    block: u32,
    words: [u32; 4],
    used: usize,
}

impl Stream {
    /// The stream called `name` under `seed`.
    pub fn new(seed: u64, name: [u32; 3]) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], name, block: 0, words: [0; 4], used: 4 }
    }

    /// The next 32 random bits.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            let [n0, n1, n2] = self.name;
            self.words = philox4x32([self.block, n0, n1, n2], self.key);
            self.block = self.block.checked_add(1).expect("a Philox stream holds 2^34 words");
            self.used = 0;
        }
        self.used += 1;
        self.words[self.used - 1]
    }

    /// A uniform number in [0, 1) with 24 bits.
    #[inline]
    pub fn next_f32(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// A uniform number in [0, 1) with 53 bits.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        let (hi, lo) = (u64::from(self.next_u32()), u64::from(self.next_u32()));
        ((hi << 32 | lo) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A uniform integer in [0, n), without bias (Lemire's method with rejection). Panics if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u32) -> u32 {
        assert!(n > 0, "n is 0; expected at least 1");
        let reject = n.wrapping_neg() % n;
        loop {
            let product = u64::from(self.next_u32()) * u64::from(n);
            if product as u32 >= reject {
                return (product >> 32) as u32;
            }
        }
    }

    /// A standard normal number (Box-Muller, f64 inside).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.next_f64())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.next_f64())
    }

    /// Shuffles `items` (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(u32::try_from(i + 1).expect("fewer than 2^32 items")) as usize;
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the authors' Random123 distribution (`kat_vectors`, philox4x32 10 and 7).
    #[test]
    fn gives_the_published_answers() {
        let seven = philox4x32_rounds::<7>;
        assert_eq!(seven([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(seven([u32::MAX; 4], [u32::MAX; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        assert_eq!(
            seven([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]
        );
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn below_is_uniform() {
        let mut stream = Stream::new(7, [1, 2, 3]);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[stream.below(7) as usize] += 1;
        }
        // Chi-square with 6 degrees of freedom: 22.5 is the 0.1 % point.
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi < 22.5, "counts {counts:?}, chi-square {chi}");
    }
}
