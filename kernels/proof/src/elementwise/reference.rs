//! Definitions of the element-wise operations.

use crate::check::Real;
use kernels::elementwise::{Binary, Broadcast, Unary};

/// y = a ∘ b for `a` [T, columns].
pub fn binary<R: Real>(operation: Binary, broadcast: Broadcast, columns: usize, a: &[R], b: &[R]) -> Vec<R> {
    let element = |i: usize| match broadcast {
        Broadcast::Full => b[i],
        Broadcast::Scalar => b[0],
        Broadcast::Row => b[i % columns],
        Broadcast::Column => b[i / columns],
    };
    let apply = |a: R, b: R| match operation {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::SubFrom => b - a,
        Binary::DivInto => b / a,
    };
    a.iter().enumerate().map(|(i, &a)| apply(a, element(i))).collect()
}

/// f(x)
pub fn unary<R: Real>(function: Unary, x: R) -> R {
    match function {
        Unary::Exp => x.exp(),
        Unary::Ln => x.ln(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => R::of(1.0) / (R::of(1.0) + (-x).exp()),
        Unary::Relu => x.max(R::of(0.0)),
    }
}

/// f' from the operand that [`Unary::keeps`] selects.
pub fn unary_derivative<R: Real>(function: Unary, kept: R) -> R {
    let one = R::of(1.0);
    match function {
        Unary::Exp => kept,
        Unary::Ln => one / kept,
        Unary::Tanh => one - kept * kept,
        Unary::Sigmoid => kept * (one - kept),
        Unary::Relu => R::of(if kept > R::of(0.0) { 1.0 } else { 0.0 }),
    }
}
