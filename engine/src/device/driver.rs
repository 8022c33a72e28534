//! Interface of a GPU driver: modules, memory, copies, launches. Nothing about tensors.
//!
//! A small trait, so that the real driver ([`super::cuda`]) and a simulated one can stand behind the same device. All
//! calls are in order on one stream; only [`Driver::synchronize`], [`Driver::copy_out`] and [`Driver::end_read`] wait.

pub use crate::error::DriverError;
use crate::profile::Peak;
pub use kernels_cuda::arguments::{Address, Value};
use ptx::Launch;
use std::fmt;

/// A function of a loaded module; the number has a meaning to its driver alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionHandle(pub usize);

/// A copy to the host that was begun; the number has a meaning to its driver alone.
#[derive(Debug)]
pub struct ReadHandle(pub usize);

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Device name as reported by the driver.
    pub name: String,
    /// Major and minor number of the instruction set: (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Memory in bytes.
    pub memory: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The fastest clock of the multiprocessors in kHz; 0 where time means nothing.
    pub clock: u32,
    /// Bytes that its memory moves a second at its fastest clock; 0 where time means nothing.
    pub bandwidth: u64,
    /// The newest CUDA version that the driver speaks, as major and minor number.
    pub driver: (u32, u32),
}

impl GpuInfo {
    /// Peak at its fastest clock, which it does not sustain under load: products of bf16 with sums in f32, and
    /// its memory. `None` for a simulated one, and for an architecture whose tensor cores are not in the list.
    pub(crate) fn peak(&self) -> Option<Peak> {
        // FLOPs of a multiprocessor in a cycle, from the peaks that NVIDIA states for the largest GPU of each.
        let tensor_cores = match self.compute_capability {
            (8, 0) => 2048.0,
            (8, 6 | 9) | (12, 0) => 1024.0,
            (9, 0) => 4096.0,
            (10, 0) => 8192.0,
            _ => return None,
        };
        if self.clock == 0 || self.bandwidth == 0 {
            return None;
        }
        let cycles = 1e3 * f64::from(self.clock) * f64::from(self.multiprocessors);
        Some(Peak::without_caches(tensor_cores * cycles, self.bandwidth as f64))
    }
}

impl fmt::Display for GpuInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((major, minor), (driver, driver_minor)) = (self.compute_capability, self.driver);
        let gib = self.memory as f64 / f64::from(1 << 30);
        write!(
            f,
            "{}: sm_{major}{minor}, {} multiprocessors, {gib:.1} GiB, driver for CUDA {driver}.{driver_minor}",
            self.name, self.multiprocessors
        )?;
        if let Some(Peak { flops, bandwidth, .. }) = self.peak() {
            write!(f, "; at most {:.0} TFLOP/s in bf16 and {:.1} TB/s", flops / 1e12, bandwidth / 1e12)?;
        }
        Ok(())
    }
}

/// A device that runs PTX.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Properties of the device.
    fn info(&self) -> &GpuInfo;

    /// Compiles the text of a module and finds `entry` in it. Kept until the driver is dropped.
    ///
    /// # Errors
    /// The text is refused (with the compiler's log), or has no such entry.
    fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError>;

    /// Memory for `bytes` bytes, 256-byte aligned, not initialized.
    ///
    /// # Errors
    /// There is not enough.
    fn allocate(&self, bytes: usize) -> Result<Address, DriverError>;

    /// Frees memory from `allocate`.
    ///
    /// # Errors
    /// `address` is not the start of an allocation.
    fn free(&self, address: Address) -> Result<(), DriverError>;

    /// Copies bytes to the device, in order with launches.
    ///
    /// # Errors
    /// The target is not within one allocation.
    fn copy_in(&self, target: Address, source: &[u8]) -> Result<(), DriverError>;

    /// Copies bytes to the host, after everything launched before.
    ///
    /// # Errors
    /// The source is not within one allocation, or an earlier launch failed.
    fn copy_out(&self, target: &mut [u8], source: Address) -> Result<(), DriverError>;

    /// Begins to copy bytes to the host, after everything launched before, without a wait.
    ///
    /// # Errors
    /// The source is not within one allocation.
    fn begin_read(&self, source: Address, bytes: usize) -> Result<ReadHandle, DriverError>;

    /// Ends a read. Its bytes go to `target`, which is as long, once they are there; without a target, they are dropped.
    ///
    /// # Errors
    /// An earlier launch failed.
    fn end_read(&self, read: ReadHandle, target: Option<&mut [u8]>) -> Result<(), DriverError>;

    /// Sets `bytes` bytes to `value`, in order with launches.
    ///
    /// # Errors
    /// The target is not within one allocation.
    fn fill(&self, target: Address, bytes: usize, value: u8) -> Result<(), DriverError>;

    /// Starts a kernel; one that executes `griddepcontrol.wait` may start before earlier ones are complete. The arguments must be
    /// those that its PTX declares, and every address it reaches must be allocated: a kernel that breaks this corrupts the memory
    /// of the device, never that of the host.
    ///
    /// # Errors
    /// The shape is not possible on this device. Faults of the kernel itself come with a later call.
    fn launch(&self, function: FunctionHandle, launch: Launch, arguments: &[Value]) -> Result<(), DriverError>;

    /// Places mark number `mark` after everything launched so far; a mark can be placed again. Returns false on a device without
    /// time.
    ///
    /// # Errors
    /// The driver refuses it.
    fn mark(&self, mark: usize) -> Result<bool, DriverError> {
        let _ = mark;
        Ok(false)
    }

    /// Milliseconds between two marks, after a wait for both.
    ///
    /// # Errors
    /// A mark was never placed, or a kernel failed.
    fn milliseconds(&self, from: usize, to: usize) -> Result<f32, DriverError> {
        let reason = format!("marks {from} and {to} were never placed");
        Err(DriverError::Call { call: "cuEventElapsedTime", reason })
    }

    /// Waits until everything launched is done.
    ///
    /// # Errors
    /// A kernel failed.
    fn synchronize(&self) -> Result<(), DriverError>;

    /// True if only libraries made for the simulator can use the stream and the memory.
    fn is_simulated(&self) -> bool;

    /// Ends the search for races of a simulated GPU, which takes most of its time; its values stay the same.
    fn skip_race_search(&self) {}

    /// Makes the device current on this thread and returns the handle of the stream, for a library that adds work to it. A
    /// simulated device has the address of an `AtomicU64` as its handle: the library adds 1 for each piece of work, and
    /// subtracts it when the work is done.
    ///
    /// # Errors
    /// The device cannot be made current.
    fn stream(&self) -> Result<usize, DriverError>;

    /// Address that a library is given for `bytes` bytes at `address`, which it reads, or writes if `is_written`, until the
    /// stream is idle. Valid until the memory is freed; nothing else uses the bytes meanwhile.
    ///
    /// # Errors
    /// They are not within one allocation, or not initialized. A real driver checks neither.
    fn library_address(&self, address: Address, bytes: usize, is_written: bool) -> Result<usize, DriverError>;

    /// True if everything on the stream is done.
    ///
    /// # Errors
    /// A kernel failed.
    fn is_idle(&self) -> Result<bool, DriverError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_the_clock_times_what_the_tensor_cores_do_in_a_cycle() {
        // An A100 of 40 GB: NVIDIA states 312 TFLOP/s and 1,555 GB/s.
        let a100 = GpuInfo {
            name: "NVIDIA A100-SXM4-40GB".into(),
            compute_capability: (8, 0),
            memory: 40 << 30,
            multiprocessors: 108,
            clock: 1_410_000,
            bandwidth: 2_000 * 1_215_000 * 5120 / 8,
            driver: (12, 4),
        };
        let peak = a100.peak().unwrap();
        assert!((peak.flops / 312e12 - 1.0).abs() < 1e-3 && (peak.bandwidth / 1555e9 - 1.0).abs() < 1e-3, "{peak:?}");
        assert!(a100.to_string().ends_with("; at most 312 TFLOP/s in bf16 and 1.6 TB/s"), "{a100}");
        assert_eq!(GpuInfo { compute_capability: (7, 5), ..a100.clone() }.peak(), None, "not in the list");
        assert_eq!(GpuInfo { clock: 0, ..a100 }.peak(), None, "simulated");
    }
}
