//! When asynchronous operations are over, as `Completion` says.

use super::{block::Block, execute::Machine};

/// Operations of a block that no warp runs.
#[derive(Debug, Default)]
pub(super) struct Engine {}

impl Machine<'_> {
    /// Ends one operation that somebody may be waiting for.
    pub(super) fn complete_one(&mut self, block: &mut Block) -> bool {
        (0..block.warps.len()).any(|w| self.arrive_copies(block, w))
    }

    /// A block ends.
    pub(super) fn finish(&mut self, _block: &mut Block) {}

    /// Ends an operation at a random time.
    pub(super) fn complete_some(&mut self, block: &mut Block) {
        if self.completions.below(4) == 0 {
            let w = self.completions.below(block.warps.len());
            self.bring_oldest(block, w);
            self.arrive_copies(block, w);
        }
    }
}
