//! Text written by hand: what is refused, and the faults that need neither barriers nor shared memory.

use super::*;

/// Forms that other compilers write and our kernels do not.
#[test]
fn signed_and_unordered_forms_follow_their_signs_and_their_nans() {
    for (body, wanted) in [
        ("mov.u32 %u1, -3; setp.lt.s32 p, %u1, 2;", true),
        ("mov.u32 %u1, -3; setp.lt.u32 p, %u1, 2;", false),
        ("mov.u32 %u1, -3; mul.wide.s32 %rd2, %u1, 5; setp.eq.s64 p, %rd2, -15;", true),
        ("mov.u32 %u1, -3; mad.wide.s32 %rd2, %u1, 5, 20; setp.eq.u64 p, %rd2, 5;", true),
        ("mov.u32 %u1, -3; cvt.s64.s32 %rd2, %u1; setp.lt.s64 p, %rd2, -2;", true),
        ("mov.u32 %u1, -3; cvt.u64.u32 %rd2, %u1; setp.gt.s64 p, %rd2, 0;", true),
        ("mov.u32 %u1, -3; mad.lo.s32 %u2, %u1, %u1, -10; setp.eq.s32 p, %u2, -1;", true),
        ("mov.u64 %rd2, -3; mul.lo.s64 %rd2, %rd2, %rd2; setp.eq.u64 p, %rd2, 9;", true),
        ("mov.u64 %rd2, 3; shl.b64 %rd2, %rd2, 40; setp.eq.u64 p, %rd2, 3298534883328;", true),
        ("mov.f32 %f0, 0f7FC00000; setp.geu.f32 p, %f0, 0f3F800000;", true),
        ("mov.f32 %f0, 0f7FC00000; setp.ge.f32 p, %f0, 0f3F800000;", false),
        ("mov.f32 %f0, 0fC0333333; cvt.rzi.f32.f32 %f0, %f0; setp.eq.f32 p, %f0, 0fC0000000;", true),
    ] {
        // The store is out of bounds where the predicate holds: one way to see it from here.
        let found = hand(&format!("{body} mov.f32 %f1, 0f00000000; @p st.global.f32 [%rd1+64], %f1;"));
        assert_eq!(!found.is_empty(), wanted, "{body}: {found:?}");
    }
}

#[test]
fn accesses_outside_an_allocation_are_found_with_their_rust_line() {
    finds("ld.global.f32 %f0, [%rd0+16];", "bytes 16..20 of `x`, which has 16");
    finds("ld.global.f32 %f0, [%rd0+16];", "by/hand.rs:42");
    finds("ld.global.f32 %f0, [%rd0-4];", "below all allocations");
    finds("mov.u64 %rd2, 64; ld.global.f32 %f0, [%rd2];", "below all allocations");
    finds("ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd0+8];", "expected a multiple of 16");
}

#[test]
fn reads_of_uninitialized_values_are_found() {
    let all = hand("add.u32 %u1, %u2, 1; st.global.u32 [%rd1], %u1;").join("\n");
    assert!(all.contains("register %u1, which was never written or is computed"), "{all}");
    finds("ld.global.f32 %f0, [%rd1];", "byte 0 of `y`, which was never written");
    finds("setp.lt.u32 p, %u0, 4; @q mov.u32 %u1, 1;", "register q, which was never written");
    let half = "setp.lt.u32 p, %u0, 2; @p mov.u32 %u1, 1; add.u32 %u2, %u1, 1;";
    finds(&format!("{half} mad.wide.u32 %rd2, %u0, 4, %rd1; st.global.u32 [%rd2], %u2;"), "thread [2, 0, 0]");
    let memory = Memory::new();
    assert!(memory.read::<u8>(7).is_err());
}

#[test]
fn the_host_copies_within_allocations_and_nowhere_else() {
    let mut memory = Memory::new();
    let (x, y) = (memory.allocate("x", 8), memory.allocate_from("y", &[7u8; 4]));
    memory.copy_in(x + 2, &[1, 2, 3]).expect("it fits");
    let mut bytes = [0; 3];
    memory.copy_out(&mut bytes, x + 2).expect("these bytes are written");
    assert_eq!(bytes, [1, 2, 3]);
    let message = |error: Error| error.to_string();
    assert!(message(memory.copy_out(&mut bytes, x).unwrap_err()).contains("byte 0 of `x` was never written"));
    assert!(message(memory.copy_in(x + 6, &[0; 3]).unwrap_err()).contains("bytes 6..9 of `x`, which has 8"));
    assert!(memory.free(x + 2).is_err(), "that is no start of an allocation");
    memory.free(y).expect("y is there");
    assert!(message(memory.copy_in(y, &[0]).unwrap_err()).contains("in no allocation"));
    assert!(memory.allocate("z", 4) > y, "addresses are not used again");
}

#[test]
fn races_are_found_in_either_order() {
    let written = "mov.f32 %f0, 0f00000000; st.global.f32 [%rd1], %f0;";
    finds(written, "writes byte 0 of `y`, which thread [0, 0, 0]");
    let own = "mad.wide.u32 %rd2, %u0, 4, %rd0; ld.global.f32 %f0, [%rd2];";
    assert_eq!(hand(&format!("{own} st.global.f32 [%rd2], %f0;")), [""; 0], "every thread has its own word");
    let first_reads = "ld.global.f32 %f0, [%rd0]; setp.eq.u32 p, %u0, 3; @p st.global.f32 [%rd0], %f0;";
    finds(first_reads, "writes byte 0 of `x`, which several threads of warp 0");
    let first_writes = format!("{own} setp.eq.u32 p, %u0, 0; @p st.global.f32 [%rd2], %f0; ld.global.f32 %f1, [%rd0];");
    finds(&first_writes, "reads byte 0 of `x`, which thread [0, 0, 0]");
}

#[test]
fn constant_loads_of_what_the_kernel_writes_are_found() {
    let own = "mad.wide.u32 %rd2, %u0, 4, %rd0;";
    let after = format!("{own} ld.global.nc.f32 %f0, [%rd2]; st.global.f32 [%rd2], %f0;");
    finds(&after, "which the kernel has read as constant");
    let before = format!("{own} mov.f32 %f0, 0f00000000; st.global.f32 [%rd2], %f0; ld.global.nc.f32 %f1, [%rd2];");
    finds(&before, "as constant, and the kernel has written it");
}

#[test]
fn text_that_is_not_understood_is_refused_by_name_and_line() {
    for (body, expected) in [
        ("frobnicate.u32 %u1, %u0;", "`frobnicate.u32` is not known"),
        ("add.rx.f32 %f0, %f0, %f0;", "`add.rx.f32` is not known"),
        ("mul.f32.f32 %f0, %f0, %f0;", "`mul.f32.f32` is not known"),
        ("add.rn.u32 %u1, %u1, 1;", "`add.rn.u32` is not known"),
        ("setp.ltu.u32 p, %u0, 1;", "`setp.ltu.u32` is not known"),
        ("call frobnicate, ();", "`call` is not known"),
        ("ld.global.v4.u64 %rd2, [%rd0];", "`ld.global.v4.u64` is not known"),
        ("add.u32 %u1, %u9, 1;", "register %u9, which is not declared"),
        ("add.u32 %u1, %u0;", "expected 3, found 2"),
        ("ld.global.v2.f32 %f0, [%rd0];", "names 1 values; expected 2"),
        ("bra $nowhere;", "label $nowhere is not defined"),
        ("$a: $a: ret;", "label $a is defined twice"),
        ("ld.param.u64 %rd2, [z];", "no parameter z"),
        (".global .b8 data[16];", "an instruction, a label, .reg, .shared, .local or .loc"),
        ("ld.global.f32 %u9, [%rd0];", "register %u9, which is not declared"),
        ("mov.u64 %u1, %rd0;", "does not fit the register %u1"),
        ("mov.u32 %u1, 0z;", "`0z` is not a number"),
        ("/* never closed", "a comment does not end"),
    ] {
        finds(body, expected);
        finds(body, "line");
    }
}
