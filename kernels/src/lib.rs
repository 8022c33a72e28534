#![doc = include_str!("../README.md")]
//!
//! [`gemm`]'s `Gemm::nt` and `Gemm::tn` multiply transposed operands, epilogues add a bias or an activation in the same pass,
//! and a `PackedB` multiplies one B many times. Most other modules are one operation each: equations, cost, limits, an example.
//!
//! | to | see |
//! |---|---|
//! | choose threads, instruction set and caches | [`Cpu`], [`Isa`] |
//! | write a kernel over rows | [`rows`] |
//! | write a kernel over vectors | [`simd`] |
//! | know which limit a kernel has | [`roofline`], [`Cost`] |
//!
//! `docs/new-kernel.md` adds an operation from definition to gradient, and has the profile that a project outside of this
//! workspace needs.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]
pub mod activation;
pub mod attention;
mod cost;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
mod extent;
pub mod gemm;
pub mod int8;
pub mod layernorm;
pub mod num;
pub mod optimizer;
pub mod pool;
pub mod reduce;
mod register_tile;
pub mod roofline;
pub mod rows;
pub mod simd;
pub mod softmax;
pub mod tiles;

pub use cost::Cost;
pub use pool::{Cpu, CpuError, choose_threads};
pub use simd::{DType, Element, Isa, IsaKind};
