//! Every instruction set x forms x sizes against the f64 definition.

use super::{Epilogue, Gemm, Layout, PackedB, gemm, gemm_packed, reference};
use crate::{num::philox::Stream, pool::Cpu, simd::Isa};

fn random(len: usize, name: u32) -> Vec<f32> {
    let mut stream = Stream::new(11, [name, 0, 0]);
    (0..len).map(|_| stream.normal() as f32).collect()
}

#[test]
fn agrees_with_the_reference() {
    for isa in Isa::testable() {
        let cpu = Cpu::new(isa, 2).unwrap();
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (13, 31, 17), (15, 33, 385), (29, 67, 0), (130, 97, 50)] {
            for spec in [Gemm::nn(m, n, k), Gemm::nt(m, n, k), Gemm::tn(m, n, k), Gemm::tt(m, n, k)] {
                let (a, b, bias) = (random(m * k, 1), random(k * n, 2), random(n, 3));
                let exact = reference::product(&spec, &a, &b);
                let naive = reference::naive(&spec, &a, &b);
                let with_bias = |i: usize| exact[i] + f64::from(bias[i % n]);
                let error = |c: &[f32]| (0..m * n).map(|i| (f64::from(c[i]) - with_bias(i)).abs()).fold(0.0, f64::max);
                let naive: Vec<f32> = naive.iter().enumerate().map(|(i, c)| c + bias[i % n]).collect();
                let scale = (0..m * n).map(|i| with_bias(i).abs()).fold(0.0, f64::max);
                let bound = 2.0 * error(&naive) + scale * f64::from(f32::EPSILON);
                let mut c = vec![f32::NAN; m * n];
                gemm(&cpu, &spec, &a, &b, &mut c, Epilogue::Bias(&bias));
                let got = error(&c);
                assert!(got <= bound, "{}: {spec:?}: error {got:e}, bound {bound:e}", isa.kind());

                let mut packed = PackedB::new(isa, k, n);
                packed.pack(&cpu, spec.b, if spec.b == Layout::Normal { n } else { k }, &b);
                let mut again = vec![f32::NAN; m * n];
                gemm_packed(&cpu, &spec, &a, &packed, &mut again, Epilogue::Bias(&bias));
                let equal = c.iter().zip(&again).all(|(c, d)| c.to_bits() == d.to_bits());
                assert!(equal, "{}: {spec:?}: packed and unpacked B differ", isa.kind());
            }
        }
    }
}
