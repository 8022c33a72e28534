//! Every metric on 2,500 random and adversarial sets of predictions, against other implementations
//! (`tests/oracle/tasks/metrics.py`). `ALBERT_METRICS_GOLDEN=FILE` names a larger file for the ignored test.
//!
//! SQuAD, classes and entities agree to the last digit. Correlations differ from the value to 80 digits by at most
//! [`CORRELATION_BOUND`], which is two ulp of 1; SciPy, which adds in the order of its BLAS, is off by up to 5.6e-16.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::squad::{Squad2Scores, SquadScores};
use super::{Confusion, EntityCounts, Gold, evaluate_squad1, evaluate_squad2, pearson, spearman};

/// Maximum error of a correlation.
const CORRELATION_BOUND: f64 = 2.0 * f64::EPSILON;

/// Maximum difference between a correlation and SciPy's.
const SCIPY_BOUND: f64 = 8.0 * f64::EPSILON;

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn indices(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect()
}

/// Questions and predictions of a set.
fn squad_of(set: &Value) -> (Vec<Gold>, HashMap<String, String>) {
    let (mut golds, mut predictions) = (Vec::new(), HashMap::new());
    for (at, question) in set["questions"].as_array().unwrap().iter().enumerate() {
        let id = at.to_string();
        let answers = question[0].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect();
        if let Some(text) = question[1].as_str() {
            predictions.insert(id.clone(), text.to_owned());
        }
        golds.push(Gold { id, answers });
    }
    (golds, predictions)
}

fn check_squad1(set: &Value) {
    let (golds, predictions) = squad_of(set);
    let found = evaluate_squad1(&golds, &predictions).unwrap();
    assert_eq!([found.all.exact, found.all.f1], *floats(&set["expected"]), "{set}");
    assert_eq!(found.missing as usize, golds.len() - predictions.len());
}

/// Scores by official name, in the official order.
fn official(scores: &Squad2Scores) -> Map<String, Value> {
    let mut map = Map::new();
    for (prefix, scores) in [("", Some(scores.all)), ("HasAns_", scores.has_answer), ("NoAns_", scores.no_answer)] {
        if let Some(SquadScores { exact, f1, total }) = scores {
            map.insert(format!("{prefix}exact"), json!(exact));
            map.insert(format!("{prefix}f1"), json!(f1));
            map.insert(format!("{prefix}total"), json!(total));
        }
    }
    if let Some(best) = scores.best {
        map.insert("best_exact".to_owned(), json!(best.exact));
        map.insert("best_exact_thresh".to_owned(), json!(best.exact_threshold));
        map.insert("best_f1".to_owned(), json!(best.f1));
        map.insert("best_f1_thresh".to_owned(), json!(best.f1_threshold));
    }
    map
}

fn check_squad2(set: &Value) {
    let (golds, predictions) = squad_of(set);
    let scores: Option<Vec<(String, f64)>> = set.get("scores").map(|scores| {
        let pairs = scores.as_array().unwrap().iter();
        pairs.map(|pair| (pair[0].to_string(), pair[1].as_f64().unwrap())).collect()
    });
    let threshold = set["threshold"].as_f64().unwrap();
    let found = official(&evaluate_squad2(&golds, &predictions, scores.as_deref(), threshold).unwrap());
    let mut expected = set["expected"].as_object().unwrap().clone();
    if scores.is_none() {
        expected.retain(|name, _| !name.starts_with("best"));
    }
    // As text, to compare the printed digits and the order of the names.
    assert_eq!(serde_json::to_string(&found).unwrap(), serde_json::to_string(&expected).unwrap(), "{set}");
}

fn check_classes(set: &Value) {
    let rows: Vec<Vec<u64>> = set["counts"].as_array().unwrap().iter().map(indices).collect();
    let mut confusion = Confusion::new(rows.len());
    for (truth, row) in rows.iter().enumerate() {
        for (prediction, &count) in row.iter().enumerate() {
            (0..count).for_each(|_| confusion.add(truth as u32, prediction as u32));
        }
    }
    for (name, expected) in set["expected"].as_object().unwrap() {
        let found = match name.as_str() {
            "accuracy" => confusion.accuracy(),
            "macro_f1" => confusion.macro_f1(),
            "matthews" => confusion.matthews(),
            "f1" => confusion.f1(1),
            other => panic!("no metric {other}"),
        };
        assert_eq!(found, expected.as_f64().unwrap(), "{name} of {rows:?}");
    }
}

fn check_correlation(set: &Value) {
    let (x, y) = (floats(&set["x"]), floats(&set["y"]));
    for (name, found) in [("pearson", pearson(&x, &y)), ("spearman", spearman(&x, &y))] {
        let (scipy, exact) = (set[name][0].as_f64(), set[name][1].as_f64());
        assert_eq!(found.is_some(), exact.is_some(), "{name}: {found:?}, exact {exact:?}: {set}");
        assert_eq!(found.is_some(), scipy.is_some(), "{name}: {found:?}, SciPy {scipy:?}: {set}");
        for (other, bound) in [(exact, CORRELATION_BOUND), (scipy, SCIPY_BOUND)] {
            if let (Some(found), Some(other)) = (found, other) {
                let off = (found - other).abs();
                assert!(off <= bound, "{name}: {found} against {other}, off by {off:e}, bound {bound:e}: {set}");
            }
        }
    }
}

fn check_entities(set: &Value) {
    let tags: Vec<&str> = set["tags"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap()).collect();
    let mut counts = EntityCounts::default();
    for sentence in set["sentences"].as_array().unwrap() {
        let [truth, guess] =
            [0, 1].map(|side| indices(&sentence[side]).iter().map(|&tag| tags[tag as usize]).collect::<Vec<_>>());
        counts.add(&truth, &guess);
    }
    assert_eq!([counts.precision(), counts.recall(), counts.f1()], *floats(&set["expected"]), "{set}");
}

fn check(text: &str) -> HashMap<String, usize> {
    let mut checked = HashMap::new();
    for line in text.lines() {
        let set: Value = serde_json::from_str(line).unwrap();
        let kind = set["kind"].as_str().unwrap();
        match kind {
            "squad1" => check_squad1(&set),
            "squad2" => check_squad2(&set),
            "classes" => check_classes(&set),
            "correlation" => check_correlation(&set),
            "entities" => check_entities(&set),
            other => panic!("no kind {other}"),
        }
        *checked.entry(kind.to_owned()).or_default() += 1;
    }
    checked
}

#[test]
fn agrees_with_other_implementations() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tasks/metrics.jsonl");
    let checked = check(&std::fs::read_to_string(path).unwrap());
    let expected = [("squad1", 417), ("squad2", 834), ("classes", 417), ("correlation", 416), ("entities", 416)];
    assert_eq!(checked, expected.map(|(kind, count)| (kind.to_owned(), count)).into());
}

#[test]
#[ignore = "needs ALBERT_METRICS_GOLDEN, a file of tests/oracle/tasks/metrics.py"]
fn agrees_with_other_implementations_on_a_larger_file() {
    let path = std::env::var("ALBERT_METRICS_GOLDEN").expect("ALBERT_METRICS_GOLDEN names a file");
    println!("{:?}", check(&std::fs::read_to_string(path).unwrap()));
}
