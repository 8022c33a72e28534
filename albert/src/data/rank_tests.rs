//! Ranks, as threads, that build data and count words together: their results equal those of one process.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use engine::Communicator;
use engine::philox::Stream;

use super::testing::{encode, sources, text, vocabulary};
use super::*;
use crate::tokenizer::{TrainerConfig, WordCounts};

/// Runs `work` on `ranks` threads and returns the results in their order.
fn on_ranks<T: Send>(ranks: usize, work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let spawn = |communicator: Communicator| {
            communicator.set_timeout(Duration::from_secs(60));
            let work = &work;
            scope.spawn(move || work(&communicator))
        };
        let running: Vec<_> = Communicator::threads(ranks).into_iter().map(spawn).collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Contents of all files of a folder by name.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
}

fn build_on(
    communicator: &Communicator,
    texts: &[Source],
    out: &Path,
    corpus: &CorpusSettings,
    split: &SplitSettings,
) -> Result<Index, DataError> {
    build_with(texts.to_vec(), out, (corpus, split), &vocabulary(200), || encode, communicator)
}

/// Asserts that ranks build the same files from `texts` as one process, or fail in the same way.
fn assert_same(texts: &[Source], corpus: &CorpusSettings, held_out: f64, what: &str) {
    let split = SplitSettings { held_out, ..Default::default() };
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("1");
    let expected = build_on(&Communicator::default(), texts, &alone, corpus, &split);
    for ranks in 1..=5 {
        let out = folder.path().join(format!("of-{ranks}"));
        let found = on_ranks(ranks, |communicator| build_on(communicator, texts, &out, corpus, &split));
        match &expected {
            Ok(index) => {
                assert!(found.iter().all(|found| found.as_ref().unwrap() == index), "{what}, {ranks} ranks");
                assert!(contents(&alone) == contents(&out), "{what}, {ranks} ranks");
            }
            Err(error) => {
                let (error, found) = (error.to_string(), found[0].as_ref().unwrap_err().to_string());
                assert!(found.ends_with(&error), "{what}, {ranks} ranks: {found}; expected {error}");
                assert!(contents(&out).is_empty(), "{what}, {ranks} ranks");
            }
        }
    }
}

/// Random lines, mostly of numbers: some are blank (with or without white space, alone or in a row), some are long, and some
/// are not UTF-8.
fn lines(seed: u32, count: u32) -> Vec<u8> {
    let mut text = Vec::new();
    let mut stream = Stream::new(7, [seed, 0, 0]);
    for _ in 0..count {
        match stream.below(16) {
            0..4 => text.extend(b"\n"),
            4 => text.extend(" \t\u{3000}\r\n".as_bytes()),
            5 => text.extend(b"\n\n\n\n"),
            6 => text.extend(b"no number here.\r\n"),
            7 if stream.below(4) == 0 => text.extend("6-7 8 ".repeat(stream.below(400) as usize).as_bytes()),
            8 if stream.below(8) == 0 => text.extend(b"10 \xFF\n"),
            _ => {
                let words = (0..1 + stream.below(12)).map(|_| format!("{} ", 6 + stream.below(190)));
                text.extend(words.collect::<String>().as_bytes());
                text.push(b'\n');
            }
        }
    }
    text
}

/// Converts the documents of `text` to JSON Lines.
fn json_lines(text: &str) -> String {
    let line = |document: &str| format!("{}\n", serde_json::json!({ "id": 1, "body": document }));
    text.split("\n\n").filter(|document| !document.trim().is_empty()).map(line).collect()
}

#[test]
fn a_field_of_json_lines_gives_the_documents_of_text_on_any_ranks() {
    let (a, b) = (text(3, 200, 90, 6, 12), text(4, 200, 40, 2, 5));
    let plain = CorpusSettings { tokens_per_shard: 700, ..Default::default() };
    let corpus = CorpusSettings { field: Some("body".into()), ..plain.clone() };
    let (lines, more) = (json_lines(&a), json_lines(&b));
    let folder = tempfile::tempdir().unwrap();
    let (of_text, of_lines) = (folder.path().join("text"), folder.path().join("lines"));
    let alone = Communicator::default();
    let split = SplitSettings::default();
    build_on(&alone, &sources(&[&a, &b]), &of_text, &plain, &split).unwrap();
    build_on(&alone, &sources(&[&lines, &more]), &of_lines, &corpus, &split).unwrap();
    let shards = |folder: &Path| {
        contents(folder).into_iter().filter(|(name, _)| name.ends_with(".shard")).collect::<BTreeMap<_, _>>()
    };
    assert!(shards(&of_text) == shards(&of_lines) && !shards(&of_text).is_empty());
    assert_same(&sources(&[&lines, &more]), &corpus, 0.1, "a field");
    assert_same(&sources(&[&lines, "{\"body\": 3}\n"]), &corpus, 0.1, "a number in the field");
    // Copies of documents in another file and in the same one.
    let dropped = CorpusSettings { duplicates: Duplicates::Drop, ..corpus };
    let texts = sources(&[&lines, &more, &lines]);
    assert_same(&texts, &dropped, 0.1, "copies");
    let index = build_on(&alone, &texts, &folder.path().join("dropped"), &dropped, &split).unwrap();
    let kept = index.train.documents + index.held_out.documents;
    assert_eq!(kept + index.report.dropped_duplicates, 2 * 90 + 40, "{:?}", index.report);
    assert!(index.report.dropped_duplicates >= 90);
}

#[test]
fn compressed_text_gives_the_shards_of_the_text() {
    let text = text(5, 200, 300, 6, 12);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    for (name, bytes) in [("a.txt", text.into_bytes()), ("a.txt.gz", gzip.finish().unwrap()), ("b", zstd)] {
        std::fs::write(path(name), bytes).unwrap();
    }
    let (corpus, split) = (CorpusSettings { tokens_per_shard: 700, ..Default::default() }, SplitSettings::default());
    let shards = |name: &str| {
        let out = path(&format!("of-{name}"));
        build_on(&Communicator::default(), &[Source::File(path(name))], &out, &corpus, &split).unwrap();
        contents(&out).into_iter().filter(|(name, _)| name.ends_with(".shard")).collect::<BTreeMap<_, _>>()
    };
    let expected = shards("a.txt");
    assert!(expected.len() > 2 && shards("a.txt.gz") == expected && shards("b") == expected);
    let found = on_ranks(2, |communicator| {
        build_on(communicator, &[Source::File(path("b"))], &path("ranks"), &corpus, &split).map_err(|e| e.to_string())
    });
    assert!(
        found
            .iter()
            .all(|found| found.as_ref().unwrap_err().contains("compressed or UTF-16, but ranks read different parts"))
    );
}

#[test]
fn ranks_write_the_files_of_one_process() {
    let corpus = CorpusSettings { tokens_per_shard: 700, ..Default::default() };
    let (a, b) = (text(1, 200, 90, 6, 12), text(2, 200, 40, 2, 5));
    let without_blank_lines = a.replace("\n\n", "\n");
    for (what, texts) in [
        ("several files", vec![&a[..], &b, "6 8\n10", &a]),
        ("an empty file", vec!["", &b, "\n\n", &a, ""]),
        ("one file", vec![&a[..]]),
        ("more ranks than parts", vec!["6 8\n\n10 12\n"]),
        ("one document", vec![&without_blank_lines]),
        ("documents of a file each", vec![&without_blank_lines, "6\n8", &without_blank_lines[..900]]),
        ("nothing", vec!["", "\n"]),
        ("no token", vec!["words\n\nonly\n"]),
        ("an id beyond the vocabulary", vec![&a, &b.replacen(" \n\n", " 900\n\n", 30)]),
    ] {
        assert_same(&sources(&texts), &corpus, 0.1, what);
        assert_same(&sources(&texts), &corpus, 0.0, what);
    }
}

#[test]
fn ranks_cut_any_text_as_one_process_does() {
    for seed in 0..24 {
        let count = [5, 40, 300][seed as usize % 3];
        let texts = (0..1 + seed % 3)
            .map(|i| Source::Memory { name: format!("{i}.txt"), text: lines(100 * seed + i, count).into() });
        let layout = [TextLayout::Sentences, TextLayout::Paragraphs][seed as usize % 2];
        for (blank_lines_between_documents, lossy) in [(1, true), (2, false), (3, true)] {
            let corpus = CorpusSettings { layout, lossy, blank_lines_between_documents, ..Default::default() };
            assert_same(&texts.clone().collect::<Vec<_>>(), &corpus, 0.2, &format!("text {seed}, {corpus:?}"));
        }
    }
}

#[test]
fn ranks_that_differ_and_ranks_that_are_gone_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, split) = (text(1, 200, 90, 6, 12), SplitSettings::default());
    let try_build = |difference: &(dyn Fn(usize) -> (CorpusSettings, Vec<Source>) + Sync)| {
        let found = on_ranks(3, |communicator| {
            let (corpus, texts) = difference(communicator.rank());
            build_on(communicator, &texts, folder.path(), &corpus, &split)
        });
        assert!(contents(folder.path()).is_empty());
        found.into_iter().map(|found| found.unwrap_err().to_string()).collect::<Vec<_>>()
    };
    let lossy = try_build(&|rank| (CorpusSettings { lossy: rank == 2, ..Default::default() }, sources(&[&whole])));
    assert!(lossy.iter().all(|e| e.contains("rank 0 has `corpus.lossy` = false, rank 2 has true")), "{lossy:?}");
    let shorter = |rank| if rank == 1 { &whole[1..] } else { &whole[..] };
    let sizes = try_build(&|rank| (CorpusSettings::default(), sources(&[shorter(rank)])));
    assert!(sizes.iter().all(|e| e.contains("rank 0 has `text.bytes` = [")), "{sizes:?}");
    let missing = |rank| match rank {
        1 => vec![Source::File("nowhere/0.txt".into())],
        _ => sources(&[&whole]),
    };
    let missing = try_build(&|rank| (CorpusSettings::default(), missing(rank)));
    assert!(missing[1].starts_with("nowhere/0.txt: no such file"), "{missing:?}");
    assert!(missing[0].starts_with("rank 0, settings: rank 1 has ended"), "{missing:?}");
    let folders = try_build(&|_| (CorpusSettings::default(), vec![Source::File(folder.path().into())]));
    assert!(folders.iter().any(|e| e.contains("not a file, but ranks read different parts")), "{folders:?}");
}

/// Parts before the failure of the rank are appended, and shards are written.
#[test]
fn a_rank_that_ends_in_the_middle_is_named_and_earlier_data_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (corpus, split) = (CorpusSettings { tokens_per_shard: 300, ..Default::default() }, SplitSettings::default());
    let texts = sources(&[&text(1, 200, 90, 6, 12)]);
    build_on(&Communicator::default(), &texts, folder.path(), &corpus, &split).unwrap();
    let before = contents(folder.path());
    let vocabulary = vocabulary(200);
    for victim in [0, 2] {
        let found = on_ranks(3, |communicator| {
            let left = AtomicUsize::new(200);
            let new_encoder = || {
                |sentence: &str, ids: &mut Vec<u32>| {
                    let is_over = communicator.rank() == victim && left.fetch_sub(1, Relaxed) < 180;
                    // Unwinds without the message of a panic.
                    if is_over { std::panic::resume_unwind(Box::new("ended")) } else { encode(sentence, ids) }
                }
            };
            let (texts, out) = (texts.clone(), folder.path());
            let work = || build_with(texts, out, (&corpus, &split), &vocabulary, new_encoder, communicator);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|_| communicator.abort())
        });
        for (rank, found) in found.into_iter().enumerate() {
            match found {
                Err(()) => assert_eq!(rank, victim),
                Ok(found) => {
                    let error = found.unwrap_err().to_string();
                    assert!(rank != victim && error.contains("has ended; its own message says why"), "{rank}: {error}");
                }
            }
        }
        build_on(&Communicator::default(), &texts, folder.path(), &corpus, &split).unwrap();
        assert!(contents(folder.path()) == before, "rank {victim}");
    }
}

#[test]
fn ranks_count_the_words_of_one_process() {
    let config = TrainerConfig { max_line_bytes: 60, ..Default::default() };
    let words = |texts: &[Source], lossy, communicator: &Communicator| {
        let corpus = CorpusSettings { lossy, ..Default::default() };
        count_words(texts, &corpus, &config, communicator).map_err(|error| error.to_string())
    };
    for seed in 0..30 {
        let texts: Vec<Source> = (0..1 + seed % 4)
            .map(|i| Source::Memory { name: format!("{i}.txt"), text: lines(seed + 50 * i, 40 * seed).into() })
            .collect();
        for lossy in [true, false] {
            let expected = words(&texts, lossy, &Communicator::default());
            for ranks in 2..=5 {
                let found = on_ranks(ranks, |communicator| words(&texts, lossy, communicator));
                match &expected {
                    Ok(counts) => {
                        assert_eq!(found[0].as_ref(), Ok(counts), "text {seed}, {ranks} ranks");
                        assert!(found[1..].iter().all(|found| found.as_ref() == Ok(&WordCounts::default())));
                    }
                    Err(_) => assert!(
                        found.iter().all(|f| f == &found[0] && f.as_ref().unwrap_err().starts_with("rank ")),
                        "text {seed}, {ranks} ranks: {found:?}"
                    ),
                }
            }
        }
    }
}

#[test]
fn the_line_of_a_damaged_word_is_that_of_the_file() {
    let mut text = "one two three\n".repeat(100).into_bytes();
    text.extend(b"four \xFF\n");
    let texts = [Source::Memory { name: "text.txt".into(), text: text.into() }];
    for ranks in [2, 3, 5] {
        let found = on_ranks(ranks, |communicator| {
            let corpus = CorpusSettings::default();
            count_words(&texts, &corpus, &TrainerConfig::default(), communicator).unwrap_err().to_string()
        });
        let rank = 1400 / 300 % ranks;
        let expected = format!("rank {rank}: text.txt:101: invalid UTF-8 at byte 6 (0xFF 0x0A)");
        assert!(found.iter().all(|error| error.starts_with(&expected)), "{found:?}");
    }
}
