//! Kernels over rows and over flat buffers: sizes whose product overflows `usize`, slices one element short or long.

use super::{cpus, refuses, shortened};
use kernels::activation::{self, Activation};
use kernels::dropout::{self, Dropout};
use kernels::elementwise::{self, Binary, Broadcast, Unary};
use kernels::embedding::{self, Lookup};
use kernels::layernorm::{self, Spec};
use kernels::optimizer::{self, AdamConfig, Segment, Step};
use kernels::{cross_entropy, reduce, softmax};

/// 2 · HALF is 0 in wrapping arithmetic, 3 · HALF is HALF.
const HALF: usize = 1 << 63;

#[test]
fn layernorm_rejects_what_does_not_fit() {
    for cpu in cpus() {
        let spec = |rows, columns| Spec { rows, columns, eps: 1e-12 };
        let run = |case: &str, says: &str, spec: Spec, [x, r, gain, bias, s, y, stats]: [usize; 7]| {
            let [x, r, gain, bias] = [x, r, gain, bias].map(|len| vec![1f32; len]);
            refuses(case, says, [s, y, stats], |[s, y, stats]| {
                layernorm::forward(
                    &cpu,
                    &spec,
                    layernorm::Forward { x: &x, residual: Some(&r), gain: &gain, bias: &bias, s: Some(s), y, stats },
                );
            });
        };
        let good = [15, 15, 5, 5, 15, 15, 6];
        for i in 0..7 {
            for change in [good[i] - 1, good[i] + 1, 0] {
                let mut lengths = good;
                lengths[i] = change;
                run(&format!("length {i} is {change}"), "layernorm", spec(3, 5), lengths);
            }
        }
        run("2 x 2⁶³", "layernorm", spec(2, HALF), [0, 0, 0, 0, 0, 0, 4]);
        run("2⁶³ x 2", "layernorm", spec(HALF, 2), [0, 0, 2, 2, 0, 0, 0]);
        run("(2⁶³ + 1) x 2", "layernorm", spec(HALF + 1, 2), [2, 2, 2, 2, 2, 2, 2]);
        // x [2⁶³, 0] fits; the statistics, two elements a row, do not.
        run("2⁶³ x 0", "stats are not", spec(HALF, 0), [0; 7]);

        let run = |case: &str, says: &str, spec: Spec, [s, stats, gain, dy, ds, dgain, dbias, room]: [usize; 8]| {
            let [s, stats, gain, dy] = [s, stats, gain, dy].map(|len| vec![1f32; len]);
            let mut scratch = vec![0f32; room];
            refuses(case, says, [ds, dgain, dbias], |[ds, dgain, dbias]| {
                layernorm::backward(
                    &cpu,
                    &spec,
                    layernorm::Backward { s: &s, stats: &stats, gain: &gain, dy: &dy, ds, dgain, dbias },
                    &mut scratch,
                );
            });
        };
        let room = layernorm::backward_scratch_len(&spec(3, 5));
        for (i, lengths) in shortened([15, 6, 5, 15, 15, 5, 5, room]) {
            run(&format!("length {i} is short"), if i == 7 { "scratch" } else { "layernorm" }, spec(3, 5), lengths);
        }
        run("2⁶³ x 2", "layernorm", spec(HALF, 2), [0, 0, 2, 0, 0, 2, 2, 100]);
    }
}

#[test]
fn softmax_rejects_what_does_not_fit() {
    for cpu in cpus() {
        for (columns, x, y) in [(5, 14, 14), (5, 15, 14), (5, 15, 16), (HALF, 5, 5), (0, 5, 5), (5, 15, 0)] {
            let input = vec![1f32; x];
            let case = format!("{columns} columns, {x} and {y}");
            refuses(&case, "softmax", [y], |[y]| softmax::forward(&cpu, columns, &input, y));
            let other = vec![1f32; y];
            refuses(&case, "softmax", [y], |[dx]| softmax::backward(&cpu, columns, &input, &input, dx));
            if x != y {
                refuses(&case, "softmax", [x], |[dx]| softmax::backward(&cpu, columns, &input, &other, dx));
            }
        }
    }
}

#[test]
fn embedding_rejects_what_does_not_fit() {
    for cpu in cpus() {
        let table = vec![1f32; 20];
        let run = |case: &str, says: &str, width: usize, ids: &[u32], table: &[f32], out: usize| {
            refuses(case, says, [out], |[out]| embedding::forward(&cpu, width, [Lookup { ids, table }], out));
        };
        run("a short out", "out is not", 5, &[0, 3], &table, 9);
        run("a long out", "out is not", 5, &[0, 3], &table, 11);
        run("a cut table", "no rows of 5", 5, &[0, 3], &table[..19], 10);
        run("an id beyond", "id 4 of a table of 4", 5, &[0, 4], &table, 10);
        run("the last id", "of a table of 4", 5, &[0, u32::MAX], &table, 10);
        run("2 x 2⁶³", "out is not", HALF, &[0, 0], &[], 0);
        let two = |first: &[u32], second: &[u32]| {
            let lookups = [Lookup { ids: first, table: &table }, Lookup { ids: second, table: &table }];
            refuses("ids of two lengths", "ids for", [10], |[out]| embedding::forward(&cpu, 5, lookups, out));
        };
        two(&[0, 1], &[0]);
        two(&[0, 1], &[0, 1, 2]);

        let run = |case: &str, says: &str, width: usize, ids: &[u32], dout: usize, dtable: usize, room: usize| {
            let (dout, mut scratch) = (vec![1f32; dout], vec![0; room]);
            refuses(case, says, [dtable], |[dtable]| {
                embedding::backward(&cpu, width, ids, &dout, dtable, &mut scratch);
            });
        };
        let room = embedding::backward_scratch_len(2, 4);
        run("a short dout", "dout is not", 5, &[0, 3], 9, 20, room);
        run("a cut table", "no rows of 5", 5, &[0, 3], 10, 19, room);
        run("an id beyond", "id 4", 5, &[0, 4], 10, 20, room);
        run("short scratch", "scratch", 5, &[0, 3], 10, 20, room - 1);
        run("2 x 2⁶³", "dout is not", HALF, &[0, 0], 0, 0, room);
    }
}

#[test]
fn cross_entropy_rejects_what_does_not_fit() {
    for cpu in cpus() {
        let run = |case: &str, says: &str, classes: usize, labels: &[u32], [z, losses, norms, found]: [usize; 4]| {
            let (z, mut found) = (vec![1f32; z], vec![9; found]);
            refuses(case, says, [losses, norms], |[losses, norms]| {
                cross_entropy::rows_forward(
                    &cpu,
                    classes,
                    &z,
                    labels,
                    cross_entropy::Losses { losses, norms, predictions: &mut found },
                );
            });
            assert!(found.iter().all(|&found| found == 9), "{case}: predictions were written");
        };
        let good = [15, 3, 6, 3];
        for (i, lengths) in shortened(good) {
            run(&format!("length {i} is short"), "cross_entropy", 5, &[0, 4, 2], lengths);
        }
        run("a label beyond", "label 5 of 5", 5, &[0, 5, 2], good);
        run("2 x 2⁶³", "logits are not", HALF, &[0, 0], [0, 2, 4, 2]);
        let (z, norms, dlosses) = ([1f32; 15], [1f32; 6], [1f32; 3]);
        let run = |case: &str, says: &str, [z_len, norms_len, dlosses_len, dz]: [usize; 4]| {
            let (z, norms, dlosses) = (&z[..z_len], &norms[..norms_len], &dlosses[..dlosses_len]);
            refuses(case, says, [dz], |[dz]| {
                cross_entropy::rows_backward(&cpu, 5, z, &[0, 4, 2], cross_entropy::Upstream { norms, dlosses }, dz);
            });
        };
        for (i, lengths) in shortened([15, 6, 3, 15]) {
            run(["logits", "norms", "dlosses", "dlogits"][i], "cross_entropy", lengths);
        }
        for offsets in [&[0, 5][..], &[0, 5, 5, 15], &[0, 9, 5, 15], &[1, 5, 10, 15], &[0, 5, 10, 14], &[]] {
            let mut found = [9; 3];
            refuses(&format!("{offsets:?}"), "cross_entropy", [3, 6], |[losses, norms]| {
                cross_entropy::sequences_forward(
                    &cpu,
                    offsets,
                    &z,
                    &[0, 1, 2],
                    cross_entropy::Losses { losses, norms, predictions: &mut found },
                );
            });
        }
    }
}

#[test]
fn optimizer_rejects_segments_that_overlap_or_leave_the_buffers() {
    for cpu in cpus() {
        let (hyper, step) = (AdamConfig::default(), Step { number: 1, learning_rate: 0.1, gradient_scale: 1.0 });
        let segment = |range| Segment { range, decay: true, adapt: true };
        let grads = vec![1f32; 100];
        let both = |case: &str, says: &str, segments: &[Segment], lengths: [usize; 3]| {
            refuses(case, says, lengths, |[w, m, v]| {
                optimizer::adamw(&cpu, &hyper, &step, segments, optimizer::Buffers { params: w, grads: &grads, m, v });
            });
            let mut scratch = vec![0.0; 64];
            refuses(case, says, lengths, |[w, m, v]| {
                optimizer::lamb(
                    &cpu,
                    &hyper,
                    &step,
                    segments,
                    optimizer::Buffers { params: w, grads: &grads, m, v },
                    &mut scratch,
                );
            });
        };
        let all = [100; 3];
        #[expect(clippy::reversed_empty_ranges, reason = "a range that no caller should give")]
        let backwards = segment(60..40);
        both("overlap", "overlaps", &[segment(0..60), segment(59..100)], all);
        both("twice", "overlaps", &[segment(0..60), segment(0..60)], all);
        both("out of order", "out of order", &[segment(60..100), segment(0..60)], all);
        both("beyond", "beyond 100", &[segment(0..101)], all);
        both("far beyond", "beyond 100", &[segment(0..usize::MAX)], all);
        both("backwards", "segment", &[backwards], all);
        for (_, lengths) in shortened(all) {
            both("lengths", "different lengths", &[segment(0..99)], lengths);
        }
        let room = optimizer::lamb_scratch_len(&[segment(0..100)]);
        let mut scratch = vec![0.0; room - 1];
        refuses("scratch", "scratch", all, |[w, m, v]| {
            optimizer::lamb(
                &cpu,
                &hyper,
                &step,
                &[segment(0..100)],
                optimizer::Buffers { params: w, grads: &grads, m, v },
                &mut scratch,
            );
        });
    }
}

#[test]
fn reductions_reject_what_does_not_fit() {
    for cpu in cpus() {
        let x = vec![1f32; 15];
        let rows = |columns, x: &[f32], out| {
            refuses(&format!("{columns}"), "row_sums", [out], |[out]| reduce::row_sums(&cpu, columns, x, out));
        };
        rows(5, &x[..14], 3);
        rows(5, &x, 2);
        rows(5, &x, 4);
        refuses("2⁶³", "row_sums", [2], |[out]| reduce::row_sums(&cpu, HALF, &[0f32; 0], out));
        let columns = |says: &str, rows, columns, x: &[f32], out, room| {
            let mut scratch = vec![0f32; room];
            refuses(&format!("{rows} x {columns}"), says, [out], |[out]| {
                reduce::column_sums(&cpu, rows, columns, x, out, &mut scratch);
            });
        };
        let room = reduce::column_sums_scratch_len(3, 5);
        columns("column_sums", 3, 5, &x[..14], 5, room);
        columns("column_sums", 3, 5, &x, 4, room);
        columns("column_sums", 3, 5, &x, 6, room);
        columns("scratch", 3, 5, &x, 5, room - 1);
        columns("column_sums", HALF, 2, &[], 2, 100);
        columns("column_sums", HALF + 1, 2, &x[..2], 2, 100);
    }
}

#[test]
fn activations_and_dropout_reject_what_does_not_fit() {
    for cpu in cpus() {
        let x = vec![1f32; 15];
        for activation in Activation::ALL {
            let run = |bias: Option<usize>, pre: usize, y: usize| {
                let bias = bias.map(|len| vec![1f32; len]);
                refuses("activation", "activation", [pre, y], |[pre, y]| {
                    activation::bias_activation_forward(&cpu, activation, &x, bias.as_deref(), Some(pre), y);
                });
            };
            run(None, 15, 14);
            run(None, 14, 15);
            run(None, 15, 16);
            for bias in [0, 4, 16] {
                run(Some(bias), 15, 15);
            }
            for (pre, dy, dx) in [(14, 15, 15), (15, 14, 15), (15, 15, 14)] {
                refuses("backward", "activation", [dx], |[dx]| {
                    activation::backward(&cpu, activation, &x[..pre], &x[..dy], dx);
                });
            }
        }
        let mask = |rate| Dropout { seed: 1, site: 2, rate };
        for (rate, columns, x, y) in
            [(0.1, 5, &x[..], 14), (0.1, 5, &x[..14], 14), (0.1, 0, &x, 15), (0.1, HALF, &x, 15)]
        {
            refuses("dropout", "dropout", [y], |[y]| dropout::apply(&cpu, &mask(rate), columns, x, y));
        }
        for rate in [1.0, -0.5, f32::NAN, f32::INFINITY] {
            refuses("rate", "dropout rate", [15], |[y]| dropout::apply(&cpu, &mask(rate), 5, &x, y));
        }
    }
}

#[test]
fn elementwise_kernels_reject_what_does_not_fit() {
    for cpu in cpus() {
        let x = [1f32; 15];
        for (broadcast, right) in
            [(Broadcast::Full, 15), (Broadcast::Scalar, 1), (Broadcast::Row, 5), (Broadcast::Column, 3)]
        {
            let run = |columns, a: usize, b: usize, y| {
                let b = vec![1f32; b];
                refuses(&format!("{broadcast:?}"), "Add", [y], |[y]| {
                    elementwise::binary(&cpu, Binary::Add, broadcast, columns, [&x[..a], &b], y);
                });
            };
            run(5, 15, right - 1, 15);
            run(5, 15, right + 1, 15);
            run(5, 15, right, 14);
            run(5, 14, right, 14);
            run(0, 15, right, 15);
            run(HALF, 15, right, 15);
        }
        for (a, b) in [(15, 14), (14, 15), (0, 1), (1, 0)] {
            let x = &x[..a];
            refuses("unary", "lengths differ", [b], |[y]| elementwise::unary_forward(&cpu, Unary::Exp, x, y));
            refuses("backward", "lengths differ", [b], |[y]| {
                elementwise::unary_backward(&cpu, Unary::Exp, x, x, y);
            });
            refuses("scale", "lengths differ", [b], |[y]| elementwise::scale(&cpu, 2.0, x, y));
            refuses("add_assign", "lengths differ", [b], |[y]| elementwise::add_assign(&cpu, x, y));
            refuses("add_scaled", "lengths differ", [b], |[y]| elementwise::add_scaled(&cpu, 2.0, x, y));
            refuses("cast", "lengths differ", [b], |[y]| elementwise::cast(&cpu, x, y));
        }
        for (rows, columns, x, y) in [(3, 5, 14, 15), (3, 5, 15, 14), (5, 4, 15, 15)] {
            let x = vec![1f32; x];
            refuses("transpose", "transpose", [y], |[y]| elementwise::transpose(&cpu, rows, columns, &x, y));
        }
        for (rows, columns) in [(2, HALF), (HALF, 2)] {
            refuses("transpose", "transpose", [0], |[y]| {
                elementwise::transpose(&cpu, rows, columns, &[0f32; 0], y);
            });
        }
    }
}
