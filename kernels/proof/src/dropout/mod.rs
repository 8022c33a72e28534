//! Entry of dropout in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::entry::*;
use kernels::dropout::{Dropout, apply};
use kernels_cuda::dropout::{Apply, ApplyArgs};

/// Dropout; backward is the same kernel on the gradient.
pub const OPERATION: Operation = Operation { name: "dropout", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || Apply::all().iter().map(|kernel| kernel.program(sm)).collect())
}

/// [T, F]: empty, one element, blocks of 64 and one column more or less, primes, several tasks; row widths for every
/// specialization of the GPU kernel, with several blocks of rows, and with an end at the first column of each quarter of a
/// block of 64.
const SIZES: [(usize, usize); 26] = [
    (0, 5),
    (1, 1),
    (3, 7),
    (2, 15),
    (5, 16),
    (4, 17),
    (130, 33),
    (2, 49),
    (2, 63),
    (130, 64),
    (3, 65),
    (2, 81),
    (35, 96),
    (35, 97),
    (2, 113),
    (2, 257),
    (2, 273),
    (9, 289),
    (2, 305),
    (29, 312),
    (67, 768),
    (2, 1025),
    (2, 1032),
    (2, 1041),
    (2, 1057),
    (2, 1073),
];

fn cases() -> Vec<Case> {
    cases_of_rows(&SIZES, "F", &[(Pass::Forward, "")])
}

/// Counts one multiplication per element; the integer operations of the generator are not counted.
fn cost(case: &Case) -> Cost {
    let elements = (case.dim("T") * case.dim("F")) as u64;
    Cost { flops: elements, bytes: 2 * elements * case.dtype.bytes() as u64 }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    on_runner(case, runner, |on| match case.dtype {
        DType::F32 => check_of::<f32>(case, on),
        DType::Bf16 => check_of::<bf16>(case, on),
    })
}

const DROPOUT: Dropout = Dropout { seed: 0x0123_4567_89ab_cdef, site: 42, rate: 0.1 };

fn simulate<X: Element>(case: &Case, gpu: &GpuRunner<'_>, x: &[X], y: &mut [X]) -> Result<(), String> {
    let (rows, columns) = (case.dim("T"), case.dim("F"));
    let kernel = Apply::new(X::DTYPE, columns);
    let mut device = gpu.device();
    let (from, output) = (device.buffer("x", x), device.unwritten::<X>("y", y.len()));
    let arguments = ApplyArgs { x: from, y: output, dropout: DROPOUT, rows, columns };
    device.start(&kernel.program(gpu.sm()), kernel.launch(rows, columns), &arguments, Approximation::Device)?;
    y.copy_from_slice(&device.read(output)?);
    Ok(())
}

fn check_of<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let columns = case.dim("F");
    let x = on.uniform::<X>(7, case.dim("T") * columns, 3.0);
    let mut y = Guarded::<X>::poisoned(x.len());
    match on {
        On::Cpu(cpu) => apply(cpu, &DROPOUT, columns, &x, &mut y),
        On::Gpu(gpu) => simulate(case, gpu, &x, &mut y[..])?,
    }
    y.intact()?;
    if on.records(|| vec![Output::new("y", &y)]) {
        return Ok(0.0);
    }
    let naive = store::<X>(&reference::apply::<f32>(&DROPOUT, columns, &widen(&x)));
    let exact = reference::apply::<f64>(&DROPOUT, columns, &widen(&x));
    if let Some(i) = (0..x.len()).find(|&i| (y[i].to_f32() == 0.0) != (exact[i] == 0.0)) {
        return Err(format!("element {i} is kept by one and dropped by the other"));
    }
    on.within("y", &y, &naive, &exact)
}
