//! Runs PTX text on the processor: what a kernel computes can be tested on a machine without a GPU.
//!
//! It reads the *text*, ours or anybody's, never the assembler's own structures, so a mistake of the assembler is inside
//! the test. An instruction that it does not know is an error with the instruction's name, never a guess. Text that nvcc
//! wrote is run too and held against ours (`tests/nvcc.rs`), so the simulator is not only checked by its author.
//!
//! ```
//! use kernels::{operation::Launch, ptx::sim::{Approximation, Argument, Memory, Module}};
//! # use kernels::ptx::{F32, Sm};
//! # let mut double = kernels::ptx::Module::new(Sm::Sm80);
//! # double.entry("double", [2, 1, 1], |k| {
//! #     let x = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("x")));
//! #     let at = k.index(x, k.special(kernels::ptx::Special::TidX), 4).at(0);
//! #     let [value] = k.ld::<F32, 1>(at);
//! #     k.st(at, [k.add(value, value)]);
//! # });
//! let module = Module::parse(&double.text())?;
//! let mut memory = Memory::new();
//! let x = memory.allocate_from("x", &[1.5f32, -2.0]);
//! let launch = Launch { grid: [1, 1, 1], block: [2, 1, 1], shared_bytes: 0 };
//! module.launch("double", launch, &[Argument::U64(x)], &mut memory, Approximation::Exact)?;
//! assert_eq!(memory.read::<f32>(x)?, [3.0, -4.0]);
//! # Ok::<(), kernels::ptx::sim::Error>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `lex`, `parse` | text to entries, registers, labels and statements |
//! | `decode` | a statement to an operation with resolved operands; the list of what is known |
//! | `memory` | allocations with gaps between them, and a shadow of who touched which byte |
//! | `execute` | one thread at a time, and the grid |
//!
//! # What it finds
//!
//! * reads and writes outside an allocation, or not aligned to their size;
//! * reads of memory or registers that nobody has written;
//! * races: two threads of a launch that touch the same byte, at least one of them writing. No instruction known here
//!   orders two threads, so any such pair is a race;
//! * `ld.global.nc` of bytes that the same launch writes;
//! * loops that do not end.
//!
//! # Limits
//!
//! One thread runs at a time and to its end: there are no warps, no shared memory and no barriers yet. Approximate
//! instructions are computed exactly and then moved to the edge of their documented error ([`Approximation`]), so that a
//! tolerance holds for every device that keeps the documentation. Performance is not modelled.

mod decode;
mod execute;
mod lex;
mod memory;
mod parse;

pub use execute::{Approximation, Argument, Counts};
pub use memory::{Memory, Touched};
pub use parse::Module;

/// Where in the text something happened, and in which Rust line it was written where the text says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The file and the line of the last `.loc` before it.
    pub source: Option<(String, u32)>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            Some((file, line)) => write!(f, "{file}:{line} (PTX line {})", self.line),
            None => write!(f, "PTX line {}", self.line),
        }
    }
}

/// Why a module could not be read or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is not PTX as this simulator reads it.
    #[error("PTX line {line}: {message}")]
    Syntax {
        /// Line of the text, from 1.
        line: u32,
        /// What was found and what was expected.
        message: String,
    },
    /// An instruction that the simulator does not know.
    #[error("{place}: `{instruction}` is not known to the simulator; add it to `ptx::sim::decode`")]
    UnknownInstruction {
        /// Where it stands.
        place: Place,
        /// Its full name.
        instruction: String,
    },
    /// The launch does not fit the kernel.
    #[error("cannot launch: {0}")]
    Launch(String),
    /// A thread did something forbidden.
    #[error("{place}: block {block:?}, thread {thread:?}: {message}")]
    Fault {
        /// The instruction.
        place: Place,
        /// The block's position in the grid.
        block: [u32; 3],
        /// The thread's position in its block.
        thread: [u32; 3],
        /// What it did.
        message: String,
    },
    /// The host asked for memory that is not there, or was never written.
    #[error("{0}")]
    Host(String),
}

#[cfg(test)]
mod tests;
