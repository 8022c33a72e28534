//! Sequences that move bf16 in and out of float registers.
//!
//! A bf16 is the upper half of the float with the same value, so widening is a shift and is exact on every target;
//! `cvt.f32.bf16` would need sm_90 for the same result.

use super::{B16, B32, Bf16x2, Entry, F32, Reg};

impl Entry {
    /// The f32 of a bf16. Three instructions.
    #[track_caller]
    pub fn widen_bf16(&self, value: Reg<B16>) -> Reg<F32> {
        self.reinterpret(self.shl(self.cvt_u32_u16(value), 16))
    }

    /// The two f32 of a pair, the one at the lower address first. Five instructions.
    #[track_caller]
    pub fn widen_bf16x2(&self, pair: Reg<Bf16x2>) -> [Reg<F32>; 2] {
        let bits: Reg<B32> = self.reinterpret(pair);
        [self.reinterpret(self.shl(bits, 16)), self.reinterpret(self.and(bits, 0xFFFF_0000u32))]
    }
}
