//! Runs the cases of the table of operations on a GPU: a driver executes the launches instead of the simulator.
//!
//! ```text
//! check of a case ── launch, arguments, memory ──> copy of the memory on the device, 256 bytes of guard around each buffer
//!                                                   launch and synchronize
//!                    memory, as written        <──  copied back; guards must be unchanged
//! ```
//!
//! Memory that was never written is NaN on the device, so an output element that a kernel skips fails the comparison. The
//! simulated GPU is also a driver, so that this path is tested on machines without a GPU.

use engine::device::{
    Driver, DriverError,
    driver::{Address, FunctionHandle, Value},
};
use kernels_cuda::program::Program;
use kernels_proof::recorded::{FNV_START, fnv_1a};
use kernels_proof::runner::Hardware;
use ptx::{
    DescriptorSwizzle, Launch, Storage, TensorMap,
    sim::{self, Memory, Swizzle, TensorType},
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

/// Bytes before and after each buffer, a multiple of every alignment that kernels require.
const GUARD: usize = 256;
const PATTERN: u8 = 0xA5;

/// Runs cases on the GPU behind a driver.
#[derive(Debug)]
pub struct OnDriver<D> {
    driver: D,
    functions: RefCell<HashMap<String, FunctionHandle>>,
    hash: Cell<u64>,
}

/// Buffer of a case and its copy on the device.
struct Copied {
    /// Address in the memory of the case.
    address: u64,
    bytes: usize,
    /// Device address of the first guard.
    device: Address,
}

impl Copied {
    fn start(&self) -> Address {
        Address(self.device.0 + GUARD as u64)
    }
}

impl<D: Driver> OnDriver<D> {
    /// Creates a target on `driver`.
    pub fn new(driver: D) -> Self {
        Self { driver, functions: RefCell::default(), hash: Cell::new(FNV_START) }
    }

    /// FNV-1a hash of all memory after each launch since the last call: equal on devices that compute the same bits.
    pub fn take_hash(&self) -> u64 {
        self.hash.replace(FNV_START)
    }

    /// Driver of this target.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Returns the driver.
    pub fn into_driver(self) -> D {
        self.driver
    }

    fn function(&self, program: &Program) -> Result<FunctionHandle, DriverError> {
        let name = program.name.as_str();
        if let Some(&function) = self.functions.borrow().get(name) {
            return Ok(function);
        }
        let function = self.driver.load(&program.text, &program.name.entry())?;
        self.functions.borrow_mut().insert(name.to_owned(), function);
        Ok(function)
    }

    fn copy(&self, memory: &Memory) -> Result<Vec<Copied>, String> {
        let copy = |address: u64| {
            let (contents, _) = memory.bytes(address).map_err(|error| error.to_string())?;
            let bytes = contents.len();
            let guard = [PATTERN; GUARD];
            let guarded = [&guard[..], contents, &guard].concat();
            let device = self.driver.allocate(guarded.len()).map_err(|error| error.to_string())?;
            self.driver.copy_in(device, &guarded).map_err(|error| error.to_string())?;
            Ok(Copied { address, bytes, device })
        };
        memory.buffers().map(copy).collect::<Result<_, _>>()
    }

    /// Copies everything back and frees the copies.
    fn fetch(&self, copies: &[Copied], memory: &mut Memory) -> Result<(), String> {
        for copy in copies {
            let mut guarded = vec![0; copy.bytes + 2 * GUARD];
            self.driver.copy_out(&mut guarded, copy.device).map_err(|error| error.to_string())?;
            let (before, rest) = guarded.split_at(GUARD);
            let (contents, behind) = rest.split_at(copy.bytes);
            if let Some(at) = before.iter().chain(behind).position(|&byte| byte != PATTERN) {
                let (side, at) = if at < GUARD { ("before", GUARD - at) } else { ("after", at - GUARD + 1) };
                return Err(format!("out-of-bounds write {at} bytes {side} a buffer of {} bytes", copy.bytes));
            }
            self.hash.set(fnv_1a(self.hash.get(), contents.iter().copied()));
            memory.copy_in(copy.address, contents).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Converts an argument to device addresses.
fn translate(argument: &sim::Argument, place: impl Fn(u64) -> u64) -> Result<Value, String> {
    Ok(match *argument {
        sim::Argument::U64(value) => Value::Address(Address(place(value))),
        sim::Argument::U32(value) => Value::U32(value),
        sim::Argument::F32(value) => Value::F32(value),
        sim::Argument::TensorMap(map) => Value::TensorMap(TensorMap {
            address: place(map.address),
            storage: match map.dtype {
                TensorType::F32 => Storage::F32,
                TensorType::Bf16 => Storage::Bf16,
                TensorType::F16 => Storage::F16,
                other => return Err(format!("tensor map of {other:?}: no case has one")),
            },
            sizes: [map.shape[0], map.shape[1]],
            stride: map.strides[0],
            tile: [map.tile[0], map.tile[1]],
            swizzle: match map.swizzle {
                Swizzle::None => DescriptorSwizzle::None,
                Swizzle::B32 => DescriptorSwizzle::Bytes32,
                Swizzle::B64 => DescriptorSwizzle::Bytes64,
                Swizzle::B128 => DescriptorSwizzle::Bytes128,
            },
        }),
    })
}

impl<D: Driver> Hardware for OnDriver<D> {
    fn launch(
        &self,
        program: &Program,
        launch: Launch,
        arguments: &[sim::Argument],
        memory: &mut Memory,
    ) -> Result<(), String> {
        let copies = self.copy(memory)?;
        // Buffers are never adjacent, so an address just after a buffer is its end.
        let place = |address: u64| {
            let found = copies.iter().find(|copy| (copy.address..=copy.address + copy.bytes as u64).contains(&address));
            found.map_or(address, |copy| copy.start().0 + (address - copy.address))
        };
        let arguments = arguments.iter().map(|argument| translate(argument, place)).collect::<Result<Vec<_>, _>>()?;
        let ran = self
            .function(program)
            .and_then(|function| self.driver.launch(function, launch, &arguments))
            .and_then(|()| self.driver.synchronize())
            .map_err(|error| format!("{}: {error}", program.name));
        let fetched = ran.and_then(|()| self.fetch(&copies, memory));
        // After a fault of the kernel every later call fails; report the fault.
        let freed = copies.iter().try_for_each(|copy| self.driver.free(copy.device).map_err(|error| error.to_string()));
        fetched.and(freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::device::simulated::SimulatedDriver;
    use kernels_cuda::program::Name;
    use kernels_proof::{
        OPERATIONS,
        case::{Case, Outcome},
        operation::Operation,
        runner::Runner,
    };
    use ptx::Sm;

    fn operation(name: &str) -> &'static Operation {
        OPERATIONS.iter().find(|operation| operation.name == name).expect("a row of the table")
    }

    #[test]
    fn cases_pass_on_a_driver_as_they_do_in_the_simulator() {
        for (name, sm, capability) in [
            ("softmax", Sm::Sm80, (8, 0)),
            ("embedding", Sm::Sm80, (8, 0)),
            // A case with tensor maps.
            ("gemm", Sm::Sm90a, (9, 0)),
        ] {
            let hardware = OnDriver::new(SimulatedDriver::new(capability));
            let mut passed = 0;
            let small = |case: &&Case| (operation(name).cost)(case).flops < 100_000;
            for case in (operation(name).cases)().iter().filter(small).step_by(7) {
                match (operation(name).check)(case, &Runner::hardware(sm, &hardware)) {
                    Outcome::Failed { message } => panic!("{name}: {message}"),
                    Outcome::Passed { .. } => passed += 1,
                    Outcome::Skipped { .. } => {}
                }
            }
            assert!(passed > 2 && !hardware.functions.borrow().is_empty(), "{name}: {passed} passed");
        }
    }

    /// Program that adds one to element `at` of its buffer.
    fn program(at: i32) -> Program {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n
            .visible .entry touch(.param .u64 p) {{
                .reg .b64 %d<3>; .reg .f32 %f<3>;
                ld.param.u64 %d1, [p];
                cvta.to.global.u64 %d2, %d1;
                ld.global.f32 %f1, [%d2+{at}]; add.rn.f32 %f2, %f1, 0f3F800000; st.global.f32 [%d2+{at}], %f2;
                ret;
            }}",
            at = 4 * at
        );
        let name = Name::new("touch", &[]);
        Program { name, sm: Sm::Sm80, text, registers: 8, required_sass: &[] }
    }

    #[test]
    fn memory_comes_back_and_a_write_beside_a_buffer_is_found() {
        let launch = Launch { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0 };
        let run = |at| {
            let hardware = OnDriver::new(SimulatedDriver::new((8, 0)));
            let mut memory = Memory::new();
            let buffer = memory.allocate_from("x", &[1.0f32, 2.0, 3.0]);
            let ran = hardware.launch(&program(at), launch, &[sim::Argument::U64(buffer)], &mut memory);
            ran.map(|()| (memory.read::<f32>(buffer).expect("all of it was copied back"), hardware.take_hash()))
        };
        // Hash of the bytes of 1, 3 and 3.
        assert_eq!(run(1), Ok((vec![1.0, 3.0, 3.0], 0x9f25_eb8f_5b86_b498)));
        for (at, found) in [(3, "after"), (-2, "before")] {
            let error = run(at).expect_err("a guard was written");
            assert!(error.contains(found) && error.contains("a buffer of 12 bytes"), "{error}");
        }
    }
}
