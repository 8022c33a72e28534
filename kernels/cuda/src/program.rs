//! Programs for GPUs and their names.
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

use kernels::DType;
use ptx::{Sm, Storage};
use std::fmt;

/// Direction of a kernel.
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

/// Elements of `dtype` in memory.
pub const fn storage_of(dtype: DType) -> Storage {
    match dtype {
        DType::F32 => Storage::F32,
        DType::Bf16 => Storage::Bf16,
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
    /// Registers a thread may use at most; `.ci/ptx-gate.sh` holds the assembler's figure against it.
    pub registers: u32,
    /// Machine instructions that the kernel must come down to on every architecture (`HMMA`, `LDGSTS`), as the
    /// disassembly begins their names; the gate looks for each.
    pub required_sass: &'static [&'static str],
}

impl Program {
    /// The only entry of `module`, which is called `name`.
    pub(crate) fn new(name: Name, module: &ptx::Module, registers: u32) -> Self {
        Self { name, sm: module.sm(), text: module.text(), registers, required_sass: &[] }
    }

    /// The text for readers, without `.loc` lines.
    pub fn listing(&self) -> String {
        ptx::without_lines(&self.text)
    }

    /// The program `name` for `sm`: one entry with blocks of `threads`, whose body `write` emits.
    pub(crate) fn emit(name: Name, sm: Sm, threads: u32, registers: u32, write: impl FnOnce(&ptx::Entry)) -> Self {
        let mut module = ptx::Module::new(sm);
        module.entry(&name.entry(), [threads, 1, 1], write);
        Self::new(name, &module, registers)
    }

    /// The same, with the machine instructions that it must come down to.
    pub(crate) fn requiring(self, required_sass: &'static [&'static str]) -> Self {
        Self { required_sass, ..self }
    }
}
