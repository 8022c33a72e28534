//! Tests that run the program. They are one binary, to run in parallel and be linked once; tests that count allocations, and
//! those that use the libraries, are separate binaries.

mod bad_input;
mod bad_lines;
mod bench;
mod convert;
mod earlier_version;
mod embed;
mod everyday;
mod finetune;
mod folders;
mod forward;
mod kernels_command;
mod kills;
mod languages;
#[cfg(unix)]
mod nccl;
mod profile;
mod ranks;
mod resume;
mod trace;
mod verify;
