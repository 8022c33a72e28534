//! PTX as text: what the assembler emits and the report that predicts its speed, and the simulator against texts that are
//! third-party, mutated or hostile. One binary, so that its parts run side by side and are linked once.

mod hostile;
mod mutated;
mod nvcc;
mod operations;
mod predicted;
mod third_party;
