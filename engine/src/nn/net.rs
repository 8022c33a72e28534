//! Modules made of closures.
use super::{Graph, Module, Value};
use crate::{
    error::Result,
    tape::{Tape, Var},
};

/// A module of a closure, so that training and inference share a net of several layers: `x.apply(&net)`.
///
/// ```
/// # use engine::{ParamBuilder, nn::{self, Linear}};
/// # let mut params = ParamBuilder::new();
/// let l1 = Linear::new(&mut params.scope("l1"), 2, 8)?;
/// let l2 = Linear::new(&mut params.scope("l2"), 8, 2)?;
/// let net = nn::module(|x| x.apply(&l1)?.gelu()?.apply(&l2));
/// # let _ = net;
/// # Ok::<(), engine::EngineError>(())
/// ```
///
/// Without [`module`] the closure does not compile: the compiler gives a closure in a variable one lifetime for its argument
/// and another for its result, `lifetime may not live long enough`. A function names it:
/// `fn net<'t>(x: Value<'t>, ..) -> Result<Value<'t>>`.
pub fn module(net: impl for<'t> Fn(Value<'t>) -> Result<Value<'t>>) -> impl Module {
    Net(net)
}

struct Net<F>(F);

impl<F: for<'t> Fn(Value<'t>) -> Result<Value<'t>>> Module for Net<F> {
    fn forward(&self, tape: &Tape<'_>, x: &Var) -> Result<Var> {
        (self.0)(Graph::new(tape).value(x.clone())).map(Value::into_var)
    }
}
