//! The instruction set: names, operands and arithmetic of the instructions that the simulator knows.

pub(crate) mod alu;
mod asynchronous;
mod convert;
mod fetch;
mod fidelity;
mod float16;
mod form;
mod instruction;
mod integer;
mod opcode;
mod operation;
mod rounding;
mod scope;
pub mod sfu;
mod space;
pub(crate) mod table;
mod table_async;
mod tensor_core;
mod types;

pub(crate) use asynchronous::{Arrive, Async, Bulk, Product, Wait};
pub(crate) use fetch::{Fetch, fetch, fetched};
pub use fidelity::{Fidelity, fidelity};
pub(crate) use form::{Combine, Compare, Form, Function, Modifiers, Run, RunTwo, combined, select};
pub(crate) use instruction::{CARRY, CONSTANT, Instruction, SINK, SPECIALS, Source};
pub(crate) use opcode::Opcode;
pub(crate) use operation::{Access, Atomic, BarrierKind, Fence, Multiply, Operation, Order, Shuffle, Vote};
pub(crate) use rounding::{Rounding, least, odd, rounded, saturated, two_sum};
pub(crate) use scope::{MemoryFence, ProxyFence, Scope};
pub(crate) use space::{LOCAL_BASE, SHARED_BASE, Space, base, space, space_of, split_rank, window, with_rank};
pub(crate) use tensor_core::{Columns, Rows, Rule, TensorCore, Tile, multiply, to_f16};
pub(crate) use types::{Lane, Short, Type, element, flushed, halves, join, low_bits, word};
