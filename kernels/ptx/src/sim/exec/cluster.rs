//! Blocks of a cluster: their barrier, and accesses of one to the shared memory of another.
//!
//! The blocks of a cluster take turns, each with its own warps. An access to another block's shared memory exchanges the
//! memory, the mbarriers and the pending copies of the two blocks, is executed as one of the own block, and exchanges them
//! back, so that every check is that of a block. Such an access must happen before the other block ends; shared memory
//! that is left to the next block is not its own.

use crate::sim::{
    FindingKind,
    isa::with_rank,
    state::{Block, Cluster, Epoch, Flow, Issue, Machine, State, Thread, View, lanes},
};

impl Machine<'_> {
    /// Runs `act` with what `block` shares exchanged for that of the cluster's block `rank`, if that is another one.
    pub(crate) fn at_rank<T>(
        &mut self,
        block: &mut Block,
        rank: usize,
        act: impl FnOnce(&mut Self, &mut Block) -> T,
    ) -> T {
        let Some(mut peer) = self.cluster.blocks.get_mut(rank).and_then(Option::take) else { return act(self, block) };
        peer.exchange(block);
        let result = act(self, block);
        peer.exchange(block);
        self.cluster.blocks[rank] = Some(peer);
        result
    }

    /// Whether the cluster has another block `rank`, and it has not ended.
    pub(crate) fn is_there(&mut self, block: &Block, thread: Thread, rank: usize, address: u64) -> bool {
        let ranks = self.cluster.blocks.len();
        let (kind, message) = match self.cluster.blocks.get(rank).and_then(Option::as_deref) {
            Some(peer) if !peer.ended => return true,
            Some(peer) => {
                let position = peer.position;
                let message = format!(
                    "accesses shared memory of block {position:?} of its cluster, which has ended without waiting for it"
                );
                (FindingKind::Race, message)
            }
            None => (FindingKind::Operand, format!("names block {rank} of the cluster, which has {ranks}")),
        };
        self.report(kind, block, thread, Some(address), || message);
        false
    }

    /// Notes an access to shared memory of the cluster's block `rank`; whether it can be made.
    pub(crate) fn visit(&mut self, block: &Block, thread: Thread, rank: usize, address: u64) -> bool {
        let is_there = self.is_there(block, thread, rank, address);
        let epoch = self.epoch(block, thread, 0);
        if let Some(Some(peer)) = self.cluster.blocks.get_mut(rank)
            && is_there
        {
            peer.note_visitor(epoch);
        }
        is_there
    }

    /// Ends a block: accesses of other blocks to its shared memory must happen before.
    pub(crate) fn end_block(&mut self, block: &mut Block) {
        block.ended = true;
        let known =
            |visitor: &Epoch| block.warps.iter().any(|warp| (0..32).any(|lane| warp.clock.knows(visitor, lane)));
        if let Some(visitor) = block.visitors.iter().find(|visitor| !known(visitor)) {
            let other = self.other(visitor, block);
            let message =
                format!("ends the block while {other} accesses its shared memory, and nothing orders the two");
            let thread = Thread { w: 0, lane: 0, pc: block.warps[0].last };
            self.report_pair(FindingKind::Race, block, thread, None, (other, message));
        }
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
        let (index, all) = (block.rank * self.warps + w, self.cluster.blocks.len() * self.warps);
        let barrier = &mut self.cluster.barrier;
        barrier.warps.resize(all, 0);
        barrier.waited.resize(all, 0);
        if barrier.warps[index] > barrier.waited[index] {
            let message = || "arrives at the cluster barrier once more before it waits for it".to_string();
            self.report(FindingKind::Barrier, block, issue.first(), None, message);
            self.fatal = true;
            return Flow::Yield;
        }
        let Block { warps, mbarriers, .. } = block;
        let clock = &mut warps[w].clock;
        if releases {
            View::gather(&mut barrier.joined, &clock.publish(mask, live));
        } else {
            let fenced = lanes(mask).filter_map(|lane| clock.publish_fenced(lane, true).near);
            fenced.for_each(|known| View::gather(&mut barrier.joined, &known));
            mbarriers.hand_over(clock.timeline, mask, barrier.phase);
        }
        barrier.warps[index] = barrier.phase + 1;
        self.check_cluster(block);
        Flow::Next
    }

    /// Completes the barrier of the cluster if all warps that have not ended are there.
    pub(crate) fn check_cluster(&mut self, block: &mut Block) {
        let Cluster { blocks, barrier } = &mut self.cluster;
        if !barrier.warps.contains(&(barrier.phase + 1)) {
            return;
        }
        let arrived = |block: &Block| {
            let own = &barrier.warps[block.rank * self.warps..];
            block.warps.iter().zip(own).all(|(warp, phase)| warp.live == 0 || *phase > barrier.phase)
        };
        if !(arrived(block) && blocks.iter().flatten().all(|peer| arrived(peer))) {
            return;
        }
        barrier.phase += 1;
        barrier.completed = barrier.joined.take();
        block.version += 1;
        blocks.iter_mut().flatten().for_each(|peer| peer.version += 1);
        self.metrics.barriers += 1;
    }

    pub(crate) fn cluster_wait(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { w, mask, pc, .. } = issue;
        let (version, index) = (block.version, block.rank * self.warps + w);
        let warp = &mut block.warps[w];
        let barrier = &mut self.cluster.barrier;
        let at = |phases: &[u64]| phases.get(index).copied().unwrap_or(0);
        let arrived = at(&barrier.warps);
        if arrived == at(&barrier.waited) {
            let message = || "waits for the cluster barrier and has not arrived at it since its last wait".to_string();
            self.report(FindingKind::Barrier, block, issue.first(), None, message);
            return Flow::Next;
        }
        if barrier.phase < arrived {
            if let Some(path) = warp.paths.last_mut() {
                path.pc = pc;
            }
            warp.state = State::Polling { version, times: warp.polls };
            return Flow::Yield;
        }
        barrier.waited[index] = arrived;
        // Accesses between the arrival and the wait stay unordered.
        if let Some(completed) = &barrier.completed {
            warp.clock.acquire(mask, warp.live, completed);
        }
        Flow::Next
    }

    /// Maps a shared address to a block of the cluster.
    pub(crate) fn map_shared(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, mask, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let (mut addresses, ranks) = (*self.source(block, issue, 0), *self.source(block, issue, 1));
        let count = self.cluster.blocks.len();
        if let Some(lane) = lanes(mask).find(|lane| ranks[*lane] as u32 as usize >= count) {
            let message = || format!("names block {} of the cluster, which has {count}", ranks[lane] as u32);
            self.report(FindingKind::Operand, block, issue.thread(lane), None, message);
        }
        for (address, rank) in addresses.iter_mut().zip(ranks) {
            *address = with_rank(*address, rank as u32);
        }
        self.define(block, issue, &addresses);
        Flow::Next
    }
}
