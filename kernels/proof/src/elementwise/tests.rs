use crate::check::*;
use half::bf16;
use kernels::Element;
use kernels::elementwise::*;

#[test]
fn transpose_moves_every_element() {
    for cpu in testable_cpus() {
        for (rows, columns) in [(0, 5), (5, 0), (1, 1), (1, 33), (33, 1), (31, 33), (32, 32), (97, 65)] {
            let case = format!("{rows} x {columns}");
            let x = uniform::<bf16>(1, rows * columns, 1.0);
            let mut y = Guarded::poisoned(x.len());
            transpose(&cpu, rows, columns, &x, &mut y);
            y.assert_intact(&case);
            for i in 0..x.len() {
                assert_eq!(y[i % columns * rows + i / columns], x[i], "{case}: element {i}");
            }
        }
    }
}

fn round_once<X: Element>() {
    for (cpu, len) in testable_cpus().iter().flat_map(|cpu| [1, 17, 1021].map(|len| (cpu, len))) {
        let (x, old) = (uniform::<X>(1, len, 2.0), uniform::<X>(2, len, 2.0));
        let [mut sum, mut scaled, mut copy] = [(); 3].map(|()| old.clone());
        let mut narrow = vec![bf16::ZERO; len];
        add_assign(cpu, &x, &mut sum);
        scale(cpu, -0.3, &x, &mut scaled);
        cast(cpu, &x, &mut copy);
        cast(cpu, &x, &mut narrow);
        for (i, x) in x.iter().map(|x| x.to_f32()).enumerate() {
            let case = format!("{} {} {i} of {len}", cpu.isa().kind(), X::DTYPE);
            let wanted = [old[i].to_f32() + x, -0.3 * x, x].map(|y| X::from_f32(y).to_f32());
            assert_eq!([sum[i], scaled[i], copy[i]].map(|y| y.to_f32()), wanted, "{case}");
            assert_eq!(narrow[i], bf16::from_f32(x), "{case}");
        }
    }
}

#[test]
fn sums_and_casts_round_once() {
    round_once::<f32>();
    round_once::<bf16>();
}
