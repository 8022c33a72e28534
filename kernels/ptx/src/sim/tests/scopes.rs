//! Scopes: each synchronization with a scope that is too narrow, next to its twin whose scope reaches far enough.

use super::*;

/// Thread 0 of block 0 writes y[0] and raises a flag; thread 0 of block 1 waits for the flag, reads y[0] and writes
/// y[64]. `{scope}` in the four parts is what stands in for them.
fn handshake(store: &str, before: &str, load: &str, after: &str) -> Trial {
    block::<1>(&format!(
        "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 1; @%p0 bra $take;\n\
         mov.u32 %r2, 77; st.global.u32 [%y], %r2; mov.u32 %r3, 1; {before} {store}.global.u32 [flag], %r3; ret;\n\
         $take: {load}.global.u32 %r4, [flag]; setp.eq.u32 %p1, %r4, 0; @%p1 bra $take; {after}\n\
         ld.global.u32 %r5, [%y]; st.global.u32 [%y+256], %r5;"
    ))
    .on(2, ".global .u32 flag;")
}

#[test]
fn a_release_and_an_acquire_between_blocks_need_a_scope_that_holds_both() {
    let pair = |store, load| handshake(&format!("st.release.{store}"), "", &format!("ld.acquire.{load}"), "");
    for (store, load) in [("gpu", "gpu"), ("sys", "gpu"), ("gpu", "sys"), ("sys", "sys")] {
        assert_eq!(pair(store, load).agree()[64], 77, "{store} {load}");
    }
    for (store, load, narrow) in
        [("cta", "gpu", "st.release.cta"), ("gpu", "cta", "ld.acquire.cta"), ("cluster", "sys", "st.release.cluster")]
    {
        let message = pair(store, load).races();
        let scope = narrow.rsplit('.').next().expect("a scope");
        let named = message.contains(narrow) && message.contains(&format!("{scope}, does not reach other blocks"));
        assert!(named, "{store} {load}: {message}");
    }
}

#[test]
fn a_fence_between_blocks_needs_a_scope_that_holds_both() {
    let fenced = |before: &str, after: &str| handshake("st.relaxed.gpu", before, "ld.relaxed.gpu", after);
    for (before, after) in [
        ("membar.gl;", "membar.gl;"),
        ("membar.sys;", "membar.gl;"),
        ("fence.acq_rel.gpu;", "fence.sc.sys;"),
        ("fence.release.gpu;", "fence.acquire.gpu;"),
        // The wide fence counts whatever comes after it.
        ("membar.gl; membar.cta;", "membar.cta; membar.gl;"),
    ] {
        assert_eq!(fenced(before, after).agree()[64], 77, "{before} {after}");
    }
    for (before, after, narrow, scope) in [
        ("membar.cta;", "membar.gl;", "membar.cta", "cta"),
        ("membar.gl;", "membar.cta;", "membar.cta", "cta"),
        ("fence.acq_rel.cluster;", "fence.acq_rel.gpu;", "fence.acq_rel.cluster", "cluster"),
        ("fence.sc.gpu;", "fence.sc.cta;", "fence.sc.cta", "cta"),
    ] {
        let message = fenced(before, after).races();
        let named = message.contains(&format!("`{narrow}`")) && message.contains(&format!("its scope, {scope}"));
        assert!(named, "{before} {after}: {message}");
    }
    // An acquire does not release, nor a release acquire.
    fenced("fence.acquire.gpu;", "membar.gl;").races();
    fenced("membar.gl;", "fence.release.gpu;").races();
}

#[test]
fn atomic_operations_of_two_blocks_need_a_scope_that_holds_both() {
    let count = |form: &str, blocks: u32, then: &str| {
        block::<32>(&format!("{form}.global.add.u32 [counter], 1; {then}")).on(blocks, ".global .u32 counter;")
    };
    for form in ["red", "red.gpu", "red.relaxed.sys", "red.release.gpu"] {
        count(form, 2, "").agree();
    }
    for form in ["red.cta", "red.relaxed.cluster", "red.release.cta"] {
        // Within a block the narrow scope is enough.
        count(form, 1, "st.global.u32 [%own], %t;").gives(32, |t| t);
        let message = count(form, 2, "").races();
        let scope = if form.contains("cluster") { "cluster" } else { "cta" };
        assert!(message.contains(&format!("{scope}, does not reach other blocks; use gpu")), "{form}: {message}");
    }
}

/// Two warps of one block, one of which hands a value to the other.
fn within_a_block(scope: &str, space: &str) -> Trial {
    let (flag, at) = if space == "global" { ("", "flag") } else { (".shared .u32 mine;", "mine") };
    block::<64>(&format!(
        "{flag} setp.ne.u32 %p3, %lane, 0; setp.eq.u32 %p0, %t, 0; mov.u32 %r7, 0;\n\
         @%p0 st.relaxed.{scope}.{space}.u32 [{at}], %r7; bar.sync 0; @%p3 ret; setp.eq.u32 %p0, %warp, 1; @%p0 bra $take;\n\
         mov.u32 %r2, 77; st.global.u32 [%y], %r2; mov.u32 %r3, 1; st.release.{scope}.{space}.u32 [{at}], %r3; ret;\n\
         $take: ld.acquire.{scope}.{space}.u32 %r4, [{at}]; setp.eq.u32 %p1, %r4, 0; @%p1 bra $take;\n\
         ld.global.u32 %r5, [%y]; st.global.u32 [%y+256], %r5;"
    ))
    .on(1, ".global .u32 flag;")
}

#[test]
fn within_a_block_the_narrowest_scope_is_enough() {
    for scope in ["cta", "cluster", "gpu", "sys"] {
        for space in ["global", "shared"] {
            assert_eq!(within_a_block(scope, space).agree()[64], 77, "{scope} {space}");
            let Trial { body, module, .. } = within_a_block(scope, space);
            block::<64>(&body.replace("st.release", "st.relaxed")).on(1, &module).races();
        }
    }
    // A wide release and a narrow acquire, and the other way round.
    for (from, to) in [("st.release.cta", "st.release.gpu"), ("ld.acquire.cta", "ld.acquire.sys")] {
        let mut mixed = within_a_block("cta", "global");
        mixed.body = mixed.body.replace(from, to);
        assert_eq!(mixed.agree()[64], 77, "{to}");
    }
}

#[test]
fn order_is_passed_on_by_synchronizations_of_any_scope() {
    // Warp 0 of block 0 signals its warp 1 (cta), which signals warp 0 of block 1 (gpu), which signals its warp 1
    // (cta).
    let trial = |inner: &str, outer: &str| {
        block::<64>(&format!(
            "setp.ne.u32 %p3, %lane, 0; @%p3 ret; mov.u32 %r1, %ctaid.x; mov.u32 %r3, 1; setp.eq.u32 %p0, %r1, 1; @%p0 bra $other;\n\
             setp.eq.u32 %p1, %warp, 1; @%p1 bra $pass; mov.u32 %r2, 77; st.global.u32 [%y], %r2;\n\
             st.release.{inner}.global.u32 [first], %r3; ret;\n\
             $pass: ld.acquire.{inner}.global.u32 %r4, [first]; setp.eq.u32 %p2, %r4, 0; @%p2 bra $pass;\n\
             st.release.{outer}.global.u32 [second], %r3; ret;\n\
             $other: setp.eq.u32 %p1, %warp, 1; @%p1 bra $last;\n\
             $get: ld.acquire.{outer}.global.u32 %r4, [second]; setp.eq.u32 %p2, %r4, 0; @%p2 bra $get;\n\
             st.release.{inner}.global.u32 [third], %r3; ret;\n\
             $last: ld.acquire.{inner}.global.u32 %r4, [third]; setp.eq.u32 %p2, %r4, 0; @%p2 bra $last;\n\
             ld.global.u32 %r5, [%y]; st.global.u32 [%y+256], %r5;"
        ))
        .on(2, ".global .u32 first, second, third;")
    };
    assert_eq!(trial("cta", "gpu").agree()[64], 77);
    trial("gpu", "cta").races();
}

#[test]
fn a_race_behind_a_barrier_names_the_narrow_scope_of_the_thread_that_synchronized() {
    // Thread 0 of block 1 waits, then a barrier, then another warp reads what block 0 has written.
    let mut trial = block::<64>(
        "mov.u32 %r1, %ctaid.x; setp.ne.u32 %p3, %t, 0; setp.eq.u32 %p0, %r1, 1; @%p0 bra $take; @%p3 ret;\n\
         mov.u32 %r2, 77; st.global.u32 [%y], %r2; mov.u32 %r3, 1; membar.cta; st.volatile.global.u32 [flag], %r3; ret;\n\
         $take: @%p3 bra $meet;\n$wait: ld.volatile.global.u32 %r4, [flag]; setp.eq.u32 %p1, %r4, 0; @%p1 bra $wait; membar.gl;\n\
         $meet: bar.sync 0; setp.ne.u32 %p2, %t, 32; @%p2 ret; ld.global.u32 %r5, [%y]; st.global.u32 [%y+256], %r5;",
    )
    .on(2, ".global .u32 flag;");
    let message = trial.races();
    assert!(message.contains("`membar.cta`") && message.contains("its scope, cta"), "{message}");
    trial.body = trial.body.replace("membar.cta", "membar.gl");
    assert_eq!(trial.agree()[64], 77);
}

#[test]
fn a_scope_or_a_cluster_that_an_instruction_cannot_have_is_refused() {
    for line in [
        "ld.acquire.global.u32 %r1, [%x];",
        "ld.weak.gpu.global.u32 %r1, [%x];",
        "st.release.block.global.u32 [%y], %t;",
        "membar.gpu;",
        "membar.cluster;",
        "fence.acq_rel;",
        "fence.sc.cta.gpu;",
        "mbarrier.arrive.release.gpu.shared.b64 _, [%r1];",
        "mbarrier.init.shared::cluster.b64 [%r1], 1;",
        "mbarrier.try_wait.parity.shared::cluster.b64 %p1, [%r1], 0;",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 16, [%r4];",
    ] {
        let error = refused(&block::<32>(line).text());
        assert!(error.contains("is not known"), "{line}: {error}");
    }
}
