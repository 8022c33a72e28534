//! The PTX of bias + activation in the simulator.

use super::*;
use crate::{operation::Launch, ptx::sim::Touched};

/// The table's cases that the simulator takes.
fn simulated() -> Vec<Case> {
    cases().into_iter().filter(|case| case.dim("T") * case.dim("F") <= SIMULATED_ELEMENTS).collect()
}

#[test]
fn ptx_agrees_with_f64_within_the_documented_errors_of_the_device() {
    for sm in Sm::ALL {
        let mut kernels = std::collections::BTreeSet::new();
        for case in simulated() {
            kernels.insert(kernel_of(&case).name(sm));
            match check(&case, Target::Simulator(sm)) {
                Outcome::Passed { worst } => assert!(worst <= 1.0, "{case}: {worst}"),
                outcome => panic!("{outcome:?}"),
            }
        }
        let all: std::collections::BTreeSet<_> = BiasActivation::all().iter().map(|kernel| kernel.name(sm)).collect();
        assert_eq!(kernels, all, "some specialisation is in no case");
    }
}

#[test]
fn a_wrong_output_does_not_pass_the_comparison() {
    let wanted = Wanted { name: "y", exact: vec![1.0, -2.0], naive: vec![1.0, -2.0] };
    assert_eq!(wanted.compare(&[1.0, -2.0], DType::F32), Ok(0.0));
    wanted.compare(&[1.0, -2.0 + 2.0 * f32::EPSILON], DType::F32).expect("one ulp of the scale is allowed");
    for wrong in [[1.0, -2.0 + 4.0 * f32::EPSILON], [1.0, f32::NAN], [f32::INFINITY, -2.0]] {
        assert!(wanted.compare(&wrong, DType::F32).is_err(), "{wrong:?} passed");
    }
}

#[test]
fn the_cost_counts_the_bytes_that_the_kernel_touches() {
    for case in simulated() {
        let problem = Problem::new(&case);
        let Some(launch) = problem.kernel.launch(problem.rows, problem.columns) else {
            continue;
        };
        let (mut memory, arguments, _) = problem.set_up();
        problem.launch(Sm::Sm80, launch, &arguments, &mut memory, Approximation::Exact).expect("the kernel runs");
        let Touched { read, written } = memory.touched();
        assert_eq!(read + written, cost(&case).bytes, "{case}: read {read}, written {written}");
    }
}

#[test]
fn every_grid_gives_the_same_bits() {
    let dims = vec![("T", 11), ("F", 24)];
    let case = Case { pass: Pass::Forward, dtype: DType::Bf16, variant: "bias_tanh_pre".to_string(), dims };
    let problem = Problem::new(&case);
    let launch = problem.kernel.launch(11, 24).expect("the case is not empty");
    let outputs = [1, 2, 3, 11, 40].map(|rows_of_blocks| {
        let launch = Launch { grid: [launch.grid[0], rows_of_blocks, 1], ..launch };
        let (mut memory, arguments, outputs) = problem.set_up();
        problem.launch(Sm::Sm80, launch, &arguments, &mut memory, Approximation::Exact).expect("the kernel runs");
        outputs.into_iter().map(|y| memory.read::<u16>(y).expect("all is written")).collect::<Vec<_>>()
    });
    for other in &outputs[1..] {
        assert_eq!(other, &outputs[0]);
    }
}

#[test]
fn backward_may_write_over_the_gradient_that_it_reads() {
    let dims = vec![("T", 3), ("F", 12)];
    let case = Case { pass: Pass::Backward, dtype: DType::F32, variant: "erf".to_string(), dims };
    let problem = Problem::new(&case);
    let apart = problem.simulate(Sm::Sm80, Approximation::Exact).expect("the kernel runs");
    let launch = problem.kernel.launch(3, 12).expect("the case is not empty");
    let (mut memory, mut arguments, _) = problem.set_up();
    let Argument::U64(dy) = arguments[1] else { panic!("the second argument is an address") };
    arguments[2] = arguments[1];
    problem.launch(Sm::Sm80, launch, &arguments, &mut memory, Approximation::Exact).expect("the kernel runs");
    assert_eq!(memory.read::<f32>(dy).expect("all is written"), apart[0]);
}

#[test]
fn a_matrix_smaller_than_the_launch_says_is_found() {
    let dims = vec![("T", 4), ("F", 16)];
    for (pass, variant) in [(Pass::Forward, "bias_relu"), (Pass::Backward, "relu")] {
        let case = Case { pass, dtype: DType::F32, variant: variant.to_string(), dims: dims.clone() };
        let problem = Problem::new(&case);
        let launch = problem.kernel.launch(4, 16).expect("the case is not empty");
        let (mut memory, mut arguments, _) = problem.set_up();
        let rows = arguments.len() - 2;
        arguments[rows] = Argument::U32(5);
        let error = problem.launch(Sm::Sm80, launch, &arguments, &mut memory, Approximation::Exact);
        let message = error.expect_err("the fifth row is not there").to_string();
        assert!(message.contains("src/gelu/cuda.rs:") && message.contains("touches bytes 256..260"), "{message}");
    }
}

/// ½x(1 + tanh u) loses all digits for negative x; x·σ(2u) keeps them, so even the smallest outputs are right to the
/// last bit or two of their own size, not of the largest output's.
#[test]
fn the_tanh_form_keeps_its_relative_accuracy_in_the_negative_tail() {
    for dtype in DType::ALL {
        let dims = vec![("T", 1), ("F", 96)];
        let case = Case { pass: Pass::Forward, dtype, variant: "bias_tanh".to_string(), dims };
        let mut problem = Problem::new(&case);
        problem.x = (0..96).map(|i| -0.09 * i as f32 - 0.05).map(|x| rounded(x, dtype)).collect();
        problem.other.fill(0.0);
        for approximation in Approximation::ALL {
            let y = &problem.simulate(Sm::Sm80, approximation).expect("the kernel runs")[0];
            for (&x, &y) in problem.x.iter().zip(y) {
                let x = f64::from(x);
                // The f64 form has the same cancellation, 2⁻⁵³ of 1, so the exact value is written without it.
                let exact = x / (1.0 + (-2.0 * tanh_argument(x)).exp());
                let error = (f64::from(y) - exact).abs() / exact.abs();
                // e^-2u magnifies the rounding of 2u by |2u|.
                let bound = match dtype {
                    DType::F32 => (6.0 + 4.0 * tanh_argument(x).abs()) * f64::exp2(-24.0),
                    DType::Bf16 => 1.01 * f64::exp2(-8.0),
                };
                assert!(error <= bound, "{dtype} {x}: {y:e}, exactly {exact:e}, error {error:e}, bound {bound:e}");
            }
        }
    }
}

#[test]
fn the_kernel_has_its_golden_values() {
    let x = [-3.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0];
    let tanh = [-0.003637392, -0.158808009, -0.154285990, 0.345714010, 0.841191991, 1.954597694, 2.996362608];
    let erf = [-0.004049694, -0.158655254, -0.154268769, 0.345731231, 0.841344746, 1.954499736, 2.995950306];
    for (variant, golden) in [("bias_tanh", tanh), ("bias_erf", erf)] {
        let dims = vec![("T", 1), ("F", 7)];
        let case = Case { pass: Pass::Forward, dtype: DType::F32, variant: variant.to_string(), dims };
        let mut problem = Problem::new(&case);
        (problem.x, problem.other) = (x.to_vec(), vec![0.0; 7]);
        let y = problem.simulate(Sm::Sm80, Approximation::Exact).expect("the kernel runs");
        for (y, golden) in y[0].iter().zip(golden) {
            assert!((f64::from(*y) - golden).abs() < 3e-7, "{variant}: {y} for {golden}");
        }
    }
}
