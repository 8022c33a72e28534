//! Arithmetic and elementary functions, element by element, with broadcasting; casts and transposition.
//!
//! ```text
//! binary     y = a ∘ b          ∘ one of + - × ÷ and the last two with a and b exchanged; a, y [T, F]
//!            b as broadcast:    Full [T, F]     Scalar [1]     Row [F], one a column     Column [T], one a row
//! unary      y = f(x)           f one of exp, ln, tanh, sigmoid, relu
//!            dx = dy · f'       from what forward read or wrote, whichever f' is cheaper in ([`Unary::keeps`])
//! scale      y = c · x          add_assign  y += x          add_scaled  y += c · x in f32
//! cast       f32 <-> bf16       transpose   y [F, T] of x [T, F]      part   some columns into some of another, on a GPU
//! ```
//!
//! The gradient of an operand that was broadcast is a reduction over what it was spread along
//! ([`crate::reduce`]): all numbers for Scalar, columns for Row, rows for Column.
//!
//! Cost: every operand read once, y written once: bound by memory. Nothing is fused here; what a training step does
//! often has a kernel of its own.

mod cases;
mod cpu;
pub mod cuda;
pub mod reference;
#[cfg(test)]
mod tests;
mod transpose;

pub use cases::OPERATION;
pub use cpu::{add_assign, add_scaled, binary, cast, scale, unary_backward, unary_forward};
pub use transpose::transpose;

/// An operation of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a · b
    Mul,
    /// a / b
    Div,
    /// b - a
    SubFrom,
    /// b / a
    DivInto,
}

impl Binary {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Add, Self::Sub, Self::Mul, Self::Div, Self::SubFrom, Self::DivInto];
}

/// How the second operand is spread over the shape [T, F] of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broadcast {
    /// [T, F]: it is not.
    Full,
    /// \[1\]: one number for all.
    Scalar,
    /// \[F\]: one number a column, the same for every row.
    Row,
    /// \[T\]: one number a row, the same for every column.
    Column,
}

impl Broadcast {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Full, Self::Scalar, Self::Row, Self::Column];

    /// Numbers in the second operand.
    pub const fn len(self, rows: usize, columns: usize) -> usize {
        match self {
            Self::Full => rows.saturating_mul(columns),
            Self::Scalar => 1,
            Self::Row => columns,
            Self::Column => rows,
        }
    }
}

/// A function of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// e^x
    Exp,
    /// Natural logarithm.
    Ln,
    /// tanh x
    Tanh,
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// max(x, 0)
    Relu,
}

/// What backward of a [`Unary`] reads beside dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keeps {
    /// x
    Input,
    /// y
    Output,
}

impl Unary {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Exp, Self::Ln, Self::Tanh, Self::Sigmoid, Self::Relu];

    /// What backward reads.
    pub const fn keeps(self) -> Keeps {
        match self {
            Self::Ln => Keeps::Input,
            Self::Exp | Self::Tanh | Self::Sigmoid | Self::Relu => Keeps::Output,
        }
    }
}
