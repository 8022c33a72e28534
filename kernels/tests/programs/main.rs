//! The PTX programs of the table of operations: their listings, their predicted speed, and nvcc's code as a reference. One
//! binary, so that its parts run in parallel and are linked once.

mod nvcc;
mod operations;
mod predicted;
