//! Polynomial coefficients and Philox, shared with the CPU kernels so that both sides compute the same function.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
pub mod philox;
pub mod poly;
