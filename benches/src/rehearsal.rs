//! Planted faults in a simulated GPU, to test the scripts for a real one.
//!
//! | fault | effect, starting at the named case |
//! |---|---|
//! | hang | the launch never returns |
//! | crash | the process aborts, as after a segmentation fault in a driver |
//! | fault | the launch fails and so does every later call, as after an illegal address |
//! | wrong | the kernel does not run and its outputs are unchanged; this case only |

use engine::device::{
    Driver, DriverError, GpuInfo,
    driver::{Address, FunctionHandle, ReadHandle, Value},
};
use ptx::Launch;
use std::{
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The launch never returns.
    Hang,
    /// The process aborts.
    Crash,
    /// The launch and every later call fail.
    Fault,
    /// The kernel does not run.
    Wrong,
}

/// A fault and the case that it affects: `hang=gemm:3`, the third case of `gemm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planted {
    fault: Fault,
    work: String,
    number: usize,
}

impl FromStr for Planted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("--rehearse {text}: expected hang, crash, fault or wrong with a case, such as hang=gemm:3");
        let (fault, place) = text.split_once('=').ok_or_else(wrong)?;
        let (work, number) = place.split_once(':').unwrap_or((place, "1"));
        let fault = match fault {
            "hang" => Fault::Hang,
            "crash" => Fault::Crash,
            "fault" => Fault::Fault,
            "wrong" => Fault::Wrong,
            _ => return Err(wrong()),
        };
        Ok(Self { fault, work: work.to_owned(), number: number.parse().map_err(|_| wrong())? })
    }
}

/// Planted faults and the current case. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Stage(Arc<State>);

#[derive(Debug, Default)]
struct State {
    planted: Vec<Planted>,
    current: Mutex<Option<Fault>>,
    /// Every call on the device fails.
    lost: AtomicBool,
}

impl Stage {
    /// Stage with these faults.
    pub fn new(planted: Vec<Planted>) -> Self {
        Self(Arc::new(State { planted, ..State::default() }))
    }

    /// Starts case `number`, from 1, of `work`.
    pub fn enter(&self, work: &str, number: usize) {
        let found = self.0.planted.iter().find(|planted| planted.work == work && planted.number == number);
        *self.0.current.lock().unwrap_or_else(PoisonError::into_inner) = found.map(|planted| planted.fault);
    }

    fn current(&self) -> Option<Fault> {
        *self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the device is lost.
    fn alive(&self, call: &'static str) -> Result<(), DriverError> {
        let reason = || "rehearsed: CUDA_ERROR_ILLEGAL_ADDRESS".to_owned();
        if self.0.lost.load(Ordering::Relaxed) { Err(DriverError::Call { call, reason: reason() }) } else { Ok(()) }
    }
}

/// Driver with planted faults.
#[derive(Debug)]
pub struct Rehearsed<D> {
    driver: D,
    stage: Stage,
}

impl<D: Driver> Rehearsed<D> {
    /// `driver` with the faults of `stage`.
    pub fn new(driver: D, stage: Stage) -> Self {
        Self { driver, stage }
    }

    /// True if the launch runs.
    fn launches(&self) -> Result<bool, DriverError> {
        self.stage.alive("cuLaunchKernel")?;
        match self.stage.current() {
            None => return Ok(true),
            Some(Fault::Hang) => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            Some(Fault::Crash) => std::process::abort(),
            Some(Fault::Fault) => self.stage.0.lost.store(true, Ordering::Relaxed),
            Some(Fault::Wrong) => {}
        }
        Ok(false)
    }
}

impl<D: Driver> Driver for Rehearsed<D> {
    fn info(&self) -> &GpuInfo {
        self.driver.info()
    }

    fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError> {
        self.stage.alive("cuModuleLoadDataEx")?;
        self.driver.load(ptx, entry)
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DriverError> {
        self.stage.alive("cuMemAlloc")?;
        self.driver.allocate(bytes)
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.stage.alive("cuMemFree")?;
        self.driver.free(address)
    }

    fn copy_in(&self, target: Address, source: &[u8]) -> Result<(), DriverError> {
        self.stage.alive("cuMemcpyHtoDAsync")?;
        self.driver.copy_in(target, source)
    }

    fn copy_out(&self, target: &mut [u8], source: Address) -> Result<(), DriverError> {
        self.stage.alive("cuMemcpyDtoH")?;
        self.driver.copy_out(target, source)
    }

    fn begin_read(&self, source: Address, bytes: usize) -> Result<ReadHandle, DriverError> {
        self.stage.alive("cuMemcpyDtoHAsync")?;
        self.driver.begin_read(source, bytes)
    }

    fn end_read(&self, read: ReadHandle, target: Option<&mut [u8]>) -> Result<(), DriverError> {
        self.stage.alive("cuEventSynchronize")?;
        self.driver.end_read(read, target)
    }

    fn fill(&self, target: Address, bytes: usize, value: u8) -> Result<(), DriverError> {
        self.stage.alive("cuMemsetD8Async")?;
        self.driver.fill(target, bytes, value)
    }

    fn launch(&self, function: FunctionHandle, launch: Launch, arguments: &[Value]) -> Result<(), DriverError> {
        if self.launches()? { self.driver.launch(function, launch, arguments) } else { Ok(()) }
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.stage.alive("cuStreamSynchronize")?;
        self.driver.synchronize()
    }

    fn is_simulated(&self) -> bool {
        self.driver.is_simulated()
    }

    fn stream(&self) -> Result<usize, DriverError> {
        self.driver.stream()
    }

    fn library_address(&self, address: Address, bytes: usize, is_written: bool) -> Result<usize, DriverError> {
        self.driver.library_address(address, bytes, is_written)
    }

    fn is_idle(&self) -> Result<bool, DriverError> {
        self.stage.alive("cuStreamQuery")?;
        self.driver.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::device::simulated::SimulatedDriver;

    #[test]
    fn a_plan_names_fault_work_and_number() {
        let planted = |fault, number| Ok(Planted { fault, work: "gemm".to_owned(), number });
        assert_eq!("hang=gemm:3".parse(), planted(Fault::Hang, 3));
        assert_eq!("wrong=gemm".parse(), planted(Fault::Wrong, 1));
        for text in ["hang", "burn=gemm", "crash=gemm:x"] {
            assert!(text.parse::<Planted>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_fault_strikes_its_piece_of_work_and_every_later_call() {
        let stage = Stage::new(vec!["fault=gemm:2".parse().unwrap(), "wrong=activation".parse().unwrap()]);
        let driver = Rehearsed::new(SimulatedDriver::new((8, 0)), stage.clone());
        stage.enter("gemm", 1);
        assert_eq!(driver.launches(), Ok(true));
        stage.enter("activation", 1);
        assert_eq!((driver.launches(), driver.synchronize()), (Ok(false), Ok(())));
        stage.enter("gemm", 2);
        assert_eq!(driver.launches(), Ok(false));
        stage.enter("gemm", 3);
        assert!(driver.synchronize().is_err() && driver.launches().is_err() && driver.allocate(1).is_err());
    }
}
