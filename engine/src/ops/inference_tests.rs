//! A layer where nothing is kept: the same bits as with gradients in f32, and as near as 8 bits allow in integers.
use super::{
    gradient_check::{store, values, workspace},
    layer_tests::{H, OFFSETS, T, layer, parameters},
    *,
};
use crate::{
    Device, ParamId, ParamStore, Precision, Tape, Workspace,
    device::{Gpu, simulated::SimulatedDriver},
};
use kernels::{Cpu, Isa};

/// The layer's output; `train` records it.
fn output(workspace: &mut Workspace, store: &ParamStore, p: &[ParamId], train: bool, x: &[f32]) -> Vec<f32> {
    let tape: Tape<'_> = if train { workspace.train(store, None) } else { workspace.infer(store, None) };
    let x = tape.input([T, H], x).unwrap();
    let sequences = Sequences::new(&tape, &OFFSETS).unwrap();
    let layer = layer(p, Activation::GeluTanh, 0.0, Recompute::None);
    encoder_layer(&tape, &x, &sequences, &layer).unwrap().value().to_vec().unwrap()
}

#[test]
fn inference_gives_the_bits_of_training() {
    for isa in Isa::real() {
        let mut workspace = workspace(isa, 2);
        let (store, p) = store(workspace.device().processor(), &parameters());
        let x = values(1, T * H, 1.0);
        let [train, infer] = [true, false].map(|train| output(&mut workspace, &store, &p, train, &x));
        assert_eq!(train, infer, "{}", isa.kind());
    }
}

#[test]
fn eight_bits_are_near_f32_and_leave_training_alone() {
    for isa in Isa::real() {
        let mut workspace = workspace(isa, 1);
        let (mut store, p) = store(workspace.device().processor(), &parameters());
        let x = values(1, T * H, 1.0);
        let single = output(&mut workspace, &store, &p, false, &x);
        workspace.set_precision(Precision::Int8).unwrap();
        let eight = output(&mut workspace, &store, &p, false, &x);
        let error = deviation(&eight, &single);
        // Rows of 6 numbers: each step of 1/255 or 1/127 shows.
        assert!((1e-4..0.05).contains(&error), "{}: {error}", isa.kind());
        assert!(store.quantized_bytes() > 0);
        assert_eq!(output(&mut workspace, &store, &p, true, &x), single, "training is in f32");
        // Changed weights are quantized again.
        store.values_mut(p[12]).unwrap().iter_mut().for_each(|w| *w = -*w);
        workspace.set_precision(Precision::F32).unwrap();
        let single = output(&mut workspace, &store, &p, false, &x);
        workspace.set_precision(Precision::Int8).unwrap();
        let again = output(&mut workspace, &store, &p, false, &x);
        assert!(deviation(&again, &single) < 0.05, "{}: stale weights", isa.kind());
        assert!(deviation(&again, &eight) > 0.1, "the change shows");
    }
}

/// ‖a - b‖ / ‖b‖
fn deviation(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = &mut a.iter().zip(b).map(|(a, b)| f64::from(a - b));
    norm(difference) / norm(&mut b.iter().map(|&b| f64::from(b)))
}

#[test]
fn split_products_are_near_f32_with_and_without_gradients() {
    for isa in Isa::real() {
        let mut workspace = workspace(isa, 1);
        let (store, p) = store(workspace.device().processor(), &parameters());
        let x = values(1, T * H, 1.0);
        let single = output(&mut workspace, &store, &p, true, &x);
        for (precision, most) in [(Precision::Bf16x3, 5e-5), (Precision::Bf16x6, 1e-6)] {
            workspace.set_precision(precision).unwrap();
            let [train, infer] = [true, false].map(|train| output(&mut workspace, &store, &p, train, &x));
            assert_eq!(train, infer, "{} {precision}", isa.kind());
            let error = deviation(&train, &single);
            assert!(error > 0.0 && error < most, "{} {precision}: {error:e}", isa.kind());
        }
        workspace.set_precision(Precision::F32).unwrap();
        assert_eq!(output(&mut workspace, &store, &p, true, &x), single, "{}: panels of each precision", isa.kind());
    }
}

#[test]
fn a_gpu_refuses_what_only_the_cpu_has_in_one_sentence() {
    let cpu = Cpu::new(Isa::choose().unwrap(), 1).unwrap();
    let gpu = Gpu::new(SimulatedDriver::new((8, 0)), cpu).unwrap();
    let mut workspace = Workspace::new(Device::Cuda(gpu));
    for precision in [Precision::Bf16x3, Precision::Bf16x6, Precision::Int8] {
        let error = workspace.set_precision(precision).unwrap_err().to_string();
        let wanted = format!("precision = {precision}: only the CPU has it; choose the CPU, or f32 or bf16");
        assert_eq!(error, wanted);
    }
    workspace.set_precision(Precision::Bf16).unwrap();
}
