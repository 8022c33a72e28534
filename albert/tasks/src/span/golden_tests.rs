//! Windows over contexts made from real text, compared with a transcription of the released code to Python in which
//! pieces contain their characters (`tests/oracle/tasks/squad_features.py`). `ALBERT_SPAN_GOLDEN=FILE` names a larger
//! file for the ignored test.

use std::path::Path;
use std::sync::Arc;

use albert::tokenizer::Tokenizer;
use serde_json::Value;

use super::{SpanSettings, features};
use crate::files::{Answer, Question};

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect()
}

fn lists(value: &Value) -> Vec<Vec<usize>> {
    value.as_array().unwrap().iter().map(numbers).collect()
}

/// Lengths of runs, starting with a run of `false`.
fn runs(bits: impl IntoIterator<Item = bool>) -> Vec<usize> {
    let (mut found, mut value) = (vec![0], false);
    for bit in bits {
        if bit != value {
            found.push(0);
            value = bit;
        }
        *found.last_mut().unwrap() += 1;
    }
    found
}

/// Compares all windows of a case and returns their number.
fn check(tokenizer: &Tokenizer, case: &Value, number: usize) -> usize {
    let text = |key: &str| case[key].as_str().unwrap();
    let size = |key: &str| case[key].as_u64().unwrap() as usize;
    let passage: Arc<str> = text("context").into();
    let (start, end) = (case["answer"][0].as_u64().unwrap() as usize, case["answer"][1].as_u64().unwrap() as usize);
    let question = Question {
        id: number.to_string(),
        passage: passage.clone(),
        question: text("question").to_owned(),
        answers: vec![Answer { text: passage[start..end].to_owned(), start }],
        is_impossible: false,
    };
    let settings =
        SpanSettings { max_length: size("max_length"), stride: size("stride"), max_question: size("max_question") };
    let found = features(tokenizer, number, &question, &settings).unwrap();
    let gold = found.gold.pieces().map(|pieces| vec![pieces.start, pieces.end - 1]);
    let expected_gold = case["gold"].as_array().map(|_| numbers(&case["gold"]));
    assert_eq!(gold, expected_gold, "case {number}: pieces of the answer {:?} in {passage:?}", &passage[start..end]);
    let (asked, ids) = (numbers(&case["asked"]), numbers(&case["ids"]));
    let lengths: Vec<Option<Vec<usize>>> =
        case["lengths"].as_array().unwrap().iter().map(|span| span.as_array().map(|_| numbers(span))).collect();
    let owners: Vec<usize> = lists(&case["owners"]).iter().flat_map(|run| vec![run[0]; run[1]]).collect();
    let spans = lists(&case["windows"]);
    assert_eq!(found.windows.len(), spans.len(), "case {number}: windows");
    for (index, (window, span)) in found.windows.iter().zip(&spans).enumerate() {
        let about = format!("case {number}, window {index}");
        let pieces = span[0]..span[0] + span[1];
        let specials = tokenizer.specials();
        let (cls, sep) = (vec![specials.cls as usize], vec![specials.sep as usize]);
        let expected = [&cls[..], &asked, &sep, &ids[pieces.clone()], &sep].concat();
        assert_eq!(window.sequence.ids.iter().map(|&id| id as usize).collect::<Vec<_>>(), expected, "{about}: ids");
        assert_eq!(runs(window.sequence.segments().map(|s| s == 1)), numbers(&case["segments"][index]), "{about}");
        assert_eq!(runs(window.is_hidden()), numbers(&case["hidden"][index]), "{about}: where no answer may be");
        for (piece, &(from, to)) in pieces.clone().zip(&window.offsets) {
            let covered = (from < to).then(|| vec![from, to - from]);
            assert_eq!(covered, lengths[piece], "{about}: bytes of piece {piece} of {passage:?}");
        }
        let owned: Vec<bool> = pieces.map(|piece| owners[piece] == index).collect();
        assert_eq!(window.is_max_context, owned, "{about}: owned pieces");
        let answer = &case["spans"][index];
        assert_eq!(serde_json::json!([window.start, window.end, window.is_impossible]), *answer, "{about}: answer");
    }
    spans.len()
}

/// Checks a file and returns the number of contexts and windows.
fn check_file(path: &Path) -> (usize, usize) {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tokenizer/spiece.model");
    let tokenizer = Tokenizer::load(Path::new(model)).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let windows = text.lines().enumerate().map(|(number, line)| {
        let case: Value = serde_json::from_str(line).unwrap();
        check(&tokenizer, &case, number)
    });
    let windows: Vec<usize> = windows.collect();
    (windows.len(), windows.iter().sum())
}

#[test]
fn agrees_with_a_transcription_feature_by_feature() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tasks/squad_features.jsonl");
    let (contexts, windows) = check_file(Path::new(path));
    assert!(contexts == 100 && windows > 300, "{contexts} contexts, {windows} windows");
}

#[test]
#[ignore = "needs ALBERT_SPAN_GOLDEN, a file of tests/oracle/tasks/squad_features.py"]
fn agrees_with_a_transcription_on_a_larger_file() {
    let path = std::env::var("ALBERT_SPAN_GOLDEN").expect("ALBERT_SPAN_GOLDEN names a file");
    println!("{:?} contexts and windows", check_file(Path::new(&path)));
}
