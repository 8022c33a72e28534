//! Costs of a launch: instructions, FLOPs, sectors, bank conflicts, barriers.
//!
//! A *request* is one instruction of one warp. In global memory it touches sectors of 32 bytes; the fewest possible are
//! the bytes it moves over 32. In shared memory it takes as many *wavefronts* as the fullest of the 32 banks of 4 bytes
//! has different words to serve; accesses of 8 and 16 bytes go by halves and quarters of a warp, `ldmatrix` by 8 rows.
//! Shared memory that `wgmma` reads and bulk copies move counts as wavefronts of 128 bytes.

use super::Place;
use std::collections::BTreeMap;

/// Costs of a launch.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Full name of the instruction, times that a thread ran it. One whose guard did not hold also counts: the device
    /// issues it.
    pub instructions: BTreeMap<String, u64>,
    /// Instructions of warps.
    pub issued: u64,
    /// Instructions of the warp that ran the most.
    pub longest: u64,
    /// Instructions of threads.
    pub lanes: u64,
    /// Floating-point operations of ordinary instructions; a fused multiply-add counts two.
    pub scalar_flops: u64,
    /// Floating-point operations of tensor cores.
    pub tensor_flops: u64,
    /// Bytes that threads read from global memory, each access counted.
    pub global_read: u64,
    /// Bytes that threads write to global memory, each access counted.
    pub global_written: u64,
    /// Barriers of the block that were completed.
    pub barriers: u64,
    /// Phases of mbarriers that were completed.
    pub phases: u64,
    /// Lines of the text whose instruction no thread reached.
    pub unreached: Vec<u32>,
    /// Instructions that access memory.
    pub sites: Vec<Site>,
}

/// An instruction that accesses memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Location in the text and the source.
    pub place: Place,
    /// Its full name.
    pub instruction: String,
    /// The memory that it accesses.
    pub memory: SiteMemory,
    /// Instructions of warps.
    pub requests: u64,
    /// Sectors of 32 bytes (global) or wavefronts (shared), over all requests.
    pub transactions: u64,
    /// The fewest transactions for the same bytes.
    pub least: u64,
    /// The most of one request.
    pub worst: u64,
}

impl Site {
    /// Sectors or wavefronts a request.
    pub fn degree(&self) -> f64 {
        self.transactions as f64 / self.requests.max(1) as f64
    }
}

/// The memory of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteMemory {
    /// Global: transactions are sectors.
    Global,
    /// Shared: transactions are wavefronts.
    Shared,
}

/// Counts of one instruction while a launch runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) global: Tally,
    pub(crate) shared: Tally,
}

/// Requests and transactions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) transactions: u64,
    pub(crate) least: u64,
    pub(crate) worst: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, transactions: u64, least: u64) {
        self.requests += 1;
        self.transactions += transactions;
        self.least += least;
        self.worst = self.worst.max(transactions);
    }
}

/// Sectors that accesses of `bytes` at these addresses touch, and the fewest for as many different bytes.
pub(crate) fn sectors(addresses: &[u64], bytes: u64) -> (u64, u64) {
    // A naturally aligned access of up to 16 bytes is within one sector.
    let (mut sorted, count) = ([0; 32], addresses.len().min(32));
    sorted[..count].copy_from_slice(&addresses[..count]);
    let sorted = &mut sorted[..count];
    sorted.sort_unstable();
    let (mut sectors, mut distinct, mut last) = (0, 0, None);
    for address in sorted.iter() {
        sectors += u64::from(last.is_none_or(|last: u64| last / 32 != address / 32));
        distinct += u64::from(last != Some(*address));
        last = Some(*address);
    }
    (sectors, (distinct * bytes).div_ceil(32))
}

/// Wavefronts that accesses of `bytes` at these shared addresses take, and the fewest for as many different words.
pub(crate) fn wavefronts(addresses: &[u64], bytes: u64) -> (u64, u64) {
    let together = (128 / bytes.max(4)) as usize;
    let (mut total, mut least) = (0, 0);
    for group in addresses.chunks(together) {
        let (mut words, mut count) = ([0_u32; 64], 0);
        for address in group {
            for word in address / 4..=(address + bytes - 1) / 4 {
                words[count] = word as u32;
                count += 1;
            }
        }
        let words = &mut words[..count];
        words.sort_unstable();
        let (mut banks, mut distinct, mut last) = ([0_u8; 32], 0, u32::MAX);
        for word in words.iter().filter(|word| std::mem::replace(&mut last, **word) != **word) {
            banks[(word % 32) as usize] += 1;
            distinct += 1_u64;
        }
        total += u64::from(banks.iter().copied().max().unwrap_or(0));
        least += distinct.div_ceil(32);
    }
    (total, least)
}
