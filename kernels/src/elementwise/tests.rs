use super::*;
use crate::check::*;
use crate::pool::Cpu;
use crate::simd::Element;
use half::bf16;

const SHAPES: [(usize, usize); 9] = [(0, 5), (1, 1), (3, 7), (2, 15), (5, 16), (4, 17), (3, 65), (1, 1021), (29, 643)];

/// Numbers of size 0.5 to 2 of both signs: safe to divide by.
fn operands<X: Element>(seed: u64, len: usize) -> Vec<X> {
    uniform::<f32>(seed, len, 1.5).into_iter().map(|x| X::from_f32(x + 0.5f32.copysign(x))).collect()
}

fn binary_agrees<X: Element>(cpu: &Cpu) {
    for (operation, broadcast) in Binary::ALL.into_iter().flat_map(|o| Broadcast::ALL.map(|b| (o, b))) {
        for (rows, columns) in SHAPES {
            let case = format!("{} {operation:?} {broadcast:?} [{rows}, {columns}] {}", cpu.isa().kind(), X::DTYPE);
            let a = operands::<X>(1, rows * columns);
            let b = operands::<X>(2, broadcast.len(rows, columns));
            let mut y = Guarded::<X>::poisoned(a.len());
            binary(cpu, operation, broadcast, columns, &a, &b, &mut y);
            y.assert_intact(&case);
            let naive = store::<X>(&reference::binary(operation, broadcast, columns, &widen(&a), &widen(&b)));
            let exact = reference::binary::<f64>(operation, broadcast, columns, &widen(&a), &widen(&b));
            assert_within(&case, "y", &y, &naive, &exact);
            assert!(y.iter().zip(&naive).all(|(y, n)| y.to_f32() == n.to_f32()), "{case}: one operation rounds once");
        }
    }
}

fn unary_agrees<X: Element>(cpu: &Cpu) {
    for function in Unary::ALL {
        let input = |len| -> Vec<X> {
            let x = uniform::<X>(3, len, 6.0);
            if function == Unary::Ln { x.iter().map(|x| X::from_f32(x.to_f32().abs() + 0.01)).collect() } else { x }
        };
        let kept = |x: &[X]| -> Vec<X> {
            match function.keeps() {
                Keeps::Input => x.to_vec(),
                Keeps::Output => x.iter().map(|x| X::from_f32(reference::unary(function, x.to_f32()))).collect(),
            }
        };
        let forward = |x: &[X]| -> (Vec<X>, Vec<f64>) {
            let naive = x.iter().map(|x| X::from_f32(reference::unary(function, x.to_f32()))).collect();
            (naive, x.iter().map(|x| reference::unary(function, f64::from(x.to_f32()))).collect())
        };
        let backward = |kept: &[X], dy: &[X]| -> (Vec<X>, Vec<f64>) {
            let pairs = || kept.iter().zip(dy).map(|(k, dy)| (k.to_f32(), dy.to_f32()));
            let naive = pairs().map(|(k, dy)| X::from_f32(dy * reference::unary_derivative(function, k))).collect();
            let exact = pairs().map(|(k, dy)| f64::from(dy) * reference::unary_derivative(function, f64::from(k)));
            (naive, exact.collect())
        };
        // The naive error of a few thousand such numbers.
        let (x, dy) = (input(4096), uniform::<X>(4, 4096, 2.0));
        let ((y, exact_y), (dx, exact_dx)) = (forward(&x), backward(&kept(&x), &dy));
        let (error_y, error_dx) = (greatest_error(&y, &exact_y), greatest_error(&dx, &exact_dx));
        for len in SHAPES.map(|(rows, columns)| rows * columns) {
            let case = format!("{} {function:?} {len} {}", cpu.isa().kind(), X::DTYPE);
            let (x, dy) = (input(len), uniform::<X>(4, len, 2.0));
            let (mut y, mut dx) = (Guarded::<X>::poisoned(len), Guarded::<X>::poisoned(len));
            unary_forward(cpu, function, &x, &mut y);
            unary_backward(cpu, function, &kept(&x), &dy, &mut dx);
            y.assert_intact(&case);
            dx.assert_intact(&case);
            let result = within_error("y", &y, error_y, &forward(&x).1).and(within_error(
                "dx",
                &dx,
                error_dx,
                &backward(&kept(&x), &dy).1,
            ));
            result.unwrap_or_else(|message| panic!("{case}: {message}"));
        }
    }
}

#[test]
fn agrees_with_f64_on_every_isa() {
    for cpu in testable_cpus() {
        binary_agrees::<f32>(&cpu);
        binary_agrees::<bf16>(&cpu);
        unary_agrees::<f32>(&cpu);
        unary_agrees::<bf16>(&cpu);
    }
}

fn sums_and_casts<X: Element>(cpu: &Cpu) {
    for len in [0, 1, 15, 16, 17, 63, 65, 1021, 33_000] {
        let case = format!("{} {len} {}", cpu.isa().kind(), X::DTYPE);
        let (x, old) = (uniform::<X>(1, len, 2.0), uniform::<X>(2, len, 2.0));
        let wide_old = uniform::<f32>(3, len, 2.0);
        let mut sum = Guarded::new(&old);
        add_assign(cpu, &x, &mut sum);
        let mut scaled_sum = Guarded::new(&wide_old);
        add_scaled(cpu, -0.3, &x, &mut scaled_sum);
        let mut scaled = Guarded::<X>::poisoned(len);
        scale(cpu, -0.3, &x, &mut scaled);
        let (mut wide, mut narrow) = (Guarded::<f32>::poisoned(len), Guarded::<bf16>::poisoned(len));
        cast(cpu, &x, &mut wide);
        cast(cpu, &x, &mut narrow);
        for buffer in [&scaled_sum, &wide] {
            buffer.assert_intact(&case);
        }
        for buffer in [&sum, &scaled] {
            buffer.assert_intact(&case);
        }
        narrow.assert_intact(&case);
        let factor = f64::from(-0.3f32);
        let naive: Vec<f32> = (0..len).map(|i| wide_old[i] + -0.3 * x[i].to_f32()).collect();
        let exact: Vec<f64> = (0..len).map(|i| f64::from(wide_old[i]) + factor * f64::from(x[i].to_f32())).collect();
        assert_within(&case, "add_scaled", &scaled_sum, &naive, &exact);
        for i in 0..len {
            let value = x[i].to_f32();
            assert_eq!(sum[i].to_f32(), X::from_f32(old[i].to_f32() + value).to_f32(), "{case}: sum {i}");
            assert_eq!(scaled[i].to_f32(), X::from_f32(-0.3 * value).to_f32(), "{case}: scaled {i}");
            assert_eq!(wide[i], value, "{case}: wide {i}");
            assert_eq!(narrow[i], bf16::from_f32(value), "{case}: narrow {i}");
        }
    }
}

#[test]
fn sums_and_casts_round_once() {
    for cpu in testable_cpus() {
        sums_and_casts::<f32>(&cpu);
        sums_and_casts::<bf16>(&cpu);
    }
}

#[test]
fn transposition_moves_every_element_to_its_place() {
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

#[test]
fn is_bit_identical_for_any_thread_count() {
    let (x, b) = (operands::<f32>(3, 301 * 131), operands::<f32>(4, 131));
    assert_same_for_any_thread_count(&"[301, 131]", |cpu| {
        let mut outputs = [(); 4].map(|()| vec![f32::NAN; x.len()]);
        let [y, dx, product, transposed] = &mut outputs;
        unary_forward(cpu, Unary::Tanh, &x, y);
        unary_backward(cpu, Unary::Tanh, y, &x, dx);
        binary(cpu, Binary::Div, Broadcast::Row, 131, &x, &b, product);
        transpose(cpu, 301, 131, &x, transposed);
        outputs.concat()
    });
}
