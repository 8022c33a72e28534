//! Scopes of strong accesses and fences.

use super::Opcode;

/// The threads that a strong access or a fence synchronizes with, from the fewest to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

impl Scope {
    const ALL: [(&str, Scope); 4] =
        [("cta", Scope::Cta), ("cluster", Scope::Cluster), ("gpu", Scope::Gpu), ("sys", Scope::Sys)];

    /// As PTX spells it.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Whether threads of blocks outside of the cluster are within it.
    pub(crate) fn reaches_other_blocks(self) -> bool {
        self >= Scope::Gpu
    }

    /// The scope that the opcode names, taken from it.
    pub(crate) fn taken(opcode: &mut Opcode<'_>) -> Option<Self> {
        opcode.choose(&Self::ALL)
    }
}

/// `fence.proxy.async`: the memory in which it carries generic accesses over to the asynchronous proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProxyFence {
    pub(crate) shared: bool,
    pub(crate) global: bool,
}

/// A fence of the memory accesses of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryFence {
    pub(crate) scope: Scope,
    pub(crate) acquires: bool,
    pub(crate) releases: bool,
}
