//! Text written by hand: what is refused, and the faults that need neither barriers nor shared memory.

use super::*;
use crate::{Sm, U32};

/// Forms that other compilers write and our kernels do not.
#[test]
fn signed_and_unordered_forms_follow_their_signs_and_their_nans() {
    // The store is out of bounds where the predicate holds: one way to see it from here.
    let holds = |body: &str| !hand(&format!("{body} @p st.global.f32 [%rd1+64], %f0;")).is_empty();
    assert!(holds("mov.u32 %u1, -3; setp.lt.s32 p, %u1, 2; mov.f32 %f0, 0f00000000;"));
    assert!(!holds("mov.u32 %u1, -3; setp.lt.u32 p, %u1, 2; mov.f32 %f0, 0f00000000;"));
    assert!(holds("mov.u32 %u1, -3; mul.wide.s32 %rd2, %u1, 5; setp.eq.s64 p, %rd2, -15; mov.f32 %f0, 0f00000000;"));
    assert!(holds("mov.u32 %u1, -3; mad.wide.s32 %rd2, %u1, 5, 20; setp.eq.u64 p, %rd2, 5; mov.f32 %f0, 0f00000000;"));
    assert!(holds("mov.u32 %u1, -3; cvt.s64.s32 %rd2, %u1; setp.lt.s64 p, %rd2, -2; mov.f32 %f0, 0f00000000;"));
    assert!(holds("mov.u32 %u1, -3; cvt.u64.u32 %rd2, %u1; setp.gt.s64 p, %rd2, 0; mov.f32 %f0, 0f00000000;"));
    assert!(holds("mov.u32 %u1, -3; mad.lo.s32 %u2, %u1, %u1, -10; setp.eq.s32 p, %u2, -1; mov.f32 %f0, 0f00000000;"));
    assert!(holds("mov.u64 %rd2, -3; mul.lo.s64 %rd2, %rd2, %rd2; setp.eq.u64 p, %rd2, 9; mov.f32 %f0, 0f00000000;"));
    assert!(holds(
        "mov.u64 %rd2, 3; shl.b64 %rd2, %rd2, 40; setp.eq.u64 p, %rd2, 3298534883328; mov.f32 %f0, 0f00000000;"
    ));
    assert!(holds("mov.f32 %f0, 0f7FC00000; setp.geu.f32 p, %f0, 0f3F800000;"));
    assert!(!holds("mov.f32 %f0, 0f7FC00000; setp.ge.f32 p, %f0, 0f3F800000;"));
    assert!(holds("mov.f32 %f0, 0fC0333333; cvt.rzi.f32.f32 %f0, %f0; setp.eq.f32 p, %f0, 0fC0000000;"));
}

#[test]
fn accesses_outside_an_allocation_are_found_with_their_rust_line() {
    let message = fault("ld.global.f32 %f0, [%rd0+16];");
    assert!(message.contains("by/hand.rs:42") && message.contains("bytes 16..20 of `x`, which has 16"), "{message}");
    let message = fault("ld.global.f32 %f0, [%rd0-4];");
    assert!(message.contains("below all allocations"), "{message}");
    let message = fault("mov.u64 %rd2, 64; ld.global.f32 %f0, [%rd2];");
    assert!(message.contains("below all allocations"), "{message}");
    let message = fault("ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%rd0+8];");
    assert!(message.contains("expected a multiple of 16"), "{message}");
}

#[test]
fn reads_of_uninitialized_values_are_found() {
    let all = hand("add.u32 %u1, %u2, 1; st.global.u32 [%rd1], %u1;").join("\n");
    assert!(all.contains("register %u1, which was never written or is computed"), "{all}");
    assert!(fault("ld.global.f32 %f0, [%rd1];").contains("byte 0 of `y`, which was never written"));
    assert!(fault("setp.lt.u32 p, %u0, 4; @q mov.u32 %u1, 1;").contains("register q, which was never written"));
    assert!(fault("setp.lt.u32 p, %u0, 2; @p mov.u32 %u1, 1; add.u32 %u2, %u1, 1; mad.wide.u32 %rd2, %u0, 4, %rd1; st.global.u32 [%rd2], %u2;").contains("thread [2, 0, 0]"));
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
    assert!(fault(written).contains("writes byte 0 of `y`, which thread [0, 0, 0]"), "{}", fault(written));
    let own = "mad.wide.u32 %rd2, %u0, 4, %rd0; ld.global.f32 %f0, [%rd2];";
    assert_eq!(hand(&format!("{own} st.global.f32 [%rd2], %f0;")), [""; 0], "every thread has its own word");
    let first_reads = "ld.global.f32 %f0, [%rd0]; setp.eq.u32 p, %u0, 3; @p st.global.f32 [%rd0], %f0;";
    assert!(
        fault(first_reads).contains("writes byte 0 of `x`, which several threads of warp 0"),
        "{}",
        fault(first_reads)
    );
    let first_writes = format!("{own} setp.eq.u32 p, %u0, 0; @p st.global.f32 [%rd2], %f0; ld.global.f32 %f1, [%rd0];");
    assert!(fault(&first_writes).contains("reads byte 0 of `x`, which thread [0, 0, 0]"), "{}", fault(&first_writes));
}

#[test]
fn constant_loads_of_what_the_kernel_writes_are_found() {
    let own = "mad.wide.u32 %rd2, %u0, 4, %rd0;";
    let after = format!("{own} ld.global.nc.f32 %f0, [%rd2]; st.global.f32 [%rd2], %f0;");
    assert!(fault(&after).contains("which the kernel has read as constant"), "{}", fault(&after));
    let before = format!("{own} mov.f32 %f0, 0f00000000; st.global.f32 [%rd2], %f0; ld.global.nc.f32 %f1, [%rd2];");
    assert!(fault(&before).contains("as constant, and the kernel has written it"), "{}", fault(&before));
}

#[test]
fn a_loop_without_an_end_is_found() {
    assert!(fault("$again: bra $again;").contains("a loop does not end"));
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
        let message = fault(body);
        assert!(message.contains(expected) && message.contains("line"), "{body}: {message}");
    }
}

#[test]
fn a_launch_that_does_not_fit_is_refused() {
    let mut module = crate::Module::new(Sm::Sm80);
    module.entry("kernel", [32, 1, 1], |k| {
        k.ld_param(k.param::<U32>("n"));
    });
    let module = Module::parse(&module.text()).expect("the text is read");
    assert_eq!(module.entry_names().collect::<Vec<_>>(), ["kernel"]);
    let try_launch = |entry: &str, grid, block, arguments: &[Argument]| {
        let launch = Launch { grid, block, shared_bytes: 0 };
        module.launch(entry, launch, arguments, &mut Memory::new(), &Options::default())
    };
    let n = [Argument::U32(1)];
    try_launch("kernel", [1, 1, 1], [32, 1, 1], &n).expect("this one fits");
    assert!(try_launch("other", [1, 1, 1], [32, 1, 1], &n).is_err());
    assert!(try_launch("kernel", [0, 1, 1], [32, 1, 1], &n).is_err());
    assert!(try_launch("kernel", [1, 65_536, 1], [32, 1, 1], &n).is_err());
    assert!(try_launch("kernel", [1, 1, 1], [64, 1, 1], &n).is_err());
    assert!(try_launch("kernel", [1, 1, 1], [32, 1, 1], &[]).is_err());
    assert!(try_launch("kernel", [1, 1, 1], [32, 1, 1], &[Argument::U64(1)]).is_err());
}
