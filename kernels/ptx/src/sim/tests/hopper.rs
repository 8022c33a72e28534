//! mbarriers, bulk copies and tensor maps: what they move, and every rule about them broken once.

use super::*;

/// Two warps: the first gives, the second takes through an mbarrier with one arrival a lane.
fn handover(arrive: &str, wait: &str) -> Trial {
    block::<64>(&format!(
        ".shared .align 8 .b8 bar[8]; .shared .align 16 .b8 tile[128]; mov.u32 %r8, bar; mov.u32 %r9, tile;\n\
         setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared::cta.b64 [%r8], 32; bar.sync 0;\n\
         and.b32 %r1, %t, 31; shl.b32 %r1, %r1, 2; add.u32 %r1, %r1, %r9; setp.gt.u32 %p1, %t, 31; @%p1 bra $take;\n\
         st.shared.u32 [%r1], %t; {arrive} bra $end;\n\
         $take: {wait} xor.b32 %r2, %r1, 4; ld.shared.u32 %r3, [%r2]; st.global.u32 [%own], %r3;\n$end:"
    ))
}

const ARRIVE: &str = "mbarrier.arrive.shared::cta.b64 %d0, [%r8];";
const WAIT: &str = "$again: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra $again;";

#[test]
fn an_mbarrier_hands_over_when_all_have_arrived() {
    let one = "bar.warp.sync -1; setp.eq.u32 %p3, %t, 0; @%p3 mbarrier.arrive.shared.b64 _, [%r8], 32;";
    for (arrive, wait) in [(ARRIVE, WAIT), (ARRIVE, WAIT.replace("try_wait", "test_wait").as_str()), (one, WAIT)] {
        handover(arrive, wait).gives(64, |t| if t < 32 { u32::MAX } else { (t - 32) ^ 1 });
    }
    // One lane arrives for all, and nothing says that the others had written before.
    handover(&one.replace("bar.warp.sync -1;", ""), WAIT).races();
    handover(ARRIVE, "").races();
    // Asking once is not waiting.
    let once = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0;";
    let options = Options { schedule: Schedule::Adversarial(1), ..Options::default() };
    handover(ARRIVE, once).finds(&[FindingKind::Race], &options);
}

#[test]
fn wrong_counts_and_parities_of_an_mbarrier_are_found() {
    let message = handover("", WAIT).found(FindingKind::Deadlock);
    assert!(message.contains("phase 0, 32 of 32 arrivals and 0 bytes are missing"), "{message}");
    handover(&format!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r8], 16; {ARRIVE}"), WAIT)
        .found(FindingKind::Deadlock);
    // The parity of the phase before is over at once, or comes again only with a phase that never ends.
    let early = handover(ARRIVE, &WAIT.replace("], 0", "], 1"));
    settings().for_each(|options| early.finds(&[FindingKind::Race, FindingKind::Deadlock], &options));
    handover(ARRIVE, &WAIT.replace("], 0", "], 2")).found(FindingKind::Operand);
    let twice = handover("mbarrier.arrive.shared::cta.b64 %d0, [%r8], 33;", "");
    assert!(twice.found(FindingKind::Barrier).contains("more than the 32"));
    handover(&format!("st.shared.u32 [%r8], %t; {ARRIVE}"), WAIT).found(FindingKind::Barrier);
    handover(&ARRIVE.replace("[%r8]", "[%r8+8]"), WAIT).found(FindingKind::Barrier);
    handover(&ARRIVE.replace("[%r8]", "[%r8+4]"), WAIT).found(FindingKind::Misaligned);
    let unordered = block::<64>(&handover(ARRIVE, WAIT).body.replacen("bar.sync 0;", "", 1));
    unordered.finds(&[FindingKind::Race, FindingKind::Barrier], &Options::default());
    let inval = "bar.sync 1, 64; setp.eq.u32 %p3, %t, 0; @%p3 mbarrier.inval.shared.b64 [%r8]; bar.sync 1, 64;";
    let body = format!("{} {inval} @%p3 st.shared.u64 [%r8], %x;", handover(ARRIVE, WAIT).body);
    block::<64>(&body).agree();
}

#[test]
fn states_of_arrivals_name_the_phase() {
    let body = ".shared .align 8 .b64 bar; mov.u32 %r8, bar; setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%r8], 64; bar.sync 0;\n\
        mov.u32 %r1, 0;\n$round: mbarrier.arrive.shared.b64 %d0, [%r8];\n$again: mbarrier.try_wait.shared.b64 %p1, [%r8], %d0; @!%p1 bra $again;\n\
        add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5; @%p2 bra $round; st.global.u32 [%own], %r1;";
    block::<64>(body).gives(64, |_| 5);
}

/// A kernel on tensor maps: `in` and `out` of 40 x 32 matrices in f32, y for results, x for plain copies.
struct Tiles {
    tile: [u32; 2],
    swizzle: Swizzle,
    body: String,
}

impl Tiles {
    fn text(&self) -> String {
        format!(
            ".version 8.7\n.target sm_90a\n.address_size 64\n.extern .shared .align 128 .b8 smem[];\n\
             .visible .entry kernel(.param .align 64 .b8 in[128], .param .align 64 .b8 out[128], .param .u64 x, .param .u64 y)\n\
             {{\n.reg .b64 %in, %out, %x, %y, %d<8>; .reg .b32 %t, %tile, %bar, %r<32>; .reg .pred %p<8>;\n\
             mov.b64 %in, in; cvta.param.u64 %in, %in; mov.b64 %out, out; cvta.param.u64 %out, %out;\n\
             ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %t, %tid.x; mov.u32 %tile, smem; add.u32 %bar, %tile, 8192;\n\
             setp.eq.u32 %p0, %t, 0; @%p0 mbarrier.init.shared.b64 [%bar], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;\n\
             {}\nret;\n}}\n",
            self.body
        )
    }

    /// Without a swizzle.
    fn plain(body: &str) -> Self {
        Tiles { tile: [16, 16], swizzle: Swizzle::None, body: body.to_string() }
    }

    /// Findings, the words of `out` and those of y.
    fn run(&self, options: &Options) -> (Report, [Vec<u32>; 2]) {
        let mut memory = Memory::new();
        let source: [f32; 40 * 32] = std::array::from_fn(|i| i as f32 + 1.0);
        let (input, output) = (memory.allocate_from("in", &source), memory.allocate_from("out", &[0.5f32; 40 * 32]));
        let (x, y) = (memory.allocate_from("x", &source[..256]), memory.allocate("y", 4096));
        let [input_map, output_map] = [input, output].map(|address| {
            let map = TensorMap::matrix(address, TensorType::F32, [40, 32], self.tile, self.swizzle);
            Argument::TensorMap(map.expect("it fits"))
        });
        let arguments = [input_map, output_map, Argument::U64(x), Argument::U64(y)];
        let blocks = Launch { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 8320 };
        let report = launch(&self.text(), blocks, &arguments, &mut memory, options);
        (report, [output, y].map(|address| words_of(&memory, address)))
    }

    #[track_caller]
    fn agree(&self) -> [Vec<u32>; 2] {
        agree(settings(), &self.body, |options| self.run(options))
    }
}

/// The first finding of this kind, which the plain tiles must have under every completion.
#[track_caller]
fn broken(body: &str, kind: FindingKind) -> String {
    found(completions(), body, kind, |options| Tiles::plain(body).run(options))
}

const LOAD: &str = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 1024;\n\
    @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%in, {COLUMN, ROW}], [%bar];\n\
    $wait: mbarrier.try_wait.parity.shared.b64 %p1, [%bar], 0; @!%p1 bra $wait;\n";
/// y[4t .. 4t + 4] is the tile's 16 bytes at 16t of shared memory.
const SHOW: &str = "shl.b32 %r1, %t, 4; add.u32 %r2, %r1, %tile; ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2];\n\
    cvt.u64.u32 %d0, %r1; add.u64 %d0, %d0, %y; st.global.v4.b32 [%d0], {%r4, %r5, %r6, %r7};\n";

fn load(column: i32, row: i32) -> String {
    LOAD.replace("COLUMN", &column.to_string()).replace("ROW", &row.to_string())
}

#[test]
fn tiles_are_loaded_with_swizzle_and_zeros_outside() {
    for (swizzle, tile) in
        [(Swizzle::None, [16, 16]), (Swizzle::B128, [8, 32]), (Swizzle::B64, [16, 16]), (Swizzle::B32, [32, 8])]
    {
        for (column, row) in [(0, 0), (16, 8), (-4, -3), (20, 30)] {
            let body = format!("{}{SHOW}", load(column, row));
            let [_, y] = Tiles { tile, swizzle, body }.agree();
            for r in 0..tile[0] {
                for c in 0..tile[1] {
                    let (at_row, at_column) = (i64::from(row) + i64::from(r), i64::from(column) + i64::from(c));
                    let inside = (0..40).contains(&at_row) && (0..32).contains(&at_column);
                    let wanted = if inside { (at_row * 32 + at_column + 1) as f32 } else { 0.0 };
                    // The manual's table: pieces of 16 bytes are exchanged by the number of the 128-byte line.
                    let byte = 4 * (r * tile[1] + c);
                    let (line, piece) = (byte / 128, byte / 16 % 8);
                    let exchanged = match swizzle {
                        Swizzle::None => 0,
                        Swizzle::B32 => 1,
                        Swizzle::B64 => 3,
                        Swizzle::B128 => 7,
                    };
                    let word = y[(line * 32 + (piece ^ (line & exchanged)) * 4 + c % 4) as usize];
                    assert_eq!(f32::from_bits(word), wanted, "{swizzle:?} ({column}, {row}): row {r}, column {c}");
                }
            }
        }
    }
}

#[test]
fn loads_without_their_rules_are_found() {
    let good = format!("{}{SHOW}", load(0, 0));
    // No wait: the bytes are missing, or their arrival is not ordered before the read.
    let blind = good.replace("$wait: mbarrier.try_wait.parity.shared.b64 %p1, [%bar], 0; @!%p1 bra $wait;\n", "");
    for (completion, kind) in [(Completion::Latest, FindingKind::Pending), (Completion::Earliest, FindingKind::Race)] {
        let (report, _) = Tiles::plain(&blind).run(&Options { completion, ..Options::default() });
        assert!(report.has(kind), "{completion:?}: {:?}", report.findings);
    }
    for wrong in ["], 1008;", "], 1040;"] {
        let message = broken(&good.replacen("], 1024;", wrong, 1), FindingKind::Deadlock);
        assert!(message.contains("bytes are missing"), "{message}");
    }
    // Another thread's generic writes in the way, ordered but not fenced for the asynchronous proxy.
    let dirty =
        format!("shl.b32 %r1, %t, 4; add.u32 %r2, %r1, %tile; st.shared.u32 [%r2], %t; FENCE bar.sync 0;\n{good}");
    broken(&dirty.replace("FENCE", ""), FindingKind::Proxy);
    broken(&dirty.replace("FENCE bar.sync 0;", FENCE), FindingKind::Race);
    Tiles::plain(&dirty.replace("FENCE", FENCE)).agree();
    // A second load into a tile that others still read.
    let second = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 1024;\n\
        @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%tile], [%in, {0, 8}], [%bar];\n\
        $more: mbarrier.try_wait.parity.shared.b64 %p1, [%bar], 1; @!%p1 bra $more;\n";
    broken(&format!("{good}{second}"), FindingKind::Race);
    broken(&good.replace("[%tile], [%in", "[%tile+64], [%in"), FindingKind::Misaligned);
    broken(&good.replace("[%in, {", "[%x, {"), FindingKind::Operand);
}

#[test]
fn an_mbarrier_that_no_fence_has_shown_is_found() {
    let body = ".shared .align 128 .b8 tile[128]; .shared .align 8 .b64 bar; setp.eq.u32 %p0, %t, 0; mov.u32 %r1, tile; mov.u32 %r2, bar;\n\
        @%p0 mbarrier.init.shared.b64 [%r2], 1; FENCE bar.sync 0; @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;\n\
        @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%x], 128, [%r2];\n\
        $wait: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra $wait; shl.b32 %r3, %t, 2; add.u32 %r3, %r3, %r1;\n\
        ld.shared.u32 %r4, [%r3]; st.global.u32 [%own], %r4;";
    for fence in ["@%p0 fence.mbarrier_init.release.cluster;", "@%p0 fence.proxy.async;"] {
        block::<32>(&body.replace("FENCE", fence)).gives(32, |t| 3 * t + 1);
    }
    block::<32>(&body.replace("FENCE", "")).found(FindingKind::Proxy);
}

/// Fills the tile with 100 + thread and stores it.
fn store(fence: &str, instruction: &str, wait: &str) -> String {
    format!(
        "cvt.rn.f32.u32 %r3, %t;\nadd.f32 %r3, %r3, 0f42C80000; shl.b32 %r1, %t, 4; add.u32 %r2, %r1, %tile; st.shared.v4.b32 [%r2], {{%r3, %r3, %r3, %r3}};\n\
         {fence} bar.sync 0;\n{instruction}\n@%p0 cp.async.bulk.commit_group;\n{wait}"
    )
}

const STORE: &str = "@%p0 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%out, {20, 30}], [%tile];";
const BYTES: &str = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%y], [%tile], 1024;";
const FENCE: &str = "fence.proxy.async.shared::cta;";
const DONE: &str = "@%p0 cp.async.bulk.wait_group 0;";

#[test]
fn tiles_are_stored_and_added_within_the_tensor() {
    let add = STORE.replace("cp.async", "cp.reduce.async").replace("shared::cta.", "shared::cta.add.");
    for (before, instruction) in [(0.0, STORE), (0.5, add.as_str())] {
        for swizzle in [Swizzle::None, Swizzle::B64] {
            let [out, _] = Tiles { swizzle, ..Tiles::plain(&store(FENCE, instruction, DONE)) }.agree();
            for row in 0..40_u32 {
                for column in 0..32_u32 {
                    let inside = row >= 30 && column >= 20;
                    let (r, c) = (row.wrapping_sub(30), column.wrapping_sub(20));
                    let byte = r.wrapping_mul(16).wrapping_add(c).wrapping_mul(4);
                    let thread =
                        if swizzle == Swizzle::None { byte / 16 } else { (byte ^ ((byte / 128) & 3) << 4) / 16 };
                    let wanted = if inside { before + 100.0 + thread as f32 } else { 0.5 };
                    assert_eq!(f32::from_bits(out[(32 * row + column) as usize]), wanted, "{swizzle:?} {row} {column}");
                }
            }
        }
    }
}

#[test]
fn stores_without_their_rules_are_found() {
    assert!(broken(&store("", STORE, DONE), FindingKind::Proxy).contains("without fence.proxy.async"));
    broken(&store(FENCE, STORE, DONE).replace("bar.sync 0;", ""), FindingKind::Race);
    let (report, _) = Tiles::plain(&store(FENCE, STORE, "")).run(&Options::default());
    assert!(report.has(FindingKind::Unfinished), "{:?}", report.findings);
    // The tile is used again before it was read; the owner must wait, and the others for the owner.
    let again = "bar.sync 0; st.shared.u32 [%r2], %t;";
    let read = "@%p0 cp.async.bulk.wait_group.read 0;";
    broken(&format!("{} {again}", store(FENCE, STORE, "")), FindingKind::Race);
    for wait in [DONE, read] {
        Tiles::plain(&format!("{} {again}", store(FENCE, STORE, wait))).agree();
    }
    broken(&format!("{} st.shared.u32 [%r2], %t;", store(FENCE, STORE, DONE)), FindingKind::Race);
    // Reading what was stored needs the whole wait, by the thread that stored it.
    let body = |wait: &str| format!("{} @%p0 ld.global.u32 %r9, [%y];", store(FENCE, BYTES, wait));
    Tiles::plain(&body(DONE)).agree();
    broken(&body(read), FindingKind::Race);
}

#[test]
fn plain_bytes_are_moved_and_added() {
    let [_, y] = Tiles::plain(&store(FENCE, BYTES, DONE)).agree();
    assert!((0..256).all(|i| f32::from_bits(y[i]) == 100.0 + (i / 4) as f32) && y[256] == u32::MAX);
    let add = "@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%x], [%tile], 1024;";
    let look = "@%p0 ld.global.f32 %r9, [%x+400]; @%p0 st.global.f32 [%y], %r9;";
    let [_, y] = Tiles::plain(&format!("{} {look}", store(FENCE, add, DONE))).agree();
    assert_eq!(f32::from_bits(y[0]), 101.0 + 125.0);
    broken(&store(FENCE, &BYTES.replace("1024", "1000"), DONE), FindingKind::Misaligned);
}

#[test]
fn tensor_maps_survive_their_bytes_and_refuse_what_the_driver_refuses() {
    let map = TensorMap::new(
        0x7F00_0000_0100,
        TensorType::Bf16,
        &[64, 20, 6, 3, 2],
        &[128, 2560, 15360, 46080],
        &[64, 4, 2, 1, 2],
        Swizzle::B128,
    )
    .expect("it fits");
    assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map));
    assert_eq!(TensorMap::from_bytes(&[0; 128]), None);
    assert_eq!(map.tile_bytes(), 64 * 4 * 2 * 2 * 2);
    // Row 13 of the tile is (1, 1, 0, 1) of dimensions 1 to 4.
    let rows = map.rows([0, 17, 3, 2, 0]);
    assert_eq!(rows.len(), 16);
    assert_eq!(rows[13].address, map.address + 18 * 128 + 4 * 2560 + 2 * 15360 + 46080);
    assert_eq!((rows[13].offset, rows[13].elements.clone()), (13 * 128, 0..64));
    assert!(rows[3].elements.is_empty(), "row 20 of 20 is outside");
    assert_eq!(map.rows([-60, 0, 0, 0, 0])[0].elements, 60..64);
    assert_eq!(map.rows([60, 0, 0, 0, 0])[0].elements, 0..4);
    for (address, strides, tile, swizzle, fits) in [
        (256, &[128][..], [32, 8], Swizzle::B128, true),
        (260, &[128], [32, 8], Swizzle::B128, false),
        (256, &[120], [32, 8], Swizzle::B128, false),
        (256, &[128], [32, 257], Swizzle::B128, false),
        (256, &[128], [3, 8], Swizzle::None, false),
        (256, &[128], [16, 8], Swizzle::B128, false),
        (256, &[128, 128], [32, 8], Swizzle::B128, false),
    ] {
        let map = TensorMap::new(address, TensorType::F32, &[32, 32], strides, &tile, swizzle);
        assert_eq!(map.is_ok(), fits, "{address} {strides:?} {tile:?} {swizzle:?}");
    }
}

#[test]
fn registers_move_between_warps_within_the_budget() {
    // 256 threads begin with 255 registers at most, which is more than a quarter of 65,536 allows to grow.
    let kernel = |up: u32, down: &str| {
        block::<384>(&format!(
            "setp.gt.u32 %p0, %t, 127; @%p0 bra $more; {down} bra $end; $more: setmaxnreg.inc.sync.aligned.u32 {up}; $end: st.global.u32 [%own], %t;"
        ))
    };
    // 168 registers for each of 384 threads
    kernel(240, "setmaxnreg.dec.sync.aligned.u32 24;").agree();
    let message = kernel(240, "setmaxnreg.dec.sync.aligned.u32 56;").found(FindingKind::Deadlock);
    assert!(message.contains("setmaxnreg"), "{message}");
    kernel(160, "setmaxnreg.dec.sync.aligned.u32 24;").found(FindingKind::Operand);
    kernel(236, "").found(FindingKind::Operand);
}

#[test]
fn a_cluster_of_one_block_has_a_barrier_and_one_address_space() {
    let body = ".shared .align 16 .b8 tile[256]; mov.u32 %r9, tile; shl.b32 %r1, %t, 2; add.u32 %r1, %r1, %r9; st.shared.u32 [%r1], %t;\n\
        SYNC mapa.shared::cluster.u32 %r2, %r1, 0; xor.b32 %r2, %r2, 128; ld.shared::cluster.u32 %r3, [%r2]; mov.u32 %r4, %cluster_nctarank; add.u32 %r3, %r3, %r4; st.global.u32 [%own], %r3;";
    let good = body.replace("SYNC", "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;");
    block::<64>(&good).gives(64, |t| (t ^ 32) + 1);
    block::<64>(&body.replace("SYNC", "barrier.cluster.arrive.release.aligned;")).races();
    block::<64>(&body.replace("SYNC", "barrier.cluster.wait.acquire.aligned;")).found(FindingKind::Barrier);
    block::<64>(&good.replace("%r1, 0;", "%r1, 1;")).found(FindingKind::Operand);
}
