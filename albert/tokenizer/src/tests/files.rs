//! `tokenizer.json`: round trips, and messages for malformed files.

use std::path::Path;

use super::*;

fn sample() -> Tokenizer {
    sample_cleaned(Cleaning::default())
}

fn sample_cleaned(cleaning: Cleaning) -> Tokenizer {
    toy_cleaned(&[("(", 0.0), ("▁", -0.1), ("▁a\"\\", -2.345_678_901_234_568), ("日", -1e-7)], cleaning)
}

fn error_of(json: &str) -> String {
    Tokenizer::from_json(json, Path::new("dir/tokenizer.json")).expect_err("a bad file").to_string()
}

#[test]
fn a_written_tokenizer_is_the_same_when_loaded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tokenizer.json");
    for cleaning in Cleaning::all() {
        let original = sample_cleaned(cleaning);
        std::fs::write(&path, original.to_json().unwrap()).expect("writable");
        let loaded = Tokenizer::load(&path).expect("just written");
        assert_eq!(loaded.pieces(), original.pieces());
        assert_eq!(loaded.cleaning(), original.cleaning());
        assert_eq!(loaded.specials(), original.specials());
        assert_eq!(loaded.to_json().unwrap(), original.to_json().unwrap());
    }
}

#[test]
fn says_what_hugging_face_needs() {
    let json: serde_json::Value = serde_json::from_str(&sample().to_json().unwrap()).expect("valid JSON");
    assert_eq!(json["model"]["type"], "Unigram");
    assert_eq!(json["model"]["unk_id"], 1);
    assert_eq!(json["model"]["vocab"][5], serde_json::json!(["(", 0.0]));
    assert_eq!(json["pre_tokenizer"]["prepend_scheme"], "always");
    assert_eq!(json["added_tokens"][4]["content"], "[MASK]");
    assert_eq!(json["added_tokens"][4]["lstrip"], true);
    assert_eq!(json["post_processor"]["pair"][3]["Sequence"], serde_json::json!({"id": "B", "type_id": 1}));
    let kinds: Vec<&str> = json["normalizer"]["normalizers"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|n| n["type"].as_str())
        .collect();
    assert_eq!(kinds, ["Replace", "NFKD", "StripAccents", "Lowercase", "Replace", "Strip"]);
}

#[test]
fn the_files_beside_tokenizer_json_say_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let original = sample();
    let config: serde_json::Value = serde_json::from_str(&original.to_config_json()).expect("valid JSON");
    assert_eq!((&config["mask_token"], &config["pad_token"]), (&"[MASK]".into(), &"<pad>".into()));
    // As a SentencePiece model, the same pieces produce the same ids.
    let path = folder.path().join("spiece.model");
    std::fs::write(&path, original.to_spiece().unwrap()).expect("writable");
    let spiece = Tokenizer::load(&path).expect("just written");
    for text in ["", "a(日本 \u{200b}A\u{1}a\"\\ x", "[MASK] É"] {
        assert_eq!(spiece.encode(text).unwrap(), original.encode(text).unwrap(), "{text:?}");
    }
    // Readers of a spiece.model would convert to lower case and strip accents first.
    for cleaning in Cleaning::all().filter(|&cleaning| cleaning != Cleaning::default()) {
        let tokenizer = sample_cleaned(cleaning);
        assert!(tokenizer.to_spiece().is_err(), "{cleaning:?}");
        let config: serde_json::Value = serde_json::from_str(&tokenizer.to_config_json()).expect("valid JSON");
        assert_eq!(config["do_lower_case"], cleaning.lowercase, "{cleaning:?}");
        assert_eq!(config["keep_accents"], !cleaning.strip_accents, "{cleaning:?}");
    }
    assert!(original.expect_vocab_size(9).is_ok());
    let error = original.expect_vocab_size(30_000).expect_err("another size").to_string();
    assert!(error.contains("the tokenizer has 9 pieces and the model 30000"), "{error}");
    let error = original.check_ids(&[0, 9]).expect_err("too large").to_string();
    assert_eq!(error, "id 9 is not in the vocabulary; its ids are 0 to 8");
}

#[test]
fn a_file_that_says_something_else_is_an_error_that_names_the_key() {
    let json = sample().to_json().unwrap();
    let cases: [(&str, &str, &str); 12] = [
        ("\"model\"", "\"modell\"", "model.type: expected \"Unigram\", found nothing"),
        ("\"Unigram\"", "\"BPE\"", "model.type: expected \"Unigram\", found \"BPE\""),
        ("\"unk_id\": 1", "\"unk_id\": 99", "model.unk_id: expected the id of a piece of model.vocab, found 99"),
        ("\"unk_id\": 1", "\"unk_id\": null", "model.unk_id: expected the id of a piece of model.vocab, found nothing"),
        ("\"unk_id\": 1", "\"unk_id\": 6", "the unknown piece is"),
        ("\"vocab\"", "\"vocabulary\"", "model.vocab: expected a list of [piece, score], found nothing"),
        ("[\"日\",", "[7,", "model.vocab[8]: expected [piece, score], found [7,"),
        ("\"日\"", "\"▁\"", "piece 8 repeats piece 6"),
        ("\"<unk>\",0.0", "\"<unknown>\",0.0", "added_tokens[1]"),
        ("\"byte_fallback\": false", "\"byte_fallback\": true", "model.byte_fallback: expected false, found true"),
        ("\"added_tokens\"", "\"added\"", "added_tokens: expected a list of special tokens, found nothing"),
        ("\"Metaspace\"", "\"ByteLevel\"", "pre_tokenizer.type: expected \"Metaspace\""),
    ];
    for (from, to, message) in cases {
        assert!(json.contains(from), "{from} is not in the file");
        let error = error_of(&json.replace(from, to));
        assert!(error.starts_with("dir/tokenizer.json: "), "{from} -> {to}: {error}");
        assert!(error.contains(message), "{from} -> {to}: {error:?} does not say {message:?}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing.json");
    let error = Tokenizer::load(&missing).expect_err("no such file").to_string();
    assert!(error.contains("missing.json") && error.contains("cannot read"), "{error}");
    let file = folder.path().join("file");
    std::fs::write(&file, b"\xff\xfe").expect("writable");
    let error = Tokenizer::load(&file).expect_err("not UTF-8").to_string();
    assert!(error.contains("neither a tokenizer.json, a spiece.model nor a BERT vocab.txt"), "{error}");
    let wide: Vec<u8> = "[PAD]\n[UNK]\n[CLS]\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(&file, wide).expect("writable");
    let error = Tokenizer::load(&file).expect_err("UTF-16").to_string();
    assert!(error.contains("UTF-16 without a byte-order mark"), "{error}");
}

#[test]
fn a_typed_special_piece_is_text_in_every_file_of_ours() {
    let own = toy(&[("▁", -1.0), ("a", -2.0), ("[", -3.0), ("mask", -4.0), ("]", -5.0)]);
    let spiece = own.to_spiece().expect("ours can be written");
    let spiece = Tokenizer::from_spiece(&spiece, Cleaning::default(), Path::new("spiece.model")).expect("just written");
    let json = Tokenizer::from_json(&spiece.to_json().unwrap(), Path::new("tokenizer.json")).expect("just written");
    let mask = own.specials().mask;
    for text in ["[MASK]", "a [MASK] a", "a [CLS]"] {
        let expected = own.encode(text).unwrap();
        assert!(!expected.contains(&mask), "{text}");
        assert_eq!(spiece.encode(text).unwrap(), expected, "{text}");
        assert_eq!(json.encode(text).unwrap(), expected, "{text}");
    }
    for tokenizer in [&own, &spiece, &json] {
        let encoding = tokenizer.encode_with_specials("a [MASK] a").unwrap();
        assert_eq!(encoding.ids.iter().filter(|&&id| id == mask).count(), 1);
        let at = encoding.ids.iter().position(|&id| id == mask).expect("a mask");
        assert_eq!(encoding.offsets[at], (2, 8));
        assert_eq!(encoding.offsets.last(), Some(&(9, 10)));
    }
}
