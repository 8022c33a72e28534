//! Elementary functions with error bounds, and counter-based random numbers.
pub mod functions;
pub use albert_num::{philox, poly};
#[cfg(test)]
mod tests;
