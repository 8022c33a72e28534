//! Happens-before: who knows of what.
//!
//! Time is counted per *agent*. The agents of a block of W warps are, in this order, its W warps, and for each warp its
//! `cp.async` copies, its bulk copies, and the `wgmma` of the warpgroup that it leads. An access is stamped with agent,
//! lane and the agent's clock. A [`Clock`] says of every agent up to which time its accesses are known; mostly that is
//! one number for all 32 lanes, and where it is not (one lane arrived at a barrier for itself), the lane stands in a
//! short list beside.
//!
//! What synchronises moves clocks: a release publishes what the releasing lanes know, an acquire joins it. Within a
//! warp, lanes know of each other only up to the last warp barrier or shuffle that had them both.
//!
//! [`Knowledge`] holds two clocks. `seen` is happens-before; `fenced` is the part of it that a `fence.proxy.async`
//! carried over to the asynchronous proxy.

use super::{done::Done, scope::MemoryFence};
use std::collections::BTreeMap;

/// The lane of an access that all lanes of a warp make together.
pub(super) const ALL: u8 = 32;
/// The lane of an access that several lanes have made, each for itself.
pub(super) const MANY: u8 = 33;
/// Marks a stamp that stands for a set of readers.
pub(super) const SET: u8 = 34;

/// The access is atomic, volatile, relaxed or stronger.
pub(super) const STRONG: u8 = 1;
/// The access was made through the asynchronous proxy.
pub(super) const ASYNC: u8 = 2;

/// The access is a `cp.async`.
pub(super) const COPY: u8 = 4;
/// The access is a bulk copy's. Copies of a warp end in any order: the stamp's clock is the copy's number, and its lane is
/// [`READS`] or [`WRITES`].
pub(super) const FLIGHT: u8 = 8;
/// The access is strong within its block only: its scope is `cta` or `cluster`.
pub(super) const NARROW: u8 = 16;

/// The lane of what a bulk copy reads.
pub(super) const READS: u8 = 0;
/// The lane of what a bulk copy writes.
pub(super) const WRITES: u8 = 1;

/// When and by whom memory was touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) agent: u32,
    /// 0: never.
    pub(super) clock: u32,
    /// The instruction.
    pub(super) pc: u32,
    pub(super) lane: u8,
    pub(super) flags: u8,
}

impl Stamp {
    pub(super) fn is_strong(self) -> bool {
        self.flags & STRONG != 0
    }
    /// Whether a fence must carry it over to the asynchronous proxy; that of `cp.async` only if `copies` must be.
    pub(super) fn needs_fence(self, copies: bool) -> bool {
        self.flags & ASYNC == 0 && (copies || self.flags & COPY == 0)
    }
}

/// How many agents a block of `warps` warps has.
pub(super) fn agents(warps: usize) -> u32 {
    4 * warps as u32
}

/// Up to which time the accesses of every agent are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// The first agent of the block.
    base: u32,
    /// Of the block's agents, for all of their lanes.
    own: Vec<u32>,
    /// (agent, lane, time) where a lane is known further.
    lanes: Vec<(u32, u8, u32)>,
    /// Agents of other blocks.
    foreign: BTreeMap<u32, u32>,
    /// For agents that start bulk copies, in order: the copies of which it is known that they have read and have written.
    flights: Vec<(u32, [Done; 2])>,
}

impl Clock {
    pub(super) fn new(base: u32, warps: usize) -> Self {
        Clock { base, own: vec![0; agents(warps) as usize], ..Clock::default() }
    }

    /// What is known of all lanes of `agent`.
    fn uniform(&self, agent: u32) -> u32 {
        match agent.checked_sub(self.base).and_then(|at| self.own.get(at as usize)) {
            Some(time) => *time,
            None => self.foreign.get(&agent).copied().unwrap_or(0),
        }
    }

    fn raise(&mut self, agent: u32, time: u32) {
        match agent.checked_sub(self.base).and_then(|at| self.own.get_mut(at as usize)) {
            Some(known) => *known = time.max(*known),
            None => {
                let known = self.foreign.entry(agent).or_default();
                *known = time.max(*known);
            }
        }
    }

    fn raise_lane(&mut self, agent: u32, lane: u8, time: u32) {
        if self.uniform(agent) >= time {
            return;
        }
        match self.lanes.iter_mut().find(|(a, l, _)| (*a, *l) == (agent, lane)) {
            Some(found) => found.2 = time.max(found.2),
            None => self.lanes.push((agent, lane, time)),
        }
    }

    /// Whether the access is known.
    #[inline]
    pub(super) fn knows(&self, stamp: &Stamp) -> bool {
        if stamp.flags & FLIGHT != 0 {
            let known = self.flights.iter().find(|(agent, _)| *agent == stamp.agent);
            return known.is_some_and(|(_, done)| done[usize::from(stamp.lane)].contains(stamp.clock));
        }
        if self.uniform(stamp.agent) >= stamp.clock {
            return true;
        }
        let mut lanes = self.lanes.iter();
        lanes.any(|(agent, lane, time)| {
            *agent == stamp.agent && *time >= stamp.clock && (*lane == stamp.lane || stamp.lane == ALL)
        })
    }

    /// What is known of the bulk copies of `agent`.
    fn flights_of(&mut self, agent: u32) -> &mut [Done; 2] {
        let at = self.flights.partition_point(|(known, _)| *known < agent);
        if self.flights.get(at).is_none_or(|(known, _)| *known != agent) {
            self.flights.insert(at, (agent, Default::default()));
        }
        &mut self.flights[at].1
    }

    pub(super) fn join(&mut self, other: &Clock) {
        for (agent, done) in &other.flights {
            self.flights_of(*agent).iter_mut().zip(done).for_each(|(mine, theirs)| mine.join(theirs));
        }
        if self.base == other.base && self.own.len() == other.own.len() {
            self.own.iter_mut().zip(&other.own).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        } else {
            for (at, time) in other.own.iter().enumerate().filter(|(_, time)| **time > 0) {
                self.raise(other.base + at as u32, *time);
            }
        }
        other.foreign.iter().for_each(|(agent, time)| self.raise(*agent, *time));
        other.lanes.iter().for_each(|(agent, lane, time)| self.raise_lane(*agent, *lane, *time));
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.retain(|(agent, _, time)| self.uniform(*agent) < *time);
        self.lanes = lanes;
    }
}

/// What a thread knows, and what of it the asynchronous proxy may rely on.
#[derive(Clone, Debug, Default)]
pub(super) struct Knowledge {
    pub(super) seen: Clock,
    pub(super) fenced: Clock,
}

impl Knowledge {
    pub(super) fn new(base: u32, warps: usize) -> Self {
        Knowledge { seen: Clock::new(base, warps), fenced: Clock::new(base, warps) }
    }

    pub(super) fn join(&mut self, other: &Knowledge) {
        self.seen.join(&other.seen);
        self.fenced.join(&other.fenced);
    }

    /// Learns that `stamp` is over. What the asynchronous proxy did itself needs no fence before it.
    pub(super) fn learn(&mut self, stamp: Stamp) {
        for clock in [&mut self.seen, &mut self.fenced] {
            match stamp.lane {
                lane if stamp.flags & FLIGHT != 0 => {
                    clock.flights_of(stamp.agent)[usize::from(lane)].insert(stamp.clock, stamp.clock);
                }
                ALL => clock.raise(stamp.agent, stamp.clock),
                lane => clock.raise_lane(stamp.agent, lane, stamp.clock),
            }
        }
    }
}

/// What the lanes of a warp know.
#[derive(Clone, Debug)]
pub(super) struct WarpClock {
    pub(super) agent: u32,
    base: u32,
    warps: usize,
    /// Now.
    pub(super) clock: u32,
    /// Up to when all lanes know of each other.
    synced: u32,
    /// What all lanes know.
    common: Knowledge,
    /// What one lane knows beyond that.
    extra: Vec<Option<Box<Knowledge>>>,
    has_extra: bool,
    /// Up to when the lane of the row knows of the lane of the column, where warp barriers had some lanes only.
    pairs: Option<Box<[[u32; 32]; 32]>>,
    /// When each lane last executed a fence.
    fences: [Fenced; 32],
    /// For each lane, up to which of its own `cp.async` it has waited.
    copied: [u32; 32],
    /// What a lane has read in a strong load and not yet fenced.
    unfenced: Vec<Option<Box<Unfenced>>>,
}

/// The fences of a lane that release.
#[derive(Clone, Copy, Debug, Default)]
struct Fenced {
    /// When the last one was.
    any: u32,
    /// When the last one was whose scope reaches other blocks.
    wide: u32,
    /// The instruction of the last one whose scope does not.
    narrow: u32,
}

/// What strong loads of a lane have met; it counts after a fence.
#[derive(Clone, Debug)]
struct Unfenced {
    /// Published by the lane's own block.
    near: Knowledge,
    /// Published by any block: a fence must reach that far.
    far: Option<Knowledge>,
}

/// What a strong store publishes without being a release itself: what came before a fence.
#[derive(Debug, Default)]
pub(super) struct Released {
    /// For threads of the same block.
    pub(super) near: Option<Knowledge>,
    /// For threads of all blocks.
    pub(super) far: Option<Knowledge>,
    /// The instruction whose scope withholds something of `near` from other blocks.
    pub(super) narrow: Option<u32>,
}

/// The lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros();
        (rest != 0).then(|| {
            rest &= rest - 1;
            lane as usize
        })
    })
}

impl WarpClock {
    /// The clock of warp `index` of a block whose first agent is `base`.
    pub(super) fn new(base: u32, index: usize, warps: usize) -> Self {
        WarpClock {
            agent: base + index as u32,
            base,
            warps,
            clock: 1,
            synced: 0,
            common: Knowledge::new(base, warps),
            extra: vec![None; 32],
            has_extra: false,
            pairs: None,
            fences: [Fenced::default(); 32],
            copied: [0; 32],
            unfenced: vec![None; 32],
        }
    }

    /// Whether `lane` knows of the access.
    #[inline]
    pub(super) fn knows(&self, stamp: &Stamp, lane: usize) -> bool {
        if stamp.agent == self.agent {
            if usize::from(stamp.lane) == lane || stamp.lane == ALL || stamp.clock <= self.synced {
                return true;
            }
            if let Some(pairs) = &self.pairs
                && stamp.lane < ALL
                && stamp.clock <= pairs[lane][usize::from(stamp.lane)]
            {
                return true;
            }
        }
        if stamp.agent == self.agent + self.warps as u32
            && usize::from(stamp.lane) == lane
            && stamp.clock <= self.copied[lane]
        {
            return true;
        }
        self.common.seen.knows(stamp) || self.extra[lane].as_ref().is_some_and(|extra| extra.seen.knows(stamp))
    }

    /// The lanes of `mask` have waited for their own copies up to these.
    pub(super) fn wait_copies(&mut self, mask: u32, over: &[u32; 32]) {
        lanes(mask).for_each(|lane| self.copied[lane] = self.copied[lane].max(over[lane]));
    }

    /// Tells `knowledge` of the copies that the lanes of `mask` have waited for.
    fn tell_copies(&self, knowledge: &mut Knowledge, mask: u32, live: u32) {
        let agent = self.agent + self.warps as u32;
        let least = lanes(mask).map(|lane| self.copied[lane]).min().unwrap_or(0);
        if mask & live == live {
            knowledge.seen.raise(agent, least);
        }
        for lane in lanes(mask).filter(|lane| self.copied[*lane] > 0) {
            knowledge.seen.raise_lane(agent, lane as u8, self.copied[lane]);
        }
    }

    /// Whether the asynchronous proxy may rely on the access where `lane` starts it.
    pub(super) fn knows_fenced(&self, stamp: &Stamp, lane: usize) -> bool {
        self.common.fenced.knows(stamp) || self.extra[lane].as_ref().is_some_and(|extra| extra.fenced.knows(stamp))
    }

    /// What the lanes of `mask` know, for others to join. What they do from now on is not part of it.
    pub(super) fn publish(&mut self, mask: u32, live: u32) -> Knowledge {
        let mut knowledge = self.common.clone();
        for lane in lanes(mask) {
            if let Some(extra) = &self.extra[lane] {
                knowledge.join(extra);
            }
        }
        self.tell_copies(&mut knowledge, mask, live);
        if mask & live == live {
            knowledge.seen.raise(self.agent, self.clock);
        } else {
            knowledge.seen.raise(self.agent, self.synced);
            for lane in lanes(mask) {
                knowledge.seen.raise_lane(self.agent, lane as u8, self.clock);
                if let Some(pairs) = &self.pairs {
                    for (other, time) in pairs[lane].iter().enumerate() {
                        knowledge.seen.raise_lane(self.agent, other as u8, *time);
                    }
                }
            }
        }
        self.clock += 1;
        knowledge
    }

    /// The knowledge of a thread that knows nothing.
    pub(super) fn nothing(&self) -> Knowledge {
        Knowledge::new(self.base, self.warps)
    }

    /// What `lane` had before its last fences, which a strong store publishes. `near` is left out unless it is wanted.
    pub(super) fn publish_fenced(&self, lane: usize, wants_near: bool) -> Released {
        let Fenced { any, wide, narrow } = self.fences[lane];
        let until = |fence: u32| {
            let mut knowledge = self.common.clone();
            if let Some(extra) = &self.extra[lane] {
                knowledge.join(extra);
            }
            knowledge.seen.raise(self.agent, self.synced.min(fence));
            knowledge.seen.raise_lane(self.agent, lane as u8, fence);
            knowledge
        };
        Released {
            near: (wants_near && any > 0).then(|| until(any)),
            far: (wide > 0).then(|| until(wide)),
            narrow: (any > wide).then_some(narrow),
        }
    }

    /// The lanes of `mask` learn what another has published.
    pub(super) fn acquire(&mut self, mask: u32, live: u32, knowledge: &Knowledge) {
        if mask & live == live {
            self.common.join(knowledge);
            self.synced = self.synced.max(self.common.seen.uniform(self.agent));
            return;
        }
        for lane in lanes(mask) {
            let (base, warps) = (self.base, self.warps);
            self.extra[lane].get_or_insert_with(|| Box::new(Knowledge::new(base, warps))).join(knowledge);
            self.has_extra = true;
        }
    }

    /// The lanes of `mask` learn that `stamp` is over.
    pub(super) fn learn(&mut self, mask: u32, live: u32, stamp: Stamp) {
        let mut knowledge = Knowledge::new(self.base, self.warps);
        knowledge.learn(stamp);
        self.acquire(mask, live, &knowledge);
    }

    /// A barrier or shuffle of the lanes of `mask`.
    pub(super) fn sync(&mut self, mask: u32, live: u32) {
        if mask & live == live {
            if self.has_extra {
                for extra in &mut self.extra {
                    if let Some(extra) = extra.take() {
                        self.common.join(&extra);
                    }
                }
                self.has_extra = false;
            }
            let mut common = std::mem::take(&mut self.common);
            self.tell_copies(&mut common, mask, live);
            self.common = common;
            self.pairs = None;
            self.synced = self.clock;
        } else {
            let pairs = self.pairs.get_or_insert_with(|| Box::new([[0; 32]; 32]));
            let mut row = [0; 32];
            for lane in lanes(mask) {
                row.iter_mut().zip(&pairs[lane]).for_each(|(row, known)| *row = (*row).max(*known));
            }
            lanes(mask).for_each(|lane| row[lane] = self.clock);
            lanes(mask).for_each(|lane| pairs[lane] = row);
            if self.has_extra || lanes(mask).any(|lane| self.copied[lane] > 0) {
                self.has_extra = true;
                let mut joined = Knowledge::new(self.base, self.warps);
                self.tell_copies(&mut joined, mask, live);
                lanes(mask).filter_map(|lane| self.extra[lane].as_ref()).for_each(|extra| joined.join(extra));
                lanes(mask).for_each(|lane| self.extra[lane] = Some(Box::new(joined.clone())));
            }
        }
        self.clock += 1;
    }

    /// A memory fence of the lanes of `mask`. Gives what they have met and may not learn, where the fence's scope does not
    /// reach the blocks that have published it.
    pub(super) fn fence(&mut self, mask: u32, live: u32, fence: MemoryFence, pc: u32) -> Option<Knowledge> {
        let (wide, mut withheld) = (fence.scope.reaches_other_blocks(), None);
        for lane in lanes(mask) {
            if fence.releases {
                let fenced = &mut self.fences[lane];
                fenced.any = self.clock;
                if wide {
                    fenced.wide = self.clock;
                } else {
                    fenced.narrow = pc;
                }
            }
            if let Some(read) = self.unfenced[lane].take_if(|_| fence.acquires) {
                self.acquire(1 << lane, live, &read.near);
                match read.far {
                    Some(far) if wide => self.acquire(1 << lane, live, &far),
                    Some(far) => {
                        withheld = Some(far.clone());
                        let near = self.nothing();
                        self.unfenced[lane] = Some(Box::new(Unfenced { near, far: Some(far) }));
                    }
                    None => {}
                }
            }
        }
        self.clock += 1;
        withheld
    }

    /// What a strong load of `lane` has met; it counts after the next fence, `far` after the next that reaches other blocks.
    pub(super) fn meet(&mut self, lane: usize, near: Option<&Knowledge>, far: Option<&Knowledge>) {
        if near.is_none() && far.is_none() {
            return;
        }
        let (base, warps) = (self.base, self.warps);
        let nothing = || Knowledge::new(base, warps);
        let met = self.unfenced[lane].get_or_insert_with(|| Box::new(Unfenced { near: nothing(), far: None }));
        if let Some(near) = near {
            met.near.join(near);
        }
        if let Some(far) = far {
            met.far.get_or_insert_with(nothing).join(far);
        }
    }

    /// `fence.proxy.async` of the lanes of `mask`.
    pub(super) fn fence_proxy(&mut self, mask: u32, live: u32) {
        if mask & live == live {
            let Knowledge { seen, fenced } = &mut self.common;
            fenced.join(seen);
            fenced.raise(self.agent, self.clock);
            for extra in self.extra.iter_mut().flatten() {
                let Knowledge { seen, fenced } = &mut **extra;
                fenced.join(seen);
            }
        } else {
            for lane in lanes(mask) {
                let (base, warps) = (self.base, self.warps);
                let extra = self.extra[lane].get_or_insert_with(|| Box::new(Knowledge::new(base, warps)));
                let Knowledge { seen, fenced } = &mut **extra;
                fenced.join(&self.common.seen);
                fenced.join(seen);
                fenced.raise(self.agent, self.synced);
                fenced.raise_lane(self.agent, lane as u8, self.clock);
                self.has_extra = true;
            }
        }
        self.clock += 1;
    }
}
