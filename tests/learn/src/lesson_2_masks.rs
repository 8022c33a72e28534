//! Lesson 2: masking of n-grams.

use engine::philox::Stream;

/// Words of the next span: 1, 2 or 3 with probability 6/11, 3/11 and 2/11, proportional to 1/n, but at most `left`, the words
/// that may still be masked.
///
/// `stream.below(k)` is 0, 1, .. k - 1 with the same probability.
fn exercise(left: usize, stream: &mut Stream) -> usize {
    // The gap: all lengths are as frequent, and the last span exceeds the budget.
    left.min(1) + stream.below(3) as usize
}

/// Draws 11,000 first spans, then masks sentences of 40 words with a budget of 6.
pub(crate) fn check(length: fn(usize, &mut Stream) -> usize) {
    let mut stream = Stream::new(1, [0; 3]);
    let mut counts = [0; 4];
    for _ in 0..11_000 {
        let n = length(6, &mut stream);
        assert!((1..=3).contains(&n), "a span of {n} words; expected 1, 2 or 3");
        counts[n] += 1;
    }
    for (n, expected) in [(1, 6000), (2, 3000), (3, 2000)] {
        let count: i32 = counts[n];
        // Four standard deviations.
        assert!((count - expected).abs() < 210, "{count} of 11,000 spans have length {n}; expected about {expected}");
    }
    for sentence in 0..100 {
        let mut masked = [false; 40];
        let mut left = 6;
        while left > 0 {
            let n = length(left, &mut stream);
            assert!(
                n <= left,
                "sentence {sentence}: a span of {n} words; expected at most {left}, the rest of the budget"
            );
            let start = stream.below((masked.len() - n + 1) as u32) as usize;
            let span = &mut masked[start..start + n];
            // A span that overlaps an earlier one is skipped.
            if !span.contains(&true) {
                span.fill(true);
                left -= n;
            }
        }
    }
}

exercise_tests!(check(exercise), "3589 of 11,000 spans have length 1; expected about 6000");
