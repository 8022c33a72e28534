//! Guarantees of the trainer: exact size, same bytes for any threads and line order, sums confirmed by brute force.

use std::collections::HashMap;

use super::*;
use crate::tests::sample_text;

fn config(vocab_size: usize) -> TrainerConfig {
    TrainerConfig { vocab_size, ..TrainerConfig::default() }
}

fn in_pool<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads").install(run)
}

#[test]
fn is_bit_identical_for_any_thread_count_and_order_of_lines() {
    let text = sample_text(6000, 5);
    let first = in_pool(1, || train(&text, &config(900), |_| {})).expect("enough text").to_json().unwrap();
    for threads in [2, 3, 7] {
        let other = in_pool(threads, || train(&text, &config(900), |_| {})).expect("enough text").to_json().unwrap();
        assert!(first == other, "{threads} threads gave another file");
    }
    let reversed: Vec<&String> = text.iter().rev().collect();
    assert!(
        first == train(reversed, &config(900), |_| {}).expect("enough text").to_json().unwrap(),
        "lines in reverse"
    );
}

#[test]
fn a_vocabulary_has_the_released_shape() {
    let text = sample_text(2000, 9);
    let tokenizer = train(&text, &config(500), |_| {}).expect("enough text");
    assert_eq!(tokenizer.vocab_size(), 500);
    let fixed = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", "\"", "-", ".", "–", "£", "€"];
    for (id, piece) in fixed.iter().enumerate() {
        assert_eq!(tokenizer.id(piece), Some(id as u32), "{piece}");
    }
    let normal = &tokenizer.pieces()[fixed.len()..];
    assert!(normal.iter().all(|piece| piece.kind == PieceKind::Normal && piece.score < 0.0));
    assert!(normal.windows(2).all(|pair| pair[0].score >= pair[1].score), "scores descend");
    let mass: f64 = normal.iter().map(|piece| piece.score.exp()).sum();
    assert!((0.9..=1.001).contains(&mass), "probabilities sum to {mass}");
    for piece in normal {
        let characters: Vec<char> = piece.text.trim_start_matches('▁').chars().collect();
        assert!(piece.text.chars().count() <= 16, "{:?} is too long", piece.text);
        let letters = characters.iter().filter(|c| c.is_alphabetic()).count();
        assert!(letters == 0 || letters == characters.len(), "{:?} mixes scripts", piece.text);
        assert!(!characters.iter().any(|c| "().-\"".contains(*c)), "{:?} holds a symbol", piece.text);
        assert!(
            !matches!(characters[..], [.., d, ','] if d.is_ascii_digit()),
            "{:?} ends in digit and comma",
            piece.text
        );
    }
    for c in text.iter().flat_map(|line| line.chars()).filter(|c| *c != ' ') {
        assert!(tokenizer.id(&c.to_string()).is_some(), "{c:?} is not covered");
    }
    let with_commas = TrainerConfig { digit_comma_pieces: true, ..config(500) };
    let tokenizer = train(&text, &with_commas, |_| {}).expect("enough text");
    let ends_in_comma = |piece: &Piece| matches!(piece.text.as_bytes(), [.., d, b','] if d.is_ascii_digit());
    assert!(tokenizer.pieces().iter().any(ends_in_comma), "the setting lets such pieces in");
}

#[test]
fn says_the_largest_size_that_the_text_gives_and_gives_it() {
    let text = sample_text(100, 2);
    let error = train(&text, &config(30_000), |_| {}).expect_err("100 lines are not enough");
    let TokenizerError::TooManyPieces { asked: 30_000, most } = error else { panic!("{error}") };
    assert!(error.to_string().contains(&format!("at most {most}")), "{error}");
    assert_eq!(train(&text, &config(most), |_| {}).expect("the size that was said").vocab_size(), most);
    assert!(train(&text, &config(most + 1), |_| {}).is_err(), "one more than the most");
}

#[test]
fn refuses_what_cannot_work_and_says_why() {
    let error =
        |lines: &[&str], config: TrainerConfig| train(lines, &config, |_| {}).expect_err("must fail").to_string();
    assert_eq!(
        error(&["the cat"], config(15)),
        "vocab_size 15 is too small: 13 special pieces and 6 characters (coverage 0.99995) need 19"
    );
    assert!(error(&[], config(100)).starts_with("no text to train a vocabulary on: 0 lines read"));
    assert!(error(&["", "  "], config(100)).starts_with("no text to train a vocabulary on: 2 lines read"));
    let long = "a ".repeat(3000);
    assert_eq!(
        error(&[&long, ""], config(100)),
        "no text to train a vocabulary on: 2 lines read, 1 of them longer than 4192 bytes and skipped"
    );
    let settings = [
        TrainerConfig { vocab_size: 0, ..config(0) },
        TrainerConfig { character_coverage: f64::NAN, ..config(100) },
        TrainerConfig { max_piece_length: 0, ..config(100) },
        TrainerConfig { seed_pieces: usize::MAX, ..config(100) },
        TrainerConfig { shrinking_factor: 1.0, ..config(100) },
        TrainerConfig { sub_iterations: 0, ..config(100) },
        TrainerConfig { user_defined_symbols: vec!["a b".into()], ..config(100) },
    ];
    for setting in settings {
        let message = error(&["the cat"], setting);
        assert!(message.starts_with("tokenizer setting "), "{message}");
    }
}

#[test]
fn symbols_of_several_characters_and_rare_characters_split_words() {
    let lines: Vec<String> = (0..400).map(|n| format!("foo::bar <a>x foo{} Ωmega", n % 7)).collect();
    let config = TrainerConfig {
        user_defined_symbols: vec!["::".into(), "<a>".into()],
        character_coverage: 1.0,
        max_piece_length: 4,
        vocab_size: 60,
        ..TrainerConfig::default()
    };
    let most = match train(&lines, &config, |_| {}) {
        Err(TokenizerError::TooManyPieces { most, .. }) => most,
        other => panic!("60 pieces should be too many: {other:?}"),
    };
    let tokenizer =
        train(&lines, &TrainerConfig { vocab_size: most, ..config }, |_| {}).expect("the size that was said");
    let pieces: Vec<&str> = tokenizer.encode("foo::bar <a>x").unwrap().iter().map(|&id| tokenizer.piece(id)).collect();
    assert!(pieces.contains(&"::") && pieces.contains(&"<a>"), "{pieces:?}");
    assert!(tokenizer.pieces()[7..].iter().all(|p| !p.text.contains([':', '<', '>'])), "symbols are in no other piece");
    assert!(tokenizer.pieces()[7..].iter().all(|p| p.text.chars().count() <= 4));
}

/// All segmentations of `text`, as ids and total score.
fn segmentations(text: &[u8], pieces: &[(&str, f64)]) -> Vec<(Vec<usize>, f64)> {
    if text.is_empty() {
        return vec![(Vec::new(), 0.0)];
    }
    let mut all = Vec::new();
    for (id, (piece, score)) in pieces.iter().enumerate() {
        if let Some(rest) = text.strip_prefix(piece.as_bytes()) {
            for (mut ids, total) in segmentations(rest, pieces) {
                ids.insert(0, id);
                all.push((ids, total + score));
            }
        }
    }
    all
}

fn pieces_of(rows: &[(&str, f64)]) -> Pieces {
    let mut pieces = Pieces::default();
    for (text, score) in rows {
        pieces.push(text.as_bytes(), *score);
    }
    pieces
}

fn segments<const N: usize>(texts: [(&str, u64); N]) -> Vec<(Box<[u8]>, u64)> {
    texts.map(|(text, count)| (text.as_bytes().into(), count)).to_vec()
}

/// Sorted by bytes, like pieces in training.
const ROWS: [(&str, f64); 8] =
    [("a", -2.0), ("ab", -2.5), ("abc", -4.0), ("b", -3.0), ("bc", -3.25), ("c", -2.75), ("ca", -3.5), ("é", -5.0)];

#[test]
fn expected_counts_are_those_of_all_segmentations() {
    let segments = segments([("abc", 3), ("abcabc", 2), ("caé", 5), ("c", 1)]);
    let pieces = pieces_of(&ROWS);
    let lattices = Lattices::new(&segments, &pieces.trie());
    let (found, log_likelihood) = lattices.expected_counts(&pieces);
    let mut expected = vec![0.0; ROWS.len()];
    let mut expected_likelihood = 0.0;
    for (text, count) in &segments {
        let all = segmentations(text, &ROWS);
        let total: f64 = all.iter().map(|(_, score)| score.exp()).sum();
        expected_likelihood += *count as f64 * total.ln();
        for (ids, score) in all {
            ids.into_iter().for_each(|id| expected[id] += *count as f64 * score.exp() / total);
        }
    }
    for (id, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() < 1e-12, "{:?}: expected {expected}, found {found}", ROWS[id].0);
    }
    assert!((log_likelihood - expected_likelihood).abs() < 1e-11, "{log_likelihood} against {expected_likelihood}");
}

#[test]
fn counts_of_segments_too_long_for_plain_probabilities_are_right() {
    // "abc" repeated: if the long segment underflows, its logarithm must equal that of n short ones plus the pieces
    // across their boundaries.
    let pieces = pieces_of(&[("ab", -2.5), ("abc", -4.0), ("c", -2.75)]);
    let (once, many) = (segments([("abc", 1)]), segments([(&"abc".repeat(1000), 1)]));
    let (short, short_log) = Lattices::new(&once, &pieces.trie()).expected_counts(&pieces);
    let (long, long_log) = Lattices::new(&many, &pieces.trie()).expected_counts(&pieces);
    // Each of 3000 positions adds a logarithm of size |long_log| with an error of at most one rounding of that size.
    let relative = 3000.0 * long_log.abs() * f64::EPSILON;
    let bound = relative * long_log.abs();
    assert!((long_log - 1000.0 * short_log).abs() < bound, "{long_log} against 1000 x {short_log}, bound {bound}");
    for (long, short) in long.iter().zip(&short) {
        let bound = relative * 1000.0 * short;
        assert!((long - 1000.0 * short).abs() < bound, "{long} against 1000 x {short}, bound {bound}");
    }
}

#[test]
fn best_paths_count_each_piece_where_it_is_used() {
    let pieces = pieces_of(&ROWS);
    let segments = segments([("abc", 3), ("caab", 2), ("xa", 7)]);
    let counts = Lattices::new(&segments, &pieces.trie()).best_path_counts(&pieces);
    // abc -4 beats ab+c -5.25 and a+bc -5.25; ca+ab -6 beats c+a+ab -7.25; x is not covered.
    let by_text: HashMap<&str, f64> =
        ROWS.iter().map(|row| row.0).zip(counts).filter(|(_, count)| *count > 0.0).collect();
    assert_eq!(by_text, HashMap::from([("abc", 3.0), ("ca", 2.0), ("ab", 2.0), ("a", 7.0)]));
}

#[test]
fn renaming_strikes_pieces_off_every_lattice() {
    let pieces = pieces_of(&ROWS);
    let segments = segments([("abcabc", 3), ("caé", 2)]);
    let mut lattices = Lattices::new(&segments, &pieces.trie());
    let (kept, new_ids) = pieces.keep(|id| id % 2 == 0 || id == 3);
    lattices.rename(&new_ids);
    let renamed = lattices.expected_counts(&kept);
    let fresh = Lattices::new(&segments, &kept.trie()).expected_counts(&kept);
    assert_eq!(renamed, fresh);
}

#[test]
fn pruning_keeps_what_costs_most_to_lose() {
    // "ab" is frequent and much better than a+b; "bc" is rare; "cd" loses to c+d and is dropped in any case.
    let rows = [("a", -2.0), ("ab", -2.5), ("b", -2.0), ("bc", -3.9), ("c", -2.0), ("cd", -9.0), ("d", -2.0)];
    let pieces = pieces_of(&rows);
    let segments = segments([("ab", 100), ("bc", 1), ("cd", 50), ("a", 10), ("b", 10), ("c", 10), ("d", 10)]);
    let lattices = Lattices::new(&segments, &pieces.trie());
    let kept = |most: usize| -> Vec<&str> {
        let keep = prune::choose(&pieces, &lattices, most);
        rows.iter().zip(keep).filter(|(_, keep)| *keep).map(|(row, _)| row.0).collect()
    };
    assert_eq!(kept(6), ["a", "ab", "b", "bc", "c", "d"]);
    assert_eq!(kept(5), ["a", "ab", "b", "c", "d"]);
    assert_eq!(kept(0), ["a", "b", "c", "d"], "characters cannot be replaced");
}

#[test]
fn em_raises_the_likelihood() {
    let text = sample_text(1000, 8);
    let mut first_round = Vec::new();
    let outcome = train(&text, &TrainerConfig { sub_iterations: 5, ..config(400) }, |progress| {
        if let Progress::Iterated { round: 1, log_likelihood_per_word, .. } = progress {
            first_round.push(log_likelihood_per_word);
        }
    });
    outcome.expect("enough text");
    assert_eq!(first_round.len(), 5);
    assert!(first_round.windows(2).all(|pair| pair[1] > pair[0]), "{first_round:?}");
}

#[test]
fn digamma_has_its_known_values() {
    let euler = 0.577_215_664_901_532_9;
    let cases = [
        (1.0, -euler),
        (0.5, -euler - 2.0 * std::f64::consts::LN_2),
        (2.0, 1.0 - euler),
        (10.0, 2.251_752_589_066_721),
        (1e6, 13.815_510_057_964_191),
    ];
    for (x, expected) in cases {
        assert!((digamma(x) - expected).abs() < 1e-9, "digamma({x}) = {}, expected {expected}", digamma(x));
    }
}

#[test]
fn losses_do_not_depend_on_who_counts() {
    // Beyond the size at which the sample is only a part of the corpus; one line in 40 has a word that stripping accents merges.
    let lines: Vec<String> = (0..150_000)
        .map(|number| if number % 40 == 0 { format!("würde {number}") } else { format!("wurde {number}") })
        .collect();
    let config = config(400);
    let mut whole = WordCounts::default();
    lines.chunks(999).for_each(|part| whole.add(part, &config));
    let expected = losses::find(&whole.sample, whole.lines, config.cleaning);
    let [loss] = expected.as_slice() else { panic!("{expected:?}") };
    assert!((loss.merged - 0.0125).abs() < 0.002, "one in 80 words: {loss:?}");
    let mut sum = WordCounts::default();
    for rank in 0..3 {
        let mut part = WordCounts::default();
        let own: Vec<&String> = lines.iter().skip(rank).step_by(3).collect();
        part.add(&own, &config);
        part.for_each_message(1000, |message| sum.add_message(message)).unwrap();
    }
    assert_eq!(losses::find(&sum.sample, sum.lines, config.cleaning), expected);
}
