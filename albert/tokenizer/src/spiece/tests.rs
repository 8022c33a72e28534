//! Properties of SentencePiece models, on small ones whose results can be computed by hand.

use std::path::Path;

use super::*;
use crate::Piece;
use crate::tests::{texts, toy_pieces};
use bounded_input::proto::{Reader, Value, write_field};

fn written(pieces: &[Piece]) -> Vec<u8> {
    ModelProto::new(pieces, own_rules()).write(pieces)
}

/// A model of the special pieces and `more`; a piece with score 0 is a user-defined symbol.
fn toy(more: &[(&str, f64)]) -> Vec<u8> {
    written(&toy_pieces(more))
}

fn load(model: &[u8]) -> Tokenizer {
    Tokenizer::from_spiece(model, Cleaning::default(), Path::new("x.model")).expect("a valid model")
}

#[test]
fn a_written_model_is_read_back_byte_for_byte() {
    let long = "x".repeat(200);
    let pieces = toy_pieces(&[("(", 0.0), ("▁", -1.0), ("▁a", -2.5), ("日", -3.0), (&long, -4.0)]);
    let model = ModelProto::new(&pieces, own_rules());
    let bytes = model.write(&pieces);
    assert_eq!(ModelProto::read(&bytes).expect("just written"), (model, pieces));
    assert_eq!(load(&bytes).to_spiece().expect("it came from one"), bytes);
    // Unknown fields, in a piece and in the model, are preserved.
    let mut piece = Vec::new();
    write_field(&mut piece, 1, Value::Bytes("x".as_bytes()));
    write_field(&mut piece, 2, Value::Fixed32(f32::to_bits(-4.0)));
    write_field(&mut piece, 200, Value::Varint(7));
    let mut with_unknown = Vec::new();
    let fields: Vec<_> = Reader::new(&bytes, 0).map(|field| field.expect("valid").raw).collect();
    let first_rest = fields.iter().position(|field| field[0] != 0x0a).expect("a trainer spec");
    fields[..first_rest].iter().for_each(|field| with_unknown.extend_from_slice(field));
    write_field(&mut with_unknown, 1, Value::Bytes(&piece));
    fields[first_rest..].iter().for_each(|field| with_unknown.extend_from_slice(field));
    write_field(&mut with_unknown, 4, Value::Bytes(b""));
    write_field(&mut with_unknown, 300, Value::Bytes(b"anything"));
    let (model, pieces) = ModelProto::read(&with_unknown).expect("valid");
    assert_eq!(model.write(&pieces), with_unknown);
}

#[test]
fn text_goes_through_preprocessing_and_the_models_rules() {
    let tokenizer = load(&toy(&[("(", 0.0), ("▁", -1.0), ("▁a", -2.5), ("é", -3.0), ("b", -4.0)]));
    assert_eq!(texts(&tokenizer, "  A\u{200b}(b\u{1}B\u{2003} É日本 "), ["▁a", "▁", "(", "b", "b", "▁", "<unk>"]);
    assert_eq!(texts(&tokenizer, ""), [""; 0]);
    assert_eq!(texts(&tokenizer, " \u{1} \u{feff}"), [""; 0]);
    let encoding = tokenizer.encode_with_offsets("  A\u{200b}(bÉ").unwrap();
    assert_eq!(encoding.ids, tokenizer.encode("  A\u{200b}(bÉ").unwrap());
    assert_eq!(encoding.offsets, [(2, 3), (6, 6), (6, 7), (7, 8), (8, 10)]);
    let spanning = load(&toy(&[("▁", -1.0), ("a", -2.0), ("▁b", -2.0), ("a▁b", -0.5), ("!", -2.0)]));
    assert_eq!(texts(&spanning, "a b! a"), ["▁", "a▁b", "!", "▁", "a"]);
}

#[test]
fn unknown_characters_become_bytes_where_the_model_has_them() {
    let mut pieces = toy_pieces(&[("a", -1.0)]);
    pieces.extend((0..=255).map(|byte| Piece::new(format!("<0x{byte:02X}>"), 0.0, PieceKind::Byte)));
    let mut bytes = written(&pieces);
    let error = |bytes: &[u8]| Tokenizer::from_spiece(bytes, Cleaning::default(), Path::new("x.model")).unwrap_err();
    assert_eq!(error(&bytes).to_string(), "x.model: trainer_spec.byte_fallback is false, but 256 bytes are pieces");
    write_field(&mut bytes, 2, Value::Bytes(&[0x98, 0x02, 1]));
    let tokenizer = Tokenizer::from_spiece(&bytes, Cleaning::default(), Path::new("x.model")).expect("valid");
    let pieces = ["<0xE2>", "<0x96>", "<0x81>", "a", "<0xE6>", "<0x97>", "<0xA5>"];
    assert_eq!(texts(&tokenizer, "a日"), pieces);
    assert_eq!(tokenizer.decode(&tokenizer.encode("a日").unwrap()).unwrap(), "▁a日");
    assert_eq!(tokenizer.encode_with_offsets("a日").unwrap().offsets[4..], [(1, 1), (1, 1), (1, 4)]);
}

#[test]
fn what_is_wrong_with_a_model_is_said_in_a_sentence() {
    let good = toy_pieces(&[("▁", -1.0), ("a", -2.0)]);
    let error = |bytes: &[u8]| {
        Tokenizer::from_spiece(bytes, Cleaning::default(), Path::new("x.model")).expect_err("damaged").to_string()
    };
    let with = |change: &dyn Fn(&mut [Piece])| {
        let mut pieces = good.clone();
        change(&mut pieces);
        error(&written(&pieces))
    };
    let bytes = written(&good);
    let appended = |more: &[u8]| error(&[&bytes[..], more].concat());
    for (found, expected) in [
        (error(b""), "no pieces"),
        (error(&bytes[..10]), "14 bytes expected, 8 left; the file is cut short"),
        (error(&bytes[..bytes.len() - 1]), "the file is cut short or damaged"),
        (
            appended(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            "9223372036854775807 bytes expected, 0 left",
        ),
        (appended(&[0x0b]), "wire type 3; the file is damaged or of another format"),
        (appended(&[0x08, 1]), "field 1 is not a string or a message"),
        (appended(&[0x0a, 2, 0x18, 9]), "piece type 9; 1 to 6 exist"),
        (appended(&[0x0a, 4, 0x0a, 2, 0xc3, 0x28]), "text that is not UTF-8"),
        (appended(&[0x0a, 0]), "a piece without text"),
        (appended(&[0x12, 2, 0x18, 2]), "a SentencePiece model of type BPE (2); only unigram (1) is supported"),
        (appended(&[0x1a, 2, 0x28, 0]), "escape_whitespaces is false"),
        (appended(&[0x1a, 3, 0x12, 1, 0]), "precompiled_charsmap of 1 bytes"),
        (with(&|pieces| pieces[6].score = f64::NAN), "has score NaN"),
        (with(&|pieces| pieces[6].text = "▁".into()), "piece 6 repeats piece 5"),
        (with(&|pieces| pieces[1].kind = PieceKind::Normal), "no unknown piece"),
        (with(&|pieces| pieces[2].text = "<cls>".into()), "no special piece [CLS] or <s> (the cls token)"),
    ] {
        assert!(found.starts_with("x.model: ") && found.contains(expected), "{found:?} does not say {expected:?}");
        assert!(!found.contains('\n'), "{found:?} is more than a sentence");
    }
}
