//! Arithmetic and hardware: slices in, slices out; PTX text out. No tensors, no driver, no files.
//!
//! A product C = A·B of buffers of your own, row-major, on all cores with the widest instruction set of the machine:
//!
//! ```
//! use kernels::Cpu;
//! use kernels::gemm::{Gemm, SliceEpilogue, gemm};
//!
//! let (m, n, k) = (2, 3, 4);
//! let a = vec![1f32; m * k];
//! let b: Vec<f32> = (0..k * n).map(|i| i as f32).collect();
//! let mut c = vec![0f32; m * n];
//! let cpu = Cpu::detect()?; // or Cpu::new(isa, threads); starts the threads, so keep it
//! gemm(&cpu, &Gemm::nn(m, n, k), &a, &b, &mut c, SliceEpilogue::NONE);
//! assert_eq!(c, [18., 22., 26., 18., 22., 26.]);
//! # Ok::<(), kernels::CpuError>(())
//! ```
//!
//! [`gemm`]'s `Gemm::nt` and `Gemm::tn` multiply transposed operands, epilogues add a bias or an activation in the same pass,
//! and a `PackedB` multiplies one B many times. The other modules are one operation each: [`OPERATIONS`] is the table.
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
