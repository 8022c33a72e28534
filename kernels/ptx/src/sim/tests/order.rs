//! Sources of order, one test a row of the table in `docs/simulator.md`: a program that relies on an instruction that
//! does not order memory, next to its twin with one that does.

use super::{
    races::{TILE, neighbors},
    *,
};

/// Instructions that exchange registers or join lanes, and order no memory.
const EXCHANGES: [&str; 13] = [
    "shfl.sync.idx.b32 %r5, %t, 0, 31, -1;",
    "shfl.sync.up.b32 %r5, %t, 1, 0, -1;",
    "shfl.sync.down.b32 %r5, %t, 1, 31, -1;",
    "shfl.sync.bfly.b32 %r5|%p7, %t, 1, 31, -1;",
    "vote.sync.any.pred %p7, %p7, -1;",
    "vote.sync.all.pred %p7, %p7, -1;",
    "vote.sync.uni.pred %p7, %p7, -1;",
    "vote.sync.ballot.b32 %r5, %p7, -1;",
    "match.any.sync.b32 %r5, %t, -1;",
    "match.all.sync.b32 %r5|%p7, %t, -1;",
    "redux.sync.add.u32 %r5, %t, -1;",
    "elect.sync %r5|%p7, -1;",
    "activemask.b32 %r5;",
];

/// Lanes of a warp diverge at a branch and reconverge.
const DIVERGENCE: &str =
    "setp.lt.u32 %p6, %lane, 16; @%p6 bra $half; mov.u32 %r5, 1; bra $whole; $half: mov.u32 %r5, 2; $whole:";

/// Stores of all lanes, `between`, then loads of other lanes' words: in shared and in global memory.
fn exchanged(between: &str) -> [Trial; 2] {
    let between = format!("setp.eq.u32 %p7, %t, 3; {between}");
    let global = format!(
        "st.global.u32 [%own], %t;\n{between}\nxor.b32 %r2, %t, 1; mad.wide.u32 %d0, %r2, 4, %y; ld.global.u32 %r3, [%d0];\n\
         st.global.u32 [%own+2048], %r3;"
    );
    [neighbors(32, &between), block::<32>(&global)]
}

#[test]
fn exchanges_of_registers_and_reconvergence_order_no_memory() {
    for between in EXCHANGES.into_iter().chain([DIVERGENCE, ""]) {
        for trial in exchanged(between) {
            trial.races();
            trial.converges();
        }
        for trial in exchanged(&format!("{between} bar.warp.sync -1;")) {
            trial.agree();
        }
    }
}

#[test]
fn sides_of_a_branch_race_even_where_convergence_is_assumed() {
    let trial = block::<32>(
        "setp.lt.u32 %p0, %lane, 16; @%p0 bra $low; st.global.u32 [%own], %t; bra $end;\n\
         $low: ld.global.u32 %r1, [%own+64]; st.global.u32 [%own], %r1; $end:",
    );
    trial.finds(&[FindingKind::Race], &Options { assume_convergence: true, ..Options::default() });
}

/// A warp writes, `hand_over` follows in the warp, then another warp waits for an mbarrier of `count` arrivals and
/// reads.
fn two_warps(count: u32, hand_over: &str, wait: &str) -> Trial {
    block::<64>(&format!(
        ".shared .align 8 .b8 bar[16]; mov.u32 %r8, bar; setp.eq.u32 %p0, %t, 0; {TILE}\n\
         @%p0 mbarrier.init.shared.b64 [%r8], {count}; @%p0 mbarrier.init.shared.b64 [%r8+8], 1; bar.sync 0;\n\
         setp.gt.u32 %p1, %t, 31; @%p1 bra $take; st.shared.u32 [%r1], %t; {hand_over} bra $end;\n\
         $take: {wait} sub.u32 %r2, %r1, 128; ld.shared.u32 %r3, [%r2]; st.global.u32 [%own], %r3; $end:"
    ))
}

const WAIT: &str = "$again: mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0; @!%p2 bra $again;";

#[test]
fn one_lane_hands_over_what_it_knows_alone() {
    let arrive = "@%p0 mbarrier.arrive.shared.b64 _, [%r8];";
    for between in EXCHANGES {
        two_warps(1, &format!("setp.eq.u32 %p7, %t, 3; {between} {arrive}"), WAIT).races();
    }
    let elected = "elect.sync %r5|%p7, -1; @%p7 mbarrier.arrive.shared.b64 _, [%r8];";
    two_warps(1, elected, WAIT).races();
    two_warps(1, &format!("bar.warp.sync -1; {elected}"), WAIT).agree();
    two_warps(1, elected, WAIT).converges();
}

#[test]
fn an_arrival_releases_at_its_own_mbarrier() {
    two_warps(32, "mbarrier.arrive.shared.b64 _, [%r8];", WAIT).agree();
    // Lane 31 arrives elsewhere: no thread waits for what it has written.
    let split = "setp.eq.u32 %p3, %lane, 31; add.u32 %r7, %r8, 8; selp.u32 %r7, %r7, %r8, %p3;";
    let apart = format!("{split} mbarrier.arrive.shared.b64 _, [%r7];");
    let message = two_warps(31, &apart, WAIT).races();
    assert!(message.contains("which thread [31, 0, 0]"), "{message}");
    // One mbarrier, whose first phase ends after 16 lanes.
    let (report, _) = two_warps(16, "mbarrier.arrive.shared.b64 _, [%r8];", WAIT).run(&Options::default());
    assert!(!report.has(FindingKind::Barrier), "{:?}", report.findings);
}

#[test]
fn relaxed_arrivals_and_waits_need_fences() {
    let (relaxed, fence) = ("mbarrier.arrive.relaxed.cta.shared.b64 _, [%r8];", "fence.acq_rel.cta;");
    let wait = WAIT.replace("parity.", "parity.relaxed.cta.");
    let arrive = relaxed.replace(".relaxed.cta", "");
    two_warps(32, relaxed, WAIT).races();
    two_warps(32, &format!("{fence} {relaxed}"), WAIT).agree();
    two_warps(32, &arrive, &wait).races();
    two_warps(32, &arrive, &format!("{wait} {fence}")).agree();
    two_warps(32, &format!("{relaxed} {fence}"), WAIT).races();
    two_warps(32, &format!("{fence} {relaxed}"), &format!("{wait} {fence}")).agree();
}

#[test]
fn a_relaxed_arrival_at_the_cluster_needs_a_fence() {
    let cluster = |before: &str, sem: &str, between: &str| {
        let arrive = format!("barrier.cluster.arrive{sem}.aligned; {between}");
        neighbors(64, &format!("{before} {arrive} barrier.cluster.wait.aligned;"))
    };
    cluster("", "", "").agree();
    cluster("", ".release", "").agree();
    cluster("fence.acq_rel.cluster;", ".relaxed", "").agree();
    cluster("", ".relaxed", "").races();
    cluster("fence.acquire.cluster;", ".relaxed", "").races();
    // What comes between arrival and wait is not ordered.
    cluster("", "", "st.shared.u32 [%r1], %t;").races();
}

#[test]
fn an_initialization_is_handed_over_at_the_cluster_by_its_own_fence() {
    let kernel = |fence: &str, sem: &str| {
        block::<64>(&format!(
            ".shared .align 8 .b8 bar[8]; mov.u32 %r8, bar; setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%r8], 64;\n\
             {fence} barrier.cluster.arrive{sem}.aligned; barrier.cluster.wait.aligned;\n\
             mbarrier.arrive.shared.b64 _, [%r8]; st.global.u32 [%own], %t;"
        ))
    };
    kernel("fence.mbarrier_init.release.cluster;", ".relaxed").agree();
    kernel("", "").agree();
    kernel("", ".relaxed").races();
}

#[test]
fn lanes_that_end_without_a_barrier_have_passed_nothing_on() {
    let kernel = |before: &str, barrier: &str| {
        block::<64>(&format!(
            "{TILE} st.shared.u32 [%r1], %t; {before} setp.gt.u32 %p0, %lane, 7; @%p0 ret; {barrier}\n\
             xor.b32 %r2, %r1, 32; ld.shared.u32 %r3, [%r2]; st.global.u32 [%own], %r3;"
        ))
    };
    for barrier in ["bar.warp.sync 0xFF;", "bar.sync 0;"] {
        let message = kernel("", barrier).races();
        assert!(["[8, 0, 0]", "[40, 0, 0]"].iter().any(|thread| message.contains(thread)), "{barrier}: {message}");
        kernel("bar.warp.sync -1;", barrier).agree();
        kernel("", barrier).converges();
    }
    // What the rest of the warp reads together is ordered as before.
    let rest = "setp.gt.u32 %p0, %lane, 7; @%p0 ret; ld.shared.u32 %r3, [%r9]; bar.sync 0; setp.eq.u32 %p1, %t, 32;\n\
        @%p1 st.shared.u32 [%r9], %t; st.global.u32 [%own], %t;";
    let first = "setp.eq.u32 %p2, %t, 0; @%p2 st.shared.u32 [%r9], %t; bar.sync 0;";
    block::<64>(&format!("{TILE} {first} {rest}")).agree();
}

/// Lane 0 of warp 0 writes y[0] and raises a flag; lane 0 of warp 1 waits for it and reads y[0].
fn flagged(write: &str, raise: &str, wait: &str, after: &str) -> Trial {
    block::<64>(&format!(
        "setp.ne.u32 %p3, %lane, 0; @%p3 ret; mov.u32 %r3, 1; mov.u32 %r2, 77; setp.eq.u32 %p0, %warp, 1; @%p0 bra $take;\n\
         {write} {raise} ret;\n\
         $take: {wait} setp.lt.u32 %p1, %r4, 1; @%p1 bra $take; {after}\n\
         ld.global.u32 %r5, [%y]; st.global.u32 [%y+256], %r5;"
    ))
    .on(1, ".global .u32 flag;")
}

const WRITE: &str = "st.global.u32 [%y], %r2;";

#[test]
fn relaxed_flags_need_a_release_and_an_acquire() {
    let (release, acquire) = ("st.release.gpu.global.u32 [flag], %r3;", "ld.acquire.gpu.global.u32 %r4, [flag];");
    let fence = "fence.acq_rel.gpu;";
    for raise in
        ["st.relaxed.gpu.global.u32", "st.volatile.global.u32", "red.relaxed.gpu.global.add.u32", "red.global.add.u32"]
    {
        let raise = format!("{raise} [flag], %r3;");
        flagged(WRITE, &raise, acquire, "").races();
        flagged(WRITE, &format!("{fence} {raise}"), acquire, "").agree();
        // The fence comes before what it should release.
        flagged(fence, &format!("{WRITE} {raise}"), acquire, "").races();
    }
    for wait in [
        "ld.relaxed.gpu.global.u32 %r4, [flag];",
        "ld.volatile.global.u32 %r4, [flag];",
        "atom.global.add.u32 %r4, [flag], 0;",
    ] {
        flagged(WRITE, release, wait, "").races();
        flagged(WRITE, release, wait, fence).agree();
    }
    // A reduction does not acquire, an atomic operation does.
    let relaxed = "ld.relaxed.gpu.global.u32 %r4, [flag];";
    flagged(WRITE, release, relaxed, "red.acq_rel.gpu.global.add.u32 [flag], 1;").races();
    flagged(WRITE, release, relaxed, "atom.acq_rel.gpu.global.add.u32 %r6, [flag], 1;").agree();
    // A release stays one behind a strong store of its thread.
    let twice = format!("{release} mov.u32 %r3, 2; st.relaxed.gpu.global.u32 [flag], %r3;");
    let second = acquire.replace("[flag];", "[flag]; shr.u32 %r4, %r4, 1;");
    flagged(WRITE, &twice, &second, "").agree();
}

#[test]
fn a_fence_releases_what_was_acquired_before_it() {
    // Warp 0 hands y[0] to warp 1, which hands it to warp 2.
    let pass = |first: &str, second: &str| {
        block::<96>(&format!(
            "setp.ne.u32 %p3, %lane, 0; @%p3 ret; mov.u32 %r3, 1; mov.u32 %r2, 77; setp.eq.u32 %p0, %warp, 1; @%p0 bra $pass;\n\
             setp.eq.u32 %p0, %warp, 2; @%p0 bra $take; {WRITE} st.release.gpu.global.u32 [flag], %r3; ret;\n\
             $pass: {first} $in: ld.acquire.gpu.global.u32 %r4, [flag]; setp.eq.u32 %p1, %r4, 0; @%p1 bra $in;\n\
             {second} st.relaxed.gpu.global.u32 [other], %r3; ret;\n\
             $take: ld.acquire.gpu.global.u32 %r4, [other]; setp.eq.u32 %p1, %r4, 0; @%p1 bra $take;\n\
             ld.global.u32 %r5, [%y]; st.global.u32 [%y+256], %r5;"
        ))
        .on(1, ".global .u32 flag; .global .u32 other;")
    };
    pass("", "fence.acq_rel.gpu;").agree();
    pass("fence.acq_rel.gpu;", "").races();
    pass("", "").races();
}

#[test]
fn strong_accesses_of_different_sizes_race() {
    let kernel = |wide: &str, other: &str| {
        block::<64>(&format!(
            "mov.u32 %r2, 1; setp.eq.u32 %p0, %warp, 0; @%p0 bra $a; {other} bra $end; $a: {wide} $end: st.global.u32 [%own], %r2;"
        ))
        .on(1, ".global .align 8 .u64 word;")
    };
    let add = "red.global.add.u32 [word], 1;";
    kernel(add, "ld.relaxed.gpu.global.u32 %r1, [word];").agree();
    kernel(add, "ld.volatile.global.v2.u32 {%r1, %r3}, [word];").agree();
    kernel("red.global.add.noftz.bf16x2 [word], %r2;", "ld.relaxed.gpu.global.u16 %h1, [word+2];").agree();
    let message = kernel(add, "ld.relaxed.gpu.global.u16 %h1, [word];").races();
    assert!(message.contains("different sizes"), "{message}");
    kernel(add, "red.global.add.u64 [word], 1;").races();
}

#[test]
fn lanes_of_an_atomic_operation_have_no_order() {
    let trial = block::<32>(
        "setp.eq.u32 %p0, %lane, 0; @%p0 st.global.u32 [%y+512], %t; atom.acq_rel.gpu.global.add.u32 %r1, [flag], 1;\n\
         setp.eq.u32 %p1, %lane, 1; @%p1 ld.global.u32 %r2, [%y+512]; st.global.u32 [%own], %t;",
    )
    .on(1, ".global .u32 flag;");
    let found = |schedule| trial.run(&Options { schedule, ..Options::default() }).0.has(FindingKind::Race);
    assert!(Schedule::FIVE.into_iter().any(found));
}

#[test]
fn matrices_are_read_and_written_by_all_lanes() {
    let kernel = |before: &str, after: &str| {
        block::<32>(&format!(
            "{TILE} shl.b32 %r2, %t, 4; add.u32 %r2, %r2, %r9; st.shared.v4.u32 [%r2], {{%t, %t, %t, %t}}; {before}\n\
             ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r3, %r4, %r5, %r6}}, [%r2]; {after}\n\
             st.shared.u32 [%r2], %r3; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r2+512], {{%r3}};\n\
             bar.warp.sync -1; ld.shared.u32 %r7, [%r2+512]; st.global.u32 [%own], %r3;"
        ))
    };
    let sync = "bar.warp.sync -1;";
    block::<32>(&kernel(sync, sync).body.replace("ld.shared.u32 %r7, [%r2+512];", "")).agree();
    kernel("", sync).races();
    kernel(sync, "").races();
}

#[test]
fn a_finding_quotes_both_lines_and_races_come_first() {
    // Warp 1 reads what warp 0 has yet to write: uninitialized, because of the race.
    let trial = block::<64>(&format!(
        "{TILE} setp.eq.u32 %p0, %warp, 1; @%p0 bra $read;\nst.shared.u32 [%r1], %t;\nbra $end;\n\
         $read: xor.b32 %r1, %r1, 128;\nld.shared.u32 %r3, [%r1];\nst.global.u32 [%own], %r3; $end:"
    ));
    let (report, _) = trial.run(&Options { schedule: Schedule::Adversarial(1), ..Options::default() });
    let kinds: Vec<FindingKind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Race, FindingKind::Uninitialized]);
    let race = &report.findings[0];
    let other = race.other.as_ref().expect("an earlier access");
    assert_eq!(race.text, "st.shared.u32 [%r1], %t;");
    assert_eq!((other.text.as_str(), other.who.as_str()), ("ld.shared.u32 %r3, [%r1];", "thread [32, 0, 0]"));
    let (text, printed) = (trial.text(), race.to_string());
    let quotes =
        [(race.place.line, 0, &race.text), (other.place.line, 32, &other.text)].map(|(line, thread, quote)| {
            assert_eq!(text.lines().nth(line as usize - 1), Some(quote.as_str()));
            format!("    PTX line {line}, thread [{thread}, 0, 0]: {quote}")
        });
    assert!(printed.lines().skip(1).take(2).eq(quotes), "{printed}");
    // A race takes the place of another kind where there is room for few.
    let few = Options { schedule: Schedule::Adversarial(1), max_findings: 1, ..Options::default() };
    let (report, _) = trial.run(&few);
    assert_eq!((report.findings[0].kind, report.findings.len(), report.dropped), (FindingKind::Race, 1, 1));
}

#[test]
fn a_proxy_fence_covers_the_memory_that_it_names() {
    let kernel = |fence: &str, copy: &str| {
        block::<1>(&format!(
            ".shared .align 8 .b8 bar[8]; mov.u32 %r8, bar; {TILE} mbarrier.init.shared.b64 [%r8], 1; fence.mbarrier_init.release.cluster;\n\
             st.shared.v4.u32 [%r9], {{%t, %t, %t, %t}}; st.global.v4.u32 [%y+512], {{%t, %t, %t, %t}}; {fence} {copy}"
        ))
    };
    let load = "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r8], 16;\n\
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9+64], [%y+512], 16, [%r8];\n\
        $again: mbarrier.try_wait.parity.shared.b64 %p1, [%r8], 0; @!%p1 bra $again;";
    let store = "cp.async.bulk.global.shared::cta.bulk_group [%y+1024], [%r9], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
    for copy in [load, store] {
        kernel("fence.proxy.async;", copy).agree();
        kernel("", copy).found(FindingKind::Proxy);
    }
    kernel("fence.proxy.async.global;", load).agree();
    kernel("fence.proxy.async.shared::cta;", load).found(FindingKind::Proxy);
    kernel("fence.proxy.async.shared::cta;", store).agree();
    kernel("fence.proxy.async.global;", store).found(FindingKind::Proxy);
    // A reduction in bulk and one of a thread are of different proxies.
    let reduce =
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%y+512], [%r9], 16; cp.async.bulk.commit_group;";
    let wait = "cp.async.bulk.wait_group 0;";
    let red = "red.global.add.u32 [%y+512], 1;";
    kernel("fence.proxy.async;", &format!("{reduce} {wait} {red}")).agree();
    kernel("fence.proxy.async;", &format!("{reduce} {red} {wait}")).races();
}

#[test]
fn copies_that_arrive_at_an_mbarrier_need_the_proxy_fence_of_copies() {
    let kernel = |fence: &str| {
        block::<1>(&format!(
            ".shared .align 8 .b8 bar[8]; mov.u32 %r8, bar; {TILE} mbarrier.init.shared.b64 [%r8], 1;\n\
             cp.async.cg.shared.global [%r9], [%x], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%r8];\n\
             $again: mbarrier.try_wait.parity.shared.b64 %p1, [%r8], 0; @!%p1 bra $again; {fence}\n\
             cp.async.bulk.global.shared::cta.bulk_group [%y], [%r9], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
        ))
    };
    kernel("fence.proxy.async;").agree();
    kernel("").found(FindingKind::Proxy);
}
