use super::reference;
use crate::check::*;
use kernels::reduce::*;

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

#[test]
fn a_long_sum_keeps_the_rule_and_the_maximum_is_exact() {
    for cpu in testable_cpus() {
        let x = uniform::<f32>(5, 300_007, 3.0);
        let (naive, exact) = (reference::sum(&x), reference::sum(&widen::<f64, f32>(&x)));
        assert_within(&cpu.isa().kind(), "sum", &[sum(&cpu, &x) as f32], &[naive], &[exact]);
        for len in [0, 1, 15, 16, 17, 65, 300_007] {
            let greatest = x[..len].iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            assert_eq!(max(&cpu, &x[..len]), greatest, "{} {len}", cpu.isa().kind());
        }
    }
}
