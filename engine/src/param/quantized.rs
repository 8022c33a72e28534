//! Weights in 8-bit integers, quantized at their first use and again after the values have changed.
use super::ParamStore;
use kernels::{Cpu, int8::QuantizedWeight};
use std::{
    ops::Range,
    sync::{Arc, PoisonError},
};

/// A weight as it was at a version of the values.
#[derive(Debug)]
pub(super) struct Quantized {
    range: Range<usize>,
    version: u64,
    weight: Arc<QuantizedWeight>,
}

impl ParamStore {
    /// The matrix [n, k] at `range` of the values, quantized at most once a version.
    pub(crate) fn quantized(&self, cpu: &Cpu, range: Range<usize>, k: usize) -> Arc<QuantizedWeight> {
        let n = range.len().checked_div(k).unwrap_or(0);
        let mut all = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|kept| kept.version == self.version && kept.weight.fits(cpu));
        if let Some(known) = all.iter().find(|kept| kept.range == range && kept.weight.size() == (n, k)) {
            return known.weight.clone();
        }
        let weight = Arc::new(QuantizedWeight::new(cpu, n, k, &self.all_values()[range.clone()]));
        all.push(Quantized { range, version: self.version, weight: weight.clone() });
        weight
    }

    /// Bytes that all quantized weights hold.
    pub fn quantized_bytes(&self) -> usize {
        let all = self.quantized.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|kept| kept.weight.bytes()).sum()
    }
}
