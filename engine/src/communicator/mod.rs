//! Processes that train one model together: how bytes and gradients get from one to another.
//!
//! ```text
//! rank 0   lanes 0..4  ── backward ──> sum of its lanes ─┐
//! rank 1   lanes 4..8  ── backward ──> sum of its lanes ─┼─ all_reduce: the same bits in every rank ──> clip, update
//! ...                                                    ┘
//! ```
//!
//! Libraries move bytes, and this crate adds: gradients are summed along a tree over the lanes of a step ([`lanes`]), so a sum
//! has the same bits for any number of ranks and any library. A [`Transport`] is what moves the bytes: nothing for a process
//! alone, memory between threads ([`Communicator::threads`]), MPI between processes ([`Communicator::from_environment`]).
//!
//! Every rank calls the same functions in the same order. A rank that waits longer than the timeout for another returns an
//! error that names it.

mod all_reduce;
mod environment;
mod lanes;
mod mpi;
mod threads;

pub use lanes::{LaneSums, Lanes};

use crate::error::{EngineError, Result};
use std::{fmt::Debug, sync::Arc, time::Duration};

/// Time that a rank waits for another, unless it is set.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Most bytes of one message. Transports copy messages, from and to a cache.
const MESSAGE: usize = 4 << 20;

/// Moves bytes between ranks.
trait Transport: Debug + Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Sends the bytes `send` to a rank and fills `receive` with what a rank sends, the same or another one; at most
    /// [`MESSAGE`] bytes each.
    ///
    /// # Errors
    /// It takes longer than `timeout`, or a rank is gone.
    fn exchange(
        &self,
        send: (usize, &[u8]),
        receive: (usize, &mut [u8]),
        timeout: Duration,
    ) -> std::result::Result<(), Failure>;

    /// Ends all ranks because this one cannot go on; may return.
    fn abort(&self);

    /// Leaves the others after the last exchange; all ranks call it.
    fn finish(&self);
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// A rank did not answer in time.
    Late { rank: usize },
    /// A rank has ended.
    Gone { rank: usize },
    /// The library returned an error.
    Library { call: &'static str, code: i32 },
}

/// This process among those that train together.
#[derive(Clone, Debug)]
pub struct Communicator {
    transport: Arc<dyn Transport>,
    timeout: Duration,
}

impl Default for Communicator {
    /// A process that trains alone.
    fn default() -> Self {
        Self::over(Arc::new(Alone))
    }
}

impl Communicator {
    fn over(transport: Arc<dyn Transport>) -> Self {
        Self { transport, timeout: TIMEOUT }
    }

    /// `size` ranks of this process, each for a thread of its own: for tests, and for machines with several NUMA nodes. A rank
    /// whose communicators are all dropped is gone.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn threads(size: usize) -> Vec<Self> {
        threads::Member::new(size).into_iter().map(|member| Self::over(Arc::new(member))).collect()
    }

    /// The ranks that a launcher (`mpirun`, `srun`) started, through the MPI library that it belongs to; a process alone if no
    /// launcher did. To be called once, by the main thread.
    ///
    /// # Errors
    /// A launcher started several processes but there is no MPI library, or it does not know of the others.
    pub fn from_environment() -> Result<Self> {
        match environment::Launcher::find(&|name| std::env::var(name).ok())? {
            Some(launcher) => Ok(Self::over(mpi::start(&launcher)?)),
            None => Ok(Self::default()),
        }
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.transport.size()
    }

    /// True for the rank that writes files and prints.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Changes the time that this rank waits for another in one exchange.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sends `send` to a rank and fills `receive` with what a rank sends, messages of any size.
    fn exchange(&self, what: &str, (to, send): (usize, &[u8]), (from, receive): (usize, &mut [u8])) -> Result<()> {
        let messages = send.len().max(receive.len()).div_ceil(MESSAGE).max(1);
        let part = |len: usize, i: usize| len.min(i * MESSAGE)..len.min((i + 1) * MESSAGE);
        for i in 0..messages {
            let (send, range) = (&send[part(send.len(), i)], part(receive.len(), i));
            self.transport
                .exchange((to, send), (from, &mut receive[range]), self.timeout)
                .map_err(|failure| self.failed(what, &failure))?;
        }
        Ok(())
    }

    fn failed(&self, what: &str, failure: &Failure) -> EngineError {
        let problem = match failure {
            Failure::Late { rank } => format!(
                "rank {rank} did not answer within {} s; it may be stopped, or its network may be gone",
                self.timeout.as_secs_f64()
            ),
            Failure::Gone { rank } => format!("rank {rank} has ended; its own message says why"),
            Failure::Library { call, code } => format!("{call} returned {code}"),
        };
        EngineError::Communication { rank: self.rank(), what: what.to_owned(), problem }
    }

    /// What every rank gives as `mine`, in the order of ranks. `what` names it in errors.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn gather(&self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let size = self.size();
        let mut lens = vec![[0u8; 8]; size];
        lens[self.rank()] = (mine.len() as u64).to_le_bytes();
        self.ring(what, &mut lens)?;
        let mut all: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; u64::from_le_bytes(*len) as usize]).collect();
        all[self.rank()].copy_from_slice(mine);
        self.ring(what, &mut all)?;
        Ok(all)
    }

    /// Completes `all`, of which every rank has its own element: each rank passes on what it got to the next.
    fn ring<T: AsRef<[u8]> + AsMut<[u8]>>(&self, what: &str, all: &mut [T]) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        for step in 0..size - 1 {
            let (have, wanted) = ((rank + size - step) % size, (rank + 2 * size - step - 1) % size);
            let [have, wanted] = all.get_disjoint_mut([have, wanted]).expect("two ranks differ");
            self.exchange(what, (next, (*have).as_ref()), (previous, wanted.as_mut()))?;
        }
        Ok(())
    }

    /// Sums of `values` over ranks, exactly.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn sum_counts<const N: usize>(&self, what: &str, values: [u64; N]) -> Result<[u64; N]> {
        let mut sums = [0; N];
        for theirs in self.gather(what, bytemuck::cast_slice(&values))? {
            for (sum, bytes) in sums.iter_mut().zip(theirs.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            }
        }
        Ok(sums)
    }

    /// True if `value` is true on some rank.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn any(&self, what: &str, value: bool) -> Result<bool> {
        Ok(self.gather(what, &[u8::from(value)])?.iter().any(|theirs| theirs == &[1]))
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn barrier(&self, what: &str) -> Result<()> {
        self.gather(what, &[]).map(|_| ())
    }

    /// Ends all ranks because this one cannot go on; returns if the transport has no way to end them.
    pub fn abort(&self) {
        self.transport.abort();
    }

    /// Leaves the other ranks after the last exchange; all ranks call it.
    pub fn finish(&self) {
        self.transport.finish();
    }
}

/// The transport of a process alone.
#[derive(Debug)]
struct Alone;

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn exchange(&self, _: (usize, &[u8]), _: (usize, &mut [u8]), _: Duration) -> std::result::Result<(), Failure> {
        unreachable!("there is no other rank")
    }
    fn abort(&self) {}
    fn finish(&self) {}
}

#[cfg(test)]
mod tests;
