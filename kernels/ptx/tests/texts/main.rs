//! The simulator on PTX of other origin: third-party compilers' output, mutated text, hostile text. One binary, so that
//! its parts run in parallel and are linked once.

mod hostile;
mod mutated;
mod third_party;
