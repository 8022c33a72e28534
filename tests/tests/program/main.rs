//! The program, run as people and other programs run it. One binary, so that its parts run side by side and are linked once;
//! what counts allocations, and what computes the same without the program, are binaries of their own.

mod bad_input;
mod bench;
mod convert;
mod embed;
mod finetune;
mod forward;
mod kernels_command;
mod kills;
mod profile;
mod resume;
mod streams;
