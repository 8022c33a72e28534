//! Ragged batches: concatenated sequences, without padding.
//!
//! ```text
//! ids        [CLS] a a a [SEP] b b [SEP] [CLS] a [SEP] b [SEP]     [T]
//! segments     0   0 0 0   0   1 1   1     0   0   0   1   1       [T]
//! positions    0   1 2 3   4   5 6   7     0   1   2   3   4       [T]
//! cu_seqlens   0                           8                  13   [B + 1]
//! ```

use std::sync::Arc;

use engine::philox::Stream;
use serde::{Deserialize, Serialize};

use super::instances::Instance;
use super::masking::Masker;
use super::settings::{DataSettings, Objective};
use super::shards::Shards;
use super::vocabulary::Vocabulary;
use crate::model::Tokens;

const MASK: u32 = u32::from_be_bytes(*b"dMSK");
const TRIM: u32 = u32::from_be_bytes(*b"dTRM");

/// Position in the data: the next instance is `index` of epoch `epoch`. Resuming a run needs it, the seed, the settings
/// and the shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Epoch, from 0.
    pub epoch: u32,
    /// Instance in the order of the epoch, from 0.
    pub index: u32,
}

/// A batch of B sequences with T tokens, of which M are predicted. Its buffers are reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// `[T]` Token ids after masking.
    pub ids: Vec<u32>,
    /// `[T]` 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`.
    pub segments: Vec<u32>,
    /// `[T]` Position in the sequence, from 0.
    pub positions: Vec<u32>,
    /// `[B + 1]` Start of each sequence, and T.
    pub cu_seqlens: Vec<u32>,
    /// `[M]` Predicted tokens as ascending indices into the T tokens.
    pub masked_positions: Vec<u32>,
    /// `[M]` The original pieces at these positions.
    pub masked_labels: Vec<u32>,
    /// `[B]` Sentence label: 0 in order, 1 swapped (SOP); 0 continuation, 1 random (NSP). Empty for the objective `none`.
    pub sop_labels: Vec<u32>,
    /// Cursor of this batch.
    pub start: Cursor,
    /// Cursor of the next batch.
    pub next: Cursor,
    /// Lane of the step.
    pub lane: usize,
    /// True if this batch completes an optimizer step (`sequences_per_step`, or the end of an epoch).
    pub ends_step: bool,
}

/// Upper bounds on the batches for given settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchCapacity {
    /// Maximum number of tokens, T.
    pub tokens: usize,
    /// Maximum number of sequences, B.
    pub sequences: usize,
    /// Maximum number of predicted tokens, M.
    pub masked: usize,
}

impl BatchCapacity {
    /// Bounds for `settings`.
    pub(crate) fn of(settings: &DataSettings) -> Self {
        let (tokens, masking) = (settings.batch.max_tokens, &settings.masking);
        // A sequence has at least one token that is not special.
        let shortest = settings.instances.special_tokens() + 1;
        let sequences = settings.batch.max_sequences.min(tokens / shortest);
        // For each sequence, rounding adds at most one half and the minimum of one adds at most one.
        let share = (tokens as f64 * masking.probability).ceil() as usize + sequences;
        let masked = share.min(sequences.saturating_mul(masking.max_predictions)).min(tokens);
        Self { tokens, sequences, masked }
    }
}

impl Batch {
    /// Empty batch with capacity for the budget of `settings`.
    pub fn new(settings: &DataSettings) -> Self {
        let capacity = BatchCapacity::of(settings);
        let tokens = || Vec::with_capacity(capacity.tokens);
        Self {
            ids: tokens(),
            segments: tokens(),
            positions: tokens(),
            cu_seqlens: Vec::with_capacity(capacity.sequences + 1),
            masked_positions: Vec::with_capacity(capacity.masked),
            masked_labels: Vec::with_capacity(capacity.masked),
            sop_labels: Vec::with_capacity(capacity.sequences),
            ..Self::default()
        }
    }

    /// Number of sequences, B.
    pub(crate) fn sequences(&self) -> usize {
        self.cu_seqlens.len().saturating_sub(1)
    }

    /// Number of tokens, T.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Length of the longest sequence, S.
    pub fn longest(&self) -> usize {
        self.cu_seqlens.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }

    /// Empties the batch and keeps its buffers.
    pub(super) fn clear(&mut self) {
        for vec in [
            &mut self.ids,
            &mut self.segments,
            &mut self.positions,
            &mut self.cu_seqlens,
            &mut self.masked_positions,
            &mut self.masked_labels,
            &mut self.sop_labels,
        ] {
            vec.clear();
        }
        self.cu_seqlens.push(0);
    }
}

impl<'a> From<&'a Batch> for Tokens<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self { ids: &batch.ids, segments: &batch.segments, positions: &batch.positions, cu_seqlens: &batch.cu_seqlens }
    }
}

/// Sentences of one document, without the first `skip` and the last `drop` tokens.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first: u32,
    count: usize,
    skip: usize,
    drop: usize,
    /// Remaining tokens.
    len: usize,
}

impl Segment {
    fn whole(shards: &Shards, first: u32, count: u16) -> Self {
        let count = usize::from(count);
        let len = if count == 0 { 0 } else { shards.length(first, count) };
        Self { first, count, skip: 0, drop: 0, len }
    }

    fn take_one(&mut self, from_front: bool) {
        self.len -= 1;
        *(if from_front { &mut self.skip } else { &mut self.drop }) += 1;
    }
}

/// Appends instances to a batch as masked sequences.
#[derive(Clone, Debug)]
pub(super) struct Assembler {
    shards: Arc<Shards>,
    vocabulary: Arc<Vocabulary>,
    settings: DataSettings,
    seed: u64,
    masker: Masker,
}

impl Assembler {
    pub(super) fn new(shards: Arc<Shards>, vocabulary: Arc<Vocabulary>, settings: &DataSettings, seed: u64) -> Self {
        let masker = Masker::new(&settings.masking, settings.instances.max_sequence_length);
        Self { shards, vocabulary, settings: settings.clone(), seed, masker }
    }

    pub(super) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub(super) fn shards(&self) -> &Arc<Shards> {
        &self.shards
    }

    pub(super) fn settings(&self) -> &DataSettings {
        &self.settings
    }

    pub(super) fn limit_to_one_sequence(&mut self) {
        self.settings.batch.max_sequences = 1;
    }

    pub(super) fn masker(&self) -> &Masker {
        &self.masker
    }

    /// Number of tokens of `instance` in a batch, including special pieces.
    pub(super) fn length(&self, instance: &Instance) -> usize {
        let [a, b] = self.segments(instance);
        let settings = &self.settings.instances;
        (a.len + b.len).min(settings.text_tokens()) + settings.special_tokens()
    }

    fn segments(&self, instance: &Instance) -> [Segment; 2] {
        [
            Segment::whole(&self.shards, instance.a, instance.a_count),
            Segment::whole(&self.shards, instance.b, instance.b_count),
        ]
    }

    /// Appends `instance`, with cursor `at`, to `batch`.
    pub(super) fn append(&mut self, instance: &Instance, at: Cursor, batch: &mut Batch) {
        let specials = self.vocabulary.specials();
        let [mut a, mut b] = self.segments(instance);
        let mut stream = Stream::new(self.seed, [TRIM, at.epoch, at.index]);
        if instance.is_split {
            [a, b] = self.halves(a, instance.label == 1, &mut stream);
        }
        trim(&mut a, &mut b, self.settings.instances.text_tokens(), &mut stream);

        let start = batch.ids.len();
        batch.ids.push(specials.cls);
        self.shards.append(a.first, a.count, a.skip, a.drop, &mut batch.ids);
        batch.ids.push(specials.sep);
        let middle = batch.ids.len();
        if b.len > 0 {
            self.shards.append(b.first, b.count, b.skip, b.drop, &mut batch.ids);
            batch.ids.push(specials.sep);
        }
        let end = batch.ids.len();
        batch.segments.resize(middle, 0);
        batch.segments.resize(end, 1);
        batch.positions.extend(0..(end - start) as u32);
        batch.cu_seqlens.push(end as u32);
        if self.settings.instances.objective != Objective::None {
            batch.sop_labels.push(u32::from(instance.label));
        }
        self.masker.mask(
            &self.vocabulary,
            &mut Stream::new(self.seed, [MASK, at.epoch, at.index]),
            &mut batch.ids[start..],
            start as u32,
            &mut batch.masked_positions,
            &mut batch.masked_labels,
        );
    }

    /// Cuts `whole`, one sentence of at least two tokens, at a random word start (at any token if no word starts inside).
    fn halves(&self, whole: Segment, is_swapped: bool, stream: &mut Stream) -> [Segment; 2] {
        let starts = || (1..whole.len).filter(|&at| self.vocabulary.is_word_start(self.shards.token(whole.first, at)));
        let cut = match starts().count() {
            0 => 1 + stream.below(whole.len as u32 - 1) as usize,
            n => starts().nth(stream.below(n as u32) as usize).expect("fewer than counted"),
        };
        let head = Segment { drop: whole.len - cut, len: cut, ..whole };
        let tail = Segment { skip: cut, len: whole.len - cut, ..whole };
        if is_swapped { [tail, head] } else { [head, tail] }
    }
}

/// Shortens the pair to `longest` tokens: the longer segment (B if equal) loses its first or its last token, with equal
/// probability, until the pair fits.
fn trim(a: &mut Segment, b: &mut Segment, longest: usize, stream: &mut Stream) {
    while a.len + b.len > longest {
        let from_front = stream.next_u32() & 1 == 1;
        let longer = if a.len > b.len { &mut *a } else { &mut *b };
        longer.take_one(from_front);
    }
}
