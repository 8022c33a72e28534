//! Matrix products on Hopper: C = epilogue(A · B) with `wgmma`, fed by TMA through a pipeline of mbarriers.
//!
//! ```text
//! C[m, n] (+)= epilogue(Σ_p A[m, p] · B[p, n])        A, B bf16 or f16; C bf16, f16 or f32; sums f32
//!
//! __global__ product(map_a, map_b, c, ...) {               // 384 threads; a block per multiprocessor, several tiles each
//!     if (warpgroup == 0) {                                                 // the producer: one thread
//!         setmaxnreg.dec 24;
//!         for (each tile of this block) for (each k-tile) {
//!             wait(empty[s], phase ^ 1);                                    // stage s has been read
//!             arrive_expect(full[s], bytes of a stage);
//!             copy A's and B's box -> stage s, counted at full[s];          // cp.async.bulk.tensor
//!             s = (s + 1) % STAGES;  if (s == 0) phase ^= 1;
//!     }   }
//!     else {                                                                // two consumers
//!         setmaxnreg.inc 240;
//!         for (each tile of this block; with PING_PONG every other one) {
//!             if (PING_PONG) { wait(turn[mine]); skip the k-tiles of the previous tile; }
//!             for (each k-tile) {
//!                 wait(full[s], phase);
//!                 wgmma 64 x BN x 16, four times (with PING_PONG for both blocks of 64 rows); commit;
//!                 wait until one group is in flight; arrive(empty[s - 1]);   // one lane of each warp
//!                 s = (s + 1) % STAGES;  if (s == 0) phase ^= 1;
//!             }
//!             if (PING_PONG) arrive(turn[other]);
//!             wait for all groups; arrive(empty[s - 1]);
//!             each warp: 16 of its rows x 64 columns at a time, through its own shared memory -> epilogue -> C
//! }   }   }
//!
//! shared memory: | stage 0: A, B | stage 1 | … | stage STAGES - 1 | sums of 8 warps | full[] | empty[] | turn[2] |
//! ```
//!
//! The producer and the consumers synchronize through the pipeline only, which continues across tiles: during an epilogue
//! the producer loads k-tiles of the next tile. The two consumers split the rows of each tile (cooperative) or alternate
//! tiles (ping-pong, [`KernelSchedule`](super::tiles::KernelSchedule)); with ping-pong one multiplies during the epilogue
//! of the other. `docs/gemm.md` has a picture, the barriers and the lower bounds.
//!
//! A stage holds operands in their memory layout; `wgmma` takes either order, so nothing is transposed:
//!
//! ```text
//! normal A, transposed B: k along the rows     one box of 64 k x BM (BN) rows      k advances by 32 bytes
//! transposed A, normal B: k down the columns   boxes of 64 columns x 64 k          k advances by 16 rows, 2048 bytes
//! rows of 128 bytes, chunks swizzled by the row modulo 8; eight rows (1024 bytes) are a descriptor's stride
//! ```
//!
//! Loads need no code for tails: TMA fills the part of a box outside the matrix with zeros. Stores are guarded by row and
//! column.
//!
//! Cost: 2·m·n·k FLOP. A k-tile of 128 x 256 x 64 takes 1024 cycles of the tensor cores: TMA writes 48 KiB into shared
//! memory and the eight `wgmma` read 10 KiB each, together 128 bytes a cycle, the bandwidth of shared memory
//! (`HopperTile::k_tile_cycles`).
//!
//! Pairs: with an even number of tile rows, two blocks of a cluster compute neighboring tile rows of the same columns. Each loads half
//! of B and multicasts it to both, so that `full` counts the bytes of both blocks' copies and `empty` the consumers of both blocks.
//! A multicast writes into the other block, so both start after a cluster barrier, and a last one keeps their shared memory.
//!
//! Budget: 168 registers a thread at the start; the producer's 128 threads release all but 24, so that the consumers
//! have 240 (128 or 192 of them accumulators): 128 · (24 + 2 · 240) = 64 512 of 65 536. One block a multiprocessor.
//! Source: the roles are those of CUTLASS 3's cooperative and ping-pong kernels (Thakkar et al. 2023).
//!
//! Arguments: [`HopperProductArgs`]. Limits: operands as [`HopperProduct::new`] and [`HopperProduct::maps`] require; C spans
//! fewer than 2³² elements and its base address is a multiple of 16; epilogues other than [`EpilogueKind::None`] take one
//! split of k; no batches.

use super::{
    epilogue::{EpilogueEmitter, EpilogueOptions},
    sm90_mainloop::{Consumer, HopperProductArgs, PAIR, PipelineLayout, Producer, Schedule},
    tiles::HopperTile,
};
use crate::{
    hopper::{self, THREADS, WARPGROUP},
    program::{Name, Program},
};
use kernels::gemm::{Beta, EpilogueKind, Gemm, Layout};
use ptx::{Compare, Entry, Launch, Pair, Sm, Special, Storage, TensorMap, TensorMapError};

/// Specialization of the product for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HopperProduct {
    /// Storage of A and B: 16 bits.
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
    pub tile: HopperTile,
    /// True if the leading dimension of C and n are multiples of eight.
    pub aligned: bool,
    /// Two blocks of a cluster compute tiles of neighboring rows and load half of B each for both; the number of rows of tiles is even.
    pub paired: bool,
}

impl HopperProduct {
    /// Specialization for `spec` with the tile of the least predicted time on `multiprocessors`; with f32 output and no
    /// epilogue, the time with split-K ([`HopperProduct::split`]). `None` if TMA or the tensor cores do not support the
    /// operands: f32, rows of A or B that do not start at multiples of 16 bytes (leading dimensions that are not multiples
    /// of eight), or an empty A, B or C. Use [`super::sm80::Product`] then.
    pub fn new(
        spec: &Gemm,
        storage: Storage,
        output: Storage,
        epilogue: EpilogueKind,
        multiprocessors: usize,
    ) -> Option<Self> {
        let whole = |size: &usize| size.is_multiple_of(8);
        let supported = storage != Storage::F32 && [spec.lda, spec.ldb].iter().all(whole);
        let nonempty = [spec.m, spec.n, spec.k].iter().all(|&size| size > 0);
        let sums = output == Storage::F32 && epilogue == EpilogueKind::None;
        let cycles = |tile: &HopperTile| match sums {
            true => tile.split(spec, multiprocessors).1,
            false => tile.cycles([spec.m, spec.n, spec.k], multiprocessors),
        };
        let tile = HopperTile::all(spec.beta).min_by_key(cycles).expect("there are tiles");
        let aligned = [spec.ldc, spec.n].iter().all(whole);
        let Gemm { a, b, beta, .. } = *spec;
        let paired = spec.m.div_ceil(HopperTile::M as usize).is_multiple_of(2);
        (supported && nonempty).then_some(Self { storage, output, a, b, beta, epilogue, tile, aligned, paired })
    }

    /// Tensor maps of A and B of `spec` at these addresses.
    ///
    /// # Errors
    /// An address is not a multiple of 16, or [`HopperProduct::new`] does not support the sizes. Use
    /// [`super::sm80::Product`] then.
    pub fn maps(&self, spec: &Gemm, [a, b]: [u64; 2]) -> Result<[TensorMap; 2], TensorMapError> {
        let Gemm { m, n, k, lda, ldb, .. } = *spec;
        let [a_along_k, b_along_k] = self.along_k();
        let map = |address, along_k, extent, leading, rows| {
            let (sizes, rows) = if along_k { ([extent, k], rows) } else { ([k, extent], HopperTile::K) };
            TensorMap::matrix(address, self.storage, sizes, leading, rows)
        };
        let half = self.layout().half_of_b();
        let b = match (self.paired, b_along_k) {
            (true, false) => TensorMap::matrix(b, self.storage, [k, n], ldb, half)?,
            (paired, _) => map(b, b_along_k, n, ldb, if paired { half } else { self.tile.n })?,
        };
        Ok([map(a, a_along_k, m, lda, HopperTile::M)?, b])
    }

    /// Name of the program; the tile is rows x columns x depth x stages, and x blocks of a cluster.
    pub fn name(&self) -> Name {
        let letter = |layout| if layout == Layout::Normal { "n" } else { "t" };
        let operation = format!("gemm.{}{}", letter(self.a), letter(self.b));
        let types = match self.storage == self.output {
            true => self.storage.name().to_string(),
            false => format!("{}{}", self.storage.name(), self.output.name()),
        };
        let HopperTile { n, stages, .. } = self.tile;
        let cluster = if self.paired { format!("x{PAIR}") } else { String::new() };
        let tile = format!("{}x{n}x{}x{stages}{cluster}", HopperTile::M, HopperTile::K);
        let variant = self.options().words();
        let parts = [&types, Sm::Sm90a.name(), &tile, &variant];
        Name::new(&operation, &parts[..if variant.is_empty() { 3 } else { 4 }])
    }

    /// Number of splits of k and steps of k of each, for the least predicted time on `multiprocessors`; (1, k) if split-K
    /// gains nothing. A split has at least 256 steps.
    pub fn split(&self, spec: &Gemm, multiprocessors: usize) -> (usize, usize) {
        self.tile.split(spec, multiprocessors).0
    }

    /// Launch for `layers` splits of k: a block per multiprocessor, at most one per tile, in whole clusters; `None` if C is
    /// empty.
    pub fn launch(&self, m: usize, n: usize, layers: usize, multiprocessors: usize) -> Option<Launch> {
        let blocks = (self.tile.tiles(m, n) * layers).min(multiprocessors) as u32;
        let blocks = if self.paired && blocks > 0 { (blocks / PAIR).max(1) * PAIR } else { blocks };
        let shared_bytes = self.layout().shared_bytes();
        (blocks > 0).then_some(Launch { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes })
    }

    /// Emits the program.
    pub fn program(&self) -> Program {
        let required_sass =
            &["HGMMA.64x", "UTMALDG.2D", "ACQBULK", "SYNCS.PHASECHK", "SYNCS.ARRIVE", "USETMAXREG", "WARPGROUP.DEPBAR"];
        hopper::program(self.name(), self.storage, self, required_sass)
    }

    fn options(&self) -> EpilogueOptions {
        let Self { output, beta, epilogue, aligned, .. } = *self;
        EpilogueOptions { output, beta, kind: epilogue, aligned }
    }

    fn layout(&self) -> PipelineLayout {
        PipelineLayout { tile: self.tile, along_k: self.along_k(), ranks: if self.paired { PAIR } else { 1 } }
    }

    /// True if k runs along the rows in memory: for A, for B.
    fn along_k(&self) -> [bool; 2] {
        [self.a == Layout::Normal, self.b == Layout::Transposed]
    }
}

impl hopper::Body for HopperProduct {
    fn write<P: Pair>(&self, k: &Entry) {
        let options = self.options();
        let params = HopperProductArgs::declare(k, &|name| options.has(name));
        let layout = self.layout();
        let schedule = Schedule::new(k, layout, &params);
        let (maps, c) = ([params.map_a, params.map_b], params.c);
        let epilogue = EpilogueEmitter::new(options, params.epilogue);
        let base = k.dynamic_shared(1024);
        let thread = k.special(Special::TidX);
        let warp = hopper::warp_number(k, thread);
        k.if_(k.setp(Compare::Eq, thread, 0u32), || {
            hopper::prefetch(k, &maps);
            layout.initialize(k, base);
        });
        if self.paired {
            k.cluster(PAIR);
            k.cluster_sync();
        } else {
            k.bar_sync();
        }
        hopper::roles(
            k,
            warp,
            hopper::CONSUMERS,
            || hopper::producer(k, warp, || Producer { layout, base, maps: &maps }.run(k, &schedule)),
            || {
                let warp = k.sub(warp, WARPGROUP / 32);
                Consumer::new(k, layout, base, warp).run::<P>(k, &schedule, &epilogue, &c);
            },
        );
        if self.paired {
            k.comment("the other block has arrived at the last barriers of this one");
            k.cluster_sync();
        }
    }
}
