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
    dtype::{DType, floats},
    error::{EngineError, Result},
    param::ParamId,
    shape::Shape,
    tape::{Op, Pass, Tape, Var, moved},
    tensor::Tensor,
};
use kernels::embedding as kernel;

/// Refuses an index beyond the table; in a dry run there is nothing to look at.
pub(super) fn check_ids(tape: &Tape<'_>, operation: &str, what: &str, ids: &Var, rows: usize) -> Result<()> {
    check::dtype(operation, what, ids, DType::U32)?;
    if tape.is_dry() {
        return Ok(());
    }
    let slice = ids.value().slice::<u32>();
    match slice.iter().position(|&id| id as usize >= rows) {
        None => Ok(()),
        Some(at) => {
            let problem = format!("{what}[{at}] is {}, but there are only {rows} rows", slice[at]);
            Err(EngineError::shape(operation, problem))
        }
    }
}

/// y[t] = table[ids[t]]: ids [..] give [.., E], in f32.
///
/// # Errors
/// An id is no row of the table.
pub fn embedding(tape: &Tape<'_>, ids: &Var, table: ParamId) -> Result<Var> {
    embedding_sum(tape, &[(ids, table)], DType::F32)
}

/// The sum of one row of each table per token, stored as `dtype`.
///
/// # Errors
/// No tables are given or more than three, they differ in width, ids differ in shape, or an id is no row of its table.
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
    tape.launch("embedding", moved(bytes), |cpu| {
        floats!(dtype, X => {
            let y = y.slice_mut::<X>();
            match lookups.len() {
                1 => kernel::forward(cpu, width, [lookup(0)], y),
                2 => kernel::forward(cpu, width, [lookup(0), lookup(1)], y),
                _ => kernel::forward(cpu, width, [lookup(0), lookup(1), lookup(2)], y),
            }
        });
    })?;
    let lookups = || lookups.iter().map(|(ids, table)| (ids.value().clone(), *table)).collect();
    tape.record_with_parameters(&[], y, || Embedding { lookups: lookups(), width })
}

struct Embedding {
    lookups: Box<[(Tensor, ParamId)]>,
    width: usize,
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        for (ids, table) in &self.lookups {
            let range = pass.params.range(*table);
            let flat = &mut pass.params.flat;
            let rows = range.len() / self.width.max(1);
            let mut scratch = pass.tape.alloc([kernel::backward_scratch_len(ids.len(), rows)], DType::U32)?;
            pass.tape.launch("embedding.backward", moved(dy.len() * (dy.dtype().bytes() + 8)), |cpu| {
                let (dtable, scratch) = (&mut flat.slice_mut::<f32>()[range], scratch.slice_mut());
                floats!(dy.dtype(), X => {
                    kernel::backward(cpu, self.width, ids.slice(), dy.slice::<X>(), dtable, scratch);
                });
            })?;
        }
        Ok(())
    }
}

/// Rows `rows` [M] of x [T, ..]: [M, ..].
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
    tape.launch("gather_rows", moved(2 * y.len() * dtype.bytes()), |_| {
        floats!(dtype, X => {
            let (x, y) = (x.value().slice::<X>(), y.slice_mut::<X>());
            for (&row, y) in rows.value().slice::<u32>().iter().zip(y.chunks_exact_mut(width.max(1))) {
                y.copy_from_slice(&x[row as usize * width..][..width]);
            }
        });
    })?;
    tape.record(&[x], y, || GatherRows { rows: rows.value().clone(), from })
}

struct GatherRows {
    rows: Tensor,
    from: Shape,
}

impl Op for GatherRows {
    fn name(&self) -> &'static str {
        "gather_rows"
    }
    fn backward(self: Box<Self>, dy: Tensor, pass: &mut Pass<'_, '_>) -> Result<()> {
        let mut dx = pass.tape.alloc(self.from, dy.dtype())?;
        let width: usize = self.from[1..].iter().product();
        let bytes = (dx.len() + 2 * dy.len()) * dy.dtype().bytes();
        pass.tape.launch("gather_rows.backward", moved(bytes), |_| {
            floats!(dy.dtype(), X => {
                let dx = dx.slice_mut::<X>();
                dx.fill(bytemuck::Zeroable::zeroed());
                for (&row, dy) in self.rows.slice::<u32>().iter().zip(dy.slice::<X>().chunks_exact(width.max(1))) {
                    super::add_row(&mut dx[row as usize * width..][..width], dy);
                }
            });
        })?;
        pass.give(0, dx)
    }
}
