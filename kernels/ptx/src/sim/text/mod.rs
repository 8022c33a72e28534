//! From text to decoded kernels.

pub(crate) mod body;
mod cfg;
mod decode;
pub(crate) mod entry;
mod lex;
pub(crate) mod module;
mod names;
mod parse;
mod syntax;
