//! A layer where nothing is kept: the same bits as with gradients in f32, and as near as 8 bits allow in integers.
use super::layer_tests::{H, OFFSETS, T, layer, parameters};
use super::{gradient_check::*, *};
use crate::{Precision, shared_tests::*};

/// Precision of products; true if they are recorded for training.
type Mode = (Precision, bool);

/// The layer's output.
fn output(workspace: &mut Workspace, store: &ParamStore, p: &[ParamId], (precision, train): Mode) -> Vec<f32> {
    workspace.set_precision(precision).unwrap();
    let tape: Tape<'_> = if train { workspace.train(store, None) } else { workspace.infer(store, None) };
    let x = tape.input([T, H], &values(1, T * H, 1.0)).unwrap();
    let sequences = Sequences::new(&tape, &OFFSETS).unwrap();
    let layer = layer(p, Activation::GeluTanh, 0.0, Recompute::None);
    encoder_layer(&tape, &x, &sequences, &layer).unwrap().value().to_vec().unwrap()
}

#[test]
fn eight_bits_are_near_f32_and_leave_training_alone() {
    for isa in Isa::real() {
        let mut workspace = workspace(isa, 1);
        let (mut store, p) = store(workspace.device().processor(), &parameters());
        let (f32s, int8) = ((Precision::F32, false), (Precision::Int8, false));
        let single = output(&mut workspace, &store, &p, f32s);
        let eight = output(&mut workspace, &store, &p, int8);
        let error = deviation(&eight, &single);
        // Rows of 6 numbers: each step of 1/255 or 1/127 shows.
        assert!((1e-4..0.05).contains(&error), "{}: {error}", isa.kind());
        assert!(store.quantized_bytes() > 0);
        assert_eq!(output(&mut workspace, &store, &p, (Precision::Int8, true)), single, "training is in f32");
        // Changed weights are quantized again.
        store.values_mut(p[12]).unwrap().iter_mut().for_each(|w| *w = -*w);
        let [single, again] = [f32s, int8].map(|mode| output(&mut workspace, &store, &p, mode));
        assert!(deviation(&again, &single) < 0.05, "{}: stale weights", isa.kind());
        assert!(deviation(&again, &eight) > 0.1, "the change shows");
    }
}

#[test]
fn rounded_weights_are_those_of_f32_rounded_before_and_leave_training_alone() {
    for isa in Isa::real() {
        let mut workspace = workspace(isa, 2);
        let (mut store, p) = store(workspace.device().processor(), &parameters());
        // Multiples of 1/256 are bf16 already.
        store.all_values_mut().unwrap().iter_mut().for_each(|w| *w *= 1.1);
        let weights = |train: bool| (Precision::Bf16Weights, train);
        let single = output(&mut workspace, &store, &p, (Precision::F32, false));
        let rounded = output(&mut workspace, &store, &p, weights(false));
        assert_ne!(rounded, single, "{}", isa.kind());
        assert_eq!(output(&mut workspace, &store, &p, weights(true)), single, "training is in f32");
        for &matrix in p.iter().filter(|&&id| store.shape(id).len() == 2).collect::<Vec<_>>() {
            store.values_mut(matrix).unwrap().iter_mut().for_each(|w| *w = half::bf16::from_f32(*w).to_f32());
        }
        for mode in [(Precision::F32, false), weights(false)] {
            assert_eq!(output(&mut workspace, &store, &p, mode), rounded, "{} {}", isa.kind(), mode.0);
        }
    }
}

/// ‖a - b‖ / ‖b‖
fn deviation(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = &mut a.iter().zip(b).map(|(a, b)| f64::from(a - b));
    norm(difference) / norm(&mut b.iter().map(|&b| f64::from(b)))
}

#[test]
fn inference_gives_the_bits_of_training_and_split_products_are_near_f32() {
    for isa in Isa::real() {
        let mut workspace = workspace(isa, 2);
        let (store, p) = store(workspace.device().processor(), &parameters());
        let single = output(&mut workspace, &store, &p, (Precision::F32, true));
        // The last: panels of each precision.
        for (precision, most) in
            [(Precision::F32, 0.0), (Precision::Bf16x3, 5e-5), (Precision::Bf16x6, 1e-6), (Precision::F32, 0.0)]
        {
            let [train, infer] = [true, false].map(|train| output(&mut workspace, &store, &p, (precision, train)));
            assert_eq!(train, infer, "{} {precision}", isa.kind());
            let error = deviation(&train, &single);
            let is_near = if most > 0.0 { error > 0.0 && error < most } else { train == single };
            assert!(is_near, "{} {precision}: {error:e}", isa.kind());
        }
    }
}

#[test]
fn a_gpu_refuses_what_only_the_cpu_has_in_one_sentence() {
    let mut workspace = Workspace::new(Device::Cuda(gpu((8, 0))));
    for precision in [Precision::Bf16x3, Precision::Bf16x6, Precision::Int8, Precision::Bf16Weights] {
        let expected = format!("precision = {precision}: only the CPU has it; choose the CPU, or f32 or bf16");
        assert_eq!(workspace.set_precision(precision).unwrap_err().to_string(), expected);
    }
    workspace.set_precision(Precision::Bf16).unwrap();
}
