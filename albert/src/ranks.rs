//! Consistency check of ranks before they start.

use std::sync::OnceLock;

use engine::io::hash64;
use engine::{Communicator, EngineError};
use serde_json::{Value, json};

use crate::checkpoint::first_difference;

/// Rejects ranks that differ in version, program or `start` (settings, inputs, initial parameters). All ranks report the
/// same difference.
pub(crate) fn expect_alike(communicator: &Communicator, start: Value) -> Result<(), EngineError> {
    let mut whole = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "program": { std::env::consts::ARCH: program_hash() },
    });
    if let (Some(whole), Value::Object(start)) = (whole.as_object_mut(), start) {
        whole.extend(start);
    }
    let all = communicator.gather("settings", whole.to_string().as_bytes())?;
    let read = |rank: usize| -> Result<Value, EngineError> {
        serde_json::from_slice(&all[rank])
            .map_err(|error| EngineError::Launch(format!("the settings of rank {rank} cannot be read: {error}")))
    };
    let first = read(0)?;
    for rank in 1..all.len() {
        let mut other = read(rank)?;
        // Programs for two CPU architectures are different files.
        if architecture(&other) != architecture(&first) {
            other["program"] = first["program"].clone();
        }
        if let Some((key, of_first, of_other)) = first_difference(&first, &other) {
            return Err(EngineError::Launch(format!(
                "rank 0 has `{key}` = {of_first}, rank {rank} has {of_other}; start the same program on all, with the same files"
            )));
        }
    }
    Ok(())
}

/// CPU architecture of the program of a rank with this start.
fn architecture(start: &Value) -> Option<&String> {
    start["program"].as_object()?.keys().next()
}

/// Hash of the program's file; 0 if it cannot be read.
fn program_hash() -> String {
    static HASH: OnceLock<u64> = OnceLock::new();
    let hash = || std::env::current_exe().and_then(std::fs::read).map_or(0, |bytes| hash64(&bytes));
    format!("{:016x}", HASH.get_or_init(hash))
}
