//! What can be timed: products, attention, the row kernels, the vocabulary's loss, and whole steps of a model.
//!
//! A [`Work`] is a value that says what; [`Work::prepare`] makes its operands (random, never zeros) and the calls. FLOPs are
//! those of products, once each, nothing that is computed again; bytes are those that have to be read and written at least.

mod attention;
mod gemm;
mod rows;
mod rungs;
mod step;
mod vocabulary;

pub use attention::Attention;
pub use gemm::{Form, Product};
pub use rows::{Kernel, Rows};
pub use rungs::{RUNGS, Rung};
pub use step::{Mode, Step};
pub use vocabulary::Vocabulary;

use crate::{
    measure::{Contender, KERNEL_ROUNDS, STEP_ROUNDS, Turner},
    memory,
    report::{About, Bound, Record},
};
use anyhow::Result;
use half::bf16;
use kernels::{Cpu, Element};
use serde_json::{Map, Value};

/// How operands are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Something to be timed.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A matrix product.
    Product(Product),
    /// A rung of the ladder to it.
    Rung(Rung),
    /// Attention, forward or backward.
    Attention(Attention),
    /// A kernel that walks rows.
    Rows(Rows),
    /// The projection to the vocabulary with its loss.
    Vocabulary(Vocabulary),
    /// A pass or a training step of a model.
    Step(Step),
}

/// Calls with their operands.
#[derive(Debug)]
pub struct Case {
    /// What it is.
    pub about: About,
    /// Ours first.
    pub contenders: Vec<Contender>,
}

impl Work {
    /// Makes operands and calls.
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

    /// Rounds that it is timed for at least.
    pub const fn rounds(&self) -> usize {
        match self {
            Self::Step(_) | Self::Rung(_) => STEP_ROUNDS,
            _ => KERNEL_ROUNDS,
        }
    }
}

/// A case that is ready for its rounds.
#[derive(Debug)]
pub struct Ready {
    cpu: Cpu,
    about: About,
    names: Vec<String>,
    turner: Turner,
}

impl Ready {
    /// Prepares `work` and warms it up. The process's peak of memory counts from here.
    ///
    /// # Errors
    /// As [`Work::prepare`].
    pub fn new(cpu: &Cpu, work: &Work) -> Result<Self> {
        memory::reset_peak();
        let Case { about, contenders } = work.prepare(cpu)?;
        let copied = (about.bound == Bound::Traffic).then_some(about.bytes as usize);
        let turner = Turner::new(cpu, contenders, copied);
        Ok(Self { cpu: cpu.clone(), about, names: turner.names(), turner })
    }

    /// One round alone.
    pub fn round(&mut self) -> Record {
        self.turner.round();
        let turns = self.turner.take();
        Record::new(&self.cpu, &self.about, &self.names, &turns, memory::peak())
    }

    /// At least `rounds` rounds, and more until `seconds` have passed.
    pub fn run(self, rounds: usize, seconds: f64) -> Record {
        let turns = self.turner.run(rounds, seconds);
        Record::new(&self.cpu, &self.about, &self.names, &turns, memory::peak())
    }
}

/// Sizes by their names.
fn sizes<const N: usize>(named: [(&str, usize); N]) -> Map<String, Value> {
    named.into_iter().map(|(name, size)| (name.to_owned(), Value::from(size))).collect()
}

/// A storage type that operands can be made of.
trait Random: Element {
    /// `len` numbers in [-0.5, 0.5).
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
