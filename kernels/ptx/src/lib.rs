//! A typed assembler for PTX, the assembly language of NVIDIA GPUs, and a simulator that runs PTX on the CPU and
//! reports what it does wrong.
//!
//! Neither needs a GPU, a driver or the CUDA toolkit. The two halves meet in the text alone: the simulator runs the
//! output of any compiler, and the driver loads the output of the assembler.
//!
//! # Assemble, run, read back
//!
//! ```
//! use ptx::sim::{Argument, Memory, Module, Options};
//! use ptx::{F32, Launch, Sm, Special, U32};
//!
//! let mut double = ptx::Module::new(Sm::Sm80);
//! double.entry("double", [128, 1, 1], |k| {
//!     let (x, n) = (k.load_pointer("x"), k.load_param::<U32>("n"));
//!     let i = k.mad_lo(k.special(Special::CtaidX), k.special(Special::NtidX), k.special(Special::TidX));
//!     k.if_(k.lt(i, n), || {
//!         let address = k.index(x, i, 4).at(0);
//!         let [value] = k.ld::<F32, 1>(address);
//!         k.st(address, [k.add(value, value)]);
//!     });
//! });
//! assert!(double.listing().contains("ld.global.f32 %f0, [%rd2];"));
//!
//! let mut memory = Memory::new();
//! let x: Vec<f32> = (0..200).map(|i| i as f32).collect();
//! let address = memory.allocate_from("x", &x);
//! let launch = Launch { grid: [2, 1, 1], block: [128, 1, 1], shared_bytes: 0 };
//! let arguments = [Argument::U64(address), Argument::U32(200)];
//! let module = Module::parse(&double.text())?;
//! let report = module.launch("double", launch, &arguments, &mut memory, &Options::default())?;
//! assert!(report.findings.is_empty());
//! assert_eq!(memory.read::<f32>(address)?[199], 398.0);
//! assert_eq!(report.metrics.global_read, 4 * 200);
//! # Ok::<(), ptx::sim::Error>(())
//! ```
//!
//! # Find a race
//!
//! This kernel reverses 64 elements through shared memory and lacks the barrier between store and load. The finding
//! names both accesses, with the Rust lines that emitted them:
//!
//! ```
//! # use ptx::sim::{Argument, FindingKind, Memory, Module, Options};
//! # use ptx::{F32, Launch, Sm, Special};
//! let mut reverse = ptx::Module::new(Sm::Sm80);
//! reverse.entry("reverse", [64, 1, 1], |k| {
//!     let (x, tile) = (k.load_pointer("x"), k.shared_array("tile", 256, 4));
//!     let thread = k.special(Special::TidX);
//!     let [value] = k.ld::<F32, 1>(k.index(x, thread, 4).at(0));
//!     k.st(k.index(tile, thread, 4).at(0), [value]);
//!     // k.bar_sync();
//!     let [value] = k.ld::<F32, 1>(k.index(tile, k.sub(63, thread), 4).at(0));
//!     k.st(k.index(x, thread, 4).at(0), [value]);
//! });
//! let mut memory = Memory::new();
//! let x = memory.allocate_from("x", &[1.0f32; 64]);
//! let launch = Launch { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
//! let module = Module::parse(&reverse.text())?;
//! let report = module.launch("reverse", launch, &[Argument::U64(x)], &mut memory, &Options::default())?;
//! assert!(report.has(FindingKind::Race));
//! # Ok::<(), ptx::sim::Error>(())
//! ```
//!
//! # The assembler
//!
//! One method call emits one instruction; repetition is a Rust loop, specialization a Rust value. There is no
//! optimizer, scheduler or register allocator: the driver's own assembler has all three. The types ensure that a kernel
//! cannot
//!
//! * mix register types: [`Reg<F32>`](Reg) never feeds an integer addition without an explicit conversion;
//! * mix address spaces: `ld.global` takes a [`Ptr<Global>`](Ptr) and nothing else;
//! * use an instruction that the target lacks: the module's `.version` grows with the instructions used, and an
//!   instruction beyond [`Sm`] is refused while the text is built;
//! * lose a label: [`Entry::if_`] and [`Entry::for_`] take closures and emit the branches themselves.
//!
//! The text is a function of the calls alone: no hash order, no path of the machine, no time. The same kernel has the
//! same bytes on every machine, so the driver's compilation cache hits and a difference in a listing is a difference in
//! code.
//!
//! | module | contents |
//! |---|---|
//! | `target` | [`Sm`], [`Feature`], [`Version`]: instructions of a target |
//! | `types` | register types, operands, address spaces |
//! | `module` | [`Module`], [`Entry`], parameters, the text and its `.loc` lines |
//! | `arithmetic`, `memory`, `control` | one method for each instruction |
//! | `warp`, `sync`, `copy`, `matrix` | shuffles, votes; barriers, fences; asynchronous copies; tensor cores |
//! | `tensor_map` | [`TensorMap`]: description of a matrix for TMA |
//! | [`tile`], [`fragment`] | shared-memory tiles and their swizzles; layouts of matrix fragments |
//! | `numbers`, `bf16`, `functions`, `philox` | elements of any storage type, exp, erf, random words |
//! | [`sim`] | the simulator: its model, findings, limits |
//!
//! An instruction form is added when a kernel needs it: the method in the file of its kind, with its minimal version
//! where that is above the target's own, and its execution in `sim::isa::table` or `sim::isa::alu`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// Declares an enum whose variants have a name in the text or in messages.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$doc])* $variant),* }

        impl $name {
            /// The name in PTX or in messages.
            $vis fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}

mod arithmetic;
mod bf16;
mod control;
mod copy;
pub mod fragment;
mod functions;
mod matrix;
mod memory;
mod module;
mod numbers;
mod philox;
pub mod sim;
mod sync;
mod target;
mod tensor_map;
pub mod tile;
mod types;
mod warp;

/// Grid, block and dynamic shared memory of a kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

pub use control::Compare;
pub use copy::TENSOR_MAP_BYTES;
pub use functions::{Precision, Sigmoid};
pub use matrix::{DescriptorSwizzle, Major, descriptor};
pub use memory::{Address, Cache, Special};
pub use module::{BytesParam, Entry, Module, Param, PointerParam, without_lines};
pub use numbers::{Read, Storage};
pub use philox::PhiloxKey;
pub use sync::{Barrier, Fence};
pub use target::{Feature, Sm, Version};
pub use tensor_map::{TENSOR_MAP_ALIGNMENT, TensorMap, TensorMapError};
pub use tile::{Step, Swizzle, Tile};
pub use types::{
    B16, B32, Bf16x2, F16x2, F32, F64, Float, Generic, Global, Integer, Number, Operand, Pair, Pred, Ptr, Reg, S32,
    Shared, Space, Type, U32, U64, Word,
};
pub use warp::{Fold, Lane};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod ptxas_tests;
