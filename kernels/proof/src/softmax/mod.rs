//! Row of softmax in the table of operations: sizes, cost, check against f64.

pub mod reference;
#[cfg(test)]
mod tests;

use crate::entry::*;
use kernels::softmax::{backward, forward};
use kernels_cuda::softmax::{BackwardArgs, ForwardArgs, Softmax};

/// Softmax of rows, forward and backward.
pub const OPERATION: Operation = Operation { name: "softmax", cases, cost, check, ptx };

fn ptx(sm: Sm) -> Vec<Program> {
    once(sm, || Softmax::all().iter().map(|kernel| kernel.program(sm)).collect())
}

fn cases() -> Vec<Case> {
    // The last size: a row that takes a block of the GPU.
    cases_of_rows(&[&ROWS[..], &[(2, 4096)]].concat(), "C", &Pass::ALL.map(|pass| (pass, "")))
}

/// An elementary function counts as one operation.
fn cost(case: &Case) -> Cost {
    let elements = (case.dim("T") * case.dim("C")) as u64;
    let (matrices, flops) = match case.pass {
        Pass::Forward => (2, 7),
        Pass::Backward => (3, 4),
    };
    Cost { flops: flops * elements, bytes: matrices * elements * case.dtype.bytes() as u64 }
}

fn check(case: &Case, runner: &Runner<'_>) -> Outcome {
    on_runner(case, runner, |on| match case.dtype {
        DType::F32 => check_of::<f32>(case, on),
        DType::Bf16 => check_of::<bf16>(case, on),
    })
}

/// Simulates the program: y from x.
fn simulate_forward<X: Element>(gpu: &GpuRunner<'_>, columns: usize, x: &[X], y: &mut [X]) -> Result<(), String> {
    let (kernel, mut device) = (Softmax::new(Pass::Forward, X::DTYPE, columns), gpu.device());
    let (rows, x, out) = (y.len() / columns, device.buffer("x", x), device.unwritten::<X>("y", y.len()));
    let arguments = ForwardArgs { x, y: out, rows, columns };
    device.start(&kernel.program(gpu.sm()), kernel.launch(rows, columns), &arguments, Approximation::Device)?;
    y.copy_from_slice(&device.read(out)?);
    Ok(())
}

/// Simulates the program: dx from y and dy.
fn simulate_backward<X: Element>(
    gpu: &GpuRunner<'_>,
    columns: usize,
    [y, dy]: [&[X]; 2],
    dx: &mut [X],
) -> Result<(), String> {
    let (kernel, mut device) = (Softmax::new(Pass::Backward, X::DTYPE, columns), gpu.device());
    let (rows, y, dy) = (dx.len() / columns, device.buffer("y", y), device.buffer("dy", dy));
    let out = device.unwritten::<X>("dx", dx.len());
    let arguments = BackwardArgs { y, dy, dx: out, rows, columns };
    device.start(&kernel.program(gpu.sm()), kernel.launch(rows, columns), &arguments, Approximation::Device)?;
    dx.copy_from_slice(&device.read(out)?);
    Ok(())
}

fn check_of<X: Element>(case: &Case, on: &On<'_>) -> Result<f64, String> {
    let columns = case.dim("C");
    let mut x = on.uniform::<X>(1, case.dim("T") * columns, 8.0);
    // In every second row one element, at varying columns, exceeds the others so far that exp of the difference would
    // overflow f32.
    if columns > 64 {
        for (row, elements) in x.chunks_exact_mut(columns).enumerate().skip(1).step_by(2) {
            elements[(64 + 311 * row) % columns] = X::from_f32(200.0);
        }
    }
    let mut out = Guarded::<X>::poisoned(x.len());
    if case.pass == Pass::Forward {
        match on {
            On::Cpu(cpu) => forward(cpu, columns, &x, &mut out),
            On::Gpu(gpu) => simulate_forward(gpu, columns, &x, &mut out)?,
        }
        out.intact()?;
        if on.records(|| vec![Output::new("y", &out)]) {
            return Ok(0.0);
        }
        let naive = store::<X>(&reference::forward::<f32>(columns, &widen(&x)));
        return on.within("y", &out, &naive, &reference::forward::<f64>(columns, &widen(&x)));
    }
    let y = match on {
        On::Cpu(cpu) if on.is_recording() => {
            let mut y = x.clone();
            forward(cpu, columns, &x, &mut y);
            y
        }
        _ => store::<X>(&reference::forward::<f32>(columns, &widen(&x))),
    };
    let dy = on.uniform::<X>(2, y.len(), 2.0);
    match on {
        On::Cpu(cpu) => backward(cpu, columns, &y, &dy, &mut out),
        On::Gpu(gpu) => simulate_backward(gpu, columns, [&y, &dy], &mut out)?,
    }
    out.intact()?;
    if on.records(|| vec![Output::new("dx", &out)]) {
        return Ok(0.0);
    }
    let naive = store::<X>(&reference::backward::<f32>(columns, &widen(&y), &widen(&dy)));
    on.within("dx", &out, &naive, &reference::backward::<f64>(columns, &widen(&y), &widen(&dy)))
}
