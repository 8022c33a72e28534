//! The CUDA driver behind [`Driver`], through cudarc's bindings, opened at run time.
//!
//! Only libcuda is needed, neither toolkit nor compiler: the driver compiles PTX itself. A missing library is an
//! error, never a panic: it is looked for before the first call into it. Modules are loaded with a buffer for the
//! compiler's log, so that a refused kernel says why.
#![allow(unsafe_code)]

use super::{
    cuda_arguments::{Passed, TensorMaps},
    cuda_pinned::{LARGEST_UPLOAD, Pinned},
    cuda_session::{CudaSession, failed},
    driver::{Address, Driver, DriverError, FunctionHandle, GpuInfo, ReadHandle, Value},
};
use cudarc::driver::{CudaContext, result, sys};
use ptx::Launch;
use std::{
    ffi::c_void,
    mem::MaybeUninit,
    sync::{Mutex, PoisonError},
};

/// Maximum number of arguments of a kernel; they are on the stack.
const MOST_ARGUMENTS: usize = 48;

fn too_many(count: usize) -> DriverError {
    let reason = format!("{count} arguments; expected at most {MOST_ARGUMENTS}");
    DriverError::Call { call: "cuLaunchKernel", reason }
}

/// Launches a kernel that waits for earlier ones itself and so may start before they are complete: programmatic dependent launch.
/// `arguments` are pointers to live values, as many and each as large as the parameters.
fn launch_early(
    function: sys::CUfunction,
    Launch { grid, block, shared_bytes }: Launch,
    stream: sys::CUstream,
    arguments: &mut [*mut c_void],
) -> Result<(), DriverError> {
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    };
    attribute.value.programmaticStreamSerializationAllowed = 1;
    let config = sys::CUlaunchConfig {
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared_bytes,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    // SAFETY: configuration, attribute and arguments are live, and the driver copies them before it returns. What the kernel does
    // with addresses stays within device memory.
    unsafe { sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), std::ptr::null_mut()) }
        .result()
        .map_err(failed("cuLaunchKernelEx"))
}

/// One GPU.
#[derive(Debug)]
pub struct CudaDriver {
    info: GpuInfo,
    maps: Mutex<TensorMaps>,
    // Freed before the context.
    pinned: Pinned,
    session: CudaSession,
}

/// Finds the library and the devices: how many there are.
///
/// # Errors
/// There is no library, or it finds no device.
pub(crate) fn device_count() -> Result<usize, DriverError> {
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
        let (maps, pinned) = (Mutex::default(), Pinned::default());
        Ok(Self { info, maps, pinned, session: CudaSession::new(context, stream) })
    }
}

impl Driver for CudaDriver {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError> {
        self.session.load(ptx, entry)
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DriverError> {
        self.session.bind()?;
        // SAFETY: a plain allocation; the driver keeps the address until `free`.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(failed("cuMemAlloc"))?;
        Ok(Address(address))
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.session.bind()?;
        // SAFETY: the driver itself refuses what it did not allocate.
        unsafe { result::free_sync(address.0) }.map_err(failed("cuMemFree"))
    }

    fn copy_in(&self, target: Address, source: &[u8]) -> Result<(), DriverError> {
        self.session.bind()?;
        if source.len() <= LARGEST_UPLOAD {
            return self.pinned.upload(self.session.stream(), target, source);
        }
        // SAFETY: the source is a live slice of pageable memory, which the driver has read when it returns (it stages it);
        // the driver refuses a target outside its allocations, and the stream is this driver's own.
        unsafe { result::memcpy_htod_async(target.0, source, self.session.stream()) }
            .map_err(failed("cuMemcpyHtoDAsync"))
    }

    fn copy_out(&self, target: &mut [u8], source: Address) -> Result<(), DriverError> {
        self.synchronize()?;
        // SAFETY: the target is a live slice that the copy has filled on return; the driver refuses a source outside
        // its allocations.
        unsafe { result::memcpy_dtoh_sync(target, source.0) }.map_err(failed("cuMemcpyDtoH"))
    }

    fn begin_read(&self, source: Address, bytes: usize) -> Result<ReadHandle, DriverError> {
        self.session.bind()?;
        self.pinned.begin_read(self.session.stream(), source, bytes)
    }

    fn end_read(&self, read: ReadHandle, target: Option<&mut [u8]>) -> Result<(), DriverError> {
        self.session.bind()?;
        self.pinned.end_read(read, target)
    }

    fn fill(&self, target: Address, bytes: usize, value: u8) -> Result<(), DriverError> {
        self.session.bind()?;
        // SAFETY: the driver refuses a target outside its allocations; the stream is this driver's own.
        unsafe { result::memset_d8_async(target.0, value, bytes, self.session.stream()) }
            .map_err(failed("cuMemsetD8Async"))
    }

    fn launch(&self, handle: FunctionHandle, launch: Launch, arguments: &[Value]) -> Result<(), DriverError> {
        self.session.bind()?;
        let start = || {
            let (function, waits) = self.session.function_for(handle, launch.shared_bytes, arguments.len())?;
            // No change of the maps can panic halfway.
            let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
            let mut values = [const { MaybeUninit::uninit() }; MOST_ARGUMENTS];
            let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
            let pointers = pointers.get_mut(..arguments.len()).ok_or_else(|| too_many(arguments.len()))?;
            for ((argument, value), pointer) in arguments.iter().zip(&mut values).zip(&mut *pointers) {
                *pointer = std::ptr::from_mut(value.write(Passed::new(argument, &mut maps)?)).cast();
            }
            let (stream, shared_bytes) = (self.session.stream(), launch.shared_bytes);
            if waits {
                return launch_early(function, launch, stream, pointers);
            }
            let [grid, block] = [launch.grid, launch.block].map(|[x, y, z]| (x, y, z));
            // SAFETY: the pointers are to live values, each as large as any parameter, which the driver copies before
            // it returns. What the kernel does with addresses stays within device memory.
            unsafe { result::launch_kernel(function, grid, block, shared_bytes, stream, pointers) }
                .map_err(failed("cuLaunchKernel"))
        };
        start().map_err(|error| self.session.refused(handle, error))
    }

    fn mark(&self, mark: usize) -> Result<bool, DriverError> {
        self.session.mark(mark).map(|()| true)
    }

    fn milliseconds(&self, from: usize, to: usize) -> Result<f32, DriverError> {
        self.session.milliseconds(from, to)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.session.synchronize()
    }

    fn is_simulated(&self) -> bool {
        false
    }

    fn stream(&self) -> Result<usize, DriverError> {
        self.session.bind()?;
        Ok(self.session.stream().expose_provenance())
    }

    fn library_address(&self, address: Address, _: usize, _: bool) -> Result<usize, DriverError> {
        Ok(address.0 as usize)
    }

    fn is_idle(&self) -> Result<bool, DriverError> {
        self.session.bind()?;
        // SAFETY: the stream is this driver's own and lives as long; the call waits for nothing.
        match unsafe { sys::cuStreamQuery(self.session.stream()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => status.result().map(|()| true).map_err(failed("cuStreamQuery")),
        }
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // An error here has no remedy: the context is released right after.
        if self.session.synchronize().is_ok() {
            self.pinned.free();
            self.session.unload();
        }
    }
}
