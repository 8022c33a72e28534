//! Symbols of shared libraries that are opened at run time.
#![allow(unsafe_code)]

use crate::error::{EngineError, Result};
use libloading::os::unix::Library;
use std::error::Error;

/// The dynamic loader's own words.
pub(super) fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The function `name` of `library`.
///
/// # Safety
/// F is the type of the function.
pub(super) unsafe fn function<F: Copy>(library: &Library, file: &str, name: &str) -> Result<F> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.map(|symbol| *symbol).map_err(|error| EngineError::Launch(format!("{file}: {}", reason(&error))))
}
