//! Commit and target for `albert --version`.

use std::{env, path::Path, process::Command};

fn main() {
    // Outside a checkout, as in a package, the commit is unknown.
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit = commit.ok().filter(|done| done.status.success());
    let commit = commit.map_or("unknown".to_owned(), |done| String::from_utf8_lossy(&done.stdout).trim().to_owned());
    println!("cargo::rustc-env=ALBERT_COMMIT={commit}");
    println!("cargo::rustc-env=ALBERT_TARGET={}", env::var("TARGET").unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
    let log = Path::new("../.git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
}
