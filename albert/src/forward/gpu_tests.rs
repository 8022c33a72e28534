//! A model on the simulated GPU: the same tensors, loss and gradients as on the CPU.

use engine::{Cpu, Device, Isa};

use super::*;
use crate::checkpoint::save_model;
use crate::config::AlbertConfig;
use crate::config::tests::small;

fn cpu() -> Cpu {
    Cpu::new(Isa::choose().unwrap(), 1).unwrap()
}

/// A folder with a pre-training model of random weights.
fn folder() -> tempfile::TempDir {
    let config = AlbertConfig { initializer_range: 0.2, ..small(24, [16, 32, 32], [2, 2], 16) };
    let (model, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu(), 3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    save_model(folder.path(), model.config(), model.heads(), &[], |name| params.values(params.find(name).unwrap()))
        .unwrap();
    folder
}

#[test]
fn gradients_on_a_gpu_are_those_of_the_processor() {
    let folder = folder();
    let selection = OutputSelection { layers: true, loss: true, gradients: true, ..OutputSelection::default() };
    let line = r#"{"input_ids": [2, 7, 11, 3, 9], "labels": [-100, 4, -100, 5, -100], "sentence_order_label": 1}"#;
    let run = |device: Device| {
        let mut forward = Forward::load(folder.path(), device).unwrap();
        let example = Example::from_json(line, forward.model().config()).unwrap();
        // Run twice: gradients are summed over examples.
        forward.run(&example, selection).unwrap();
        let mut all = forward.run(&example, selection).unwrap();
        all.extend(forward.gradients().unwrap());
        all
    };
    let (cpu, gpu) = (run(Device::Cpu(cpu())), run(Device::named("cuda-sim", self::cpu()).unwrap()));
    assert_eq!(cpu.len(), gpu.len());
    let most = |values: &[f32]| values.iter().fold(0f32, |most, x| most.max(x.abs()));
    let all_gradients = cpu.iter().filter(|named| named.name.starts_with("grad."));
    let greatest = all_gradients.fold(0f32, |greatest, named| greatest.max(most(&named.values)));
    let mut gradients = 0;
    for (cpu, gpu) in cpu.iter().zip(&gpu) {
        assert_eq!((&cpu.name, &cpu.shape), (&gpu.name, &gpu.shape));
        // A constant added to all scores does not change a softmax: the gradient of a key's bias is zero except for rounding.
        let scale = if cpu.name.ends_with("key.bias") { greatest } else { most(&cpu.values) };
        let off = cpu.values.iter().zip(&gpu.values).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        // The order of sums differs; the bound is the one used by the engine's comparison of layers.
        assert!(off <= 0.5f32.powi(18) * scale, "{}: off by {off:e} of {scale:e}", cpu.name);
        gradients += usize::from(cpu.name.starts_with("grad.") && scale > 0.0);
    }
    assert!(gradients > 10, "{gradients} tensors have a gradient");
}
