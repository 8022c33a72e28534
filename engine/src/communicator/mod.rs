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
//! alone, memory between threads ([`Communicator::threads`]), MPI between processes, NCCL between GPUs without MPI
//! ([`Start::from_environment`]). Where ranks have GPUs and a [`Transport`], gradients go over NCCL
//! ([`Communicator::connect_gpus`]), and all else over the transport.
//!
//! Every rank calls the same functions in the same order. A rank that waits longer than the timeout for another returns an
//! error that names it.

mod all_reduce;
mod arrays;
mod environment;
mod gpus;
mod lanes;
mod library;
mod mpi;
mod nccl;
mod start;
mod threads;
mod tree;
mod watchdog;

pub use environment::GpuRanks;
pub use gpus::GradientPath;
pub use lanes::{LaneSums, Lanes};
pub use start::Start;

use crate::{
    device::Gpu,
    error::{EngineError, Result},
    trace,
};
use nccl::Link;
use std::{
    fmt::Debug,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};
use watchdog::Watchdog;

/// Time that a rank waits for another, unless it is set.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Time of polling without a pause; then a rank sleeps between polls, so that it does not disturb others on its core.
const EAGER: Duration = Duration::from_millis(50);
/// Pause between polls.
const PAUSE: Duration = Duration::from_micros(100);

/// Yields the core between two polls for something that has not come for `waited`.
fn pause(waited: Duration) {
    if waited < EAGER { thread::yield_now() } else { thread::sleep(PAUSE) }
}

/// Moves bytes between ranks.
trait Transport: Debug + Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Sends the bytes `send` to a rank and fills `receive` with what a rank sends, the same or another one. Nothing is sent or
    /// received where a slice is empty.
    ///
    /// # Errors
    /// Nothing arrives for longer than `timeout`, or a rank is gone.
    fn exchange(
        &self,
        send: (usize, &[u8]),
        receive: (usize, &mut [u8]),
        timeout: Duration,
    ) -> std::result::Result<(), Failure>;

    /// Sum of `x` over ranks by the library's own order, into `sum`; `None` if there is no such function.
    fn library_sum(&self, x: &[f32], sum: &mut [f32]) -> Option<std::result::Result<(), Failure>> {
        let _ = (x, sum);
        None
    }

    /// Ends all ranks because this one cannot go on; may return.
    fn abort(&self);

    /// Leaves the others after the last exchange; all ranks call it.
    fn finish(&self);
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    /// A rank did not answer in time, or another one.
    Late { rank: usize, or: Option<usize> },
    /// A rank has ended.
    Gone { rank: usize },
    /// The library did not return in time.
    Stuck { call: &'static str },
    /// The library returned an error.
    Library { call: &'static str, code: i32 },
    /// NCCL returned an error, in its own words.
    Nccl { call: &'static str, reason: String },
    /// This rank's GPU failed.
    Device(String),
    /// An earlier exchange failed.
    Closed,
}

impl Failure {
    /// The error of rank `rank` in the exchange `what`, which may take `timeout`.
    fn of_rank(&self, rank: usize, what: &str, timeout: Duration) -> EngineError {
        let problem = match self {
            Self::Late { rank, or } => format!(
                "rank {rank}{} did not answer within {} s; it may be stopped, or its network may be gone",
                or.map(|other| format!(" or {other}")).unwrap_or_default(),
                timeout.as_secs_f64()
            ),
            Self::Gone { rank } => format!("rank {rank} has ended; its own message says why"),
            Self::Stuck { call } => format!(
                "{call} did not return within {} s; another rank may be stopped, or its network may be gone",
                timeout.as_secs_f64()
            ),
            Self::Library { call, code } => format!("{call} returned {code}"),
            Self::Nccl { call, reason } => {
                format!("NCCL failed in {call}: {reason}; set NCCL_DEBUG=WARN to see more")
            }
            Self::Device(reason) => reason.clone(),
            Self::Closed => "an earlier exchange failed".to_owned(),
        };
        EngineError::Communication { rank, what: what.to_owned(), problem }
    }
}

/// This process among those that train together.
#[derive(Clone, Debug)]
pub struct Communicator {
    transport: Arc<dyn Transport>,
    /// The way from GPU to GPU.
    link: Option<Arc<Link>>,
    /// Shared by all clones.
    timeout: Arc<Mutex<Duration>>,
    /// For transports whose calls may not return.
    watchdog: Option<Arc<Watchdog>>,
}

impl Default for Communicator {
    /// A process that trains alone.
    fn default() -> Self {
        Self::over(Arc::new(Alone))
    }
}

impl Communicator {
    fn over(transport: Arc<dyn Transport>) -> Self {
        Self { transport, link: None, timeout: Arc::new(Mutex::new(TIMEOUT)), watchdog: None }
    }

    /// `size` ranks of this process, each for a thread of its own: for tests, and for machines with several NUMA nodes. A rank
    /// whose communicators are all dropped is gone.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn threads(size: usize) -> Vec<Self> {
        threads::Member::new(size).into_iter().map(|member| Self::over(Arc::new(member))).collect()
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

    /// Changes the time that this rank waits for another in one exchange, in all clones; returns the time before.
    pub fn set_timeout(&self, timeout: Duration) -> Duration {
        std::mem::replace(&mut *self.timeout.lock().unwrap_or_else(PoisonError::into_inner), timeout)
    }

    fn timeout(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends `send` to a rank and fills `receive` with what a rank sends; `what` names it in errors.
    fn exchange(&self, what: &str, send: (usize, &[u8]), receive: (usize, &mut [u8])) -> Result<()> {
        let late = match ((send.0, send.1.is_empty()), (receive.0, receive.1.is_empty())) {
            ((to, false), (from, false)) if to != from => Failure::Late { rank: from, or: Some(to) },
            ((rank, _), (_, true)) | (_, (rank, false)) => Failure::Late { rank, or: None },
        };
        trace::exchange(what, [send.1.len(), receive.1.len()], || {
            self.watched(what, &late, || self.transport.exchange(send, receive, self.timeout()))
        })
        .map_err(|failure| self.failed(what, &failure))
    }

    /// Runs `work`, which ends as `failure` if the library does not return.
    fn watched<T>(&self, what: &str, failure: &Failure, work: impl FnOnce() -> T) -> T {
        match &self.watchdog {
            Some(watchdog) => watchdog.watch(self.timeout(), self.failed(what, failure), work),
            None => work(),
        }
    }

    /// The way to the GPUs of the other ranks, if `gpu` has one.
    fn link(&self, gpu: &Gpu) -> Option<Arc<Link>> {
        self.link.clone().filter(|link| link.is_of(gpu))
    }

    fn failed(&self, what: &str, failure: &Failure) -> EngineError {
        failure.of_rank(self.rank(), what, self.timeout())
    }

    /// Sends `bytes` to rank `to`, which calls [`receive`](Self::receive); `what` names them in errors.
    ///
    /// # Errors
    /// The rank is gone or late.
    pub fn send(&self, what: &str, to: usize, bytes: &[u8]) -> Result<()> {
        for part in [&(bytes.len() as u64).to_le_bytes(), bytes] {
            self.exchange(what, (to, part), (to, &mut []))?;
        }
        Ok(())
    }

    /// Receives the bytes that rank `from` [sends](Self::send) to this rank; `what` names them in errors.
    ///
    /// # Errors
    /// The rank is gone or late.
    pub fn receive(&self, what: &str, from: usize) -> Result<Vec<u8>> {
        let mut len = [0; 8];
        self.exchange(what, (from, &[]), (from, &mut len))?;
        let mut bytes = vec![0; u64::from_le_bytes(len) as usize];
        self.exchange(what, (from, &[]), (from, &mut bytes))?;
        Ok(bytes)
    }

    /// The `mine` of every rank, in the order of ranks. `what` names it in errors.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn gather(&self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lens = self.gather_equal(what, (mine.len() as u64).to_le_bytes())?;
        let lens: Vec<usize> = lens.into_iter().map(|len| u64::from_le_bytes(len) as usize).collect();
        let all = self.gather_known(what, mine, &lens)?;
        let mut rest = &all[..];
        Ok(lens.into_iter().map(|len| rest.split_off(..len).expect("the sum of lengths").to_vec()).collect())
    }

    /// [`gather`](Self::gather) of as many bytes on every rank.
    fn gather_equal<const N: usize>(&self, what: &str, mine: [u8; N]) -> Result<Vec<[u8; N]>> {
        let all = self.gather_known(what, &mine, &vec![N; self.size()])?;
        Ok(all.as_chunks().0.to_vec())
    }

    /// The `mine` of every rank, of `lens` bytes, one after another in the order of ranks.
    ///
    /// After i rounds a rank has those of 2^i ranks, from its own up, and gets as many from the rank 2^i above (Bruck and
    /// others, IEEE TPDS 8(11), 1997): ⌈log₂ R⌉ rounds.
    fn gather_known(&self, what: &str, mine: &[u8], lens: &[usize]) -> Result<Vec<u8>> {
        let (rank, size) = (self.rank(), self.size());
        // Where the bytes of this rank, the next and so on begin.
        let mut starts = vec![0];
        for i in 0..size {
            starts.push(starts[i] + lens[(rank + i) % size]);
        }
        let mut all = vec![0; starts[size]];
        all[..mine.len()].copy_from_slice(mine);
        let mut have = 1;
        while have < size {
            let count = have.min(size - have);
            let (known, unknown) = all.split_at_mut(starts[have]);
            let message = &known[..starts[count]];
            let theirs = &mut unknown[..starts[have + count] - starts[have]];
            self.exchange(what, ((rank + size - have) % size, message), ((rank + have) % size, theirs))?;
            have += count;
        }
        all.rotate_right(lens[..rank].iter().sum());
        Ok(all)
    }

    /// Completes `values`, of which each rank has its part: `parts` in the order of ranks. `what` names them in errors.
    ///
    /// # Errors
    /// A rank is gone or late.
    ///
    /// # Panics
    /// If there are not as many parts as ranks, or they overlap or lie outside the values.
    pub fn gather_parts(&self, what: &str, parts: &[Range<usize>], values: &mut [f32]) -> Result<()> {
        assert_eq!(parts.len(), self.size(), "gather_parts: a part for each rank");
        all_reduce::pass_on(
            self.rank(),
            self.size(),
            |rank| parts[rank].clone(),
            |(to, have), (from, wanted)| {
                let [have, wanted] =
                    values.get_disjoint_mut([have, wanted]).expect("the parts of two ranks do not overlap");
                self.exchange(what, (to, bytemuck::cast_slice(have)), (from, bytemuck::cast_slice_mut(wanted)))
            },
        )
    }

    /// On the first rank, the parts `mine` of all ranks one after another: `parts` of a whole, in the order of ranks. Empty on the
    /// others. `what` names them in errors.
    ///
    /// # Errors
    /// A rank is gone or late.
    ///
    /// # Panics
    /// If there are not as many parts as ranks, or `mine` is not as long as that of this rank.
    pub fn collect_parts(&self, what: &str, parts: &[Range<usize>], mine: &[f32]) -> Result<Vec<f32>> {
        let rank = self.rank();
        assert_eq!((parts.len(), mine.len()), (self.size(), parts[rank].len()), "collect_parts: the part of this rank");
        if !self.is_first() {
            self.exchange(what, (0, bytemuck::cast_slice(mine)), (0, &mut []))?;
            return Ok(Vec::new());
        }
        let mut all = mine.to_vec();
        for (rank, part) in parts.iter().enumerate().skip(1) {
            let start = all.len();
            all.resize(start + part.len(), 0.0);
            self.exchange(what, (rank, &[]), (rank, bytemuck::cast_slice_mut(&mut all[start..])))?;
        }
        Ok(all)
    }

    /// Sums of `values` over ranks, exactly.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn sum_counts<const N: usize>(&self, what: &str, values: [u64; N]) -> Result<[u64; N]> {
        let mut sums = [0; N];
        let all = self.gather_known(what, bytemuck::cast_slice(&values), &vec![8 * N; self.size()])?;
        for theirs in all.chunks_exact(8 * N) {
            for (sum, value) in sums.iter_mut().zip(theirs.as_chunks().0) {
                *sum += u64::from_ne_bytes(*value);
            }
        }
        Ok(sums)
    }

    /// True if `value` is true on some rank.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn any(&self, what: &str, value: bool) -> Result<bool> {
        Ok(self.gather_equal(what, [u8::from(value)])?.contains(&[1]))
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// A rank is gone or late.
    pub fn barrier(&self, what: &str) -> Result<()> {
        self.any(what, false).map(|_| ())
    }

    /// Sum of `x` over ranks by the library's own all-reduce, into `sum`, for comparison: its bits depend on library and
    /// ranks, and it waits without a limit. False if the transport has none.
    ///
    /// # Errors
    /// The library returned an error.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn library_sum(&self, x: &[f32], sum: &mut [f32]) -> Result<bool> {
        assert_eq!(x.len(), sum.len(), "library_sum: the lengths differ");
        let result = self.transport.library_sum(x, sum);
        result.transpose().map(|done| done.is_some()).map_err(|failure| self.failed("the library's sum", &failure))
    }

    /// Ends all ranks because this one cannot go on; returns if the transport has no way to end them.
    pub fn abort(&self) {
        if let Some(link) = &self.link {
            link.abort();
        }
        self.watched("the end of all ranks", &Failure::Stuck { call: "MPI_Abort" }, || self.transport.abort());
    }

    /// Leaves the other ranks after the last exchange; all ranks call it.
    pub fn finish(&self) {
        if let Some(link) = &self.link {
            link.finish(self.timeout());
        }
        self.watched("the end", &Failure::Stuck { call: "MPI_Finalize" }, || self.transport.finish());
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
