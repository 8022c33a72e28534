//! A block: its shared memory, its warps and its barriers.

use super::{
    asynchronous::Engine,
    barrier::Barrier,
    clocks,
    cluster::Cluster,
    decode::SPECIALS,
    execute::{Machine, position},
    mbarrier::Mbarriers,
    memory::Region,
    order::Withheld,
    warp::{State, Warp},
};
use crate::Launch;

/// A block that has begun.
#[derive(Debug)]
pub(super) struct Block {
    /// Its number in the grid, x first.
    pub(super) linear: u32,
    pub(super) position: [u32; 3],
    pub(super) shared: Region,
    /// For each word of shared memory, 1 + the instruction that is still bringing it, or 0.
    pub(super) pending: Vec<u32>,
    pub(super) warps: Vec<Warp>,
    pub(super) barriers: [Barrier; 16],
    pub(super) mbarriers: Mbarriers,
    pub(super) engine: Engine,
    pub(super) cluster: Cluster,
    /// What a wider scope would have let threads of the block learn.
    pub(super) withheld: Withheld,
    /// Grows when a phase ends: who polls may ask again.
    pub(super) version: u64,
}

impl Block {
    pub(super) fn new(machine: &Machine<'_>, linear: usize) -> Self {
        let (entry, launch, warps) = (machine.entry, machine.launch, machine.warps);
        let threads = launch.block.iter().map(|n| *n as usize).product::<usize>();
        let shared_bytes = machine.shared_bytes();
        let base = linear as u32 * clocks::timelines(warps);
        let position = position(linear, launch.grid);
        let mut block = Block {
            linear: linear as u32,
            position,
            shared: Region::new("shared memory", shared_bytes as usize, clocks::timelines(warps)),
            pending: vec![0; shared_bytes.div_ceil(4) as usize],
            warps: (0..warps).map(|w| Warp::new(entry, base, w, warps, threads, machine.has_products)).collect(),
            barriers: std::array::from_fn(|_| Barrier::new(base, warps)),
            mbarriers: Mbarriers::default(),
            engine: Engine::default(),
            cluster: Cluster::default(),
            withheld: Withheld::default(),
            version: 1,
        };
        for (warp, specials) in block.warps.iter_mut().zip(&machine.specials) {
            warp.registers[..specials.len()].copy_from_slice(specials);
            let values = position.map(|at| [u64::from(at); 32]);
            warp.registers[CTAID..CTAID + 3].copy_from_slice(&values);
            warp.registers[CLUSTERID..CLUSTERID + 3].copy_from_slice(&values);
        }
        block
    }

    /// Whether a warp can run; one that polls only if something has changed, or if it `wakes` without a reason.
    pub(super) fn can_run(&self, warp: usize, wakes: bool) -> bool {
        match self.warps[warp].state {
            State::Ready => true,
            State::Polling { version, .. } => wakes || version != self.version,
            State::Barrier { .. } | State::Done => false,
        }
    }
}

/// The special registers of every warp, but for those that tell the blocks apart.
pub(super) fn special_values(launch: Launch, warps: usize, shared_bytes: u32, clustered: bool) -> Vec<Vec<[u64; 32]>> {
    let value = |name: &str, w: usize, lane: usize| -> u64 {
        let (base, axis) = name.split_once('.').unwrap_or((name, "x"));
        let axis = usize::from(axis.as_bytes()[0] - b'x').min(2);
        let lane = lane as u64;
        match base {
            "%tid" => u64::from(position(32 * w + lane as usize, launch.block)[axis]),
            "%ntid" => u64::from(launch.block[axis]),
            "%nctaid" | "%nclusterid" => u64::from(launch.grid[axis]),
            "%laneid" => lane,
            "%warpid" => w as u64,
            "%nwarpid" => warps as u64,
            "%nsmid" | "%cluster_nctaid" | "%cluster_nctarank" => 1,
            "%lanemask_eq" => 1 << lane,
            "%lanemask_le" => (2 << lane) - 1,
            "%lanemask_lt" => (1 << lane) - 1,
            "%lanemask_ge" => 0xFFFF_FFFF & !((1 << lane) - 1),
            "%lanemask_gt" => 0xFFFF_FFFF & !((2 << lane) - 1),
            "%dynamic_smem_size" => u64::from(launch.shared_bytes),
            "%total_smem_size" => u64::from(shared_bytes),
            "%is_explicit_cluster" => u64::from(clustered),
            _ => 0,
        }
    };
    let of_warp = |w| SPECIALS.iter().map(|name| std::array::from_fn(|lane| value(name, w, lane))).collect();
    (0..warps).map(of_warp).collect()
}

/// Where the special registers of the block's position begin.
const CTAID: usize = 6;
const CLUSTERID: usize = 26;
