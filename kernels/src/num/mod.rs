//! Numbers: elementary functions with known error bounds, and counter-based random numbers.
pub mod functions;
pub mod philox;
pub mod poly;
#[cfg(test)]
mod tests;
