//! A bad line affects only itself: streams and files with bad lines, and the output for each line.

use albert_tests::{program::Finished, run_folder::World};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

/// A world with a tagger.
fn world() -> World {
    let world = World::with_models();
    for name in ["tags/train.conll", "tags/dev.conll"] {
        world.write(name, "rain B-W\nfalls O\n\nthe O\nsun B-W\n");
    }
    world.run("finetune tag --model run --data tags -o tagger --steps 1").succeeds();
    world
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// True for each entry whose `field` is null.
fn nulls(entries: &[Value], field: &str) -> Vec<bool> {
    entries.iter().map(|entry| entry[field].is_null()).collect()
}

/// Predictions of `model` for a file of `bytes` called `name`.
fn predict(world: &World, model: &str, name: &str, bytes: impl AsRef<[u8]>) -> Finished {
    world.write(name, bytes);
    world.run(&format!("predict --model {model} --input {name}"))
}

#[test]
fn streams_have_an_entry_for_each_line() {
    let world = world();
    let long = [b"x".repeat((16 << 20) + 9), b"\n".to_vec()].concat();
    let lines = [b"rain\n\nthe\tsun\nbad \xff\n".to_vec(), long, b"night\r\n".to_vec()].concat();
    // Command, field, and the numbers of the lines that are null.
    for (command, field, bad) in [
        ("classify --model tuned -", "label", &[2, 4, 5][..]),
        ("classify --model tagger -", "tags", &[4, 5]),
        ("embed --model run -", "embedding", &[4, 5]),
        ("tokenizer encode --tokenizer tokenizer.json -i -", "ids", &[4, 5]),
    ] {
        let told = world.run_with_input(&format!("{command} --json"), &lines).succeeds();
        let entries = objects(&told.stdout);
        let null: Vec<bool> = (1..=6).map(|at| bad.contains(&at)).collect();
        assert_eq!(nulls(&entries, field), null, "{command}: {}", told.stdout);
        for &at in bad {
            let one = &entries[at - 1];
            assert!(one["line"] == at && one["error"].is_string(), "{command}: {one}");
        }
        told.says(&[&format!("{} of 6 could not be used", bad.len()), &format!("standard input, line {}", bad[0])]);
        let told = world.run_with_input(&format!("{command} --json --on-error stop"), &lines);
        assert_eq!(told.stdout.lines().count(), bad[0] - 1, "{}", told.stderr);
        told.fails_with(&[&format!("line {}: ", bad[0])]);
        let told = world.run_with_input(&format!("{command} --max-errors 1"), &lines);
        assert_eq!(told.stdout.lines().count(), bad[1] - 1, "{}", told.stderr);
        told.fails_with(&["--max-errors 1", "is it the right file?"]);
    }
    let questions = concat!(
        "{\"question\": \"wo?\", \"context\": \"né 😀 rain falls\"}\n\n{\"question\": \"x\"}\nrain\n",
        "{\"question\": \"q \\ud83d\", \"context\": \"rain\"}\n"
    );
    let slice = |unit: &str, place: std::ops::Range<usize>| {
        let context = "né 😀 rain falls";
        match unit {
            "chars" => context.chars().collect::<Vec<_>>()[place].iter().collect(),
            "bytes" => context[place].to_owned(),
            _ => String::from_utf16(&context.encode_utf16().collect::<Vec<_>>()[place]).unwrap(),
        }
    };
    for unit in ["chars", "bytes", "utf16"] {
        let line = format!("answer --model finder --json --top 99 --offsets {unit} -");
        let entries = objects(&world.run_with_input(&line, questions.as_bytes()).succeeds().stdout);
        assert_eq!(nulls(&entries, "answer"), [false, true, true, true, false]);
        let answers = entries[0]["answers"].as_array().unwrap();
        assert!(!answers.is_empty());
        for answer in answers {
            let [start, end] = ["start", "end"].map(|key| answer[key].as_u64().unwrap() as usize);
            assert_eq!(answer["text"], slice(unit, start..end), "{unit}");
        }
    }
    let told = world.run_with_input("fill-mask --model run --json -", b"a [MASK]\nno mask\nthe [MASK]\n").succeeds();
    assert_eq!(nulls(&objects(&told.stdout), "masks"), [false, true, false]);
    let ids = b"7 8\nseven\n9999\n7\n";
    let told = world.run_with_input("tokenizer decode --tokenizer tokenizer.json", ids).succeeds();
    let lines: Vec<_> = told.stdout.lines().collect();
    assert!(lines.len() == 4 && lines[1].starts_with("null\tline 2: `seven`") && lines[2].starts_with("null\tline 3"));
}

/// Output of `command` for lines sent one at a time, each after the result of the previous one.
fn asked(mut command: Command, lines: &[&str]) -> String {
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (sender, receiver) = channel();
    let output = BufReader::new(program.stdout.take().unwrap());
    let reader = thread::spawn(move || output.lines().try_for_each(|line| sender.send(line.unwrap() + "\n")));
    let mut stdin = program.stdin.take().unwrap();
    let mut answers = String::new();
    for line in lines {
        writeln!(stdin, "{line}").unwrap();
        answers +=
            &receiver.recv_timeout(Duration::from_secs(100)).expect("a line is answered before the next one comes");
    }
    drop(stdin);
    reader.join().unwrap().unwrap();
    assert!(program.wait().unwrap().success());
    answers
}

/// A GPU begins a batch before the previous one is read. No line waits for later ones, and the results equal those of one line
/// at a time, in order.
#[test]
fn no_answer_waits_for_lines_to_come() {
    let world = World::with_models();
    let lines = [
        "rain falls on [MASK]",
        "",
        "the old [MASK] sails over the northern field in the year 1807",
        "[MASK]",
        "night",
    ];
    for (command, batch) in
        [("embed --model run", " --batch 2"), ("classify --model tuned", " --batch 2"), ("fill-mask --model run", "")]
    {
        for device in ["cpu", "cuda-sim"] {
            let command = format!("{command} - --json --device {device}");
            let at_once = |more: &str| world.run_with_input(&format!("{command}{more}"), lines.join("\n").as_bytes());
            let answers = asked(world.albert(&command), &lines);
            assert_eq!(at_once(batch).succeeds().stdout, answers, "{command}");
            if !command.starts_with("embed") {
                let told = at_once(&format!("{batch} --on-error stop"));
                assert_eq!(told.stdout.lines().next(), answers.lines().next(), "{command}: {}", told.stderr);
                told.fails_with(&["line 2: "]);
            }
        }
    }
}

#[test]
fn null_in_each_format() {
    let world = world();
    world.write("texts.txt", b"rain\n\xff\nsun\n");
    world.run("embed --model run texts.txt -o v.npy").succeeds().says(&["texts.txt:2: "]);
    let bytes = fs::read(world.path("v.npy")).unwrap();
    let values: Vec<f32> = bytes[bytes.len() - 3 * 32 * 4..]
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
        .collect();
    let rows: Vec<bool> = values.chunks_exact(32).map(|row| row.iter().all(|value| value.is_nan())).collect();
    assert_eq!(rows, [false, true, false]);
    let told = world.run("embed --model run texts.txt").succeeds();
    assert_eq!(told.stdout.lines().nth(1), Some("null"));
    let told = world.run("classify --model tuned --input texts.txt --with-input").succeeds();
    let columns: Vec<usize> = told.stdout.lines().map(|line| line.matches('\t').count()).collect();
    assert_eq!(columns, [2, 2, 2], "{}", told.stdout);

    let written = |model: &str, name: &str, text: &str, output: &str| {
        world.write(name, text);
        world.run(&format!("predict --model {model} --input {name} -o {output}")).succeeds();
        fs::read_to_string(world.path(output)).unwrap()
    };
    let table = written("tuned", "t.csv", "id,text\r\n\"a\tb\",rain\r\nc,\r\nd,sun\r\n", "t.tsv");
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split('\t').collect()).collect();
    assert!(rows.len() == 4 && rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    assert_eq!((rows[1][0], rows[2][0], rows[2][1], rows[3][0]), ("a\\tb", "c", "null", "d"));
    let sentences = written("tagger", "s.conll", "# sent_id = 1\nrain O\n\nsun O\nsea\n\nwind O\n", "o.conll");
    assert!(sentences.starts_with("rain\t") && sentences.contains("\n\n# null line 5: 1 columns"), "{sentences}");
    assert!(sentences.trim_end().lines().last().unwrap().starts_with("wind\t"), "{sentences}");
    let questions = "{\"id\":\"a\",\"question\":\"q\",\"context\":\"rain\"}\n{\"id\":\"b\",\"question\":1,\"context\":\"x\"}\n\
                     {\"id\":\"c\",\"question\":\"q\",\"context\":\"sun\",\"answers\":{\"text\":[],\"answer_start\":[]}}\n";
    let answers: Value = serde_json::from_str(&written("finder", "q.jsonl", questions, "q.json")).unwrap();
    assert_eq!(answers.as_object().unwrap().keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn files_as_other_programs_write_them_are_read() {
    let world = world();
    let utf_16: Vec<u8> =
        "\u{feff}text\tlabel\r\nrain\twet\r\nsún\tdry\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    // Name, content, number of predictions, and lines without one.
    let cases: Vec<(&str, Vec<u8>, usize, &[u64])> = vec![
        ("crlf.csv", b"text,label\r\na,x\r\n\"b\r\nb\",x\r\n\r\n ,x\r\nc,x\r\n".to_vec(), 4, &[6]),
        ("cr.csv", b"text,label\ra,x\r,x\rc,x\r".to_vec(), 3, &[3]),
        ("cr.tsv", b"text\tlabel\ra\tx\r\tx\rc\tx\r".to_vec(), 3, &[3]),
        ("mark.tsv", "\u{feff}text\tlabel\r\na\tx\r\n\tx\r\n".into(), 2, &[3]),
        ("minus.csv", b"text,label\na,-1\nb,-1\n".to_vec(), 2, &[]),
        ("semicolons.csv", b"text;label\na, b;wet\nc;dry\n".to_vec(), 2, &[]),
        ("sep.csv", b"sep=;\r\ntext;label\r\na;wet\r\n;dry\r\n".to_vec(), 2, &[4]),
        ("utf16.csv", utf_16.clone(), 2, &[]),
        ("utf16.tsv", utf_16, 2, &[]),
        ("trailing.csv", b"text,label,,\r\na,wet,,\r\n,,,\r\nb,dry,,\r\n,,,\r\n".to_vec(), 2, &[]),
        ("tail.jsonl", b"{\"text\":\"a\"}\n\n{\"text\":\"b\",\"label\":[1]}\n\n".to_vec(), 2, &[]),
        (
            "bad.jsonl",
            b"{\"text\":\"a\"}\n{\"text\":\n{\"txt\":\"b\"}\n{\"text\":[1]}\n{\"text\":\"b\"}".to_vec(),
            5,
            &[2, 3, 4],
        ),
        ("array.json", b"[{\"text\": \"a\"},\n{\"text\": []},\n{\"text\": \"b \\udc00\"}]".to_vec(), 3, &[2]),
    ];
    for (name, bytes, count, bad) in cases {
        let told = predict(&world, "tuned", name, &bytes).succeeds();
        let entries = objects(&told.stdout);
        let null = entries.iter().filter(|one| one["label"].is_null());
        let lines: Vec<u64> = null.map(|one| one["line"].as_u64().unwrap()).collect();
        assert_eq!((entries.len(), &lines[..]), (count, bad), "{name}: {}{}", told.stdout, told.stderr);
        // Ids are row numbers, even after a row without a prediction.
        let is_row = |(at, one): (usize, &Value)| one["id"] == *at.to_string() || one["label"].is_null();
        assert!((0..).zip(&entries).all(is_row), "{name}: {}", told.stdout);
    }
    predict(&world, "tuned", "surrogate.jsonl", "{\"text\": \"a \\ud83d\"}\n").succeeds().says(&["lone surrogate"]);
    predict(&world, "tuned", "pipes.csv", "text|label\na|wet\n").fails_with(&["pipes.csv:1: ", "delimiter", "'|'"]);
    predict(&world, "tuned", "open.csv", "text\na\n\"b\nc\n").fails_with(&["open.csv:3: a double quote"]);
    for (name, text) in [
        ("t.jsonl", "{\"tokens\":[\"rain\",\"falls\"],\"ner_tags\":[3,4]}\n{\"words\":[\"sun\"],\"tags\":[\"?\"]}\n"),
        ("t.json", "[{\"tokens\":[\"rain\",\"falls\"]},\n{\"tokens\":[\"sun\"]}]"),
        ("t.conll", "# newdoc\n# text = rain falls\nrain ?\nfalls ?\n\nsun ?\n"),
    ] {
        let entries = objects(&predict(&world, "tagger", name, text).succeeds().stdout);
        let words: Vec<usize> = entries.iter().map(|one| one["tags"].as_array().unwrap().len()).collect();
        assert_eq!(words, [2, 1], "{name}");
    }
    // Standard input has no name that indicates its kind.
    for (model, text, field, expected) in [
        ("tagger", "{\"tokens\":[\"rain\"]}\n{\"tokens\":[\"sun\"]}\n", "tags", [false, false]),
        ("tagger", "rain\n\nsun\n", "tags", [false, false]),
        ("tuned", "{\"text\":\n{\"text\":\"sun\"}\n", "label", [true, false]),
        ("tuned", "[{\"text\":\"sun\"},\n{\"text\":{}}]", "label", [false, true]),
    ] {
        let told = world.run_with_input(&format!("predict --model {model} --input -"), text.as_bytes()).succeeds();
        assert_eq!(nulls(&objects(&told.stdout), field), expected, "{text}");
    }
    // A word without pieces does not affect other words.
    let tags = |text: &str| objects(&predict(&world, "tagger", "z.conll", text).succeeds().stdout)[0].clone();
    let (with, without) = (tags("rain\n\u{200b}\nfalls\n"), tags("rain\nfalls\n"));
    assert_eq!(with["probabilities"][2], without["probabilities"][1]);
    assert_eq!((&with["tags"][1], with["tags"].as_array().unwrap().len()), (&Value::from("O"), 3));
}

#[test]
fn training_files_stop_unless_told_and_answers_may_be_elsewhere() {
    let world = World::with_models();
    world.write("bad.tsv", "text\tlabel\nrain\twet\n\tdry\nthe sun\tdry\nnight\twet\n");
    let evaluate = "evaluate --model tuned --data bad.tsv";
    world.run(evaluate).fails_with(&["bad.tsv:3: the text is empty"]);
    let told = world.run(&format!("{evaluate} --on-error skip --json")).succeeds();
    let figures: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(figures["count"], 3);
    let confusion = &figures["confusions"][0];
    assert!(confusion["truth_label"].is_string() && confusion["predicted_label"].is_string());
    told.says(&["bad.tsv:3: skipped: the text is empty"]);
    let tune = "finetune classify --model run --train bad.tsv -o skipped --steps 1";
    world.run(tune).fails_with(&["bad.tsv:3: "]);
    let skipped = ["skipped: the text is empty", "too few to choose"];
    world.run(&format!("{tune} --on-error skip")).succeeds().says(&skipped);

    let paragraph = |answers: &str| {
        format!(
            "{{\"data\": [{{\"paragraphs\": [{{\"context\": \"rain falls on hills\", \"qas\": [{{\"id\": \"1\", \
             \"question\": \"where\", \"answers\": [{{\"text\": \"hills\", \"answer_start\": 14}}]}}, {{\"id\": \"2\", \
             \"question\": \"who\", \"answers\": [{answers}]}}]}}]}}]}}"
        )
    };
    let flat = "{\"id\": \"1\", \"context\": \"rain falls\", \"question\": \"what\", \"answers\": {\"text\": [\"falls\"], \
                \"answer_start\": [5]}}\n";
    for (name, text, said) in [
        ("s.json", paragraph("{\"text\": \"\", \"answer_start\": -1}"), "question \"2\" has no usable answer"),
        ("s.json", paragraph("{\"text\": \"rain\", \"answer_start\": \"0\"}"), "train: 2 examples"),
        ("s.json", paragraph("{\"text\": \"rain\", \"answer_start\": 0.0}"), "train: 2 examples"),
        ("s.jsonl", flat.to_owned(), "train: 1 examples"),
        ("s.json", format!("[{}]", flat.trim()), "train: 1 examples"),
        ("s.json", flat.to_owned(), "train: 1 examples"),
    ] {
        world.write(name, text);
        let _ = fs::remove_dir_all(world.path("q"));
        let tune = format!("finetune qa --model run --train {name} -o q --steps 1 data.dev_share=0");
        let told = world.run(&tune).succeeds().says(&[said]);
        assert!(!told.stderr.contains("elsewhere"), "{}", told.stderr);
    }
    world.write("s.json", paragraph("{\"text\": \"rain\", \"answer_start\": \"x\"}"));
    let told = world.run("finetune qa --model run --train s.json -o n");
    told.fails_with(&["s.json: question \"2\": answer_start is \"x\""]);
}

#[test]
fn names_of_other_formats_are_refused_before_work() {
    let world = World::with_models();
    for name in "v.parquet v.npz v.pt v.safetensors v.npy.gz v.jsonl.gz v.csv v.h5 v.json".split(' ') {
        let embed = world.run(&format!("embed --model none text.txt -o {name}"));
        embed.fails_with(&[&name[1..name.len().min(4)], "name"]);
        world.run(&format!("classify --model none --input text.txt -o {name}")).fails_with(&["name"]);
        assert!(!world.path(name).exists(), "{name}");
    }
    world.run("tokenizer train none -o v.model").fails_with(&["v.model", "ends in .json"]);
    for name in ["t.jsonl", "t.csv", "t.tsv.gz", "t.parquet", "t.json.zst", "t.xlsx"] {
        world.write(name, "{\"a\": {\"text\": \"rain\"}}\n");
        world.run(&format!("embed --model none {name}")).fails_with(&[name, "expected"]);
    }
    let told = world.run("embed --model run --field a.text --json --with-input t.jsonl");
    assert_eq!(objects(&told.succeeds().stdout)[0]["text"], "rain");
    predict(&world, "tuned", "p.parquet", "PAR1").fails_with(&["p.parquet", "expected a name that ends in"]);
    world.run("predict --model tuned --input task/dev.tsv -o p.csv").fails_with(&["p.csv", "expected a"]);
}
