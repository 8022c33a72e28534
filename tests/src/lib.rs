//! Support shared by the cross-crate tests: a counting allocator, the program under test, and readers of untrusted bytes.

// The program has no library, so its module is also compiled here, through a link, which a package resolves; the writer is
// not used.
#[allow(dead_code)]
mod npy;

pub mod allocator;
pub mod fake;
pub mod mutate;
pub mod program;
pub mod readers;
pub mod run_folder;

/// Compiles the Rust blocks of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
