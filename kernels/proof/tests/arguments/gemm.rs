//! Products: [`kernels::gemm`] and [`kernels::int8`].

use super::{BEFORE, cpus, refuses, shortened, wraps_nine_rows};
use half::bf16;
use kernels::Element;
use kernels::activation::Activation;
use kernels::dropout::Dropout;
use kernels::gemm::{Batch, Epilogue, Gemm, Layout, PackedB, SliceEpilogue, batched, gemm, gemm_packed};
use kernels::int8::{self, QuantizedWeight};

/// m = n = k = 9, so that every operand wraps with the same leading dimension.
const NINE: usize = 9;
const FORMS: [fn(usize, usize, usize) -> Gemm; 4] = [Gemm::nn, Gemm::nt, Gemm::tn, Gemm::tt];

/// Asserts that a product of slices of these lengths is refused.
#[track_caller]
fn refuses_product<X: Element>(cpu: &kernels::Cpu, spec: Gemm, [a, b, c]: [usize; 3], says: &str) {
    let [a, b] = [a, b].map(|len| vec![X::from_f32(1.0); len]);
    let case = format!("{} {} {spec:?}", cpu.isa().kind(), X::DTYPE);
    refuses(&case, says, [c], |[c]| gemm(cpu, &spec, &a, &b, c, Epilogue::NONE));
}

#[test]
fn rejects_a_leading_dimension_whose_span_overflows() {
    let wide = wraps_nine_rows(NINE);
    // `usize::MAX` is -1 in wrapping arithmetic: the span is then less than one row.
    for leading in [wide, usize::MAX, usize::MAX / 8, usize::MAX / 8 + 1, 1 << 61, 1 << 63] {
        for cpu in cpus() {
            for form in FORMS {
                let spec = form(NINE, NINE, NINE);
                for (what, spec) in [
                    ("A", Gemm { lda: leading, ..spec }),
                    ("B", Gemm { ldb: leading, ..spec }),
                    ("C", Gemm { ldc: leading, ..spec }),
                ] {
                    refuses_product::<f32>(&cpu, spec, [200; 3], &format!("{what} holds 200 elements"));
                }
            }
        }
    }
}

#[test]
fn rejects_sizes_whose_span_overflows() {
    // (m - 1) · 8 is 0 in wrapping arithmetic, so that one row of A and C would be enough.
    let huge = (1 << 61) + 1;
    for cpu in cpus() {
        for (spec, says) in [
            (Gemm::nn(huge, 8, 8), "A holds 64 elements"),
            (Gemm::nn(8, 8, huge), "A holds 64 elements"),
            (Gemm::nt(8, huge, 8), "C holds 64 elements"),
            (Gemm::tn(8, 8, huge), "A holds 64 elements"),
        ] {
            refuses_product::<f32>(&cpu, spec, [64; 3], says);
        }
    }
}

#[test]
fn a_leading_dimension_of_a_single_row_is_never_used() {
    // A single stored row: the leading dimension is not used.
    for cpu in cpus() {
        for leading in [usize::MAX, (1 << 61) + 3, 40] {
            let (a, b) = (vec![1f32; 40], vec![2f32; 40]);
            let spec = Gemm { lda: leading, ldc: leading, ..Gemm::nn(1, 40, 1) };
            let mut c = vec![0f32; 40];
            gemm(&cpu, &Gemm { ldb: leading, ..spec }, &a, &b, &mut c, Epilogue::NONE);
            assert_eq!(c, vec![2f32; 40], "{} {spec:?}", cpu.isa().kind());
            let spec = Gemm { lda: leading, ldb: leading, ldc: leading, ..Gemm::nt(1, 1, 40) };
            gemm(&cpu, &spec, &a, &b, &mut c[..1], Epilogue::NONE);
            assert_eq!(c[0], 80.0, "{} {spec:?}", cpu.isa().kind());
        }
    }
}

#[test]
fn rejects_slices_that_are_one_element_short() {
    for cpu in cpus() {
        for form in FORMS {
            let tight = form(15, 33, 17);
            let loose = tight.with_leading_dimensions(tight.lda + 3, tight.ldb + 1, tight.ldc + 5);
            for spec in [tight, loose] {
                for (short, lengths) in shortened(spec.spans()) {
                    let says = ["A holds", "B holds", "C holds"][short];
                    refuses_product::<f32>(&cpu, spec, lengths, says);
                    refuses_product::<bf16>(&cpu, spec, lengths, says);
                }
            }
        }
    }
}

#[test]
fn slices_of_exactly_the_span_are_enough() {
    for cpu in cpus() {
        for form in FORMS {
            for (m, n, k) in [(15, 33, 17), (1, 1, 1), (3, 5, 2), (29, 47, 67)] {
                let spec = form(m, n, k);
                let spec = spec.with_leading_dimensions(spec.lda + 3, spec.ldb + 1, spec.ldc + 5);
                let [a, b, c] = spec.spans();
                let (a, b, mut c) = (vec![1f32; a], vec![1f32; b], vec![0f32; c]);
                gemm(&cpu, &spec, &a, &b, &mut c, Epilogue::NONE);
                assert_eq!((c[0], c[c.len() - 1]), (k as f32, k as f32), "{} {spec:?}", cpu.isa().kind());
            }
        }
    }
}

#[test]
fn rejects_leading_dimensions_below_a_row() {
    for cpu in cpus() {
        for form in FORMS {
            let spec = form(15, 33, 17);
            for (says, spec) in [
                ("lda is below", Gemm { lda: spec.lda - 1, ..spec }),
                ("ldb is below", Gemm { ldb: spec.ldb - 1, ..spec }),
                ("ldc is below", Gemm { ldc: spec.ldc - 1, ..spec }),
                ("ldc is below", Gemm { ldc: 0, ..spec }),
            ] {
                refuses_product::<f32>(&cpu, spec, [1000; 3], says);
            }
        }
    }
}

#[test]
fn rejects_an_epilogue_that_does_not_fit() {
    let spec = Gemm { ldc: 35, ..Gemm::nn(15, 33, 17) };
    let x = vec![1f32; 700];
    let (bias, short) = (vec![1f32; 33], vec![1f32; spec.spans()[2] - 1]);
    for cpu in cpus() {
        let run = |case: &str, says: &str, spec: Gemm, epilogue: SliceEpilogue<'_, f32>| {
            refuses(case, says, [700], |[c]| gemm(&cpu, &spec, &x, &x, c, epilogue));
        };
        for wrong in [0, 32, 34] {
            let bias = vec![1f32; wrong];
            run("bias", "the bias must hold one", spec, Epilogue::bias(&bias));
        }
        let activation = Activation::GeluTanh;
        run("pre", "matrix holds", spec, Epilogue::activation_backward(activation, &short));
        let mut pre = vec![BEFORE; short.len()];
        run("kept", "matrix holds", spec, Epilogue::bias_activation(&bias, activation, Some(&mut pre)));
        assert!(pre.iter().all(|&x| x == BEFORE), "kept values were written");
        let residual = |dropout, residual| Epilogue::bias_dropout_residual(&bias[..], dropout, residual);
        run("residual", "matrix holds", spec, residual(None, Some(&short[..])));
        for rate in [1.0, -0.1, f32::NAN, 2.0] {
            run("rate", "dropout rate", spec, residual(Some(Dropout { seed: 1, site: 1, rate }), None));
        }
        run("accumulate", "can accumulate", spec.accumulate(), residual(None, None));
    }
}

#[test]
fn rejects_batches_that_overlap_or_leave_their_slices() {
    let spec = Gemm::nn(4, 8, 4);
    let x = vec![1f32; 512];
    for cpu in cpus() {
        let run = |says: &str, batch: Batch| {
            refuses(&format!("{batch:?}"), says, [512], |[c]| batched(&cpu, &spec, &batch, &x, &x, c));
        };
        let good = Batch::contiguous(9, &spec);
        run("overlap", Batch { stride_c: 31, ..good });
        run("overlap", Batch { stride_c: 0, ..good });
        run("overlap", Batch { stride_c: 8, ..good });
        // Eight times the stride is 0 in wrapping arithmetic.
        run("A holds", Batch { stride_a: 1 << 61, ..good });
        run("B holds", Batch { stride_b: 1 << 61, ..good });
        run("C holds", Batch { stride_c: 1 << 61, ..good });
        run("C holds", Batch { stride_c: usize::MAX / 8 + 1, ..good });
        run("A holds", Batch { count: usize::MAX, ..good });
        run("C holds", Batch { count: (1 << 59) + 1, stride_a: 0, stride_b: 0, stride_c: 32 });
        run("C holds", Batch { count: 17, stride_a: 0, stride_b: 0, ..good });
    }
}

#[test]
fn rejects_panels_that_do_not_fit() {
    let x = vec![1f32; 512];
    for cpu in cpus() {
        let mut packed = PackedB::new(cpu.isa(), NINE, NINE);
        let wide = wraps_nine_rows(NINE);
        let mut pack = |says: &str, layout: Layout, ldb: usize, len: usize| {
            refuses(&format!("{layout:?} {ldb}"), says, [], |[]| packed.pack(&cpu, layout, ldb, &x[..len]));
        };
        for layout in [Layout::Normal, Layout::Transposed] {
            pack("ldb 8 is below", layout, 8, 512);
            pack("B holds 80", layout, 9, 80);
            pack("B holds 512", layout, wide, 512);
            pack("B holds 512", layout, usize::MAX, 512);
        }
        packed.pack(&cpu, Layout::Normal, 9, &x);
        for (m, n, k) in [(2, 9, 8), (2, 8, 9), (2, 10, 9), (2, 9, 10)] {
            refuses("size", "packed as 9 x 9", [64], |[c]| {
                gemm_packed(&cpu, &Gemm::nn(m, n, k), &x, &packed, c, Epilogue::NONE);
            });
        }
        let spec = Gemm::nn(NINE, NINE, NINE);
        refuses("ldc", "C holds 81", [81], |[c]| {
            gemm_packed(&cpu, &Gemm { ldc: wide, ..spec }, &x, &packed, c, Epilogue::NONE);
        });
        refuses("lda", "A holds 512", [81], |[c]| {
            gemm_packed(&cpu, &Gemm { lda: wide, ..spec }, &x, &packed, c, Epilogue::NONE);
        });
        // k times the padded columns is 0 in wrapping arithmetic.
        refuses("new", "more elements than", [], |[]| drop(PackedB::new(cpu.isa(), 1 << 62, NINE)));
        refuses("new", "more elements than", [], |[]| drop(PackedB::new(cpu.isa(), NINE, usize::MAX)));
    }
}

#[test]
fn rejects_quantized_layers_that_do_not_fit() {
    for cpu in cpus() {
        let (n, k, m) = (5, 7, 3);
        let weight = QuantizedWeight::new(&cpu, n, k, &vec![1.0; n * k]);
        let room = weight.scratch_len(m);
        let run = |case: &str, says: &str, x: usize, bias: usize, y: usize, room: usize| {
            let (x, bias, mut scratch) = (vec![1f32; x], vec![1f32; bias], vec![0; room]);
            refuses(case, says, [y], |[y]| int8::linear(&cpu, &x, &weight, y, Epilogue::bias(&bias[..]), &mut scratch));
        };
        run("x", "rows through a weight", m * k - 1, n, m * n, room);
        run("y", "rows through a weight", m * k, n, m * n - 1, room);
        run("bias", "one element per column", m * k, n - 1, m * n, room);
        run("scratch", "words of scratch", m * k, n, m * n, room - 1);
        refuses("weight", "a weight of", [], |[]| drop(QuantizedWeight::new(&cpu, n, k, &[1.0; 34])));
        refuses("k", "do not fit an i32", [], |[]| drop(QuantizedWeight::new(&cpu, 1, int8::MAX_K + 1, &[])));
        // 2⁶³ · 2 elements are none in wrapping arithmetic.
        refuses("n", "a weight of", [], |[]| drop(QuantizedWeight::new(&cpu, 1 << 63, 2, &[])));
    }
}
