//! Files: memory maps, atomic output, checksums, safetensors.
mod atomic;
mod checksum;
mod folder;
mod mmap;
mod safetensors;

pub use bounded_input::{self as limits, proto};

pub use atomic::{AtomicFile, AtomicFolder, check_output, remove_leftover, write_atomically};
pub use checksum::{hash64, masked_crc};
pub use folder::{create_dir_synced, open_lock_file, sync_parent};
pub use mmap::Mmap;
pub use safetensors::{Data, FileDType, Safetensors, TensorOut, save_safetensors};
pub use twox_hash::XxHash64;
