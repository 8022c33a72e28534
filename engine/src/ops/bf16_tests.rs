//! bf16 against f32.
//!
//! A bf16 number has 8 significant bits, so storing x gives x·(1 + δ) with |δ| ≤ u = 2⁻⁸. Inputs and output gradients are
//! multiples of 1/256 up to 1, exact in both, and so are their sums. What differs is what is rounded between:
//!
//! ```text
//! one store           |y₁₆ - y₃₂| ≤ u·|y₃₂| for every element; gradients of parameters, f32 sums of the same
//!                     numbers, have the same bits
//! projected loss      dz is rounded before it is multiplied: errors of 2u of the greatest gradient
//! layer               n stores one after another, each of relative size u at most and, with LayerNorm after each half,
//!                     none much larger in the result than where it was made: ‖y₁₆ - y₃₂‖ ≤ n·u·‖y₃₂‖
//! ```
//!
//! A layer stores at least eight tensors forward (qkv, ctx, s₁, y, pre, f, s₂, x') and nine backward (ds₂, its masked copy,
//! dpre, dy, ds₁, its masked copy, dctx, dqkv, dx). Independent errors add up to about √n·u/2, so n·u leaves room for gains.
use super::{gradient_check::*, layer_tests::NAMES, tests::weight, *};
use crate::shared_tests::*;

const U: f64 = 1.0 / 256.0;

/// Output, gradients of the inputs, gradients of the parameters, as f32.
#[derive(PartialEq)]
struct Run {
    y: Vec<f32>,
    dx: Vec<Vec<f32>>,
    dp: Vec<Vec<f32>>,
}

type Inputs<'a> = [(&'a [usize], f32)];

fn run(
    isa: Isa,
    threads: usize,
    dtype: DType,
    inputs: &Inputs<'_>,
    params: &[Weight],
    function: &impl Function,
) -> Run {
    let (store, ids) = store(&kernels::Cpu::new(isa, 1).unwrap(), params);
    let inputs = self::inputs(inputs);
    let is_exact = |x: &f32| bf16::from_f32(*x).to_f32() == *x;
    assert!(inputs.iter().all(|(_, values)| values.iter().all(is_exact)), "an input is not exact in bf16");
    let w = |count| values(0x7765, count, 1.0);
    let (y, dx, gradients) = differentiate(&mut workspace(isa, threads), dtype, &inputs, (&store, &ids), w, function);
    Run { y, dx, dp: ids.iter().map(|&id| gradients.get(id).to_vec()).collect() }
}

/// Both runs, after it is seen that two threads do not change the narrow one.
fn pair(name: &str, isa: Isa, inputs: &Inputs<'_>, params: &[Weight], function: &impl Function) -> [Run; 2] {
    let [wide, narrow] = [DType::F32, DType::Bf16].map(|dtype| run(isa, 1, dtype, inputs, params, function));
    let two = run(isa, 2, DType::Bf16, inputs, params, function);
    assert!(narrow == two, "{name} on {}: two threads differ from one", isa.kind());
    [wide, narrow]
}

#[track_caller]
fn within(place: &str, wide: &[f32], narrow: &[f32], extra: impl Fn(usize) -> f64) {
    assert_eq!(wide.len(), narrow.len(), "{place}");
    for (i, (&a, &b)) in wide.iter().zip(narrow).enumerate() {
        let (error, bound) = ((f64::from(a) - f64::from(b)).abs(), U * f64::from(a.abs()) + extra(i));
        assert!(error <= bound, "{place}, element {i}: {a} in f32, {b} in bf16, error {error:.2e} over {bound:.2e}");
    }
}

/// `units` is 0 for operations that store each result once. Those that round what they multiply may be off by so many units of
/// the greatest gradient more.
fn check(name: &str, units: f64, inputs: &Inputs<'_>, params: &[Weight], function: impl Function) {
    let extra = |wide: &[f32]| units * U * wide.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
    for isa in Isa::real() {
        let [wide, narrow] = pair(name, isa, inputs, params, &function);
        let place = |what: &str| format!("{name} on {}: {what}", isa.kind());
        within(&place("output"), &wide.y, &narrow.y, |_| 0.0);
        for (i, (wide, narrow)) in wide.dx.iter().zip(&narrow.dx).enumerate() {
            within(&place(&format!("gradient of input {i}")), wide, narrow, |_| extra(wide));
        }
        assert!(wide.dx != narrow.dx, "{}", place("nothing was rounded"));
        for (i, (wide, narrow)) in wide.dp.iter().zip(&narrow.dp).enumerate() {
            let place = place(&format!("parameter {i}"));
            if units > 0.0 {
                within(&place, wide, narrow, |_| extra(wide));
            } else {
                assert!(wide == narrow, "{place}: {wide:?} in f32, {narrow:?} in bf16");
            }
        }
    }
}

#[test]
fn operations_that_store_once_err_by_half_a_unit() {
    let (t, h, n) = (37, 29, 41);
    let x = [(&[t, h][..], 1.0)];
    let params = [weight(1, &[n, h]), weight(2, &[n])];
    check("linear", 0.0, &x, &params, |tape, x, p| linear(tape, &x[0], p[0], Some(p[1])));
    check("linear without bias", 0.0, &x, &params[..1], |tape, x, p| linear(tape, &x[0], p[0], None));
    for kind in Activation::ALL.into_iter().filter(|&kind| kind != Activation::Relu) {
        check(kind.name(), 0.0, &x, &[], |tape, x, _| activation(tape, &x[0], kind));
    }
    let mask = Some(Dropout { seed: 5, site: 2, rate: 0.1 });
    check("dropout", 0.0, &x, &[], |tape, x, _| dropout(tape, &x[0], mask));
    let params = [weight(3, &[h]), weight(4, &[h])];
    let norm = |p: &[ParamId]| LayerNorm { gain: p[0], bias: p[1], eps: 1e-12 };
    check("layer norm", 0.0, &x, &params, |tape, x, p| layer_norm(tape, &x[0], norm(p)));
    // Halves, whose sum is exact.
    let two = [(&[t, h][..], 0.5), (&[t, h][..], 0.5)];
    check("layer norm, residual", 0.0, &two, &params, |tape, x, p| layer_norm_residual(tape, &x[0], &x[1], norm(p)));
    let params = [weight(5, &[n, h]), weight(6, &[n])];
    check("projected cross-entropy", 2.0, &x, &params, |tape, x, p| {
        let labels: Vec<u32> = (0..t as u32).map(|i| i * i % n as u32).collect();
        let labels = tape.input([t], &labels)?;
        Ok(projected_cross_entropy(tape, &x[0], p[0], p[1], &labels, 1.0)?.loss)
    });
}

#[test]
fn layers_err_by_their_stores_and_recompute_the_same_bits() {
    let norm = |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let params = layer_tests::parameters();
    let inputs = [(&[layer_tests::T, layer_tests::H][..], 1.0)];
    for isa in Isa::real() {
        for kind in [Activation::GeluTanh, Activation::GeluErf] {
            for rate in [0.0, 0.25] {
                let mut first: Option<Run> = None;
                for recompute in [Recompute::None, Recompute::Cheap, Recompute::Layer] {
                    let name = format!("layer, {kind:?}, dropout {rate}, {recompute:?} on {}", isa.kind());
                    let function = |tape: &Tape<'_>, x: &[Var], p: &[ParamId]| {
                        layer_tests::fused(tape, &x[0], p, (kind, rate, recompute))
                    };
                    let [wide, narrow] = pair(&name, isa, &inputs, &params, &function);
                    let parts = |run: &Run| [std::slice::from_ref(&run.y), &run.dx, &run.dp].concat();
                    let (exact, rounded) = (parts(&wide), parts(&narrow));
                    for (i, (wide, narrow)) in exact.iter().zip(&rounded).enumerate() {
                        let difference: Vec<f32> = wide.iter().zip(narrow).map(|(a, b)| a - b).collect();
                        // The key bias has no gradient but rounding, of the size of the query bias's.
                        let scale = norm(if NAMES[i] == "dbk" { &exact[i - 1] } else { wide });
                        let stores = if i == 0 { 8.0 } else { 17.0 };
                        let (error, bound) = (norm(&difference), stores * U * scale);
                        assert!(error <= bound, "{name}, {}: error {error:.2e} over {bound:.2e}", NAMES[i]);
                    }
                    assert!(wide.y != narrow.y, "{name}: nothing was rounded");
                    match &first {
                        None => first = Some(narrow),
                        Some(first) => assert!(*first == narrow, "{name}: other bits than with everything kept"),
                    }
                }
            }
        }
    }
}
