//! Flags shared by all commands that run a model.

use crate::{
    input::{Faults, Kind, Lines},
    numbers::whole,
    output::Sink,
    precision::Precision,
    roofline::Profiling,
    tracing::Tracing,
};
use albert_tasks::finetune::{Offsets, Predictor};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use engine::{Cpu, Device};
use measure::plan::Weights;
use std::path::PathBuf;

/// The flag `--threads`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Threads {
    /// Worker threads [default: all cores, or ALBERT_THREADS]
    #[arg(long, value_name = "N", value_parser = whole::<1, usize>)]
    threads: Option<usize>,
}

impl Threads {
    /// Sets the threads of the process. Must be called before the first use of the CPU.
    pub(crate) fn choose(self) {
        if let Some(threads) = self.threads {
            engine::choose_threads(threads);
        }
    }
}

/// Flags for the device and precision of a model.
#[derive(Clone, Debug, Args)]
pub(crate) struct Running {
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
    #[command(flatten)]
    threads: Threads,
    /// f32, bf16, bf16x3, bf16x6, int8 or auto: bf16 if this machine multiplies it faster than f32
    #[arg(long, alias = "dtype", default_value = "f32")]
    precision: Precision,
    /// Storage of the weights of dense layers: bf16 rounds them and multiplies in f32, which is faster for a single short text
    /// with AVX-512. Only with --precision f32 on the CPU
    #[arg(long, value_enum, default_value_t)]
    weights: Weights,
    #[command(flatten)]
    pub(crate) profile: Profiling,
    #[command(flatten)]
    trace: Tracing,
}

impl Running {
    /// Opens the device and loads the fine-tuned models of `folders` on it.
    pub(crate) fn predictor(&self, folders: &[PathBuf]) -> Result<(Device, Predictor)> {
        let device = self.device()?;
        let mut predictor = Predictor::load(folders, &device)?;
        predictor.set_precision(self.precision(&device)?)?;
        predictor.profile().set(self.profile.on);
        Ok((device, predictor))
    }

    /// Precision on `device`.
    pub(crate) fn precision(&self, device: &Device) -> Result<engine::Precision> {
        let is_gpu = device.gpu().is_some();
        ensure!(
            self.weights == Weights::F32 || !is_gpu,
            "--weights bf16: only the CPU has it; remove --device or --weights"
        );
        self.weights.of(self.precision.on(device))
    }

    /// Opens the device and starts the trace.
    pub(crate) fn device(&self) -> Result<Device> {
        self.trace.start_until_signal()?;
        self.threads.choose();
        Ok(Device::named(&self.device, Cpu::detect()?)?)
    }
}

/// Flags for the input of lines and the output of results.
#[derive(Clone, Debug, Args)]
pub(crate) struct Streaming {
    /// File of texts, one per line; - is standard input. It may be compressed (.gz, .zst)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) faults: Faults,
    #[command(flatten)]
    pub(crate) results: Results,
}

/// The flag `--field`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Field {
    /// Field of JSON Lines with the text; a.b is a field within a field [default: lines are texts]
    #[arg(long, value_name = "NAME")]
    pub(crate) field: Option<String>,
}

/// The flag `--offsets`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Places {
    /// Unit of start and end of an answer in its text
    #[arg(long, value_enum, default_value = "chars")]
    offsets: Unit,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Unit {
    /// Characters (Unicode code points), as in Python
    Chars,
    /// Bytes of UTF-8
    Bytes,
    /// Units of UTF-16, as in JavaScript and Java
    Utf16,
}

impl Places {
    pub(crate) fn offsets(self) -> Offsets {
        match self.offsets {
            Unit::Chars => Offsets::Characters,
            Unit::Bytes => Offsets::Bytes,
            Unit::Utf16 => Offsets::Utf16,
        }
    }
}

/// The flag `--batch`.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Batch {
    /// Maximum number of lines to run together; a line does not wait for later ones [default: 64, on a GPU 1024]
    #[arg(long = "batch", value_name = "LINES", value_parser = whole::<1, usize>)]
    pub(crate) lines: Option<usize>,
}

/// Flags for the output of results.
#[derive(Clone, Debug, Args)]
pub(crate) struct Results {
    /// File for the results, which appears when all results are written; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print JSON, one object per line; also for a file that ends in .jsonl
    #[arg(long)]
    json: bool,
    /// Repeat the input before each result: as a column, with --json as a field
    #[arg(long)]
    pub(crate) with_input: bool,
}

impl Results {
    /// True if results are JSON, by the flag or by the name of the file.
    pub(crate) fn json(&self) -> bool {
        let ending = self.output.as_ref().and_then(|path| path.extension());
        self.json || ending.is_some_and(|ending| ending == "jsonl" || ending == "ndjson")
    }

    /// Opens the output.
    pub(crate) fn sink(&self) -> Result<Sink> {
        let is_document =
            self.output.as_ref().is_some_and(|path| path.extension().is_some_and(|ending| ending == "json"));
        ensure!(!is_document || self.json, "--output: results are lines; name the file .jsonl, or .txt without JSON");
        Sink::create(self.output.as_deref())
    }
}

impl Streaming {
    /// Opens the lines to run if they come from a file or, for the text `-`, from standard input; otherwise `None`.
    pub(crate) fn lines(&self, text: Option<&str>, kind: Kind) -> Result<Option<Lines>> {
        crate::input::lines_of(text, self.input.as_ref()).map(|path| Lines::open(&path, kind)).transpose()
    }
}
