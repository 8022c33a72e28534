//! Programmatic dependent launch: accesses before `griddepcontrol.wait`, and blocks without it.

use super::*;

const WAIT: &str = "griddepcontrol.wait;";
const COPY: &str = "mad.wide.u32 %d1, %t, 4, %x; ld.global.u32 %r1, [%d1]; st.global.u32 [%own], %r1;";

#[test]
fn each_thread_waits_for_earlier_kernels_before_it_accesses_global_memory() {
    let good = format!("{WAIT} {COPY} griddepcontrol.launch_dependents;");
    block::<64>(&good).gives(64, |i| 3 * i + 1);
    // A kernel without the instruction starts after the previous one, whether it releases the next one early or not.
    block::<64>(&good.replace(WAIT, "")).gives(64, |i| 3 * i + 1);
    // Planted: the wait after the load; in the other lanes, warp or role; and a barrier behind a thread that has waited.
    let message = block::<64>(&format!("{COPY} {WAIT}")).found(FindingKind::Dependency);
    assert!(message.contains("`ld.global.u32` accesses global memory before its thread executes"), "{message}");
    for (lanes, rest) in [("%t, 1", ""), ("%t, 32", ""), ("%warp, 1", ""), ("%t, 1", "bar.sync 0;")] {
        let part = format!("setp.lt.u32 %p0, {lanes}; @%p0 {WAIT} {rest} {COPY}");
        block::<64>(&part).found(FindingKind::Dependency);
    }
    block::<64>(&format!("setp.lt.u32 %p0, %t, 32; @%p0 bra $a; {WAIT} {COPY} bra $b; $a: {WAIT} {COPY} $b:")).agree();
    block::<64>(&format!("setp.lt.u32 %p0, %t, 32; @%p0 bra $a; {WAIT} {COPY} bra $b; $a: {COPY} $b:"))
        .found(FindingKind::Dependency);
}

#[test]
fn every_way_to_global_memory_waits() {
    let module = ".global .u32 count;";
    for access in [
        "st.u32 [%own], %t;",
        "mov.u64 %d2, count; red.global.add.u32 [%d2], 1;",
        "cp.async.cg.shared.global [%r9], [%x], 16; cp.async.wait_all;",
        "cp.async.bulk.global.shared::cta.bulk_group [%y], [%r9], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
    ] {
        let text = |first: &str, then: &str| {
            let fill = "mov.u32 %r1, 7; st.shared.v4.u32 [%r9], {%r1, %r1, %r1, %r1}; fence.proxy.async;";
            let tile = ".shared .align 128 .b8 tile[128]; mov.u32 %r9, tile;";
            block::<1>(&format!("{tile} {fill} {first} {access} {then}")).on(1, module)
        };
        text(WAIT, "").agree();
        text("", WAIT).found(FindingKind::Dependency);
    }
    // Shared memory and parameters are the kernel's own, and prefetches return nothing.
    let own = ".shared .b32 tile[64]; mov.u32 %r9, tile; st.shared.u32 [%r9], %t; ld.param.u64 %d2, [x]; prefetch.global.L2 [%x];";
    block::<1>(&format!("{own} {WAIT} {COPY}")).agree();
}

#[test]
fn a_block_that_ends_without_the_wait_is_found() {
    // One thread of a block is enough: the next kernel then starts after all blocks, and so after the kernels before this one.
    let of =
        |condition: &str| format!("mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, {condition}; @%p0 bra $end; {WAIT} $end:");
    block::<64>(&of("%t, 5")).on(2, "").agree();
    let message = block::<64>(&of("%r1, 1")).on(2, "").found(FindingKind::Dependency);
    assert!(message.contains("ends a block of which no thread has executed") && message.contains("block [1, 0, 0]"));
}
