//! Divergence and reconvergence of lanes; shuffles and votes; local memory, constants, variables.

use super::*;

/// `%r0` of every lane.
#[track_caller]
fn lanes(body: &str) -> Vec<u32> {
    block::<32>(&format!("{body}\nst.global.u32 [%own], %r0;")).agree()[..32].to_vec()
}

fn each(f: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(f).collect()
}

#[test]
fn shuffles_read_the_lane_that_the_manual_says() {
    let shuffle = |mode: &str, by: u32, clamp: u32| {
        lanes(&format!(
            "add.u32 %r1, %t, 100; shfl.sync.{mode}.b32 %r0|%p0, %r1, {by}, {clamp}, -1; selp.u32 %r2, 1000, 0, %p0; add.u32 %r0, %r0, %r2;"
        ))
    };
    assert_eq!(shuffle("bfly", 5, 31), each(|l| 1100 + (l ^ 5)));
    assert_eq!(shuffle("idx", 7, 31), each(|_| 1107));
    assert_eq!(shuffle("up", 3, 0), each(|l| if l >= 3 { 1100 + l - 3 } else { 100 + l }));
    assert_eq!(shuffle("down", 3, 31), each(|l| if l + 3 < 32 { 1100 + l + 3 } else { 100 + l }));
    // Segments of 8 lanes: the mask 24 (11000) keeps the upper two bits of the lane.
    let segment = 24 << 8;
    assert_eq!(shuffle("idx", 2, segment | 31), each(|l| 1100 + (l & 24) + 2));
    assert_eq!(shuffle("down", 3, segment | 7), each(|l| if l % 8 + 3 < 8 { 1100 + l + 3 } else { 100 + l }));
    assert_eq!(shuffle("up", 3, segment), each(|l| if l % 8 >= 3 { 1100 + l - 3 } else { 100 + l }));
}

#[test]
fn votes_matches_and_reductions_see_all_lanes() {
    let odd = "and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 1;";
    assert_eq!(lanes(&format!("{odd} vote.sync.ballot.b32 %r0, %p0, -1;")), each(|_| 0xAAAA_AAAA));
    assert_eq!(lanes(&format!("{odd} vote.sync.ballot.b32 %r0, !%p0, -1;")), each(|_| 0x5555_5555));
    assert_eq!(lanes(&format!("{odd} vote.sync.any.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;")), each(|_| 1));
    assert_eq!(lanes(&format!("{odd} vote.sync.all.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;")), each(|_| 0));
    assert_eq!(lanes("and.b32 %r1, %t, 3; match.any.sync.b32 %r0, %r1, -1;"), each(|l| 0x1111_1111 << (l & 3)));
    assert_eq!(lanes("mov.u32 %r1, 7; match.all.sync.b32 %r0|%p0, %r1, -1;"), each(|_| u32::MAX));
    assert_eq!(lanes("redux.sync.add.u32 %r0, %t, -1;"), each(|_| 496));
    assert_eq!(lanes("sub.u32 %r1, 5, %t; redux.sync.min.s32 %r0, %r1, -1;"), each(|_| (-26_i32).cast_unsigned()));
    assert_eq!(lanes("redux.sync.xor.b32 %r0, %t, -1;"), each(|_| (0..32).fold(0, |a, b| a ^ b)));
    assert_eq!(lanes("elect.sync %r1|%p0, -1; selp.u32 %r0, 9, %r1, %p0;"), each(|l| if l == 0 { 9 } else { 0 }));
    assert_eq!(lanes("activemask.b32 %r0;"), each(|_| u32::MAX));
    assert_eq!(lanes("mov.u32 %r0, %lanemask_lt;"), each(|l| (1 << l) - 1));
}

#[test]
fn diverged_lanes_reconverge_at_the_post_dominator() {
    let parted = lanes(
        "mov.u32 %r0, 0; and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 0;\n@%p0 bra $even;\n\
         add.u32 %r0, %r0, 100; setp.gt.u32 %p1, %t, 20;\n@%p1 bra $join; add.u32 %r0, %r0, 1000; bra.uni $join;\n\
         $even: add.u32 %r0, %r0, 1;\n$join: activemask.b32 %r2; setp.eq.u32 %p2, %r2, -1; @%p2 add.u32 %r0, %r0, 50000;",
    );
    let odd = |l| if l > 20 { 100 } else { 1100 };
    assert_eq!(parted, each(|l| 50_000 + if l % 2 == 0 { 1 } else { odd(l) }));
    // A loop that each lane leaves in its own round; all are together again behind it.
    let rounds = lanes(
        "mov.u32 %r0, 0;\n$loop: add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, %t;\n@%p0 bra $loop;\nactivemask.b32 %r1; shfl.sync.idx.b32 %r2, %r0, 31, 31, -1; add.u32 %r0, %r0, %r2;",
    );
    assert_eq!(rounds, each(|l| l.max(1) + 31));
    block::<32>("setp.gt.u32 %p0, %t, 9; @%p0 ret; activemask.b32 %r0; st.global.u32 [%own], %r0;")
        .gives(12, |l| if l < 10 { 0x3FF } else { u32::MAX });
    let switch = lanes(
        "and.b32 %r1, %t, 3;\n$table: .branchtargets $a, $b, $c, $d;\nbrx.idx %r1, $table;\n$a: mov.u32 %r0, 10; bra $end;\n\
         $b: mov.u32 %r0, 11; bra $end;\n$c: mov.u32 %r0, 12; bra $end;\n$d: mov.u32 %r0, 13;\n$end: activemask.b32 %r2; and.b32 %r2, %r2, 256; add.u32 %r0, %r0, %r2;",
    );
    assert_eq!(switch, each(|l| 256 + 10 + l % 4));
}

#[test]
fn lanes_elsewhere_are_found() {
    for body in [
        "setp.lt.u32 %p0, %t, 16; @%p0 shfl.sync.bfly.b32 %r0, %t, 1, 31, -1;",
        "setp.lt.u32 %p0, %t, 16; @%p0 bar.sync 0;",
        "setp.lt.u32 %p0, %t, 16; @%p0 bra $a; bra $b; $a: bar.warp.sync -1; $b: ret;",
        "setp.lt.u32 %p0, %t, 16; @%p0 vote.sync.ballot.b32 %r0, %p0, 0x1FFFF;",
        "setp.lt.u32 %p0, %t, 8; @%p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r1];",
        "bar.warp.sync 0xFFFF;",
    ] {
        block::<32>(body).found(FindingKind::Divergence);
    }
    block::<32>("setp.lt.u32 %p0, %t, 16; @%p0 shfl.sync.bfly.b32 %r0, %t, 1, 31, 0xFFFF;").agree();
    // A lane that is not in the mask has no value to give.
    block::<32>("setp.lt.u32 %p0, %t, 16; @%p0 shfl.sync.idx.b32 %r0, %t, 20, 31, 0xFFFF;")
        .found(FindingKind::Uninitialized);
}

#[test]
fn local_memory_belongs_to_a_lane() {
    let body = ".local .align 8 .b8 stack[16]; .reg .b64 %SP, %SPL;\nmov.u64 %SPL, stack; cvta.local.u64 %SP, %SPL;\n\
        st.local.u32 [%SPL], %t; mul.lo.u32 %r1, %t, 7; st.u32 [%SP+4], %r1;\nld.local.v2.u32 {%r2, %r3}, [%SPL]; add.u32 %r0, %r2, %r3;";
    assert_eq!(lanes(body), each(|l| 8 * l));
    let then = |line: &str| block::<32>(&format!("{body} {line}"));
    let unwritten = then("ld.local.u32 %r4, [%SPL+8];").found(FindingKind::Uninitialized);
    assert!(unwritten.contains("local memory"), "{unwritten}");
    let outside = then("st.local.u32 [%SPL+16], %r1;").found(FindingKind::OutOfBounds);
    assert!(outside.contains("bytes 16..20 of local memory, which has 16"), "{outside}");
}

#[test]
fn variables_of_the_module_hold_their_initializers() {
    let values = block::<32>(
        "mov.u64 %d0, table; cvta.const.u64 %d0, %d0; and.b32 %r1, %t, 3; mad.wide.u32 %d1, %r1, 2, %d0; ld.u16 %h0, [%d1]; cvt.u32.u16 %r0, %h0;\n\
         ld.global.u32 %r2, [words+4]; add.u32 %r0, %r0, %r2; ld.global.f32 %f0, [half]; cvt.rzi.u32.f32 %r3, %f0; add.u32 %r0, %r0, %r3;\n\
         atom.global.add.u32 %r4, [counter], 1; st.global.u32 [%own], %r0;",
    );
    let module = ".const .align 2 .u16 table[4] = {1, 20, 300, 4000};\n.global .align 4 .b8 words[8] = {1, 0, 0, 0, 16, 39, 0, 0};\n\
        .global .align 4 .f32 half = 0f41000000;\n.global .u32 counter;";
    values.on(1, module).gives(32, |l| [1, 20, 300, 4000][l as usize % 4] + 10_000 + 8);
    let store = block::<32>("mov.u32 %r0, 1; st.global.u32 [table], %r0;").on(1, module);
    assert!(store.found(FindingKind::Constant).contains("constant memory"));
}

#[test]
fn names_in_inner_braces_hide_outer_ones() {
    let body = "mov.u32 %r0, %t;\n{ .reg .b32 %r0; .reg .pred q; mov.u32 %r0, 5; setp.gt.u32 q, %t, 3; @q bra $in; add.u32 %r1, %r0, 1;\n\
        bra $out; $in: mov.u32 %r1, 77; $out: }\nadd.u32 %r0, %r0, %r1;";
    assert_eq!(lanes(body), each(|l| l + if l > 3 { 77 } else { 6 }));
}

#[test]
fn a_trap_ends_the_launch() {
    let message = block::<32>("setp.eq.u32 %p0, %t, 3; @%p0 trap;").found(FindingKind::Trap);
    assert!(message.contains("thread [3, 0, 0]"), "{message}");
}
