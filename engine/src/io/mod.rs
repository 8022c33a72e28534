//! Files: read through a memory map, written so that a crash never leaves half of one, checked by a checksum.
mod atomic;
mod checksum;
mod mmap;
mod safetensors;

pub use atomic::{AtomicFile, write_atomically};
pub use checksum::{Hasher64, crc32c, hash64};
pub use mmap::Mmap;
pub use safetensors::{Data, FileDType, Safetensors, TensorOut, save_safetensors};
