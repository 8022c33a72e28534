use super::{Cached, Row, Sum};
use crate::simd::{Isa, Kernel, Simd};

/// A sweep over 37 columns that reads, updates and writes slices of these lengths.
struct Sweep([usize; 3]);

impl Kernel for Sweep {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [mut x, mut u, mut y] = self.0.map(|length| vec![1f32; length]);
        let row = Row::new(simd, 37);
        let [sum] = row.update_fold(
            Sum,
            ([&x[..]], Cached([&x[..]])),
            [&mut u[..]],
            #[inline(always)]
            |simd, ([a], [b]), [u], [sum]| {
                *u = simd.add(*u, simd.mul(a, b));
                *sum = simd.add(*sum, *u);
            },
        );
        row.map(
            [&u[..]],
            [&mut y[..]],
            #[inline(always)]
            |_, u| u,
        );
        row.cached().update(
            (),
            [&mut x[..]],
            #[inline(always)]
            |simd, (), [x]| *x = simd.neg(*x),
        );
        // Each column once, although the last vectors overlap.
        assert_eq!(sum, 74.0);
        assert!(x.iter().all(|&x| x == -1.0) && u.iter().chain(&y).all(|&x| x == 2.0), "{x:?} {u:?} {y:?}");
    }
}

#[test]
fn each_column_is_updated_once() {
    for isa in Isa::testable() {
        isa.run(Sweep([37; 3]));
    }
}

#[test]
fn a_slice_that_is_shorter_than_its_row_is_refused() {
    for isa in Isa::testable() {
        for short in 0..3 {
            let mut lengths = [37; 3];
            lengths[short] = 36;
            let refused = std::panic::catch_unwind(|| isa.run(Sweep(lengths))).unwrap_err();
            let message = refused.downcast::<String>().expect("a message");
            assert_eq!(*message, "a slice is shorter than its row of 37 columns", "{isa:?}, slice {short}");
        }
    }
}
