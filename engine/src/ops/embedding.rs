//! Rows of tables, picked by integers.
//!
//! ```text
//! y[t] = Σ_i table_i[ids_i[t]]          dtable_i[ids_i[t]] += dy[t], in token order
//! ```
//!
//! embedding_sum adds the rows of several tables as it reads them (word, segment and position), so the parts are never
//! stored. gather_rows picks rows of an activation: the masked positions, the first token of each sequence.
//! Cost: bandwidth. Gradients are added in the order of the tokens, whatever the number of threads.
use super::check;
use crate::{
    device::{Device, Gpu},
    dtype::{DType, floats},
    error::{EngineError, Result},
    launch::storage,
    param::ParamId,
    shape::Shape,
    tape::{BackwardContext, Op, SortedRows, Tape, Var, moved},
    tensor::Tensor,
};
use kernels::embedding as kernel;
use kernels_cuda::arguments::Address;
use kernels_cuda::embedding::{BackwardArgs, Gather, GatherArgs, Scatter};

/// Refuses an index beyond the table; in a dry run there is nothing to look at.
pub(super) fn check_ids(tape: &Tape<'_>, operation: &str, what: &str, ids: &Var, rows: usize) -> Result<()> {
    check::dtype(operation, what, ids, DType::U32)?;
    if tape.is_dry() {
        return Ok(());
    }
    let slice = ids.integers()?;
    match slice.iter().position(|&id| id as usize >= rows) {
        None => Ok(()),
        Some(at) => {
            let problem = format!("{what}[{at}] is {}, but there are only {rows} rows", slice[at]);
            Err(EngineError::shape(operation, problem))
        }
    }
}

/// `y[t] = table[ids[t]]`: ids `[..]` give `[.., E]`, in f32.
///
/// # Errors
/// An id is out of range for the table.
pub fn embedding(tape: &Tape<'_>, ids: &Var, table: ParamId) -> Result<Var> {
    embedding_sum(tape, &[(ids, table)], DType::F32)
}

/// The sum of one row of each table per token, stored as `dtype`.
///
/// # Errors
/// No tables are given or more than three, they differ in width, ids differ in shape, or an id is out of range for its table.
pub fn embedding_sum(tape: &Tape<'_>, lookups: &[(&Var, ParamId)], dtype: DType) -> Result<Var> {
    let params = tape.params();
    let Some(((first, table), _)) = lookups.split_first() else {
        return Err(EngineError::shape("embedding", "at least one table was expected"));
    };
    const MOST: usize = 3;
    if lookups.len() > MOST {
        let problem = format!("{} tables, and at most {MOST} are added in one pass; add the rest", lookups.len());
        return Err(EngineError::shape("embedding", problem));
    }
    let width = params.shape(*table).last().copied().unwrap_or(0);
    for (ids, table) in lookups {
        let operation = format!("embedding {}", params.name(*table));
        let &[rows, cols] = &params.shape(*table)[..] else {
            let problem = format!("embedding needs shape [rows, width], and it is {:?}", params.shape(*table));
            return Err(EngineError::parameter(params.name(*table), problem));
        };
        if cols != width {
            return Err(EngineError::shape(operation, format!("a table of width {cols} beside one of width {width}")));
        }
        check::shape(&operation, "ids", ids, first.shape())?;
        check_ids(tape, &operation, "ids", ids, rows)?;
    }
    if !dtype.is_float() {
        return Err(EngineError::dtype("embedding", "the output must be f32 or bf16"));
    }
    let mut dims = first.shape().to_array();
    let rank = first.shape().len();
    dims[rank] = width;
    let mut y = tape.alloc(&dims[..rank + 1], dtype)?;
    let bytes = y.len() * (dtype.bytes() + 4 * lookups.len());
    let lookup = |i: usize| kernel::Lookup { ids: lookups[i].0.value().slice(), table: params.values(lookups[i].1) };
    tape.launch_on("embedding", moved(bytes), |device| match device {
        Device::Cpu(cpu) => {
            floats!(dtype, X => {
                let y = y.slice_mut::<X>();
                match lookups.len() {
                    1 => kernel::forward(cpu, width, [lookup(0)], y),
                    2 => kernel::forward(cpu, width, [lookup(0), lookup(1)], y),
                    _ => kernel::forward(cpu, width, [lookup(0), lookup(1), lookup(2)], y),
                }
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let values = params.on_gpu(gpu)?;
            let lookups = lookups.iter().map(|(ids, table)| {
                [ids.value().address(), values.address().element(params.info(*table).range.start, 4)]
            });
            gather(gpu, Gather::sum(storage(dtype), lookups.len()), lookups, width, &mut y)
        }
    })?;
    let lookups = || lookups.iter().map(|(ids, table)| ((*ids).clone(), *table)).collect();
    tape.record_with_parameters(&[], y, || Embedding { lookups: lookups(), width })
}

/// y [.., width] of pairs of ids and table on the GPU.
fn gather(
    gpu: &Gpu,
    kernel: Gather,
    lookups: impl Iterator<Item = [Address; 2]>,
    width: usize,
    y: &mut Tensor,
) -> Result<()> {
    let tokens = y.len().checked_div(width).unwrap_or(0);
    let lookups: Vec<_> = lookups.collect();
    let arguments = GatherArgs::new(&lookups, y.address_mut(), tokens, width);
    gpu.run(&kernel, kernel.launch(tokens, width), &arguments)
}

/// Rows of up to three tables += dy on the GPU, the rows of ids for each: in the order of the tokens, without atomics.
fn add_rows<'a>(
    gpu: &Gpu,
    tables: impl Iterator<Item = (&'a Var, Address)>,
    width: usize,
    dy: &Tensor,
    dtype: DType,
) -> Result<()> {
    // Rows that are sorted here stay allocated until the launch.
    let (mut own, mut arguments) = (Vec::new(), Vec::with_capacity(3));
    for (ids, table) in tables {
        let sorted = match ids.sorted_rows() {
            Some(sorted) => sorted,
            None => {
                own.push(SortedRows::new(gpu, &ids.integers()?)?);
                &own[own.len() - 1]
            }
        };
        arguments.push((sorted.address(), sorted.count, table));
    }
    let pieces = arguments.iter().map(|(_, count, _)| count).sum();
    let partial = gpu.allocate(4 * pieces * width)?;
    let kernel = Scatter { dtype: storage(dy.dtype()), table: storage(dtype) };
    let arguments = BackwardArgs::new(&arguments, [dy.address(), partial.at(0)], width);
    gpu.run(&kernel, kernel.launch(pieces), &arguments)
}

struct Embedding {
    lookups: Box<[(Var, ParamId)]>,
    width: usize,
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        const NAME: &str = "embedding.backward";
        let bytes = dy.len() * (dy.dtype().bytes() + 8);
        if let Device::Cuda(gpu) = ctx.tape.device() {
            return ctx.tape.launch_on(NAME, moved(self.lookups.len() * bytes), |_| {
                // Ids of a launch have different rows and counters, so lookups of one table or by one list take a launch each.
                let is_twice = |i: usize| {
                    let (ids, table) = &self.lookups[i];
                    let is_same = |list: &Var| list.value().address() == ids.value().address();
                    self.lookups[..i].iter().any(|(list, earlier)| earlier == table || is_same(list))
                };
                let at_once = if (1..self.lookups.len()).any(is_twice) { 1 } else { self.lookups.len() };
                let flat = ctx.params.flat.address_mut();
                self.lookups.chunks(at_once).try_for_each(|lookups| {
                    let dtable = |table: &ParamId| flat.element(ctx.params.range(*table).start, 4);
                    let tables = lookups.iter().map(|(ids, table)| (ids, dtable(table)));
                    add_rows(gpu, tables, self.width, &dy, DType::F32)
                })
            });
        }
        for (ids, table) in &self.lookups {
            let range = ctx.params.range(*table);
            let flat = &mut ctx.params.flat;
            let rows = range.len() / self.width.max(1);
            let mut scratch = ctx.tape.alloc([kernel::backward_scratch_len(ids.value().len(), rows)], DType::U32)?;
            ctx.tape.launch(NAME, moved(bytes), |cpu| {
                let (dtable, scratch) = (&mut flat.slice_mut::<f32>()[range], scratch.slice_mut());
                floats!(dy.dtype(), X => {
                    kernel::backward(cpu, self.width, ids.value().slice(), dy.slice::<X>(), dtable, scratch);
                });
            })?;
        }
        Ok(())
    }
}

/// Rows `rows` `[M]` of x [T, ..]: [M, ..].
///
/// # Errors
/// A row is not there.
pub fn gather_rows(tape: &Tape<'_>, x: &Var, rows: &Var) -> Result<Var> {
    let dtype = check::float("gather_rows", x)?;
    check::rank("gather_rows", "rows", rows, 1)?;
    let Some(&count) = x.shape().first() else {
        return Err(EngineError::shape("gather_rows", "a single number has no rows"));
    };
    check_ids(tape, "gather_rows", "rows", rows, count)?;
    let from = *x.shape();
    let mut dims = from.to_array();
    dims[0] = rows.shape()[0];
    let mut y = tape.alloc(&dims[..from.len()], dtype)?;
    let width: usize = from[1..].iter().product();
    tape.launch_on("gather_rows", moved(2 * y.len() * dtype.bytes()), |device| match device {
        Device::Cpu(_) => {
            floats!(dtype, X => {
                let (x, y) = (x.value().slice::<X>(), y.slice_mut::<X>());
                for (&row, y) in rows.value().slice::<u32>().iter().zip(y.chunks_exact_mut(width.max(1))) {
                    y.copy_from_slice(&x[row as usize * width..][..width]);
                }
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let lookup = [rows.value().address(), x.value().address()];
            gather(gpu, Gather::rows(storage(dtype)), [lookup].into_iter(), width, &mut y)
        }
    })?;
    tape.record(&[x], y, || GatherRows { rows: rows.clone(), from })
}

struct GatherRows {
    rows: Var,
    from: Shape,
}

impl Op for GatherRows {
    fn name(&self) -> &'static str {
        "gather_rows"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        // The rows are added to the gradient of other uses in place, if there is one.
        let (mut dx, is_new) = match ctx.take_grad(0) {
            Some(dx) => (dx, false),
            None => (ctx.tape.alloc(self.from, dy.dtype())?, true),
        };
        let width: usize = self.from[1..].iter().product();
        let bytes = (if is_new { dx.len() } else { 0 } + 2 * dy.len()) * dy.dtype().bytes();
        ctx.tape.launch_on("gather_rows.backward", moved(bytes), |device| match device {
            Device::Cpu(_) => {
                let rows = self.rows.value().slice::<u32>();
                floats!(dy.dtype(), X => {
                    let dx = dx.slice_mut::<X>();
                    if is_new {
                        dx.fill(bytemuck::Zeroable::zeroed());
                    }
                    for (&row, dy) in rows.iter().zip(dy.slice::<X>().chunks_exact(width.max(1))) {
                        super::add_row(&mut dx[row as usize * width..][..width], dy);
                    }
                });
                Ok(())
            }
            Device::Cuda(gpu) => {
                if is_new {
                    dx.zero()?;
                }
                let (to, dtype) = (dx.address_mut(), dx.dtype());
                add_rows(gpu, [(&self.rows, to)].into_iter(), width, &dy, dtype)
            }
        })?;
        ctx.accumulate_grad(0, dx)
    }
}
