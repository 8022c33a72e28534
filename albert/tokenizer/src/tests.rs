//! Properties of the whole tokenizer, on small vocabularies whose results can be computed by hand or by brute force.

mod files;
mod hostile;
mod text;

pub(super) use text::sample_text;

use super::*;

/// The special pieces, then `more` with their scores; a piece with score 0 is a user-defined symbol.
fn toy(more: &[(&str, f64)]) -> Tokenizer {
    toy_cleaned(more, Cleaning::default())
}

fn toy_cleaned(more: &[(&str, f64)], cleaning: Cleaning) -> Tokenizer {
    Tokenizer::from_pieces(toy_pieces(more), cleaning).expect("a valid toy vocabulary")
}

pub(crate) fn toy_pieces(more: &[(&str, f64)]) -> Vec<Piece> {
    let kind = |text: &str| if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
    let special = SPECIAL_PIECES.iter().map(|text| Piece::new(*text, 0.0, kind(text)));
    let more = more.iter().map(|&(text, score)| match score {
        0.0 => Piece::new(text, 0.0, PieceKind::UserDefined),
        _ => Piece::normal(text, score),
    });
    special.chain(more).collect()
}

pub(crate) fn texts<'t>(tokenizer: &'t Tokenizer, text: &str) -> Vec<&'t str> {
    tokenizer.encode(text).unwrap().into_iter().map(|id| tokenizer.piece(id)).collect()
}

/// A generator for tests: Knuth's 64-bit linear congruence, upper bits.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

#[test]
fn takes_the_segmentation_of_greatest_probability() {
    // ▁abc: [▁abc] -9, [▁a b c] -1-3-3 = -7, [▁ab c] -2.5-3 = -5.5, [▁a bc] -1-4 = -5.
    let tokenizer =
        toy(&[("▁", -2.0), ("▁abc", -9.0), ("▁ab", -2.5), ("▁a", -1.0), ("b", -3.0), ("c", -3.0), ("bc", -4.0)]);
    assert_eq!(texts(&tokenizer, "abc"), ["▁a", "bc"]);
    assert_eq!(tokenizer.log_likelihood("abc abc"), Some(-10.0));
    // x has no piece: ▁ -2, x -9-10. Neither has a lone "a".
    assert_eq!(texts(&tokenizer, "xab"), ["▁", "<unk>", "b"]);
    assert_eq!(tokenizer.log_likelihood("x"), Some(-21.0));
    assert_eq!(tokenizer.encode("").unwrap(), [0u32; 0]);
    assert_eq!(tokenizer.encode(" \t\n ").unwrap(), [0u32; 0]);
}

#[test]
fn equal_segmentations_keep_the_one_found_first() {
    // [▁a aa] and [▁aa a] both score -2; the end of "▁a a a" is first reached from "▁a".
    let tokenizer = toy(&[("▁a", -1.0), ("▁aa", -1.0), ("a", -1.0), ("aa", -1.0)]);
    assert_eq!(texts(&tokenizer, "aaa"), ["▁a", "aa"]);
    assert_eq!(texts(&tokenizer, "aaaa"), ["▁aa", "aa"]);
}

#[test]
fn consecutive_unknowns_are_one_piece_and_words_stay_apart() {
    let tokenizer = toy(&[("▁", -2.0), ("a", -3.0)]);
    assert_eq!(texts(&tokenizer, "日本 αβγ 😀"), ["▁", "<unk>", "▁", "<unk>", "▁", "<unk>"]);
    assert_eq!(texts(&tokenizer, "日a本本"), ["▁", "<unk>", "a", "<unk>"]);
    // Without a piece for the word mark, unknown characters of adjacent words are merged.
    let tokenizer = toy(&[("a", -3.0)]);
    assert_eq!(texts(&tokenizer, "日本 αβγ a 😀"), ["<unk>", "a", "<unk>"]);
    assert_eq!(Encoder::new(&tokenizer).collect("日本 αβγ a 😀"), tokenizer.encode("日本 αβγ a 😀").unwrap());
}

impl Encoder<'_> {
    fn collect(&mut self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encode_into(text, &mut ids).unwrap();
        ids
    }
}

#[test]
fn user_defined_symbols_win_over_normal_pieces() {
    let tokenizer = toy(&[("(", 0.0), ("-", 0.0), ("::", 0.0), ("▁", -2.0), ("a", -2.0), ("--", -0.1), (":", -0.1)]);
    assert_eq!(texts(&tokenizer, "(a--a::"), ["▁", "(", "a", "-", "-", "a", "::"]);
}

/// Pieces for the texts below, each of which has one segmentation.
fn words() -> Tokenizer {
    let pieces = ["▁", "▁the", "▁was", ",", "▁wow", "!", "s", "▁[", "mask", "]", "▁false", "2013", "ok"];
    let symbols = ["(", ")"].map(|symbol| (symbol, 0.0));
    toy(&symbols.into_iter().chain(pieces.map(|piece| (piece, -2.0))).collect::<Vec<_>>())
}

#[test]
fn a_comma_after_a_digit_stands_alone_by_the_rule_in_force() {
    let rows = [("▁", -3.0), ("▁1", -2.0), ("x", -3.0), ("1", -2.5), ("1,", -1.0), ("▁1,", -1.0), (",", -2.0)];
    let tokenizer = toy(&rows);
    assert_eq!(texts(&tokenizer, "1, x1,"), ["▁1", ",", "▁", "x", "1", ","]);
    let offsets = tokenizer.encode_with_offsets("1, x1,").unwrap().offsets;
    assert_eq!(offsets, [(0, 1), (1, 2), (3, 3), (3, 4), (4, 5), (5, 6)]);
    let released = tokenizer.clone().with_digit_comma(DigitComma::Released);
    assert_eq!(texts(&released, "1, x1,"), ["▁1", ",", "▁", "x", "▁1", ","]);
    let off = tokenizer.with_digit_comma(DigitComma::Off);
    assert_eq!(texts(&off, "1, x1,"), ["▁1,", "▁", "x", "1,"]);
    // If "▁1" is not a piece, the number is encoded as "▁" "1" and the lone mark is dropped.
    let bare = toy(&[("▁", -1.0), ("x", -3.0), ("1", -1.0), ("1,", -1.0), (",", -2.0)]);
    assert_eq!(texts(&bare, "x1,"), ["▁", "x", "1", ","]);
}

/// The best score of any segmentation, by trying all of them; an uncovered character costs `unknown`.
fn best_by_force(word: &[char], pieces: &[(String, f64)], unknown: f64) -> f64 {
    if word.is_empty() {
        return 0.0;
    }
    let rest: String = word.iter().collect();
    let starts = pieces.iter().filter(|(text, _)| rest.starts_with(text));
    let mut best = f64::NEG_INFINITY;
    let mut covered = false;
    for (text, score) in starts {
        let len = text.chars().count();
        covered |= len == 1;
        best = best.max(score + best_by_force(&word[len..], pieces, unknown));
    }
    if covered { best } else { best.max(unknown + best_by_force(&word[1..], pieces, unknown)) }
}

#[test]
fn no_segmentation_is_better_than_the_one_found() {
    let mut draw = Draw(1);
    for round in 0..300 {
        let mut pieces: Vec<(String, f64)> = Vec::new();
        for _ in 0..1 + draw.below(25) {
            let mark = ["", "▁"][draw.below(2)];
            let letters: String = (0..1 + draw.below(4)).map(|_| ['a', 'b', 'é', '日'][draw.below(4)]).collect();
            let text = [mark, &letters].concat();
            if pieces.iter().all(|(other, _)| *other != text) {
                pieces.push((text, -(1.0 + draw.below(4000) as f64) / 256.0));
            }
        }
        let rows: Vec<(&str, f64)> = pieces.iter().map(|(text, score)| (text.as_str(), *score)).collect();
        let tokenizer = toy_cleaned(&rows, Cleaning { lowercase: false, strip_accents: false, ..Cleaning::default() });
        let unknown = pieces.iter().map(|(_, score)| *score).fold(0.0, f64::min) - 10.0;
        for _ in 0..10 {
            let word: String = (0..1 + draw.below(8)).map(|_| ['a', 'b', 'é', '日', 'x'][draw.below(5)]).collect();
            let marked: Vec<char> = std::iter::once('▁').chain(word.chars()).collect();
            let best = best_by_force(&marked, &pieces, unknown);
            let found = tokenizer.log_likelihood(&word).expect("a unigram model");
            assert_eq!(found, best, "round {round}, word {word:?}, pieces {pieces:?}");
            // The score of the returned pieces is that score: unknown pieces count once for each character that they cover.
            let encoding = tokenizer.encode_with_offsets(&word).unwrap();
            let worth: f64 = (encoding.ids.iter().zip(&encoding.offsets))
                .map(|(&id, &(start, end))| match tokenizer.piece(id) {
                    "<unk>" => unknown * word[start..end].chars().count() as f64,
                    _ => tokenizer.pieces()[id as usize].score,
                })
                .sum();
            let mark_unknown = encoding.ids[0] == 1 && !pieces.iter().any(|(text, _)| text == "▁");
            let worth = if mark_unknown { worth + unknown } else { worth };
            assert_eq!(worth, best, "round {round}, word {word:?}: the pieces {:?} are not the best", encoding.ids);
        }
    }
}

#[test]
fn special_pieces_are_text_unless_asked_for() {
    let tokenizer = words();
    let SpecialIds { cls, sep, mask, .. } = tokenizer.specials();
    assert_eq!((cls, sep, mask), (2, 3, 4));
    assert!(!tokenizer.encode("the [MASK] was [SEP]").unwrap().contains(&mask));

    let pieces = |text: &str| -> Vec<String> {
        let encoding = tokenizer.encode_with_specials(text).unwrap();
        assert_eq!(encoding.ids.len(), encoding.offsets.len());
        encoding.ids.iter().map(|&id| tokenizer.piece(id).to_owned()).collect()
    };
    assert_eq!(pieces("the [MASK] was"), ["▁the", "[MASK]", "▁was"]);
    assert_eq!(pieces("[MASK] was"), ["[MASK]", "▁was"]);
    assert_eq!(pieces("the [MASK], wow!"), ["▁the", "[MASK]", ",", "▁wow", "!"]);
    assert_eq!(pieces("[MASK][MASK]s"), ["[MASK]", "[MASK]", "s"]);
    assert_eq!(pieces("[CLS] the [SEP]"), ["[CLS]", "▁the", "[SEP]"]);
    assert_eq!(pieces("the [mask]"), ["▁the", "▁[", "mask", "]"]);
    let offsets = tokenizer.encode_with_specials("The  [MASK] was").unwrap().offsets;
    assert_eq!(offsets, [(0, 3), (5, 11), (12, 15)]);

    let the = tokenizer.encode("the").unwrap();
    assert_eq!(tokenizer.encode_single("the").unwrap(), [&[cls], &the[..], &[sep]].concat());
    let ids = [&[cls], &the[..], &[sep], &the[..], &[sep]].concat();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "the the");
    assert_eq!(tokenizer.decode(&[u32::MAX]).unwrap(), "<unk>");
}

#[test]
fn offsets_point_at_the_source() {
    let tokenizer = words();
    let text = "  The \u{200b} FALSÉ\u{1} “2013, (ok)";
    let encoding = tokenizer.encode_with_offsets(text).unwrap();
    let part = |(&id, &(s, e)): (&u32, &(usize, usize))| format!("{}={}", tokenizer.piece(id), &text[s..e]);
    let parts: Vec<String> = encoding.ids.iter().zip(&encoding.offsets).map(part).collect();
    let expected = "▁the=The ▁false=FALSÉ ▁= <unk>=“ 2013=2013 ,=, ▁= (=( ok=ok )=)";
    assert_eq!(parts.join(" "), expected);
}

#[test]
fn bad_vocabularies_are_refused_with_the_reason() {
    let error = |pieces: Vec<Piece>| Tokenizer::from_pieces(pieces, Cleaning::default()).unwrap_err().to_string();
    let with = |text: &str| error(toy_pieces(&[("▁", -1.0), (text, -2.0)]));
    assert!(with("a▁b").contains("spans two words"), "{}", with("a▁b"));
    assert!(with("").contains("must not be empty"), "{}", with(""));
    let long = with(&"x".repeat(1025));
    assert!(long.contains("has 1025 bytes; at most 1024 are possible"), "{long}");
    assert!(Tokenizer::from_pieces(toy_pieces(&[(&"x".repeat(1024), -1.0)]), Cleaning::default()).is_ok());
}
