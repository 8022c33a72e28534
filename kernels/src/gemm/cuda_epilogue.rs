//! What happens to a tile's sums between the registers and memory, on the GPU.
//!
//! The sums go through shared memory once, because the fragments of the tensor cores give a thread two neighbours and
//! memory wants 16 bytes. Any product that leaves a tile of f32 sums in shared memory ([`Finish::tile`]) ends here.
//!
//! ```text
//! a warp takes 16 rows x 64 columns at a time; a lane takes 8 columns of each quarter of a row:
//!
//!   columns  0 .. 8   8 .. 16   16 .. 24   24 .. 32   …          lane bits   4  3  2  1  0
//!            h = 0    h = 1     h = 0      h = 1                 row bits    3  1  2  0        half = bit 0
//! ```
//!
//! so that a dropout's counters serve whole (four words are four quarters), two lanes fill a sector of 32 bytes, and the
//! eight lanes that shared memory serves at once (rows of two bits, two halves) meet no bank twice with
//! [`Swizzle::Reversed`].

use super::{
    Write,
    cuda::{Blocking, Product},
    cuda_place::{Arguments, Sizes, TilePlace, WarpPlace},
};
use crate::{
    dropout::cuda::{MaskParams, Multipliers},
    gelu::Activation,
    ptx::{Entry, F32, Global, PointerParam, Precision, Ptr, Read, Reg, Shared, Storage, Swizzle, Tile, U32},
};

/// What follows the sum: [`super::Epilogue`] without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fused {
    /// acc
    None,
    /// acc + bias\[j\]
    Bias,
    /// act(p) with p = acc + bias\[j\]; p is kept where backward will need it.
    BiasActivation {
        /// act
        activation: Activation,
        /// Whether p is written too.
        save_pre: bool,
    },
    /// (acc + bias\[j\]) · mask + residual
    BiasDropoutResidual {
        /// Whether there is a mask.
        dropout: bool,
        /// Whether there is a residual.
        residual: bool,
    },
    /// acc · act'(pre)
    ActivationBackward(
        /// act
        Activation,
    ),
}

impl Fused {
    /// Its words in a name.
    pub(super) fn words(self) -> Vec<String> {
        let word = |word: &str| word.to_string();
        match self {
            Fused::None => vec![],
            Fused::Bias => vec![word("bias")],
            Fused::BiasActivation { activation, save_pre } => {
                let pre = if save_pre { "_pre" } else { "" };
                vec![format!("bias_{}{pre}", activation.name())]
            }
            Fused::BiasDropoutResidual { dropout, residual } => {
                let (dropout, residual) =
                    (if dropout { "_dropout" } else { "" }, if residual { "_residual" } else { "" });
                vec![format!("bias{dropout}{residual}_epilogue")]
            }
            Fused::ActivationBackward(activation) => vec![format!("{}_backward", activation.name())],
        }
    }

    /// Whether the epilogue has a bias.
    pub fn has_bias(self) -> bool {
        !matches!(self, Fused::None | Fused::ActivationBackward(_))
    }

    /// Whether the epilogue reads a matrix: a pre-activation or a residual.
    pub fn reads_matrix(self) -> bool {
        matches!(self, Fused::ActivationBackward(_) | Fused::BiasDropoutResidual { residual: true, .. })
    }

    /// Whether the epilogue keeps the pre-activation.
    pub fn keeps_pre(self) -> bool {
        matches!(self, Fused::BiasActivation { save_pre: true, .. })
    }

    /// Whether the epilogue has a dropout.
    pub fn has_dropout(self) -> bool {
        matches!(self, Fused::BiasDropoutResidual { dropout: true, .. })
    }
}

/// The end of a product: its parameters and the tile of sums.
pub(super) struct Finish {
    product: Product,
    bias: Option<PointerParam>,
    matrix: Option<PointerParam>,
    pre: Option<PointerParam>,
    mask: Option<MaskParams>,
}

/// Eight neighbouring columns of a row.
struct Run {
    /// The first column.
    column: Reg<U32>,
    /// Columns of C.
    columns: Reg<U32>,
    /// Which quarter of the block of 64.
    quarter: u32,
}

/// The matrices of an epilogue at the lane's first column of its row.
struct Matrices {
    c: Ptr<Global>,
    bias: Option<Ptr<Global>>,
    matrix: Option<Ptr<Global>>,
    pre: Option<Ptr<Global>>,
}

impl Finish {
    pub(super) fn declare(k: &Entry, product: &Product) -> Self {
        let fused = product.fused;
        Self {
            product: *product,
            bias: fused.has_bias().then(|| k.pointer_param("bias")),
            matrix: fused.reads_matrix().then(|| k.pointer_param("matrix")),
            pre: fused.keeps_pre().then(|| k.pointer_param("pre")),
            mask: fused.has_dropout().then(|| MaskParams::declare(k)),
        }
    }

    /// The tile of f32 sums in shared memory.
    pub(super) const fn tile(blocking: Blocking) -> Tile {
        Tile::new(blocking.m, blocking.n, 4, Swizzle::Reversed)
    }

    /// Puts the fragments of a warp's sums into the tile at `base`, for everybody to see.
    pub(super) fn store_fragments(&self, k: &Entry, base: Ptr<Shared>, warp: &WarpPlace, sums: &[Reg<F32>]) {
        k.comment("sums -> shared memory");
        let blocking = self.product.blocking;
        let (tile, fragments) = (Self::tile(blocking), blocking.warp().1 / 8);
        // A lane holds columns 2·(lane mod 4) and the next of row lane / 4, and of the eighth row below.
        let (group, pair) = (k.shr(warp.lane, 2), k.and(warp.lane, 3u32));
        let (row, chunk) = (k.add(warp.origin[0], group), k.add(k.shr(warp.origin[1], 2), k.shr(pair, 1)));
        let start = k.index(tile.chunk_address(k, base, row, chunk), k.and(pair, 1u32), 8);
        for (i, sums) in (0u32..).zip(sums.chunks_exact(4)) {
            let (down, along) = (16 * (i / fragments), 8 * (i % fragments));
            k.st(tile.step(down, along).take(k, start), [sums[0], sums[1]]);
            k.st(tile.step(down + 8, along).take(k, start), [sums[2], sums[3]]);
        }
        k.bar_sync();
    }

    /// Reads the tile of sums at `base`, applies the epilogue and writes C.
    pub(super) fn write(
        self,
        k: &Entry,
        arguments: &Arguments,
        base: Ptr<Shared>,
        thread: Reg<U32>,
        sizes: &Sizes,
        place: &TilePlace,
    ) {
        k.comment("16 rows x 64 columns a warp: epilogue, C");
        let Blocking { m, n, warps, .. } = self.product.blocking;
        let (tile, panels, warps) = (Self::tile(self.product.blocking), n / 64, warps.0 * warps.1);
        let (warp, lane) = (k.shr(thread, 5), k.and(thread, 31u32));
        let bit = |from: u32, to: u32| k.shl(k.and(k.shr(lane, from), 1u32), to);
        let (low, middle, half) = (k.or(bit(1, 0), bit(3, 1)), k.or(bit(2, 2), bit(4, 3)), k.and(lane, 1u32));
        let panel = k.and(warp, panels - 1);
        let row = k.mad_lo(k.shr(warp, panels.ilog2()), 16, k.or(low, middle));
        let first = k.mad_lo(panel, 64, k.shl(half, 3));
        let start = k.mov_pointer(tile.chunk_address(k, base, row, k.shr(first, 2)));

        let column = k.add(place.origin[1], first);
        let at_column = |matrix: Ptr<Global>, storage: Storage| k.index(matrix, column, storage.bytes());
        let load = |param: PointerParam| k.cvta_to_global(k.ld_param_pointer(param));
        let output = self.product.output;
        let matrices = Matrices {
            c: at_column(arguments.layer(k, sizes, 2), output),
            bias: self.bias.clone().map(|bias| at_column(load(bias), Storage::F32)),
            matrix: self.matrix.clone().map(|matrix| at_column(load(matrix), output)),
            pre: self.pre.clone().map(|pre| at_column(load(pre), output)),
        };
        let mask = self.mask.clone().map(|mask| mask.load(k));
        let pitch = k.shl(sizes.leading[2], output.bytes().ilog2());
        let counter = k.mad_lo(k.shr(column, 6), 16, k.shl(half, 3));
        let down = 16 * (warps / panels);
        let end = k.min_u32(sizes.m, k.add(place.origin[0], m));
        k.for_(k.add(place.origin[0], row), end, down, |row| {
            let factors = mask.as_ref().map(|mask| mask.multipliers(k, row, counter));
            let in_row = matrices.at_row(k, row, pitch);
            for quarter in 0..4 {
                let at = [0, 4].map(|i| tile.step(0, 16 * quarter + i).take(k, start));
                let run = Run { column: k.add(column, 16 * quarter), columns: sizes.n, quarter };
                k.if_(k.lt(run.column, sizes.n), || {
                    let sums = at.map(|at| k.ld::<F32, 4>(at)).concat();
                    self.finish_run(k, &run, sums, &in_row, factors.as_ref());
                });
            }
            k.advance(start, down * tile.pitch());
        });
    }

    /// The epilogue of eight sums.
    fn finish_run(
        &self,
        k: &Entry,
        run: &Run,
        mut sums: Vec<Reg<F32>>,
        matrices: &Matrices,
        factors: Option<&Multipliers>,
    ) {
        let output = self.product.output;
        let at = |matrix: Ptr<Global>, storage: Storage| matrix.at((16 * run.quarter * storage.bytes()) as i32);
        let load = |matrix: Ptr<Global>, storage: Storage, read: Read| match self.product.aligned {
            true => k.load_numbers(storage, at(matrix, storage), 8, read),
            false => k.load_numbers_below(storage, at(matrix, storage), 8, run.column, run.columns, read),
        };
        let store = |matrix: Ptr<Global>, values: &[Reg<F32>]| match self.product.aligned {
            true => k.store_numbers(output, at(matrix, output), values),
            false => k.store_numbers_below(output, at(matrix, output), values, run.column, run.columns),
        };
        let add = |x: &[Reg<F32>], y: Vec<Reg<F32>>| x.iter().zip(y).map(|(&x, y)| k.add(x, y)).collect::<Vec<_>>();
        let precision = if output == Storage::F32 { Precision::Single } else { Precision::Half };
        if self.product.write == Write::Accumulate {
            sums = add(&load(matrices.c, output, Read::Mutable), sums);
        }
        if let Some(bias) = matrices.bias {
            sums = add(&sums, load(bias, Storage::F32, Read::Again));
        }
        if let Some(pre) = matrices.pre {
            store(pre, &sums);
        }
        match self.product.fused {
            Fused::None | Fused::Bias => {}
            Fused::BiasActivation { activation, .. } => {
                sums = sums.into_iter().map(|p| activation.emit(k, p, precision)).collect();
            }
            Fused::BiasDropoutResidual { .. } => {
                if let Some(factors) = factors {
                    let factors = factors.quarter(run.quarter as usize);
                    sums = sums.into_iter().zip(factors).map(|(sum, factor)| k.mul(sum, factor)).collect();
                }
                if let Some(residual) = matrices.matrix {
                    sums = add(&sums, load(residual, output, Read::Once));
                }
            }
            Fused::ActivationBackward(activation) => {
                let pre = load(matrices.matrix.expect("the pre-activation is read"), output, Read::Once);
                let slope = |p| activation.emit_derivative(k, p, precision);
                sums = sums.into_iter().zip(pre).map(|(sum, p)| k.mul(sum, slope(p))).collect();
            }
        }
        store(matrices.c, &sums);
    }
}

impl Matrices {
    /// The same in row `row`; the bias has one row.
    fn at_row(&self, k: &Entry, row: Reg<U32>, pitch: Reg<U32>) -> Self {
        let in_row = |matrix: Ptr<Global>| k.index(matrix, row, pitch);
        Self { c: in_row(self.c), bias: self.bias, matrix: self.matrix.map(in_row), pre: self.pre.map(in_row) }
    }
}
