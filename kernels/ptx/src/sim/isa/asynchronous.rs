//! Instructions of sm_90 that move data, synchronize and multiply asynchronously.

use super::{Fetch, Type};

/// An instruction of the asynchronous machinery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Async {
    /// `mbarrier.init`
    Init,
    Invalidate,
    Arrive(Arrive),
    ExpectBytes,
    CompleteBytes,
    Wait(Wait),
    PendingCount,
    Bulk(Bulk),
    BulkCommit,
    /// Whether to wait only until the sources are read.
    BulkWait {
        reads: bool,
    },
    Product(Product),
    ProductFence,
    ProductCommit,
    ProductWait,
    SetRegisters {
        increases: bool,
    },
    ClusterArrive {
        releases: bool,
    },
    ClusterWait,
    MapShared,
    /// `griddepcontrol.wait`
    GridWait,
    /// Hints, and instructions without effect for one kernel at a time.
    Nothing,
}

/// `mbarrier.arrive`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrive {
    /// Bytes are expected first.
    pub(crate) expects: bool,
    /// Later phases expect fewer arrivals.
    pub(crate) drops: bool,
    pub(crate) releases: bool,
    /// Its scope is the cluster, not the block.
    pub(crate) reaches_cluster: bool,
}

/// `mbarrier.test_wait` and `mbarrier.try_wait`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// It names a phase by its parity, not by the state of an arrival.
    pub(crate) parity: bool,
    pub(crate) acquires: bool,
    /// Its scope is the cluster, not the block.
    pub(crate) reaches_cluster: bool,
}

/// `cp.async.bulk` and `cp.reduce.async.bulk`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bulk {
    /// Into shared memory.
    pub(crate) loads: bool,
    /// Of the tensor; 0 for plain bytes.
    pub(crate) dimensions: usize,
    pub(crate) reduction: Option<Fetch>,
    /// Into all blocks of the cluster that a mask names.
    pub(crate) multicast: bool,
    /// Of a reduction of plain bytes.
    pub(crate) ty: Type,
}

/// `wgmma.mma_async` of 64 × n × 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) n: usize,
    /// bf16, f16, tf32, e4m3 or e5m2.
    pub(crate) input: Type,
    /// f32 or f16.
    pub(crate) output: Type,
}

impl Bulk {
    /// Whether each operand has as many slots as the form: the map's address is followed by its coordinates.
    pub(crate) fn fits(self, lengths: &[usize]) -> bool {
        let map = if self.loads { 1 } else { 0 };
        lengths.iter().enumerate().all(|(at, length)| *length == if at == map { 1 + self.dimensions } else { 1 })
    }
}

impl Product {
    /// Elements along K.
    pub(crate) fn k(self) -> usize {
        256 / self.input.bits() as usize
    }

    /// Whether A comes from registers, by the number of sources.
    pub(crate) fn takes_registers(self, sources: usize) -> bool {
        sources >= 8
    }

    /// Whether the lists have as many registers as the form.
    pub(crate) fn fits(self, destinations: usize, sources: usize) -> bool {
        let wanted = if self.output == Type::F16 { self.n / 4 } else { self.n / 2 };
        let lengths: &[usize] = if self.input.bits() == 16 { &[7, 9] } else { &[5, 8] };
        destinations == wanted && lengths.contains(&sources)
    }
}
