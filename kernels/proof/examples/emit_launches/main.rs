//! Writes every PTX program of sm_80, and the shadow of every Hopper GEMM, with a launch of its smallest case, as input of
//! the third-party verifier of `.ci/sentryward.sh`.
//!
//! ```text
//! cargo run -p albert-kernels-proof --example emit_launches -- DIR [WORD ..]         programs whose names contain one of the words
//! ```
//!
//! Writes `DIR/NAME.ptx` and `DIR/NAME.json` for each program: entry, grid, block, shared memory, values by parameter, and
//! the parameters that are addresses or tensor maps, in the schema `spverify.kernel-input/v1`. Names of shadows start with
//! `shadow.`.

mod shadow;

use kernels_cuda::program::Program;
use kernels_proof::{OPERATIONS, simulated::examples};
use ptx::{
    Launch, Sm,
    sim::{Argument, TensorMap},
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
    for (operation, sm) in OPERATIONS.iter().flat_map(|operation| [(operation, Sm::Sm80), (operation, Sm::Sm90a)]) {
        let programs = (operation.ptx)(sm);
        let multiplies = |program: &&Program| sm == Sm::Sm80 || program.text.contains("wgmma.mma_async");
        let chosen: Vec<&Program> = programs.iter().filter(multiplies).filter(|p| wanted(p.name.as_str())).collect();
        let mut launches = examples(operation, sm, |name| chosen.iter().any(|program| program.name == *name))?;
        for program in chosen {
            let Some((_, launched)) = launches.remove(&program.name) else { continue };
            let arguments = whole_tiles(program.name.as_str(), &program.listing(), launched.arguments());
            let (prefix, text) = match sm {
                Sm::Sm90a => ("shadow.", shadow::shadow(&program.listing())),
                _ => ("", program.listing()),
            };
            let path = |extension: &str| directory.join(format!("{prefix}{}.{extension}", program.name));
            fs::write(path("ptx"), text).map_err(failed)?;
            fs::write(path("json"), input(program, launched.launch, &arguments)).map_err(failed)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Names of the parameters, in order.
fn parameters(listing: &str) -> Vec<&str> {
    let head = listing.split_once(".entry").map_or("", |(_, rest)| rest.split_once('{').map_or(rest, |(head, _)| head));
    let declared = head.split(['(', ',', ')']).map(str::trim).filter(|line| line.starts_with(".param"));
    let names = declared.filter_map(|line| line.split_whitespace().last());
    names.map(|name| name.split('[').next().unwrap_or(name)).collect()
}

/// Arguments of a Hopper GEMM with sizes of whole tiles, enough that the pipeline wraps and each consumer has two tiles: the
/// verifier does not support copies past the end of a matrix. All other arguments are unchanged.
fn whole_tiles(name: &str, listing: &str, arguments: &[Argument]) -> Vec<Argument> {
    let mut arguments = arguments.to_vec();
    let tile = name.strip_prefix("gemm.").filter(|_| name.contains("-sm90a-")).and_then(|rest| rest.split('-').nth(3));
    let sizes = tile.map(|tile| tile.split('x').filter_map(|size| size.parse().ok()).collect::<Vec<u32>>());
    let Some([rows, columns, depth, stages]) = sizes.as_deref() else { return arguments };
    let (m, n, k) = (4 * rows, *columns, depth * (stages + 2));
    let form = &name.as_bytes()["gemm.".len()..];
    for (parameter, argument) in parameters(listing).into_iter().zip(&mut arguments) {
        match (parameter, argument) {
            ("m", Argument::U32(value)) => *value = m,
            ("n" | "ldc", Argument::U32(value)) => *value = n,
            ("k" | "k_step" | "k_chunk", Argument::U32(value)) => *value = k,
            (map @ ("map_a" | "map_b"), Argument::TensorMap(value)) => {
                let (extent, along_k) = if map == "map_a" { (m, form[0] == b'n') } else { (n, form[1] == b't') };
                let shape = if along_k { [k, extent] } else { [extent, k] };
                value.shape[..2].copy_from_slice(&shape.map(u64::from));
                value.strides[0] = 2 * u64::from(shape[0]);
            }
            _ => {}
        }
    }
    arguments
}

fn input(program: &Program, launch: Launch, arguments: &[Argument]) -> String {
    let (mut numbers, mut addresses, mut maps) = (Vec::new(), Vec::new(), Vec::new());
    for (name, argument) in parameters(&program.text).into_iter().zip(arguments) {
        match argument {
            Argument::U64(_) => addresses
                .push(format!(r#"{{"parameter":"{name}","type":"pointer","space":"global","object":"{name}"}}"#)),
            Argument::U32(value) => numbers.push(format!(r#"{{"parameter":"{name}","type":"u32","value":{value}}}"#)),
            Argument::F32(value) => {
                numbers.push(format!(r#"{{"parameter":"{name}","type":"f32","value":{value:?}}}"#));
            }
            Argument::TensorMap(map) => maps.push(tensor_map(name, map)),
        }
    }
    format!(
        "{{\"schema\":\"spverify.kernel-input/v1\",\"entry\":\"{}\",\"launch\":{{\"grid_dim\":{:?},\"block_dim\":{:?},\
         \"dynamic_shared_bytes\":{}}},\"arguments\":[{}],\"declarations\":[{}],\"tma_descriptors\":[{}]}}\n",
        program.name.entry(),
        launch.grid,
        launch.block,
        launch.shared_bytes,
        numbers.join(","),
        addresses.join(","),
        maps.join(",")
    )
}

/// Tensor map in the verifier's schema: bf16, the contiguous dimension first.
fn tensor_map(name: &str, map: &TensorMap) -> String {
    let rank = map.rank;
    format!(
        "{{\"parameter\":\"{name}\",\"object\":\"{name}\",\"element_type\":\"bf16\",\"global_shape\":{:?},\
         \"global_strides_bytes\":{:?},\"box_shape\":{:?},\"element_strides\":{:?},\"swizzle\":\"128B\",\
         \"interleave\":\"none\"}}",
        &map.shape[..rank],
        &map.strides[..rank - 1],
        &map.tile[..rank],
        &map.element_strides[..rank],
    )
}
