//! Code shared by the kernels with `wgmma` on Hopper: roles of the three warpgroups, operands of 16 bits.
//!
//! ```text
//! warpgroup 0      the producer: releases registers, starts copies
//! warpgroups 1, 2  the consumers: take over those registers, multiply
//! ```

use crate::program::{Name, Program};
use ptx::{Bf16x2, Entry, F16x2, Lane, Module, Pair, Reg, Sm, Storage, U32};

/// Threads of a warpgroup.
pub(crate) const WARPGROUP: u32 = 128;
/// Threads of a block; one block is resident per multiprocessor.
pub(crate) const THREADS: u32 = 3 * WARPGROUP;
/// Registers of a thread at launch: the maximum for 384 threads.
const REGISTERS: u32 = 168;
/// Registers of a thread of the producer's warpgroup.
const PRODUCER_REGISTERS: u32 = 24;
/// Registers of a thread of a consumer.
const CONSUMER_REGISTERS: u32 = 240;

/// Kernel body, generic over the 16-bit types.
pub(crate) trait Body {
    /// Emits the body for operands of type `P`.
    fn write<P: Pair>(&self, k: &Entry);
}

/// Emits the program `name`; its SASS must contain the instructions `required_sass`.
pub(crate) fn program(
    name: Name,
    storage: Storage,
    body: &impl Body,
    required_sass: &'static [&'static str],
) -> Program {
    let mut module = Module::new(Sm::Sm90a);
    module.entry(&name.entry(), [THREADS, 1, 1], |k| {
        k.min_ctas_per_sm(1);
        match storage {
            Storage::F16 => body.write::<F16x2>(k),
            _ => body.write::<Bf16x2>(k),
        }
    });
    Program::new(name, &module, REGISTERS).requiring(required_sass)
}

/// Index of the warp in the block, uniform over its lanes.
pub(crate) fn warp_number(k: &Entry, thread: Reg<U32>) -> Reg<U32> {
    k.comment("the same for all lanes, so that roles are whole warps");
    k.shfl(k.shr(thread, 5), Lane::Number(0))
}

/// Emits the branches of the two roles; `warp` is the index of the warp in the block.
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
