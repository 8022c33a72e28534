//! SQuAD, RACE and custom multiple-choice files.

use std::path::Path;
use std::sync::Arc;

use crate::files::{
    Answer, Level, Purpose, Question, Reader, RemarkKind, Split, TaskError, read_choices, read_race, read_squad,
};

use super::{assert_alike, assert_refused, golden, one, read};

fn squad(may_be_impossible: bool, purpose: Purpose) -> impl Fn(&Path) -> Result<Reader<Question>, TaskError> {
    move |path| read_squad(path, may_be_impossible, purpose)
}

#[test]
fn characters_of_answers_become_bytes() {
    let path = golden().join("squad/train-v1.1.json");
    let (questions, remarks) = read_squad(&path, false, Purpose::Training).unwrap().read_all().unwrap();
    let found: Vec<(&str, &str)> = questions.iter().map(|q| (q.id.as_str(), q.answers[0].text.as_str())).collect();
    assert_eq!(
        found,
        [
            ("5733be284776f41900661182", "1790"),
            ("5733be284776f4190066117f", "Ann Hale"),
            ("5733be284776f41900661180", "São Paulo")
        ]
    );
    for question in &questions {
        let Answer { text, start } = &question.answers[0];
        assert!(question.passage[*start..].starts_with(text), "{text:?} at {start}");
    }
    assert!(Arc::ptr_eq(&questions[0].passage, &questions[1].passage));
    // The fourth question has an answer that is not in the passage.
    let id = "5733be284776f41900661181".to_owned();
    assert_eq!(remarks.len(), 2);
    let elsewhere = RemarkKind::AnswerElsewhere { id: id.clone(), text: "5 000 $".to_owned(), start: 76 };
    assert_eq!(remarks[0].kind, elsewhere);
    assert_eq!(remarks[1].kind, RemarkKind::NoUsableAnswer { id });
}

#[test]
fn evaluation_keeps_answers_that_are_elsewhere() {
    let path = golden().join("squad/dev-v1.1.json");
    for (purpose, count) in [(Purpose::Evaluation, 3), (Purpose::Training, 2)] {
        let (questions, remarks) = read_squad(&path, false, purpose).unwrap().read_all().unwrap();
        assert_eq!((questions.len(), questions[0].answers.len(), remarks.len()), (1, count, 1), "{purpose:?}");
    }
}

#[test]
fn questions_without_answers_are_marked() {
    for (name, marks) in [("train-v2.0.json", &[false, true, false][..]), ("dev-v2.0.json", &[false, true])] {
        let path = golden().join("squad").join(name);
        let (questions, remarks) = read_squad(&path, true, Purpose::Training).unwrap().read_all().unwrap();
        assert!(remarks.is_empty(), "{remarks:?}");
        assert_eq!(questions.iter().map(|q| q.is_impossible).collect::<Vec<_>>(), marks, "{name}");
        assert!(questions.iter().all(|q| q.answers.is_empty() == q.is_impossible), "{name}");
    }
}

#[test]
fn squad_for_prediction_needs_no_answers() {
    let file = one("Ice melts.", "{\"id\": 4, \"question\": \"What melts?\"}");
    let (questions, _) = read("f.json", &file, squad(true, Purpose::Prediction)).unwrap();
    assert_eq!((questions[0].id.as_str(), questions[0].is_impossible, questions[0].answers.len()), ("4", false, 0));
    let expected = "f.json: question \"4\": no answers; training and evaluation need some";
    assert_refused("f.json", &file, expected, squad(true, Purpose::Evaluation));
}

#[test]
fn squad_with_mark_and_carriage_returns() {
    let file = std::fs::read_to_string(golden().join("squad/dev-v2.0.json")).unwrap();
    let expected = read("f.json", &file, squad(true, Purpose::Evaluation)).unwrap();
    assert_alike("f.json", &file, squad(true, Purpose::Evaluation));
    // The array may be the whole file.
    let value: serde_json::Value = serde_json::from_str(&file).unwrap();
    assert_eq!(read("f.json", value["data"].to_string(), squad(true, Purpose::Evaluation)).unwrap(), expected);
}

#[test]
fn what_is_wrong_with_squad_is_said() {
    let answered = |id: &str| {
        format!("{{\"id\": \"{id}\", \"question\": \"?\", \"answers\": [{{\"text\": \"Ice\", \"answer_start\": 0}}]}}")
    };
    let cases = [
        (String::new(), "f.json: no example"),
        ("{}".to_owned(), "f.json:1: no key \"data\""),
        ("{\"version\": 1.1, \"a\": [1, 2]}".to_owned(), "f.json:1: no key \"data\""),
        ("{\"data\": 7}".to_owned(), "f.json:1: the value of \"data\" is not an array"),
        ("{\"data\": []}".to_owned(), "f.json: no example"),
        ("7".to_owned(), "f.json:1: neither an object nor an array"),
        ("{\"data\": [{\"paragraphs\": []}".to_owned(), "f.json:1: the file ends within the array"),
        ("{\"data\": [\n{\"paragraphs\": []}{".to_owned(), "f.json:2: no comma between two elements"),
        ("{\"data\": [{\"paragraphs\": [{\"qas\": []}]}]}".to_owned(), "f.json:1: missing field `context`"),
        (one("Ice.", &format!("{}, {}", answered("a"), answered("a"))), "f.json: duplicate id \"a\""),
        (
            one("Ice.", &answered("a").replace("\"question\"", "\"is_impossible\": true, \"question\"")),
            "f.json: question \"a\": it is marked as impossible and has answers",
        ),
        (one("Ice.", "{\"id\": \"a\", \"question\": \"?\"}"), "f.json: question \"a\": no answers"),
    ];
    for (file, expected) in cases {
        assert_refused("f.json", file, expected, squad(true, Purpose::Training));
    }
    let impossible = one("Ice.", "{\"id\": \"a\", \"question\": \"?\", \"answers\": [], \"is_impossible\": true}");
    let expected = "f.json: question \"a\": it is marked as impossible, which only SQuAD 2.0 files";
    assert_refused("f.json", impossible, expected, squad(false, Purpose::Training));
}

#[test]
fn answers_beyond_the_passage_are_elsewhere() {
    for start in ["4", "5", "18446744073709551615"] {
        let answers = format!("[{{\"text\": \"Ice\", \"answer_start\": {start}}}]");
        let file = one("Éc ", &format!("{{\"id\": \"a\", \"question\": \"?\", \"answers\": {answers}}}"));
        let (questions, remarks) = read("f.json", file, squad(false, Purpose::Evaluation)).unwrap();
        assert_eq!((questions[0].answers[0].start, remarks.len()), (4, 1));
    }
}

#[test]
fn race_is_read_in_both_layouts() {
    let folder = golden().join("race");
    for split in [Split::Train, Split::Dev, Split::Test] {
        let reader = read_race(&folder, split, &Level::ALL, Purpose::Training).unwrap();
        let (examples, remarks) = reader.read_all().unwrap();
        assert!(remarks.is_empty());
        let ids: Vec<&str> = examples.iter().map(|e| e.id.as_str()).collect();
        // 2.txt is before 10.txt.
        let expected =
            ["middle2.txt#0", "middle2.txt#1", "middle10.txt#0", "high2.txt#0", "high2.txt#1", "high10.txt#0"];
        assert_eq!(ids, expected, "{split}");
        assert_eq!(examples[0].answer, Some(1));
        assert_eq!((examples[1].answer, examples[1].options[0].as_str()), (Some(0), "June; market"));
        assert!(Arc::ptr_eq(&examples[0].passage, &examples[1].passage));
        assert_eq!(examples.iter().filter(|e| e.level == Some(Level::High)).count(), 3);
    }
    // The inner folder is also accepted, and so is one level.
    let reader = read_race(&folder.join("RACE"), Split::Dev, &[Level::High], Purpose::Training).unwrap();
    assert_eq!(reader.count(), 3);
    let reader = read_race(&golden().join("race-all"), Split::Dev, &Level::ALL, Purpose::Training).unwrap();
    let ids: Vec<String> = reader.map(|example| example.unwrap().id).collect();
    assert_eq!(ids, ["middle2.txt#0", "middle2.txt#1", "middle10.txt#0", "high2.txt#0"]);
}

/// Result of reading a folder with one RACE file.
fn race_of(files: &[(&str, &str)]) -> Result<(usize, Vec<String>), TaskError> {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("dev/high");
    std::fs::create_dir_all(&part).unwrap();
    for (name, text) in files {
        std::fs::write(part.join(name), text).unwrap();
    }
    let reader = read_race(folder.path(), Split::Dev, &[Level::High], Purpose::Evaluation)?;
    reader.read_all().map(|(examples, remarks)| (examples.len(), remarks.iter().map(ToString::to_string).collect()))
}

#[test]
fn what_is_wrong_with_race_is_said() {
    let good = "{\"article\": \"a\", \"questions\": [\"q\"], \"options\": [[\"1\", \"2\", \"3\", \"4\"]], \"answers\": [\"A\"], \"id\": \"p\"}";
    let (count, remarks) = race_of(&[("all.txt", &format!("\u{feff}{good}\r\n")), ("1.txt", good)]).unwrap();
    assert_eq!(count, 1);
    assert!(remarks[0].ends_with("all.txt: read instead of 1 other files in its folder"), "{remarks:?}");
    assert_eq!(race_of(&[("3.txt", &format!("\u{feff}{good}\r\n"))]).unwrap(), (1, vec![]));
    let cases = [
        (vec![("all.txt", String::new())], "no example in the file"),
        (vec![("all.txt", format!("{good}\n{good}\n"))], "all.txt:2: duplicate id \"p#0\""),
        (vec![("1.txt", good.to_owned()), ("2.txt", good.to_owned())], "2.txt: duplicate id \"p#0\""),
        (vec![("1.txt", String::new())], "1.txt: EOF while parsing a value"),
        (vec![("all.txt", format!("{good}\n{{\n"))], "all.txt:2: EOF while parsing an object"),
        (vec![("1.txt", good.replace(", \"4\"", ""))], "1.txt: passage \"p\": question 0 has 3 options, expected 4"),
        (
            vec![("1.txt", good.replace("[\"A\"]", "[\"E\"]"))],
            "the answer to question 0 is \"E\", expected A, B, C or D",
        ),
        (vec![("1.txt", good.replace("[\"A\"]", "[]"))], "1.txt: passage \"p\": 1 questions, but 0 answers"),
        (vec![("1.txt", good.replace("\"answers\": [\"A\"], ", ""))], "1.txt: no label"),
        (vec![], "no file such as 1.txt, or all.txt in this folder"),
    ];
    for (files, expected) in cases {
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let message = race_of(&files).expect_err("this must be an error").to_string();
        assert!(message.contains(expected), "{files:?}\n gave {message:?}\n not {expected:?}");
    }
}

#[test]
fn choices_of_ones_own_are_read() {
    let folder = golden().join("own");
    let (lines, _) = read_choices(&folder.join("choices.jsonl"), Purpose::Training).unwrap().read_all().unwrap();
    assert_eq!(lines.iter().map(|c| (c.id.as_str(), c.answer)).collect::<Vec<_>>(), [("7", Some(1)), ("x", Some(1))]);
    assert_eq!((&*lines[1].passage, lines[1].options.len()), ("", 3));
    let (array, _) = read_choices(&folder.join("choices.json"), Purpose::Training).unwrap().read_all().unwrap();
    assert_eq!(array.iter().map(|c| (c.id.as_str(), c.answer)).collect::<Vec<_>>(), [("0", Some(1)), ("1", Some(0))]);
    assert!(Arc::ptr_eq(&array[0].passage, &array[1].passage));
}

#[test]
fn what_is_wrong_with_choices_is_said() {
    let good = "{\"id\": 1, \"question\": \"q\", \"options\": [\"a\", \"b\"], \"answer\": 1}";
    let cases = [
        (String::new(), "f.jsonl: no example"),
        (format!("{good}\n{good}"), "f.jsonl:2: duplicate id \"1\""),
        (good.replace(", \"b\"", ""), "f.jsonl:1: question \"1\": 1 options, expected two or more"),
        (good.replace(": 1}", ": 2}"), "f.jsonl:1: question \"1\": the answer is option 2 (from 0), but there are 2"),
        (good.replace(": 1}", ": \"x y\"}"), "f.jsonl:1: question \"1\": the answer is \"x y\", expected an index"),
        (good.replace(", \"answer\": 1", ""), "f.jsonl:1: no label"),
        (good.replace("\"question\": \"q\", ", ""), "f.jsonl:1: missing field `question`"),
    ];
    for (file, expected) in cases {
        assert_refused("f.jsonl", file, expected, |path| read_choices(path, Purpose::Training));
    }
    let unanswered = good.replace(", \"answer\": 1", "");
    let (choices, _) = read("f.jsonl", unanswered, |path| read_choices(path, Purpose::Prediction)).unwrap();
    assert_eq!(choices[0].answer, None);
}
