//! Windows, decoding, thresholds and ensembles.

use std::path::Path;
use std::sync::Arc;

use albert::tokenizer::{SpecialIds, Tokenizer};

use super::features::{SpanError, locate, windows_of};
use super::{
    Answers, BeamStart, Candidate, DecodeSettings, GoldSpan, SpanFeature, SpanSettings, Threshold, WindowScores,
    average, decode, features, log_softmax, top, tune,
};
use crate::files::{Answer, Question};
use crate::metrics::Gold;

fn golden(path: &str) -> std::path::PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden")).join(path)
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&golden("tokenizer/spiece.model")).unwrap()
}

fn specials() -> SpecialIds {
    tokenizer().specials()
}

/// Pieces of four bytes each with a space between them: "p000 p001 ...".
fn passage(count: usize) -> (String, Vec<u32>, Vec<(usize, usize)>) {
    let text = (0..count).map(|at| format!("p{at:03}")).collect::<Vec<_>>().join(" ");
    (text, (0..count as u32).map(|at| 100 + at).collect(), (0..count).map(|at| (5 * at, 5 * at + 4)).collect())
}

fn windows(count: usize, answer: Option<std::ops::Range<usize>>, max_length: usize, stride: usize) -> Vec<SpanFeature> {
    let (_, ids, offsets) = passage(count);
    let settings = SpanSettings { max_length, stride, max_question: 2 };
    windows_of(7, &[50, 51, 52], &ids, &offsets, answer, tokenizer().frame(), &settings).unwrap()
}

#[test]
fn a_passage_without_pieces_has_a_window() {
    let found = windows(0, None, 11, 3);
    let SpecialIds { cls, sep, .. } = specials();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].sequence.ids, [cls, 50, 51, sep, sep]);
    assert!(found[0].is_impossible && found[0].paragraph.is_empty());
    let logits = [0.0; 5];
    let answers =
        decode("", &found, &[WindowScores::Independent { start: &logits, end: &logits }], &Default::default());
    assert_eq!((answers.best(), answers.null_score), ("", f64::INFINITY));
}

#[test]
fn settings_without_room_are_refused() {
    let (_, ids, offsets) = passage(3);
    let of = |max_length, stride| {
        let settings = SpanSettings { max_length, stride, max_question: 64 };
        windows_of(0, &[50; 70], &ids, &offsets, None, tokenizer().frame(), &settings).map(|windows| windows.len())
    };
    assert!(matches!(of(67, 1), Err(SpanError::NoRoom { max_length: 67, question: 64 })));
    assert!(matches!(of(68, 0), Err(SpanError::NoStride)));
    assert!(matches!(of(68, 1), Ok(3)));
}

#[test]
fn answers_are_located_by_bytes() {
    //          0123456789
    let text = "ab cd  efg";
    let offsets = [(0, 2), (3, 3), (3, 4), (4, 5), (7, 10)];
    let cases = [
        (0..2, GoldSpan::Whole(0..1)),
        (0..3, GoldSpan::Whole(0..1)),
        (3..5, GoldSpan::Whole(2..4)),
        (2..7, GoldSpan::Whole(2..4)),
        (4..10, GoldSpan::Whole(3..5)),
        (8..10, GoldSpan::Within { pieces: 4..5, covers: 7..10 }),
        (1..4, GoldSpan::Within { pieces: 0..3, covers: 0..4 }),
        (5..7, GoldSpan::Nowhere),
        (2..3, GoldSpan::Nowhere),
    ];
    for (answer, expected) in cases {
        assert_eq!(locate(text, &offsets, answer.clone()), expected, "{answer:?}");
    }
    assert_eq!(locate("", &[], 0..0), GoldSpan::Nowhere);
    // The accent of a letter is included, although no piece covers it.
    assert_eq!(locate("cafe\u{301} b", &[(0, 4), (7, 8)], 0..6), GoldSpan::Whole(0..1));
}

#[test]
fn answers_that_are_elsewhere_are_not_learnt() {
    let answer = |text: &str, start| Answer { text: text.to_owned(), start };
    let mut question = Question {
        id: "q".to_owned(),
        passage: "The café is old.".into(),
        question: "what?".to_owned(),
        answers: vec![answer("old", 0), answer("é is", 8), answer("a text that is longer", 17), answer("old", 99)],
        is_impossible: false,
    };
    let tokenizer = tokenizer();
    let settings = SpanSettings::default();
    let of = |question: &Question| features(&tokenizer, 0, question, &settings).unwrap();
    assert_eq!(of(&question).gold, GoldSpan::None);
    assert!(of(&question).windows[0].is_impossible);
    question.answers.push(answer("old", 13));
    let found = of(&question);
    let window = &found.windows[0];
    assert_eq!(window.bytes(&question.passage, window.start, window.end), Some(13..16));
    assert_eq!(found.gold.remark(&question), None);
    question.is_impossible = true;
    assert_eq!(of(&question).gold, GoldSpan::None);
}

/// Asserts that every window with the answer reproduces its text, if it consists of whole pieces; returns true if it does.
fn is_recovered(tokenizer: &Tokenizer, passage: &Arc<str>, start: usize, end: usize) -> bool {
    let text = passage[start..end].to_owned();
    let question = Question {
        id: String::new(),
        passage: passage.clone(),
        question: "what?".to_owned(),
        answers: vec![Answer { text: text.clone(), start }],
        is_impossible: false,
    };
    let settings = SpanSettings { max_length: 40, stride: 10, max_question: 8 };
    let found = features(tokenizer, 0, &question, &settings).unwrap();
    let is_whole = matches!(found.gold, GoldSpan::Whole(_));
    for window in found.windows.iter().filter(|window| !window.is_impossible) {
        let bytes = window.bytes(passage, window.start, window.end).expect("pieces that cover something");
        assert_eq!(&passage[bytes] == text.trim(), is_whole, "the answer {text:?} in {passage:?}");
        assert_eq!(found.gold.remark(&question).is_some(), !is_whole);
    }
    is_whole
}

#[test]
fn every_answer_of_whole_pieces_is_recovered() {
    let tokenizer = tokenizer();
    // Contexts with unusual spaces, accents, quotes and scripts: every answer between two spaces that consists of whole pieces.
    let text = std::fs::read_to_string(golden("tasks/squad_features.jsonl")).unwrap();
    let (mut whole, mut all) = (0, 0);
    for line in text.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let passage: Arc<str> = case["context"].as_str().unwrap().into();
        let (start, end) = (case["answer"][0].as_u64().unwrap() as usize, case["answer"][1].as_u64().unwrap() as usize);
        whole += usize::from(is_recovered(&tokenizer, &passage, start, end));
        all += 1;
        // And all its single words.
        for (at, _) in passage.match_indices(|c: char| !c.is_whitespace()).step_by(17) {
            let end = passage[at..].find(char::is_whitespace).map_or(passage.len(), |length| at + length);
            is_recovered(&tokenizer, &passage, at, end);
        }
    }
    assert!(whole * 10 > all * 7, "{whole} of {all} answers are of whole pieces");
}

/// Logits that are `low` except at the given tokens.
fn logits(count: usize, low: f32, high: &[(usize, f32)]) -> Vec<f32> {
    let mut logits = vec![low; count];
    high.iter().for_each(|&(at, logit)| logits[at] = logit);
    logits
}

#[test]
fn the_best_span_of_all_windows_is_cut_from_the_passage() {
    let (text, ..) = passage(10);
    let found = windows(10, None, 11, 3);
    // Tokens 4.. are the passage: window 0 has pieces 0 to 5, window 1 has 3 to 8, window 2 has 6 to 9.
    let of = |window: usize, starts: &[(usize, f32)], ends: &[(usize, f32)]| {
        let count = found[window].sequence.ids.len();
        (logits(count, -9.0, starts), logits(count, -9.0, ends))
    };
    let scores = [
        of(0, &[(0, 1.0), (5, 3.0), (9, 8.0)], &[(0, 2.0), (6, 4.0), (9, 5.0)]),
        of(1, &[(0, 0.5), (2, 9.0), (6, 3.0)], &[(0, 0.25), (3, 9.0), (7, 3.5), (5, 9.0)]),
        of(2, &[(0, 4.0), (8, 9.0)], &[(0, 4.0), (7, 2.0), (8, 9.0)]),
    ];
    let scores: Vec<WindowScores<'_>> =
        scores.iter().map(|(start, end)| WindowScores::Independent { start, end }).collect();
    let answers = decode(&text, &found, &scores, &DecodeSettings { n_best: 3, max_answer: 4 });
    // Rejected: 5..=9 is too long (5 pieces); start 9 of window 0 is owned by window 1; in window 1, token 2 belongs
    // to the question and end 5 is before start 6; in window 2, token 8 is [SEP].
    let found: Vec<(&str, f64)> = answers.candidates.iter().map(|c| (c.text.as_str(), c.score)).collect();
    assert_eq!(found, [("p001 p002", 7.0), ("p005 p006", 6.5)]);
    assert_eq!(answers.candidates[0].bytes, 5..14);
    let share = 1.0 / (1.0 + (-0.5f64).exp());
    assert!((answers.candidates[0].probability - share).abs() < 1e-15);
    // The minimum null score is that of window 1, 0.75; the best span is better by 6.25.
    assert_eq!(answers.null_score, 0.75 - 7.0);
    assert_eq!(Threshold::Fixed(-6.25).answer(&answers), "p001 p002");
    assert_eq!(Threshold::Fixed(-6.26).answer(&answers), "");
    assert_eq!(Threshold::Never.answer(&answers), "p001 p002");
}

#[test]
fn equal_texts_are_one_answer() {
    let text = "on and on";
    let settings = SpanSettings { max_length: 9, stride: 1, max_question: 1 };
    let found =
        windows_of(0, &[9], &[1, 2, 1], &[(0, 2), (3, 6), (7, 9)], Some(0..1), tokenizer().frame(), &settings).unwrap();
    let count = found[0].sequence.ids.len();
    let [start, end] = [(3, 1.0), (5, 2.0)].map(|_| logits(count, -5.0, &[(3, 1.0), (5, 2.0)]));
    let answers = decode(text, &found, &[WindowScores::Independent { start: &start, end: &end }], &Default::default());
    let texts: Vec<&str> = answers.candidates.iter().map(|candidate| candidate.text.as_str()).collect();
    assert_eq!(texts, ["on", "on and on", "and on", "on and", "and"]);
    assert_eq!(answers.candidates[0].bytes, 7..9);
    let sum: f64 = answers.candidates.iter().map(|candidate| candidate.probability).sum();
    assert!((sum - 1.0).abs() < 1e-15, "{sum}");
}

#[test]
fn beams_add_log_probabilities_and_take_the_least_null_score() {
    let (text, ..) = passage(10);
    let found = windows(10, None, 11, 3);
    let start =
        |token, log_probability, ends: &[(usize, f64)]| BeamStart { token, log_probability, ends: ends.to_vec() };
    let beams = [
        vec![start(0, -0.1, &[(0, -0.1)]), start(6, -1.0, &[(7, -0.5), (5, -0.25)])],
        vec![start(7, -0.75, &[(7, -0.5), (8, -3.0)])],
        vec![],
    ];
    let scores: Vec<WindowScores<'_>> = (beams.iter().zip([2.0, -1.5, 0.0]))
        .map(|(starts, no_answer)| WindowScores::Beam { starts, no_answer })
        .collect();
    let answers = decode(&text, &found, &scores, &DecodeSettings::default());
    let texts: Vec<(&str, f64)> = answers.candidates.iter().map(|c| (c.text.as_str(), c.score)).collect();
    assert_eq!(texts, [("p006", -1.25), ("p002 p003", -1.5), ("p006 p007", -3.75)]);
    assert_eq!(answers.null_score, -1.5);
}

#[test]
fn the_largest_come_first_and_of_equal_ones_the_first() {
    assert_eq!(top(3, &[1.0, 5.0, 1.0, f64::NAN, 5.0, 1.0]), [(1, 5.0), (4, 5.0), (0, 1.0)]);
    assert_eq!(top(9, &[1.0, 2.0]), [(1, 2.0), (0, 1.0)]);
    assert_eq!(top(0, &[1.0]), []);
}

#[test]
fn hidden_tokens_have_no_probability() {
    let found = log_softmax(&[1.0, 30.0, 1.0, -1e30], &[false, true, false, false]);
    assert_eq!(found[1], f64::NEG_INFINITY);
    assert!((found[0] - 0.5f64.ln()).abs() < 1e-15 && found[0] == found[2], "{found:?}");
    let sum: f64 = found.iter().map(|x| x.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-15);
}

fn answers(candidates: &[(&str, f64)], null_score: f64) -> Answers {
    let candidate = |&(text, probability): &(&str, f64)| Candidate {
        text: text.to_owned(),
        bytes: 0..text.len(),
        score: probability.ln(),
        probability,
    };
    Answers { candidates: candidates.iter().map(candidate).collect(), null_score }
}

#[test]
fn the_tuned_threshold_says_so_and_keeps_the_question_it_was_tuned_to() {
    let gold = |id: &str, answers: &[&str]| Gold {
        id: id.to_owned(),
        answers: answers.iter().map(|&answer| answer.to_owned()).collect(),
    };
    let golds = [gold("a", &["x"]), gold("b", &[]), gold("c", &["y"])];
    let found = [answers(&[("x", 1.0)], -3.0), answers(&[("z", 1.0)], 2.0), answers(&[("y", 1.0)], 0.5)];
    let threshold = tune(&golds, &found, "dev.json").unwrap();
    assert_eq!(threshold, Threshold::Tuned { value: 0.5, on: "dev.json".to_owned() });
    assert_eq!(threshold.to_string(), "0.5 (tuned on dev.json)");
    let said: Vec<&str> = found.iter().map(|answers| threshold.answer(answers)).collect();
    assert_eq!(said, ["x", "", "y"]);
    // Questions with equal null scores are answered together, which is not better than answering none in this case.
    let equal = [answers(&[("x", 1.0)], 0.5), answers(&[("z", 1.0)], 0.5), answers(&[("w", 1.0)], 0.5)];
    let threshold = tune(&golds, &equal, "dev.json").unwrap();
    assert!(threshold.value() < 0.5, "{threshold}");
    assert!(equal.iter().all(|answers| threshold.answer(answers).is_empty()));
}

#[test]
fn ensembles_average_probabilities() {
    let models = [
        answers(&[("x", 0.6), ("y", 0.4)], 1.0),
        answers(&[("y", 0.7), ("z", 0.3)], 2.0),
        answers(&[("w", 0.9), ("y", 0.1)], -6.0),
    ];
    let close = |found: &Answers, expected: &[(&str, f64)]| {
        let texts: Vec<&str> = found.candidates.iter().map(|candidate| candidate.text.as_str()).collect();
        assert_eq!(texts, expected.iter().map(|(text, _)| *text).collect::<Vec<_>>());
        for (candidate, (_, score)) in found.candidates.iter().zip(expected) {
            assert!((candidate.score - score).abs() < 1e-15, "{candidate:?}");
        }
    };
    let found = average(&models);
    close(&found, &[("y", 0.4), ("w", 0.3)]);
    assert_eq!(found.null_score, -1.0);
    assert!((found.candidates.iter().map(|c| c.probability).sum::<f64>() - 1.0).abs() < 1e-15);
    // A single model is unchanged except for the scores.
    let alone = average(&models[..1]);
    assert_eq!(alone.best(), "x");
    close(&alone, &[("x", 0.6), ("y", 0.4)]);
    assert_eq!(average(&[answers(&[], 1.0)]).best(), "");
}
