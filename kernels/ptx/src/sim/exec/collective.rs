//! What the lanes of a warp do together: shuffles, votes, reductions, warp barriers.

use crate::sim::{
    FindingKind,
    isa::{
        fetch::{Fetch, fetched},
        instruction::{CONSTANT, Instruction},
        operation::{Shuffle, Vote},
        types::Type,
    },
    state::{
        block::Block,
        clocks::lanes,
        machine::{Flow, Machine, first},
    },
};

impl Machine<'_> {
    /// Checks that all lanes that `members` names are here, and orders them. Gives back the members that run.
    fn gather(&mut self, block: &mut Block, w: usize, members: u32, mask: u32, pc: usize, syncs: bool) -> u32 {
        let warp = &block.warps[w];
        let (absent, strangers) = (members & warp.live & !mask, mask & !members);
        if absent != 0 {
            let message = || format!("names lanes {absent:#010x} that are elsewhere");
            self.report(FindingKind::Divergence, block, w, first(mask), pc, None, message);
        }
        if strangers != 0 {
            let message =
                || format!("is executed by lanes {strangers:#010x}, which its mask {members:#010x} leaves out");
            self.report(FindingKind::Divergence, block, w, first(strangers), pc, None, message);
        }
        if syncs {
            let warp = &mut block.warps[w];
            warp.clock.sync(mask & members, warp.live);
        }
        mask & members
    }

    /// The member mask of each lane; they must agree among those that name each other, so the first one's is taken.
    fn members(&mut self, block: &Block, w: usize, slot: u32, mask: u32) -> u32 {
        self.lane_value(block, w, slot, first(mask)) as u32
    }

    pub(crate) fn warp_barrier(&mut self, block: &mut Block, w: usize, i: &Instruction, mask: u32, pc: usize) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let members = self.members(block, w, i.sources[0], mask);
        self.gather(block, w, members, mask, pc, true);
        Flow::Next
    }

    pub(crate) fn shuffle(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        mode: Shuffle,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources[1..], mask, pc);
        let [a, b, c, m] = [0, 1, 2, 3].map(|k| *self.value(block, w, i.sources[k]));
        let members = m[first(mask)] as u32;
        let mask = self.gather(block, w, members, mask, pc, true);
        let known = if i.sources[0] & CONSTANT == 0 { block.warps[w].defined[i.sources[0] as usize] } else { u32::MAX };
        let (mut values, mut valid, mut missing, mut absent) = ([0; 32], [0; 32], 0_u32, 0_u32);
        for lane in lanes(mask) {
            let (segment, clamp) = ((c[lane] >> 8 & 31) as i64, (c[lane] & 31) as i64);
            let (me, by) = (lane as i64, (b[lane] & 31) as i64);
            let (least, most) = (me & segment, (me & segment) | (clamp & !segment));
            let (from, inside) = match mode {
                Shuffle::Up => (me - by, me - by >= most),
                Shuffle::Down => (me + by, me + by <= most),
                Shuffle::Butterfly => (me ^ by, me ^ by <= most),
                Shuffle::Index => (least | (by & !segment), least | (by & !segment) <= most),
            };
            let from = if inside { from as usize } else { lane };
            absent |= u32::from(mask >> from & 1 == 0) << lane;
            missing |= u32::from(known >> from & 1 == 0) << lane;
            values[lane] = a[from];
            valid[lane] = u64::from(inside);
        }
        if absent != 0 {
            let message = || "reads a lane that is not here".to_string();
            self.report(FindingKind::Uninitialized, block, w, first(absent), pc, None, message);
        }
        self.set_known(block, w, i.destinations[0], mask, &values, missing);
        if let Some(predicate) = i.destinations.get(1) {
            self.set(block, w, *predicate, mask, &valid);
        }
        Flow::Next
    }

    pub(crate) fn vote(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        vote: Vote,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let members = self.members(block, w, i.sources[1], mask);
        let mask = self.gather(block, w, members, mask, pc, true);
        let flags = *self.value(block, w, i.sources[0]);
        let mut ballot = 0;
        for lane in lanes(mask) {
            ballot |= u32::from((flags[lane] != 0) != i.modifiers.negated) << lane;
        }
        let value = match vote {
            Vote::All => u64::from(ballot == mask),
            Vote::Any => u64::from(ballot != 0),
            Vote::Uniform => u64::from(ballot == mask || ballot == 0),
            Vote::Ballot => u64::from(ballot),
        };
        self.set(block, w, i.destinations[0], mask, &[value; 32]);
        Flow::Next
    }

    pub(crate) fn matching(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        all: bool,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let members = self.members(block, w, i.sources[1], mask);
        let mask = self.gather(block, w, members, mask, pc, true);
        let values = *self.value(block, w, i.sources[0]);
        let same: [u64; 32] = std::array::from_fn(|lane| {
            lanes(mask).filter(|other| values[*other] == values[lane]).map(|other| 1_u64 << other).sum()
        });
        if all {
            let agree = lanes(mask).all(|lane| same[lane] == u64::from(mask));
            self.set(block, w, i.destinations[0], mask, &[if agree { u64::from(mask) } else { 0 }; 32]);
            if let Some(predicate) = i.destinations.get(1) {
                self.set(block, w, *predicate, mask, &[u64::from(agree); 32]);
            }
        } else {
            self.set(block, w, i.destinations[0], mask, &same);
        }
        Flow::Next
    }

    pub(crate) fn reduce(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        fetch: Fetch,
        ty: Type,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let members = self.members(block, w, i.sources[1], mask);
        let mask = self.gather(block, w, members, mask, pc, true);
        let values = *self.value(block, w, i.sources[0]);
        let result = lanes(mask).map(|lane| values[lane] & 0xFFFF_FFFF).reduce(|a, b| fetched(fetch, ty, a, b, 0));
        self.set(block, w, i.destinations[0], mask, &[result.unwrap_or(0); 32]);
        Flow::Next
    }

    /// One lane of the members is chosen: the first.
    pub(crate) fn elect(&mut self, block: &mut Block, w: usize, i: &Instruction, mask: u32, pc: usize) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let members = self.members(block, w, i.sources[0], mask);
        let mask = self.gather(block, w, members, mask, pc, false);
        let leader = first(mask);
        self.set(block, w, i.destinations[0], mask, &[leader as u64; 32]);
        if let Some(predicate) = i.destinations.get(1) {
            self.set(block, w, *predicate, mask, &std::array::from_fn(|lane| u64::from(lane == leader)));
        }
        Flow::Next
    }
}
