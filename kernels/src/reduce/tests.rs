use super::*;
use crate::check::*;
use crate::simd::Element;
use half::bf16;

const LENGTHS: [usize; 11] = [0, 1, 2, 15, 16, 17, 63, 65, 4096, 32_771, 200_003];
const SHAPES: [(usize, usize); 11] =
    [(0, 5), (1, 1), (67, 7), (15, 29), (16, 16), (17, 17), (5, 63), (64, 19), (67, 65), (1031, 33), (211, 312)];

fn agrees<X: Element>() {
    for cpu in testable_cpus() {
        for len in LENGTHS {
            let case = format!("{} {len} {}", cpu.isa().kind(), X::DTYPE);
            // Many sums, because the error of a single one is a matter of luck.
            let draws: Vec<Vec<X>> = (0..24).map(|seed| uniform(seed, len, 3.0)).collect();
            let of_draws = |f: &dyn Fn(&[X]) -> f64| draws.iter().map(|x| f(x)).collect::<Vec<f64>>();
            let f32s = |x: Vec<f64>| x.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
            let got = f32s(of_draws(&|x| sum(&cpu, x)));
            let naive = f32s(of_draws(&|x| f64::from(reference::sum::<f32>(&widen(x)))));
            assert_within(&case, "sum", &got, &naive, &of_draws(&|x| reference::sum(&widen(x))));
            let got = f32s(of_draws(&|x| sum_of_squares(&cpu, x)));
            let naive = f32s(of_draws(&|x| f64::from(reference::sum_of_squares::<f32>(&widen(x)))));
            assert_within(&case, "sum of squares", &got, &naive, &of_draws(&|x| reference::sum_of_squares(&widen(x))));
            for x in &draws {
                let greatest = x.iter().fold(f32::NEG_INFINITY, |a, b| a.max(b.to_f32()));
                assert_eq!(max(&cpu, x), greatest, "{case}: max");
            }
        }
        for (rows, columns) in SHAPES {
            let case = format!("{} [{rows}, {columns}] {}", cpu.isa().kind(), X::DTYPE);
            let x = uniform::<X>(7, rows * columns, 3.0);
            let mut out = Guarded::<f32>::poisoned(rows);
            row_sums(&cpu, columns, &x, &mut out);
            out.assert_intact(&case);
            let naive = reference::row_sums::<f32>(columns, &widen(&x));
            assert_within(&case, "row sums", &out, &naive, &reference::row_sums(columns, &widen(&x)));

            let before = uniform::<f32>(8, columns, 1.0);
            let mut out = Guarded::new(&before);
            let mut scratch = Guarded::poisoned(column_sums_scratch_len(rows, columns));
            column_sums(&cpu, rows, columns, &x, &mut out, &mut scratch);
            out.assert_intact(&case);
            scratch.assert_intact(&case);
            let naive = reference::column_sums::<f32>(columns, &widen(&x), &before);
            let exact = reference::column_sums::<f64>(columns, &widen(&x), &widen(&before));
            assert_within(&case, "column sums", &out, &naive, &exact);
        }
    }
}

#[test]
fn agrees_with_f64_on_every_isa() {
    agrees::<f32>();
    agrees::<bf16>();
}

#[test]
fn is_bit_identical_for_any_thread_count() {
    let (rows, columns) = (1531, 131);
    let x = uniform::<f32>(3, rows * columns, 1.0);
    assert_same_for_any_thread_count(&"[1531, 131]", |cpu| {
        let mut out = vec![0.0; columns];
        column_sums(cpu, rows, columns, &x, &mut out, &mut vec![f32::NAN; column_sums_scratch_len(rows, columns)]);
        out.push(sum(cpu, &x) as f32);
        out.push(sum_of_squares(cpu, &x) as f32);
        out
    });
}

#[test]
fn a_nan_or_an_infinity_anywhere_shows() {
    for cpu in testable_cpus() {
        for at in [0, 1, 7, 15, 16, 63, 64, 99] {
            let mut x = uniform::<f32>(1, 100, 1.0);
            x[at] = f32::NAN;
            assert!(max(&cpu, &x).is_nan() && sum_of_squares(&cpu, &x).is_nan(), "{} at {at}", cpu.isa().kind());
            x[at] = f32::INFINITY;
            assert_eq!(max(&cpu, &x), f32::INFINITY, "{} at {at}", cpu.isa().kind());
            assert_eq!(sum_of_squares(&cpu, &x), f64::INFINITY, "{} at {at}", cpu.isa().kind());
        }
    }
}
