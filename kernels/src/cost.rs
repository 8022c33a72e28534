//! Work of a kernel.

/// Minimum work of one call of a kernel, with which reports compare the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts two, an elementary function what its row says.
    pub flops: u64,
    /// Bytes that have to cross the memory bus: every input read once, every output written once.
    pub bytes: u64,
}

impl Cost {
    /// The least seconds on a machine of `flops` operations and `bandwidth` bytes a second.
    pub fn seconds(self, flops: f64, bandwidth: f64) -> f64 {
        (self.flops as f64 / flops).max(self.bytes as f64 / bandwidth)
    }
}
