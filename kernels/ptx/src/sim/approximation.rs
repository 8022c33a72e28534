//! Error of approximate instructions.

/// Choice of the value of an approximate instruction within its documented error.
///
/// [`fidelity`](super::fidelity) says for which instructions [`Approximation::Device`] has the bits of a GPU.
///
/// | instruction | error at most |
/// |---|---|
/// | `rcp.approx`, `sqrt.approx` | 2⁻²³ relative (1 ulp) |
/// | `ex2.approx`, `lg2.approx`, `div.approx`, `div.full` | 2⁻²² relative (2 ulp) |
/// | `rsqrt.approx` | 2⁻²²·⁴ relative |
/// | `sin.approx`, `cos.approx` | 2⁻²⁰·⁵ absolute |
/// | `tanh.approx.f32` | 2⁻¹¹ relative |
/// | `ex2.approx`, `tanh.approx` on 16 bits | 2⁻⁹, 2⁻⁸ relative |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approximation {
    /// The bits of a Hopper GPU where its unit has a model ([`sfu`](super::sfu)), else the correctly rounded value.
    Device,
    /// The one largest in magnitude.
    High,
    /// The one smallest in magnitude.
    Low,
}

impl Approximation {
    /// All of them: a tolerance that holds for each holds on the device.
    pub const ALL: [Approximation; 3] = [Approximation::Device, Approximation::High, Approximation::Low];

    /// `exact`, moved by the relative error `bound`, rounded.
    pub(crate) fn apply(self, exact: f64, bound: f64) -> f32 {
        match self {
            Approximation::Device => exact as f32,
            Approximation::High => (exact * (1.0 + bound)) as f32,
            Approximation::Low => (exact * (1.0 - bound)) as f32,
        }
    }
}
