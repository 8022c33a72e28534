//! Lesson 6: a kernel in PTX and its race.

use ptx::Launch;
use ptx::sim::{Argument, Memory, Module, Options, Schedule};

/// The sum of 64 elements by 64 threads. Each stores its element to shared memory; then the first 32 threads add elements that are
/// 32 apart, the first 16 those that are 16 apart, and so on.
pub(crate) const EXERCISE: &str = r#"
.version 7.4
.target sm_80
.address_size 64
.visible .entry row_sum(.param .u64 x, .param .u64 y)
{
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .b64 %d<4>;
    .reg .f32 %f<2>;
    .shared .align 4 .b8 sums[256];
    ld.param.u64 %d0, [x];
    ld.param.u64 %d1, [y];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d2, %r0, 4;
    add.u64 %d3, %d0, %d2;
    ld.global.f32 %f0, [%d3];
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, sums;
    add.u32 %r1, %r1, %r2;       // address of this thread's element
    st.shared.f32 [%r1], %f0;
    mov.u32 %r3, 32;             // distance
HALVE:
    // The gap: one instruction, here or in another line. It must not be executed by a part of the threads.
    setp.ge.u32 %p0, %r0, %r3;
    @%p0 bra NEXT;
    shl.b32 %r4, %r3, 2;
    add.u32 %r4, %r1, %r4;
    ld.shared.f32 %f1, [%r4];
    add.f32 %f0, %f0, %f1;
    st.shared.f32 [%r1], %f0;
NEXT:
    shr.u32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra HALVE;
    setp.ne.u32 %p2, %r0, 0;
    @%p2 bra END;
    st.global.f32 [%d1], %f0;
END:
    ret;
}
"#;

/// Runs the kernel with several orders of the warps.
pub(crate) fn check(text: &str) {
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let launch = Launch { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    for schedule in [Options::default().schedule, Schedule::Adversarial(1), Schedule::Adversarial(2)] {
        let mut memory = Memory::new();
        let (from, to) = (memory.allocate_from("x", &x), memory.allocate_from("y", &[f32::NAN]));
        let arguments = [Argument::U64(from), Argument::U64(to)];
        let options = Options { schedule, ..Options::default() };
        let report =
            module.launch("row_sum", launch, &arguments, &mut memory, &options).expect("the launch fits the kernel");
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        assert_eq!(memory.read::<f32>(to).expect("y is a buffer"), [2016.0]);
    }
}

exercise_tests!(
    check(EXERCISE),
    "race: `ld.shared.f32` reads byte 64 of `shared memory`, which thread [16, 0, 0] (`st.shared.f32`, PTX line 31) writes,"
);
