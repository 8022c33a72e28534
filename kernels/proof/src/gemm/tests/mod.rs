//! Checks of every instruction set x form x epilogue x size against f64, and of the module's other guarantees.

mod accuracy;
mod machine_code;
mod precision;

use super::problem::{FORMS, Problem, epilogues, suffix};
use crate::check::{Guarded, assert_same_for_any_thread_count, testable_cpus, uniform};
use half::bf16;
use kernels::activation::{self, Activation};
use kernels::dropout::Dropout;
use kernels::gemm::{
    Batch, Blocking, CHAIN, Epilogue, EpilogueKind, Gemm, Layout, PackMismatch, PackedB, Precision, SINGLE_BLOCK,
    SliceEpilogue, batched, gemm, gemm_packed,
};
use kernels::{Cpu, dropout};
use kernels::{
    Element,
    simd::{Isa, IsaKind},
};

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

/// Copies the rows of `x` to a leading dimension of `leading`, NaN in the gaps.
fn spread(x: &[f32], columns: usize, leading: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / columns * leading];
    x.chunks(columns).zip(out.chunks_mut(leading)).for_each(|(x, out)| out[..columns].copy_from_slice(x));
    out
}

#[test]
fn packed_and_in_place_operands_give_the_same_bits() {
    for cpu in testable_cpus() {
        for (m, n, k) in [(31, 75, 45), (200, 40, 33)] {
            for (name, a_layout, b_layout) in FORMS {
                let spec = Gemm::new(m, n, k, a_layout, b_layout);
                let (a, b) = (uniform::<f32>(1, m * k, 1.0), uniform::<f32>(2, n * k, 1.0));
                let product = |spec: &Gemm, a: &[f32], b: &[f32]| {
                    let mut c = Guarded::<f32>::poisoned(m * n);
                    gemm(&cpu, spec, a, b, &mut c, Epilogue::NONE);
                    c.assert_intact(&name);
                    c.to_vec()
                };
                let wanted = product(&spec, &a, &b);
                // Rows 4 KiB apart are packed, rows slightly further apart are read in place.
                for (lda, ldb) in [(1024, 1030), (1030, 1024), (1024, 1024)] {
                    let far = spec.with_leading_dimensions(lda, ldb, n);
                    let got = product(&far, &spread(&a, spec.lda, lda), &spread(&b, spec.ldb, ldb));
                    assert_same_bits(
                        &format!("{} {name} {m} x {n} x {k}, {lda}, {ldb}", cpu.isa().kind()),
                        &got,
                        &wanted,
                    );
                }
            }
        }
    }
}

#[test]
fn is_bit_identical_for_any_size_of_cache() {
    for cpu in testable_cpus() {
        for (m, n, k) in [(65, 130, 70), (520, 70, 1025), (40, 200, 1025)] {
            for (name, a, b) in FORMS {
                let spec = Gemm::new(m, n, k, a, b);
                let (f32, bf16) = (
                    Problem::<f32, f32>::new(spec, EpilogueKind::Bias),
                    Problem::<bf16, bf16>::new(spec, EpilogueKind::Bias),
                );
                let compute = |cpu: &Cpu| (f32.compute(cpu, None).0.to_vec(), bf16.compute(cpu, None).0.to_vec());
                let wanted = compute(&cpu);
                for size in [16 << 10, 100_000, 64 << 20] {
                    let got = compute(&cpu.clone().with_block_cache(size));
                    let case = format!("{} {name} {m} x {n} x {k}, {size} bytes of cache", cpu.isa().kind());
                    assert_same_bits(&case, &got.0, &wanted.0);
                    assert!(got.1 == wanted.1, "{case}, bf16");
                }
            }
        }
    }
}

#[test]
fn is_bit_identical_for_any_thread_count() {
    for (m, n, k) in [(128, 96, 70), (1030, 33, 65), (17, 1700, 40)] {
        for (name, a, b) in FORMS {
            let problem = Problem::<f32, f32>::new(
                Gemm::new(m, n, k, a, b),
                EpilogueKind::BiasDropoutResidual { dropout: true, residual: true },
            );
            assert_same_for_any_thread_count(&format!("{name} {m} x {n} x {k}"), |cpu| {
                problem.compute(cpu, None).0.to_vec()
            });
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
            activation::bias_activation_forward(
                &cpu,
                activation,
                &plain,
                Some(&bias),
                Some(&mut wanted_pre),
                &mut wanted,
            );
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
fn batches_equal_their_products() {
    let (m, n, k, count) = (19, 23, 41, 3);
    for cpu in testable_cpus() {
        for (name, a_layout, b_layout) in FORMS {
            let spec = Gemm::new(m, n, k, a_layout, b_layout);
            let (a, b) = (uniform::<f32>(1, count * m * k, 1.0), uniform::<f32>(2, count * n * k, 1.0));
            let behind = Batch::contiguous(count, &spec);
            // Column blocks of wider rows, like the heads of attention; one B for all products.
            let beside = Batch { stride_c: n + 1, stride_b: 0, ..behind };
            for (spec, batch) in [(spec, behind), (Gemm { ldc: count * (n + 1), ..spec }, beside)] {
                let span = (count - 1) * batch.stride_c + spec.spans()[2];
                let mut c = Guarded::<f32>::poisoned(span);
                batched(&cpu, &spec, &batch, &a, &b, &mut c);
                c.assert_intact(&name);
                let mut wanted = vec![f32::NAN; span];
                for i in 0..count {
                    let (a, b) = (&a[i * batch.stride_a..], &b[i * batch.stride_b..]);
                    gemm(&cpu, &spec, a, b, &mut wanted[i * batch.stride_c..], Epilogue::NONE);
                }
                let same = c.iter().zip(&wanted).all(|(c, w)| c.to_bits() == w.to_bits());
                assert!(same, "{} {name} {batch:?}: the batch differs from its products", cpu.isa().kind());
            }
        }
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

fn panic_message(f: impl FnOnce()) -> String {
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("should have panicked");
    payload.downcast_ref::<String>().cloned().unwrap_or_else(|| payload.downcast_ref::<&str>().unwrap().to_string())
}

#[test]
fn mismatched_panels_panic_with_their_sizes() {
    let cpu = Cpu::new(Isa::new(IsaKind::Scalar).unwrap(), 1).unwrap();
    let packed = PackedB::new(cpu.isa(), 8, 6);
    let f32 = Precision::F32;
    assert_eq!(packed.check(IsaKind::Scalar, f32, 8, 6), Ok(()));
    let size = PackMismatch::Size { packed: (8, 6), wanted: (6, 8) };
    assert_eq!(packed.check(IsaKind::Scalar, f32, 6, 8), Err(size));
    let isa = PackMismatch::Isa { packed: IsaKind::Scalar, wanted: IsaKind::Avx2 };
    assert_eq!(packed.check(IsaKind::Avx2, f32, 8, 6), Err(isa));
    let a = [1f32; 12];
    let message = panic_message(|| gemm_packed(&cpu, &Gemm::nn(2, 8, 6), &a, &packed, &mut [0f32; 16], Epilogue::NONE));
    assert!(message.contains("packed as 8 x 6") && message.contains("6 x 8"), "{message}");
    for isa in Isa::testable().into_iter().skip(1) {
        let other = Cpu::new(isa, 1).unwrap();
        let product = || gemm_packed(&other, &Gemm::nn(1, 6, 8), &a, &packed, &mut [0f32; 6], Epilogue::NONE);
        let message = panic_message(product);
        assert!(message.contains("packed for scalar") && message.contains(isa.kind().name()), "{message}");
    }
}

#[test]
fn wrong_lengths_panic_with_the_expected_length() {
    let cpu = Cpu::new(Isa::new(IsaKind::Scalar).unwrap(), 1).unwrap();
    let (a, b) = ([1f32; 6], [1f32; 6]);
    let run = |spec: Gemm, len: usize, bias: &[f32]| {
        panic_message(|| gemm(&cpu, &spec, &a, &b, &mut vec![0f32; len], Epilogue::bias(bias)))
    };
    let spec = Gemm::nn(2, 2, 3);
    let message = run(spec, 3, &[0.0; 2]);
    assert!(message.contains("C holds 3 elements but spans 4"), "{message}");
    let message = run(Gemm { lda: 2, ..spec }, 4, &[0.0; 2]);
    assert!(message.contains("lda is below the 3 elements"), "{message}");
    let message = run(spec, 4, &[0.0; 3]);
    assert!(message.contains("one element per column"), "{message}");
    let batch = Batch { stride_c: 3, ..Batch::contiguous(2, &spec) };
    let message = panic_message(|| batched(&cpu, &spec, &batch, &[1f32; 12], &[1f32; 12], &mut [0f32; 8]));
    assert!(message.contains("overlap"), "{message}");
}
