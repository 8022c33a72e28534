use super::*;
use crate::config::{Activation, Sharing};
use crate::train::{OptimizerKind, ScheduleKind, Setting};

fn try_read(text: &str, overrides: &[&str]) -> Result<PretrainRecipe, PretrainError> {
    PretrainRecipe::from_toml(text, &Setting::all(overrides)?)
}

fn read(text: &str, overrides: &[&str]) -> PretrainRecipe {
    try_read(text, overrides).unwrap()
}

fn message(text: &str, overrides: &[&str]) -> String {
    try_read(text, overrides).expect_err(text).to_string()
}

#[test]
fn what_is_left_out_has_the_released_value() {
    let recipe = read("", &[]);
    assert_eq!(recipe.model, crate::AlbertConfig::preset("base").unwrap());
    assert_eq!((recipe.optimizer.kind, recipe.optimizer.learning_rate), (OptimizerKind::Lamb, 0.00176));
    assert_eq!((recipe.schedule.steps, recipe.schedule.warmup_steps), (125_000, 3_125));
    assert_eq!(recipe.schedule.kind, ScheduleKind::Released);
    assert!(!recipe.optimizer.bias_correction);
    assert_eq!(
        (recipe.optimizer.epsilon, recipe.optimizer.weight_decay, recipe.optimizer.clip_norm),
        (1e-6, 0.01, 1.0)
    );
    assert_eq!((recipe.loss.mlm_weight, recipe.loss.sentence_weight), (1.0, 1.0));
}

#[test]
fn every_named_recipe_is_valid_and_survives_toml() {
    for NamedRecipe { name, .. } in RECIPES {
        let recipe = PretrainRecipe::named(name, &[]).unwrap().with_vocabulary(5000).unwrap();
        let again = PretrainRecipe::from_toml(&recipe.to_toml(), &[]).unwrap();
        assert_eq!(again.to_toml(), recipe.to_toml(), "{name}");
        assert_eq!(again.fingerprint(), recipe.fingerprint(), "{name}");
        assert_eq!(again.model.vocab_size, 5000);
    }
    assert!(PretrainRecipe::named("gigantic", &[]).unwrap_err().to_string().contains("expected one of tiny, mini"));
}

#[test]
fn a_recipe_with_a_larger_batch_has_as_many_sequences() {
    let [released, large] = ["base", "base-32k"].map(|name| PretrainRecipe::named(name, &[]).unwrap());
    assert_eq!(released.model, large.model);
    let sequences = |recipe: &PretrainRecipe| recipe.schedule.steps * recipe.data.batch.sequences_per_step as u64;
    assert_eq!(sequences(&released), sequences(&large));
    let growth = large.optimizer.learning_rate / released.optimizer.learning_rate;
    assert!((growth / 8f64.sqrt() - 1.0).abs() < 0.01, "{growth}");
}

#[test]
fn presets_are_overlaid_and_overrides_come_last() {
    let text =
        "seed = 3\n[model]\npreset = \"tiny\"\nhidden_size = 128\nsharing = \"none\"\n[optimizer]\nlearning_rate = 0.1";
    let settings =
        ["optimizer.learning_rate=0.5", "model.hidden_act=relu", "data.batch.max_tokens = 999", "run.log_interval=1"];
    let recipe = read(text, &settings);
    assert_eq!((recipe.seed, recipe.model.hidden_size, recipe.model.intermediate_size), (3, 128, 512));
    assert_eq!((recipe.model.sharing, recipe.model.hidden_act), (Sharing::None, Activation::Relu));
    assert_eq!((recipe.optimizer.learning_rate, recipe.data.batch.max_tokens), (0.5, 999));
    // Tiny has 128 positions.
    assert_eq!(recipe.data.instances.max_sequence_length, 128);
    assert_eq!(read("", &["model.hidden_size=1536", "model.intermediate_size=10"]).model.intermediate_size, 10);
    assert_eq!(read("", &["model.sharing=groups-3"]).model.sharing, Sharing::Groups(3));
}

#[test]
fn the_vocabulary_is_the_tokenizers_unless_the_recipe_insists() {
    let recipe = read("model.preset = \"tiny\"", &[]).with_vocabulary(7777).unwrap();
    assert_eq!(recipe.model.vocab_size, 7777);
    let insists = read("model.vocab_size = 100", &[]);
    let message = insists.with_vocabulary(7777).unwrap_err().to_string();
    assert!(message.contains("`model.vocab_size` is 100, but the tokenizer has 7777 pieces"), "{message}");
}

#[test]
fn inputs_and_reports_are_not_part_of_what_decides_the_numbers() {
    let recipe = |overrides: &[&str]| read("", overrides).fingerprint();
    assert_eq!(recipe(&[]), recipe(&["run.log_interval=77", "input.data=/elsewhere"]));
    for change in ["seed=1", "optimizer.beta1=0.8", "data.masking.ngram=1", "schedule.steps=5000", "model.sharing=none"]
    {
        assert_ne!(recipe(&[]), recipe(&[change]), "{change}");
    }
}

#[test]
fn says_in_one_sentence_what_is_wrong() {
    for (text, overrides, expected) in [
        ("nonsense", &[][..], "not TOML"),
        ("sed = 1", &[], "unknown field `sed`"),
        ("[optimizer]\nlearning_rat = 1", &[], "unknown field `learning_rat`"),
        ("[model]\nhiden_size = 1", &[], "unknown field `hiden_size`"),
        ("[data.masking]\nngrams = 1", &[], "unknown field `ngrams`"),
        ("model = 3", &[], "`model` must be a table"),
        ("", &["optimizer.learning_rate"], "is not a setting; write section.key=value"),
        ("", &["=3"], "the key is empty"),
        ("", &["seed.x=3"], "in `seed`"),
        ("seed = 1", &["seed.x=3"], "`seed` is a value, not a section"),
        ("", &["model.preset=gigantic"], "no model preset is called `gigantic`"),
        ("", &["model.hidden_size=0"], "`hidden_size` is 0"),
        ("", &["model.sharing=groups"], "expected all, attention, ffn, none or groups-G"),
        ("", &["optimizer.learning_rate=-1"], "`optimizer.learning_rate` is -1"),
        ("", &["optimizer.learning_rate=nan"], "`optimizer.learning_rate` is NaN"),
        ("", &["optimizer.kind=sgd"], "unknown variant `sgd`"),
        ("", &["schedule.steps=0"], "`schedule.steps` is 0"),
        ("", &["schedule.warmup_steps=125001"], "no more steps of warm-up"),
        (
            "",
            &["data.instances.max_sequence_length=513"],
            "`data.instances.max_sequence_length` is 513, but the model has 512",
        ),
        ("", &["data.batch.max_tokens=100"], "max_tokens"),
        ("", &["model.type_vocab_size=1"], "sequences of two segments need 2"),
        ("", &["loss.mlm_weight=0", "loss.sentence_weight=0"], "nothing to train on"),
        ("", &["run.log_interval=0"], "`run.log_interval` is 0"),
    ] {
        let message = message(text, overrides);
        assert!(message.contains(expected), "{text:?} {overrides:?}: {message:?} does not contain {expected:?}");
        assert!(!message.contains('\n'), "{message:?} is more than one line");
    }
}

#[test]
fn a_preset_without_its_recipe_says_which_settings_are_not_of_it() {
    let warnings = |text: &str, overrides: &[&str]| read(text, overrides).warnings().to_vec();
    let said = warnings("[model]\npreset = \"tiny\"\n[optimizer]\nlearning_rate = 0.5", &[]);
    let [said] = &said[..] else { panic!("one warning was expected: {said:?}") };
    for part in [
        "`model.preset = \"tiny\"` sets the shape of the model only",
        "optimizer.kind = \"lamb\" (tiny: \"adamw\")",
        "optimizer.bias_correction = false (tiny: true)",
        "schedule.steps = 125000 (tiny: 2000)",
        "data.batch.sequences_per_step = 0 (tiny: 32)",
    ] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    assert!(!said.contains("learning_rate"), "it was given: {said}");
    assert!(!said.contains("evaluation.") && !said.contains("run."), "reports are not training: {said}");
    // Explicit settings cause no warning; a named recipe and a run's own recipe are complete; base has the released values
    // except for the batch.
    let given = [
        "optimizer.kind=lamb",
        "optimizer.learning_rate=0.5",
        "optimizer.bias_correction=false",
        "schedule.kind=smooth",
        "schedule.steps=9",
        "schedule.warmup_steps=3",
        "data.batch={ max_tokens = 512, max_sequences = 4, sequences_per_step = 4 }",
    ];
    assert_eq!(warnings("model.preset = \"tiny\"", &given), [""; 0]);
    let said = warnings("model.preset = \"base\"", &[]).join("\n");
    assert!(said.contains("recipe `base`: data.batch.sequences_per_step = 0 (base: 4096); set them"), "{said}");
    assert_eq!(warnings("model.preset = \"base\"", &["data.batch.sequences_per_step=64"]), [""; 0]);
    assert_eq!(warnings("model.hidden_size = 1536", &[]), [""; 0]);
    for NamedRecipe { name, .. } in RECIPES {
        let recipe = PretrainRecipe::named(name, &[]).unwrap();
        assert_eq!((recipe.warnings(), &warnings(&recipe.to_toml(), &[])[..]), (&[][..], &[][..]), "{name}");
    }
}

#[test]
fn an_automatic_batch_is_fitted_once_or_refused() {
    let recipe = || PretrainRecipe::named("tiny", &["data.batch.max_tokens=auto".parse().unwrap()]).unwrap();
    let mut fitted = recipe();
    assert!(fitted.fits_memory());
    let error = recipe().with_vocabulary(30_000).unwrap_err().to_string();
    assert!(error.contains("give a number of tokens"), "{error}");
    let error = fitted.fit_batch(1 << 20).unwrap_err().to_string();
    assert!(error.contains("one sequence takes") && error.contains("1 MiB are free"), "{error}");
    let large = fitted.fit_batch(1 << 40).unwrap();
    let longest = fitted.data.instances.max_sequence_length;
    let mut all: Vec<usize> = (20..400).step_by(5).filter_map(|mib| recipe().fit_batch(mib << 20).ok()).collect();
    assert!(all.is_sorted() && all.iter().all(|tokens| (tokens / longest).is_power_of_two()), "{all:?}");
    let of = |precision: &str, mib: u64| {
        let settings = ["data.batch.max_tokens=auto", &format!("compute.precision={precision}")];
        PretrainRecipe::named("tiny", &Setting::all(&settings).unwrap()).unwrap().fit_batch(mib << 20).ok()
    };
    let both: Vec<_> = (20..400).step_by(5).map(|mib| (of("f32", mib), of("bf16", mib))).collect();
    assert!(both.iter().all(|(wide, narrow)| wide <= narrow) && both.iter().any(|(wide, narrow)| wide < narrow));
    all.dedup();
    assert!(all.len() > 2 && all.last() == Some(&large), "{all:?}");
    assert!(!fitted.fits_memory() && fitted.to_toml().contains(&format!("max_tokens = {large}\n")));
    let mut resumed = recipe();
    resumed.keep_batch_of(&fitted);
    assert!(!resumed.fits_memory() && resumed.data.batch == fitted.data.batch);
}

#[test]
fn warm_up_is_a_share_of_the_steps_unless_its_steps_are_given() {
    let warmup = |text: &str, overrides: &[&str]| read(text, overrides).schedule.warmup_steps;
    let mini = "recipe = \"mini\"";
    for (text, overrides, expected) in [
        ("", &[][..], 3125),
        ("", &["schedule.steps=150"], 4),
        (mini, &[], 500),
        (mini, &["schedule.steps=150"], 4),
        (mini, &["schedule.steps=150", "schedule.warmup_steps=20"], 20),
        (mini, &["schedule.warmup_steps=20", "schedule.warmup_share=0.5", "schedule.steps=150"], 75),
        (mini, &["schedule.warmup_share=1"], 20_000),
        ("recipe = \"mini\"\n[schedule]\nwarmup_steps = 7", &[], 7),
        ("[schedule]\nsteps = 10\nwarmup_share = 0", &[], 0),
    ] {
        assert_eq!(warmup(text, overrides), expected, "{text:?} {overrides:?}");
    }
    for (name, expected) in [("tiny", 100), ("mini", 500), ("small", 1500), ("base", 3125), ("base-32k", 3125)] {
        let recipe = PretrainRecipe::named(name, &[]).unwrap();
        assert_eq!(recipe.schedule.warmup_steps, expected, "{name}");
        assert!(!recipe.to_toml().contains("warmup_share"), "config.toml records steps");
    }
    assert!(message("[schedule]\nwarmup_steps = 7\nwarmup_share = 0.1", &[]).contains("give either"));
    assert!(message("", &["schedule.warmup_share=1.5"]).contains("`schedule.warmup_share` is 1.5, expected 0 to 1"));
    assert!(message("", &["schedule.warmup_share=few"]).contains("expected 0 to 1"));
}

#[test]
fn a_path_of_any_characters_is_read_back_as_it_was() {
    for path in [
        "cafe\u{301}/",
        "a\u{a0}b",
        "it's \"quoted\"",
        "back\\slash\\u{41}",
        "two\nlines",
        "\u{1f600}",
        "a=b",
        " x ",
        "'",
        "",
    ] {
        let setting = Setting::new("input.data", path).unwrap();
        let recipe = PretrainRecipe::from_toml("", &[setting]).unwrap();
        assert_eq!(recipe.input.data.to_str(), Some(path));
        assert_eq!(read(&recipe.to_toml(), &[]).input.data.to_str(), Some(path));
    }
    // Text without quotes is used literally, and a typing error in quotes does not become part of a path.
    assert_eq!(read("", &["input.data=cafe\u{301}"]).input.data.to_str(), Some("cafe\u{301}"));
    assert!(message("", &["input.data=\"caf\\u{301}\""]).contains("the value is not TOML"));
    assert!(message("", &["input.fresh=[\"a\""]).contains("the value is not TOML"));
}
