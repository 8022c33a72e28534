//! `--profile`: every command that runs a model prints the cost of its kernels.

use albert_tests::{program::Finished, run_folder::World};
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

#[test]
fn every_command_with_a_model_prints_what_its_kernels_cost() {
    let world = World::new();
    // Every model has two layers. A step of 12 sequences has two batches of at most 8; nothing is evaluated.
    let settings = ["--profile", "schedule.steps=6", "evaluation.interval=0", "data.evaluation.max_sequences=8"];
    let pretrained = world.run_pretrain("model", &settings).succeeds();
    assert!(calls(&pretrained, "attention.backward")[0] >= 2 * 2 * 6, "{}", pretrained.stderr);
    let filled = world.run("fill-mask --model model --profile 'the [MASK] flows' 'rain falls on [MASK]'").succeeds();
    assert_eq!(calls(&filled, "attention"), [2 * 2]);
    assert!(filled.stdout.starts_with("the [MASK] flows\n"), "{}", filled.stdout);
    world.write("lines.txt", "a river\n");
    // One table per seed; the predictions of both seeds share one.
    world.write("task/train.tsv", format!("text\tlabel\n{}", "rain falls\twet\nthe sun\tdry\n".repeat(8)));
    world.write("task/dev.tsv", "text\tlabel\nrain\twet\nsun\tdry\n");
    let tune = "finetune classify --model model --data task --output tuned --steps 3 --seeds 2 --profile";
    let finetuned = world.run(&format!("{tune} --set batch.examples_per_step=4")).succeeds();
    assert_eq!(calls(&finetuned, "attention.backward"), [2 * 3, 2 * 3]);
    let passage = r#"{"context": "rain falls on the hills", "qas": [{"id": "a", "question": "where", "answers":
        [{"text": "the hills", "answer_start": 14}]}]}"#;
    for name in ["questions/train.json", "questions/dev.json"] {
        world.write(name, format!(r#"{{"version": "v2.0", "data": [{{"title": "t", "paragraphs": [{passage}]}}]}}"#));
    }
    world.run("finetune qa --model model --data questions --output finder --steps 1").succeeds();
    for (line, layers) in [
        ("forward --model model --text 'a river' --output tensors.safetensors", 2),
        ("embed --model model lines.txt --output lines.npy", 2),
        ("evaluate --model tuned --data task", 2 * 2),
        ("predict --model tuned --input task/dev.tsv --output out.jsonl", 2 * 2),
        ("classify --model tuned/seed-1 rain", 2),
        ("answer --model finder --context-file lines.txt where", 2),
    ] {
        let told = world.run(&format!("{line} --profile")).succeeds();
        assert_eq!(calls(&told, "attention"), [layers], "{line}");
    }
    let silent = world.run("classify --model tuned rain").succeeds();
    assert!(!silent.stderr.contains("% roof"), "{}", silent.stderr);
}

#[test]
fn an_ablation_prints_a_table_for_each_stage() {
    let world = World::new();
    for name in ["task/train.tsv", "task/dev.tsv"] {
        world.write(name, "text\tlabel\nrain falls\twet\nthe sun\tdry\n");
    }
    world.write("plan.toml", world.plan("[1]", 3, ""));
    let ablated = world.run("ablate plan.toml --output ablation --profile").succeeds();
    assert_eq!(calls(&ablated, "attention.backward"), [2 * 3, 2 * 2, 2 * 3, 2 * 2]);

    world.run("report ablation -o page.html").succeeds();
    let page = fs::read_to_string(world.path("page.html")).expect("it was written");
    let table = fs::read_to_string(world.path("ablation/table.md")).expect("it was written");
    let cells = table.lines().filter(|line| line.starts_with("| ")).flat_map(|line| line.split(" | "));
    for cell in cells.map(|cell| cell.trim_matches(['|', ' '])) {
        assert!(page.contains(&format!(">{cell}<")), "{cell}: {page}");
    }
    assert!(page.contains("Budget of each row: ") && page.contains("Settings that differ"), "{page}");
}
