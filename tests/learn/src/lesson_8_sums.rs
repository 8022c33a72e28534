//! Lesson 8: a sum with the same bits for any number of threads.

use std::thread;

/// The sum of `x` by `threads` threads.
fn exercise(threads: usize, x: &[f32]) -> f32 {
    // The gap: the number of threads determines the blocks, and so the order of the sum.
    sum_of_blocks(threads, x.len().div_ceil(threads), x)
}

/// Sums blocks of `block` elements in parallel, then adds these sums in order.
pub(crate) fn sum_of_blocks(threads: usize, block: usize, x: &[f32]) -> f32 {
    let blocks: Vec<&[f32]> = x.chunks(block).collect();
    let mut sums = vec![0.0; blocks.len()];
    let share = blocks.len().div_ceil(threads);
    thread::scope(|scope| {
        for (blocks, sums) in blocks.chunks(share).zip(sums.chunks_mut(share)) {
            scope.spawn(|| blocks.iter().zip(sums).for_each(|(block, sum)| *sum = block.iter().sum::<f32>()));
        }
    });
    sums.iter().sum()
}

pub(crate) fn check(sum: fn(usize, &[f32]) -> f32) {
    let x = vec![0.1; 1_000_000];
    let one = sum(1, &x);
    for threads in 2..=8 {
        let other = sum(threads, &x);
        assert!(other.to_bits() == one.to_bits(), "{threads} threads: {other}; expected {one}, as with one thread");
    }
    // Each addition to a large sum loses digits of 0.1.
    assert!(
        (one - 100_000.0).abs() < 10.0,
        "the sum is {one}; expected 100000 ± 10: add fewer elements one after another"
    );
}

exercise_tests!(check(exercise), "2 threads: 100354.195; expected 100958.34, as with one thread");
