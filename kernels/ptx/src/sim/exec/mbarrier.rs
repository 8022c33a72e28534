//! mbarriers: phases that end when all expected arrivals and all expected bytes are there.
//!
//! ```text
//! pending arrivals ──arrive──▶ 0 ┐
//!                                ├─▶ phase + 1, pending = expected
//! bytes expected − arrived ────▶ 0 ┘
//! ```
//!
//! A wait for the parity p is over when the phase that runs has the other parity. An arrival publishes what its thread
//! knows; a wait that succeeds learns what all arrivals and all copies of the phase have published. The object itself
//! is opaque: its state lives here, and ordinary loads and stores of its eight bytes are findings.

use crate::sim::{
    FindingKind,
    isa::{
        asynchronous::{Arrive, Wait},
        instruction::Instruction,
        space::{SHARED_BASE, Space},
    },
    state::{
        block::Block,
        clocks::{View, lanes},
        machine::{Flow, Machine},
        mbarrier::Mbarrier,
        memory::Spot,
        warp::State,
    },
};
use std::collections::BTreeMap;

/// The most bytes that a phase may expect.
const MOST_BYTES: i64 = (1 << 20) - 1;

impl Machine<'_> {
    /// The mbarrier at a lane's address, which must be initialized and known to be.
    fn mbarrier(
        &mut self,
        block: &mut Block,
        w: usize,
        lane: usize,
        pc: usize,
        address: u64,
        space: Option<Space>,
    ) -> Option<usize> {
        let Some(Spot::Shared(at)) = self.locate(block, w, lane, pc, space, address, 8, 8) else {
            if space.is_none() {
                self.report(FindingKind::Operand, block, w, lane, pc, Some(address), || {
                    "wants an mbarrier in shared memory".to_string()
                });
            }
            return None;
        };
        let Some(state) = block.mbarriers.all.get(&at) else {
            let message = || "finds no initialized mbarrier".to_string();
            self.report(FindingKind::Barrier, block, w, lane, pc, Some(address), message);
            return None;
        };
        let init = state.init;
        if !block.warps[w].clock.knows(&init, lane) {
            let who = self.who(&init, block);
            let message = || format!("uses an mbarrier that {who} initializes, and nothing orders the two");
            self.report(FindingKind::Race, block, w, lane, pc, Some(address), message);
        }
        Some(at)
    }

    /// The address of an mbarrier; generic where the opcode names no space, else within shared memory.
    fn mbarrier_space(i: &Instruction) -> Option<Space> {
        i.opcode.contains(".shared").then_some(Space::Shared)
    }

    pub(crate) fn mbarrier_init(&mut self, block: &mut Block, w: usize, i: &Instruction, mask: u32, pc: usize) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let addresses = self.addresses(block, w, i, 0, 0);
        for lane in lanes(mask) {
            let count = self.lane_value(block, w, i.sources[1], lane) as u32;
            let address = addresses[lane];
            let Some(Spot::Shared(at)) = self.locate(block, w, lane, pc, Self::mbarrier_space(i), address, 8, 8) else {
                continue;
            };
            if count == 0 || count >= 1 << 20 {
                let message = || format!("expects {count} arrivals; an mbarrier takes 1 to 1048575");
                self.report(FindingKind::Operand, block, w, lane, pc, Some(address), message);
            }
            if block.mbarriers.overlaps(at, 8) {
                let message = || "initializes an mbarrier that is still in use".to_string();
                self.report(FindingKind::Barrier, block, w, lane, pc, Some(address), message);
                block.mbarriers.all.remove(&at);
            }
            let init = self.epoch(block, w, lane as u8, pc, 0);
            self.write(block, w, lane, pc, Spot::Shared(at), &[0; 8], init);
            let fresh = block.warps[w].clock.nothing();
            let state = Mbarrier {
                expected: count,
                pending: i64::from(count),
                bytes: 0,
                phase: 0,
                joined: fresh.clone(),
                completed: fresh.clone(),
                init,
                visible: false,
                fresh,
            };
            block.mbarriers.all.insert(at, state);
        }
        Flow::Next
    }

    pub(crate) fn mbarrier_invalidate(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let addresses = self.addresses(block, w, i, 0, 0);
        for lane in lanes(mask) {
            let Some(at) = self.mbarrier(block, w, lane, pc, addresses[lane], Self::mbarrier_space(i)) else {
                continue;
            };
            block.mbarriers.all.remove(&at);
            let epoch = self.epoch(block, w, lane as u8, pc, 0);
            self.write(block, w, lane, pc, Spot::Shared(at), &[0xFF; 8], epoch);
            block.shared.written[at..at + 8].fill(0);
        }
        Flow::Next
    }

    pub(crate) fn mbarrier_arrive(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        arrive: Arrive,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let addresses = self.addresses(block, w, i, 0, 0);
        let warp = &mut block.warps[w];
        let known = arrive.releases.then(|| warp.clock.publish(mask, warp.live));
        let mut states = [0; 32];
        for lane in lanes(mask) {
            let operand = i.sources.get(1).map_or(1, |slot| self.lane_value(block, w, *slot, lane) as u32);
            let Some(at) = self.mbarrier(block, w, lane, pc, addresses[lane], Self::mbarrier_space(i)) else {
                continue;
            };
            let count = if arrive.expects { 1 } else { operand };
            if let Some(state) = block.mbarriers.get(at) {
                states[lane] = state.phase << 32 | state.pending as u64 & 0xFFFF_FFFF;
                if let Some(known) = &known {
                    state.joined.join(known);
                }
            }
            if arrive.expects {
                self.expect_bytes(block, w, lane, pc, at, i64::from(operand));
            }
            if let (true, Some(state)) = (arrive.drops, block.mbarriers.get(at)) {
                state.expected -= count.min(state.expected);
            }
            self.count_arrivals(block, w, lane, pc, at, i64::from(count));
        }
        if let Some(slot) = i.destinations.first() {
            self.set(block, w, *slot, mask, &states);
        }
        Flow::Next
    }

    /// So many arrivals at the mbarrier at `at`.
    pub(crate) fn count_arrivals(
        &mut self,
        block: &mut Block,
        w: usize,
        lane: usize,
        pc: usize,
        at: usize,
        count: i64,
    ) {
        let Some(state) = block.mbarriers.get(at) else { return };
        state.pending -= count;
        if state.pending < 0 {
            let (expected, phase) = (state.expected, state.phase);
            let message =
                || format!("is an arrival more than the {expected} that phase {phase} of the mbarrier expects");
            self.report(FindingKind::Barrier, block, w, lane, pc, Some(SHARED_BASE + at as u64), message);
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

    fn expect_bytes(&mut self, block: &mut Block, w: usize, lane: usize, pc: usize, at: usize, bytes: i64) {
        let Some(state) = block.mbarriers.get(at) else { return };
        state.bytes += bytes;
        if state.bytes.abs() > MOST_BYTES {
            let bytes = state.bytes;
            let message = || format!("makes the mbarrier wait for {bytes} bytes; it counts to {MOST_BYTES}");
            self.report(FindingKind::Barrier, block, w, lane, pc, Some(SHARED_BASE + at as u64), message);
        }
    }

    /// Bytes of a copy have arrived; what the copy publishes is `known`.
    pub(crate) fn complete_bytes(&mut self, block: &mut Block, at: usize, bytes: i64, known: &View) {
        if let Some(state) = block.mbarriers.get(at) {
            state.bytes -= bytes;
            state.joined.join(known);
            self.turn_phase(block, at);
        }
    }

    /// `mbarrier.expect_tx` and `mbarrier.complete_tx`.
    pub(crate) fn mbarrier_bytes(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        expects: bool,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let addresses = self.addresses(block, w, i, 0, 0);
        for lane in lanes(mask) {
            let bytes = i64::from(self.lane_value(block, w, i.sources[1], lane) as u32);
            let Some(at) = self.mbarrier(block, w, lane, pc, addresses[lane], Self::mbarrier_space(i)) else {
                continue;
            };
            self.expect_bytes(block, w, lane, pc, at, if expects { bytes } else { -bytes });
            if !expects {
                self.turn_phase(block, at);
            }
        }
        Flow::Next
    }

    pub(crate) fn mbarrier_wait(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        wait: Wait,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let addresses = self.addresses(block, w, i, 0, 0);
        let (mut over, mut by_barrier) = ([0; 32], BTreeMap::new());
        for lane in lanes(mask) {
            let asked = self.lane_value(block, w, i.sources[1], lane);
            let Some(at) = self.mbarrier(block, w, lane, pc, addresses[lane], Self::mbarrier_space(i)) else {
                continue;
            };
            let Some(state) = block.mbarriers.get(at) else { continue };
            let done = if wait.parity { state.phase & 1 != asked & 1 } else { state.phase != asked >> 32 };
            over[lane] = u64::from(done);
            if done {
                *by_barrier.entry(at).or_insert(0_u32) |= 1 << lane;
            }
            if wait.parity && asked > 1 {
                let message = || format!("asks for the parity {asked}; it is 0 or 1");
                self.report(FindingKind::Operand, block, w, lane, pc, Some(addresses[lane]), message);
            }
        }
        self.set(block, w, i.destinations[0], mask, &over);
        for (at, lanes) in &by_barrier {
            let Block { mbarriers, warps, .. } = block;
            let (Some(state), true) = (mbarriers.get(*at), wait.acquires) else { continue };
            let warp = &mut warps[w];
            warp.clock.acquire(*lanes, warp.live, &state.completed);
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

    pub(crate) fn mbarrier_pending(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let states = self.value(block, w, i.sources[0]).map(|state| state & 0xFFFF_FFFF);
        self.set(block, w, i.destinations[0], mask, &states);
        Flow::Next
    }

    /// The mbarrier that an asynchronous operation of a lane shall complete on: it must be visible to those.
    pub(crate) fn mbarrier_of_copy(
        &mut self,
        block: &mut Block,
        w: usize,
        lane: usize,
        pc: usize,
        address: u64,
    ) -> Option<usize> {
        let at = self.mbarrier(block, w, lane, pc, address, Some(Space::Shared))?;
        if self.options.init_fence && block.mbarriers.get(at).is_some_and(|state| !state.visible) {
            let message = || {
                "completes on an mbarrier whose initialization no fence has made visible to asynchronous operations"
                    .to_string()
            };
            self.report(FindingKind::Proxy, block, w, lane, pc, Some(address), message);
        }
        Some(at)
    }
}
