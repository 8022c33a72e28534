//! Files built to be expensive: every reader of foreign bytes stays within `engine::io::limits`, and its time is linear in the
//! size of the file.
//!
//! Each case is built at two sizes; it may be accepted or rejected within the memory bound, and an error is one line.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use albert::checkpoint::ModelFolder;
use albert::config::AlbertConfig;
use albert::data::{Dataset, Vocabulary};
use albert::tokenizer::{Cleaning, SpecialIds, Tokenizer, WordPiece};
use albert_tests::allocator::{Counting, live_and_peak, reset_peak};
use engine::io::{Safetensors, limits, masked_crc};

#[global_allocator]
static ALLOCATOR: Counting = Counting;
/// The allocator counts all threads: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const SPECIAL: [&str; 5] = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"];

/// Reads the file of `make(n)` for a small n and a large one.
fn check<T, E: Display>(what: &str, n: usize, make: impl Fn(usize) -> Vec<u8>, read: impl Fn(&[u8]) -> Result<T, E>) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for n in [n / 16, n] {
        let bytes = make(n);
        reset_peak();
        let (before, _) = live_and_peak();
        let start = Instant::now();
        let result = read(&bytes);
        let (time, (_, peak)) = (start.elapsed(), live_and_peak());
        let outcome = result.as_ref().map_or_else(ToString::to_string, |_| "read".to_owned());
        let shown: String = outcome.chars().take(160).collect();
        println!("{what}: {} bytes, {} of memory, {time:.2?}: {shown}", bytes.len(), peak - before);
        let bound = limits::memory_for(bytes.len());
        assert!(peak - before <= bound, "{what}: {} bytes of memory for a file of {}", peak - before, bytes.len());
        // On a loaded machine without optimization: 5 s per MiB is far from quadratic.
        let most = Duration::from_secs(5 + 5 * (bytes.len() as u64 >> 20));
        assert!(time < most, "{what}: {time:.2?} for {} bytes", bytes.len());
        assert!(!shown.contains('\n'), "{what}: {shown}");
    }
}

fn json(bytes: &[u8]) -> Result<Tokenizer, String> {
    let text = std::str::from_utf8(bytes).expect("text");
    Tokenizer::from_json(text, Path::new("t.json")).map_err(|error| error.to_string())
}

/// A `tokenizer.json` around a model.
fn foreign(model: &str, more: &str) -> Vec<u8> {
    format!("{{\"version\": \"1.0\", \"added_tokens\": [], {more} \"model\": {model}}}").into_bytes()
}

fn unigram(pieces: impl Iterator<Item = String>) -> String {
    let vocab: Vec<String> =
        SPECIAL.into_iter().map(str::to_owned).chain(pieces).map(|p| format!("[\"{p}\",-1]")).collect();
    format!("{{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[{}]}}", vocab.join(","))
}

fn vocab(pieces: impl Iterator<Item = String>) -> String {
    let all = SPECIAL.into_iter().map(str::to_owned).chain(pieces);
    let entries: Vec<String> = all.enumerate().map(|(id, piece)| format!("\"{piece}\":{id}")).collect();
    format!("{{{}}}", entries.join(","))
}

#[test]
fn tokenizer_json() {
    check("dense lists", 1 << 21, |n| [b"{\"a\":[".to_vec(), b"[],".repeat(n), b"0]}".to_vec()].concat(), json);
    check("deep lists", 1 << 22, |n| b"[".repeat(n), json);
    check("deep objects", 1 << 22, |n| b"{\"a\":".repeat(n), json);
    check(
        "one key again and again",
        1 << 20,
        |n| [b"{".to_vec(), b"\"a\":0,".repeat(n), b"\"b\":0}".to_vec()].concat(),
        json,
    );
    check("a long string", 1 << 24, |n| [b"{\"a\":\"".to_vec(), vec![b'x'; n], b"\"}".to_vec()].concat(), json);
    check("Unigram of short pieces", 1 << 17, |n| foreign(&unigram((0..n).map(|at| format!("{at:x}"))), ""), json);
    check(
        "Unigram of long pieces",
        1 << 11,
        |n| foreign(&unigram((0..n).map(|at| format!("{at:04x}{}", "y".repeat(1000)))), ""),
        json,
    );
    let word_level = |n| {
        let words = vocab((0..n).map(|at| format!("{at:x}")));
        foreign(&format!("{{\"type\":\"WordLevel\",\"unk_token\":\"<unk>\",\"vocab\":{words}}}"), "")
    };
    check("WordLevel of short words", 1 << 17, word_level, json);
    let ids = |n: usize| {
        let words = format!("{{\"<pad>\":0,\"<unk>\":1,\"[CLS]\":2,\"[SEP]\":3,\"[MASK]\":{n}}}");
        foreign(&format!("{{\"type\":\"WordLevel\",\"unk_token\":\"<unk>\",\"vocab\":{words}}}"), "")
    };
    check("an id of 2^31", 1 << 31, ids, json);
    let bpe = |n: usize| {
        let words = vocab((0..n).map(|at| format!("{at:x}")));
        let merges: Vec<String> = (16..n).map(|at| format!("\"{:x} {:x}\"", at / 16, at % 16)).collect();
        foreign(
            &format!(
                "{{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{words},\"merges\":[{}]}}",
                merges.join(",")
            ),
            "",
        )
    };
    check("BPE of many merges", 1 << 16, bpe, json);
    let added = |n: usize| {
        let token = |at: usize| {
            format!(
                "{{\"id\":{},\"content\":\"<{at}>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\
                 \"normalized\":{},\"special\":{}}}",
                5 + at,
                at.is_multiple_of(2),
                at.is_multiple_of(3)
            )
        };
        let tokens: Vec<String> = (0..n).map(token).collect();
        let words = vocab(std::iter::empty());
        let model = format!("{{\"type\":\"WordLevel\",\"unk_token\":\"<unk>\",\"vocab\":{words}}}");
        format!("{{\"version\":\"1.0\",\"added_tokens\":[{}],\"model\":{model}}}", tokens.join(",")).into_bytes()
    };
    check("many added tokens", 1 << 14, added, json);
}

#[test]
fn spiece_model() {
    let read = |bytes: &[u8]| Tokenizer::from_spiece(bytes, Cleaning::default(), Path::new("x.model"));
    let piece = |text: &str, kind: u8| {
        let inner = [&[0x0a, text.len() as u8], text.as_bytes(), &[0x15, 0, 0, 0x80, 0xbf, 0x18, kind]].concat();
        [&[0x0a, inner.len() as u8][..], &inner].concat()
    };
    let special = || SPECIAL.map(|text| piece(text, if text == "<unk>" { 2 } else { 3 })).concat();
    check(
        "short pieces",
        1 << 17,
        |n| [special(), (0..n).flat_map(|at| piece(&format!("{at:x}"), 1)).collect()].concat(),
        read,
    );
    check(
        "symbols",
        1 << 17,
        |n| [special(), (0..n).flat_map(|at| piece(&format!("{at:x}"), 4)).collect()].concat(),
        read,
    );
    check("unknown fields", 1 << 20, |n| [special(), [0x50, 0].repeat(n)].concat(), read);
    check("empty pieces", 1 << 20, |n| [0x0a, 0].repeat(n), read);
    // Prefixes of one long number, each with a comma: the rule for digits and commas splits each.
    let digits = |n: usize| {
        let text = |at: usize| format!("{},", "1".repeat(1 + at % 120));
        [special(), (0..n.min(120)).flat_map(|at| piece(&text(at), 1)).collect()].concat()
    };
    check("digits and commas", 120, digits, read);
    let normalizer = |n: usize| {
        let mut blob = (4 * n as u32).to_le_bytes().to_vec();
        blob.extend((0..n).flat_map(|at| ((at as u32 & 0xff) | 1 << 10).to_le_bytes()));
        blob.push(0);
        let mut field = Vec::new();
        field.push(2 << 3 | 2);
        engine::io::proto::write_varint(&mut field, blob.len() as u64);
        field.extend(blob);
        let mut out = special();
        out.push(0x1a);
        engine::io::proto::write_varint(&mut out, field.len() as u64);
        [out, field].concat()
    };
    check("a charsmap of one block", 1 << 18, normalizer, read);
}

#[test]
fn vocab_txt_and_config_json() {
    let read = |bytes: &[u8]| {
        Tokenizer::from_wordpiece(
            std::str::from_utf8(bytes).expect("text"),
            WordPiece::default(),
            Path::new("vocab.txt"),
        )
    };
    let lines = |n: usize| {
        let pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
        pieces.into_iter().chain((0..n).map(|at| format!("{at:x}"))).collect::<Vec<_>>().join("\n").into_bytes()
    };
    check("short words", 1 << 16, lines, read);
    check("empty lines", 1 << 22, |n| b"\n".repeat(n), read);

    let config = |bytes: &[u8]| AlbertConfig::from_hf_json(std::str::from_utf8(bytes).expect("text"));
    check("a dense config", 1 << 21, |n| [b"{\"a\":[".to_vec(), b"0,".repeat(n), b"0]}".to_vec()].concat(), config);
    check("a deep config", 1 << 22, |n| b"[".repeat(n), config);
    let keys = |n: usize| {
        let keys: Vec<String> = (0..n).map(|at| format!("\"{at:x}\":0")).collect();
        format!("{{{}}}", keys.join(",")).into_bytes()
    };
    check("many keys", 1 << 18, keys, config);
    for (value, said) in [
        ("1e999", "not a JSON object"),
        ("-1", "expected a whole number of at least 0"),
        ("2147483648", "expected a number from 1 to"),
        ("18446744073709551616", "expected a whole number"),
        ("NaN", "not a JSON object"),
        ("0", "expected a number from 1 to"),
        ("1.5", "expected a whole number"),
    ] {
        let preset = AlbertConfig::preset("tiny").expect("a preset").to_hf_json("AlbertModel");
        let number = preset.split("\"vocab_size\": ").nth(1).expect("the key").split(',').next().expect("a number");
        let text = preset.replace(&format!("\"vocab_size\": {number}"), &format!("\"vocab_size\": {value}"));
        let error = AlbertConfig::from_hf_json(&text).expect_err("impossible").to_string();
        assert!(error.contains(said), "{value}: {error}");
    }
}

/// A file of `bytes` in a new folder.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("writable");
    (folder, path)
}

#[test]
fn safetensors() {
    let read = |bytes: &[u8]| {
        let (_folder, path) = file("m.safetensors", bytes);
        Safetensors::open(path).map(|file| file.names().len()).map_err(|error| {
            let text = error.to_string();
            text.split("m.safetensors").last().unwrap_or_default().to_owned()
        })
    };
    let framed = |header: String, data: usize| {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
    };
    let tensors = |n: usize, entry: &dyn Fn(usize) -> String| {
        let entries: Vec<String> = (0..n).map(|at| format!("\"{at:x}\":{}", entry(at))).collect();
        format!("{{{}}}", entries.join(","))
    };
    let empty = "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}".to_owned();
    check("many empty tensors", 1 << 16, |n| framed(tensors(n, &|_| empty.clone()), 0), read);
    let one = "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}".to_owned();
    check("tensors over each other", 1 << 16, |n| framed(tensors(n, &|_| one.clone()), 1), read);
    let rank = |n: usize| {
        framed(format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{}0],\"data_offsets\":[0,0]}}}}", "0,".repeat(n)), 0)
    };
    check("a shape of many dimensions", 1 << 20, rank, read);
    check("deep nesting", 1 << 20, |n| framed(format!("{{\"a\":{}", "[".repeat(n)), 0), read);
    let metadata = |n: usize| {
        let entries: Vec<String> = (0..n).map(|at| format!("\"{at:x}\":\"\"")).collect();
        framed(format!("{{\"__metadata__\":{{{}}}}}", entries.join(",")), 0)
    };
    check("much metadata", 1 << 17, metadata, read);
    for (header, said) in [
        (
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,2],\"data_offsets\":[0,0]}}",
            "larger than any file",
        ),
        ("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "its offsets are 4 and 0"),
        ("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "cannot be read"),
        (
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]}}",
            "its offsets are 0 and",
        ),
    ] {
        let error = read(&framed(header.to_owned(), 4)).expect_err("hostile");
        assert!(error.contains(said), "{header}: {error}");
    }
    let error = read(&u64::MAX.to_le_bytes()).expect_err("a lying length");
    assert!(error.contains("announce a header of 18446744073709551615 bytes, but 0 follow"), "{error}");
}

#[test]
fn tensorflow_index() {
    let block = |entries: &[u8]| {
        let mut out = entries.to_vec();
        out.extend([0, 0, 0, 0, 1, 0, 0, 0, 0]);
        let crc = masked_crc(&out);
        out.extend(crc.to_le_bytes());
        out
    };
    let varints = |numbers: &[u64]| {
        let mut out = Vec::new();
        numbers.iter().for_each(|&number| engine::io::proto::write_varint(&mut out, number));
        out
    };
    let index = move |entries: Vec<u8>| {
        let data = block(&entries);
        let place = varints(&[0, data.len() as u64 - 5]);
        let index = block(&[&[0, 1, place.len() as u8, b'~'][..], &place].concat());
        let mut footer = [varints(&[0, 0]), varints(&[data.len() as u64, index.len() as u64 - 5])].concat();
        footer.resize(40, 0);
        footer.extend(0xdb47_7524_8b80_fb57u64.to_le_bytes());
        [data, index, footer].concat()
    };
    let read = |bytes: &[u8]| {
        let (folder, _path) = file("model.ckpt.index", bytes);
        let config = AlbertConfig::preset("tiny").expect("a preset").to_hf_json("AlbertModel");
        std::fs::write(folder.path().join("config.json"), config).expect("writable");
        ModelFolder::open(folder.path()).map(drop).map_err(|error| {
            let text = error.to_string();
            text.split("model.ckpt").last().unwrap_or_default().to_owned()
        })
    };
    let header = || vec![0u8, 0, 2, 8, 1];
    // Keys that grow by a byte each: their total length is quadratic.
    let growing = |n: usize| {
        let entry = |at: usize| [varints(&[at as u64, 1, 4]), vec![b'a', 8, 1, 0x28, 0]].concat();
        index([header(), (0..n).flat_map(entry).collect()].concat())
    };
    check("growing keys", 1 << 14, growing, read);
    let tiny = |n: usize| {
        let entry = |at: usize| {
            [varints(&[0, 3, 0]), vec![b'a' + (at >> 12) as u8, (at >> 6 & 63) as u8, (at & 63) as u8]].concat()
        };
        index([header(), (0..n).flat_map(entry).collect()].concat())
    };
    check("many entries without a value", 1 << 16, tiny, read);
    check("restart points", 1 << 10, |n| index(vec![0xff; n]), read);
}

#[test]
fn dataset_json() {
    let specials = SpecialIds { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };
    let vocabulary = Vocabulary::new(vec![true; 9], specials, b"").expect("a vocabulary");
    let read = |bytes: &[u8]| {
        let (folder, _path) = file("dataset.json", bytes);
        Dataset::open(folder.path(), &vocabulary).map(drop).map_err(|error| {
            let text = error.to_string();
            text.split("dataset.json").last().unwrap_or_default().to_owned()
        })
    };
    check("a dense index", 1 << 20, |n| [b"{\"sources\":[".to_vec(), b"{},".repeat(n)].concat(), read);
    check("a deep index", 1 << 20, |n| b"{\"train\":".repeat(n), read);
    let places = |n: usize| [b"{\"report\":{\"cut_places\":[".to_vec(), b"\"\",".repeat(n)].concat();
    check("many places", 1 << 20, places, read);
    check("nothing", 16, |_| Vec::new(), read);
}
