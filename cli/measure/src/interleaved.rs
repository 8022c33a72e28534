//! Interleaved timing: a disturbance of the machine is likely to affect all contenders.
//!
//! ```text
//! round 1:   peak  ours  peak  another  peak  copy          round 2:   peak  ours  ...
//! ```
//!
//! A contender's time in a round is its best call in a slice of about 10 ms (one call, if a call takes longer). Reports state
//! the median and the quartiles over all rounds. Shares and ratios are computed within a round, before the median, so that a
//! clock frequency that drifts between rounds cancels.
//!
//! Each time is reported twice: wall time, and CPU time divided by the number of threads, which other processes on
//! the machine affect less.

use crate::clock::processor_time;
use kernels::Cpu;
use serde::Serialize;
use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

/// Minimum number of rounds of a kernel.
pub const KERNEL_ROUNDS: usize = 15;
/// Minimum number of rounds of a step.
pub const STEP_ROUNDS: usize = 5;
/// Duration of the calls of one contender in a round, in seconds.
const SLICE: f64 = 0.01;
/// Time for which threads of a third-party library poll: 200 ms in Intel's OpenMP. Polling halved our speed on two cores.
const SPINNING: Duration = Duration::from_millis(300);
/// Duration of one measurement of the FMA peak, in seconds.
const PEAK_SLICE: f64 = 0.000_5;

/// Implementation to time.
pub struct Contender {
    /// Name in reports: `ours`, `prepacked`, `openblas`.
    pub name: String,
    call: Box<dyn FnMut() + Send>,
    place: Place,
    spins: bool,
}

/// Context of the calls of a slice. A pass or the pool is entered once per slice, as a step enters it once: entering is not part
/// of a kernel.
#[derive(Clone, Debug)]
enum Place {
    Here,
    Pass(Cpu),
    Pool(Cpu),
}

impl Contender {
    /// Contender that is called from the main thread and manages its own threads.
    pub fn new(name: impl Into<String>, call: impl FnMut() + Send + 'static) -> Self {
        Self { name: name.into(), call: Box::new(call), place: Place::Here, spins: false }
    }

    /// Runs the calls inside a pass ([`Cpu::enter`]), like kernels.
    #[must_use]
    pub fn within_pass(self, cpu: &Cpu) -> Self {
        Self { place: Place::Pass(cpu.clone()), ..self }
    }

    /// Runs the calls on a thread of the pool ([`Cpu::install`]), for code that uses rayon.
    #[must_use]
    pub fn within_pool(self, cpu: &Cpu) -> Self {
        Self { place: Place::Pool(cpu.clone()), ..self }
    }

    /// Waits after its calls until its worker threads, which poll for the next call, are asleep.
    #[must_use]
    pub fn with_spinning_threads(self) -> Self {
        Self { spins: true, ..self }
    }

    /// Runs `calls` in the contender's context.
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

/// Median and quartiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// First quartile.
    pub q1: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub q3: f64,
}

impl Spread {
    /// Quartiles of `values`, linearly interpolated; NaN if there are none.
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

/// Time of one contender in each round, in seconds per call (of the copy: seconds per byte).
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Wall time.
    pub wall: Vec<f64>,
    /// CPU time of all threads divided by the number of threads.
    pub processor: Vec<f64>,
}

/// Measurements of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    /// Peak of the machine in FLOP/s: of f32 multiply-adds, or of a matrix unit.
    pub peak: Vec<f64>,
    /// Copy, per byte read or written; empty without one.
    pub copy: Timing,
    /// Times of each contender.
    pub timings: Vec<Timing>,
}

/// Copy whose source and target together have as many bytes as a kernel accesses.
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

/// Contenders of one case, timed round by round.
#[derive(Debug)]
pub struct Interleaved {
    cpu: Cpu,
    contenders: Vec<Contender>,
    copy: Option<Copy>,
    peak: fn(&Cpu, f64) -> f64,
    rounds: Rounds,
}

impl Interleaved {
    /// Warms up every contender with two calls. `copied` is the number of bytes of a copy to time in each round, if any.
    /// `peak` measures the peak, such as [`kernels::roofline::fma_peak`].
    pub fn new(cpu: &Cpu, mut contenders: Vec<Contender>, copied: Option<usize>, peak: fn(&Cpu, f64) -> f64) -> Self {
        for contender in &mut contenders {
            contender.with(|call| {
                call();
                call();
            });
        }
        let rounds = Rounds { timings: vec![Timing::default(); contenders.len()], ..Rounds::default() };
        Self { cpu: cpu.clone(), contenders, copy: copied.map(Copy::within), peak, rounds }
    }

    /// Runs one round.
    pub fn round(&mut self) {
        let Self { cpu, contenders, copy, peak: of_peak, rounds } = self;
        let threads = cpu.threads() as f64;
        let mut peak = of_peak(cpu, PEAK_SLICE);
        for (contender, timing) in contenders.iter_mut().zip(&mut rounds.timings) {
            let (wall, processor) = contender.with(slice);
            timing.wall.push(wall);
            timing.processor.push(processor / threads);
            if contender.spins {
                thread::sleep(SPINNING);
            }
            peak = peak.max(of_peak(cpu, PEAK_SLICE));
        }
        rounds.peak.push(peak);
        if let Some(copy) = copy {
            let (wall, processor) = cpu.enter(|| slice(&mut || copy.run(cpu)));
            rounds.copy.wall.push(wall / copy.bytes());
            rounds.copy.processor.push(processor / threads / copy.bytes());
        }
    }

    /// Runs at least `rounds` rounds, and more until `seconds` have passed.
    pub fn run(mut self, rounds: usize, seconds: f64) -> Rounds {
        let start = Instant::now();
        let mut done = 0;
        while done < rounds.max(1) || start.elapsed().as_secs_f64() < seconds {
            self.round();
            done += 1;
        }
        self.rounds
    }

    /// Names of the contenders.
    pub fn names(&self) -> Vec<String> {
        self.contenders.iter().map(|contender| contender.name.clone()).collect()
    }

    /// Measurements since the last call.
    pub fn take(&mut self) -> Rounds {
        let empty = Rounds { timings: vec![Timing::default(); self.contenders.len()], ..Rounds::default() };
        std::mem::replace(&mut self.rounds, empty)
    }
}

/// Best call of a slice: wall time and CPU time in seconds.
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
    fn contenders_run_interleaved_and_the_slower_one_takes_longer() {
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
        let rounds = Interleaved::new(&cpu, contenders, Some(1 << 16), kernels::roofline::fma_peak).run(3, 0.0);
        // Two warm-up calls, then one per round, because one call fills the slice.
        let [(short, here), (long, there)] = calls.lock().unwrap().clone();
        assert_eq!((short, long), (5, 5));
        assert!(there == "rayon-0" && here != there, "{here} {there}");
        assert_eq!((rounds.peak.len(), rounds.copy.wall.len(), rounds.timings[1].wall.len()), (3, 3, 3));
        let [short, long] = [0, 1].map(|i| Spread::of(rounds.timings[i].wall.iter().copied()).median);
        assert!(short >= 0.011 && long >= 0.022 && long > short, "{short} {long}");
        assert!(rounds.peak.iter().all(|&speed| speed > 1e7), "{rounds:?}");
        assert!(rounds.copy.wall.iter().chain(&rounds.copy.processor).all(|&time| time < 1e-7), "{rounds:?}");
    }
}
