//! Text of modules.

use super::*;

/// One entry with the body `body`, for sm_80.
fn module(body: impl FnOnce(&Entry)) -> Module {
    let mut module = Module::new(Sm::Sm80);
    module.entry("kernel", [32, 1, 1], body);
    module
}

#[test]
fn one_call_writes_one_instruction_and_structures_their_labels_and_guards() {
    let calls = |k: &Entry| {
        let a = k.mov::<F32>(1.0f32);
        let b = k.fma(a, 2.0f32, -0.0f32);
        k.max(k.neg(a), b);
        let n = k.mov::<U32>(5u32);
        let small = k.lt(n, 3u32);
        k.if_else(small, || k.assign(n, 1u32), || k.if_(small, || k.assign(n, 2u32)));
        k.when(small, || k.assign(n, k.shl(n, 4)));
        k.assign(n, 7u32);
    };
    let expected = [
        "mov.f32 %f0, 0f3F800000;",
        "fma.rn.f32 %f1, %f0, 0f40000000, 0f80000000;",
        "neg.f32 %f2, %f0;",
        "max.f32 %f3, %f2, %f1;",
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
        "@%p0 shl.b32 %u1, %u0, 4;",
        "@%p0 mov.u32 %u0, %u1;",
        "mov.u32 %u0, 7;",
        "ret;",
    ];
    let listing = module(calls).listing();
    let lines = listing.lines().map(str::trim).skip_while(|line| !line.starts_with("mov.f32"));
    assert_eq!(lines.filter(|line| *line != "}").collect::<Vec<_>>(), expected);
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
fn the_version_is_the_lowest_that_has_what_is_used() {
    let load = |cache| module(|k| _ = k.ld_nc::<F32, 1>(k.load_pointer("x").at(0), cache)).version();
    assert_eq!(load(Cache::Keep), Version(7, 0));
    assert_eq!(load(Cache::Stream), Version(7, 4));
    assert_eq!(Module::new(Sm::Sm90a).version(), Version(8, 0));
}

#[test]
fn each_instruction_points_to_the_rust_line_that_wrote_it_and_a_listing_has_no_such_lines() {
    let first = line!() + 2;
    let module = module(|k| {
        let n = k.load_param::<U32>("n");
        k.comment("a comment");
        k.add(n, 1u32);
    });
    let text = module.text();
    assert!(text.contains("\n.file 1 \"src/tests.rs\"\n"), "{text}");
    for (line, instruction) in [(first, "ld.param.u32"), (first + 2, "add.u32")] {
        let at = text.find(instruction).expect("the instruction is there");
        let loc = text[..at].lines().rev().nth(1).expect("a line stands before it").trim();
        assert!(loc.starts_with(&format!(".loc 1 {line} ")), "{instruction} carries `{loc}`, not line {line}");
    }
    let lines = text.split_inclusive('\n');
    let others = lines.filter(|line| !line.trim_start().starts_with(".loc") && !line.starts_with(".file"));
    assert_eq!(others.collect::<String>(), module.listing());
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
