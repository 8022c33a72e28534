//! The CUDA driver behind [`Driver`], through cudarc's bindings, opened at run time.
//!
//! Only libcuda is needed, neither toolkit nor compiler: the driver compiles PTX itself. A missing library is an
//! error, never a panic: it is looked for before the first call into it. Modules are loaded with a buffer for the
//! compiler's log, so that a refused kernel says why.
#![allow(unsafe_code)]

use super::driver::{Argument, DeviceAddress, Driver, DriverError, FunctionHandle, GpuInfo};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use kernels::operation::Launch;
use std::{
    ffi::{CString, c_void},
    sync::{Arc, Mutex},
};

/// Bytes for the log of the driver's PTX compiler.
const LOG_BYTES: usize = 16 * 1024;

/// One GPU.
#[derive(Debug)]
pub struct CudaDriver {
    info: GpuInfo,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    loaded: Mutex<Vec<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// Dynamic shared memory that a launch may ask for.
    shared_bytes: u32,
}

/// Dynamic shared memory that every function may ask for; more has to be allowed first.
const SHARED_BYTES: u32 = 48 * 1024;

// SAFETY: both are names for objects of the driver, which may be used from any thread with the context current.
unsafe impl Send for Loaded {}

fn failed(call: &'static str) -> impl Fn(result::DriverError) -> DriverError {
    move |error| DriverError::Call { call, reason: format!("{error:?}") }
}

/// Finds the library and the devices: how many there are.
///
/// # Errors
/// There is no library, or it finds no device.
pub fn device_count() -> Result<usize, DriverError> {
    // SAFETY: opens and closes the library; its initialisers are the vendor's.
    if !unsafe { sys::is_culib_present() } {
        return Err(DriverError::NoLibrary);
    }
    result::init().map_err(|error| DriverError::NoDevice(format!("{error:?}")))?;
    let count = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
    if count < 1 { Err(DriverError::NoDevice("0 devices".to_owned())) } else { Ok(count as usize) }
}

impl CudaDriver {
    /// GPU number `ordinal`, from 0.
    ///
    /// # Errors
    /// There is no such device, or it cannot be opened.
    pub fn open(ordinal: usize) -> Result<Self, DriverError> {
        let present = device_count()?;
        if ordinal >= present {
            return Err(DriverError::Ordinal { asked: ordinal, present });
        }
        let context = CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let attribute = |which| context.attribute(which).map_err(failed("cuDeviceGetAttribute"));
        let multiprocessors =
            attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs();
        let (major, minor) = context.compute_capability().map_err(failed("cuDeviceGetAttribute"))?;
        let mut version = 0;
        // SAFETY: writes one integer to a live variable.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("cuDriverGetVersion"))?;
        let info = GpuInfo {
            name: context.name().map_err(failed("cuDeviceGetName"))?,
            compute_capability: (major.unsigned_abs(), minor.unsigned_abs()),
            memory: context.total_mem().map_err(failed("cuDeviceTotalMem"))? as u64,
            multiprocessors,
            driver: (version.unsigned_abs() / 1000, version.unsigned_abs() % 1000 / 10),
        };
        let stream = context.default_stream();
        Ok(Self { info, context, stream, loaded: Mutex::default() })
    }

    /// Makes the context current on this thread, as every call of the driver needs.
    fn bind(&self) -> Result<(), DriverError> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    /// The function, allowed to be launched with so much shared memory.
    fn function_with_room(&self, function: FunctionHandle, shared_bytes: u32) -> Result<sys::CUfunction, DriverError> {
        let mut loaded = self.loaded();
        let loaded = loaded.get_mut(function.0).ok_or(DriverError::Call {
            call: "cuLaunchKernel",
            reason: "the function belongs to another driver".to_owned(),
        })?;
        if shared_bytes > loaded.shared_bytes {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a module that stays loaded as long as this driver.
            unsafe { sys::cuFuncSetAttribute(loaded.function, attribute, shared_bytes as i32) }
                .result()
                .map_err(failed("cuFuncSetAttribute"))?;
            loaded.shared_bytes = shared_bytes;
        }
        Ok(loaded.function)
    }

    fn loaded(&self) -> std::sync::MutexGuard<'_, Vec<Loaded>> {
        self.loaded.lock().expect("no thread panics while it loads a module")
    }
}

/// Loads a module and gives the compiler's log if it is refused.
fn load_module(ptx: &CString, entry: &str) -> Result<sys::CUmodule, DriverError> {
    let mut log = vec![0u8; LOG_BYTES];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes every option as a pointer-sized value; the size is passed by value.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG_BYTES)];
    let mut module = std::ptr::null_mut();
    // SAFETY: the text ends in NUL, options and values are two each, and the log outlives the call.
    let status = unsafe {
        sys::cuModuleLoadDataEx(&mut module, ptx.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    status.result().map_err(|error| {
        let text = String::from_utf8_lossy(&log);
        let text = text.trim_end_matches('\0').trim();
        let log = if text.is_empty() { format!("{error:?}") } else { text.to_owned() };
        DriverError::Ptx { entry: entry.to_owned(), log }
    })?;
    Ok(module)
}

impl Driver for CudaDriver {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError> {
        self.bind()?;
        let refused = |log: &str| DriverError::Ptx { entry: entry.to_owned(), log: log.to_owned() };
        let text = CString::new(ptx).map_err(|_| refused("the text holds a NUL byte"))?;
        let name = CString::new(entry).map_err(|_| refused("the name holds a NUL byte"))?;
        let module = load_module(&text, entry)?;
        // SAFETY: the module was just loaded.
        match unsafe { result::module::get_function(module, name) } {
            Ok(function) => {
                let mut loaded = self.loaded();
                loaded.push(Loaded { module, function, shared_bytes: SHARED_BYTES });
                Ok(FunctionHandle(loaded.len() - 1))
            }
            Err(error) => {
                // SAFETY: nothing else knows the module.
                unsafe { result::module::unload(module) }.map_err(failed("cuModuleUnload"))?;
                Err(refused(&format!("the module has no such entry ({error:?})")))
            }
        }
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DriverError> {
        self.bind()?;
        // SAFETY: a plain allocation; the driver keeps the address until `free`.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(failed("cuMemAlloc"))?;
        Ok(DeviceAddress(address))
    }

    fn free(&self, address: DeviceAddress) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the driver itself refuses what it did not allocate.
        unsafe { result::free_sync(address.0) }.map_err(failed("cuMemFree"))
    }

    fn copy_in(&self, target: DeviceAddress, source: &[u8]) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the source is a live slice, and a synchronous copy is done with it on return; the driver refuses a
        // target outside its allocations.
        unsafe { result::memcpy_htod_sync(target.0, source) }.map_err(failed("cuMemcpyHtoD"))
    }

    fn copy_out(&self, target: &mut [u8], source: DeviceAddress) -> Result<(), DriverError> {
        self.synchronize()?;
        // SAFETY: the target is a live slice that the copy has filled on return; the driver refuses a source outside
        // its allocations.
        unsafe { result::memcpy_dtoh_sync(target, source.0) }.map_err(failed("cuMemcpyDtoH"))
    }

    fn fill(&self, target: DeviceAddress, bytes: usize, value: u8) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the driver refuses a target outside its allocations; the stream is this driver's own.
        unsafe { result::memset_d8_async(target.0, value, bytes, self.stream.cu_stream()) }
            .map_err(failed("cuMemsetD8Async"))
    }

    fn launch(&self, function: FunctionHandle, launch: Launch, arguments: &[Argument]) -> Result<(), DriverError> {
        self.bind()?;
        let function = self.function_with_room(function, launch.shared_bytes)?;
        // Every argument in eight bytes of its own: the driver reads as many of them as the PTX declares.
        let mut words: Vec<u64> = arguments
            .iter()
            .map(|argument| match *argument {
                Argument::Address(DeviceAddress(address)) => address,
                Argument::U32(value) => u64::from(value),
                Argument::U64(value) => value,
                Argument::F32(value) => u64::from(value.to_bits()),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let [grid, block] = [launch.grid, launch.block].map(|[x, y, z]| (x, y, z));
        // SAFETY: the pointers are to live words that the driver copies before it returns. What the kernel does with
        // addresses stays within device memory.
        unsafe {
            result::launch_kernel(function, grid, block, launch.shared_bytes, self.stream.cu_stream(), &mut pointers)
        }
        .map_err(failed("cuLaunchKernel"))
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.bind()?;
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // Nothing sensible can be done about an error here: the context goes right after.
        let ready = self.synchronize().is_ok();
        for Loaded { module, .. } in self.loaded().drain(..) {
            if ready {
                // SAFETY: nothing runs any more, and the handles die with this driver.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}
