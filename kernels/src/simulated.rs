//! Launches in the simulator: what the checks of all operations share, and what a case launches.
//!
//! [`run`] answers a case of the table like its check, under a [`Setting`] of the caller's choice, and keeps every
//! [`Launched`]: which program, its grid, what it cost, and the memory before and after. A launch can be run again with
//! another text ([`Launched::replay`]), which is how mutants are tried (`kernels/tests/mutants`): a defect that the text
//! does not show by a finding shows by memory that differs, and [`Setting::replaced`] asks the check about it.

use crate::operation::{Case, Name, Operation, Outcome, Program, Target};
use bytemuck::Pod;
use ptx::{
    Launch, Sm, TensorMap,
    sim::{Approximation, Argument, Error, Memory, Metrics, Module, Options, Report, Touched},
};
use rayon::prelude::*;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

thread_local! {
    /// Who runs when, in launches of this thread.
    static OPTIONS: Cell<Options> = Cell::new(Options::default());
    /// A program that is to be run with another text.
    static REPLACED: RefCell<Option<(Name, String)>> = const { RefCell::new(None) };
    /// Launches that have been run before.
    static RECORDED: RefCell<Vec<Rc<Launched>>> = const { RefCell::new(Vec::new()) };
    /// Programs that this thread would have run, where somebody only wants to know their names.
    static SERVED: RefCell<Option<BTreeSet<Name>>> = const { RefCell::new(None) };
    /// Launches of this thread, where somebody wants to know them.
    static LAUNCHED: RefCell<Option<Vec<Launched>>> = const { RefCell::new(None) };
    /// Whether this thread also runs cases that are too large for the tests.
    static LARGE: Cell<bool> = const { Cell::new(false) };
    /// What runs launches of this thread instead of the simulator.
    static HARDWARE: RefCell<Option<Rc<dyn Hardware>>> = const { RefCell::new(None) };
}

/// Something else than the simulator that runs the launches of cases: silicon.
pub trait Hardware {
    /// Runs `program` on a copy of `memory`, waits, and brings all of it back; what nobody has written yet is NaN.
    ///
    /// # Errors
    /// The device refuses the program or the launch, or finds a fault.
    fn launch(
        &self,
        program: &Program,
        launch: Launch,
        arguments: &[Argument],
        memory: &mut Memory,
    ) -> Result<(), String>;
}

/// Runs `work` with every launch of a case in it on `hardware`: a check of [`Target::Simulator`] is one of the hardware then.
pub fn on_hardware<R>(hardware: Rc<dyn Hardware>, work: impl FnOnce() -> R) -> R {
    /// Gives the launches back to the simulator, whatever becomes of the work.
    struct Restored(Option<Rc<dyn Hardware>>);
    impl Drop for Restored {
        fn drop(&mut self) {
            HARDWARE.replace(self.0.take());
        }
    }
    let _restored = Restored(HARDWARE.replace(Some(hardware)));
    work()
}

/// How the launches of a case are run.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Who runs when. A check that tries several approximations does so whatever stands here.
    pub options: Options,
    /// A program that is to be run with another text.
    pub replaced: Option<(Name, String)>,
    /// Launches that have been run before: one of the same program with the same arguments on the same memory is not run
    /// again, but leaves what it left then.
    pub recorded: Vec<Rc<Launched>>,
}

/// One launch of a program by a case.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The program.
    pub name: Name,
    /// Grid and block.
    pub launch: Launch,
    /// What it cost.
    pub metrics: Metrics,
    /// Bytes of global memory that it read or wrote, each counted once.
    pub touched: Touched,
    arguments: Vec<Argument>,
    approximation: Approximation,
    before: Memory,
    after: Memory,
}

/// What became of a launch that was run again.
#[derive(Clone, Debug)]
pub enum Replayed {
    /// Clean, and every byte of memory as before.
    Same,
    /// Clean, but memory is this, and differs: the check has to say whether that matters.
    Different(Memory),
    /// What the simulator found wrong.
    Found(Report),
    /// The text cannot be run.
    Refused(Error),
}

impl Launched {
    /// What the kernel was given, in the order of its parameters.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The launch with another grid, for a program that loops over what its blocks do not cover at once: `None` where the
    /// program, whose `text` this is, then does not leave the same in memory.
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

    /// Whether this is a launch of `program` that would leave the same.
    fn is(&self, program: &Program, launch: Launch, arguments: &[Argument], approximation: Approximation) -> bool {
        self.name == program.name
            && (self.launch, self.approximation) == (launch, approximation)
            && self.arguments == arguments
    }
}

/// Checks a case of `operation` in the simulator of `sm`, and tells what it launched up to its end or first failure.
pub fn run(operation: &Operation, case: &Case, sm: Sm, setting: &Setting) -> (Outcome, Vec<Launched>) {
    OPTIONS.set(setting.options);
    REPLACED.replace(setting.replaced.clone());
    RECORDED.replace(setting.recorded.clone());
    LAUNCHED.replace(Some(Vec::new()));
    let outcome = (operation.check)(case, Target::Simulator(sm));
    OPTIONS.set(Options::default());
    REPLACED.replace(None);
    RECORDED.take();
    (outcome, LAUNCHED.take().unwrap_or_default())
}

/// Every launch of a case in the simulator of `sm`; none where the case is skipped or has nothing to compute.
///
/// # Errors
/// If the case fails.
pub fn launches(operation: &Operation, case: &Case, sm: Sm) -> Result<Vec<Launched>, String> {
    match run(operation, case, sm, &Setting::default()) {
        (Outcome::Failed { message }, _) => Err(message),
        (_, launches) => Ok(launches),
    }
}

/// As [`launches`], of a case that may be too large for the tests: for cost estimates; results are not checked.
///
/// # Errors
/// If the case fails all the same.
pub fn large_launches(operation: &Operation, case: &Case, sm: Sm) -> Result<Vec<Launched>, String> {
    LARGE.set(true);
    let found = launches(operation, case, sm);
    LARGE.set(false);
    found
}

/// Whether this thread also runs cases that are too large for the tests.
pub(crate) fn takes_large() -> bool {
    LARGE.get()
}

/// The programs that a case launches in the simulator of `sm`, found without running them: buffers are read as they were
/// made, and the check lets everything pass.
pub fn served(operation: &Operation, case: &Case, sm: Sm) -> BTreeSet<Name> {
    SERVED.replace(Some(BTreeSet::new()));
    (operation.check)(case, Target::Simulator(sm));
    SERVED.take().unwrap_or_default()
}

/// Whether this thread only wants to know the names of programs, and results are none.
pub(crate) fn only_names() -> bool {
    SERVED.with_borrow(Option::is_some)
}

/// The cases that launch each program of `operation`, the cheapest first.
pub fn cases_of(operation: &Operation, sm: Sm) -> BTreeMap<Name, Vec<Case>> {
    let mut found: BTreeMap<Name, Vec<Case>> =
        (operation.ptx)(sm).into_iter().map(|program| (program.name, Vec::new())).collect();
    let mut cases = (operation.cases)();
    cases.sort_by_key(|case| {
        let cost = (operation.cost)(case);
        (cost.flops, cost.bytes)
    });
    let named: Vec<_> = cases.par_iter().map(|case| served(operation, case, sm)).collect();
    for (case, names) in cases.into_iter().zip(named) {
        for name in names {
            if let Some(cases) = found.get_mut(&name) {
                cases.push(case.clone());
            }
        }
    }
    found
}

/// For each of the programs of `operation` that `wanted` names: the first case that launches it, in the order of what
/// cases cost, and its launch. A program that no case launches is left out.
///
/// # Errors
/// If a case fails.
pub fn examples(
    operation: &Operation,
    sm: Sm,
    wanted: impl Fn(&Name) -> bool,
) -> Result<BTreeMap<Name, (Case, Launched)>, String> {
    let mut found = BTreeMap::new();
    for (name, cases) in cases_of(operation, sm) {
        let Some(case) = cases.first().filter(|_| wanted(&name) && !found.contains_key(&name)) else { continue };
        for launched in launches(operation, case, sm)? {
            found.entry(launched.name.clone()).or_insert((case.clone(), launched));
        }
    }
    found.retain(|name, _| wanted(name));
    Ok(found)
}

/// Runs `program` on `memory` as this thread's [`Setting`] says.
///
/// # Errors
/// Everything that the simulator finds wrong.
pub(crate) fn start(
    program: &Program,
    launch: Launch,
    arguments: &[Argument],
    memory: &mut Memory,
    approximation: Approximation,
) -> Result<(), String> {
    let only_named =
        SERVED.with_borrow_mut(|served| served.as_mut().map(|served| served.insert(program.name.clone())).is_some());
    if only_named {
        return Ok(());
    }
    if let Some(hardware) = HARDWARE.with_borrow(Option::clone) {
        return hardware.launch(program, launch, arguments, memory);
    }
    let recorded = RECORDED.with_borrow(|all| {
        let same = |before: &&Rc<Launched>| {
            before.is(program, launch, arguments, approximation) && memory.holds_the_same_as(&before.before)
        };
        all.iter().find(same).map(|before| before.after.snapshot())
    });
    if let Some(after) = recorded {
        *memory = after;
        return Ok(());
    }
    let replaced = REPLACED.with_borrow(|replaced| {
        replaced.as_ref().filter(|(name, _)| *name == program.name).map(|(_, text)| Module::parse(text))
    });
    let module = replaced.unwrap_or_else(|| Module::parse(&program.text)).map_err(|error| error.to_string())?;
    let options = Options { approximation, ..OPTIONS.get() };
    let before = LAUNCHED.with_borrow(Option::is_some).then(|| memory.snapshot());
    let report = module.launch(&program.name.entry(), launch, arguments, memory, &options);
    let metrics = report.map_err(|error| error.to_string())?.clean()?;
    if let Some(before) = before {
        let (name, touched, arguments) = (program.name.clone(), memory.touched(), arguments.to_vec());
        let after = memory.snapshot();
        let launched = Launched { name, launch, metrics, touched, arguments, approximation, before, after };
        LAUNCHED.with_borrow_mut(|all| all.get_or_insert_default().push(launched));
    }
    Ok(())
}

/// Memory and the arguments of a launch, in order.
#[derive(Default)]
pub(crate) struct Simulated {
    memory: Memory,
    arguments: Vec<Argument>,
}

/// A buffer on the simulated device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer(u64);

impl Buffer {
    /// Where it begins.
    pub(crate) fn address(self) -> u64 {
        self.0
    }

    /// The address `bytes` behind the buffer's start, to be passed as a pointer.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl Simulated {
    /// A buffer that holds `values`, not yet an argument.
    pub(crate) fn buffer<T: Pod>(&mut self, name: &str, values: &[T]) -> Buffer {
        Buffer(self.memory.allocate_from(name, values))
    }

    /// A buffer of `len` numbers that nobody has written, not yet an argument.
    pub(crate) fn unwritten<T: Pod>(&mut self, name: &str, len: usize) -> Buffer {
        Buffer(self.memory.allocate(name, len * size_of::<T>()))
    }

    /// The next argument: a buffer's address.
    pub(crate) fn pointer(&mut self, buffer: Buffer) -> &mut Self {
        self.arguments.push(Argument::U64(buffer.0));
        self
    }

    /// The next argument: a new buffer that holds `values`.
    pub(crate) fn input<T: Pod>(&mut self, name: &str, values: &[T]) -> Buffer {
        let buffer = self.buffer(name, values);
        self.pointer(buffer);
        buffer
    }

    /// The next argument: element `first` of a new buffer that holds `values`.
    pub(crate) fn input_from<T: Pod>(&mut self, name: &str, values: &[T], first: usize) -> Buffer {
        let buffer = self.buffer(name, values);
        self.arguments.push(Argument::U64(buffer.0 + (first * size_of::<T>()) as u64));
        buffer
    }

    /// The next argument: a new buffer that nobody has written.
    pub(crate) fn output<T: Pod>(&mut self, name: &str, len: usize) -> Buffer {
        let buffer = self.unwritten::<T>(name, len);
        self.pointer(buffer);
        buffer
    }

    /// The next arguments: integers.
    pub(crate) fn integers(&mut self, values: impl IntoIterator<Item = usize>) -> &mut Self {
        let number = |value| u32::try_from(value).expect("sizes of cases fit 32 bits");
        self.arguments.extend(values.into_iter().map(|value| Argument::U32(number(value))));
        self
    }

    /// The next argument: a float.
    pub(crate) fn float(&mut self, value: f32) -> &mut Self {
        self.arguments.push(Argument::F32(value));
        self
    }

    /// The next argument: the tensor map of a matrix in device memory.
    pub(crate) fn tensor_map(&mut self, map: &TensorMap) -> &mut Self {
        self.arguments.push(Argument::TensorMap((*map).into()));
        self
    }

    /// Runs `program` with the arguments, if there is anything to launch, and forgets them; memory stays for the next.
    ///
    /// # Errors
    /// Everything that the simulator finds wrong.
    pub(crate) fn run(
        &mut self,
        program: &Program,
        launch: Option<Launch>,
        approximation: Approximation,
    ) -> Result<(), String> {
        let arguments = std::mem::take(&mut self.arguments);
        match launch {
            Some(launch) => start(program, launch, &arguments, &mut self.memory, approximation),
            None => Ok(()),
        }
    }

    /// What a buffer holds; every byte of it must have been written.
    pub(crate) fn read<T: Pod>(&self, buffer: Buffer) -> Result<Vec<T>, String> {
        if only_names() {
            let bytes = self.memory.bytes(buffer.0).map_err(|error| error.to_string())?.0;
            return Ok(bytemuck::pod_collect_to_vec(bytes));
        }
        self.memory.read(buffer.0).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OPERATIONS;
    use ptx::sim::{Completion, Schedule};

    /// The smallest case of each way in which threads wait for each other: rings of copies that fill and run over, with
    /// fragments and with numbers; warps with roles, and a ring through which more than one tile goes; sums across warps
    /// and across blocks; votes; tiles.
    const STRUCTURES: [(Sm, &str, &str); 18] = [
        (Sm::Sm90a, "gemm", "forward bf16 nt m=264 n=40 k=184"),
        (Sm::Sm90a, "gemm", "backward bf16 tn_bias_dropout_residual_epilogue m=264 n=40 k=184"),
        (Sm::Sm90a, "attention", "forward bf16 B=1 S=600 A=1 D=64"),
        (Sm::Sm90a, "attention", "backward bf16 dropout B=1 S=600 A=1 D=64"),
        (Sm::Sm90a, "attention", "backward bf16 dropout B=5 S=70 A=1 D=64"),
        (Sm::Sm80, "gemm", "forward bf16 nt m=72 n=136 k=200"),
        (Sm::Sm80, "gemm", "backward bf16 tn_bias_dropout_residual_epilogue m=130 n=8 k=40"),
        (Sm::Sm80, "gemm", "forward bf16 tt_bias m=15 n=33 k=385"),
        (Sm::Sm80, "gemm", "backward f32 tn_accumulate m=13 n=31 k=17"),
        (Sm::Sm80, "attention", "forward bf16 dropout B=2 S=129 A=1 D=65"),
        (Sm::Sm80, "attention", "backward bf16 dropout B=2 S=129 A=1 D=65"),
        (Sm::Sm80, "layernorm", "forward bf16 residual_sum T=3 H=4096"),
        (Sm::Sm80, "layernorm", "backward f32 T=3 H=4096"),
        (Sm::Sm80, "reduce", "forward f32 columns T=211 F=312"),
        (Sm::Sm80, "reduce", "forward bf16 squares T=211 F=312"),
        (Sm::Sm80, "cross_entropy", "forward f32 rows M=5 V=3001"),
        (Sm::Sm80, "softmax", "backward f32 T=2 C=4096"),
        (Sm::Sm80, "optimizer", "forward f32 lamb P=4099"),
    ];

    #[test]
    fn every_way_of_waiting_is_right_under_every_schedule_and_completion() {
        STRUCTURES.par_iter().with_max_len(1).for_each(|&(sm, operation, name)| {
            let operation = OPERATIONS.iter().find(|row| row.name == operation).expect("a row of the table");
            let cases = (operation.cases)();
            let case = cases.iter().find(|case| case.to_string() == name);
            let case = case.unwrap_or_else(|| panic!("{} has no case {name}", operation.name));
            for (schedule, completion) in Schedule::FIVE.into_iter().flat_map(|s| Completion::ALL.map(|c| (s, c))) {
                let options = Options { schedule, completion, ..Options::default() };
                let (outcome, _) = run(operation, case, sm, &Setting { options, ..Setting::default() });
                let passed = matches!(outcome, Outcome::Passed { .. });
                assert!(passed, "{} {name}, {sm:?}, {schedule:?}, {completion:?}: {outcome:?}", operation.name);
            }
        });
    }
}
