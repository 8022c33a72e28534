//! Tiles of Advanced Matrix Extensions: eight registers of 16 rows of 64 bytes.
//!
//! ```text
//!                 B: 16 pairs x 16 columns     registers 6, 7
//!                  ┌──────┬──────┐
//!                  │  6   │  7   │             a block of 32 k: four loads, four products
//!                  └──────┴──────┘
//!        ┌──────┐  ┌──────┬──────┐
//!  A     │  4   │  │  0   │  1   │  C: 32 x 32 sums
//! rows   ├──────┤  ├──────┼──────┤
//!        │  5   │  │  2   │  3   │
//!        └──────┘  └──────┴──────┘
//! ```
//!
//! Rust has no stable intrinsics for these instructions, so they are assembly, a whole product in one block.

use super::{MatrixUnit, Section};
use std::arch::asm;
use std::sync::OnceLock;

/// Token of AMX for bf16 and int8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    /// Token, if this machine has the instructions and the system lets this process use them.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn detect() -> Result<Self, String> {
        static MISSING: OnceLock<Option<String>> = OnceLock::new();
        match MISSING.get_or_init(|| request().err()) {
            None => Ok(Self(())),
            Some(reason) => Err(reason.clone()),
        }
    }
}

/// Checks processor and system, and asks for the permission.
fn request() -> Result<(), String> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    const TILES: [(u32, &str); 3] = [(24, "AMX-TILE"), (22, "AMX-BF16"), (25, "AMX-INT8")];
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return Err("the processor has no AMX".to_string());
    }
    let features = __cpuid_count(7, 0).edx;
    if let Some((_, name)) = TILES.into_iter().find(|(bit, _)| features >> bit & 1 == 0) {
        return Err(format!("the processor has no {name}"));
    }
    let enabled: u32;
    // SAFETY: reads a register; the processor has the instruction (OSXSAVE).
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _, options(nomem, nostack, preserves_flags)) };
    // State components 17 and 18: configuration and data of tiles.
    if enabled >> 17 & 3 != 3 {
        return Err("the operating system does not save AMX's registers; Linux does from 5.16 on".to_string());
    }
    permission()
}

/// Asks Linux for the permission to use tiles, which holds for all threads of the process.
#[cfg(target_os = "linux")]
fn permission() -> Result<(), String> {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: this system call reads and writes no memory of the process; the kernel overwrites rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::from_raw_os_error(-result as i32);
    Err(format!("Linux refused this process the use of AMX: {error} (from arch_prctl, ARCH_REQ_XCOMP_PERM)"))
}

#[cfg(not(target_os = "linux"))]
fn permission() -> Result<(), String> {
    Err("AMX is used on Linux only".to_string())
}

/// Operand of `ldtilecfg`: all eight registers have 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    const FULL: Self = Self {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
    };
}

/// Configuration of this thread's tile registers. Dropping it releases them, so that the system does not save their
/// 8 KiB at each change of threads.
pub(crate) struct Configured(());

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the token of the maker proves that the instruction exists; nothing uses the registers after it.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// Multiplies with the instruction `$product`, as [`MatrixUnit::multiply`] describes.
macro_rules! multiply {
    ($product:literal, $sections:expr, $blocks:expr, $lda:expr, $c:expr, $ldc:expr, $add:expr) => {
        asm!(
            "test {n}, {n}",
            "jz 3f",
            "tileloadd tmm0, [{c} + {ldc}*1]",
            "tileloadd tmm1, [{c} + {ldc}*1 + 64]",
            "tileloadd tmm2, [{below} + {ldc}*1]",
            "tileloadd tmm3, [{below} + {ldc}*1 + 64]",
            "jmp 4f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "4:",
            "cmp {section}, {end}",
            "je 6f",
            // A section: both row blocks of A, and B.
            "mov {a}, [{section}]",
            "mov {b}, [{section} + 8]",
            "add {section}, 16",
            "mov {n}, {lda}",
            "shl {n}, 4",
            "add {n}, {a}",
            "mov {a1}, {n}",
            "mov {n}, {blocks}",
            "test {n}, {n}",
            "jz 4b",
            ".p2align 5",
            "5:",
            "tileloadd tmm6, [{b} + {ldb}*1]",
            "tileloadd tmm4, [{a} + {lda}*1]",
            concat!($product, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{b} + {ldb}*1 + 64]",
            concat!($product, " tmm1, tmm4, tmm7"),
            "tileloadd tmm5, [{a1} + {lda}*1]",
            concat!($product, " tmm2, tmm5, tmm6"),
            concat!($product, " tmm3, tmm5, tmm7"),
            "add {a}, 64",
            "add {a1}, 64",
            "add {b}, 2048",
            "dec {n}",
            "jnz 5b",
            "jmp 4b",
            "6:",
            "tilestored [{c} + {ldc}*1], tmm0",
            "tilestored [{c} + {ldc}*1 + 64], tmm1",
            "tilestored [{below} + {ldc}*1], tmm2",
            "tilestored [{below} + {ldc}*1 + 64], tmm3",
            c = in(reg) $c,
            below = in(reg) $c.wrapping_add(16 * $ldc),
            ldc = in(reg) 4 * $ldc,
            section = inout(reg) $sections.as_ptr() => _,
            end = in(reg) $sections.as_ptr_range().end,
            a = out(reg) _,
            a1 = out(reg) _,
            b = out(reg) _,
            lda = in(reg) 4 * $lda,
            ldb = in(reg) 128usize,
            n = inout(reg) usize::from($add) => _,
            blocks = in(reg) $blocks,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

// SAFETY: the only constructor is `detect`.
unsafe impl MatrixUnit for Amx {
    type Configured = Configured;

    fn configure(self) -> Configured {
        static FULL: Configuration = Configuration::FULL;
        // SAFETY: the token proves that the instruction exists and is permitted; the operand is 64 bytes in the format that it
        // reads.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const FULL, options(readonly, nostack, preserves_flags));
        }
        Configured(())
    }

    #[inline]
    unsafe fn multiply(self, sections: &[Section], blocks: usize, lda: usize, c: *mut f32, ldc: usize, add: bool) {
        const { assert!(size_of::<Section>() == 16) };
        // SAFETY: the token proves that the instructions exist and are permitted, the caller that the thread has configured
        // the registers and may access the memory. With no section or no block, C is loaded or cleared, and stored.
        unsafe { multiply!("tdpbf16ps", sections, blocks, lda, c, ldc, add) }
    }

    #[inline]
    unsafe fn multiply_bytes(self, section: Section, blocks: usize, lda: usize, c: *mut i32, ldc: usize) {
        let sections = [section];
        // SAFETY: as above.
        unsafe { multiply!("tdpbusd", sections, blocks, lda, c, ldc, false) }
    }
}
