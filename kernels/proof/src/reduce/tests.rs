use crate::check::*;
use kernels::reduce::*;

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
fn the_maximum_is_exact() {
    let x = uniform::<f32>(5, 300_007, 3.0);
    for (cpu, len) in testable_cpus().iter().flat_map(|cpu| [0, 1, 15, 16, 17, 65, 300_007].map(|len| (cpu, len))) {
        let greatest = x[..len].iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        assert_eq!(max(cpu, &x[..len]), greatest, "{} {len}", cpu.isa().kind());
    }
}
