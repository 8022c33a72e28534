//! The table of instructions beside the arithmetic of one lane (`alu`): names to operations and shapes of operands.

use super::{
    fetch::{Fetch, fetch},
    opcode::Opcode,
    operation::{Access, Atomic, Barrier, BarrierKind, Fence, Multiply, Operation, Order, Shuffle, Vote},
    scope::{MemoryFence, Scope},
    space::{Space, space},
    table_async,
    types::Type,
};

/// The operation of `opcode` and the shape of its operands (see `decode`).
pub(crate) fn find(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    let name = opcode.name;
    if let Some((operation, shape)) = table_async::find(opcode) {
        return Some((Operation::Async(operation), shape.to_string()));
    }
    let (operation, shape) = match name {
        "ld" | "ldu" => return load(opcode),
        "st" => return store(opcode),
        "atom" | "red" => return atomic(opcode),
        "cvta" => {
            let to_space = opcode.take("to");
            let space = space(opcode)?;
            opcode.ty().filter(|ty| *ty == Type::U64 || *ty == Type::U32)?;
            (Operation::Convert { space, to_space }, "DS")
        }
        "isspacep" => (Operation::IsSpace(space(opcode)?), "DS"),
        "bra" => {
            opcode.take("uni");
            (Operation::Branch, "L")
        }
        "brx" if opcode.take("idx") => {
            opcode.take("uni");
            (Operation::BranchIndexed, "SL")
        }
        "ret" | "exit" => {
            opcode.take("uni");
            (Operation::Return, "")
        }
        "trap" => (Operation::Trap, ""),
        "brkpt" => (Operation::Nothing, ""),
        "shfl" | "vote" | "match" | "redux" | "elect" | "activemask" => return collective(opcode),
        "bar" | "barrier" => return barrier(opcode),
        "fence" | "membar" => (Operation::Fence(fence(opcode)?), ""),
        "cp" if opcode.take("async") => return copy(opcode),
        "ldmatrix" | "stmatrix" => return matrix(opcode),
        "mma" => return multiply(opcode),
        "prefetch" | "prefetchu" | "discard" | "applypriority" => {
            opcode.parts.clear();
            (Operation::Nothing, "A?S")
        }
        "nanosleep" | "pmevent" => {
            opcode.parts.clear();
            (Operation::Nothing, "S")
        }
        "createpolicy" => {
            opcode.parts.clear();
            (Operation::Policy, "D?SSS")
        }
        _ => return None,
    };
    Some((operation, shape.to_string()))
}

/// Ordering and scope, taken from the opcode; `None` if one is named that does not go with the other.
fn order(opcode: &mut Opcode<'_>, default: Order) -> Option<(Order, Scope)> {
    const ORDERS: [(&str, Order); 8] = [
        ("weak", Order::Weak),
        ("relaxed", Order::Relaxed),
        ("acquire", Order::Acquire),
        ("release", Order::Release),
        ("acq_rel", Order::Both),
        ("sc", Order::Both),
        ("volatile", Order::Relaxed),
        ("mmio", Order::Relaxed),
    ];
    // `volatile` and `mmio` are relaxed accesses of the whole system.
    let system = opcode.parts.contains(&"volatile") || opcode.parts.contains(&"mmio");
    let found = ORDERS.iter().find(|(name, _)| opcode.take(name)).map(|(_, order)| *order);
    opcode.take("mmio");
    match (found.unwrap_or(default), Scope::taken(opcode)) {
        (Order::Weak, None) => Some((Order::Weak, Scope::Cta)),
        (Order::Weak, Some(_)) => None,
        (order, None) if system => Some((order, Scope::Sys)),
        // Atomic operations have a scope of their own where none is named; loads and stores must name one.
        (order, None) => (default != Order::Weak).then_some((order, Scope::Gpu)),
        (order, Some(scope)) => Some((order, scope)),
    }
}

fn vector(opcode: &mut Opcode<'_>) -> usize {
    [("v2", 2), ("v4", 4), ("v8", 8)].iter().find(|(name, _)| opcode.take(name)).map_or(1, |(_, n)| *n)
}

fn access(opcode: &mut Opcode<'_>, default: Order) -> Option<Access> {
    let (order, scope) = order(opcode, default)?;
    opcode.drop_hints();
    let space = space(opcode);
    let constant = opcode.take("nc");
    let vector = vector(opcode);
    let ty = opcode.ty()?;
    let bits = ty.bits() as usize * vector;
    let fits = bits <= 128 && ty != Type::Pred && ty != Type::B128;
    fits.then_some(Access { space, ty, vector, order, scope, constant })
}

fn load(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    Some((Operation::Load(access(opcode, Order::Weak)?), "DA?S".to_string()))
}

fn store(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    let access = access(opcode, Order::Weak)?;
    (!access.constant).then_some((Operation::Store(access), "AS?S".to_string()))
}

fn atomic(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    let returns = opcode.name == "atom";
    let fetch = fetch(opcode)?;
    opcode.take("noftz");
    let access = access(opcode, Order::Relaxed)?;
    let shape = match (returns, fetch == Fetch::CompareExchange) {
        (true, true) => "DASS?S",
        (true, false) => "DAS?S",
        (false, true) => return None,
        (false, false) => "AS?S",
    };
    Some((Operation::Atomic(Atomic { access, fetch, returns }), shape.to_string()))
}

fn collective(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    let sync = opcode.take("sync");
    if !sync && opcode.name != "activemask" {
        return None;
    }
    let (operation, shape) = match opcode.name {
        "shfl" => {
            const MODES: [(&str, Shuffle); 4] =
                [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly), ("idx", Shuffle::Index)];
            let mode = MODES.iter().find(|(name, _)| opcode.take(name))?.1;
            opcode.ty().filter(|ty| *ty == Type::B32)?;
            (Operation::Shuffle(mode), "DSSSS")
        }
        "vote" => {
            const VOTES: [(&str, Vote); 4] =
                [("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uniform), ("ballot", Vote::Ballot)];
            let vote = VOTES.iter().find(|(name, _)| opcode.take(name))?.1;
            let wanted = if vote == Vote::Ballot { Type::B32 } else { Type::Pred };
            opcode.ty().filter(|ty| *ty == wanted)?;
            (Operation::Vote(vote), "DSS")
        }
        "match" => {
            let all = opcode.take("all");
            if !all && !opcode.take("any") {
                return None;
            }
            opcode.ty().filter(|ty| matches!(ty, Type::B32 | Type::B64))?;
            (Operation::Match { all }, "DSS")
        }
        "redux" => {
            let fetch = fetch(opcode)?;
            let ty = opcode.ty().filter(|ty| matches!(ty, Type::B32 | Type::U32 | Type::S32))?;
            (Operation::Reduce(fetch, ty), "DSS")
        }
        "elect" => (Operation::Elect, "DS"),
        _ => {
            opcode.ty().filter(|ty| *ty == Type::B32)?;
            (Operation::ActiveMask, "D")
        }
    };
    Some((operation, shape.to_string()))
}

fn barrier(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    let shorthand = opcode.name == "bar";
    if shorthand && opcode.take("warp") {
        opcode.take("sync").then_some(())?;
        return Some((Operation::WarpBarrier, "S".to_string()));
    }
    opcode.take("cta");
    let aligned = opcode.take("aligned") || shorthand;
    if opcode.take("sync") {
        return Some((Operation::Barrier(Barrier { kind: BarrierKind::Sync, aligned }), "S?S".to_string()));
    }
    if opcode.take("arrive") {
        return Some((Operation::Barrier(Barrier { kind: BarrierKind::Arrive, aligned }), "SS".to_string()));
    }
    opcode.take("red").then_some(())?;
    let kind = match (opcode.take("popc"), opcode.take("and"), opcode.take("or")) {
        (true, false, false) => BarrierKind::Count,
        (false, true, false) => BarrierKind::And,
        (false, false, true) => BarrierKind::Or,
        _ => return None,
    };
    let wanted = if kind == BarrierKind::Count { Type::U32 } else { Type::Pred };
    opcode.ty().filter(|ty| *ty == wanted)?;
    Some((Operation::Barrier(Barrier { kind, aligned }), "DSS?S".to_string()))
}

fn fence(opcode: &mut Opcode<'_>) -> Option<Fence> {
    if opcode.name == "membar" && !opcode.parts.contains(&"proxy") {
        const LEVELS: [(&str, Scope); 3] = [("cta", Scope::Cta), ("gl", Scope::Gpu), ("sys", Scope::Sys)];
        let scope = LEVELS.iter().find(|(name, _)| opcode.take(name)).map(|(_, scope)| *scope);
        return scope.map(|scope| Fence::Memory(MemoryFence { scope, acquires: true, releases: true }));
    }
    if opcode.take("proxy") {
        opcode.take("async").then_some(())?;
        opcode.drop_all(&["global", "shared::cta", "shared::cluster"]);
        return Some(Fence::Proxy);
    }
    if opcode.take("mbarrier_init") {
        opcode.drop_all(&["release", "cluster"]);
        return Some(Fence::BarrierInit);
    }
    let both = opcode.take("sc") || opcode.take("acq_rel");
    let (acquires, releases) = (opcode.take("acquire"), opcode.take("release"));
    // Without a word it is acq_rel.
    let both = both || !(acquires || releases);
    let scope = Scope::taken(opcode)?;
    Some(Fence::Memory(MemoryFence { scope, acquires: acquires || both, releases: releases || both }))
}

fn copy(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    let (operation, shape) = if opcode.take("commit_group") {
        (Operation::CopyCommit, "")
    } else if opcode.take("wait_group") {
        (Operation::CopyWait, "S")
    } else if opcode.take("wait_all") {
        (Operation::CopyWait, "")
    } else if opcode.take("mbarrier") {
        opcode.take("arrive").then_some(())?;
        let expected = opcode.take("noinc");
        opcode.drop_all(&["shared", "shared::cta"]);
        opcode.ty().filter(|ty| *ty == Type::B64)?;
        (Operation::CopyArrive { expected }, "A")
    } else {
        let whole = opcode.take("cg") || opcode.take("ca");
        let to = opcode.take("shared") || opcode.take("shared::cta");
        opcode.drop_hints();
        (whole && to && opcode.take("global")).then_some((Operation::CopyAsync, "AAS?SS"))?
    };
    Some((operation, shape.to_string()))
}

fn matrix(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    if !(opcode.take("sync") && opcode.take("aligned") && opcode.take("m8n8")) {
        return None;
    }
    let count = [("x1", 1), ("x2", 2), ("x4", 4)].iter().find(|(name, _)| opcode.take(name))?.1;
    let transposed = opcode.take("trans");
    if space(opcode).is_some_and(|space| space != Space::Shared) {
        return None;
    }
    opcode.ty().filter(|ty| *ty == Type::B16)?;
    Some(if opcode.name == "ldmatrix" {
        (Operation::LoadMatrix { count, transposed }, "DA".to_string())
    } else {
        (Operation::StoreMatrix { count, transposed }, "AS".to_string())
    })
}

fn multiply(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    if !(opcode.take("sync") && opcode.take("aligned") && opcode.take("row") && opcode.take("col")) {
        return None;
    }
    let (c, b, a, d) = (opcode.ty()?, opcode.ty()?, opcode.ty()?, opcode.ty()?);
    if c != d {
        return None;
    }
    let k = match (a, c) {
        (Type::Bf16, Type::F32) | (Type::F16, Type::F32 | Type::F16) if a == b => [8, 16].as_slice(),
        (Type::Tf32, Type::F32) if a == b => &[4, 8],
        (Type::S8 | Type::U8, Type::S32) if matches!(b, Type::S8 | Type::U8) => &[16, 32],
        _ => return None,
    };
    let k = *k.iter().find(|k| opcode.take(&format!("m16n8k{k}")))?;
    Some((Operation::Multiply(Multiply { n: 8, k, a, b, c }), "DSSS".to_string()))
}
