//! Reverse-mode differentiation over a tape.
//!
//! ```text
//! forward    x ──linear──> a ──gelu──> b ──mean──> loss          each operation that a gradient has to pass
//! tape         [linear: x, weight] [gelu: a] [mean: shape]       leaves a record with what backward needs
//! backward   dx <───────── da <─────── db <─────── 1             records are taken from the end and dropped
//! ```
//!
//! A record owns what it saved and is dropped once it has run, so memory shrinks as backward proceeds. Gradients of one
//! value from several uses are added in the order of the tape. Gradients of parameters are f32, whatever the activations
//! are stored in, and are added to one flat buffer ([`Gradients`]).
//!
//! An operation has a backward pass or cannot be recorded: [`Tape::record`] takes one, and
//! [`Tape::record_forward_only`] refuses inputs that require a gradient. Gradients stop only at an explicit
//! [`Tape::detach`].
//!
//! All kernels are launched through [`Tape::launch`], which skips them in a dry run and measures them in a profile.
mod inputs;
mod lists;
mod sum;
mod var;
mod workspace;

pub use lists::List;
pub(crate) use lists::SortedRows;
pub(crate) use sum::copy;
pub(crate) use var::Recomputable;
pub use var::Var;
pub(crate) use workspace::Traffic;
pub use workspace::{WeightGradients, Workspace};

use crate::{
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    memory::Parts,
    param::{Gradients, ParamId, ParamStore},
    shape::Shape,
    tensor::Tensor,
    trace,
};
use kernels::{Cost, Cpu, Element, gemm::Precision};
use std::{
    cell::{Cell, RefCell},
    ops::Range,
};
use workspace::Spare;

/// The backward pass of a recorded operation, with what it saved.
pub trait Op: Send {
    /// Name of the operation, for errors.
    fn name(&self) -> &'static str;

    /// Computes from the gradient of the output those of the inputs ([`BackwardContext::accumulate_grad`]) and parameters.
    ///
    /// # Errors
    /// Not enough memory, or a device failed.
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()>;
}

enum Source {
    /// Made by the caller; its gradient goes to [`LeafGradients`].
    Leaf,
    Param(ParamId),
    Op(Box<dyn Op>),
}

struct Node {
    source: Source,
    /// Its part of the tape's inputs.
    inputs: Range<usize>,
}

const NO_NODE: u32 = u32::MAX;

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            Source::Leaf => write!(f, "leaf"),
            Source::Param(id) => write!(f, "parameter {}", id.index()),
            Source::Op(op) => write!(f, "{} of inputs {:?}", op.name(), self.inputs),
        }
    }
}

/// One step: operations are recorded while they run.
#[derive(Debug)]
pub struct Tape<'w> {
    id: u32,
    workspace: &'w Workspace,
    params: &'w ParamStore,
    recording: bool,
    dry: bool,
    /// True if weight gradients of repeated layers are fused.
    joins: bool,
    nodes: RefCell<Vec<Node>>,
    /// Records of the inputs of all nodes; [`NO_NODE`] for those that require no gradient.
    inputs: RefCell<Vec<u32>>,
    gradients: RefCell<Vec<Option<Tensor>>>,
    done: Cell<bool>,
    /// Start of the forward pass in a trace.
    forward: Cell<Option<u64>>,
}

impl<'w> Tape<'w> {
    /// The parameters that the step reads.
    pub fn params(&self) -> &'w ParamStore {
        self.params
    }

    /// The device.
    pub fn device(&self) -> &'w Device {
        &self.workspace.device
    }

    /// The CPU that kernels run on, or the host of the GPU.
    pub fn cpu(&self) -> &'w Cpu {
        self.workspace.device.processor()
    }

    /// True in a step with gradients.
    pub fn is_recording(&self) -> bool {
        self.recording
    }

    /// Storage type of activations, by the precision of the step.
    pub fn activations(&self) -> DType {
        self.workspace.precision().activations()
    }

    /// Precision of products of activations that are stored as `dtype`.
    pub(crate) fn precision(&self, dtype: DType) -> Precision {
        self.workspace.precision().of_product(dtype)
    }

    /// True in a step whose dense layers multiply weights that are rounded to bf16.
    pub(crate) fn rounds_weights(&self) -> bool {
        self.workspace.precision() == crate::Precision::Bf16Weights && !self.recording
    }

    /// True in a step whose encoder layers multiply in 8-bit integers.
    pub(crate) fn multiplies_in_int8(&self) -> bool {
        self.workspace.precision() == crate::Precision::Int8 && !self.recording
    }

    /// A tensor with memory of this step; its elements are unspecified until a kernel writes them.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn alloc(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        Tensor::new(&self.workspace.arena, shape, dtype)
    }

    /// Memory of this step for `count` tensors of `bytes` bytes, one directly behind another.
    pub(crate) fn parts(&self, count: usize, bytes: usize) -> Result<Parts> {
        Parts::new(&self.workspace.arena, count, bytes)
    }

    /// True if the weight gradients of a layer are to be fused, which would move `traffic`.
    pub(crate) fn joins(&self, traffic: Traffic) -> bool {
        if self.dry {
            let mut dry = self.workspace.dry.get();
            dry.traffic.saved += traffic.saved;
            dry.traffic.added += traffic.added;
            self.workspace.dry.set(dry);
        }
        self.joins
    }

    /// Runs and profiles a kernel; does nothing in a dry run. All code that reads or writes elements runs here.
    ///
    /// # Errors
    /// The device does not run this kernel, or fails.
    pub fn launch(&self, name: &'static str, cost: Cost, kernel: impl FnOnce(&Cpu)) -> Result<()> {
        self.launch_on(name, cost, |device| match device {
            Device::Cpu(cpu) => {
                kernel(cpu);
                Ok(())
            }
            Device::Cuda(_) => Err(EngineError::NotOnGpu { operation: name }),
        })
    }

    /// Runs a kernel that exists for every device; `kernel` gets the device.
    ///
    /// # Errors
    /// As `kernel`.
    pub fn launch_on(&self, name: &'static str, cost: Cost, kernel: impl FnOnce(&Device) -> Result<()>) -> Result<()> {
        if self.dry {
            return Ok(());
        }
        let Workspace { device, profile, arena, .. } = self.workspace;
        profile.measure(name, cost, |is_on| {
            if is_on {
                trace::memory_of_steps(|| arena.bytes_in_use());
            }
            kernel(device)?;
            // A launch returns before its kernel ends; a profile wants to know when that is.
            match device {
                Device::Cuda(gpu) if is_on && profile.waits_for_kernels() => gpu.synchronize(),
                _ => Ok(()),
            }
        })
    }

    /// Announces attention with heads of this size to a dry run.
    pub(crate) fn expect_attention(&self, head_size: usize) {
        if self.dry {
            kernels::attention::warm_up(self.cpu(), head_size);
            let mut scratch = self.workspace.scratch.get();
            scratch.attention = scratch.attention.max(kernels::attention::scratch_bytes(head_size));
            self.workspace.scratch.set(scratch);
        }
    }

    /// A tensor as a value without a gradient.
    pub fn constant(&self, value: Tensor) -> Var {
        Var::new(value, None)
    }

    /// A tensor as a value whose gradient [`Tape::backward`] returns, in a step with gradients.
    ///
    /// # Errors
    /// The tensor holds integers.
    pub fn leaf(&self, value: Tensor) -> Result<Var> {
        if !value.dtype().is_float() {
            return Err(EngineError::dtype("leaf", format!("{value:?} cannot have a gradient; use constant")));
        }
        let node = self.push(Source::Leaf, 0..0);
        Ok(Var::new(value, node))
    }

    /// A parameter as a value on the device, for operations that take no [`ParamId`].
    ///
    /// # Errors
    /// There is not enough memory, the device failed, or the newest values are on another one.
    pub fn param(&self, id: ParamId) -> Result<Var> {
        let value = self.params.tensor_on(self.device(), id)?;
        let node = self.push(Source::Param(id), 0..0);
        Ok(Var::new(value, node))
    }

    /// The value without a gradient.
    pub fn detach(&self, x: &Var) -> Var {
        Var { node: None, ..x.clone() }
    }

    /// True if a gradient has to pass an operation with these inputs.
    pub fn requires_grad(&self, inputs: &[&Var]) -> bool {
        self.recording && inputs.iter().any(|x| x.requires_grad())
    }

    /// Makes `value`, which an operation computed from `inputs`, a value on the tape. `backward` is called, to save what
    /// it needs, only if a gradient has to pass.
    ///
    /// # Errors
    /// An input belongs to another tape.
    pub fn record<O: Op + 'static>(&self, inputs: &[&Var], value: Tensor, backward: impl FnOnce() -> O) -> Result<Var> {
        self.record_with(inputs, value, self.requires_grad(inputs), backward)
    }

    /// Records an operation with parameters, in every step with gradients. Its backward pass gives the parameters' gradients
    /// to [`BackwardContext::accumulate_param_grad`].
    ///
    /// # Errors
    /// An input belongs to another tape.
    pub fn record_with_parameters<O: Op + 'static>(
        &self,
        inputs: &[&Var],
        value: Tensor,
        backward: impl FnOnce() -> O,
    ) -> Result<Var> {
        self.record_with(inputs, value, self.recording, backward)
    }

    fn record_with<O: Op + 'static>(
        &self,
        inputs: &[&Var],
        value: Tensor,
        wanted: bool,
        backward: impl FnOnce() -> O,
    ) -> Result<Var> {
        if !wanted {
            return Ok(Var::new(value, None));
        }
        let start = self.inputs.borrow().len();
        for x in inputs {
            let id = self.node(x)?;
            self.inputs.borrow_mut().push(id);
        }
        let node = self.push(Source::Op(Box::new(backward())), start..start + inputs.len());
        Ok(Var::new(value, node))
    }

    /// Makes `value` a value on the tape for an operation that has no backward pass.
    ///
    /// # Errors
    /// An input requires a gradient, which would be cut.
    pub fn record_forward_only(&self, operation: &'static str, inputs: &[&Var], value: Tensor) -> Result<Var> {
        match inputs.iter().position(|x| self.recording && x.requires_grad()) {
            None => Ok(Var::new(value, None)),
            Some(input) => Err(EngineError::NoBackward {
                operation: operation.into(),
                input,
                shape: inputs[input].shape().to_vec(),
            }),
        }
    }

    fn push(&self, source: Source, inputs: Range<usize>) -> Option<(u32, u32)> {
        if !self.recording {
            return None;
        }
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(Node { source, inputs });
        Some((self.id, nodes.len() as u32 - 1))
    }

    fn node(&self, x: &Var) -> Result<u32> {
        match x.node {
            None => Ok(NO_NODE),
            Some((tape, node)) if tape == self.id => Ok(node),
            Some(_) => {
                let problem = format!("a value of shape {:?} belongs to another step; detach it there", x.shape());
                Err(EngineError::Backward(problem))
            }
        }
    }

    /// The one element of `x`, as f32. Zero in a dry run.
    ///
    /// # Errors
    /// There is not exactly one element.
    pub fn item(&self, x: &Var) -> Result<f32> {
        if x.value.len() != 1 {
            return Err(EngineError::shape("item", format!("one element was expected, the shape is {:?}", x.shape())));
        }
        Ok(if self.dry { 0.0 } else { x.value.to_vec()?[0] })
    }

    /// True in a dry run, which has no values to read.
    pub fn is_dry(&self) -> bool {
        self.dry
    }

    /// Adds the gradients of `loss`, a single number, to `params`, and returns those of the leaves. If the loss is not finite,
    /// neither are they.
    ///
    /// # Errors
    /// `loss` is not a single float or requires no gradient, `params` are of another store, the tape was used already, or an
    /// operation failed.
    pub fn backward(&self, loss: &Var, params: &mut Gradients) -> Result<LeafGradients> {
        if loss.value.len() != 1 {
            let problem =
                format!("a loss is a single number, and this has shape {:?}; take its mean or sum", loss.shape());
            return Err(EngineError::Backward(problem));
        }
        if !loss.dtype().is_float() {
            return Err(EngineError::Backward(format!("a loss is a float, and this is {:?}", loss.value)));
        }
        self.backward_from(loss, self.seed(&loss.value)?, params)
    }

    /// Ends the forward pass in a trace: the time now.
    fn end_forward(&self) -> Option<u64> {
        trace::record("forward", self.forward.take()?, &[]);
        Some(trace::now())
    }

    /// The gradient of a loss by itself: 1, or NaN if it is not finite, so that all other gradients are NaN as well.
    fn seed(&self, loss: &Tensor) -> Result<Tensor> {
        let mut dy = self.alloc(*loss.shape(), loss.dtype())?;
        self.launch_on("backward.seed", moved(2 * loss.dtype().bytes()), |device| match device {
            Device::Cpu(_) => {
                floats!(loss.dtype(), X => {
                    let is_finite = loss.slice::<X>()[0].to_f32().is_finite();
                    dy.slice_mut::<X>()[0] = X::from_f32(if is_finite { 1.0 } else { f32::NAN });
                });
                Ok(())
            }
            Device::Cuda(gpu) => gpu.one(loss, &mut dy),
        })?;
        Ok(dy)
    }

    /// Backward from a given gradient `dy` of `y`, of its shape and type.
    ///
    /// # Errors
    /// As [`Tape::backward`]; and if `dy` does not match `y`.
    pub fn backward_from(&self, y: &Var, dy: Tensor, params: &mut Gradients) -> Result<LeafGradients> {
        let Some((_, last)) = y.node else {
            let problem = "nothing that the value depends on requires a gradient; was it computed by Workspace::infer?";
            return Err(EngineError::Backward(problem.into()));
        };
        self.node(y)?;
        if (y.shape(), y.dtype()) != (dy.shape(), dy.dtype()) {
            return Err(EngineError::Backward(format!("the gradient {dy:?} does not match the value {:?}", y.value)));
        }
        if params.flat.len() != self.params.len() {
            let (given, expected) = (params.flat.len(), self.params.len());
            let problem = format!("room for {given} parameter gradients, but the step has {expected} parameter values");
            return Err(EngineError::Backward(problem));
        }
        if self.done.replace(true) {
            return Err(EngineError::Backward(
                "a tape is used up by its first backward pass; record the step again".into(),
            ));
        }
        let start = self.end_forward();
        let mut nodes = self.nodes.take();
        let mut inputs = self.inputs.take();
        let mut gradients = self.gradients.take();
        gradients.resize(nodes.len(), None);
        gradients[last as usize] = Some(dy);
        nodes.truncate(last as usize + 1);
        let mut leaves = LeafGradients { tape: self.id, gradients: Vec::new() };
        let mut outcome = Ok(());
        while let Some(node) = nodes.pop() {
            let Some(dy) = gradients[nodes.len()].take() else { continue };
            let inputs = &inputs[node.inputs];
            let mut ctx = BackwardContext { tape: self, gradients: &mut gradients, inputs, params };
            outcome = match node.source {
                Source::Leaf => {
                    leaves.gradients.push((nodes.len() as u32, dy));
                    Ok(())
                }
                Source::Param(id) => ctx.accumulate_param_grad(id, &dy),
                Source::Op(op) => op.backward(dy, &mut ctx),
            };
            if outcome.is_err() {
                break;
            }
        }
        nodes.clear();
        inputs.clear();
        gradients.clear();
        // Their memory serves the next step.
        *self.workspace.spare.borrow_mut() = Spare { nodes, inputs, gradients };
        if let Some(start) = start {
            trace::record("backward", start, &[]);
        }
        outcome?;
        params.count_batch();
        Ok(leaves)
    }
}

impl Drop for Tape<'_> {
    fn drop(&mut self) {
        self.end_forward();
        let mut nodes = self.nodes.take();
        nodes.clear();
        if nodes.capacity() > self.workspace.spare.borrow().nodes.capacity() {
            let (mut inputs, gradients) = (self.inputs.take(), self.gradients.take());
            inputs.clear();
            *self.workspace.spare.borrow_mut() = Spare { nodes, inputs, gradients };
        }
        self.workspace.arena.finish_step();
    }
}

/// Tape and gradients of an operation's backward pass.
#[derive(Debug)]
pub struct BackwardContext<'a, 'w> {
    /// The step: memory and launches.
    pub tape: &'a Tape<'w>,
    gradients: &'a mut Vec<Option<Tensor>>,
    inputs: &'a [u32],
    /// Gradients of the parameters, to be added to.
    pub(crate) params: &'a mut Gradients,
}

impl BackwardContext<'_, '_> {
    /// True if input number `input` requires a gradient; another need not be computed.
    pub fn needs_grad(&self, input: usize) -> bool {
        self.inputs[input] != NO_NODE
    }

    /// The gradient of input number `input` so far, to be added to in place; `None` if there is none or other tensors share it.
    pub(crate) fn take_grad(&mut self, input: usize) -> Option<Tensor> {
        self.gradients.get_mut(self.inputs[input] as usize)?.take_if(|dx| dx.is_unique())
    }

    /// Adds `dx` to the gradient of input number `input`; dropped if that requires none.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn accumulate_grad(&mut self, input: usize, dx: Tensor) -> Result<()> {
        if !self.needs_grad(input) {
            return Ok(());
        }
        let node = self.inputs[input] as usize;
        let sum = match self.gradients[node].take() {
            None => dx,
            Some(sum) => sum::sum(self.tape, sum, dx)?,
        };
        self.gradients[node] = Some(sum);
        Ok(())
    }

    /// Adds `dw`, f32 and of the parameter's shape, to the gradient of parameter `id`.
    ///
    /// # Errors
    /// `dw` has another shape or type, or the device failed.
    pub fn accumulate_param_grad(&mut self, id: ParamId, dw: &Tensor) -> Result<()> {
        let info = self.tape.params.info(id);
        if dw.shape() != &info.shape || dw.dtype() != DType::F32 {
            let problem = format!("a gradient of f32 {:?} was expected, this is {dw:?}", info.shape);
            return Err(EngineError::parameter(&info.name, problem));
        }
        let range = self.params.range(id);
        let flat = &mut self.params.flat;
        self.tape.launch_on("add.gradient", moved(range.len() * 12), |device| match device {
            Device::Cpu(cpu) => {
                kernels::elementwise::add_assign(cpu, dw.slice::<f32>(), &mut flat.slice_mut::<f32>()[range]);
                Ok(())
            }
            Device::Cuda(gpu) => {
                let sum = flat.address_mut().element(range.start, 4);
                gpu.add_assign(dw.address(), sum, DType::F32, range.len())
            }
        })
    }
}

/// Gradients of the leaves that backward reached.
#[derive(Debug)]
pub struct LeafGradients {
    tape: u32,
    gradients: Vec<(u32, Tensor)>,
}

impl LeafGradients {
    /// The gradient of a leaf; `None` if the loss does not depend on it.
    pub fn get(&self, leaf: &Var) -> Option<&Tensor> {
        let (tape, node) = leaf.node?;
        let found = self.gradients.iter().find(|(other, _)| *other == node && tape == self.tape);
        found.map(|(_, gradient)| gradient)
    }
}

/// The cost of moving so many bytes.
pub(crate) fn moved(bytes: usize) -> Cost {
    Cost { flops: 0, bytes: bytes as u64 }
}
