//! Places that inexact values may reach.

use super::*;

/// Lines after the approximate sine, %f0, of the first branch, address and output that it reaches. The first line is 0.
#[track_caller]
fn reached(body: &str) -> [Option<u32>; 3] {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel(.param .u64 x)\n{{\n\
         .reg .u64 %rd<8>; .reg .u32 %u<8>; .reg .f32 %f<8>; .reg .pred p, q;\n.shared .align 16 .b8 s[64];\n\
         ld.param.u64 %rd0, [x];\nld.global.f32 %f7, [%rd0];\nex2.approx.ftz.f32 %f6, %f7;\nsin.approx.f32 %f0, %f7;\n{body}\n\
         DONE: ret;\n}}\n"
    );
    let first = text.lines().position(|line| line.starts_with("sin")).expect("the sine is in the text") as u32 + 2;
    let Reach { branch, address, output } = Module::parse(&text).unwrap().reach("kernel").unwrap();
    [branch, address, output].map(|place| place.map(|place| place.line - first))
}

#[test]
fn inexact_values_are_followed_through_registers_and_memory() {
    // Exact values, and inexact ones that go nowhere.
    assert_eq!(reached("st.global.f32 [%rd0], %f6;"), [None; 3]);
    assert_eq!(reached("st.shared.f32 [s], %f0;\nst.local.f32 [16], %f0;\nst.global.f32 [%rd0], %f7;"), [None; 3]);
    // Registers, whatever the order of the text; packed, converted, shuffled.
    assert_eq!(reached("add.f32 %f1, %f7, %f0;\nst.global.f32 [%rd0], %f1;"), [None, None, Some(1)]);
    assert_eq!(
        reached("AGAIN: st.global.v2.f32 [%rd0], {%f7, %f1};\nmov.f32 %f1, %f0;\nbra AGAIN;"),
        [None, None, Some(0)]
    );
    let shuffled = "mov.b32 %u0, %f0;\nshfl.sync.bfly.b32 %u1|q, %u0, 1, 31, -1;\nst.global.u32 [%rd0], %u1;";
    assert_eq!(reached(shuffled), [None, None, Some(2)]);
    // Shared and local memory, and a matrix of it.
    assert_eq!(
        reached("st.shared.f32 [s], %f0;\nld.shared.f32 %f1, [s+4];\nst.global.f32 [%rd0], %f1;"),
        [None, None, Some(2)]
    );
    assert_eq!(
        reached("st.local.f32 [16], %f0;\nld.local.f32 %f1, [16];\nst.global.f32 [%rd0], %f1;"),
        [None, None, Some(2)]
    );
    let matrix =
        "st.shared.f32 [s], %f0;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%u0}, [s];\nst.global.u32 [%rd0], %u0;";
    assert_eq!(reached(matrix), [None, None, Some(2)]);
    let bulk = "st.shared.f32 [s], %f0;\ncp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], 16;";
    assert_eq!(reached(bulk), [None, None, Some(1)]);
    // A generic address may be in any space.
    assert_eq!(
        reached("st.f32 [%rd0], %f0;\nld.shared.f32 %f1, [s];\nst.global.f32 [%rd0+8], %f1;"),
        [None, None, Some(0)]
    );
    assert_eq!(
        reached("st.shared.f32 [s], %f0;\nld.f32 %f1, [%rd0];\nst.global.f32 [%rd0+8], %f1;"),
        [None, None, Some(2)]
    );
    // What was written to global memory may be read again.
    assert_eq!(
        reached("red.global.add.f32 [%rd0], %f0;\nld.global.u64 %rd1, [%rd0];\nld.global.f32 %f1, [%rd1];"),
        [None, Some(2), Some(0)]
    );
}

#[test]
fn inexact_values_that_choose_are_named() {
    let index =
        "cvt.rzi.u64.f32 %rd1, %f0;\nadd.u64 %rd1, %rd1, %rd0;\nld.global.f32 %f1, [%rd1];\nst.global.f32 [%rd0], %f1;";
    assert_eq!(reached(index), [None, Some(2), Some(3)]);
    let copy = "cvt.rzi.u32.f32 %u0, %f0;\ncp.async.ca.shared.global [s], [%rd0], 16, %u0;";
    assert_eq!(reached(copy), [None, Some(1), None]);
    let compared = "setp.gt.f32 p, %f0, 0f00000000;\n";
    assert_eq!(reached(&format!("{compared}@p bra DONE;\nst.global.f32 [%rd0], %f7;")), [Some(1), None, None]);
    assert_eq!(reached(&format!("{compared}@!p st.global.f32 [%rd0], %f7;")), [Some(1), None, Some(1)]);
    // A selection does not branch.
    assert_eq!(
        reached(&format!("{compared}selp.f32 %f1, %f7, %f6, p;\nst.global.f32 [%rd0], %f1;")),
        [None, None, Some(2)]
    );
}

#[test]
fn reach_names_a_missing_entry() {
    let module = Module::parse(".version 8.0\n.target sm_90a\n.address_size 64\n").unwrap();
    assert!(module.reach("kernel").unwrap_err().to_string().contains("no entry `kernel`"));
}
