//! Tiles in vector registers: multiply-adds of f32 with denormals flushed.
//!
//! The operands hold bf16 widened to f32, in one of three layouts ([`PACKED`], [`ROWS`], [`COLUMNS`]). Each block of 32 k is two passes, even k and odd
//! k, over all accumulators of the tile, so the tile is as large as that of the f32 microkernel.
//!
//! Flushing is a mode of the thread (MXCSR), in which Rust code must not run. One block of assembly sets it, multiplies, and
//! restores the mode.

use super::{BLOCK, FlushingFma, PACKED, STRIDE, strides_of_a};
use crate::register_tile::RegisterTile;
use crate::simd::{Avx2, Avx512, Simd};
use std::arch::asm;

/// MXCSR: round to nearest even, no traps, denormal operands are zero, denormal results are flushed.
const FLUSHING: u32 = 0x9fc0;

/// Text of assembly for each row of a tile: `$row!` with the row and its two accumulators.
macro_rules! six_rows {
    ($row:ident) => {
        concat!($row!(0, 0, 1), $row!(1, 2, 3), $row!(2, 4, 5), $row!(3, 6, 7), $row!(4, 8, 9), $row!(5, 10, 11))
    };
}
macro_rules! fourteen_rows {
    ($row:ident) => {
        concat!(
            six_rows!($row),
            $row!(6, 12, 13),
            $row!(7, 14, 15),
            $row!(8, 16, 17),
            $row!(9, 18, 19),
            $row!(10, 20, 21),
            $row!(11, 22, 23),
            $row!(12, 24, 25),
            $row!(13, 26, 27)
        )
    };
}

/// The function of [`FlushingFma`]: register name, bytes of a vector, an instruction that clears a register, registers of B
/// and of A, rows of the tile, and all registers.
macro_rules! multiply {
    ($simd:ty, $reg:literal, $bytes:literal, $clear:literal, b $b0:literal $b1:literal, a $a:literal, $rows:ident, [$($all:tt)*]) => {
        impl FlushingFma for $simd {
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
                macro_rules! clear {
                    ($row:literal, $x:literal, $y:literal) => {
                        concat!(
                            ".if {h} > ", $row, "\n",
                            $clear, " ", $reg, $x, ", ", $reg, $x, ", ", $reg, $x, "\n",
                            $clear, " ", $reg, $y, ", ", $reg, $y, ", ", $reg, $y, "\n",
                            ".endif\n"
                        )
                    };
                }
                macro_rules! multiply_add {
                    ($row:literal, $x:literal, $y:literal) => {
                        concat!(
                            ".if {h} > ", $row, "\n",
                            "vbroadcastss ", $reg, $a, ", dword ptr [{a} + 4*{row_of_a}*", $row, "]\n",
                            "vfmadd231ps ", $reg, $x, ", ", $reg, $a, ", ", $reg, $b0, "\n",
                            "vfmadd231ps ", $reg, $y, ", ", $reg, $a, ", ", $reg, $b1, "\n",
                            ".endif\n"
                        )
                    };
                }
                macro_rules! save {
                    ($row:literal, $x:literal, $y:literal) => {
                        concat!(
                            ".if {h} > ", $row, "\n",
                            "vmovups [{even} + 2*", $bytes, "*", $row, "], ", $reg, $x, "\n",
                            "vmovups [{even} + 2*", $bytes, "*", $row, " + ", $bytes, "], ", $reg, $y, "\n",
                            ".endif\n"
                        )
                    };
                }
                macro_rules! add_to_c {
                    ($row:literal, $x:literal, $y:literal) => {
                        concat!(
                            ".if {h} > ", $row, "\n",
                            "vaddps ", $reg, $x, ", ", $reg, $x, ", [{even} + 2*", $bytes, "*", $row, "]\n",
                            "vaddps ", $reg, $y, ", ", $reg, $y, ", [{even} + 2*", $bytes, "*", $row, " + ", $bytes, "]\n",
                            "vaddps ", $reg, $x, ", ", $reg, $x, ", [{row}]\n",
                            "vaddps ", $reg, $y, ", ", $reg, $y, ", [{row} + ", $bytes, "]\n",
                            "vmovups [{row}], ", $reg, $x, "\n",
                            "vmovups [{row} + ", $bytes, "], ", $reg, $y, "\n",
                            "add {row}, {ldc}\n",
                            ".endif\n"
                        )
                    };
                }
                // The multiply-adds of every second step. Packed panels of B are asked for a block ahead: even steps of the next
                // block in the first pass, its odd steps in the second.
                macro_rules! chain {
                    () => {
                        concat!(
                            "mov {n:e}, {block}/2\n",
                            "3:\n",
                            "vmovups ", $reg, $b0, ", [{b}]\n",
                            "vmovups ", $reg, $b1, ", [{b} + ", $bytes, "]\n",
                            ".if {packed}\n",
                            "prefetcht0 [{b} + 2*", $bytes, "*{block}]\n",
                            ".if ", $bytes, " == 64\n",
                            "prefetcht0 [{b} + 2*", $bytes, "*{block} + 64]\n",
                            ".endif\n",
                            ".endif\n",
                            $rows!(multiply_add),
                            "add {a}, 8*{step_of_a}\n",
                            "add {b}, 8*{step_of_b}\n",
                            "dec {n:e}\n",
                            "jnz 3b\n"
                        )
                    };
                }
                assert!(H <= RegisterTile::of::<$simd>().rows);
                if blocks == 0 {
                    return;
                }
                // The mode to set and the one to restore.
                let mut modes = [FLUSHING, 0];
                // SAFETY: the token proves that the instructions exist; the caller guarantees the memory. The mode on leaving is
                // that on entering.
                unsafe {
                    asm!(
                        "stmxcsr [{modes} + 4]",
                        "ldmxcsr [{modes}]",
                        "2:",
                        $rows!(clear),
                        chain!(),
                        $rows!(save),
                        $rows!(clear),
                        // Back to the first odd step.
                        "sub {a}, 4*{block}*{step_of_a} - 4*{step_of_a}",
                        "sub {b}, 4*{block}*{step_of_b} - 4*{step_of_b}",
                        chain!(),
                        "sub {a}, 4*{step_of_a}",
                        "sub {b}, 4*{step_of_b}",
                        "mov {row}, {c}",
                        $rows!(add_to_c),
                        "dec {blocks}",
                        "jnz 2b",
                        "ldmxcsr [{modes} + 4]",
                        h = const H,
                        packed = const (L == PACKED) as usize,
                        row_of_a = const strides_of_a(L, H)[0],
                        step_of_a = const strides_of_a(L, H)[1],
                        step_of_b = const if L == PACKED { RegisterTile::of::<$simd>().columns(<$simd>::LANES) } else { STRIDE },
                        block = const BLOCK,
                        a = inout(reg) a => _,
                        b = inout(reg) b => _,
                        c = in(reg) c,
                        row = out(reg) _,
                        ldc = in(reg) 4 * ldc,
                        even = in(reg) even,
                        n = out(reg) _,
                        blocks = inout(reg) blocks => _,
                        modes = in(reg) modes.as_mut_ptr(),
                        $(out($all) _,)*
                        options(nostack),
                    );
                }
            }
        }
    };
}

multiply!(Avx512, "zmm", "64", "vpxord", b "28" "29", a "30", fourteen_rows, [
    "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11" "zmm12" "zmm13" "zmm14" "zmm15"
    "zmm16" "zmm17" "zmm18" "zmm19" "zmm20" "zmm21" "zmm22" "zmm23" "zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm29" "zmm30"
]);
multiply!(Avx2, "ymm", "32", "vpxor", b "12" "13", a "14", six_rows, [
    "ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5" "ymm6" "ymm7" "ymm8" "ymm9" "ymm10" "ymm11" "ymm12" "ymm13" "ymm14"
]);
