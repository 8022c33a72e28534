//! Values on the simulated GPU and on the processor: which are the newest, and what a failed change leaves.
use crate::optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions};
use crate::{EngineError, ops, shared_tests::*};

fn given() -> (Gpu, ParamStore, ParamId) {
    let (store, [_, id]) = parameters(0, [("other", &[3], Init::Ones), ("w", &[2, 4], Init::Ones)]);
    (gpu((8, 0)), store, id)
}

fn double(params: &mut ParamStore, gpu: &Gpu) {
    let twice: Vec<f32> = params.on_gpu(gpu).unwrap().to_vec().unwrap().iter().map(|x| 2.0 * x).collect();
    params.change_on_gpu(gpu, |values, _| values.copy_from(&twice)).unwrap();
}

#[test]
fn tensors_of_a_parameter_are_never_stale() {
    let (gpu, mut params, id) = given();
    double(&mut params, &gpu);
    refused(params.tensor(id), "parameter w: the GPU has newer values; download them first");
    let stale = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| params.values(id)[0]));
    assert!(stale.is_err(), "values that the GPU has overtaken were read");
    let device = Device::Cuda(gpu.clone());
    assert_eq!(params.tensor_on(&device, id).unwrap().to_vec().unwrap(), [2.0; 8]);
    // As a value of a step it is on the device of the step.
    let mut workspace = Workspace::new(device.clone());
    let mut gradients = params.gradients(&device).unwrap();
    {
        let tape = workspace.train(&params, None);
        let w = tape.param(id).unwrap();
        assert!(w.value().gpu().is_some());
        assert_eq!(w.value().to_vec().unwrap(), [2.0; 8]);
        let loss = ops::sum(&tape, &ops::mul(&tape, &w, &w).unwrap()).unwrap();
        tape.backward(&loss, &mut gradients).unwrap();
    }
    let flat = gradients.elements().unwrap();
    assert_eq!((&flat[..3], &flat[gradients.range(id)]), (&[0.0; 3][..], &[4.0; 8][..]));
    gradients.clear().unwrap();
    assert_eq!(gradients.tensor().to_vec().unwrap(), [0.0; 11]);
    let mut workspace = Workspace::new(Device::Cpu(cpu(1)));
    refused(workspace.infer(&params, None).param(id), "download them first");
    params.download().unwrap();
    assert_eq!(params.tensor(id).unwrap().to_vec().unwrap(), [2.0; 8]);
    params.values_mut(id).unwrap()[1] = 9.0;
    assert_eq!(params.on_gpu(&gpu).unwrap().to_vec().unwrap()[3..6], [2.0, 9.0, 2.0]);
}

#[test]
fn a_change_that_fails_leaves_version_and_values() {
    let (gpu, mut params, id) = given();
    let before = params.version();
    let refused = params.change_on_gpu(&gpu, |values, _| {
        values.copy_from(&[9.0f32; 11])?;
        Err(EngineError::Device("broken".into()))
    });
    assert!(refused.is_err());
    assert_eq!(params.version(), before);
    assert_eq!(params.values(id), [1.0; 8], "the processor's are the newest");
    assert_eq!(params.on_gpu(&gpu).unwrap().to_vec().unwrap(), [1.0; 11], "what is half changed is replaced");
    double(&mut params, &gpu);
    let before = params.version();
    assert!(params.change_on_gpu(&gpu, |_, _| Err(EngineError::Device("broken".into()))).is_err());
    assert_eq!(params.version(), before);
    params.download().unwrap();
    assert_eq!(params.values(id), [2.0; 8]);
}

#[test]
fn a_step_that_is_refused_is_not_counted() {
    for rule in [OptimizerKind::Lamb, OptimizerKind::AdamW] {
        let (gpu, mut params, id) = given();
        let device = Device::Cuda(gpu.clone());
        let mut gradients = params.gradients(&device).unwrap();
        gradients.flat.copy_from(&[0.5f32; 11]).unwrap();
        let plain = |_: &crate::param::ParamInfo| ParamOptions { weight_decay: false, trust_ratio: false };
        let optimizer = Optimizer::new(&params, rule, AdamConfig::default(), plain).unwrap();
        let mut optimizer = optimizer.on(&device).unwrap();
        let (held, version) = (params.on_gpu(&gpu).unwrap(), params.version());
        refused(optimizer.step(&mut params, &gradients, 0.1), "still refers to it");
        assert_eq!((optimizer.steps(), params.version()), (0, version), "{rule:?}");
        drop(held);
        optimizer.step(&mut params, &gradients, 0.1).unwrap();
        assert_eq!((optimizer.steps(), params.version()), (1, version + 1), "{rule:?}");
        params.download().unwrap();
        assert!(params.values(id).iter().all(|&x| x < 1.0));
    }
}

/// The copy that products read is written by the optimizer, also where each part of the parameters has its own.
#[test]
fn an_optimizer_keeps_the_bf16_copy() {
    for rule in [OptimizerKind::Lamb, OptimizerKind::AdamW] {
        for count in [1, 2] {
            let (gpu, mut params, _) = given();
            let device = Device::Cuda(gpu.clone());
            let mut gradients = params.gradients(&device).unwrap();
            gradients.flat.copy_from(&[0.3f32; 11]).unwrap();
            let plain = |_: &crate::param::ParamInfo| ParamOptions { weight_decay: false, trust_ratio: false };
            drop(params.on_gpu_as(&gpu, DType::Bf16).unwrap());
            for own in crate::optim::parts(&params, count) {
                let optimizer = Optimizer::of_part(&params, own, rule, AdamConfig::default(), plain).unwrap();
                optimizer.on(&device).unwrap().step(&mut params, &gradients, 0.1).unwrap();
            }
            let launches = gpu.launches();
            let copy = params.on_gpu_as(&gpu, DType::Bf16).unwrap().to_vec().unwrap();
            assert_eq!(gpu.launches(), launches, "{rule:?}: rounded again");
            let whole = params.on_gpu(&gpu).unwrap().to_vec().unwrap();
            let rounded: Vec<f32> = whole.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
            assert!(copy == rounded && whole.iter().all(|&x| x < 1.0), "{rule:?}: {copy:?} of {whole:?}");
        }
    }
}
