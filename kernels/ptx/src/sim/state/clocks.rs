//! Happens-before: vector clocks of threads and asynchronous operations.
//!
//! Time is counted per *timeline*. The timelines of a block of W warps are, in this order, its W warps, and for each
//! warp its `cp.async` copies, its bulk copies, and the `wgmma` of the warpgroup that it leads. The [`Epoch`] of an
//! access is its timeline, lane and clock. A [`VectorClock`] holds for every timeline the time up to which its accesses
//! happen before: mostly one time for all 32 lanes, with a short list of exceptions (one lane has arrived at a barrier
//! by itself).
//!
//! A release publishes the clocks of the releasing lanes, an acquire joins them. Within a warp, lanes are ordered only
//! up to the last warp barrier or shuffle that included both.
//!
//! [`View`] holds two clocks. `seen` is happens-before; `fenced` is the part of it that a `fence.proxy.async`
//! carried over to the asynchronous proxy.

use super::{Done, lanes};
use crate::sim::isa::MemoryFence;
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

/// The lane of what a bulk copy reads.
pub(crate) const READS: u8 = 0;
/// The lane of what a bulk copy writes.
pub(crate) const WRITES: u8 = 1;

/// An access: when, by which lane and instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

impl VectorClock {
    pub(crate) fn new(base: u32, warps: usize) -> Self {
        VectorClock { base, own: vec![0; timelines(warps) as usize], ..VectorClock::default() }
    }

    /// The time of all lanes of `timeline`.
    fn uniform(&self, timeline: u32) -> u32 {
        match timeline.checked_sub(self.base).and_then(|at| self.own.get(at as usize)) {
            Some(time) => *time,
            None => self.foreign.get(&timeline).copied().unwrap_or(0),
        }
    }

    fn raise(&mut self, timeline: u32, time: u32) {
        match timeline.checked_sub(self.base).and_then(|at| self.own.get_mut(at as usize)) {
            Some(known) => *known = time.max(*known),
            None => {
                let known = self.foreign.entry(timeline).or_default();
                *known = time.max(*known);
            }
        }
    }

    fn raise_lane(&mut self, timeline: u32, lane: u8, time: u32) {
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
            return true;
        }
        let mut lanes = self.lanes.iter();
        lanes.any(|(timeline, lane, time)| {
            *timeline == epoch.timeline && *time >= epoch.clock && (*lane == epoch.lane || epoch.lane == ALL)
        })
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
}

impl View {
    pub(crate) fn new(base: u32, warps: usize) -> Self {
        View { seen: VectorClock::new(base, warps), fenced: VectorClock::new(base, warps) }
    }

    pub(crate) fn join(&mut self, other: &View) {
        self.seen.join(&other.seen);
        self.fenced.join(&other.fenced);
    }

    /// Joins `other` into a view that may be empty.
    pub(crate) fn gather(all: &mut Option<View>, other: &View) {
        match all {
            Some(all) => all.join(other),
            None => *all = Some(other.clone()),
        }
    }

    /// Orders the finished access `epoch` before. Accesses of the asynchronous proxy need no fence.
    pub(crate) fn learn(&mut self, epoch: Epoch) {
        for clock in [&mut self.seen, &mut self.fenced] {
            match epoch.lane {
                lane if epoch.flags & FLIGHT != 0 => {
                    clock.flights_of(epoch.timeline)[usize::from(lane)].insert(epoch.clock, epoch.clock);
                }
                ALL => clock.raise(epoch.timeline, epoch.clock),
                lane => clock.raise_lane(epoch.timeline, lane, epoch.clock),
            }
        }
    }
}

/// The clocks of the lanes of a warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct WarpClock {
    pub(crate) timeline: u32,
    base: u32,
    warps: usize,
    /// Now.
    pub(crate) clock: u32,
    /// Time up to which all lanes are ordered.
    synced: u32,
    /// The part common to all lanes.
    common: View,
    /// The part of one lane beyond that.
    extra: Vec<Option<Box<View>>>,
    has_extra: bool,
    /// Time up to which the lane of the column happens before that of the row, where warp barriers had some lanes only.
    pairs: Option<Box<[[u32; 32]; 32]>>,
    /// The last fences of each lane.
    fences: [Fenced; 32],
    /// For each lane, up to which of its own `cp.async` it has waited.
    copied: [u32; 32],
    /// Views that a lane has read in strong loads and not yet fenced.
    unfenced: Vec<Option<Box<Unfenced>>>,
}

/// The fences of a lane that release.
#[derive(Clone, Copy, Debug, Default)]
struct Fenced {
    /// Time of the last one.
    any: u32,
    /// Time of the last one whose scope reaches other blocks.
    wide: u32,
    /// The instruction of the last one whose scope does not.
    narrow: u32,
}

/// Views that strong loads of a lane have read; they take effect at a fence.
#[derive(Clone, Debug)]
struct Unfenced {
    /// Published by the lane's own block.
    near: View,
    /// Published by any block: a fence must reach that far.
    far: Option<View>,
}

/// Views that a strong store publishes without being a release itself: those of earlier fences.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// For threads of the same block.
    pub(crate) near: Option<View>,
    /// For threads of all blocks.
    pub(crate) far: Option<View>,
    /// The instruction whose scope withholds part of `near` from other blocks.
    pub(crate) narrow: Option<u32>,
}

impl WarpClock {
    /// The clock of warp `index` of a block whose first timeline is `base`.
    pub(crate) fn new(base: u32, index: usize, warps: usize) -> Self {
        WarpClock {
            timeline: base + index as u32,
            base,
            warps,
            clock: 1,
            common: View::new(base, warps),
            extra: vec![None; 32],
            unfenced: vec![None; 32],
            ..WarpClock::default()
        }
    }

    /// Whether the access happens before the next one of `lane`.
    #[inline]
    pub(crate) fn knows(&self, epoch: &Epoch, lane: usize) -> bool {
        if epoch.timeline == self.timeline {
            if usize::from(epoch.lane) == lane || epoch.lane == ALL || epoch.clock <= self.synced {
                return true;
            }
            if let Some(pairs) = &self.pairs
                && epoch.lane < ALL
                && epoch.clock <= pairs[lane][usize::from(epoch.lane)]
            {
                return true;
            }
        }
        if epoch.timeline == self.timeline + self.warps as u32
            && usize::from(epoch.lane) == lane
            && epoch.clock <= self.copied[lane]
        {
            return true;
        }
        self.common.seen.knows(epoch) || self.extra[lane].as_ref().is_some_and(|extra| extra.seen.knows(epoch))
    }

    /// Notes that the lanes of `mask` have waited for their own copies up to these.
    pub(crate) fn wait_copies(&mut self, mask: u32, over: &[u32; 32]) {
        lanes(mask).for_each(|lane| self.copied[lane] = self.copied[lane].max(over[lane]));
    }

    /// Adds the copies that the lanes of `mask` have waited for to `view`.
    fn tell_copies(&self, view: &mut View, mask: u32, live: u32) {
        let timeline = self.timeline + self.warps as u32;
        let least = lanes(mask).map(|lane| self.copied[lane]).min().unwrap_or(0);
        if mask & live == live {
            view.seen.raise(timeline, least);
        }
        for lane in lanes(mask).filter(|lane| self.copied[*lane] > 0) {
            view.seen.raise_lane(timeline, lane as u8, self.copied[lane]);
        }
    }

    /// Whether the access happens before an operation of the asynchronous proxy that `lane` starts.
    pub(crate) fn knows_fenced(&self, epoch: &Epoch, lane: usize) -> bool {
        self.common.fenced.knows(epoch) || self.extra[lane].as_ref().is_some_and(|extra| extra.fenced.knows(epoch))
    }

    /// Publishes the view of the lanes of `mask`. Their later accesses are not part of it.
    pub(crate) fn publish(&mut self, mask: u32, live: u32) -> View {
        let mut view = self.common.clone();
        for lane in lanes(mask) {
            if let Some(extra) = &self.extra[lane] {
                view.join(extra);
            }
        }
        self.tell_copies(&mut view, mask, live);
        if mask & live == live {
            view.seen.raise(self.timeline, self.clock);
        } else {
            view.seen.raise(self.timeline, self.synced);
            for lane in lanes(mask) {
                view.seen.raise_lane(self.timeline, lane as u8, self.clock);
                if let Some(pairs) = &self.pairs {
                    for (other, time) in pairs[lane].iter().enumerate() {
                        view.seen.raise_lane(self.timeline, other as u8, *time);
                    }
                }
            }
        }
        self.clock += 1;
        view
    }

    /// An empty view.
    pub(crate) fn nothing(&self) -> View {
        View::new(self.base, self.warps)
    }

    /// The views of `lane` at its last fences, which a strong store publishes; `near` only if it is wanted.
    pub(crate) fn publish_fenced(&self, lane: usize, wants_near: bool) -> Released {
        let Fenced { any, wide, narrow } = self.fences[lane];
        let until = |fence: u32| {
            let mut view = self.common.clone();
            if let Some(extra) = &self.extra[lane] {
                view.join(extra);
            }
            view.seen.raise(self.timeline, self.synced.min(fence));
            view.seen.raise_lane(self.timeline, lane as u8, fence);
            view
        };
        Released {
            near: (wants_near && any > 0).then(|| until(any)),
            far: (wide > 0).then(|| until(wide)),
            narrow: (any > wide).then_some(narrow),
        }
    }

    /// The part of `lane` beyond the common one.
    fn extra(&mut self, lane: usize) -> &mut View {
        let (base, warps) = (self.base, self.warps);
        self.has_extra = true;
        self.extra[lane].get_or_insert_with(|| Box::new(View::new(base, warps)))
    }

    /// Joins a published view into those of the lanes of `mask`.
    pub(crate) fn acquire(&mut self, mask: u32, live: u32, view: &View) {
        if mask & live == live {
            self.common.join(view);
            self.synced = self.synced.max(self.common.seen.uniform(self.timeline));
            return;
        }
        for lane in lanes(mask) {
            self.extra(lane).join(view);
        }
    }

    /// Orders the finished access `epoch` before the lanes of `mask`.
    pub(crate) fn learn(&mut self, mask: u32, live: u32, epoch: Epoch) {
        let mut view = View::new(self.base, self.warps);
        view.learn(epoch);
        self.acquire(mask, live, &view);
    }

    /// Orders the lanes of `mask` among each other, at a barrier or shuffle.
    pub(crate) fn sync(&mut self, mask: u32, live: u32) {
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
                let mut joined = View::new(self.base, self.warps);
                self.tell_copies(&mut joined, mask, live);
                lanes(mask).filter_map(|lane| self.extra[lane].as_ref()).for_each(|extra| joined.join(extra));
                lanes(mask).for_each(|lane| self.extra[lane] = Some(Box::new(joined.clone())));
            }
        }
        self.clock += 1;
    }

    /// Executes a memory fence of the lanes of `mask`. Returns the view that they have read and cannot acquire because
    /// the fence's scope does not reach the blocks that have published it.
    pub(crate) fn fence(&mut self, mask: u32, live: u32, fence: MemoryFence, pc: u32) -> Option<View> {
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

    /// Notes the views that a strong load of `lane` has read: they take effect at the next fence, `far` at the next
    /// that reaches other blocks.
    pub(crate) fn observe_relaxed(&mut self, lane: usize, near: Option<&View>, far: Option<&View>) {
        if near.is_none() && far.is_none() {
            return;
        }
        let (base, warps) = (self.base, self.warps);
        let nothing = || View::new(base, warps);
        let met = self.unfenced[lane].get_or_insert_with(|| Box::new(Unfenced { near: nothing(), far: None }));
        if let Some(near) = near {
            met.near.join(near);
        }
        if let Some(far) = far {
            met.far.get_or_insert_with(nothing).join(far);
        }
    }

    /// `fence.proxy.async` of the lanes of `mask`.
    pub(crate) fn fence_proxy(&mut self, mask: u32, live: u32) {
        if mask & live == live {
            let View { seen, fenced } = &mut self.common;
            fenced.join(seen);
            fenced.raise(self.timeline, self.clock);
            for extra in self.extra.iter_mut().flatten() {
                let View { seen, fenced } = &mut **extra;
                fenced.join(seen);
            }
        } else {
            for lane in lanes(mask) {
                self.extra(lane);
                let Some(extra) = &mut self.extra[lane] else { continue };
                let View { seen, fenced } = &mut **extra;
                fenced.join(&self.common.seen);
                fenced.join(seen);
                fenced.raise(self.timeline, self.synced);
                fenced.raise_lane(self.timeline, lane as u8, self.clock);
            }
        }
        self.clock += 1;
    }
}
