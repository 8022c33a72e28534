#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
pub mod activation;
pub mod attention;
pub mod bits;
pub mod case;
// Functions of the references: tolerances cover their last bits.
#[allow(clippy::disallowed_methods)]
pub mod check;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
mod entry;
pub mod gemm;
pub mod int8;
pub mod layernorm;
pub mod operation;
pub mod optimizer;
pub mod recorded;
pub mod reduce;
pub mod runner;
pub mod simulated;
pub mod softmax;

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
