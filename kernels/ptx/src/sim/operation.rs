//! What an instruction does, and the list of the forms that are known beside the arithmetic of one lane (`alu`).

use super::{
    alu::{Run, RunTwo},
    decode::Opcode,
    module::Space,
    operation_async::{self, Async},
    scope::{MemoryFence, Scope},
    types::Type,
};

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// Hints: prefetches, priorities, pauses.
    Nothing,
    One(Run),
    Two(RunTwo),
    Move,
    /// Several registers of so many bits each into one.
    Pack(u32),
    Unpack(u32),
    Clock,
    /// A cache policy: a number that means nothing here.
    Policy,
    /// An address within a space to a generic one or back.
    Convert {
        space: Space,
        to_space: bool,
    },
    /// Whether a generic address lies in a space.
    IsSpace(Space),
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    Shuffle(Shuffle),
    Vote(Vote),
    Match {
        all: bool,
    },
    /// `redux.sync`
    Reduce(Fetch, Type),
    ActiveMask,
    Elect,
    WarpBarrier,
    Barrier(Barrier),
    Branch,
    BranchIndexed,
    Return,
    Trap,
    Fence(Fence),
    /// `cp.async` to shared memory.
    CopyAsync,
    CopyCommit,
    /// Groups may be left as many as the first source says; none where there is no source.
    CopyWait,
    /// An arrival when the thread's copies are there; whether it counts as one of those that are expected.
    CopyArrive {
        expected: bool,
    },
    /// `ldmatrix` of so many matrices.
    LoadMatrix {
        count: usize,
        transposed: bool,
    },
    StoreMatrix {
        count: usize,
        transposed: bool,
    },
    Multiply(Multiply),
    Async(Async),
}

/// How a load or a store is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    Both,
}

impl Order {
    pub(super) fn is_strong(self) -> bool {
        self != Order::Weak
    }
    pub(super) fn acquires(self) -> bool {
        matches!(self, Order::Acquire | Order::Both)
    }
    pub(super) fn releases(self) -> bool {
        matches!(self, Order::Release | Order::Both)
    }
}

/// An access of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// `None` where the address is generic.
    pub(super) space: Option<Space>,
    pub(super) ty: Type,
    pub(super) vector: usize,
    pub(super) order: Order,
    /// Of a strong access.
    pub(super) scope: Scope,
    /// The memory must not change during the launch.
    pub(super) constant: bool,
}

/// What an atomic operation does to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Atomic {
    pub(super) access: Access,
    pub(super) fetch: Fetch,
    pub(super) returns: bool,
}

/// Which lane a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What a vote asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// A barrier of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Barrier {
    pub(super) kind: BarrierKind,
    pub(super) aligned: bool,
}

/// What it does beside counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BarrierKind {
    Sync,
    Arrive,
    Count,
    And,
    Or,
}

/// What a fence orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    /// Memory accesses of the thread.
    Memory(MemoryFence),
    /// Generic accesses before asynchronous ones.
    Proxy,
    /// Initialized barriers before asynchronous operations.
    BarrierInit,
}

/// `mma.sync` of M × N × K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiply {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Type,
    pub(super) b: Type,
    /// Accumulators: f32, f16 or s32.
    pub(super) c: Type,
}

impl Multiply {
    /// Registers of A, B and C.
    pub(super) fn registers(self) -> [usize; 3] {
        let bits = self.a.bits() as usize;
        let bits = if self.a == Type::Tf32 { 32 } else { bits };
        let accumulators = if self.c == Type::F16 { 2 } else { 4 };
        [16 * self.k * bits / 1024, self.n * self.k * bits / 1024, accumulators]
    }
}

impl Operation {
    /// Whether what follows may be something else than the next instruction.
    pub(super) fn ends_block(&self) -> bool {
        matches!(self, Operation::Branch | Operation::BranchIndexed | Operation::Return | Operation::Trap)
    }

    /// Whether it is a `wgmma.mma_async`.
    pub(super) fn is_product(&self) -> bool {
        matches!(self, Operation::Async(Async::Product(_)))
    }

    /// The scope of a strong access or a memory fence.
    pub(super) fn scope(&self) -> Option<Scope> {
        match self {
            Operation::Load(access) | Operation::Store(access) => access.order.is_strong().then_some(access.scope),
            Operation::Atomic(atomic) => Some(atomic.access.scope),
            Operation::Fence(Fence::Memory(fence)) => Some(fence.scope),
            _ => None,
        }
    }

    /// Whether its scope may matter: it does not reach other blocks, though the memory does.
    pub(super) fn is_narrow(&self) -> bool {
        let space = match self {
            Operation::Load(access) | Operation::Store(access) => access.space,
            Operation::Atomic(atomic) => atomic.access.space,
            _ => None,
        };
        space != Some(Space::Shared) && self.scope().is_some_and(|scope| !scope.reaches_other_blocks())
    }

    /// Whether other blocks may be waited for with it.
    pub(super) fn may_spin(&self) -> bool {
        match self {
            Operation::Load(access) => access.order.is_strong() && access.space.is_none_or(|s| s == Space::Global),
            Operation::Atomic(atomic) => atomic.access.space.is_none_or(|s| s == Space::Global),
            _ => false,
        }
    }

    /// Whether an operand may be a list of registers.
    pub(super) fn takes_lists(&self) -> bool {
        matches!(
            self,
            Operation::Load(_)
                | Operation::Store(_)
                | Operation::Atomic(_)
                | Operation::Pack(_)
                | Operation::Unpack(_)
                | Operation::LoadMatrix { .. }
                | Operation::StoreMatrix { .. }
                | Operation::Multiply(_)
                | Operation::Async(Async::Product(_))
        )
    }

    /// Whether it may have two destinations, `p|q`.
    pub(super) fn takes_pairs(&self) -> bool {
        matches!(self, Operation::Two(_) | Operation::Shuffle(_) | Operation::Match { all: true } | Operation::Elect)
    }

    /// Whether a source may be a negated predicate, `!p`; comparisons (`set`, `setp`) take one, too.
    pub(super) fn takes_negation(&self) -> bool {
        match self {
            Operation::Vote(_) => true,
            Operation::Barrier(barrier) => !matches!(barrier.kind, BarrierKind::Sync | BarrierKind::Arrive),
            _ => false,
        }
    }

    /// Whether an address may have the coordinates of a tensor map.
    pub(super) fn takes_coordinates(&self) -> bool {
        matches!(self, Operation::Async(Async::Bulk(_) | Async::Nothing))
    }

    /// Whether the lists of operands have as many registers as the form wants; `lengths` has the slots of each operand.
    pub(super) fn fits(&self, destinations: usize, sources: usize, lengths: &[usize]) -> bool {
        match self {
            Operation::LoadMatrix { count, .. } => destinations == *count,
            Operation::StoreMatrix { count, .. } => sources == 1 + count,
            Operation::Multiply(multiply) => {
                let [a, b, c] = multiply.registers();
                lengths == [c, a, b, c]
            }
            Operation::Async(Async::Product(product)) => {
                product.fits(destinations, sources)
                    && matches!(lengths[1], 1 | 4)
                    && lengths[2..].iter().all(|length| *length == 1)
            }
            Operation::Async(Async::Bulk(bulk)) => bulk.fits(lengths),
            _ => true,
        }
    }
}

/// The operation of `opcode` and the shape of its operands (see `decode`).
pub(super) fn find(opcode: &mut Opcode<'_>) -> Option<(Operation, String)> {
    let name = opcode.name;
    if let Some((operation, shape)) = operation_async::find(opcode) {
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

/// The space that the opcode names, taken from it.
pub(super) fn space(opcode: &mut Opcode<'_>) -> Option<Space> {
    const SPACES: [(&str, Space); 7] = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("shared::cluster", Space::Shared),
        ("local", Space::Local),
        ("param", Space::Param),
        ("const", Space::Const),
    ];
    SPACES.iter().find(|(name, _)| opcode.take(name)).map(|(_, space)| *space)
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

/// Hints that change no result.
pub(super) fn drop_hints(opcode: &mut Opcode<'_>) {
    opcode.drop_prefixed(&["L1::", "L2::", "level::"]);
    opcode.drop_all(&["ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified"]);
}

fn vector(opcode: &mut Opcode<'_>) -> usize {
    [("v2", 2), ("v4", 4), ("v8", 8)].iter().find(|(name, _)| opcode.take(name)).map_or(1, |(_, n)| *n)
}

fn access(opcode: &mut Opcode<'_>, default: Order) -> Option<Access> {
    let (order, scope) = order(opcode, default)?;
    drop_hints(opcode);
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

pub(super) fn fetch(opcode: &mut Opcode<'_>) -> Option<Fetch> {
    const FETCHES: [(&str, Fetch); 10] = [
        ("add", Fetch::Add),
        ("min", Fetch::Min),
        ("max", Fetch::Max),
        ("and", Fetch::And),
        ("or", Fetch::Or),
        ("xor", Fetch::Xor),
        ("exch", Fetch::Exchange),
        ("cas", Fetch::CompareExchange),
        ("inc", Fetch::Increment),
        ("dec", Fetch::Decrement),
    ];
    FETCHES.iter().find(|(name, _)| opcode.take(name)).map(|(_, fetch)| *fetch)
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
        drop_hints(opcode);
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
