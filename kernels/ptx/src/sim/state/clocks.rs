//! Happens-before: vector clocks of threads and asynchronous operations.
//!
//! Time is counted per *timeline*. The timelines of a block of W warps are, in this order, its W warps, and for each
//! warp its `cp.async` copies, its bulk copies, and the `wgmma` of the warpgroup that it leads. The [`Epoch`] of an
//! access is its timeline, lane and clock. A [`VectorClock`] holds for every timeline the time up to which its accesses
//! happen before: mostly one time for all 32 lanes, with a short list of exceptions (one lane has arrived at a barrier
//! by itself).
//!
//! A release publishes the clocks of the releasing lanes, an acquire joins them (`warp_clock`).
//!
//! [`View`] holds three clocks. `seen` is happens-before; `fenced` and `fenced_global` are the parts of it that a
//! `fence.proxy.async` carried over to the asynchronous proxy, in shared and in global memory.

use super::Done;
use crate::sim::isa::ProxyFence;
use std::collections::BTreeMap;

/// The lane of an access that all lanes of a warp make together.
pub(crate) const ALL: u8 = 32;
/// The lane of an access that several lanes have made, each for itself.
pub(crate) const MANY: u8 = 33;
/// Marks an epoch that refers to a set of readers.
pub(crate) const SET: u8 = 34;

/// The access is atomic, volatile, relaxed or stronger.
pub(crate) const STRONG: u8 = 1;
/// The access was made through the asynchronous proxy.
pub(crate) const ASYNC: u8 = 2;

/// The access is a `cp.async`.
pub(crate) const COPY: u8 = 4;
/// The access is a bulk copy's. Copies of a warp end in any order: the epoch's clock is the copy's number, and its lane
/// is [`READS`] or [`WRITES`].
pub(crate) const FLIGHT: u8 = 8;
/// The access is strong within its block only: its scope is `cta` or `cluster`.
pub(crate) const NARROW: u8 = 16;

/// Factor of the logarithm of a strong access's bytes: 1 to 16.
pub(crate) const SIZE: u8 = 32;

/// The lane of what a bulk copy reads.
pub(crate) const READS: u8 = 0;
/// The lane of what a bulk copy writes.
pub(crate) const WRITES: u8 = 1;

/// An access: when, by which lane and instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Epoch {
    pub(crate) timeline: u32,
    /// 0: never.
    pub(crate) clock: u32,
    /// The instruction.
    pub(crate) pc: u32,
    pub(crate) lane: u8,
    pub(crate) flags: u8,
}

impl Epoch {
    pub(crate) fn is_strong(self) -> bool {
        self.flags & STRONG != 0
    }
    /// Whether both are of one proxy and one size.
    pub(crate) fn is_like(self, other: &Epoch) -> bool {
        (self.flags ^ other.flags) & (ASYNC | (7 * SIZE)) == 0
    }
    /// Whether a fence must carry it over to the asynchronous proxy; that of `cp.async` only if `copies` must be.
    pub(crate) fn needs_fence(self, copies: bool) -> bool {
        self.flags & ASYNC == 0 && (copies || self.flags & COPY == 0)
    }
}

/// Timelines of a block of `warps` warps.
pub(crate) fn timelines(warps: usize) -> u32 {
    4 * warps as u32
}

/// For every timeline, the time up to which its accesses happen before.
#[derive(Clone, Debug, Default)]
pub(crate) struct VectorClock {
    /// The first timeline of the block.
    base: u32,
    /// Of the block's timelines, for all of their lanes.
    own: Vec<u32>,
    /// (timeline, lane, time) where a lane is known further.
    lanes: Vec<(u32, u8, u32)>,
    /// Timelines of other blocks.
    foreign: BTreeMap<u32, u32>,
    /// For timelines that start bulk copies, in order: the copies that have finished reading and writing.
    flights: Vec<(u32, [Done; 2])>,
    /// (timeline, lane, time) of lanes that ended before the rest of their warp: what such a lane did after that time
    /// it has passed on to no thread, although the time of its warp goes on.
    ended: Vec<(u32, u8, u32)>,
}

impl VectorClock {
    pub(crate) fn new(base: u32, warps: usize) -> Self {
        VectorClock { base, own: vec![0; timelines(warps) as usize], ..VectorClock::default() }
    }

    /// The time of all lanes of `timeline`.
    pub(super) fn uniform(&self, timeline: u32) -> u32 {
        match timeline.checked_sub(self.base).and_then(|at| self.own.get(at as usize)) {
            Some(time) => *time,
            None => self.foreign.get(&timeline).copied().unwrap_or(0),
        }
    }

    pub(super) fn raise(&mut self, timeline: u32, time: u32) {
        match timeline.checked_sub(self.base).and_then(|at| self.own.get_mut(at as usize)) {
            Some(known) => *known = time.max(*known),
            None => {
                let known = self.foreign.entry(timeline).or_default();
                *known = time.max(*known);
            }
        }
    }

    pub(super) fn raise_lane(&mut self, timeline: u32, lane: u8, time: u32) {
        if self.uniform(timeline) >= time {
            return;
        }
        match self.lanes.iter_mut().find(|(a, l, _)| (*a, *l) == (timeline, lane)) {
            Some(found) => found.2 = time.max(found.2),
            None => self.lanes.push((timeline, lane, time)),
        }
    }

    /// Whether the access happens before.
    #[inline]
    pub(crate) fn knows(&self, epoch: &Epoch) -> bool {
        if epoch.flags & FLIGHT != 0 {
            let known = self.flights.iter().find(|(timeline, _)| *timeline == epoch.timeline);
            return known.is_some_and(|(_, done)| done[usize::from(epoch.lane)].contains(epoch.clock));
        }
        if self.uniform(epoch.timeline) >= epoch.clock {
            return self.ended.is_empty() || !self.is_lost(epoch);
        }
        let mut lanes = self.lanes.iter();
        lanes.any(|(timeline, lane, time)| {
            *timeline == epoch.timeline && *time >= epoch.clock && (*lane == epoch.lane || epoch.lane == ALL)
        })
    }

    /// Notes that `lane` has ended; what it did up to `time` it has passed on.
    pub(super) fn end(&mut self, timeline: u32, lane: u8, time: u32) {
        self.ended.push((timeline, lane, time));
    }

    /// Whether the access was made by a lane that ended without passing it on.
    pub(super) fn is_lost(&self, epoch: &Epoch) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|(timeline, lane, time)| (*timeline, *lane) == (epoch.timeline, epoch.lane) && *time < epoch.clock)
    }

    /// The finished bulk copies of `timeline`.
    fn flights_of(&mut self, timeline: u32) -> &mut [Done; 2] {
        let at = self.flights.partition_point(|(known, _)| *known < timeline);
        if self.flights.get(at).is_none_or(|(known, _)| *known != timeline) {
            self.flights.insert(at, (timeline, Default::default()));
        }
        &mut self.flights[at].1
    }

    pub(crate) fn join(&mut self, other: &VectorClock) {
        for (timeline, done) in &other.flights {
            self.flights_of(*timeline).iter_mut().zip(done).for_each(|(mine, theirs)| mine.join(theirs));
        }
        if self.base == other.base && self.own.len() == other.own.len() {
            self.own.iter_mut().zip(&other.own).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        } else {
            for (at, time) in other.own.iter().enumerate().filter(|(_, time)| **time > 0) {
                self.raise(other.base + at as u32, *time);
            }
        }
        other.foreign.iter().for_each(|(timeline, time)| self.raise(*timeline, *time));
        other.lanes.iter().for_each(|(timeline, lane, time)| self.raise_lane(*timeline, *lane, *time));
        for ended in &other.ended {
            if !self.ended.contains(ended) {
                self.ended.push(*ended);
            }
        }
        let mut lanes = std::mem::take(&mut self.lanes);
        lanes.retain(|(timeline, _, time)| self.uniform(*timeline) < *time);
        self.lanes = lanes;
    }
}

/// The clocks of a thread: for its own accesses, and for those of the asynchronous proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) seen: VectorClock,
    pub(crate) fenced: VectorClock,
    /// `None` before the first fence that includes global memory: few kernels have one.
    pub(crate) fenced_global: Option<Box<VectorClock>>,
}

impl View {
    pub(crate) fn new(base: u32, warps: usize) -> Self {
        View { seen: VectorClock::new(base, warps), fenced: VectorClock::new(base, warps), fenced_global: None }
    }

    pub(crate) fn join(&mut self, other: &View) {
        self.seen.join(&other.seen);
        self.fenced.join(&other.fenced);
        match (&mut self.fenced_global, &other.fenced_global) {
            (Some(mine), Some(theirs)) => mine.join(theirs),
            (mine @ None, Some(theirs)) => *mine = Some(theirs.clone()),
            (_, None) => {}
        }
    }

    /// Whether a `fence.proxy.async` has carried the access over to the asynchronous proxy.
    pub(crate) fn is_fenced(&self, epoch: &Epoch, global: bool) -> bool {
        match (&self.fenced_global, global) {
            (Some(fenced), true) => fenced.knows(epoch),
            (None, true) => false,
            (_, false) => self.fenced.knows(epoch),
        }
    }

    /// Executes a `fence.proxy.async`; `also` adds accesses that the view does not hold.
    pub(crate) fn fence_proxy(&mut self, fence: ProxyFence, also: impl Fn(&mut VectorClock)) {
        let View { seen, fenced, fenced_global } = self;
        if fence.shared {
            fenced.join(seen);
            also(fenced);
        }
        if fence.global {
            let fenced = fenced_global.get_or_insert_with(|| Box::new(seen.clone()));
            fenced.join(seen);
            also(fenced);
        }
    }

    /// The finished asynchronous operations among its accesses, of blocks with so many warps.
    pub(crate) fn only_finished(&self, warps: usize) -> View {
        let VectorClock { base, own, foreign, flights, .. } = &self.seen;
        let is_product = |timeline: u32| timeline % timelines(warps) >= 3 * warps as u32;
        let time = |(at, time): (usize, &u32)| if is_product(at as u32) { *time } else { 0 };
        let own = own.iter().enumerate().map(time).collect();
        let foreign = foreign.iter().filter(|(timeline, _)| is_product(**timeline)).map(|(a, b)| (*a, *b)).collect();
        let seen = VectorClock { base: *base, own, foreign, flights: flights.clone(), ..VectorClock::default() };
        View { seen, ..View::new(*base, warps) }
    }

    /// Joins `other` into a view that may be empty.
    pub(crate) fn gather(all: &mut Option<View>, other: &View) {
        match all {
            Some(all) => all.join(other),
            None => *all = Some(other.clone()),
        }
    }

    /// Orders the finished access `epoch` before: of the asynchronous proxy, which needs no fence, or of `cp.async`.
    pub(crate) fn learn(&mut self, epoch: Epoch) {
        let seen = &mut self.seen;
        match epoch.lane {
            lane if epoch.flags & FLIGHT != 0 => {
                seen.flights_of(epoch.timeline)[usize::from(lane)].insert(epoch.clock, epoch.clock);
            }
            ALL => seen.raise(epoch.timeline, epoch.clock),
            lane => seen.raise_lane(epoch.timeline, lane, epoch.clock),
        }
    }
}
