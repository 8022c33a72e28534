//! A layer where nothing is kept: the same bits as with gradients in f32, and as near as 8 bits allow in integers.
use super::{
    gradient_check::{store, values, workspace},
    layer_tests::{H, OFFSETS, T, layer, parameters},
    *,
};
use crate::{
    Device, ParamId, ParamStore, Tape, Workspace,
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
        workspace.set_int8(true).unwrap();
        let eight = output(&mut workspace, &store, &p, false, &x);
        let error = deviation(&eight, &single);
        // Rows of 6 numbers: each step of 1/255 or 1/127 shows.
        assert!((1e-4..0.05).contains(&error), "{}: {error}", isa.kind());
        assert!(store.quantized_bytes() > 0);
        assert_eq!(output(&mut workspace, &store, &p, true, &x), single, "training is in f32");
        // Changed weights are quantized again.
        store.values_mut(p[12]).unwrap().iter_mut().for_each(|w| *w = -*w);
        workspace.set_int8(false).unwrap();
        let single = output(&mut workspace, &store, &p, false, &x);
        workspace.set_int8(true).unwrap();
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
fn a_gpu_refuses_eight_bits_in_one_sentence() {
    let cpu = Cpu::new(Isa::choose().unwrap(), 1).unwrap();
    let gpu = Gpu::new(SimulatedDriver::new((8, 0)), cpu).unwrap();
    let error = Workspace::new(Device::Cuda(gpu)).set_int8(true).unwrap_err().to_string();
    assert!(error.contains("8-bit products run on the CPU alone"), "{error}");
}
