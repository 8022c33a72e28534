//! The simulator of `kernels::ptx::sim` behind [`Driver`]: a GPU on any machine, for tests.
//!
//! It runs the very text that a real driver would get, and a kernel that does something forbidden (a race, an access
//! outside its memory, a value that nobody wrote) is an error of the launch, with the line of the Rust source. It is some
//! ten thousand times slower than what it stands for.

use super::driver::{Argument, DeviceAddress, Driver, DriverError, FunctionHandle, GpuInfo};
use kernels::{
    operation::Launch,
    ptx::sim::{self, Memory, Module, Options},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A simulated GPU.
#[derive(Debug)]
pub struct SimulatedDriver {
    info: GpuInfo,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    memory: Memory,
    /// Modules with the entry that was asked for.
    loaded: Vec<(Module, String)>,
}

impl SimulatedDriver {
    /// A GPU of the given compute capability: (8, 0) or (9, 0).
    pub fn new(compute_capability: (u32, u32)) -> Self {
        let (major, minor) = compute_capability;
        let info = GpuInfo {
            name: format!("simulated GPU (sm_{major}{minor})"),
            compute_capability,
            memory: 16 << 30,
            multiprocessors: 132,
            driver: (13, 0),
        };
        Self { info, state: Mutex::new(State { memory: Memory::new(), loaded: Vec::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A launch that panicked may have left its outputs half written, as a fault on a GPU does; nothing else.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(call: &'static str) -> impl Fn(sim::Error) -> DriverError {
    move |error| DriverError::Call { call, reason: error.to_string() }
}

impl Driver for SimulatedDriver {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError> {
        let module =
            Module::parse(ptx).map_err(|error| DriverError::Ptx { entry: entry.to_owned(), log: error.to_string() })?;
        let mut state = self.state();
        state.loaded.push((module, entry.to_owned()));
        Ok(FunctionHandle(state.loaded.len() - 1))
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DriverError> {
        Ok(DeviceAddress(self.state().memory.allocate("tensor", bytes)))
    }

    fn free(&self, address: DeviceAddress) -> Result<(), DriverError> {
        self.state().memory.free(address.0).map_err(failed("free"))
    }

    fn copy_in(&self, target: DeviceAddress, source: &[u8]) -> Result<(), DriverError> {
        self.state().memory.copy_in(target.0, source).map_err(failed("copy to the device"))
    }

    fn copy_out(&self, target: &mut [u8], source: DeviceAddress) -> Result<(), DriverError> {
        self.state().memory.copy_out(target, source.0).map_err(failed("copy from the device"))
    }

    fn fill(&self, target: DeviceAddress, bytes: usize, value: u8) -> Result<(), DriverError> {
        self.copy_in(target, &vec![value; bytes])
    }

    fn launch(&self, function: FunctionHandle, launch: Launch, arguments: &[Argument]) -> Result<(), DriverError> {
        let arguments: Vec<sim::Argument> = arguments
            .iter()
            .map(|argument| match *argument {
                Argument::Address(DeviceAddress(address)) => sim::Argument::U64(address),
                Argument::U32(value) => sim::Argument::U32(value),
                Argument::U64(value) => sim::Argument::U64(value),
                Argument::F32(value) => sim::Argument::F32(value),
                Argument::TensorMap(map) => sim::Argument::TensorMap(map.into()),
            })
            .collect();
        let State { memory, loaded } = &mut *self.state();
        let (module, entry) = loaded.get(function.0).ok_or_else(|| DriverError::Call {
            call: "launch",
            reason: "the function belongs to another driver".to_owned(),
        })?;
        let report = module.launch(entry, launch, &arguments, memory, &Options::default()).map_err(failed("launch"))?;
        report.clean().map(|_| ()).map_err(|findings| DriverError::Call { call: "launch", reason: findings })
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        Ok(())
    }
}
