//! mbarriers: phases that end when all expected arrivals and all expected bytes are there.
//!
//! ```text
//! pending arrivals ──arrive──▶ 0 ┐
//!                                ├─▶ phase + 1, pending = expected
//! bytes expected − arrived ────▶ 0 ┘
//! ```
//!
//! A wait for the parity p succeeds when the current phase has the other parity. An arrival releases the clock of its
//! thread; a successful wait acquires those of all arrivals and copies of the phase. Both reach other blocks of the cluster if
//! their scope does; an arrival at another block with the scope of its own passes on its thread's finished asynchronous operations
//! alone (products, bulk copies), which need no fence: pipelines between blocks depend on it. The object itself is opaque: its
//! state is kept outside of shared memory, and ordinary loads and stores of its eight bytes are findings.

use crate::sim::{
    FindingKind,
    isa::{Arrive, SHARED_BASE, Space, Wait},
    state::{Block, Flow, Issue, Machine, Mbarrier, Spot, State, Thread, View, lanes},
};
use std::collections::BTreeMap;

/// The most bytes that a phase may expect.
const MOST_BYTES: i64 = (1 << 20) - 1;

impl Machine<'_> {
    /// The mbarrier at an address, after the rank of its block; its initialization must happen before.
    fn mbarrier(
        &mut self,
        block: &mut Block,
        thread: Thread,
        address: u64,
        space: Option<Space>,
    ) -> Option<(usize, usize)> {
        let (rank, at) = match self.locate(block, thread, space, address, 8, 8) {
            Some(Spot::Shared(at)) => (block.rank, at),
            Some(Spot::Peer(rank, at)) => (rank, at),
            _ => {
                if space.is_none() {
                    self.report(FindingKind::Operand, block, thread, Some(address), || {
                        "uses an mbarrier outside of shared memory".to_string()
                    });
                }
                return None;
            }
        };
        let known = self.at_rank(block, rank, |machine, block| machine.check_mbarrier(block, thread, at, address));
        known.then_some((rank, at))
    }

    /// Whether there is an mbarrier; its initialization must happen before.
    fn check_mbarrier(&mut self, block: &mut Block, thread: Thread, at: usize, address: u64) -> bool {
        let Thread { w, lane, .. } = thread;
        let Some(state) = block.mbarriers.all.get(&at) else {
            let message = || "uses an mbarrier that is not initialized".to_string();
            self.report(FindingKind::Barrier, block, thread, Some(address), message);
            return false;
        };
        let waited = self.cluster.barrier.waited.get(block.rank * self.warps + w).copied().unwrap_or(0);
        let init = state.init;
        let handed_over = state.handed_over.is_some_and(|phase| phase < waited);
        if !handed_over && !block.warps[w].clock.knows(&init, lane) {
            let other = self.other(&init, block);
            let message = format!("uses an mbarrier that {other} initializes, and nothing orders the two");
            self.report_pair(FindingKind::Race, block, thread, Some(address), (other, message));
        }
        true
    }

    /// The mbarrier that a thread of `issue` names, after the rank of its block.
    fn mbarrier_of(&mut self, block: &mut Block, issue: Issue<'_>, thread: Thread) -> Option<(usize, usize)> {
        let address = self.source(block, issue, 0)[thread.lane].wrapping_add_signed(issue.i.offsets[0]);
        self.mbarrier(block, thread, address, space_of_opcode(issue))
    }

    /// The same for an instruction that only takes mbarriers of its own block.
    fn mbarrier_at(&mut self, block: &mut Block, issue: Issue<'_>, thread: Thread) -> Option<usize> {
        let (rank, at) = self.mbarrier_of(block, issue, thread)?;
        if rank != block.rank {
            let message = || "uses an mbarrier of another block of the cluster; expected one of its own".to_string();
            self.report(FindingKind::Operand, block, thread, None, message);
        }
        (rank == block.rank).then_some(at)
    }

    pub(crate) fn mbarrier_init(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let addresses = self.addresses(block, issue, 0, 0);
        for thread in issue.threads() {
            let lane = thread.lane;
            let count = self.source(block, issue, 1)[lane] as u32;
            let address = addresses[lane];
            let Some(Spot::Shared(at)) = self.locate(block, thread, space_of_opcode(issue), address, 8, 8) else {
                continue;
            };
            if count == 0 || count >= 1 << 20 {
                let message = || format!("sets {count} arrivals; expected 1 to 1048575");
                self.report(FindingKind::Operand, block, thread, Some(address), message);
            }
            if block.mbarriers.overlaps(at, 8) {
                let message = || "initializes an mbarrier that is in use; invalidate it first".to_string();
                self.report(FindingKind::Barrier, block, thread, Some(address), message);
                block.mbarriers.all.remove(&at);
            }
            let init = self.epoch(block, thread, 0);
            self.write(block, thread, Spot::Shared(at), &[0; 8], init);
            let state = Mbarrier { expected: count, pending: i64::from(count), init, ..Mbarrier::default() };
            block.mbarriers.all.insert(at, state);
        }
        Flow::Next
    }

    pub(crate) fn mbarrier_invalidate(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        for thread in issue.threads() {
            let Some(at) = self.mbarrier_at(block, issue, thread) else { continue };
            block.mbarriers.all.remove(&at);
            let epoch = self.epoch(block, thread, 0);
            self.write(block, thread, Spot::Shared(at), &[0xFF; 8], epoch);
            block.shared.written[at..at + 8].fill(0);
        }
        Flow::Next
    }

    pub(crate) fn mbarrier_arrive(&mut self, block: &mut Block, issue: Issue<'_>, arrive: Arrive) -> Flow {
        let Issue { i, w, mask, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let addresses = self.addresses(block, issue, 0, 0);
        // Lanes that arrive at one mbarrier in one phase release together.
        let mut together: Option<(u64, u64)> = None;
        let mut states = [0; 32];
        // All lanes access their mbarriers before the first one releases.
        let places: Vec<_> = issue.threads().map(|thread| (thread, self.mbarrier_of(block, issue, thread))).collect();
        for (thread, place) in places {
            let lane = thread.lane;
            let operand = i.sources.get(1).map_or(1, |slot| self.lane_value(block, w, *slot, lane) as u32);
            let Some((rank, at)) = place else { continue };
            let count = if arrive.expects { 1 } else { operand };
            let is_remote = rank != block.rank;
            self.at_rank(block, rank, |machine, block| {
                if let Some(state) = block.mbarriers.get(at) {
                    states[lane] = state.phase << 32 | state.pending as u64 & 0xFFFF_FFFF;
                    let warp = &mut block.warps[w];
                    let mut known = None;
                    if !arrive.releases {
                        known = warp.clock.publish_fenced(lane, true).near;
                    } else if together != Some((addresses[lane], state.phase)) {
                        together = Some((addresses[lane], state.phase));
                        let own = addresses[lane];
                        let rest = lanes(mask & u32::MAX << lane).filter(|other| addresses[*other] == own);
                        let rest = rest.take(state.pending.max(1) as usize).fold(0, |rest, other| rest | 1 << other);
                        known = Some(warp.clock.publish(rest, warp.live));
                    }
                    if let Some(known) = known {
                        let is_narrow = is_remote && !arrive.reaches_cluster;
                        let known = if is_narrow { known.only_finished(machine.warps) } else { known };
                        state.gather(&known, is_remote && !is_narrow);
                    }
                }
                if arrive.expects {
                    machine.expect_bytes(block, thread, at, i64::from(operand));
                }
                if let (true, Some(state)) = (arrive.drops, block.mbarriers.get(at)) {
                    state.expected -= count.min(state.expected);
                }
                machine.count_arrivals(block, thread, at, i64::from(count));
            });
        }
        if let Some(slot) = i.destinations.first() {
            self.set(block, w, *slot, mask, &states);
        }
        Flow::Next
    }

    /// Counts arrivals at the mbarrier at `at`.
    pub(crate) fn count_arrivals(&mut self, block: &mut Block, thread: Thread, at: usize, count: i64) {
        let Some(state) = block.mbarriers.get(at) else { return };
        state.pending -= count;
        if state.pending < 0 {
            let (expected, phase) = (state.expected, state.phase);
            let message =
                || format!("is one arrival more than the {expected} that phase {phase} of the mbarrier expects");
            self.report(FindingKind::Barrier, block, thread, Some(SHARED_BASE + at as u64), message);
            self.fatal = true;
            return;
        }
        self.turn_phase(block, at);
    }

    fn turn_phase(&mut self, block: &mut Block, at: usize) {
        if block.mbarriers.get(at).is_some_and(Mbarrier::turn) {
            block.version += 1;
            self.metrics.phases += 1;
        }
    }

    fn expect_bytes(&mut self, block: &mut Block, thread: Thread, at: usize, bytes: i64) {
        let Some(state) = block.mbarriers.get(at) else { return };
        state.bytes += bytes;
        if state.bytes.abs() > MOST_BYTES {
            let bytes = state.bytes;
            let message = || format!("makes the mbarrier expect {bytes} bytes; expected at most {MOST_BYTES}");
            self.report(FindingKind::Barrier, block, thread, Some(SHARED_BASE + at as u64), message);
        }
    }

    /// Counts the bytes of a finished copy, which publishes `known`.
    pub(crate) fn complete_bytes(&mut self, block: &mut Block, at: usize, bytes: i64, known: &View) {
        if let Some(state) = block.mbarriers.get(at) {
            state.bytes -= bytes;
            View::gather(&mut state.joined, known);
            self.turn_phase(block, at);
        }
    }

    /// `mbarrier.expect_tx` and `mbarrier.complete_tx`.
    pub(crate) fn mbarrier_bytes(&mut self, block: &mut Block, issue: Issue<'_>, expects: bool) -> Flow {
        let Issue { i, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        for thread in issue.threads() {
            let lane = thread.lane;
            let bytes = i64::from(self.source(block, issue, 1)[lane] as u32);
            let Some((rank, at)) = self.mbarrier_of(block, issue, thread) else { continue };
            self.at_rank(block, rank, |machine, block| {
                machine.expect_bytes(block, thread, at, if expects { bytes } else { -bytes });
                if !expects {
                    machine.turn_phase(block, at);
                }
            });
        }
        Flow::Next
    }

    pub(crate) fn mbarrier_wait(&mut self, block: &mut Block, issue: Issue<'_>, wait: Wait) -> Flow {
        let Issue { i, w, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let addresses = self.addresses(block, issue, 0, 0);
        let (mut over, mut by_barrier) = ([0; 32], BTreeMap::new());
        for thread in issue.threads() {
            let lane = thread.lane;
            let asked = self.source(block, issue, 1)[lane];
            let Some(at) = self.mbarrier_at(block, issue, thread) else { continue };
            let Some(state) = block.mbarriers.get(at) else { continue };
            let done = if wait.parity { state.phase & 1 != asked & 1 } else { state.phase != asked >> 32 };
            over[lane] = u64::from(done);
            if done {
                *by_barrier.entry(at).or_insert(0_u32) |= 1 << lane;
            }
            if wait.parity && asked > 1 {
                let message = || format!("waits for parity {asked}; expected 0 or 1");
                self.report(FindingKind::Operand, block, thread, Some(addresses[lane]), message);
            }
        }
        self.define(block, issue, &over);
        for (at, mask) in &by_barrier {
            let Block { mbarriers, warps, .. } = block;
            let Some(state) = mbarriers.get(*at) else { continue };
            let remote = state.completed_remote.as_ref().filter(|_| wait.reaches_cluster);
            let warp = &mut warps[w];
            for completed in state.completed.iter().chain(remote) {
                if wait.acquires {
                    warp.clock.acquire(*mask, warp.live, completed);
                } else {
                    lanes(*mask).for_each(|lane| warp.clock.observe_relaxed(lane, Some(completed), None));
                }
            }
        }
        if by_barrier.is_empty() {
            let version = block.version;
            let warp = &mut block.warps[w];
            warp.state = State::Polling { version, times: warp.polls };
            return Flow::Yield;
        }
        block.warps[w].polls = 0;
        Flow::Next
    }

    pub(crate) fn mbarrier_pending(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let states = self.source(block, issue, 0).map(|state| state & 0xFFFF_FFFF);
        self.define(block, issue, &states);
        Flow::Next
    }

    /// The mbarrier on which an asynchronous operation completes; its initialization must be visible to the proxy.
    pub(crate) fn mbarrier_of_copy(&mut self, block: &mut Block, thread: Thread, address: u64) -> Option<usize> {
        let (_, at) = self.mbarrier(block, thread, address, Some(Space::Shared))?;
        if self.options.init_fence && block.mbarriers.get(at).is_some_and(|state| !state.visible) {
            let message = || {
                "completes on an mbarrier whose initialization no fence has made visible; use fence.mbarrier_init"
                    .to_string()
            };
            self.report(FindingKind::Proxy, block, thread, Some(address), message);
        }
        Some(at)
    }
}

/// The space that an opcode names for its mbarrier; without one the address is generic.
fn space_of_opcode(issue: Issue<'_>) -> Option<Space> {
    let named = |what| issue.i.opcode.contains(what);
    named(".shared").then_some(if named("::cluster") { Space::Cluster } else { Space::Shared })
}
