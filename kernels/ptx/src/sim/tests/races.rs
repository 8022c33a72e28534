//! Order between threads: each defect with a twin that lacks it.

use super::*;

pub(super) const TILE: &str =
    ".shared .align 16 .b8 tile[4096];\n mov.u32 %r9, tile; shl.b32 %r1, %t, 2; add.u32 %r1, %r1, %r9;\n";

/// Every thread writes its word, executes `between`, then reads the next thread's word.
pub(super) fn neighbors(threads: u32, between: &str) -> Trial {
    let next = threads - 1;
    let trial = block::<0>(&format!(
        "{TILE} st.shared.u32 [%r1], %t;\n{between}\nadd.u32 %r2, %t, 1; and.b32 %r2, %r2, {next}; shl.b32 %r2, %r2, 2;\n\
         add.u32 %r2, %r2, %r9; ld.shared.u32 %r3, [%r2]; st.global.u32 [%own], %r3;"
    ));
    Trial { threads, ..trial }
}

#[test]
fn a_barrier_orders_the_warps_of_a_block() {
    for barrier in ["bar.sync 0;", "barrier.sync.aligned 3, 128;"] {
        neighbors(128, barrier).gives(128, |t| (t + 1) % 128);
    }
    let message = neighbors(128, "").races();
    assert!(message.contains("shared memory") && message.contains("nothing orders the two"), "{message}");
    neighbors(128, "bar.warp.sync -1;").races();
    // Two barriers with half of the warps each.
    neighbors(128, "setp.lt.u32 %p0, %t, 64; @%p0 bra $a; bar.sync 1, 64; bra $b; $a: bar.sync 2, 64; $b:").races();
}

#[test]
fn without_a_search_for_races_values_are_the_same() {
    let options = Options { races: false, ..Options::default() };
    let ordered = neighbors(128, "bar.sync 0;");
    assert_eq!(ordered.run(&options).1, ordered.run(&Options::default()).1);
    // What is left is that a thread reads a word before it is written.
    let kinds: Vec<_> = neighbors(128, "").run(&options).0.findings.iter().map(|finding| finding.kind).collect();
    assert!(!kinds.contains(&FindingKind::Race), "{kinds:?}");
}

#[test]
fn a_warp_barrier_orders_the_lanes_of_a_warp() {
    for between in ["bar.warp.sync -1;", "bar.sync 0;"] {
        neighbors(32, between).gives(32, |t| (t + 1) % 32);
    }
    neighbors(32, "").races();
    // Halves of the warp sync for themselves; lane 15 reads what lane 16 writes.
    let halves =
        "setp.lt.u32 %p0, %t, 16; @%p0 bra $a; bar.warp.sync 0xFFFF0000; bra $b; $a: bar.warp.sync 0xFFFF; $b:";
    let message = neighbors(32, halves).races();
    assert!(message.contains("thread [15, 0, 0]") || message.contains("thread [31, 0, 0]"), "{message}");
    let within = block::<32>(&format!(
        "{TILE} st.shared.u32 [%r1], %t; {halves} xor.b32 %r2, %r1, 4; ld.shared.u32 %r3, [%r2]; st.global.u32 [%own], %r3;"
    ));
    within.gives(32, |t| t ^ 1);
}

#[test]
fn reading_before_overwriting_needs_a_barrier_too() {
    let kernel = |between: &str| {
        block::<64>(&format!(
            "{TILE} st.shared.u32 [%r1], %t; bar.sync 0; xor.b32 %r2, %r1, 128; ld.shared.u32 %r3, [%r2];\n{between}\n\
             st.shared.u32 [%r1], %r3; st.global.u32 [%own], %r3;"
        ))
    };
    kernel("bar.sync 0;").gives(64, |t| t ^ 32);
    kernel("").races();
}

#[test]
fn bytes_of_a_word_are_told_apart() {
    let kernel = |shift: u32| {
        block::<64>(&format!(
            "{TILE} shl.b32 %r2, %t, 1; shr.u32 %r2, %r2, {shift}; add.u32 %r2, %r2, %r9; cvt.u16.u32 %h0, %t; st.shared.u16 [%r2], %h0;\n\
             bar.sync 0; ld.shared.u16 %h1, [%r2]; cvt.u32.u16 %r3, %h1; st.global.u32 [%own], %r3;"
        ))
    };
    kernel(0).gives(64, |t| t);
    // Half as far apart, every second address is odd.
    kernel(1).found(FindingKind::Misaligned);
}

#[test]
fn named_barriers_hand_over_from_producers_to_consumers() {
    let kernel = |arrive: &str, wait: &str| {
        block::<64>(&format!(
            "{TILE} setp.gt.u32 %p0, %t, 31; @%p0 bra $consume;\n st.shared.u32 [%r1], %t; {arrive} bra $end;\n\
             $consume: {wait} xor.b32 %r2, %r1, 128; ld.shared.u32 %r3, [%r2]; st.global.u32 [%own], %r3;\n$end:"
        ))
    };
    let words = kernel("bar.arrive 5, 64;", "bar.sync 5, 64;").agree();
    assert_eq!(&words[32..64], (0..32).collect::<Vec<u32>>());
    kernel("", "").races();
    let message = kernel("", "bar.sync 5, 64;").found(FindingKind::Deadlock);
    assert!(
        message.contains("warp 1 waits at barrier 5") && message.contains("barrier 5: 32 of 64 threads"),
        "{message}"
    );
    kernel("bar.arrive 5, 64;", "bar.sync 5, 96;").found(FindingKind::Barrier);
    kernel("bar.arrive 5, 48;", "bar.sync 5, 48;").found(FindingKind::Operand);
}

#[test]
fn reductions_of_a_barrier_give_every_thread_the_result() {
    let body = "setp.lt.u32 %p0, %t, 10; bar.red.popc.u32 %r0, 0, %p0; bar.red.and.pred %p1, 0, %p0; bar.red.or.pred %p2, 0, %p0;\n\
        selp.u32 %r1, 100, 0, %p1; selp.u32 %r2, 1000, 0, %p2; add.u32 %r0, %r0, %r1; add.u32 %r0, %r0, %r2; st.global.u32 [%own], %r0;";
    block::<96>(body).gives(96, |_| 1010);
}

#[test]
fn warps_that_have_ended_are_not_waited_for() {
    let body = "setp.gt.u32 %p0, %t, 63; @%p0 ret; bar.sync 0; st.global.u32 [%own], %t;";
    block::<128>(body).gives(65, |t| if t < 64 { t } else { u32::MAX });
}

#[test]
fn atomic_operations_do_not_race_with_each_other() {
    let body = format!(
        "{TILE} setp.eq.u32 %p0, %t, 0; mov.u32 %r2, 0; @%p0 st.shared.u32 [%r9], %r2; bar.sync 0;\n\
         atom.shared.add.u32 %r3, [%r9], 2; red.shared.max.u32 [%r9], 1; bar.sync 0; ld.shared.u32 %r4, [%r9]; st.global.u32 [%own], %r4;"
    );
    block::<96>(&body).gives(96, |_| 192);
    block::<96>(&body.replace("red.shared.max.u32 [%r9], 1; bar.sync 0;", "")).races();
    block::<96>(&body.replacen("bar.sync 0;", "", 1)).races();
    for (form, wanted) in [
        ("add.u32 %r2, [%own], 5", [12, 7]),
        ("min.s32 %r2, [%own], -3", [u32::MAX - 2, 7]),
        ("and.b32 %r2, [%own], 3", [3, 7]),
        ("xor.b32 %r2, [%own], 2", [5, 7]),
        ("exch.b32 %r2, [%own], 9", [9, 7]),
        ("cas.b32 %r2, [%own], 7, 8", [8, 7]),
        ("cas.b32 %r2, [%own], 6, 8", [7, 7]),
        ("inc.u32 %r2, [%own], 7", [0, 7]),
        ("inc.u32 %r2, [%own], 8", [8, 7]),
        ("dec.u32 %r2, [%own], 5", [5, 7]),
    ] {
        let body =
            format!("mov.u32 %r1, 7; st.global.u32 [%own], %r1; atom.global.{form}; st.global.u32 [%own+2048], %r2;");
        let words = block::<32>(&body).agree();
        assert_eq!([words[0], words[512]], wanted, "{form}");
    }
    let float = "mov.f32 %f0, 0f3F800000; st.global.f32 [%own], %f0; red.global.add.f32 [%own], 0f40000000;";
    assert_eq!(block::<32>(float).agree()[0], 3.0_f32.to_bits());
}

#[test]
fn vectors_are_added_element_by_element() {
    let body = "mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000; mul.wide.u32 %d0, %t, 16; add.u64 %d0, %d0, %y;\n\
        st.global.v4.f32 [%d0], {%f0, %f1, %f0, %f1}; red.global.add.v4.f32 [%d0], {%f1, %f1, %f0, %f0};\n\
        atom.global.add.noftz.bf16x2 %r1, [%d0+8], 0x3F803F80; atom.global.add.v2.f32 {%f2, %f3}, [%d0], {%f0, %f0};\n\
        ld.global.v2.f32 {%f4, %f5}, [%d0]; add.f32 %f4, %f4, %f2; add.f32 %f5, %f5, %f3; st.global.v2.f32 [%d0], {%f4, %f5};";
    let words = block::<32>(body).agree();
    let [a, b] = [words[0], words[1]].map(f32::from_bits);
    assert_eq!([a, b], [4.0 + 3.0, 5.0 + 4.0]);
    // 2.0f is the pair (0, 2) of bf16, and (1, 1) is added to it.
    assert_eq!(words[2], 0x4040_3F80);
    assert_eq!(words[3], 3.0_f32.to_bits());
}

/// The last block to arrive adds up what the others have left.
fn last_block(before: &str, order: &str, after: &str) -> Trial {
    block::<1>(&format!(
        "mov.u32 %r1, %ctaid.x; mad.wide.u32 %d0, %r1, 4, %y; add.u32 %r2, %r1, 10; st.global.u32 [%d0], %r2;\n\
         {before} atom.{order}global.inc.u32 %r3, [counter], 3; {after} setp.ne.u32 %p0, %r3, 3; @%p0 ret;\n\
         ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%y]; add.u32 %r4, %r4, %r5; add.u32 %r4, %r4, %r6; add.u32 %r4, %r4, %r7;\n\
         st.global.u32 [%y+1024], %r4;"
    ))
    .on(4, ".global .u32 counter;")
}

#[test]
fn blocks_are_ordered_by_release_and_acquire_alone() {
    let fence = "fence.acq_rel.gpu;";
    for (before, order, after) in [("", "acq_rel.gpu.", ""), (fence, "", fence), ("membar.gl;", "", "membar.gl;")] {
        assert_eq!(last_block(before, order, after).agree()[256], 46);
    }
    for (before, order, after) in
        [("", "", ""), (fence, "", ""), ("", "", fence), ("", "release.gpu.", ""), ("", "acquire.gpu.", "")]
    {
        let message = last_block(before, order, after).races();
        assert!(message.contains("of block"), "{message}");
    }
}

#[test]
fn a_block_may_wait_for_a_later_one() {
    let body = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p0, %r1, 2; @%p0 bra $give;\n\
        $wait: ld.acquire.gpu.global.u32 %r2, [flag]; setp.eq.u32 %p1, %r2, 0; @%p1 bra $wait;\n\
        ld.global.u32 %r3, [%y]; mad.wide.u32 %d0, %r1, 4, %y; st.global.u32 [%d0+16], %r3; ret;\n\
        $give: mov.u32 %r4, 77; st.global.u32 [%y], %r4; mov.u32 %r5, 1; st.release.gpu.global.u32 [flag], %r5;";
    let trial = |body: &str| block::<1>(body).on(3, ".global .u32 flag;");
    assert_eq!(&trial(body).agree()[4..6], [77, 77]);
    for weaker in ["st.relaxed.gpu.global.u32", "st.global.u32"] {
        trial(&body.replace("st.release.gpu.global.u32", weaker)).races();
    }
}

/// Threads copy their four words of x asynchronously and read those of the next thread.
fn copies(wait: &str, barrier: &str) -> Trial {
    block::<64>(&format!(
        "{TILE} shl.b32 %r2, %t, 4; add.u32 %r3, %r2, %r9; cvt.u64.u32 %d0, %r2; add.u64 %d0, %d0, %x;\n\
         cp.async.cg.shared.global [%r3], [%d0], 16; cp.async.commit_group;\n\
         add.u32 %r4, %r3, 1024; cp.async.ca.shared.global [%r4], [%d0], 8, 4; cp.async.commit_group;\n\
         {wait} {barrier} xor.b32 %r5, %r3, 16; ld.shared.v4.u32 {{%r6, %r7, %r8, %r10}}, [%r5]; add.u32 %r6, %r6, %r10;\n\
         cp.async.wait_all; ld.shared.u32 %r11, [%r4+4]; add.u32 %r6, %r6, %r11; st.global.u32 [%own], %r6;"
    ))
}

#[test]
fn asynchronous_copies_are_there_after_a_wait_and_a_barrier() {
    let wanted = |t: u32| 2 * (3 * (4 * (t ^ 1)) + 1) + 9;
    for barrier in ["bar.sync 0;", "bar.warp.sync -1;"] {
        copies("cp.async.wait_group 1;", barrier).gives(64, wanted);
    }
    copies("cp.async.wait_group 1;", "").races();
    // Without a wait the bytes are missing (latest) or their arrival is not ordered before the read (earliest).
    for wait in ["", "cp.async.wait_group 2;"] {
        let trial = copies(wait, "bar.sync 0;");
        for completion in Completion::ALL {
            let options = Options { completion, ..Options::default() };
            trial.finds(&[FindingKind::Pending, FindingKind::Race], &options);
        }
        let (report, words) = trial.run(&Options::default());
        assert!(report.has(FindingKind::Pending));
        assert_ne!(words[..64], (0..64).map(wanted).collect::<Vec<u32>>());
    }
}

#[test]
fn unwritten_and_foreign_shared_memory_is_found() {
    let message = block::<32>(&format!("{TILE} ld.shared.u32 %r2, [%r1];")).found(FindingKind::Uninitialized);
    assert!(message.contains("byte 0 of `shared memory`") && message.contains("address 0x400"), "{message}");
    let message = block::<32>(&format!("{TILE} st.shared.u32 [%r1+4096], %t;")).found(FindingKind::OutOfBounds);
    assert!(message.contains("bytes 4096..4100 of shared memory, which has 4096"), "{message}");
    block::<32>(&format!("{TILE} st.shared.u32 [%r1+-1028], %t;")).found(FindingKind::OutOfBounds);
    block::<32>(&format!("{TILE} st.shared.u64 [%r1+4], %d0;")).found(FindingKind::Misaligned);
}

#[test]
fn bank_conflicts_and_sectors_are_counted() {
    let counts = |words: u32, memory: SiteMemory, access: &str| {
        let body = format!("{TILE} mul.lo.u32 %r2, %t, {}; {access}", 4 * words);
        let metrics = block::<32>(&body).run(&Options::default()).0.clean().expect("nothing is wrong");
        let site = metrics.sites.iter().find(|site| site.memory == memory).expect("one site").clone();
        (metrics.global_read, site.requests, site.transactions, site.least)
    };
    let stride = |words| counts(words, SiteMemory::Shared, "add.u32 %r2, %r2, %r9; st.shared.u32 [%r2], %t;");
    let shared = [1, 2, 1, 8, 32].map(|transactions| (0, 1, transactions, 1));
    assert_eq!([1, 2, 3, 8, 32].map(stride), shared);
    let load = "cvt.u64.u32 %d0, %r2; add.u64 %d0, %d0, %x; ld.global.u32 %r2, [%d0];";
    let global = [(4, 4), (8, 4), (32, 4), (1, 1)].map(|(transactions, least)| (128, 1, transactions, least));
    assert_eq!([1, 2, 8, 0].map(|words| counts(words, SiteMemory::Global, load)), global);
}
