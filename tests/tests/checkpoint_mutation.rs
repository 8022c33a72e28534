//! Readers of checkpoints on mutated valid files: seeded, structure-aware mutation.
//!
//! A case is a valid file with a few fields changed (a number of the header, an element type, a field of an entry, a length)
//! and with correct lengths and checksums, so that the change gets past those checks; or with raw bytes changed. A reader
//! returns a value or an error: it does not panic, and it never uses more memory than the size of the files times a small
//! constant.
//!
//! Case n depends on n alone. A normal run makes 100,000 cases; ten million: `cargo test --release --test
//! checkpoint_mutation -- --ignored`. They cannot share a process, because the allocator counts all threads.

use albert::checkpoint::{Heads, ModelFolder};
use albert::config::AlbertConfig;
use albert_tests::{
    allocator::{Counting, live_and_peak, reset_peak},
    mutate::{Dice, NUMBERS, mutate_bytes, mutate_json},
};
use engine::io::{Safetensors, masked_crc};
use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static ALONE: Mutex<()> = Mutex::new(());
/// Maximum memory of a case: bytes per byte of file, beyond the fixed ones.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Bytes of memory per byte of file, and fixed bytes: path names, error texts.
const PER_BYTE: usize = 16;
const FIXED: usize = 1 << 15;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/checkpoints").join(name)
}

/// A tmpfs folder if there is one: hundreds of thousands of files are written.
fn folder_of(name: &str) -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    for file in fs::read_dir(golden(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

/// Runs one case: no panic, bounded memory. True if the reader accepted the file.
fn survives(what: &str, case: u64, size: usize, read: impl FnOnce() -> bool) -> bool {
    let (before, _) = live_and_peak();
    reset_peak();
    let taken = catch_unwind(AssertUnwindSafe(read));
    let (_, peak) = live_and_peak();
    let (used, allowed) = (peak.saturating_sub(before), PER_BYTE * size + FIXED);
    assert!(taken.is_ok(), "{what}, case {case}: the reader panicked");
    assert!(used <= allowed, "{what}, case {case}: {used} bytes of memory for {size} bytes of file, {allowed} allowed");
    MOST.fetch_max(used.saturating_sub(FIXED) / size.max(1), SeqCst);
    taken.unwrap_or_default()
}

/// Safetensors: header text with a correct length, or raw bytes.
fn safetensors_cases(cases: u64) -> u64 {
    let folder = folder_of("bert-ForPreTraining-f16");
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let (header, data) = (std::str::from_utf8(&whole[8..8 + length]).unwrap(), &whole[8 + length..]);
    let read = || {
        let Ok(file) = Safetensors::open(&path) else { return false };
        for name in file.names() {
            let shape = file.shape(&name).expect("a name of the file").to_vec();
            let _ = (file.floats(&name, &shape).is_ok(), file.i64s(&name, &shape).is_ok());
        }
        let loaded = ModelFolder::open(folder.path()).map(|model| model.load(model.heads(), &["cls"], |_, _| Ok(())));
        let _ = loaded.is_ok();
        true
    };
    let mut taken = 0;
    for case in 0..cases {
        let mut dice = Dice::new(case);
        let mut file = Vec::new();
        if dice.one_in(4) {
            file.extend_from_slice(&whole);
            mutate_bytes(&mut dice, &mut file);
        } else {
            let mut text = header.to_owned();
            mutate_json(&mut dice, &mut text);
            let length = if dice.one_in(10) { *dice.pick(&NUMBERS) } else { text.len() as u64 };
            file.extend_from_slice(&length.to_le_bytes());
            file.extend_from_slice(text.as_bytes());
            file.extend_from_slice(data);
        }
        fs::write(&path, &file).unwrap();
        taken += u64::from(survives("safetensors", case, file.len() + 1000, read));
    }
    taken
}

/// Reads a varint of a valid file.
fn varint(bytes: &mut &[u8]) -> usize {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= usize::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Entries of a TensorFlow index.
fn entries_of(index: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let block = |(offset, size): (usize, usize)| {
        let bytes = &index[offset..offset + size];
        let restarts = u32::from_le_bytes(*bytes.last_chunk().unwrap()) as usize;
        &bytes[..size - 4 * (restarts + 1)]
    };
    let each = |mut bytes: &[u8], take: &mut dyn FnMut(&[u8], &[u8])| {
        let mut key = Vec::new();
        while !bytes.is_empty() {
            let [shared, own, length] = [(); 3].map(|()| varint(&mut bytes));
            key.truncate(shared);
            key.extend_from_slice(&bytes[..own]);
            take(&key, &bytes[own..own + length]);
            bytes = &bytes[own + length..];
        }
    };
    let mut footer = &index[index.len() - 48..];
    let _metaindex = (varint(&mut footer), varint(&mut footer));
    let place = (varint(&mut footer), varint(&mut footer));
    let mut out = BTreeMap::new();
    each(block(place), &mut |_, mut handle| {
        let place = (varint(&mut handle), varint(&mut handle));
        each(block(place), &mut |key, value| {
            out.insert(key.to_vec(), value.to_vec());
        });
    });
    out
}

/// Writes a table of one data block with correct checksums; `lie` may change a length.
fn table_of(entries: &[(Vec<u8>, Vec<u8>)], dice: &mut Dice, lies: bool) -> Vec<u8> {
    let mut lie = |number: usize| {
        if lies && dice.one_in(60) { *dice.pick(&NUMBERS) } else { number as u64 }
    };
    let mut file = Vec::new();
    let block = |file: &mut Vec<u8>, entries: &[(Vec<u8>, Vec<u8>)], lie: &mut dyn FnMut(usize) -> u64| {
        let start = file.len();
        let mut before: &[u8] = &[];
        for (key, value) in entries {
            let shared = key.iter().zip(before).take_while(|(a, b)| a == b).count();
            for number in [shared, key.len() - shared, value.len()] {
                put_varint(file, lie(number));
            }
            file.extend_from_slice(&key[shared..]);
            file.extend_from_slice(value);
            before = key;
        }
        file.extend_from_slice(&0u32.to_le_bytes());
        file.extend_from_slice(&(lie(1) as u32).to_le_bytes());
        let size = file.len() - start;
        file.push(0);
        let crc = masked_crc(&file[start..]);
        file.extend_from_slice(&crc.to_le_bytes());
        (start, size)
    };
    let data = block(&mut file, entries, &mut lie);
    let metaindex = block(&mut file, &[], &mut |number| number as u64);
    let mut handle = Vec::new();
    put_varint(&mut handle, lie(data.0));
    put_varint(&mut handle, lie(data.1));
    let index = block(&mut file, &[(b"~".to_vec(), handle)], &mut |number| number as u64);
    let mut footer = Vec::new();
    for number in [metaindex.0, metaindex.1, index.0, index.1] {
        put_varint(&mut footer, lie(number));
    }
    footer.resize(40, 0);
    file.extend_from_slice(&footer);
    file.extend_from_slice(&0xdb47_7524_8b80_fb57u64.to_le_bytes());
    file
}

/// TensorFlow index: keys and messages with correct checksums, or raw bytes.
fn tensorflow_cases(cases: u64) -> u64 {
    let folder = folder_of("google-albert");
    let path = folder.path().join("model.ckpt-best.index");
    let data = fs::metadata(folder.path().join("model.ckpt-best.data-00000-of-00001")).unwrap().len() as usize;
    let whole = fs::read(&path).unwrap();
    let valid: Vec<(Vec<u8>, Vec<u8>)> = entries_of(&whole).into_iter().collect();
    let read = || {
        let Ok(model) = ModelFolder::open(folder.path()) else { return false };
        model.load(Heads::PRE_TRAINING, &["cls"], |_, _| Ok(())).is_ok()
    };
    // Unchanged, the rewritten table is read as the same checkpoint.
    fs::write(&path, table_of(&valid, &mut Dice::new(0), false)).unwrap();
    assert!(read(), "the table is not written as TensorFlow does");
    let mut taken = 0;
    for case in 0..cases {
        let mut dice = Dice::new(case);
        let mut entries = valid.clone();
        let mut file = match dice.below(8) {
            0 => {
                let mut file = whole.clone();
                mutate_bytes(&mut dice, &mut file);
                file
            }
            1 => table_of(&entries, &mut dice, true),
            kind => {
                for _ in 0..1 + dice.below(3) {
                    let at = dice.below(entries.len());
                    match (kind, dice.below(6)) {
                        (2, 0) => mutate_bytes(&mut dice, &mut entries[at].0),
                        (2, 1) => drop(entries.remove(at)),
                        (2, 2) => entries.insert(at, entries[at].clone()),
                        (3, 0) => put_varint(&mut entries[at].1, *dice.pick(&NUMBERS)),
                        (3, _) => {
                            // A new field: number 1 to 7, any wire type, any value.
                            let tag = (1 + dice.below(7) as u64) << 3 | dice.below(6) as u64;
                            let number = *dice.pick(&NUMBERS);
                            put_varint(&mut entries[at].1, tag);
                            put_varint(&mut entries[at].1, number);
                        }
                        _ => mutate_bytes(&mut dice, &mut entries[at].1),
                    }
                }
                table_of(&entries, &mut dice, false)
            }
        };
        if dice.one_in(50) {
            file.truncate(dice.below(file.len()));
        }
        fs::write(&path, &file).unwrap();
        taken += u64::from(survives("TensorFlow index", case, file.len() + data, read));
    }
    taken
}

/// `config.json` of both families and of Google.
fn config_cases(cases: u64) -> u64 {
    let files = [
        "albert-ForTokenClassification/config.json",
        "bert-ForPreTraining/config.json",
        "google-albert/albert_config.json",
    ];
    let texts = files.map(|file| fs::read_to_string(golden(file)).unwrap());
    let mut taken = 0;
    for case in 0..cases {
        let mut dice = Dice::new(case);
        let at = dice.below(texts.len());
        let mut text = texts[at].clone();
        mutate_json(&mut dice, &mut text);
        taken += u64::from(survives("configuration", case, text.len(), || {
            AlbertConfig::from_hf_json(&text).is_ok() | AlbertConfig::from_google_json(&text).is_ok()
        }));
    }
    taken
}

/// The index of a model in several files.
fn shard_cases(cases: u64) -> u64 {
    let folder = folder_of("bert-ForSequenceClassification-sharded");
    let path = folder.path().join("model.safetensors.index.json");
    let size: u64 = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let whole = fs::read_to_string(&path).unwrap();
    let mut taken = 0;
    for case in 0..cases {
        let mut dice = Dice::new(case);
        let mut text = whole.clone();
        mutate_json(&mut dice, &mut text);
        fs::write(&path, &text).unwrap();
        taken += u64::from(survives("index of files", case, size as usize + text.len(), || {
            let Ok(model) = ModelFolder::open(folder.path()) else { return false };
            model.load(model.heads(), &[], |_, _| Ok(())).is_ok()
        }));
    }
    taken
}

fn run(cases: u64) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    /// Name of a reader, its share of the cases in percent, and the function that runs them.
    type Part = (&'static str, u64, fn(u64) -> u64);
    let parts: [Part; 4] = [
        ("safetensors", 40, safetensors_cases),
        ("TensorFlow index", 25, tensorflow_cases),
        ("configuration", 30, config_cases),
        ("index of files", 5, shard_cases),
    ];
    for (what, percent, part) in parts {
        let cases = cases * percent / 100;
        let taken = part(cases);
        let most = MOST.swap(0, SeqCst);
        println!("{what}: {cases} cases, {taken} of them readable, at most {most} bytes of memory a byte of file");
        // If all were rejected, mutations would not get past the first check; if none, nothing was mutated.
        assert!(taken > cases / 1000 && taken < cases, "{what}: {taken} of {cases} were readable");
    }
}

#[test]
fn no_mutated_file_makes_a_reader_panic_or_hoard() {
    run(100_000);
}

#[test]
#[ignore = "minutes"]
fn ten_million_mutated_files_make_no_reader_panic_or_hoard() {
    run(10_000_000);
}
