//! Operations of decoded instructions.

use super::{Async, Fetch, MemoryFence, ProxyFence, Run, RunTwo, Scope, Space, Type};

/// Operation of an instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Operation {
    /// Hints: prefetches, priorities, pauses.
    #[default]
    Nothing,
    One(Run),
    Two(RunTwo),
    Move,
    /// Several registers of so many bits each to one.
    Pack(u32),
    Unpack(u32),
    Clock,
    /// A cache policy, which has no effect here.
    Policy,
    /// An address within a space to a generic one or back.
    Convert {
        space: Space,
        to_space: bool,
    },
    /// Whether a generic address is in a space.
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
    Barrier(BarrierKind),
    Branch,
    BranchIndexed,
    Return,
    Trap,
    Fence(Fence),
    /// `cp.async` to shared memory.
    CopyAsync,
    CopyCommit,
    /// Wait until at most as many groups are pending as the first source says; none without a source.
    CopyWait,
    /// An arrival when the thread's copies are complete; whether it is one of the expected arrivals.
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

/// Memory ordering of a load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    Both,
}

impl Order {
    pub(crate) fn is_strong(self) -> bool {
        self != Order::Weak
    }
    pub(crate) fn acquires(self) -> bool {
        matches!(self, Order::Acquire | Order::Both)
    }
    pub(crate) fn releases(self) -> bool {
        matches!(self, Order::Release | Order::Both)
    }
}

/// An access of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// `None` where the address is generic.
    pub(crate) space: Option<Space>,
    pub(crate) ty: Type,
    pub(crate) vector: usize,
    pub(crate) order: Order,
    /// Of a strong access.
    pub(crate) scope: Scope,
    /// The memory must not change during the launch.
    pub(crate) constant: bool,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atomic {
    pub(crate) access: Access,
    pub(crate) fetch: Fetch,
    pub(crate) returns: bool,
}

/// Source lane of a shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// Kinds of votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// A barrier of the block: its effect other than counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    #[default]
    Sync,
    Arrive,
    Count,
    And,
    Or,
}

impl BarrierKind {
    /// Whether it combines a predicate of all threads.
    pub(crate) fn reduces(self) -> bool {
        !matches!(self, BarrierKind::Sync | BarrierKind::Arrive)
    }
}

/// Kinds of fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Memory accesses of the thread.
    Memory(MemoryFence),
    /// Generic accesses before asynchronous ones.
    Proxy(ProxyFence),
    /// Initialized barriers before asynchronous operations.
    BarrierInit,
}

/// `mma.sync` of M × N × K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multiply {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Type,
    pub(crate) b: Type,
    /// Accumulators: f32, f16 or s32.
    pub(crate) c: Type,
}

impl Multiply {
    /// Registers of A, B and C.
    pub(crate) fn registers(self) -> [usize; 3] {
        let bits = self.a.bits() as usize;
        let bits = if self.a == Type::Tf32 { 32 } else { bits };
        let accumulators = if self.c == Type::F16 { 2 } else { 4 };
        [16 * self.k * bits / 1024, self.n * self.k * bits / 1024, accumulators]
    }
}

impl Operation {
    /// Whether control may continue anywhere but at the next instruction.
    pub(crate) fn ends_block(&self) -> bool {
        matches!(self, Operation::Branch | Operation::BranchIndexed | Operation::Return | Operation::Trap)
    }

    /// Whether it is a `wgmma.mma_async`.
    pub(crate) fn is_product(&self) -> bool {
        matches!(self, Operation::Async(Async::Product(_)))
    }

    /// The scope of a strong access or a memory fence.
    pub(crate) fn scope(&self) -> Option<Scope> {
        match self {
            Operation::Load(access) | Operation::Store(access) => access.order.is_strong().then_some(access.scope),
            Operation::Atomic(atomic) => Some(atomic.access.scope),
            Operation::Fence(Fence::Memory(fence)) => Some(fence.scope),
            _ => None,
        }
    }

    /// Whether its scope is narrow: it does not reach other blocks, though the memory does.
    pub(crate) fn is_narrow(&self) -> bool {
        let space = match self {
            Operation::Load(access) | Operation::Store(access) => access.space,
            Operation::Atomic(atomic) => atomic.access.space,
            _ => None,
        };
        space != Some(Space::Shared) && self.scope().is_some_and(|scope| !scope.reaches_other_blocks())
    }

    /// Whether a kernel can wait for other blocks with it.
    pub(crate) fn may_spin(&self) -> bool {
        match self {
            Operation::Load(access) => access.order.is_strong() && access.space.is_none_or(|s| s == Space::Global),
            Operation::Atomic(atomic) => atomic.access.space.is_none_or(|s| s == Space::Global),
            _ => false,
        }
    }

    /// Whether an operand may be a list of registers.
    pub(crate) fn takes_lists(&self) -> bool {
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
    pub(crate) fn takes_pairs(&self) -> bool {
        matches!(self, Operation::Two(_) | Operation::Shuffle(_) | Operation::Match { all: true } | Operation::Elect)
    }

    /// Whether a source may be a negated predicate, `!p`; comparisons (`set`, `setp`) also take one.
    pub(crate) fn takes_negation(&self) -> bool {
        match self {
            Operation::Vote(_) => true,
            Operation::Barrier(barrier) => barrier.reduces(),
            _ => false,
        }
    }

    /// Whether an address may have the coordinates of a tensor map.
    pub(crate) fn takes_coordinates(&self) -> bool {
        matches!(self, Operation::Async(Async::Bulk(_) | Async::Nothing))
    }

    /// Whether the lists of operands have the lengths of the form; `lengths` has the slots of each operand.
    pub(crate) fn fits(&self, destinations: usize, sources: usize, lengths: &[usize]) -> bool {
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
