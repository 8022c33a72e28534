//! Benchmark cases: products, attention, row kernels, the vocabulary projection with its loss, and whole model steps.
//!
//! A [`Work`] describes a case; [`Work::prepare`] creates its operands (random, never zeros) and calls. FLOPs count each
//! matrix product once and no recomputation; bytes are the minimum to read and write.

mod attention;
mod gemm;
mod rows;
mod rungs;
mod step;
mod vocabulary;

pub use attention::Attention;
pub use gemm::{BASE_SHAPES, Form, Product};
pub use rows::{Kernel, Rows};
pub use rungs::{RUNGS, Rung};
pub use step::{Mode, Step};
pub use vocabulary::Vocabulary;

use crate::{
    interleaved::{Contender, Interleaved, KERNEL_ROUNDS, STEP_ROUNDS},
    memory,
    report::{About, Bound, Record},
};
use anyhow::Result;
use half::bf16;
use kernels::{Cpu, Element, roofline};
use serde_json::{Map, Value};

/// Storage type of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE 754 single precision.
    F32,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes per element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Description of a case to time.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A matrix product.
    Product(Product),
    /// A rung of the ladder from three loops to the GEMM kernel.
    Rung(Rung),
    /// Attention, forward or backward.
    Attention(Attention),
    /// A row kernel: GELU, LayerNorm or softmax.
    Rows(Rows),
    /// The projection to the vocabulary with its loss.
    Vocabulary(Vocabulary),
    /// A forward pass or a training step of a model.
    Step(Step),
}

/// Prepared calls with their operands.
#[derive(Debug)]
pub struct Case {
    /// Description of the case.
    pub about: About,
    /// The implementations to time, ours first.
    pub contenders: Vec<Contender>,
}

impl Work {
    /// Creates operands and calls.
    ///
    /// # Errors
    /// A model cannot be built, or a call fails.
    pub fn prepare(&self, cpu: &Cpu) -> Result<Case> {
        match self {
            Self::Product(product) => product.prepare(cpu),
            Self::Rung(rung) => Ok(rung.prepare(cpu)),
            Self::Attention(attention) => Ok(attention.prepare(cpu)),
            Self::Rows(rows) => Ok(rows.prepare(cpu)),
            Self::Vocabulary(vocabulary) => Ok(vocabulary.prepare(cpu)),
            Self::Step(step) => step.prepare(cpu),
        }
    }

    /// Description of the case, without operands.
    pub fn about(&self) -> About {
        match self {
            Self::Product(product) => product.about(),
            Self::Rung(rung) => rung.about(),
            Self::Attention(attention) => attention.about(),
            Self::Rows(rows) => rows.about(),
            Self::Vocabulary(vocabulary) => vocabulary.about(),
            Self::Step(step) => step.about(),
        }
    }

    /// Minimum number of timed rounds.
    pub const fn rounds(&self) -> usize {
        match self {
            Self::Step(_) | Self::Rung(_) => STEP_ROUNDS,
            _ => KERNEL_ROUNDS,
        }
    }
}

/// Prepared and warmed-up case.
#[derive(Debug)]
pub struct Ready {
    cpu: Cpu,
    about: About,
    names: Vec<String>,
    interleaved: Interleaved,
}

impl Ready {
    /// Prepares `work` and warms it up. Resets the process's peak RSS first.
    ///
    /// # Errors
    /// As [`Work::prepare`].
    pub fn new(cpu: &Cpu, work: &Work) -> Result<Self> {
        memory::reset_peak();
        let Case { about, contenders } = work.prepare(cpu)?;
        let copied = (about.bound == Bound::Traffic).then_some(about.bytes as usize);
        let peak = if about.dtype.starts_with("bf16") { roofline::tile_peak } else { roofline::fma_peak };
        let interleaved = Interleaved::new(cpu, contenders, copied, peak);
        Ok(Self { cpu: cpu.clone(), about, names: interleaved.names(), interleaved })
    }

    /// Runs one round.
    pub fn round(&mut self) -> Record {
        self.interleaved.round();
        let rounds = self.interleaved.take();
        Record::new(&self.cpu, &self.about, &self.names, &rounds, memory::peak())
    }

    /// Runs at least `rounds` rounds, and more until `seconds` have passed.
    pub fn run(self, rounds: usize, seconds: f64) -> Record {
        let rounds = self.interleaved.run(rounds, seconds);
        Record::new(&self.cpu, &self.about, &self.names, &rounds, memory::peak())
    }
}

/// JSON object of sizes by name.
fn sizes<const N: usize>(named: [(&str, usize); N]) -> Map<String, Value> {
    named.into_iter().map(|(name, size)| (name.to_owned(), Value::from(size))).collect()
}

/// Storage type with random elements.
trait Random: Element {
    /// Returns `len` elements in `[-0.5, 0.5)`; `name` selects the random stream.
    fn random(len: usize, name: u32) -> Vec<Self>;
}

impl Random for f32 {
    fn random(len: usize, name: u32) -> Vec<Self> {
        crate::random(len, name)
    }
}

impl Random for bf16 {
    fn random(len: usize, name: u32) -> Vec<Self> {
        crate::random(len, name).into_iter().map(Self::from_f32).collect()
    }
}
