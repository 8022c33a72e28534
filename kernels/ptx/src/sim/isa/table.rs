//! The table of instructions other than the arithmetic of one lane (`alu`): names to operations and shapes of operands.

use super::{
    Access, Atomic, BarrierKind, Fence, Fetch, MemoryFence, Multiply, Opcode, Operation, Order, ProxyFence, Scope,
    Shuffle, Space, Type, Vote, fetch, space, table_async,
};

/// An operation and the shape of its operands (see `decode`).
type Found = Option<(Operation, &'static str)>;

/// The operation of `opcode`, if it is known.
pub(crate) fn find(opcode: &mut Opcode<'_>) -> Found {
    if let Some((operation, shape)) = table_async::find(opcode) {
        return Some((Operation::Async(operation), shape));
    }
    let name = opcode.name;
    Some(match name {
        "ld" | "ldu" => (Operation::Load(access(opcode, Order::Weak)?), "DA?S"),
        "st" => {
            let access = access(opcode, Order::Weak)?;
            (!access.constant).then_some((Operation::Store(access), "AS?S"))?
        }
        "atom" | "red" => return atomic(opcode),
        "cvta" => {
            let (to_space, space) = (opcode.take("to"), space(opcode)?);
            opcode.ty_of(&[Type::U64, Type::U32])?;
            (Operation::Convert { space, to_space }, "DS")
        }
        "isspacep" => (Operation::IsSpace(space(opcode)?), "DS"),
        "brx" if opcode.take("idx") => (Operation::BranchIndexed, opcode.after("uni", "SL")),
        "bra" => (Operation::Branch, opcode.after("uni", "L")),
        "ret" | "exit" => (Operation::Return, opcode.after("uni", "")),
        "trap" => (Operation::Trap, ""),
        "brkpt" => (Operation::Nothing, ""),
        "activemask" => {
            opcode.take("sync");
            opcode.ty_of(&[Type::B32])?;
            (Operation::ActiveMask, "D")
        }
        "shfl" | "vote" | "match" | "redux" | "elect" if opcode.take("sync") => return collective(opcode),
        "bar" | "barrier" => return barrier(opcode),
        "fence" | "membar" => (Operation::Fence(fence(opcode)?), ""),
        "cp" if opcode.take("async") => return copy(opcode),
        "ldmatrix" | "stmatrix" if opcode.takes(&["sync", "aligned", "m8n8"]) => return matrix(opcode),
        "mma" if opcode.takes(&["sync", "aligned", "row", "col"]) => return multiply(opcode),
        "prefetch" | "prefetchu" | "discard" | "applypriority" => (Operation::Nothing, opcode.all("A?S")),
        "nanosleep" | "pmevent" => (Operation::Nothing, opcode.all("S")),
        "createpolicy" => (Operation::Policy, opcode.all("D?SSS")),
        _ => return None,
    })
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
    let found = opcode.choose(&ORDERS);
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

fn access(opcode: &mut Opcode<'_>, default: Order) -> Option<Access> {
    let (order, scope) = order(opcode, default)?;
    opcode.drop_hints();
    let (space, constant) = (space(opcode), opcode.take("nc"));
    let vector = opcode.choose(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    let ty = opcode.ty()?;
    let fits = ty.bits() as usize * vector <= 128 && ty != Type::Pred && ty != Type::B128;
    fits.then_some(Access { space, ty, vector, order, scope, constant })
}

fn atomic(opcode: &mut Opcode<'_>) -> Found {
    let (returns, fetch) = (opcode.name == "atom", fetch(opcode)?);
    opcode.take("noftz");
    let access = access(opcode, Order::Relaxed)?;
    let shape = match (returns, fetch == Fetch::CompareExchange) {
        (true, true) => "DASS?S",
        (true, false) => "DAS?S",
        (false, true) => return None,
        (false, false) => "AS?S",
    };
    Some((Operation::Atomic(Atomic { access, fetch, returns }), shape))
}

fn collective(opcode: &mut Opcode<'_>) -> Found {
    Some(match opcode.name {
        "shfl" => {
            const MODES: [(&str, Shuffle); 4] =
                [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly), ("idx", Shuffle::Index)];
            let mode = opcode.choose(&MODES)?;
            opcode.ty_of(&[Type::B32])?;
            (Operation::Shuffle(mode), "DSSSS")
        }
        "vote" => {
            const VOTES: [(&str, Vote); 4] =
                [("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uniform), ("ballot", Vote::Ballot)];
            let vote = opcode.choose(&VOTES)?;
            opcode.ty_of(&[if vote == Vote::Ballot { Type::B32 } else { Type::Pred }])?;
            (Operation::Vote(vote), "DSS")
        }
        "match" => {
            let all = opcode.choose(&[("all", true), ("any", false)])?;
            opcode.ty_of(&[Type::B32, Type::B64])?;
            (Operation::Match { all }, "DSS")
        }
        "redux" => {
            let fetch = fetch(opcode)?;
            (Operation::Reduce(fetch, opcode.ty_of(&[Type::B32, Type::U32, Type::S32])?), "DSS")
        }
        _ => (Operation::Elect, "DS"),
    })
}

fn barrier(opcode: &mut Opcode<'_>) -> Found {
    if opcode.name == "bar" && opcode.take("warp") {
        return opcode.take("sync").then_some((Operation::WarpBarrier, "S"));
    }
    opcode.take("cta");
    opcode.take("aligned");
    if opcode.take("sync") {
        return Some((Operation::Barrier(BarrierKind::Sync), "S?S"));
    }
    if opcode.take("arrive") {
        return Some((Operation::Barrier(BarrierKind::Arrive), "SS"));
    }
    opcode.take("red").then_some(())?;
    let kind = opcode.choose(&[("popc", BarrierKind::Count), ("and", BarrierKind::And), ("or", BarrierKind::Or)])?;
    opcode.ty_of(&[if kind == BarrierKind::Count { Type::U32 } else { Type::Pred }])?;
    Some((Operation::Barrier(kind), "DSS?S"))
}

fn fence(opcode: &mut Opcode<'_>) -> Option<Fence> {
    if opcode.name == "membar" && !opcode.parts.contains(&"proxy") {
        let scope = opcode.choose(&[("cta", Scope::Cta), ("gl", Scope::Gpu), ("sys", Scope::Sys)])?;
        return Some(Fence::Memory(MemoryFence { scope, acquires: true, releases: true }));
    }
    if opcode.take("proxy") {
        opcode.take("async").then_some(())?;
        let (global, shared) = (opcode.take("global"), opcode.take("shared::cta") || opcode.take("shared::cluster"));
        let all = !(global || shared);
        return Some(Fence::Proxy(ProxyFence { shared: shared || all, global: global || all }));
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

fn copy(opcode: &mut Opcode<'_>) -> Found {
    const GROUPS: [(&str, (Operation, &str)); 3] = [
        ("commit_group", (Operation::CopyCommit, "")),
        ("wait_group", (Operation::CopyWait, "S")),
        ("wait_all", (Operation::CopyWait, "")),
    ];
    if let found @ Some(_) = opcode.choose(&GROUPS) {
        return found;
    }
    if opcode.take("mbarrier") {
        opcode.take("arrive").then_some(())?;
        let expected = opcode.take("noinc");
        opcode.drop_all(&["shared", "shared::cta"]);
        opcode.ty_of(&[Type::B64])?;
        return Some((Operation::CopyArrive { expected }, "A"));
    }
    let caches = opcode.take("cg") || opcode.take("ca");
    let to = opcode.take("shared") || opcode.take("shared::cta");
    opcode.drop_hints();
    (caches && to && opcode.take("global")).then_some((Operation::CopyAsync, "AAS?SS"))
}

fn matrix(opcode: &mut Opcode<'_>) -> Found {
    let count = opcode.choose(&[("x1", 1), ("x2", 2), ("x4", 4)])?;
    let transposed = opcode.take("trans");
    if space(opcode).is_some_and(|space| space != Space::Shared) {
        return None;
    }
    opcode.ty_of(&[Type::B16])?;
    Some(match opcode.name {
        "ldmatrix" => (Operation::LoadMatrix { count, transposed }, "DA"),
        _ => (Operation::StoreMatrix { count, transposed }, "AS"),
    })
}

fn multiply(opcode: &mut Opcode<'_>) -> Found {
    let (c, b, a, d) = (opcode.ty()?, opcode.ty()?, opcode.ty()?, opcode.ty()?);
    let k = match (a, c) {
        (Type::Bf16, Type::F32) | (Type::F16, Type::F32 | Type::F16) if a == b => [8, 16],
        (Type::Tf32, Type::F32) if a == b => [4, 8],
        (Type::E4m3 | Type::E5m2, Type::F32) if a == b => [32, 32],
        (Type::S8 | Type::U8, Type::S32) if matches!(b, Type::S8 | Type::U8) => [16, 32],
        _ => return None,
    };
    let k = k.into_iter().find(|k| opcode.take(&format!("m16n8k{k}")))?;
    (c == d).then_some((Operation::Multiply(Multiply { n: 8, k, a, b, c }), "DSSS"))
}
