//! Support shared by the cross-crate tests: an allocator that counts, and the program under test.

pub mod allocator;
pub mod program;
pub mod run_folder;
