//! The table of asynchronous instructions of sm_90: names to operations and shapes of operands.

use super::{Arrive, Async, Bulk, Opcode, Product, Type, Wait, fetch};

/// The form of `opcode` and the shape of its operands.
pub(crate) fn find(opcode: &mut Opcode<'_>) -> Option<(Async, &'static str)> {
    match opcode.name {
        "mbarrier" => mbarrier(opcode),
        "wgmma" => wgmma(opcode),
        "setmaxnreg" => {
            let increases = opcode.take("inc");
            let known = (increases || opcode.take("dec")) && opcode.take("sync") && opcode.take("aligned");
            opcode.ty().filter(|ty| known && *ty == Type::U32)?;
            Some((Async::SetRegisters { increases }, "S"))
        }
        "mapa" => {
            opcode.drop_all(&["shared::cluster"]);
            opcode.ty_of(&[Type::U32, Type::U64])?;
            Some((Async::MapShared, "DSS"))
        }
        "griddepcontrol" => {
            if opcode.take("wait") {
                return Some((Async::GridWait, ""));
            }
            opcode.take("launch_dependents").then_some((Async::Nothing, ""))
        }
        "barrier" if opcode.parts.first() == Some(&"cluster") => {
            opcode.take("cluster");
            let relaxed = opcode.take("relaxed");
            opcode.drop_all(&["release", "acquire", "aligned"]);
            if opcode.take("arrive") {
                return Some((Async::ClusterArrive { releases: !relaxed }, ""));
            }
            if relaxed {
                return None;
            }
            opcode.take("wait").then_some((Async::ClusterWait, ""))
        }
        "prefetch" if opcode.parts.contains(&"tensormap") => {
            opcode.drop_all(&["tensormap", "param", "const"]);
            Some((Async::Nothing, "A"))
        }
        "cp" if opcode.parts.contains(&"bulk") => bulk(opcode),
        _ => None,
    }
}

fn mbarrier(opcode: &mut Opcode<'_>) -> Option<(Async, &'static str)> {
    if opcode.take("pending_count") {
        opcode.ty_of(&[Type::B64])?;
        return Some((Async::PendingCount, "DS"));
    }
    let relaxed = opcode.take("relaxed");
    let (reaches_cluster, remote) = (opcode.take("cluster"), opcode.take("shared::cluster"));
    opcode.drop_all(&["release", "acquire", "cta", "shared", "shared::cta"]);
    let expects = opcode.take("expect_tx");
    let parity = opcode.take("parity");
    opcode.take("noComplete");
    opcode.ty_of(&[Type::B64])?;
    if opcode.parts.is_empty() {
        return expects.then_some((Async::ExpectBytes, "AS"));
    }
    let [action] = opcode.parts[..] else { return None };
    opcode.parts.clear();
    // Only arrivals and bytes may be of another block.
    if remote && !matches!(action, "arrive" | "arrive_drop" | "complete_tx") {
        return None;
    }
    let arrive = Arrive { expects, drops: action == "arrive_drop", releases: !relaxed, reaches_cluster };
    let wait = Wait { parity, acquires: !relaxed, reaches_cluster };
    Some(match action {
        "init" => (Async::Init, "AS"),
        "inval" => (Async::Invalidate, "A"),
        "arrive" | "arrive_drop" => (Async::Arrive(arrive), if expects { "DAS" } else { "DA?S" }),
        "complete_tx" => (Async::CompleteBytes, "AS"),
        "test_wait" => (Async::Wait(wait), "DAS"),
        "try_wait" => (Async::Wait(wait), "DAS?S"),
        _ => return None,
    })
}

fn wgmma(opcode: &mut Opcode<'_>) -> Option<(Async, &'static str)> {
    if !(opcode.take("sync") && opcode.take("aligned")) {
        return None;
    }
    let simple = [
        ("fence", Async::ProductFence, ""),
        ("commit_group", Async::ProductCommit, ""),
        ("wait_group", Async::ProductWait, "S"),
    ];
    if let Some((_, what, shape)) = simple.into_iter().find(|(name, ..)| opcode.take(name)) {
        return Some((what, shape));
    }
    opcode.take("mma_async").then_some(())?;
    let (b, a, d) = (opcode.ty()?, opcode.ty()?, opcode.ty()?);
    let shape = opcode.parts.pop()?;
    let (n, k) = shape.strip_prefix("m64n")?.split_once('k')?;
    let (n, k): (usize, usize) = (n.parse().ok()?, k.parse().ok()?);
    let product = Product { n, input: a, output: d };
    let known = a == b
        && match a {
            Type::Bf16 | Type::Tf32 => d == Type::F32,
            Type::F16 | Type::E4m3 | Type::E5m2 => matches!(d, Type::F32 | Type::F16),
            _ => false,
        }
        && (8..=256).contains(&n)
        && n % 8 == 0
        && k == product.k();
    known.then_some((Async::Product(product), if a.bits() == 16 { "DSSSSSS?S" } else { "DSSSSS" }))
}

fn bulk(opcode: &mut Opcode<'_>) -> Option<(Async, &'static str)> {
    opcode.drop_all(&["async", "bulk"]);
    if opcode.take("commit_group") {
        return Some((Async::BulkCommit, ""));
    }
    if opcode.take("wait_group") {
        return Some((Async::BulkWait { reads: opcode.take("read") }, "S"));
    }
    let dimensions = (1..=5).find(|d| opcode.take(&format!("{d}d"))).unwrap_or(0);
    if opcode.take("tensor") != (dimensions > 0) {
        return None;
    }
    opcode.drop_hints();
    opcode.take("tile");
    if opcode.take("prefetch") {
        opcode.parts.retain(|part| !part.starts_with("L2") && *part != "global");
        return Some((Async::Nothing, if dimensions > 0 { "A?S" } else { "AS?S" }));
    }
    let reduces = opcode.take("reduce");
    let reduction = if reduces { Some(fetch(opcode)?) } else { None };
    opcode.take("noftz");
    let ty = if reduces && dimensions == 0 { opcode.ty()? } else { Type::B8 };
    let loads = opcode.take("mbarrier::complete_tx::bytes");
    let multicast = loads && opcode.take("multicast::cluster");
    let bulk = Bulk { loads, dimensions, reduction, multicast, ty };
    // The order of the spaces gives the direction.
    let known = if loads {
        !reduces && matches!(opcode.parts[..], ["shared::cluster" | "shared::cta", "global"])
    } else {
        opcode.take("bulk_group") && matches!(opcode.parts[..], ["global", "shared::cta"])
    };
    opcode.parts.clear();
    let shape = match (loads, dimensions > 0) {
        (true, true) if multicast => "AAAS?S",
        (true, false) if multicast => "AASAS?S",
        (true, true) => "AAA?S",
        (true, false) => "AASA?S",
        (false, true) => "AA?S",
        (false, false) => "AAS?S",
    };
    known.then_some((Async::Bulk(bulk), shape))
}
