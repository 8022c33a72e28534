//! Every operation's gradient, and what each refuses.
use super::{gradient_check::*, *};
use crate::shared_tests::*;

pub(super) fn weight(seed: u64, shape: &[usize]) -> Weight {
    Weight { shape: shape.to_vec(), values: values(seed + 100, shape.iter().product(), 1.0) }
}

#[test]
fn matmul_agrees_with_differences() {
    for a in [false, true] {
        for b in [false, true] {
            let transpose = Transpose { a, b };
            let pair = |flip, rows: usize, cols: usize| if flip { [cols, rows] } else { [rows, cols] };
            let ([a0, a1], [b0, b1]) = (pair(a, 3, 5), pair(b, 5, 4));
            let f = |tape: &Tape<'_>, x: &[Var], _: &[ParamId]| matmul(tape, &x[0], &x[1], transpose);
            check(&format!("matmul {transpose:?}"), &[(&[a0, a1], 1.0), (&[b0, b1], 1.0)], &[], f);
            check(&format!("batched {transpose:?}"), &[(&[2, a0, a1], 1.0), (&[2, b0, b1], 1.0)], &[], f);
            check(&format!("one b {transpose:?}"), &[(&[2, a0, a1], 1.0), (&[b0, b1], 1.0)], &[], f);
        }
    }
}

#[test]
fn functions_of_one_element_agree_with_differences() {
    check("exp", &[(&[3, 5], 1.0)], &[], |tape, x, _| exp(tape, &x[0]));
    check("tanh", &[(&[3, 5], 2.0)], &[], |tape, x, _| tanh(tape, &x[0]));
    check("sigmoid", &[(&[3, 5], 3.0)], &[], |tape, x, _| sigmoid(tape, &x[0]));
    check("scale", &[(&[3, 5], 3.0)], &[], |tape, x, _| scale(tape, &x[0], -0.75));
    for kind in [Activation::GeluTanh, Activation::GeluErf] {
        check(kind.name(), &[(&[3, 5], 3.0)], &[], |tape, x, _| activation(tape, &x[0], kind));
    }
    // The logarithm and ReLU away from where they have no derivative.
    let positive = || vec![(vec![15], values(3, 15, 1.0).iter().map(|x| x + 2.0).collect())];
    check_at("log", positive(), &[], |tape, x, _| log(tape, &x[0]));
    let apart = values(4, 15, 2.0).iter().map(|x| x + 0.25 * x.signum()).collect();
    check_at("relu", vec![(vec![15], apart)], &[], |tape, x, _| relu(tape, &x[0]));
}

#[test]
fn movements_agree_with_differences() {
    check("reshape", &[(&[2, 6], 1.0)], &[], |tape, x, _| reshape(tape, &x[0], [3, 4]));
    for (a, b) in [(0, 1), (1, 2), (0, 2), (3, 1), (2, 2)] {
        check("transpose", &[(&[2, 3, 4, 2], 1.0)], &[], |tape, x, _| transpose(tape, &x[0], a, b));
    }
    for axis in 0..3 {
        check("slice", &[(&[4, 4, 4], 1.0)], &[], |tape, x, _| slice(tape, &x[0], axis, 1..3));
        let mut second = [2, 3, 2];
        second[axis] = 4;
        let f = |tape: &Tape<'_>, x: &[Var], _: &[ParamId]| concat(tape, &[&x[0], &x[1], &x[0]], axis);
        check("concat", &[(&[2, 3, 2], 1.0), (&second, 1.0)], &[], f);
    }
}

#[test]
fn reductions_and_losses_agree_with_differences() {
    check("sum", &[(&[3, 4], 1.0)], &[], |tape, x, _| sum(tape, &x[0]));
    check("mean", &[(&[3, 4], 1.0)], &[], |tape, x, _| mean(tape, &x[0]));
    let two = [(&[3, 4][..], 1.0), (&[3, 4][..], 1.0)];
    check("mean squared error", &two, &[], |tape, x, _| mean_squared_error(tape, &x[0], &x[1]));
    check("sequence cross-entropy", &[(&[9], 2.0)], &[], |tape, x, _| {
        let sequences = Sequences::new(tape, &[0, 4, 5, 9])?;
        let labels = tape.input([3], &[3u32, 0, 1])?;
        Ok(sequence_cross_entropy(tape, &x[0], &sequences, &labels, 2.0)?.loss)
    });
    check("softmax", &[(&[3, 7], 2.0)], &[], |tape, x, _| softmax(tape, &x[0]));
    check("cross-entropy", &[(&[4, 5], 2.0)], &[], |tape, x, _| {
        let labels = tape.input([4], &[0u32, 4, 2, 2])?;
        Ok(cross_entropy(tape, &x[0], &labels, 3.0)?.loss)
    });
    // More rows than a chunk has.
    let rows = 67;
    let params = [weight(1, &[9, 3]), weight(2, &[9])];
    check("projected cross-entropy", &[(&[rows, 3], 1.0)], &params, |tape, x, p| {
        let labels: Vec<u32> = (0..rows as u32).map(|i| i * i % 9).collect();
        let labels = tape.input([rows], &labels)?;
        Ok(projected_cross_entropy(tape, &x[0], p[0], p[1], &labels, 5.0)?.loss)
    });
}

#[test]
fn operations_with_parameters_agree_with_differences() {
    let params = [weight(1, &[4, 3]), weight(2, &[4])];
    check("linear", &[(&[2, 5, 3], 1.0)], &params, |tape, x, p| linear(tape, &x[0], p[0], Some(p[1])));
    check("linear", &[(&[5, 3], 1.0)], &params[..1], |tape, x, p| linear(tape, &x[0], p[0], None));
    let norm = |p: &[ParamId]| LayerNorm { gain: p[0], bias: p[1], eps: 1e-12 };
    let params = [weight(3, &[6]), weight(4, &[6])];
    check("layer norm", &[(&[4, 6], 2.0)], &params, |tape, x, p| layer_norm(tape, &x[0], norm(p)));
    let two = [(&[4, 6][..], 1.0), (&[4, 6][..], 1.0)];
    check("layer norm, residual", &two, &params, |tape, x, p| layer_norm_residual(tape, &x[0], &x[1], norm(p)));
    let tables = [weight(5, &[7, 3]), weight(6, &[2, 3])];
    check("embedding sum", &[], &tables, |tape, _, p| {
        let words = tape.input([2, 3], &[1u32, 6, 1, 0, 1, 2])?;
        let segments = tape.input([2, 3], &[0u32, 0, 1, 1, 1, 0])?;
        embedding_sum(tape, &[(&words, p[0]), (&segments, p[1])], DType::F32)
    });
    check("gather rows", &[(&[5, 2, 2], 1.0)], &[], |tape, x, _| {
        let rows = tape.input([4], &[3u32, 0, 3, 4])?;
        gather_rows(tape, &x[0], &rows)
    });
    check("parameter as a value", &[(&[3, 4], 1.0)], &[weight(7, &[4])], |tape, x, p| {
        let row = tape.param(p[0])?;
        mul(tape, &add(tape, &x[0], &row)?, &row)
    });
}

#[test]
fn attention_agrees_with_differences() {
    for (heads, head_size) in [(3, 1), (2, 5), (1, 16)] {
        for rate in [0.0, 0.25] {
            let dropout = (rate > 0.0).then_some(Dropout { seed: 3, site: 4, rate });
            let spec = Attention { dropout, ..Attention::new(heads, head_size) };
            // All tokens keys, or the last ones of a sequence hidden: they attend and get gradients as queries alone.
            for keys in [None, Some([2, 1, 3])] {
                let name = format!("attention, {heads} heads of {head_size}, dropout {rate}, keys {keys:?}");
                check(&name, &[(&[9, 3 * heads * head_size], 1.0)], &[], |tape, x, _| {
                    let sequences = match keys {
                        None => Sequences::new(tape, &[0, 3, 3, 4, 9])?,
                        Some(keys) => Sequences::with_keys(tape, &[0, 3, 4, 9], &keys)?,
                    };
                    attention(tape, &x[0], &sequences, &spec)
                });
            }
        }
    }
}

#[test]
fn dropout_agrees_with_differences_and_without_a_rate_copies_nothing() {
    let some = Some(Dropout { seed: 5, site: 2, rate: 0.25 });
    check("dropout", &[(&[4, 9], 1.0)], &[], |tape, x, _| dropout(tape, &x[0], some));
    let (mut workspace, params, ..) = steps();
    let tape = workspace.infer(&params, None);
    let x = tape.input([2, 3], &[1f32; 6]).unwrap();
    let same = dropout(&tape, &x, None).unwrap();
    assert!(same.value().slice::<f32>().as_ptr() == x.value().slice::<f32>().as_ptr(), "no copy without dropout");
}

#[test]
fn a_value_used_twice_gets_both_gradients() {
    check("x·x + x", &[(&[3, 4], 1.0)], &[], |tape, x, _| add(tape, &mul(tape, &x[0], &x[0])?, &x[0]));
    check("views of one value", &[(&[4, 3], 1.0)], &[], |tape, x, _| {
        let half = slice(tape, &x[0], 0, 1..3)?;
        let flat = reshape(tape, &x[0], [12])?;
        concat(tape, &[&reshape(tape, &half, [6])?, &flat, &flat], 0)
    });
}

fn steps() -> (Workspace, ParamStore, Gradients, ParamId, ParamId) {
    let workspace = gradient_check::workspace(Isa::choose().unwrap(), 1);
    let all = [("ffn.weight", &[4, 3][..], Init::Uniform(1.0)), ("ffn.bias", &[4], Init::Zeros)];
    let (params, [w, b]) = parameters(0, all);
    let gradients = params.gradients(workspace.device()).unwrap();
    (workspace, params, gradients, w, b)
}

#[test]
fn gradients_are_never_cut_and_a_tape_refuses_misuse() {
    let (mut workspace, params, mut gradients, ..) = steps();
    let old = {
        let tape = workspace.train(&params, None);
        let x = tape.leaf(Tensor::from_slice([2, 2], &[1f32, 2., 3., 4.]).unwrap()).unwrap();
        let y = Tensor::from_slice([2], &[1u32, 1]).unwrap();
        let expected = "argmax has no backward pass, but input 0 (shape [2, 2]) requires a gradient";
        refused(tape.record_forward_only("argmax", &[&x], y.clone()), expected);
        assert!(tape.record_forward_only("argmax", &[&tape.detach(&x)], y).is_ok());
        let loss = sum(&tape, &tape.detach(&x)).unwrap();
        refused(tape.backward(&loss, &mut gradients), "nothing that the value depends on requires a gradient");
        x
    };
    let tape = workspace.train(&params, None);
    let x = tape.leaf(Tensor::from_slice([2], &[1f32, 2.]).unwrap()).unwrap();
    refused(add(&tape, &x, &old), "a value of shape [2, 2] belongs to another step");
    let expected = "a loss is a single number, and this has shape [2]; take its mean or sum";
    refused(tape.backward(&x, &mut gradients), expected);
    let loss = sum(&tape, &x).unwrap();
    tape.backward(&loss, &mut gradients).unwrap();
    assert_eq!(gradients.batches(), 1);
    refused(tape.backward(&loss, &mut gradients), "a tape is used up by its first backward pass");
    refused(tape.item(&x), "item: one element was expected, the shape is [2]");
    refused(tape.leaf(Tensor::from_slice([1], &[1u32]).unwrap()), "cannot have a gradient; use constant");
}

#[test]
fn errors_name_the_operation_and_the_shapes() {
    let (mut workspace, params, _, w, b) = steps();
    let t = &workspace.infer(&params, None);
    let float = |shape: &[usize]| t.input(shape, &vec![0.5f32; shape.iter().product()]).unwrap();
    let ids = |values: &[u32]| t.input([values.len()], values).unwrap();
    let bf16 = t.input([2], &[half::bf16::ONE; 2]).unwrap();
    let [x, y, row] = [[2, 3], [3, 2], [1, 3]].map(|shape| float(&shape));
    let [two, three] = [2, 3].map(|size| float(&[size]));
    let norm = LayerNorm { gain: b, bias: b, eps: 1e-12 };
    let none = Transpose::NONE;
    let loss = |classified: CrossEntropyOutput| classified.loss;
    let dropped = Some(Dropout { seed: 0, site: 0, rate: 1.0 });
    let sequences = Sequences::new(t, &[0, 2, 3]).unwrap();
    let cases: Vec<(Result<Var>, &str)> = vec![
        (
            matmul(t, &x, &float(&[4, 5]), none),
            "matmul: [2, 3] and [4, 5] do not fit: [.., m, k] and [.., k, n] were expected",
        ),
        (matmul(t, &x, &three, none), "matmul: [2, 3] and [3] do not fit"),
        (add(t, &x, &two), "add: [2, 3] and [2] do not fit: aligned at the last dimension, sizes are equal or 1"),
        (add(t, &two, &bf16), "add: all inputs must have one type, [2] is f32, [2] is bf16"),
        (exp(t, &ids(&[1])), "exp: f32 or bf16 was expected, [1] is u32"),
        (reshape(t, &x, [4]), "reshape: [2, 3] has 6 elements, [4] has 4"),
        (transpose(t, &x, 0, 2), "transpose: axis 2 of [2, 3], which has 2"),
        (slice(t, &x, 1, 2..4), "slice: 2..4 of dimension 1 of [2, 3]"),
        (concat(t, &[], 0), "concat: at least one tensor was expected"),
        (concat(t, &[&x, &y], 0), "concat: [2, 3] (f32) and [3, 2] (f32) cannot be joined along dimension 0"),
        (mean(t, &float(&[0, 3])), "mean: [0, 3] has no elements"),
        (mean_squared_error(t, &two, &three), "mean_squared_error: the target is [3], but [2] was expected"),
        (softmax(t, &float(&[])), "softmax: a single number has no rows"),
        (
            linear(t, &float(&[2, 4]), w, Some(b)),
            "linear ffn.weight: x is [2, 4] but the weight is [4, 3]; the last size of x must be 3",
        ),
        (linear(t, &x, b, None), "parameter ffn.bias: linear needs shape [out, in], and it is [4]"),
        (
            layer_norm(t, &x, norm),
            "parameter ffn.bias: layer_norm: x is [2, 3], so [3] was expected here, and it is [4]",
        ),
        (embedding(t, &ids(&[0, 4]), w), "embedding ffn.weight: ids[1] is 4, but there are only 4 rows"),
        (embedding(t, &two, w), "embedding ffn.weight: ids [2] must be u32, it is f32"),
        (embedding(t, &ids(&[0]), b), "parameter ffn.bias: embedding needs shape [rows, width], and it is [4]"),
        (gather_rows(t, &x, &ids(&[2])), "gather_rows: rows[0] is 2, but there are only 2 rows"),
        (dropout(t, &two, dropped), "dropout: a dropout rate lies in [0, 1), and this is 1"),
        (cross_entropy(t, &x, &ids(&[0]), 1.0).map(loss), "cross_entropy: labels is [1], but [2] was expected"),
        (
            sequence_cross_entropy(t, &three, &sequences, &ids(&[0, 1]), 1.0).map(loss),
            "sequence_cross_entropy: labels[1] is 1, but sequence 1 has 1 tokens",
        ),
        (cross_entropy(t, &row, &ids(&[3]), 1.0).map(loss), "cross_entropy: labels[0] is 3, but there are only 3 rows"),
        (
            cross_entropy(t, &row, &ids(&[0]), 0.0).map(loss),
            "cross_entropy: the denominator must be a positive number, it is 0",
        ),
        (
            projected_cross_entropy(t, &float(&[1, 2]), w, b, &ids(&[0]), 1.0).map(loss),
            "projected_cross_entropy ffn.weight: x is [1, 2] but the weight is [4, 3]",
        ),
        (t.input([3], &[1f32]), "input: 1 elements for shape [3]"),
    ];
    for (result, expected) in cases {
        refused(result, expected);
    }
}

#[test]
fn empty_and_single_rows_go_through() {
    let (mut workspace, params, mut gradients, w, b) = steps();
    for rows in [0, 1] {
        let tape = workspace.train(&params, None);
        let x = tape.leaf(Tensor::from_slice([rows, 3], &vec![0.5f32; rows * 3]).unwrap()).unwrap();
        let y = linear(&tape, &x, w, Some(b)).unwrap();
        let y = softmax(&tape, &tanh(&tape, &y).unwrap()).unwrap();
        let labels = tape.input([rows], &vec![1u32; rows]).unwrap();
        let a = cross_entropy(&tape, &y, &labels, 1.0).unwrap().loss;
        let h = gather_rows(&tape, &x, &labels.clone()).err();
        assert_eq!(h.is_some(), rows == 1, "row 1 of {rows}");
        let p = projected_cross_entropy(&tape, &x, w, b, &labels, 1.0).unwrap().loss;
        let loss = add(&tape, &a, &p).unwrap();
        assert!(tape.item(&loss).unwrap().is_finite());
        tape.backward(&loss, &mut gradients).unwrap();
        assert!(gradients.all().iter().all(|g| g.is_finite()), "{rows} rows");
    }
}
