//! Endless, resumable stream of training batches.
//!
//! For each epoch, the instances are planned, shuffled and limited to the token budget. A batch depends only on (seed,
//! settings, shards, cursor) and never crosses the end of an epoch.
//!
//! Memory: 16 bytes an instance. All epochs share one table, with a quarter more capacity than the first requires, so
//! that epochs of different size do not allocate.

use std::ops::Range;
use std::sync::Arc;

use super::batch::{Assembler, Batch, Cursor};
use super::error::DataError;
use super::instances::{Instance, PlanCounts, check_documents, plan_epoch};
use super::masking::Masker;
use super::settings::{BatchSettings, DataSettings};
use super::shards::Shards;
use super::vocabulary::Vocabulary;

/// Sampler of one side of the split.
#[derive(Clone, Debug)]
pub struct Sampler {
    assembler: Assembler,
    seed: u64,
    table: Vec<Instance>,
    /// Epoch planned in `table`.
    planned: u32,
    counts: PlanCounts,
    cursor: Cursor,
    /// Lanes whose batches are drawn.
    lanes: Range<usize>,
}

impl Sampler {
    /// Creates a sampler at the start of epoch 0.
    ///
    /// # Errors
    /// [`DataError::Setting`] if a setting is out of range; [`DataError::NoInstances`] if `shards` has no instance
    /// under them.
    pub fn new(
        shards: Arc<Shards>,
        vocabulary: Arc<Vocabulary>,
        settings: &DataSettings,
        seed: u64,
    ) -> Result<Self, DataError> {
        settings.validate()?;
        let instances = &settings.instances;
        check_documents(&shards, instances)?;
        let mut table = Vec::new();
        let counts = plan_epoch(&shards, instances, seed, 0, |_| true, &mut table);
        if table.is_empty() {
            return Err(shards.no_instances());
        }
        table.reserve_exact(table.len() / 4 + 1024);
        let assembler = Assembler::new(shards, vocabulary, settings, seed);
        let lanes = 0..settings.batch.lanes;
        Ok(Self { assembler, seed, table, planned: 0, counts, cursor: Cursor::default(), lanes })
    }

    /// Moves to `cursor`, a value of [`cursor`](Self::cursor) or [`Batch::next`].
    ///
    /// # Errors
    /// [`DataError::Setting`] if that epoch has no such instance: the data or the settings have changed.
    pub fn seek(&mut self, cursor: Cursor) -> Result<(), DataError> {
        self.plan(cursor.epoch);
        if cursor.index as usize >= self.table.len() {
            let expected = format!(
                "less than the {} instances of epoch {}; the data or its settings differ from the run that is resumed",
                self.table.len(),
                cursor.epoch
            );
            return Err(DataError::setting("data cursor", cursor.index, expected));
        }
        self.cursor = cursor;
        Ok(())
    }

    /// Cursor of the next batch.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Instances of the epoch planned last.
    pub(crate) fn instances(&self) -> usize {
        self.table.len()
    }

    /// Statistics of planning that epoch.
    pub(crate) fn plan_counts(&self) -> PlanCounts {
        self.counts
    }

    /// The masker, with the spans of the last sequence and the statistics of all.
    pub(crate) fn masker(&self) -> &Masker {
        self.assembler.masker()
    }

    pub(crate) fn settings(&self) -> &DataSettings {
        self.assembler.settings()
    }

    /// Bytes on the heap: the instance table.
    pub(crate) fn memory(&self) -> usize {
        self.table.capacity() * size_of::<Instance>()
    }

    /// Draws only the batches of `lanes`; the cursor still advances through all.
    pub(crate) fn limit_to_lanes(&mut self, lanes: Range<usize>) {
        self.lanes = lanes;
    }

    /// Replaces the contents of `batch` by the next batch. It has at least one sequence, unless the lanes of this rank have
    /// none at the end of an epoch.
    pub fn fill(&mut self, batch: &mut Batch) {
        self.plan(self.cursor.epoch);
        let BatchSettings { max_tokens, max_sequences, sequences_per_step, lanes } = self.assembler.settings().batch;
        let count = self.table.len();
        let mut at = self.cursor.index as usize;
        // Without `sequences_per_step`, the rest of the epoch is one lane.
        let (step, per_lane) = match sequences_per_step {
            0 => (at, count),
            _ => (at - at % sequences_per_step, sequences_per_step / lanes),
        };
        let start_of = |lane: usize| (step + lane * per_lane).min(count);
        let own = start_of(self.lanes.start)..start_of(self.lanes.end);
        at = at.max(own.start);
        batch.clear();
        batch.start = Cursor { index: at as u32, ..self.cursor };
        batch.lane = if own.is_empty() { self.lanes.start } else { (at - step) / per_lane };
        let end = start_of(batch.lane + 1);
        while at < end && batch.sequences() < max_sequences {
            let instance = self.table[at];
            let is_full = batch.tokens() + self.assembler.length(&instance) > max_tokens;
            if batch.sequences() > 0 && is_full {
                break;
            }
            self.assembler.append(&instance, Cursor { index: at as u32, ..self.cursor }, batch);
            at += 1;
        }
        batch.ends_step = sequences_per_step == 0 || at == own.end;
        if batch.ends_step && sequences_per_step > 0 {
            at = start_of(lanes);
        }
        self.cursor = match at == count {
            true => Cursor { epoch: self.cursor.epoch + 1, index: 0 },
            false => Cursor { index: at as u32, ..self.cursor },
        };
        batch.next = self.cursor;
    }

    /// Limits batches to one sequence.
    pub(super) fn limit_to_one_sequence(&mut self) {
        self.assembler.limit_to_one_sequence();
    }

    fn plan(&mut self, epoch: u32) {
        if self.planned != epoch {
            let instances = &self.assembler.settings().instances;
            self.counts = plan_epoch(self.assembler.shards(), instances, self.seed, epoch, |_| true, &mut self.table);
            self.planned = epoch;
        }
    }
}
