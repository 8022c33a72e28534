//! Checks of every instruction set x form x epilogue x size against f64, and of the module's other guarantees.

mod accuracy;
mod feed_forward;
mod machine_code;
mod precision;

use super::problem::{FORMS, Problem, epilogues, suffix};
use crate::check::{testable_cpus, uniform};
use half::bf16;
use kernels::activation::{self, Activation, bias_activation_forward};
use kernels::dropout::Dropout;
use kernels::gemm::{
    Blocking, CHAIN, Epilogue, EpilogueKind, Gemm, Layout, PackedB, SINGLE_BLOCK, SliceEpilogue, gemm, gemm_packed,
};
use kernels::{Cpu, Element, dropout};

#[track_caller]
fn assert_agrees<X: Element, Y: Element>(cpu: &Cpu, spec: Gemm, kind: EpilogueKind) {
    if let Err(message) = Problem::<X, Y>::new(spec, kind).check(cpu) {
        panic!("{} {} {} in, {} out: {message}", cpu.isa().kind(), suffix(spec.beta, kind), X::DTYPE, Y::DTYPE);
    }
}

/// Sizes around every block boundary of the loop nest.
fn borders(blocking: &Blocking) -> Vec<(usize, usize, usize)> {
    let Blocking { mr, nr, .. } = *blocking;
    let (kc, mc, nc) = (CHAIN, blocking.mc(), blocking.nc(CHAIN));
    vec![
        (0, 3, 4),
        (3, 0, 4),
        (3, 4, 0),
        (1, 1, 1),
        (1, nr + 1, 2),
        (mr - 1, nr - 1, 7),
        (mr, nr, kc),
        (mr + 1, nr + 1, kc + 1),
        (2 * mr + 3, nr / 2 + 1, kc - 1),
        (13, 31, 37),
        (67, 101, 59),
        (7, 35, SINGLE_BLOCK),
        (7, 35, SINGLE_BLOCK + 3),
        (17 * mr + 1, 2 * nr + 1, 3),
        (mc + 1, 3, 5),
        (mc + 1, 3, kc + 1),
        (5, blocking.nc(3) + 1, 3),
        (5, nc + 1, kc),
        (5, blocking.nc(SINGLE_BLOCK) + 1, SINGLE_BLOCK),
    ]
}

#[test]
fn agrees_with_f64_at_every_border() {
    for cpu in testable_cpus() {
        for (i, (m, n, k)) in borders(&Blocking::of(&cpu)).into_iter().enumerate() {
            for (j, (_, a, b)) in FORMS.into_iter().enumerate() {
                let tight = Gemm::new(m, n, k, a, b);
                let loose = tight.with_leading_dimensions(tight.lda + 3, tight.ldb + 1, tight.ldc + 5);
                let spec = if (i + j) % 2 == 0 { tight } else { loose };
                assert_agrees::<f32, f32>(&cpu, spec, EpilogueKind::Bias);
                assert_agrees::<bf16, bf16>(&cpu, spec, EpilogueKind::None);
            }
        }
    }
}

#[test]
fn every_epilogue_agrees_with_f64() {
    for cpu in testable_cpus() {
        let kc = CHAIN;
        let Blocking { mr, nr, .. } = Blocking::of(&cpu);
        // `finish_tile` takes four vectors at a time: the third size leaves a remainder.
        for (m, n, k) in [(mr + 2, nr + nr / 2 + 1, 33), (mr, 2 * nr, kc + 5), (mr - 1, 2 * nr, 9)] {
            let spec = Gemm::nt(m, n, k);
            let spec = spec.with_leading_dimensions(spec.lda, spec.ldb, spec.ldc + 3);
            for (beta, kind) in epilogues() {
                let spec = Gemm { beta, ..spec };
                assert_agrees::<f32, f32>(&cpu, spec, kind);
                assert_agrees::<bf16, bf16>(&cpu, spec, kind);
                assert_agrees::<bf16, f32>(&cpu, spec, kind);
                assert_agrees::<f32, bf16>(&cpu, spec, kind);
            }
        }
    }
}

fn assert_same_bits(case: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.to_bits(), want.to_bits(), "{case}: element {i} is {got:e}, expected {want:e}");
    }
}

#[test]
fn fused_epilogues_give_the_bits_of_separate_kernels() {
    let (m, n, k) = (37, 203, 29);
    let spec = Gemm::nt(m, n, k);
    let (a, b) = (uniform::<f32>(1, m * k, 1.0), uniform::<f32>(2, n * k, 1.0));
    let (bias, matrix) = (uniform::<f32>(3, n, 1.0), uniform::<f32>(4, m * n, 2.0));
    for cpu in testable_cpus() {
        let product = |epilogue: SliceEpilogue<'_, f32>| {
            let mut c = vec![f32::NAN; m * n];
            gemm(&cpu, &spec, &a, &b, &mut c, epilogue);
            c
        };
        let isa = cpu.isa().kind();
        let (plain, with_bias) = (product(Epilogue::NONE), product(Epilogue::bias(&bias)));
        for activation in Activation::ALL {
            let [mut pre, mut wanted_pre, mut wanted] = [(); 3].map(|()| vec![f32::NAN; m * n]);
            let fused = product(Epilogue::bias_activation(&bias, activation, Some(&mut pre)));
            bias_activation_forward(&cpu, activation, &plain, Some(&bias), Some(&mut wanted_pre), &mut wanted);
            assert_same_bits(&format!("{isa} {activation:?}"), &fused, &wanted);
            assert_same_bits(&format!("{isa} {activation:?} pre"), &pre, &wanted_pre);

            let fused = product(Epilogue::activation_backward(activation, &matrix));
            activation::backward(&cpu, activation, &matrix, &plain, &mut wanted);
            assert_same_bits(&format!("{isa} {activation:?} backward"), &fused, &wanted);
        }
        let mask = Dropout { seed: 9, site: 1 << 40 | 3, rate: 0.1 };
        let residual = Some(&matrix[..]);
        let fused = product(Epilogue::bias_dropout_residual(&bias, Some(mask), residual));
        let mut wanted = vec![f32::NAN; m * n];
        dropout::apply(&cpu, &mask, n, &with_bias, &mut wanted);
        wanted.iter_mut().zip(&matrix).for_each(|(y, r)| *y += r);
        assert_same_bits(&format!("{isa} dropout"), &fused, &wanted);
        let dropped = (0..m * n).filter(|i| !mask.keeps((i / n) as u64, i % n)).count();
        assert!(dropped > m * n / 20, "{dropped} of {} elements were dropped: too few to test the mask", m * n);
    }
}

#[test]
fn panels_are_repacked_in_place_and_used_many_times() {
    let (m, n, k) = (9, 70, 400);
    for cpu in testable_cpus() {
        let mut packed = PackedB::new(cpu.isa(), k, n);
        for seed in 1..4 {
            let (a, b) = (uniform::<f32>(10 + seed, m * k, 1.0), uniform::<bf16>(seed, n * k, 1.0));
            let before = packed.bytes();
            packed.pack(&cpu, Layout::Transposed, k, &b);
            assert_eq!(packed.bytes(), before, "packing again moved the panels");
            let mut wanted = vec![f32::NAN; m * n];
            gemm(&cpu, &Gemm::nt(m, n, k), &a, &b, &mut wanted, Epilogue::NONE);
            for _ in 0..2 {
                let mut c = vec![f32::NAN; m * n];
                gemm_packed(&cpu, &Gemm::nt(m, n, k), &a, &packed, &mut c, Epilogue::NONE);
                assert_same_bits(cpu.isa().kind().name(), &c, &wanted);
            }
        }
    }
}
