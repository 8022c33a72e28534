//! Records the launches of a step and submits them as one graph.
//!
//! ```text
//! launch, fill ───> nodes: [ fill | kernel | copy | kernel | ... ]            flush: uploads ── one copy ──> staging
//! upload ────────> bytes behind one another on the host, and a node           nodes ── Driver::run_graph ──> stream
//!                  that copies them from the device's staging memory
//! read, free, wait, a large upload, the end of the step ───────────────────── flush first, then as ever
//! ```
//!
//! Everything stays in order, so memory is handed on within a list as it is between launches. An upload may overwrite what
//! earlier nodes still read; that is why its bytes go to memory of their own first, and why that is one memory: the stream
//! is done with the list before when the next one's uploads begin.
//!
//! Cost: what a launch costs the host is paid twice when an argument has changed (once here, once by the driver), and the
//! GPU waits until the list is complete. Gain: kernels follow one another without the host. So it is for steps whose
//! kernels are shorter than their launches and whose arguments stay the same (docs/gpu.md).

use super::driver::{DeviceAddress, Driver, DriverError, GraphUse, Node};
use crate::error::{EngineError, Result};

/// Lists shorter than this are started one by one.
const SHORT: usize = 8;

/// Uploads larger than this are no part of a list: they are a whole model's parameters.
const LARGE: usize = 4 << 20;

/// Uploads begin at multiples of this in their staging memory.
const ALIGN: usize = 256;

/// When steps on a GPU are started as graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Graphs {
    /// Never.
    #[default]
    Off,
    /// Always.
    On,
}

impl Graphs {
    /// Value of `ALBERT_GRAPHS`: `on` or `off`, which is the default.
    ///
    /// # Errors
    /// It says something else.
    pub fn from_environment() -> Result<Self> {
        const NAME: &str = "ALBERT_GRAPHS";
        match std::env::var_os(NAME) {
            None => Ok(Self::default()),
            Some(value) => Self::named(&value.to_string_lossy()).ok_or_else(|| EngineError::Setting {
                setting: NAME,
                value: value.to_string_lossy().into_owned(),
                problem: "on or off was expected".to_owned(),
            }),
        }
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "on" => Self::On,
            "off" => Self::Off,
            _ => return None,
        })
    }
}

/// Counts of recorded work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphReport {
    /// Lists started as a graph.
    pub graphs: u64,
    /// Those of them for which a graph was built; the others used one again.
    pub built: u64,
    /// Kernels, fills and copies in all of them.
    pub nodes: u64,
    /// Nodes that were changed in graphs used again.
    pub changed: u64,
    /// Lists that were too short, and started one by one.
    pub short: u64,
    /// Nodes that wait now.
    pub waiting: usize,
}

/// The list, and the memory that its uploads go through.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// Steps that are being recorded.
    depth: u32,
    nodes: Vec<Node>,
    /// Bytes of the uploads, each at a multiple of [`ALIGN`].
    uploads: Vec<u8>,
    /// Which nodes they are, and where each begins.
    places: Vec<(usize, usize)>,
    /// Address and size of the staging memory.
    staging: Option<(DeviceAddress, usize)>,
    /// Error of a list that was submitted after its step.
    failed: Option<DriverError>,
    report: GraphReport,
}

impl Recorder {
    pub(super) fn begin(&mut self) {
        self.depth += 1;
    }

    /// Ends what [`Recorder::begin`] began. What waits is started; if that fails, the next call says so.
    pub(super) fn end(&mut self, driver: &dyn Driver) {
        self.depth = self.depth.checked_sub(1).expect("ended no more often than begun");
        if let Err(error) = self.flush(driver) {
            self.failed = Some(error);
        }
    }

    /// True while work is recorded.
    pub(super) fn is_on(&self) -> bool {
        self.depth > 0
    }

    pub(super) fn report(&self) -> GraphReport {
        GraphReport { waiting: self.nodes.len(), ..self.report }
    }

    /// Adds a kernel or a fill.
    pub(super) fn push(&mut self, node: Node) -> Result<(), DriverError> {
        self.nodes.push(node);
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Adds the copy of `source` to `target`, if it is small enough to wait.
    pub(super) fn upload(&mut self, target: DeviceAddress, source: &[u8]) -> bool {
        if !self.is_on() || source.is_empty() || self.uploads.len() + source.len() > LARGE {
            return false;
        }
        let start = self.uploads.len();
        self.uploads.extend_from_slice(source);
        self.uploads.resize(self.uploads.len().next_multiple_of(ALIGN), 0);
        self.places.push((self.nodes.len(), start));
        // Where the staging memory is, is known when all of it is.
        self.nodes.push(Node::Copy { target, source: DeviceAddress(0), bytes: source.len() });
        true
    }

    /// Starts what waits. After an error nothing waits any more.
    pub(super) fn flush(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        let outcome = match self.failed.take() {
            Some(error) => Err(error),
            None if self.nodes.is_empty() => Ok(()),
            None if self.nodes.len() < SHORT => self.one_by_one(driver),
            None => self.as_graph(driver),
        };
        self.nodes.clear();
        self.uploads.clear();
        self.places.clear();
        outcome
    }

    fn one_by_one(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        self.report.short += 1;
        let mut places = self.places.iter();
        for node in &self.nodes {
            match *node {
                Node::Launch { function, launch, ref arguments } => driver.launch(function, launch, arguments)?,
                Node::Fill { target, bytes, value } => driver.fill(target, bytes, value)?,
                Node::Copy { target, bytes, .. } => {
                    let &(_, start) = places.next().expect("every copy is an upload");
                    driver.copy_in(target, &self.uploads[start..start + bytes])?;
                }
            }
        }
        Ok(())
    }

    fn as_graph(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        if !self.uploads.is_empty() {
            let staging = self.staging(driver)?;
            for &(node, start) in &self.places {
                let Node::Copy { source, .. } = &mut self.nodes[node] else { unreachable!("uploads are copies") };
                *source = DeviceAddress(staging.0 + start as u64);
            }
            driver.copy_in(staging, &self.uploads)?;
        }
        let usage = driver.run_graph(&self.nodes)?;
        self.report.graphs += 1;
        self.report.nodes += self.nodes.len() as u64;
        match usage {
            GraphUse::Built => self.report.built += 1,
            GraphUse::Changed(nodes) => self.report.changed += nodes as u64,
        }
        Ok(())
    }

    /// Staging memory that holds all uploads.
    fn staging(&mut self, driver: &dyn Driver) -> Result<DeviceAddress, DriverError> {
        let needed = self.uploads.len();
        match self.staging {
            Some((address, bytes)) if bytes >= needed => Ok(address),
            old => {
                if let Some((address, _)) = old {
                    // An earlier list may still read it.
                    driver.synchronize()?;
                    self.staging = None;
                    driver.free(address)?;
                }
                let bytes = needed.next_power_of_two();
                let address = driver.allocate(bytes)?;
                self.staging = Some((address, bytes));
                Ok(address)
            }
        }
    }

    /// Gives the staging memory back.
    pub(super) fn release(&mut self, driver: &dyn Driver) {
        if let Some((address, _)) = self.staging.take() {
            // What cannot be freed goes with the driver.
            let _ = driver.free(address);
        }
    }
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
