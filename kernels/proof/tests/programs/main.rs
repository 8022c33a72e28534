//! PTX programs of the table of operations: listings, and nvcc's code as a reference. One binary, so that
//! its tests run in parallel and are linked once.

mod nvcc;
mod operations;
