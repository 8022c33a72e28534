//! A launch in the simulator with random inputs: what the checks of all operations share.

use crate::{
    operation::{Launch, Program},
    ptx::{
        TensorMap,
        sim::{Approximation, Argument, Memory, Module, Options},
    },
};
use bytemuck::Pod;
use std::cell::Cell;

thread_local! {
    /// Who runs when, in launches of this thread.
    static OPTIONS: Cell<Options> = Cell::new(Options::default());
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

    /// The next argument: what the copy engine is told of a matrix in device memory.
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
        let Some(launch) = launch else { return Ok(()) };
        let module = Module::parse(&program.text).map_err(|error| error.to_string())?;
        let options = Options { approximation, ..OPTIONS.get() };
        let report = module.launch(&program.name.entry(), launch, &arguments, &mut self.memory, &options);
        report.map_err(|error| error.to_string())?.clean().map(drop)
    }

    /// What a buffer holds; every byte of it must have been written.
    pub(crate) fn read<T: Pod>(&self, buffer: Buffer) -> Result<Vec<T>, String> {
        self.memory.read(buffer.0).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        OPERATIONS,
        operation::{Outcome, Target},
        ptx::{
            Sm,
            sim::{Completion, Schedule},
        },
    };

    /// The smallest case of each way in which threads wait for each other: rings of copies that fill and run over, with
    /// fragments and with numbers; warps with roles, and a ring through which more than one tile goes; sums across warps
    /// and across blocks; votes; tiles.
    const STRUCTURES: [(Sm, &str, &str); 16] = [
        (Sm::Sm90a, "gemm", "forward bf16 nt m=264 n=40 k=184"),
        (Sm::Sm90a, "gemm", "backward bf16 tn_bias_dropout_residual_epilogue m=264 n=40 k=184"),
        (Sm::Sm90a, "attention", "forward bf16 B=1 S=600 A=1 D=64"),
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
        for (sm, operation, name) in STRUCTURES {
            let operation = OPERATIONS.iter().find(|row| row.name == operation).expect("a row of the table");
            let cases = (operation.cases)();
            let case = cases.iter().find(|case| case.to_string() == name);
            let case = case.unwrap_or_else(|| panic!("{} has no case {name}", operation.name));
            for schedule in Schedule::FIVE {
                for completion in Completion::ALL {
                    OPTIONS.set(Options { schedule, completion, ..Options::default() });
                    let outcome = (operation.check)(case, Target::Simulator(sm));
                    OPTIONS.set(Options::default());
                    let passed = matches!(outcome, Outcome::Passed { .. });
                    assert!(passed, "{} {name}, {sm:?}, {schedule:?}, {completion:?}: {outcome:?}", operation.name);
                }
            }
        }
    }
}
