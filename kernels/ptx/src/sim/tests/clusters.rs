//! Clusters: the barrier, shared memory and mbarriers of other blocks, multicast, and what goes wrong with each.

use super::*;

/// A trial on one cluster of two blocks of 64 threads. Shared memory: a tile of 256 bytes and an mbarrier at 256; `%r9` is
/// the tile, `%rank` the block, `%peer` the other, `%own` the thread's word of y, those of block 1 behind those of block 0.
fn pair(body: &str) -> Trial {
    let trial = block::<64>(&format!(
        ".shared .align 128 .b8 tile[512]; .reg .b32 %rank, %peer, %word, %far; mov.u32 %r9, tile;\n\
         mov.u32 %rank, %cluster_ctarank; xor.b32 %peer, %rank, 1; shl.b32 %r1, %t, 2; add.u32 %word, %r9, %r1;\n\
         mad.wide.u32 %own, %rank, 256, %own; mapa.shared::cluster.u32 %far, %word, %peer;\n{body}"
    ));
    Trial { ranks: 2, ..trial.on(2, "") }
}

const SYNC: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
/// The thread's word of the tile: 64 for each block, and the thread.
const FILL: &str = "mad.lo.u32 %r2, %rank, 64, %t; st.shared.u32 [%word], %r2;";
const READ_FAR: &str = "ld.shared::cluster.u32 %r3, [%far]; st.global.u32 [%own], %r3;";

#[test]
fn special_registers_say_where_a_block_is_in_its_cluster() {
    let trial = pair(
        "mov.u32 %r2, %cluster_nctarank; mov.u32 %r3, %clusterid.x; mov.u32 %r4, %nclusterid.x; mov.u32 %r5, %cluster_ctaid.x;\n\
         shl.b32 %r3, %r3, 4; shl.b32 %r4, %r4, 8; shl.b32 %r5, %r5, 12; or.b32 %r2, %r2, %r3; or.b32 %r2, %r2, %r4;\n\
         or.b32 %r2, %r2, %r5; mov.u32 %r6, %ctaid.x; shr.u32 %r6, %r6, 1; mad.wide.u32 %own, %r6, 512, %own; st.global.u32 [%own], %r2;",
    );
    let trial = Trial { blocks: 4, ..trial };
    trial.gives(256, |i| 2 | (i / 128) << 4 | 2 << 8 | (i / 64 % 2) << 12);
}

#[test]
fn a_block_reads_and_writes_shared_memory_of_its_peer() {
    let good = format!("{FILL} {SYNC} {READ_FAR} {SYNC}");
    pair(&good).gives(128, |i| i ^ 64);
    // A generic address, and a store.
    let generic = "cvt.u64.u32 %d0, %word; cvta.shared.u64 %d0, %d0; mapa.u64 %d0, %d0, %peer; isspacep.shared::cluster %p1, %d0;\n\
        isspacep.shared::cta %p2, %d0; mad.lo.u32 %r2, %rank, 64, %t; @%p1 st.u32 [%d0], %r2;";
    let read = "ld.shared.u32 %r3, [%word]; selp.u32 %r3, 0, %r3, %p2; st.global.u32 [%own], %r3;";
    pair(&format!("{SYNC} {generic} {SYNC} {read}")).gives(128, |i| i ^ 64);
    // Planted: no barrier before the read, and an address of the peer in an instruction for the own block.
    pair(&format!("{FILL} {READ_FAR} {SYNC}")).races();
    pair(&good.replace("ld.shared::cluster", "ld.shared::cta")).found(FindingKind::OutOfBounds);
    pair(&format!("mapa.shared::cluster.u32 %r4, %word, 2; {good}")).found(FindingKind::Operand);
}

#[test]
fn a_block_that_ends_while_its_peer_reads_its_shared_memory_is_found() {
    let message = pair(&format!("{FILL} {SYNC} {READ_FAR}")).races();
    assert!(message.contains("shared memory") && message.contains("block"), "{message}");
    // Only block 1 reads, so block 0 has to wait for it, in any way.
    let one = format!("{FILL} {SYNC} setp.eq.u32 %p0, %rank, 0; @%p0 bra $end; {READ_FAR} $end:");
    pair(&one).races();
    pair(&format!("{one} {SYNC}")).agree();
    pair(&format!("{one} barrier.cluster.arrive.aligned; @!%p0 bra $last; barrier.cluster.wait.aligned; $last:"))
        .agree();
}

#[test]
fn the_cluster_barrier_waits_for_all_threads_that_have_not_ended() {
    pair(&format!("setp.eq.u32 %p0, %rank, 0; @%p0 bra $end; {SYNC} st.global.u32 [%own], %t; $end:")).agree();
    pair(&format!("setp.eq.u32 %p0, %rank, 0; @%p0 bra $end; {SYNC} $end: {SYNC}")).agree();
    pair("barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned;").found(FindingKind::Barrier);
    pair("barrier.cluster.wait.aligned;").found(FindingKind::Barrier);
    pair(&format!("{SYNC} barrier.cluster.wait.aligned;")).found(FindingKind::Barrier);
}

/// Block 0 waits for the 64 threads of block 1, which write its tile and arrive at its mbarrier.
fn arrivals(arrive: &str, wait: &str) -> Trial {
    pair(&format!(
        "setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%r9+256], 64; {SYNC} setp.eq.u32 %p1, %rank, 1; @!%p1 bra $wait;\n\
         mapa.shared::cluster.u32 %r8, %r9, 0; st.shared::cluster.u32 [%far], %t; {arrive} bra $end;\n\
         $wait: {wait} %p2, [%r9+256], 0; @!%p2 bra $wait; ld.shared.u32 %r3, [%word]; st.global.u32 [%own], %r3; $end:"
    ))
}

#[test]
fn arrivals_at_a_remote_mbarrier_order_with_the_scope_of_the_cluster() {
    const ARRIVE: &str = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8+256];";
    const WAIT: &str = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64";
    arrivals(ARRIVE, WAIT).gives(64, |i| i);
    // Planted: no arrival, scopes that exclude the other block, a relaxed arrival.
    arrivals("", WAIT).found(FindingKind::Deadlock);
    arrivals(&ARRIVE.replace("release.cluster.", ""), WAIT).races();
    arrivals(ARRIVE, "mbarrier.try_wait.parity.shared::cta.b64").races();
    arrivals(&ARRIVE.replace("release", "relaxed"), WAIT).races();
}

/// Each block loads half of `x`'s first 128 words into both; all threads then read all words. `between` runs after the first
/// round, and the second one loads the words behind them into the same place.
fn multicast(between: &str, masks: &str, expected: u32) -> Trial {
    let round = |parity: u32| {
        format!(
            "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r9+256], {expected}; mad.lo.u32 %r2, %rank, 128, %r9;\n\
             mad.wide.u32 %d0, %rank, 128, %x; @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], [%d0+{from}], 128, [%r9+256], {masks};\n\
             $wait{parity}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r9+256], {parity}; @!%p1 bra $wait{parity};\n\
             ld.shared.u32 %r3, [%word]; add.u32 %r7, %r7, %r3;\n",
            from = 256 * parity
        )
    };
    pair(&format!(
        "setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%r9+256], 1; @%p0 fence.mbarrier_init.release.cluster; {SYNC} mov.u32 %r7, 0;\n\
         {}{between}\n{}st.global.u32 [%own], %r7;",
        round(0),
        round(1)
    ))
}

#[test]
fn multicast_writes_and_signals_every_block_of_its_mask() {
    let sum = |i: u32| 3 * (i % 64) + 1 + 3 * (i % 64 + 64) + 1;
    multicast(SYNC, "3", 256).gives(128, sum);
    // Planted: the peer still reads the buffer, bytes for one block, a block that is not there, no block.
    multicast("bar.sync 0;", "3", 256).races();
    multicast(SYNC, "1", 256).found(FindingKind::Deadlock);
    multicast(SYNC, "7", 256).found(FindingKind::Operand);
    multicast(SYNC, "0", 256).found(FindingKind::Operand);
}

#[test]
fn multicast_into_a_block_that_ends_is_found() {
    let copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r9], [%x], 128, [%r9+256], 3;";
    let trial = pair(&format!(
        "setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%r9+256], 1; @%p0 fence.mbarrier_init.release.cluster; {SYNC}\n\
         setp.eq.u32 %p1, %rank, 1; @%p1 bra $end; @!%p0 bra $end; {copy} $end:"
    ));
    for options in settings().filter(|options| options.completion == Completion::Latest) {
        trial.finds(&[FindingKind::Race, FindingKind::Unfinished], &options);
    }
}

#[test]
fn a_grid_of_parts_of_clusters_is_refused() {
    let trial = Trial { blocks: 3, ..pair("") };
    let module = Module::parse(&trial.text()).expect("the text is read");
    let launch = Launch { grid: [3, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
    let arguments = [Argument::U64(0), Argument::U64(0)];
    let error = module.launch("kernel", launch, &arguments, &mut Memory::new(), &Options::default());
    assert!(error.expect_err("three blocks").to_string().contains("whole clusters of [2, 1, 1] blocks"));
}

/// Block 1 loads its tile, waits, and lets block 0 load into it after an arrival with the scope of its own block.
fn handover(reads: &str) -> Trial {
    const COPY: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster";
    const WAIT: &str = "mbarrier.try_wait.parity.shared::cta.b64 %p1,";
    pair(&format!(
        "setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%r9+256], 1; @%p0 mbarrier.init.shared.b64 [%r9+264], 1;\n\
         @%p0 fence.mbarrier_init.release.cluster; {SYNC} @!%p0 bra $end; setp.eq.u32 %p2, %rank, 0; @%p2 bra $zero;\n\
         mbarrier.arrive.expect_tx.shared.b64 _, [%r9+256], 128; {COPY} [%r9], [%x], 128, [%r9+256], 2;\n\
         $first: {WAIT} [%r9+256], 0; @!%p1 bra $first; {reads} mapa.shared::cluster.u32 %r8, %r9, 0;\n\
         mbarrier.arrive.expect_tx.shared.b64 _, [%r9+256], 128; mbarrier.arrive.shared::cluster.b64 _, [%r8+264];\n\
         $second: {WAIT} [%r9+256], 1; @!%p1 bra $second; ld.shared.u32 %r3, [%word]; st.global.u32 [%own], %r3; bra $end;\n\
         $zero: {WAIT} [%r9+264], 0; @!%p1 bra $zero; {COPY} [%r9], [%x+128], 128, [%r9+256], 2;\n$end: {SYNC}"
    ))
}

#[test]
fn a_narrow_arrival_at_a_remote_mbarrier_orders_finished_copies_alone() {
    assert_eq!(handover("").agree()[64], 97);
    handover("ld.shared.u32 %r3, [%word];").races();
}
