//! Predicted times of the kernels on an H200 from the simulator's counts, and lower bounds (floors).
//!
//! ```text
//! floor      max(FLOPs / 790 TFLOP/s, bytes / 4.3 TB/s)                  of the operation, for any kernel
//! predicted  max over the resources below of  amount / rate, on the busiest multiprocessor
//! ```
//!
//! | resource | amount, counted by the simulator | rate |
//! |---|---|---|
//! | tensor | FLOPs of `wgmma`, `mma.sync` | 4096 a cycle of a multiprocessor; `mma.sync` 0.62 of it |
//! | issue | instructions of warps | 4 a cycle |
//! | special | exponentials, logarithms, reciprocals, square roots, `tanh` of threads | 16 a cycle |
//! | multiply | products of integers of threads (Philox) | 64 a cycle |
//! | shared | wavefronts of 128 bytes: accesses, operands of `wgmma`, TMA traffic | 1 a cycle |
//! | L1 | sectors of 32 bytes, TMA traffic not counted | 4 a cycle |
//! | L2 | sectors that bypass L1: `cp.async`, TMA, stores | 5120 bytes a cycle of the device: 7.5 TB/s |
//! | memory | bytes of global memory, each counted once | 4.3 TB/s |
//!
//! The clock is 1.46 GHz, at which the tensor cores of 132 multiprocessors reach 790 TFLOP/s. For Hopper's product with
//! persistent blocks, [`kernels_cuda::gemm::tiles::HopperTile::cycles`] replaces tensor and issue, because it includes the
//! part of an epilogue that is not overlapped. Everything else is assumed to overlap perfectly: a prediction is a lower
//! bound of the time and shows the limiting resource; it is not a measurement. Not included: launches, latencies, the first
//! loads of a block, cache misses.
//!
//! 32,768 tokens take too long to simulate. A [`Workload`] has sizes that are small in one dimension, along which counts
//! grow linearly; two simulations give amount and growth ([`Size::Grows`]). Counts are proportional to dimensions that only
//! repeat the work ([`Size::Repeats`]).

mod workloads;

pub use workloads::{GROUPS, Group};

use crate::{OPERATIONS, case::Case, gemm::sm90_cases::chosen, operation::Operation, runner::Launched, simulated};
use kernels::{Cost, DType};
use kernels_cuda::{gpu_spec::GpuSpec, program::Pass};
use ptx::Sm;
use rayon::prelude::*;
use std::{collections::BTreeMap, fmt};

/// GPU of the predictions.
const GPU: GpuSpec = GpuSpec::H200;
const MULTIPROCESSORS: usize = GPU.multiprocessors;
const TENSOR: f64 = GPU.tensor_flops_per_cycle;
const CLOCK: f64 = GPU.clock();
/// Share of the tensor cores' rate that `mma.sync` reaches.
const MMA_SYNC: f64 = 0.62;
/// L2 bandwidth: 5120 bytes a cycle, as NVIDIA states for Ampere; hand-written products on Hopper have reached it.
const L2_BANDWIDTH: f64 = 5120.0 * CLOCK;

/// Size of a workload in one dimension.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// Simulated at full size.
    Whole(usize),
    /// Simulated at the first size and at twice that; counts are extrapolated linearly to the second.
    Grows(usize, usize),
    /// Simulated at the first size; counts are multiplied by the second over the first.
    Repeats(usize, usize),
}

impl Size {
    /// Full size.
    fn full(self) -> usize {
        match self {
            Size::Whole(size) | Size::Grows(_, size) | Size::Repeats(_, size) => size,
        }
    }

    /// Factor from the simulated to the full size.
    fn repeats(self) -> f64 {
        match self {
            Size::Repeats(simulated, size) => size as f64 / simulated as f64,
            Size::Whole(_) | Size::Grows(..) => 1.0,
        }
    }

    /// Simulated size; if `doubled`, twice that of a size that grows.
    fn simulated(self, doubled: bool) -> usize {
        match self {
            Size::Grows(size, _) if doubled => 2 * size,
            Size::Whole(size) | Size::Grows(size, _) | Size::Repeats(size, _) => size,
        }
    }
}

/// Case of an operation at the size of a training step.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its part of the step, for the report.
    pub what: &'static str,
    /// Name of the operation in the table of operations.
    pub operation: &'static str,
    /// Forward or backward.
    pub pass: Pass,
    /// Storage.
    pub dtype: DType,
    /// Variant of the operation's case.
    pub variant: &'static str,
    /// Sizes by letter of the dimension.
    pub sizes: &'static [(&'static str, Size)],
    /// Uses per application of the layer, or per step.
    pub times: usize,
}

/// Number of resources in the module's table.
const RESOURCES: usize = 8;

/// Amounts of the resources, in the units of the module's table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Amounts {
    /// FLOPs of `wgmma`; those of `mma.sync` are divided by its share of the rate.
    tensor: f64,
    issue: f64,
    special: f64,
    multiply: f64,
    shared: f64,
    l1_sectors: f64,
    l2_sectors: f64,
    bytes: f64,
    /// Minimum wavefronts for the same bytes.
    least_shared: f64,
    blocks: f64,
}

impl Amounts {
    const NAMES: [&'static str; RESOURCES] = ["tensor", "issue", "special", "multiply", "shared", "L1", "L2", "memory"];

    fn of(launched: &Launched) -> Self {
        const SPECIAL: [&str; 8] = ["ex2.", "lg2.", "rcp.", "sqrt.", "rsqrt.", "sin.", "cos.", "tanh."];
        let metrics = &launched.metrics;
        let count = |wanted: &dyn Fn(&str) -> bool| {
            let found = metrics.instructions.iter().filter(|(name, _)| wanted(name));
            found.map(|(_, times)| *times as f64).sum()
        };
        let is_integer = |name: &str| [".u32", ".s32", ".u64", ".s64", ".b32"].iter().any(|end| name.ends_with(end));
        let shared = metrics.sites.iter().filter(|site| site.memory == ptx::sim::SiteMemory::Shared);
        let global = metrics.sites.iter().filter(|site| site.memory == ptx::sim::SiteMemory::Global);
        let sectors = |wanted: &dyn Fn(&str) -> bool| {
            let found = global.clone().filter(|site| wanted(&site.instruction));
            found.map(|site| site.transactions as f64).sum()
        };
        let slow = metrics.instructions.keys().any(|name| name.starts_with("mma.sync"));
        Self {
            tensor: metrics.tensor_flops as f64 / if slow { MMA_SYNC } else { 1.0 },
            issue: metrics.issued as f64,
            special: count(&|name| SPECIAL.iter().any(|begin| name.starts_with(begin))),
            multiply: count(&|name| (name.starts_with("mul.") || name.starts_with("mad.")) && is_integer(name)),
            shared: shared.clone().map(|site| site.transactions as f64).sum(),
            least_shared: shared.map(|site| site.least as f64).sum(),
            l1_sectors: sectors(&|name| !name.starts_with("cp.async.bulk")),
            l2_sectors: sectors(&|name| !name.starts_with("ld.")),
            bytes: (launched.touched.read + launched.touched.written) as f64,
            blocks: launched.launch.grid.iter().map(|size| f64::from(*size)).product(),
        }
    }

    /// Combines each amount with that of `other`.
    fn with(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            tensor: of(self.tensor, other.tensor),
            issue: of(self.issue, other.issue),
            special: of(self.special, other.special),
            multiply: of(self.multiply, other.multiply),
            shared: of(self.shared, other.shared),
            l1_sectors: of(self.l1_sectors, other.l1_sectors),
            l2_sectors: of(self.l2_sectors, other.l2_sectors),
            bytes: of(self.bytes, other.bytes),
            least_shared: of(self.least_shared, other.least_shared),
            blocks: of(self.blocks, other.blocks),
        }
    }

    /// Seconds of each resource in the order of [`Amounts::NAMES`], with the blocks distributed over the multiprocessors.
    fn seconds(&self) -> [f64; RESOURCES] {
        let even = self.blocks / MULTIPROCESSORS as f64;
        // Load of the busiest multiprocessor over the average load.
        let busiest = if even > 0.0 { even.ceil() / even } else { 1.0 };
        let cycle = busiest / (CLOCK * MULTIPROCESSORS as f64);
        [
            self.tensor / TENSOR * cycle,
            self.issue / 4.0 * cycle,
            self.special / 16.0 * cycle,
            self.multiply / 64.0 * cycle,
            self.shared * cycle,
            self.l1_sectors / 4.0 * cycle,
            self.l2_sectors * 32.0 / L2_BANDWIDTH,
            self.bytes / GPU.bandwidth,
        ]
    }
}

impl Group {
    /// Predicts all workloads, on all cores.
    ///
    /// # Errors
    /// The error of the first workload that fails.
    pub fn predict(&self) -> Result<Vec<Prediction>, String> {
        self.workloads.par_iter().with_max_len(1).map(Workload::predict).collect()
    }
}

/// Predicts all [`GROUPS`]; calls `begins` with index and title of each group before it starts.
///
/// # Errors
/// If a workload fails.
pub fn predict_all(mut begins: impl FnMut(usize, &str)) -> Result<Vec<Vec<Prediction>>, String> {
    let groups = GROUPS.iter().enumerate();
    let predicted = groups.map(|(position, group)| {
        begins(position, group.title);
        group.predict()
    });
    predicted.collect()
}

/// Predictions of all [`GROUPS`] as Markdown tables: the output of `albert kernels predict --markdown`.
pub fn report(predictions: &[Vec<Prediction>]) -> String {
    let tables = GROUPS.iter().zip(predictions);
    tables.map(|(group, predictions)| format!("## {}\n\n{}\n", group.title, Table(predictions))).collect()
}

/// Prediction of a workload.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Workload.
    pub workload: Workload,
    /// Launched programs, in order.
    pub programs: Vec<String>,
    /// Floor, seconds.
    pub floor: f64,
    /// Predicted time, seconds.
    pub seconds: f64,
    /// Limiting resource.
    pub bound: &'static str,
    /// Time of each resource, in the order of the module's table, over the predicted time.
    pub shares: [f64; RESOURCES],
    /// Bytes of global memory over those of the floor.
    pub bytes_ratio: f64,
    /// Wavefronts of shared memory over the minimum; 1 is free of bank conflicts.
    pub bank_ratio: f64,
    /// Blocks, or tiles of persistent blocks, over multiprocessors.
    pub waves: f64,
}

impl Workload {
    fn operation(&self) -> &'static Operation {
        let found = OPERATIONS.iter().find(|row| row.name == self.operation);
        found.unwrap_or_else(|| panic!("{}: no operation is called {}", self.what, self.operation))
    }

    fn case(&self, size: impl Fn(Size) -> usize) -> Case {
        let dims = self.sizes.iter().map(|(letter, of)| (*letter, size(*of))).collect();
        Case { pass: self.pass, dtype: self.dtype, variant: self.variant.to_string(), dims }
    }

    /// Case at full size.
    pub fn full(&self) -> Case {
        self.case(Size::full)
    }

    /// Counts of the simulated case by program; repeated launches of a program (other approximations) are ignored.
    fn counted(&self, doubled: bool, variant: &str) -> Result<Vec<(String, Amounts)>, String> {
        let case = Case { variant: variant.to_string(), ..self.case(|size| size.simulated(doubled)) };
        let mut found: Vec<(String, Amounts)> = Vec::new();
        let mut launches = simulated::launches(self.operation(), &case, Sm::Sm90a, true)?;
        if launches.is_empty() {
            // Hopper runs the program for sm_80.
            launches = simulated::launches(self.operation(), &case, Sm::Sm80, true)?;
        }
        for launched in launches {
            let name = launched.name.to_string();
            // A check of backward may launch forward first.
            let other_way = self.pass == Pass::Backward && name.contains(".forward");
            if !other_way && found.iter().all(|(known, _)| *known != name) {
                found.push((name, Amounts::of(&launched)));
            }
        }
        Ok(found)
    }

    /// Predicts the workload.
    ///
    /// # Errors
    /// If a simulated case fails, or launches other programs at twice the size.
    pub fn predict(&self) -> Result<Prediction, String> {
        let full = self.full();
        let cost = (self.operation().cost)(&full);
        let chosen = (self.operation == "gemm").then(|| chosen(&full, MULTIPROCESSORS)).flatten();
        // Split-K stores partial sums and does not accumulate them.
        let layers = chosen.as_ref().map_or(1, |chosen| chosen.layers);
        let variant = if layers > 1 { self.variant.replace("_accumulate", "") } else { self.variant.to_string() };
        let mut launches = self.counted(false, &variant)?;
        if let Some((letter, Size::Grows(small, size))) =
            self.sizes.iter().copied().find(|(_, size)| matches!(size, Size::Grows(..)))
        {
            let steps = (size - small) as f64 / small as f64;
            let double: BTreeMap<String, Amounts> = self.counted(true, &variant)?.into_iter().collect();
            for (name, amounts) in &mut launches {
                let other = double.get(name);
                let other = other.ok_or_else(|| format!("{}: {name} is not launched at twice {letter}", self.what))?;
                *amounts = amounts.with(*other, |small, double| small + (double - small) * steps);
            }
        }
        let repeats: f64 = self.sizes.iter().map(|(_, size)| size.repeats()).product();
        for (_, amounts) in &mut launches {
            *amounts = amounts.with(*amounts, |amount, _| amount * repeats);
        }
        if let Some(chosen) = &chosen {
            launches.retain(|(name, _)| *name == chosen.name.as_str());
            for (_, amounts) in &mut launches {
                // Blocks are persistent: tiles of C count. Operands are loaded once, which the small case cannot show.
                amounts.blocks = chosen.tiles as f64;
                amounts.bytes = cost.bytes as f64;
            }
            if chosen.layers > 1 {
                let sums = (full.dim("m") * full.dim("n")) as f64;
                // The partial sums of every split are written and read; C is read and written.
                let bytes = 4.0 * sums * (2 * chosen.layers + 2) as f64;
                launches.push(("gemm.sum".to_string(), Amounts { bytes, ..Amounts::default() }));
            }
        }
        if launches.is_empty() {
            return Err(format!("{}: nothing is launched", self.what));
        }
        Ok(self.judge(cost, &launches, chosen.map(|chosen| chosen.cycles as f64 / CLOCK)))
    }

    /// Prediction from the amounts of the launches at full size.
    fn judge(&self, cost: Cost, launches: &[(String, Amounts)], product: Option<f64>) -> Prediction {
        // Table rows that several ids select are read once, so the counted bytes can be fewer than the cost's.
        let bytes = launches.iter().map(|(_, amounts)| amounts.bytes).sum::<f64>().min(cost.bytes as f64);
        let floor = Cost { bytes: bytes as u64, ..cost }.seconds(GPU.tensor_flops, GPU.bandwidth);
        let (mut seconds, mut resources) = (0.0, [0.0; RESOURCES]);
        for (at, (_, amounts)) in launches.iter().enumerate() {
            let of = amounts.seconds();
            seconds += of.iter().copied().fold(product.filter(|_| at == 0).unwrap_or(0.0), f64::max);
            (0..RESOURCES).for_each(|i| resources[i] += of[i]);
        }
        let sum = |of: fn(&Amounts) -> f64| launches.iter().map(|(_, amounts)| of(amounts)).sum::<f64>();
        let greatest =
            (0..RESOURCES).max_by(|a, b| resources[*a].total_cmp(&resources[*b])).expect("there are resources");
        Prediction {
            workload: *self,
            programs: launches.iter().map(|(name, _)| name.clone()).collect(),
            floor,
            seconds,
            bound: Amounts::NAMES[greatest],
            shares: resources.map(|resource| resource / seconds),
            bytes_ratio: sum(|amounts| amounts.bytes) / bytes,
            bank_ratio: sum(|amounts| amounts.shared) / sum(|amounts| amounts.least_shared).max(1.0),
            waves: launches.iter().map(|(_, amounts)| amounts.blocks).fold(0.0, f64::max) / MULTIPROCESSORS as f64,
        }
    }
}

/// Markdown table of predictions.
pub struct Table<'a>(pub &'a [Prediction]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micro = |seconds: f64| match seconds * 1e6 {
            small if small < 100.0 => format!("{small:.1}"),
            large => format!("{large:.0}"),
        };
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        writeln!(
            f,
            "| | program | times | floor, µs | predicted, µs | reached | longest | tensor | issue | special | multiply | shared | L1 \
             | L2 | memory | bytes / needed | wavefronts / least | waves |"
        )?;
        writeln!(f, "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")?;
        let (mut floor, mut predicted) = (0.0, 0.0);
        for row in self.0 {
            let times = row.workload.times as f64;
            floor += times * row.floor;
            predicted += times * row.seconds;
            let programs: Vec<String> = row.programs.iter().map(|name| format!("`{name}`")).collect();
            write!(
                f,
                "| {} | {} | {} | {} | {} | **{}** | {} |",
                row.workload.what,
                programs.join("<br>"),
                row.workload.times,
                micro(row.floor),
                micro(row.seconds),
                percent(row.floor / row.seconds),
                row.bound
            )?;
            row.shares.iter().try_for_each(|share| write!(f, " {} |", percent(*share)))?;
            writeln!(f, " {:.2} | {:.2} | {:.1} |", row.bytes_ratio, row.bank_ratio, row.waves)?;
        }
        writeln!(
            f,
            "| **all** | | | **{}** | **{}** | **{}** | | | | | | | | | | | | |",
            micro(floor),
            micro(predicted),
            percent(floor / predicted)
        )
    }
}
