//! Sizes of caches, for which products are blocked.

/// Data caches that products are blocked for, in bytes. Results do not depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// L1 of a core.
    pub l1: usize,
    /// L2 of a core.
    pub l2: usize,
    /// L3, which cores share.
    pub l3: usize,
}

impl Caches {
    /// Bytes for which blocks of B are sized: L2. A smaller L2 than that of the machines on which the blocks were tuned is
    /// counted as large, if L3 is: smaller blocks gained with some shapes and lost with others on a Zen 3 core with 512 KiB of
    /// L2 (docs/results/gemm.md, Size of L2).
    pub fn block(&self) -> usize {
        const TUNED: usize = 2 << 20;
        self.l2.max(TUNED.min(self.l3 / 8))
    }

    /// Parses `ALBERT_CACHES`: three sizes, such as `32K,512K,32M`; `None` if the text is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut sizes = text.split(',').map(|size| parse(size).filter(|bytes| ALLOWED.contains(bytes)));
        let (l1, l2, l3) = (sizes.next()??, sizes.next()??, sizes.next()??);
        (sizes.next().is_none() && l1 <= l2 && l2 <= l3).then_some(Self { l1, l2, l3 })
    }

    /// The sizes that the processor reports, with common ones in place of those that it does not report.
    pub(super) fn detect() -> Self {
        let of = |level, else_bytes| reported(level).filter(|bytes| ALLOWED.contains(bytes)).unwrap_or(else_bytes);
        Self { l1: of(1, 32 << 10), l2: of(2, 512 << 10), l3: of(3, 16 << 20) }
    }
}

/// Such as `L1 32 KiB, L2 512 KiB, L3 32768 KiB`.
impl std::fmt::Display for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { l1, l2, l3 } = self;
        write!(f, "L1 {} KiB, L2 {} KiB, L3 {} KiB", l1 >> 10, l2 >> 10, l3 >> 10)
    }
}

/// Allowed sizes.
const ALLOWED: std::ops::RangeInclusive<usize> = 4 << 10..=1 << 30;

/// Parses `512K`, `2M`, or a number of bytes; `None` if the text is invalid.
fn parse(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix(['K', 'M']) {
        Some(digits) => (digits, if text.ends_with('K') { 1 << 10 } else { 1 << 20 }),
        None => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Reported bytes of the cache of `level` for data. Source: Intel SDM volume 2A, CPUID leaf 4; AMD APM volume 3, CPUID Fn8000_001D, which has the
/// same format.
#[cfg(target_arch = "x86_64")]
pub(super) fn reported(level: u32) -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let (basic, extended) = (__cpuid(0).eax, __cpuid(0x8000_0000).eax);
    let leaf = match extended >= 0x8000_001d && __cpuid_count(0x8000_001d, 0).eax & 31 != 0 {
        true => 0x8000_001d,
        false if basic >= 4 => 4,
        false => return None,
    };
    let descriptions = (0..16).map(|index| __cpuid_count(leaf, index)).take_while(|cache| cache.eax & 31 != 0);
    // Type 2 is a cache for instructions.
    let cache = descriptions.into_iter().find(|cache| cache.eax >> 5 & 7 == level && cache.eax & 31 != 2)?;
    let (ways, partitions, line) = ((cache.ebx >> 22) + 1, (cache.ebx >> 12 & 0x3ff) + 1, (cache.ebx & 0xfff) + 1);
    Some(ways as usize * partitions as usize * line as usize * (cache.ecx as usize + 1))
}

/// Reported bytes of the cache of `level` for data. Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn reported(level: u32) -> Option<usize> {
    (0..8).find_map(|index| {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok()
        };
        if read("level")?.trim() != level.to_string() || read("type")?.trim() == "Instruction" {
            return None;
        }
        parse(read("size")?.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_have_a_unit_and_increase() {
        let zen3 = Caches { l1: 32 << 10, l2: 512 << 10, l3: 32 << 20 };
        assert_eq!(Caches::parse("32K,512K,32M"), Some(zen3));
        assert_eq!(Caches::parse("32768,524288,33554432"), Some(zen3));
        assert_eq!(zen3.block(), 2 << 20);
        for text in [
            "",
            "32K",
            "32K,512K",
            "32K,512K,32M,",
            "32K,512K,32M,64M",
            "512K,32K,32M",
            "32K,512K,256K",
            "32K, 512K,32M",
            "-1K,512K,32M",
            "32K,512K,1G",
            "4,512K,32M",
            "32K,512K,99999999999999999999M",
            "32K,512K,18446744073709551615K",
        ] {
            assert_eq!(Caches::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_reported_size_is_that_of_linux() {
        let read = |folder: &str, name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
        // Of all cores: those of a hybrid processor differ, and the test may run on any.
        let folders = (0..1024).flat_map(|cpu| (0..8).map(move |i| (cpu, i)));
        let folders = folders.map(|(cpu, i)| format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{i}"));
        let folders: Vec<String> = folders.filter(|folder| read(folder, "type").trim() != "Instruction").collect();
        for level in [1, 2, 3] {
            let of_level = folders.iter().filter(|folder| read(folder, "level").trim() == level.to_string());
            let sizes: Vec<usize> = of_level.filter_map(|folder| parse(read(folder, "size").trim())).collect();
            if sizes.is_empty() {
                println!("SKIPPED: the system reports no L{level}");
                continue;
            }
            let reported = reported(level);
            assert!(
                reported.is_some_and(|size| sizes.contains(&size)),
                "L{level}: {reported:?} is not among {sizes:?}"
            );
        }
    }
}
