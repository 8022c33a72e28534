//! Completion of asynchronous operations, as [`Completion`](crate::sim::Completion) says.

use crate::sim::{
    FindingKind,
    state::{Block, Machine, Thread},
};

impl Machine<'_> {
    /// Ends one operation that a thread may be waiting for.
    pub(crate) fn complete_one(&mut self, block: &mut Block) -> bool {
        self.land_one(block) || (0..block.warps.len()).any(|w| self.arrive_copies(block, w))
    }

    /// Ends an operation at a random time.
    pub(crate) fn complete_some(&mut self, block: &mut Block) {
        if self.completions.below(4) == 0 {
            let w = self.completions.below(block.warps.len());
            self.bring_oldest(block, w);
            self.arrive_copies(block, w);
            self.execute_oldest_product(block, w);
            self.land_one(block);
        }
    }

    /// Ends a block, of which no operation may be pending.
    pub(crate) fn finish(&mut self, block: &mut Block) {
        let longest = block.warps.iter().map(|warp| warp.executed).max().unwrap_or(0);
        self.metrics.longest = self.metrics.longest.max(longest);
        while (0..block.warps.len()).any(|w| self.arrive_copies(block, w)) {}
        self.finish_flights(block);
        if self.has_grid_wait && block.warps.iter().all(|warp| warp.grid_waited == 0) {
            let thread = Thread { w: 0, lane: 0, pc: block.warps[0].last };
            let message = || "ends a block of which no thread has executed griddepcontrol.wait".to_string();
            self.report(FindingKind::Dependency, block, thread, None, message);
        }
        // All four warps of a group must have issued all products of the group.
        for (group, issued) in block.engine.issued.clone().iter().enumerate() {
            for w in 4 * group..4 * group + 4 {
                let own = block.warps.get(w).map_or(0, |warp| warp.products.count());
                if let Some(pc) = issued.get(own) {
                    let message = || format!("is issued by some warps of the warpgroup and not by warp {w}");
                    let thread = Thread { w: w.min(block.warps.len() - 1), lane: 0, pc: *pc as usize };
                    self.report(FindingKind::Divergence, block, thread, None, message);
                }
            }
        }
        for w in 0..block.warps.len() {
            if let Some(pc) = block.warps[w].products.unfinished() {
                let message = || "is never waited for; use wgmma.wait_group".to_string();
                self.report(FindingKind::Unfinished, block, Thread { w, lane: 0, pc }, None, message);
            }
        }
    }
}
