//! Word counts of text files, computed by all ranks together.
//!
//! A rank counts the lines that start in its parts of a text. Tables of counts are added in pairs of ranks, so the first
//! rank has the table of the whole text after ⌈log₂ R⌉ additions. Counts are integers, and the order of a hash table does
//! not affect the vocabulary. Memory of a rank: its table, one part of the text and one message of another rank.

use std::io::{BufRead, Read};
use std::path::Path;

use engine::Communicator;
use serde_json::json;

use super::corpus::{invalid_utf8, too_long};
use super::error::DataError;
use super::json_lines;
use super::settings::CorpusSettings;
use super::sources::{Part, Source};
use crate::ranks::expect_alike;
use crate::tokenizer::{TrainerConfig, WordCounts};

/// Parts of a rank in one round.
const PARTS: usize = 16;
/// Bytes of a message.
const MESSAGE: usize = 1 << 20;
/// Name of the messages between ranks.
const WORDS: &str = "counts of words";

/// Counts the words of `sources`, one sentence a line; complete on the first rank. All ranks of `communicator` call it with equal
/// arguments and the same sources, which must be files or in memory if there are several ranks. Only `field` and `lossy` of
/// `corpus` are used: bytes that are not UTF-8 are an error, or replaced if `lossy`.
///
/// # Errors
/// A setting of `config` is out of range; reading or communication fails; [`DataError::Rank`] on all ranks if one cannot read
/// its part.
pub fn count_words(
    sources: &[Source],
    corpus: &CorpusSettings,
    config: &TrainerConfig,
    communicator: &Communicator,
) -> Result<WordCounts, DataError> {
    config.check()?;
    let mut words = WordCounts::default();
    let (rank, size) = (communicator.rank(), communicator.size());
    if size == 1 {
        for (source, _) in sources.iter().enumerate() {
            count_part(sources, &Part { source, bytes: 0..u64::MAX }, corpus, config, &mut words)?;
        }
        return Ok(words);
    }
    let (parts, sizes) = Part::all(sources)?;
    let names: Vec<String> = sources.iter().map(Source::name).collect();
    let start = json!({
        "text": { "files": names, "bytes": sizes },
        "lossy": corpus.lossy,
        "field": corpus.field,
        "trainer": config,
    });
    expect_alike(communicator, start)?;
    // Ranks synchronize after each round, so an error ends all of them at once, and a rank that stopped is found.
    for round in parts.chunks(PARTS * size) {
        let mut mine = round.iter().skip(rank).step_by(size);
        let counted = mine.try_for_each(|part| count_part(sources, part, corpus, config, &mut words));
        let problem = counted.err().map_or(String::new(), |error| error.to_string());
        let problems = communicator.gather(WORDS, problem.as_bytes())?;
        if let Some(rank) = problems.iter().position(|problem| !problem.is_empty()) {
            let problem = String::from_utf8_lossy(&problems[rank]).into_owned();
            return Err(DataError::Rank { rank, problem });
        }
    }
    let mut distance = 1;
    while distance < size {
        if rank % (2 * distance) == distance {
            let to = rank - distance;
            words.for_each_message(MESSAGE, |message| communicator.send(WORDS, to, message))?;
            communicator.send(WORDS, to, &[])?;
            return Ok(WordCounts::default());
        }
        let from = rank + distance;
        if from < size {
            loop {
                let message = communicator.receive(WORDS, from)?;
                if message.is_empty() {
                    break;
                }
                words.add_message(&message)?;
            }
        }
        distance *= 2;
    }
    Ok(words)
}

/// Adds the words of the lines that start in `part`.
fn count_part(
    sources: &[Source],
    part: &Part,
    corpus: &CorpusSettings,
    config: &TrainerConfig,
    words: &mut WordCounts,
) -> Result<(), DataError> {
    /// Text in memory.
    const BATCH_BYTES: usize = 4 << 20;
    let source = &sources[part.source];
    let limit = source.largest_document()?;
    let (mut reader, first) = source.open(&part.bytes)?;
    let (mut position, mut line) = (first, 0);
    let (mut lines, mut bytes) = (Vec::new(), 0);
    let place = |line: u64| Ok::<_, DataError>(format!("{}:{}", source.name(), source.lines_before(first)? + line));
    loop {
        let mut raw = Vec::new();
        if position < part.bytes.end {
            let read = reader.by_ref().take(limit.saturating_add(1)).read_until(b'\n', &mut raw);
            let read = read.and_then(|read| if read as u64 > limit { Err(too_long("line", limit)) } else { Ok(()) });
            read.map_err(DataError::io(Path::new(&source.name()), "read"))?;
        }
        if position == 0 {
            source.expect_text(&raw)?;
        }
        let is_end = raw.is_empty();
        position += raw.len() as u64;
        bytes += raw.len();
        line += 1;
        if !is_end {
            let mut text = match String::from_utf8(raw) {
                Ok(text) => text,
                Err(error) if corpus.lossy => String::from_utf8_lossy(error.as_bytes()).into_owned(),
                Err(error) => {
                    return Err(invalid_utf8(&place(line)?, error.as_bytes(), error.utf8_error()));
                }
            };
            text.truncate(text.trim_end_matches(['\n', '\r']).len());
            match &corpus.field {
                None => lines.push(text),
                Some(_) if text.trim().is_empty() => {}
                Some(field) => match json_lines::field(&text, field) {
                    Ok(text) => lines.extend(text.lines().map(str::to_owned)),
                    Err(problem) => return Err(DataError::input(place(line)?, problem)),
                },
            }
        }
        if is_end || bytes >= BATCH_BYTES {
            words.add(&lines, config);
            lines.clear();
            bytes = 0;
        }
        if is_end {
            return Ok(());
        }
    }
}
