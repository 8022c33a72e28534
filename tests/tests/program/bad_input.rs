//! Bad input: message, exit code, and undamaged existing files.

use albert_tests::{
    program::{albert, finish, finish_with_input, run},
    run_folder::{World, assert_same_run, checkpoints, copy, corpus, files},
};
use std::{fs, path::Path};

fn damage(path: &Path, damage: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    damage(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn flip_bit(bytes: &mut [u8], from_end: usize) {
    let at = bytes.len() - from_end;
    bytes[at] ^= 4;
}

fn truncate(bytes: &mut Vec<u8>, by: usize) {
    bytes.truncate(bytes.len() - by);
}

#[test]
fn missing_files_are_named() {
    let world = World::new();
    for (line, parts) in [
        ("tokenizer train absent -o new.json", &["absent", "no such file"][..]),
        ("data build absent --tokenizer tokenizer.json -o data", &["absent", "no such file"]),
        ("data build text.txt --tokenizer absent -o data", &["absent", "cannot read the file"]),
        ("data inspect absent --tokenizer tokenizer.json", &["absent", "dataset.json is missing"]),
        ("tokenizer encode --tokenizer absent", &["absent"]),
        ("fill-mask --model absent 'a [MASK]'", &["absent", "no such folder"]),
        ("pretrain absent -o run", &["no such file or built-in recipe: `absent`", "xxlarge"]),
        ("pretrain recipe.toml -o run", &["--data"]),
        ("pretrain --resume -o run", &["config.toml cannot be read"]),
    ] {
        world.run(line).fails_with(parts);
    }
    assert!(!world.path("run").exists() && !world.path("new.json").exists());
    // A cause is printed only once.
    let told = world.run("data build text.txt --tokenizer absent -o data");
    assert_eq!(told.stderr.matches("os error 2").count(), 1, "{}", told.stderr);
}

#[test]
fn an_empty_corpus_is_refused() {
    let world = World::new();
    for text in ["", "\n\n  \n\t\n"] {
        world.write("empty.txt", text);
        let build = "data build empty.txt --tokenizer tokenizer.json -o new";
        world.run(build).fails_with(&["corpus is empty", "empty.txt"]);
        world.run("tokenizer train empty.txt -o new.json").fails_with(&["no text to train a vocabulary on"]);
        assert!(!world.path("new.json").exists());
        assert!(!world.path("new").exists() || files(&world.path("new")).is_empty());
    }
}

#[test]
fn documents_of_one_sentence_are_counted_and_listed() {
    let world = World::new();
    let text: String = (0..20).map(|i| format!("the river flows to the village {i}.\n\n")).collect();
    world.write("ones.txt", text);
    world
        .run("data build ones.txt --tokenizer tokenizer.json -o new")
        .succeeds()
        .says(&["20 documents of one sentence do not form a sentence pair", "ones.txt:1"]);
    let pretrain = "pretrain recipe.toml -o run --data new --tokenizer tokenizer.json";
    world.run(pretrain).fails_with(&["has two sentences", "lone_sentence", "objective"]);
    assert!(!world.path("run").exists());
    // The proposed remedy works.
    world.run(&format!("{pretrain} data.instances.objective=none schedule.steps=4")).succeeds();
}

#[test]
fn invalid_utf8_is_placed_and_can_be_repaired() {
    let world = World::new();
    let before = files(&world.path("data"));
    world.write("bad.txt", [b"a good line\nbad \xff\xfe line\n\n", corpus(30).as_bytes()].concat());
    let place = "bad.txt:2: invalid UTF-8 at byte 5";
    let build = "data build bad.txt --tokenizer tokenizer.json -o";
    world.run(&format!("{build} data")).fails_with(&[place, "0xFF", "--lossy"]);
    assert_eq!(files(&world.path("data")), before, "the data of before are untouched");
    let repaired = "1 lines with invalid UTF-8 were repaired";
    world.run(&format!("{build} new --lossy")).succeeds().says(&[repaired]);
    let train = "tokenizer train bad.txt --vocab-size 120 -o new.json";
    world.run(train).fails_with(&[place, "--lossy"]);
    world.run(&format!("{train} --lossy")).succeeds();
}

#[test]
fn a_line_of_ten_megabytes_is_taken() {
    let world = World::new();
    let text = "the river flows to the village. ".repeat(10_000_000 / 32) + "\n\n" + &corpus(150);
    world.write("long.txt", &text);
    let build = world.run("data build long.txt --tokenizer tokenizer.json -o new").succeeds();
    build.says(&["1 sentences", "cut, the first at long.txt:1"]);
    let train = world.run("tokenizer train long.txt --vocab-size 200 -o new.json").succeeds();
    train.says(&["1 lines were too long"]);
    let told = world.run_with_input("tokenizer encode --tokenizer tokenizer.json", text.as_bytes()).succeeds();
    assert_eq!(told.stdout.lines().count(), text.lines().count());
}

#[test]
fn impossible_vocabularies_are_refused() {
    let world = World::new();
    let before = fs::read(world.path("tokenizer.json")).unwrap();
    let train = |size: &str| world.run(&format!("tokenizer train text.txt -o tokenizer.json --vocab-size={size}"));
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
    for (file, original) in files(&world.path("data")) {
        let name = world.path("data").join(&file);
        let damages: [fn(&mut Vec<u8>); 3] = if file.ends_with(".shard") {
            [|bytes| truncate(bytes, 1), |bytes| flip_bit(bytes, 30), |bytes| flip_bit(bytes, 2000)]
        } else {
            // The last one leaves a readable index with a different number.
            let other_number = |bytes: &mut Vec<u8>| {
                let text = String::from_utf8(bytes.clone()).unwrap();
                *bytes = text.replacen("\"documents\": 1", "\"documents\": 2", 1).into_bytes();
            };
            [|bytes| truncate(bytes, 700), Vec::clear, other_number]
        };
        for damaged in damages {
            damage(&name, damaged);
            assert_ne!(fs::read(&name).unwrap(), original);
            world.run_pretrain("run", &[]).fails_with(&[&file, "albert data build"]);
            fs::write(&name, &original).unwrap();
        }
    }
    assert!(!world.path("run").exists());
}

#[test]
fn a_damaged_last_checkpoint_falls_back_to_the_one_before() {
    let world = World::new();
    world.run_pretrain("run", &[]).succeeds();
    let whole = world.path("run");
    for (name, damaged) in [
        ("cut", (|bytes| truncate(bytes, 100)) as fn(&mut Vec<u8>)),
        ("flipped", |bytes| flip_bit(bytes, 500)),
        ("empty", Vec::clear),
    ] {
        let run = world.path(name);
        copy(&whole, &run);
        let [before, last] = checkpoints(&run).try_into().expect("two checkpoints stay");
        damage(&last, damaged);
        let untouched = fs::read(&before).unwrap();
        let told = world.run_pretrain(name, &["--resume"]).succeeds();
        let told = told.says(&["warning: ", last.to_str().unwrap(), "using the previous checkpoint", "at step 35"]);
        assert_eq!(fs::read(&before).unwrap(), untouched, "{name}: {}", told.stderr);
        assert_same_run(&whole, &run, name);
        // With both damaged, an error is printed and nothing is written.
        damage(&before, damaged);
        damage(&last, damaged);
        let left = files(&run);
        world.run_pretrain(name, &["--resume"]).fails_with(&["none of the 2 checkpoints is intact"]);
        assert_eq!(files(&run), left, "{name}");
    }
}

#[test]
fn a_model_that_is_not_whole_is_refused() {
    let world = World::new();
    world.run_pretrain("run", &["schedule.steps=4"]).succeeds();
    let ask = || world.run("fill-mask --model run 'the [MASK] flows'");
    for (file, damaged, parts) in [
        ("model.safetensors", (|bytes| truncate(bytes, 10)) as fn(&mut Vec<u8>), ["model.safetensors", "cut short"]),
        ("model.safetensors", |bytes| flip_bit(bytes, 10), ["model.safetensors", "damaged"]),
        ("tokenizer.json", |bytes| truncate(bytes, 20), ["tokenizer.json", "cut short or damaged"]),
    ] {
        ask().succeeds();
        let path = world.path("run").join(file);
        let original = fs::read(&path).unwrap();
        damage(&path, damaged);
        ask().fails_with(&parts);
        fs::write(path, original).unwrap();
    }
}

#[test]
fn ids_that_a_model_does_not_have_and_inputs_beyond_its_positions_are_refused() {
    let world = World::of_text("");
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    let forward = ["forward", "--model", &format!("{golden}/forward/tiny-albertmodel"), "--ids", "ids.jsonl"];
    let forward = || finish(albert(&[&forward[..], &["-o", "out"]].concat()).current_dir(world.path("")));
    let good = r#"{"input_ids": [2, 47, 3]}"#;
    let long = |tokens: usize| format!("{{\"input_ids\": {:?}}}", vec![1; tokens]);
    for (line, said) in [
        (r#"{"input_ids": [2, 48]}"#, "`input_ids` contains 48 (number 1), but the model has 48 pieces"),
        (r#"{"input_ids": [-1]}"#, "`input_ids` contains -1 (number 0)"),
        (r#"{"input_ids": [9223372036854775808]}"#, "a list of whole numbers was expected"),
        (r#"{"input_ids": [1], "token_type_ids": [2]}"#, "`token_type_ids` contains 2 (number 0)"),
        (&long(25)[..], "`input_ids` has 25 tokens, but the model has 24 positions"),
    ] {
        world.write("ids.jsonl", format!("{good}\n{line}\n"));
        forward().fails_with(&["ids.jsonl:2: ", said]);
        assert!(!world.path("out").exists(), "{line}");
    }
    world.write("ids.jsonl", format!("{good}\n\n{}\n", long(24)));
    forward().succeeds();
    let names = engine::io::Safetensors::open(world.path("out")).unwrap().names();
    let counted = |line: &str| names.iter().any(|name| name.starts_with(line));
    assert!(counted("0.") && counted("2.") && !counted("1."), "a blank line is counted: {names:?}");

    let pieces = format!("{golden}/tokenizer/spiece.model");
    let decode = ["tokenizer", "decode", "--tokenizer", &pieces, "--on-error", "stop"];
    for (line, said) in [("7 1000", "`1000`"), ("-1", "`-1`"), ("4294967296", "`4294967296`"), ("x", "`x`")] {
        let told = finish_with_input(&mut albert(&decode), format!("7 999\n{line}\n").as_bytes());
        told.fails_with(&["line 2: ", said, "is not an id; expected 0 to 999"]);
    }
}

#[test]
fn texts_and_tokenizers_that_a_model_was_not_made_for_are_refused() {
    let world = World::new();
    world.run_pretrain("run", &["schedule.steps=4"]).succeeds();
    let long = format!("a [MASK] {}", "river ".repeat(80));
    let fill = |text: &str| world.run(&format!("fill-mask --model run '{text}'"));
    let forward = |text: &str| world.run(&format!("forward --model run --text '{text}' -o out.safetensors"));
    fill(&long).fails_with(&["tokens, but the model has 64 positions"]);
    forward(&long).fails_with(&["but the model has 64 positions"]);
    world.run("tokenizer train text.txt --vocab-size 260 -o run/tokenizer.json").succeeds();
    for told in [fill("a [MASK]"), forward("a"), world.run("embed --model run text.txt")] {
        told.fails_with(&["260 pieces and the model 200", "use the tokenizer that the model was trained with"]);
    }
    fs::copy(world.path("run/tokenizer.json"), world.path("tokenizer.json")).unwrap();
    world.run_pretrain("next", &[]).fails_with(&[".shard", "tokenized with another tokenizer"]);
    assert!(!world.path("next").exists());
}

/// All other keys and values are tested in `recipe_tests.rs` and `config/tests.rs` of the library.
#[test]
fn unknown_keys_and_impossible_values_are_refused() {
    let world = World::new();
    for key in "vocab_size hidden_size embedding_size num_hidden_layers num_attention_heads intermediate_size \
                max_position_embeddings"
        .split(' ')
        .map(|name| format!("model.{name}"))
        .chain(["data.batch.max_tokens", "data.batch.max_sequences"].map(str::to_owned))
    {
        for value in ["0", "1000000000000"] {
            let parts = [key.rsplit('.').next().unwrap(), value, "expected"];
            world.run_pretrain("run", &[&format!("{key}={value}")]).fails_with(&parts);
        }
    }
    for (setting, said) in [
        ("model.hiden_size=3", "unknown field `hiden_size`"),
        ("nosuch.key=1", "unknown field `nosuch`"),
        ("data.batch.max_token=9", "unknown field `max_token`"),
        ("data.batch.sequences_per_step=1000000000000", "sequences_per_step"),
        ("model.num_hidden_layers=16777216", "num_hidden_layers"),
        ("schedule.steps=-1", "schedule"),
        ("schedule.steps=lots", "\"lots\""),
        ("model.vocab_size=5000", "the tokenizer has 200 pieces"),
        ("model.max_position_embeddings=4", "expected"),
    ] {
        let told = world.run_pretrain("run", &[setting]).fails_with(&[said]);
        assert!(!said.contains("unknown field") || told.stderr.contains("expected one of"), "{}", told.stderr);
    }
    world.run_pretrain("run", &["learning_rate"]).is_wrong_usage(&["`learning_rate`", "section.key=value"]);
    let recipe = fs::read_to_string(world.path("recipe.toml")).unwrap();
    world.write("recipe.toml", recipe.replace("log_interval", "log_intervall"));
    world.run_pretrain("run", &[]).fails_with(&["recipe.toml", "unknown field `log_intervall`"]);
    world.write("recipe.toml", format!("{recipe}\nnot toml"));
    world.run_pretrain("run", &[]).fails_with(&["recipe.toml", "not TOML: line"]);
    assert!(!world.path("run").exists());
    world.run("info huge").fails_with(&["no model preset is called `huge`", "xxlarge"]);
    world.run("info base --seq 1000000000000").fails_with(&["--seq", "512"]);
    world.run("quickstart --minutes 0 -o run").fails_with(&["--minutes 0"]);
}

#[test]
fn wrong_usage_is_exit_code_two() {
    for (line, parts) in [
        ("", &["Usage"][..]),
        ("pretrian", &["pretrian", "pretrain"]),
        ("pretrain recipe.toml", &["--output"]),
        ("info base --nonsense", &["--nonsense"]),
        ("info base --batch 0", &["--batch", "a whole number from 1"]),
        ("fill-mask --model x 'a [MASK]' --top 0", &["a whole number from 1"]),
        ("tokenizer train text --vocab-size -5", &["expected a whole number from 1"]),
        ("finetune classify --data x -o y --steps -4", &["expected a whole number from 1"]),
        ("info base --batch -1", &["expected a whole number from 1"]),
    ] {
        let told = run(line).is_wrong_usage(parts);
        // A negative number must not cause a suggestion of `--`.
        let astray = !line.contains("--nonsense") && told.stderr.contains("-- -");
        assert!(!astray, "advice that leads astray: {}", told.stderr);
    }
}

#[test]
fn nonsense_in_the_environment_is_named() {
    for (variable, value, said) in [
        ("ALBERT_ISA", "mmx", "scalar"),
        ("ALBERT_THREADS", "many", "1 to 1024"),
        ("ALBERT_THREADS", "0", "1 to 1024"),
        ("ALBERT_THREADS", "1000000000000", "1 to 1024"),
        ("ALBERT_CACHES", "512K", "32K,512K,32M"),
        ("ALBERT_CACHES", "512K,32K,32M", "L1, L2 and L3"),
    ] {
        let told = finish(albert(&["doctor"]).env(variable, value));
        told.fails_with(&[&format!("{variable}={value}"), said]);
    }
}

#[test]
fn an_output_below_a_regular_file_is_refused() {
    let world = World::new();
    let before = fs::read(world.path("text.txt")).unwrap();
    for place in ["text.txt", "text.txt/below"] {
        let build = format!("data build text.txt --tokenizer tokenizer.json -o {place}");
        world.run(&build).fails_with(&[place]);
        let told = world.run_pretrain(place, &[]);
        told.fails_with(&[&world.text_path(place), "text.txt is a file; choose another folder"]);
    }
    let train = world.run("tokenizer train text.txt --vocab-size 200 -o text.txt/below");
    train.fails_with(&["text.txt/below", "cannot create"]);
    world.run("quickstart -o text.txt/below --minutes 0.1").fails_with(&["text.txt/below"]);
    assert_eq!(fs::read(world.path("text.txt")).unwrap(), before);
}

#[test]
fn a_run_is_not_resumed_with_other_settings_nor_overwritten() {
    let world = World::new();
    world.run_pretrain("run", &["schedule.steps=10"]).succeeds();
    let before = files(&world.path("run"));
    world.run_pretrain("run", &[]).fails_with(&["already contains a run", "resume"]);
    for (setting, key) in [
        ("optimizer.learning_rate=0.5", "`optimizer.learning_rate` = 0.01, but now it is 0.5"),
        ("seed=8", "`seed` = 7"),
        ("model.num_hidden_layers=3", "`model.num_hidden_layers` = 2"),
        ("data.batch.max_tokens=600", "`data.batch.max_tokens` = 512"),
    ] {
        world
            .run_pretrain("run", &["--resume", "schedule.steps=10", setting])
            .fails_with(&[key, "resume with the old value"]);
    }
    assert_eq!(files(&world.path("run")), before, "nothing is touched");
}
