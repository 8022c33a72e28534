//! Checks the machine code of the microkernel in a disassembled program.
//!
//! Builds with assertions have checks inside the loops, so the test needs an optimized program. `MACHINE_CODE_OF` names
//! one, so that a test without optimization can check a shipped program:
//! `MACHINE_CODE_OF=$PWD/target/release/albert cargo test -p albert-kernels-proof machine_code`.
//! Without the variable the test checks its own program:
//! `cargo test --release -p albert-kernels-proof machine_code`.

use kernels::gemm::RegisterTile;
use std::{collections::BTreeMap, process::Command};

/// An instruction as objdump prints it.
struct Instruction<'a> {
    address: u64,
    name: &'a str,
    operands: &'a str,
}

fn parse(line: &str) -> Option<Instruction<'_>> {
    let (address, rest) = line.trim_start().split_once(":\t")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (name, operands) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    Some(Instruction { address, name, operands: operands.trim() })
}

impl Instruction<'_> {
    /// Target of a jump.
    fn target(&self) -> Option<u64> {
        let target = self.name.starts_with('j').then(|| self.operands.split(' ').next())??;
        u64::from_str_radix(target, 16).ok()
    }
    fn is_multiply_add(&self, register: &str) -> bool {
        self.name.starts_with("vfmadd") && self.name.ends_with("ps") && self.operands.starts_with(register)
    }
    /// True if it broadcasts a value of A. Constants, such as the coefficients of `exp`, are addressed by `rip`.
    fn is_factor(&self) -> bool {
        self.name == "vbroadcastss" && self.operands.contains('[') && !self.operands.contains("[rip")
    }
    /// True if it writes to memory: in this syntax the destination comes first.
    fn stores(&self) -> bool {
        let reads = ["cmp", "test", "prefetch", "nop", "j", "vucomiss"];
        self.operands.split(',').next().is_some_and(|first| first.contains('['))
            && !reads.iter().any(|read| self.name.starts_with(read))
    }
    /// True if it reads a vector from the stack: relative to `rsp`, or below `rbp`. Other uses of `rbp` are ordinary
    /// pointers.
    fn reloads(&self) -> bool {
        self.operands.contains("mm") && (self.operands.contains("[rsp") || self.operands.contains("[rbp-"))
    }
}

/// Innermost loops: from the target of a backward jump to the jump, without another jump in between.
fn innermost<'a>(code: &'a [Instruction<'a>]) -> Vec<&'a [Instruction<'a>]> {
    let mut loops = Vec::new();
    let mut after_jump = 0;
    for (end, instruction) in code.iter().enumerate() {
        let is_jump = instruction.name.starts_with('j') || instruction.name == "ret";
        let body = &code[after_jump..=end];
        let back = instruction.target().filter(|&target| target <= instruction.address);
        let start = back.and_then(|target| body.binary_search_by_key(&target, |body| body.address).ok());
        loops.extend(start.map(|start| &body[start..]));
        if is_jump {
            after_jump = end + 1;
        }
    }
    loops
}

/// Calls, stores and stack reloads in a loop.
fn flaws(body: &[Instruction<'_>]) -> Vec<String> {
    let bad = |i: &&Instruction<'_>| i.name.starts_with("call") || i.stores() || i.reloads();
    body.iter().filter(bad).map(|i| format!("{:x}: {} {}", i.address, i.name, i.operands)).collect()
}

#[test]
fn microkernel_loops_neither_call_nor_spill() {
    let program = match std::env::var_os("MACHINE_CODE_OF") {
        Some(program) => program.into(),
        None if cfg!(debug_assertions) => {
            println!("SKIPPED: this build has assertions in its loops; set MACHINE_CODE_OF to an optimized program");
            return;
        }
        None => std::env::current_exe().expect("a test has a program"),
    };
    assert!(program.is_file(), "MACHINE_CODE_OF: {} is not a file", program.display());
    let listing = Command::new("objdump").args(["-d", "--no-show-raw-insn", "-M", "intel"]).arg(program).output();
    let Some(listing) = listing.ok().filter(|listing| cfg!(target_arch = "x86_64") && listing.status.success()) else {
        println!("SKIPPED: objdump for x86-64 is not available");
        return;
    };
    let listing = String::from_utf8_lossy(&listing.stdout);
    let code: Vec<_> = listing.lines().filter_map(parse).collect();
    let loops = innermost(&code);
    for (lanes, register) in [(16, "zmm"), (8, "ymm")] {
        let RegisterTile { rows: mr, vectors: nv } = RegisterTile::of_lanes(lanes);
        let mut found = BTreeMap::new();
        for body in &loops {
            let count = |is: &dyn Fn(&Instruction<'_>) -> bool| body.iter().filter(|i| is(i)).count();
            let products = count(&|i| i.is_multiply_add(register));
            let factors = count(&|i| i.is_factor());
            if products == nv * factors && (factors == mr || factors == mr - 1) {
                let flaws = flaws(body);
                assert!(
                    flaws.is_empty(),
                    "the loop of {factors} x {nv} {register} at {:x} calls or spills: {flaws:#?}",
                    body[0].address
                );
                *found.entry(factors).or_insert(0) += 1;
            }
        }
        println!("{register}: loops by rows of the tile: {found:?}");
        // One loop for A in rows (`product_strided`) and one for A in groups (`product_packed`).
        assert!(
            found.get(&mr).is_some_and(|&loops| loops >= 2),
            "{register}: expected at least 2 loops of {mr} rows, found {found:?}"
        );
    }
}

#[test]
fn constants_are_not_factors() {
    let is_factor = |line| parse(line).is_some_and(|instruction| instruction.is_factor());
    assert!(is_factor("  16:\tvbroadcastss ymm1,DWORD PTR [rdi+r8*4]"));
    assert!(!is_factor("  16:\tvbroadcastss ymm1,DWORD PTR [rip+0x4]        # 20 <f>"));
    assert!(!is_factor("  16:\tvbroadcastss ymm1,xmm1"));
}

#[test]
fn calls_and_spills_are_found() {
    let clean =
        "  10:\tvfmadd231ps zmm0,zmm1,zmm2\n  16:\tvbroadcastss zmm1,DWORD PTR [rdi+0x4]\n  1c:\tjne    10 <f+0x4>\n";
    let flawed = [
        "  16:\tcall   500 <g>",
        "  16:\tvmovups ZMMWORD PTR [rsp+0x40],zmm3",
        "  16:\tvmovups zmm3,ZMMWORD PTR [rsp+0x40]",
        "  16:\tvfmadd231ps zmm3,zmm1,ZMMWORD PTR [rsp+0x80]",
        "  16:\tvmovups zmm3,ZMMWORD PTR [rbp-0x80]",
        "  16:\tmov    QWORD PTR [rsp],rax",
    ];
    let count = |text: &str| {
        let code: Vec<_> = text.lines().filter_map(parse).collect();
        let loops = innermost(&code);
        assert_eq!(loops.len(), 1, "{text}");
        flaws(loops[0]).len()
    };
    assert_eq!(count(clean), 0);
    for line in flawed {
        let text = clean.replace("  16:\tvbroadcastss zmm1,DWORD PTR [rdi+0x4]", line);
        assert_eq!(count(&text), 1, "{text}");
    }
}
