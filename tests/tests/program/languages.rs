//! Vocabularies of languages other than English: warnings, and normalization from training to a filled mask.

use albert_tests::run_folder::World;
use std::fmt::Write as _;

/// Documents of short sentences in several scripts; words differ in accents, case, vowel signs and joiners.
fn corpus() -> String {
    const SENTENCES: [&str; 12] = [
        "ガラスの窓にカラスがとまった。",
        "かぎを開けて、かきを食べた。",
        "Der Weg ist weg, und wurde würde Würde.",
        "Die Mutter und die Mütter fordern und fördern.",
        "Năm nay trường học ở phía nam.",
        "क्या की के को किया, कया नहीं।",
        "می\u{200c}خواهم کتاب\u{200c}ها را بخوانم.",
        "شَدَّةٌ مُدَرِّسٌ مدرس في المدرسة.",
        "Все ещё ёлка, всё ещё его.",
        "Ο ΔΡΟΜΟΣ ήταν η οδός, ή όχι.",
        "한국어 문장은 값이 있다.",
        "שָׁלוֹם שלום לכם.",
    ];
    let mut text = String::new();
    for document in 0..120usize {
        for sentence in 0..6 {
            writeln!(text, "{} {}", SENTENCES[(document * 5 + sentence * 7) % 12], document % 10).unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn what_a_language_needs_is_kept_from_training_to_a_filled_mask() {
    let world = World::of_text(&corpus());
    let train =
        |rest: &str| world.run(&format!("tokenizer train text.txt --vocab-size 190 -o {rest}")).succeeds().stderr;
    let told = train("plain.json");
    for part in ["warning: stripping accents and marks changes", "--keep-accents keeps them", "U+200C"] {
        assert!(told.contains(part), "`{part}` is not said:\n{told}");
    }
    let told = train("tokenizer.json --cased --keep-accents");
    assert!(!told.contains("warning"), "{told}");

    // Hugging Face's library produces the same ids as the program, even for text in other normal forms.
    let theirs = tokenizers::Tokenizer::from_file(world.path("tokenizer.json")).unwrap();
    let mut lines: Vec<String> = corpus().lines().take(200).map(str::to_owned).collect();
    let others = ["ｶﾞﾗｽ カ\u{3099}ラス ＷＥＧ", "wu\u{308}rde Na\u{306}m", "د\u{64e}\u{651} 한", "ΟΔΟΣ ΔΡΌΜΟΣ"];
    lines.extend(others.map(str::to_owned));
    let input = lines.join("\n") + "\n";
    let ids = |tokenizer: &str, text: &str| {
        world.run_with_input(&format!("tokenizer encode --tokenizer {tokenizer} -"), text.as_bytes()).succeeds().stdout
    };
    let expected: String = lines.iter().fold(String::new(), |mut all, line| {
        let ids = theirs.encode(line.as_str(), false).unwrap().get_ids().iter().map(u32::to_string).collect::<Vec<_>>();
        writeln!(all, "{}", ids.join(" ")).unwrap();
        all
    });
    assert_eq!(ids("tokenizer.json", &input), expected);
    for (one, other) in [("ガラス", "カラス"), ("Weg", "weg"), ("würde", "wurde"), ("क्या", "कया"), ("ещё", "еще")]
    {
        assert_eq!(ids("plain.json", one), ids("plain.json", other), "{one} and {other}, without the flags");
        assert_ne!(ids("tokenizer.json", one), ids("tokenizer.json", other), "{one} and {other}, with the flags");
    }

    world.run("data build text.txt --tokenizer tokenizer.json -o data").succeeds();
    world.run_pretrain("run", &["schedule.steps=5", "evaluation.interval=0"]).succeeds();
    // The folder of the run and its converted copy have the same tokenizer.
    world.run("convert --from run --to copy").succeeds();
    assert_eq!((ids("run", &input), ids("copy", &input)), (expected.clone(), expected));
    let config = std::fs::read_to_string(world.path("run/tokenizer_config.json")).unwrap();
    assert!(config.contains("\"do_lower_case\": false") && config.contains("\"keep_accents\": true"), "{config}");
    let filled = world.run("fill-mask --model run 'ガラスの [MASK] に Weg'").succeeds().stdout;
    assert!(!filled.trim().is_empty());
    // Readers of a spiece.model would convert to lower case.
    world
        .run("tokenizer convert --tokenizer tokenizer.json -o spiece.model")
        .fails_with(&["cannot write this tokenizer as spiece.model", "use its tokenizer.json"]);
}

#[test]
fn english_is_not_warned_about_and_impossible_normalizations_are_refused() {
    let world = World::of_text(&albert_tests::run_folder::corpus(40));
    let train = "tokenizer train text.txt --vocab-size 150 -o tokenizer.json";
    let told = world.run(train).succeeds().stderr;
    assert!(!told.contains("warning"), "{told}");
    world.run(&format!("{train} --normalization none")).fails_with(&["add --keep-accents"]);
}
