//! Random corpora with a trivial tokenizer: the word `12-7-9` is the pieces 12, 7 and 9.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use engine::Communicator;
use engine::philox::Stream;

use super::{CorpusSettings, DataError, Dataset, Index, Shards, Side, Source, SplitSettings, Vocabulary, build_with};
use crate::tokenizer::{SpecialIds, TokenizerError};

pub(super) const SPECIALS: SpecialIds = SpecialIds { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };

/// Pieces 0 to 4 are special; of the rest, the even ones begin a word.
pub(super) fn vocabulary(size: usize) -> Vocabulary {
    Vocabulary::new((0..size).map(|id| id % 2 == 0).collect(), SPECIALS, b"numbers").unwrap()
}

/// The tokenizer of this module; anything but numbers is skipped.
pub(super) fn encode(text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
    ids.extend(text.split_whitespace().flat_map(|word| word.split('-')).filter_map(|piece| piece.parse::<u32>().ok()));
    Ok(())
}

/// A random word of a vocabulary of `size` pieces; 1 to 4 pieces, with the frequencies of English under 8,000 pieces
/// (measured with SentencePiece on public-domain prose: 90.6, 7.1, 1.3 and 1.0 %).
pub(super) fn word(size: u32, stream: &mut Stream, out: &mut String) {
    let pieces = match stream.below(1000) {
        0..906 => 1,
        906..977 => 2,
        977..990 => 3,
        _ => 4,
    };
    write!(out, "{}", 6 + 2 * stream.below((size - 6) / 2)).unwrap();
    for _ in 1..pieces {
        write!(out, "-{}", 5 + 2 * stream.below((size - 5) / 2)).unwrap();
    }
}

/// `documents` documents of at most `most_sentences` sentences of at most `most_words` words.
pub(super) fn text(seed: u64, size: u32, documents: u32, most_sentences: u32, most_words: u32) -> String {
    let mut out = String::new();
    for document in 0..documents {
        let mut stream = Stream::new(seed, [0, document, 0]);
        for _ in 0..1 + stream.below(most_sentences) {
            for _ in 0..1 + stream.below(most_words) {
                word(size, &mut stream, &mut out);
                out.push(' ');
            }
            out.push('\n');
        }
        out.push('\n');
    }
    out
}

/// Sources in memory, named `0.txt`, `1.txt`, ...
pub(super) fn sources(texts: &[&str]) -> Vec<Source> {
    let source = |(i, text): (usize, &&str)| Source::Memory { name: format!("{i}.txt"), text: text.as_bytes().into() };
    texts.iter().enumerate().map(source).collect()
}

/// Builds `texts` in `folder`, in one process.
pub(super) fn try_build(
    folder: &Path,
    texts: &[&str],
    corpus: &CorpusSettings,
    split: &SplitSettings,
    vocabulary: &Vocabulary,
) -> Result<Index, DataError> {
    build_with(sources(texts), folder, (corpus, split), vocabulary, || encode, &Communicator::default())
}

/// Builds `texts` in `folder` with default settings.
pub(super) fn build_in(folder: &Path, texts: &[&str], vocabulary: &Vocabulary) -> Index {
    try_build(folder, texts, &CorpusSettings::default(), &SplitSettings::default(), vocabulary).unwrap()
}

/// The training side of `text`, with almost nothing held out.
pub(super) fn shards(text: &str, vocabulary: &Vocabulary) -> Arc<Shards> {
    let folder = tempfile::tempdir().unwrap();
    let split = SplitSettings { held_out: 0.0, ..Default::default() };
    try_build(folder.path(), &[text], &CorpusSettings::default(), &split, vocabulary).unwrap();
    Arc::clone(Dataset::open(folder.path(), vocabulary).unwrap().side(Side::Train))
}
