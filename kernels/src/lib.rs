//! Arithmetic of the CPU: slices in, slices out. No tensors, no files.
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
//! and a `PackedB` multiplies one B many times. Most other modules are one operation each.
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
