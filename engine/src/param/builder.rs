//! Declaration of parameters: names, shapes, initial values.
//!
//! ```text
//! ParamBuilder ── scope("l1") ──> ParamScope ── Linear::new(&mut scope, 2, 8) ──> l1.weight [8, 2], l1.bias [8]
//!      └─ build: random    allocate: zeros    load: a file ──> ParamStore
//! ```
//!
//! Building a model declares its parameters in order; nothing is allocated before the last line. So the builder is also
//! the list that files, counts and optimizers go by.

use super::{ParamId, ParamStore};
use crate::{
    dtype::DType,
    error::{EngineError, Result},
    io::Safetensors,
    memory::Arena,
    shape::Shape,
    tensor::Tensor,
};
use kernels::{Cpu, num::philox::Stream};
use std::{collections::HashMap, ops::Range, sync::Mutex};

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero: biases.
    Zeros,
    /// All one: gains.
    Ones,
    /// Normal with this standard deviation, redrawn beyond two of them: weights. (What is left has 0.88 of it.)
    TruncatedNormal(f32),
    /// Uniform between minus this and this.
    Uniform(f32),
}

/// Name, shape, place and initial values of a parameter.
#[derive(Clone, Debug)]
pub struct ParamInfo {
    /// Unique name.
    pub name: String,
    /// Shape.
    pub shape: Shape,
    /// Range in the flat buffers.
    pub range: Range<usize>,
    /// Initial values.
    pub init: Init,
}

impl ParamInfo {
    /// True for matrices and tables, which start at random; false for biases and gains, which start at a constant.
    pub fn is_weight(&self) -> bool {
        !matches!(self.init, Init::Zeros | Init::Ones)
    }
}

/// Declares parameters, one behind another.
#[derive(Debug, Default)]
pub struct ParamBuilder {
    infos: Vec<ParamInfo>,
    ids: HashMap<String, ParamId>,
    len: usize,
    weights: Option<Init>,
}

impl ParamBuilder {
    /// No parameters. Each layer chooses the initial values of its weights.
    pub fn new() -> Self {
        Self::default()
    }

    /// No parameters. All weights and tables of layers begin as `weights` says.
    pub fn with_weights(weights: Init) -> Self {
        Self { weights: Some(weights), ..Self::default() }
    }

    /// Adds a parameter.
    ///
    /// # Errors
    /// The name is taken.
    pub fn add(&mut self, name: impl Into<String>, shape: impl Into<Shape>, init: Init) -> Result<ParamId> {
        let (name, shape) = (name.into(), shape.into());
        let id = ParamId(self.infos.len() as u32);
        if self.ids.insert(name.clone(), id).is_some() {
            return Err(EngineError::parameter(name, "added twice; every parameter needs a name of its own"));
        }
        let end = self.len + shape.elements();
        self.infos.push(ParamInfo { name, shape, range: self.len..end, init });
        self.len = end;
        Ok(id)
    }

    /// A scope: parameters added to it are called `name.` and their own name.
    pub fn scope(&mut self, name: &str) -> ParamScope<'_> {
        ParamScope { builder: self, prefix: format!("{name}.") }
    }

    /// The parameters so far, in order.
    pub fn infos(&self) -> &[ParamInfo] {
        &self.infos
    }

    /// Number of values in all parameters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is not one value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Allocates the values and draws them: see [`ParamStore::draw`].
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn build(self, cpu: &Cpu, seed: u64) -> Result<ParamStore> {
        let mut store = self.allocate()?;
        store.draw(cpu, seed, |_| true)?;
        Ok(store)
    }

    /// Allocates the values and reads them from the tensors of their names: see [`ParamStore::load`].
    ///
    /// # Errors
    /// A tensor is missing or does not fit, or there is not enough memory.
    pub fn load(self, file: &Safetensors) -> Result<ParamStore> {
        let mut store = self.allocate()?;
        store.load(file, |_| true)?;
        Ok(store)
    }

    /// Allocates the values, all zero; [`ParamStore::draw`], [`ParamStore::load`] and [`ParamStore::values_mut`] set them.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate(self) -> Result<ParamStore> {
        Ok(ParamStore {
            values: Tensor::new(&Arena::default(), [self.len], DType::F32)?,
            infos: self.infos,
            ids: self.ids,
            host_version: 1,
            version: 1,
            packs: Mutex::default(),
            quantized: Mutex::default(),
            on_gpu: Mutex::default(),
        })
    }
}

/// Adds parameters under a common beginning of their names.
#[derive(Debug)]
pub struct ParamScope<'b> {
    builder: &'b mut ParamBuilder,
    /// Ends with a dot.
    prefix: String,
}

impl ParamScope<'_> {
    /// Adds a parameter called `name` within the scope.
    ///
    /// # Errors
    /// The name is taken.
    pub fn add(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ParamId> {
        self.builder.add(format!("{}{name}", self.prefix), shape, init)
    }

    /// Adds a weight or table: it begins as [`ParamBuilder::with_weights`] says, else as `init` does.
    ///
    /// # Errors
    /// The name is taken.
    pub fn add_weight(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<ParamId> {
        let init = self.builder.weights.unwrap_or(init);
        self.add(name, shape, init)
    }

    /// A scope within this one.
    pub fn scope(&mut self, name: &str) -> ParamScope<'_> {
        ParamScope { prefix: format!("{}{name}.", self.prefix), builder: self.builder }
    }
}

/// Elements drawn from one stream of the generator.
const CHUNK: usize = 1 << 14;

pub(super) fn initialize(cpu: &Cpu, seed: u64, info: &ParamInfo, values: &mut [f32]) {
    let hash = crate::io::hash64(info.name.as_bytes());
    // The generator serves other purposes under the same seed; the constant keeps their streams apart.
    let stream =
        |chunk: usize| Stream::new(seed ^ 0x696e_6974_6961_6c73, [chunk as u32, hash as u32, (hash >> 32) as u32]);
    match info.init {
        Init::Zeros => values.fill(0.0),
        Init::Ones => values.fill(1.0),
        Init::TruncatedNormal(deviation) => cpu.for_each_chunk(values, CHUNK, |chunk, values| {
            let mut stream = stream(chunk);
            for value in values {
                let mut draw = stream.normal();
                while draw.abs() > 2.0 {
                    draw = stream.normal();
                }
                *value = (draw * f64::from(deviation)) as f32;
            }
        }),
        Init::Uniform(limit) => cpu.for_each_chunk(values, CHUNK, |chunk, values| {
            let mut stream = stream(chunk);
            values.iter_mut().for_each(|value| *value = limit * (2.0 * stream.next_f32() - 1.0));
        }),
    }
}
