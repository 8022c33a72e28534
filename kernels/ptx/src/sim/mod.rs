//! Runs PTX text on the processor: what a kernel computes can be tested on a machine without a GPU.
//!
//! It reads the *text*, ours or anybody's, never the assembler's own structures, so a mistake of the assembler is inside
//! the test. An instruction that it does not know is an error with the instruction's name, never a guess. Text that nvcc
//! wrote is run too and held against ours (`kernels/tests/programs/nvcc.rs`), so the simulator is not only checked by its author.
//!
//! ```
//! use ptx::{Launch, sim::{Argument, Memory, Module, Options}};
//! # use ptx::{F32, Sm};
//! # let mut double = ptx::Module::new(Sm::Sm80);
//! # double.entry("double", [2, 1, 1], |k| {
//! #     let x = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("x")));
//! #     let at = k.index(x, k.special(ptx::Special::TidX), 4).at(0);
//! #     let [value] = k.ld::<F32, 1>(at);
//! #     k.st(at, [k.add(value, value)]);
//! # });
//! let module = Module::parse(&double.text())?;
//! let mut memory = Memory::new();
//! let x = memory.allocate_from("x", &[1.5f32, -2.0]);
//! let launch = Launch { grid: [1, 1, 1], block: [2, 1, 1], shared_bytes: 0 };
//! let report = module.launch("double", launch, &[Argument::U64(x)], &mut memory, &Options::default())?;
//! assert!(report.findings.is_empty());
//! assert_eq!(memory.read::<f32>(x)?, [3.0, -4.0]);
//! # Ok::<(), ptx::sim::Error>(())
//! ```
//!
//! An `Err` says that a kernel could not be run: text that is not PTX, an instruction that is not known, a launch that
//! does not fit or exceeds the [`Limits`]. Only the directives of a module and the bodies of the entries that are launched
//! have to be understood. What a kernel does wrong while it runs is a [`Finding`] of its [`Report`], with the PTX line, the line
//! of the source (`.loc`), block, thread and address; the run goes on where that makes sense.
//!
//! # Layers
//!
//! Files import from their own layer and from those above it in this list, never from below, and no two import each other:
//!
//! 1. values that callers choose or read: `limits`, `options`, `schedule`, `tensor_map`, `metrics`, `report`;
//! 2. `isa`, the instruction set: `types`, `space`, `scope`, `opcode`; arithmetic of one lane (`form`, `rounding`, `convert`,
//!    `float16`, `integer`, `alu`); `operation` and `asynchronous`, the operations; `table` and `table_async`, from names to
//!    operations; `instruction`, a decoded instruction;
//! 3. `text`, from PTX to decoded kernels: `lex`, `parse`, `module`; `entry`, `names`; `cfg`, reconvergence of branches;
//!    `decode`, `body`;
//! 4. `state` of a launch: `memory`, `shadow`; `clocks`, `done`, `published`, happens-before; `barrier`, `mbarrier`, `copy`,
//!    `bulk`, `products`, what blocks and warps wait for; `warp`, `block`, `machine`;
//! 5. `exec`, what instructions do to that state: `grid` runs blocks and warps, `dispatch` selects the operation, the rest
//!    execute it; `completion` ends asynchronous operations;
//! 6. `exercise`, all layers on one text, for fuzzers.
//!
//! # The model
//!
//! * A warp is 32 lanes with a stack of paths: lanes that part at a branch meet at its immediate post-dominator. Warps
//!   run independently, in the order of a [`Schedule`]; every value and every finding is a function of the text, the
//!   inputs and the [`Options`].
//! * Blocks run one after the other, unless the kernel can wait for another block (strong loads or atomic operations on
//!   global memory); then they take turns.
//! * Happens-before is kept with vector clocks. What orders threads: barriers of the block, warp barriers and shuffles
//!   (of the lanes in their mask), mbarriers, atomic operations and strong accesses with release, acquire and fences,
//!   and waits for asynchronous operations. A release and an acquire of two blocks, and two atomic operations of two
//!   blocks, must have a scope that holds both (`order`); a race because of a narrow scope names it. Lanes of a warp are *not* ordered by running together. Two accesses that
//!   are not ordered, one of them a write and not both strong, are a race, whatever the values.
//! * Asynchronous operations end as late as allowed, at once, or at random ([`Completion`]). Until then their
//!   destination holds ones and may not be touched; who has not waited is found even where they have ended early.
//! * The asynchronous proxy (bulk copies, `wgmma`) sees an ordinary write only behind a `fence.proxy.async` that stands
//!   somewhere on the way from the write to the operation; the registers of a `wgmma` are watched one by one.
//! * Memory that nobody has written may not be read. A register that nobody has written, and what is computed from it,
//!   may not be stored, branched on, used as an address or multiplied by a tensor core; compilers do compute in lanes
//!   whose results they drop. Shared memory begins at 0x400.
//! * Results are those of the device bit by bit, but for tensor cores (exact products, summed in f64, rounded once) and
//!   approximate instructions ([`Approximation`]): a tolerance that holds for each holds on the device.
//!
//! # Limits
//!
//! * Lanes that part run one side after the other; a side that waits for the other is reported as a deadlock or an
//!   endless loop, which the device would let pass.
//! * Executions are sequentially consistent: weak behavior shows as a race, not as a value.
//! * Barriers of the block take whole warps: `barrier.sync` of a part of a warp is refused as divergent.
//! * Clusters have one block; multicast and remote arrivals are unknown instructions. Functions are not called (`call`
//!   is unknown). No textures, surfaces, `.b128`, `im2col`, interleaved tensors, 8-bit floats or sparse products.
//! * Tiles with a swizzle are as wide as the swizzle; `wgmma` descriptors have no base offset.
//! * Time is not modeled; [`Metrics`] counts what time is made of.

mod exec;
mod exercise;
mod isa;
mod limits;
mod metrics;
mod options;
mod report;
mod schedule;
mod state;
mod tensor_map;
mod text;

pub use exercise::{Exercised, exercise};
pub use limits::Limits;
pub use metrics::{Metrics, Site, SiteMemory};
pub use options::{Approximation, Argument, Options};
pub use report::{Finding, FindingKind, Report};
pub use schedule::{Completion, Schedule};
pub use state::{Memory, Touched};
pub use tensor_map::{Swizzle, TensorMap, TensorType};
pub use text::Module;

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
    #[error(
        "{place}: `{instruction}` is not known to the simulator; add it to `ptx::sim::isa::table` or `ptx::sim::isa::alu`"
    )]
    UnknownInstruction {
        /// Where it stands.
        place: Place,
        /// Its full name.
        instruction: String,
    },
    /// The launch does not fit the kernel.
    #[error("cannot launch: {0}")]
    Launch(String),
    /// The host asked for memory that is not there, or was never written.
    #[error("{0}")]
    Host(String),
}

#[cfg(test)]
mod tests;
