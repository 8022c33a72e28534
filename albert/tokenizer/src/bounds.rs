//! Bounds on third-party pipelines: growth of a text in each step.
//!
//! ```text
//! normalizer       after every step at most 16 × the text + 4 KiB                      checked as it runs (`Limited`)
//! pre_tokenizer    at most 3 ByteLevel steps; each can double the text                 checked at load
//! post_processor   at most 4 copies of a text, at most 1,024 special ids               checked at load
//! decoder          at most 64 × the pieces                                             checked at load
//! model, tokens    pieces of at most 1 KiB, tries within `bounded_input`                 checked at load
//! ```
//!
//! Without them a file of a few kilobytes exhausts memory: 40 replacements of one letter by two grow a text by 2^40. Real
//! files are far below: NFKD, the worst normal form, makes 11 bytes of one.

use std::cell::RefCell;

use base64::prelude::*;
use bounded_input as limits;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::normalizer::Range;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::pattern::Pattern;
use tokenizers::utils::SysRegex;
use tokenizers::{NormalizedString, Normalizer};

use super::spiece::check_charsmap;
use super::vocabulary::LONGEST_PIECE;

/// Bytes after a normalizer step for each byte of the text.
const GROWTH: usize = 16;
/// Additional bytes.
const ADDITIONAL: usize = 4096;
/// Bytes per node of the library's trie: a hash map and its first table.
const TRIE_NODE: usize = 320;

/// A normalizer that fails if a step exceeds the bound on its output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Limited(NormalizerWrapper);

impl Limited {
    /// Lower case, followed by the steps of `own`.
    pub(super) fn lowercase_before(own: Option<Self>) -> Self {
        let steps = [Some(NormalizerWrapper::Lowercase(Lowercase)), own.map(|own| own.0)];
        Self(NormalizerWrapper::Sequence(Sequence::new(steps.into_iter().flatten().collect())))
    }
}

thread_local! {
    /// Error of the last normalization on this thread; the library ignores it and continues with the partial text.
    static FAILURE: RefCell<Option<String>> = const { RefCell::new(None) };
}

impl Normalizer for Limited {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let limit = text.get().len().saturating_mul(GROWTH).saturating_add(ADDITIONAL);
        run(&self.0, text, limit).inspect_err(|error| FAILURE.set(Some(error.to_string())))
    }
}

/// Runs `encode`, which normalizes on this thread, and returns an error of its normalizer.
pub(super) fn watched<R>(encode: impl FnOnce() -> tokenizers::Result<R>) -> tokenizers::Result<R> {
    FAILURE.take();
    let result = encode();
    match FAILURE.take() {
        Some(failure) => Err(failure.into()),
        None => result,
    }
}

fn run(step: &NormalizerWrapper, text: &mut NormalizedString, limit: usize) -> tokenizers::Result<()> {
    if let NormalizerWrapper::Sequence(steps) = step {
        return steps.as_ref().iter().try_for_each(|step| run(step, text, limit));
    }
    // Before the step if it can multiply the text, otherwise after it: all other steps make at most 64 bytes of one.
    let length = text.get().len();
    let grown = match step {
        NormalizerWrapper::Prepend(step) => length.saturating_add(step.prepend.len()),
        NormalizerWrapper::Replace(step) => {
            let most = length.saturating_add((length + 1).saturating_mul(step.content.len()));
            if most > limit { length.saturating_add(matches(step, text.get())? * step.content.len()) } else { most }
        }
        _ => length,
    };
    if grown <= limit {
        step.normalize(text)?;
    }
    let grown = grown.max(text.get().len());
    if grown > limit {
        return Err(format!("its normalizer makes {grown} bytes of this text; at most {limit} are allowed").into());
    }
    // Later steps replace the range of the text that corresponds to the whole original, with all characters of the text: they
    // panic if that range is shorter, as it is after an insertion before the first character.
    let whole = text.convert_offsets(Range::Original(..));
    if !text.get().is_empty() && whole != Some(0..text.get().len()) {
        return Err("its normalizer inserts text before the first character, which only a step Prepend may".into());
    }
    Ok(())
}

/// Number of matches in `text` for the pattern of a replacement.
fn matches(step: &tokenizers::normalizers::Replace, text: &str) -> tokenizers::Result<usize> {
    let pattern = &serde_json::to_value(step)?["pattern"];
    if let Some(plain) = pattern["String"].as_str().filter(|plain| !plain.is_empty()) {
        return Ok(text.matches(plain).count());
    }
    let regex = SysRegex::new(pattern["Regex"].as_str().unwrap_or_default())?;
    Ok((&regex).find_matches(text)?.iter().filter(|(_, is_match)| *is_match).count())
}

/// Checks a `tokenizer.json` of `bytes` bytes before the library reads it.
///
/// # Errors
/// The file exceeds a bound; the message names the part.
pub(super) fn check_pipeline(root: &Value, bytes: usize) -> Result<(), String> {
    check_normalizer(&root["normalizer"])?;
    let is_byte_level = |step: &&Value| step["type"] == "ByteLevel" || step.get("trim_offsets").is_some();
    let byte_levels = steps(&root["pre_tokenizer"], "pretokenizers").filter(is_byte_level).count();
    if byte_levels > 3 {
        return Err(format!(
            "pre_tokenizer has {byte_levels} ByteLevel steps, each of which can double a text; at most 3"
        ));
    }
    for step in steps(&root["pre_tokenizer"], "pretokenizers") {
        let is_fixed_length = step["type"] == "FixedLength" || step.get("length").is_some();
        if is_fixed_length && step["length"].as_u64().unwrap_or(0) == 0 {
            return Err(format!("pre_tokenizer FixedLength has length {}; expected 1 or more", step["length"]));
        }
    }
    check_post_processor(&root["post_processor"])?;
    check_decoder(&root["decoder"])?;
    check_added(&root["added_tokens"], bytes)?;
    check_model(&root["model"], bytes)
}

/// Steps of a part of the pipeline; sequences list theirs under `key`.
///
/// The library resolves an unknown `type`, and any post-processor, by its fields; so do the checks.
fn steps<'v>(part: &'v Value, key: &'static str) -> Box<dyn Iterator<Item = &'v Value> + 'v> {
    match part[key].as_array() {
        // `check_json` limits the nesting.
        Some(list) => Box::new(list.iter().flat_map(move |step| steps(step, key))),
        None => Box::new(std::iter::once(part)),
    }
}

fn check_normalizer(part: &Value) -> Result<(), String> {
    for step in steps(part, "normalizers") {
        if let Some(charsmap) = step["precompiled_charsmap"].as_str() {
            let charsmap = BASE64_STANDARD
                .decode(charsmap)
                .map_err(|error| format!("normalizer Precompiled: its rules are not base64 ({error})"))?;
            check_charsmap(&charsmap).map_err(|problem| format!("normalizer Precompiled: {problem}"))?;
        }
    }
    Ok(())
}

fn check_post_processor(part: &Value) -> Result<(), String> {
    let (mut copies, mut ids) = (1usize, 0usize);
    for step in steps(part, "processors").filter(|step| step.get("single").or(step.get("pair")).is_some()) {
        let mut most = 1;
        for key in ["single", "pair"] {
            let template = step[key].as_array().map_or(&[][..], Vec::as_slice);
            let count = |id: &str| template.iter().filter(|piece| piece["Sequence"]["id"] == *id).count();
            most = most.max(count("A")).max(count("B"));
            // The library indexes both without checks.
            if key == "single" && count("B") > 0 {
                return Err("post_processor: the template `single` contains sequence B; expected A alone".to_owned());
            }
            for id in template.iter().filter_map(|piece| piece["SpecialToken"]["id"].as_str()) {
                let token = step["special_tokens"].get(id).ok_or_else(|| {
                    format!("post_processor: the template `{key}` contains {id:?}, which special_tokens lacks")
                })?;
                ids += token["ids"].as_array().map_or(1, Vec::len);
            }
        }
        copies = copies.saturating_mul(most);
    }
    if copies > 4 {
        return Err(format!("post_processor copies a text {copies} times; at most 4"));
    }
    if ids > 1024 {
        return Err(format!("post_processor adds {ids} special ids; at most 1024"));
    }
    Ok(())
}

fn check_decoder(part: &Value) -> Result<(), String> {
    let mut growth = 1usize;
    for step in steps(part, "decoders") {
        let factor = match (step.get("pattern"), step["content"].as_str()) {
            (Some(pattern), Some(content)) => {
                let pattern = pattern["String"].as_str().map_or(0, str::len);
                content.len().div_ceil(pattern.max(1)) + usize::from(pattern == 0)
            }
            _ if step["suffix"] == "" => 2,
            _ => 1,
        };
        growth = growth.saturating_mul(factor.max(1));
    }
    if growth > 64 {
        return Err(format!("decoder can make {growth} bytes of one; at most 64"));
    }
    Ok(())
}

fn check_model(model: &Value, bytes: usize) -> Result<(), String> {
    if let Some(dropout) = model["dropout"].as_f64().filter(|&dropout| dropout != 0.0) {
        return Err(format!("model.dropout is {dropout}, which makes ids random; expected 0 or null"));
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix", "unk_token"] {
        let length = model[key].as_str().map_or(0, str::len);
        if length > LONGEST_PIECE {
            return Err(format!("model.{key} has {length} bytes; at most {LONGEST_PIECE}"));
        }
    }
    if let Some(most) = model["max_input_chars_per_word"].as_u64().filter(|&most| most > 10_000) {
        return Err(format!("model.max_input_chars_per_word is {most}, and the search is quadratic; at most 10000"));
    }
    let mut pieces: Vec<&str> = match &model["vocab"] {
        Value::Object(entries) => entries.keys().map(String::as_str).collect(),
        Value::Array(entries) => entries.iter().filter_map(|entry| entry[0].as_str()).collect(),
        _ => return Ok(()),
    };
    check_lengths("piece", &pieces)?;
    // All other models use a hash table.
    if model["vocab"].is_array() { check_trie("model.vocab", &mut pieces, bytes) } else { Ok(()) }
}

fn check_added(tokens: &Value, bytes: usize) -> Result<(), String> {
    let tokens = tokens.as_array().map_or(&[][..], Vec::as_slice);
    let mut texts: Vec<&str> = tokens.iter().filter_map(|token| token["content"].as_str()).collect();
    check_lengths("added token", &texts)?;
    check_trie("added_tokens", &mut texts, bytes)
}

fn check_lengths(what: &str, texts: &[&str]) -> Result<(), String> {
    match texts.iter().find(|text| text.len() > LONGEST_PIECE) {
        Some(long) => {
            let shown: String = long.chars().take(20).collect();
            Err(format!("the {what} {shown:?}... has {} bytes; at most {LONGEST_PIECE}", long.len()))
        }
        None => Ok(()),
    }
}

/// Checks that the library's trie of `texts` is in proportion to a file of `bytes` bytes.
fn check_trie(part: &str, texts: &mut [&str], bytes: usize) -> Result<(), String> {
    texts.sort_unstable();
    let shared = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let first = texts.first().map_or(0, |text| text.len());
    let nodes = first + texts.windows(2).map(|pair| pair[1].len() - shared(pair[0], pair[1])).sum::<usize>();
    match nodes.saturating_mul(TRIE_NODE) > limits::memory_for(bytes) {
        true => Err(format!("{part} needs a trie of {nodes} nodes; that is too many for {bytes} bytes of file")),
        false => Ok(()),
    }
}
