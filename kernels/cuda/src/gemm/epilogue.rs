//! Epilogues on the GPU: from a tile's accumulators to C.
//!
//! The accumulators go through shared memory once, because a thread holds two neighboring elements of an `mma` fragment
//! and efficient stores take 16 bytes. Any product that stores a tile of f32 accumulators in shared memory
//! ([`EpilogueEmitter::tile`]) can use this epilogue.
//!
//! ```text
//! a warp computes 16 rows x 64 columns at a time; a lane computes 8 columns of each quarter of a row:
//!
//!   columns  0 .. 8   8 .. 16   16 .. 24   24 .. 32   …          lane bits   4  3  2  1  0
//!            h = 0    h = 1     h = 0      h = 1                 row bits    3  1  2  0        half = bit 0
//! ```
//!
//! so that a lane uses a half of each word of four dropout counters (its neighbor the other), two lanes fill a sector of 32
//! bytes, and the eight lanes of a shared-memory transaction (rows that differ in two bits, two halves) have no bank conflict
//! with [`Swizzle::Reversed`].

use super::{
    position::{Operands, Sizes, TilePosition, WarpPosition},
    tiles::Blocking,
};
use crate::activation;
use crate::arguments::{Address, Argument, Load, Value};
use crate::dropout::{Bytes, Eights, Mask, MaskParams};
use kernels::dropout::{COUNTERS, Dropout};
use kernels::gemm::{Beta, Epilogue, EpilogueKind};
use ptx::{Entry, F32, Global, PointerParam, Precision, Ptr, Read, Reg, Shared, Storage, Swizzle, Tile, U32};

/// Options of a product's epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EpilogueOptions {
    /// Storage of C and of the epilogue's matrices.
    pub output: Storage,
    /// Factor of the old values of C.
    pub beta: Beta,
    /// Kind of epilogue.
    pub kind: EpilogueKind,
    /// True if the leading dimension of C and n are multiples of eight.
    pub aligned: bool,
}

impl EpilogueOptions {
    /// True if the epilogue has the parameter `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        match name {
            "bias" => self.kind.has_bias(),
            "matrix" => self.kind.reads_matrix(),
            "pre" => self.kind.saves_pre(),
            _ => self.kind.has_dropout(),
        }
    }

    /// Suffix of a program's name.
    pub(super) fn words(&self) -> String {
        let word = |holds: bool, word: &str| if holds { word.to_string() } else { String::new() };
        let words = [word(self.beta == Beta::One, "accumulate"), self.kind.words(), word(!self.aligned, "unaligned")];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
    }
}

/// Parameters of an epilogue, declared.
pub(crate) struct EpilogueParams {
    bias: Option<PointerParam>,
    matrix: Option<PointerParam>,
    pre: Option<PointerParam>,
    mask: Option<MaskParams>,
}

/// Parameters in this order: bias, matrix that is read, saved pre-activation, dropout; only those that the epilogue has.
impl Argument for Epilogue<Address> {
    type Param = EpilogueParams;
    fn declare(k: &Entry, _: &str, has: &dyn Fn(&str) -> bool) -> EpilogueParams {
        EpilogueParams {
            bias: <Option<Address>>::declare(k, "bias", has),
            matrix: <Option<Address>>::declare(k, "matrix", has),
            pre: <Option<Address>>::declare(k, "pre", has),
            mask: <Option<Dropout>>::declare(k, "dropout", has),
        }
    }
    fn push(&self, values: &mut Vec<Value>) {
        values.extend(self.addresses().map(Value::Address));
        self.dropout_settings().push(values);
    }
}

/// Epilogue of a kernel: its options and declared parameters.
pub(super) struct EpilogueEmitter {
    options: EpilogueOptions,
    params: EpilogueParams,
}

/// Address and row size of C.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub c: Ptr<Global>,
    /// Columns of C.
    pub columns: Reg<U32>,
    /// Leading dimension, elements.
    pub leading: Reg<U32>,
}

/// Position of a lane in a block of 16 rows x 64 columns.
pub(super) struct LanePosition {
    /// 0 to 15
    pub row: Reg<U32>,
    /// 0 or 1: the half of each quarter's sixteen columns.
    pub half: Reg<U32>,
}

impl LanePosition {
    pub(super) fn find(k: &Entry, lane: Reg<U32>) -> Self {
        let bit = |from: u32, to: u32| k.shl(k.and(k.shr(lane, from), 1u32), to);
        let (low, middle, half) = (k.or(bit(1, 0), bit(3, 1)), k.or(bit(2, 2), bit(4, 3)), k.and(lane, 1u32));
        Self { row: k.or(low, middle), half }
    }
}

/// Eight contiguous columns of a row.
struct Run {
    /// The first column.
    column: Reg<U32>,
    /// Columns of C.
    columns: Reg<U32>,
    /// Quarter of the block of 64 columns.
    quarter: u32,
}

/// Dropout of the 32 elements of a lane's row: eight registers, and comparisons where the elements are used, because
/// accumulators leave few registers.
struct Factors<'a> {
    eights: Eights,
    bytes: &'a Bytes,
}

/// Dropout of a lane's rows.
#[derive(Clone)]
struct PanelMask {
    mask: Mask,
    bytes: Bytes,
    /// First counter of the block of 64 columns.
    counter: Reg<U32>,
    /// Selector of the bytes of the lane's half.
    selector: Reg<U32>,
}

/// A lane's addresses and counters for 64 columns of C.
pub(super) struct Panel {
    matrices: Matrices,
    /// Storage of C and of the epilogue's matrices.
    output: Storage,
    mask: Option<PanelMask>,
    /// Row stride of the matrices, bytes.
    pitch: Reg<U32>,
    /// The lane's first column.
    column: Reg<U32>,
    /// Columns of C.
    columns: Reg<U32>,
}

/// Addresses of an epilogue's matrices at the lane's first column.
#[derive(Clone, Copy)]
struct Matrices {
    c: Ptr<Global>,
    bias: Option<Ptr<Global>>,
    matrix: Option<Ptr<Global>>,
    pre: Option<Ptr<Global>>,
}

impl EpilogueEmitter {
    pub(super) fn new(options: EpilogueOptions, params: EpilogueParams) -> Self {
        Self { options, params }
    }

    /// Storage of C.
    pub(super) fn output(&self) -> Storage {
        self.options.output
    }

    /// Layout of the f32 tile of sums in shared memory.
    pub(super) const fn tile(blocking: Blocking) -> Tile {
        Tile::new(blocking.m, blocking.n, 4, Swizzle::Reversed)
    }

    /// Stores the fragments of a warp's accumulators in the tile at `base`, then synchronizes the block.
    pub(super) fn store_fragments(
        &self,
        k: &Entry,
        blocking: Blocking,
        base: Ptr<Shared>,
        warp: &WarpPosition,
        sums: &[Reg<F32>],
    ) {
        k.comment("sums -> shared memory");
        let (tile, fragments) = (Self::tile(blocking), blocking.warp().1 / 8);
        let start = fragment_start(k, &tile, base, warp);
        for (i, sums) in (0u32..).zip(sums.chunks_exact(4)) {
            store_fragment(k, &tile, start, [16 * (i / fragments), 8 * (i % fragments)], sums);
        }
        k.bar_sync();
    }

    /// Reads the tile of sums at `base`, applies the epilogue and writes C.
    pub(super) fn write(
        self,
        k: &Entry,
        blocking: Blocking,
        operands: &Operands,
        base: Ptr<Shared>,
        thread: Reg<U32>,
        sizes: &Sizes,
        position: &TilePosition,
    ) {
        k.comment("16 rows x 64 columns a warp: epilogue, C");
        let Blocking { m, n, warps, .. } = blocking;
        let (tile, panels, warps) = (Self::tile(blocking), n / 64, warps.0 * warps.1);
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31u32));
        let LanePosition { row, half } = LanePosition::find(k, lane);
        let panel = k.and(warp, panels - 1);
        let row = k.mad_lo(k.shr(warp, panels.ilog2()), 16, row);
        let first = k.mad_lo(panel, 64, k.shl(half, 3));
        let start = k.mov_pointer(tile.chunk_address(k, base, row, k.shr(first, 2)));
        let rows = k.min_u32(sizes.m, k.add(position.origin[0], m));
        let c = operands.layer(k, sizes, 2);
        let target = Target { c, columns: sizes.n, leading: sizes.leading[2] };
        let panel = self.panel(k, &target, k.add(position.origin[1], first), half);
        let down = 16 * (warps / panels);
        k.for_(k.add(position.origin[0], row), rows, down, |row| {
            self.write_row(k, &tile, start, &panel, row);
            k.advance(start, down * tile.pitch());
        });
    }

    /// Addresses and counters of the lane for 64 columns of C; `column` is its first column.
    pub(super) fn panel(&self, k: &Entry, target: &Target, column: Reg<U32>, half: Reg<U32>) -> Panel {
        let at_column = |matrix: Ptr<Global>, storage: Storage| k.index(matrix, column, storage.bytes());
        let EpilogueParams { bias, matrix, pre, mask } = &self.params;
        let output = self.options.output;
        let matrices = Matrices {
            c: at_column(target.c, output),
            bias: bias.as_ref().map(|bias| at_column(bias.load(k), Storage::F32)),
            matrix: matrix.as_ref().map(|matrix| at_column(matrix.load(k), output)),
            pre: pre.as_ref().map(|pre| at_column(pre.load(k), output)),
        };
        let mask = mask.clone().map(|mask| {
            let mask = mask.load(k);
            let (bytes, counter) = (mask.bytes(k), k.shl(k.shr(column, 6), COUNTERS.ilog2()));
            PanelMask { mask, bytes, counter, selector: Mask::selector(k, half) }
        });
        Panel {
            matrices,
            output,
            mask,
            pitch: k.shl(target.leading, output.bytes().ilog2()),
            column,
            columns: target.columns,
        }
    }

    /// Applies the epilogue to a lane's four runs of row `row` and stores them; its sums start at `start` in `tile`.
    pub(super) fn write_row(&self, k: &Entry, tile: &Tile, start: Ptr<Shared>, panel: &Panel, row: Reg<U32>) {
        let factors = panel.mask.as_ref().map(|mask| mask.draw(k, row));
        let in_row = panel.matrices.at_row(k, row, panel.pitch);
        for quarter in 0..4 {
            let at = [0, 4].map(|i| tile.step(0, 16 * quarter + i).take(k, start));
            let run = Run { column: k.add(panel.column, 16 * quarter), columns: panel.columns, quarter };
            k.if_(k.lt(run.column, panel.columns), || {
                let sums = at.map(|at| k.ld::<F32, 4>(at)).concat();
                self.finish_run(k, &run, sums, &in_row, factors.as_ref());
            });
        }
    }

    /// Applies the epilogue to eight sums and stores them.
    fn finish_run(
        &self,
        k: &Entry,
        run: &Run,
        mut sums: Vec<Reg<F32>>,
        matrices: &Matrices,
        factors: Option<&Factors<'_>>,
    ) {
        let output = self.options.output;
        let at = |matrix: Ptr<Global>, storage: Storage| matrix.at((16 * run.quarter * storage.bytes()) as i32);
        let load = |matrix: Ptr<Global>, storage: Storage, read: Read| match self.options.aligned {
            true => k.load_elements(storage, at(matrix, storage), 8, read),
            false => k.load_numbers_below(storage, at(matrix, storage), 8, [run.column, run.columns], read),
        };
        let store = |matrix: Ptr<Global>, values: &[Reg<F32>]| match self.options.aligned {
            true => k.store_elements(output, at(matrix, output), values),
            false => k.store_numbers_below(output, at(matrix, output), values, run.column, run.columns),
        };
        let add = |x: &[Reg<F32>], y: Vec<Reg<F32>>| x.iter().zip(y).map(|(&x, y)| k.add(x, y)).collect::<Vec<_>>();
        let precision = if output == Storage::F32 { Precision::Single } else { Precision::Half };
        if self.options.beta == Beta::One {
            sums = add(&load(matrices.c, output, Read::Mutable), sums);
        }
        if let Some(bias) = matrices.bias {
            sums = add(&sums, load(bias, Storage::F32, Read::Again));
        }
        if let Some(pre) = matrices.pre {
            store(pre, &sums);
        }
        match self.options.kind {
            EpilogueKind::None | EpilogueKind::Bias => {}
            EpilogueKind::BiasActivation { activation, .. } => {
                sums = sums.into_iter().map(|p| activation::emit(activation, k, p, precision)).collect();
            }
            EpilogueKind::BiasDropoutResidual { .. } => {
                if let Some(factors) = factors {
                    let factors = factors.eights.quarter(k, factors.bytes, run.quarter as usize);
                    sums = sums.into_iter().zip(factors).map(|(sum, factor)| k.mul(sum, factor)).collect();
                }
                if let Some(residual) = matrices.matrix {
                    sums = add(&sums, load(residual, output, Read::Once));
                }
            }
            EpilogueKind::ActivationBackward(activation) => {
                let pre = load(matrices.matrix.expect("ActivationBackward reads a matrix"), output, Read::Once);
                let slope = |p| activation::emit_derivative(activation, k, p, precision);
                sums = sums.into_iter().zip(pre).map(|(sum, p)| k.mul(sum, slope(p))).collect();
            }
        }
        store(matrices.c, &sums);
    }
}

impl PanelMask {
    fn draw(&self, k: &Entry, row: Reg<U32>) -> Factors<'_> {
        Factors { eights: self.mask.eights(k, row, self.counter, self.selector), bytes: &self.bytes }
    }
}

impl Panel {
    /// Panel `panels` · 64 columns to the right.
    pub(super) fn along(&self, k: &Entry, panels: u32) -> Self {
        let along = |matrix: Ptr<Global>, storage: Storage| match panels {
            0 => matrix,
            _ => k.offset(matrix, u64::from(64 * panels * storage.bytes())),
        };
        let further = |from: Reg<U32>, by: u32| if panels == 0 { from } else { k.add(from, by * panels) };
        let Matrices { c, bias, matrix, pre } = self.matrices;
        let matrices = Matrices {
            c: along(c, self.output),
            bias: bias.map(|bias| along(bias, Storage::F32)),
            matrix: matrix.map(|matrix| along(matrix, self.output)),
            pre: pre.map(|pre| along(pre, self.output)),
        };
        let mask = self.mask.clone();
        let mask = mask.map(|mask| PanelMask { counter: further(mask.counter, COUNTERS as u32), ..mask });
        Self { matrices, mask, column: further(self.column, 64), ..*self }
    }
}

impl Matrices {
    /// Addresses in row `row`; the bias has a single row.
    fn at_row(&self, k: &Entry, row: Reg<U32>, pitch: Reg<U32>) -> Self {
        let in_row = |matrix: Ptr<Global>| k.index(matrix, row, pitch);
        Self { c: in_row(self.c), bias: self.bias, matrix: self.matrix.map(in_row), pre: self.pre.map(in_row) }
    }
}

/// Address of a lane's first pair of accumulators in `tile`. A fragment holds columns 2·(lane mod 4) and the next one,
/// of rows lane / 4 and lane / 4 + 8.
pub(super) fn fragment_start(k: &Entry, tile: &Tile, base: Ptr<Shared>, warp: &WarpPosition) -> Ptr<Shared> {
    let (group, pair) = (k.shr(warp.lane, 2), k.and(warp.lane, 3u32));
    let (row, chunk) = (k.add(warp.origin[0], group), k.add(k.shr(warp.origin[1], 2), k.shr(pair, 1)));
    k.index(tile.chunk_address(k, base, row, chunk), k.and(pair, 1u32), 8)
}

/// Stores the four accumulators of the fragment `down` rows below and `along` columns right of the first.
pub(super) fn store_fragment(k: &Entry, tile: &Tile, start: Ptr<Shared>, [down, along]: [u32; 2], sums: &[Reg<F32>]) {
    k.st(tile.step(down, along).take(k, start), [sums[0], sums[1]]);
    k.st(tile.step(down + 8, along).take(k, start), [sums[2], sums[3]]);
}
