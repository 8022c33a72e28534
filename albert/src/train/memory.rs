//! Memory plan of a run.

/// Planned bytes of a run by purpose, known before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Parameters in f32.
    pub parameters: usize,
    /// Gradients in f32.
    pub gradients: usize,
    /// Moments of the optimizer, and its scratch.
    pub optimizer: usize,
    /// Packed copies of the weights for GEMM.
    pub packed: usize,
    /// Activations and scratch of the largest step.
    pub step: usize,
    /// Scratch memory of the worker threads.
    pub threads: usize,
    /// Instances and batches.
    pub data: usize,
}

impl MemoryPlan {
    /// Sum over all purposes.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimizer + self.packed + self.step + self.threads + self.data
    }
}
