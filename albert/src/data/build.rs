//! Corpus to shards.
//!
//! Documents are read in order, tokenized in parallel a few megabytes at a time, assigned to a side of the split and
//! appended to its shard in corpus order: the files do not depend on the number of threads. Memory: the text and ids in
//! flight, and 4 bytes a sentence and 16 a document until a shard is closed. The index is written last and replaced
//! atomically, so a folder contains the old data or the new.

use std::path::Path;
use std::sync::Mutex;

use engine::io::{AtomicFile, create_dir_synced};
use rayon::prelude::*;

use super::corpus::{Document, Documents, Source};
use super::dataset::{
    BuildReport, FORMAT, INDEX_FILE, Index, SideIndex, SourceCounts, VERSION, read_index, write_index,
};
use super::error::DataError;
use super::settings::{CorpusSettings, SplitSettings};
use super::shard_writer::{ShardWriter, is_shard_name};
use super::split::{Side, Splitter};
use super::vocabulary::Vocabulary;
use crate::tokenizer::{Encoder, Tokenizer, TokenizerError};

/// Text in one parallel batch, in bytes.
const BATCH_BYTES: usize = 4 << 20;
/// Places of each kind in a report.
const LISTED: usize = 20;

/// Builds the shards and the index of `sources` in the folder `out`, which is created if it is missing. `progress` receives
/// the bytes read so far.
///
/// # Errors
/// Those of reading and writing, [`DataError::EmptyCorpus`], [`DataError::NoTokens`], [`DataError::OneDocument`], and
/// [`DataError::Setting`] for settings out of range; [`DataError::File`] also if another build runs in `out`. On an error,
/// earlier data in `out` is unchanged.
pub fn build(
    sources: Vec<Source>,
    out: &Path,
    corpus: &CorpusSettings,
    split: &SplitSettings,
    tokenizer: &Tokenizer,
    progress: impl FnMut(u64),
) -> Result<Index, DataError> {
    let vocabulary = Vocabulary::of(tokenizer)?;
    let new_encoder = || {
        let mut encoder = Encoder::new(tokenizer);
        move |text: &str, ids: &mut Vec<u32>| encoder.encode_into(text, ids)
    };
    build_with(sources, out, corpus, split, &vocabulary, new_encoder, progress)
}

/// [`build`] with any encoder: each thread takes one from `new_encoder`. An encoder appends the ids of one sentence, without
/// special pieces, and its result must depend on the sentence alone.
///
/// # Errors
/// As for [`build`], and for an id outside `vocabulary`.
pub fn build_with<E: FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError> + Send>(
    sources: Vec<Source>,
    out: &Path,
    corpus: &CorpusSettings,
    split: &SplitSettings,
    vocabulary: &Vocabulary,
    new_encoder: impl Fn() -> E + Sync,
    mut progress: impl FnMut(u64),
) -> Result<Index, DataError> {
    corpus.validate()?;
    split.validate()?;
    create_dir_synced(out)?;
    // The file locks the folder: another build would remove the shards of this one as leftovers.
    let pending_index = AtomicFile::create(out.join(INDEX_FILE))?;
    // Encoders are reused, because they cache words.
    let encoders = Encoders { new: new_encoder, idle: Mutex::new(Vec::new()) };
    let mut run = |splitter| {
        let mut builder = Builder::new(out, corpus, vocabulary, &encoders, &sources, splitter);
        let result = builder.read_all(sources.clone(), &mut progress).and_then(|()| builder.close());
        if result.is_err() {
            remove_unlisted(out);
        }
        result.map(|()| builder)
    };
    let mut builder = run(Splitter::new(split))?;
    if split.held_out > 0.0 && builder.sides[1].index.documents == 0 {
        let distinct = builder.splitter.distinct();
        if distinct < 2 {
            remove_unlisted(out);
            return Err(DataError::OneDocument);
        }
        if let Some(source) = sources.iter().find(|source| !source.is_lasting()) {
            remove_unlisted(out);
            let problem = "a pipe or device can be read once, but the held-out split of few documents takes two passes; \
                           write the text to a file first, or set held_out = 0";
            return Err(DataError::input(source.name(), problem));
        }
        builder = run(Splitter::for_few_documents(split, distinct))?;
    }
    let index = builder.into_index(split);
    write_index(out, pending_index, &index)?;
    remove_unlisted(out);
    Ok(index)
}

/// Removes the shards that the index in `out` does not list: of replaced data and of builds that failed or were killed.
fn remove_unlisted(out: &Path) {
    let listed: Vec<String> = match read_index(out) {
        Ok(index) => [index.train, index.held_out].into_iter().flat_map(|s| s.shards).map(|s| s.file).collect(),
        Err(DataError::NoDataset { .. }) => Vec::new(),
        // The owner of the shards is unknown: keep them.
        Err(_) => return,
    };
    for entry in std::fs::read_dir(out).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // A killed process leaves the temporary file of its `AtomicFile`.
        let whole = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial"));
        let is_unlisted = is_shard_name(name) && !listed.iter().any(|file| file == name);
        if is_unlisted || whole.is_some_and(is_shard_name) {
            // A file that cannot be removed is harmless: nothing refers to it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A tokenized document.
struct Encoded {
    ids: Vec<u32>,
    ends: Vec<usize>,
    hash: u64,
    empty_sentences: u64,
    cut_sentences: u64,
    /// First id outside the vocabulary, if any.
    bad_id: Option<u32>,
}

/// The shards of one side under construction.
struct SideBuilder {
    side: Side,
    writer: ShardWriter,
    index: SideIndex,
}

/// Pool of idle encoders.
struct Encoders<E, N> {
    new: N,
    idle: Mutex<Vec<E>>,
}

impl<E, N: Fn() -> E> Encoders<E, N> {
    fn with<R>(&self, work: impl FnOnce(&mut E) -> R) -> R {
        let idle = || self.idle.lock().expect("no thread panics while it holds the lock");
        let taken = idle().pop();
        let mut encoder = taken.unwrap_or_else(&self.new);
        let result = work(&mut encoder);
        idle().push(encoder);
        result
    }
}

struct Builder<'a, E, N> {
    out: &'a Path,
    corpus: &'a CorpusSettings,
    vocabulary: &'a Vocabulary,
    encoders: &'a Encoders<E, N>,
    splitter: Splitter,
    sides: [SideBuilder; 2],
    sources: Vec<SourceCounts>,
    report: BuildReport,
}

impl<'a, E, N> Builder<'a, E, N>
where
    E: FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError> + Send,
    N: Fn() -> E + Sync,
{
    fn new(
        out: &'a Path,
        corpus: &'a CorpusSettings,
        vocabulary: &'a Vocabulary,
        encoders: &'a Encoders<E, N>,
        sources: &[Source],
        splitter: Splitter,
    ) -> Self {
        let sides = Side::ALL.map(|side| SideBuilder {
            side,
            writer: ShardWriter::new(out, side, 0, vocabulary),
            index: SideIndex::default(),
        });
        let sources = sources.iter().map(|s| SourceCounts { name: s.name(), ..Default::default() }).collect();
        Self { out, corpus, vocabulary, encoders, splitter, sides, sources, report: BuildReport::default() }
    }

    fn read_all(&mut self, sources: Vec<Source>, progress: &mut impl FnMut(u64)) -> Result<(), DataError> {
        let mut documents = Documents::new(sources, self.corpus)?;
        let (mut batch, mut bytes, mut sentences) = (Vec::new(), 0, 0u64);
        loop {
            let next = documents.next().transpose()?;
            let is_last = next.is_none();
            if let Some(document) = next {
                bytes += document.bytes();
                sentences += document.len() as u64;
                batch.push(document);
            }
            if is_last || bytes >= BATCH_BYTES {
                self.add(&batch)?;
                batch.clear();
                bytes = 0;
                progress(documents.counts().bytes);
            }
            if is_last {
                break;
            }
        }
        self.report.bytes = documents.counts().bytes;
        self.report.repaired_lines = documents.counts().repaired_lines;
        self.report.duplicate_documents = self.splitter.duplicates();
        if self.report.documents == 0 {
            return Err(DataError::NoTokens { sentences });
        }
        Ok(())
    }

    /// Tokenizes `documents` in parallel and appends them in order.
    fn add(&mut self, documents: &[Document]) -> Result<(), DataError> {
        let this = &*self;
        let encode = |document: &Document| {
            this.encoders
                .with(|encoder| this.encode(document, encoder))
                .map_err(|source| DataError::input(this.place(document), source.to_string()))
        };
        let encoded: Vec<Encoded> = documents.par_iter().map(encode).collect::<Result<_, _>>()?;
        for (document, encoded) in documents.iter().zip(encoded) {
            self.append(document, &encoded)?;
        }
        Ok(())
    }

    fn encode(&self, document: &Document, encoder: &mut E) -> Result<Encoded, TokenizerError> {
        let mut encoded = Encoded {
            ids: Vec::with_capacity(document.bytes() / 4),
            ends: Vec::with_capacity(document.len()),
            hash: document.content_hash(),
            empty_sentences: 0,
            cut_sentences: 0,
            bad_id: None,
        };
        let size = self.vocabulary.size();
        for sentence in document.sentences() {
            let start = encoded.ids.len();
            encoder(sentence, &mut encoded.ids)?;
            let ids = &encoded.ids[start..];
            encoded.bad_id = encoded.bad_id.or_else(|| ids.iter().copied().find(|&id| id as usize >= size));
            if ids.is_empty() {
                encoded.empty_sentences += 1;
            } else if ids.len() <= self.corpus.longest_sentence || encoded.bad_id.is_some() {
                encoded.ends.push(encoded.ids.len());
            } else {
                encoded.cut_sentences += 1;
                cut_points(ids, self.corpus.longest_sentence, self.vocabulary, |at| encoded.ends.push(start + at));
            }
        }
        Ok(encoded)
    }

    /// `FILE:LINE` of a document.
    fn place(&self, document: &Document) -> String {
        format!("{}:{}", self.sources[document.source].name, document.line)
    }

    fn append(&mut self, document: &Document, encoded: &Encoded) -> Result<(), DataError> {
        if let Some(id) = encoded.bad_id {
            let problem = format!(
                "the tokenizer returned id {id}, but its vocabulary has {} pieces; the tokenizer file is damaged",
                self.vocabulary.size()
            );
            return Err(DataError::input(self.place(document), problem));
        }
        self.report.empty_sentences += encoded.empty_sentences;
        if encoded.ids.is_empty() {
            self.report.empty_documents += 1;
            return Ok(());
        }
        let place = self.place(document);
        let report = &mut self.report;
        report.cut_sentences += encoded.cut_sentences;
        if encoded.cut_sentences > 0 && report.cut_places.len() < LISTED {
            report.cut_places.push(place.clone());
        }
        report.one_sentence_documents += u64::from(encoded.ends.len() == 1);
        if encoded.ends.len() == 1 && report.one_sentence_places.len() < LISTED {
            report.one_sentence_places.push(place);
        }
        self.report.documents += 1;
        let side = self.splitter.assign(encoded.hash);
        let counts = &mut self.sources[document.source];
        counts.documents += 1;
        counts.sentences += encoded.ends.len() as u64;
        counts.tokens += encoded.ids.len() as u64;
        if side == Side::HeldOut {
            counts.held_out_documents += 1;
            counts.held_out_tokens += encoded.ids.len() as u64;
        }
        let builder = &mut self.sides[side as usize];
        builder.writer.push(document.source as u32, encoded.hash, &encoded.ids, &encoded.ends)?;
        if builder.writer.tokens() >= self.corpus.tokens_per_shard as u64 {
            builder.close(self.out, self.vocabulary)?;
        }
        Ok(())
    }

    /// Writes the last shards of both sides.
    fn close(&mut self) -> Result<(), DataError> {
        self.sides.iter_mut().try_for_each(|side| side.close(self.out, self.vocabulary))
    }

    fn into_index(self, split: &SplitSettings) -> Index {
        let [train, held_out] = self.sides.map(|builder| builder.index);
        let index = Index {
            format: FORMAT.into(),
            version: VERSION,
            fingerprint: format!("{:016x}", self.vocabulary.fingerprint()),
            vocab_size: self.vocabulary.size(),
            corpus: self.corpus.clone(),
            split: split.clone(),
            sources: self.sources,
            train,
            held_out,
            report: self.report,
            checksum: String::new(),
        };
        index.with_checksum()
    }
}

impl SideBuilder {
    /// Writes the shard and starts the next.
    fn close(&mut self, out: &Path, vocabulary: &Vocabulary) -> Result<(), DataError> {
        let number = self.index.shards.len() + 1;
        let writer = std::mem::replace(&mut self.writer, ShardWriter::new(out, self.side, number, vocabulary));
        if let Some(entry) = writer.finish()? {
            self.index.documents += entry.documents;
            self.index.sentences += entry.sentences;
            self.index.tokens += entry.tokens;
            self.index.shards.push(entry);
        }
        Ok(())
    }
}

/// Calls `end` with the ends of the pieces of a sentence of more than `longest` tokens: as few pieces as possible, of about
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
