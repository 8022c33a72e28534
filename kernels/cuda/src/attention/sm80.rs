//! Attention kernels over ragged sequences for the tensor cores of Ampere and later, and in f32 (SIMT). Algorithms:
//! `sm80_forward`, `sm80_backward` and `simt`.
//!
//! Arguments: [`AttentionArgs`](super::arguments::AttentionArgs) and [`DeltaArgs`](super::arguments::DeltaArgs).
//!
//! The grid is ⌈longest / 64⌉ x A x B; a block past its sequence's end returns at once.
//!
//! Limits: D ≤ 128; T·A < 2³². f32 uses SIMT programs (`simt`) with the same arguments. Rows of q, k, v that are
//! not whole vectors of 16 bytes (ld or D not a multiple of eight) are copied element by element.

use super::arguments::Parameters;
use crate::program::{Name, Pass, Program};
use ptx::{Bf16x2, F16x2, Launch, Module, Sm, Storage, Tile};

/// Queries per block, and keys per tile.
pub(super) const TILE: u32 = 64;
/// Threads per block.
pub(super) const THREADS: u32 = 128;
/// Rows per block of the SIMT kernels, one per warp.
pub(super) const ROWS: u32 = THREADS / 32;
/// Bytes of lse and δ of a tile.
pub(super) const PAIR_BYTES: u32 = 2 * TILE * 4;
/// Bytes of a tile's mask bits.
pub(super) const MASK_BYTES: u32 = TILE / 2 * 16;
/// Shared memory after the tiles of the keys' kernel, bytes: lse and δ of two tiles of queries, and the mask bits.
const ROW_BYTES: u32 = 2 * PAIR_BYTES + MASK_BYTES;
/// Lanes that share a row of δ.
pub(super) const DELTA_LANES: u32 = 8;
/// Maximum head size.
pub const MAX_HEAD_SIZE: usize = 128;

/// Kernel of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// out and lse.
    Forward,
    /// δ = Σ_d dout ∘ out, an input of the two kernels below.
    Delta,
    /// dq.
    Queries,
    /// dk and dv.
    Keys,
}

/// Specialization of attention on the tensor cores (f32: SIMT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flash {
    /// Kernel.
    pub step: Step,
    /// Storage of q, k, v, out and their gradients.
    pub storage: Storage,
    /// D padded: 32, 64 or 128.
    pub padded: u32,
    /// True if probabilities are dropped.
    pub dropout: bool,
    /// True if rows are whole vectors of 16 bytes.
    pub aligned: bool,
}

impl Flash {
    /// Specialization for heads of `head_size` in rows `ld` elements apart; `None` if `head_size` exceeds [`MAX_HEAD_SIZE`].
    pub fn new(step: Step, storage: Storage, head_size: usize, ld: usize, dropout: bool) -> Option<Self> {
        let padded = [32, 64, 128].into_iter().find(|padded| head_size <= *padded as usize)?;
        // Except for δ, f32 elements are read one at a time anyway.
        let any = storage == Storage::F32 && step != Step::Delta;
        let aligned = any || head_size.is_multiple_of(8) && ld.is_multiple_of(8);
        Some(Self { step, storage, padded, dropout: dropout && step != Step::Delta, aligned })
    }

    /// All specializations for f32 and bf16, and an example of each kernel for f16.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for step in [Step::Forward, Step::Queries, Step::Keys, Step::Delta] {
            for (storage, head_size) in
                [Storage::F32, Storage::Bf16].into_iter().flat_map(|s| [64, 128, 32, 7].map(|n| (s, n)))
            {
                all.extend(
                    [false, true]
                        .map(|drops| Self::new(step, storage, head_size, head_size, drops))
                        .into_iter()
                        .flatten(),
                );
            }
            all.extend(Self::new(step, Storage::F16, 64, 64, true));
        }
        let mut seen = std::collections::HashSet::new();
        all.retain(|kernel| seen.insert(*kernel));
        all
    }

    /// Name of the program for `sm`; the tile is queries x keys x padded head size.
    pub fn name(&self, sm: Sm) -> Name {
        let (pass, step) = match self.step {
            Step::Forward => (Pass::Forward, ""),
            Step::Delta => (Pass::Backward, "delta"),
            Step::Queries => (Pass::Backward, "queries"),
            Step::Keys => (Pass::Backward, "keys"),
        };
        let words = [step, if self.dropout { "dropout" } else { "" }, if self.aligned { "" } else { "unaligned" }];
        let variant = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
        let tile = match self.storage {
            Storage::F32 => format!("{ROWS}x32x{}", self.padded),
            _ => format!("{TILE}x{TILE}x{}", self.padded),
        };
        let parts = [self.storage.name(), sm.name(), &tile, &variant];
        Name::new(&format!("attention.{}", pass.name()), &parts[..if variant.is_empty() { 3 } else { 4 }])
    }

    /// Launch for `sequences` sequences of at most `longest` tokens and `heads` heads; `None` if one of them is 0.
    /// [`Step::Delta`] has its own [`Flash::delta_launch`].
    pub fn launch(&self, sequences: usize, longest: usize, heads: usize) -> Option<Launch> {
        let rows = if self.storage == Storage::F32 { ROWS } else { TILE };
        let grid = [longest.div_ceil(rows as usize) as u32, heads as u32, sequences as u32];
        let filled = grid.iter().all(|&n| n > 0);
        filled.then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: self.shared_bytes() })
    }

    /// Launch of [`Step::Delta`] for T tokens; `None` if there are no rows.
    pub fn delta_launch(tokens: usize, heads: usize) -> Option<Launch> {
        let grid = [(tokens * heads).div_ceil((THREADS / DELTA_LANES) as usize) as u32, 1, 1];
        (tokens * heads > 0).then_some(Launch { grid, block: [THREADS, 1, 1], shared_bytes: 0 })
    }

    /// Parameters of a kernel other than [`Step::Delta`].
    pub(super) fn parameters(&self) -> Parameters {
        let (dq, dk) = (self.step == Step::Queries, self.step == Step::Keys);
        Parameters {
            maps: false,
            backward: dq || dk,
            computes_delta: false,
            dq,
            dk,
            dropout: self.dropout,
            sequences: false,
        }
    }

    /// A tile of 64 rows in shared memory.
    pub(super) const fn tile(&self) -> Tile {
        Tile::of_halves(TILE, self.padded)
    }

    fn shared_bytes(&self) -> u32 {
        match self.step {
            _ if self.storage == Storage::F32 => 0,
            Step::Delta => 0,
            Step::Forward => 5 * self.tile().bytes(),
            Step::Queries => 6 * self.tile().bytes(),
            Step::Keys => 6 * self.tile().bytes() + ROW_BYTES,
        }
    }

    /// Maximum registers per thread.
    fn registers(&self) -> u32 {
        match (self.step, self.padded) {
            (Step::Delta, _) => 40,
            _ if self.storage == Storage::F32 => 64,
            (_, 128) => 255,
            (Step::Forward, _) => 168,
            _ => 255,
        }
    }

    /// Emits the program for `sm`.
    pub fn program(&self, sm: Sm) -> Program {
        let name = self.name(sm);
        let mut module = Module::new(sm);
        module.entry(&name.entry(), [THREADS, 1, 1], |k| {
            k.maxnreg(self.registers());
            match (self.step, self.storage) {
                (Step::Delta, _) => self.delta(k),
                (Step::Forward, Storage::F32) => self.forward_f32(k),
                (Step::Queries, Storage::F32) => self.queries_f32(k),
                (Step::Keys, Storage::F32) => self.keys_f32(k),
                (Step::Forward, Storage::F16) => self.forward::<F16x2>(k),
                (Step::Forward, _) => self.forward::<Bf16x2>(k),
                (Step::Queries, Storage::F16) => self.queries::<F16x2>(k),
                (Step::Queries, _) => self.queries::<Bf16x2>(k),
                (Step::Keys, Storage::F16) => self.keys::<F16x2>(k),
                (Step::Keys, _) => self.keys::<Bf16x2>(k),
            }
        });
        let required_sass: &[&str] = match (self.step, self.aligned) {
            (Step::Delta, _) => &[],
            _ if self.storage == Storage::F32 => &["FFMA", "SHFL"],
            (_, true) => &["HMMA.16816.F32", "LDSM.16", "LDGSTS.E.BYPASS.128"],
            (_, false) => &["HMMA.16816.F32", "LDSM.16"],
        };
        Program::new(name, &module, self.registers()).requiring(required_sass)
    }
}
