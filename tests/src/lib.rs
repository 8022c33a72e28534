//! Support shared by the cross-crate tests: an allocator that counts, the program under test, and readers
//! of foreign bytes.

pub mod allocator;
pub mod mutate;
pub mod program;
pub mod readers;
pub mod run_folder;
