//! `--profile`: every command that runs a model prints the cost of its kernels.

use albert_tests::{
    program::{Finished, albert, finish},
    run_folder::World,
};
use std::fs;

/// Calls of `kernel` in each table on standard error.
#[track_caller]
fn calls(finished: &Finished, kernel: &str) -> Vec<u64> {
    let tables = finished.stderr.matches("% roof").count();
    let rows = finished.stderr.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let calls: Vec<u64> =
        rows.filter(|row| row.first() == Some(&kernel)).map(|row| row[1].parse().expect("a number of calls")).collect();
    assert_eq!(calls.len(), tables, "a table without {kernel}: {}", finished.stderr);
    calls
}

fn run(arguments: &[&str]) -> Finished {
    finish(&mut albert(arguments)).succeeds()
}

#[test]
fn every_command_with_a_model_prints_what_its_kernels_cost() {
    let world = World::new();
    let path = |name: &str| world.text_path(name);
    let write = |name: &str, text: &str| {
        let path = world.path(name);
        fs::create_dir_all(path.parent().expect("it lies in the world")).expect("the world is writable");
        fs::write(path, text).expect("the world is writable");
    };
    // Two layers in every model. A step of 12 sequences has two batches of up to 8; nothing is evaluated.
    let settings = ["--profile", "schedule.steps=6", "evaluation.interval=0", "data.evaluation.max_sequences=8"];
    let pretrained = finish(&mut albert(&world.pretrain("model", &settings))).succeeds();
    assert!(calls(&pretrained, "attention.backward")[0] >= 2 * 2 * 6, "{}", pretrained.stderr);
    let model = path("model");
    let filled = run(&["fill-mask", "--model", &model, "--profile", "the [MASK] flows", "rain falls on [MASK]"]);
    assert_eq!(calls(&filled, "attention"), [2 * 2]);
    assert!(filled.stdout.starts_with("the [MASK] flows\n"), "{}", filled.stdout);
    let tensors = path("tensors.safetensors");
    let forward = run(&["forward", "--model", &model, "--profile", "--text", "a river", "--output", &tensors]);
    assert_eq!(calls(&forward, "attention"), [2]);
    write("lines.txt", "a river\n");
    let vectors = path("lines.npy");
    let embedded = run(&["embed", "--model", &model, "--profile", &path("lines.txt"), "--output", &vectors]);
    assert_eq!(calls(&embedded, "attention"), [2]);

    // One table per seed; predictions of both in one.
    write("task/train.tsv", &format!("text\tlabel\n{}", "rain falls\twet\nthe sun\tdry\n".repeat(8)));
    write("task/dev.tsv", "text\tlabel\nrain\twet\nsun\tdry\n");
    let (data, tuned) = (path("task"), path("tuned"));
    let fixed = ["finetune", "classify", "--model", &model, "--data", &data, "--output", &tuned];
    let quick = ["--steps", "3", "--seeds", "2", "--profile", "--set", "batch.examples_per_step=4"];
    let finetuned = run(&[&fixed[..], &quick].concat());
    assert_eq!(calls(&finetuned, "attention.backward"), [2 * 3, 2 * 3]);
    let evaluated = run(&["evaluate", "--model", &tuned, "--data", &data, "--profile"]);
    assert_eq!(calls(&evaluated, "attention"), [2 * 2]);
    let (input, output) = (path("task/dev.tsv"), path("out.jsonl"));
    let predicted = run(&["predict", "--model", &tuned, "--input", &input, "--output", &output, "--profile"]);
    assert_eq!(calls(&predicted, "attention"), [2 * 2]);
    let classified = run(&["classify", "--model", &path("tuned/seed-1"), "--profile", "rain"]);
    assert_eq!(calls(&classified, "attention"), [2]);
    let silent = run(&["classify", "--model", &tuned, "rain"]);
    assert!(!silent.stderr.contains("% roof"), "{}", silent.stderr);

    let passage = r#"{"context": "rain falls on the hills", "qas": [{"id": "a", "question": "where", "answers":
        [{"text": "the hills", "answer_start": 14}]}]}"#;
    let questions = format!(r#"{{"version": "v2.0", "data": [{{"title": "t", "paragraphs": [{passage}]}}]}}"#);
    write("questions/train.json", &questions);
    write("questions/dev.json", &questions);
    let (questions, finder) = (path("questions"), path("finder"));
    run(&["finetune", "qa", "--model", &model, "--data", &questions, "--output", &finder, "--steps", "1"]);
    let answered = run(&["answer", "--model", &finder, "--context-file", &path("lines.txt"), "--profile", "where"]);
    assert_eq!(calls(&answered, "attention"), [2]);
}

#[test]
fn an_ablation_prints_a_table_for_each_stage() {
    let world = World::new();
    let [task, output] = ["task", "ablation"].map(|name| world.text_path(name));
    fs::create_dir(&task).expect("the world is writable");
    for name in ["train", "dev"] {
        let rows = "text\tlabel\nrain falls\twet\nthe sun\tdry\n";
        fs::write(world.path("task").join(name).with_extension("tsv"), rows).expect("the world is writable");
    }
    fs::write(world.path("plan.toml"), world.plan("[1]", 3, "")).expect("the world is writable");
    let ablated = run(&["ablate", &world.text_path("plan.toml"), "--output", &output, "--profile"]);
    assert_eq!(calls(&ablated, "attention.backward"), [2 * 3, 2 * 2, 2 * 3, 2 * 2]);

    let page = world.text_path("page.html");
    run(&["report", &output, "-o", &page]);
    let page = fs::read_to_string(page).expect("it was written");
    let table = fs::read_to_string(world.path("ablation/table.md")).expect("it was written");
    let cells = table.lines().filter(|line| line.starts_with("| ")).flat_map(|line| line.split(" | "));
    for cell in cells.map(|cell| cell.trim_matches(['|', ' '])) {
        assert!(page.contains(&format!(">{cell}<")), "{cell}: {page}");
    }
    assert!(page.contains("Budget of each row: ") && page.contains("Settings that differ"), "{page}");
}
