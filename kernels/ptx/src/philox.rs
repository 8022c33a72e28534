//! Philox4x32 in integer instructions: the same words as [`albert_num::philox`].

use super::{Entry, Reg, U32};
use albert_num::philox::{M0, M1, W0, W1};

/// The keys of all rounds, which every counter of a thread shares.
#[derive(Clone, Debug)]
pub struct PhiloxKey<const ROUNDS: usize>([[Reg<U32>; 2]; ROUNDS]);

impl Entry {
    /// The keys of all rounds: two instructions a round.
    #[track_caller]
    pub fn philox_key<const ROUNDS: usize>(&self, key: [Reg<U32>; 2]) -> PhiloxKey<ROUNDS> {
        let mut keys = [key; ROUNDS];
        for round in 1..ROUNDS {
            let [k0, k1] = keys[round - 1];
            keys[round] = [self.add(k0, W0), self.add(k1, W1)];
        }
        PhiloxKey(keys)
    }

    /// The four words for `counter`: six instructions a round, which the driver's assembler fuses to four (a 64-bit
    /// product is one, and so is an exclusive or of three).
    #[track_caller]
    pub fn philox4x32<const ROUNDS: usize>(&self, counter: [Reg<U32>; 4], key: &PhiloxKey<ROUNDS>) -> [Reg<U32>; 4] {
        const XOR3: u8 = 0x96;
        let [mut c0, mut c1, mut c2, mut c3] = counter;
        for [k0, k1] in key.0 {
            let [high0, low0] = [self.mul_hi(c0, M0), self.mul_lo(c0, M0)];
            let [high1, low1] = [self.mul_hi(c2, M1), self.mul_lo(c2, M1)];
            (c0, c1, c2, c3) = (self.lop3(high1, c1, k0, XOR3), low1, self.lop3(high0, c3, k1, XOR3), low0);
        }
        [c0, c1, c2, c3]
    }
}
