//! One fuzz target for all readers: `ALBERT_READER` names the reader. Started by `.ci/fuzz.sh`.
//!
//! `ALBERT_SEEDS=FOLDER` writes the reader's valid inputs there before fuzzing begins.
#![no_main]

use albert_tests::{
    allocator::{Counting, live_and_peak, reset_peak},
    readers::{Reader, find},
};
use std::{fs, path::PathBuf, sync::OnceLock};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn reader() -> &'static Reader {
    static READER: OnceLock<&Reader> = OnceLock::new();
    READER.get_or_init(|| {
        let name = std::env::var("ALBERT_READER").expect("ALBERT_READER names a reader");
        find(&name).expect("ALBERT_READER names one of `albert_tests::readers::READERS`")
    })
}

fn write_seeds() {
    let Some(folder) = std::env::var_os("ALBERT_SEEDS").map(PathBuf::from) else { return };
    for (number, seed) in (reader().seeds)().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed).expect("the folder of seeds can be written to");
    }
}

libfuzzer_sys::fuzz_target!(init: write_seeds(), |bytes: &[u8]| {
    let (before, _) = live_and_peak();
    reset_peak();
    (reader().read)(bytes);
    let (_, peak) = live_and_peak();
    let (used, most) = (peak.saturating_sub(before), reader().allowed(bytes));
    assert!(used <= most, "{used} bytes of memory for {} bytes, {most} allowed", bytes.len());
});
