//! The CUDA suite for a machine with a GPU.
//!
//! The cases of the criterion benches are those of `albert bench`: crate `measure`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cuda_cases;
pub mod cuda_speed;
pub mod hardware;
pub mod journal;
pub mod losses;
pub mod rehearsal;
