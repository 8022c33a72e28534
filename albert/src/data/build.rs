//! Corpus to shards.
//!
//! Documents are read in order, tokenized in parallel a few megabytes at a time, assigned to a side of the split and
//! appended to its shard in corpus order: the files do not depend on the number of threads. Memory: the text and ids in
//! flight, and 4 bytes a sentence and 16 a document until a shard is closed. The index is written last and replaced
//! atomically, so a folder contains the old data or the new.
//!
//! ```text
//! rank 0    part 0 ─ encode ─┐                part 2 ─ encode ─┐
//!                            ├─ append 0, 1 ─                  ├─ append 2, 3 ─ .. shards, index
//! rank 1    part 1 ─ encode ─┘ send           part 3 ─ encode ─┘ send
//! ```
//!
//! Ranks read and tokenize parts in turn (`Part`). The first rank appends all of them in order and is the only one that
//! writes, so the files do not depend on the number of ranks; it stores one part of another rank at a time.

use std::collections::HashSet;
use std::path::Path;

use engine::Communicator;
use engine::io::{AtomicFile, create_dir_synced};
use serde_json::json;

use super::corpus::{Documents, empty};
use super::dataset::{
    BuildReport, FORMAT, INDEX_FILE, Index, SideIndex, SourceCounts, VERSION, read_index, write_index,
};
use super::encode::{Encoded, EncodedPart, Encoding};
use super::error::DataError;
use super::settings::{CorpusSettings, Duplicates, SplitSettings};
use super::shard_writer::{ShardWriter, is_shard_name};
use super::sources::{Part, Source};
use super::split::{Side, Splitter};
use super::vocabulary::Vocabulary;
use crate::ranks::expect_alike;
use crate::tokenizer::{Encoder, Tokenizer, TokenizerError};

/// Text in one parallel batch, in bytes.
const BATCH_BYTES: usize = 4 << 20;
/// Maximum number of places of each kind in a report.
const LISTED: usize = 20;

/// Names of the messages between ranks.
const PART: &str = "a part of the text";
const OUTCOME: &str = "the outcome of the build";

/// Builds the shards and the index of `sources` in the folder `out`, which is created if missing. All ranks of `communicator`
/// call it with equal arguments and the same sources, which must be files or in memory if there are several ranks; only the
/// first writes to `out`.
///
/// # Errors
/// Those of reading and writing, [`DataError::EmptyCorpus`], [`DataError::NoTokens`], [`DataError::OneDocument`], and
/// [`DataError::Setting`] for settings out of range; [`DataError::File`] also if another build runs in `out`. On an error,
/// earlier data in `out` is unchanged. [`DataError::Rank`] on the first rank if another cannot read or encode its part, and
/// communication errors on the other ranks if the first fails.
pub fn build(
    sources: Vec<Source>,
    out: &Path,
    corpus: &CorpusSettings,
    split: &SplitSettings,
    tokenizer: &Tokenizer,
    communicator: &Communicator,
) -> Result<Index, DataError> {
    let vocabulary = Vocabulary::of(tokenizer)?;
    let new_encoder = || {
        let mut encoder = Encoder::new(tokenizer);
        move |text: &str, ids: &mut Vec<u32>| encoder.encode_into(text, ids)
    };
    build_with(sources, out, (corpus, split), &vocabulary, new_encoder, communicator)
}

/// [`build`] with any encoder: each thread calls `new_encoder`. An encoder appends the ids of one sentence, without
/// special pieces; its result must depend only on the sentence.
///
/// # Errors
/// As for [`build`], and an id outside `vocabulary`.
pub fn build_with<E: FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError> + Send>(
    sources: Vec<Source>,
    out: &Path,
    (corpus, split): (&CorpusSettings, &SplitSettings),
    vocabulary: &Vocabulary,
    new_encoder: impl Fn() -> E + Sync,
    communicator: &Communicator,
) -> Result<Index, DataError> {
    corpus.validate()?;
    split.validate()?;
    let encoding = Encoding::new(corpus, vocabulary, new_encoder);
    let several = communicator.size() > 1;
    let parts = several.then(|| parts_of(&sources, corpus, split, vocabulary, communicator)).transpose()?;
    if let Some(parts) = parts.as_ref().filter(|_| !communicator.is_first()) {
        return assist(&sources, parts, &encoding, communicator);
    }
    create_dir_synced(out)?;
    // The file locks the folder: another build would remove the shards of this one as leftovers.
    let pending_index = AtomicFile::create(out.join(INDEX_FILE))?;
    let run = |splitter| {
        let mut builder = Builder::new(out, corpus, vocabulary, &sources, splitter);
        let read = match &parts {
            None => builder.read_all(sources.clone(), &encoding),
            Some(parts) => builder.read_parts(&sources, parts, &encoding, communicator),
        };
        let result = read.and_then(|()| builder.close());
        if result.is_err() {
            remove_unlisted(out);
        }
        result.map(|()| builder)
    };
    // An empty outcome makes the ranks read everything a second time.
    let send_outcome =
        |outcome: &[u8]| (1..communicator.size()).try_for_each(|rank| communicator.send(OUTCOME, rank, outcome));
    let mut builder = run(Splitter::new(split))?;
    if split.held_out > 0.0 && builder.sides[1].index.documents == 0 {
        let distinct = builder.splitter.distinct();
        if distinct < 2 {
            remove_unlisted(out);
            return Err(DataError::OneDocument);
        }
        if let Some(source) = sources.iter().find(|source| !source.is_lasting()) {
            remove_unlisted(out);
            let problem = "a pipe or device can be read once, but the held-out split of few documents needs two passes; \
                           write the text to a file first, or set held_out = 0";
            return Err(DataError::input(source.name(), problem));
        }
        send_outcome(&[])?;
        builder = run(Splitter::for_few_documents(split, distinct))?;
    }
    let index = builder.into_index(split);
    write_index(out, pending_index, &index)?;
    remove_unlisted(out);
    send_outcome(&serde_json::to_vec(&index).expect("an index has string keys and finite numbers"))?;
    Ok(index)
}

/// Parts for all ranks, after a check that their inputs are equal.
fn parts_of(
    sources: &[Source],
    corpus: &CorpusSettings,
    split: &SplitSettings,
    vocabulary: &Vocabulary,
    communicator: &Communicator,
) -> Result<Vec<Part>, DataError> {
    let (parts, sizes) = Part::all(sources)?;
    let names: Vec<String> = sources.iter().map(Source::name).collect();
    let fingerprint = format!("{:016x}", vocabulary.fingerprint());
    let start = json!({
        "text": { "files": names, "bytes": sizes }, "tokenizer": fingerprint, "corpus": corpus, "split": split
    });
    expect_alike(communicator, start)?;
    Ok(parts)
}

/// Reads and tokenizes the parts of a rank other than the first, and sends them to the first.
fn assist<E, N>(
    sources: &[Source],
    parts: &[Part],
    encoding: &Encoding<'_, E, N>,
    communicator: &Communicator,
) -> Result<Index, DataError>
where
    E: FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError> + Send,
    N: Fn() -> E + Sync,
{
    loop {
        for part in parts.iter().skip(communicator.rank()).step_by(communicator.size()) {
            let encoded = encoding.encode_part(sources, part);
            communicator.send(PART, 0, &encoded.as_ref().map_or(Vec::new(), EncodedPart::to_bytes))?;
            if let Err(problem) = encoded {
                // Follows an empty part. The first rank ends the build with this message.
                communicator.send(PART, 0, problem.to_string().as_bytes())?;
                break;
            }
        }
        let outcome = communicator.receive(OUTCOME, 0)?;
        if !outcome.is_empty() {
            let wrong = |error| DataError::Rank { rank: 0, problem: format!("its index cannot be read: {error}") };
            return serde_json::from_slice(&outcome).map_err(wrong);
        }
    }
}

/// Removes shards that the index in `out` does not list: those of replaced data and of builds that failed or were killed.
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

/// The shards of one side under construction.
struct SideBuilder {
    side: Side,
    writer: ShardWriter,
    index: SideIndex,
}

struct Builder<'a> {
    out: &'a Path,
    corpus: &'a CorpusSettings,
    vocabulary: &'a Vocabulary,
    splitter: Splitter,
    /// Hashes of earlier documents, if copies are dropped.
    known: HashSet<(u64, u64)>,
    sides: [SideBuilder; 2],
    sources: Vec<SourceCounts>,
    report: BuildReport,
}

impl<'a> Builder<'a> {
    fn new(
        out: &'a Path,
        corpus: &'a CorpusSettings,
        vocabulary: &'a Vocabulary,
        sources: &[Source],
        splitter: Splitter,
    ) -> Self {
        let sides = Side::ALL.map(|side| SideBuilder {
            side,
            writer: ShardWriter::new(out, side, 0, vocabulary),
            index: SideIndex::default(),
        });
        let sources = sources.iter().map(|s| SourceCounts { name: s.name(), ..Default::default() }).collect();
        let (known, report) = (HashSet::new(), BuildReport::default());
        Self { out, corpus, vocabulary, splitter, known, sides, sources, report }
    }

    fn read_all<E, N>(&mut self, sources: Vec<Source>, encoding: &Encoding<'_, E, N>) -> Result<(), DataError>
    where
        E: FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError> + Send,
        N: Fn() -> E + Sync,
    {
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
                let encoded = encoding.encode_all(&batch);
                encoded.iter().try_for_each(|document| self.append(document))?;
                batch.clear();
                bytes = 0;
            }
            if is_last {
                break;
            }
        }
        self.report.bytes = documents.counts().bytes;
        self.report.repaired_lines = documents.counts().repaired_lines;
        self.end_reading(sentences)
    }

    /// Appends all parts in order: those of this rank, the first, and those received from other ranks.
    fn read_parts<E, N>(
        &mut self,
        sources: &[Source],
        parts: &[Part],
        encoding: &Encoding<'_, E, N>,
        communicator: &Communicator,
    ) -> Result<(), DataError>
    where
        E: FnMut(&str, &mut Vec<u32>) -> Result<(), TokenizerError> + Send,
        N: Fn() -> E + Sync,
    {
        let (mut documents, mut sentences) = (0, 0);
        // Lines of each source before the next part.
        let mut lines = vec![0; sources.len()];
        for (i, part) in parts.iter().enumerate() {
            let encoded = match i % communicator.size() {
                0 => encoding.encode_part(sources, part)?,
                rank => {
                    let bytes = communicator.receive(PART, rank)?;
                    let failed = |problem| DataError::Rank { rank, problem };
                    if bytes.is_empty() {
                        let problem = communicator.receive(PART, rank)?;
                        return Err(failed(String::from_utf8_lossy(&problem).into_owned()));
                    }
                    EncodedPart::from_bytes(&bytes).ok_or_else(|| failed(format!("{PART} arrived damaged")))?
                }
            };
            for mut document in encoded.documents {
                document.line += lines[part.source];
                self.append(&document)?;
                documents += 1;
            }
            lines[part.source] += encoded.lines;
            sentences += encoded.sentences;
            self.report.bytes += encoded.bytes;
            self.report.repaired_lines += encoded.repaired_lines;
        }
        if documents == 0 { Err(empty(sources)) } else { self.end_reading(sentences) }
    }

    fn end_reading(&mut self, sentences: u64) -> Result<(), DataError> {
        self.report.duplicate_documents = self.splitter.duplicates();
        if self.report.documents == 0 {
            return Err(DataError::NoTokens { sentences });
        }
        Ok(())
    }

    /// `FILE:LINE` of a document.
    fn place(&self, document: &Encoded) -> String {
        format!("{}:{}", self.sources[document.source].name, document.line)
    }

    fn append(&mut self, encoded: &Encoded) -> Result<(), DataError> {
        if !encoded.problem.is_empty() {
            return Err(DataError::input(self.place(encoded), &encoded.problem));
        }
        self.report.empty_sentences += encoded.empty_sentences;
        if encoded.ids.is_empty() {
            self.report.empty_documents += 1;
            return Ok(());
        }
        if self.corpus.duplicates == Duplicates::Drop && !self.known.insert((encoded.hash, encoded.exact_hash)) {
            self.report.dropped_duplicates += 1;
            return Ok(());
        }
        let place = self.place(encoded);
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
        let counts = &mut self.sources[encoded.source];
        counts.documents += 1;
        counts.sentences += encoded.ends.len() as u64;
        counts.tokens += encoded.ids.len() as u64;
        if side == Side::HeldOut {
            counts.held_out_documents += 1;
            counts.held_out_tokens += encoded.ids.len() as u64;
        }
        let builder = &mut self.sides[side as usize];
        builder.writer.push(encoded.source as u32, encoded.hash, &encoded.ids, &encoded.ends)?;
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
