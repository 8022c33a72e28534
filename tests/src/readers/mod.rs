//! Readers of untrusted bytes, one function each, called by fuzzing, mutation and regression tests.
//!
//! | caller | command |
//! |---|---|
//! | coverage-guided fuzzing | `.ci/fuzz.sh` (package `tests/fuzz`, libFuzzer) |
//! | mutation without coverage, millions of inputs | `cargo test --release -p albert-tests --test readers -- --ignored` |
//! | corpus and regressions of `tests/fuzz` | `cargo test -p albert-tests --test readers` |
//!
//! Contract of every reader, for any bytes: it returns a value or an error, in time linear in the input, with at most
//! [`Reader::allowed`] bytes of memory. A panic, an abort, a stack overflow, a hang or more memory is a defect.
//!
//! Checksums would stop a fuzzer at the first byte, so inputs of formats with a checksum are framed here: the
//! function computes the checksum of the mutated bytes before it passes them to the reader.

mod binary;
mod kernel;
mod launch;
mod model;
mod task;
mod tokenizer;

pub use binary::tensorflow_index;
use engine::io::limits::{
    self,
    text::{LARGEST_WINDOW, ZSTD_MAGIC},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A reader of untrusted bytes.
#[derive(Clone, Copy)]
pub struct Reader {
    /// Name on the command line and of its folders in `tests/fuzz`.
    pub name: &'static str,
    /// Reads an input; true if it was accepted.
    pub read: fn(&[u8]) -> bool,
    /// Valid inputs, the start of fuzzing and mutation.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// True if the format is text, which determines the kind of mutation.
    pub text: bool,
}

/// Every reader.
pub const READERS: &[Reader] = &[
    Reader { name: "safetensors", read: binary::safetensors, seeds: binary::safetensors_seeds, text: false },
    Reader { name: "shard-index", read: model::shard_index, seeds: model::shard_index_seeds, text: true },
    Reader { name: "tensorflow", read: binary::tensorflow, seeds: binary::tensorflow_seeds, text: false },
    Reader { name: "spiece", read: tokenizer::spiece, seeds: tokenizer::spiece_seeds, text: false },
    Reader {
        name: "tokenizer-json",
        read: tokenizer::tokenizer_json,
        seeds: tokenizer::tokenizer_json_seeds,
        text: true,
    },
    Reader { name: "vocab-txt", read: tokenizer::vocab_txt, seeds: tokenizer::vocab_txt_seeds, text: true },
    Reader { name: "config", read: model::config, seeds: model::config_seeds, text: true },
    Reader { name: "recipe", read: model::recipe, seeds: model::recipe_seeds, text: true },
    Reader { name: "forward-line", read: model::forward_line, seeds: model::forward_line_seeds, text: true },
    Reader { name: "table", read: task::table, seeds: task::table_seeds, text: true },
    Reader { name: "glue", read: task::glue, seeds: task::glue_seeds, text: true },
    Reader { name: "conll", read: task::conll, seeds: task::conll_seeds, text: true },
    Reader { name: "choices", read: task::choices, seeds: task::choices_seeds, text: true },
    Reader { name: "squad", read: task::squad, seeds: task::squad_seeds, text: true },
    Reader { name: "race", read: task::race, seeds: task::race_seeds, text: true },
    Reader { name: "shard", read: binary::shard, seeds: binary::shard_seeds, text: false },
    Reader { name: "dataset-index", read: model::dataset_index, seeds: model::dataset_index_seeds, text: true },
    Reader { name: "state", read: binary::state, seeds: binary::state_seeds, text: true },
    Reader { name: "metrics", read: model::metrics, seeds: model::metrics_seeds, text: true },
    Reader { name: "ptx", read: kernel::ptx, seeds: kernel::ptx_seeds, text: true },
    Reader { name: "launch", read: launch::launch, seeds: launch::launch_seeds, text: true },
    Reader { name: "npy", read: launch::npy, seeds: launch::npy_seeds, text: false },
];

/// Finds the reader called `name`.
pub fn find(name: &str) -> Option<&'static Reader> {
    READERS.iter().find(|reader| reader.name == name)
}

impl Reader {
    /// Bytes of memory that the reader may allocate for `input`: for text compressed with zstd this includes the largest
    /// window declared by a frame, which the decoder rounds up to a power of two.
    pub fn allowed(&self, input: &[u8]) -> usize {
        let frames = input.windows(ZSTD_MAGIC.len()).zip(0..).filter(|(bytes, _)| self.text && *bytes == ZSTD_MAGIC);
        let windows = frames.filter_map(|(_, at)| window(&input[at + ZSTD_MAGIC.len()..]));
        let largest = windows.filter(|window| *window <= LARGEST_WINDOW).max();
        limits::memory_for(input.len()) + largest.map_or(0, |window| window.next_power_of_two() as usize)
    }
}

/// Window declared in the header of a zstd frame, after its first bytes (RFC 8878, 3.1.1.1).
fn window(header: &[u8]) -> Option<u64> {
    let descriptor = *header.first()?;
    if descriptor & 0x20 == 0 {
        let byte = *header.get(1)?;
        let power = 1u64 << (10 + (byte >> 3));
        return Some(power + power / 8 * u64::from(byte & 7));
    }
    // A single segment: the window is the size of the content, which follows the id of a dictionary.
    let start = 1 + [0, 1, 2, 4][usize::from(descriptor & 3)];
    let length = 1 << (descriptor >> 6);
    let mut size = [0; 8];
    size[..length].copy_from_slice(header.get(start..start + length)?);
    Some(u64::from_le_bytes(size) + if length == 2 { 256 } else { 0 })
}

/// `tests/golden`.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Contents of the files of `tests/golden` at `paths`.
fn golden_files(paths: &[&str]) -> Vec<Vec<u8>> {
    paths.iter().map(|path| fs::read(golden().join(path)).expect(path)).collect()
}

/// Runs `use_it` on a folder of the calling thread, in memory if the system has such a file system; removed when the thread ends.
fn with_folder<R>(use_it: impl FnOnce(&Path) -> R) -> R {
    thread_local! {
        static FOLDER: tempfile::TempDir = {
            let memory = Path::new("/dev/shm");
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a temporary folder")
        };
    }
    FOLDER.with(|folder| use_it(folder.path()))
}

/// Runs `read` on a file with this name and content.
fn with_file(name: &str, bytes: &[u8], read: impl FnOnce(&Path) -> bool) -> bool {
    with_folder(|folder| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("a file in the temporary folder");
        read(&path)
    })
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("name", &self.name).finish_non_exhaustive()
    }
}
