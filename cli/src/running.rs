//! Flags that mean the same in every command that runs a model.

use crate::{
    input::{BATCH, Lines},
    numbers::whole,
    output::Sink,
    precision::Precision,
    roofline::Profiling,
};
use anyhow::Result;
use clap::Args;
use engine::{Cpu, Device};
use std::path::PathBuf;

/// The flag `--threads`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Threads {
    /// Worker threads [default: all cores, or ALBERT_THREADS]
    #[arg(long, value_name = "N", value_parser = whole::<1, usize>)]
    threads: Option<usize>,
}

impl Threads {
    /// Sets the threads of the process. Called before the first use of the CPU.
    pub(crate) fn choose(self) {
        if let Some(threads) = self.threads {
            engine::choose_threads(threads);
        }
    }
}

/// Where and how a model is run.
#[derive(Clone, Debug, Args)]
pub(crate) struct Running {
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    threads: Threads,
    /// f32, bf16, bf16x3, bf16x6, int8 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, alias = "dtype", default_value = "f32")]
    pub(crate) precision: Precision,
    #[command(flatten)]
    pub(crate) profile: Profiling,
}

impl Running {
    /// The device.
    pub(crate) fn device(&self) -> Result<Device> {
        self.threads.choose();
        Ok(Device::named(&self.device, Cpu::detect()?)?)
    }
}

/// Where lines come from, and where and how results go.
#[derive(Clone, Debug, Args)]
pub(crate) struct Streaming {
    /// File of texts, one per line; - is standard input. It may be compressed (.gz, .zst)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) results: Results,
}

/// The flag `--batch`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Batch {
    /// Lines to run together at most; a line is not kept waiting for others
    #[arg(long = "batch", value_name = "LINES", default_value_t = BATCH, value_parser = whole::<1, usize>)]
    pub(crate) lines: usize,
}

/// Where and how results go.
#[derive(Clone, Debug, Args)]
pub(crate) struct Results {
    /// File for the results, which appears when all are written; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Repeat the input in each object of --json
    #[arg(long, requires = "json")]
    pub(crate) with_input: bool,
}

impl Results {
    /// Opens the output.
    pub(crate) fn sink(&self) -> Result<Sink> {
        Sink::create(self.output.as_deref())
    }
}

impl Streaming {
    /// The lines to run if they come from a file or from standard input, of `-` in the place of the text; else `None`.
    pub(crate) fn lines(&self, text: Option<&str>) -> Result<Option<Lines>> {
        crate::input::lines_of(text, self.input.as_ref()).map(|path| Lines::open(&path)).transpose()
    }
}
