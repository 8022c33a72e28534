//! Sizes of caches, and the one for which products are blocked: the L2 of a core, or a part of L3 if L2 is small.

/// Minimum size: that of the machines on which the blocks were tuned. Smaller blocks gained with some shapes and lost with
/// others on a Zen 3 core with 512 KiB of L2 (docs/results/gemm.md, Size of L2).
const LEAST: usize = 2 << 20;

/// Allowed sizes of `ALBERT_L2`.
const ALLOWED: std::ops::RangeInclusive<usize> = 16 << 10..=1 << 30;

/// Parses `ALBERT_L2` (`512K`, `2M`, or a number of bytes) to bytes; `None` if the text is invalid.
pub(super) fn parse(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix(['K', 'M']) {
        Some(digits) => (digits, if text.ends_with('K') { 1 << 10 } else { 1 << 20 }),
        None => (text, 1),
    };
    let bytes = digits.parse::<usize>().ok()?.checked_mul(unit)?;
    ALLOWED.contains(&bytes).then_some(bytes)
}

/// Maximum of [`LEAST`] and the reported L2.
pub(super) fn size() -> usize {
    reported(2).filter(|bytes| ALLOWED.contains(bytes)).unwrap_or(LEAST).max(LEAST)
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
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(parse("512K"), Some(512 << 10));
        assert_eq!(parse("2M"), Some(2 << 20));
        assert_eq!(parse("65536"), Some(65536));
        for text in ["", "K", "-1M", "1G", "2 M", "4", "99999999999999999999M", "18446744073709551615K", "2M2"] {
            assert_eq!(parse(text), None, "{text}");
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
