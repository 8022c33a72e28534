//! The simulator on PTX of other origin: third-party compilers' output and hostile text. One binary, so that its parts run in
//! parallel and are linked once. Mutated texts: `tests/tests/readers.rs`.

mod hostile;
mod third_party;
