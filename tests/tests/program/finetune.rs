//! Fine-tuning: a folder of texts, a run, evaluation, predictions and single texts; answers in text; errors of one line.

use albert::config::AlbertConfig;
use albert_tests::{
    program::Finished,
    run_folder::{World, random_model},
};
use engine::philox::Stream;
use serde_json::Value;
use std::{fmt::Write as _, fs};

/// Words that determine the class of a text.
const WORDS: [[&str; 4]; 2] = [["good", "great", "fine", "best"], ["bad", "poor", "worst", "dull"]];

/// A small model with random weights.
fn world() -> World {
    let world = World::of_text("");
    random_model(&world.path("model"), |pieces| AlbertConfig {
        vocab_size: pieces,
        embedding_size: 16,
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        max_position_embeddings: 64,
        initializer_range: 0.1,
        ..AlbertConfig::preset("tiny").unwrap()
    });
    world
}

/// Writes texts with a word of their class.
fn texts(world: &World, name: &str, count: u32, seed: u64) {
    let mut rows = "text\tlabel\n".to_owned();
    for at in 0..count {
        let mut stream = Stream::new(seed, [at, 0, 0]);
        let class = stream.below(2) as usize;
        let word = WORDS[class][stream.below(4) as usize];
        writeln!(rows, "the film of day {} was {word}\t{}", stream.below(9), ["pos", "neg"][class]).unwrap();
    }
    world.write(name, rows);
}

fn finetune(world: &World, task: &str, output: &str, more: &str) -> Finished {
    let fixed = format!("finetune {task} --model model --data data --output {output}");
    world.run(&format!("{fixed} --set optimizer.learning_rate=0.003 --set batch.examples_per_step=16 {more}"))
}

/// Value of the first line of standard output that starts with `name`.
fn figure(stdout: &str, name: &str) -> f64 {
    let line = stdout.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {stdout}"));
    line.trim().parse().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn texts_are_learnt_measured_predicted_and_classified() {
    let world = world();
    texts(&world, "data/train.tsv", 200, 1);
    texts(&world, "data/dev.tsv", 60, 2);
    let run = finetune(&world, "classify", "run", "--steps 80 --seeds 2")
        .succeeds()
        .says(&["randomly initialized: classifier.weight, classifier.bias", "best so far"]);
    assert!(run.stdout.contains("accuracy: median") && run.stdout.contains("over 2 seeds"), "{}", run.stdout);
    let summary: Value = serde_json::from_slice(&fs::read(world.path("run/summary.json")).unwrap()).unwrap();
    let accuracy = |seed: usize| summary["figures"]["accuracy"]["values"][seed].as_f64().unwrap();
    assert!(accuracy(0) > 0.95 && accuracy(1) > 0.95, "{summary}");

    let evaluated = world.run("evaluate --model run/seed-1 --data data --report page.html").succeeds();
    assert_eq!(figure(&evaluated.stdout, "accuracy"), accuracy(0));
    let page = fs::read_to_string(world.path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains(">pos</text>"), "no confusion matrix in the page");

    // Both seeds together, on a file without labels.
    let lines = "{\"id\":\"a\",\"text\":\"the film was great\"}\n{\"id\":\"b\",\"text\":\"a dull film\"}\n";
    world.write("new.jsonl", lines);
    let predict = |more: &str| world.run(&format!("predict --model run --input new.jsonl {more}"));
    for output in ["--output out.jsonl", "--output out.tsv"] {
        predict(output).succeeds().says(&["2 predictions, means of 2 models"]);
    }
    predict("--output out.json").fails_with(&["expected a file that ends in .jsonl or .tsv"]);
    predict("--task ax --glue-submission x")
        .fails_with(&["--task ax: the model was fine-tuned for `classify`, which has other labels"]);
    let lines = fs::read_to_string(world.path("out.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines[0]["id"].as_str(), lines[0]["label"].as_str()), (Some("a"), Some("pos")));
    assert_eq!((lines[1]["id"].as_str(), lines[1]["label"].as_str()), (Some("b"), Some("neg")));
    let sum: f64 = ["pos", "neg"].map(|label| lines[0]["probabilities"][label].as_f64().unwrap()).iter().sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    let table = fs::read_to_string(world.path("out.tsv")).unwrap();
    assert!(table.starts_with("id\tlabel\tneg\tpos\na\tpos\t"), "{table}");

    let one = world.run("classify --model run/seed-1 'the film of day 3 was worst'").succeeds();
    assert!(one.stdout.lines().next().is_some_and(|line| line.ends_with("\tneg")), "{}", one.stdout);
    // The folder is in use for a new run; a resumed run finds both seeds done.
    finetune(&world, "classify", "run/seed-1", "").fails_with(&["already contains a run; resume it"]);
    finetune(&world, "classify", "run", "--resume --seeds 2").succeeds().says(&["seed 2 of 2 is already done"]);
}

#[test]
fn questions_are_answered_from_a_text() {
    let world = world();
    let squad = |count: u32, seed: u64| {
        let paragraphs: Vec<Value> = (0..count)
            .map(|at| {
                let mut stream = Stream::new(seed, [at, 0, 0]);
                let name = ["paris", "rome", "london", "berlin"][stream.below(4) as usize];
                let day = stream.below(9);
                let (context, start) = match stream.below(2) {
                    0 => (format!("on day {day} she went to {name} by train"), 23),
                    _ => (format!("to {name} she went on day {day} by train"), 3),
                };
                let answers = serde_json::json!([{"text": name, "answer_start": start}]);
                serde_json::json!({"context": context, "qas": [
                    {"id": format!("q{at}"), "question": "where did she go", "answers": answers},
                    {"id": format!("n{at}"), "question": "what did he eat", "answers": [], "is_impossible": true},
                ]})
            })
            .collect();
        serde_json::json!({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}).to_string()
    };
    world.write("data/train.json", squad(150, 1));
    world.write("data/dev.json", squad(30, 2));
    let fresh = "randomly initialized: start_logits.dense.weight";
    finetune(&world, "qa", "run", "--steps 400").succeeds().says(&[fresh]);
    let evaluate = |more: &str| world.run(&format!("evaluate --model run --data data {more}")).succeeds();
    let evaluated = evaluate("").stdout;
    assert!(figure(&evaluated, "span_f1\t") > 0.8, "{evaluated}");
    let tuned = evaluate("--tune-null-threshold data/dev.json");
    let tuned = tuned.says(&["null threshold ", "(tuned on ", "dev.json)"]).stdout;
    // A threshold tuned on these questions reaches the best F1 that the evaluation reports.
    let [reached, reachable] = ["span_f1\t", "span_f1_tuned_here\t"].map(|name| figure(&tuned, name));
    assert!((reached - reachable).abs() < 1e-9, "{reached} and {reachable}: {tuned}");
    let mute = evaluate("--null-threshold -1000").stdout;
    assert_eq!(figure(&mute, "span_f1_has_answer\t"), 0.0);
    assert_eq!(figure(&mute, "span_f1_no_answer\t"), 1.0);
    world.run("predict --model run --input data/dev.json --output predictions.json").succeeds();
    let predictions: Value = serde_json::from_slice(&fs::read(world.path("predictions.json")).unwrap()).unwrap();
    assert_eq!(predictions.as_object().map(|all| (all.len(), all["n3"].as_str())), Some((60, Some(""))));
    world.write("text.txt", "On day 3 she went to Rome by train.");
    let ask = |question: &str| {
        world.run(&format!("answer --model run --context-file text.txt '{question}'")).succeeds().stdout
    };
    let found = ask("Where did she go?");
    assert!(found.lines().next().is_some_and(|line| line.contains("Rome")), "{found}");
    assert!(ask("What did he eat?").starts_with("no answer\n"));
    world.run("classify --model run x").fails_with(&["use albert answer"]);
}

#[test]
fn a_task_of_glue_goes_from_its_files_to_its_submission() {
    let world = world();
    let labels = ["contradiction", "entailment", "neutral"];
    let rows = |columns: usize, count: u32, seed: u64, has_label: bool| {
        let mut text = (0..columns).map(|_| "x").collect::<Vec<_>>();
        (text[0], text[8], text[9]) = ("index", "sentence1", "sentence2");
        if has_label {
            text[columns - 1] = "gold_label";
        }
        let mut text = text.join("\t") + "\n";
        for at in 0..count {
            let class = Stream::new(seed, [at, 0, 0]).below(3) as usize;
            let id = at.to_string();
            let mut row = vec!["-"; columns];
            (row[0], row[8], row[9]) = (&id, "she is here", ["she is not", "yes she is", "it rains"][class]);
            if has_label {
                row[columns - 1] = labels[class];
            }
            text += &(row.join("\t") + "\n");
        }
        text
    };
    world.write("data/MNLI/train.tsv", rows(12, 150, 1, true));
    world.write("data/MNLI/dev_matched.tsv", rows(16, 30, 2, true));
    world.write("data/MNLI/dev_mismatched.tsv", rows(16, 30, 3, true));
    world.write("data/MNLI/test_mismatched.tsv", rows(10, 6, 4, false));
    // The paper's row with fewer steps: the command line has precedence.
    finetune(&world, "mnli", "run", "--preset paper --steps 60 --set schedule.warmup_steps=6").succeeds();
    for task in ["mnli", "mnli-mismatched"] {
        let measured = world.run(&format!("evaluate --model run --data data --task {task}")).succeeds();
        assert!(figure(&measured.stdout, "accuracy\t") > 0.95, "{task}: {}", measured.stdout);
    }
    let predict = "predict --model run --input data/MNLI/test_mismatched.tsv --task mnli-mismatched";
    world.run(&format!("{predict} --glue-submission send")).succeeds().says(&["MNLI-mm.tsv"]);
    let text = fs::read_to_string(world.path("send/MNLI-mm.tsv")).unwrap();
    assert!(text.starts_with("index\tprediction\n0\t") && text.lines().count() == 7, "{text}");
    assert!(text.lines().skip(1).all(|line| labels.iter().any(|label| line.ends_with(label))), "{text}");
}

#[test]
fn a_line_without_words_has_an_answer_without_tags() {
    let world = world();
    for name in ["data/train.tsv", "data/dev.tsv"] {
        world.write(name, "rain\tB-W\nfalls\tO\n");
    }
    finetune(&world, "tag", "tagger", "--steps 1").succeeds();
    let classify = |input: &[u8], more: &str| {
        world.run_with_input(&format!("classify --model tagger --quiet - {more}"), input).succeeds().stdout
    };
    let words = |line: &str| line.split_whitespace().count();
    assert_eq!(classify(b"rain\n\nrain falls\n \n", "").lines().map(words).collect::<Vec<_>>(), [1, 0, 2, 0]);
    assert_eq!(classify(b"\n", ""), "\n");
    let blank = classify(b"\n", "--json --with-input");
    assert_eq!(blank, "{\"words\":[],\"tags\":[],\"probabilities\":[]}\n");
}

#[test]
fn mistakes_end_in_one_sentence() {
    let world = world();
    texts(&world, "data/train.tsv", 20, 1);
    world.write("data/dev.tsv", "text\tlabel\nfine\tunheard\n");
    for (task, more, said) in [
        ("classify", "", &["dev.tsv:2: unknown label \"unheard\"; expected one of"][..]),
        ("sst3", "", &["no task is called \"sst3\"; there are cola"]),
        ("cola", "", &["train.tsv:1: 2 columns, expected 4"]),
        ("regress", "", &["train.tsv:2: \"", "is not a number"]),
        ("classify", "--preset paper", &["the paper lists no settings for `classify`"]),
        ("classify", "--set optimizer.momentum=1", &["unknown field `momentum`"]),
        ("classify", "--set text.max_sequence_length=128", &["unknown label"]),
        ("classify", "--seeds 1001", &["--seeds 1001: expected 1 to 1000"]),
    ] {
        finetune(&world, task, "run", more).fails_with(said);
    }
    world.write("data/dev.tsv", "text\tlabel\nfine\tpos\n");
    finetune(&world, "classify", "run", "--set text.max_sequence_length=128 --set batch.max_tokens=512")
        .fails_with(&["`text.max_sequence_length` is 128, but the model has 64 positions"]);
    assert!(!world.path("run").exists(), "a refused run left a folder");
    let none = "finetune classify --data data --output x";
    world.run(none).fails_with(&["use --model DIR, or --from DIR"]);
    for line in ["evaluate --model model --data data", "predict --model model --input data"] {
        world.run(line).fails_with(&["the model has no head for this"]);
    }
}
