//! Instruction sets: detection at run time, selection by `ALBERT_ISA`.

#[cfg(emulated_isas)]
use super::Emulated;
#[cfg(target_arch = "aarch64")]
use super::Neon;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{Kernel, Scalar, Simd};
use std::{fmt, str::FromStr};

/// Name of an instruction set, whether or not this machine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaKind {
    /// Plain Rust, one lane.
    Scalar,
    /// NEON, four lanes.
    Neon,
    /// AVX2 + FMA, eight lanes.
    Avx2,
    /// AVX-512, sixteen lanes.
    Avx512,
    /// Four emulated lanes, for tests.
    Emulated4,
    /// Eight emulated lanes, for tests.
    Emulated8,
    /// Sixteen emulated lanes, for tests.
    Emulated16,
}

impl IsaKind {
    /// The real instruction sets of this architecture, narrow to wide.
    pub const REAL: &[Self] = if cfg!(target_arch = "x86_64") {
        &[Self::Scalar, Self::Avx2, Self::Avx512]
    } else if cfg!(target_arch = "aarch64") {
        &[Self::Scalar, Self::Neon]
    } else {
        &[Self::Scalar]
    };
    /// All of them, the emulated ones last.
    pub const ALL: [Self; 7] =
        [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512, Self::Emulated4, Self::Emulated8, Self::Emulated16];

    /// Name in `ALBERT_ISA`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Emulated4 => "emulated4",
            Self::Emulated8 => "emulated8",
            Self::Emulated16 => "emulated16",
        }
    }

    /// f32 lanes of a vector.
    pub const fn lanes(self) -> usize {
        match self {
            Self::Scalar => 1,
            Self::Neon | Self::Emulated4 => 4,
            Self::Avx2 | Self::Emulated8 => 8,
            Self::Avx512 | Self::Emulated16 => 16,
        }
    }
}

impl fmt::Display for IsaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: unknown name of an instruction set, or one that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIsa(String);

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<_> = Isa::real().iter().map(|isa| isa.kind().name()).collect();
        write!(f, "ALBERT_ISA={}: this machine has {}; choose one of these or unset it", self.0, known.join(", "))
    }
}

impl std::error::Error for UnknownIsa {}

impl FromStr for IsaKind {
    type Err = UnknownIsa;
    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

/// Instruction set of this machine; owning the value proves that the machine has it.
///
/// Emulated ones exist only if compiled with `--cfg emulated_isas` (`.ci/emulated.sh`,
/// `.ci/aarch64.sh`), for a width that no machine has and for machines without AVX2 or AVX-512: emulated kernels are most
/// of such tests' code size.
#[derive(Clone, Copy, Debug)]
pub enum Isa {
    /// Plain Rust.
    Scalar(Scalar<false>),
    /// Plain Rust with the instruction for multiply-adds.
    ScalarFma(Scalar<true>),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// AVX2 + FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// Four emulated lanes.
    #[cfg(emulated_isas)]
    Emulated4(Emulated<4>),
    /// Eight emulated lanes.
    #[cfg(emulated_isas)]
    Emulated8(Emulated<8>),
    /// Sixteen emulated lanes.
    #[cfg(emulated_isas)]
    Emulated16(Emulated<16>),
}

/// The same expression for the token inside, whichever it is.
macro_rules! with_token {
    ($isa:expr, $simd:ident => $body:expr) => {
        match $isa {
            Isa::Scalar($simd) => $body,
            Isa::ScalarFma($simd) => $body,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon($simd) => $body,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2($simd) => $body,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512($simd) => $body,
            #[cfg(emulated_isas)]
            Isa::Emulated4($simd) => $body,
            #[cfg(emulated_isas)]
            Isa::Emulated8($simd) => $body,
            #[cfg(emulated_isas)]
            Isa::Emulated16($simd) => $body,
        }
    };
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remark = if matches!(self, Self::Scalar(_)) { " without FMA" } else { "" };
        write!(f, "{}{remark}", self.kind())
    }
}

impl Isa {
    /// Instruction set `kind`, if this machine has it.
    pub fn new(kind: IsaKind) -> Option<Self> {
        match kind {
            IsaKind::Scalar => {
                let portable = Self::Scalar(Scalar::new());
                Some(Scalar::detect().map_or(portable, Self::ScalarFma))
            }
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon => Neon::detect().map(Self::Neon),
            #[cfg(not(target_arch = "aarch64"))]
            IsaKind::Neon => None,
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => Avx512::detect().map(Self::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            IsaKind::Avx2 | IsaKind::Avx512 => None,
            #[cfg(not(emulated_isas))]
            IsaKind::Emulated4 | IsaKind::Emulated8 | IsaKind::Emulated16 => None,
            #[cfg(emulated_isas)]
            IsaKind::Emulated4 => Some(Self::Emulated4(Emulated)),
            #[cfg(emulated_isas)]
            IsaKind::Emulated8 => Some(Self::Emulated8(Emulated)),
            #[cfg(emulated_isas)]
            IsaKind::Emulated16 => Some(Self::Emulated16(Emulated)),
        }
    }

    /// Real instruction sets of this machine, narrow to wide.
    pub fn real() -> Vec<Self> {
        IsaKind::REAL.iter().filter_map(|&kind| Self::new(kind)).collect()
    }

    /// Instruction sets for tests: the real ones and, within this crate's tests, the emulated ones.
    pub fn testable() -> Vec<Self> {
        IsaKind::ALL.into_iter().filter_map(Self::new).collect()
    }

    /// Widest instruction set of this machine, or the one in the environment variable `ALBERT_ISA`.
    ///
    /// # Errors
    /// `ALBERT_ISA` is unknown, or this machine lacks it.
    pub fn choose() -> Result<Self, UnknownIsa> {
        match std::env::var("ALBERT_ISA") {
            Ok(name) => Self::new(name.parse()?).ok_or(UnknownIsa(name)),
            Err(_) => Ok(*Self::real().last().expect("every machine has Scalar")),
        }
    }

    /// Name of the instruction set.
    pub const fn kind(self) -> IsaKind {
        match self {
            Self::Scalar(_) | Self::ScalarFma(_) => IsaKind::Scalar,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => IsaKind::Neon,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => IsaKind::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => IsaKind::Avx512,
            #[cfg(emulated_isas)]
            Self::Emulated4(_) => IsaKind::Emulated4,
            #[cfg(emulated_isas)]
            Self::Emulated8(_) => IsaKind::Emulated8,
            #[cfg(emulated_isas)]
            Self::Emulated16(_) => IsaKind::Emulated16,
        }
    }

    /// f32 lanes of a vector.
    pub fn lanes(self) -> usize {
        self.kind().lanes()
    }

    /// Runs `kernel` with the vectors of this instruction set. Call it inside the worker thread, once per task.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        with_token!(self, simd => simd.vectorize(kernel))
    }
}
