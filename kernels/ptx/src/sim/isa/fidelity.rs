//! Agreement of the simulator's values with a device's.

use super::tensor_core::TensorCore;

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

/// Fidelity of a product on tensor cores.
fn product(name: &str, modifiers: &str, is_hopper: bool) -> Fidelity {
    let shape = modifiers.split('.').find_map(|modifier| modifier.rsplit_once('k')?.1.parse::<usize>().ok());
    let mut types = modifiers.split('.').filter_map(|modifier| match modifier {
        "f32" | "s32" => Some((modifier, 32)),
        "tf32" => Some((modifier, 32)),
        "f16" | "bf16" => Some((modifier, 16)),
        "e4m3" | "e5m2" => Some((modifier, 8)),
        _ => None,
    });
    match (types.next(), types.next()) {
        (Some(("s32", _)), _) => Fidelity::Exact,
        (Some(("f16", _)), _) => Fidelity::Approximate,
        // Those with half the K, and `wgmma` of tf32, follow the rule of the recorded ones.
        (_, Some((input, bits))) => {
            let recorded = shape.is_some_and(|k| k * bits == 256) && (name == "mma" || input != "tf32");
            if recorded && is_hopper { Fidelity::Exact } else { Fidelity::Unrecorded }
        }
        _ => Fidelity::Approximate,
    }
}

/// Fidelity of the results of `opcode`, an instruction's full name such as `ex2.approx.ftz.f32`, on a [`Module::target`](crate::sim::Module::target).
///
/// The recordings are of an H200. On other targets, functions are the same and products follow a published rule, both unrecorded.
pub fn fidelity(opcode: &str, target: &str) -> Fidelity {
    let is_hopper = TensorCore::of_target(target) == TensorCore::Hopper;
    let (name, modifiers) = opcode.split_once('.').unwrap_or((opcode, ""));
    let has = |modifier| modifiers.split('.').any(|found| found == modifier);
    if name == "mma" || has("mma_async") {
        return product(name, modifiers, is_hopper);
    }
    if !has("approx") && !has("full") {
        return Fidelity::Exact;
    }
    match (name, has("f32")) {
        ("ex2" | "rcp" | "tanh", true) if is_hopper => Fidelity::Exact,
        ("rsqrt" | "lg2", true) if is_hopper && has("ftz") => Fidelity::Exact,
        ("ex2" | "rcp" | "rsqrt" | "lg2" | "tanh", true) => Fidelity::Unrecorded,
        _ => Fidelity::Approximate,
    }
}
