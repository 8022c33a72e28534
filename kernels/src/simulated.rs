//! A launch in the simulator with random inputs: what the checks of all operations share.

use crate::{
    operation::{Launch, Program},
    ptx::sim::{Approximation, Argument, Memory, Module, Options},
};
use bytemuck::Pod;

/// Memory and the arguments of a launch, in order.
#[derive(Default)]
pub(crate) struct Simulated {
    memory: Memory,
    arguments: Vec<Argument>,
}

/// A buffer on the simulated device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer(u64);

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
        let Some(launch) = launch else { return Ok(()) };
        let module = Module::parse(&program.text).map_err(|error| error.to_string())?;
        let options = Options { approximation, ..Options::default() };
        let report = module.launch(&program.name.entry(), launch, &arguments, &mut self.memory, &options);
        report.map_err(|error| error.to_string())?.clean().map(drop)
    }

    /// What a buffer holds; every byte of it must have been written.
    pub(crate) fn read<T: Pod>(&self, buffer: Buffer) -> Result<Vec<T>, String> {
        self.memory.read(buffer.0).map_err(|error| error.to_string())
    }
}
