//! Bulk copies without a wait, among many with one.

use super::*;

/// A thread starts one copy from `x` into `tile`, then as many as `waited` that it waits for one by one, then runs
/// `last`.
fn unwaited(waited: u32, last: &str) -> Trial {
    const COPY: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes";
    block::<32>(&format!(
        ".shared .align 16 .b8 tile[4096]; .shared .align 8 .b8 bars[16]; mov.u32 %r9, tile; mov.u32 %r8, bars;\n\
         setp.ne.u32 %p0, %t, 0; @%p0 bra $end;\n\
         mbarrier.init.shared.b64 [%r8], 1; mbarrier.init.shared.b64 [%r8+8], 1; fence.mbarrier_init.release.cluster;\n\
         mbarrier.arrive.expect_tx.shared.b64 %d1, [%r8], 16; {COPY} [%r9], [%x], 16, [%r8]; mov.u32 %r1, 0;\n\
         $loop: mbarrier.arrive.expect_tx.shared.b64 %d1, [%r8+8], 16; {COPY} [%r9+16], [%x], 16, [%r8+8];\n\
         and.b32 %r2, %r1, 1;\n\
         $again: mbarrier.try_wait.parity.shared.b64 %p1, [%r8+8], %r2; @!%p1 bra $again;\n\
         add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, {waited}; @%p2 bra $loop;\n{last}\n$end:"
    ))
}

const WAIT: &str = "$first: mbarrier.try_wait.parity.shared.b64 %p3, [%r8], 0; @!%p3 bra $first;";
/// Reads what the first copy writes.
const READ: &str = "ld.shared.u32 %r3, [%r9]; st.global.u32 [%own], %r3;";
/// Writes what the first copy reads.
const WRITE: &str = "mov.u32 %r3, 1; st.global.u32 [%x], %r3;";

#[test]
fn a_copy_without_a_wait_is_found_after_any_number_of_others() {
    for waited in [1, 3, 14, 15, 16, 17, 20, 31, 32, 64] {
        for last in [READ, WRITE] {
            unwaited(waited, &format!("{WAIT} {last}")).agree();
            // The bytes are missing or, where the copy has ended, its end is not ordered before the read.
            for options in settings() {
                unwaited(waited, last).finds(&[FindingKind::Race, FindingKind::Pending], &options);
            }
        }
    }
}
