//! The example programs learn what they are there to show.

#[allow(dead_code, unreachable_pub)]
#[path = "../examples/logistic_regression.rs"]
mod logistic_regression;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/own_operation.rs"]
mod own_operation;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/two_layer_network.rs"]
mod two_layer_network;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/two_spirals.rs"]
mod two_spirals;

#[test]
fn logistic_regression_finds_the_line() {
    let [first, last] = logistic_regression::train().unwrap();
    assert!(first > 0.6 && last < 0.1, "loss {first} to {last}");
}

#[test]
fn two_layers_find_the_circle() {
    let [first, last] = two_layer_network::train().unwrap();
    assert!(first > 0.6 && last < 0.02, "loss {first} to {last}");
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
