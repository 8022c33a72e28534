//! Runners of cases: CPU, CPU that records outputs, simulator, hardware, and a dry run that collects the names of programs.
//!
//! A check of the table gets a [`Runner`] and launches through it. A recording simulator keeps every [`Launched`]: the
//! program, its grid, what it cost, and memory before and after. A launch can be replayed with another text
//! ([`Launched::replay`]), as in the mutation test (`kernels/proof/tests/mutants`): a defect without a finding changes memory, and
//! with [`Setting::replaced`] the check decides whether the change matters.

use crate::case::Target;
use crate::recorded::{Data, Output};
use bytemuck::Pod;
use kernels::IsaKind;
use kernels::pool::Cpu;
use kernels_cuda::arguments::{Address, Arguments};
use kernels_cuda::program::{Name, Program};
use ptx::{
    Launch, Sm,
    sim::{Approximation, Argument, Error, Memory, Metrics, Module, Options, Report, Touched},
};
use std::{cell::RefCell, collections::BTreeSet, fmt, ops::Deref, rc::Rc};

/// Device other than the simulator.
pub trait Hardware {
    /// Runs `program` on a copy of `memory`, waits, and copies all of it back; bytes that are not initialized are NaN.
    ///
    /// # Errors
    /// The device rejects the program or the launch, or reports a fault.
    fn launch(
        &self,
        program: &Program,
        launch: Launch,
        arguments: &[Argument],
        memory: &mut Memory,
    ) -> Result<(), String>;
}

/// Runner of a case.
pub enum Runner<'a> {
    /// CPU with this instruction set and two threads.
    Cpu(IsaKind),
    /// CPU whose outputs are recorded and not compared.
    Recording(&'a CpuRunner<'a>),
    /// GPU programs.
    Gpu(GpuRunner<'a>),
}

impl<'a> Runner<'a> {
    /// The simulator with default options.
    pub fn simulator(sm: Sm) -> Self {
        Self::Gpu(GpuRunner::simulator(sm))
    }

    /// GPU that runs programs for `sm`.
    pub fn hardware(sm: Sm, hardware: &'a dyn Hardware) -> Self {
        Self::Gpu(GpuRunner { sm, takes_large: false, backend: Backend::Hardware(hardware) })
    }

    /// Target of the case.
    pub fn target(&self) -> Target {
        match self {
            Self::Cpu(isa) => Target::Cpu(*isa),
            Self::Recording(cpu) => Target::Cpu(cpu.isa().kind()),
            Self::Gpu(gpu) => Target::Simulator(gpu.sm),
        }
    }

    /// True if cases that are too large for the tests also run.
    pub(crate) fn takes_large(&self) -> bool {
        self.records() || matches!(self, Self::Gpu(gpu) if gpu.takes_large)
    }

    /// True if outputs are recorded and not compared, without the cost of a reference.
    pub(crate) fn records(&self) -> bool {
        matches!(self, Self::Recording(_))
    }
}

impl From<Target> for Runner<'_> {
    /// CPU, or simulator with default options.
    fn from(target: Target) -> Self {
        match target {
            Target::Cpu(isa) => Self::Cpu(isa),
            Target::Simulator(sm) => Self::simulator(sm),
        }
    }
}

impl fmt::Display for Runner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(GpuRunner { sm, backend: Backend::Hardware(_), .. }) => f.write_str(sm.name()),
            _ => self.target().fmt(f),
        }
    }
}

/// Runner of a case on a CPU.
pub struct CpuRunner<'a> {
    cpu: &'a Cpu,
    data: Data,
    /// The outputs so far, if they are recorded.
    outputs: Option<RefCell<Vec<Output>>>,
}

impl<'a> CpuRunner<'a> {
    /// Outputs are compared.
    pub(crate) fn checking(cpu: &'a Cpu) -> Self {
        Self { cpu, data: Data::Uniform, outputs: None }
    }

    /// Outputs for inputs of `data` are recorded and not compared.
    pub(crate) fn recording(cpu: &'a Cpu, data: Data) -> Self {
        Self { cpu, data, outputs: Some(RefCell::default()) }
    }

    /// The recorded outputs.
    pub(crate) fn into_outputs(self) -> Vec<Output> {
        self.outputs.map(RefCell::into_inner).unwrap_or_default()
    }

    /// The CPU, where a deref does not apply: as an argument of a generic type.
    pub(crate) fn cpu(&self) -> &'a Cpu {
        self.cpu
    }

    /// Values of the inputs.
    pub(crate) fn data(&self) -> Data {
        self.data
    }

    /// True if outputs are recorded and not compared.
    pub(crate) fn is_recording(&self) -> bool {
        self.outputs.is_some()
    }

    /// Adds to the recorded outputs.
    pub(crate) fn record(&self, outputs: Vec<Output>) {
        if let Some(all) = &self.outputs {
            all.borrow_mut().extend(outputs);
        }
    }
}

/// The CPU, for calls of kernels.
impl Deref for CpuRunner<'_> {
    type Target = Cpu;
    fn deref(&self) -> &Cpu {
        self.cpu
    }
}

/// Runner of the launches of a case on a GPU.
pub struct GpuRunner<'a> {
    sm: Sm,
    takes_large: bool,
    backend: Backend<'a>,
}

enum Backend<'a> {
    Simulator {
        setting: Setting,
        /// The launches so far, if they are recorded.
        launched: Option<RefCell<Vec<Launched>>>,
    },
    Hardware(&'a dyn Hardware),
    /// Runs nothing: buffers keep their contents, and results are not compared.
    NamesOnly(RefCell<BTreeSet<Name>>),
}

impl GpuRunner<'_> {
    /// The simulator with default options.
    pub fn simulator(sm: Sm) -> Self {
        Self { sm, takes_large: false, backend: Backend::Simulator { setting: Setting::default(), launched: None } }
    }

    /// Simulator that records its launches; `takes_large`: cases that are too large for the tests also run.
    pub fn recording(sm: Sm, setting: Setting, takes_large: bool) -> Self {
        Self { sm, takes_large, backend: Backend::Simulator { setting, launched: Some(RefCell::default()) } }
    }

    /// Collects the names of the programs that are launched, without running them.
    pub fn names_only(sm: Sm) -> Self {
        Self { sm, takes_large: false, backend: Backend::NamesOnly(RefCell::default()) }
    }

    /// The architecture of the programs.
    pub fn sm(&self) -> Sm {
        self.sm
    }

    /// The recorded launches.
    pub fn into_launched(self) -> Vec<Launched> {
        match self.backend {
            Backend::Simulator { launched: Some(launched), .. } => launched.into_inner(),
            _ => Vec::new(),
        }
    }

    /// The collected names.
    pub fn into_names(self) -> BTreeSet<Name> {
        match self.backend {
            Backend::NamesOnly(names) => names.into_inner(),
            _ => BTreeSet::new(),
        }
    }

    /// True if cases that are too large for the tests also run.
    pub(crate) fn takes_large(&self) -> bool {
        self.takes_large
    }

    /// True if nothing is computed.
    pub(crate) fn only_names(&self) -> bool {
        matches!(self.backend, Backend::NamesOnly(_))
    }

    /// The verdict of `compare` on results; 0 if nothing is computed.
    pub(crate) fn compared(&self, compare: impl FnOnce() -> Result<f64, String>) -> Result<f64, String> {
        if self.only_names() { Ok(0.0) } else { compare() }
    }

    /// Empty device memory.
    pub(crate) fn device(&self) -> Device<'_> {
        Device { gpu: self, memory: Memory::default() }
    }

    /// Runs `program` on `memory`.
    ///
    /// # Errors
    /// All findings of the simulator, or the error of the hardware.
    pub(crate) fn launch(
        &self,
        program: &Program,
        launch: Launch,
        arguments: &[Argument],
        memory: &mut Memory,
        approximation: Approximation,
    ) -> Result<(), String> {
        let (setting, launched) = match &self.backend {
            Backend::NamesOnly(names) => {
                names.borrow_mut().insert(program.name.clone());
                return Ok(());
            }
            Backend::Hardware(hardware) => return hardware.launch(program, launch, arguments, memory),
            Backend::Simulator { setting, launched } => (setting, launched),
        };
        let same = |before: &&Rc<Launched>| {
            before.is(program, launch, arguments, approximation) && memory.holds_the_same_as(&before.before)
        };
        if let Some(before) = setting.recorded.iter().find(same) {
            *memory = before.after.snapshot();
            return Ok(());
        }
        let replaced = setting.replaced.as_ref().filter(|(name, _)| *name == program.name);
        let text = replaced.map_or(&program.text, |(_, text)| text);
        let module = Module::parse(text).map_err(|error| error.to_string())?;
        let options = Options { approximation, ..setting.options };
        let before = launched.is_some().then(|| memory.snapshot());
        let report = module.launch(&program.name.entry(), launch, arguments, memory, &options);
        let metrics = report.map_err(|error| error.to_string())?.clean()?;
        if let (Some(before), Some(all)) = (before, launched) {
            let (name, touched, arguments) = (program.name.clone(), memory.touched(), arguments.to_vec());
            let after = memory.snapshot();
            let launched = Launched { name, launch, metrics, touched, arguments, approximation, before, after };
            all.borrow_mut().push(launched);
        }
        Ok(())
    }
}

/// Settings with which the simulator runs the launches of a case.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Schedule and completion. A check that tries several approximations does so regardless of these options.
    pub options: Options,
    /// Program whose text is replaced.
    pub replaced: Option<(Name, String)>,
    /// Earlier launches: a launch of the same program with the same arguments on the same memory is not run but leaves the
    /// recorded memory.
    pub recorded: Vec<Rc<Launched>>,
}

/// One launch of a program by a case.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The program.
    pub name: Name,
    /// Grid and block.
    pub launch: Launch,
    /// Cost counters.
    pub metrics: Metrics,
    /// Distinct bytes of global memory that were read or written.
    pub touched: Touched,
    arguments: Vec<Argument>,
    approximation: Approximation,
    before: Memory,
    after: Memory,
}

/// Outcome of a replay.
#[derive(Clone, Debug)]
pub enum Replayed {
    /// Clean, and every byte of memory as before.
    Same,
    /// Clean, with different memory: the check decides whether the difference matters.
    Different(Memory),
    /// Findings of the simulator.
    Found(Report),
    /// The text is invalid.
    Refused(Error),
}

impl Launched {
    /// Arguments in the order of the parameters.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The launch with another grid, for a program with a grid-stride loop: `None` if the program, whose `text` this is,
    /// then leaves different memory.
    pub fn on_grid(&self, text: &str, grid: [u32; 3]) -> Option<Launched> {
        let mut other = Launched { launch: Launch { grid, ..self.launch }, ..self.clone() };
        let options = Options { approximation: self.approximation, ..Options::default() };
        let mut memory = self.before.snapshot();
        let module = Module::parse(text).ok()?;
        let report = module.launch(&self.name.entry(), other.launch, &self.arguments, &mut memory, &options).ok()?;
        other.metrics = report.clean().ok()?;
        memory.holds_the_same_as(&self.after).then_some(other)
    }

    /// Runs the launch with another text of the same program.
    pub fn replay(&self, text: &str, options: &Options) -> Replayed {
        let options = Options { approximation: self.approximation, ..*options };
        let mut memory = self.before.snapshot();
        let report = Module::parse(text)
            .and_then(|module| module.launch(&self.name.entry(), self.launch, &self.arguments, &mut memory, &options));
        match report {
            Err(error) => Replayed::Refused(error),
            Ok(report) if !report.findings.is_empty() => Replayed::Found(report),
            Ok(_) if memory.holds_the_same_as(&self.after) => Replayed::Same,
            Ok(_) => Replayed::Different(memory),
        }
    }

    /// The launch as if it had left `memory`.
    pub fn leaving(&self, memory: &Memory) -> Launched {
        Launched { after: memory.snapshot(), ..self.clone() }
    }

    /// True if this is a launch of `program` with the same arguments.
    fn is(&self, program: &Program, launch: Launch, arguments: &[Argument], approximation: Approximation) -> bool {
        self.name == program.name
            && (self.launch, self.approximation) == (launch, approximation)
            && self.arguments == arguments
    }
}

/// Memory of a GPU.
pub(crate) struct Device<'a> {
    gpu: &'a GpuRunner<'a>,
    memory: Memory,
}

impl Device<'_> {
    /// The architecture of the programs.
    pub(crate) fn sm(&self) -> Sm {
        self.gpu.sm
    }

    /// A buffer that holds `values`.
    pub(crate) fn buffer<T: Pod>(&mut self, name: &str, values: &[T]) -> Address {
        Address(self.memory.allocate_from(name, values))
    }

    /// An uninitialized buffer of `len` elements.
    pub(crate) fn unwritten<T: Pod>(&mut self, name: &str, len: usize) -> Address {
        Address(self.memory.allocate(name, len * size_of::<T>()))
    }

    /// Runs `program` with `arguments`, if there is anything to launch.
    ///
    /// # Errors
    /// All findings of the simulator, or the error of the hardware.
    pub(crate) fn start(
        &mut self,
        program: &Program,
        launch: Option<Launch>,
        arguments: &impl Arguments,
        approximation: Approximation,
    ) -> Result<(), String> {
        let arguments: Vec<Argument> = arguments.pack().into_iter().map(Argument::from).collect();
        launch.map_or(Ok(()), |launch| self.gpu.launch(program, launch, &arguments, &mut self.memory, approximation))
    }

    /// Contents of a buffer, every byte of which must have been written.
    pub(crate) fn read<T: Pod>(&self, buffer: Address) -> Result<Vec<T>, String> {
        if self.gpu.only_names() {
            let bytes = self.memory.bytes(buffer.0).map_err(|error| error.to_string())?.0;
            return Ok(bytemuck::pod_collect_to_vec(bytes));
        }
        self.memory.read(buffer.0).map_err(|error| error.to_string())
    }
}
