//! Sizes around every border of vectors, register tiles and blocks, for kernels that the table of operations runs at few
//! sizes. Every slice has the minimum length that the kernel accepts; results are checked elsewhere.

use super::allocator::{Placement, guarded};
use half::bf16;
use kernels::activation::{self, Activation, bias_activation_forward};
use kernels::attention::{Attention, Gradients, Operands, Ragged, Upstream, backward, backward_scratch_len, forward};
use kernels::dropout::{self, Dropout};
use kernels::elementwise::{self, Binary, Broadcast, Unary};
use kernels::embedding::{self, Lookup};
use kernels::gemm::{Batch, Epilogue, Gemm, Layout, PackedB, Precision, batched, gemm, gemm_packed};
use kernels::int8::{self, QuantizedWeight};
use kernels::layernorm::{self, Spec};
use kernels::optimizer::{self, AdamConfig, Segment, Step};
use kernels::tiles::Tiles;
use kernels::{Cpu, Element, Isa, cross_entropy, reduce, softmax};

/// Runs `work` with guarded blocks in both placements on every instruction set.
fn on_every_cpu(case: &str, work: impl Fn(&Cpu)) {
    kernels_proof::check::rely_on_guard_pages();
    for isa in Isa::real() {
        for placement in Placement::BOTH {
            let cpu = Cpu::new(isa, 1).expect("threads for a test");
            guarded(&format!("{case} on {}, {placement:?}", isa.kind()), placement, || work(&cpu));
        }
    }
}

fn ones<X: Element>(len: usize) -> Vec<X> {
    vec![X::from_f32(1.0); len]
}

const FORMS: [fn(usize, usize, usize) -> Gemm; 4] = [Gemm::nn, Gemm::nt, Gemm::tn, Gemm::tt];
/// MR ± 1 and half of it for every instruction set, a prime, one row.
const ROWS: [usize; 10] = [0, 1, 3, 4, 5, 7, 13, 14, 15, 29];
/// One, two and eight vectors ± 1 of 1, 8 and 16 lanes.
const COLUMNS: [usize; 11] = [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 47];
const DEPTHS: [usize; 8] = [0, 1, 2, 7, 16, 17, 33, 67];

fn products<A: Element, B: Element, C: Element>(cpu: &Cpu) {
    for form in FORMS {
        for m in ROWS {
            for n in COLUMNS {
                for k in DEPTHS {
                    let tight = form(m, n, k);
                    // Gaps between rows belong to the slice; the last row ends with its last element.
                    let loose = tight.with_leading_dimensions(tight.lda + 3, tight.ldb + 1, tight.ldc + 5);
                    let spec = if (m + n + k) % 2 == 0 { tight } else { loose };
                    let [a, b, c] = spec.spans();
                    let (a, b, mut c) = (ones::<A>(a), ones::<B>(b), ones::<C>(c));
                    gemm(cpu, &spec, &a, &b, &mut c, Epilogue::NONE);
                    let first = c.first().map_or(k as f32, |c| c.to_f32());
                    assert_eq!(first, k as f32, "{spec:?}");
                }
            }
        }
    }
}

#[test]
fn products_of_every_storage() {
    on_every_cpu("gemm f32", products::<f32, f32, f32>);
    on_every_cpu("gemm bf16", products::<bf16, bf16, bf16>);
    on_every_cpu("gemm f32 x bf16", products::<f32, bf16, f32>);
    on_every_cpu("gemm bf16 x f32", products::<bf16, f32, bf16>);
}

#[test]
fn products_with_blocks_of_k_epilogues_and_batches() {
    on_every_cpu("gemm", |cpu| {
        // k around the length of a chain, the largest kc, and several blocks.
        for (m, n, k) in [(15, 33, 384), (15, 33, 385), (7, 17, 769), (14, 32, 1024), (5, 9, 1025), (3, 35, 2049)] {
            for form in FORMS {
                let spec = form(m, n, k);
                let spec = Gemm { ldc: spec.ldc + 3, ..spec };
                let [a_len, b_len, c_len] = spec.spans();
                let (a, b, bias) = (ones::<f32>(a_len), ones::<f32>(b_len), ones::<f32>(n));
                let (mut c, mut pre) = (ones::<f32>(c_len), ones::<f32>(c_len));
                let activation = Activation::GeluTanh;
                gemm(cpu, &spec, &a, &b, &mut c, Epilogue::bias_activation(&bias[..], activation, Some(&mut pre[..])));
                gemm(cpu, &spec, &a, &b, &mut c, Epilogue::activation_backward(activation, &pre[..]));
                let dropout = Some(Dropout { seed: 1, site: 2, rate: 0.1 });
                let residual = Epilogue::bias_dropout_residual(&bias[..], dropout, Some(&pre[..]));
                gemm(cpu, &spec, &a, &b, &mut c, residual);
                gemm(cpu, &spec.accumulate(), &a, &b, &mut c, Epilogue::bias(&bias[..]));
                let mut packed = PackedB::new(cpu.isa(), k, n);
                packed.pack(cpu, spec.b, spec.ldb, &b);
                gemm_packed(cpu, &spec, &a, &packed, &mut c, Epilogue::NONE);
                assert_eq!(c[0], k as f32);
                let mut rounded = PackedB::rounded(cpu.isa(), k, n);
                rounded.pack(cpu, spec.b, spec.ldb, &b);
                gemm_packed(cpu, &spec.accumulate(), &a, &rounded, &mut c, Epilogue::NONE);
                assert_eq!(c[0], 2.0 * k as f32);
                let mut narrow = ones::<bf16>(c_len);
                gemm_packed(cpu, &spec, &a, &packed, &mut narrow, Epilogue::bias(&bias[..]));
                for precision in [Precision::Bf16, Precision::Bf16x3, Precision::Bf16x6] {
                    let (spec, half) = (spec.with_precision(precision), k as f32 / 2.0);
                    let mut packed = PackedB::with_precision(cpu.isa(), precision, k, n);
                    packed.pack(cpu, spec.b, spec.ldb, &b);
                    for cpu in
                        Tiles::testable(cpu.isa()).iter().map(|tiles| cpu.clone().with_tiles(tiles.kind()).unwrap())
                    {
                        let (narrow_a, narrow_b) = (ones::<bf16>(a_len), ones::<bf16>(b_len));
                        let epilogue = Epilogue::bias_activation(&bias[..], activation, Some(&mut pre[..]));
                        gemm(&cpu, &spec, &a, &b, &mut c, epilogue);
                        assert_eq!(pre[0], k as f32 + 1.0);
                        gemm(&cpu, &spec, &narrow_a, &narrow_b, &mut narrow, Epilogue::bias(&bias[..]));
                        gemm_packed(&cpu, &spec, &narrow_a, &packed, &mut c, Epilogue::NONE);
                        gemm_packed(&cpu, &spec.accumulate(), &a, &packed, &mut c, Epilogue::NONE);
                        assert_eq!(c[0], 4.0 * half);
                    }
                }
                let batch = Batch { count: 3, stride_a: 0, stride_b: 0, stride_c: c_len };
                let mut all = ones::<f32>(3 * c_len);
                batched(cpu, &spec, &batch, &a, &b, &mut all);
            }
        }
        for (k, n) in [(1, 1), (17, 31), (33, 65), (7, 16), (400, 33)] {
            for (layout, ldb) in [(Layout::Normal, n), (Layout::Transposed, k)] {
                PackedB::new(cpu.isa(), k, n).pack(cpu, layout, ldb, &ones::<bf16>(k * n));
            }
        }
    });
}

#[test]
fn layers_of_8_bits() {
    on_every_cpu("int8", |cpu| {
        for n in COLUMNS {
            for k in DEPTHS {
                let weight = QuantizedWeight::new(cpu, n, k, &ones::<f32>(n * k));
                for m in ROWS {
                    let (x, bias) = (ones::<f32>(if n == 0 { 0 } else { m * k }), ones::<f32>(n));
                    let (mut y, mut scratch) = (ones::<f32>(m * n), vec![0; weight.scratch_len(m)]);
                    let epilogue = Epilogue::bias_activation(&bias[..], Activation::Relu, None);
                    int8::linear(cpu, &x, &weight, &mut y, epilogue, &mut scratch);
                }
            }
        }
    });
}

fn attentions<X: Element>(cpu: &Cpu) {
    for (heads, size) in [(1, 1), (3, 7), (2, 16), (1, 64), (2, 65), (1, 256)] {
        let plain = Attention::new(heads, size);
        let masked = Attention { dropout: Some(Dropout { seed: 3, site: 4, rate: 0.1 }), ..plain };
        for lengths in [&[0][..], &[1], &[2, 0, 1], &[15, 16, 17], &[63, 64, 65], &[129, 3], &[300]] {
            let mut bounds = vec![0];
            lengths.iter().for_each(|length| bounds.push(bounds[bounds.len() - 1] + length));
            let keys: Vec<u32> = lengths.iter().map(|&length: &u32| length.div_ceil(2)).collect();
            let tokens = bounds[bounds.len() - 1] as usize;
            let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
            for (spec, keys) in [(plain, &keys[..]), (masked, &[])] {
                let batch = Ragged { cu_seqlens: &bounds, keys };
                let h = spec.hidden();
                let span = |ld: usize| if tokens == 0 { 0 } else { (tokens - 1) * ld + h };
                let [q, k, v] = [(); 3].map(|()| ones::<X>(span(h + 1)));
                let (mut out, mut lse) = (ones::<X>(tokens * h), ones::<f32>(tokens * heads));
                let operands = Operands { sequences: batch, q: &q, k: &k, v: &v, ld: h + 1 };
                forward(cpu, &spec, operands, &mut out, &mut lse);
                let dout = ones::<X>(tokens * h);
                let upstream = Upstream { out: &out, lse: &lse, dout: &dout };
                let mut scratch = ones::<f32>(backward_scratch_len(&spec, tokens, longest));
                let mut fused = ones::<X>(tokens * 3 * h);
                let gradients = Gradients::fused(&mut fused, h, 3 * h);
                backward(cpu, &spec, operands, upstream, gradients, &mut scratch);
                let [mut dq, mut dk, mut dv] = [(); 3].map(|()| ones::<X>(span(h + 2)));
                let gradients = Gradients::separate(&mut dq, &mut dk, &mut dv, h + 2);
                backward(cpu, &spec, operands, upstream, gradients, &mut scratch);
            }
        }
    }
}

#[test]
fn attention_of_both_storage_types() {
    on_every_cpu("attention f32", attentions::<f32>);
    on_every_cpu("attention bf16", attentions::<bf16>);
}

/// Every row width up to slightly more than four vectors, and some larger ones.
fn widths() -> impl Iterator<Item = usize> {
    (0..=70).chain([127, 128, 129, 257])
}

fn rows<X: Element>(cpu: &Cpu) {
    let count = 3;
    for width in widths() {
        let x = ones::<X>(count * width);
        let [gain, bias] = [(); 2].map(|()| ones::<f32>(width));
        let [mut y, mut s, mut ds] = [(); 3].map(|()| ones::<X>(count * width));
        let (mut stats, spec) = (ones::<f32>(2 * count), Spec { rows: count, columns: width, eps: 1e-12 });
        for (residual, s) in [(Some(&x[..]), Some(&mut s[..])), (None, None)] {
            let (x, y, stats) = (&x[..], &mut y[..], &mut stats[..]);
            layernorm::forward(cpu, &spec, layernorm::Forward { x, residual, gain: &gain, bias: &bias, s, y, stats });
        }
        let [mut dgain, mut dbias] = [(); 2].map(|()| ones::<f32>(width));
        let mut scratch = ones::<f32>(layernorm::backward_scratch_len(&spec));
        let (dgain, dbias) = (&mut dgain[..], &mut dbias[..]);
        let operands = layernorm::Backward { s: &s, stats: &stats, gain: &gain, dy: &x, ds: &mut ds, dgain, dbias };
        layernorm::backward(cpu, &spec, operands, &mut scratch);

        softmax::forward(cpu, width, &x, &mut y);
        softmax::backward(cpu, width, &y, &x, &mut ds);

        let (mut sums, mut totals) = (ones::<f32>(count), ones::<f32>(width));
        reduce::row_sums(cpu, width, &x, &mut sums);
        let mut scratch = ones::<f32>(reduce::column_sums_scratch_len(count, width));
        reduce::column_sums(cpu, count, width, &x, &mut totals, &mut scratch);
        let _ = (reduce::sum(cpu, &x), reduce::sum_of_squares(cpu, &x), reduce::max(cpu, &x));

        let (table, mut out) = (ones::<f32>(5 * width), ones::<X>(count * width));
        let ids = vec![0, 4, 2];
        if width > 0 {
            let lookup = Lookup { ids: &ids, table: &table };
            embedding::forward(cpu, width, [lookup, lookup], &mut out);
            let (mut dtable, mut scratch) = (ones::<f32>(5 * width), vec![0; embedding::backward_scratch_len(3, 5)]);
            embedding::backward(cpu, width, &ids, &x, &mut dtable, &mut scratch);
            let labels = vec![0, width as u32 - 1, cross_entropy::IGNORED];
            let [mut losses, mut norms] = [count, 2 * count].map(ones::<f32>);
            let mut found = vec![0; count];
            let results = cross_entropy::Losses { losses: &mut losses, norms: &mut norms, predictions: &mut found };
            cross_entropy::rows_forward(cpu, width, &x, &labels, results);
            let upstream = cross_entropy::Upstream { norms: &norms, dlosses: &losses };
            cross_entropy::rows_backward(cpu, width, &x, &labels, upstream, &mut ds);
            dropout::apply(cpu, &Dropout { seed: 5, site: 6, rate: 0.5 }, width, &x, &mut y);
        }
        for activation in Activation::ALL {
            bias_activation_forward(cpu, activation, &x, (width > 0).then_some(&bias), Some(&mut s), &mut y);
            bias_activation_forward(cpu, activation, &x, None, None, &mut y);
            activation::backward(cpu, activation, &x, &s, &mut y);
        }
        for broadcast in Broadcast::ALL {
            let b = ones::<X>(broadcast.len(if width == 0 { 0 } else { count }, width));
            elementwise::binary(cpu, Binary::Div, broadcast, width, [&x, &b], &mut y);
        }
        elementwise::unary_forward(cpu, Unary::Tanh, &x, &mut y);
        elementwise::unary_backward(cpu, Unary::Ln, &x, &x, &mut y);
        elementwise::scale(cpu, 2.0, &x, &mut y);
        elementwise::add_assign(cpu, &x, &mut y);
        let mut wide = ones::<f32>(count * width);
        elementwise::add_scaled(cpu, 2.0, &x, &mut wide);
        elementwise::cast(cpu, &x, &mut wide);
        elementwise::cast(cpu, &wide, &mut y);
        elementwise::transpose(cpu, count, width, &x, &mut y);
    }
}

#[test]
fn kernels_over_rows_of_every_width() {
    on_every_cpu("rows of f32", rows::<f32>);
    on_every_cpu("rows of bf16", rows::<bf16>);
}

#[test]
fn optimizers_at_every_length() {
    on_every_cpu("optimizer", |cpu| {
        let (hyper, step) = (AdamConfig::default(), Step { number: 1, learning_rate: 0.1, gradient_scale: 1.0 });
        for len in widths() {
            let [mut w, g, mut m, mut v] = [(); 4].map(|()| ones::<f32>(len));
            let segment = |range| Segment { range, decay: true, adapt: true };
            let segments = vec![segment(0..len / 3), segment(len / 3..len)];
            optimizer::adamw(
                cpu,
                &hyper,
                &step,
                &segments,
                optimizer::Buffers { params: &mut w, grads: &g, m: &mut m, v: &mut v },
            );
            let mut scratch = vec![0.0; optimizer::lamb_scratch_len(&segments)];
            optimizer::lamb(
                cpu,
                &hyper,
                &step,
                &segments,
                optimizer::Buffers { params: &mut w, grads: &g, m: &mut m, v: &mut v },
                &mut scratch,
            );
        }
    });
}
