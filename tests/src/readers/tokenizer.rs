//! Tokenizer files: SentencePiece models, `tokenizer.json`, `vocab.txt`.

use super::with_file;
use albert::tokenizer::{Cleaning, Piece, PieceKind, SPECIAL_PIECES, Tokenizer};

/// A vocabulary of a few pieces.
pub(super) fn small_tokenizer() -> Tokenizer {
    let special = SPECIAL_PIECES.iter().map(|&text| {
        let kind = if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
        Piece::new(text, 0.0, kind)
    });
    let normal = ["▁", "▁the", "a", "b", "c", "1", ",", "1,", "▁20", "é", "日本", "ing"];
    let normal = normal.iter().zip(1i16..).map(|(&text, rank)| Piece::normal(text, -f64::from(rank)));
    Tokenizer::from_pieces(special.chain(normal).collect(), Cleaning::default()).expect("a valid vocabulary")
}

/// A text with difficult cases for tokenizers.
const TEXT: &str = "The café's 20,000 «ＡＢ» naïve ΑΣ.\u{301} [MASK] 日本 \u{1F600}\u{200D}\t(1)";

/// Encodes a text with a loaded tokenizer in each way; true if the tokenizer can.
fn encodes(tokenizer: &Tokenizer) -> bool {
    let Ok(encoding) = tokenizer.encode_with_offsets(TEXT) else { return false };
    for &(start, end) in &encoding.offsets {
        assert!(TEXT.get(start..end).is_some(), "bytes {start} to {end} are not a range of characters");
    }
    assert_eq!(tokenizer.encode(TEXT).expect("encoded before"), encoding.ids);
    assert_eq!(tokenizer.encode_batch(&[TEXT]).expect("encoded before")[0], encoding.ids, "as a batch");
    tokenizer.check_ids(&encoding.ids).expect("ids of the vocabulary");
    true
}

pub(super) fn spiece(bytes: &[u8]) -> bool {
    with_file("spiece.model", bytes, |path| {
        let Ok(tokenizer) = Tokenizer::load(path) else { return false };
        let written = tokenizer.to_spiece().expect("it came from a model");
        Tokenizer::from_spiece(&written, Cleaning::default(), path).expect("written by us");
        encodes(&tokenizer)
    })
}

pub(super) fn spiece_seeds() -> Vec<Vec<u8>> {
    let tokenizer = small_tokenizer();
    vec![tokenizer.to_spiece().expect("a tokenizer of ours can be written")]
}

pub(super) fn tokenizer_json(bytes: &[u8]) -> bool {
    with_file("tokenizer.json", bytes, |path| Tokenizer::load(path).is_ok_and(|tokenizer| encodes(&tokenizer)))
}

pub(super) fn tokenizer_json_seeds() -> Vec<Vec<u8>> {
    let ours = small_tokenizer().to_json().expect("a tokenizer of ours can be written").into_bytes();
    let word_piece = r###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":"[UNK]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},{"id":4,"content":"[MASK]","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"[PAD]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4,"the":5,"ca":6,"##fe":7}}}"###;
    let unigram = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"Sequence","normalizers":[{"type":"Replace","pattern":{"String":"``"},"content":"\""},{"type":"NFKD"},{"type":"StripAccents"},{"type":"Lowercase"},{"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"Regex":" {2,}"},"content":" "}]},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"post_processor":null,"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true},"model":{"type":"Unigram","unk_id":1,"vocab":[["<pad>",0.0],["<unk>",0.0],["[CLS]",0.0],["[SEP]",0.0],["[MASK]",0.0],["▁the",-1.5],["a",-2.0],["▁",-3.0]],"byte_fallback":false}}"#;
    vec![ours, word_piece.as_bytes().to_vec(), unigram.as_bytes().to_vec()]
}

pub(super) fn vocab_txt(bytes: &[u8]) -> bool {
    with_file("vocab.txt", bytes, |path| Tokenizer::load(path).is_ok_and(|tokenizer| encodes(&tokenizer)))
}

pub(super) fn vocab_txt_seeds() -> Vec<Vec<u8>> {
    vec![b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nca\n##fe\n##s\n20\n,\n".to_vec()]
}
