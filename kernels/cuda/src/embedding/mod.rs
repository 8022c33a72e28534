//! Embedding on the GPU: gather and sum; gradient in a fixed order.
//!
//! ```text
//! out[t] = Σ_k table_k[ids_k[t]]                    [T, E]
//! dtable[v] += Σ_{t: ids[t] = v} dout[t]            [V, E]
//! ```
//!
//! The host sorts the tokens by id (ids are a batch's input, so the host has them) and cuts the tokens of one id into
//! pieces of at most `PIECE`, so that an id of half of all tokens (a segment) is not one long chain of additions:
//!
//! ```text
//! ids      4 1 4 0 1 4      order   3 | 1 4 | 0 2 5        pieces (of two, here)   3 | 1 4 | 0 2 | 5
//!
//! __global__ backward(dout, partial, pieces_0, count_0, dtable_0, .., width) {           // block: piece of a table
//!     sum = the rows of dout of its tokens, eight at a time as a tree
//!     dtable[id] += sum                                                                  // the only piece of its id
//!     partial[piece] = sum; the last block of the id to end: dtable[id] += partial[..] in order
//! }
//! __global__ gather(ids_0, table_0, .., out, tokens, width)    // a thread: one element of out
//! ```
//!
//! An integer counter of the id tells the last block. The tables of a launch differ, and so do their `pieces`: no two ids share a
//! row or a counter.
//!
//! Bound by memory: gather T·E·(N + 1) elements; backward T·E read, at most T·E written and read as pieces, and every used
//! row of the table read and written. Limits: T·E < 2³².

use crate::arguments::{Address, Load, all, arguments};
use crate::program::{Name, Pass, Program, storage_of};
use crate::reduce::last_block;
use kernels::DType;
use ptx::{Compare, Entry, F32, Global, Launch, Module, Ptr, Read, Reg, Sm, Special, Storage, U32};

/// Threads in a block.
const THREADS: u32 = 128;
/// Maximum tokens of a piece.
pub(crate) const PIECE: usize = 32;

/// Tokens of a batch by id, cut into pieces: input of backward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Number of pieces.
    pub count: usize,
    /// [count + 1, 4]: first position in the order, id, index among the pieces of the id, number of those. The last row starts
    /// at T. Then `[count]` counters that are 0 between launches, and `[T]` tokens in order of their ids, equal ids in order of
    /// tokens.
    pub words: Vec<u32>,
}

impl Pieces {
    /// Sorts the tokens of `ids` and cuts them into pieces.
    ///
    /// # Panics
    /// If there are 2³² tokens.
    pub fn new(ids: &[u32]) -> Self {
        let tokens = u32::try_from(ids.len()).expect("fewer than 2^32 tokens");
        let mut order: Vec<u32> = (0..tokens).collect();
        order.sort_by_key(|&token| ids[token as usize]);
        let mut words = Vec::with_capacity(Self::most(ids.len()));
        let mut start = 0;
        for same in order.chunk_by(|&a, &b| ids[a as usize] == ids[b as usize]) {
            let parts = same.chunks(PIECE);
            for (index, piece) in (0..).zip(parts.clone()) {
                words.extend([start, ids[same[0] as usize], index, parts.len() as u32]);
                start += piece.len() as u32;
            }
        }
        let count = words.len() / 4;
        words.extend([tokens, 0, 0, 0]);
        words.resize(words.len() + count, 0);
        words.extend(order);
        Self { count, words }
    }

    /// Maximum words of the pieces of `tokens` tokens.
    pub fn most(tokens: usize) -> usize {
        6 * tokens + 4
    }
}

/// Gather and sum of `tables` tables. Arguments: `ids_k, table_k` for each, then `out, tokens, width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Storage of the tables: f32, or that of out for rows of an activation.
    pub table: DType,
    /// Storage of out.
    pub dtype: DType,
    /// Number of tables that are summed.
    pub tables: usize,
}

/// Backward of up to three tables: adds the rows of dout to those of the tables ([`BackwardArgs`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// Storage of dout.
    pub dtype: DType,
    /// Storage of dtable: f32 for a table's gradient, the activation's for its gradient.
    pub table: DType,
}

fn program(name: Name, sm: Sm, registers: u32, body: impl FnOnce(&Entry)) -> Program {
    let mut module = Module::new(sm);
    module.entry(&name.entry(), [THREADS, 1, 1], |k| {
        k.maxnreg(registers);
        body(k);
    });
    Program::new(name, &module, registers)
}

fn launch(blocks: usize) -> Option<Launch> {
    (blocks > 0).then_some(Launch { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 })
}

fn name(pass: Pass, types: &str, sm: Sm, variant: &str) -> Name {
    Name::new(&format!("embedding.{}", pass.name()), &[types, sm.name(), &THREADS.to_string(), variant])
}

impl Gather {
    /// Sum of rows of `tables` tables in f32, stored as `dtype`.
    pub fn sum(dtype: DType, tables: usize) -> Self {
        Self { table: DType::F32, dtype, tables }
    }

    /// Rows of one matrix, in its own storage.
    pub fn rows(dtype: DType) -> Self {
        Self { table: dtype, dtype, tables: 1 }
    }

    /// All specializations.
    pub fn all() -> Vec<Self> {
        let both = [DType::Bf16, DType::F32];
        let sums = [3, 2, 1].into_iter().flat_map(|tables| both.map(|dtype| Self::sum(dtype, tables)));
        sums.chain([Self::rows(DType::Bf16)]).collect()
    }

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        let sum = format!("sum{}", self.tables);
        let variant = if self.table == DType::F32 { &sum } else { "rows" };
        name(Pass::Forward, self.dtype.name(), sm, variant)
    }

    /// Launch for out [tokens, width].
    pub fn launch(&self, tokens: usize, width: usize) -> Option<Launch> {
        launch((tokens * width).div_ceil(THREADS as usize))
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        program(self.name(sm), sm, 40, |k| {
            let tables = self.tables;
            let params = GatherArgs::declare(k, &|name| if name.ends_with("_1") { tables > 1 } else { tables > 2 });
            let GatherParams { ids_0, table_0, ids_1, table_1, ids_2, table_2, .. } = &params;
            let pairs = [Some(ids_0).zip(Some(table_0)), ids_1.as_ref().zip(table_1.as_ref())];
            let pairs = pairs.into_iter().chain([ids_2.as_ref().zip(table_2.as_ref())]).flatten();
            let lookups: Vec<_> = pairs.map(|(ids, table)| [ids.load(k), table.load(k)]).collect();
            let (out, storage, of_table) = (params.out.load(k), storage_of(self.dtype), storage_of(self.table));
            let (tokens, width) = (params.tokens.load(k), params.width.load(k));
            let i = k.mad_lo(k.special(Special::CtaidX), THREADS, k.special(Special::TidX));
            k.if_(k.lt(i, k.mul_lo(tokens, width)), || {
                let token = k.div_u32(i, width);
                let column = k.sub(i, k.mul_lo(token, width));
                let numbers = lookups.into_iter().map(|[ids, table]| {
                    let [id] = k.ld::<U32, 1>(k.index(ids, token, 4u32).at(0));
                    let row = k.index(table, id, k.shl(width, of_table.bytes().ilog2()));
                    k.load_elements(of_table, k.index(row, column, of_table.bytes()).at(0), 1, Read::Again)[0]
                });
                let sum = numbers.reduce(|sum, x| k.add(sum, x)).expect("at least one table");
                k.store_elements(storage, k.index(out, i, storage.bytes()).at(0), &[sum]);
            });
        })
    }
}

impl Scatter {
    /// All specializations.
    pub const ALL: [Self; 3] = [
        Self { dtype: DType::Bf16, table: DType::F32 },
        Self { dtype: DType::F32, table: DType::F32 },
        Self { dtype: DType::Bf16, table: DType::Bf16 },
    ];

    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        name(Pass::Backward, self.dtype.name(), sm, if self.table == DType::F32 { "tables" } else { "rows" })
    }

    /// Launch of one block per piece.
    pub fn launch(&self, pieces: usize) -> Option<Launch> {
        launch(pieces)
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        program(self.name(sm), sm, 64, |k| {
            let params = BackwardArgs::declare(k, &all);
            let [dout, partial] = [&params.dout, &params.partial].map(|param| param.load(k));
            let (width, storage, of_table) = (params.width.load(k), storage_of(self.dtype), storage_of(self.table));
            let (thread, block) = (k.special(Special::TidX), k.special(Special::CtaidX));
            let (table, piece) = Table::find(k, &params, block);
            let record = k.index(table.pieces, piece, 16u32);
            let ([begin, id, index, parts], [end]) = (k.ld::<U32, 4>(record.at(0)), k.ld::<U32, 1>(record.at(16)));
            let counters = k.index(table.pieces, k.add(table.count, 1u32), 16u32);
            let order = k.index(counters, table.count, 4u32);
            let row = k.index(table.dtable, id, k.shl(width, of_table.bytes().ilog2()));
            let (pitch, only) = (k.shl(width, 2), k.setp(Compare::Eq, parts, 1u32));
            let add = |column: Reg<U32>, terms: &dyn Fn(Reg<F32>)| {
                let to = k.index(row, column, of_table.bytes()).at(0);
                let total = k.variable("total", k.load_elements(of_table, to, 1, Read::Mutable)[0]);
                terms(total);
                k.store_elements(of_table, to, &[total]);
            };
            k.for_(thread, width, THREADS, |column| {
                let sum = sum_rows(k, (storage, k.index(dout, column, storage.bytes())), order, [begin, end, width]);
                let own = k.index(k.index(partial, block, pitch), column, 4u32).at(0);
                k.if_else(only, || add(column, &|total| k.add_into(total, total, sum)), || k.st(own, [sum]));
            });
            k.if_(k.setp(Compare::Ne, parts, 1u32), || {
                let counter = k.index(counters, k.sub(piece, index), 4u32).at(0);
                last_block(k, thread, counter, k.sub(parts, 1u32), || {
                    let first = k.sub(block, index);
                    k.for_(thread, width, THREADS, |column| {
                        let partial = k.index(partial, column, 4u32);
                        add(column, &|total| {
                            k.for_(first, k.add(first, parts), 1u32, |piece| {
                                let [part] = k.ld::<F32, 1>(k.index(partial, piece, pitch).at(0));
                                k.add_into(total, total, part);
                            });
                        });
                    });
                });
            });
        })
    }
}

/// Table of a block, in registers.
struct Table {
    pieces: Ptr<Global>,
    count: Reg<U32>,
    dtable: Ptr<Global>,
}

impl Table {
    /// The table of `block`, and the index of the block's piece in the table.
    fn find(k: &Entry, params: &BackwardParams, block: Reg<U32>) -> (Self, Reg<U32>) {
        let tables = [
            (&params.pieces_0, &params.count_0, &params.dtable_0),
            (&params.pieces_1, &params.count_1, &params.dtable_1),
            (&params.pieces_2, &params.count_2, &params.dtable_2),
        ];
        let [first, rest @ ..] = tables.map(|(pieces, count, dtable)| Self {
            pieces: pieces.load(k),
            count: count.load(k),
            dtable: dtable.load(k),
        });
        rest.into_iter().fold((first, block), |(table, piece), next| {
            let within = k.lt(piece, table.count);
            let choose = |a: Ptr<Global>, b: Ptr<Global>| k.pointer(k.selp(k.address_of(a), k.address_of(b), within));
            let piece = k.selp(piece, k.sub(piece, table.count), within);
            let (pieces, dtable) = (choose(table.pieces, next.pieces), choose(table.dtable, next.dtable));
            (Self { pieces, count: k.selp(table.count, next.count, within), dtable }, piece)
        })
    }
}

/// Sum of a column of the rows `begin .. end` in `order` of x, whose rows have `width` elements.
fn sum_rows(
    k: &Entry,
    (storage, x): (Storage, Ptr<Global>),
    order: Ptr<Global>,
    [begin, end, width]: [Reg<U32>; 3],
) -> Reg<F32> {
    const AT_ONCE: u32 = 8;
    let (sum, pitch) = (k.variable("sum", 0.0f32), k.shl(width, storage.bytes().ilog2()));
    k.for_(begin, end, AT_ONCE, |first| {
        // Several loads in flight; rows past the end are zero, which does not change the sum.
        let rows = (0..AT_ONCE).map(|i| {
            let at = k.add(first, i);
            let exists = k.lt(at, end);
            let token = k.mov(0u32);
            k.when(exists, || k.ld_into(k.index(order, at, 4u32).at(0), [token]));
            k.load_number_if(storage, k.index(x, token, pitch).at(0), exists, Read::Once)
        });
        let mut rows: Vec<_> = rows.collect();
        while rows.len() > 1 {
            rows = rows.chunks(2).map(|pair| k.add(pair[0], pair[1])).collect();
        }
        k.add_into(sum, sum, rows[0]);
    });
    sum
}

arguments! {
    /// Arguments of [`Gather`]: a pair of ids and table for each term of the sum.
    GatherArgs, declared as GatherParams {
        /// `[T]` u32
        ids_0: Address,
        /// [V, E]
        table_0: Address,
        /// `[T]` u32
        ids_1: Option<Address>,
        /// [V, E]
        table_1: Option<Address>,
        /// `[T]` u32
        ids_2: Option<Address>,
        /// [V, E]
        table_2: Option<Address>,
        /// [T, E]
        out: Address,
        /// T
        tokens: usize,
        /// E
        width: usize,
    }
}

impl GatherArgs {
    /// Arguments for one to three pairs of ids and table.
    ///
    /// # Panics
    /// If the number of pairs is not 1, 2 or 3.
    pub fn new(lookups: &[[Address; 2]], out: Address, tokens: usize, width: usize) -> Self {
        assert!((1..=3).contains(&lookups.len()), "{} pairs of ids and table", lookups.len());
        let [ids, table] = [0, 1].map(|which| [0, 1, 2].map(|i| lookups.get(i).map(|pair| pair[which])));
        let [ids_0, table_0] = lookups[0];
        Self { ids_0, table_0, ids_1: ids[1], table_1: table[1], ids_2: ids[2], table_2: table[2], out, tokens, width }
    }
}

arguments! {
    /// Arguments of [`Scatter`]: pieces and a gradient for each table.
    BackwardArgs, declared as BackwardParams {
        /// [T, E]
        dout: Address,
        /// [pieces of all tables, E] f32
        partial: Address,
        /// [`Pieces::words`]
        pieces_0: Address,
        /// [`Pieces::count`]
        count_0: usize,
        /// [V, E], added to
        dtable_0: Address,
        /// [`Pieces::words`]
        pieces_1: Address,
        /// [`Pieces::count`]
        count_1: usize,
        /// [V, E], added to
        dtable_1: Address,
        /// [`Pieces::words`]
        pieces_2: Address,
        /// [`Pieces::count`]
        count_2: usize,
        /// [V, E], added to
        dtable_2: Address,
        /// E
        width: usize,
    }
}

impl BackwardArgs {
    /// Arguments for one to three tables: pieces, their number and dtable of each.
    ///
    /// # Panics
    /// If there are no tables.
    pub fn new(tables: &[(Address, usize, Address)], [dout, partial]: [Address; 2], width: usize) -> Self {
        let (pieces_0, count_0, dtable_0) = tables[0];
        let table = |i: usize| tables.get(i).copied().unwrap_or((pieces_0, 0, dtable_0));
        let ((pieces_1, count_1, dtable_1), (pieces_2, count_2, dtable_2)) = (table(1), table(2));
        Self {
            dout,
            partial,
            pieces_0,
            count_0,
            dtable_0,
            pieces_1,
            count_1,
            dtable_1,
            pieces_2,
            count_2,
            dtable_2,
            width,
        }
    }
}
