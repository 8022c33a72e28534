//! Distribution of the masking, compared with published numbers and with a plain transcription of the procedure.

use engine::philox::Stream;

use super::masking::{Masker, Span};
use super::testing::{SPECIALS, encode, vocabulary, word};
use super::*;

const SIZE: u32 = 8000;

/// `[CLS] A [SEP] B [SEP]` of exactly `len` tokens with English word lengths.
fn sequence(len: usize, stream: &mut Stream) -> Vec<u32> {
    let mut ids = vec![SPECIALS.cls];
    let middle = 2 + stream.below(len as u32 - 4) as usize;
    let mut text = String::new();
    while ids.len() < len - 1 {
        text.clear();
        word(SIZE, stream, &mut text);
        let before = ids.len();
        encode(&text, &mut ids).unwrap();
        if before <= middle && ids.len() > middle {
            ids.truncate(middle);
            ids.push(SPECIALS.sep);
        }
    }
    ids.truncate(len - 1);
    ids.push(SPECIALS.sep);
    ids
}

/// Masks `count` sequences of `len` tokens and calls `check` for each with the original ids, the masked ids, the
/// positions, the labels and the spans.
fn mask_many(
    settings: &MaskingSettings,
    count: u32,
    len: usize,
    mut check: impl FnMut(&[u32], &[u32], &[u32], &[u32], &[Span]),
) -> MaskingStatistics {
    let vocabulary = vocabulary(SIZE as usize);
    let mut masker = Masker::new(settings, len);
    let (mut positions, mut labels) = (Vec::new(), Vec::new());
    for i in 0..count {
        let original = sequence(len, &mut Stream::new(1, [1, i, 0]));
        let mut ids = original.clone();
        positions.clear();
        labels.clear();
        masker.mask(&vocabulary, &mut Stream::new(1, [2, i, 0]), &mut ids, 0, &mut positions, &mut labels);
        check(&original, &ids, &positions, &labels, masker.spans());
    }
    masker.statistics().clone()
}

/// |found - expected| in standard errors of a share of `n`.
fn deviation(found: u64, n: u64, expected: f64) -> f64 {
    (found as f64 / n as f64 - expected) / (expected * (1.0 - expected) / n as f64).sqrt()
}

fn assert_share(what: &str, found: u64, n: u64, expected: f64) {
    let deviation = deviation(found, n, expected);
    assert!(deviation.abs() < 4.5, "{what}: {found} of {n}, expected {expected}: {deviation:.1} standard errors away");
}

/// The released procedure word by word, with sets and lists, from the same distribution: lengths in words of the
/// chosen spans.
fn released_procedure(ids: &[u32], budget: usize, stream: &mut Stream) -> Vec<usize> {
    let vocabulary = vocabulary(SIZE as usize);
    let mut words: Vec<Vec<usize>> = Vec::new();
    for (i, &id) in ids.iter().enumerate() {
        if id == SPECIALS.cls || id == SPECIALS.sep {
            continue;
        }
        match words.last_mut() {
            Some(last) if !vocabulary.is_word_start(id) => last.push(i),
            _ => words.push(vec![i]),
        }
    }
    let mut starts: Vec<usize> = (0..words.len()).collect();
    stream.shuffle(&mut starts);
    let (mut covered, mut lengths) = (std::collections::HashSet::new(), Vec::new());
    for start in starts {
        if covered.len() >= budget {
            break;
        }
        let mut n = [1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3][stream.below(11) as usize];
        let candidate = |n: usize| words[start..words.len().min(start + n)].to_vec();
        while n > 1 && covered.len() + candidate(n).concat().len() > budget {
            n -= 1;
        }
        let span = candidate(n).concat();
        if covered.len() + span.len() > budget || span.iter().any(|i| covered.contains(i)) {
            continue;
        }
        lengths.push(candidate(n).len());
        covered.extend(span);
    }
    lengths
}

#[test]
fn span_lengths_follow_the_law_over_a_million_tokens() {
    let settings = MaskingSettings { max_predictions: 77, ..Default::default() };
    let (count, len) = (4000, 512);
    let statistics = mask_many(&settings, count, len, |_, _, positions, _, _| {
        assert_eq!(positions.len(), 77, "a sequence of 512 tokens has 15 % predicted");
    });
    assert!(statistics.tokens >= 2_000_000);

    let drawn: u64 = statistics.drawn.iter().sum();
    for (n, share) in [6.0 / 11.0, 3.0 / 11.0, 2.0 / 11.0].into_iter().enumerate() {
        assert_share(&format!("drawn length {}", n + 1), statistics.drawn[n], drawn, share);
    }

    let mut lengths = [0u64; 3];
    for i in 0..count {
        let ids = sequence(len, &mut Stream::new(1, [1, i, 0]));
        for n in released_procedure(&ids, 77, &mut Stream::new(1, [3, i, 0])) {
            lengths[n - 1] += 1;
        }
    }
    let (spans, expected): (u64, u64) = (statistics.spans.iter().sum(), lengths.iter().sum());
    for (n, sheet) in [0.562, 0.274, 0.164].into_iter().enumerate() {
        let share = statistics.spans[n] as f64 / spans as f64;
        // The published figures come from a sample of English under another vocabulary, so they may differ by one
        // percentage point. The comparison below is exact.
        assert!((share - sheet).abs() < 0.01, "spans of {}: {share:.4}, expected {sheet}", n + 1);
        let released = lengths[n] as f64 / expected as f64;
        let error = (released * (1.0 - released) * (1.0 / spans as f64 + 1.0 / expected as f64)).sqrt();
        assert!((share - released).abs() < 4.5 * error, "spans of {}: {share:.4}, released {released:.4}", n + 1);
    }
}

#[test]
fn chosen_pieces_are_masked_kept_and_replaced_eight_to_one_to_one() {
    let settings = MaskingSettings { max_predictions: 77, ..Default::default() };
    let mut unchanged = 0;
    let statistics = mask_many(&settings, 3000, 512, |original, ids, positions, labels, _| {
        for (&at, &label) in positions.iter().zip(labels) {
            assert_eq!(label, original[at as usize]);
            assert!(ids[at as usize] == SPECIALS.mask || ids[at as usize] > 4, "a special id was put in");
            unchanged += u64::from(ids[at as usize] == label);
        }
    });
    let n = statistics.predicted;
    assert_share("masked", statistics.masked, n, 0.8);
    assert_share("kept", statistics.kept, n, 0.1);
    assert_share("random", statistics.random, n, 0.1);
    assert_eq!(statistics.masked + statistics.kept + statistics.random, n);
    assert_share("unchanged", unchanged, n, 0.1 + 0.1 / f64::from(SIZE));
}

#[test]
fn random_pieces_are_uniform_and_special_only_if_asked() {
    for random_includes_specials in [false, true] {
        let settings = MaskingSettings {
            mask_probability: 0.0,
            keep_probability: 0.0,
            random_includes_specials,
            max_predictions: 77,
            ..Default::default()
        };
        let (mut specials, mut low, mut n) = (0, 0, 0);
        mask_many(&settings, 2500, 512, |_, ids, positions, _, _| {
            for &at in positions {
                n += 1;
                specials += u64::from(ids[at as usize] < 5);
                low += u64::from(ids[at as usize] < 1005);
            }
        });
        if random_includes_specials {
            assert_share("specials", specials, n, 5.0 / f64::from(SIZE));
            assert_share("below 1005", low, n, 1005.0 / f64::from(SIZE));
        } else {
            assert_eq!(specials, 0);
            assert_share("below 1005", low, n, 1000.0 / f64::from(SIZE - 5));
        }
    }
}

#[test]
fn spans_are_disjoint_runs_of_whole_words_within_the_budget() {
    let vocabulary = vocabulary(SIZE as usize);
    for (case, (len, probability, max_predictions, ngram, whole_word, cross)) in [
        (8, 0.15, 20, 3, true, true),
        (33, 0.15, 20, 3, true, false),
        (128, 0.15, 20, 3, false, true),
        (512, 0.15, 20, 3, true, true),
        (97, 0.5, 1000, 5, true, false),
        (64, 1.0, 1000, 3, true, true),
        (64, 0.0, 20, 1, true, true),
    ]
    .into_iter()
    .enumerate()
    {
        let settings = MaskingSettings {
            probability,
            max_predictions,
            ngram,
            whole_word,
            spans_cross_separator: cross,
            ..Default::default()
        };
        let budget = settings.predictions(len);
        mask_many(&settings, 200, len, |original, ids, positions, labels, spans| {
            assert!(positions.len() <= budget, "case {case}: {} of {budget}", positions.len());
            assert!(positions.is_sorted_by(|a, b| a < b), "case {case}: {positions:?}");
            let is_special = |at: u32| matches!(original[at as usize], 2 | 3);
            assert!(positions.iter().all(|&at| !is_special(at)), "case {case}: a special token was chosen");
            for at in 0..len as u32 {
                let label = positions.binary_search(&at).ok().map(|i| labels[i]);
                assert_eq!(label.unwrap_or(ids[at as usize]), original[at as usize], "case {case}, token {at}");
            }
            let mut covered: Vec<u32> = spans.iter().flat_map(|s| s.start..s.end).filter(|&i| !is_special(i)).collect();
            covered.sort_unstable();
            assert_eq!(covered, positions, "case {case}: {spans:?}");
            for span in spans {
                let inside = span.start..span.end;
                let separators = inside.clone().filter(|&i| is_special(i)).count();
                assert!(separators <= usize::from(cross), "case {case}: {span:?}");
                assert!((1..=ngram as u32).contains(&span.words), "case {case}: {span:?}");
                let starts =
                    |at: u32| !whole_word || vocabulary.is_word_start(original[at as usize]) || is_special(at - 1);
                assert!(starts(span.start), "case {case}: {span:?} begins inside a word");
                assert!(is_special(span.end) || starts(span.end), "case {case}: {span:?} ends inside a word");
                let words = inside.filter(|&i| !is_special(i) && starts(i)).count();
                assert_eq!(words, span.words as usize, "case {case}: {span:?}");
            }
        });
    }
}

#[test]
fn the_reversed_law_prefers_long_spans() {
    let settings = MaskingSettings { favor_shorter_ngram: false, max_predictions: 77, ..Default::default() };
    let statistics = mask_many(&settings, 1000, 512, |_, _, _, _, _| {});
    let drawn: u64 = statistics.drawn.iter().sum();
    for (n, share) in [2.0 / 11.0, 3.0 / 11.0, 6.0 / 11.0].into_iter().enumerate() {
        assert_share(&format!("drawn length {}", n + 1), statistics.drawn[n], drawn, share);
    }
}

#[test]
fn the_number_of_predictions_rounds_halves_to_even() {
    let settings = MaskingSettings { max_predictions: 1000, ..Default::default() };
    for (tokens, expected) in [(1, 1), (3, 1), (10, 2), (30, 4), (50, 8), (70, 10), (128, 19), (512, 77)] {
        // 10 * 0.15 = 1.5 and 30 * 0.15 = 4.5 exactly, as in Python; 70 * 0.15 is 10.5.
        assert_eq!(settings.predictions(tokens), expected, "of {tokens} tokens");
    }
    assert_eq!(MaskingSettings::default().predictions(512), 20);
}

#[test]
fn sequences_that_the_cap_keeps_below_their_share_are_counted() {
    let settings = MaskingSettings::default();
    let capped = |len| mask_many(&settings, 5, len, |_, _, _, _, _| {}).capped;
    // 20 of 133 tokens are 15 %.
    assert_eq!([capped(100), capped(133), capped(140), capped(512)], [0, 0, 5, 5]);
    let settings = MaskingSettings { max_predictions: settings.share(512), ..settings };
    assert_eq!(settings.max_predictions, 77);
    assert_eq!(mask_many(&settings, 5, 512, |_, _, _, _, _| {}).capped, 0);
}
