//! The clocks of the lanes of a warp.
//!
//! Lanes are ordered among each other only up to the last warp barrier or barrier of the block that included both:
//! neither by running together nor by shuffles, votes and the like.

use super::{Epoch, MANY, VectorClock, View, lanes};
use crate::sim::isa::{MemoryFence, ProxyFence};
use std::sync::Arc;

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
    fences: [Fences; 32],
    /// For each lane, up to which of its own `cp.async` it has waited.
    copied: [u32; 32],
    /// Views that a lane has read in strong loads and not yet fenced.
    unfenced: Vec<Option<Box<Unfenced>>>,
    /// Time up to which each lane has passed on its accesses, by any synchronization.
    told: [u32; 32],
}

/// The fences of a lane that release.
#[derive(Clone, Debug, Default)]
struct Fences {
    any: Option<Fence>,
    /// The last one whose scope reaches other blocks.
    wide: Option<Fence>,
    /// The instruction of the last one whose scope does not.
    narrow: u32,
}

/// A fence: what it releases is what its lane had seen and done by then, not what came later.
#[derive(Clone, Debug)]
struct Fence {
    time: u32,
    view: Arc<View>,
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
            if usize::from(epoch.lane) == lane || self.is_synced(epoch) {
                return true;
            }
            if let Some(pairs) = &self.pairs
                && usize::from(epoch.lane) < 32
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

    /// Whether the access happens before `next`, an access of `lane` or one that all lanes make together.
    #[inline]
    pub(crate) fn orders(&self, epoch: &Epoch, next: &Epoch, lane: usize) -> bool {
        if next.lane == MANY { self.all_know(epoch, u32::MAX) } else { self.knows(epoch, lane) }
    }

    /// Whether all lanes were ordered after this access of the warp.
    fn is_synced(&self, epoch: &Epoch) -> bool {
        epoch.clock <= self.synced && epoch.timeline == self.timeline && !self.common.seen.is_lost(epoch)
    }

    /// Whether the access happens before the next one of every lane of `mask`.
    pub(crate) fn all_know(&self, epoch: &Epoch, mask: u32) -> bool {
        self.is_synced(epoch) || self.common.seen.knows(epoch) || lanes(mask).all(|lane| self.knows(epoch, lane))
    }

    /// Whether the access happens before an operation of the asynchronous proxy that the lanes of `mask` start.
    pub(crate) fn all_fenced(&self, epoch: &Epoch, mask: u32, global: bool) -> bool {
        let fenced = |lane: usize| self.extra[lane].as_ref().is_some_and(|extra| extra.is_fenced(epoch, global));
        self.common.is_fenced(epoch, global) || lanes(mask).all(fenced)
    }

    /// Notes that the lanes of `mask` have waited for their own copies up to these.
    pub(crate) fn wait_copies(&mut self, mask: u32, over: &[u32; 32]) {
        lanes(mask).for_each(|lane| self.copied[lane] = self.copied[lane].max(over[lane]));
    }

    /// Adds the copies that the lanes of `mask` have waited for.
    fn tell_copies(&self, seen: &mut VectorClock, mask: u32, live: u32) {
        let timeline = self.timeline + self.warps as u32;
        let least = lanes(mask).map(|lane| self.copied[lane]).min().unwrap_or(0);
        if mask & live == live {
            seen.raise(timeline, least);
        }
        for lane in lanes(mask).filter(|lane| self.copied[*lane] > 0) {
            seen.raise_lane(timeline, lane as u8, self.copied[lane]);
        }
    }

    /// Adds what the lanes of `mask`, not all of those of the warp, have done and know of the warp's other lanes.
    fn tell_lanes(&self, seen: &mut VectorClock, mask: u32) {
        seen.raise(self.timeline, self.synced);
        for lane in lanes(mask) {
            seen.raise_lane(self.timeline, lane as u8, self.clock);
            if let Some(pairs) = &self.pairs {
                for (other, time) in pairs[lane].iter().enumerate() {
                    seen.raise_lane(self.timeline, other as u8, *time);
                }
            }
        }
    }

    /// Notes that the lanes of `mask` pass on what they have done.
    fn tell(&mut self, mask: u32) {
        lanes(mask).for_each(|lane| self.told[lane] = self.clock);
    }

    /// Accesses that happen before those of the lanes of `mask`, and their own.
    fn view(&self, mask: u32, live: u32) -> View {
        let mut view = self.common.clone();
        lanes(mask).filter_map(|lane| self.extra[lane].as_ref()).for_each(|extra| view.join(extra));
        self.tell_copies(&mut view.seen, mask, live);
        if mask & live == live {
            view.seen.raise(self.timeline, self.clock);
        } else {
            self.tell_lanes(&mut view.seen, mask);
        }
        view
    }

    /// Publishes the view of the lanes of `mask`. Their later accesses are not part of it.
    pub(crate) fn publish(&mut self, mask: u32, live: u32) -> View {
        let view = self.view(mask, live);
        self.tell(mask);
        self.clock += 1;
        view
    }

    /// Notes that the lanes of `mask` have ended, and others of the warp have not.
    pub(crate) fn end(&mut self, mask: u32) {
        for lane in lanes(mask) {
            self.common.seen.end(self.timeline, lane as u8, self.told[lane]);
            self.common.seen.end(self.timeline + self.warps as u32, lane as u8, self.copied[lane]);
        }
    }

    /// An empty view.
    pub(crate) fn nothing(&self) -> View {
        View::new(self.base, self.warps)
    }

    /// The views of `lane` at its last fences, which a strong store publishes; `near` only if it is wanted.
    pub(crate) fn publish_fenced(&self, lane: usize, wants_near: bool) -> Released {
        let Fences { any, wide, narrow } = &self.fences[lane];
        let released = |fence: &Fence| {
            let mut view = View::clone(&fence.view);
            view.seen.raise_lane(self.timeline, lane as u8, fence.time);
            view
        };
        let time = |fence: &Option<Fence>| fence.as_ref().map_or(0, |fence| fence.time);
        Released {
            near: any.as_ref().filter(|_| wants_near).map(released),
            far: wide.as_ref().map(released),
            narrow: (time(any) > time(wide)).then_some(*narrow),
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

    /// Orders the lanes of `mask` among each other, at a barrier.
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
            let mut seen = std::mem::take(&mut self.common.seen);
            self.tell_copies(&mut seen, mask, live);
            self.common.seen = seen;
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
                self.tell_copies(&mut joined.seen, mask, live);
                lanes(mask).filter_map(|lane| self.extra[lane].as_ref()).for_each(|extra| joined.join(extra));
                lanes(mask).for_each(|lane| self.extra[lane] = Some(Box::new(joined.clone())));
            }
        }
        self.tell(mask);
        self.clock += 1;
    }

    /// Executes a memory fence of the lanes of `mask`: first acquires, then releases. Returns the view that they have
    /// read and cannot acquire because the fence's scope does not reach the blocks that have published it.
    pub(crate) fn fence(&mut self, mask: u32, live: u32, fence: MemoryFence, pc: u32) -> Option<View> {
        let (wide, mut withheld) = (fence.scope.reaches_other_blocks(), None);
        for lane in lanes(mask).filter(|_| fence.acquires) {
            let Some(read) = self.unfenced[lane].take() else { continue };
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
        if fence.releases {
            self.release(mask, live, wide, pc);
        }
        self.clock += 1;
        withheld
    }

    /// Notes what later strong stores of the lanes of `mask` publish.
    fn release(&mut self, mask: u32, live: u32, wide: bool, pc: u32) {
        let time = self.clock;
        // Lanes that differ in nothing but their own accesses share a view.
        let mut shared: Option<Arc<View>> = None;
        for lane in lanes(mask) {
            let alone =
                self.pairs.is_some() || self.extra[lane].is_some() || self.copied[lane] > 0 || live == 1 << lane;
            let view = match (alone, &shared) {
                (true, _) => Arc::new(self.view(1 << lane, live)),
                (false, Some(view)) => view.clone(),
                (false, None) => {
                    let mut view = self.common.clone();
                    view.seen.raise(self.timeline, self.synced);
                    shared.insert(Arc::new(view)).clone()
                }
            };
            let fences = &mut self.fences[lane];
            fences.any = Some(Fence { time, view });
            if wide {
                fences.wide = fences.any.clone();
            } else {
                fences.narrow = pc;
            }
        }
        self.tell(mask);
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
    pub(crate) fn fence_proxy(&mut self, mask: u32, live: u32, fence: ProxyFence) {
        let mut common = std::mem::take(&mut self.common);
        if mask & live == live {
            common.fence_proxy(fence, |fenced| {
                fenced.raise(self.timeline, self.clock);
                self.tell_copies(fenced, mask, live);
            });
            self.extra.iter_mut().flatten().for_each(|extra| extra.fence_proxy(fence, |_| {}));
        } else {
            for lane in lanes(mask) {
                let mut extra = self.extra[lane].take().unwrap_or_else(|| Box::new(self.nothing()));
                extra.fence_proxy(fence, |fenced| {
                    fenced.join(&common.seen);
                    self.tell_lanes(fenced, 1 << lane);
                    self.tell_copies(fenced, 1 << lane, live);
                });
                self.extra[lane] = Some(extra);
            }
            self.has_extra = true;
        }
        self.common = common;
        self.clock += 1;
    }
}
