//! Arithmetic and elementary functions, element by element, with broadcasting; casts and transposition.
//!
//! ```text
//! binary     y = a ∘ b          ∘ one of + - × ÷, and - and ÷ with a and b exchanged; a, y [T, F]
//!            b as broadcast:    Full [T, F]     Scalar [1]     Row [F], one per column   Column [T], one per row
//! unary      y = f(x)           f one of exp, ln, tanh, sigmoid, relu
//!            dx = dy · f'       from x or y, whichever makes f' cheaper ([`Unary::keeps`])
//! scale      y = c · x          add_assign  y += x          add_scaled  y += c · x in f32
//! cast       f32 <-> bf16       transpose   y [F, T] of x [T, F]      part   copy of some columns, only on a GPU
//! ```
//!
//! The gradient of a broadcast operand is a reduction ([`crate::reduce`]): over all elements for Scalar, over each column
//! for Row, over each row for Column.
//!
//! Cost: every operand read once, y written once: memory-bound. Nothing is fused here; frequent operations of a training
//! step have fused kernels in other modules.
//!
//! ```
//! use kernels::{Cpu, elementwise::{add_assign, scale}};
//!
//! let (cpu, mut y) = (Cpu::detect()?, [0.0f32; 3]);
//! scale(&cpu, 2.0, &[1.0f32, 2.0, 3.0], &mut y);
//! add_assign(&cpu, &[10.0f32, 10.0, 10.0], &mut y);
//! assert_eq!(y, [12.0, 14.0, 16.0]);
//! # Ok::<(), kernels::CpuError>(())
//! ```

mod cpu;
mod transpose;

pub use cpu::{add_assign, add_scaled, binary, cast, scale, unary_backward, unary_forward};
pub use transpose::transpose;

/// Operation of two operands.
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
    /// All operations.
    pub const ALL: [Self; 6] = [Self::Add, Self::Sub, Self::Mul, Self::Div, Self::SubFrom, Self::DivInto];
}

/// Broadcast of the second operand to the shape [T, F] of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broadcast {
    /// \[T, F\]: not broadcast.
    Full,
    /// \[1\]: one element for all.
    Scalar,
    /// \[F\]: one element per column, the same for every row.
    Row,
    /// \[T\]: one element per row, the same for every column.
    Column,
}

impl Broadcast {
    /// All broadcasts.
    pub const ALL: [Self; 4] = [Self::Full, Self::Scalar, Self::Row, Self::Column];

    /// Number of elements of the second operand.
    pub const fn len(self, rows: usize, columns: usize) -> usize {
        match self {
            Self::Full => rows.saturating_mul(columns),
            Self::Scalar => 1,
            Self::Row => columns,
            Self::Column => rows,
        }
    }
}

/// Function of one operand.
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

/// Operand that backward of a [`Unary`] reads besides dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keeps {
    /// x
    Input,
    /// y
    Output,
}

impl Unary {
    /// All functions.
    pub const ALL: [Self; 5] = [Self::Exp, Self::Ln, Self::Tanh, Self::Sigmoid, Self::Relu];

    /// Operand that backward reads.
    pub const fn keeps(self) -> Keeps {
        match self {
            Self::Ln => Keeps::Input,
            Self::Exp | Self::Tanh | Self::Sigmoid | Self::Relu => Keeps::Output,
        }
    }
}
