//! Arguments and options of a launch.

use super::{Approximation, Completion, Schedule, TensorMap};
use crate::Sm;

/// A kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An address or a 64-bit integer.
    U64(u64),
    /// A 32-bit integer.
    U32(u32),
    /// A float.
    F32(f32),
    /// A tensor map, of 128 bytes.
    TensorMap(TensorMap),
}

impl Argument {
    /// Bytes of the parameter.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Argument::U64(value) => value.to_le_bytes().to_vec(),
            Argument::U32(value) => value.to_le_bytes().to_vec(),
            Argument::F32(value) => value.to_le_bytes().to_vec(),
            Argument::TensorMap(map) => map.to_bytes().to_vec(),
        }
    }
}

/// Options of a launch. Start with the default: round-robin, latest completion, the device's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Order of warps, blocks and sides of branches.
    pub schedule: Schedule,
    /// End of asynchronous operations.
    pub completion: Completion,
    /// Values of approximate instructions.
    pub approximation: Approximation,
    /// GPU whose tensor cores are simulated; `None` for that of the module's target. A text for `sm_80` has other sums on a later
    /// GPU.
    pub gpu: Option<Sm>,
    /// True to search for races and missing fences, which takes most of the time. Values do not depend on it.
    pub races: bool,
    /// Whether an mbarrier must be fenced (`fence.mbarrier_init` or `fence.proxy.async`) between its initialization and
    /// the first asynchronous operation on it. The manual requires it; Triton omits it.
    pub init_fence: bool,
    /// Whether bytes that `cp.async` has written must be fenced (`fence.proxy.async`) before `wgmma` or a bulk copy
    /// reads them. The manual requires it; Triton omits it.
    pub copy_fence: bool,
    /// Whether lanes that execute an instruction together are ordered by it, as on devices before Volta and as code
    /// relies on that was written or compiled for them. PTX does not promise it.
    pub assume_convergence: bool,
    /// Maximum number of findings that are kept; more are only counted.
    pub max_findings: usize,
    /// Stop at the first finding.
    pub first_finding_ends: bool,
    /// Maximum number of instructions of a warp; more are reported as an endless loop.
    pub max_instructions: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            schedule: Schedule::RoundRobin,
            completion: Completion::Latest,
            approximation: Approximation::Device,
            gpu: None,
            races: true,
            init_fence: true,
            copy_fence: true,
            assume_convergence: false,
            max_findings: 100,
            first_finding_ends: false,
            max_instructions: 1_000_000,
        }
    }
}
