//! The instruction set: names, operands and arithmetic of the instructions that the simulator knows.

pub(crate) mod alu;
pub(crate) mod asynchronous;
mod convert;
pub(crate) mod fetch;
mod float16;
pub(crate) mod form;
pub(crate) mod instruction;
mod integer;
pub(crate) mod opcode;
pub(crate) mod operation;
mod rounding;
pub(crate) mod scope;
pub(crate) mod space;
pub(crate) mod table;
mod table_async;
pub(crate) mod types;
