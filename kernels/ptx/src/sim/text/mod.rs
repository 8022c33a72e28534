//! From text to decoded kernels.

mod body;
mod cfg;
mod decode;
mod entry;
mod lex;
mod module;
mod names;
mod parse;
mod reach;
mod syntax;

pub(crate) use decode::Decoded;
pub(crate) use entry::{Constant, Entry, Registers, declare_specials};
pub(crate) use lex::{Kind, Lexer, Token, shown};
pub use module::Module;
pub(crate) use module::{ModuleShared, Outline, Variable};
pub(crate) use names::{Names, Symbol};
pub(crate) use parse::Parser;
pub use reach::Reach;
pub(crate) use syntax::{Operand, Statement};
