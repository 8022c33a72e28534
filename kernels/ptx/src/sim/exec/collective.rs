//! Collective instructions of a warp: shuffles, votes, reductions, warp barriers. They exchange registers; the warp
//! barrier alone orders memory.

use crate::sim::{
    FindingKind,
    isa::{CONSTANT, Fetch, Shuffle, Type, Vote, fetched},
    state::{Block, Flow, Issue, Machine, first, lanes},
};

impl Machine<'_> {
    /// Checks that all lanes of the member mask in source `k` execute the instruction, and restricts it to them. Lanes
    /// that name each other must have the same mask, so that of the first lane is taken.
    fn gather<'i>(&mut self, block: &Block, issue: Issue<'i>, k: usize) -> Issue<'i> {
        let members = self.scalar(block, issue, k) as u32;
        let (absent, strangers) = (members & block.warps[issue.w].live & !issue.mask, issue.mask & !members);
        if absent != 0 {
            let message = || format!("names lanes {absent:#010x} that do not execute it");
            self.report(FindingKind::Divergence, block, issue.first(), None, message);
        }
        if strangers != 0 {
            let message =
                || format!("is executed by lanes {strangers:#010x} outside of its member mask {members:#010x}");
            self.report(FindingKind::Divergence, block, issue.thread(first(strangers)), None, message);
        }
        Issue { mask: issue.mask & members, ..issue }
    }

    /// Writes the second destination, where there is one.
    fn define_second(&self, block: &mut Block, issue: Issue<'_>, values: &[u64; 32]) {
        if let Some(slot) = issue.i.destinations.get(1) {
            self.set(block, issue.w, *slot, issue.mask, values);
        }
    }

    pub(crate) fn warp_barrier(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        self.check_sources(block, issue, &issue.i.sources);
        let issue = self.gather(block, issue, 0);
        let warp = &mut block.warps[issue.w];
        warp.clock.sync(issue.mask, warp.live);
        Flow::Next
    }

    pub(crate) fn shuffle(&mut self, block: &mut Block, issue: Issue<'_>, mode: Shuffle) -> Flow {
        self.check_sources(block, issue, &issue.i.sources[1..]);
        let [a, b, c] = [0, 1, 2].map(|k| *self.source(block, issue, k));
        let issue = self.gather(block, issue, 3);
        let Issue { i, w, mask, .. } = issue;
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
            let message = || "reads a lane that does not execute it".to_string();
            self.report(FindingKind::Uninitialized, block, issue.thread(first(absent)), None, message);
        }
        self.set_known(block, issue, i.destinations[0], &values, missing);
        self.define_second(block, issue, &valid);
        Flow::Next
    }

    pub(crate) fn vote(&mut self, block: &mut Block, issue: Issue<'_>, vote: Vote) -> Flow {
        self.check_sources(block, issue, &issue.i.sources);
        let issue = self.gather(block, issue, 1);
        let flags = self.source(block, issue, 0);
        let holds = |lane: &usize| (flags[*lane] != 0) != issue.i.modifiers.negated;
        let ballot: u32 = lanes(issue.mask).filter(holds).map(|lane| 1 << lane).sum();
        let value = match vote {
            Vote::All => u64::from(ballot == issue.mask),
            Vote::Any => u64::from(ballot != 0),
            Vote::Uniform => u64::from(ballot == issue.mask || ballot == 0),
            Vote::Ballot => u64::from(ballot),
        };
        self.define(block, issue, &[value; 32]);
        Flow::Next
    }

    pub(crate) fn matching(&mut self, block: &mut Block, issue: Issue<'_>, all: bool) -> Flow {
        self.check_sources(block, issue, &issue.i.sources);
        let issue = self.gather(block, issue, 1);
        let (mask, values) = (issue.mask, self.source(block, issue, 0));
        let same: [u64; 32] = std::array::from_fn(|lane| {
            lanes(mask).filter(|other| values[*other] == values[lane]).map(|other| 1_u64 << other).sum()
        });
        if all {
            let agree = lanes(mask).all(|lane| same[lane] == u64::from(mask));
            self.define(block, issue, &[if agree { u64::from(mask) } else { 0 }; 32]);
            self.define_second(block, issue, &[u64::from(agree); 32]);
        } else {
            self.define(block, issue, &same);
        }
        Flow::Next
    }

    pub(crate) fn reduce(&mut self, block: &mut Block, issue: Issue<'_>, fetch: Fetch, ty: Type) -> Flow {
        self.check_sources(block, issue, &issue.i.sources);
        let issue = self.gather(block, issue, 1);
        let values = self.source(block, issue, 0);
        let values = lanes(issue.mask).map(|lane| values[lane] & 0xFFFF_FFFF);
        let result = values.reduce(|a, b| fetched(fetch, ty, a, b, 0)).unwrap_or(0);
        self.define(block, issue, &[result; 32]);
        Flow::Next
    }

    /// Elects the first lane of the members.
    pub(crate) fn elect(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        self.check_sources(block, issue, &issue.i.sources);
        let issue = self.gather(block, issue, 0);
        let leader = first(issue.mask);
        self.define(block, issue, &[leader as u64; 32]);
        self.define_second(block, issue, &std::array::from_fn(|lane| u64::from(lane == leader)));
        Flow::Next
    }
}
