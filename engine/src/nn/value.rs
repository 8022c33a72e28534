//! Variables with their tape: operations as methods.
use super::Module;
use crate::{
    dtype::Scalar,
    error::{EngineError, Result},
    ops::{self, Activation, Dropout, Transpose},
    param::ParamId,
    shape::Shape,
    tape::{Tape, Var},
};
use std::ops::{Deref, Range};

/// The tape of a step, whose inputs are [`Value`]s. [`Tape`] has the rest of its methods.
///
/// A function of a graph names its lifetime, `fn net<'t>(t: Graph<'t>, x: &[f32]) -> Result<Value<'t>>`, and a method too,
/// `fn net<'t>(&self, t: Graph<'t>, ..) -> Result<Value<'t>>`; a closure is given to [`Training::step`](super::Training::step)
/// or [`module`](super::module) directly.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'t>(&'t Tape<'t>);

impl<'t> Graph<'t> {
    /// The graph of `tape`.
    pub fn new(tape: &'t Tape<'t>) -> Self {
        Self(tape)
    }

    /// A copy of `elements` on the device: see [`Tape::input`].
    ///
    /// # Errors
    /// Their number is not that of the shape, or there is not enough memory.
    pub fn input<T: Scalar>(&self, shape: impl Into<Shape>, elements: &[T]) -> Result<Value<'t>> {
        Ok(self.value(self.0.input(shape, elements)?))
    }

    /// A parameter: see [`Tape::param`].
    ///
    /// # Errors
    /// There is not enough memory, or the device failed.
    pub fn param(&self, id: ParamId) -> Result<Value<'t>> {
        Ok(self.value(self.0.param(id)?))
    }

    /// A variable of this step, to go on with.
    pub fn value(&self, var: Var) -> Value<'t> {
        Value { tape: self.0, var }
    }
}

impl<'t> Deref for Graph<'t> {
    type Target = Tape<'t>;
    fn deref(&self) -> &Tape<'t> {
        self.0
    }
}

/// A [`Var`] with its tape. Each method is the operation of its name in [`crate::ops`], with its errors.
#[derive(Clone, Debug)]
pub struct Value<'t> {
    tape: &'t Tape<'t>,
    var: Var,
}

impl Deref for Value<'_> {
    type Target = Var;
    fn deref(&self) -> &Var {
        &self.var
    }
}

/// Methods for operations of one variable.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) = $operation:expr;)*) => {
        $($(#[$doc])*
        ///
        /// # Errors
        /// The shape or type does not fit, or the device failed.
        pub fn $name(&self, $($argument: $type),*) -> Result<Self> {
            let operation = $operation;
            self.with(operation(self.tape, &self.var, $($argument),*))
        })*
    };
}

/// Methods for operations of two variables.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        ///
        /// # Errors
        /// The shapes or types do not fit, or the device failed.
        pub fn $name(&self, other: &Self) -> Result<Self> {
            self.with(ops::$name(self.tape, &self.var, other))
        })*
    };
}

impl<'t> Value<'t> {
    fn with(&self, var: Result<Var>) -> Result<Self> {
        Ok(Self { tape: self.tape, var: var? })
    }

    /// The output of `module`.
    ///
    /// # Errors
    /// The shape or type does not fit, or the device failed.
    pub fn apply(&self, module: &impl Module) -> Result<Self> {
        self.with(module.forward(self.tape, &self.var))
    }

    unary! {
        /// e to the power of each element.
        exp() = ops::exp;
        /// Natural logarithm of each element.
        log() = ops::log;
        /// max(x, 0).
        relu() = ops::relu;
        /// 1 / (1 + exp(-x)).
        sigmoid() = ops::sigmoid;
        /// tanh(x).
        tanh() = ops::tanh;
        /// Softmax over the last dimension.
        softmax() = ops::softmax;
        /// Mean of all elements.
        mean() = ops::mean;
        /// Sum of all elements.
        sum() = ops::sum;
        /// c·x.
        scale(c: f32) = ops::scale;
        /// The activation of each element.
        activation(activation: Activation) = ops::activation;
        /// Dropout; `None` drops nothing.
        dropout(dropout: Option<Dropout>) = ops::dropout;
        /// Dimensions `a` and `b` exchanged.
        transpose(a: usize, b: usize) = ops::transpose;
    }

    binary! {
        /// x + y. Sizes are aligned at the last dimension; a size of 1, or a missing dimension in front, is repeated, as in
        /// NumPy: [B, A, S, S] and [S, S], [B, S, E] and [S, E], [B, A, S, S] and [B, 1, 1, S].
        add;
        /// x - y, broadcast as in [`Value::add`].
        sub;
        /// x·y, broadcast as in [`Value::add`].
        mul;
        /// x / y, broadcast as in [`Value::add`].
        div;
        /// Rows of x, picked by integers.
        gather_rows;
        /// mean (x - y)².
        mean_squared_error;
    }

    /// GELU in the tanh form.
    ///
    /// # Errors
    /// The variable holds integers, or the device failed.
    pub fn gelu(&self) -> Result<Self> {
        self.activation(Activation::GeluTanh)
    }

    /// Matrix product.
    ///
    /// # Errors
    /// The shapes or types do not fit, or the device failed.
    pub fn matmul(&self, other: &Self, transpose: Transpose) -> Result<Self> {
        self.with(ops::matmul(self.tape, &self.var, other, transpose))
    }

    /// The elements under another shape.
    ///
    /// # Errors
    /// The number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        self.with(ops::reshape(self.tape, &self.var, shape))
    }

    /// The elements repeated to a larger shape: see [`ops::expand`].
    ///
    /// # Errors
    /// A size is neither 1 nor that of `shape`.
    pub fn expand(&self, shape: impl Into<Shape>) -> Result<Self> {
        self.with(ops::expand(self.tape, &self.var, shape))
    }

    /// Indices `range` of dimension `axis`.
    ///
    /// # Errors
    /// There is no such dimension, or it is smaller.
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Self> {
        self.with(ops::slice(self.tape, &self.var, axis, range))
    }

    /// Mean cross-entropy of logits [M, C] and `labels` `[M]`.
    ///
    /// # Errors
    /// The shapes do not fit, a label is not a class, or the device failed.
    pub fn cross_entropy(&self, labels: &Self) -> Result<Self> {
        let rows = *self.shape().first().ok_or_else(|| EngineError::shape("cross_entropy", "a number has no rows"))?;
        self.with(ops::cross_entropy(self.tape, &self.var, labels, rows as f32).map(|output| output.loss))
    }

    /// The one element: see [`Tape::item`].
    ///
    /// # Errors
    /// There is not exactly one element.
    pub fn item(&self) -> Result<f32> {
        self.tape.item(&self.var)
    }

    /// The variable alone.
    pub fn into_var(self) -> Var {
        self.var
    }
}
