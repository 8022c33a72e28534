//! Fake shared libraries, in `tests/fake`.

use std::{path::Path, process::Command};

/// Compiles the source `tests/fake/NAME` to `library`, with additional flags and compile-time variables. Prints a line and returns
/// false if there is no compiler.
///
/// # Panics
/// The source cannot be compiled.
pub fn compile(name: &str, library: &Path, flags: &[&str], environment: &[(&str, &Path)]) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fake").join(name);
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(&compiler);
    command
        .args(["--edition", "2024", "--crate-type", "cdylib", "-D", "warnings", "-o"])
        .arg(library)
        .args(flags)
        .arg(source);
    match command.envs(environment.iter().copied()).output() {
        Err(error) => {
            println!("SKIPPED: {name}: {} cannot be started: {error}", compiler.display());
            false
        }
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            true
        }
    }
}
