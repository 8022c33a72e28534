//! The 16 barriers of a block, and what is said when nobody can go on.
//!
//! A barrier counts threads, a warp at a time. Without a count it expects all threads of the block that have not ended,
//! and all of them at one instruction: warps that meet at two are out of step, even where their numbers add up.

use crate::sim::{
    FindingKind,
    isa::{
        instruction::Instruction,
        operation::{self, BarrierKind},
    },
    state::{
        barrier::Barrier,
        block::Block,
        clocks::lanes,
        machine::{Flow, Machine, first},
        warp::State,
    },
};

impl Machine<'_> {
    pub(crate) fn barrier(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        barrier: operation::Barrier,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let reduces = !matches!(barrier.kind, BarrierKind::Sync | BarrierKind::Arrive);
        let counts = i.sources.len() - usize::from(reduces);
        let lane = first(mask);
        let id = self.lane_value(block, w, i.sources[0], lane) as usize;
        let expected = (counts > 1).then(|| self.lane_value(block, w, i.sources[1], lane) as u32);
        let live = block.warps[w].live;
        let fail = |machine: &mut Self, block: &Block, kind, message: String| {
            machine.report(kind, block, w, lane, pc, None, || message);
            machine.fatal = true;
            Flow::Yield
        };
        if id >= 16 {
            return fail(self, block, FindingKind::Operand, format!("names barrier {id}; a block has 16"));
        }
        if let Some(bad) = expected.filter(|count| *count == 0 || count % 32 != 0) {
            return fail(
                self,
                block,
                FindingKind::Operand,
                format!("expects {bad} threads, which is no multiple of 32"),
            );
        }
        if mask != live {
            let away = live & !mask;
            let message = format!("is executed while lanes {away:#010x} of the warp are elsewhere");
            return fail(self, block, FindingKind::Divergence, message);
        }
        let state = &mut block.barriers[id];
        if state.arrived > 0 && state.expected != expected {
            let (before, now) = (state.expected, expected);
            let message = format!("expects {now:?} threads at barrier {id}, where others expect {before:?}");
            return fail(self, block, FindingKind::Barrier, message);
        }
        if state.arrived == 0 {
            state.place = pc;
        }
        let place = state.place;
        state.expected = expected;
        state.arrived += 32;
        if expected.is_none() && place != pc {
            let other = self.entry.place(place);
            let message =
                || format!("meets threads that wait at {other}; all threads of a block meet at one instruction");
            self.report(FindingKind::Barrier, block, w, lane, pc, None, message);
        }
        if reduces {
            let flags = *self.value(block, w, i.sources[counts]);
            let held = lanes(mask).filter(|lane| (flags[*lane] != 0) != i.modifiers.negated).count() as u32;
            let state = &mut block.barriers[id];
            state.held += held;
            state.all_held &= held == mask.count_ones();
        }
        let warp = &mut block.warps[w];
        let known = warp.clock.publish(mask, live);
        block.barriers[id].joined.join(&known);
        if barrier.kind != BarrierKind::Arrive {
            let result = reduces.then(|| i.destinations[0]);
            warp.state = State::Barrier { id, result };
            warp.reduction = barrier.kind;
        }
        self.check_barriers(block);
        if let Some(count) = expected.filter(|count| block.barriers[id].arrived > *count) {
            let arrived = block.barriers[id].arrived;
            return fail(
                self,
                block,
                FindingKind::Barrier,
                format!("is arrival {arrived} at barrier {id}, which expects {count} threads"),
            );
        }
        if barrier.kind == BarrierKind::Arrive { Flow::Next } else { Flow::Yield }
    }

    /// Opens the barriers at which all have arrived.
    pub(crate) fn check_barriers(&mut self, block: &mut Block) {
        let there = 32 * block.warps.iter().filter(|warp| warp.live != 0).count() as u32;
        for id in 0..16 {
            let state = &block.barriers[id];
            let wanted = state.expected.unwrap_or(there);
            // Without a count, warps that have ended are not waited for.
            let enough = if state.expected.is_some() { state.arrived == wanted } else { state.arrived >= wanted };
            if state.arrived == 0 || !enough {
                continue;
            }
            self.metrics.barriers += 1;
            let fresh = state.fresh.clone();
            let opened = std::mem::replace(
                &mut block.barriers[id],
                Barrier { arrived: 0, expected: None, place: 0, joined: fresh.clone(), held: 0, all_held: true, fresh },
            );
            for w in 0..block.warps.len() {
                let warp = &mut block.warps[w];
                let State::Barrier { id: at, result } = warp.state else { continue };
                if at != id {
                    continue;
                }
                warp.state = State::Ready;
                let (live, kind) = (warp.live, warp.reduction);
                warp.clock.acquire(live, live, &opened.joined);
                // All lanes of a warp were there.
                warp.clock.sync(live, live);
                if let Some(slot) = result {
                    let value = match kind {
                        BarrierKind::Count => u64::from(opened.held),
                        BarrierKind::And => u64::from(opened.all_held),
                        _ => u64::from(opened.held > 0),
                    };
                    self.set(block, w, slot, live, &[value; 32]);
                }
            }
        }
    }

    /// Nobody of a block can go on: says who waits where, and the state of every barrier.
    pub(crate) fn deadlock(&mut self, block: &mut Block) {
        self.fatal = true;
        let mut said = Vec::new();
        for (w, warp) in block.warps.iter().enumerate() {
            let (at, place) = (&self.entry.code[warp.last], self.entry.place(warp.last));
            match warp.state {
                State::Barrier { id, .. } => said.push(format!("warp {w} waits at barrier {id} ({place})")),
                State::Polling { .. } => said.push(format!("warp {w} waits at `{}` ({place})", at.opcode)),
                State::Ready | State::Done => {}
            }
        }
        for (id, state) in block.barriers.iter().enumerate().filter(|(_, state)| state.arrived > 0) {
            let expected = state.expected.map_or("all".to_string(), |count| count.to_string());
            said.push(format!("barrier {id}: {} of {expected} threads have arrived", state.arrived));
        }
        said.extend(block.mbarriers.describe());
        let stuck = block.warps.iter().position(|warp| warp.state != State::Done).unwrap_or(0);
        let pc = block.warps[stuck].last;
        let lane = first(block.warps[stuck].live);
        let message = || format!("waits for ever: {}", said.join("; "));
        self.report(FindingKind::Deadlock, block, stuck, lane, pc, None, message);
    }
}
