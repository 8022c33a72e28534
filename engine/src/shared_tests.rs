//! Imports and helpers for the tests of several modules.
pub(crate) use crate::{
    DType, Device, Gradients, Init, ParamBuilder, ParamId, ParamStore, Result, Shape, Tape, Tensor, Var, Workspace,
    device::{Gpu, simulated::SimulatedDriver},
};
pub(crate) use half::bf16;
pub(crate) use kernels::{Cpu, Isa, num::philox::Stream};
use std::fmt::Display;

/// The processor, with the instruction set that programs choose.
pub(crate) fn cpu(threads: usize) -> Cpu {
    Cpu::new(Isa::choose().unwrap(), threads).unwrap()
}

/// A simulated GPU of this compute capability.
pub(crate) fn gpu(capability: (u32, u32)) -> Gpu {
    Gpu::new(SimulatedDriver::new(capability), cpu(1)).unwrap()
}

/// A tensor of a step, of f32 or of bf16, to which the values are rounded.
pub(crate) fn tensor(tape: &Tape<'_>, dtype: DType, shape: impl Into<Shape>, values: &[f32]) -> Tensor {
    let mut tensor = tape.alloc(shape, dtype).unwrap();
    match dtype {
        DType::F32 => tensor.copy_from(values),
        _ => tensor.copy_from(&values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
    }
    .unwrap();
    tensor
}

/// Asserts that no element is off by more than `bound` times the largest.
#[track_caller]
pub(crate) fn close(what: &str, got: &[f32], wanted: &[f32], bound: f32) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    let scale = wanted.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let fine = (got - wanted).abs() <= bound * scale;
        assert!(fine, "{what}[{at}]: {got}, expected {wanted}, scale {scale}, bound {}", bound * scale);
    }
}

/// Asserts that the result is an error whose text contains `expected`.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, impl Display>, expected: &str) {
    let error = result.err().unwrap_or_else(|| panic!("no error, expected \"{expected}\"")).to_string();
    assert!(error.contains(expected), "got \"{error}\", expected \"{expected}\"");
}

/// A store of parameters with these names and shapes.
pub(crate) fn parameters<const N: usize>(seed: u64, all: [(&str, &[usize], Init); N]) -> (ParamStore, [ParamId; N]) {
    let mut builder = ParamBuilder::new();
    let ids = all.map(|(name, shape, init)| builder.add(name, shape, init).unwrap());
    (builder.build(&cpu(1), seed).unwrap(), ids)
}
