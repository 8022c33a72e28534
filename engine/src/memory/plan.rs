//! Where each request of a step goes in one block, decided before the first step.
//!
//! Requests are placed by size, the largest first, each at the lowest offset where it meets none that lives at the same
//! time (the greedy-by-size rule of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
//! 2020). Cost: quadratic in the number of requests, a few hundred per step.
use super::block::ALIGN;

/// What a dry run saw.
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
        let mut placed: Vec<usize> = Vec::new(); // by offset
        let mut total = 0;
        for i in order {
            let (bytes, born, dies) = requests[i];
            let mut offset = 0;
            for &j in &placed {
                let (_, other_born, other_dies) = requests[j];
                if born < other_dies && other_born < dies {
                    if offset + bytes <= slots[j].offset {
                        break;
                    }
                    offset = offset.max(slots[j].offset + slots[j].bytes);
                }
            }
            slots[i] = Slot { offset, bytes };
            total = total.max(offset + bytes);
            if bytes > 0 {
                let at = placed.partition_point(|&j| slots[j].offset <= offset);
                placed.insert(at, i);
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
    pub fn requests(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::num::philox::Stream;

    #[test]
    fn slots_that_live_together_never_overlap_and_little_is_lost() {
        for seed in 0..20 {
            let mut stream = Stream::new(seed, [1, 0, 0]);
            let (mut events, mut alive, mut requests) = (Vec::new(), Vec::new(), 0);
            for _ in 0..300 {
                if alive.is_empty() || stream.below(2) == 0 {
                    events.push(Event::Request(stream.below(5000) as usize));
                    alive.push(requests);
                    requests += 1;
                } else {
                    let i = alive.swap_remove(stream.below(alive.len() as u32) as usize);
                    events.push(Event::Release(i));
                }
            }
            let plan = Plan::new(&events);
            let mut live: Vec<usize> = Vec::new();
            let mut next = 0;
            for event in &events {
                match *event {
                    Event::Request(bytes) => {
                        let slot = plan.slots[next];
                        assert!(slot.bytes >= bytes && slot.offset + slot.bytes <= plan.bytes());
                        for &j in &live {
                            let other = plan.slots[j];
                            let apart =
                                slot.offset + slot.bytes <= other.offset || other.offset + other.bytes <= slot.offset;
                            assert!(apart, "seed {seed}: {slot:?} and {other:?} live together");
                        }
                        live.push(next);
                        next += 1;
                    }
                    Event::Release(i) => live.retain(|&j| j != i),
                }
            }
            let (bytes, least) = (plan.bytes(), plan.live_bytes());
            assert!(bytes >= least && bytes <= least + least / 2, "seed {seed}: {bytes} bytes, {least} alive at once");
        }
    }
}
