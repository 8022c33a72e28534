//! `cp.async`: copies from global to shared memory that a thread starts and later waits for.
//!
//! Each thread commits its copies in groups and waits until at most so many groups are pending. The bytes of a copy
//! arrive when its thread waits for it (or earlier, as `Completion` says); until then its destination holds ones and
//! may not be accessed. A copy is an access of a timeline of its own: a thread that is not ordered after it, by a wait
//! of the copy's thread and a barrier, races with it.

use crate::sim::{
    FindingKind,
    isa::{CONSTANT, Space},
    schedule::Completion,
    state::{Arrival, AsyncCopy, Block, COPY, Copies, Epoch, Flow, Issue, Machine, Spot, Thread, first, lanes},
};

impl Machine<'_> {
    /// The timeline of the copies of warp `w`.
    fn copy_timeline(&self, block: &Block, w: usize) -> u32 {
        block.warps[w].clock.timeline + self.warps as u32
    }

    pub(crate) fn copy_async(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, w, mask, pc } = issue;
        self.check_sources(block, issue, &i.sources);
        let (to, from) = (self.addresses(block, issue, 0, 0), self.addresses(block, issue, 1, 1));
        let sizes = *self.source(block, issue, 2);
        let reads = match i.sources.get(3) {
            None => sizes,
            // A predicate says to ignore the source, an integer how many of its bytes exist.
            Some(slot) if slot & CONSTANT == 0 && self.entry.registers.masks[*slot as usize] == 1 => {
                let ignored = *self.value(block, w, *slot);
                std::array::from_fn(|lane| if ignored[lane] != 0 { 0 } else { sizes[lane] })
            }
            Some(slot) => *self.value(block, w, *slot),
        };
        let timeline = self.copy_timeline(block, w);
        block.warps[w].copies.sequence += 1;
        let sequence = block.warps[w].copies.sequence;
        let (mut sources, mut targets) = (Vec::with_capacity(32), Vec::with_capacity(32));
        let whole = sizes[first(mask)] as usize;
        for lane in lanes(mask) {
            let (bytes, read) = (sizes[lane] as usize, reads[lane] as usize & 0xFFFF_FFFF);
            let allowed: &[usize] = if i.opcode.contains(".cg") { &[16] } else { &[4, 8, 16] };
            if !allowed.contains(&bytes) || read > bytes {
                let message = || {
                    format!(
                        "copies {read} of {bytes} bytes; expected one of {allowed:?}, and no more read than written"
                    )
                };
                self.report(FindingKind::Operand, block, issue.thread(lane), None, message);
                continue;
            }
            let Some(Spot::Shared(at)) =
                self.locate(block, issue.thread(lane), Some(Space::Shared), to[lane], bytes, bytes)
            else {
                continue;
            };
            let spot = if read == 0 {
                None
            } else {
                self.locate(block, issue.thread(lane), Some(Space::Global), from[lane], read, bytes)
            };
            let epoch = Epoch { timeline, clock: sequence, pc: pc as u32, lane: lane as u8, flags: COPY };
            if let Some(spot) = spot {
                self.read(block, issue.thread(lane), spot, read, epoch, false);
                sources.push((lane, spot));
            }
            self.write(block, issue.thread(lane), Spot::Shared(at), &[0xFF; 16][..bytes], epoch);
            block.pending[at / 4..(at + bytes) / 4].fill(pc as u32 + 1);
            targets.push((lane, Spot::Shared(at)));
            let copy = AsyncCopy { lane: lane as u8, group: None, sequence, from: spot, to: at, bytes, read };
            block.warps[w].copies.all.push(copy);
        }
        self.measure(pc, &sources, &from, whole, false);
        self.measure(pc, &targets, &to, whole, true);
        if self.options.completion == Completion::Earliest {
            self.bring(block, w, |_, _| true);
        }
        Flow::Next
    }

    /// Completes the copies that `wanted` selects.
    fn bring(&mut self, block: &mut Block, w: usize, wanted: impl Fn(&Copies, &AsyncCopy) -> bool) {
        let mut copies = std::mem::take(&mut block.warps[w].copies.all);
        copies.retain(|copy| {
            if !wanted(&block.warps[w].copies, copy) {
                return true;
            }
            let mut bytes = [0; 16];
            if let Some(Spot::Global(region, at)) = copy.from {
                bytes[..copy.read].copy_from_slice(&self.memory.region(region).bytes[at..at + copy.read]);
            }
            block.shared.bytes[copy.to..copy.to + copy.bytes].copy_from_slice(&bytes[..copy.bytes]);
            block.pending[copy.to / 4..(copy.to + copy.bytes) / 4].fill(0);
            false
        });
        block.warps[w].copies.all = copies;
    }

    pub(crate) fn copy_commit(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { w, mask, .. } = issue;
        let copies = &mut block.warps[w].copies;
        for copy in copies.all.iter_mut().filter(|copy| copy.group.is_none() && mask >> copy.lane & 1 == 1) {
            copy.group = Some(copies.ends[usize::from(copy.lane)].len() as u32);
        }
        lanes(mask).for_each(|lane| copies.ends[lane].push(copies.sequence));
        Flow::Next
    }

    pub(crate) fn copy_wait(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, w, mask, .. } = issue;
        let left = i.sources.first().map(|slot| self.lane_value(block, w, *slot, first(mask)) as u32);
        self.bring(block, w, |copies, copy| {
            let committed = copies.committed(usize::from(copy.lane));
            let over = match (left, copy.group) {
                (None, _) => true,
                (Some(left), Some(group)) => group + left < committed,
                (Some(_), None) => false,
            };
            mask >> copy.lane & 1 == 1 && over
        });
        self.learn_copies(block, w, mask, left);
        Flow::Next
    }

    /// Orders the copies of the lanes of `mask` before their next accesses, except those of the last `left` groups.
    fn learn_copies(&self, block: &mut Block, w: usize, mask: u32, left: Option<u32>) {
        let warp = &mut block.warps[w];
        let copies = &warp.copies;
        // With early completion a copy that the wait does not cover may be complete, so groups decide.
        let over = std::array::from_fn(|lane| match left {
            None => copies.sequence,
            Some(left) => copies.over(lane, left),
        });
        warp.clock.wait_copies(mask, &over);
    }

    pub(crate) fn copy_arrive(&mut self, block: &mut Block, issue: Issue<'_>, expected: bool) -> Flow {
        let Issue { i, w, mask, pc } = issue;
        self.check_sources(block, issue, &i.sources);
        let addresses = self.addresses(block, issue, 0, 0);
        let timeline = self.copy_timeline(block, w);
        for lane in lanes(mask) {
            let space = i.opcode.contains(".shared").then_some(Space::Shared);
            let Some(Spot::Shared(at)) = self.locate(block, issue.thread(lane), space, addresses[lane], 8, 8) else {
                continue;
            };
            if block.mbarriers.get(at).is_none() {
                let message = || "uses an mbarrier that is not initialized".to_string();
                self.report(FindingKind::Barrier, block, issue.thread(lane), Some(addresses[lane]), message);
                continue;
            }
            if !expected {
                self.count_arrivals(block, issue.thread(lane), at, -1);
            }
            let warp = &mut block.warps[w];
            let mut known = warp.clock.nothing();
            let sequence = warp.copies.sequence;
            known.learn(Epoch { timeline, clock: sequence, pc: pc as u32, lane: lane as u8, flags: COPY });
            warp.copies.arrivals.push(Arrival { lane: lane as u8, at, pc, sequence, known });
        }
        if self.options.completion == Completion::Earliest {
            while self.arrive_copies(block, w) {}
        }
        Flow::Next
    }

    /// Executes the oldest arrival of a warp, after the copies before it.
    pub(crate) fn arrive_copies(&mut self, block: &mut Block, w: usize) -> bool {
        if block.warps[w].copies.arrivals.is_empty() {
            return false;
        }
        let arrival = block.warps[w].copies.arrivals.remove(0);
        self.bring(block, w, |_, copy| copy.lane == arrival.lane && copy.sequence <= arrival.sequence);
        self.complete_bytes(block, arrival.at, 0, &arrival.known);
        let thread = Thread { w, lane: usize::from(arrival.lane), pc: arrival.pc };
        self.count_arrivals(block, thread, arrival.at, 1);
        true
    }

    /// Completes the copies of the warp's oldest group.
    pub(crate) fn bring_oldest(&mut self, block: &mut Block, w: usize) {
        if let Some(group) = block.warps[w].copies.all.iter().filter_map(|copy| copy.group).min() {
            self.bring(block, w, |_, copy| copy.group == Some(group));
        }
    }

    /// Completes the copies of lanes that end.
    pub(crate) fn end_copies(&mut self, block: &mut Block, w: usize, mask: u32) {
        if !block.warps[w].copies.all.is_empty() {
            self.bring(block, w, |_, copy| mask >> copy.lane & 1 == 1);
        }
    }
}
