//! Files: read through a memory map, written so that a crash never leaves half of one, checked by a checksum.
mod atomic;
mod checksum;
mod folder;
pub mod limits;
mod mmap;
mod safetensors;
mod varint;

pub use atomic::{AtomicFile, AtomicFolder, check_output, remove_leftover, write_atomically};
pub use checksum::{Hasher64, crc32c, hash64};
pub use folder::{create_dir_synced, open_lock_file, sync_parent};
pub use mmap::Mmap;
pub use safetensors::{Data, FileDType, Safetensors, TensorOut, save_safetensors};
pub use varint::{VarintError, read_varint, write_varint};
