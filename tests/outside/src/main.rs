//! The examples of the engine, compiled in a project outside the workspace with the `Cargo.toml` of docs/engine.md.
#![allow(dead_code)]
#[path = "../../../engine/examples/logistic_regression.rs"]
mod logistic_regression;
#[path = "../../../engine/examples/own_operation.rs"]
mod own_operation;
#[path = "../../../engine/examples/two_layer_network.rs"]
mod two_layer_network;
#[path = "../../../engine/examples/two_spirals.rs"]
mod two_spirals;

fn main() -> engine::Result<()> {
    let path = std::env::temp_dir().join(format!("two_spirals-{}.safetensors", std::process::id()));
    let (accuracy, _) = two_spirals::run(&path)?;
    println!("{accuracy}");
    Ok(())
}
