//! Exercises of `docs/learn.md`. Each lesson is a file: a function with a gap, called `exercise`, and `check`, its test.
//!
//! `cargo test -p albert-learn lesson_3 -- --ignored` fails until the gap of lesson 3 is filled. `solutions` has all solutions.
#![cfg(test)]

/// The two tests of an exercise: `exercise_is_solved` fails until the gap is filled, `exercise_is_unsolved` fails from then on, so that the
/// repository keeps the gap, and unless `docs/learn.md` shows the failure.
macro_rules! exercise_tests {
    ($check:expr, $message:literal) => {
        mod tests {
            use super::*;

            #[test]
            #[ignore = "fails until it is solved: docs/learn.md"]
            fn exercise_is_solved() {
                $check;
            }

            #[test]
            #[should_panic(expected = $message)]
            fn exercise_is_unsolved() {
                assert!(
                    include_str!("../../../docs/learn.md").contains($message),
                    "docs/learn.md shows another failure"
                );
                $check;
            }
        }
    };
}

mod lesson_1_model;
mod lesson_2_masks;
mod lesson_3_gradient;
mod lesson_4_tiles;
mod lesson_5_rows;
mod lesson_6_race;
mod lesson_7_pipeline;
mod lesson_8_sums;
mod solutions;
