//! Mutated PTX through the whole simulator: read, decoded and run within small limits, without a panic, an abort or a
//! hang.
//!
//! Seeds are the third-party texts and those in `tests/texts/mutated`. A mutation cuts, doubles, swaps or replaces bytes,
//! tokens, lines or numbers; the sequence is a function of the seed alone, and a panic names the mutant. The quick test runs
//! a few thousand. The long one takes its number and first seed from the environment:
//!
//! ```text
//! PTX_MUTANTS=500000 PTX_SEED=1 cargo test --release -p ptx --test texts mutated -- --ignored --nocapture
//! ```

use ptx::num::philox::Stream;
use ptx::sim::{Exercised, Limits, exercise};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

/// A mutant that takes longer than this, on a machine however busy, does not end.
const HANG: Duration = Duration::from_secs(60);

/// The texts that mutants are made of, each entry with its module's directives and as small as it comes.
fn seeds() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = Vec::new();
    for folder in ["tests/texts/third_party", "tests/texts/mutated"] {
        let files = std::fs::read_dir(root.join(folder)).expect("the folder is there");
        let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "ptx"));
        files.sort();
        seeds.extend(files.iter().map(|file| std::fs::read_to_string(file).expect("a text")));
    }
    seeds
}

/// A number below `n`.
fn below(stream: &mut Stream, n: usize) -> usize {
    ((u64::from(stream.next_u32()) * n.max(1) as u64) >> 32) as usize
}

/// A range of at most `most` bytes of `text`, cut at characters.
fn range(stream: &mut Stream, text: &str, most: usize) -> std::ops::Range<usize> {
    let mut start = below(stream, text.len() + 1);
    let mut end = (start + below(stream, most + 1)).min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}

/// The word, number or mark around a random byte.
fn token(stream: &mut Stream, text: &str) -> std::ops::Range<usize> {
    let at = range(stream, text, 0).start;
    let inside = |c: char| c.is_ascii_alphanumeric() || "._%$:".contains(c);
    let start = text[..at].rfind(|c| !inside(c)).map_or(0, |before| before + 1);
    let end = text[at..].find(|c| !inside(c)).map_or(text.len(), |length| at + length);
    if start < end && text.is_char_boundary(start) { start..end } else { at..at }
}

/// The line around a random byte.
fn line(stream: &mut Stream, text: &str) -> std::ops::Range<usize> {
    let at = range(stream, text, 0).start;
    let start = text[..at].rfind('\n').map_or(0, |before| before + 1);
    start..text[at..].find('\n').map_or(text.len(), |length| at + length + 1)
}

/// Replacements of a token.
const WORDS: [&str; 44] = [
    "0",
    "1",
    "-1",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "2147483647",
    "0x7fffffff",
    "0f7FC00000",
    "3",
    "31",
    "33",
    "1024",
    "65536",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ";",
    ",",
    "|",
    "!",
    "@",
    ".b128",
    ".pred",
    ".v4",
    ".shared",
    ".local",
    ".global",
    ".reg",
    ".align",
    "_",
    "%tid.x",
    "%r1",
    "bar.sync",
    "ret",
    "bra",
    "wgmma.fence.sync.aligned",
    "mbarrier.init.shared.b64",
    "st.release.cta.global.u32",
    "fence.sc.cta",
    ".param",
];

/// `text` with one change.
fn mutate(stream: &mut Stream, text: &mut String, others: &[String]) {
    match below(stream, 10) {
        0 => text.replace_range(range(stream, text, 1), ""),
        1 => text.replace_range(range(stream, text, 40), ""),
        2 => {
            let byte = [below(stream, 128) as u8];
            text.replace_range(range(stream, text, 1), std::str::from_utf8(&byte).expect("ASCII"));
        }
        3 | 4 => text.replace_range(token(stream, text), WORDS[below(stream, WORDS.len())]),
        5 => {
            let other = text[token(stream, text)].to_string();
            text.replace_range(token(stream, text), &other);
        }
        6 => text.replace_range(line(stream, text), ""),
        7 => {
            let copied = text[line(stream, text)].to_string();
            let at = line(stream, text).start;
            text.insert_str(at, &copied);
        }
        8 => {
            let other = &others[below(stream, others.len())];
            let copied = other[line(stream, other)].to_string();
            let at = line(stream, text).start;
            text.insert_str(at, &copied);
        }
        _ => {
            let end = range(stream, text, 0).start;
            if below(stream, 8) == 0 {
                text.truncate(end);
            }
        }
    }
}

/// Runs so many mutants from `first`, and gives how far they came.
fn run(first: u64, count: u64) -> Exercised {
    let (seeds, mut all, mut failed) = (seeds(), Exercised::default(), Vec::new());
    for number in first..first + count {
        let mut stream = Stream::new(number, [0x6D, 0x75, 0x74]);
        let mut text = seeds[number as usize % seeds.len()].clone();
        for _ in 0..1 + below(&mut stream, 4) {
            mutate(&mut stream, &mut text, &seeds);
        }
        let begin = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| exercise(&text, Limits::SMALL, number)));
        let seed = number as usize % seeds.len();
        if result.is_err() || begin.elapsed() > HANG {
            failed.push((number, seed, text));
        }
        if let Ok(Ok(Exercised { entries, decoded, launched })) = result {
            all.entries += entries;
            all.decoded += decoded;
            all.launched += launched;
        }
    }
    let numbers: Vec<(u64, usize)> = failed.iter().map(|(number, seed, _)| (*number, *seed)).collect();
    assert!(
        failed.is_empty(),
        "mutants (number, seed) that panic or do not end: {numbers:?}; the first:\n{}",
        failed[0].2
    );
    all
}

#[test]
fn every_seed_decodes_and_runs() {
    for (number, seed) in seeds().iter().enumerate() {
        let exercised = exercise(seed, Limits::SMALL, 0).unwrap_or_else(|error| panic!("seed {number}: {error}"));
        let Exercised { entries, decoded, launched } = exercised;
        assert!(
            launched > 0 && decoded == entries,
            "seed {number}: {entries} entries, {decoded} decoded, {launched} launched"
        );
    }
}

#[test]
fn mutated_texts_neither_panic_nor_hang() {
    let all = run(0, 2_000);
    // Most mutants are refused at the mutation; enough of them must decode and run.
    assert!(all.decoded > 300 && all.launched > 200, "{all:?}");
}

#[test]
#[ignore = "takes as long as PTX_MUTANTS says"]
fn many_mutated_texts_neither_panic_nor_hang() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (first, count) = (number("PTX_SEED", 1_u64 << 32), number("PTX_MUTANTS", 200_000_u64));
    println!("{count} mutants from {first}: {:?}", run(first, count));
}
