#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
pub mod activation;
pub mod arguments;
pub mod attention;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod gemm;
pub mod gpu_spec;
mod hopper;
pub mod layernorm;
pub mod optimizer;
pub mod program;
pub mod reduce;
mod row_team;
pub mod softmax;
