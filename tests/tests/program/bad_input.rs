//! Bad input: message, exit code, and that existing files are not damaged.

use albert_tests::{
    program::{Finished, albert, albert_with_file_limit, finish, finish_with_input},
    run_folder::{World, checkpoints, corpus},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn run(arguments: &[&str]) -> Finished {
    finish(&mut albert(arguments))
}

fn pretrain(world: &World, folder: &str, more: &[&str]) -> Finished {
    finish(&mut albert(&world.pretrain(folder, more)))
}

/// Name and bytes of every file under `folder`.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(files(&path));
        } else {
            out.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    out
}

fn flip_bit(path: &Path, from_end: usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path, by: usize) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - by]).unwrap();
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}

#[test]
fn missing_files_are_named() {
    let world = World::new();
    let [text, tokenizer, data, none] =
        ["text.txt", "tokenizer.json", "data", "none"].map(|name| world.text_path(name));
    run(&["tokenizer", "train", &none, "-o", &world.text_path("new.json")]).fails_with(&[&none, "no such file"]);
    run(&["data", "build", &none, "--tokenizer", &tokenizer, "-o", &data]).fails_with(&[&none, "no such file"]);
    run(&["data", "build", &text, "--tokenizer", &none, "-o", &data]).fails_with(&[&none, "cannot read the file"]);
    run(&["data", "inspect", &none, "--tokenizer", &tokenizer]).fails_with(&[&none, "dataset.json is missing"]);
    run(&["tokenizer", "encode", "--tokenizer", &none]).fails_with(&[&none]);
    run(&["fill-mask", "--model", &none, "a [MASK]"]).fails_with(&[&none, "no such folder"]);
    run(&["pretrain", &none, "-o", &world.text_path("run")]).fails_with(&[&none, "no such file", "xxlarge"]);
    run(&["pretrain", &world.text_path("recipe.toml"), "-o", &world.text_path("run")]).fails_with(&["--data"]);
    run(&["pretrain", "--resume", "-o", &world.text_path("run")]).fails_with(&["config.toml cannot be read"]);
    assert!(!world.path("run").exists() && !world.path("new.json").exists());
    // A cause is printed once.
    let told = run(&["data", "build", &text, "--tokenizer", &none, "-o", &data]);
    assert_eq!(told.stderr.matches("os error 2").count(), 1, "{}", told.stderr);
}

#[test]
fn an_empty_corpus_is_refused() {
    let world = World::new();
    for text in ["", "\n\n  \n\t\n"] {
        fs::write(world.path("empty.txt"), text).unwrap();
        let [empty, tokenizer, new] = ["empty.txt", "tokenizer.json", "new"].map(|name| world.text_path(name));
        run(&["data", "build", &empty, "--tokenizer", &tokenizer, "-o", &new]).fails_with(&["corpus is empty", &empty]);
        let vocabulary = world.text_path("new.json");
        run(&["tokenizer", "train", &empty, "-o", &vocabulary]).fails_with(&["no text to train a vocabulary on"]);
        assert!(!world.path("new.json").exists());
        assert!(!world.path("new").exists() || files(&world.path("new")).is_empty());
    }
}

#[test]
fn documents_of_one_sentence_are_counted_and_listed() {
    let world = World::new();
    let text: String = (0..20).map(|i| format!("the river flows to the village {i}.\n\n")).collect();
    fs::write(world.path("ones.txt"), text).unwrap();
    let [ones, tokenizer, new] = ["ones.txt", "tokenizer.json", "new"].map(|name| world.text_path(name));
    let first = format!("{ones}:1");
    run(&["data", "build", &ones, "--tokenizer", &tokenizer, "-o", &new])
        .succeeds()
        .says(&["20 documents of one sentence give no sentence pair", &first]);
    let arguments = ["pretrain", &world.text_path("recipe.toml"), "-o", &world.text_path("run"), "--data", &new];
    let more = |settings: &[&'static str]| {
        let all = arguments.iter().copied().chain(["--tokenizer", &tokenizer]).chain(settings.iter().copied());
        run(&all.collect::<Vec<_>>())
    };
    more(&[]).fails_with(&["has two sentences", "lone_sentence", "objective"]);
    assert!(!world.path("run").exists());
    // The proposed remedy works.
    more(&["data.instances.objective=none", "schedule.steps=4"]).succeeds();
}

#[test]
fn invalid_utf8_is_placed_and_can_be_repaired() {
    let world = World::new();
    let before = files(&world.path("data"));
    let mut bytes = b"a good line\nbad \xff\xfe line\n\n".to_vec();
    bytes.extend(corpus(30).into_bytes());
    fs::write(world.path("bad.txt"), bytes).unwrap();
    let [bad, tokenizer, data, new] = ["bad.txt", "tokenizer.json", "data", "new"].map(|name| world.text_path(name));
    let place = format!("{bad}:2: invalid UTF-8 at byte 5");
    let build = ["data", "build", &bad, "--tokenizer", &tokenizer, "-o"];
    run(&[&build[..], &[&data]].concat()).fails_with(&[&place, "0xFF", "--lossy"]);
    assert_eq!(files(&world.path("data")), before, "the data of before are untouched");
    run(&[&build[..], &[&new, "--lossy"]].concat()).succeeds().says(&["1 lines with invalid UTF-8 were repaired"]);
    let train = ["tokenizer", "train", &bad, "--vocab-size", "120", "-o", &world.text_path("new.json")];
    run(&train).fails_with(&[&place, "--lossy"]);
    run(&[&train[..], &["--lossy"]].concat()).succeeds();
    let encode = ["tokenizer", "encode", "--tokenizer", &tokenizer, "--on-error", "stop"];
    let told = finish_with_input(&mut albert(&encode), b"a\n\xff\n");
    told.fails_with(&["standard input, line 2: invalid UTF-8 at byte 1"]);
}

#[test]
fn a_line_of_ten_megabytes_is_taken() {
    let world = World::new();
    let mut text = "the river flows to the village. ".repeat(10_000_000 / 32);
    assert!(text.len() >= 9_999_000);
    text.push_str("\n\n");
    text.push_str(&corpus(150));
    fs::write(world.path("long.txt"), text).unwrap();
    let [long, tokenizer, new] = ["long.txt", "tokenizer.json", "new"].map(|name| world.text_path(name));
    let place = format!("cut, the first at {long}:1");
    run(&["data", "build", &long, "--tokenizer", &tokenizer, "-o", &new]).succeeds().says(&["1 sentences", &place]);
    run(&["tokenizer", "train", &long, "--vocab-size", "200", "-o", &world.text_path("new.json")])
        .succeeds()
        .says(&["1 lines were too long"]);
    let input = fs::read(world.path("long.txt")).unwrap();
    let told = finish_with_input(&mut albert(&["tokenizer", "encode", "--tokenizer", &tokenizer]), &input).succeeds();
    assert_eq!(told.stdout.lines().count(), input.iter().filter(|&&byte| byte == b'\n').count());
}

#[test]
fn impossible_vocabularies_are_refused() {
    let world = World::new();
    let before = fs::read(world.path("tokenizer.json")).unwrap();
    let [text, tokenizer] = ["text.txt", "tokenizer.json"].map(|name| world.text_path(name));
    let train = |size: &str| run(&["tokenizer", "train", &text, "-o", &tokenizer, &format!("--vocab-size={size}")]);
    train("30000").fails_with(&["vocab_size 30000 is too large for this text", "at most"]);
    train("5").fails_with(&["vocab_size 5 is too small"]);
    train("1000000000000").fails_with(&["vocab_size", "1000000000000", "expected"]);
    for size in ["0", "-3", "1.5"] {
        train(size).is_wrong_usage(&[size, "expected a whole number from 1"]);
    }
    train("many").is_wrong_usage(&["many"]);
    assert_eq!(fs::read(world.path("tokenizer.json")).unwrap(), before);
}

#[test]
fn damaged_shards_are_noticed_before_anything_is_written() {
    let world = World::new();
    for name in files(&world.path("data")).into_keys() {
        let original = fs::read(&name).unwrap();
        let file = name.file_name().unwrap().to_str().unwrap().to_owned();
        let damages: &[fn(&Path)] = if file.ends_with(".shard") {
            &[|path| truncate(path, 1), |path| flip_bit(path, 30), |path| flip_bit(path, 2000)]
        } else {
            // The last one leaves a readable index with another number.
            &[
                |path| truncate(path, 700),
                |path| fs::write(path, "").unwrap(),
                |path| {
                    let text = fs::read_to_string(path).unwrap();
                    let changed = text.replacen("\"documents\": 1", "\"documents\": 2", 1);
                    assert_ne!(changed, text);
                    fs::write(path, changed).unwrap();
                },
            ]
        };
        for damage in damages {
            damage(&name);
            pretrain(&world, "run", &[]).fails_with(&[&file, "albert data build"]);
            fs::write(&name, &original).unwrap();
        }
    }
    assert!(!world.path("run").exists());
}

#[test]
fn a_damaged_last_checkpoint_falls_back_to_the_one_before() {
    let world = World::new();
    pretrain(&world, "run", &[]).succeeds();
    let whole = world.path("run");
    for (name, damage) in [
        ("cut", (|path: &Path| truncate(path, 100)) as fn(&Path)),
        ("flipped", |path| flip_bit(path, 500)),
        ("empty", |path| fs::write(path, "").unwrap()),
    ] {
        copy_folder(&whole, &world.path(name));
        let [before, last] = checkpoints(&world.path(name)).try_into().expect("two checkpoints stay");
        let (before, last) = (before.as_path(), last.as_path());
        damage(last);
        let untouched = fs::read(before).unwrap();
        let told = pretrain(&world, name, &["--resume"]).succeeds();
        let told = told.says(&["warning: ", last.to_str().unwrap(), "using the previous checkpoint", "at step 35"]);
        assert_eq!(fs::read(before).unwrap(), untouched, "{name}: {}", told.stderr);
        albert_tests::run_folder::assert_same_run(&whole, &world.path(name), name);
        // Both damaged: an error, and nothing is written.
        damage(before);
        damage(last);
        let left = files(&world.path(name));
        pretrain(&world, name, &["--resume"]).fails_with(&["none of the 2 checkpoints is whole"]);
        assert_eq!(files(&world.path(name)), left, "{name}");
    }
}

/// Rewrites the header of a safetensors file, without the checksum that would detect it first.
fn edit_header(path: &Path, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    edit(&mut header);
    header.shift_remove("__metadata__");
    let mut text = serde_json::to_vec(&header).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let parts = [&(text.len() as u64).to_le_bytes()[..], &text, &bytes[8 + length..]];
    fs::write(path, parts.concat()).unwrap();
}

#[test]
fn a_model_that_is_not_whole_is_refused() {
    const TENSOR: &str = "predictions.dense.weight";
    let world = World::new();
    pretrain(&world, "run", &["schedule.steps=4"]).succeeds();
    let ask = |name: &str| run(&["fill-mask", "--model", &world.text_path(name), "the [MASK] flows"]);
    ask("run").succeeds();
    let damaged = |name: &str, damage: &dyn Fn(&Path)| {
        copy_folder(&world.path("run"), &world.path(name));
        damage(&world.path(name).join("model.safetensors"));
        ask(name)
    };
    damaged("missing", &|path| {
        edit_header(path, |header| {
            let tensor = header.shift_remove(TENSOR).unwrap();
            header.insert("elsewhere".to_owned(), tensor);
        });
    })
    .fails_with(&[TENSOR, "missing", "model.safetensors"]);
    damaged("shape", &|path| {
        edit_header(path, |header| header[TENSOR]["shape"] = serde_json::json!([32, 16]));
    })
    .fails_with(&[TENSOR, "[32, 16]", "[16, 32]"]);
    damaged("cut", &|path| truncate(path, 10)).fails_with(&["model.safetensors", "cut short"]);
    damaged("flipped", &|path| flip_bit(path, 10)).fails_with(&["model.safetensors", "damaged"]);
    let tokenizer = world.path("run").join("tokenizer.json");
    truncate(&tokenizer, 20);
    ask("run").fails_with(&["tokenizer.json", "cut short or damaged"]);
}

#[test]
fn ids_that_a_model_does_not_have_and_inputs_beyond_its_positions_are_refused() {
    let world = World::of_text("");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let [model, pieces] = ["forward/tiny-albertmodel", "tokenizer/spiece.model"]
        .map(|name| golden.join(name).to_str().unwrap().to_owned());
    let [ids, out] = ["ids.jsonl", "out.safetensors"].map(|name| world.text_path(name));
    let forward = ["forward", "--model", &model, "--ids", &ids, "-o", &out];
    let good = r#"{"input_ids": [2, 47, 3]}"#;
    let long = |tokens: usize| format!("{{\"input_ids\": {:?}}}", vec![1; tokens]);
    for (line, said) in [
        (r#"{"input_ids": [2, 48]}"#.to_owned(), "`input_ids` holds 48 (number 1), and the model has 48 pieces"),
        (r#"{"input_ids": [-1]}"#.to_owned(), "`input_ids` holds -1 (number 0)"),
        (r#"{"input_ids": [9223372036854775808]}"#.to_owned(), "a list of whole numbers was expected"),
        (r#"{"input_ids": [1], "token_type_ids": [2]}"#.to_owned(), "`token_type_ids` holds 2 (number 0)"),
        (long(25), "`input_ids` has 25 tokens, and the model has 24 positions"),
    ] {
        fs::write(world.path("ids.jsonl"), format!("{good}\n{line}\n")).unwrap();
        run(&forward).fails_with(&["ids.jsonl:2: ", said]);
        assert!(!Path::new(&out).exists(), "{line}");
    }
    fs::write(world.path("ids.jsonl"), format!("{good}\n\n{}\n", long(24))).unwrap();
    run(&forward).succeeds();
    let names = engine::io::Safetensors::open(&out).unwrap().names();
    let counted = |line: &str| names.iter().any(|name| name.starts_with(line));
    assert!(counted("0.") && counted("2.") && !counted("1."), "a blank line is counted: {names:?}");

    let decode = ["tokenizer", "decode", "--tokenizer", &pieces, "--on-error", "stop"];
    for (line, said) in [("7 1000", "`1000`"), ("-1", "`-1`"), ("4294967296", "`4294967296`"), ("x", "`x`")] {
        let told = finish_with_input(&mut albert(&decode), format!("7 999\n{line}\n").as_bytes());
        told.fails_with(&["line 2: ", said, "is not an id; expected 0 to 999"]);
    }
}

#[test]
fn texts_and_tokenizers_that_a_model_was_not_made_for_are_refused() {
    let world = World::new();
    pretrain(&world, "run", &["schedule.steps=4"]).succeeds();
    let folder = world.text_path("run");
    let long = format!("a [MASK] {}", "river ".repeat(80));
    run(&["fill-mask", "--model", &folder, &long]).fails_with(&["tokens, and the model has 64 positions"]);
    let out = world.text_path("out.safetensors");
    run(&["forward", "--model", &folder, "--text", &long, "-o", &out]).fails_with(&["and the model has 64 positions"]);
    let other = world.text_path("run/tokenizer.json");
    run(&["tokenizer", "train", &world.text_path("text.txt"), "--vocab-size", "260", "-o", &other]).succeeds();
    run(&["fill-mask", "--model", &folder, "a [MASK]"]).fails_with(&["260 pieces and the model 200"]);
    run(&["forward", "--model", &folder, "--text", "a", "-o", &out]).fails_with(&["260 pieces and the model 200"]);
    fs::copy(&other, world.path("tokenizer.json")).unwrap();
    pretrain(&world, "next", &[]).fails_with(&[".shard", "tokenized with another tokenizer"]);
    assert!(!world.path("next").exists());
}

#[test]
fn unknown_keys_are_refused() {
    let world = World::new();
    for (setting, named) in [
        ("model.hiden_size=3", "unknown field `hiden_size`"),
        ("optimizer.learning_rat=1", "unknown field `learning_rat`"),
        ("nosuch.key=1", "unknown field `nosuch`"),
        ("data.batch.max_token=9", "unknown field `max_token`"),
    ] {
        pretrain(&world, "run", &[setting]).fails_with(&["recipe.toml", named, "expected one of"]);
    }
    pretrain(&world, "run", &["learning_rate"]).is_wrong_usage(&["`learning_rate`", "section.key=value"]);
    let recipe = fs::read_to_string(world.path("recipe.toml")).unwrap();
    fs::write(world.path("recipe.toml"), recipe.replace("log_interval", "log_intervall")).unwrap();
    pretrain(&world, "run", &[]).fails_with(&["recipe.toml", "unknown field `log_intervall`"]);
    fs::write(world.path("recipe.toml"), format!("{recipe}\nnot toml")).unwrap();
    pretrain(&world, "run", &[]).fails_with(&["recipe.toml", "not TOML: line"]);
    assert!(!world.path("run").exists());
}

#[test]
fn zero_and_absurd_sizes_are_refused() {
    let world = World::new();
    const HUGE: &str = "1000000000000";
    for key in [
        "model.vocab_size",
        "model.hidden_size",
        "model.embedding_size",
        "model.num_hidden_layers",
        "model.num_attention_heads",
        "model.intermediate_size",
        "model.max_position_embeddings",
        "data.batch.max_tokens",
        "data.batch.max_sequences",
    ] {
        let name = key.rsplit('.').next().unwrap();
        for value in ["0", HUGE] {
            pretrain(&world, "run", &[&format!("{key}={value}")]).fails_with(&[name, value, "expected"]);
        }
    }
    for (setting, said) in [
        ("data.batch.sequences_per_step=1000000000000", "sequences_per_step"),
        ("model.num_hidden_layers=16777216", "num_hidden_layers"),
        ("model.hidden_size=33", "not a multiple of `num_attention_heads`"),
        ("schedule.steps=0", "`schedule.steps` is 0"),
        ("schedule.steps=-1", "schedule"),
        ("schedule.steps=lots", "\"lots\""),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate"),
        ("model.hidden_dropout_prob=2", "hidden_dropout_prob"),
        ("run.log_interval=0", "run.log_interval"),
        ("model.preset=\"huge\"", "no model preset is called `huge`"),
        ("model.vocab_size=5000", "the tokenizer has 200 pieces"),
        ("model.max_position_embeddings=4", "expected"),
    ] {
        pretrain(&world, "run", &[setting]).fails_with(&[said]);
    }
    assert!(!world.path("run").exists());
    run(&["info", "huge"]).fails_with(&["no model preset is called `huge`", "xxlarge"]);
    run(&["info", "base", "--seq", HUGE]).fails_with(&["--seq", "512"]);
    run(&["info", "base", "--batch", "0"]).is_wrong_usage(&["--batch", "a whole number from 1"]);
    run(&["pretrain", "huge", "-o", &world.text_path("run")])
        .fails_with(&["no such file or built-in recipe: `huge`", "base"]);
    run(&["fill-mask", "--model", "x", "a [MASK]", "--top", "0"]).is_wrong_usage(&["a whole number from 1"]);
    run(&["quickstart", "--minutes", "0", "-o", &world.text_path("run")]).fails_with(&["--minutes 0"]);
}

#[test]
fn wrong_usage_is_exit_code_two() {
    run(&[]).is_wrong_usage(&["Usage"]);
    run(&["pretrian"]).is_wrong_usage(&["pretrian", "pretrain"]);
    run(&["pretrain", "recipe.toml"]).is_wrong_usage(&["--output"]);
    run(&["info", "base", "--nonsense"]).is_wrong_usage(&["--nonsense"]);
    for arguments in [
        &["tokenizer", "train", "text", "--vocab-size", "-5"][..],
        &["finetune", "classify", "--data", "x", "-o", "y", "--steps", "-4"],
        &["info", "base", "--batch", "-1"],
    ] {
        let told = run(arguments).is_wrong_usage(&["expected a whole number from 1"]);
        assert!(!told.stderr.contains("-- -"), "advice that leads astray: {}", told.stderr);
    }
}

#[test]
fn nonsense_in_the_environment_is_named() {
    for (variable, value, said) in [
        ("ALBERT_ISA", "mmx", "scalar"),
        ("ALBERT_THREADS", "many", "1 to 1024"),
        ("ALBERT_THREADS", "0", "1 to 1024"),
        ("ALBERT_THREADS", "1000000000000", "1 to 1024"),
        ("ALBERT_L2", "1G", "512K"),
    ] {
        let told = finish(albert(&["doctor"]).env(variable, value));
        told.fails_with(&[&format!("{variable}={value}"), said]);
    }
    let world = World::new();
    let told = finish(albert(&world.pretrain("run", &["--device", "cuda-sim"])).env("ALBERT_GRAPHS", "maybe"));
    told.fails_with(&["ALBERT_GRAPHS = maybe", "on or off was expected"]);
}

#[test]
fn an_output_below_a_regular_file_is_refused() {
    let world = World::new();
    let before = fs::read(world.path("text.txt")).unwrap();
    let [text, tokenizer] = ["text.txt", "tokenizer.json"].map(|name| world.text_path(name));
    let below = format!("{text}/below");
    for place in [&text, &below] {
        run(&["data", "build", &text, "--tokenizer", &tokenizer, "-o", place]).fails_with(&[place]);
        pretrain(&world, if place == &text { "text.txt" } else { "text.txt/below" }, &[]).fails_with(&[
            place,
            &text,
            "is a file; choose another folder",
        ]);
    }
    run(&["tokenizer", "train", &text, "--vocab-size", "200", "-o", &below]).fails_with(&[&below, "cannot create"]);
    run(&["quickstart", "-o", &below, "--minutes", "0.1"]).fails_with(&[&below]);
    assert_eq!(fs::read(world.path("text.txt")).unwrap(), before);
}

#[cfg(unix)]
#[test]
fn a_disk_that_fills_leaves_what_was_there() {
    let world = World::new();
    let [text, tokenizer, data] = ["text.txt", "tokenizer.json", "data"].map(|name| world.text_path(name));
    let limited = |kib: usize, arguments: &[&str]| finish(&mut albert_with_file_limit(kib, arguments));
    pretrain(&world, "run", &["schedule.steps=200", "run.checkpoint_interval=0"]).succeeds();
    let before = files(world.path("data").parent().unwrap());
    limited(4, &["data", "build", &text, "--tokenizer", &tokenizer, "-o", &data]).fails_with(&["cannot write"]);
    limited(4, &["tokenizer", "train", &text, "--vocab-size", "200", "-o", &tokenizer])
        .fails_with(&["tokenizer.json", "cannot write"]);
    assert_eq!(files(world.path("data").parent().unwrap()), before, "what was there is untouched, and nothing is left");

    // A run that cannot write its first or a later checkpoint: complete files stay intact, and the run can be resumed.
    pretrain(&world, "full", &["run.checkpoint_interval=0", "schedule.steps=40"]).succeeds();
    let whole = checkpoints(&world.path("full"));
    let state = fs::metadata(&whole[0]).unwrap().len() as usize;
    for kib in [1, state / 2048, state / 1024 - 1] {
        let name = format!("limit-{kib}");
        let arguments = world.pretrain(&name, &[]);
        let refused = finish(&mut albert_with_file_limit(kib, &arguments)).fails_with(&["cannot write", "os error 27"]);
        let left = files(&world.path(&name)).into_keys().filter(|path| path.to_string_lossy().contains(".partial"));
        assert_eq!(left.count(), 0, "{kib} KiB: {}", refused.stderr);
        // With free space the same command finishes.
        pretrain(&world, &name, &["--resume"]).succeeds();
    }
    pretrain(&world, "two", &[]).succeeds();
    let [first, last] = checkpoints(&world.path("two")).try_into().expect("two checkpoints stay");
    fs::remove_file(&last).unwrap();
    let before = fs::read(&first).unwrap();
    let arguments = world.pretrain("two", &["--resume"]);
    finish(&mut albert_with_file_limit(state / 1024 - 1, &arguments)).fails_with(&["cannot write", "os error 27"]);
    assert_eq!(fs::read(&first).unwrap(), before, "the checkpoint of before is whole");
    pretrain(&world, "two", &["--resume"]).succeeds();
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let world = World::new();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for arguments in [&["info", "base", "--json"][..], &["info", "base"]] {
        let told = albert(arguments).stdout(full()).stderr(std::process::Stdio::piped()).output().unwrap();
        assert_eq!(told.status.code(), Some(1), "{arguments:?}");
        assert!(String::from_utf8_lossy(&told.stderr).contains("No space left"), "{told:?}");
    }
    drop(world);
}

#[test]
fn a_run_is_not_resumed_with_other_settings_nor_overwritten() {
    let world = World::new();
    pretrain(&world, "run", &["schedule.steps=10"]).succeeds();
    let before = files(&world.path("run"));
    pretrain(&world, "run", &[]).fails_with(&["already holds a run", "resume"]);
    for (setting, key) in [
        ("optimizer.learning_rate=0.5", "`optimizer.learning_rate` = 0.01, but now it is 0.5"),
        ("seed=8", "`seed` = 7"),
        ("model.num_hidden_layers=3", "`model.num_hidden_layers` = 2"),
        ("data.batch.max_tokens=600", "`data.batch.max_tokens` = 512"),
    ] {
        pretrain(&world, "run", &["--resume", "schedule.steps=10", setting])
            .fails_with(&[key, "resume with the old value"]);
    }
    assert_eq!(files(&world.path("run")), before, "nothing is touched");
}
