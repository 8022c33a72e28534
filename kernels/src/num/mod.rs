//! Numbers: elementary functions with known error bounds, and counter-based random numbers.
pub mod philox;
