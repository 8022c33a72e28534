//! Properties of shards and of the build that makes them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::testing::{build_in, encode, sources, text, try_build, vocabulary};
use super::*;

/// All documents of `dataset` on `side` as lists of sentences of ids.
fn contents(dataset: &Dataset, side: Side) -> Vec<Vec<Vec<u32>>> {
    let shards = dataset.side(side);
    (0..shards.documents())
        .map(|document| {
            shards.document(document).map(|sentence| {
                let mut ids = Vec::new();
                shards.append(sentence, 1, 0, 0, &mut ids);
                ids
            })
        })
        .map(Iterator::collect)
        .collect()
}

/// Expected `contents`, computed from the text.
fn encoded_documents(texts: &[&str]) -> Vec<Vec<Vec<u32>>> {
    let documents = Documents::new(sources(texts), &CorpusSettings::default()).unwrap();
    let encode_sentence = |sentence: &str| {
        let mut ids = Vec::new();
        encode(sentence, &mut ids).unwrap();
        ids
    };
    documents.map(|document| document.unwrap().sentences().map(encode_sentence).collect()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn holds_every_sentence_once_in_corpus_order() {
    for (case, &(size, documents, tokens_per_shard)) in
        [(100, 1, 1 << 20), (300, 77, 1 << 20), (65_536, 41, 1 << 20), (65_537, 41, 1 << 20), (300, 60, 500)]
            .iter()
            .enumerate()
    {
        let (a, b) = (text(1, size, documents, 6, 20), text(2, size, 30, 3, 9));
        let texts = [a.as_str(), b.as_str()];
        let vocabulary = vocabulary(size as usize);
        let folder = tempfile::tempdir().unwrap();
        let corpus = CorpusSettings { tokens_per_shard, ..Default::default() };
        let split = SplitSettings::default();
        let index = try_build(folder.path(), &texts, &corpus, &split, &vocabulary).unwrap();
        let dataset = Dataset::open(folder.path(), &vocabulary).unwrap();
        assert_eq!(dataset.index(), &index, "case {case}");
        assert!(tokens_per_shard > 500 || index.train.shards.len() > 3, "case {case}: {:?}", index.train.shards);

        let mut splitter = Splitter::new(&split);
        let mut expected: HashMap<Side, Vec<Vec<Vec<u32>>>> = HashMap::new();
        let documents = Documents::new(sources(&texts), &corpus).unwrap().map(|d| d.unwrap().content_hash());
        for (hash, document) in documents.zip(encoded_documents(&texts)) {
            expected.entry(splitter.assign(hash)).or_default().push(document);
        }
        for side in Side::ALL {
            let expected = expected.remove(&side).unwrap_or_default();
            assert_eq!(contents(&dataset, side), expected, "case {case}, {}", side.name());
        }
        let total: u64 = index.sources.iter().map(|s| s.tokens).sum();
        assert_eq!(index.train.tokens + index.held_out.tokens, total, "case {case}");
        let held_out: u64 = index.sources.iter().map(|s| s.held_out_documents).sum();
        assert_eq!(held_out, index.held_out.documents, "case {case}");
    }
}

#[test]
fn is_bit_identical_for_any_thread_count() {
    let (a, b) = (text(3, 1000, 400, 9, 30), text(4, 1000, 200, 4, 30));
    let vocabulary = vocabulary(1000);
    let build_with = |threads: usize| {
        let folder = tempfile::tempdir().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| build_in(folder.path(), &[&a, &b], &vocabulary));
        let read = |path: PathBuf| (path.file_name().unwrap().to_owned(), std::fs::read(&path).unwrap());
        files(folder.path()).into_iter().map(read).collect::<Vec<_>>()
    };
    let one = build_with(1);
    assert_eq!(one.len(), 3);
    for threads in [2, 3, 8] {
        assert!(build_with(threads) == one, "files differ between 1 and {threads} threads");
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(60);
    let index = build_in(folder.path(), &[&text(6, 60, 30, 3, 5)], &vocabulary);
    let path = folder.path().join(&index.held_out.shards[0].file);
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole.len() as u64, index.held_out.shards[0].bytes);
    let message = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Dataset::open(folder.path(), &vocabulary).expect_err("damage must be found").to_string()
    };
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = message(&bytes);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name) && error.contains("albert data build"), "bit {bit}: {error}");
    }
    for len in [0, 1, 79, 80, 81, whole.len() / 2, whole.len() - 8, whole.len() - 1] {
        let error = message(&whole[..len]);
        assert!(error.contains("cut short"), "length {len}: {error}");
    }
    let error = message(&[&whole[..], &[0]].concat());
    assert!(error.contains("1 bytes longer than its header says"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = Dataset::open(folder.path(), &vocabulary).unwrap_err().to_string();
    assert!(error.contains("listed in dataset.json, but missing"), "{error}");
    std::fs::write(&path, &whole).unwrap();
    Dataset::open(folder.path(), &vocabulary).unwrap();
}

#[test]
fn leftovers_of_a_killed_build_and_replaced_shards_are_removed_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let leftovers = ["train-00007-0123456789abcdef.shard", ".held_out-00000-0123456789abcdef.shard.partial"];
    let others = "train.txt notes-00000.shard .hidden.partial train-00000.shard train-00000-0123456789ABCDEF.shard \
        other-00000-ID.shard train-0000-ID.shard train-00000-ID.shard.bak"
        .replace("ID", "0123456789abcdef");
    let others: Vec<&str> = others.split(' ').collect();
    for name in leftovers.iter().chain(&others) {
        std::fs::write(folder.path().join(name), "x").unwrap();
    }
    let before = build_in(folder.path(), &[&text(8, 60, 30, 3, 5)], &vocabulary(60));
    let after = build_in(folder.path(), &[&text(9, 60, 30, 3, 5)], &vocabulary(60));
    assert_ne!(after.train.shards, before.train.shards);
    assert_eq!(files(folder.path()).len(), 3 + others.len(), "{:?}", files(folder.path()));
    assert!(leftovers.iter().all(|name| !folder.path().join(name).exists()));
    assert!(others.iter().all(|name| folder.path().join(name).exists()));
}

#[test]
fn a_second_build_in_the_same_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = engine::io::AtomicFile::create(folder.path().join("dataset.json")).unwrap();
    let text = text(8, 60, 30, 3, 5);
    let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
    let build = || try_build(folder.path(), &[&text], &corpus, &split, &vocabulary(60));
    let error = build().unwrap_err().to_string();
    assert!(error.contains("another process is writing this file"), "{error}");
    drop(other);
    build().unwrap();
}

#[test]
fn a_sentence_without_end_is_cut_at_word_starts() {
    let vocabulary = vocabulary(500);
    let mut long = String::new();
    let mut stream = engine::philox::Stream::new(1, [9, 9, 9]);
    for _ in 0..5000 {
        testing::word(500, &mut stream, &mut long);
        long.push(' ');
    }
    let source = format!("{long}\n8 10\n\n6\n");
    let folder = tempfile::tempdir().unwrap();
    let index = build_in(folder.path(), &[&source], &vocabulary);
    assert_eq!(index.report.cut_sentences, 1);
    assert_eq!(index.report.cut_places, ["0.txt:1"]);
    assert_eq!(
        (index.report.one_sentence_documents, &index.report.one_sentence_places[..]),
        (1, &["0.txt:4".into()][..])
    );
    let dataset = Dataset::open(folder.path(), &vocabulary).unwrap();
    let documents = [contents(&dataset, Side::Train), contents(&dataset, Side::HeldOut)].concat();
    let sentences = documents.iter().find(|d| d.len() > 1).unwrap();
    let pieces = &sentences[..sentences.len() - 1];
    let mut whole = Vec::new();
    encode(&long, &mut whole).unwrap();
    assert_eq!(pieces.concat(), whole);
    for piece in pieces {
        assert!((128..=256).contains(&piece.len()), "{}", piece.len());
        assert!(vocabulary.is_word_start(piece[0]));
    }
}

#[test]
fn small_and_empty_corpora_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let vocabulary = vocabulary(60);
    let try_build = |text: &str, held_out: f64| {
        let split = SplitSettings { held_out, ..Default::default() };
        try_build(folder.path(), &[text], &CorpusSettings::default(), &split, &vocabulary)
    };
    assert!(matches!(try_build("", 0.1), Err(DataError::EmptyCorpus { .. })));
    assert!(matches!(try_build("words only\nno number\n", 0.1), Err(DataError::NoTokens { sentences: 2 })));
    assert!(matches!(try_build("6 8\n10\n", 0.1), Err(DataError::OneDocument)));
    assert!(matches!(try_build("6 8\n\n6 8\n", 0.1), Err(DataError::OneDocument)));
    assert_eq!(try_build("6 8\n10\n", 0.0).unwrap().train.documents, 1);
    for documents in 2..12 {
        let text: String = (0..documents).map(|d| format!("{}\n8\n\n", 6 + d)).collect();
        let index = try_build(&text, 0.1).unwrap();
        assert!(index.held_out.documents >= 1, "{documents} documents");
        assert_eq!(index.held_out.documents + index.train.documents, documents);
    }
    let index = try_build("6 8\nnothing\n\nnothing\n\n10\n\n12", 0.5).unwrap();
    assert_eq!((index.report.empty_sentences, index.report.empty_documents), (2, 1));
}

#[test]
fn ids_beyond_the_vocabulary_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
    let error = try_build(folder.path(), &["6\n\n8 60\n"], &corpus, &split, &vocabulary(60)).unwrap_err();
    assert!(error.to_string().starts_with("0.txt:3: the tokenizer returned id 60"), "{error}");
}
