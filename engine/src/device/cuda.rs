//! The CUDA driver behind [`Driver`], through cudarc's bindings, opened at run time.
//!
//! Only libcuda is needed, neither toolkit nor compiler: the driver compiles PTX itself. A missing library is an
//! error, never a panic: it is looked for before the first call into it. Modules are loaded with a buffer for the
//! compiler's log, so that a refused kernel says why.
#![allow(unsafe_code)]

use super::{
    cuda_graph::CudaGraph,
    driver::{Argument, DeviceAddress, Driver, DriverError, FunctionHandle, GpuInfo, GraphUse, Node},
    graph::GraphCache,
};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use ptx::{DescriptorSwizzle, Launch, Storage, TensorMap};
use std::{
    ffi::{CString, c_void},
    sync::{Arc, Mutex, PoisonError},
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
    graphs: Mutex<GraphCache<CudaGraph>>,
}

#[derive(Debug)]
struct Loaded {
    entry: String,
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// Dynamic shared memory that a launch may ask for.
    shared_bytes: u32,
}

/// Dynamic shared memory that every function may ask for; more has to be allowed first.
const SHARED_BYTES: u32 = 48 * 1024;

// SAFETY: both are names for objects of the driver, which may be used from any thread with the context current.
unsafe impl Send for Loaded {}

pub(super) fn failed(call: &'static str) -> impl Fn(result::DriverError) -> DriverError {
    move |error| DriverError::Call { call, reason: format!("{error:?}") }
}

/// Finds the library and the devices: how many there are.
///
/// # Errors
/// There is no library, or it finds no device.
pub fn device_count() -> Result<usize, DriverError> {
    // SAFETY: opens and closes the library; its initializers are the vendor's.
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
        let attribute = |which| context.attribute(which).map(i32::unsigned_abs).map_err(failed("cuDeviceGetAttribute"));
        use sys::CUdevice_attribute as Attribute;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // Only shares of the peak depend on these: a driver that does not say (0) is no reason to refuse its GPU.
        let rate = |which| attribute(which).unwrap_or(0);
        // Two transfers a cycle of the memory's clock, which is in kHz; the width of the bus is in bits.
        let transfers = 2_000 * u64::from(rate(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE));
        let bandwidth = transfers * u64::from(rate(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)) / 8;
        let (major, minor) = context.compute_capability().map_err(failed("cuDeviceGetAttribute"))?;
        let mut version = 0;
        // SAFETY: writes one integer to a live variable.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("cuDriverGetVersion"))?;
        let info = GpuInfo {
            name: context.name().map_err(failed("cuDeviceGetName"))?,
            compute_capability: (major.unsigned_abs(), minor.unsigned_abs()),
            memory: context.total_mem().map_err(failed("cuDeviceTotalMem"))? as u64,
            multiprocessors,
            clock: rate(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            bandwidth,
            driver: (version.unsigned_abs() / 1000, version.unsigned_abs() % 1000 / 10),
        };
        let stream = context.default_stream();
        Ok(Self { info, context, stream, loaded: Mutex::default(), graphs: Mutex::default() })
    }

    /// Makes the context current on this thread, as every call of the driver needs.
    fn bind(&self) -> Result<(), DriverError> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    /// The stream that everything is in order on.
    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// The context that memory belongs to, which is current on this thread.
    pub(super) fn current_context(&self) -> Result<sys::CUcontext, DriverError> {
        self.bind()?;
        let current = result::ctx::get_current().map_err(failed("cuCtxGetCurrent"))?;
        Ok(current.expect("the context was just made current"))
    }

    /// `error` of this kernel.
    pub(super) fn refused(&self, function: FunctionHandle, error: DriverError) -> DriverError {
        match self.loaded().get(function.0) {
            Some(loaded) => DriverError::Kernel { entry: loaded.entry.clone(), reason: error.to_string() },
            None => error,
        }
    }

    /// The function, allowed to be launched with so much shared memory.
    pub(super) fn function_with_room(
        &self,
        function: FunctionHandle,
        shared_bytes: u32,
    ) -> Result<sys::CUfunction, DriverError> {
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

/// An argument as the driver reads it: as many bytes from the beginning as the PTX declares.
#[repr(C, align(64))]
pub(super) struct Passed([u64; 16]);

impl Passed {
    pub(super) fn new(argument: &Argument) -> Result<Self, DriverError> {
        let word = match *argument {
            Argument::Address(DeviceAddress(address)) => address,
            Argument::U32(value) => u64::from(value),
            Argument::U64(value) => value,
            Argument::F32(value) => u64::from(value.to_bits()),
            Argument::TensorMap(map) => return encode(&map),
        };
        let mut words = [0; 16];
        words[0] = word;
        Ok(Self(words))
    }
}

/// A tensor map in the driver's own form.
fn encode(map: &TensorMap) -> Result<Passed, DriverError> {
    use sys::{CUtensorMapDataType as Type, CUtensorMapSwizzle as Exchange};
    let storage = match map.storage {
        Storage::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Storage::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Storage::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    let exchange = match map.swizzle {
        DescriptorSwizzle::None => Exchange::CU_TENSOR_MAP_SWIZZLE_NONE,
        DescriptorSwizzle::Bytes32 => Exchange::CU_TENSOR_MAP_SWIZZLE_32B,
        DescriptorSwizzle::Bytes64 => Exchange::CU_TENSOR_MAP_SWIZZLE_64B,
        DescriptorSwizzle::Bytes128 => Exchange::CU_TENSOR_MAP_SWIZZLE_128B,
    };
    const DENSE: [u32; 2] = [1, 1];
    let mut encoded = Passed([0; 16]);
    // SAFETY: writes the 128 bytes of `encoded`, which are aligned to 64; sizes, strides and box are live arrays of two, one
    // and two numbers, as two dimensions ask for. The address is only noted.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            std::ptr::from_mut(&mut encoded).cast(),
            storage,
            2,
            std::ptr::without_provenance_mut(map.address as usize),
            map.sizes.as_ptr(),
            std::ptr::from_ref(&map.stride),
            map.tile.as_ptr(),
            DENSE.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            exchange,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(failed("cuTensorMapEncodeTiled"))?;
    Ok(encoded)
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
                loaded.push(Loaded { entry: entry.to_owned(), module, function, shared_bytes: SHARED_BYTES });
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
        // Not the synchronous call: that one would wait for all kernels before it.
        // SAFETY: the source is a live slice of pageable memory, which the driver has read when it returns (it stages it);
        // the driver refuses a target outside its allocations, and the stream is this driver's own.
        unsafe { result::memcpy_htod_async(target.0, source, self.stream()) }.map_err(failed("cuMemcpyHtoDAsync"))
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
        unsafe { result::memset_d8_async(target.0, value, bytes, self.stream()) }.map_err(failed("cuMemsetD8Async"))
    }

    fn launch(&self, handle: FunctionHandle, launch: Launch, arguments: &[Argument]) -> Result<(), DriverError> {
        self.bind()?;
        let start = || {
            let function = self.function_with_room(handle, launch.shared_bytes)?;
            let mut values = arguments.iter().map(Passed::new).collect::<Result<Vec<_>, _>>()?;
            let mut pointers: Vec<*mut c_void> =
                values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
            let [grid, block] = [launch.grid, launch.block].map(|[x, y, z]| (x, y, z));
            // SAFETY: the pointers are to live values, each as large as any parameter, which the driver copies before
            // it returns. What the kernel does with addresses stays within device memory.
            unsafe { result::launch_kernel(function, grid, block, launch.shared_bytes, self.stream(), &mut pointers) }
                .map_err(failed("cuLaunchKernel"))
        };
        start().map_err(|error| self.refused(handle, error))
    }

    fn has_graphs(&self) -> bool {
        // Kernel nodes have the form used here since then.
        self.info.driver >= (12, 0)
    }

    fn run_graph(&self, nodes: &[Node]) -> Result<GraphUse, DriverError> {
        self.bind()?;
        self.graphs.lock().expect("no thread panics while it changes a graph").run(self, nodes)
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
        self.graphs.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        for Loaded { module, .. } in self.loaded().drain(..) {
            if ready {
                // SAFETY: nothing runs any more, and the handles die with this driver.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}
