//! Progress of a long command: a bar on a terminal, lines otherwise.

use crate::output::{is_quiet, tell};
use albert::data::{Source, bytes_read};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Minimum time between two lines without a terminal, which keeps logs short.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum time without a step between two messages about a part of it.
const BAR_INTERVAL: Duration = Duration::from_secs(2);

/// Progress of a command on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    unit: &'static str,
    bar: Option<ProgressBar>,
    total: u64,
    first_step: u64,
    started: Instant,
    last_line: Option<Instant>,
    /// Last step, or message about a part of one.
    last_part: Instant,
}

impl Progress {
    /// Progress of a run that has not begun: only notes are shown.
    pub(crate) fn idle() -> Self {
        Self {
            unit: "step",
            bar: None,
            total: 0,
            first_step: 0,
            started: Instant::now(),
            last_line: None,
            last_part: Instant::now(),
        }
    }

    /// Progress from `first_step` (0 unless resumed) to `total`, counted in `unit`s.
    pub(crate) fn new(unit: &'static str, first_step: u64, total: u64) -> Self {
        let bar = (std::io::stderr().is_terminal() && !is_quiet()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
            let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {eta} left\n{msg}")
                .expect("the template is a constant");
            bar.set_style(style);
            bar.set_position(first_step);
            bar.reset_eta();
            bar
        });
        Self { unit, bar, total, first_step, started: Instant::now(), last_line: None, last_part: Instant::now() }
    }

    /// Shows that `step` steps are done, with `line` about the last or the next one.
    pub(crate) fn step(&mut self, step: u64, line: &str) {
        self.last_part = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_position(step);
            bar.set_message(line.to_owned());
        } else if self.last_line.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) || step == self.total {
            self.last_line = Some(Instant::now());
            let done = step.saturating_sub(self.first_step).max(1);
            let seconds = self.started.elapsed().as_secs_f64() * self.total.saturating_sub(step) as f64 / done as f64;
            let left = if step > self.first_step { format!(", {} left", duration(seconds)) } else { String::new() };
            tell!("{} {step}/{}{left}: {line}", self.unit, self.total);
        }
    }

    /// Shows that `done` of `all` parts of a step are done, for slow steps.
    pub(crate) fn within(&mut self, done: usize, all: usize) {
        let interval = if self.bar.is_some() { BAR_INTERVAL } else { LINE_INTERVAL };
        if done == 0 || done == all || self.last_part.elapsed() < interval {
            return;
        }
        self.last_part = Instant::now();
        let line = format!("{done} of {all} micro-batches of the next step");
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None => tell!("{line}"),
        }
    }

    /// Shows the current activity between two steps, on a terminal.
    pub(crate) fn now(&self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(line.to_owned());
        }
    }

    /// Changes the total.
    pub(crate) fn set_total(&mut self, total: u64) {
        self.total = total;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
        }
    }

    /// Prints a permanent line.
    pub(crate) fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| tell!("{line}")),
            None => tell!("{line}"),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Progress of reading text, shown by a separate thread until it is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Dropped first, which ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reading {
    /// Progress of reading all of `sources`.
    pub(crate) fn of(sources: &[Source]) -> Self {
        const MB: u64 = 1_000_000;
        let total = sources.iter().map(Source::text_size).sum::<Option<u64>>().map(|bytes| bytes / MB);
        let before = bytes_read();
        let (end, ended) = channel();
        let watch = move || {
            let mut progress = total.map(|total| Progress::new("megabyte", 0, total));
            let interval =
                if total.is_some() && std::io::stderr().is_terminal() { BAR_INTERVAL } else { LINE_INTERVAL };
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let read = (bytes_read() - before) / MB;
                match &mut progress {
                    Some(progress) => progress.step(read, "reading text"),
                    None => tell!("{read} MB of text read"),
                }
            }
            progress.iter().for_each(Progress::finish);
        };
        Self { end: Some(end), thread: thread::Builder::new().name("progress".to_owned()).spawn(watch).ok() }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the progress thread must not fail the command.
            let _ = thread.join();
        }
    }
}

/// Formats seconds: 45 s, 12 min 5 s, 3 h 20 min.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_at_most_two_units() {
        assert_eq!(duration(44.6), "45 s");
        assert_eq!(duration(725.0), "12 min 5 s");
        assert_eq!(duration(12_000.0), "3 h 20 min");
        assert_eq!(duration(-1.0), "0 s");
    }
}
