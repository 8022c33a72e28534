//! What the engine asks of a GPU driver: modules, memory, copies, launches. Nothing about tensors.
//!
//! A small trait, so that the real driver ([`super::cuda`]) and a simulated one can stand behind the same device. All
//! calls are in order on one stream; only [`Driver::synchronize`] and copies to the host wait. Work that is known
//! beforehand can be given as a list ([`Driver::run_graph`]), which starts with one call.

use kernels::{operation::Launch, ptx::TensorMap};
use std::fmt;

/// An address in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceAddress(pub u64);

/// A function of a loaded module; the number has a meaning to its driver alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionHandle(pub usize);

/// One argument of a kernel, as PTX declares it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// `.u64`: an address of device memory.
    Address(DeviceAddress),
    /// `.u32`
    U32(u32),
    /// `.u64`
    U64(u64),
    /// `.f32`
    F32(f32),
    /// `.align 64 .b8 [128]`: a matrix, as the copy engine of Hopper is told of it.
    TensorMap(TensorMap),
}

/// A piece of work that a graph can hold: nothing that needs the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A kernel; as for [`Driver::launch`].
    Launch {
        /// Which.
        function: FunctionHandle,
        /// Its grid.
        launch: Launch,
        /// What its PTX declares.
        arguments: Vec<Argument>,
    },
    /// `bytes` bytes, at least one, from one place on the device to another that it does not overlap.
    Copy {
        /// Where to.
        target: DeviceAddress,
        /// Where from.
        source: DeviceAddress,
        /// How many.
        bytes: usize,
    },
    /// `bytes` bytes, at least one, set to `value`.
    Fill {
        /// Where.
        target: DeviceAddress,
        /// How many.
        bytes: usize,
        /// To what.
        value: u8,
    },
}

/// How [`Driver::run_graph`] came by its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphUse {
    /// It is the first of its kind.
    Built,
    /// An earlier one serves again, after so many of its nodes were changed.
    Changed(usize),
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// As the maker calls it.
    pub name: String,
    /// Major and minor number of the instruction set: (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Memory in bytes.
    pub memory: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The newest CUDA version that the driver speaks, as major and minor number.
    pub driver: (u32, u32),
}

impl fmt::Display for GpuInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((major, minor), (driver, driver_minor)) = (self.compute_capability, self.driver);
        let gib = self.memory as f64 / f64::from(1 << 30);
        write!(
            f,
            "{}: sm_{major}{minor}, {} multiprocessors, {gib:.1} GiB, driver for CUDA {driver}.{driver_minor}",
            self.name, self.multiprocessors
        )
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
        /// The number asked for, from 0.
        asked: usize,
        /// How many there are.
        present: usize,
    },
    /// The driver's compiler refused the text of a kernel.
    #[error("the driver refused the PTX of {entry}: {log}")]
    Ptx {
        /// The function looked for.
        entry: String,
        /// What the compiler wrote.
        log: String,
    },
    /// A kernel was refused, or found to do what it must not.
    #[error("kernel {entry}: {reason}")]
    Kernel {
        /// Its entry.
        entry: String,
        /// What the driver says.
        reason: String,
    },
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Its error.
        reason: String,
    },
}

/// A device that runs PTX.
pub trait Driver: Send + Sync + fmt::Debug {
    /// What the device is.
    fn info(&self) -> &GpuInfo;

    /// Compiles the text of a module and finds `entry` in it. Kept until the driver is dropped.
    ///
    /// # Errors
    /// The text is refused (with the compiler's log), or has no such entry.
    fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError>;

    /// Memory for `bytes` bytes, 256-byte aligned, not initialised.
    ///
    /// # Errors
    /// There is not enough.
    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DriverError>;

    /// Gives back what `allocate` gave.
    ///
    /// # Errors
    /// `address` is not the start of an allocation.
    fn free(&self, address: DeviceAddress) -> Result<(), DriverError>;

    /// Copies bytes to the device, in order with launches.
    ///
    /// # Errors
    /// The target is not within one allocation.
    fn copy_in(&self, target: DeviceAddress, source: &[u8]) -> Result<(), DriverError>;

    /// Copies bytes to the host, after everything launched before.
    ///
    /// # Errors
    /// The source is not within one allocation, or an earlier launch failed.
    fn copy_out(&self, target: &mut [u8], source: DeviceAddress) -> Result<(), DriverError>;

    /// Sets `bytes` bytes to `value`, in order with launches.
    ///
    /// # Errors
    /// The target is not within one allocation.
    fn fill(&self, target: DeviceAddress, bytes: usize, value: u8) -> Result<(), DriverError>;

    /// Starts a kernel. The arguments must be those that its PTX declares, and every address it reaches must be
    /// allocated: a kernel that breaks this corrupts the memory of the device, never that of the host.
    ///
    /// # Errors
    /// The shape is not possible on this device. Faults of the kernel itself come with a later call.
    fn launch(&self, function: FunctionHandle, launch: Launch, arguments: &[Argument]) -> Result<(), DriverError>;

    /// Whether [`Driver::run_graph`] can be called.
    fn has_graphs(&self) -> bool;

    /// Does what `nodes` say, one after another, started by one call. A graph of the same functions in the same order that
    /// an earlier call has built is used again: only nodes whose grid, arguments or addresses are others are changed.
    /// The same holds as for [`Driver::launch`].
    ///
    /// # Errors
    /// A node is not possible on this device; a kernel is named. Nodes before it may have run.
    fn run_graph(&self, nodes: &[Node]) -> Result<GraphUse, DriverError>;

    /// Waits until everything launched is done.
    ///
    /// # Errors
    /// A kernel failed.
    fn synchronize(&self) -> Result<(), DriverError>;
}
