//! Custom files: texts and pairs in columns, tagged words.

use std::path::Path;

use crate::files::{
    Label, Problem, Purpose, Reader, TagColumns, Tagged, TaskError, Text, TextColumns, labels_of_tagged,
    labels_of_texts, read_tagged, read_texts,
};

use super::{assert_alike, assert_refused, golden, message, read, text};

fn classes(labels: &[&str]) -> Problem {
    Problem::Classes { labels: labels.iter().map(|&label| label.to_owned()).collect() }
}

fn texts(problem: Problem, purpose: Purpose) -> impl Fn(&Path) -> Result<Reader<Text>, TaskError> {
    move |path| read_texts(path, &TextColumns::default(), &problem, purpose)
}

#[test]
fn each_layout_is_read() {
    let folder = golden().join("own");
    let default = TextColumns::default();
    let all = |name: &str, problem: &Problem| {
        read_texts(&folder.join(name), &default, problem, Purpose::Training).unwrap().read_all().unwrap().0
    };
    let class = |index| Some(Label::Class(index));
    assert_eq!(
        all("reviews.tsv", &classes(&["bad", "good"])),
        [text("0", "a \"quoted\" word stays as it is", None, class(1)), text("1", "plain and dull", None, class(0))]
    );
    assert_eq!(
        all("pairs.csv", &classes(&["0", "1"])),
        [
            text("a1", "Boats, ships and \"rafts\"", Some("Things that float"), class(1)),
            text("a2", "Two\nlines", Some("One line"), class(0))
        ]
    );
    assert_eq!(
        all("scores.jsonl", &Problem::Number),
        [
            text("0", "warm bread", Some("fresh bread"), Some(Label::Number(4.5))),
            text("1", "warm bread", Some("a cold lake"), Some(Label::Number(0.25)))
        ]
    );
    assert_eq!(labels_of_texts(&folder.join("reviews.tsv"), &default).unwrap(), ["bad", "good"]);
    assert_eq!(labels_of_texts(&folder.join("pairs.csv"), &default).unwrap(), ["0", "1"]);
}

#[test]
fn labels_that_are_numbers_go_by_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.tsv");
    std::fs::write(&path, "text\tlabel\na\t10\nb\t9\nc\t-1\nd\t9\n").unwrap();
    assert_eq!(labels_of_texts(&path, &TextColumns::default()).unwrap(), ["-1", "9", "10"]);
}

#[test]
fn columns_can_be_named() {
    let columns = TextColumns {
        id: Some("key".to_owned()),
        text: "premise".to_owned(),
        text_b: Some("claim".to_owned()),
        label: "gold".to_owned(),
    };
    let expected = [text("k", "p", Some("c"), Some(Label::Class(0)))];
    for (name, file) in [
        ("f.tsv", "gold\tclaim\tpremise\tkey\ny\tc\tp\tk\n"),
        ("f.csv", "gold,claim,premise,key\r\n\"y\",c,p,k\r\n"),
        ("f.jsonl", "{\"gold\": \"y\", \"claim\": \"c\", \"premise\": \"p\", \"key\": \"k\"}"),
    ] {
        let open = |path: &Path| read_texts(path, &columns, &classes(&["y"]), Purpose::Training);
        assert_eq!(read(name, file, open).unwrap().0, expected, "{name}");
        for missing in ["gold", "claim", "premise", "key"] {
            let message = message(read(name, file.replace(missing, "other"), open), name);
            assert!(message.contains(&format!(":1: no column {missing:?}; the file has ")), "{name}: {message}");
        }
    }
}

#[test]
fn prediction_needs_no_labels() {
    for (name, file) in [
        ("f.tsv", "text\na\nb\n"),
        ("f.csv", "text\na\nb\n"),
        ("f.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"),
        ("f.tsv", "text\tlabel\na\t\nb\t\n"),
        ("f.jsonl", "{\"text\": \"a\", \"label\": null}\n{\"text\": \"b\"}\n"),
    ] {
        let (examples, _) = read(name, file, texts(classes(&["x"]), Purpose::Prediction)).unwrap();
        assert_eq!(examples, [text("0", "a", None, None), text("1", "b", None, None)], "{file:?}");
        for purpose in [Purpose::Training, Purpose::Evaluation] {
            assert!(read(name, file, texts(classes(&["x"]), purpose)).is_err(), "{file:?}");
        }
    }
    let (examples, _) = read("f.tsv", "text\tlabel\na\tx\n", texts(classes(&["x"]), Purpose::Prediction)).unwrap();
    assert_eq!(examples[0].label, None);
}

#[test]
fn byte_order_marks_and_carriage_returns_change_nothing() {
    for (name, file) in [
        ("f.tsv", "text\tlabel\na\tx\nb\tx\n"),
        ("f.csv", "text,label\na,x\nb,x\n"),
        ("f.jsonl", "{\"text\": \"a\", \"label\": \"x\"}\n{\"text\": \"b\", \"label\": \"x\"}\n"),
    ] {
        assert_alike(name, file, texts(classes(&["x"]), Purpose::Training));
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let cases = [
        ("f.tsv", "", "f.tsv: no example"),
        ("f.csv", "", "f.csv: no example"),
        ("f.jsonl", "", "f.jsonl: no example"),
        ("f.tsv", "text\tlabel\n", "f.tsv: no example"),
        ("f.csv", "text,label\n", "f.csv: no example"),
        ("f.tsv", "text\tlabel\na\tx\nb\n", "f.tsv:3: 1 columns, expected 2; columns are separated by TAB"),
        ("f.csv", "text,label\n\"a\nb\",x\nb,x,x\n", "f.csv:4: 3 columns, expected 2; columns are separated by commas"),
        ("f.tsv", "text\ttext\tlabel\na\tb\tx\n", "f.tsv:1: duplicate column \"text\""),
        ("f.tsv", "text\tlabel\na\ty\n", "f.tsv:2: unknown label \"y\"; expected one of \"x\""),
        ("f.csv", "text,label\na,y\n", "f.csv:2: unknown label \"y\""),
        ("f.jsonl", "{\"text\": \"a\", \"label\": true}", "f.jsonl:1: unknown label \"true\""),
        ("f.tsv", "text\tlabel\na\t\n", "f.tsv:2: no label"),
        ("f.csv", "text,label\na,\n", "f.csv:2: no label"),
        ("f.jsonl", "{\"text\": \"a\", \"label\": null}", "f.jsonl:1: no label"),
        ("f.tsv", "text\tlabel\n\tx\n", "f.tsv:2: the text is empty"),
        ("f.tsv", "id\ttext\tlabel\n1\ta\tx\n1\tb\tx\n", "f.tsv:3: duplicate id \"1\""),
        ("f.csv", "id,text,label\n1,a,x\n1,b,x\n", "f.csv:3: duplicate id \"1\""),
        (
            "f.jsonl",
            "{\"id\":1,\"text\":\"a\",\"label\":\"x\"}\n{\"id\":1,\"text\":\"a\",\"label\":\"x\"}",
            "f.jsonl:2: duplicate id",
        ),
        ("f.jsonl", "{\"text\": \"a\"\n", "f.jsonl:1: EOF while parsing an object"),
        ("f.jsonl", "{\"text\": [1], \"label\": \"x\"}", "f.jsonl:1: \"text\" is neither text nor a number"),
        (
            "f.jsonl",
            "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\"a\",\"text_b\":\"b\",\"label\":\"x\"}",
            "f.jsonl:2: example 1: it is a pair, but the examples before are single texts",
        ),
        ("f.txt", "a", "f.txt: unknown file type; expected a name that ends in .tsv, .csv, .jsonl, .ndjson or .json"),
    ];
    for (name, file, expected) in cases {
        assert_refused(name, file, expected, texts(classes(&["x"]), Purpose::Training));
    }
}

fn tagged(labels: &[&str], purpose: Purpose) -> impl Fn(&Path) -> Result<Reader<Tagged>, TaskError> {
    let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
    move |path| read_tagged(path, TagColumns::default(), &labels, purpose)
}

#[test]
fn sentences_end_at_blank_lines() {
    let path = golden().join("conll/train.txt");
    let labels = labels_of_tagged(&path, TagColumns::default()).unwrap();
    assert_eq!(labels, ["O", "B-LOC", "B-PER", "I-PER"]);
    let (read, _) = read_tagged(&path, TagColumns::default(), &labels, Purpose::Training).unwrap().read_all().unwrap();
    let words: Vec<Vec<&str>> = read.iter().map(|s| s.words.iter().map(String::as_str).collect()).collect();
    assert_eq!(words, [vec!["Anna", "Berg", "visited", "Oslo", "."], vec!["Rain", "fell"], vec!["\"Oslo\""]]);
    let tags: Vec<&[u32]> = read.iter().map(|s| s.tags.as_slice()).collect();
    assert_eq!(tags, [&[2, 3, 0, 1, 0][..], &[0, 0], &[1]]);
    assert_eq!(read.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), ["0", "1", "2"]);
    // Part-of-speech tags of the same file.
    let columns = TagColumns { word: 0, tag: Some(1) };
    assert_eq!(labels_of_tagged(&path, columns).unwrap(), [".", "NN", "NNP", "VBD"]);
}

#[test]
fn tagged_words_in_windows_files_and_without_tags() {
    let expected = read("f.txt", "a O\nb X\n\nc O\n", tagged(&["O", "X"], Purpose::Training)).unwrap();
    for file in ["\u{feff}a\tO\r\nb\tX\r\n\r\n\r\nc\tO\r\n", "\n\na O\nb  X\n \nc O"] {
        assert_eq!(read("f.txt", file, tagged(&["O", "X"], Purpose::Training)).unwrap(), expected, "{file:?}");
    }
    let (sentences, _) = read("f.txt", "a\nb\n\nc\n", tagged(&[], Purpose::Prediction)).unwrap();
    assert_eq!((sentences.len(), sentences[0].words.len(), sentences[0].tags.len()), (2, 2, 0));
}

#[test]
fn what_is_wrong_with_tagged_words_is_said_with_its_line() {
    let cases = [
        ("", "f.txt: no example"),
        ("\n\n-DOCSTART- -X- O O\n\n", "f.txt: no example"),
        ("a O\nb\n", "f.txt:2: 1 columns, expected 2 as in the first line"),
        ("a\n", "f.txt:1: 1 columns, expected at least 2"),
        ("a O\nb Y\n", "f.txt:2: unknown label \"Y\"; expected one of \"O\""),
        ("a\tO\nb\t\n", "f.txt:2: no label"),
        ("a\tO\n\tO\n", "f.txt:2: the word is empty"),
    ];
    for (file, expected) in cases {
        assert_refused("f.txt", file, expected, tagged(&["O"], Purpose::Training));
    }
}
