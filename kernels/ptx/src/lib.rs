//! A small typed assembler for PTX, the assembly language that the NVIDIA driver compiles.
//!
//! One method call writes one instruction; what is repeated is repeated by plain Rust loops, and what is specialized is
//! specialized by plain Rust values. There is no optimizer, no scheduler and no register allocator: the driver's own
//! assembler has all three, and better ones. What the types give instead is that a kernel cannot
//!
//! * mix register types: [`Reg<F32>`](Reg) never feeds an integer addition without a written conversion;
//! * mix address spaces: `ld.global` takes a [`Ptr<Global>`](Ptr) and nothing else;
//! * use an instruction that the target lacks: the module's `.version` grows with the instructions used, and an
//!   instruction beyond [`Sm`] is refused while the text is built;
//! * leave a label behind: [`Entry::if_`] and [`Entry::for_`] take closures and place the branches themselves.
//!
//! ```
//! use ptx::{F32, Module, Sm, Special, U32};
//!
//! let mut module = Module::new(Sm::Sm80);
//! module.entry("double", [128, 1, 1], |k| {
//!     let (x, n) = (k.pointer_param("x"), k.param::<U32>("n"));
//!     let (x, n) = (k.cvta_to_global(k.ld_param_pointer(x)), k.ld_param(n));
//!     let (block, threads, lane) = (k.special(Special::CtaidX), k.special(Special::NtidX), k.special(Special::TidX));
//!     let i = k.mad_lo(block, threads, lane);
//!     k.if_(k.lt(i, n), || {
//!         let address = k.index(x, i, 4);
//!         let [value] = k.ld::<F32, 1>(address.at(0));
//!         k.st(address.at(0), [k.add(value, value)]);
//!     });
//! });
//! assert!(module.listing().contains("ld.global.f32 %f0, [%rd2];"));
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `target` | [`Sm`], [`Feature`], [`Version`]: what may be used where |
//! | `types` | register types, operands, address spaces |
//! | `module` | [`Module`], [`Entry`], parameters, the text and its `.loc` lines |
//! | `arithmetic`, `memory`, `control` | one method an instruction |
//! | `warp`, `sync`, `copy`, `matrix` | shuffles and votes; barriers, fences, phases; asynchronous copies; tensor cores |
//! | `tensor_map` | [`TensorMap`]: description of a matrix for TMA |
//! | [`tile`], [`fragment`] | shared tiles and their swizzles; which lane holds which element of a matrix fragment |
//! | `numbers`, `bf16`, `functions`, `philox` | short sequences that several kernels share: runs of numbers of any storage, exp, erf, random words |
//! | [`sim`] | the other end: reads PTX text and runs it, without a GPU |
//!
//! An instruction form is added when a kernel needs it: the method in the file of its kind, with its minimal version
//! where that is above the target's own, and its execution in `sim::isa::table` or `sim::isa::alu`.
//!
//! Text is a function of the calls alone: no hash order, no path of the machine, no time. The same kernel gives the same
//! bytes on every machine, so the driver's compilation cache hits and a difference in a listing is a difference in code.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arithmetic;
mod bf16;
mod control;
mod copy;
pub mod fragment;
mod functions;
mod matrix;
mod memory;
mod module;
pub mod num;
mod numbers;
mod philox;
pub mod sim;
mod sync;
mod target;
mod tensor_map;
pub mod tile;
mod types;
mod warp;

/// Grid, block and shared memory of a kernel launch.
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
pub use module::{BytesParam, Entry, Module, Param, PointerParam};
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
