//! Embedding on the GPU: gather and sum; gradient in a fixed order, without atomics.
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
//!                                                          ids of pieces           0 | 1   | 4        used [0, 1, 4]
//! __global__ pieces(dout, order, starts, partial, width) {     // block: piece; partial[piece] = its rows, added in order
//! __global__ add(partial, used, first, dtable, width) {      // block: id; dtable[used[i]] += partial[first[i] ..] in order
//! __global__ gather(ids_0, table_0, .., out, tokens, width)    // a thread: one element of out
//! ```
//!
//! Bound by memory: gather T·E·(N + 1) elements; backward T·E read, at most T·E written and read as pieces, and every used
//! row of the table read and written. Limits: T·E < 2³².

use crate::arguments::{Address, Load, all, arguments};
use crate::program::{Name, Pass, Program, storage_of};
use kernels::DType;
use ptx::{Entry, F32, Launch, Module, Read, Sm, Special, U32};

/// Threads in a block.
const THREADS: u32 = 128;
/// Maximum tokens of a piece.
pub(crate) const PIECE: usize = 32;

/// Tokens of a batch by id, cut into pieces: input of the two kernels of backward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// `[T]` tokens in order of their ids, equal ids in order of tokens.
    pub order: Vec<u32>,
    /// First position of each piece in `order`, then T.
    pub starts: Vec<u32>,
    /// Ids that occur, ascending.
    pub used: Vec<u32>,
    /// First piece of each used id, then the number of pieces.
    pub first: Vec<u32>,
}

impl Pieces {
    /// Sorts the tokens of `ids` and cuts them into pieces.
    ///
    /// # Panics
    /// If there are 2³² tokens.
    pub fn new(ids: &[u32]) -> Self {
        let mut order: Vec<u32> = (0..u32::try_from(ids.len()).expect("fewer than 2^32 tokens")).collect();
        order.sort_by_key(|&token| ids[token as usize]);
        let (mut starts, mut used, mut first) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = 0;
        for same in order.chunk_by(|&a, &b| ids[a as usize] == ids[b as usize]) {
            used.push(ids[same[0] as usize]);
            first.push(starts.len() as u32);
            for piece in same.chunks(PIECE) {
                starts.push(at);
                at += piece.len() as u32;
            }
        }
        first.push(starts.len() as u32);
        starts.push(at);
        Self { order, starts, used, first }
    }

    /// Rows of the partial sums [pieces, E].
    pub fn count(&self) -> usize {
        self.starts.len() - 1
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

/// First pass of backward: sums of pieces, eight rows at a time as a tree. Arguments: `dout, order, starts, partial, width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumPieces {
    /// Storage of dout.
    pub dtype: DType,
}

/// Second pass of backward: adds pieces to rows of the table. Arguments: `partial, used, first, dtable, width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddPieces {
    /// Storage of dtable: f32 for a table's gradient, the activation's for its gradient.
    pub dtype: DType,
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

impl SumPieces {
    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        name(Pass::Backward, self.dtype.name(), sm, "pieces")
    }

    /// Launch of one block per piece.
    pub fn launch(&self, pieces: &Pieces) -> Option<Launch> {
        launch(pieces.count())
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        const AT_ONCE: u32 = 8;
        program(self.name(sm), sm, 64, |k| {
            let params = SumPiecesArgs::declare(k, &all);
            let [dout, order, starts, partial] =
                [&params.dout, &params.order, &params.starts, &params.partial].map(|param| param.load(k));
            let (width, storage) = (params.width.load(k), storage_of(self.dtype));
            let piece = k.special(Special::CtaidX);
            let range = k.index(starts, piece, 4u32);
            let ([begin], [end]) = (k.ld::<U32, 1>(range.at(0)), k.ld::<U32, 1>(range.at(4)));
            let pitch = k.shl(width, storage.bytes().ilog2());
            k.for_(k.special(Special::TidX), width, THREADS, |column| {
                let dout = k.index(dout, column, storage.bytes());
                let sum = k.variable("sum", 0.0f32);
                k.for_(begin, end, AT_ONCE, |first| {
                    // Several loads in flight; rows past the end are zero, which does not change the sum.
                    let rows = (0..AT_ONCE).map(|i| {
                        let at = k.add(first, i);
                        let exists = k.lt(at, end);
                        let token = k.mov(0u32);
                        k.when(exists, || k.ld_into(k.index(order, at, 4u32).at(0), [token]));
                        k.load_number_if(storage, k.index(dout, token, pitch).at(0), exists, Read::Once)
                    });
                    let mut rows: Vec<_> = rows.collect();
                    while rows.len() > 1 {
                        rows = rows.chunks(2).map(|pair| k.add(pair[0], pair[1])).collect();
                    }
                    k.add_into(sum, sum, rows[0]);
                });
                let to = k.index(k.index(partial, piece, k.shl(width, 2)), column, 4u32);
                k.st(to.at(0), [sum]);
            });
        })
    }
}

impl AddPieces {
    /// Name of the program for `sm`.
    pub fn name(&self, sm: Sm) -> Name {
        name(Pass::Backward, self.dtype.name(), sm, "add")
    }

    /// Launch of one block per id that occurs.
    pub fn launch(&self, pieces: &Pieces) -> Option<Launch> {
        launch(pieces.used.len())
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        program(self.name(sm), sm, 40, |k| {
            let params = AddPiecesArgs::declare(k, &all);
            let [partial, used, first, dtable] =
                [&params.partial, &params.used, &params.first, &params.dtable].map(|param| param.load(k));
            let (width, storage) = (params.width.load(k), storage_of(self.dtype));
            let i = k.special(Special::CtaidX);
            let [id] = k.ld::<U32, 1>(k.index(used, i, 4u32).at(0));
            let range = k.index(first, i, 4u32);
            let ([begin], [end]) = (k.ld::<U32, 1>(range.at(0)), k.ld::<U32, 1>(range.at(4)));
            let pitch = k.shl(width, 2);
            k.for_(k.special(Special::TidX), width, THREADS, |column| {
                let partial = k.index(partial, column, 4u32);
                let row = k.index(dtable, id, k.shl(width, storage.bytes().ilog2()));
                let to = k.index(row, column, storage.bytes()).at(0);
                let sum = k.variable("sum", k.load_elements(storage, to, 1, Read::Mutable)[0]);
                k.for_(begin, end, 1u32, |piece| {
                    let [part] = k.ld::<F32, 1>(k.index(partial, piece, pitch).at(0));
                    k.add_into(sum, sum, part);
                });
                k.store_elements(storage, to, &[sum]);
            });
        })
    }
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
    /// Arguments of [`SumPieces`].
    SumPiecesArgs, declared as SumPiecesParams {
        /// [T, E]
        dout: Address,
        /// [`Pieces::order`]
        order: Address,
        /// [`Pieces::starts`]
        starts: Address,
        /// [pieces, E] f32
        partial: Address,
        /// E
        width: usize,
    }
}

arguments! {
    /// Arguments of [`AddPieces`].
    AddPiecesArgs, declared as AddPiecesParams {
        /// [pieces, E] f32
        partial: Address,
        /// [`Pieces::used`]
        used: Address,
        /// [`Pieces::first`]
        first: Address,
        /// [V, E], added to
        dtable: Address,
        /// E
        width: usize,
    }
}
