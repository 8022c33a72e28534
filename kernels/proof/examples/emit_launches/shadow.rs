//! Shadow of a Hopper program: the same text for a verifier that does not support `wgmma`.
//!
//! All synchronization is kept: mbarriers, phases, expected bytes, TMA, warp roles. A `wgmma` is replaced by its loads of
//! shared memory, by the 128 threads of its warpgroup, at the latest possible time: at the wait for its group.
//!
//! ```text
//! wgmma.mma_async {d}, a, b, ..   adds the descriptors to the current group
//! wgmma.commit_group              the previous group becomes `old`, the current one `new`
//! wgmma.wait_group 1              if old: ld.shared of all bytes of its operands
//! wgmma.wait_group 0              if old: the same; if new: the same
//! wgmma.fence, wgmma.wait_group   also bar.warp.sync, for `.sync.aligned`
//! setmaxnreg, griddepcontrol, prefetch.tensormap   removed
//! ```
//!
//! Wait loops branch on the predicate of `try_wait` itself, as the verifier requires. Operands have rows of 128 bytes,
//! swizzled (`SWIZZLE_128B`), as in all programs of the project. Results are meaningless: accumulators stay zero.

use std::{collections::BTreeSet, fmt::Write as _};

/// An operand in shared memory.
struct Operand {
    /// Register of the descriptor.
    descriptor: String,
    /// Rows of A or columns of B.
    rows: u32,
    /// True if k is the row dimension in memory.
    transposed: bool,
}

/// `wgmma` between two commits of the text.
struct Group {
    operands: Vec<Operand>,
}

/// Synchronization that `.sync.aligned` implies.
const MEET: &str = "    bar.warp.sync 0xFFFFFFFF;\n";

/// Instructions without effect on the order within a kernel.
const REMOVED: [&str; 3] = ["setmaxnreg", "griddepcontrol", "prefetch.tensormap"];

/// Replaces `wgmma` and removes [`REMOVED`].
pub(crate) fn shadow(listing: &str) -> String {
    let (mut groups, mut operands, mut results) = (Vec::<Group>::new(), Vec::new(), BTreeSet::new());
    // The first pass collects all groups, because declarations precede them.
    for line in listing.lines().map(str::trim) {
        if line.starts_with("wgmma.mma_async") {
            let (found, destinations) = read(line);
            operands.extend(found);
            results.extend(destinations);
        } else if line.starts_with("wgmma.commit_group") {
            groups.push(Group { operands: std::mem::take(&mut operands) });
        }
    }
    let mut out = String::new();
    let (mut at, mut next, mut waits) = (0, 0, 0);
    for line in listing.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("wgmma.mma_async") {
            for operand in read(trimmed).0 {
                let _ = writeln!(out, "    mov.u64 %made{at}_{next}, {};", operand.descriptor);
                next += 1;
            }
        } else if trimmed.starts_with("wgmma.commit_group") {
            commit(&mut out, &groups, at);
            (at, next) = (at + 1, 0);
        } else if let Some(left) = trimmed.strip_prefix("wgmma.wait_group.sync.aligned ") {
            wait(&mut out, &groups, left.starts_with('0'), waits);
            waits += 1;
        } else if trimmed.starts_with("wgmma.fence") {
            out.push_str(MEET);
        } else if !REMOVED.iter().any(|opcode| trimmed.starts_with(opcode)) {
            let _ = writeln!(out, "{line}");
            if trimmed == "{" {
                declare(&mut out, &groups);
            } else if trimmed.starts_with("ld.param") && !out.contains("%lane_of_group, %tid.x") {
                begin(&mut out, &groups, &results);
            }
        }
    }
    ask_directly(&out)
}

/// Rewrites `not q, p; @q bra` as `@!p bra`.
fn ask_directly(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let negation =
            line.trim().strip_prefix("not.pred ").and_then(|rest| rest.trim_end_matches(';').split_once(", "));
        let branch = negation.and_then(|(not, of)| {
            let target = lines.peek()?.trim().strip_prefix(&format!("@{not} bra "))?;
            Some(format!("    @!{of} bra {target}"))
        });
        let line = match branch {
            Some(branch) => {
                lines.next();
                branch
            }
            None => line.to_string(),
        };
        let _ = writeln!(out, "{line}");
    }
    out
}

/// Operands in shared memory, and accumulators, of a `wgmma`.
fn read(line: &str) -> (Vec<Operand>, Vec<String>) {
    let columns = line.split("64n").nth(1).and_then(|rest| rest.split('k').next()).and_then(|n| n.parse().ok());
    let columns: u32 = columns.expect("the shape has n");
    let mut rest = line;
    let mut braces = Vec::new();
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, behind) = after.split_once('}').expect("braces close");
        braces.push((before, inside));
        rest = behind;
    }
    let tail: Vec<&str> = rest.trim_matches([',', ';', ' ']).split(',').map(str::trim).collect();
    let flag = |at: usize| tail.get(tail.len() - at).is_some_and(|flag| *flag == "1");
    let operand = |descriptor: &str, rows, transposed| Operand { descriptor: descriptor.to_string(), rows, transposed };
    let operands = match braces.len() {
        1 => vec![operand(tail[0], 64, flag(2)), operand(tail[1], columns, flag(1))],
        _ => vec![operand(tail[0], columns, flag(1))],
    };
    (operands, braces[0].1.split(',').map(|register| register.trim().to_string()).collect())
}

fn declare(out: &mut String, groups: &[Group]) {
    for (g, group) in groups.iter().enumerate() {
        for (i, age) in (0..group.operands.len()).flat_map(|i| ["made", "new", "old"].map(|age| (i, age))) {
            let _ = writeln!(out, "    .reg .u64 %{age}{g}_{i};");
        }
        let _ = writeln!(out, "    .reg .u32 %has_new{g}, %has_old{g};");
    }
    out.push_str("    .reg .pred %has;\n    .reg .u32 %lane_of_group, %row, %chunk, %at, %bits, %low, %leading;\n");
    out.push_str("    .reg .u64 %field;\n    .reg .b32 %seen<4>;\n");
}

fn begin(out: &mut String, groups: &[Group], results: &BTreeSet<String>) {
    out.push_str("    mov.u32 %lane_of_group, %tid.x;\n    and.b32 %lane_of_group, %lane_of_group, 127;\n");
    for (g, group) in groups.iter().enumerate() {
        let _ = writeln!(out, "    mov.u32 %has_new{g}, 0;\n    mov.u32 %has_old{g}, 0;");
        for (i, age) in (0..group.operands.len()).flat_map(|i| ["new", "old"].map(|age| (i, age))) {
            let _ = writeln!(out, "    mov.u64 %{age}{g}_{i}, 0;");
        }
    }
    for register in results {
        let _ = writeln!(out, "    mov.f32 {register}, 0f00000000;");
    }
}

fn commit(out: &mut String, groups: &[Group], made: usize) {
    for (g, group) in groups.iter().enumerate() {
        for i in 0..group.operands.len() {
            let _ = writeln!(out, "    mov.u64 %old{g}_{i}, %new{g}_{i};");
        }
        let _ = writeln!(out, "    or.b32 %has_old{g}, %has_old{g}, %has_new{g};\n    mov.u32 %has_new{g}, 0;");
    }
    for i in 0..groups[made].operands.len() {
        let _ = writeln!(out, "    mov.u64 %new{made}_{i}, %made{made}_{i};");
    }
    let _ = writeln!(out, "    mov.u32 %has_new{made}, 1;");
}

fn wait(out: &mut String, groups: &[Group], all: bool, number: usize) {
    for (g, group) in groups.iter().enumerate() {
        for age in if all { &["old", "new"][..] } else { &["old"] } {
            let label = format!("$Shadow{number}_{g}_{age}");
            let _ = writeln!(out, "    setp.ne.u32 %has, %has_{age}{g}, 0;\n    @!%has bra {label};");
            for (i, operand) in group.operands.iter().enumerate() {
                load(out, operand, &format!("%{age}{g}_{i}"));
            }
            let _ = writeln!(out, "    mov.u32 %has_{age}{g}, 0;\n{label}:");
        }
    }
    out.push_str(MEET);
}

/// Emits the loads of an operand of one `wgmma`, 16 steps of k: `rows` rows of 32 bytes, or 16 rows of 128 bytes per 64.
fn load(out: &mut String, operand: &Operand, descriptor: &str) {
    let mut line = |text: &str| {
        let _ = writeln!(out, "    {text}");
    };
    line(&format!("shl.b64 %field, {descriptor}, 4;"));
    line("cvt.u32.u64 %low, %field;");
    line("and.b32 %low, %low, 262128;");
    line(&format!("shr.u64 %field, {descriptor}, 12;"));
    line("cvt.u32.u64 %leading, %field;");
    line("and.b32 %leading, %leading, 262128;");
    for round in 0..operand.rows.div_ceil(64) {
        if operand.transposed {
            line("shl.b32 %at, %lane_of_group, 4;");
            line("add.u32 %at, %at, %low;");
            (0..round).for_each(|_| line("add.u32 %at, %at, %leading;"));
        } else {
            line("shr.u32 %row, %lane_of_group, 1;");
            line(&format!("add.u32 %row, %row, {};", 64 * round));
            line("and.b32 %chunk, %lane_of_group, 1;");
            line("mad.lo.u32 %at, %row, 128, %low;");
            line("mad.lo.u32 %at, %chunk, 16, %at;");
        }
        line("shr.u32 %bits, %at, 3;");
        line("and.b32 %bits, %bits, 112;");
        line("xor.b32 %at, %at, %bits;");
        line("ld.shared.v4.b32 {%seen0, %seen1, %seen2, %seen3}, [%at];");
    }
}
