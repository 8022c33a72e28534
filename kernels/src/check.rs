//! Comparison of a kernel's result with its definition.
//!
//! The rule, the same for every operation: with e the greatest error against the f64 reference,
//!
//! ```text
//! e(kernel) <= 2 · e(naive) + 1 ulp of the output's scale
//! ```
//!
//! where *naive* is the definition evaluated in f32 in plain loop order on the same stored numbers, and the scale is
//! the greatest |reference|. No operation has an epsilon of its own. A definition is written once, generic over
//! [`Real`]: with f64 it is the reference, with f32 the naive implementation.
//!
//! Outputs start as NaN ([`Guarded::poisoned`]), so an element that was forgotten fails; bands of marked numbers around
//! them tell who wrote too far.

use crate::case::{Case, Outcome};
use crate::num::philox::Stream;
use crate::pool::Cpu;
use crate::runner::{GpuRunner, Runner};
use crate::simd::{DType, Element, Isa};
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
    /// Rounds a constant of the definition.
    fn of(x: f64) -> Self;
    /// Exact.
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

/// `len` uniform numbers in [-scale, scale), the same ones for the same seed, rounded to storage.
pub fn uniform<X: Element>(seed: u64, len: usize, scale: f32) -> Vec<X> {
    let mut stream = Stream::new(seed, [0x6368_6563, 0, 0]);
    (0..len).map(|_| X::from_f32(scale * (2.0 * stream.next_f32() - 1.0))).collect()
}

/// The stored numbers as `R`, exactly.
pub fn widen<R: Real, X: Element>(x: &[X]) -> Vec<R> {
    x.iter().map(|x| R::of(f64::from(x.to_f32()))).collect()
}

/// The numbers rounded to storage: how a naive implementation stores what it computed in f32.
pub fn store<X: Element>(x: &[f32]) -> Vec<X> {
    x.iter().map(|&x| X::from_f32(x)).collect()
}

/// One unit in the last place of a number of size `scale` stored as `dtype`.
pub fn ulp(scale: f64, dtype: DType) -> f64 {
    let fraction_bits = match dtype {
        DType::F32 => 23,
        DType::Bf16 => 7,
    };
    let exponent = if scale > 0.0 { scale.log2().floor().max(-126.0) } else { -126.0 };
    (exponent - f64::from(fraction_bits)).exp2()
}

/// The greatest error of `naive`.
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
/// Names the element that is out of bounds, with its value, the reference and the bound.
///
/// # Panics
/// If the lengths differ.
pub fn within<X: Element>(what: &str, got: &[X], naive: &[X], exact: &[f64]) -> Result<f64, String> {
    within_error(what, got, greatest_error(naive, exact), exact)
}

/// [`within`], where the naive implementation's error is known from a larger sample of the same numbers: the error of
/// a handful of elements is a matter of luck.
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
/// If an element is out of bounds; `case` says which case it was.
#[track_caller]
pub fn assert_within<X: Element>(case: &dyn std::fmt::Display, what: &str, got: &[X], naive: &[X], exact: &[f64]) {
    if let Err(message) = within(what, got, naive, exact) {
        panic!("{case}: {message}");
    }
}

/// Elements on either side of a guarded buffer.
static BAND: AtomicUsize = AtomicUsize::new(67);

/// Makes [`Guarded`] buffers from now on without bands, in every thread: for a process whose allocator puts every block beside
/// a page without access, so that the buffer itself has to begin or end there (`kernels/tests/guard_pages.rs`).
pub fn rely_on_guard_pages() {
    BAND.store(0, Ordering::Relaxed);
}

/// A buffer between two bands of marked numbers. Behaves as the slice between them.
#[derive(Clone, Debug)]
pub struct Guarded<X> {
    items: Vec<X>,
    band: usize,
}

impl<X: Element> Guarded<X> {
    fn mark(i: usize) -> X {
        X::from_f32(-1.0e6 - (i % 13) as f32 * 65_536.0)
    }
    /// The given numbers between bands.
    pub fn new(values: &[X]) -> Self {
        let width = BAND.load(Ordering::Relaxed);
        let mut items = Vec::with_capacity(values.len() + 2 * width);
        let band = || (0..width).map(Self::mark);
        items.extend(band().chain(values.iter().copied()).chain(band()));
        Self { items, band: width }
    }
    /// `len` NaNs between bands: an output before the kernel.
    pub fn poisoned(len: usize) -> Self {
        Self::new(&vec![X::from_f32(f32::NAN); len])
    }
    /// Checks that no band was written.
    ///
    /// # Errors
    /// The distance of the write from the buffer.
    pub fn intact(&self) -> Result<(), String> {
        let end = self.items.len() - self.band;
        for i in 0..self.band {
            let mark = Self::mark(i).to_f32().to_bits();
            if self.items[i].to_f32().to_bits() != mark {
                return Err(format!("written {} before the start", self.band - i));
            }
            if self.items[end + i].to_f32().to_bits() != mark {
                return Err(format!("written {i} behind the end"));
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

/// What computes a case.
pub(crate) enum On<'a> {
    /// The processor.
    Cpu(&'a Cpu),
    /// The programs.
    Gpu(&'a GpuRunner<'a>),
}

impl On<'_> {
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

/// Outcome of a case of an operation whose program for sm_80 serves every GPU: runs `check` on a processor that has the
/// runner's instruction set, or on a GPU for sm_80.
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

/// [`on_runner`] for an operation that has programs for every architecture.
pub(crate) fn on_any_runner(
    case: &Case,
    runner: &Runner<'_>,
    check: impl FnOnce(&On<'_>) -> Result<f64, String>,
) -> Outcome {
    let result = match runner {
        Runner::Cpu(kind) => match Isa::new(*kind) {
            None => return Outcome::Skipped { reason: format!("this machine lacks {kind}") },
            Some(isa) => Cpu::new(isa, 2).map_err(|error| error.to_string()).and_then(|cpu| check(&On::Cpu(&cpu))),
        },
        Runner::Gpu(gpu) => check(&On::Gpu(gpu)),
    };
    match result {
        Ok(worst) => Outcome::Passed { worst },
        Err(message) => Outcome::Failed { message: format!("{case} on {runner}: {message}") },
    }
}

/// One [`Cpu`] of two threads for every instruction set that can be tested here.
///
/// # Panics
/// If no threads can be had.
pub fn testable_cpus() -> Vec<Cpu> {
    Isa::testable().into_iter().map(|isa| Cpu::new(isa, 2).expect("threads for a test")).collect()
}

/// Runs `kernel` with 1, 2 and 5 threads on the widest instruction set and asserts that its outputs are equal bit by
/// bit.
///
/// # Panics
/// If they are not.
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
