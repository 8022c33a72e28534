//! A GPU as the engine uses it: memory that is kept for reuse, and kernels that are compiled once.
//!
//! ```text
//! operation ── kernel's specification ──> Gpu::function ── known? ── no ─> text from the assembler ─> Driver::load
//!                                              │ yes                                                     │
//!                                              └───────> Gpu::start ─> Driver::launch <──────────────────┘
//!
//! tensor dropped ──> Gpu's free list, by size ──> next tensor of that size (everything is in order on one stream, so
//!                                                 what used the memory before is done with it by then)
//! ```
//!
//! The same code drives a real GPU and the simulated one, through a [`Driver`].

use super::{
    driver::{Address, Driver, DriverError, FunctionHandle, GpuInfo, ReadHandle, Value},
    timeline::Timeline,
};
use crate::{
    error::{EngineError, Result},
    trace,
};
use kernels::Cpu;
use kernels_cuda::{arguments::Arguments, program::Program, reduce::COUNTERS};
use ptx::{Launch, Module, Sm};
use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    hash::Hash,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Sizes of allocations are rounded up to multiples of this, so that tensors of nearly the same size share memory.
const GRANULE: usize = 512;

/// Specialization of a kernel of another crate, for [`Gpu::launch_ptx`]. Equal values have the same text.
pub trait PtxKernel: Copy + Eq + Hash + Send + 'static {
    /// Name of the kernel in the text.
    fn entry(&self) -> String;
    /// The text for this architecture.
    fn module(&self, sm: Sm) -> Module;
}

/// A GPU. Cheap to clone; all clones are one device.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    driver: Box<dyn Driver>,
    /// The host's processor: files, batches, first values.
    host: Cpu,
    sm: Sm,
    /// By the type of the kernel's specification, a map from specifications to functions.
    functions: Mutex<HashMap<TypeId, Box<dyn Any + Send>>>,
    /// Arguments of a launch, kept for the next.
    values: Mutex<Vec<Value>>,
    /// Counters of blocks, shared by all kernels: each leaves them 0, and the next one starts after it.
    counters: Mutex<Option<Address>>,
    /// Launches in a trace; `None` without one.
    timeline: Option<Mutex<Timeline>>,
    #[cfg(test)]
    launches: AtomicU64,
    /// Bytes that the driver has given and not got back.
    given: AtomicU64,
    /// Free allocations, by size.
    free: Mutex<HashMap<usize, Vec<Address>>>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(self.0.driver.info()).finish()
    }
}

impl Gpu {
    /// The GPU behind `driver`, with `host` for the processor's part of the work.
    ///
    /// # Errors
    /// The GPU is older than the kernels need.
    pub fn new(driver: impl Driver + 'static, host: Cpu) -> Result<Self> {
        let info = driver.info();
        let sm = match info.compute_capability {
            (9, 0) => Sm::Sm90a,
            (major, _) if major >= 8 => Sm::Sm80,
            (major, minor) => {
                return Err(EngineError::Device(format!(
                    "{} has compute capability {major}.{minor}; kernels need 8.0 (Ampere) or later: use the CPU",
                    info.name
                )));
            }
        };
        let gpu = Self(Arc::new(Inner {
            driver: Box::new(driver),
            host,
            sm,
            functions: Mutex::default(),
            values: Mutex::default(),
            counters: Mutex::default(),
            timeline: trace::is_on().then(Mutex::default),
            #[cfg(test)]
            launches: AtomicU64::default(),
            given: AtomicU64::default(),
            free: Mutex::default(),
        }));
        if gpu.0.timeline.is_some() {
            let gpu = gpu.clone();
            trace::at_end(move || gpu.0.timeline.iter().for_each(|timeline| lock(timeline).finish(gpu.driver())));
        }
        Ok(gpu)
    }

    /// Has a simulated GPU compute values only, without the search for races, which takes most of its time.
    pub fn skip_race_search(&self) {
        self.0.driver.skip_race_search();
    }

    /// Launches so far.
    #[cfg(test)]
    pub(crate) fn launches(&self) -> u64 {
        self.0.launches.load(Ordering::Relaxed)
    }

    /// True if both are one device.
    pub(crate) fn is(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Properties of the device.
    pub(crate) fn info(&self) -> &GpuInfo {
        self.0.driver.info()
    }

    /// The host's processor.
    pub(crate) fn host(&self) -> &Cpu {
        &self.0.host
    }

    /// Instruction set that kernels are generated for.
    pub(crate) fn sm(&self) -> Sm {
        self.0.sm
    }

    /// The function of the kernel `spec`; `program` writes its text if it is used for the first time.
    ///
    /// # Errors
    /// The driver refuses the text.
    pub(crate) fn function<K: Eq + Hash + Send + 'static>(
        &self,
        spec: K,
        program: impl FnOnce(Sm) -> Program,
    ) -> Result<FunctionHandle> {
        self.loaded(spec, |sm| {
            let program = program(sm);
            (program.name.entry(), program.text)
        })
    }

    /// The function of `key`, whose entry and text `text` returns if it is used for the first time.
    fn loaded<K: Eq + Hash + Send + 'static>(
        &self,
        key: K,
        text: impl FnOnce(Sm) -> (String, String),
    ) -> Result<FunctionHandle> {
        let mut functions = lock(&self.0.functions);
        let of_type =
            functions.entry(TypeId::of::<K>()).or_insert_with(|| Box::new(HashMap::<K, FunctionHandle>::new()));
        let of_type: &mut HashMap<K, FunctionHandle> = of_type.downcast_mut().expect("the map of this type");
        if let Some(&function) = of_type.get(&key) {
            return Ok(function);
        }
        let (entry, text) = text(self.0.sm);
        let function = self.0.driver.load(&text, &entry)?;
        self.0.timeline.iter().for_each(|timeline| lock(timeline).name(function, entry.clone()));
        of_type.insert(key, function);
        Ok(function)
    }

    /// Starts your own PTX, within [`Tape::launch_on`](crate::Tape::launch_on). It is compiled for the first launch of this value of
    /// `kernel`. `examples/own_gpu_kernel.rs` is an operation that uses it.
    ///
    /// Every address that the kernel reaches must be allocated.
    ///
    /// # Errors
    /// The driver refuses the text, or the arguments are not as many as the kernel declares.
    pub fn launch_ptx(&self, kernel: &impl PtxKernel, launch: Launch, arguments: &[Value]) -> Result<()> {
        let function = self.loaded(*kernel, |sm| (kernel.entry(), kernel.module(sm).text()))?;
        self.start(function, launch, &arguments)
    }

    /// Starts a kernel with the arguments that it declares; see [`Driver::launch`].
    ///
    /// # Errors
    /// The driver refuses the launch.
    pub(crate) fn start(&self, function: FunctionHandle, launch: Launch, arguments: &impl Arguments) -> Result<()> {
        let mut values = lock(&self.0.values);
        values.clear();
        arguments.push_all(&mut values);
        #[cfg(test)]
        self.0.launches.fetch_add(1, Ordering::Relaxed);
        let start = || self.0.driver.launch(function, launch, &values);
        Ok(match &self.0.timeline {
            None => start(),
            Some(timeline) => lock(timeline).launch(self.driver(), function, start),
        }?)
    }

    /// The counters of [`kernels_cuda::reduce`], allocated on first use.
    pub(crate) fn counters(&self) -> Result<Address> {
        let mut counters = lock(&self.0.counters);
        if let Some(counters) = *counters {
            return Ok(counters);
        }
        let address = self.allocate_from_driver(4 * COUNTERS)?;
        self.0.driver.fill(address, 4 * COUNTERS, 0)?;
        Ok(*counters.insert(address))
    }

    /// Waits until everything launched is done.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        Ok(self.0.driver.synchronize()?)
    }

    /// The driver.
    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.0.driver
    }

    /// Memory for `bytes` bytes, not cleared.
    ///
    /// # Errors
    /// There is not enough, even after unused memory was given back.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<DeviceBlock> {
        let rounded = bytes.checked_next_multiple_of(GRANULE).ok_or(EngineError::Memory { bytes })?;
        if rounded == 0 {
            return Ok(DeviceBlock { gpu: self.clone(), address: Address(0), bytes: 0 });
        }
        let kept = lock(&self.0.free).get_mut(&rounded).and_then(Vec::pop);
        let address = match kept {
            Some(address) => address,
            None => self.allocate_from_driver(rounded)?,
        };
        Ok(DeviceBlock { gpu: self.clone(), address, bytes: rounded })
    }

    /// New memory from the driver, after unused memory was given back if there is not enough.
    fn allocate_from_driver(&self, bytes: usize) -> Result<Address> {
        let address = self.0.driver.allocate(bytes).or_else(|_| {
            self.release_unused()?;
            self.0.driver.allocate(bytes)
        })?;
        self.0.given.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(address)
    }

    /// Returns free memory to the driver.
    fn release_unused(&self) -> Result<(), DriverError> {
        let driver = self.driver();
        // What was started may still use it.
        driver.synchronize()?;
        let unused = std::mem::take(&mut *lock(&self.0.free));
        unused.into_iter().try_for_each(|(bytes, addresses)| {
            self.0.given.fetch_sub((bytes * addresses.len()) as u64, Ordering::Relaxed);
            addresses.into_iter().try_for_each(|address| driver.free(address))
        })
    }

    /// Bytes that it should still be able to give: nine tenths of its memory, less what is in use.
    pub(crate) fn memory_left(&self) -> usize {
        let most = self.info().memory / 10 * 9;
        usize::try_from(most.saturating_sub(self.0.given.load(Ordering::Relaxed))).unwrap_or(usize::MAX)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Every block holds the GPU, so none is alive. What cannot be freed goes with the driver.
        let unused = std::mem::take(&mut *lock(&self.free));
        let counters = lock(&self.counters).take();
        unused.into_values().flatten().chain(counters).for_each(|address| drop(self.driver.free(address)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the maps whole: every change is one insertion or removal.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of a GPU; returns to its free list when dropped.
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    gpu: Gpu,
    address: Address,
    bytes: usize,
}

impl DeviceBlock {
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The address of byte `offset`. Panics beyond the end.
    pub(crate) fn at(&self, offset: usize) -> Address {
        assert!(offset <= self.bytes, "byte {offset} of a block of {}", self.bytes);
        Address(self.address.0 + offset as u64)
    }

    /// Copies bytes in, in order with launches.
    pub(crate) fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        assert!(offset + source.len() <= self.bytes, "{} bytes at {offset} of {}", source.len(), self.bytes);
        if source.is_empty() {
            return Ok(());
        }
        Ok(self.gpu.driver().copy_in(self.at(offset), source)?)
    }

    /// Copies bytes out, after everything launched before.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        assert!(offset + target.len() <= self.bytes, "{} bytes at {offset} of {}", target.len(), self.bytes);
        if target.is_empty() {
            return Ok(());
        }
        Ok(self.gpu.driver().copy_out(target, self.at(offset))?)
    }

    /// Begins to copy bytes out, after everything launched before.
    pub(crate) fn begin_read(&self, offset: usize, bytes: usize) -> Result<DeviceRead> {
        assert!(offset + bytes <= self.bytes, "{bytes} bytes at {offset} of {}", self.bytes);
        let read = Some(self.gpu.driver().begin_read(self.at(offset), bytes)?);
        Ok(DeviceRead { gpu: self.gpu.clone(), read })
    }

    /// Sets bytes, in order with launches.
    pub(crate) fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<()> {
        assert!(offset + bytes <= self.bytes, "{bytes} bytes at {offset} of {}", self.bytes);
        if bytes == 0 {
            return Ok(());
        }
        Ok(self.gpu.driver().fill(self.at(offset), bytes, value)?)
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        if self.bytes > 0 {
            lock(&self.gpu.0.free).entry(self.bytes).or_default().push(self.address);
        }
    }
}

/// A copy to the host that was begun; given up when dropped.
#[derive(Debug)]
pub(crate) struct DeviceRead {
    gpu: Gpu,
    read: Option<ReadHandle>,
}

impl DeviceRead {
    /// Waits for the copy. `target` is as long as it is.
    pub(crate) fn end(mut self, target: &mut [u8]) -> Result<()> {
        let read = self.read.take().expect("ended once");
        Ok(self.gpu.driver().end_read(read, Some(target))?)
    }
}

impl Drop for DeviceRead {
    fn drop(&mut self) {
        // The bytes are not needed any more; the next call reports an error of the device.
        let _ = self.read.take().map(|read| self.gpu.driver().end_read(read, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{self, Activation};
    use crate::shared_tests::*;
    use kernels_cuda::{
        activation::{BackwardArgs, BiasActivation},
        program::Pass,
    };

    #[test]
    fn an_old_gpu_is_refused_by_name() {
        let error = Gpu::new(SimulatedDriver::new((7, 5)), cpu(1)).unwrap_err().to_string();
        assert!(error.contains("sm_75") && error.contains("8.0 (Ampere)"), "{error}");
    }

    #[test]
    fn memory_of_dropped_tensors_is_used_again_and_poisoned_first() {
        let gpu = gpu((8, 0));
        let first = gpu.allocate(1000).unwrap();
        first.write(0, &[7; 1000]).unwrap();
        let place = first.at(0);
        let other = gpu.allocate(1000).unwrap();
        assert_ne!(other.at(0), place, "two living blocks in one place");
        drop(first);
        assert_eq!(gpu.allocate(900).unwrap().at(0), place, "the same size class");
        assert_ne!(gpu.allocate(5000).unwrap().at(0), place);
        let mut workspace = Workspace::new(Device::Cuda(gpu.clone()));
        workspace.arena().set_poison(true);
        let params = ParamBuilder::new().build(gpu.host(), 0).unwrap();
        let tape = workspace.infer(&params, None);
        let tensor = tape.alloc([10], DType::F32).unwrap();
        assert!(tensor.to_vec().unwrap().iter().all(|x| x.is_nan()));
    }

    #[test]
    fn a_kernel_is_loaded_once_and_reads_and_writes_tensors() {
        let gpu = gpu((8, 0));
        let mut workspace = Workspace::new(Device::Cuda(gpu.clone()));
        let params = ParamBuilder::new().build(gpu.host(), 0).unwrap();
        let kernel = BiasActivation::new(Pass::Backward, kernels::DType::F32, Activation::GeluTanh, false, 12);
        let values: Vec<f32> = (0..36).map(|i| i as f32 / 9.0 - 2.0).collect();
        for round in 0..2 {
            let tape = workspace.infer(&params, None);
            let (pre, dy) = (tape.input([3, 12], &values).unwrap(), tape.input([3, 12], &[2f32; 36]).unwrap());
            let mut dx = tape.alloc([3, 12], DType::F32).unwrap();
            let (pre, dy, to) = (pre.value().address(), dy.value().address(), dx.address_mut());
            let arguments = BackwardArgs { pre, dy, dx: to, rows: 3, columns: 12 };
            let text = |sm| {
                assert_eq!(round, 0, "the text is written once");
                kernel.program(sm)
            };
            let function = gpu.function(kernel, text).unwrap();
            gpu.start(function, kernel.launch(3, 12).unwrap(), &arguments).unwrap();
            let mut wanted = vec![0.0; 36];
            kernels::activation::backward(gpu.host(), Activation::GeluTanh, &values, &[2.0; 36], &mut wanted);
            close("dx", &dx.to_vec().unwrap(), &wanted, 4.4e-7);
        }
    }

    #[test]
    fn an_operation_without_a_kernel_says_so() {
        let gpu = gpu((8, 0));
        let mut workspace = Workspace::new(Device::Cuda(gpu.clone()));
        let params = ParamBuilder::new().build(gpu.host(), 0).unwrap();
        let tape = workspace.infer(&params, None);
        let x = tape.input([2, 2], &[1f32; 4]).unwrap();
        let error = ops::transpose(&tape, &x, 0, 1).unwrap_err().to_string();
        assert_eq!(error, "transpose has no CUDA kernel yet; run on the CPU");
    }
}
