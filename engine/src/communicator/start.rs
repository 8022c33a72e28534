//! Start of the ranks of a launcher.
#![allow(unsafe_code)]

use super::{
    Communicator,
    environment::{GpuRanks, Launcher},
    mpi,
    watchdog::Watchdog,
};
use crate::error::{EngineError, Result};

/// Variable with the address at which NCCL's ranks find each other.
const COMM_ID: &str = "NCCL_COMM_ID";

/// Processes that a launcher started together.
#[derive(Debug)]
pub enum Start {
    /// Those of `mpirun` or `srun`, or a process alone.
    Connected(Communicator),
    /// Those of `torchrun`, which get to know each other over their GPUs.
    OnGpus(GpuRanks),
}

impl Start {
    /// The processes that a launcher started. To be called once, by the main thread, before it opens a device or starts threads
    /// that use a library: `mpirun` and `srun` start MPI, and for `torchrun` the variable `NCCL_COMM_ID` is set.
    ///
    /// MPI may keep this thread, for instance because another process is stopped. After the timeout the process ends with exit
    /// code 1, by another thread, which calls `report` before.
    ///
    /// # Errors
    /// A launcher started several processes but there is no MPI library, or it does not know of the others; or a variable has
    /// no meaning.
    pub fn from_environment(report: impl Fn(&EngineError) + Send + 'static) -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        if let Some(launcher) = Launcher::find(&variable)? {
            let watchdog = Watchdog::start(move |error| {
                report(error);
                mpi::leave();
            });
            let transport = mpi::start(&launcher, &watchdog)?;
            return Ok(Self::Connected(Communicator { watchdog: Some(watchdog), ..Communicator::over(transport) }));
        }
        let Some(ranks) = GpuRanks::find(&variable)? else { return Ok(Self::Connected(Communicator::default())) };
        if variable(COMM_ID).is_none() {
            // SAFETY: no other thread reads or writes the environment, as the caller promised: std's own functions take
            // turns, and no library that reads it has been started.
            unsafe { std::env::set_var(COMM_ID, &ranks.meeting_point) };
        }
        Ok(Self::OnGpus(ranks))
    }
}
