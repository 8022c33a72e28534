//! The counting allocator, which must not miss allocations: otherwise the tests that use it would prove nothing.

use albert_tests::allocator::{Counting, large_requests};
use std::hint::black_box;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn large_requests_are_seen_on_every_thread_and_small_ones_are_not() {
    let (count, _) = large_requests(|| drop(black_box(vec![1u8; 4095])));
    assert_eq!(count, 0);
    let (count, largest) = large_requests(|| {
        drop(black_box(vec![0u8; 4096]));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(black_box(vec![1u8; 10_000])));
        });
    });
    assert!(count >= 2 && largest >= 10_000, "{count} requests, the largest of {largest} bytes");
}
