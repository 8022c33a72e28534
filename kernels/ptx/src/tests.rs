//! Text of modules.

use super::*;

/// One entry with the body `body`, for sm_80.
fn module(body: impl FnOnce(&Entry)) -> Module {
    let mut module = Module::new(Sm::Sm80);
    module.entry("kernel", [32, 1, 1], body);
    module
}

/// The instructions and labels of a listing, without declarations.
fn body(module: &Module) -> Vec<String> {
    let listing = module.listing();
    let (_, body) = listing
        .split_once("\n\n    ")
        .map_or((listing.as_str(), ""), |(_, rest)| rest.split_once("\n\n").unwrap_or(("", rest)));
    body.lines().map(|line| line.trim().to_string()).filter(|line| line != "}").collect()
}

#[test]
fn the_same_calls_give_the_same_text() {
    let build = || {
        module(|k| {
            let x = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("x")));
            k.for_(0, 8, 2, |i| {
                let at = k.index(x, i, 4).at(0);
                let [a, b] = k.ld::<F32, 2>(at);
                k.st(at, [k.fma(a, b, 1.5f32), k.add(a, b)]);
            });
        })
        .text()
    };
    assert_eq!(build(), build());
}

#[test]
fn one_call_writes_one_instruction() {
    let module = module(|k| {
        let a = k.mov::<F32>(1.0f32);
        let b = k.fma(a, 2.0f32, -0.0f32);
        k.max(k.neg(a), b);
        k.shl(k.mov::<U32>(3u32), 4);
    });
    let expected = [
        "mov.f32 %f0, 0f3F800000;",
        "fma.rn.f32 %f1, %f0, 0f40000000, 0f80000000;",
        "neg.f32 %f2, %f0;",
        "max.f32 %f3, %f2, %f1;",
        "mov.u32 %u0, 3;",
        "shl.b32 %u1, %u0, 4;",
        "ret;",
    ];
    assert_eq!(body(&module), expected);
}

#[test]
fn a_polynomial_is_horners_chain_from_the_highest_power_down() {
    let module = module(|k| {
        k.horner(k.mov(2.0f32), &[1.0, 2.0, 3.0]);
    });
    let expected = [
        "mov.f32 %f0, 0f40000000;",
        "fma.rn.f32 %f1, %f0, 0f40400000, 0f40000000;",
        "fma.rn.f32 %f2, %f1, %f0, 0f3F800000;",
        "ret;",
    ];
    assert_eq!(body(&module), expected);
}

#[test]
fn structures_place_their_own_labels() {
    let module = module(|k| {
        let n = k.mov::<U32>(5u32);
        let small = k.lt(n, 3u32);
        k.if_else(small, || k.assign(n, 1u32), || k.if_(small, || k.assign(n, 2u32)));
    });
    let expected = [
        "mov.u32 %u0, 5;",
        "setp.lt.u32 %p0, %u0, 3;",
        "@!%p0 bra $L0;",
        "mov.u32 %u0, 1;",
        "bra $L1;",
        "$L0:",
        "@!%p0 bra $L2;",
        "mov.u32 %u0, 2;",
        "$L2:",
        "$L1:",
        "ret;",
    ];
    assert_eq!(body(&module), expected);
}

#[test]
fn a_guard_covers_every_instruction_of_its_body_and_none_behind() {
    let module = module(|k| {
        let n = k.mov::<U32>(5u32);
        let p = k.lt(n, 3u32);
        k.when(p, || k.assign(n, k.add(n, 1u32)));
        k.assign(n, 7u32);
    });
    let expected = ["@%p0 add.u32 %u1, %u0, 1;", "@%p0 mov.u32 %u0, %u1;", "mov.u32 %u0, 7;", "ret;"];
    assert_eq!(body(&module)[2..], expected);
}

#[test]
#[should_panic(expected = "guarded body is straight-line code")]
fn a_branch_under_a_guard_is_refused() {
    module(|k| {
        let p = k.lt(k.mov::<U32>(5u32), 3u32);
        k.when(p, || k.if_(p, || ()));
    });
}

#[test]
fn vectors_list_their_registers_and_offsets_their_sign() {
    let module = module(|k| {
        let x = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("x")));
        let [a, b, c, d] = k.ld_nc::<Bf16x2, 4>(x.at(16), Cache::Keep);
        k.st(x.at(-8), [a, b]);
        k.st(x.at(0), [c]);
        k.st(x.at(4), [d]);
    });
    let expected = [
        "ld.param.u64 %rd0, [x];",
        "cvta.to.global.u64 %rd1, %rd0;",
        "ld.global.nc.v4.b32 {%bb0, %bb1, %bb2, %bb3}, [%rd1+16];",
        "st.global.v2.b32 [%rd1-8], {%bb0, %bb1};",
        "st.global.b32 [%rd1], %bb2;",
        "st.global.b32 [%rd1+4], %bb3;",
        "ret;",
    ];
    assert_eq!(body(&module), expected);
}

#[test]
fn the_version_is_the_lowest_that_has_what_is_used() {
    let load = |cache| {
        module(|k| {
            let x = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("x")));
            k.ld_nc::<F32, 1>(x.at(0), cache);
        })
        .version()
    };
    assert_eq!(load(Cache::Keep), Version(7, 0));
    assert_eq!(load(Cache::Stream), Version(7, 4));
    assert_eq!(Module::new(Sm::Sm90a).version(), Version(8, 0));
}

#[test]
fn each_instruction_points_to_the_rust_line_that_wrote_it() {
    let first = line!() + 3;
    let module = module(|k| {
        let n = k.param::<U32>("n");
        let n = k.ld_param(n);
        k.add(n, 1u32);
    });
    let text = module.text();
    assert!(text.contains("\n.file 1 \"src/tests.rs\"\n"), "{text}");
    for (line, instruction) in [(first, "ld.param.u32"), (first + 1, "add.u32")] {
        let at = text.find(instruction).expect("the instruction is there");
        let loc = text[..at].lines().rev().nth(1).expect("a line stands before it").trim();
        assert!(loc.starts_with(&format!(".loc 1 {line} ")), "{instruction} carries `{loc}`, not line {line}");
    }
}

#[test]
fn a_listing_is_the_text_without_its_lines() {
    let module = module(|k| {
        let n = k.mov::<U32>(5u32);
        k.comment("a comment");
        k.add(n, 1u32);
    });
    let text = module.text();
    assert!(text.contains(".loc"));
    let stripped: String = text
        .split_inclusive('\n')
        .filter(|line| !line.trim_start().starts_with(".loc") && !line.starts_with(".file"))
        .collect();
    assert_eq!(stripped, module.listing());
}

#[test]
fn names_that_ptx_could_not_read_are_refused() {
    for name in ["", "1st", "a-b", "a.b", "_a", "a b"] {
        let built = std::panic::catch_unwind(|| Module::new(Sm::Sm80).entry(name, [1, 1, 1], |_| ()));
        assert!(built.is_err(), "`{name}` was taken");
    }
}

#[test]
fn what_hopper_alone_has_is_refused_on_any_other_architecture() {
    // As sm_90a but for what no later architecture has kept.
    const LATER: &[Feature] = &[Feature::Mbarriers, Feature::MbarrierBytes, Feature::BulkCopies, Feature::Elect];
    let writes = |features, body: fn(&Entry)| {
        let mut module = Module::with_features(Sm::Sm90a, features);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| module.entry("kernel", [128, 1, 1], body))).is_ok()
    };
    let products: fn(&Entry) = |k| k.wgmma_fence();
    let fence: fn(&Entry) = |k| k.fence(Fence::AsyncShared);
    assert!(writes(Sm::Sm90a.features(), products) && writes(Sm::Sm90a.features(), fence));
    assert!(!writes(LATER, products) && writes(LATER, fence));
    assert!(!writes(Sm::Sm80.features(), products) && !writes(Sm::Sm80.features(), fence));
}
