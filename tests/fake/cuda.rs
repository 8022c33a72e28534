//! libcuda without a GPU: kernels do nothing, memory is the host's, and calls are counted, to measure the host's part of work on
//! a GPU. Not part of the workspace: tests compile it with `rustc --crate-type cdylib`, with the name `libcuda.so` inside, and
//! load it before the program looks for a library of that name.
//!
//! Kernels do not run, so all data read back is either uploaded data or zero. [`fake_cuda_counts`] returns the counts.
#![allow(nonstandard_style, clippy::missing_safety_doc)]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
    sync::Mutex,
    time::Instant,
};

type Result = c_int;
type Handle = *mut c_void;
const SUCCESS: Result = 0;
const INVALID_VALUE: Result = 1;
const OUT_OF_MEMORY: Result = 2;
const NOT_FOUND: Result = 500;

#[path = "cuda_counts.rs"]
mod counts;
use counts::Counts;

/// Nanoseconds above which a pause before a launch is not attributed to the launch.
const LONG: u64 = 50_000;

/// Handle of a module; that of one whose text waits for earlier kernels has this bit in addition, and so have its functions.
const MODULE: usize = 0x3000;
const WAITS: usize = 1;

struct State {
    counts: Counts,
    /// End time of the last call.
    last: Option<Instant>,
    context: usize,
    functions: usize,
    /// For each event, the number of launches before it.
    events: Vec<u64>,
}

static STATE: Mutex<State> =
    Mutex::new(State { counts: Counts::NONE, last: None, context: 0, functions: 0, events: Vec::new() });

/// Runs a call with the state and counts it.
fn call(effect: impl FnOnce(&mut State) -> Result) -> Result {
    let mut state = STATE.lock().expect("no call panics");
    state.counts.calls += 1;
    let result = effect(&mut state);
    state.last = Some(Instant::now());
    result
}

/// Returns the counts so far.
#[unsafe(no_mangle)]
extern "C" fn fake_cuda_counts() -> Counts {
    STATE.lock().expect("no call panics").counts
}

/// Writes a result of a call, unless the pointer is null.
unsafe fn give<T>(place: *mut T, value: T) -> Result {
    if place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller passes a pointer to a result of this type.
    unsafe { place.write(value) };
    SUCCESS
}

unsafe extern "C" {
    fn mmap(
        address: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, bytes: usize) -> c_int;
}

/// Bytes before an allocation, which store its size.
const HEAD: usize = 4096;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_: c_uint) -> Result {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Result {
    unsafe { give(version, 13_000) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Result {
    unsafe { give(count, 1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, _: c_int) -> Result {
    unsafe { give(device, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _: c_int) -> Result {
    let text = c"fake H200".to_bytes_with_nul();
    if (length as usize) < text.len() {
        return INVALID_VALUE;
    }
    unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: c_int) -> Result {
    unsafe { give(bytes, 140 << 30) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _: c_int) -> Result {
    unsafe { give(uuid, [0; 16]) }
}

/// Attributes of an H200: capability, multiprocessors, clocks in kHz, width of the memory bus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _: c_int) -> Result {
    let known = match attribute {
        75 => 9,
        76 => 0,
        16 => 132,
        13 => 1_980_000,
        36 => 3_201_000,
        37 => 6144,
        _ => 1,
    };
    unsafe { give(value, known) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, _: c_int) -> Result {
    unsafe { give(context, ptr::without_provenance_mut(0x1000)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> Result {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> Result {
    call(|state| {
        state.counts.contexts += 1;
        state.context = context.addr();
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Result {
    call(|state| {
        state.counts.contexts += 1;
        unsafe { give(context, ptr::without_provenance_mut(state.context)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Result {
    const READ_WRITE: c_int = 3;
    const PRIVATE_ANONYMOUS_WITHOUT_RESERVE: c_int = 0x02 | 0x20 | 0x4000;
    call(|state| {
        state.counts.allocations += 1;
        let whole = bytes + HEAD;
        let place = unsafe { mmap(ptr::null_mut(), whole, READ_WRITE, PRIVATE_ANONYMOUS_WITHOUT_RESERVE, -1, 0) };
        if place.addr() == usize::MAX {
            return OUT_OF_MEMORY;
        }
        unsafe { place.cast::<usize>().write(whole) };
        unsafe { give(address, (place.expose_provenance() + HEAD) as u64) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> Result {
    call(|_| {
        let place: *mut c_void = ptr::with_exposed_provenance_mut(address as usize - HEAD);
        unsafe { munmap(place, place.cast::<usize>().read()) };
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Result {
    unsafe { give(free, 140 << 30).max(give(total, 140 << 30)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(target: u64, source: *const u8, bytes: usize, _: Handle) -> Result {
    call(|state| {
        state.counts.uploads += 1;
        state.counts.uploaded_bytes += bytes as u64;
        let target = ptr::with_exposed_provenance_mut(target as usize);
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(target: *mut u8, source: u64, bytes: usize) -> Result {
    call(|state| {
        state.counts.reads += 1;
        let source = ptr::with_exposed_provenance(source as usize);
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(target: *mut u8, source: u64, bytes: usize, _: Handle) -> Result {
    call(|state| {
        state.counts.later_reads += 1;
        let source = ptr::with_exposed_provenance(source as usize);
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        SUCCESS
    })
}

/// Host memory, which is never freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(memory: *mut *mut u8, bytes: usize, _: c_uint) -> Result {
    call(|state| {
        state.counts.allocations += 1;
        unsafe { give(memory, vec![0u8; bytes].leak().as_mut_ptr()) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(_: *mut c_void) -> Result {
    call(|_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Handle, _: c_uint) -> Result {
    call(|state| {
        state.events.push(0);
        unsafe { give(event, ptr::without_provenance_mut(state.events.len())) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(_: Handle) -> Result {
    call(|_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, _: Handle) -> Result {
    call(|state| {
        state.events[event.addr() - 1] = state.counts.launches;
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(_: Handle) -> Result {
    call(|_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> Result {
    call(|state| {
        state.counts.waits += u64::from(state.events[event.addr() - 1] == state.counts.launches);
        SUCCESS
    })
}

/// Returns 10 microseconds for each launch between the events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(millis: *mut f32, from: Handle, to: Handle) -> Result {
    call(|state| {
        let [from, to] = [from, to].map(|event| state.events[event.addr() - 1]);
        unsafe { give(millis, 0.01 * (to as f32 - from as f32)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(target: u64, value: u8, bytes: usize, _: Handle) -> Result {
    call(|state| {
        state.counts.fills += 1;
        // Large memory is not touched: it is zero, and so is the value it is filled with.
        if value != 0 {
            unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(target as usize), value, bytes) };
        }
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(_: Handle) -> Result {
    call(|state| {
        state.counts.waits += 1;
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(_: Handle) -> Result {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    text: *const c_char,
    _: c_uint,
    _: *mut c_int,
    _: *mut Handle,
) -> Result {
    call(|state| {
        state.counts.modules += 1;
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        if text.is_empty() {
            return INVALID_VALUE;
        }
        let wait = b"griddepcontrol.wait;";
        let waits = usize::from(text.windows(wait.len()).any(|part| part == wait));
        unsafe { give(module, ptr::without_provenance_mut(MODULE | waits * WAITS)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(_: Handle) -> Result {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> Result {
    call(|state| {
        if unsafe { CStr::from_ptr(name) }.is_empty() {
            return NOT_FOUND;
        }
        state.functions += 1;
        let waits = module.addr() & WAITS;
        unsafe { give(function, ptr::without_provenance_mut((0x1_0000 + 16 * state.functions) | waits)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(_: Handle, _: c_int, _: c_int) -> Result {
    call(|_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: Handle,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _: c_uint,
    _: Handle,
    _: *mut Handle,
    _: *mut Handle,
) -> Result {
    launch(function, [x, y, z, block_x, block_y, block_z], false)
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    sizes: [c_uint; 6],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// `CUlaunchAttribute`; the value is 64 bytes.
#[repr(C)]
pub struct LaunchAttribute {
    id: c_int,
    _pad: [u8; 4],
    value: [u64; 8],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`
const PROGRAMMATIC_STREAM_SERIALIZATION: c_int = 6;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Handle,
    _: *mut Handle,
    _: *mut Handle,
) -> Result {
    let config = unsafe { &*config };
    let attributes = unsafe { std::slice::from_raw_parts(config.attributes, config.count as usize) };
    let early = attributes.iter().any(|a| a.id == PROGRAMMATIC_STREAM_SERIALIZATION && a.value[0] as c_int == 1);
    launch(function, config.sizes, early)
}

/// A launch with these sizes of grid and block; whether it may start before the previous one is complete.
fn launch(function: Handle, sizes: [c_uint; 6], early: bool) -> Result {
    let start = Instant::now();
    call(|state| {
        state.counts.launches += 1;
        state.counts.early += u64::from(early);
        state.counts.unordered += u64::from(early != (function.addr() & WAITS != 0));
        match state.last.map_or(0, |last| (start - last).as_nanos() as u64) {
            LONG.. => state.counts.long += 1,
            pause => state.counts.between += pause,
        }
        let refused = function.is_null() || sizes.contains(&0);
        if refused { INVALID_VALUE } else { SUCCESS }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    map: *mut [u8; 128],
    _: c_int,
    _: c_uint,
    _: Handle,
    _: *const u64,
    _: *const u64,
    _: *const c_uint,
    _: *const c_uint,
    _: c_int,
    _: c_int,
    _: c_int,
    _: c_int,
) -> Result {
    call(|state| {
        state.counts.maps += 1;
        unsafe { give(map, [0; 128]) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(_: Result, name: *mut *const c_char) -> Result {
    unsafe { give(name, c"a fake error".as_ptr()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_: Result, text: *mut *const c_char) -> Result {
    unsafe { give(text, c"a fake error".as_ptr()) }
}
