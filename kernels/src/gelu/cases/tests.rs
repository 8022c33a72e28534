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
fn far_from_zero_the_outputs_are_the_limits() {
    let far = [20.0, 100.0, 1e4, 1e10, 1e18].map(|x| [x, -x]).concat();
    for kernel in BiasActivation::all() {
        let dims = vec![("T", 1), ("F", far.len())];
        let case = Case { pass: kernel.pass, dtype: kernel.dtype, variant: kernel.variant(), dims };
        let mut problem = Problem::new(&case);
        problem.x = far.iter().map(|x| rounded(*x, kernel.dtype)).collect();
        problem.other.fill(if kernel.pass == Pass::Forward { 0.0 } else { 1.0 });
        for approximation in Approximation::ALL {
            let outputs = problem.simulate(Sm::Sm80, approximation).expect("the kernel runs");
            for (&x, &y) in problem.x.iter().zip(&outputs[0]) {
                let limit = if kernel.pass == Pass::Forward { x.max(0.0) } else { f32::from(x > 0.0) };
                assert_eq!(y, limit, "{case} at {x:e}");
            }
        }
        problem.x[3] = f32::NAN;
        let y = &problem.simulate(Sm::Sm80, Approximation::Exact).expect("the kernel runs")[0];
        assert!(
            y[3].is_nan() || (kernel.pass, kernel.activation) == (Pass::Backward, Activation::Relu),
            "{case}: NaN is lost"
        );
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

/// Every way in which `line` could plausibly have been written wrong.
fn mutants(line: &str) -> Vec<String> {
    const SWAPS: [(&str, &str); 12] = [
        ("add.", "sub."),
        ("sub.", "add."),
        ("mul.rn", "add.rn"),
        ("min.", "max."),
        ("max.", "min."),
        ("setp.lt", "setp.gt"),
        ("setp.ge", "setp.le"),
        ("neg.", "abs."),
        ("abs.", "neg."),
        ("shl.b32", "or.b32"),
        ("@!%p", "@%p"),
        ("@%p", "@!%p"),
    ];
    let instruction = line.trim();
    let mut all = vec![String::new()];
    all.extend(
        SWAPS
            .iter()
            .filter(|(from, _)| instruction.starts_with(from))
            .map(|(from, to)| instruction.replacen(from, to, 1)),
    );
    if let Some((opcode, operands)) = instruction.trim_end_matches(';').split_once(' ') {
        let operands: Vec<&str> = operands.split(", ").collect();
        for (i, operand) in operands.iter().enumerate() {
            // A float's sign; a whole number's lowest bit.
            let changed = match operand.strip_prefix("0f") {
                Some(bits) => u32::from_str_radix(bits, 16).ok().map(|bits| format!("0f{:08X}", bits ^ 0x8000_0000)),
                None => operand.parse::<u32>().ok().map(|number| (number ^ 1).to_string()),
            };
            if let Some(changed) = changed {
                let mut operands = operands.clone();
                operands[i] = &changed;
                all.push(format!("{opcode} {};", operands.join(", ")));
            }
        }
        if opcode == "selp.f32" {
            all.push(format!("{opcode} {}, {}, {}, {};", operands[0], operands[2], operands[1], operands[3]));
        }
    }
    all
}

#[test]
fn every_mutant_of_the_kernels_is_found() {
    // Wrong by the letter and right all the same.
    let harmless = |from: &str, to: &str| {
        let behind_the_end = from == "ret;";
        let sign_of_zero = ["setp", "selp"].iter().any(|op| from.starts_with(op)) && to.contains("0f80000000");
        // The last coefficient of exp moves GELU by less than its rule allows; exp's own test holds it to 1.5 ulp.
        let highest = crate::num::poly::EXP[4].to_bits();
        let last_of_exp = from.contains(&format!("0f{highest:08X}, 0f{:08X}", crate::num::poly::EXP[3].to_bits()));
        behind_the_end || sign_of_zero || last_of_exp && !to.is_empty()
    };
    let (mut tried, mut survivors) = (0, Vec::new());
    for (pass, variant) in [
        (Pass::Forward, "bias_tanh_pre"),
        (Pass::Forward, "bias_erf"),
        (Pass::Backward, "tanh"),
        (Pass::Backward, "erf"),
        (Pass::Backward, "relu"),
    ] {
        let case = Case { pass, dtype: DType::F32, variant: variant.to_string(), dims: vec![("T", 3), ("F", 516)] };
        let problem = Problem::new(&case);
        let launch = problem.kernel.launch(3, 516).expect("the case is not empty");
        let program = problem.kernel.program(Sm::Sm80);
        let listing: Vec<&str> = program.listing.lines().collect();
        for (number, line) in listing.iter().enumerate() {
            if !line.starts_with("    ") || [".reg", ".param", "//"].iter().any(|no| line.trim().starts_with(no)) {
                continue;
            }
            for mutant in mutants(line) {
                tried += 1;
                let mut lines = listing.clone();
                lines[number] = &mutant;
                // More rows of blocks than rows too, so that the test in front of the loop matters.
                let found = [1, 5].iter().any(|&rows_of_blocks| {
                    let launch = Launch { grid: [launch.grid[0], rows_of_blocks, 1], ..launch };
                    let (mut memory, arguments, outputs) = problem.set_up();
                    let run = Module::parse(&lines.join("\n")).and_then(|module| {
                        module.launch(&program.name.entry(), launch, &arguments, &mut memory, Approximation::Exact)?;
                        outputs
                            .into_iter()
                            .map(|address| load(&memory, address, DType::F32))
                            .collect::<Result<Vec<_>, _>>()
                    });
                    run.is_err()
                        || run.is_ok_and(|outputs| {
                            outputs
                                .iter()
                                .zip(problem.wanted())
                                .any(|(output, wanted)| wanted.compare(output, DType::F32).is_err())
                        })
                });
                if !found && !harmless(line.trim(), &mutant) {
                    survivors.push(format!("{variant}: {} -> {mutant}", line.trim()));
                }
            }
        }
    }
    assert!(tried > 500, "only {tried} mutants");
    assert!(survivors.is_empty(), "{} of {tried} mutants live:\n{}", survivors.len(), survivors.join("\n"));
}
