//! Every reader of untrusted bytes on its corpus, its regressions and mutated inputs: no panic, bounded memory and time.
//!
//! A normal run replays `tests/fuzz/corpus.tar.gz` and `regressions` and makes some thousand mutated inputs. Ten million:
//! `cargo test --release -p albert-tests --test readers -- --ignored`; `ALBERT_READERS=ptx,config` selects readers, so
//! that several processes can share the work.

use albert_tests::{
    allocator::{Counting, live_and_peak, reset_peak},
    mutate::{Dice, mutate_bytes, mutate_json, mutate_text},
    readers::{READERS, Reader, find},
    run_folder::files,
};
use engine::io::limits::{memory_for, text::ZSTD_MAGIC};
use std::{
    fs,
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;
/// The allocator counts all threads: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Maximum time of a reader for an input of at most 64 KiB, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory, time and outcome of one input.
struct Cost {
    bytes: usize,
    seconds: f64,
    accepted: bool,
}

fn survives(reader: &Reader, what: &dyn std::fmt::Display, input: &[u8]) -> Cost {
    let (before, _) = live_and_peak();
    reset_peak();
    let start = Instant::now();
    let accepted = catch_unwind(AssertUnwindSafe(|| (reader.read)(input)));
    let elapsed = start.elapsed();
    let (_, peak) = live_and_peak();
    let used = peak.saturating_sub(before);
    let name = reader.name;
    let accepted = accepted.unwrap_or_else(|_| panic!("{name}, {what}: the reader panicked"));
    let most = reader.allowed(input);
    assert!(used <= most, "{name}, {what}: {used} bytes of memory for {} bytes, {most} allowed", input.len());
    assert!(elapsed <= PATIENCE, "{name}, {what}: {elapsed:?} for {} bytes", input.len());
    Cost { bytes: used, seconds: elapsed.as_secs_f64(), accepted }
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Readers named by `ALBERT_READERS`; all by default.
fn chosen() -> Vec<&'static Reader> {
    let names = std::env::var("ALBERT_READERS").ok();
    let chosen: Vec<_> = READERS
        .iter()
        .filter(|reader| names.as_ref().is_none_or(|names| names.split(',').any(|name| name == reader.name)))
        .collect();
    assert!(!chosen.is_empty(), "ALBERT_READERS names no reader");
    chosen
}

/// Names and bytes of the inputs of `reader` in `fuzz/corpus.tar.gz`, by name.
fn corpus(reader: &Reader) -> Vec<(String, Vec<u8>)> {
    let file = fs::File::open(fuzz().join("corpus.tar.gz")).expect("the corpus");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut inputs = Vec::new();
    for mut entry in archive.entries().expect("an archive").map(|entry| entry.expect("an entry")) {
        let path = entry.path().expect("a path").into_owned();
        if entry.header().entry_type().is_file() && path.starts_with(reader.name) {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("bytes of an entry");
            inputs.push((path.display().to_string(), bytes));
        }
    }
    inputs.sort();
    inputs
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

#[test]
fn every_reader_accepts_a_valid_input() {
    let _alone = alone();
    for reader in READERS {
        let seeds = (reader.seeds)();
        let accepted = seeds.iter().filter(|seed| survives(reader, &"a seed", seed).accepted).count();
        assert!(accepted > 0, "{}: none of {} valid inputs is accepted", reader.name, seeds.len());
    }
}

#[test]
fn text_may_take_the_window_that_it_declares() {
    let extra = |name: &str, header: &[u8]| {
        let input = [&ZSTD_MAGIC[..], header].concat();
        find(name).expect("a reader").allowed(&input) - memory_for(input.len())
    };
    assert_eq!(extra("glue", &[0, 0x80]), 64 << 20);
    assert_eq!(extra("glue", &[0, 0x81]), 128 << 20, "72 MiB are rounded up");
    assert_eq!(extra("glue", &[0, 0x90]), 0, "256 MiB are refused");
    assert_eq!(extra("glue", &[0x20, 255]), 256, "a size of one byte");
    assert_eq!(extra("glue", &[0x61, 7, 0, 1]), 512, "of two, behind a dictionary");
    assert_eq!(extra("glue", &[0xa0, 0, 0, 0, 4]), 64 << 20, "of four");
    assert_eq!(extra("glue", &[0]), 0);
    assert_eq!(extra("safetensors", &[0, 0x80]), 0);
}

#[test]
fn corpus_and_regressions_stay_within_bounds() {
    let _alone = alone();
    let mut replayed = 0;
    for reader in READERS {
        for (name, bytes) in corpus(reader).into_iter().chain(files(&fuzz().join("regressions").join(reader.name))) {
            survives(reader, &name, &bytes);
            replayed += 1;
        }
    }
    assert!(replayed > 3000, "{replayed} inputs: the archive lacks some");
    println!("{replayed} inputs replayed");
}

/// Mutated input number `case`. Three quarters are derived from valid inputs: those of the corpus are small and mostly rejected.
fn mutated(reader: &Reader, valid: &[Vec<u8>], corpus: &[Vec<u8>], case: u64) -> Vec<u8> {
    let mut dice = Dice::new(case);
    let inputs = if corpus.is_empty() || dice.below(4) > 0 { valid } else { corpus };
    let mut bytes = dice.pick(inputs).clone();
    let kind = if reader.text { dice.below(4) } else { 0 };
    match (kind, String::from_utf8(bytes.clone())) {
        (0, _) | (_, Err(_)) => mutate_bytes(&mut dice, &mut bytes),
        (kind, Ok(mut text)) => {
            let mutate = if kind == 1 { mutate_json } else { mutate_text };
            mutate(&mut dice, &mut text);
            bytes = text.into_bytes();
        }
    }
    bytes
}

fn mutate_all(cases: u64) {
    let _alone = alone();
    println!("| reader | inputs | accepted | most memory, MiB | longest, ms | seconds |");
    println!("|---|---|---|---|---|---|");
    for reader in chosen() {
        let valid = (reader.seeds)();
        let corpus: Vec<_> = corpus(reader).into_iter().map(|(_, bytes)| bytes).collect();
        let start = Instant::now();
        let (mut accepted, mut most, mut longest) = (0, 0, 0.0f64);
        for case in 0..cases {
            let cost = survives(reader, &format_args!("case {case}"), &mutated(reader, &valid, &corpus, case));
            accepted += u64::from(cost.accepted);
            most = most.max(cost.bytes);
            longest = longest.max(cost.seconds);
        }
        let seconds = start.elapsed().as_secs_f64();
        let (mib, ms) = (most as f64 / f64::from(1 << 20), 1000.0 * longest);
        println!("| {} | {cases} | {accepted} | {mib:.1} | {ms:.1} | {seconds:.0} |", reader.name);
        // If all were rejected, mutations would not get past the first check; if none were, nothing was mutated.
        assert!(accepted > 0 && accepted < cases, "{}: {accepted} of {cases} inputs were accepted", reader.name);
    }
}

#[test]
fn no_mutated_input_makes_a_reader_panic_hang_or_hoard() {
    mutate_all(400);
}

#[test]
#[ignore = "about an hour"]
fn ten_million_mutated_inputs_make_no_reader_panic_hang_or_hoard() {
    mutate_all(10_000_000u64.div_ceil(READERS.len() as u64));
}
