//! Batch prefetch on a background thread.
//!
//! ```text
//! fill(&mut batch):   worker --filled--> swap with the caller's batch --spare--> worker
//! ```
//! A fixed number of batches circulates, so nothing is allocated after the first rounds, and the worker is at most `ahead`
//! batches ahead. It runs the same [`Sampler`], so the batches are equal. Dropping the `Prefetch` stops the thread and
//! waits at most for one batch.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::batch::{Batch, Cursor};
use super::error::DataError;
use super::sampler::Sampler;

/// A [`Sampler`] with prefetch.
#[derive(Debug)]
pub struct Prefetch {
    cursor: Cursor,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Here(Box<Sampler>),
    Thread {
        /// `None` while dropping: a closed channel stops the worker.
        channels: Option<(Receiver<Batch>, SyncSender<Batch>)>,
        worker: Option<JoinHandle<()>>,
    },
}

impl Prefetch {
    /// Prefetches up to `ahead` batches, starting at the cursor of `sampler`; 0 fills them on the calling thread.
    ///
    /// # Errors
    /// [`DataError::Thread`] if the thread cannot be started.
    pub fn new(sampler: Sampler, ahead: usize) -> Result<Self, DataError> {
        let cursor = sampler.cursor();
        if ahead == 0 {
            return Ok(Self { cursor, inner: Inner::Here(Box::new(sampler)) });
        }
        let (spare, to_fill) = sync_channel::<Batch>(ahead);
        let (filled, to_take) = sync_channel::<Batch>(ahead);
        for _ in 0..ahead {
            spare.send(Batch::new(sampler.settings())).expect("the receiver is in this function");
        }
        let mut sampler = sampler;
        let work = move || {
            // Either channel closes when the `Prefetch` is dropped.
            while let Ok(mut batch) = to_fill.recv() {
                sampler.fill(&mut batch);
                if filled.send(batch).is_err() {
                    return;
                }
            }
        };
        let worker = std::thread::Builder::new().name("albert-data".into()).spawn(work).map_err(DataError::Thread)?;
        Ok(Self { cursor, inner: Inner::Thread { channels: Some((to_take, spare)), worker: Some(worker) } })
    }

    /// Replaces `batch` by the next batch. Its buffers are passed to the worker, so use the same batch each time.
    pub fn fill(&mut self, batch: &mut Batch) {
        match &mut self.inner {
            Inner::Here(sampler) => sampler.fill(batch),
            Inner::Thread { channels, worker } => {
                let (to_take, spare) = channels.as_ref().expect("open until dropped");
                match to_take.recv() {
                    Ok(next) => {
                        let used = std::mem::replace(batch, next);
                        // A worker that panicked is joined at the next `recv`.
                        let _ = spare.send(used);
                    }
                    Err(_) => match worker.take().expect("joined once").join() {
                        Err(panic) => std::panic::resume_unwind(panic),
                        Ok(()) => unreachable!("the worker runs while the channels are open"),
                    },
                }
            }
        }
        self.cursor = batch.next;
    }

    /// Cursor of the next batch of [`fill`](Self::fill), independent of the worker's.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        if let Inner::Thread { channels, worker } = &mut self.inner {
            drop(channels.take());
            if let Some(worker) = worker.take() {
                // `fill` reports a panic of the worker; a second panic here would abort.
                let _ = worker.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::testing::{shards, text, vocabulary};
    use super::super::{BatchSettings, DataSettings};
    use super::*;

    fn sampler(settings: &DataSettings) -> Sampler {
        let shards = shards(&text(1, 500, 60, 9, 25), &vocabulary(500));
        Sampler::new(shards, Arc::new(vocabulary(500)), settings, 4).unwrap()
    }

    fn settings() -> DataSettings {
        let mut settings = DataSettings::default();
        settings.instances.max_sequence_length = 64;
        settings.batch = BatchSettings { max_tokens: 300, max_sequences: 9, sequences_per_step: 20, lanes: 1 };
        settings
    }

    #[test]
    fn gives_the_batches_of_its_sampler_however_far_ahead() {
        let settings = settings();
        for ahead in [0, 1, 2, 5] {
            let mut alone = sampler(&settings);
            let mut prefetch = Prefetch::new(sampler(&settings), ahead).unwrap();
            let (mut expected, mut found) = (Batch::new(&settings), Batch::new(&settings));
            for step in 0..200 {
                assert_eq!(prefetch.cursor(), alone.cursor(), "{ahead} ahead, step {step}");
                alone.fill(&mut expected);
                prefetch.fill(&mut found);
                assert_eq!(found, expected, "{ahead} ahead, step {step}");
            }
            assert!(found.next.epoch > 1, "the run must cross epochs: {:?}", found.next);
        }
    }

    #[test]
    fn stops_whether_or_not_batches_were_taken() {
        let settings = settings();
        for taken in [0, 1, 3] {
            let mut prefetch = Prefetch::new(sampler(&settings), 2).unwrap();
            let mut batch = Batch::new(&settings);
            for _ in 0..taken {
                prefetch.fill(&mut batch);
            }
            drop(prefetch);
        }
    }
}
