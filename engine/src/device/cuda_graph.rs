//! Recorded work as a graph of the CUDA driver: a chain of nodes, each waiting for the one before.
//!
//! The graph itself is kept beside the executable one, because its nodes are the names by which the latter is changed.
//! A change applies to the next launch; launches that wait or run keep their arguments.
//! Needs a driver for CUDA 12.0 or later.
#![allow(unsafe_code)]

use super::{
    cuda_session::{CudaSession, Passed, failed},
    driver::{Argument, DriverError, FunctionHandle, Node},
    graph::Executable,
};
use cudarc::driver::sys;
use ptx::Launch;
use std::{ffi::c_void, ptr::null_mut};

/// A graph and its executable form.
#[derive(Debug)]
pub(super) struct CudaGraph {
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    nodes: Vec<sys::CUgraphNode>,
}

// SAFETY: all three are names for objects of the driver, which may be used from any thread with the context current, by
// one at a time: they are behind a lock.
unsafe impl Send for CudaGraph {}

/// Calls `then` with the driver's description of a kernel.
fn with_kernel<R>(
    session: &CudaSession,
    (function, launch, arguments): (FunctionHandle, Launch, &[Argument]),
    then: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> Result<R, DriverError>,
) -> Result<R, DriverError> {
    let described = || {
        let func = session.function_with_room(function, launch.shared_bytes)?;
        let mut values = arguments.iter().map(Passed::new).collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        then(&sys::CUDA_KERNEL_NODE_PARAMS {
            func,
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: launch.shared_bytes,
            kernelParams: pointers.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        })
    };
    described().map_err(|error| session.refused(function, error))
}

/// One row of bytes from one place on the device to another.
fn copy(target: u64, source: u64, bytes: usize) -> sys::CUDA_MEMCPY3D {
    sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: source,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: target,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}

/// One row of bytes set to `value`.
fn fill(target: u64, bytes: usize, value: u8) -> sys::CUDA_MEMSET_NODE_PARAMS {
    sys::CUDA_MEMSET_NODE_PARAMS {
        dst: target,
        pitch: bytes,
        value: u32::from(value),
        elementSize: 1,
        width: bytes,
        height: 1,
    }
}

impl CudaGraph {
    /// Adds `node` behind the last one.
    fn add(&mut self, session: &CudaSession, node: &Node) -> Result<(), DriverError> {
        let (graph, before) = (self.graph, self.nodes.last().copied());
        let (dependencies, count) = match &before {
            Some(before) => (std::ptr::from_ref(before), 1),
            None => (std::ptr::null(), 0),
        };
        let mut added = null_mut();
        match *node {
            Node::Launch { function, launch, ref arguments } => {
                with_kernel(session, (function, launch, arguments), |kernel| {
                    // SAFETY: the graph is alive, the dependency is a node of it, and the description is copied with all
                    // arguments before the call returns. What the kernel does with addresses stays within device memory.
                    unsafe { sys::cuGraphAddKernelNode_v2(&mut added, graph, dependencies, count, kernel) }
                        .result()
                        .map_err(failed("cuGraphAddKernelNode"))
                })?;
            }
            Node::Copy { target, source, bytes } => {
                let (copy, context) = (copy(target.0, source.0, bytes), session.current_context()?);
                // SAFETY: as above; both places are device memory of this context.
                unsafe { sys::cuGraphAddMemcpyNode(&mut added, graph, dependencies, count, &copy, context) }
                    .result()
                    .map_err(failed("cuGraphAddMemcpyNode"))?;
            }
            Node::Fill { target, bytes, value } => {
                let (fill, context) = (fill(target.0, bytes, value), session.current_context()?);
                // SAFETY: as above.
                unsafe { sys::cuGraphAddMemsetNode(&mut added, graph, dependencies, count, &fill, context) }
                    .result()
                    .map_err(failed("cuGraphAddMemsetNode"))?;
            }
        }
        self.nodes.push(added);
        Ok(())
    }
}

impl Executable for CudaGraph {
    type Driver = CudaSession;

    fn build(session: &CudaSession, nodes: &[Node]) -> Result<Self, DriverError> {
        let mut built = Self { graph: null_mut(), executable: null_mut(), nodes: Vec::with_capacity(nodes.len()) };
        // SAFETY: writes one name to a live variable.
        unsafe { sys::cuGraphCreate(&mut built.graph, 0) }.result().map_err(failed("cuGraphCreate"))?;
        nodes.iter().try_for_each(|node| built.add(session, node))?;
        // SAFETY: the graph is alive and complete; the name goes to a live variable.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut built.executable, built.graph, 0) }
            .result()
            .map_err(failed("cuGraphInstantiate"))?;
        Ok(built)
    }

    fn set(&mut self, session: &CudaSession, at: usize, node: &Node) -> Result<(), DriverError> {
        let (executable, own) = (self.executable, self.nodes[at]);
        match *node {
            Node::Launch { function, launch, ref arguments } => {
                with_kernel(session, (function, launch, arguments), |kernel| {
                    // SAFETY: the node is of the graph that this executable was made from; the description is copied
                    // before the call returns.
                    unsafe { sys::cuGraphExecKernelNodeSetParams_v2(executable, own, kernel) }
                        .result()
                        .map_err(failed("cuGraphExecKernelNodeSetParams"))
                })
            }
            Node::Copy { target, source, bytes } => {
                let (copy, context) = (copy(target.0, source.0, bytes), session.current_context()?);
                // SAFETY: as above.
                unsafe { sys::cuGraphExecMemcpyNodeSetParams(executable, own, &copy, context) }
                    .result()
                    .map_err(failed("cuGraphExecMemcpyNodeSetParams"))
            }
            Node::Fill { target, bytes, value } => {
                let (fill, context) = (fill(target.0, bytes, value), session.current_context()?);
                // SAFETY: as above.
                unsafe { sys::cuGraphExecMemsetNodeSetParams(executable, own, &fill, context) }
                    .result()
                    .map_err(failed("cuGraphExecMemsetNodeSetParams"))
            }
        }
    }

    fn launch(&self, session: &CudaSession) -> Result<(), DriverError> {
        // SAFETY: graph and stream are alive; memory that it reaches is freed only after waiting for the stream.
        unsafe { sys::cuGraphLaunch(self.executable, session.stream()) }.result().map_err(failed("cuGraphLaunch"))
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // Errors here have no remedy.
        if !self.executable.is_null() {
            // SAFETY: waits, because the graph may still run; takes nothing.
            let _ = unsafe { sys::cuCtxSynchronize() };
            // SAFETY: made by this driver, destroyed once, and nothing runs any more.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
        if !self.graph.is_null() {
            // SAFETY: as above; nothing was made from it that is left.
            let _ = unsafe { sys::cuGraphDestroy(self.graph) };
        }
    }
}
