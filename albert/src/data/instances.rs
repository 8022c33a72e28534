//! Instances of an epoch: sentences of A and B, their order and their label.
//!
//! Sentences of a document are collected into a chunk up to the target length (the longest that fits, or with probability
//! 0.1 a random shorter one) or the end of the document. The chunk is cut after a random sentence into a head and a tail:
//!
//! ```text
//! SOP   label 0: A = head, B = tail        label 1: A = tail, B = head
//! NSP   label 0: A = head, B = tail        label 1: A = head, B = sentences of another document; the tail is put back
//! none  A = the whole chunk
//! ```
//! An instance is 16 bytes of sentence numbers; tokens are read, and long pairs trimmed, when it enters a batch. An epoch is a pure
//! function of (seed, epoch): each document has its own random stream, and so has the shuffle. Cost: about 30 ns a sentence, so 60 MB
//! of text (700,000 sentences) need 20 ms.
//!
//! Source: released `create_instances_from_document`; differences in the defaults are listed in [`InstanceSettings`].

use std::ops::Range;

use engine::philox::Stream;

use super::error::DataError;
use super::settings::{InstanceSettings, LoneSentence, Objective};
use super::shards::Shards;

const PLAN: u32 = u32::from_be_bytes(*b"dPLN");
const SHUFFLE: u32 = u32::from_be_bytes(*b"dSHF");
/// Attempts of the released code to draw a different document before it accepts the same one.
const RELEASED_TRIES: usize = 10;

/// One training instance, before trimming and masking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// First sentence of A.
    pub a: u32,
    /// First sentence of B; unused if `b_count` is 0.
    pub b: u32,
    /// Sentences in A.
    pub a_count: u16,
    /// Sentences in B. 0: there is no B, or both are halves of one sentence (`is_split`).
    pub b_count: u16,
    /// 0 in order (or the true continuation), 1 swapped (or another document's text).
    pub label: u8,
    /// A and B are the halves of the one sentence `a`.
    pub is_split: bool,
}

/// Statistics of planning an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlanCounts {
    pub instances: u64,
    /// Instances with label 1.
    pub label_one: u64,
    /// Lone sentences that were dropped (`skip`, or too short to `split`).
    pub skipped_sentences: u64,
    /// Tokens of the dropped sentences.
    pub skipped_tokens: u64,
    /// Lone sentences that were split in two.
    pub split_sentences: u64,
    /// Lone sentences that were paired with another document.
    pub random_documents: u64,
}

/// Fills `table` with the instances of `epoch` in their final, shuffled order, from the documents that `takes` accepts.
pub(crate) fn plan_epoch(
    shards: &Shards,
    settings: &InstanceSettings,
    seed: u64,
    epoch: u32,
    mut takes: impl FnMut(u32) -> bool,
    table: &mut Vec<Instance>,
) -> PlanCounts {
    table.clear();
    let mut planner = Planner { shards, settings, table, counts: PlanCounts::default() };
    for (document, (first, bounds)) in (0u32..).zip(shards.walk()) {
        if !takes(document) {
            continue;
        }
        let mut stream = Stream::new(seed, [PLAN, epoch, document]);
        planner.plan_document(document, first, bounds, &mut stream);
    }
    let mut counts = planner.counts;
    Stream::new(seed, [SHUFFLE, epoch, 0]).shuffle(table);
    counts.instances = table.len() as u64;
    counts.label_one = table.iter().filter(|i| i.label == 1).count() as u64;
    counts
}

/// Checks that `shards` has enough documents for the negatives of `settings`.
///
/// # Errors
/// [`DataError::NoInstances`], which names the setting to change.
pub(super) fn check_documents(shards: &Shards, settings: &InstanceSettings) -> Result<(), DataError> {
    let needs_others = settings.objective == Objective::Nsp
        || settings.objective == Objective::Sop && settings.lone_sentence == LoneSentence::RandomDocument;
    if needs_others && shards.documents() == 1 {
        let reason = "it has one document, but negatives need another; set objective = \"sop\" and \
                      lone_sentence = \"skip\", or add documents";
        return Err(DataError::NoInstances { split: shards.side().name(), reason: reason.into() });
    }
    Ok(())
}

struct Planner<'a> {
    shards: &'a Shards,
    settings: &'a InstanceSettings,
    table: &'a mut Vec<Instance>,
    counts: PlanCounts,
}

impl Planner<'_> {
    /// Plans a document: `first` is the number of its first sentence, `bounds` are the token bounds of its sentences.
    fn plan_document(&mut self, document: u32, first: u32, bounds: &[u32], stream: &mut Stream) {
        let settings = self.settings;
        let is_pair = settings.objective != Objective::None;
        let least = if is_pair && settings.lone_sentence == LoneSentence::Skip { 2 } else { 1 };
        let sentences = bounds.len() - 1;
        let once = settings.target_length_once_per_document.then(|| self.draw_target(stream));
        let mut start = 0;
        while start < sentences {
            let target = once.unwrap_or_else(|| self.draw_target(stream));
            let length = |range: Range<usize>| (bounds[range.end] - bounds[range.start]) as usize;
            let mut end = start + 1;
            while end < sentences && (length(start..end) < target || end - start < least) {
                end += 1;
            }
            let chunk = Chunk { document, base: first, start, end, target, tokens: length(start..end) };
            if !is_pair {
                self.table.push(instance(first + start as u32, end - start, 0, 0, 0));
            } else if end - start == 1 {
                self.plan_lone(&chunk, stream);
            } else {
                end = self.plan_pair(&chunk, bounds, stream);
            }
            start = end;
        }
    }

    /// Draws the target length of a chunk, in tokens.
    fn draw_target(&self, stream: &mut Stream) -> usize {
        let longest = self.settings.text_tokens();
        if stream.next_f64() < self.settings.short_sequence_probability {
            2 + stream.below(longest as u32 - 1) as usize
        } else {
            longest
        }
    }

    /// Adds the instance of a chunk of at least two sentences; returns the sentence at which the next chunk begins.
    fn plan_pair(&mut self, chunk: &Chunk, bounds: &[u32], stream: &mut Stream) -> usize {
        let count = chunk.end - chunk.start;
        let head = 1 + stream.below(count as u32 - 1) as usize;
        let (a, b) = (chunk.base + chunk.start as u32, chunk.base + (chunk.start + head) as u32);
        let is_one = stream.below(2) == 1;
        let pair = match (self.settings.objective, is_one) {
            (Objective::Nsp, true) => {
                let head_tokens = (bounds[chunk.start + head] - bounds[chunk.start]) as usize;
                let (b, b_count) = self.draw_other(chunk, head_tokens, stream);
                self.table.push(instance(a, head, b, b_count, 1));
                return chunk.start + head;
            }
            (_, true) => instance(b, count - head, a, head, 1),
            (_, false) => instance(a, head, b, count - head, 0),
        };
        self.table.push(pair);
        chunk.end
    }

    /// Adds or drops a chunk of one sentence, as `lone_sentence` says.
    fn plan_lone(&mut self, chunk: &Chunk, stream: &mut Stream) {
        let a = chunk.base + chunk.start as u32;
        let is_nsp = self.settings.objective == Objective::Nsp;
        match self.settings.lone_sentence {
            LoneSentence::Split if chunk.tokens >= 2 && !(is_nsp && stream.below(2) == 1) => {
                self.counts.split_sentences += 1;
                let label = if is_nsp { 0 } else { stream.below(2) as u8 };
                self.table.push(Instance { is_split: true, ..instance(a, 1, 0, 0, label) });
            }
            LoneSentence::RandomDocument => self.plan_random(a, chunk, stream),
            LoneSentence::Split if chunk.tokens >= 2 => self.plan_random(a, chunk, stream),
            LoneSentence::Skip | LoneSentence::Split => {
                self.counts.skipped_sentences += 1;
                self.counts.skipped_tokens += chunk.tokens as u64;
            }
        }
    }

    fn plan_random(&mut self, a: u32, chunk: &Chunk, stream: &mut Stream) {
        self.counts.random_documents += 1;
        let (b, b_count) = self.draw_other(chunk, chunk.tokens, stream);
        self.table.push(instance(a, 1, b, b_count, 1));
    }

    /// Draws a run of sentences from another document, starting at a random one, that fills the part of the target
    /// which `used` tokens leave: its first sentence and their number.
    fn draw_other(&self, chunk: &Chunk, used: usize, stream: &mut Stream) -> (u32, usize) {
        let documents = self.shards.documents();
        let mut other = chunk.document;
        for _ in 0..RELEASED_TRIES {
            other = stream.below(documents);
            if other != chunk.document {
                break;
            }
        }
        if other == chunk.document && documents > 1 {
            other = (other + 1) % documents;
        }
        let range = self.shards.document(other);
        let first = range.start + stream.below(range.end - range.start);
        let wanted = chunk.target.saturating_sub(used);
        let mut count = 1;
        while first + (count as u32) < range.end && self.shards.length(first, count) < wanted {
            count += 1;
        }
        (first, count)
    }
}

/// Sentences `start..end` of a document whose first sentence is number `base`.
struct Chunk {
    document: u32,
    base: u32,
    start: usize,
    end: usize,
    target: usize,
    tokens: usize,
}

fn instance(a: u32, a_count: usize, b: u32, b_count: usize, label: u8) -> Instance {
    let count = |n: usize| u16::try_from(n).expect("a sentence has a token, and a target at most 32,768");
    Instance { a, b, a_count: count(a_count), b_count: count(b_count), label, is_split: false }
}
