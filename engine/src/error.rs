//! Errors, one sentence each: which operation, tensor, parameter or file, what was expected, what to do next.
use std::path::{Path, PathBuf};

/// Everything that the engine reports. Panics are left to broken invariants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Shapes do not fit together.
    #[error("{operation}: {problem}")]
    Shape {
        /// The operation, with its parameter where it has one.
        operation: String,
        /// The shapes, and what was expected.
        problem: String,
    },
    /// An operation does not take this element type.
    #[error("{operation}: {problem}")]
    DType {
        /// The operation, with its parameter where it has one.
        operation: String,
        /// The type given and the types taken.
        problem: String,
    },
    /// A gradient would have been cut.
    #[error(
        "{operation} has no backward pass, but input {input} (shape {shape:?}) requires a gradient; detach it, or record the \
         step without gradients"
    )]
    NoBackward {
        /// The operation.
        operation: String,
        /// Position of the input.
        input: usize,
        /// Shape of the input.
        shape: Vec<usize>,
    },
    /// `backward` was called on a value that does not require a gradient.
    #[error("backward: {0}")]
    Backward(String),
    /// A parameter is missing, doubled or not as an operation needs it.
    #[error("parameter {name}: {problem}")]
    Parameter {
        /// Name of the parameter.
        name: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// A loss or a norm is NaN or infinite.
    #[error("{what} is {value} at step {step}; lower the learning rate, clip the gradient or look at the batch")]
    NotFinite {
        /// The measured quantity.
        what: String,
        /// The value.
        value: f64,
        /// The step of the optimizer.
        step: u64,
    },
    /// The system has no memory left.
    #[error("cannot allocate {bytes} bytes")]
    Memory {
        /// The size of the request.
        bytes: usize,
    },
    /// A setting has no meaning.
    #[error("{setting} = {value}: {problem}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: String,
        /// The expected value.
        problem: String,
    },
    /// A launcher's processes cannot find each other.
    #[error("{0}")]
    Launch(String),
    /// Another rank did not do its part.
    #[error("rank {rank}, {what}: {problem}")]
    Communication {
        /// This rank.
        rank: usize,
        /// Name of the exchange, for instance `losses of step 8`.
        what: String,
        /// The rank, and what happened.
        problem: String,
    },
    /// A device cannot be used.
    #[error("{0}")]
    Device(String),
    /// A GPU's driver failed, or there is none.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The operation has no kernel for the device.
    #[error("{operation} has no CUDA kernel yet; run on the CPU")]
    NotOnGpu {
        /// The operation.
        operation: &'static str,
    },
    /// The processor's instruction set or threads cannot be had.
    #[error(transparent)]
    Cpu(#[from] kernels::CpuError),
    /// The operating system refused to read or write a file.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action, in the infinitive.
        action: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file holds something else than expected.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Expected and found values, and the remedy.
        problem: String,
    },
}

/// The engine's result.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

impl EngineError {
    /// Shapes that do not fit.
    pub fn shape(operation: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Shape { operation: operation.into(), problem: problem.into() }
    }
    /// An element type that is not taken.
    pub(crate) fn dtype(operation: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::DType { operation: operation.into(), problem: problem.into() }
    }
    /// A parameter that is not as needed.
    pub(crate) fn parameter(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Parameter { name: name.into(), problem: problem.into() }
    }
    /// A file that could not be read or written.
    pub fn io(path: impl AsRef<Path>, action: &'static str, source: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), action, source }
    }
    /// A file with unexpected content.
    pub fn file(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Self::File { path: path.as_ref().to_owned(), problem: problem.into() }
    }
}

/// Why a GPU cannot be used, or what it answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The library is not installed.
    #[error("no CUDA driver found (libcuda.so.1); install the NVIDIA driver or use the CPU")]
    NoLibrary,
    /// This program was built without it.
    #[error("this program was built without the feature `cuda`; build it with default features")]
    NotBuilt,
    /// The library is there and finds no device.
    #[error("the CUDA driver finds no GPU ({0}); check nvidia-smi, or use the CPU")]
    NoDevice(String),
    /// There are fewer devices than that.
    #[error("GPU {asked} does not exist: there are {present}")]
    Ordinal {
        /// The requested number, from 0.
        asked: usize,
        /// Number of devices.
        present: usize,
    },
    /// The driver's compiler refused the text of a kernel.
    #[error("the driver refused the PTX of {entry}: {log}")]
    Ptx {
        /// The function looked for.
        entry: String,
        /// Log of the compiler.
        log: String,
    },
    /// A kernel was refused, or found to do what it must not.
    #[error("kernel {entry}: {reason}")]
    Kernel {
        /// Entry of the kernel.
        entry: String,
        /// Error of the driver.
        reason: String,
    },
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Error of the driver.
        reason: String,
    },
}
