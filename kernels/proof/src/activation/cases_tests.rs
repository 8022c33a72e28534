//! Tests of the PTX of bias + activation in the simulator.

use super::*;
use ptx::{Launch, sim::Touched};
use std::f64::consts::PI;

fn simulator() -> GpuRunner<'static> {
    GpuRunner::simulator(Sm::Sm80)
}

fn launch_on<X: Element>(
    problem: &Problem<X>,
    launch: Launch,
    arguments: &[Argument],
    memory: &mut Memory,
) -> Result<(), String> {
    let program = problem.kernel.program(Sm::Sm80);
    simulator().launch(&program, launch, arguments, memory, Approximation::Device)
}

/// Cases of the table that are checked.
fn checked() -> Vec<Case> {
    cases().into_iter().filter(|case| case.dim("T") * case.dim("F") <= CHECKED_ELEMENTS).collect()
}

/// Case of this size.
fn case(pass: Pass, dtype: DType, variant: &str, rows: usize, columns: usize) -> Case {
    Case { pass, dtype, variant: variant.to_string(), dims: vec![("T", rows), ("F", columns)] }
}

#[test]
fn the_cost_counts_the_bytes_that_the_kernel_touches() {
    fn touched<X: Element>(case: &Case) -> u64 {
        let problem = Problem::<X>::new(case, Data::Uniform);
        let Some(launch) = problem.kernel.launch(problem.rows, problem.columns) else { return 0 };
        let (mut memory, arguments, _) = problem.set_up();
        launch_on(&problem, launch, &arguments, &mut memory).expect("the kernel runs");
        let Touched { read, written } = memory.touched();
        read + written
    }
    for case in checked() {
        let touched = if case.dtype == DType::F32 { touched::<f32>(&case) } else { touched::<bf16>(&case) };
        assert_eq!(touched, cost(&case).bytes, "{case}");
    }
}

#[test]
fn every_grid_gives_the_same_bits() {
    let problem = Problem::<bf16>::new(&case(Pass::Forward, DType::Bf16, "bias_tanh_pre", 11, 24), Data::Uniform);
    let launch = problem.kernel.launch(11, 24).expect("the case is not empty");
    let outputs = [1, 2, 3, 11, 40].map(|rows_of_blocks| {
        let launch = Launch { grid: [launch.grid[0], rows_of_blocks, 1], ..launch };
        let (mut memory, arguments, outputs) = problem.set_up();
        launch_on(&problem, launch, &arguments, &mut memory).expect("the kernel runs");
        outputs.into_iter().map(|y| memory.read::<u16>(y).expect("all is written")).collect::<Vec<_>>()
    });
    for other in &outputs[1..] {
        assert_eq!(other, &outputs[0]);
    }
}

#[test]
fn backward_works_in_place() {
    let problem = Problem::<f32>::new(&case(Pass::Backward, DType::F32, "erf", 3, 12), Data::Uniform);
    let apart = problem.simulate(&simulator(), Approximation::Device).expect("the kernel runs");
    let launch = problem.kernel.launch(3, 12).expect("the case is not empty");
    let (mut memory, mut arguments, _) = problem.set_up();
    let Argument::U64(dy) = arguments[1] else { panic!("the second argument is an address") };
    arguments[2] = arguments[1];
    launch_on(&problem, launch, &arguments, &mut memory).expect("the kernel runs");
    assert_eq!(memory.read::<f32>(dy).expect("all is written"), apart[0]);
}

#[test]
fn rows_past_the_matrix_are_reported() {
    for (pass, variant) in [(Pass::Forward, "bias_relu"), (Pass::Backward, "relu")] {
        let problem = Problem::<f32>::new(&case(pass, DType::F32, variant, 4, 16), Data::Uniform);
        let launch = problem.kernel.launch(4, 16).expect("the case is not empty");
        let (mut memory, mut arguments, _) = problem.set_up();
        let rows = arguments.len() - 2;
        arguments[rows] = Argument::U32(5);
        let error = launch_on(&problem, launch, &arguments, &mut memory);
        let message = error.expect_err("the fifth row is not there");
        assert!(message.contains("src/activation/mod.rs:") && message.contains("accesses bytes 256.."), "{message}");
    }
}

/// ½x(1 + tanh u) cancels for negative x; x·σ(2u) does not, so the relative error of even the smallest outputs is a few
/// ulp.
#[test]
fn the_tanh_form_keeps_its_relative_accuracy_in_the_negative_tail() {
    fn holds<X: Element>() {
        let mut problem = Problem::<X>::new(&case(Pass::Forward, X::DTYPE, "bias_tanh", 1, 96), Data::Uniform);
        problem.x = (0..96).map(|i| X::from_f32(-0.09 * i as f32 - 0.05)).collect();
        problem.bias = problem.bias.map(|bias| vec![0.0; bias.len()]);
        for approximation in Approximation::ALL {
            let y = &problem.simulate(&simulator(), approximation).expect("the kernel runs")[0];
            for (x, y) in problem.x.iter().zip(y) {
                let (x, y) = (f64::from(x.to_f32()), f64::from(y.to_f32()));
                // The definition in f64 has the same cancellation, so the exact value is written without it.
                let twice_u = 2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x);
                let exact = x / (1.0 + (-twice_u).exp());
                let error = (y - exact).abs() / exact.abs();
                // e^2u magnifies the rounding of 2u by |2u|.
                let bound = match X::DTYPE {
                    DType::F32 => (6.0 + 2.0 * twice_u.abs()) * f64::exp2(-24.0),
                    DType::Bf16 => 1.01 * f64::exp2(-8.0),
                };
                assert!(error <= bound, "{} {x}: {y:e}, exactly {exact:e}, error {error:e}, bound {bound:e}", X::DTYPE);
            }
        }
    }
    holds::<f32>();
    holds::<bf16>();
}

#[test]
fn outputs_far_from_zero_are_the_limits() {
    fn holds<X: Element>(kernel: BiasActivation) {
        let far = [20.0, 100.0, 1e4, 1e10, 1e18].map(|x| [x, -x]).concat();
        let case = case(kernel.pass, kernel.dtype, &kernel.variant(), 1, far.len());
        let mut problem = Problem::<X>::new(&case, Data::Uniform);
        problem.x = far.iter().map(|x| X::from_f32(*x)).collect();
        problem.bias = problem.bias.map(|bias| vec![0.0; bias.len()]);
        problem.dy.fill(X::from_f32(1.0));
        for approximation in Approximation::ALL {
            let outputs = problem.simulate(&simulator(), approximation).expect("the kernel runs");
            for (x, y) in problem.x.iter().zip(&outputs[0]) {
                let (x, y) = (x.to_f32(), y.to_f32());
                let limit = if kernel.pass == Pass::Forward { x.max(0.0) } else { f32::from(x > 0.0) };
                assert_eq!(y, limit, "{case} at {x:e}");
            }
        }
        problem.x[3] = X::from_f32(f32::NAN);
        let y = problem.simulate(&simulator(), Approximation::Device).expect("the kernel runs")[0][3];
        let a_step = (kernel.pass, kernel.activation) == (Pass::Backward, Activation::Relu);
        assert!(y.to_f32().is_nan() || a_step, "{case}: NaN is lost");
    }
    for kernel in BiasActivation::all() {
        match kernel.dtype {
            DType::F32 => holds::<f32>(kernel),
            DType::Bf16 => holds::<bf16>(kernel),
        }
    }
}
