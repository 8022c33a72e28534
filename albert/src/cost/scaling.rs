//! Predicted time of a training step on several ranks.
//!
//! ```text
//! compute     FLOPs of the largest share of lanes / rate of a rank
//! exchange    bytes that a rank sends / bandwidth + messages · latency
//!             R = 2^n: 2·(R - 1)/R · 4P bytes, 2·log₂ R messages
//!             other R: (m + 1)·(R - 1)/R · 4P bytes, 2·(R - 1) messages, m the most subtrees of a rank
//! efficiency  step on one rank / (R · step on R ranks)
//! ```
//!
//! P parameters, all with f32 gradients. The exchange does not overlap with backward: the gradient of a shared layer is complete
//! only after the backward pass of its first use. Both directions of a link are assumed to work at the same time.
//!
//! Source: the alpha-beta model of collectives (Thakur, Rabenseifner, Gropp 2005, section 3). Limits: no contention in the
//! network, no variation of steps between ranks.

use serde::Serialize;

use super::flops::{Flops, Workload};
use super::parameters::ParameterCounts;
use crate::config::{AlbertConfig, Heads};
use engine::Lanes;

/// A link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Bytes a second, each way.
    pub bytes_per_second: f64,
    /// Latency of an empty message, in seconds.
    pub latency: f64,
}

/// Predicted step on R ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scaled {
    /// Number of ranks, R.
    pub ranks: usize,
    /// Seconds of forward and backward on the slowest rank.
    pub compute: f64,
    /// Seconds of exchange.
    pub exchange: f64,
    /// Speed relative to R ranks that exchange nothing and have equal shares.
    pub efficiency: f64,
}

impl Scaled {
    /// Seconds of the step.
    pub fn seconds(&self) -> f64 {
        self.compute + self.exchange
    }

    /// Predicts a step of `workload` in `lanes` lanes on `ranks` ranks of `rate` FLOP/s each, over `link`.
    ///
    /// # Panics
    /// If there are more ranks than lanes, or `lanes` is not a power of two.
    pub fn new(
        config: &AlbertConfig,
        workload: &Workload,
        (lanes, ranks): (usize, usize),
        rate: f64,
        link: Link,
    ) -> Self {
        assert!(lanes.is_power_of_two() && (1..=lanes).contains(&ranks), "{ranks} ranks for {lanes} lanes");
        let flops = 3.0 * Flops::forward(config, workload).total();
        let alone = flops / rate;
        let compute = alone * lanes.div_ceil(ranks) as f64 / lanes as f64;
        let bytes = 4.0 * ParameterCounts::with_heads(config, Heads::PRE_TRAINING) as f64;
        let (of_others, r) = ((ranks - 1) as f64, ranks as f64);
        let (sent, messages) = if ranks.is_power_of_two() {
            (2.0 * of_others / r * bytes, 2.0 * f64::from(ranks.ilog2()))
        } else {
            let most = (0..ranks).map(|rank| Lanes::subtrees_of(rank, ranks, lanes)).max().unwrap_or(1);
            ((most + 1) as f64 * of_others / r * bytes, 2.0 * of_others)
        };
        let exchange = sent / link.bytes_per_second + messages * link.latency;
        Self { ranks, compute, exchange, efficiency: alone / r / (compute + exchange) }
    }
}
