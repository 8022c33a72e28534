//! Timing in turns, so that what disturbs one contender most likely disturbs the others too.
//!
//! ```text
//! round 1:   peak  ours  peak  another  peak  copy          round 2:   peak  ours  ...
//! ```
//!
//! A contender's figure of a round is its best call of a slice of about 10 ms (one call, where a call takes longer). What
//! is reported are the median and the quartiles over all rounds; shares and ratios are formed within a round, before the
//! median is taken, so that a clock that moves from round to round moves both sides of them.
//!
//! Beside the clock on the wall stands the time that the process was on processors, over its threads: on a machine with
//! neighbors that is what the code takes, and the wall shows what is left of it.

use crate::clock::processor_time;
use kernels::{Cpu, roofline};
use serde::Serialize;
use std::{hint::black_box, time::Instant};

/// Rounds that a kernel is timed for at least.
pub const KERNEL_ROUNDS: usize = 15;
/// Rounds that a whole step is timed for at least.
pub const STEP_ROUNDS: usize = 5;
/// Seconds of calls of one contender in a round.
const SLICE: f64 = 0.01;
/// Seconds of one look at the FMA peak.
const PEAK_SLICE: f64 = 0.000_5;

/// Something that is called again and again.
pub struct Contender {
    /// `ours`, `prepacked`, `openblas`
    pub name: String,
    call: Box<dyn FnMut() + Send>,
    place: Place,
}

/// Context of the calls of a slice. A pass or the pool is entered once a slice, as a step enters it once: entering is no part of
/// a kernel.
#[derive(Clone, Debug)]
enum Place {
    Here,
    Pass(Cpu),
    Pool(Cpu),
}

impl Contender {
    /// Something that is called from the main thread, and has threads of its own if any.
    pub fn new(name: impl Into<String>, call: impl FnMut() + Send + 'static) -> Self {
        Self { name: name.into(), call: Box::new(call), place: Place::Here }
    }

    /// Its calls are made inside a pass ([`Cpu::enter`]), as kernels are.
    #[must_use]
    pub fn within_pass(self, cpu: &Cpu) -> Self {
        Self { place: Place::Pass(cpu.clone()), ..self }
    }

    /// Its calls are made on a thread of the pool ([`Cpu::install`]), for what runs on rayon.
    #[must_use]
    pub fn within_pool(self, cpu: &Cpu) -> Self {
        Self { place: Place::Pool(cpu.clone()), ..self }
    }

    /// Makes calls where they belong.
    pub fn with<R: Send>(&mut self, calls: impl FnOnce(&mut dyn FnMut()) -> R + Send) -> R {
        let Self { call, place, .. } = self;
        match place {
            Place::Here => calls(call),
            Place::Pass(cpu) => cpu.enter(|| calls(call)),
            Place::Pool(cpu) => cpu.install(|| calls(call)),
        }
    }
}

impl std::fmt::Debug for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The middle half of what was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// A quarter lies below.
    pub q1: f64,
    /// Half lies below.
    pub median: f64,
    /// Three quarters lie below.
    pub q3: f64,
}

impl Spread {
    /// Of `values`, between neighbors where a quartile falls between two; of none, NaN.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * values.len().saturating_sub(1) as f64;
            let (low, high) = (values.get(place.floor() as usize), values.get(place.ceil() as usize));
            match (low, high) {
                (Some(low), Some(high)) => low + (high - low) * place.fract(),
                _ => f64::NAN,
            }
        };
        Self { q1: at(0.25), median: at(0.5), q3: at(0.75) }
    }
}

/// What one contender took in each round, in seconds a call (a copy: in seconds a byte).
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// By the clock on the wall.
    pub wall: Vec<f64>,
    /// Time on processors, all threads together, over the number of threads.
    pub processor: Vec<f64>,
}

/// All rounds.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// FLOP/s of the machine in each round.
    pub peak: Vec<f64>,
    /// Of a copy, over the bytes that it reads and writes; empty where none was asked for.
    pub copy: Timing,
    /// Of each contender.
    pub timings: Vec<Timing>,
}

/// A copy within as many bytes as a kernel touches.
#[derive(Debug)]
struct Copy {
    source: Vec<f32>,
    target: Vec<f32>,
}

impl Copy {
    const CHUNK: usize = 1 << 14;

    fn within(bytes: usize) -> Self {
        let floats = (bytes / 8).max(1024);
        Self { source: vec![1.0; floats], target: vec![2.0; floats] }
    }

    fn run(&mut self, cpu: &Cpu) {
        let Self { source, target } = self;
        cpu.for_each_chunk(target, Self::CHUNK, |i, chunk| {
            chunk.copy_from_slice(&source[i * Self::CHUNK..][..chunk.len()]);
        });
        black_box(target);
    }

    fn bytes(&self) -> f64 {
        8.0 * self.source.len() as f64
    }
}

/// Takes the turns of one case.
#[derive(Debug)]
pub struct Turner {
    cpu: Cpu,
    contenders: Vec<Contender>,
    copy: Option<Copy>,
    turns: Turns,
}

impl Turner {
    /// Warms every contender up with two calls. `copied`: how many bytes a copy beside them touches, if it is wanted.
    pub fn new(cpu: &Cpu, mut contenders: Vec<Contender>, copied: Option<usize>) -> Self {
        for contender in &mut contenders {
            contender.with(|call| {
                call();
                call();
            });
        }
        let turns = Turns { timings: vec![Timing::default(); contenders.len()], ..Turns::default() };
        Self { cpu: cpu.clone(), contenders, copy: copied.map(Copy::within), turns }
    }

    /// One round.
    pub fn round(&mut self) {
        let Self { cpu, contenders, copy, turns } = self;
        let threads = cpu.threads() as f64;
        let mut peak = roofline::fma_peak(cpu, PEAK_SLICE);
        for (contender, timing) in contenders.iter_mut().zip(&mut turns.timings) {
            let (wall, processor) = contender.with(slice);
            timing.wall.push(wall);
            timing.processor.push(processor / threads);
            peak = peak.max(roofline::fma_peak(cpu, PEAK_SLICE));
        }
        turns.peak.push(peak);
        if let Some(copy) = copy {
            let (wall, processor) = cpu.enter(|| slice(&mut || copy.run(cpu)));
            turns.copy.wall.push(wall / copy.bytes());
            turns.copy.processor.push(processor / threads / copy.bytes());
        }
    }

    /// At least `rounds` rounds, and more until `seconds` have passed.
    pub fn run(mut self, rounds: usize, seconds: f64) -> Turns {
        let start = Instant::now();
        let mut done = 0;
        while done < rounds.max(1) || start.elapsed().as_secs_f64() < seconds {
            self.round();
            done += 1;
        }
        self.turns
    }

    /// The names of the contenders.
    pub fn names(&self) -> Vec<String> {
        self.contenders.iter().map(|contender| contender.name.clone()).collect()
    }

    /// What was measured since the last call.
    pub fn take(&mut self) -> Turns {
        let empty = Turns { timings: vec![Timing::default(); self.contenders.len()], ..Turns::default() };
        std::mem::replace(&mut self.turns, empty)
    }
}

/// The best call of a slice: seconds on the wall and on processors.
fn slice(call: &mut dyn FnMut()) -> (f64, f64) {
    let (mut wall, mut processor) = (f64::INFINITY, f64::INFINITY);
    let start = Instant::now();
    loop {
        let (one, used) = (Instant::now(), processor_time());
        call();
        wall = wall.min(one.elapsed().as_secs_f64());
        processor = processor.min((processor_time() - used).as_secs_f64());
        if start.elapsed().as_secs_f64() >= SLICE {
            return (wall.max(1e-9), processor.max(1e-9));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    #[test]
    fn quartiles_lie_between_neighbors() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(spread, Spread { q1: 1.75, median: 2.5, q3: 3.25 });
        assert_eq!(Spread::of([7.0]), Spread { q1: 7.0, median: 7.0, q3: 7.0 });
        assert!(Spread::of([]).median.is_nan());
    }

    #[test]
    fn contenders_take_turns_and_the_slower_one_takes_longer() {
        let cpu = Cpu::new(kernels::Isa::choose().unwrap(), 1).unwrap();
        let calls = Arc::new(Mutex::new([(0, String::new()), (0, String::new())]));
        let sleeper = |millis: u64, which: usize| {
            let calls = Arc::clone(&calls);
            move || {
                std::thread::sleep(Duration::from_millis(millis));
                let (count, thread) = &mut calls.lock().unwrap()[which];
                *count += 1;
                *thread = std::thread::current().name().unwrap_or_default().to_owned();
            }
        };
        let long = Contender::new("long", sleeper(22, 1)).within_pool(&cpu);
        let contenders = vec![Contender::new("short", sleeper(11, 0)), long];
        let turns = Turner::new(&cpu, contenders, Some(1 << 16)).run(3, 0.0);
        // Two calls to warm up, then one a round, because one fills the slice.
        let [(short, here), (long, there)] = calls.lock().unwrap().clone();
        assert_eq!((short, long), (5, 5));
        assert!(there == "rayon-0" && here != there, "{here} {there}");
        assert_eq!((turns.peak.len(), turns.copy.wall.len(), turns.timings[1].wall.len()), (3, 3, 3));
        let [short, long] = [0, 1].map(|i| Spread::of(turns.timings[i].wall.iter().copied()).median);
        assert!(short >= 0.011 && long >= 0.022 && long > short, "{short} {long}");
        assert!(turns.peak.iter().all(|&speed| speed > 1e7), "{turns:?}");
        assert!(turns.copy.wall.iter().chain(&turns.copy.processor).all(|&time| time < 1e-7), "{turns:?}");
    }
}
