//! Context, stream and loaded kernels of a GPU.
#![allow(unsafe_code)]

use super::driver::{DriverError, FunctionHandle};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};
use std::{
    ffi::{CString, c_void},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Bytes for the log of the driver's PTX compiler.
const LOG_BYTES: usize = 16 * 1024;

/// Context, stream and kernels of one GPU.
#[derive(Debug)]
pub(super) struct CudaSession {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    loaded: Mutex<Vec<Loaded>>,
    /// Marks on the stream, by number.
    marks: Mutex<Vec<CudaEvent>>,
}

#[derive(Debug)]
struct Loaded {
    entry: String,
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// Dynamic shared memory that a launch may ask for.
    shared_bytes: u32,
    /// The kernel waits for earlier ones itself (`griddepcontrol.wait`), so it may be launched before they are complete.
    waits: bool,
    /// Number of parameters: the driver reads as many pointers to arguments.
    parameters: usize,
}

/// Dynamic shared memory that every function may ask for; more has to be allowed first.
const SHARED_BYTES: u32 = 48 * 1024;

// SAFETY: both are names for objects of the driver, which may be used from any thread with the context current.
unsafe impl Send for Loaded {}

pub(super) fn failed(call: &'static str) -> impl Fn(result::DriverError) -> DriverError {
    move |error| DriverError::Call { call, reason: format!("{error:?}") }
}

impl CudaSession {
    pub(super) fn new(context: Arc<CudaContext>, stream: Arc<CudaStream>) -> Self {
        Self { context, stream, loaded: Mutex::default(), marks: Mutex::default() }
    }

    /// Makes the context current on this thread, as every call of the driver needs.
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    /// The stream that everything is in order on.
    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// `error` of this kernel.
    pub(super) fn refused(&self, function: FunctionHandle, error: DriverError) -> DriverError {
        match self.loaded().get(function.0) {
            Some(loaded) => DriverError::Kernel { entry: loaded.entry.clone(), reason: error.to_string() },
            None => error,
        }
    }

    /// The function, allowed to be launched with so much shared memory, and whether it waits for earlier kernels itself.
    ///
    /// # Errors
    /// It has another number of parameters.
    pub(super) fn function_for(
        &self,
        function: FunctionHandle,
        shared_bytes: u32,
        arguments: usize,
    ) -> Result<(sys::CUfunction, bool), DriverError> {
        let mut loaded = self.loaded();
        let refused = |reason| DriverError::Call { call: "cuLaunchKernel", reason };
        let loaded =
            loaded.get_mut(function.0).ok_or_else(|| refused("the function belongs to another driver".to_owned()))?;
        if arguments != loaded.parameters {
            let declared = loaded.parameters;
            return Err(refused(format!("{arguments} arguments; expected {declared}, as the kernel declares")));
        }
        if shared_bytes > loaded.shared_bytes {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a module that stays loaded as long as this driver.
            unsafe { sys::cuFuncSetAttribute(loaded.function, attribute, shared_bytes as i32) }
                .result()
                .map_err(failed("cuFuncSetAttribute"))?;
            loaded.shared_bytes = shared_bytes;
        }
        Ok((loaded.function, loaded.waits))
    }

    /// Compiles `ptx` and finds its kernel `entry`.
    pub(super) fn load(&self, ptx: &str, entry: &str) -> Result<FunctionHandle, DriverError> {
        self.bind()?;
        let refused = |log: &str| DriverError::Ptx { entry: entry.to_owned(), log: log.to_owned() };
        let text = CString::new(ptx).map_err(|_| refused("the text holds a NUL byte"))?;
        let name = CString::new(entry).map_err(|_| refused("the name holds a NUL byte"))?;
        let module = load_module(&text, entry)?;
        // SAFETY: the module was just loaded.
        match unsafe { result::module::get_function(module, name) } {
            Ok(function) => {
                let mut loaded = self.loaded();
                let (shared_bytes, (waits, parameters)) = (SHARED_BYTES, read(ptx, entry));
                loaded.push(Loaded { entry: entry.to_owned(), module, function, shared_bytes, waits, parameters });
                Ok(FunctionHandle(loaded.len() - 1))
            }
            Err(error) => {
                // SAFETY: nothing else knows the module.
                unsafe { result::module::unload(module) }.map_err(failed("cuModuleUnload"))?;
                Err(refused(&format!("the module has no such entry ({error:?})")))
            }
        }
    }

    /// Waits for everything on the stream.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        self.bind()?;
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))
    }

    /// Places mark number `mark` after everything on the stream.
    pub(super) fn mark(&self, mark: usize) -> Result<(), DriverError> {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        while marks.len() <= mark {
            let event = self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
            marks.push(event.map_err(failed("cuEventCreate"))?);
        }
        marks[mark].record(&self.stream).map_err(failed("cuEventRecord"))
    }

    /// Milliseconds between two marks, after a wait for both.
    pub(super) fn milliseconds(&self, from: usize, to: usize) -> Result<f32, DriverError> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks[from].elapsed_ms(&marks[to]).map_err(failed("cuEventElapsedTime"))
    }

    /// Unloads all kernels; none may be running.
    pub(super) fn unload(&self) {
        for Loaded { module, .. } in self.loaded().drain(..) {
            // SAFETY: nothing runs any more, and the handles die with this session.
            let _ = unsafe { result::module::unload(module) };
        }
    }

    fn loaded(&self) -> MutexGuard<'_, Vec<Loaded>> {
        self.loaded.lock().expect("no thread panics while it loads a module")
    }
}

/// Whether the kernel `entry` of a text waits for earlier kernels itself, and the number of its parameters.
fn read(ptx: &str, entry: &str) -> (bool, usize) {
    let is_named = |text: &&str| text.strip_prefix(entry).is_some_and(|rest| rest.trim_start().starts_with(['(', '{']));
    let text = ptx.split(".entry ").map(str::trim_start).find(is_named).unwrap_or_default();
    let header = text.split(['{', ')']).next().unwrap_or_default();
    (text.contains("griddepcontrol.wait;"), header.matches(".param").count())
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

#[cfg(test)]
mod tests {
    #[test]
    fn waits_and_parameters_are_those_of_the_named_kernel() {
        let text = ".visible .entry a(\n .param .u64 x,\n .param .align 64 .b8 map[128]\n) {\n griddepcontrol.wait;\n ret;\n}\n\
            .visible .entry ab(\n .param .u32 n\n)\n.maxntid 32\n{\n ld.param.u32 %r0, [n];\n ret;\n}\n.entry b { ret; }\n";
        assert_eq!(["a", "ab", "b"].map(|entry| super::read(text, entry)), [(true, 2), (false, 1), (false, 0)]);
    }
}
