//! Agreement of the simulator's values with a device's.

use crate::Sm;

/// Agreement of an instruction's results with those of a device, with [`Approximation::Device`](crate::sim::Approximation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fidelity {
    /// The same bits: PTX defines the result, or a model agrees with everything that was recorded on such a device.
    Exact,
    /// The bits of a model that was not compared with recordings of this instruction on this target.
    Unrecorded,
    /// A value within the documented error.
    Approximate,
}

/// Fidelity of the results of `opcode`, an instruction's full name such as `ex2.approx.ftz.f32`, on `target`.
///
/// The recordings are of an H200. `sm_80` has the same functions, unrecorded.
pub fn fidelity(opcode: &str, target: Sm) -> Fidelity {
    let (name, modifiers) = opcode.split_once('.').unwrap_or((opcode, ""));
    let has = |modifier| modifiers.split('.').any(|found| found == modifier);
    let products = name == "mma" || name == "wgmma" && has("mma_async");
    if products && !has("s32") {
        return Fidelity::Approximate;
    }
    if !has("approx") && !has("full") {
        return Fidelity::Exact;
    }
    match (name, has("f32")) {
        ("ex2" | "rcp" | "tanh", true) if target == Sm::Sm90a => Fidelity::Exact,
        ("rsqrt" | "lg2", true) if target == Sm::Sm90a && has("ftz") => Fidelity::Exact,
        ("ex2" | "rcp" | "rsqrt" | "lg2" | "tanh", true) => Fidelity::Unrecorded,
        _ => Fidelity::Approximate,
    }
}
