//! Target of a module: the GPU's architecture and the version of the PTX language.

use std::fmt;

/// A feature of an architecture. Later architectures do not have all features of earlier ones: those of `sm_90a` beyond
/// `sm_90` (`wgmma`) are on no later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// `mbarrier.init` and the arrivals of threads.
    Mbarriers,
    /// `cvta.param`: generic addresses of parameters.
    GenericParameters,
    /// `ld` with `.L1::no_allocate`.
    CacheHints,
    /// mbarriers that count bytes, and waits for them: `expect_tx`, `try_wait`.
    MbarrierBytes,
    /// `cp.async.bulk`, tensor maps, and the fences of the asynchronous proxy.
    BulkCopies,
    /// `stmatrix`
    Stmatrix,
    /// `elect.sync`
    Elect,
    /// `wgmma`
    Wgmma,
    /// `setmaxnreg`
    RegisterTransfer,
    /// `griddepcontrol`
    DependentLaunch,
}

/// The architecture that a module is written for, the `.target` of its text.
///
/// Text for [`Sm::Sm80`] runs on every GPU from Ampere up: the driver compiles it for what it finds. Text for
/// [`Sm::Sm90a`] may use what Hopper alone has (`wgmma`, `setmaxnreg`, bulk copies) and runs on nothing else. The order
/// of the variants is for sorted tables only; [`Sm::features`] says which instructions a target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sm {
    /// Compute capability 8.0: A100, and the common ground of everything later.
    Sm80,
    /// Compute capability 9.0 with its architecture-specific instructions: H100, H200.
    Sm90a,
}

impl Sm {
    /// All targets, the most portable first.
    pub const ALL: [Sm; 2] = [Sm::Sm80, Sm::Sm90a];

    /// The name in PTX and in ptxas: `sm_80`.
    pub fn target(self) -> &'static str {
        match self {
            Sm::Sm80 => "sm_80",
            Sm::Sm90a => "sm_90a",
        }
    }

    /// The target in kernel names: `sm80`.
    pub fn name(self) -> &'static str {
        match self {
            Sm::Sm80 => "sm80",
            Sm::Sm90a => "sm90a",
        }
    }

    /// The architectures that text for this target is assembled for by the gate, as ptxas 13.0 names them.
    pub fn runs_on(self) -> &'static [&'static str] {
        match self {
            Sm::Sm80 => &["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"],
            Sm::Sm90a => &["sm_90a"],
        }
    }

    /// The features of the target.
    pub fn features(self) -> &'static [Feature] {
        match self {
            Sm::Sm80 => &[Feature::Mbarriers, Feature::GenericParameters, Feature::CacheHints],
            Sm::Sm90a => &[
                Feature::Mbarriers,
                Feature::GenericParameters,
                Feature::CacheHints,
                Feature::MbarrierBytes,
                Feature::BulkCopies,
                Feature::Stmatrix,
                Feature::Elect,
                Feature::Wgmma,
                Feature::RegisterTransfer,
                Feature::DependentLaunch,
            ],
        }
    }

    /// The lowest language version that supports the target.
    pub fn version(self) -> Version {
        match self {
            Sm::Sm80 => Version(7, 0),
            Sm::Sm90a => Version(8, 0),
        }
    }
}

/// A version of the PTX language, the `.version` of a module: the lowest that the driver must support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(
    /// Major number.
    pub u8,
    /// Minor number.
    pub u8,
);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}
