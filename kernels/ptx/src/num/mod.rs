//! Polynomial coefficients and Philox, shared with the CPU kernels so that both sides compute the same function.
pub mod philox;
pub mod poly;
