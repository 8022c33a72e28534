//! Hostile texts and launches: each is refused with a sentence and a line, at once and in little memory.

use super::*;

/// The error of a module with these directives and an entry with this body.
#[track_caller]
fn refused(directives: &str, body: &str) -> String {
    super::refused(&format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n{directives}\n.entry kernel(.param .u64 x)\n{{\n{body}\nret;\n}}\n"
    ))
}

#[test]
fn sizes_beyond_what_a_device_has_are_refused_with_their_line() {
    for (directives, body, expected) in [
        (".global .align 0 .b8 a[4];", "", "line 4: expected a power of two as alignment, found 0"),
        (".global .align 3 .b8 a[4];", "", "power of two"),
        (".global .align 1099511627776 .b8 a[4];", "", "an alignment is too large"),
        (".global .b8 a[1125899906842624];", "", "line 4: a has too many bytes; expected at most 4294967296"),
        (".global .b8 a[4294967296][4294967296][4294967296];", "", "a has too many bytes"),
        (".global .b8 a[4294967296]; .global .b8 b[1];", "", "the module's variables have too many bytes"),
        (".global .b8 a[4294967295] = {1}, b[2];", "", "the module's variables have too many bytes"),
        (".shared .b8 a[4294967296];", "", "line 4: a has too many bytes"),
        (".global .pred p;", "", "expected a type"),
        ("", ".shared .b8 a[4294967296];", "line 7: a has too many bytes; expected at most 232448"),
        ("", ".shared .b8 a[232448]; .shared .b8 b[1];", "the entry's variables have too many bytes"),
        ("", ".local .b8 a[4294967300];", "line 7: a has too many bytes; expected at most 524288"),
        ("", ".local .align 0 .b8 a[4];", "line 7: expected a power of two"),
        ("", ".reg .b32 %r<4294967295>;", "line 7: the entry has too many registers; expected at most 1048576"),
        ("", ".reg .b32 %r<4294967297>;", "too many registers"),
        ("", ".reg .b32 %r<100000000>;", "too many registers"),
        ("", ".reg .b32 %r<1000000>, %s<1000000>;", "too many registers"),
        ("", ".loc 1 4294967296 1", "a line's number is too large"),
        (".entry other(.param .b8 p[4294967296]) {}", "", "line 4: p has too many bytes; expected at most 32764"),
        (".entry other(.param .b8 p[]) {}", "", "the parameter p has no bytes"),
        (".entry other() .reqntid 4294967297 {}", "", "a number of threads is too large"),
        (".entry other() .maxnreg 4294967296 {}", "", "a number of registers is too large"),
    ] {
        let message = refused(directives, body);
        assert!(message.contains(expected) && message.contains("PTX line"), "{directives} {body}: {message}");
    }
}

#[test]
fn a_text_that_ends_early_is_refused_wherever_it_ends() {
    let text = ".version 8.0\n.target sm_80\n.global .attribute(.managed) .align 4 .b8 a[4] = {1, 2};\n\
        .entry kernel(.param .align 8 .b8 p[8]) .reqntid 32, 1, 1 { .reg .b32 %r<4>; @!%p add.u32 %r1, {%r2}, [%r3+4]; }";
    (0..text.len()).for_each(|end| drop(super::refused(&text[..end])));
    let message = super::refused(".global .attribute(");
    assert_eq!(message, "PTX line 1: expected `)`, found the end of the text");
}

#[test]
fn nesting_is_bounded_and_costs_no_stack() {
    for open in ["{", "(", "[", "{ {", "mov.b32 {", "add.u32 (", "ld.u32 [", "@p {", "add.u32 %r, {{"] {
        for times in [65, 200_000] {
            let message = refused("", &open.repeat(times));
            assert!(message.contains("PTX line"), "{open}: {message}");
        }
    }
    let message = refused(&format!(".global .b8 a[1] = {}1", "{".repeat(200_000)), "");
    assert!(message.contains("braces are nested too deeply; expected at most 64, found 65"), "{message}");
    let deep = |depth: usize| format!("{}{}", "{".repeat(depth), "}".repeat(depth));
    assert!(refused("", &deep(64)).contains("braces are nested too deeply"));
    let text = format!(".version 8.0\n.target sm_80\n.entry kernel() {{ {} ret; }}", deep(63));
    let module = Module::parse(&text).expect("directives alone are read");
    module.decode("kernel").expect("63 scopes within the body's are few enough");
}

#[test]
fn lists_and_branch_tables_are_bounded() {
    let message = refused("", &format!("mov.b32 {{{}}}, 1;", "a,".repeat(100_000)));
    assert!(message.contains("more than 512 operands"), "{message}");
    // A table of n labels that n branches use would take n² entries.
    let branches = "brx.idx %r, table;".repeat(2000);
    let table = format!(".reg .b32 %r; a: mov.u32 %r, 0; table: .branchtargets {}a; {branches}", "a,".repeat(2000));
    let message = refused("", &table);
    assert!(message.contains("too many branch targets; expected at most 1048576"), "{message}");
}

#[test]
fn grids_and_blocks_are_bounded() {
    let text = ".version 8.0\n.target sm_80\n.entry kernel() { .reg .b64 %d<300000>; ret; }\n\
        .entry reads(.param .u32 n) .reqntid 32, 1, 1 { ret; }\n\
        .entry wide() .maxntid 2147483647, 2147483647, 2147483647 .reqnctapercluster 65536, 65536, 65536 { ret; }";
    let module = Module::parse(text).expect("the text is read");
    let launch = |entry: &str, grid, block, arguments: &[Argument]| {
        let launch = Launch { grid, block, shared_bytes: 0 };
        module.launch(entry, launch, arguments, &mut Memory::new(), &Options::default()).map(|_| ())
    };
    let n = &[Argument::U32(1)][..];
    launch("kernel", [2, 1, 1], [32, 1, 1], &[]).expect("this one fits");
    launch("reads", [1, 1, 1], [32, 1, 1], n).expect("this one fits");
    for (entry, grid, block, arguments, expected) in [
        ("kernel", [2_147_483_647, 1, 1], [1, 1, 1], &[][..], "expected at most 4194304 blocks, found 2147483647"),
        ("kernel", [2_147_483_647, 65_535, 65_535], [1, 1, 1], &[], "expected at most 4194304 blocks"),
        ("kernel", [1, 1, 1], [u32::MAX, u32::MAX, u32::MAX], &[], "no block of"),
        ("kernel", [1, 1, 1], [1024, 1, 1], &[], "with 1024 threads of 300041 registers takes too much memory"),
        ("wide", [1, 1, 1], [1, 1, 1], &[], "blocks; expected 1 to 8"),
        ("other", [1, 1, 1], [32, 1, 1], n, "no entry `other`"),
        ("reads", [0, 1, 1], [32, 1, 1], n, ""),
        ("reads", [1, 65_536, 1], [32, 1, 1], n, ""),
        ("reads", [1, 1, 1], [64, 1, 1], n, ""),
        ("reads", [1, 1, 1], [32, 1, 1], &[], ""),
        ("reads", [1, 1, 1], [32, 1, 1], &[Argument::U64(1)], ""),
    ] {
        let error = launch(entry, grid, block, arguments);
        let error = error.expect_err(&format!("{entry} {grid:?} {block:?} {arguments:?}")).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_kernel_without_an_end_ends_with_a_finding() {
    let text = ".version 8.0\n.target sm_80\n.entry one() { again: bra again; }\n.global .u32 flag;\n\
        .entry all() { .reg .b32 %r; .reg .pred %p; again: ld.volatile.global.u32 %r, [flag]; setp.eq.u32 %p, %r, 0; @%p bra again; }";
    for limits in [Limits::default(), Limits::SMALL] {
        let module = Module::parse_within(text, limits).expect("the text is read");
        for entry in ["one", "all"] {
            let launch = Launch { grid: [3, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
            let options = Options { max_instructions: 50_000, ..Options::default() };
            let report = module.launch(entry, launch, &[], &mut Memory::new(), &options).expect("the launch fits");
            let endless = report.findings.iter().find(|finding| finding.kind == FindingKind::Endless);
            assert!(endless.expect(entry).to_string().contains("a loop does not end"), "{entry}");
        }
    }
}

#[test]
fn packing_has_registers_of_the_width_of_its_parts() {
    const REGISTERS: &str = ".reg .b64 %d<4>; .reg .b32 %r<8>; .reg .b16 %h<8>; .reg .pred %p;";
    for (line, expected) in [
        ("mov.b128 %d0, {%d1, %d2};", "`mov.b128` is not known"),
        ("mov.b128 {%d1, %d2}, %d0;", "`mov.b128` is not known"),
        ("mov.b64 %d0, {%r0, %r1, %r2};", "cannot have a list of 3 parts"),
        ("mov.b64 %d0, {%h0, %h1};", "does not fit the register %h0"),
        ("mov.b64 {%h0, %h1}, %d0;", "does not fit the register %h0"),
        ("mov.b32 {%r0, %r1}, %r2;", "does not fit the register %r0"),
        ("mov.b32 %r0, {%r1, %r2};", "does not fit the register %r1"),
        ("mov.b64 {%r0, %r1}, {%r2, %r3};", "packs or unpacks, not both"),
        ("mov.b64 %d0, {{%r0}, {%r1}};", "cannot have a list of 2 parts"),
        ("mov.b64 %d0, {};", "cannot have a list of 0 parts"),
        ("mov.b16 %h0, {%h1, %h2, %h3, %h4};", "cannot have a list of 4 parts"),
        ("mov.pred %p, {%p, %p};", "cannot have a list"),
        ("add.u32 %r0, {%r1, %r2};", "expected 3"),
        ("add.u32 %r0, {%r1, %r2}, %r3;", "does not take a list"),
        ("add.u32 {%r0, %r1}, %r2, %r3;", "does not take a list"),
        ("add.u32 %r0|%r1, %r2, %r3;", "does not take two destinations"),
        ("add.u32 %r0, !%p, %r3;", "does not take a negated predicate"),
        ("setp.eq.u32 %p, !%p, %r3;", "does not take a negated predicate"),
        ("ld.global.u32 %r0, [%d0, {%r1, %r2}];", "does not take an address with coordinates"),
        ("ld.global.u32 %r0, [{%d0, %d1}];", "does not take an address of this form"),
        ("ld.global.v2.u32 {%r0, %r1, %r2}, [%d0];", "names 3 values; expected 2"),
        ("st.global.v2.u32 [%d0], {%r0, %r1, %r2, %r3};", "names 4 values; expected 2"),
        ("red.global.add.u32 [%d0], {%r0, %r1};", "names 2 values; expected 1"),
        ("bra table;", "the label table is not defined"),
    ] {
        let message = refused("", &format!("{REGISTERS}\n{line}"));
        assert!(message.contains(expected), "{line}: {message}");
    }
}

#[test]
fn only_what_is_launched_has_to_be_understood() {
    let text = ".version 8.0\n.target sm_80\n.global .u64 table[2] = {one, other};\n\
        .entry unknown() { frobnicate.b32 %r1; .weird; }\n\
        .func (.reg .b32 %a) helper() { nothing.known; ret; }\n\
        .entry uses() { .reg .b64 %d; mov.u64 %d, table; ret; }\n\
        .entry one(.param .u64 y) { .reg.b16 %h; .reg.b32%r<2>; .reg.b64 %d; ld.param.u64 %d, [y]; mov.b16 %h, 7; cvt.u32.u16 %r1, %h; st.global.u32 [%d], %r1; ret; }";
    let module = Module::parse(text).expect("the directives are read");
    assert_eq!(module.entry_names().collect::<Vec<_>>(), ["unknown", "uses", "one"]);
    let mut memory = Memory::new();
    let y = memory.allocate("y", 4);
    clean(module.launch("one", ONE, &[Argument::U64(y)], &mut memory, &Options::default()));
    assert_eq!(memory.read::<u32>(y), Ok(vec![7]));
    let message = |entry: &str| module.decode(entry).expect_err(entry).to_string();
    for (entry, expected) in [
        ("unknown", "line 4"),
        ("uses", "the initializer of `table` (line 3) is not made of numbers"),
        ("none", "no entry `none`"),
    ] {
        assert!(message(entry).contains(expected), "{}", message(entry));
    }
}

#[test]
fn a_tensor_map_that_no_driver_makes_is_none() {
    let good = TensorMap::matrix(0x1000, TensorType::F32, [64, 64], [8, 16], Swizzle::None).expect("it fits");
    for at in [8, 17, 24, 64, 96, 106] {
        for value in [0, 0xFF] {
            let mut bytes = good.to_bytes();
            bytes[at..at + 2].fill(value);
            if let Some(map) = TensorMap::from_bytes(&bytes) {
                assert!(map.tile_bytes() <= 227 << 10 && !map.element_strides.contains(&0), "{map:?}");
            }
        }
    }
    let large = TensorMap::new(0, TensorType::F32, &[1 << 20; 5], &[1 << 24; 4], &[256; 5], Swizzle::None);
    assert!(large.expect_err("it fits no shared memory").to_string().contains("bytes"));
}
