//! Files that require more resources than a tokenizer needs: an error in one sentence, quickly and with little memory.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;

/// A third-party `tokenizer.json` of words, with parts of it replaced.
fn foreign(parts: &[(&str, Value)]) -> String {
    let words = ["<pad>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"];
    let vocab: serde_json::Map<_, _> =
        words.iter().zip(0..).map(|(word, id)| ((*word).to_owned(), json!(id))).collect();
    let mut root = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab},
    });
    parts.iter().for_each(|(key, value)| root[*key] = value.clone());
    root.to_string()
}

fn load(json: &str) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_json(json, Path::new("t.json"))
}

/// Message about the file, or about the text "a b a", within a few seconds.
fn refused(parts: &[(&str, Value)]) -> String {
    let start = Instant::now();
    let error = load(&foreign(parts)).and_then(|tokenizer| tokenizer.encode("a b a"));
    let error = error.expect_err("a hostile file").to_string();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}: {error}", start.elapsed());
    assert!(error.len() < 400, "{} bytes of message", error.len());
    error
}

fn sequence(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "normalizers": steps})
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

#[test]
fn a_normalizer_cannot_multiply_a_text() {
    let error = refused(&[("normalizer", sequence(vec![replace("a", "aa"); 40]))]);
    assert!(error.contains("its normalizer makes") && error.contains("at most 4176 are allowed"), "{error}");
    let regex = json!({"type": "Replace", "pattern": {"Regex": "."}, "content": "x".repeat(100_000)});
    assert!(refused(&[("normalizer", regex)]).contains("its normalizer makes 500005 bytes"));
    let prepend = json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)});
    assert!(refused(&[("normalizer", sequence(vec![prepend; 20]))]).contains("its normalizer makes"));
    // For any nesting of the steps.
    let nested = (0..6).fold(replace("a", "aa"), |step, _| sequence(vec![step.clone(), step]));
    assert!(refused(&[("normalizer", nested)]).contains("its normalizer makes"));
}

/// The library panicked in NFKD: the first character was lost.
#[test]
fn a_replacement_of_nothing_cannot_come_before_the_first_character() {
    let anywhere = replace("", "x");
    let at_start = json!({"type": "Replace", "pattern": {"Regex": "^"}, "content": "x"});
    for step in [anywhere, at_start] {
        for next in ["NFKD", "Lowercase", "StripAccents"] {
            let error = refused(&[("normalizer", sequence(vec![step.clone(), json!({"type": next})]))]);
            assert!(error.contains("inserts text before the first character"), "{next}: {error}");
        }
    }
    // The library preserves the positions after Prepend, and after insertions later in the text.
    let prepend = json!({"type": "Prepend", "prepend": "x"});
    let at_end = json!({"type": "Replace", "pattern": {"Regex": "$"}, "content": "x"});
    for step in [prepend, at_end, replace("a", "xx"), replace("a", "")] {
        let steps = sequence(vec![step.clone(), json!({"type": "NFKD"})]);
        let tokenizer = load(&foreign(&[("normalizer", steps)])).expect("it can be loaded");
        tokenizer.encode("a b a").unwrap_or_else(|error| panic!("{step}: {error}"));
    }
}

#[test]
fn usual_normalizers_are_within_the_bound() {
    let steps = vec![
        replace("``", "\""),
        replace(" ", "▁"),
        json!({"type": "NFKD"}),
        json!({"type": "Lowercase"}),
        json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
    ];
    let tokenizer = load(&foreign(&[("normalizer", sequence(steps))])).expect("a usual file");
    // The longest decomposition: 3 bytes become 33.
    for text in ["\u{fdfa}".repeat(10_000), " ".repeat(10_000), "a b".to_owned()] {
        tokenizer.encode(&text).expect("a usual text");
    }
}

#[test]
fn other_parts_cannot_multiply_a_text_either() {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false});
    let steps = json!({"type": "Sequence", "pretokenizers": vec![byte_level; 30]});
    assert!(refused(&[("pre_tokenizer", steps)]).contains("30 ByteLevel steps"));
    let fixed = json!({"type": "FixedLength", "length": 0});
    assert!(refused(&[("pre_tokenizer", fixed)]).contains("FixedLength has length 0"));

    let a = json!({"Sequence": {"id": "A", "type_id": 0}});
    let template = |single: Vec<Value>, ids: usize| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [a, {"Sequence": {"id": "B", "type_id": 1}}],
               "special_tokens": {"x": {"id": "x", "ids": vec![5; ids], "tokens": vec!["a"; ids]}}})
    };
    let doubling = json!({"type": "Sequence", "processors": vec![template(vec![a.clone(), a.clone()], 1); 40]});
    assert!(refused(&[("post_processor", doubling)]).contains("copies a text"));
    let special = json!({"SpecialToken": {"id": "x", "type_id": 0}});
    let adding = template([vec![a.clone()], vec![special; 1000]].concat(), 1000);
    assert!(refused(&[("post_processor", adding)]).contains("adds 1000000 special ids"));
    // The library indexes a second text and the tokens without checks.
    let second = template(vec![json!({"Sequence": {"id": "B", "type_id": 0}})], 1);
    assert!(refused(&[("post_processor", second)]).contains("`single` contains sequence B"));
    let unknown = template(vec![a.clone(), json!({"SpecialToken": {"id": "[SEP]", "type_id": 0}})], 1);
    assert!(refused(&[("post_processor", unknown)]).contains("\"[SEP]\", which special_tokens lacks"));

    let decoder = json!({"type": "Sequence", "decoders": vec![replace("a", "aa"); 40]});
    assert!(refused(&[("decoder", decoder)]).contains("decoder can make"));

    // The library infers an unknown type from the fields.
    let mut misspelled = template(vec![json!({"Sequence": {"id": "B", "type_id": 0}})], 1);
    misspelled["type"] = json!("Template");
    assert!(refused(&[("post_processor", misspelled)]).contains("`single` contains sequence B"));
    assert!(refused(&[("pre_tokenizer", json!({"length": 0}))]).contains("FixedLength has length 0"));
    let untyped = json!({"pattern": {"String": "a"}, "content": "aa"});
    assert!(refused(&[("decoder", json!({"decoders": vec![untyped; 40]}))]).contains("decoder can make"));
}

#[test]
fn models_are_bounded() {
    let word_piece = |key: &str, value: Value| {
        let mut model = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"<pad>": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5}});
        model[key] = value;
        [("model", model)]
    };
    assert!(load(&foreign(&word_piece("max_input_chars_per_word", json!(200)))).is_ok());
    assert!(refused(&word_piece("max_input_chars_per_word", json!(1u64 << 40))).contains("the search is quadratic"));
    let long = "x".repeat(5000);
    assert!(refused(&word_piece("continuing_subword_prefix", json!(long))).contains("has 5000 bytes; at most 1024"));

    // The library's trie has a node of some hundred bytes for every byte of its pieces, and drops them recursively.
    let unigram = |pieces: Vec<String>| {
        let special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned);
        let vocab: Vec<_> = special.into_iter().chain(pieces).map(|piece| json!([piece, -1.0])).collect();
        [("model", json!({"type": "Unigram", "unk_id": 1, "vocab": vocab}))]
    };
    assert!(load(&foreign(&unigram(vec!["ab".into()]))).is_ok());
    assert!(refused(&unigram(vec!["a".repeat(200_000)])).contains("has 200000 bytes; at most 1024"));
    let distinct = (0..2000u32).map(|at| format!("{at:04}{}", "y".repeat(900))).collect();
    assert!(refused(&unigram(distinct)).contains("needs a trie of"));
}

#[test]
fn a_precompiled_normalizer_is_checked_as_that_of_a_spiece_model() {
    for (charsmap, message) in
        [("????", "not base64"), ("AAAA", "takes four"), ("//////////8=", "a trie of 4294967295")]
    {
        let step = json!({"type": "Precompiled", "precompiled_charsmap": charsmap});
        let error = refused(&[("normalizer", step)]);
        assert!(error.contains(message), "{charsmap}: {error}");
    }
}

#[test]
fn what_a_foreign_pipeline_cannot_do_is_an_error_of_every_method() {
    let tokenizer =
        load(&foreign(&[("normalizer", sequence(vec![replace("a", "aa"); 40]))])).expect("it can be loaded");
    let text = "a b";
    assert!(tokenizer.encode(text).is_err());
    assert!(tokenizer.encode_with_offsets(text).is_err());
    assert!(tokenizer.encode_with_specials(text).is_err());
    assert!(tokenizer.encode_single(text).is_err());
    assert!(tokenizer.encode_batch(&["b", text]).is_err());
    assert!(Encoder::new(&tokenizer).encode_into(text, &mut Vec::new()).is_err());
    let error = tokenizer.encode(text).expect_err("too long").to_string();
    assert!(error.starts_with("the tokenizer cannot encode 3 bytes: its normalizer makes"), "{error}");
    // All other texts are encoded, and the file is written completely.
    assert_eq!(tokenizer.encode("b").expect("short"), [6]);
    assert!(tokenizer.to_json().expect("it was read").len() > 2000);
}

#[test]
fn of_texts_with_one_id_the_last_one_is_its_piece() {
    let vocab = json!({"<pad>": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "b": 5, "a": 5});
    let model = json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab});
    let tokenizer = load(&foreign(&[("model", model)])).expect("the library accepts it");
    assert_eq!((tokenizer.piece(5), tokenizer.id("b")), ("b", Some(5)));
}

#[test]
fn a_file_of_another_kind_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("spiece.model");
    for (bytes, said) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n"[..], "run `git lfs pull`"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gunzip"),
        (b"", "it is damaged"),
    ] {
        std::fs::write(&path, bytes).expect("writable");
        let error = Tokenizer::load(&path).expect_err("no tokenizer").to_string();
        assert!(error.contains(said), "{error}");
    }
    #[cfg(unix)]
    {
        let error = Tokenizer::load(Path::new("/dev/zero")).expect_err("endless").to_string();
        assert!(error.contains("more than the 268435456 bytes"), "{error}");
    }
}
