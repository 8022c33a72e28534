//! Steps that are started as graphs: the same bits, graphs used again, errors that name the kernel, nothing left behind.
use super::*;
use crate::device::driver::Argument;
use crate::ops::{self, Activation};
use crate::shared_tests::{self, *};
use kernels_cuda::{activation::BiasActivation, program::Pass};

fn gpu(graphs: Graphs) -> Gpu {
    let gpu = shared_tests::gpu((8, 0));
    gpu.set_graphs(graphs);
    gpu
}

fn given(gpu: &Gpu) -> (ParamStore, [ParamId; 3], Workspace) {
    let init = Init::Uniform(0.5);
    let all = [("table", &[40, 12][..], init), ("weight", &[12, 12], init), ("bias", &[12], init)];
    let (params, ids) = parameters(3, all);
    (params, ids, Workspace::new(Device::Cuda(gpu.clone())))
}

fn ids(rows: usize, seed: usize) -> Vec<u32> {
    (0..rows).map(|t| ((t + seed) * (t + 2 * seed) % 40) as u32).collect()
}

/// Rows, what their ids are drawn from, and depth.
type Batch = (usize, usize, usize);

const STEPS: [Batch; 5] = [(30, 1, 2), (30, 2, 2), (21, 3, 2), (21, 3, 3), (30, 1, 2)];

/// The loss of a network of `depth` layers over `rows` ids; its gradients are added.
fn step(tape: &Tape<'_>, ids_of: [ParamId; 3], (rows, seed, depth): Batch, gradients: &mut Gradients) -> Result<f32> {
    let [table, weight, bias] = ids_of;
    let mut x = ops::embedding(tape, &tape.input([rows], &ids(rows, seed))?, table)?;
    for _ in 0..depth {
        x = ops::activation(tape, &ops::linear(tape, &x, weight, Some(bias))?, Activation::GeluTanh)?;
    }
    let labels = tape.input([rows], &ids(rows, seed).iter().map(|id| id % 12).collect::<Vec<_>>())?;
    let loss = ops::cross_entropy(tape, &x, &labels, rows as f32)?.loss;
    tape.backward(&loss, gradients)?;
    tape.item(&loss)
}

fn bits(gpu: &Gpu) -> Vec<u32> {
    let (params, ids, mut workspace) = given(gpu);
    workspace.arena().set_poison(true);
    let mut gradients = params.gradients(workspace.device()).unwrap();
    let mut seen = Vec::new();
    for batch in STEPS {
        let loss = step(&workspace.train(&params, None), ids, batch, &mut gradients).unwrap();
        seen.push(loss.to_bits());
        seen.extend(gradients.tensor().to_vec().unwrap().iter().map(|x| x.to_bits()));
    }
    seen
}

#[test]
fn a_ragged_batch_uses_the_graph_of_the_one_before_and_gives_the_same_bits() {
    let [off, on] = [Graphs::Off, Graphs::On].map(gpu);
    assert_eq!(bits(&off), bits(&on));
    assert_eq!(off.graph_report(), GraphReport::default());
    let report = on.graph_report();
    println!("{report:?}");
    // The first step brings the parameters and runs twice: what follows has their upload no more. A third depth is
    // another list.
    assert_eq!((report.graphs, report.built), (5, 3), "{report:?}");
    assert_eq!(report.waiting, 0);
    assert!(report.changed > 0 && report.changed < report.nodes, "{report:?}");
}

#[test]
fn a_kernel_that_fails_within_a_graph_is_named_and_nothing_is_left() {
    let gpu = gpu(Graphs::On);
    let (params, ids, mut workspace) = given(&gpu);
    let mut gradients = params.gradients(workspace.device()).unwrap();
    let kernel = BiasActivation::new(Pass::Forward, kernels::DType::F32, Activation::GeluTanh, false, 12);
    let (name, launch) = (kernel.name(gpu.sm()), kernel.launch(3, 12).unwrap());
    let nowhere = Argument::Address(DeviceAddress(64));
    // Nobody reads: the end of the step meets the error, and the next step says so.
    for read in [true, false] {
        let tape = workspace.train(&params, None);
        let loss = step(&tape, ids, (30, 1, 2), &mut gradients).unwrap();
        assert!(loss.is_finite());
        let mut y = tape.alloc([3, 12], DType::F32).unwrap();
        for _ in 0..SHORT {
            y.zero().unwrap();
        }
        let arguments = [nowhere, Argument::Address(y.address_mut()), Argument::U32(3), Argument::U32(12)];
        gpu.launch(&name, |sm| kernel.program(sm), launch, &arguments).unwrap();
        assert_eq!(gpu.graph_report().waiting, SHORT + 1, "a launch waits");
        let error = if read {
            y.to_vec().unwrap_err()
        } else {
            drop(tape);
            gpu.synchronize().unwrap_err()
        };
        let text = error.to_string();
        assert!(text.starts_with(&format!("kernel {}: ", name.entry())), "{text}");
        assert_eq!(gpu.graph_report().waiting, 0, "after: {text}");
    }
    let loss = step(&workspace.train(&params, None), ids, (30, 1, 2), &mut gradients).unwrap();
    assert!(loss.is_finite());
}

#[test]
fn a_step_that_fails_on_the_host_leaves_nothing_waiting() {
    let gpu = gpu(Graphs::On);
    let (params, [table, weight, _], mut workspace) = given(&gpu);
    let tape = workspace.train(&params, None);
    let x = ops::embedding(&tape, &tape.input([9], &[1u32; 9]).unwrap(), table).unwrap();
    assert!(gpu.graph_report().waiting > 0);
    let wrong = ops::linear(&tape, &tape.constant(x.value().reshape([12, 9]).unwrap()), weight, None);
    assert!(wrong.is_err());
    drop(tape);
    let report = gpu.graph_report();
    assert_eq!((report.waiting, report.short + report.graphs), (0, 1), "{report:?}");
}

#[test]
fn the_environment_names_two_settings() {
    let named = ["on", "off", "yes", ""].map(Graphs::named);
    assert_eq!(named, [Some(Graphs::On), Some(Graphs::Off), None, None]);
}
