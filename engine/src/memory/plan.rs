//! Memory planner: the place of each request of a step in one block, decided before the first step.
//!
//! Requests are placed by size, the largest first, each at the lowest offset where it meets none that lives at the same
//! time (the greedy-by-size rule of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
//! 2020). Cost: quadratic in the number of requests, divided by the [`CHUNK`] of placed requests that are passed over at
//! once.
use super::block::ALIGN;

/// An event of a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The next request, of so many bytes.
    Request(usize),
    /// The i-th request is given back.
    Release(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// The offsets of a step's tensors.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) slots: Vec<Slot>,
    bytes: usize,
    live: usize,
}

impl Plan {
    pub(super) fn new(events: &[Event]) -> Self {
        let mut requests = Vec::new(); // (bytes, born, dies)
        let (mut alive, mut live) = (0usize, 0usize);
        for (time, event) in events.iter().enumerate() {
            match *event {
                Event::Request(bytes) => {
                    let bytes = bytes.next_multiple_of(ALIGN);
                    requests.push((bytes, time, usize::MAX));
                    alive += bytes;
                    live = live.max(alive);
                }
                Event::Release(i) => {
                    requests[i].2 = time;
                    alive -= requests[i].0;
                }
            }
        }
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|&i| (usize::MAX - requests[i].0, i));
        let mut slots = vec![Slot { offset: 0, bytes: 0 }; requests.len()];
        let (mut placed, mut total) = (PlacedList::default(), 0);
        for i in order {
            let (bytes, born, dies) = requests[i];
            let offset = placed.lowest(bytes, born, dies);
            slots[i] = Slot { offset, bytes };
            total = total.max(offset + bytes);
            if bytes > 0 {
                placed.insert(Placed { offset, end: offset + bytes, born, dies });
            }
        }
        Self { slots, bytes: total, live }
    }

    /// Bytes of the block.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most bytes that are alive at once: no plan can need fewer.
    pub fn live_bytes(&self) -> usize {
        self.live
    }

    /// Number of tensors in a step.
    pub(crate) fn requests(&self) -> usize {
        self.slots.len()
    }
}

/// A request that has its place.
#[derive(Clone, Copy, Debug)]
struct Placed {
    offset: usize,
    end: usize,
    born: usize,
    dies: usize,
}

/// Maximum number of requests in a chunk.
const CHUNK: usize = 64;

/// Placed requests, neighbors by offset, and what tells whether all or none of them matter to another request.
#[derive(Debug)]
struct Chunk {
    /// By offset; at least one.
    items: Vec<Placed>,
    born: Extent,
    dies: Extent,
    /// Offset of the first, and the end of all of them.
    start: usize,
    end: usize,
    /// The widest range between the end of those before and the next, that none of them covers.
    widest_gap: usize,
}

/// The least and the greatest of some times.
#[derive(Clone, Copy, Debug)]
struct Extent {
    least: usize,
    greatest: usize,
}

impl Extent {
    fn of(times: impl Iterator<Item = usize> + Clone) -> Self {
        Self { least: times.clone().min().unwrap_or(0), greatest: times.max().unwrap_or(0) }
    }
}

impl Chunk {
    fn new(items: Vec<Placed>) -> Self {
        let (mut end, mut widest_gap) = (items[0].end, 0);
        for item in &items[1..] {
            widest_gap = widest_gap.max(item.offset.saturating_sub(end));
            end = end.max(item.end);
        }
        let born = Extent::of(items.iter().map(|item| item.born));
        let dies = Extent::of(items.iter().map(|item| item.dies));
        Self { start: items[0].offset, items, born, dies, end, widest_gap }
    }
}

/// All placed requests by offset.
#[derive(Debug, Default)]
struct PlacedList(Vec<Chunk>);

impl PlacedList {
    /// The lowest offset where `bytes` bytes meet no request that lives at some time between `born` and `dies`.
    fn lowest(&self, bytes: usize, born: usize, dies: usize) -> usize {
        let mut offset = 0;
        for chunk in &self.0 {
            let none_lives = chunk.dies.greatest <= born || dies <= chunk.born.least;
            let all_live = chunk.born.greatest < dies && born < chunk.dies.least;
            if none_lives {
                continue;
            }
            if all_live && chunk.widest_gap < bytes {
                if offset + bytes <= chunk.start {
                    return offset;
                }
                offset = offset.max(chunk.end);
                continue;
            }
            for item in chunk.items.iter().filter(|item| item.born < dies && born < item.dies) {
                if offset + bytes <= item.offset {
                    return offset;
                }
                offset = offset.max(item.end);
            }
        }
        offset
    }

    fn insert(&mut self, item: Placed) {
        let at = self.0.partition_point(|chunk| chunk.start <= item.offset).saturating_sub(1);
        let Some(chunk) = self.0.get_mut(at) else {
            self.0.push(Chunk::new(vec![item]));
            return;
        };
        let mut items = std::mem::take(&mut chunk.items);
        items.insert(items.partition_point(|other| other.offset <= item.offset), item);
        if items.len() > CHUNK {
            let second = items.split_off(CHUNK / 2);
            self.0.insert(at + 1, Chunk::new(second));
        }
        self.0[at] = Chunk::new(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::num::philox::Stream;

    /// The rule as it is stated, one request against all.
    fn lowest(placed: &[Placed], bytes: usize, born: usize, dies: usize) -> usize {
        let mut offset = 0;
        for item in placed.iter().filter(|item| item.born < dies && born < item.dies) {
            if offset + bytes <= item.offset {
                break;
            }
            offset = offset.max(item.end);
        }
        offset
    }

    #[test]
    fn chunks_give_the_places_that_single_requests_give() {
        for seed in 0..6 {
            let mut stream = Stream::new(seed, [2, 0, 0]);
            let (mut chunks, mut all) = (PlacedList::default(), Vec::<Placed>::new());
            // Few sizes and long lives: stacks without gaps beside holes of all sizes.
            let longest = if seed % 2 == 0 { 3000 } else { 40 };
            for _ in 0..1500 {
                let bytes = if seed < 3 { 64 * (1 + stream.below(3)) } else { stream.below(700) } as usize;
                let born = stream.below(3000) as usize;
                let dies = born + 1 + stream.below(longest) as usize;
                let offset = chunks.lowest(bytes, born, dies);
                assert_eq!(offset, lowest(&all, bytes, born, dies), "seed {seed}, after {}", all.len());
                if bytes > 0 {
                    let item = Placed { offset, end: offset + bytes, born, dies };
                    chunks.insert(item);
                    all.insert(all.partition_point(|other| other.offset <= offset), item);
                }
            }
            assert_eq!(chunks.0.iter().map(|chunk| chunk.items.len()).sum::<usize>(), all.len());
        }
    }

    #[test]
    fn slots_that_live_together_never_overlap_and_little_is_lost() {
        for seed in 0..20 {
            let mut stream = Stream::new(seed, [1, 0, 0]);
            let (mut events, mut alive, mut lives) = (Vec::new(), Vec::new(), Vec::new());
            for now in 0..300 {
                if alive.is_empty() || stream.below(2) == 0 {
                    alive.push(lives.len());
                    lives.push((stream.below(5000) as usize, now..300));
                    events.push(Event::Request(lives[lives.len() - 1].0));
                } else {
                    let i: usize = alive.swap_remove(stream.below(alive.len() as u32) as usize);
                    lives[i].1.end = now;
                    events.push(Event::Release(i));
                }
            }
            let plan = Plan::new(&events);
            for (i, (slot, (bytes, life))) in plan.slots.iter().zip(&lives).enumerate() {
                assert!(slot.bytes >= *bytes && slot.offset + slot.bytes <= plan.bytes());
                for (other, (_, before)) in plan.slots.iter().zip(&lives).take(i) {
                    let apart = slot.offset + slot.bytes <= other.offset || other.offset + other.bytes <= slot.offset;
                    assert!(apart || before.end < life.start, "seed {seed}: {slot:?} and {other:?} live together");
                }
            }
            let (bytes, least) = (plan.bytes(), plan.live_bytes());
            assert!(bytes >= least && bytes <= least + least / 2, "seed {seed}: {bytes} bytes, {least} alive at once");
        }
    }
}
