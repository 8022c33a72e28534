//! The program `albert`.
#![forbid(unsafe_code)]
fn main() {}
