//! Register transfer between warpgroups.
//!
//! `setmaxnreg` moves registers between warps of a block through a pool. Each thread starts with `.maxnreg` registers,
//! or with an equal share of the 65,536 registers of a multiprocessor; an increase waits until the pool has enough.

use crate::sim::{
    FindingKind,
    state::{Block, Flow, Issue, Machine, State},
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
}
