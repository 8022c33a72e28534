//! The simulator of `ptx::sim` behind [`Driver`]: a GPU on any machine, for tests.
//!
//! It runs the very text that a real driver would get, and a kernel that does something forbidden (a race, an access
//! outside its memory, an uninitialized value) is an error of the launch, with the line of the Rust source. It is some
//! ten thousand times slower than a GPU.

use super::driver::{Address, Driver, DriverError, FunctionHandle, GpuInfo, ReadHandle, Value};
use ptx::{
    Launch, Sm,
    sim::{self, Memory, Module, Options},
};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// A simulated GPU.
#[derive(Debug)]
pub struct SimulatedDriver {
    info: GpuInfo,
    state: Mutex<State>,
    /// Pieces of work of libraries that are not done. On the heap: its address is the handle of the stream.
    library_work: Box<AtomicU64>,
}

#[derive(Debug)]
struct State {
    memory: Memory,
    /// Modules, each with its entry.
    loaded: Vec<(Module, String)>,
    options: Options,
    /// Bytes of the reads that were begun.
    reads: Vec<Option<Vec<u8>>>,
}

impl SimulatedDriver {
    /// A GPU of the given compute capability: (8, 0) or (9, 0).
    pub fn new(compute_capability: (u32, u32)) -> Self {
        let (major, minor) = compute_capability;
        let info = GpuInfo {
            name: format!("simulated GPU (sm_{major}{minor})"),
            compute_capability,
            memory: 16 << 30,
            multiprocessors: kernels_cuda::gpu_spec::GpuSpec::H200.multiprocessors as u32,
            clock: 0,
            bandwidth: 0,
            driver: (13, 0),
        };
        // A program for sm_80 multiplies on the tensor cores of this GPU.
        let options = Options { gpu: Some(if major >= 9 { Sm::Sm90a } else { Sm::Sm80 }), ..Options::default() };
        let state = Mutex::new(State { memory: Memory::new(), loaded: Vec::new(), options, reads: Vec::new() });
        Self { info, state, library_work: Box::default() }
    }

    /// A simulated GPU with so much memory.
    #[cfg(test)]
    pub(crate) fn with_memory(mut self, bytes: u64) -> Self {
        self.info.memory = bytes;
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A launch that panicked may have left its outputs half written, as a fault on a GPU does; nothing else.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(call: &'static str) -> impl Fn(sim::Error) -> DriverError {
    move |error| DriverError::Call { call, reason: error.to_string() }
}

fn foreign() -> DriverError {
    DriverError::Call { call: "launch", reason: "the handle belongs to another driver".to_owned() }
}

impl Driver for SimulatedDriver {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError> {
        // Decoded at once: a driver's error about a kernel comes when it is loaded.
        let module = Module::parse(ptx).and_then(|module| module.decode(entry).map(|()| module));
        let module = module.map_err(|error| DriverError::Ptx { entry: entry.to_owned(), log: error.to_string() })?;
        let mut state = self.state();
        state.loaded.push((module, entry.to_owned()));
        Ok(FunctionHandle(state.loaded.len() - 1))
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DriverError> {
        Ok(Address(self.state().memory.allocate("tensor", bytes)))
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.state().memory.free(address.0).map_err(failed("free"))
    }

    fn copy_in(&self, target: Address, source: &[u8]) -> Result<(), DriverError> {
        self.state().memory.copy_in(target.0, source).map_err(failed("copy to the device"))
    }

    fn copy_out(&self, target: &mut [u8], source: Address) -> Result<(), DriverError> {
        self.state().memory.copy_out(target, source.0).map_err(failed("copy from the device"))
    }

    fn begin_read(&self, source: Address, bytes: usize) -> Result<ReadHandle, DriverError> {
        let mut target = vec![0; bytes];
        self.copy_out(&mut target, source)?;
        let reads = &mut self.state().reads;
        let place = reads.iter().position(Option::is_none).unwrap_or(reads.len());
        if place == reads.len() {
            reads.push(None);
        }
        reads[place] = Some(target);
        Ok(ReadHandle(place))
    }

    fn end_read(&self, read: ReadHandle, target: Option<&mut [u8]>) -> Result<(), DriverError> {
        let read = self.state().reads.get_mut(read.0).and_then(Option::take).ok_or_else(foreign)?;
        if let Some(target) = target {
            target.copy_from_slice(&read);
        }
        Ok(())
    }

    fn fill(&self, target: Address, bytes: usize, value: u8) -> Result<(), DriverError> {
        self.copy_in(target, &vec![value; bytes])
    }

    fn launch(&self, function: FunctionHandle, launch: Launch, arguments: &[Value]) -> Result<(), DriverError> {
        let arguments: Vec<sim::Argument> = arguments.iter().copied().map(Into::into).collect();
        let State { memory, loaded, options, .. } = &mut *self.state();
        let (module, entry) = loaded.get(function.0).ok_or_else(foreign)?;
        let refused = |reason: String| DriverError::Kernel { entry: entry.clone(), reason };
        let report =
            module.launch(entry, launch, &arguments, memory, options).map_err(|error| refused(error.to_string()))?;
        report.clean().map(|_| ()).map_err(refused)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn skip_race_search(&self) {
        self.state().options.races = false;
    }

    fn stream(&self) -> Result<usize, DriverError> {
        Ok(std::ptr::from_ref(&*self.library_work).expose_provenance())
    }

    fn library_address(&self, address: Address, bytes: usize, is_written: bool) -> Result<usize, DriverError> {
        let pointer = self.state().memory.host_pointer(address.0, bytes, is_written).map_err(failed("library"))?;
        Ok(pointer.expose_provenance())
    }

    fn is_idle(&self) -> Result<bool, DriverError> {
        // What the library wrote before it subtracted is visible from here on.
        Ok(self.library_work.load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    /// A library that adds a piece of work, as one for simulated GPUs does.
    #[test]
    fn a_library_reads_and_writes_at_the_addresses_that_it_is_given() {
        let driver = SimulatedDriver::new((8, 0));
        let memory = driver.allocate(64).unwrap();
        driver.copy_in(memory, &[5; 32]).unwrap();
        let at = |byte| Address(memory.0 + byte);
        let error = driver.library_address(at(16), 32, false).unwrap_err().to_string();
        assert!(error.contains("byte 32 of `tensor` was never written"), "{error}");
        assert!(driver.library_address(at(48), 32, true).is_err(), "beyond the allocation");
        let from = driver.library_address(at(8), 8, false).unwrap();
        let to = driver.library_address(at(40), 8, true).unwrap();
        let work: *const AtomicU64 = std::ptr::with_exposed_provenance(driver.stream().unwrap());
        assert!(driver.is_idle().unwrap());
        // SAFETY: the handle is the address of the counter, which lives as long as the driver.
        let work = unsafe { &*work };
        work.fetch_add(1, Ordering::Relaxed);
        assert!(!driver.is_idle().unwrap());
        // SAFETY: both are 8 bytes of the allocation that do not overlap, and no other thread uses it.
        unsafe {
            let from: *const u8 = std::ptr::with_exposed_provenance(from);
            std::ptr::copy_nonoverlapping(from, std::ptr::with_exposed_provenance_mut(to), 8);
        }
        work.fetch_sub(1, Ordering::Release);
        assert!(driver.is_idle().unwrap());
        let mut seen = [0; 8];
        driver.copy_out(&mut seen, at(40)).unwrap();
        assert_eq!(seen, [5; 8]);
    }

    #[test]
    fn races_are_searched_unless_the_search_is_skipped() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry race(.param .u64 x)\n{\n\
                    .reg .u64 %rd<1>;\nld.param.u64 %rd0, [x];\nst.global.u32 [%rd0], 7;\nret;\n}\n";
        let driver = SimulatedDriver::new((8, 0));
        let function = driver.load(text, "race").unwrap();
        let memory = driver.allocate(4).unwrap();
        let run = || {
            let launch = Launch { grid: [1; 3], block: [2, 1, 1], shared_bytes: 0 };
            driver.launch(function, launch, &[Value::Address(memory)])
        };
        assert!(run().unwrap_err().to_string().contains("race"));
        driver.skip_race_search();
        run().unwrap();
        let mut seen = [0; 4];
        driver.copy_out(&mut seen, memory).unwrap();
        assert_eq!(seen, [7, 0, 0, 0]);
    }
}
