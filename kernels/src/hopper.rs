//! What all kernels that multiply on Hopper have in common: three warpgroups with roles, and operands of 16 bits.
//!
//! ```text
//! warpgroup 0      the producer: gives registers away, starts copies
//! warpgroups 1, 2  the consumers: take those registers, multiply
//! ```

use crate::operation::{Name, Program};
use ptx::{Bf16x2, Entry, F16x2, Lane, Module, Pair, Reg, Sm, Storage, U32};

/// Threads of a warpgroup.
pub(crate) const WARPGROUP: u32 = 128;
/// Threads of a block, of which a multiprocessor has one.
pub(crate) const THREADS: u32 = 3 * WARPGROUP;
/// Registers of a thread when the kernel begins: what 384 threads can have.
const REGISTERS: u32 = 168;
/// Registers of a thread of the producer's warpgroup.
const PRODUCER_REGISTERS: u32 = 24;
/// Registers of a thread of a consumer.
const CONSUMER_REGISTERS: u32 = 240;

/// A kernel that is written once for both types of 16 bits.
pub(crate) trait Body {
    /// Writes it for operands of `P`.
    fn write<P: Pair>(&self, k: &Entry);
}

/// The program called `name`, which comes down to these machine instructions.
pub(crate) fn program(name: Name, storage: Storage, body: &impl Body, machine: &'static [&'static str]) -> Program {
    let mut module = Module::new(Sm::Sm90a);
    module.entry(&name.entry(), [THREADS, 1, 1], |k| {
        k.min_ctas_per_sm(1);
        match storage {
            Storage::F16 => body.write::<F16x2>(k),
            _ => body.write::<Bf16x2>(k),
        }
    });
    Program::new(name, &module, REGISTERS).requiring(machine)
}

/// The number of the warp.
pub(crate) fn warp_number(k: &Entry, thread: Reg<U32>) -> Reg<U32> {
    k.comment("the same for all lanes, so that roles are whole warps");
    k.shfl(k.shr(thread, 5), Lane::Number(0))
}

/// What the two roles do; `warp` is the number of the warp in the block.
pub(crate) fn roles(k: &Entry, warp: Reg<U32>, producer: impl FnOnce(), consumers: impl FnOnce()) {
    k.if_else(
        k.lt(warp, WARPGROUP / 32),
        || {
            k.comment("the producer");
            k.setmaxnreg_dec(PRODUCER_REGISTERS);
            producer();
        },
        || {
            k.comment("the consumers");
            k.setmaxnreg_inc(CONSUMER_REGISTERS);
            consumers();
        },
    );
}
