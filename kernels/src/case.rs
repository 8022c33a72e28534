//! Cases of operations: their names, their sizes, what they cost, where they run, and the programs that they launch.
//!
//! # Names
//!
//! One name serves everywhere: PTX entry, profiler row, bench id, snapshot file.
//!
//! ```text
//! gemm.nt-bf16f32-sm90a-128x128x64-bias_gelu
//! │    │  │       │     │          └ variant: what is fused or chosen, words joined by `_`
//! │    │  │       │     └ tile: numbers joined by `x`; each operation says what they are
//! │    │  │       └ target: sm80, sm90a, scalar, avx2, avx512, neon
//! │    │  └ types: storage, then accumulation or output where that differs
//! │    └ form: nt, forward, backward
//! └ operation
//! ```
//!
//! Parts that a name does not need are left out; the order never changes.

use crate::IsaKind;
use crate::simd::DType;
use ptx::Sm;
use std::fmt;

/// Which way a kernel goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// From inputs to outputs.
    Forward,
    /// From gradients of outputs to gradients of inputs.
    Backward,
}

impl Pass {
    /// Both ways.
    pub const ALL: [Pass; 2] = [Pass::Forward, Pass::Backward];

    /// The part of a name that says the way.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        }
    }
}

/// What one call of a kernel costs at least: what every report compares the clock with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts two, an elementary function what its row says.
    pub flops: u64,
    /// Bytes that have to cross the memory bus: every input read once, every output written once.
    pub bytes: u64,
}

impl Cost {
    /// The least seconds on a machine of `flops` operations and `bandwidth` bytes a second.
    pub fn seconds(self, flops: f64, bandwidth: f64) -> f64 {
        (self.flops as f64 / flops).max(self.bytes as f64 / bandwidth)
    }
}

/// The name of a kernel or of a case. See the module's grammar.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// A name of an operation (with its form after a dot, where it has several) and its further parts, in the order of
    /// the grammar.
    ///
    /// # Panics
    /// If a part is not made of lower-case letters and digits joined by single `_`, or if the operation does not begin
    /// with a letter.
    #[track_caller]
    pub fn new(operation: &str, parts: &[&str]) -> Self {
        let word = |part: &str| {
            !part.is_empty()
                && part
                    .split('_')
                    .all(|w| !w.is_empty() && w.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
        };
        let (head, form) = operation.split_once('.').unwrap_or((operation, "forward"));
        assert!(
            word(head) && word(form) && head.starts_with(|c: char| c.is_ascii_lowercase()),
            "`{operation}` is no operation's name"
        );
        for part in parts {
            assert!(word(part), "`{part}` cannot be a part of the name of {operation}");
        }
        Self(std::iter::once(operation).chain(parts.iter().copied()).collect::<Vec<_>>().join("-"))
    }

    /// The name as people read it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a PTX identifier: `-` becomes `__` and `.` becomes `$`.
    pub fn entry(&self) -> String {
        self.0.replace('-', "__").replace('.', "$")
    }

    /// The name that a PTX identifier stands for: the inverse of [`Name::entry`].
    pub fn from_entry(entry: &str) -> Self {
        Self(entry.replace("__", "-").replace('$', "."))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One size of one variant of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which way.
    pub pass: Pass,
    /// Storage of inputs and outputs.
    pub dtype: DType,
    /// What is fused or chosen, in the words of the operation; empty where there is nothing to choose.
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

/// Where a case is run.
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

/// What became of a case on a target.
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

impl From<DType> for ptx::Storage {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => ptx::Storage::F32,
            DType::Bf16 => ptx::Storage::Bf16,
        }
    }
}

/// One specialization of a CUDA kernel, ready for the driver.
#[derive(Clone, Debug)]
pub struct Program {
    /// The kernel; its entry is [`Name::entry`].
    pub name: Name,
    /// The architecture that the text is written for.
    pub sm: Sm,
    /// The text for the driver, with `.loc` lines.
    pub text: String,
    /// The text for readers, without them.
    pub listing: String,
    /// Registers a thread may use at most; `.ci/ptx-gate.sh` holds the assembler's figure against it.
    pub registers: u32,
    /// Machine instructions that the kernel must come down to on every architecture (`HMMA`, `LDGSTS`), as the
    /// disassembly begins their names; the gate looks for each.
    pub required_sass: &'static [&'static str],
}

impl Program {
    /// The only entry of `module`, which is called `name`.
    pub fn new(name: Name, module: &ptx::Module, registers: u32) -> Self {
        let (text, listing) = (module.text(), module.listing());
        Self { name, sm: module.sm(), text, listing, registers, required_sass: &[] }
    }

    /// The program `name` for `sm`: one entry with blocks of `threads`, whose body `write` emits.
    pub fn emit(name: Name, sm: Sm, threads: u32, registers: u32, write: impl FnOnce(&ptx::Entry)) -> Self {
        let mut module = ptx::Module::new(sm);
        module.entry(&name.entry(), [threads, 1, 1], write);
        Self::new(name, &module, registers)
    }

    /// The same, with the machine instructions that it must come down to.
    pub fn requiring(self, required_sass: &'static [&'static str]) -> Self {
        Self { required_sass, ..self }
    }
}
