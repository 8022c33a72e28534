//! Arithmetic and hardware: slices in, slices out; PTX text out. No tensors, no driver, no files.
pub mod num;
pub mod operation;
pub mod ptx;
