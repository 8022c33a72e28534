//! The 16 barriers of a block, and reports of deadlocks.
//!
//! A barrier counts threads, a warp at a time. Without a count it expects all threads of the block that have not ended,
//! and all of them at one instruction: warps at two instructions are out of step even where their counts add up.

use crate::sim::{
    FindingKind,
    isa::BarrierKind,
    state::{Block, Flow, Issue, Machine, State, Thread, View, first, lanes},
};

/// Why a warp may not arrive at barrier `id`, which it expects `expected` threads at, without the live lanes `away`.
fn refused(block: &Block, id: usize, expected: Option<u32>, away: u32) -> Option<(FindingKind, String)> {
    let Some(state) = block.barriers.get(id) else {
        return Some((FindingKind::Operand, format!("names barrier {id}; expected 0 to 15")));
    };
    if let Some(bad) = expected.filter(|count| *count == 0 || count % 32 != 0) {
        return Some((FindingKind::Operand, format!("counts {bad} threads; expected a multiple of 32 above 0")));
    }
    if away != 0 {
        let message = format!("is executed without lanes {away:#010x}; expected all live lanes of the warp");
        return Some((FindingKind::Divergence, message));
    }
    (state.arrived > 0 && state.expected != expected).then(|| {
        let [now, before] = [expected, state.expected].map(threads);
        let message = format!("counts {now} threads at barrier {id}; expected {before}, as at earlier arrivals");
        (FindingKind::Barrier, message)
    })
}

impl Machine<'_> {
    pub(crate) fn barrier(&mut self, block: &mut Block, issue: Issue<'_>, kind: BarrierKind) -> Flow {
        let Issue { i, w, mask, pc } = issue;
        self.check_sources(block, issue, &i.sources);
        let reduces = kind.reduces();
        let counts = i.sources.len() - usize::from(reduces);
        let lane = first(mask);
        let id = self.source(block, issue, 0)[lane] as usize;
        let expected = (counts > 1).then(|| self.source(block, issue, 1)[lane] as u32);
        let live = block.warps[w].live;
        let fail = |machine: &mut Self, block: &Block, finding, message: String| {
            machine.report(finding, block, issue.thread(lane), None, || message);
            machine.fatal = true;
            Flow::Yield
        };
        if let Some((finding, message)) = refused(block, id, expected, live & !mask) {
            return fail(self, block, finding, message);
        }
        let state = &mut block.barriers[id];
        if state.arrived == 0 {
            state.place = pc;
        }
        let place = state.place;
        state.expected = expected;
        state.arrived += 32;
        if expected.is_none() && place != pc {
            let other = self.entry.place(place);
            let message = || {
                format!("waits at barrier {id} while others wait at {other}; expected one instruction for all threads")
            };
            self.report(FindingKind::Barrier, block, issue.thread(lane), None, message);
        }
        if reduces {
            let flags = *self.source(block, issue, counts);
            let held = lanes(mask).filter(|lane| (flags[*lane] != 0) != i.modifiers.negated).count() as u32;
            let state = &mut block.barriers[id];
            state.held += held;
            state.any_fails |= held != mask.count_ones();
        }
        let warp = &mut block.warps[w];
        let known = warp.clock.publish(mask, live);
        View::gather(&mut block.barriers[id].joined, &known);
        if kind != BarrierKind::Arrive {
            let result = reduces.then(|| i.destinations[0]);
            warp.state = State::Barrier { id, result };
            warp.reduction = kind;
        }
        self.check_barriers(block);
        if let Some(count) = expected.filter(|count| block.barriers[id].arrived > *count) {
            let arrived = block.barriers[id].arrived;
            let message = format!("brings barrier {id} to {arrived} threads; expected {count}");
            return fail(self, block, FindingKind::Barrier, message);
        }
        if kind == BarrierKind::Arrive { Flow::Next } else { Flow::Yield }
    }

    /// Completes the barriers at which all threads have arrived.
    pub(crate) fn check_barriers(&mut self, block: &mut Block) {
        let there = 32 * block.warps.iter().filter(|warp| warp.live != 0).count() as u32;
        for id in 0..16 {
            let state = &block.barriers[id];
            let wanted = state.expected.unwrap_or(there);
            // Without a count, finished warps are not waited for.
            let enough = if state.expected.is_some() { state.arrived == wanted } else { state.arrived >= wanted };
            if state.arrived == 0 || !enough {
                continue;
            }
            self.metrics.barriers += 1;
            let opened = std::mem::take(&mut block.barriers[id]);
            for w in 0..block.warps.len() {
                let warp = &mut block.warps[w];
                let State::Barrier { id: at, result } = warp.state else { continue };
                if at != id {
                    continue;
                }
                warp.state = State::Ready;
                let (live, kind) = (warp.live, warp.reduction);
                opened.joined.iter().for_each(|joined| warp.clock.acquire(live, live, joined));
                // All lanes of the warp have arrived.
                warp.clock.sync(live, live);
                if let Some(slot) = result {
                    let value = match kind {
                        BarrierKind::Count => u64::from(opened.held),
                        BarrierKind::And => u64::from(!opened.any_fails),
                        _ => u64::from(opened.held > 0),
                    };
                    self.set(block, w, slot, live, &[value; 32]);
                }
            }
        }
    }

    /// Reports a deadlock: where each warp waits, and the state of every barrier.
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
            let expected = threads(state.expected);
            said.push(format!("barrier {id}: {} of {expected} threads have arrived", state.arrived));
        }
        said.extend(block.mbarriers.describe());
        let stuck = block.warps.iter().position(|warp| warp.state != State::Done).unwrap_or(0);
        let pc = block.warps[stuck].last;
        let lane = first(block.warps[stuck].live);
        let message = || format!("waits forever: {}", said.join("; "));
        self.report(FindingKind::Deadlock, block, Thread { w: stuck, lane, pc }, None, message);
    }
}

/// A number of threads in words.
fn threads(count: Option<u32>) -> String {
    count.map_or("all".to_string(), |count| count.to_string())
}
