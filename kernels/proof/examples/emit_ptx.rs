//! Writes every PTX program of the table of operations into a directory, with a list for `.ci/ptx-gate.sh`.
//!
//! ```text
//! cargo run -p albert-kernels-proof --example emit_ptx -- DIR
//! ```
//!
//! `DIR/programs.txt` has one program a line: file, entry, register budget, the required SASS instructions joined by commas
//! (or `-`), then the architectures that run it.

use kernels_proof::OPERATIONS;
use ptx::Sm;
use std::{fmt::Write as _, fs, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: emit_ptx DIR");
        return ExitCode::from(2);
    };
    match write(&directory) {
        Ok(count) => {
            println!("{count} programs in {}", directory.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot write PTX to {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &std::path::Path) -> std::io::Result<usize> {
    fs::create_dir_all(directory)?;
    let (mut list, mut count) = (String::new(), 0);
    for operation in OPERATIONS {
        for sm in Sm::ALL {
            for program in (operation.ptx)(sm) {
                let file = format!("{}.ptx", program.name);
                fs::write(directory.join(&file), &program.text)?;
                let architectures = sm.runs_on().join(" ");
                let machine =
                    if program.required_sass.is_empty() { "-".to_string() } else { program.required_sass.join(",") };
                writeln!(list, "{file} {} {} {machine} {architectures}", program.name.entry(), program.registers)
                    .expect("writing to a string succeeds");
                count += 1;
            }
        }
    }
    fs::write(directory.join("programs.txt"), list)?;
    Ok(count)
}
