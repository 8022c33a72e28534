//! Kernels of a GPU in a trace: each is timed by two marks on the stream, which are read when later launches need their places.
//!
//! ```text
//! stream   mark 0 ─ kernel ─ mark 1   mark 2 ─ kernel ─ mark 3  ..      kernel n has marks 2n and 2n + 1, modulo the places
//! start of kernel n + 1 = start of kernel n + milliseconds from mark 2n to mark 2n + 2
//! ```
//!
//! So nothing waits for the GPU but a launch that is 1024 ahead of it, and no time is relative to one long ago, which would have
//! few bits. The first start is the host's time while the GPU is idle.

use super::driver::{Driver, DriverError, FunctionHandle};
use crate::trace::{self, Track};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Launches whose marks are not read.
const PLACES: usize = 1024;

/// Launches on one stream.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    track: Option<Arc<Track>>,
    names: HashMap<FunctionHandle, String>,
    /// Launches whose marks are not read, the oldest first; and all so far.
    pending: VecDeque<FunctionHandle>,
    launches: usize,
    /// Nanoseconds of the trace at the start of the oldest, and at the end of the one before.
    start: f64,
    end: f64,
}

impl Timeline {
    /// Names the kernel that `function` is.
    pub(super) fn name(&mut self, function: FunctionHandle, entry: String) {
        self.names.insert(function, entry);
    }

    /// Runs `launch` between two marks; without, on a device that has no time.
    pub(super) fn launch(
        &mut self,
        driver: &dyn Driver,
        function: FunctionHandle,
        launch: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        if self.pending.len() == PLACES {
            self.read(driver)?;
        }
        if self.launches == 0 {
            driver.synchronize()?;
        }
        let mark = 2 * (self.launches % PLACES);
        if !driver.mark(mark)? {
            return launch();
        }
        if self.track.is_none() {
            self.start = trace::now() as f64;
            self.track = Some(Track::new(format!("GPU: {}", driver.info().name)));
        }
        launch()?;
        driver.mark(mark + 1)?;
        self.pending.push_back(function);
        self.launches += 1;
        Ok(())
    }

    /// Reads the marks of the oldest launch.
    fn read(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        let place = (self.launches - self.pending.len()) % PLACES;
        let Some(function) = self.pending.pop_front() else { return Ok(()) };
        let nanos = |from, to| driver.milliseconds(from, to).map(|millis| f64::from(millis) * 1e6);
        let end = self.start + nanos(2 * place, 2 * place + 1)?;
        // The driver rounds, by as much as half a microsecond.
        let start = self.start.max(self.end);
        self.end = end.max(start);
        if let (Some(track), Some(name)) = (&self.track, self.names.get(&function)) {
            track.add(name.clone(), start as u64, self.end as u64 - start as u64);
        }
        if !self.pending.is_empty() {
            self.start += nanos(2 * place, 2 * ((place + 1) % PLACES))?;
        }
        Ok(())
    }

    /// Reads the marks of all launches, at the end of the trace.
    pub(super) fn finish(&mut self, driver: &dyn Driver) {
        // An error of the device is the run's own to report.
        while !self.pending.is_empty() && self.read(driver).is_ok() {}
    }
}
