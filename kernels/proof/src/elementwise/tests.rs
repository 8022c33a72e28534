use crate::check::*;
use half::bf16;
use kernels::Element;
use kernels::elementwise::*;
use kernels::pool::Cpu;

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

#[test]
fn is_bit_identical_for_any_thread_count() {
    let (x, b) = (super::operands::<f32>(3, 301 * 131), super::operands::<f32>(4, 131));
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
