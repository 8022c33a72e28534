//! Matrix products with fused epilogues: C = epilogue(A · B), f32 arithmetic, f32 or bf16 storage.
//!
//! ```text
//! C[m, n] (+)= Σ_p A[m, p] · B[p, n]              p = 0 .. k
//! ```
//!
//! A, B and C are row-major with leading dimensions; A and B may be stored transposed. One specification covers the
//! forms of a linear layer: forward y = x·Wᵀ (NT, weights stored as [out, in]), dx = dy·W (NN), dW = dyᵀ·x (TN).
//!
//! ```text
//!              n: tasks cut columns …            one task:      for each block of kc of k
//!        ┌──────┬──────┬──────┐                                   B[kc, columns] in panels of NR columns
//!      m │ task │ task │ task │   B block stays in L2             for each panel of ≤ MR rows of A
//!        ├──────┼──────┼──────┤   panel of A stays in L1            for each panel of B
//!      … │      │      │      │                                       MR x NR tile of C in registers: Σ over kc
//!        └──────┴──────┴──────┘
//! ```
//!
//! Cost: 2·m·n·k FLOP; every operand read once. Operands that the microkernel can read in place are not packed
//! (`cpu::blocks`); the others are packed once per task that uses them. Loop nest: Goto and van de Geijn, "Anatomy of
//! High-Performance Matrix Multiplication", ACM TOMS 2008, without its block of A: each panel of A is multiplied with
//! all panels of B in turn. A weight that is used many times is packed once ([`PackedB`]).
//!
//! Each element of C is a sum of chains of at most 384 fused multiply-adds in order of p; the chains are added in
//! order. Their bounds depend on k only (`cpu::blocking::chain`), so the result does not depend on tiling, tasks, the
//! number of threads, prior packing of B, or the instruction set.
//! A product has a [`Precision`]: f32 as above, or bf16 and split operands on tiles, whose sums have an order of their own
//! ([`tiles`](crate::tiles)), also the same on every machine.
//!
//! Limits: accumulators are f32; with bf16 storage of C they are rounded once, at the end.
//!
//! A layer y = max(x·Wᵀ + b, 0) whose weight is packed once:
//!
//! ```
//! use kernels::{Cpu, activation::Activation};
//! use kernels::gemm::{Gemm, Layout, PackedB, SliceEpilogue, gemm_packed};
//!
//! let (cpu, spec) = (Cpu::detect()?, Gemm::nt(1, 2, 3)); // m, n, k
//! let (x, weight, bias) = ([1.0f32, 2.0, 3.0], [1.0f32, 0.0, 0.0, 0.0, 0.0, -4.0], [0.5, 0.0]);
//! let mut packed = PackedB::new(cpu.isa(), 3, 2);
//! packed.pack(&cpu, Layout::Transposed, 3, &weight);
//! let mut y = [0.0f32; 2];
//! gemm_packed(&cpu, &spec, &x, &packed, &mut y, SliceEpilogue::bias_activation(&bias, Activation::Relu, None));
//! assert_eq!(y, [1.5, 0.0]);
//! # Ok::<(), kernels::CpuError>(())
//! ```
#![allow(unsafe_code)]

mod cpu;
mod epilogue;
mod feed_forward;
mod operand;
mod precision;

pub use crate::register_tile::RegisterTile;
pub(crate) use cpu::blocking::chain;
pub use cpu::blocking::{Blocking, CHAIN, SINGLE_BLOCK};
#[cfg(target_arch = "x86_64")]
pub(crate) use cpu::microkernel::{Destination, NextTile, PanelA, PanelB, Part};
pub use cpu::packed::{PackMismatch, PackedB};
pub(crate) use cpu::{
    Product,
    blocks::{ALIASING_STRIDE, PanelsOfGroups, RowsOfGroups},
    microkernel::{Entered, Microkernel, MicrokernelUser, MultiplyAdd, Tile},
    run_tasks,
};
pub use cpu::{scratch_bytes, warm_up};
pub use epilogue::{Epilogue, EpilogueKind, SliceEpilogue};
pub(crate) use epilogue::{Scales, TileEpilogue};
pub use feed_forward::{FeedForward, feed_forward, rows_of_block};
pub use precision::{Precision, UnknownPrecision};

use crate::Element;
use crate::extent::{area, span};
use crate::pool::Cpu;
use operand::Operand;
pub(crate) use operand::Output;

/// Memory layout of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// Row-major, not transposed: A is [m, k], B is [k, n].
    Normal,
    /// Row-major, transposed: A is stored as [k, m], B as [n, k].
    Transposed,
}

/// Factor β of the old values of C, as in BLAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Beta {
    /// C = epilogue(A·B); the old values are not read.
    Zero,
    /// C = C + A·B; only with [`EpilogueKind::None`] and [`EpilogueKind::Bias`].
    One,
}

/// Specification of a product: sizes, layouts, leading dimensions and β.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B: terms of each sum.
    pub k: usize,
    /// Layout of A.
    pub a: Layout,
    /// Layout of B.
    pub b: Layout,
    /// Elements between the starts of two stored rows of A.
    pub lda: usize,
    /// Elements between the starts of two stored rows of B. Ignored if B is packed.
    pub ldb: usize,
    /// Elements between the starts of two rows of C and of the epilogue's matrices.
    pub ldc: usize,
    /// Factor of the old values of C.
    pub beta: Beta,
    /// Rounding of A and B. CPUs only.
    pub precision: Precision,
}

impl Gemm {
    /// Product of contiguous operands that overwrites C.
    pub const fn new(m: usize, n: usize, k: usize, a: Layout, b: Layout) -> Self {
        let lda = if matches!(a, Layout::Normal) { k } else { m };
        let ldb = if matches!(b, Layout::Normal) { n } else { k };
        Self { m, n, k, a, b, lda, ldb, ldc: n, beta: Beta::Zero, precision: Precision::F32 }
    }
    /// A [m, k], B [k, n]: dx = dy·W.
    pub const fn nn(m: usize, n: usize, k: usize) -> Self {
        Self::new(m, n, k, Layout::Normal, Layout::Normal)
    }
    /// A [m, k], B stored as [n, k]: y = x·Wᵀ.
    pub const fn nt(m: usize, n: usize, k: usize) -> Self {
        Self::new(m, n, k, Layout::Normal, Layout::Transposed)
    }
    /// A stored as [k, m], B [k, n]: dW = dyᵀ·x.
    pub const fn tn(m: usize, n: usize, k: usize) -> Self {
        Self::new(m, n, k, Layout::Transposed, Layout::Normal)
    }
    /// A stored as [k, m], B as [n, k].
    pub const fn tt(m: usize, n: usize, k: usize) -> Self {
        Self::new(m, n, k, Layout::Transposed, Layout::Transposed)
    }
    /// Copy with these leading dimensions.
    pub const fn with_leading_dimensions(self, lda: usize, ldb: usize, ldc: usize) -> Self {
        Self { lda, ldb, ldc, ..self }
    }
    /// Copy that adds the product to C.
    pub const fn accumulate(self) -> Self {
        Self { beta: Beta::One, ..self }
    }
    /// Copy with operands of this precision.
    pub const fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }
    /// Floating-point operations; a multiply-add counts as two.
    pub const fn flops(&self) -> u64 {
        2 * self.m as u64 * self.n as u64 * self.k as u64
    }
    /// Elements that A, B and C span in memory: the least lengths of their slices. `usize::MAX`, which no slice can
    /// have, if a span overflows `usize`.
    pub const fn spans(&self) -> [usize; 3] {
        let (ar, ac) = if matches!(self.a, Layout::Normal) { (self.m, self.k) } else { (self.k, self.m) };
        let (br, bc) = if matches!(self.b, Layout::Normal) { (self.k, self.n) } else { (self.n, self.k) };
        [span(ar, ac, self.lda), span(br, bc, self.ldb), span(self.m, self.n, self.ldc)]
    }

    #[track_caller]
    fn check_a_and_c(&self, a: usize, c: usize) {
        let [span_a, _, span_c] = self.spans();
        let width = if self.a == Layout::Normal { self.k } else { self.m };
        assert!(self.lda >= width, "{self:?}: lda is below the {width} elements of a stored row of A");
        assert!(self.ldc >= self.n, "{self:?}: ldc is below the {} columns of C", self.n);
        assert!(a >= span_a, "{self:?}: A holds {a} elements but spans {span_a}");
        assert!(c >= span_c, "{self:?}: C holds {c} elements but spans {span_c}");
    }
    #[track_caller]
    fn check_b(&self, b: usize) {
        let span_b = self.spans()[1];
        let width = if self.b == Layout::Normal { self.n } else { self.k };
        assert!(self.ldb >= width, "{self:?}: ldb is below the {width} elements of a stored row of B");
        assert!(b >= span_b, "{self:?}: B holds {b} elements but spans {span_b}");
    }
}

/// Batch of products of one specification: product i uses A, B and C at i times the strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Number of products.
    pub count: usize,
    /// Elements from one A to the next; 0 if all products share A.
    pub stride_a: usize,
    /// Elements from one B to the next; 0 if all products share B.
    pub stride_b: usize,
    /// Elements from one C to the next. The Cs must not overlap; they may be column blocks of wider rows.
    pub stride_c: usize,
}

impl Batch {
    const ONE: Self = Self { count: 1, stride_a: 0, stride_b: 0, stride_c: 0 };

    /// `count` products whose operands are stored contiguously, one after the other.
    pub const fn contiguous(count: usize, spec: &Gemm) -> Self {
        let [stride_a, stride_b, stride_c] = spec.spans();
        Self { count, stride_a, stride_b, stride_c }
    }
}

/// C = epilogue(A · B), or C += A · B.
///
/// # Panics
/// If a slice is shorter than the specification spans, a leading dimension is less than a row, or the epilogue's
/// vectors and matrices do not match C.
#[track_caller]
pub fn gemm<A: Element, B: Element, C: Element>(
    cpu: &Cpu,
    spec: &Gemm,
    a: &[A],
    b: &[B],
    c: &mut [C],
    epilogue: SliceEpilogue<'_, C>,
) {
    spec.check_a_and_c(a.len(), c.len());
    spec.check_b(b.len());
    let epilogue = epilogue.check(spec);
    cpu::run(
        cpu,
        spec,
        &Batch::ONE,
        Operand::new(a),
        cpu::MatrixB::Unpacked(spec, Operand::new(b)),
        Output::new(c),
        epilogue,
    );
}

/// [`gemm`] with B already packed by [`PackedB::pack`]: the same bits, without packing.
///
/// # Panics
/// As [`gemm`]; and if `b` is not k x n or was packed for another precision or instruction set.
#[track_caller]
pub fn gemm_packed<A: Element, C: Element>(
    cpu: &Cpu,
    spec: &Gemm,
    a: &[A],
    b: &PackedB,
    c: &mut [C],
    epilogue: SliceEpilogue<'_, C>,
) {
    spec.check_a_and_c(a.len(), c.len());
    if let Err(mismatch) = b.check(cpu.isa().kind(), spec.precision, spec.k, spec.n) {
        panic!("{mismatch}");
    }
    let epilogue = epilogue.check(spec);
    cpu::run(cpu, spec, &Batch::ONE, Operand::new(a), cpu::MatrixB::Packed(b), Output::new(c), epilogue);
}

/// `batch.count` independent products of one specification.
///
/// # Panics
/// As [`gemm`] for any of them; and if the Cs overlap.
#[track_caller]
pub fn batched<A: Element, B: Element, C: Element>(
    cpu: &Cpu,
    spec: &Gemm,
    batch: &Batch,
    a: &[A],
    b: &[B],
    c: &mut [C],
) {
    if batch.count == 0 {
        return;
    }
    let last = batch.count - 1;
    let rest = |len: usize, stride: usize| len.saturating_sub(area(last, stride));
    spec.check_a_and_c(rest(a.len(), batch.stride_a), rest(c.len(), batch.stride_c));
    spec.check_b(rest(b.len(), batch.stride_b));
    let behind = batch.stride_c >= spec.spans()[2];
    let beside = batch.stride_c >= spec.n && span(batch.count, spec.n, batch.stride_c) <= spec.ldc;
    assert!(last == 0 || behind || beside, "{spec:?}, {batch:?}: the Cs overlap");
    let epilogue = SliceEpilogue::<C>::NONE.check(spec);
    cpu::run(
        cpu,
        spec,
        batch,
        Operand::new(a),
        cpu::MatrixB::Unpacked(spec, Operand::new(b)),
        Output::new(c),
        epilogue,
    );
}
