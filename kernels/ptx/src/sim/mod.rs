//! Simulator of PTX: runs the text of a kernel on the CPU and reports races, missing fences, accesses out of bounds and
//! other defects.
//!
//! It reads *text* of any origin, never the assembler's own structures, so that mistakes of the assembler are found
//! too. An instruction that is not in its tables is an error with the instruction's name, never a guess. Text of nvcc
//! and Triton runs in its tests, so that it is checked against more than its own assembler.
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
//! An [`Error`] means that a kernel cannot be run: text that is not PTX, an unknown instruction, a launch that does not
//! fit or exceeds the [`Limits`]. Only the directives of a module and the bodies of launched entries have to be known.
//! A defect of a running kernel is a [`Finding`] of its [`Report`], with the PTX line, the source line (`.loc`), block,
//! thread and address, and with the earlier access of a race; the run continues where that makes sense.
//!
//! # Layers
//!
//! Files import from their own layer and from those before it in this list, never from later ones (`tensor_map` names
//! types of `isa`), and no two import each other:
//!
//! 1. values that callers choose or read: `limits`, `options`, `schedule`, `tensor_map`, `metrics`, `report`;
//! 2. `isa`, the instruction set: `types`, `space`, `scope`, `opcode`; arithmetic of one lane (`form`, `rounding`,
//!    `convert`, `float16`, `sfu`, `integer`, `alu`), `fidelity`; `operation`, `asynchronous` and `instruction`, decoded
//!    instructions; `tensor_core`, sums of products; `table` and `table_async`, from names to operations;
//! 3. `text`, from PTX to decoded kernels: `lex`, `syntax`, `parse`, `module`; `entry`, `names`; `decode`, `cfg`
//!    (reconvergence of branches), `body`, `reach` (inexact values);
//! 4. `state` of a launch: `memory`, `shadow`; happens-before in `clocks`, `warp_clock`, `done`, `published`; `barrier`, `mbarrier`,
//!    `copy`, `bulk`, `products`, for which threads wait; `lanes`, `warp`, `block`, `cluster`, `machine`;
//! 5. `exec`, effects of instructions on that state: `grid` runs blocks and warps, `dispatch` selects the operation,
//!    the other files execute it; `completion` ends asynchronous operations;
//! 6. `exercise`, all layers on one text, for fuzzers.
//!
//! # The model
//!
//! * A warp is 32 lanes with a stack of paths: lanes that diverge at a branch reconverge at its immediate
//!   post-dominator. Warps run independently, in the order of a [`Schedule`]; every value and every finding is a
//!   function of the text, the inputs and the [`Options`].
//! * Blocks of a cluster (`.reqnctapercluster`, up to 8 blocks) run concurrently, each in short turns; shared memory that other
//!   blocks access must not end before those accesses. Clusters run one after the other, unless the kernel can wait for another block (strong loads or atomic operations on
//!   global memory); then they take turns.
//! * Happens-before is tracked with vector clocks, by the memory consistency model of PTX. Threads are ordered by
//!   barriers of the block and the cluster, warp barriers (of the lanes in their mask), mbarriers, atomic operations and
//!   strong accesses with release, acquire and fences, and waits for asynchronous operations. A release and an acquire
//!   of two blocks, and two atomic operations of two blocks, must have a scope that includes both; a race because of a
//!   narrow scope names it. Lanes of a warp are *not* ordered by running together or by reconverging, nor by shuffles,
//!   votes, matches, reductions of registers and elections, unless [`Options::assume_convergence`] says so. Two accesses
//!   that are not ordered, one of them a write, are a race, whatever the values, except strong ones of one size and one
//!   proxy. `docs/simulator.md` has a table of everything that orders.
//! * Asynchronous operations end as late as allowed, at once, or at random ([`Completion`]). Until then their
//!   destination holds ones and may not be accessed; a missing wait is found even where the operation has ended early.
//! * The asynchronous proxy (bulk copies, `wgmma`) sees an ordinary write only after a `fence.proxy.async` on the path
//!   from the write to the operation; registers of a `wgmma` are tracked one by one.
//! * Uninitialized memory may not be read. Uninitialized registers, and values computed from them, may not be stored,
//!   branched on, used as an address or multiplied by a tensor core; compilers do compute in lanes whose results they
//!   drop. Shared memory starts at 0x400.
//! * Results are those of the device bit by bit, except for some approximate instructions and products: [`fidelity`] says
//!   which. `isa/sfu` computes `ex2` and others as a Hopper GPU does, and [`Approximation`] moves them within their documented
//!   error: a tolerance that holds for each choice holds on the device. Sums of tensor cores with f32 accumulators are those of
//!   a Hopper GPU, with `.target sm_80` or [`Options::gpu`] those published for Ampere (`isa/tensor_core.rs`). Accumulators of f16 are approximate.
//!
//! # Limits
//!
//! * Diverged lanes run one side after the other; a side that waits for the other is reported as a deadlock or an
//!   endless loop, although the device would let both proceed.
//! * Executions are sequentially consistent: weak behavior shows as a race, not as a value. Two `fence.sc` do not order
//!   each other: whoever relies on that needs values to know which came first.
//! * Barriers of the block take whole warps: `barrier.sync` of part of a warp is reported as divergent.
//! * Fences of scope `cluster` order threads of one block only; strong accesses and mbarriers of that scope order the cluster. Bulk
//!   copies between blocks are unknown, and that a block has started before another accesses it is not checked. Functions are not called (`call`
//!   is unknown). No textures, surfaces, `.b128`, `im2col`, interleaved tensors or sparse products;
//!   8-bit floats are multiplied, not converted.
//! * Tiles with a swizzle are as wide as the swizzle; `wgmma` descriptors have no base offset.
//! * Time is not modeled; [`Metrics`] counts instructions, transactions and operations.

mod approximation;
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

pub use approximation::Approximation;
pub use exercise::{Exercised, exercise};
pub use isa::{Fidelity, fidelity, sfu};
pub use limits::Limits;
pub use metrics::{Metrics, Site, SiteMemory};
pub use options::{Argument, Options};
pub use report::{Finding, FindingKind, Other, Report};
pub use schedule::{Completion, Schedule};
pub use state::{Memory, Touched};
pub use tensor_map::{Swizzle, TensorMap, TensorType};
pub use text::{Module, Reach};

/// Location in the text, and in the source where the text has `.loc`.
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

/// Reason why a module cannot be read or run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The text is not PTX that this simulator can parse.
    Syntax {
        /// Line of the text, from 1.
        line: u32,
        /// The problem; expected and found values.
        message: String,
    },
    /// An instruction that is not in the simulator's tables.
    UnknownInstruction {
        /// Its location.
        place: Place,
        /// Its full name.
        instruction: String,
    },
    /// The launch does not fit the kernel.
    Launch(String),
    /// The host accesses memory that is not allocated, or was never written.
    Host(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Syntax { line, message } => write!(f, "PTX line {line}: {message}"),
            Self::UnknownInstruction { place, instruction } => write!(
                f,
                "{place}: `{instruction}` is not known to the simulator; add it to `ptx::sim::isa::table` or \
                 `ptx::sim::isa::alu`"
            ),
            Self::Launch(message) => write!(f, "cannot launch: {message}"),
            Self::Host(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests;
