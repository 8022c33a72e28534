//! Comparison with PTX that nvcc compiled: another compiler and libm, the same function.

use kernels::{DType, activation::Activation, num::philox::Stream};
use kernels_cuda::{activation::BiasActivation, program::Pass};
use ptx::{
    Launch, Sm,
    sim::{Argument, Memory, Module, Options},
};

/// Runs a forward kernel `(x, bias, y, rows, columns)` and returns y.
fn run(text: &str, entry: &str, launch: Launch, x: &[f32], bias: &[f32]) -> Vec<f32> {
    let mut memory = Memory::new();
    let addresses =
        [memory.allocate_from("x", x), memory.allocate_from("bias", bias), memory.allocate("y", 4 * x.len())];
    let sizes = [x.len() / bias.len(), bias.len()].map(|size| Argument::U32(size as u32));
    let arguments: Vec<Argument> = addresses.map(Argument::U64).into_iter().chain(sizes).collect();
    let module = Module::parse(text).expect("the text is read");
    let report = module.launch(entry, launch, &arguments, &mut memory, &Options::default()).expect("the launch fits");
    report.clean().unwrap_or_else(|findings| panic!("{findings}"));
    memory.read(addresses[2]).expect("all of y is written")
}

#[test]
#[ignore = "needs ALBERT_NVCC_PTX, the PTX of tests/programs/nvcc/bias_gelu.cu: .ci/ptx-gate.sh makes it"]
fn ptx_of_nvcc_and_ours_agree_in_the_simulator() {
    let path =
        std::env::var("ALBERT_NVCC_PTX").expect("ALBERT_NVCC_PTX names the PTX of tests/programs/nvcc/bias_gelu.cu");
    let theirs = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (rows, columns) = (7, 131);
    let mut stream = Stream::new(1, [2, 3, 4]);
    let mut draw = |count: usize| (0..count).map(|_| 10.0 * stream.next_f32() - 5.0).collect::<Vec<f32>>();
    let (x, bias) = (draw(rows * columns), draw(columns));
    for (activation, entry) in [(Activation::GeluTanh, "bias_gelu_tanh"), (Activation::GeluErf, "bias_gelu_erf")] {
        let kernel = BiasActivation::new(Pass::Forward, DType::F32, activation, false, columns);
        let (program, launch) = (kernel.program(Sm::Sm80), kernel.launch(rows, columns).expect("there is work"));
        let ours = run(&program.text, &program.name.entry(), launch, &x, &bias);
        let launch = Launch { grid: [3, 2, 1], block: [64, 1, 1], shared_bytes: 0 };
        let theirs = run(&theirs, entry, launch, &x, &bias);
        // Both are accurate to a few ulp of the largest output, which is below 16; neither is the reference.
        let bound = 4.0 * 8.0 * f32::EPSILON;
        for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert!((ours - theirs).abs() <= bound, "{entry} of element {i}: ours {ours:e}, nvcc's {theirs:e}");
        }
        assert!(ours.iter().any(|y| *y > 1.0) && ours.iter().any(|y| *y < 0.0), "both branches are in the data");
    }
}
