//! Writes every PTX program of sm_80 with a launch of the smallest case that it serves, as `.ci/sentryward.sh` gives them to a
//! verifier that this project did not write.
//!
//! ```text
//! cargo run -p kernels --example emit_launches -- DIR [WORD ..]         programs whose names hold one of the words
//! ```
//!
//! For each program `DIR/NAME.ptx` and `DIR/NAME.json`: entry, grid, block, shared memory, numbers by parameter, and which
//! parameters are addresses, in the schema `spverify.kernel-input/v1`.

use kernels::{
    OPERATIONS,
    operation::Program,
    ptx::{Sm, sim::Argument},
    simulated::{Launched, examples},
};
use std::{fs, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    let mut given = std::env::args().skip(1);
    let Some(directory) = given.next().map(PathBuf::from) else {
        eprintln!("usage: emit_launches DIR [WORD ..]");
        return ExitCode::from(2);
    };
    match write(&directory, &given.collect::<Vec<_>>()) {
        Ok(count) => {
            println!("{count} launches in {}", directory.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot write launches to {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &std::path::Path, words: &[String]) -> Result<usize, String> {
    let failed = |error: std::io::Error| error.to_string();
    fs::create_dir_all(directory).map_err(failed)?;
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let mut count = 0;
    for operation in OPERATIONS {
        let mut launches = examples(operation, Sm::Sm80, |name| wanted(name.as_str()))?;
        for program in (operation.ptx)(Sm::Sm80) {
            let Some((_, launched)) = launches.remove(&program.name) else { continue };
            let path = directory.join(program.name.as_str());
            let file = |extension: &str| path.with_file_name(format!("{}.{extension}", program.name));
            fs::write(file("ptx"), &program.listing).map_err(failed)?;
            fs::write(file("json"), input(&program, &launched)).map_err(failed)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The names of the parameters, in order.
fn parameters(listing: &str) -> Vec<&str> {
    let head = listing.split_once(".entry").map_or("", |(_, rest)| rest.split_once('{').map_or(rest, |(head, _)| head));
    let declared = head.split(['(', ',', ')']).map(str::trim).filter(|line| line.starts_with(".param"));
    declared.filter_map(|line| line.split_whitespace().last()).collect()
}

fn input(program: &Program, launched: &Launched) -> String {
    let (mut numbers, mut addresses) = (Vec::new(), Vec::new());
    for (name, argument) in parameters(&program.listing).into_iter().zip(launched.arguments()) {
        match argument {
            Argument::U64(_) => addresses
                .push(format!(r#"{{"parameter":"{name}","type":"pointer","space":"global","object":"{name}"}}"#)),
            Argument::U32(value) => numbers.push(format!(r#"{{"parameter":"{name}","type":"u32","value":{value}}}"#)),
            Argument::F32(value) => {
                numbers.push(format!(r#"{{"parameter":"{name}","type":"f32","value":{value:?}}}"#));
            }
            Argument::TensorMap(_) => {}
        }
    }
    let launch = launched.launch;
    format!(
        "{{\"schema\":\"spverify.kernel-input/v1\",\"entry\":\"{}\",\"launch\":{{\"grid_dim\":{:?},\"block_dim\":{:?},\
         \"dynamic_shared_bytes\":{}}},\"arguments\":[{}],\"declarations\":[{}]}}\n",
        program.name.entry(),
        launch.grid,
        launch.block,
        launch.shared_bytes,
        numbers.join(","),
        addresses.join(",")
    )
}
