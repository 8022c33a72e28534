//! What a cluster of one block needs, and how warpgroups pass registers on.
//!
//! `setmaxnreg` moves registers between warps of a block through a pool. A block begins with what `.maxnreg` says for
//! each thread, or with an equal share of the 65,536 registers of a multiprocessor; an increase waits until the pool
//! has enough.

use crate::sim::{
    FindingKind,
    isa::instruction::Instruction,
    state::{
        block::Block,
        clocks::lanes,
        machine::{Flow, Machine, first},
        warp::State,
    },
};

/// Registers of a multiprocessor.
const REGISTERS: u32 = 65_536;

impl Machine<'_> {
    /// Registers that each thread of a block begins with.
    fn initial_registers(&self) -> u32 {
        let share = ((REGISTERS / (32 * self.warps as u32)) & !7).min(255);
        self.entry.maxnreg.unwrap_or(share)
    }

    pub(crate) fn set_registers(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        increases: bool,
        mask: u32,
        pc: usize,
    ) -> Flow {
        if !self.check_whole(block, w, mask, pc) {
            return Flow::Yield;
        }
        let (wanted, initial) = (self.lane_value(block, w, i.sources[0], 0) as u32, self.initial_registers());
        let held = |warp: usize| block.warps[warp].registers_held.unwrap_or(initial);
        let now = held(w);
        let allowed = (24..=256).contains(&wanted) && wanted.is_multiple_of(8);
        if !allowed || (increases && wanted < now) || (!increases && wanted > now) {
            let message = || {
                format!(
                    "asks for {wanted} registers; it has {now}, and may ask for multiples of 8 from 24 to 256 on its side of them"
                )
            };
            self.report(FindingKind::Operand, block, w, 0, pc, None, message);
            return Flow::Next;
        }
        let total: u32 = (0..block.warps.len()).map(|warp| 32 * if warp == w { wanted } else { held(warp) }).sum();
        if increases && total > REGISTERS {
            // Asks again when another warp has given registers back.
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

    pub(crate) fn cluster_arrive(&mut self, block: &mut Block, w: usize, mask: u32, pc: usize) -> Flow {
        let live = block.warps[w].live;
        if mask != live {
            let message = || format!("is executed while lanes {:#010x} of the warp are elsewhere", live & !mask);
            self.report(FindingKind::Divergence, block, w, first(mask), pc, None, message);
        }
        let there = block.warps.iter().filter(|warp| warp.live != 0).count();
        let known = block.warps[w].clock.publish(mask, live);
        let cluster = &mut block.cluster;
        cluster.warps.resize(block.warps.len(), 0);
        cluster.warps[w] = cluster.phase + 1;
        cluster.arrived += 1;
        match &mut cluster.joined {
            Some(joined) => joined.join(&known),
            None => cluster.joined = Some(known),
        }
        if cluster.arrived >= there {
            cluster.arrived = 0;
            cluster.phase += 1;
            cluster.completed = cluster.joined.take();
            block.version += 1;
            self.metrics.barriers += 1;
        }
        Flow::Next
    }

    pub(crate) fn cluster_wait(&mut self, block: &mut Block, w: usize, mask: u32, pc: usize) -> Flow {
        let version = block.version;
        let Block { cluster, warps, .. } = block;
        let warp = &mut warps[w];
        let arrived = cluster.warps.get(w).copied().unwrap_or(0);
        if arrived == 0 {
            let message = || "waits for the cluster without having arrived".to_string();
            self.report(FindingKind::Barrier, block, w, first(mask), pc, None, message);
            return Flow::Next;
        }
        if cluster.phase < arrived {
            if let Some(path) = warp.paths.last_mut() {
                path.pc = pc;
            }
            warp.state = State::Polling { version, times: warp.polls };
            return Flow::Yield;
        }
        if let Some(completed) = &cluster.completed {
            warp.clock.acquire(mask, warp.live, completed);
            warp.clock.sync(mask, warp.live);
        }
        Flow::Next
    }

    /// An address of a block of the cluster; there is block 0 alone.
    pub(crate) fn map_shared(&mut self, block: &mut Block, w: usize, i: &Instruction, mask: u32, pc: usize) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let (addresses, ranks) = (*self.value(block, w, i.sources[0]), *self.value(block, w, i.sources[1]));
        if let Some(lane) = lanes(mask).find(|lane| ranks[*lane] as u32 != 0) {
            let message = || format!("names block {} of a cluster of one block", ranks[lane] as u32);
            self.report(FindingKind::Operand, block, w, lane, pc, None, message);
        }
        self.set(block, w, i.destinations[0], mask, &addresses);
        Flow::Next
    }
}
