//! Tokenizes documents on the threads of a rank, and serializes them for other ranks.

use std::sync::Mutex;

use rayon::prelude::*;

use super::corpus::{Document, Documents};
use super::error::DataError;
use super::settings::{CorpusSettings, Duplicates};
use super::sources::{Part, Source};
use super::vocabulary::Vocabulary;
use crate::tokenizer::TokenizerError;

/// A tokenized document.
pub(super) struct Encoded {
    /// Index of its source.
    pub(super) source: usize,
    /// Line of its first sentence in the source, or in its part.
    pub(super) line: u64,
    pub(super) ids: Vec<u32>,
    /// Ends of the sentences in `ids`.
    pub(super) ends: Vec<usize>,
    /// Hash of the folded text.
    pub(super) hash: u64,
    /// Hash of the text if copies are dropped, else 0.
    pub(super) exact_hash: u64,
    pub(super) empty_sentences: u64,
    pub(super) cut_sentences: u64,
    /// Reason why it cannot be used; empty if it can.
    pub(super) problem: String,
}

/// Tokenized documents of a part of a source.
#[derive(Default)]
pub(super) struct EncodedPart {
    pub(super) documents: Vec<Encoded>,
    pub(super) bytes: u64,
    pub(super) lines: u64,
    pub(super) sentences: u64,
    pub(super) repaired_lines: u64,
}

/// Tokenizer of documents; the encoders are reused, because they cache words.
pub(super) struct Encoding<'a, E, N> {
    corpus: &'a CorpusSettings,
    vocabulary: &'a Vocabulary,
    new_encoder: N,
    idle: Mutex<Vec<E>>,
}

impl<'a, E, N> Encoding<'a, E, N>
where
    E: FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError> + Send,
    N: Fn() -> E + Sync,
{
    pub(super) fn new(corpus: &'a CorpusSettings, vocabulary: &'a Vocabulary, new_encoder: N) -> Self {
        Self { corpus, vocabulary, new_encoder, idle: Mutex::new(Vec::new()) }
    }

    /// Tokenizes `documents` in parallel, in their order.
    pub(super) fn encode_all(&self, documents: &[Document]) -> Vec<Encoded> {
        let encode = |document: &Document| {
            let idle = || self.idle.lock().expect("no thread panics while it holds the lock");
            let taken = idle().pop();
            let mut encoder = taken.unwrap_or_else(&self.new_encoder);
            let encoded = self.encode(document, &mut encoder);
            idle().push(encoder);
            encoded
        };
        documents.par_iter().map(encode).collect()
    }

    /// Reads and tokenizes a part of one of `sources`.
    pub(super) fn encode_part(&self, sources: &[Source], part: &Part) -> Result<EncodedPart, DataError> {
        let mut reader = Documents::of_part(sources.to_vec(), part.clone(), self.corpus)?;
        let documents: Vec<Document> = reader.by_ref().collect::<Result<_, _>>()?;
        let counts = reader.counts();
        Ok(EncodedPart {
            documents: self.encode_all(&documents),
            bytes: counts.bytes,
            lines: counts.lines,
            sentences: documents.iter().map(|document| document.len() as u64).sum(),
            repaired_lines: counts.repaired_lines,
        })
    }

    fn encode(&self, document: &Document, encoder: &mut E) -> Encoded {
        let drops_copies = self.corpus.duplicates == Duplicates::Drop;
        let mut encoded = Encoded {
            source: document.source,
            line: document.line,
            ids: Vec::with_capacity(document.bytes() / 4),
            ends: Vec::with_capacity(document.len()),
            hash: document.content_hash(),
            exact_hash: if drops_copies { document.exact_hash() } else { 0 },
            empty_sentences: 0,
            cut_sentences: 0,
            problem: String::new(),
        };
        let size = self.vocabulary.size();
        for sentence in document.sentences() {
            let start = encoded.ids.len();
            let result = encoder(sentence, &mut encoded.ids);
            let ids = &encoded.ids[start..];
            if let Err(error) = result {
                encoded.problem = error.to_string();
            } else if let Some(id) = ids.iter().find(|&&id| id as usize >= size) {
                encoded.problem = format!(
                    "the tokenizer returned id {id}, but its vocabulary has {size} pieces; the tokenizer file is damaged"
                );
            }
            if !encoded.problem.is_empty() {
                break;
            }
            if ids.is_empty() {
                encoded.empty_sentences += 1;
            } else if ids.len() <= self.corpus.longest_sentence {
                encoded.ends.push(encoded.ids.len());
            } else {
                encoded.cut_sentences += 1;
                cut_points(ids, self.corpus.longest_sentence, self.vocabulary, |at| encoded.ends.push(start + at));
            }
        }
        encoded
    }
}

impl EncodedPart {
    /// Serializes the part: 8-byte integers, then ids, then problems.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut numbers =
            vec![self.bytes, self.lines, self.sentences, self.repaired_lines, self.documents.len() as u64];
        let (mut ids, mut problems) = (Vec::new(), String::new());
        for document in &self.documents {
            let Encoded { source, line, hash, exact_hash, empty_sentences, cut_sentences, .. } = *document;
            let lens = [document.ids.len(), document.ends.len(), document.problem.len(), source];
            numbers.extend([line, hash, exact_hash, empty_sentences, cut_sentences]);
            numbers.extend(lens.iter().chain(&document.ends).map(|&number| number as u64));
            ids.extend_from_slice(&document.ids);
            problems += &document.problem;
        }
        [
            &(numbers.len() as u64).to_le_bytes(),
            bytemuck::cast_slice(&numbers),
            bytemuck::cast_slice(&ids),
            problems.as_bytes(),
        ]
        .concat()
    }

    /// Reads the output of [`to_bytes`](Self::to_bytes); `None` if it is something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (count, bytes) = bytes.split_first_chunk()?;
        let (numbers, mut rest) =
            bytes.split_at_checked(u64::from_le_bytes(*count).checked_mul(8)?.try_into().ok()?)?;
        let mut numbers = numbers.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next();
        let mut part =
            Self { bytes: next()?, lines: next()?, sentences: next()?, repaired_lines: next()?, documents: Vec::new() };
        let mut lens = Vec::new();
        for _ in 0..next()? {
            let [line, hash, exact_hash] = [next()?, next()?, next()?];
            let [empty_sentences, cut_sentences] = [next()?, next()?];
            let [ids, ends, problem, source] = [next()?, next()?, next()?, next()?].map(|number| number as usize);
            let ends = (0..ends).map(|_| Some(next()? as usize)).collect::<Option<_>>()?;
            lens.push((ids, problem));
            let (ids, problem) = (Vec::new(), String::new());
            part.documents.push(Encoded {
                source,
                line,
                ids,
                ends,
                hash,
                exact_hash,
                empty_sentences,
                cut_sentences,
                problem,
            });
        }
        for (document, (ids, _)) in part.documents.iter_mut().zip(&lens) {
            let ids = rest.split_off(..ids.checked_mul(4)?)?;
            document.ids.extend(ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)));
        }
        for (document, (_, problem)) in part.documents.iter_mut().zip(&lens) {
            document.problem = String::from_utf8(rest.split_off(..*problem)?.to_vec()).ok()?;
        }
        rest.is_empty().then_some(part)
    }
}

/// Calls `end` with the end of each piece of a sentence of more than `longest` tokens: as few pieces as possible, of about
/// equal length, each ending before a word start if its second half has one.
fn cut_points(ids: &[u32], longest: usize, vocabulary: &Vocabulary, mut end: impl FnMut(usize)) {
    let mut start = 0;
    while ids.len() - start > longest {
        let rest = ids.len() - start;
        let piece = rest.div_ceil(rest.div_ceil(longest));
        let earliest = start + piece.div_ceil(2);
        let latest = start + piece;
        let at = (earliest..=latest).rev().find(|&at| vocabulary.is_word_start(ids[at])).unwrap_or(latest);
        end(at);
        start = at;
    }
    end(ids.len());
}
