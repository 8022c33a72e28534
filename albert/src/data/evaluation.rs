//! Held-out batches that are the same in every evaluation, and the unigram baseline on them.
//!
//! The instances are those of one epoch over the held-out documents under a fixed seed, in a fixed random order, so that any
//! prefix is a fair sample. Under SOP no sentence is in two pairs, and pairs consist of whole sentences (lone sentences are
//! skipped for any training setting). Copies of documents and repeated pairs are skipped. So the accuracy is over distinct,
//! non-overlapping pairs, and its standard error is that of independent draws, sqrt(p (1 - p) / n).
//!
//! The baseline is the mean of -ln p(piece) over the masked pieces, p being the share of the piece in the training
//! documents with one added to every count: p = (count + 1) / (total + V).

use std::collections::HashSet;
use std::sync::Arc;

use engine::io::hash64;

use super::batch::{Assembler, Batch, Cursor};
use super::error::DataError;
use super::instances::{Instance, check_documents, plan_epoch};
use super::settings::{DataSettings, LoneSentence, Objective};
use super::shard::Ids;
use super::shards::Shards;
use super::vocabulary::Vocabulary;
use crate::mean::Mean;

/// Held-out batches.
#[derive(Clone, Debug)]
pub(crate) struct EvaluationSet {
    assembler: Assembler,
    table: Vec<Instance>,
    at: u32,
}

impl EvaluationSet {
    /// The evaluation set of `shards` under `settings`; masking as in training, seed and size as in
    /// `settings.evaluation`.
    ///
    /// # Errors
    /// [`DataError::Setting`] if a setting is out of range; [`DataError::NoInstances`] if `shards` has no instance.
    pub(crate) fn new(
        shards: Arc<Shards>,
        vocabulary: Arc<Vocabulary>,
        settings: &DataSettings,
    ) -> Result<Self, DataError> {
        settings.validate()?;
        let mut settings = settings.clone();
        settings.instances.lone_sentence = LoneSentence::Skip;
        check_documents(&shards, &settings.instances)?;
        let seed = settings.evaluation.seed;
        let mut copies = HashSet::new();
        let is_first: Vec<bool> = shards.document_hashes().map(|hash| copies.insert(hash)).collect();
        let mut table = Vec::new();
        plan_epoch(&shards, &settings.instances, seed, 0, |document| is_first[document as usize], &mut table);
        let (mut seen, mut tokens) = (HashSet::with_capacity(table.len()), Vec::new());
        let is_swapping = settings.instances.objective == Objective::Sop;
        table.retain(|instance| seen.insert(text_hash(&shards, instance, is_swapping, &mut tokens)));
        if table.is_empty() {
            return Err(shards.no_instances());
        }
        if settings.evaluation.max_sequences > 0 {
            table.truncate(settings.evaluation.max_sequences);
        }
        table.shrink_to_fit();
        Ok(Self { assembler: Assembler::new(shards, vocabulary, &settings, seed), table, at: 0 })
    }

    /// Number of sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.table.len()
    }

    /// The settings in use: those given, with lone sentences skipped.
    pub(crate) fn settings(&self) -> &DataSettings {
        self.assembler.settings()
    }

    /// Returns to the first batch.
    pub(crate) fn rewind(&mut self) {
        self.at = 0;
    }

    /// Replaces the contents of `batch` by the next batch; false, and an empty batch, after the last.
    pub(crate) fn fill(&mut self, batch: &mut Batch) -> bool {
        let cursor = |index| Cursor { epoch: 0, index };
        batch.clear();
        batch.start = cursor(self.at);
        let start = self.at;
        self.skip();
        for index in start..self.at {
            self.assembler.append(&self.table[index as usize], cursor(index), batch);
        }
        batch.next = cursor(self.at);
        batch.ends_step = true;
        batch.sequences() > 0
    }

    /// Skips the next batch; false after the last.
    pub(crate) fn skip(&mut self) -> bool {
        let limits = &self.assembler.settings().batch;
        let (mut sequences, mut tokens) = (0, 0);
        for instance in &self.table[self.at as usize..] {
            tokens += self.assembler.length(instance);
            if sequences > 0 && (tokens > limits.max_tokens || sequences >= limits.max_sequences) {
                break;
            }
            sequences += 1;
        }
        self.at += sequences as u32;
        sequences > 0
    }

    /// Mean cross-entropy of `unigram` over all masked pieces, and over those shown as `[MASK]`. Rewinds before and after.
    pub(crate) fn baseline(&mut self, unigram: &Unigram) -> Baseline {
        let mut batch = Batch::new(self.settings());
        let (mut all, mut hidden) = (Mean::default(), Mean::default());
        let mask = self.mask_id();
        self.rewind();
        while self.fill(&mut batch) {
            for (&position, &label) in batch.masked_positions.iter().zip(&batch.masked_labels) {
                let nats = unigram.nats(label);
                all.add(nats, 1);
                if batch.ids[position as usize] == mask {
                    hidden.add(nats, 1);
                }
            }
        }
        self.rewind();
        Baseline { all, hidden }
    }

    /// Id of `[MASK]`, which hides a masked piece in the input; other masked pieces are kept or replaced.
    pub(crate) fn mask_id(&self) -> u32 {
        self.assembler.vocabulary().specials().mask
    }
}

/// Hash of the text of `instance` in document order; with `is_swapping`, label 1 is a swapped pair.
fn text_hash(shards: &Shards, instance: &Instance, is_swapping: bool, tokens: &mut Vec<u32>) -> u64 {
    tokens.clear();
    let mut segments = [(instance.a, instance.a_count), (instance.b, instance.b_count)];
    if is_swapping && instance.label == 1 {
        segments.reverse();
    }
    for (first, count) in segments {
        if count > 0 {
            shards.append(first, usize::from(count), 0, 0, tokens);
        }
    }
    hash64(bytemuck::cast_slice(tokens))
}

/// Result of the unigram model on an evaluation set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Baseline {
    /// Cross-entropy in nats over all masked pieces.
    pub all: Mean,
    /// The same over those shown as `[MASK]`; the rest are visible to the model.
    pub hidden: Mean,
}

/// Unigram model of the training documents.
#[derive(Clone, Debug)]
pub(crate) struct Unigram {
    /// -ln p of each piece.
    nats: Vec<f64>,
}

impl Unigram {
    /// The frequencies in `shards` for a vocabulary of `vocab_size` pieces, with one added to each count. Reads every
    /// token once.
    pub(crate) fn of(shards: &Shards, vocab_size: usize) -> Self {
        let mut counts = vec![1u64; vocab_size];
        for shard in shards.shards() {
            match shard.ids() {
                Ids::U16(ids) => ids.iter().for_each(|&id| counts[usize::from(id)] += 1),
                Ids::U32(ids) => ids.iter().for_each(|&id| counts[id as usize] += 1),
            }
        }
        let total: u64 = counts.iter().sum();
        Self { nats: counts.iter().map(|&count| libm::log(total as f64 / count as f64)).collect() }
    }

    /// -ln p of `piece`.
    pub(crate) fn nats(&self, piece: u32) -> f64 {
        self.nats[piece as usize]
    }
}
