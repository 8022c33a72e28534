//! PTX text, parsed, decoded and run on the simulated GPU.

use ptx::sim::{Limits, exercise};

/// Runs a module within the limits for mutated texts; its entries are launched with made-up arguments. The length of the
/// text selects the schedule.
pub(super) fn ptx(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    exercise(text, Limits::SMALL, bytes.len() as u64).is_ok_and(|exercised| exercised.launched > 0)
}

pub(super) fn ptx_seeds() -> Vec<Vec<u8>> {
    let ours = [
        include_str!("inputs/softmax.forward-bf16-sm80-1x256.ptx"),
        include_str!("inputs/elementwise-f32bf16-sm80-256x8-cast.ptx"),
    ];
    let third_party = [
        include_str!("inputs/total_sm80.ptx"),
        include_str!("inputs/transpose_sm80.ptx"),
        include_str!("inputs/ring_sm90a.ptx"),
    ];
    // An instruction of each kind, as small as possible.
    let dense =
        [include_str!("inputs/arithmetic.ptx"), include_str!("inputs/ampere.ptx"), include_str!("inputs/hopper.ptx")];
    let small = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry add(.param .u64 x, .param .u32 n)\n{\n\
        .reg .pred %p<2>; .reg .b32 %r<5>; .reg .f32 %f<4>; .reg .b64 %rd<4>;\n.shared .align 4 .b8 tile[128];\n\
        ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %rd2, %rd1;\n\
        mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r1; @%p1 bra END;\n\
        mul.wide.u32 %rd3, %r2, 4; add.s64 %rd3, %rd2, %rd3; ld.global.f32 %f1, [%rd3];\n\
        add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd3], %f2; bar.sync 0;\nEND: ret;\n}\n";
    ours.into_iter().chain(third_party).chain(dense).chain([small]).map(|text| text.as_bytes().to_vec()).collect()
}
