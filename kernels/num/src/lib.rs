//! Numbers that the kernels for CPUs and those for GPUs share, so that both compute the same function: polynomial
//! coefficients and Philox.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![forbid(unsafe_code)]

pub mod philox;
pub mod poly;
