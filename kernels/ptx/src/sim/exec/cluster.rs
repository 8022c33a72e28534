//! Clusters of one block, and register transfer between warpgroups.
//!
//! `setmaxnreg` moves registers between warps of a block through a pool. Each thread starts with `.maxnreg` registers,
//! or with an equal share of the 65,536 registers of a multiprocessor; an increase waits until the pool has enough.

use crate::sim::{
    FindingKind,
    state::{Block, Flow, Issue, Machine, State, View, lanes},
};

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;

impl Machine<'_> {
    /// Registers of each thread at the start of a block.
    fn initial_registers(&self) -> u32 {
        let share = ((REGISTERS / (32 * self.warps as u32)) & !7).min(255);
        self.entry.maxnreg.unwrap_or(share)
    }

    pub(crate) fn set_registers(&mut self, block: &mut Block, issue: Issue<'_>, increases: bool) -> Flow {
        let Issue { w, pc, .. } = issue;
        if !self.check_whole(block, issue) {
            return Flow::Yield;
        }
        let (wanted, initial) = (self.source(block, issue, 0)[0] as u32, self.initial_registers());
        let held = |warp: usize| block.warps[warp].registers_held.unwrap_or(initial);
        let now = held(w);
        let allowed = (24..=256).contains(&wanted) && wanted.is_multiple_of(8);
        if !allowed || (increases && wanted < now) || (!increases && wanted > now) {
            let side = if increases { "below" } else { "above" };
            let message = || {
                format!(
                    "requests {wanted} registers; expected a multiple of 8 in 24..=256 that is not {side} the current {now}"
                )
            };
            self.report(FindingKind::Operand, block, issue.thread(0), None, message);
            return Flow::Next;
        }
        let total: u32 = (0..block.warps.len()).map(|warp| 32 * if warp == w { wanted } else { held(warp) }).sum();
        if increases && total > REGISTERS {
            // Retried when another warp has released registers.
            let version = block.version;
            let warp = &mut block.warps[w];
            if let Some(path) = warp.paths.last_mut() {
                path.pc = pc;
            }
            warp.state = State::Polling { version, times: warp.polls };
            return Flow::Yield;
        }
        block.warps[w].registers_held = Some(wanted);
        block.version += 1;
        Flow::Next
    }

    /// A relaxed arrival passes on what earlier fences released, and initializations of mbarriers behind
    /// `fence.mbarrier_init`.
    pub(crate) fn cluster_arrive(&mut self, block: &mut Block, issue: Issue<'_>, releases: bool) -> Flow {
        let Issue { w, mask, .. } = issue;
        let live = block.warps[w].live;
        if mask != live {
            let message =
                || format!("is executed without lanes {:#010x}; expected all live lanes of the warp", live & !mask);
            self.report(FindingKind::Divergence, block, issue.first(), None, message);
        }
        let there = block.warps.iter().filter(|warp| warp.live != 0).count();
        let Block { cluster, warps, mbarriers, .. } = block;
        let clock = &mut warps[w].clock;
        if releases {
            View::gather(&mut cluster.joined, &clock.publish(mask, live));
        } else {
            let fenced = lanes(mask).filter_map(|lane| clock.publish_fenced(lane, true).near);
            fenced.for_each(|known| View::gather(&mut cluster.joined, &known));
            mbarriers.hand_over(clock.timeline, mask, cluster.phase);
        }
        cluster.warps.resize(self.warps, 0);
        cluster.waited.resize(self.warps, 0);
        cluster.warps[w] = cluster.phase + 1;
        cluster.arrived += 1;
        if cluster.arrived >= there {
            cluster.arrived = 0;
            cluster.phase += 1;
            cluster.completed = cluster.joined.take();
            block.version += 1;
            self.metrics.barriers += 1;
        }
        Flow::Next
    }

    pub(crate) fn cluster_wait(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { w, mask, pc, .. } = issue;
        let version = block.version;
        let Block { cluster, warps, .. } = block;
        let warp = &mut warps[w];
        let arrived = cluster.warps.get(w).copied().unwrap_or(0);
        if arrived == 0 {
            let message = || "waits for the cluster barrier before it arrives at it".to_string();
            self.report(FindingKind::Barrier, block, issue.first(), None, message);
            return Flow::Next;
        }
        if cluster.phase < arrived {
            if let Some(path) = warp.paths.last_mut() {
                path.pc = pc;
            }
            warp.state = State::Polling { version, times: warp.polls };
            return Flow::Yield;
        }
        cluster.waited[w] = arrived;
        // Accesses between the arrival and the wait stay unordered.
        if let Some(completed) = &cluster.completed {
            warp.clock.acquire(mask, warp.live, completed);
        }
        Flow::Next
    }

    /// Maps a shared address to a block of the cluster, of which there is only block 0.
    pub(crate) fn map_shared(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, mask, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let (addresses, ranks) = (*self.source(block, issue, 0), *self.source(block, issue, 1));
        if let Some(lane) = lanes(mask).find(|lane| ranks[*lane] as u32 != 0) {
            let message =
                || format!("names block {} of the cluster; expected 0, clusters have one block", ranks[lane] as u32);
            self.report(FindingKind::Operand, block, issue.thread(lane), None, message);
        }
        self.define(block, issue, &addresses);
        Flow::Next
    }
}
