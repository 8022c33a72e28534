//! Comparison of a kernel's result with its definition.
//!
//! One rule for every operation: with e the maximum error against the f64 reference,
//!
//! ```text
//! e(kernel) <= 2 · e(naive) + 1 ulp of the output's scale
//! ```
//!
//! where *naive* is the definition evaluated in f32 in plain loop order on the same stored elements, and the scale is
//! the maximum of |reference|. No operation has its own epsilon. A definition is generic over [`Real`]: with f64 it is the
//! reference, with f32 the naive implementation. For tensor cores of a GPU, also a simulated one, the greater of naive's error
//! and that of truncated sums counts.
//!
//! Outputs start as NaN ([`Guarded::poisoned`]), so that elements without a write fail; bands of marked elements around
//! them detect writes out of bounds.

use crate::case::{Case, Outcome};
use crate::recorded::{Data, Output};
use crate::runner::{CpuRunner, GpuRunner, Runner};
use kernels::pool::Cpu;
use kernels::{DType, Element, simd::Isa};
use ptx::Sm;
use std::ops::{Add, Deref, DerefMut, Div, Mul, Neg, Sub};
use std::sync::atomic::{AtomicUsize, Ordering};

/// f64 (the reference) or f32 (the naive implementation).
pub trait Real:
    Copy
    + PartialOrd
    + std::fmt::Debug
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// Rounds a constant of a definition.
    fn of(x: f64) -> Self;
    /// Widens exactly.
    fn to_f64(self) -> f64;
    /// √x
    fn sqrt(self) -> Self;
    /// e^x
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// tanh x
    fn tanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// The greater of the two.
    fn max(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            fn tanh(self) -> Self {
                <$t>::tanh(self)
            }
            fn erf(self) -> Self {
                libm::erf(f64::from(self)) as $t
            }
        }
    };
}
real!(f64);
real!(f32);

/// `len` uniform random elements in [-scale, scale), determined by the seed, rounded to storage.
pub fn uniform<X: Element>(seed: u64, len: usize, scale: f32) -> Vec<X> {
    Data::Uniform.uniform(seed, len, scale)
}

/// Widens elements to `R` exactly.
pub fn widen<R: Real, X: Element>(x: &[X]) -> Vec<R> {
    x.iter().map(|x| R::of(f64::from(x.to_f32()))).collect()
}

/// Rounds f32 results to storage, as a naive implementation does.
pub fn store<X: Element>(x: &[f32]) -> Vec<X> {
    x.iter().map(|&x| X::from_f32(x)).collect()
}

/// Unit in the last place of a value of magnitude `scale` stored as `dtype`.
pub fn ulp(scale: f64, dtype: DType) -> f64 {
    let fraction_bits = match dtype {
        DType::F32 => 23,
        DType::Bf16 => 7,
    };
    let exponent = if scale > 0.0 { scale.log2().floor().max(-126.0) } else { -126.0 };
    (exponent - f64::from(fraction_bits)).exp2()
}

/// Maximum error of `naive`.
///
/// # Panics
/// If the lengths differ.
pub fn greatest_error<X: Element>(naive: &[X], exact: &[f64]) -> f64 {
    assert_eq!(naive.len(), exact.len());
    naive.iter().zip(exact).fold(0.0f64, |m, (x, e)| m.max((f64::from(x.to_f32()) - e).abs()))
}

/// Checks `got` against the rule; returns the error over the bound (at most 1).
///
/// # Errors
/// The element that exceeds the bound, with its value, the reference and the bound.
///
/// # Panics
/// If the lengths differ.
pub fn within<X: Element>(what: &str, got: &[X], naive: &[X], exact: &[f64]) -> Result<f64, String> {
    within_error(what, got, greatest_error(naive, exact), exact)
}

/// [`within`] with the naive error of a larger sample of the same distribution: the error of a few elements varies too
/// much.
///
/// # Errors
/// As [`within`].
///
/// # Panics
/// If the lengths differ.
pub fn within_error<X: Element>(what: &str, got: &[X], naive_error: f64, exact: &[f64]) -> Result<f64, String> {
    assert_eq!(got.len(), exact.len(), "{what}: lengths differ");
    let scale = exact.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let bound = 2.0 * naive_error + ulp(scale, X::DTYPE);
    let mut worst = 0.0f64;
    for (i, (x, e)) in got.iter().zip(exact).enumerate() {
        let x = f64::from(x.to_f32());
        let error = (x - e).abs();
        if error.is_nan() || error > bound {
            let n = got.len();
            return Err(format!(
                "{what}[{i}] of {n}: {x:e}, reference {e:e}; error {error:e}, bound {bound:e} (naive {naive_error:e})"
            ));
        }
        worst = worst.max(error / bound);
    }
    Ok(worst)
}

/// [`within`], for tests.
///
/// # Panics
/// If an element exceeds the bound; `case` is part of the message.
#[track_caller]
pub fn assert_within<X: Element>(case: &dyn std::fmt::Display, what: &str, got: &[X], naive: &[X], exact: &[f64]) {
    if let Err(message) = within(what, got, naive, exact) {
        panic!("{case}: {message}");
    }
}

/// Elements on either side of a guarded buffer.
static BAND: AtomicUsize = AtomicUsize::new(67);

/// Disables the bands of [`Guarded`] buffers in all threads: for a process whose allocator places every block next to a
/// guard page, where the buffer itself must begin or end (`kernels/proof/tests/guard_pages.rs`).
pub fn rely_on_guard_pages() {
    BAND.store(0, Ordering::Relaxed);
}

/// Buffer between two bands of marked elements; dereferences to the slice between them.
#[derive(Clone, Debug)]
pub struct Guarded<X> {
    items: Vec<X>,
    band: usize,
}

impl<X: Element> Guarded<X> {
    fn mark(i: usize) -> X {
        X::from_f32(-1.0e6 - (i % 13) as f32 * 65_536.0)
    }
    /// Copies `values` between bands.
    pub fn new(values: &[X]) -> Self {
        let width = BAND.load(Ordering::Relaxed);
        let mut items = Vec::with_capacity(values.len() + 2 * width);
        let band = || (0..width).map(Self::mark);
        items.extend(band().chain(values.iter().copied()).chain(band()));
        Self { items, band: width }
    }
    /// `len` NaNs between bands: an uninitialized output.
    pub fn poisoned(len: usize) -> Self {
        Self::new(&vec![X::from_f32(f32::NAN); len])
    }
    /// Checks that no band was written.
    ///
    /// # Errors
    /// Distance of the write from the buffer.
    pub fn intact(&self) -> Result<(), String> {
        let end = self.items.len() - self.band;
        for i in 0..self.band {
            let mark = Self::mark(i).to_f32().to_bits();
            if self.items[i].to_f32().to_bits() != mark {
                return Err(format!("written {} before the start", self.band - i));
            }
            if self.items[end + i].to_f32().to_bits() != mark {
                return Err(format!("written {i} past the end"));
            }
        }
        Ok(())
    }
    /// [`intact`](Self::intact), for tests.
    ///
    /// # Panics
    /// If a band was written to.
    #[track_caller]
    pub fn assert_intact(&self, case: &dyn std::fmt::Display) {
        self.intact().unwrap_or_else(|message| panic!("{case}: {message}"));
    }
}

impl<X> Deref for Guarded<X> {
    type Target = [X];
    fn deref(&self) -> &[X] {
        &self.items[self.band..self.items.len() - self.band]
    }
}

impl<X> DerefMut for Guarded<X> {
    fn deref_mut(&mut self) -> &mut [X] {
        let end = self.items.len() - self.band;
        &mut self.items[self.band..end]
    }
}

/// Device that computes a case.
pub(crate) enum On<'a> {
    /// The processor.
    Cpu(&'a CpuRunner<'a>),
    /// The programs.
    Gpu(&'a GpuRunner<'a>),
}

impl On<'_> {
    /// Values of the inputs.
    pub(crate) fn data(&self) -> Data {
        match self {
            Self::Cpu(cpu) => cpu.data(),
            Self::Gpu(_) => Data::Uniform,
        }
    }

    /// [`uniform`], turned into the runner's data.
    pub(crate) fn uniform<X: Element>(&self, seed: u64, len: usize, scale: f32) -> Vec<X> {
        self.data().uniform(seed, len, scale)
    }

    /// True if outputs are recorded and not compared.
    pub(crate) fn is_recording(&self) -> bool {
        matches!(self, Self::Cpu(cpu) if cpu.is_recording())
    }

    /// Records `outputs` and returns true, or returns false if they are compared. Every check calls it as soon as the outputs
    /// are complete, and returns 0 without computing the reference if it returns true.
    pub(crate) fn records(&self, outputs: impl FnOnce() -> Vec<Output>) -> bool {
        match self {
            Self::Cpu(cpu) if cpu.is_recording() => {
                cpu.record(outputs());
                true
            }
            _ => false,
        }
    }

    /// [`within`]; 0 if nothing is computed.
    pub(crate) fn within<X: Element>(&self, what: &str, got: &[X], naive: &[X], exact: &[f64]) -> Result<f64, String> {
        self.compared(|| within(what, got, naive, exact))
    }

    /// The verdict of `compare` on results; 0 if nothing is computed.
    pub(crate) fn compared(&self, compare: impl FnOnce() -> Result<f64, String>) -> Result<f64, String> {
        match self {
            Self::Cpu(_) => compare(),
            Self::Gpu(gpu) => gpu.compared(compare),
        }
    }
}

/// Outcome of a case of an operation that has only programs for sm_80: runs `check` on a CPU with the runner's instruction
/// set, or on a GPU of sm_80.
pub(crate) fn on_runner(
    case: &Case,
    runner: &Runner<'_>,
    check: impl FnOnce(&On<'_>) -> Result<f64, String>,
) -> Outcome {
    match runner {
        Runner::Gpu(gpu) if gpu.sm() == Sm::Sm90a => {
            Outcome::Skipped { reason: "the program for sm_80 serves sm_90a too".to_string() }
        }
        _ => on_any_runner(case, runner, check),
    }
}

/// [`on_runner`] for an operation with programs for every architecture.
pub(crate) fn on_any_runner(
    case: &Case,
    runner: &Runner<'_>,
    check: impl FnOnce(&On<'_>) -> Result<f64, String>,
) -> Outcome {
    let result = match runner {
        Runner::Cpu(kind) => match Isa::new(*kind) {
            None => return Outcome::Skipped { reason: format!("this machine lacks {kind}") },
            Some(isa) => Cpu::new(isa, 2)
                .map_err(|error| error.to_string())
                .and_then(|cpu| check(&On::Cpu(&CpuRunner::checking(&cpu)))),
        },
        Runner::Recording(cpu) => check(&On::Cpu(cpu)),
        Runner::Gpu(gpu) => check(&On::Gpu(gpu)),
    };
    match result {
        Ok(worst) => Outcome::Passed { worst },
        Err(message) => Outcome::Failed { message: format!("{case} on {runner}: {message}") },
    }
}

/// One [`Cpu`] of two threads for every testable instruction set.
///
/// # Panics
/// If a thread cannot be started.
pub fn testable_cpus() -> Vec<Cpu> {
    Isa::testable().into_iter().map(|isa| Cpu::new(isa, 2).expect("threads for a test")).collect()
}

/// Runs `kernel` with 1, 2 and 5 threads on the widest instruction set and asserts that its outputs have the same bits.
///
/// # Panics
/// If the bits differ.
#[track_caller]
pub fn assert_same_for_any_thread_count(case: &dyn std::fmt::Display, kernel: impl Fn(&Cpu) -> Vec<f32>) {
    let isa = *Isa::real().last().expect("every machine has Scalar");
    let outputs = [1, 2, 5].map(|threads| (threads, kernel(&Cpu::new(isa, threads).expect("threads for a test"))));
    let (_, first) = &outputs[0];
    for (threads, output) in &outputs[1..] {
        for (i, (a, b)) in first.iter().zip(output).enumerate() {
            assert_eq!(a.to_bits(), b.to_bits(), "{case}: element {i} is {a:e} with 1 thread, {b:e} with {threads}");
        }
    }
}

/// Slopes of `loss` at `x`, by central differences of 2 · `step` in each element.
#[cfg(test)]
pub(crate) fn slopes(x: &[f64], step: f64, loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let at = |i: usize, step: f64| {
        let mut moved = x.to_vec();
        moved[i] += step;
        loss(&moved)
    };
    (0..x.len()).map(|i| (at(i, step) - at(i, -step)) / (2.0 * step)).collect()
}

/// Asserts that each element of a gradient is within `bound` of the slope.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_slopes(what: &str, gradient: &[f64], slopes: &[f64], bound: f64) {
    assert_eq!(gradient.len(), slopes.len(), "{what}");
    for (i, (gradient, slope)) in gradient.iter().zip(slopes).enumerate() {
        assert!((slope - gradient).abs() < bound, "{what}[{i}]: {gradient} for {slope}");
    }
}
