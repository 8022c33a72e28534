//! State that steps share: device, planned memory, profiler, and settings of all steps.
use super::{Node, Tape};
use crate::{
    device::Device,
    error::{EngineError, Result},
    memory::{Arena, Plan},
    param::ParamStore,
    precision::Precision,
    profile::Profile,
    tensor::Tensor,
    trace,
};
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

/// State that outlives a step: device, memory of the steps, profiler, and emptied lists to reuse.
#[derive(Debug)]
pub struct Workspace {
    pub(super) device: Device,
    pub(super) arena: Arena,
    pub(super) profile: Arc<Profile>,
    pub(super) spare: RefCell<Spare>,
    tapes: u32,
    /// Bytes of scratch that kernels keep on worker threads, by the dry runs so far.
    pub(super) scratch: Cell<Scratch>,
    weight_gradients: WeightGradients,
    precision: Precision,
    /// Results of the dry run so far.
    pub(super) dry: Cell<Dry>,
    planned: Vec<Planned>,
}

/// Computation of the weight gradients of a layer that is applied several times in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WeightGradients {
    /// One GEMM per application.
    PerUse,
    /// One product for all applications ([`crate::ops::SharedLayerBackward`]).
    Fused,
    /// Fused in the steps that are planned on a GPU where that moves fewer bytes and the memory is there.
    #[default]
    Planned,
}

/// Results of a dry run other than memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dry {
    /// True if it fuses weight gradients.
    joins: bool,
    /// Bytes that fusing would move, where it is possible.
    pub(super) traffic: Traffic,
}

/// Bytes that fusing weight gradients moves less, and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) saved: u64,
    pub(crate) added: u64,
}

/// A planned step.
#[derive(Clone, Copy, Debug)]
struct Planned {
    name: &'static str,
    joins: bool,
}

/// Bytes of scratch per thread, by operation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scratch {
    gemm: usize,
    pub(super) attention: usize,
}

#[derive(Debug, Default)]
pub(super) struct Spare {
    pub(super) nodes: Vec<Node>,
    pub(super) inputs: Vec<u32>,
    pub(super) gradients: Vec<Option<Tensor>>,
}

impl Workspace {
    /// A workspace on `device`, without plans.
    pub fn new(device: Device) -> Self {
        Self::with_profiler(device, Arc::default())
    }

    /// A workspace with a profiler that others may share: several models in one table.
    pub fn with_profiler(device: Device, profile: Arc<Profile>) -> Self {
        Self {
            arena: Arena::on(&device),
            device,
            profile,
            spare: RefCell::default(),
            tapes: 0,
            scratch: Cell::default(),
            weight_gradients: WeightGradients::default(),
            precision: Precision::F32,
            dry: Cell::default(),
            planned: Vec::new(),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The memory of the steps.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The profiler.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Bytes of scratch that kernels keep on all worker threads together, after the planned steps.
    pub fn scratch_bytes(&self) -> usize {
        let Scratch { gemm, attention } = self.scratch.get();
        self.device.processor().threads() * (gemm + attention)
    }

    /// Sets the computation of weight gradients of repeated layers for later plans and steps.
    pub fn set_weight_gradients(&mut self, weight_gradients: WeightGradients) {
        self.weight_gradients = weight_gradients;
    }

    /// Sets the precision of later steps. Steps with gradients multiply in f32 where it is int8 or
    /// has rounded weights. Activations have the type that
    /// the caller gives them ([`Precision::activations`]).
    ///
    /// # Errors
    /// The device is a GPU and does not have the precision.
    pub fn set_precision(&mut self, precision: Precision) -> Result<()> {
        if !matches!(precision, Precision::F32 | Precision::Bf16) && self.device.gpu().is_some() {
            let problem = "only the CPU has it; choose the CPU, or f32 or bf16".to_string();
            return Err(EngineError::Setting { setting: "precision", value: precision.to_string(), problem });
        }
        self.precision = precision;
        Ok(())
    }

    /// Precision of the steps.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// True if steps of the plan called `name` fuse weight gradients.
    pub fn fuses_weight_gradients(&self, name: &str) -> bool {
        self.planned.iter().any(|planned| planned.name == name && planned.joins)
    }

    /// Begins a step that records what gradients need. `plan` names the plan to use (see [`Workspace::plan`]); without
    /// one, memory comes from the heap.
    pub fn train<'w>(&'w mut self, params: &'w ParamStore, plan: Option<&str>) -> Tape<'w> {
        self.begin(params, plan, true)
    }

    /// Begins a step without gradients: nothing is recorded or saved.
    pub fn infer<'w>(&'w mut self, params: &'w ParamStore, plan: Option<&str>) -> Tape<'w> {
        self.begin(params, plan, false)
    }

    fn begin<'w>(&'w mut self, params: &'w ParamStore, plan: Option<&str>, recording: bool) -> Tape<'w> {
        if !self.arena.is_dry() {
            self.arena.start_step(plan);
        }
        let planned = plan.and_then(|name| self.planned.iter().find(|planned| planned.name == name));
        let joins = match (self.arena.is_dry(), self.weight_gradients) {
            (true, _) => self.dry.get().joins,
            (false, WeightGradients::PerUse) => false,
            (false, WeightGradients::Fused) => true,
            (false, WeightGradients::Planned) => planned.is_some_and(|planned| planned.joins),
        };
        self.tapes = self.tapes.wrapping_add(1);
        let Spare { nodes, inputs, gradients } = self.spare.take();
        Tape {
            id: self.tapes,
            params,
            recording,
            dry: self.arena.is_dry(),
            joins,
            nodes: RefCell::new(nodes),
            inputs: RefCell::new(inputs),
            gradients: RefCell::new(gradients),
            done: Cell::new(false),
            forward: Cell::new((trace::is_on() && !self.arena.is_dry()).then(trace::now)),
            workspace: self,
        }
    }

    /// Runs `step` dry, its kernels left out, and lays out memory for all later steps that are begun under `name`.
    ///
    /// Scratch that kernels keep per worker thread is allocated as well, so that no later step has to
    /// ([`Workspace::scratch_bytes`]).
    ///
    /// The step is to be the largest one: a batch of the whole token budget. It must not read values (what
    /// [`Tape::item`] gives is zero) and must make its tensors in the same order as the real one. It is run a second time
    /// where the first has shown that weight gradients are better taken together ([`WeightGradients::Planned`]).
    ///
    /// # Errors
    /// What `step` says, or not enough memory for the block.
    pub fn plan(&mut self, name: &'static str, mut step: impl FnMut(&mut Self) -> Result<()>) -> Result<Plan> {
        let cpu = self.device.processor();
        kernels::gemm::warm_up(cpu);
        self.scratch.set(Scratch { gemm: kernels::gemm::scratch_bytes(cpu), ..self.scratch.get() });
        let always = self.weight_gradients == WeightGradients::Fused;
        let (mut plan, mut dry) = self.run_dry(always, &mut step)?;
        if let (WeightGradients::Planned, Some(gpu)) = (self.weight_gradients, self.device.gpu().cloned())
            && dry.traffic.saved > dry.traffic.added
        {
            let joined = self.run_dry(true, &mut step)?;
            // What the block grows by must be there, beside what parameters and optimizer are still to get.
            if joined.0.bytes() <= plan.bytes().max(gpu.memory_left() / 2) {
                (plan, dry) = joined;
            }
        }
        self.planned.retain(|planned| planned.name != name);
        self.planned.push(Planned { name, joins: dry.joins });
        self.arena.adopt(name, plan)
    }

    /// Runs `step` without kernels: what memory it needs, and what else was seen.
    fn run_dry(&mut self, joins: bool, step: &mut impl FnMut(&mut Self) -> Result<()>) -> Result<(Plan, Dry)> {
        self.dry.set(Dry { joins, ..Dry::default() });
        self.arena.start_dry();
        match step(self) {
            Ok(()) => Ok((self.arena.finish_dry(), self.dry.get())),
            Err(error) => {
                self.arena.abandon_dry();
                Err(error)
            }
        }
    }
}
