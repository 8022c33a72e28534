//! Code shared by the kernels with `wgmma` on Hopper: roles of the warpgroups, operands of 16 bits.
//!
//! ```text
//! warpgroup 0           the producer: releases registers, starts copies
//! warpgroups 1, 2, [3]  the consumers: take over those registers, multiply
//! ```
//!
//! Programmatic dependent launch: a kernel may start before the previous one is complete. Its prologue, up to [`roles`], reads
//! parameters alone: it prefetches tensor maps and initializes mbarriers. Then every thread waits until the previous kernel is
//! complete. All earlier kernels are then also complete: the previous one has waited for them in each block, or started after them.
//! Operands are not loaded before, not even weights: the optimizer writes them, and a kernel does not know its predecessor.
//! The producer lets the next kernel start after its last load. A block takes the registers of a whole multiprocessor, so a block
//! of the next kernel starts where none of this one is left, and multiprocessors get one each.

use crate::program::{Name, Program};
use ptx::{Bf16x2, BytesParam, Compare, Entry, F16x2, Lane, Module, Pair, Reg, Sm, Storage, U32};

/// Threads of a warpgroup.
pub(crate) const WARPGROUP: u32 = 128;
/// Consumer warpgroups of most kernels.
pub(crate) const CONSUMERS: u32 = 2;
/// Threads of a block of those kernels; one block is resident per multiprocessor.
pub(crate) const THREADS: u32 = threads(CONSUMERS);

/// Threads of a block with `consumers` consumer warpgroups.
pub(crate) const fn threads(consumers: u32) -> u32 {
    (1 + consumers) * WARPGROUP
}

/// Registers of a thread: the maximum at launch, those of the producer's warpgroup and those of a consumer.
const fn registers(consumers: u32) -> [u32; 3] {
    match consumers {
        CONSUMERS => [168, 24, 240],
        _ => [128, 32, 160],
    }
}

/// Kernel body, generic over the 16-bit types.
pub(crate) trait Body {
    /// Consumer warpgroups: two or three.
    fn consumers(&self) -> u32 {
        CONSUMERS
    }

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
    module.entry(&name.entry(), [threads(body.consumers()), 1, 1], |k| {
        k.min_ctas_per_sm(1);
        match storage {
            Storage::F16 => body.write::<F16x2>(k),
            _ => body.write::<Bf16x2>(k),
        }
    });
    Program::new(name, &module, registers(body.consumers())[0]).requiring(required_sass)
}

/// Index of the warp in the block, uniform over its lanes.
pub(crate) fn warp_number(k: &Entry, thread: Reg<U32>) -> Reg<U32> {
    k.comment("the same for all lanes, so that roles are whole warps");
    k.shfl(k.shr(thread, 5), Lane::Number(0))
}

/// Prefetches tensor maps; run by one thread.
pub(crate) fn prefetch(k: &Entry, maps: &[BytesParam]) {
    maps.iter().for_each(|map| k.prefetch_tensor_map(k.address_of_param(map)));
}

/// Emits the branches of the two roles in a block with `count` consumers, each after the wait for earlier kernels; `warp` is the
/// index of the warp in the block.
pub(crate) fn roles(k: &Entry, warp: Reg<U32>, count: u32, producer: impl FnOnce(), consumers: impl FnOnce()) {
    let [_, of_producer, of_consumer] = registers(count);
    k.if_else(
        k.lt(warp, WARPGROUP / 32),
        || {
            k.comment("the producer");
            k.setmaxnreg_dec(of_producer);
            k.wait_for_earlier_kernels();
            producer();
        },
        || {
            k.comment("the consumers");
            k.setmaxnreg_inc(of_consumer);
            k.wait_for_earlier_kernels();
            consumers();
        },
    );
}

/// Emits `load`, which issues all loads of the block, for one thread of warp 0; then the next kernel may start.
pub(crate) fn producer(k: &Entry, warp: Reg<U32>, load: impl FnOnce()) {
    k.if_(k.setp(Compare::Eq, warp, 0u32), || {
        let one = k.elect();
        k.if_(one, || {
            load();
            k.launch_dependents();
        });
    });
}
