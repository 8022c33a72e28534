//! Matrix products on the tensor cores of Ampere and later: C = epilogue(A · B), f32 accumulators.
//!
//! ```text
//! C[m, n] (+)= epilogue(Σ_p A[m, p] · B[p, n])        A, B bf16 or f16 (f32: `simt`); C bf16, f16 or f32
//! ```
//!
//! A block computes one tile of C; its threads copy k-tiles of A and B with `cp.async` through a pipeline of stages in
//! shared memory while the tensor cores work on an older stage:
//!
//! ```text
//! __global__ product(a, b, c, ...) {                        // blockIdx.x: tile, blockIdx.z: batch element or split
//!     for (s = 0; s < STAGES - 1; s++) { copy k-tile s -> stage s; commit; }          // cp.async, 16 bytes a thread
//!     for (i = 0; i < k_tiles; i++) {
//!         wait until at most STAGES - 2 groups are in flight;             // this thread's copies of k-tile i are done
//!         __syncthreads();               // all threads' copies are, and no thread reads the stage to be overwritten
//!         copy k-tile i + STAGES - 1 -> stage (i + STAGES - 1) % STAGES; commit;
//!         for (kk = 0; kk < BK; kk += 16) {
//!             ldmatrix A[WM, 16], B[16, WN] of this warp;                             // one step ahead of
//!             mma.m16n8k16 for each 16 x 8 of the warp's tile;                        // these
//!     }   }
//!     __syncthreads();                                               // all threads have read the last k-tile
//!     accumulators -> shared memory; __syncthreads();                                 // f32, over the stages
//!     each warp: 16 rows x 64 columns at a time, 16 bytes a thread -> epilogue -> C
//! }
//!
//!         BN columns: warps side by side                 a stage: A, then B, each in its memory layout
//!       ┌────────┬────────┐                               normal A      [BM rows][BK]     transposed A  [BK rows][BM]
//!   BM  │ warp 0 │ warp 1 │  WM = BM / warps down          normal B      [BK rows][BN]     transposed B  [BN rows][BK]
//!       ├────────┼────────┤  WN = BN / warps along        16-byte chunks swizzled by `Tile::of_halves`: accesses are
//!       │ warp 2 │ warp 3 │                               free of bank conflicts; `ldmatrix.trans` transposes
//!       └────────┴────────┘
//! ```
//!
//! Tiles of C are rasterized in groups of eight rows of tiles, so that concurrent blocks share their operands in L2.
//!
//! Cost: 2·m·n·k FLOP; A is read n / BN times and B m / BM times, mostly from L2. A product with few tiles and a long k
//! (a weight's gradient) uses split-K ([`Product::split`]): split z writes its own f32 sums, and a second kernel
//! (`split_k`) adds them in order of z, so the result does not depend on the order in which blocks finish.
//!
//! If leading dimensions are multiples of eight, rows start at multiples of 16 bytes: copies are `cp.async`, and tails
//! are zero-filled. Any other leading dimension, or n, takes the same program with copies and stores element by element
//! (`unaligned` in its name), several times slower.
//!
//! Budget: 128 registers a thread with eight warps (two resident blocks), 168 with four or with stages of 96 KiB (one).
//! Source: the pipeline is that of CUTLASS 2 (Thakkar et al. 2023), the swizzle that of its
//! `RowMajorTensorOpMultiplicandCrosswise` layouts.
//!
//! Arguments: [`ProductArgs`]. Limits: every matrix spans fewer than 2³² elements; base addresses are multiples of 16;
//! epilogues other than [`EpilogueKind::None`] need a grid of one z.

use super::{
    copy::{Loader, Pipeline},
    epilogue::{EpilogueEmitter, EpilogueOptions},
    position::{FragmentPosition, Operands, ProductArgs, Side, Sizes, TilePosition, WarpPosition},
    simt,
    tiles::Blocking,
};
use crate::program::{Name, Program};
use kernels::gemm::{Beta, EpilogueKind, Gemm, Layout};
use ptx::{Bf16x2, Entry, F16x2, F32, Launch, Module, Pair, Reg, Sm, Special, Storage, Tile, fragment::Load};

/// Specialization of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Storage of A and B.
    pub storage: Storage,
    /// Storage of C and of the epilogue's matrices.
    pub output: Storage,
    /// Layout of A.
    pub a: Layout,
    /// Layout of B.
    pub b: Layout,
    /// Factor of the old values of C.
    pub beta: Beta,
    /// Epilogue.
    pub epilogue: EpilogueKind,
    /// Tile sizes.
    pub blocking: Blocking,
    /// True if leading dimensions and n are multiples of eight.
    pub aligned: bool,
}

impl Product {
    /// Specialization for `spec`, with the largest tiles that give each of `multiprocessors` a block, else the
    /// smallest.
    pub fn new(spec: &Gemm, storage: Storage, output: Storage, epilogue: EpilogueKind, multiprocessors: usize) -> Self {
        let fills = |blocking: &Blocking| blocking.tiles(spec.m, spec.n) >= multiprocessors;
        let blocking = match storage {
            Storage::F32 => Blocking::SINGLE,
            _ => Blocking::ALL.into_iter().find(fills).unwrap_or(Blocking::SMALL),
        };
        let aligned = [spec.lda, spec.ldb, spec.ldc, spec.n].iter().all(|size| size.is_multiple_of(8));
        Self { storage, output, a: spec.a, b: spec.b, beta: spec.beta, epilogue, blocking, aligned }
    }

    /// Name of the program for `sm`; the tile is rows x columns x depth x stages.
    pub fn name(&self, sm: Sm) -> Name {
        let letter = |layout| if layout == Layout::Normal { "n" } else { "t" };
        let operation = format!("gemm.{}{}", letter(self.a), letter(self.b));
        let types = match self.storage == self.output {
            true => self.storage.name().to_string(),
            false => format!("{}{}", self.storage.name(), self.output.name()),
        };
        let Blocking { m, n, k, stages, .. } = self.blocking;
        let tile = format!("{m}x{n}x{k}x{stages}");
        let variant = self.options().words();
        let parts = [&types, sm.name(), &tile, &variant];
        Name::new(&operation, &parts[..if variant.is_empty() { 3 } else { 4 }])
    }

    /// Number of splits of k that gives `multiprocessors` work, at most ⌈k / 256⌉, and the steps of k per split. With
    /// enough tiles: (1, k rounded up to whole k-tiles).
    pub fn split(&self, spec: &Gemm, multiprocessors: usize) -> (usize, usize) {
        let tiles = self.blocking.tiles(spec.m, spec.n).max(1);
        let wanted = (multiprocessors / tiles).clamp(1, spec.k.div_ceil(256).max(1));
        let chunk = spec.k.div_ceil(wanted).next_multiple_of(self.blocking.k as usize).max(self.blocking.k as usize);
        (spec.k.div_ceil(chunk).max(1), chunk)
    }

    /// Launch for `layers` batch elements or splits of k; `None` if `layers` is 0 or C is empty.
    pub fn launch(&self, m: usize, n: usize, layers: usize) -> Option<Launch> {
        let grid = [self.blocking.tiles(m, n) as u32, 1, layers as u32];
        let block = [self.blocking.threads(), 1, 1];
        (m > 0 && n > 0 && layers > 0).then_some(Launch { grid, block, shared_bytes: self.shared_bytes() })
    }

    /// Shared memory of a block, bytes: the stages or the f32 tile of sums, whichever is larger.
    pub(crate) fn shared_bytes(&self) -> u32 {
        let Blocking { m, n, k, stages, .. } = self.blocking;
        let pipeline = match self.storage {
            Storage::F32 => simt::SHARED_BYTES,
            _ => stages * (m + n) * k * self.storage.bytes(),
        };
        pipeline.max(m * n * 4)
    }

    /// Maximum registers per thread.
    fn registers(&self) -> u32 {
        // The stages of `DEEP` leave room for only one block, except on Hopper.
        if self.blocking.threads() == 256 && self.blocking != Blocking::DEEP { 128 } else { 168 }
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        let name = self.name(sm);
        let mut module = Module::new(sm);
        module.entry(&name.entry(), [self.blocking.threads(), 1, 1], |k| {
            k.min_ctas_per_sm(65_536 / (self.registers() * self.blocking.threads()));
            match self.storage {
                Storage::Bf16 => self.tensor_cores::<Bf16x2>(k),
                Storage::F16 => self.tensor_cores::<F16x2>(k),
                Storage::F32 => simt::product(k, self.options(), self.along_k()),
            }
        });
        let required_sass: &[&str] = match (self.storage, self.aligned) {
            (Storage::F32, _) => &["FFMA", "LDS.128"],
            (Storage::Bf16, true) => &["HMMA.16816.F32.BF16", "LDGSTS.E.BYPASS.128", "LDSM.16"],
            (Storage::F16, true) => &["HMMA.16816.F32", "LDGSTS.E.BYPASS.128", "LDSM.16"],
            (_, false) => &["HMMA.16816.F32", "LDSM.16"],
        };
        Program::new(name, &module, self.registers()).requiring(required_sass)
    }

    fn tensor_cores<P: Pair>(&self, k: &Entry) {
        let options = self.options();
        let params = ProductArgs::declare(k, &|name| options.has(name));
        let operands = Operands::new(&params, self.storage, self.output);
        let sizes = Sizes::load(k, &params);
        let epilogue = EpilogueEmitter::new(options, params.epilogue);
        let position = TilePosition::find(k, self.blocking, &sizes);
        let (base, sides) = (k.dynamic_shared(128), self.sides());
        k.comment("where this thread copies from and to");
        let thread = k.special(Special::TidX);
        let loaders = sides.map(|side| Loader::new(k, side, &operands, &sizes, &position, base, thread));
        k.comment("where this warp's fragments lie");
        let warp = WarpPosition::find(k, self.blocking, thread);
        let fragments = sides.map(|side| FragmentPosition::find(k, side, base, &warp));
        let (down, along) = (self.blocking.warp().0 / 16, self.blocking.warp().1 / 8);
        let sums = k.registers::<F32>("acc", (4 * down * along) as usize);
        sums.iter().for_each(|&sum| k.assign(sum, 0.0f32));
        let stage_bytes = sides[0].tile.bytes() + sides[1].tile.bytes();
        Pipeline { k, blocking: self.blocking, stage_bytes, loaders: &loaders }.run(&position, |stage| {
            let at = fragments.map(|fragment| fragment.in_stage(k, stage));
            let load = |kk| at.each_ref().map(|side| side.load::<P>(k, kk));
            let steps = self.blocking.k / 16;
            let mut next = Some(load(0));
            for kk in 0..steps {
                let [a, b] = next.take().expect("loaded one step ahead");
                if kk + 1 < steps {
                    next = Some(load(kk + 1));
                }
                multiply(k, &sums, &a, &b);
            }
        });
        epilogue.store_fragments(k, self.blocking, base, &warp, &sums);
        epilogue.write(k, self.blocking, &operands, base, thread, &sizes, &position);
    }

    fn options(&self) -> EpilogueOptions {
        let Self { output, beta, epilogue, aligned, .. } = *self;
        EpilogueOptions { output, beta, kind: epilogue, aligned }
    }

    /// True if k runs along the rows in memory: for A, for B.
    fn along_k(&self) -> [bool; 2] {
        [self.a == Layout::Normal, self.b == Layout::Transposed]
    }

    /// Layouts of A and B in shared memory.
    fn sides(&self) -> [Side; 2] {
        let Blocking { m, n, k, .. } = self.blocking;
        let tile = |extent, along_k| if along_k { Tile::of_halves(extent, k) } else { Tile::of_halves(k, extent) };
        let [a, b] = self.along_k();
        let warp = self.blocking.warp();
        let a = Side {
            operand: 0,
            along_k: a,
            tile: tile(m, a),
            offset: 0,
            load: if a { Load::A } else { Load::ATransposed },
            warp_extent: warp.0,
            threads: self.blocking.threads(),
            aligned: self.aligned,
        };
        let b = Side {
            operand: 1,
            along_k: b,
            tile: tile(n, b),
            offset: a.tile.bytes(),
            load: if b { Load::BTransposed } else { Load::B },
            warp_extent: warp.1,
            threads: self.blocking.threads(),
            aligned: self.aligned,
        };
        [a, b]
    }
}

/// Emits D += A · B of a warp: every 16 x 8 of its tile.
fn multiply<P: Pair>(k: &Entry, sums: &[Reg<F32>], a: &[[Reg<P>; 4]], b: &[[Reg<P>; 4]]) {
    let mut sums = sums.chunks_exact(4).map(|sums| [sums[0], sums[1], sums[2], sums[3]]);
    for &a in a {
        for b in b.iter().flat_map(|b| [[b[0], b[1]], [b[2], b[3]]]) {
            k.mma(sums.next().expect("four accumulators for each 16 x 8"), a, b);
        }
    }
}
