//! Properties of the whole tokeniser, on small vocabularies whose results can be worked out by hand or by brute force.

use super::*;

/// The special pieces, then `normal` with its scores.
fn toy(normal: &[(&str, f64)]) -> Tokenizer {
    toy_cleaned(normal, Cleaning::default())
}

fn toy_cleaned(normal: &[(&str, f64)], cleaning: Cleaning) -> Tokenizer {
    let kind = |text: &str| if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
    let special = SPECIAL_PIECES.iter().map(|text| Piece::new(*text, 0.0, kind(text)));
    let normal = normal.iter().map(|&(text, score)| match score {
        0.0 => Piece::new(text, 0.0, PieceKind::UserDefined),
        _ => Piece::normal(text, score),
    });
    Tokenizer::from_pieces(special.chain(normal).collect(), cleaning).expect("a valid toy vocabulary")
}

fn texts<'t>(tokenizer: &'t Tokenizer, text: &str) -> Vec<&'t str> {
    tokenizer.encode(text).into_iter().map(|id| tokenizer.piece(id)).collect()
}

#[test]
fn takes_the_segmentation_of_greatest_probability() {
    // ▁abc: [▁abc] -9, [▁a b c] -1-3-3 = -7, [▁ab c] -2.5-3 = -5.5, [▁a bc] -1-4 = -5.
    let tokenizer =
        toy(&[("▁", -2.0), ("▁abc", -9.0), ("▁ab", -2.5), ("▁a", -1.0), ("b", -3.0), ("c", -3.0), ("bc", -4.0)]);
    assert_eq!(texts(&tokenizer, "abc"), ["▁a", "bc"]);
    assert_eq!(tokenizer.log_likelihood("abc abc"), -10.0);
    // a has no piece of its own: after ▁ it is unknown, at -9 - 10.
    assert_eq!(texts(&tokenizer, "xab"), ["▁", "<unk>", "b"]);
    assert_eq!(tokenizer.encode(""), [0u32; 0]);
    assert_eq!(tokenizer.encode(" \t\n "), [0u32; 0]);
}

#[test]
fn trains_on_a_little_text_and_encodes_it() {
    let lines = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog"];
    let config = TrainerConfig { vocab_size: 30, character_coverage: 1.0, ..TrainerConfig::default() };
    let tokenizer = train(lines, &config, |_| {}).expect("enough text for 30 pieces");
    assert_eq!(tokenizer.vocab_size(), 30);
    for line in lines {
        assert_eq!(tokenizer.decode(&tokenizer.encode(line)), line);
    }
}
