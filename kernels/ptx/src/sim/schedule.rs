//! Schedules: which warp runs, for how long, and when asynchronous operations end.

use albert_num::philox::Stream;

/// Order in which the warps of a block, the blocks of a grid, the sides of a branch and the lanes of an atomic operation
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// In ascending order, 48 instructions each.
    RoundRobin,
    /// At random, up to 24 instructions each; lanes in descending order if the seed is odd.
    Random(u64),
    /// One warp runs as far as it can before any other gets a turn; the seed chooses the order of preference. Seed 0
    /// prefers the first, seed 1 the last, others a random order; lanes as for `Random`.
    Adversarial(u64),
}

impl Schedule {
    /// Five schedules that differ in kind.
    pub const FIVE: [Schedule; 5] = [
        Schedule::RoundRobin,
        Schedule::Random(1),
        Schedule::Random(2),
        Schedule::Adversarial(0),
        Schedule::Adversarial(1),
    ];
}

/// End of asynchronous operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// When a waiting thread cannot proceed otherwise.
    Latest,
    /// At their start.
    Earliest,
    /// At random times in between.
    Random(u64),
}

impl Completion {
    /// All kinds.
    pub const ALL: [Completion; 3] = [Completion::Latest, Completion::Earliest, Completion::Random(1)];
}

/// Random numbers of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Draw(Stream);

impl Draw {
    pub(crate) fn new(seed: u64, what: u32) -> Self {
        Draw(Stream::new(seed, [0x51, what, 0]))
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.0.next_u32()) * n as u64) >> 32) as usize
    }
}

/// Scheduler of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    schedule: Schedule,
    draw: Draw,
    /// Preference of an adversarial schedule, the best first.
    order: Vec<usize>,
    last: usize,
    /// Warp, and how often it has given up its turn with no other in between.
    yields: (usize, u32),
}

/// Turns given up in a row after which a warp is taken to be polling.
const POLLS: u32 = 256;

impl Chooser {
    pub(crate) fn new(schedule: Schedule, warps: usize) -> Self {
        let seed = match schedule {
            Schedule::RoundRobin => 0,
            Schedule::Random(seed) | Schedule::Adversarial(seed) => seed,
        };
        let mut draw = Draw::new(seed, 0);
        let mut order: Vec<usize> = (0..warps).collect();
        match schedule {
            Schedule::Adversarial(1) => order.reverse(),
            Schedule::Adversarial(seed) if seed > 1 => {
                (1..warps).rev().for_each(|i| order.swap(i, draw.below(i + 1)));
            }
            _ => {}
        }
        Chooser { schedule, draw, order, last: warps.saturating_sub(1), yields: (0, 0) }
    }

    /// One of the `ready` warps, and the most instructions of its turn.
    pub(crate) fn next(&mut self, ready: impl Fn(usize) -> bool) -> Option<(usize, u32)> {
        let warps = self.order.len();
        match self.schedule {
            Schedule::RoundRobin => {
                let found = (1..=warps).map(|i| (self.last + i) % warps).find(|warp| ready(*warp))?;
                self.last = found;
                Some((found, 48))
            }
            Schedule::Random(_) => {
                let candidates: Vec<usize> = (0..warps).filter(|warp| ready(*warp)).collect();
                if candidates.is_empty() {
                    return None;
                }
                Some((candidates[self.draw.below(candidates.len())], 1 + self.draw.below(24) as u32))
            }
            Schedule::Adversarial(_) => {
                let at = self.order.iter().position(|warp| ready(*warp))?;
                Some((self.order[at], 4096))
            }
        }
    }

    /// Demotes a warp that used all of its turn without waiting: it may be spinning.
    pub(crate) fn tire(&mut self, warp: usize) {
        if let (Schedule::Adversarial(_), Some(at)) =
            (self.schedule, self.order.iter().position(|other| *other == warp))
        {
            let warp = self.order.remove(at);
            self.order.push(warp);
        }
    }

    /// Notes that a warp has given up its turn; one that does so repeatedly is polling for another warp, and is
    /// demoted.
    pub(crate) fn give_up(&mut self, warp: usize) {
        self.yields = (warp, if self.yields.0 == warp { self.yields.1 + 1 } else { 1 });
        if self.yields.1 == POLLS {
            self.yields.1 = 0;
            self.tire(warp);
        }
    }

    /// Whether the lanes that take a branch run before those that do not.
    pub(crate) fn taken_first(&mut self) -> bool {
        match self.schedule {
            Schedule::RoundRobin => false,
            Schedule::Random(_) => self.draw.below(2) == 0,
            Schedule::Adversarial(seed) => seed % 2 == 0,
        }
    }

    /// Whether the lanes of an atomic operation execute it in descending order: PTX leaves the order open.
    pub(crate) fn lanes_descend(&self) -> bool {
        matches!(self.schedule, Schedule::Random(seed) | Schedule::Adversarial(seed) if seed % 2 == 1)
    }

    /// The order in which `count` blocks begin.
    pub(crate) fn blocks(&mut self, count: usize) -> Box<dyn Iterator<Item = usize>> {
        match self.schedule {
            Schedule::Random(_) => {
                let mut order: Vec<usize> = (0..count).collect();
                (1..count).rev().for_each(|i| order.swap(i, self.draw.below(i + 1)));
                Box::new(order.into_iter())
            }
            Schedule::Adversarial(seed) if seed % 2 == 1 => Box::new((0..count).rev()),
            Schedule::RoundRobin | Schedule::Adversarial(_) => Box::new(0..count),
        }
    }

    /// Instructions after which the next block of a cluster has its turn.
    pub(crate) fn share(&mut self) -> u64 {
        match self.schedule {
            Schedule::RoundRobin => 0,
            Schedule::Random(_) => self.draw.below(256) as u64,
            Schedule::Adversarial(_) => 20_000,
        }
    }

    /// Whether a warp that polls gets a turn although nothing has changed.
    pub(crate) fn wakes_early(&mut self) -> bool {
        matches!(self.schedule, Schedule::Random(_)) && self.draw.below(16) == 0
    }
}
