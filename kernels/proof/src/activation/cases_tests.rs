//! Tests of the PTX of bias + activation in the simulator.

use super::*;
use ptx::{
    Launch,
    sim::{Error, Module, Options, Touched},
};
use std::{collections::BTreeSet, f64::consts::PI};

fn simulator() -> GpuRunner<'static> {
    GpuRunner::simulator(Sm::Sm80)
}

fn launch_on<X: Element>(
    problem: &Problem<X>,
    launch: Launch,
    arguments: &[Argument],
    memory: &mut Memory,
    approximation: Approximation,
) -> Result<(), String> {
    simulator().launch(&problem.kernel.program(Sm::Sm80), launch, arguments, memory, approximation)
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
fn the_cases_reach_every_specialization() {
    for sm in Sm::ALL {
        let names =
            |kernels: Vec<BiasActivation>| kernels.iter().map(|kernel| kernel.name(sm)).collect::<BTreeSet<_>>();
        assert_eq!(names(checked().iter().map(kernel_of).collect()), names(BiasActivation::all()));
    }
}

#[test]
fn the_cost_counts_the_bytes_that_the_kernel_touches() {
    fn touched<X: Element>(case: &Case) -> u64 {
        let problem = Problem::<X>::new(case, Data::Uniform);
        let Some(launch) = problem.kernel.launch(problem.rows, problem.columns) else { return 0 };
        let (mut memory, arguments, _) = problem.set_up();
        launch_on(&problem, launch, &arguments, &mut memory, Approximation::Exact).expect("the kernel runs");
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
        launch_on(&problem, launch, &arguments, &mut memory, Approximation::Exact).expect("the kernel runs");
        outputs.into_iter().map(|y| memory.read::<u16>(y).expect("all is written")).collect::<Vec<_>>()
    });
    for other in &outputs[1..] {
        assert_eq!(other, &outputs[0]);
    }
}

#[test]
fn backward_works_in_place() {
    let problem = Problem::<f32>::new(&case(Pass::Backward, DType::F32, "erf", 3, 12), Data::Uniform);
    let apart = problem.simulate(&simulator(), Approximation::Exact).expect("the kernel runs");
    let launch = problem.kernel.launch(3, 12).expect("the case is not empty");
    let (mut memory, mut arguments, _) = problem.set_up();
    let Argument::U64(dy) = arguments[1] else { panic!("the second argument is an address") };
    arguments[2] = arguments[1];
    launch_on(&problem, launch, &arguments, &mut memory, Approximation::Exact).expect("the kernel runs");
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
        let error = launch_on(&problem, launch, &arguments, &mut memory, Approximation::Exact);
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
        let y = problem.simulate(&simulator(), Approximation::Exact).expect("the kernel runs")[0][3];
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

#[test]
fn the_kernel_has_its_golden_values() {
    let x = [-3.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0];
    let tanh = [-0.003637392, -0.158808009, -0.154285990, 0.345714010, 0.841191991, 1.954597694, 2.996362608];
    let erf = [-0.004049694, -0.158655254, -0.154268769, 0.345731231, 0.841344746, 1.954499736, 2.995950306];
    for (variant, golden) in [("bias_tanh", tanh), ("bias_erf", erf)] {
        let mut problem = Problem::<f32>::new(&case(Pass::Forward, DType::F32, variant, 1, 7), Data::Uniform);
        (problem.x, problem.bias) = (x.to_vec(), Some(vec![0.0; 7]));
        let y = problem.simulate(&simulator(), Approximation::Exact).expect("the kernel runs");
        for (y, golden) in y[0].iter().zip(golden) {
            assert!((f64::from(*y) - golden).abs() < 3e-7, "{variant}: {y} for {golden}");
        }
    }
}

/// Mutants of `line`: plausible mistakes in one instruction.
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
            // Flips the sign of a float, the lowest bit of an integer.
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

/// True if a mutant computes the same results within the bounds.
fn is_harmless(from: &str, to: &str) -> bool {
    let at_the_end = from == "ret;";
    let sign_of_zero = ["setp", "selp"].iter().any(|op| from.starts_with(op)) && to.contains("0f80000000");
    // The last coefficient of exp changes GELU by less than its bound; exp's own test bounds it by 1.5 ulp.
    let [.., next, last] = kernels::num::poly::EXP.map(f32::to_bits);
    let last_of_exp = from.contains(&format!("0f{last:08X}, 0f{next:08X}"));
    at_the_end || sign_of_zero || last_of_exp && !to.is_empty()
}

impl Problem<f32> {
    /// True if the check rejects the program `text`.
    fn rejects(&self, text: &str, wanted: &[Wanted], naive: &[f64]) -> bool {
        let (launch, entry) = (self.kernel.launch(self.rows, self.columns), self.kernel.name(Sm::Sm80).entry());
        // One grid has more rows of blocks than rows, to test the condition before the loop.
        [1, 5].iter().any(|&rows_of_blocks| {
            let launch = launch.map(|launch| Launch { grid: [launch.grid[0], rows_of_blocks, 1], ..launch });
            let (mut memory, arguments, outputs) = self.set_up();
            let run = Module::parse(text).and_then(|module| {
                let launch = launch.expect("the case is not empty");
                let report = module.launch(&entry, launch, &arguments, &mut memory, &Options::default())?;
                report.clean().map_err(Error::Host)?;
                outputs.into_iter().map(|address| memory.read::<f32>(address)).collect::<Result<Vec<_>, _>>()
            });
            run.is_err() || run.is_ok_and(|outputs| compare(&outputs, wanted, naive).is_err())
        })
    }
}

#[test]
fn every_mutant_of_the_kernels_is_rejected() {
    let (mut tried, mut survivors) = (0, Vec::new());
    for (pass, variant) in [
        (Pass::Forward, "bias_tanh_pre"),
        (Pass::Forward, "bias_erf"),
        (Pass::Backward, "tanh"),
        (Pass::Backward, "erf"),
        (Pass::Backward, "relu"),
    ] {
        let problem = Problem::<f32>::new(&case(pass, DType::F32, variant, 3, 516), Data::Uniform);
        let (wanted, naive) = (problem.wanted(), problem.naive_errors());
        let listing = problem.kernel.program(Sm::Sm80).listing();
        assert!(!problem.rejects(&listing, &wanted, &naive), "{variant} itself must pass");
        let lines: Vec<&str> = listing.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if !line.starts_with("    ") || [".reg", ".param", "//"].iter().any(|no| line.trim().starts_with(no)) {
                continue;
            }
            for mutant in mutants(line) {
                tried += 1;
                let mut lines = lines.clone();
                lines[number] = &mutant;
                if !problem.rejects(&lines.join("\n"), &wanted, &naive) && !is_harmless(line.trim(), &mutant) {
                    survivors.push(format!("{variant}: {} -> {mutant}", line.trim()));
                }
            }
        }
    }
    assert!(tried > 1000, "only {tried} mutants");
    assert!(survivors.is_empty(), "{} of {tried} mutants live:\n{}", survivors.len(), survivors.join("\n"));
}
