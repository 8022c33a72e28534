//! Steps of a trainer: memory, recomputation, losses that are not finite, the initial model.

use super::*;

/// Steps begun before the loss was known change nothing either; on a CPU there are none.
#[test]
fn a_loss_that_is_not_finite_changes_nothing() {
    let world = world();
    for device in [device(1), super::super::gpu_tests::gpu()] {
        let mut trainer = world.trainer(&recipe(&[]), device);
        let begin = |trainer: &mut Trainer<Pretraining>| assert!(trainer.begin_step_while(&mut |_, _| true).unwrap());
        trainer.train_step().unwrap();
        begin(&mut trainer);
        trainer.download().unwrap();
        let params = &mut trainer.loaded.params;
        let id = params.find("albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias").unwrap();
        let value = std::mem::replace(&mut params.values_mut(id).unwrap()[0], f32::NAN);
        let before: Vec<u32> = trainer.params().all_values().iter().map(|x| x.to_bits()).collect();
        begin(&mut trainer);
        begin(&mut trainer);
        assert_eq!(trainer.finish_step().unwrap().step, 2, "of before");
        let error = trainer.finish_step().unwrap_err();
        assert!(matches!(error, EngineError::NotFinite { step: 3, .. }), "{error:?}");
        assert_eq!((trainer.step(), trainer.steps_in_flight()), (2, 0));
        trainer.download().unwrap();
        assert!(trainer.params().all_values().iter().map(|x| x.to_bits()).eq(before));
        // Once the cause is removed, the trainer continues.
        trainer.loaded.params.values_mut(id).unwrap()[0] = value;
        assert_eq!(trainer.train_step().unwrap().step, 3);
    }
}

#[test]
fn every_step_fits_the_memory_that_was_planned() {
    let world = world();
    for variant in [
        &[][..],
        &["compute.checkpointing=cheap"],
        &["compute.checkpointing=layer"],
        &["data.instances.objective=none"],
        &["compute.precision=bf16"],
        &["model.sharing=attention", "data.batch.max_sequences=1000"],
    ] {
        let mut trainer = world.trainer(&recipe(variant), device(1));
        let room = trainer.room.len();
        for _ in 0..12 {
            trainer.train_step().unwrap();
        }
        let report = trainer.workspace().arena().report();
        assert_eq!(report.misses, 0, "{variant:?}: {report:?}");
        assert_eq!(trainer.room.len(), room, "{variant:?}: a step had more micro-batches than foreseen");
        assert_eq!(trainer.memory().packed, trainer.params().packed_bytes(), "{variant:?}");
    }
}

/// Without `compute.checkpointing` in the recipe, a CPU stores as few activations as with `cheap`.
#[test]
fn a_processor_keeps_little_unless_the_recipe_says_otherwise() {
    let world = world();
    let kept = |variant: &[&str]| world.trainer(&recipe(variant), device(1)).memory().step;
    let unsaid = kept(&[]);
    assert_eq!(unsaid, kept(&["compute.checkpointing=cheap"]));
    assert!(unsaid < kept(&["compute.checkpointing=none"]), "{unsaid} bytes");
}

/// The memory that `albert info` estimates is within 5 % of the memory planned by a run.
#[test]
fn estimates_of_memory_are_near_the_plan() {
    // In the second world, logits dominate the peak memory.
    let worlds = [world(), world_of(8000)];
    for (checkpointing, name) in [(Recompute::None, "none"), (Recompute::Cheap, "cheap"), (Recompute::Layer, "layer")] {
        for (world, layers) in [(&worlds[0], 2), (&worlds[0], 6), (&worlds[1], 2)] {
            let recipe = recipe(&[
                "model.hidden_size=128 data.batch={max_tokens=2048,max_sequences=64}",
                &format!("model.num_hidden_layers={layers} compute.checkpointing={name}"),
            ]);
            let trainer = world.trainer(&recipe, device(1));
            let workload = Workload { sequences: 64, sequence_length: 32, masked_per_sequence: 5 };
            let training = Training { activation_bytes: 4, checkpointing };
            let estimate = Memory::new(&trainer.recipe().model, &workload, &training);
            let plan = trainer.memory();
            for (what, estimate, planned) in [
                ("activations", estimate.activations, plan.step),
                ("packed", estimate.packed, plan.packed),
                ("gradients", estimate.gradients, plan.gradients),
                ("optimizer", estimate.optimizer, plan.optimizer),
            ] {
                let ratio = estimate as f64 / planned as f64;
                assert!((ratio - 1.0).abs() < 0.05, "{name}, {layers} layers, {what}: {estimate} and {planned}");
            }
        }
    }
}

/// The split into micro-batches changes results only by rounding, and recomputation does not change them.
#[test]
fn checkpointing_gives_the_same_bits() {
    let world = world();
    let losses = |variant: &[&str]| {
        let mut trainer = world.trainer(&recipe(variant), device(1));
        (0..6).map(|_| trainer.train_step().unwrap().loss).collect::<Vec<_>>()
    };
    let whole = losses(&[]);
    for checkpointing in ["none", "cheap", "layer"] {
        let other = losses(&[&format!("compute.checkpointing={checkpointing}")]);
        assert_eq!(other, whole, "{checkpointing}");
    }
    let undropped = "model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0";
    let whole = losses(&[undropped]);
    let cut = losses(&[undropped, "data.batch.max_sequences=2"]);
    for (step, (a, b)) in whole.iter().zip(&cut).enumerate() {
        assert!((a - b).abs() < 1e-4 * a, "step {step}: {a} and {b} in smaller micro-batches");
    }
}

#[test]
fn starts_from_a_shallower_model_and_refuses_what_does_not_fit() {
    let world = world();
    let shallow = world.path("shallow");
    world.run(&recipe(&["schedule.steps=2", "model.num_hidden_layers=1"]), &shallow, StartMode::New, 1, None).unwrap();
    let from = format!("input.start_from={}", shallow.join("last").display());
    let deep = world.trainer(&recipe(&[&from]), device(1));
    ModelFolder::open(&shallow.join("last"))
        .unwrap()
        .load(Heads::PRE_TRAINING, &[], |spec, values| {
            assert_eq!(deep.params().values(deep.params().find(&spec.name).unwrap()), values, "{}", spec.name);
            Ok(())
        })
        .unwrap();
    let message = |variant: &[&str]| {
        Trainer::<Pretraining>::new(&recipe(variant), &world.sources, device(1)).unwrap_err().to_string()
    };
    let text = message(&[&from, "model.hidden_size=48"]);
    assert!(text.contains("in the recipe's model"), "{text}");
    let text = message(&[&from, "model.sharing=none"]);
    assert!(text.contains("give both the same `model.sharing`"), "{text}");
    let text = message(&["input.start_from=/nowhere"]);
    assert!(text.contains("/nowhere: no such folder"), "{text}");
}
