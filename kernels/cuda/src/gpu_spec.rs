//! Figures of a GPU, for cost models and for the choice of kernels.

/// Rates and sizes of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSpec {
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// FLOP/s of the tensor cores in bf16 at the clock that they sustain.
    pub tensor_flops: f64,
    /// FLOP per cycle of the tensor cores of one multiprocessor.
    pub tensor_flops_per_cycle: f64,
    /// Bytes per second of device memory.
    pub bandwidth: f64,
}

impl GpuSpec {
    /// H200: 790 TFLOP/s and 4.3 TB/s were measured; dense bf16 is stated as 989 TFLOP/s, memory as 4.8 TB/s.
    pub const H200: Self =
        Self { multiprocessors: 132, tensor_flops: 790e12, tensor_flops_per_cycle: 4096.0, bandwidth: 4.3e12 };

    /// Cycles per second at [`GpuSpec::tensor_flops`].
    pub const fn clock(&self) -> f64 {
        self.tensor_flops / (self.tensor_flops_per_cycle * self.multiprocessors as f64)
    }

    /// Whole bytes of device memory per cycle and multiprocessor.
    pub(crate) const fn bytes_per_cycle(&self) -> usize {
        (self.bandwidth / self.clock() / self.multiprocessors as f64) as usize
    }
}
