//! Input checks shared by all operations, and their error messages.
use super::FLOATS;
use crate::{
    dtype::DType,
    error::{EngineError, Result},
    tape::Var,
};

/// Refuses integers.
pub(super) fn float(operation: &str, x: &Var) -> Result<DType> {
    match x.dtype() {
        dtype if dtype.is_float() => Ok(dtype),
        dtype => {
            let [a, b] = FLOATS;
            Err(EngineError::dtype(operation, format!("{a} or {b} was expected, {:?} is {dtype}", x.shape())))
        }
    }
}

/// Refuses integers and a mixture of float types.
pub(super) fn same_float(operation: &str, inputs: &[&Var]) -> Result<DType> {
    let dtype = float(operation, inputs[0])?;
    for x in &inputs[1..] {
        if float(operation, x)? != dtype {
            let problem = format!(
                "all inputs must have one type, {:?} is {dtype}, {:?} is {}",
                inputs[0].shape(),
                x.shape(),
                x.dtype()
            );
            return Err(EngineError::dtype(operation, problem));
        }
    }
    Ok(dtype)
}

/// Refuses another element type.
pub(super) fn dtype(operation: &str, what: &str, x: &Var, expected: DType) -> Result<()> {
    if x.dtype() == expected {
        return Ok(());
    }
    Err(EngineError::dtype(operation, format!("{what} {:?} must be {expected}, it is {}", x.shape(), x.dtype())))
}

/// Refuses another shape.
pub(super) fn shape(operation: &str, what: &str, x: &Var, expected: &[usize]) -> Result<()> {
    if x.shape()[..] == *expected {
        return Ok(());
    }
    Err(EngineError::shape(operation, format!("{what} is {:?}, but {expected:?} was expected", x.shape())))
}

/// Refuses anything but so many dimensions.
pub(super) fn rank(operation: &str, what: &str, x: &Var, expected: usize) -> Result<()> {
    if x.shape().len() == expected {
        return Ok(());
    }
    let problem = format!("{what} is {:?}, but {expected} dimensions were expected", x.shape());
    Err(EngineError::shape(operation, problem))
}
