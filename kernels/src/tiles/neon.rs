//! [`FlushingFma`] on NEON.
//!
//! FPCR.FZ flushes results that are below 2^-126 before rounding, the definition those that are after it. The two differ only
//! where a result rounds up to 2^-126, and every flushed result sets FPSR.UFC. A tile that sets it is computed by the definition,
//! from the old values of C. (FEAT_AFP flushes after rounding, but CPUs before Armv8.7 lack it.)

use super::emulated::{add_flushed, flush, step};
use super::{BLOCK, FlushingFma, PACKED, STRIDE, strides_of_a};
use crate::register_tile::RegisterTile;
use crate::simd::{Neon, Simd};
use std::arch::asm;

/// FPCR: round to nearest even, no traps, denormal operands and results are flushed.
const FLUSHING: u64 = 1 << 24;

/// FPSR.UFC: a result was flushed.
const FLUSHED: u64 = 1 << 3;

const TILE: RegisterTile = RegisterTile::of::<Neon>();
const NR: usize = TILE.columns(Neon::LANES);

/// Floats from a step of B to the next.
const fn step_of_b(layout: usize) -> usize {
    if layout == PACKED { NR } else { STRIDE }
}

/// Text of assembly for each row of a tile: `$row!` with the row, its two accumulators, and a register of A, which is used again
/// six rows later so that cores without renaming load ahead.
macro_rules! rows {
    ($row:ident) => {
        concat!(
            $row!(0, 0, 1, 26),
            $row!(1, 2, 3, 27),
            $row!(2, 4, 5, 28),
            $row!(3, 6, 7, 29),
            $row!(4, 8, 9, 30),
            $row!(5, 10, 11, 31),
            $row!(6, 12, 13, 26),
            $row!(7, 14, 15, 27),
            $row!(8, 16, 17, 28),
            $row!(9, 18, 19, 29),
            $row!(10, 20, 21, 30),
            $row!(11, 22, 23, 31)
        )
    };
}
/// Lines of a row, if the tile has it.
macro_rules! of_row {
    ($row:literal, $($text:expr),*) => {
        concat!(".if {h} > ", $row, "\n", $($text,)* ".endif\n")
    };
}
macro_rules! clear {
    ($row:literal, $x:literal, $y:literal, $a:literal) => {
        of_row!($row, "movi v", $x, ".2d, #0\n", "movi v", $y, ".2d, #0\n")
    };
}
macro_rules! multiply_add {
    ($row:literal, $x:literal, $y:literal, $a:literal) => {
        of_row!(
            $row,
            concat!("ldr s", $a, ", [{a}, #4*{row_of_a}*", $row, "]\n"),
            concat!("fmla v", $x, ".4s, v24.4s, v", $a, ".s[0]\n"),
            concat!("fmla v", $y, ".4s, v25.4s, v", $a, ".s[0]\n")
        )
    };
}
macro_rules! save {
    ($row:literal, $x:literal, $y:literal, $a:literal) => {
        of_row!($row, "stp q", $x, ", q", $y, ", [{even}, #32*", $row, "]\n")
    };
}
macro_rules! add_to_c {
    ($row:literal, $x:literal, $y:literal, $a:literal) => {
        of_row!(
            $row,
            concat!("ldp q24, q25, [{even}, #32*", $row, "]\n"),
            "ldp q26, q27, [{row}]\n",
            concat!("fadd v", $x, ".4s, v24.4s, v", $x, ".4s\n"),
            concat!("fadd v", $y, ".4s, v25.4s, v", $y, ".4s\n"),
            concat!("fadd v", $x, ".4s, v26.4s, v", $x, ".4s\n"),
            concat!("fadd v", $y, ".4s, v27.4s, v", $y, ".4s\n"),
            concat!("stp q", $x, ", q", $y, ", [{row}]\n"),
            "add {row}, {row}, {ldc}\n"
        )
    };
}
/// The multiply-adds of every second step.
macro_rules! chain {
    () => {
        concat!(
            "mov {n:w}, #{block}/2\n",
            "3:\n",
            "ldp q24, q25, [{b}], #8*{step_of_b}\n",
            rows!(multiply_add),
            "add {a}, {a}, #8*{step_of_a}\n",
            "subs {n:w}, {n:w}, #1\n",
            "b.ne 3b\n"
        )
    };
}

impl FlushingFma for Neon {
    #[inline(always)]
    unsafe fn multiply<const H: usize, const L: usize>(
        self,
        blocks: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        ldc: usize,
        even: *mut f32,
    ) {
        const { assert!(NR == 8) };
        assert!(H <= TILE.rows);
        if blocks == 0 {
            return;
        }
        // SAFETY: the token proves that the instructions exist; the caller guarantees the memory. The mode on leaving is that
        // on entering, and assembly may change FPSR.
        unsafe {
            let old: [[f32; NR]; H] = std::array::from_fn(|i| c.add(i * ldc).cast::<[f32; NR]>().read_unaligned());
            let flags: u64;
            asm!(
                "mrs {mode}, fpcr",
                "msr fpcr, {flags}",
                "msr fpsr, xzr",
                "2:",
                "mov {a}, {block_of_a}",
                "mov {b}, {block_of_b}",
                rows!(clear),
                chain!(),
                rows!(save),
                "add {a}, {block_of_a}, #4*{step_of_a}",
                "add {b}, {block_of_b}, #4*{step_of_b}",
                rows!(clear),
                chain!(),
                "mov {row}, {c}",
                rows!(add_to_c),
                "add {block_of_a}, {block_of_a}, #4*{block}*{step_of_a}",
                "add {block_of_b}, {block_of_b}, #4*{block}*{step_of_b}",
                "subs {blocks}, {blocks}, #1",
                "b.ne 2b",
                "mrs {flags}, fpsr",
                "msr fpcr, {mode}",
                h = const H,
                row_of_a = const strides_of_a(L, H)[0], step_of_a = const strides_of_a(L, H)[1],
                step_of_b = const step_of_b(L), block = const BLOCK,
                block_of_a = inout(reg) a => _, block_of_b = inout(reg) b => _, a = out(reg) _, b = out(reg) _,
                c = in(reg) c, row = out(reg) _, ldc = in(reg) 4 * ldc, even = in(reg) even,
                n = out(reg) _, blocks = inout(reg) blocks => _, mode = out(reg) _, flags = inout(reg) FLUSHING => flags,
                out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _, out("v7") _,
                out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _, out("v15") _,
                out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _,
                out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
                options(nostack),
            );
            if flags & FLUSHED != 0 {
                by_definition::<L>(blocks, a, b, c, ldc, &old);
            }
        }
    }
}

/// [`FlushingFma::multiply`] in plain Rust, added to `old` instead of C.
///
/// # Safety
/// As `multiply`, for the rows of `old`.
#[cold]
#[inline(never)]
unsafe fn by_definition<const L: usize>(
    blocks: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    ldc: usize,
    old: &[[f32; NR]],
) {
    let [row_of_a, step_of_a] = strides_of_a(L, old.len());
    for (i, &row) in old.iter().enumerate() {
        let mut sums = row.map(flush);
        for first in (0..blocks).map(|block| block * BLOCK) {
            let [mut even, mut odd] = [[0f32; NR]; 2];
            for k in (first..first + BLOCK).step_by(2) {
                for (k, chain) in [(k, &mut even), (k + 1, &mut odd)] {
                    // SAFETY: the caller guarantees the steps of A and B.
                    let (a, b) = unsafe {
                        let b = b.add(k * step_of_b(L)).cast::<[f32; NR]>();
                        (*a.add(i * row_of_a + k * step_of_a), b.read_unaligned())
                    };
                    step(flush(a), &b.map(flush), chain);
                }
            }
            for j in 0..NR {
                sums[j] = add_flushed(sums[j], add_flushed(even[j], odd[j]));
            }
        }
        // SAFETY: the caller guarantees the row of C.
        unsafe { c.add(i * ldc).cast::<[f32; NR]>().write_unaligned(sums) };
    }
}
