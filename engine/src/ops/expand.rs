//! Broadcasting as in NumPy: shapes are aligned at the last dimension, and a size of 1, or a missing dimension in front,
//! is repeated.
//!
//! ```text
//! y[.., i, ..] = x[.., 0, ..]          dx[.., 0, ..] = Σ_i dy[.., i, ..]
//! ```
//!
//! Adjacent repeated dimensions are one. So a repetition has a few stages, the last dimension first, and each makes
//! [outer, n, inner] of [outer, inner]. Gradients are summed in f32 and in a fixed order, the stages in reverse.
//! Cost: bandwidth, one copy a stage.
use super::check;
use crate::{
    device::Device,
    dtype::{DType, floats},
    error::{EngineError, Result},
    shape::{MAX_RANK, Shape},
    tape::{BackwardContext, Op, Tape, Var, moved},
    tensor::Tensor,
};
use kernels::{elementwise::Broadcast, reduce};

/// Size of dimension `i` of `rank`, of a shape that is aligned at the last one.
pub(super) fn aligned(shape: &Shape, rank: usize, i: usize) -> usize {
    (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i])
}

/// The shape that `a` and `b` broadcast to; `None` if two aligned sizes differ and neither is 1.
pub(super) fn joint(a: &Shape, b: &Shape) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let mut dims = [0; MAX_RANK];
    for (i, dim) in dims[..rank].iter_mut().enumerate() {
        *dim = match (aligned(a, rank, i), aligned(b, rank, i)) {
            (a, b) if a == b || b == 1 => a,
            (1, b) => b,
            _ => return None,
        };
    }
    Some(Shape::new(&dims[..rank]))
}

/// `x` repeated to `shape`: [S, E] or [1, S, E] to [B, S, E], [B, 1, S] to [B, A, S].
///
/// # Errors
/// A size of `x` is neither 1 nor that of `shape`, or `shape` has fewer dimensions.
pub fn expand(tape: &Tape<'_>, x: &Var, shape: impl Into<Shape>) -> Result<Var> {
    let (from, to) = (*x.shape(), shape.into());
    let dtype = check::float("expand", x)?;
    if joint(&from, &to) != Some(to) {
        let problem = format!("{from:?} cannot be repeated to {to:?}: aligned at the last dimension, sizes equal or 1");
        return Err(EngineError::shape("expand", problem));
    }
    let stages = stages(&from, &to);
    let mut y = x.value().clone();
    for &stage in &stages {
        let mut repeated = tape.alloc([stage.iter().product()], dtype)?;
        let bytes = (y.len() + repeated.len()) * dtype.bytes();
        tape.launch_on("expand", moved(bytes), |device| repeat(device, stage, &y, &mut repeated))?;
        y = repeated;
    }
    tape.record(&[x], y.reshape(to)?, || Expand { from, stages })
}

/// [outer, n, inner] of each stage, the last dimensions first.
fn stages(from: &Shape, to: &Shape) -> Vec<[usize; 3]> {
    let size = |i| aligned(from, to.len(), i);
    let (mut stages, mut end) = (Vec::new(), to.len());
    while end > 0 {
        let start = (0..end).rev().take_while(|&i| size(i) == 1).last().unwrap_or(end);
        let n = to[start..end].iter().product();
        if n != 1 {
            stages.push([(0..start).map(size).product(), n, to[end..].iter().product()]);
        }
        end = start.min(end - 1);
    }
    stages
}

/// y [outer, n, inner] of x [outer, inner].
fn repeat(device: &Device, [outer, n, inner]: [usize; 3], x: &Tensor, y: &mut Tensor) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    match device {
        Device::Cpu(_) => floats!(x.dtype(), X => {
            let rows = x.slice::<X>().chunks_exact(inner).zip(y.slice_mut::<X>().chunks_exact_mut(n * inner));
            for (x, y) in rows {
                match x {
                    [x] => y.fill(*x),
                    x => y.chunks_exact_mut(inner).for_each(|y| y.copy_from_slice(x)),
                }
            }
        }),
        Device::Cuda(gpu) => {
            let (dtype, pitch, target) = (y.dtype(), n * inner, y.address_mut());
            gpu.copy_columns(dtype, [outer, inner], (x.address(), inner), (target, pitch))?;
            // Each launch copies all that is there already, so that their number is a logarithm.
            let mut done = 1;
            while done < n {
                let count = done.min(n - done);
                let next = target.element(done * inner, dtype.bytes());
                gpu.copy_columns(dtype, [outer, count * inner], (target, pitch), (next, pitch))?;
                done += count;
            }
        }
    }
    Ok(())
}

/// Sums of terms [outer, n, inner] over n, f32 [outer, inner]: those of a number, of rows, or of columns.
pub(super) fn sums(
    tape: &Tape<'_>,
    name: &'static str,
    terms: &Tensor,
    broadcast: Broadcast,
    [outer, n, inner]: [usize; 3],
) -> Result<Tensor> {
    let mut sums = tape.alloc([outer * inner], DType::F32)?;
    let scratch_len = if broadcast == Broadcast::Row { reduce::column_sums_scratch_len(n, inner) } else { 0 };
    let mut scratch = tape.alloc([scratch_len], DType::F32)?;
    let dtype = terms.dtype();
    tape.launch_on(name, moved(terms.len() * dtype.bytes()), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => {
                let (terms, sums) = (terms.slice::<X>(), sums.slice_mut::<f32>());
                match broadcast {
                    Broadcast::Full => unreachable!("nothing is summed"),
                    Broadcast::Scalar => sums[0] = reduce::sum(cpu, terms) as f32,
                    Broadcast::Column => reduce::row_sums(cpu, n, terms, sums),
                    Broadcast::Row => {
                        sums.fill(0.0);
                        for o in 0..outer {
                            let (terms, sums) = (&terms[o * n * inner..][..n * inner], &mut sums[o * inner..][..inner]);
                            reduce::column_sums(cpu, n, inner, terms, sums, scratch.slice_mut());
                        }
                    }
                }
            });
            Ok(())
        }
        Device::Cuda(gpu) => match broadcast {
            Broadcast::Full => unreachable!("nothing is summed"),
            Broadcast::Scalar => gpu.scaled_sum(terms, 1.0, &mut sums),
            Broadcast::Column => gpu.row_sums(terms, n, &mut sums),
            Broadcast::Row => {
                sums.zero()?;
                (0..outer).try_for_each(|o| {
                    let from = terms.address().element(o * n * inner, dtype.bytes());
                    let to = sums.address_mut().element(o * inner, 4);
                    gpu.add_column_sums((from, dtype), [1, n, inner], [to])
                })
            }
        },
    })?;
    Ok(sums)
}

struct Expand {
    from: Shape,
    stages: Vec<[usize; 3]>,
}

impl Op for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let dtype = dy.dtype();
        let mut dx = dy;
        for &stage in self.stages.iter().rev() {
            let broadcast = match stage {
                [1, _, 1] => Broadcast::Scalar,
                [_, _, 1] => Broadcast::Column,
                _ => Broadcast::Row,
            };
            dx = sums(ctx.tape, "expand.backward", &dx, broadcast, stage)?;
        }
        let dx = super::cast(ctx.tape, dx.reshape(self.from)?, dtype)?;
        ctx.accumulate_grad(0, dx)
    }
}
