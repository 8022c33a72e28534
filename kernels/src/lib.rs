//! Arithmetic and hardware: slices in, slices out; PTX text out. No tensors, no driver, no files.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
pub mod activation;
pub mod arguments;
pub mod attention;
pub mod bits;
mod case;
// Functions of the references: tolerances cover their last bits.
#[allow(clippy::disallowed_methods)]
pub mod check;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
mod extent;
pub mod gemm;
pub mod gpu_spec;
mod hopper;
pub mod int8;
pub mod layernorm;
pub mod num;
pub mod operation;
pub mod optimizer;
pub mod pool;
pub mod predicted;
mod recorded;
pub mod reduce;
mod register_tile;
pub mod roofline;
mod row_team;
mod rows;
mod rowwise;
pub mod runner;
pub mod simd;
pub mod simulated;
pub mod softmax;
pub mod tiles;

pub use pool::{Cpu, CpuError, choose_threads};
pub use simd::{DType, Element, Isa, IsaKind};

/// The table of operations: what tests, benches, the profiler and the command line enumerate.
pub const OPERATIONS: &[operation::Operation] = &[
    activation::OPERATION,
    gemm::OPERATION,
    attention::OPERATION,
    layernorm::OPERATION,
    softmax::OPERATION,
    embedding::OPERATION,
    cross_entropy::OPERATION,
    optimizer::OPERATION,
    dropout::OPERATION,
    reduce::OPERATION,
    elementwise::OPERATION,
    int8::OPERATION,
];
