//! Cases of operations: their sizes, where they run, and what became of them.

use kernels::DType;
use kernels::IsaKind;
use kernels_cuda::program::Pass;
use ptx::Sm;
use std::fmt;

/// One size of one variant of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Forward or backward.
    pub pass: Pass,
    /// Storage of inputs and outputs.
    pub dtype: DType,
    /// Fused or chosen parts, in the words of the operation; empty if there is only one variant.
    pub variant: String,
    /// Sizes with their letters: `[("T", 128), ("F", 3072)]`.
    pub dims: Vec<(&'static str, usize)>,
}

impl Case {
    /// The size called `letter`.
    ///
    /// # Panics
    /// If the case has none: cases and the functions that read them stand in the same folder.
    #[track_caller]
    pub fn dim(&self, letter: &str) -> usize {
        let found = self.dims.iter().find(|(name, _)| *name == letter);
        found.unwrap_or_else(|| panic!("the case {self} has no size {letter}")).1
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pass.name(), self.dtype)?;
        if !self.variant.is_empty() {
            write!(f, " {}", self.variant)?;
        }
        self.dims.iter().try_for_each(|(letter, size)| write!(f, " {letter}={size}"))
    }
}

/// Device that runs a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The processor, with this instruction set.
    Cpu(IsaKind),
    /// The PTX for this architecture, in the simulator.
    Simulator(Sm),
}

impl Target {
    /// All targets, whether this machine has them or not.
    pub fn all() -> Vec<Target> {
        IsaKind::ALL.into_iter().map(Target::Cpu).chain(Sm::ALL.into_iter().map(Target::Simulator)).collect()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cpu(isa) => write!(f, "{isa}"),
            Target::Simulator(sm) => write!(f, "simulated {}", sm.name()),
        }
    }
}

/// Result of running a case on a target.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Every output stays within its bound.
    Passed {
        /// The largest error over its bound; at most 1.
        worst: f64,
    },
    /// An output is out of bounds, or the kernel did something forbidden.
    Failed {
        /// The case, where, both values and the bound; or what was forbidden.
        message: String,
    },
    /// The case cannot run there.
    Skipped {
        /// Why.
        reason: String,
    },
}
