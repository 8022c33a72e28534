//! The example programs learn what they are there to show.
#![allow(dead_code, unreachable_pub)]

#[path = "../examples/logistic_regression.rs"]
mod logistic_regression;
#[path = "../examples/own_gpu_kernel.rs"]
mod own_gpu_kernel;
#[path = "../examples/own_operation.rs"]
mod own_operation;
#[path = "../examples/two_layer_network.rs"]
mod two_layer_network;
#[path = "../examples/two_spirals.rs"]
mod two_spirals;

#[test]
fn logistic_regression_finds_the_line_and_two_layers_the_circle() {
    for (losses, most) in [(logistic_regression::train(), 0.1), (two_layer_network::train(), 0.02)] {
        let [first, last] = losses.unwrap();
        assert!(first > 0.6 && last < most, "loss {first} to {last}, expected {most}");
    }
}

#[test]
fn two_spirals_are_told_apart_before_and_after_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (accuracy, [before, after]) = two_spirals::run(&folder.path().join("net.safetensors")).unwrap();
    assert!(accuracy > 0.98, "{accuracy}");
    assert!(before == after, "a loaded net differs");
}

#[test]
fn an_operation_of_ones_own_has_right_gradients_and_is_profiled() {
    let (worst, rows) = own_operation::check().unwrap();
    assert!(worst < 1e-3, "gradient off by {worst}");
    assert_eq!(rows, ["rms_norm", "rms_norm.backward"]);
}

#[test]
fn a_kernel_of_ones_own_computes_on_a_simulated_gpu_what_a_cpu_does() {
    let [y, dx] = own_gpu_kernel::run("cuda-sim").unwrap();
    assert_eq!([&y, &dx], own_gpu_kernel::run("cpu").unwrap().each_ref());
    assert!(y[0] == 1.0 && dx[0] == -1.0 && y[100] == 0.0, "{} {} {}", y[0], dx[0], y[100]);
}
