//! Packed B that is used many times, such as the weight of a layer that is applied N times.

use super::blocking::kc;
use super::microkernel::Stored;
use crate::gemm::operand::Operand;
use crate::gemm::{Gemm, Layout, Precision, cpu};
use crate::{
    Element,
    extent::span,
    pool::{Cpu, Disjoint},
    register_tile::RegisterTile,
    simd::{Isa, IsaKind},
    tiles::{BLOCK, padded},
};
use std::fmt;

/// B packed in the order in which products of one precision read it.
///
/// ```text
/// f32: blocks of kc rows of B, contiguous; in a block, panels of NR columns; in a panel, row after row:
///
///   │ k 0..kc                        │ k kc..2kc …
///   │ panel 0      │ panel 1      │ … │
///   │ NR │ NR │ …  │ NR │ NR │ …  │     the last panel is padded with zeros
/// ```
///
/// [`PackedB::rounded`] has rows of NR / 2 words, each two bf16 of columns LANES apart: products of f32 read half the bytes.
///
/// The other precisions have panels of 32 columns and all k, padded with zeros to a multiple of 32: rows of 32 pairs of bf16
/// for bf16, rows of 32 f32 for split operands, whose parts are made as they are used. They are the same for every instruction
/// set and kind of tiles.
#[derive(Clone)]
pub struct PackedB {
    isa: IsaKind,
    precision: Precision,
    is_rounded: bool,
    k: usize,
    n: usize,
    panels: Vec<Line>,
}

/// Columns of a panel of the precisions other than f32.
pub(super) const WHOLE_PANEL: usize = 32;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::gemm) struct Line([f32; 16]);

// SAFETY: sixteen floats without padding (64 bytes, aligned to 64); every bit pattern is valid.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Line {}

impl Line {
    pub(in crate::gemm) const ZERO: Self = Self([0.0; 16]);
}

/// Reason why a [`PackedB`] cannot be used for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackMismatch {
    /// Packed for another instruction set, whose panels differ in width.
    Isa {
        /// Instruction set that B was packed for.
        packed: IsaKind,
        /// Instruction set that the product runs on.
        wanted: IsaKind,
    },
    /// Packed for another precision.
    Precision {
        /// Precision that B was packed for.
        packed: Precision,
        /// Precision of the product.
        wanted: Precision,
    },
    /// Packed from a matrix of another size.
    Size {
        /// (k, n) as packed.
        packed: (usize, usize),
        /// (k, n) of the product.
        wanted: (usize, usize),
    },
}

impl fmt::Display for PackMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isa { packed, wanted } => {
                write!(f, "B was packed for {packed} but the product runs on {wanted}; pack it on the same Cpu")
            }
            Self::Precision { packed, wanted } => {
                write!(f, "B was packed for {packed} but the product is in {wanted}; pack it for that precision")
            }
            Self::Size { packed: (pk, pn), wanted: (k, n) } => {
                write!(f, "B was packed as {pk} x {pn} but the product needs {k} x {n}; pack the matrix it multiplies")
            }
        }
    }
}

impl std::error::Error for PackMismatch {}

/// Columns of a panel.
fn nr(isa: IsaKind) -> usize {
    RegisterTile::of_lanes(isa.lanes()).columns(isa.lanes())
}

impl fmt::Debug for PackedB {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { isa, precision, k, n, .. } = self;
        let rounded = if self.is_rounded { " of B in bf16" } else { "" };
        write!(f, "PackedB {{ {k} x {n} in {precision}{rounded} for {isa}, {} bytes }}", self.bytes())
    }
}

impl PackedB {
    /// Allocates panels for a k x n matrix of f32 products on `isa`, filled with zeros. No other method allocates.
    ///
    /// # Panics
    /// If the panels have more bytes than memory can address.
    #[track_caller]
    pub fn new(isa: Isa, k: usize, n: usize) -> Self {
        Self::with_precision(isa, Precision::F32, k, n)
    }

    /// [`PackedB::new`] for products of a precision.
    ///
    /// # Panics
    /// If the panels have more bytes than memory can address.
    #[track_caller]
    pub fn with_precision(isa: Isa, precision: Precision, k: usize, n: usize) -> Self {
        Self::stored(isa, precision, false, k, n)
    }

    /// [`PackedB::new`] with elements that [`PackedB::pack`] rounds to bf16. Products have the bits of those of the rounded
    /// matrix in f32.
    ///
    /// # Panics
    /// If the panels have more bytes than memory can address.
    #[track_caller]
    pub fn rounded(isa: Isa, k: usize, n: usize) -> Self {
        Self::stored(isa, Precision::F32, true, k, n)
    }

    #[track_caller]
    fn stored(isa: Isa, precision: Precision, is_rounded: bool, k: usize, n: usize) -> Self {
        let (rows, width, per_float) = match precision {
            Precision::F32 => (Some(k), nr(isa.kind()), if is_rounded { 2 } else { 1 }),
            Precision::Bf16 => (k.checked_next_multiple_of(BLOCK), WHOLE_PANEL, 2),
            Precision::Bf16x3 | Precision::Bf16x6 => (k.checked_next_multiple_of(BLOCK), WHOLE_PANEL, 1),
        };
        let columns = n.checked_next_multiple_of(width);
        let elements = columns.zip(rows).and_then(|(columns, rows)| columns.checked_mul(rows));
        let floats = elements.map(|elements| elements / per_float).filter(|&floats| floats <= isize::MAX as usize / 4);
        let floats = floats.unwrap_or_else(|| panic!("B of {k} x {n} has more elements than memory can address"));
        Self { isa: isa.kind(), precision, is_rounded, k, n, panels: vec![Line::ZERO; floats.div_ceil(16)] }
    }

    /// Packs `b` (k x n, stored as `layout` with leading dimension `ldb`), overwriting the panels. Allocates nothing,
    /// except a thread's scratch ([`warm_up`](super::warm_up)) if elements are rounded and it has none yet.
    ///
    /// # Panics
    /// If `b` is shorter than it spans, `ldb` is less than a stored row, or `cpu` runs another instruction set than the
    /// panels are for.
    #[track_caller]
    pub fn pack<B: Element>(&mut self, cpu: &Cpu, layout: Layout, ldb: usize, b: &[B]) {
        if let Err(mismatch) = self.check(cpu.isa().kind(), self.precision, self.k, self.n) {
            panic!("{mismatch}");
        }
        let (rows, columns) = if layout == Layout::Normal { (self.k, self.n) } else { (self.n, self.k) };
        assert!(ldb >= columns, "ldb {ldb} is below the {columns} elements of a stored row of B");
        let needed = span(rows, columns, ldb);
        assert!(b.len() >= needed, "B holds {} elements but {} x {} spans {needed}", b.len(), self.k, self.n);
        let spec = Gemm { ldb, ..Gemm::new(0, self.n, self.k, Layout::Normal, layout) };
        let out = Disjoint::new(bytemuck::cast_slice_mut(&mut self.panels));
        cpu::pack_all(cpu, &spec.with_precision(self.precision), Operand::new(b), self.is_rounded, out);
    }

    /// Checks that this can be the k x n matrix B of a product in `precision` on `isa`.
    ///
    /// # Errors
    /// If it was packed for another precision, for f32 on another instruction set, or has another size.
    pub fn check(&self, isa: IsaKind, precision: Precision, k: usize, n: usize) -> Result<(), PackMismatch> {
        if precision != self.precision {
            return Err(PackMismatch::Precision { packed: self.precision, wanted: precision });
        }
        if isa != self.isa && precision == Precision::F32 {
            return Err(PackMismatch::Isa { packed: self.isa, wanted: isa });
        }
        if (k, n) != (self.k, self.n) {
            return Err(PackMismatch::Size { packed: (self.k, self.n), wanted: (k, n) });
        }
        Ok(())
    }

    /// (k, n): rows and columns of the matrix.
    pub fn size(&self) -> (usize, usize) {
        (self.k, self.n)
    }

    /// Precision of the products that the panels are for.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// True if the elements are rounded to bf16.
    pub(super) fn is_rounded(&self) -> bool {
        self.is_rounded
    }

    /// All panels in memory order, as f32; with [`PackedB::rounded`] and bf16 each holds two elements.
    pub fn floats(&self) -> &[f32] {
        bytemuck::cast_slice(&self.panels)
    }

    /// Bytes of the panels.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.panels[..])
    }

    /// f32: panels of the `depth` rows from `k0` on, from column `column` (a multiple of NR) on.
    pub(super) fn block<B: Stored>(&self, k0: usize, depth: usize, column: usize) -> &[B] {
        assert!(self.is_rounded == (B::COLUMNS == 2));
        let (nr, kc) = (nr(self.isa), kc(self.k));
        let padded = self.n.next_multiple_of(nr);
        assert!(column.is_multiple_of(nr) && (kc == 0 || k0.is_multiple_of(kc)) && k0 + depth <= self.k);
        let groups: &[B] = bytemuck::cast_slice(&self.panels);
        &groups[(k0 * padded + column * depth) / B::COLUMNS..(k0 + depth) * padded / B::COLUMNS]
    }

    /// Pairs of bf16: panels from pair `start` of k and column `column` (a multiple of 32) on, and pairs from a panel to the
    /// next.
    pub(super) fn panels_of_pairs(&self, start: usize, column: usize) -> (&[u32], usize) {
        assert!(self.precision == Precision::Bf16 && column.is_multiple_of(WHOLE_PANEL));
        let step = padded(self.k) / 2 * WHOLE_PANEL;
        let pairs: &[u32] = bytemuck::cast_slice(&self.panels);
        (&pairs[column / WHOLE_PANEL * step + start * WHOLE_PANEL..], step)
    }

    /// Pairs of bf16: `depth` rows of the panel of a column, from pair `start` on.
    pub(super) fn pairs(&self, start: usize, depth: usize, column: usize) -> &[u32] {
        &self.panels_of_pairs(start, column / WHOLE_PANEL * WHOLE_PANEL).0[..depth * WHOLE_PANEL]
    }

    /// f32 of split operands: `depth` rows of the panel of a column, from k `start` on.
    pub(super) fn steps(&self, start: usize, depth: usize, column: usize) -> &[f32] {
        assert!(self.precision.parts() > 1);
        let step = padded(self.k) * WHOLE_PANEL;
        let floats: &[f32] = bytemuck::cast_slice(&self.panels);
        &floats[column / WHOLE_PANEL * step + start * WHOLE_PANEL..][..depth * WHOLE_PANEL]
    }
}
