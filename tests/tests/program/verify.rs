//! `albert verify`: confirms a run, and reports a changed bit, record or batch.

use albert_tests::run_folder::{World, checkpoints, copy, corpus};
use engine::io::{Data, Safetensors, TensorOut, hash64, save_safetensors};
use std::{fs, path::Path};

/// Flips the last bit of element 5 of `name`, with a valid checksum.
fn flip(path: &Path, name: &str) {
    let file = Safetensors::open(path).unwrap();
    let names = file.names();
    let mut tensors: Vec<(&str, Vec<usize>, Vec<f32>)> = Vec::new();
    for tensor in &names {
        let shape = file.shape(tensor).unwrap();
        tensors.push((tensor, shape.to_vec(), file.f32s(tensor, shape).unwrap()));
    }
    let (_, _, values) = tensors.iter_mut().find(|(tensor, ..)| *tensor == name).unwrap();
    values[5] = f32::from_bits(values[5].to_bits() ^ 1);
    let metadata: Vec<(&str, &str)> = file.metadata().iter().map(|(key, value)| (&key[..], &value[..])).collect();
    let out: Vec<TensorOut<'_>> = tensors
        .iter()
        .map(|(name, shape, data)| TensorOut { name: name.to_string(), shape: shape.clone(), data: Data::F32(data) })
        .collect();
    save_safetensors(path, &out, &metadata).unwrap();
}

#[test]
fn a_run_is_confirmed_and_each_change_to_it_is_named() {
    const WORD_EMBEDDINGS: &str = "albert.embeddings.word_embeddings.weight";
    let world = World::new();
    world.run_pretrain("run", &["schedule.steps=10"]).succeeds();
    // Checkpoints at 5 and 10; records of training at 3, 6 and 9, an evaluation at 10.
    world.run("verify run").succeeds().says(&["a step takes about", "steps 5 to 10 are confirmed: 3 records and"]);
    let again = |name: &str| {
        copy(&world.path("run"), &world.path(name));
        world.path(name)
    };
    fs::remove_dir_all(again("finished").join("checkpoints")).unwrap();
    world.run("verify finished --steps 0..10").succeeds().says(&["steps 0 to 10 are confirmed: 4 records"]);
    world.run("verify finished").fails_with(&["finished has no checkpoint; give the steps"]);
    world.run("verify run --steps 0..7").fails_with(&["run has no parameters after step 7; its checkpoints: 10, 5"]);
    world.run("verify run --steps 7..10").fails_with(&["run/checkpoints/step-0000000007.safetensors"]);
    world.run("verify run --steps 10..10").is_wrong_usage(&["the first below the second"]);
    world.run("verify data").fails_with(&["config.toml cannot be read; expected the folder of a run of pre-training"]);

    // The last bit of a parameter: at the end, and at the start.
    let parameter = format!("parameter/{WORD_EMBEDDINGS}");
    flip(checkpoints(&again("bit")).last().unwrap(), &parameter);
    let named = format!("element 5 of {parameter}");
    world.run("verify bit").fails_with(&["step 10: ", &named, "recomputed; 1 of"]);
    flip(&again("model").join("last/model.safetensors"), WORD_EMBEDDINGS);
    fs::remove_dir_all(world.path("model/checkpoints")).unwrap();
    world.run("verify model --steps 0..10").fails_with(&["step 10: ", WORD_EMBEDDINGS, "1 of"]);
    flip(&checkpoints(&again("start"))[0], "parameter/albert.embeddings.LayerNorm.weight");
    world.run("verify start").fails_with(&["step 6: ", "recomputed"]);

    // A loss, and a record that is missing.
    let metrics = again("loss").join("metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    let line = text.lines().find(|line| line.contains(r#""step":9"#)).unwrap();
    let loss = line.split(r#""mlm_loss":"#).nth(1).unwrap().split(',').next().unwrap();
    let edited = format!("{:e}", f64::from_bits(loss.parse::<f64>().unwrap().to_bits() + 1));
    fs::write(&metrics, text.replace(line, &line.replace(loss, &edited))).unwrap();
    world.run("verify loss").fails_with(&["step 9: mlm_loss is", loss]);
    fs::write(&metrics, text.replace(&format!("{line}\n"), "")).unwrap();
    world.run("verify loss").fails_with(&["metrics.jsonl has a record of step 10 where the run wrote one of step 9"]);

    // Another order of the texts results in other batches.
    let documents = corpus(150);
    let (first, rest) = documents.split_once("\n\n").unwrap();
    world.write("text.txt", format!("{rest}\n{first}\n\n"));
    fs::remove_dir_all(world.path("data")).unwrap();
    let [text, tokenizer, data] = ["text.txt", "tokenizer.json", "data"].map(|name| world.text_path(name));
    world.run(&format!("data build {text} --tokenizer {tokenizer} -o {data}")).succeeds();
    world.run("verify run").fails_with(&["step-0000000005.safetensors"]);
    world.run("verify run --steps 0..10").fails_with(&["step 3: ", "in metrics.jsonl, and", "recomputed"]);
}

/// A world with two steps in bf16 and an evaluation. The simulated GPU ran it on 2026-11-29 with the configuration and the data of a run
/// on an H200. Both had the same bits until attention's forward pass changed; since then it is a prediction to be confirmed on a GPU.
fn with_run_of_a_gpu() -> World {
    let world = World::of_text("");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/hopper"), &world.path(""));
    world
}

#[test]
#[ignore = "five minutes; .ci/hopper.sh"]
fn twenty_steps_have_the_bits_of_a_gpu() {
    let world = with_run_of_a_gpu();
    let pretrain = "pretrain run/config.toml --data shards --tokenizer tok.json --device cuda-sim:90 --output twenty";
    world.run(&format!("{pretrain} schedule.steps=20")).succeeds();
    let model = fs::read(world.path("twenty/model.safetensors")).unwrap();
    assert_eq!(format!("{:016x}", hash64(&model)), "fb8cea92850ba6e5");
}

#[test]
#[ignore = "a minute; .ci/hopper.sh"]
fn a_run_of_a_gpu_is_confirmed_and_each_change_to_it_is_named() {
    const DENSE: &str = "albert.encoder.embedding_hidden_mapping_in.weight";
    let world = with_run_of_a_gpu();
    let verify = || world.run("verify run --steps 0..2 --device cuda-sim:90");
    verify().succeeds().says(&["steps 0 to 2 are confirmed: 3 records and 330770 values"]);

    let model = world.path("run/last/model.safetensors");
    let recorded = fs::read(&model).unwrap();
    flip(&model, DENSE);
    verify().fails_with(&["step 2: ", &format!("element 5 of {DENSE}"), "; 1 of 330770 values differ"]);
    fs::write(&model, recorded).unwrap();

    let metrics = world.path("run/metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, text.replace("6.9077232511419995", "6.907723251142")).unwrap();
    verify().fails_with(&["step 2: mlm_loss is 6.907723251142 in metrics.jsonl, and 6.9077232511419995 recomputed"]);
    fs::write(&metrics, text).unwrap();

    // Another order of the batches.
    let config = world.path("run/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replacen("seed = 12345", "seed = 12346", 1)).unwrap();
    verify().fails_with(&["step 1: ", "in metrics.jsonl, and", "recomputed"]);
}
