//! Hostile files: each is read or rejected in one sentence, with the line if there is one.

use std::path::Path;

use crate::files::{
    Label, Problem, Purpose, RemarkKind, TagColumns, TextColumns, labels_of_tagged, read_squad, read_tagged, read_texts,
};

use super::{assert_refused, message, one, read};

fn labels() -> Problem {
    Problem::Classes { labels: ["pos", "neg"].map(str::to_owned).into() }
}

/// Texts and classes of a file.
fn texts(name: &str, file: impl AsRef<[u8]>) -> Result<Vec<(String, Option<Label>)>, String> {
    let open = |path: &Path| read_texts(path, &TextColumns::default(), &labels(), Purpose::Training);
    match read(name, file, open) {
        Ok((list, _)) => Ok(list.into_iter().map(|text| (text.first, text.label)).collect()),
        error => Err(message(error, name)),
    }
}

/// Results of Python 3.11's `csv.reader` for the same bytes; pandas' parser has the same states.
#[test]
fn quotes_inside_of_unquoted_values_are_literal() {
    let pos = Some(Label::Class(0));
    for (row, expected) in [
        ("12\" disc,pos", "12\" disc"),
        ("a \"b\" c,pos", "a \"b\" c"),
        ("\"12\"\" disc\",pos", "12\" disc"),
        ("\"abc\"def,pos", "abcdef"),
        ("\"ab\"cd\"ef,pos", "abcd\"ef"),
        ("\"a, b\nc\",pos", "a, b\nc"),
        (" \"abc,pos", " \"abc"),
    ] {
        for end in ["", "\n", "\r\n", "\n\"x\",pos\n"] {
            let found = texts("f.csv", format!("text,label\n{row}{end}")).unwrap();
            assert_eq!(found[0], (expected.to_owned(), pos), "{row:?} before {end:?}");
        }
        let marked = texts("f.csv", format!("\u{feff}\"text\",label\r\n{row}\r\n")).unwrap();
        assert_eq!(marked, [(expected.to_owned(), pos)], "{row:?}");
    }
}

#[test]
fn a_quote_that_is_never_closed_is_told_with_the_line_that_opens_it() {
    for (file, line) in [
        ("text,label\n12\" disc,pos\n\"b,pos\nc,neg\n", 3),
        ("text,label\n\"a\",pos\nb,pos\nc,\"neg\nd,pos\n", 4),
        ("text,label\n\"a\nb\",pos\n\"c\nd,pos", 4),
        ("\"text,label\na,pos\n", 1),
        ("text,label\na,\"", 2),
        ("text,label\n\"a\"\",pos\n", 2),
    ] {
        let found = texts("f.csv", file).unwrap_err();
        let expected = format!("f.csv:{line}: a double quote that is never closed");
        assert!(found.starts_with(&expected), "{file:?}\n gave {found:?}");
    }
}

#[test]
fn odd_characters_are_kept_or_refused() {
    let pos = Some(Label::Class(0));
    for (name, file) in [
        ("f.tsv", "text\tlabel\na\0b\tpos\n"),
        ("f.csv", "text,label\na\0b,pos\n"),
        ("f.jsonl", "{\"text\":\"a\\u0000b\",\"label\":\"pos\"}"),
    ] {
        assert_eq!(texts(name, file).unwrap(), [("a\0b".to_owned(), pos)], "{name}");
    }
    for (name, file, expected) in [
        // A lone surrogate as bytes (WTF-8).
        ("f.tsv", &b"text\tlabel\n\xed\xa0\x80\tpos\n"[..], "f.tsv:2: invalid UTF-8 at byte 1"),
        ("f.csv", b"text,label\n\xed\xa0\x80,pos\n", "f.csv:2: invalid UTF-8 in column 1"),
        // UTF-16 with its byte-order mark.
        ("f.tsv", b"\xff\xfet\0e\0x\0t\0", "f.tsv:1: no column \"label\"; the file has \"text\""),
        ("f.tsv", b"t\0e\0x\0t\0", "f.tsv: cannot read: it is UTF-32, UTF-16 without a byte-order mark"),
        ("f.tsv", b"\xef\xbb\xbf", "f.tsv: no example"),
        ("f.csv", b"\xef\xbb\xbf", "f.csv: no example"),
        ("f.jsonl", b"\xef\xbb\xbf", "f.jsonl: no example"),
        ("f.jsonl", b"{\"text\":1e999,\"label\":\"pos\"}", "f.jsonl:1: number out of range"),
        ("f.jsonl", b"[1]", "f.jsonl:1: invalid type: sequence, expected an object"),
    ] {
        let found = texts(name, file).unwrap_err();
        assert!(found.starts_with(expected), "{file:?}\n gave {found:?}");
    }
    // Lone surrogates, written by Python for a truncated emoji.
    for (escapes, read) in [("\\ud800", "\u{fffd}"), ("\\udc00\\ud800", "\u{fffd}\u{fffd}")] {
        let file = format!("{{\"text\":\"{escapes}\",\"label\":\"pos\"}}");
        assert_eq!(texts("f.jsonl", file.as_bytes()).unwrap(), [(read.to_owned(), pos)], "{escapes}");
    }
    // JSON values that are not text are converted to their source text.
    let found =
        texts("f.jsonl", "{\"text\":4.50,\"label\":\"pos\"}\n{\"text\":-3,\"label\":\"neg\",\"text\":true}").unwrap();
    assert_eq!(found.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>(), ["4.5", "true"]);
}

#[test]
fn messages_are_short_whatever_the_file_holds() {
    let long = "x".repeat(100_000);
    for (name, file) in [
        ("f.tsv", format!("text\tlabel\na\t{long}\n")),
        ("f.tsv", format!("{long}\ta\n")),
        ("f.tsv", format!("{long}\t{long}\n")),
        ("f.csv", format!("text,label\na,{long}\n")),
        ("f.jsonl", format!("{{\"{long}\":1}}")),
        ("f.jsonl", format!("\"{long}\"")),
    ] {
        let found = texts(name, &file).unwrap_err();
        assert!(found.len() < 600, "{} bytes: {}", found.len(), &found[..600]);
    }
}

#[test]
fn a_missing_column_is_told_with_the_setting_that_names_it() {
    let found = texts("f.tsv", "review\tstars\na\tpos\n").unwrap_err();
    let expected = "f.tsv:1: no column \"text\"; the file has \"review\", \"stars\"; name the column with \
                    --set data.text=NAME, such as --set data.text=review";
    assert_eq!(found, expected);
    let found = texts("f.jsonl", "{\"text\":\"a\",\"my stars\":\"pos\"}").unwrap_err();
    assert!(found.ends_with("--set data.label=NAME, such as '--set data.label=my stars'"), "{found}");
}

#[test]
fn texts_are_not_taken_for_words() {
    let tags = |file: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.tsv");
        std::fs::write(&path, file).unwrap();
        labels_of_tagged(&path, TagColumns::default())
    };
    let reviews: String = (0..30).map(|at| format!("this film number {at} was good\tpos\n")).collect();
    for file in [
        format!("text\tlabel\n{reviews}"),
        reviews,
        "a good film\tpos\n".to_owned(),
        "text\tlabel\ngood\tpos\nbad\tneg\n".to_owned(),
    ] {
        let found = message(tags(&file), "f.tsv");
        let is_right = found.contains(" is not a word; a file for `tag` has a word and its tag in each line");
        assert!(is_right && found.contains("`classify`"), "{file:?}: {found}");
        let open = |path: &Path| read_tagged(path, TagColumns::default(), &["pos".to_owned()], Purpose::Prediction);
        let found = message(read("f.tsv", &file, open), "f.tsv");
        assert!(found.contains(" is not a word") || found.contains("unknown label"), "{file:?}: {found}");
    }
    // Some words of a corpus contain spaces.
    assert_eq!(tags("New York\tLOC\nis\tO\nbig\tO\n").unwrap(), ["O", "LOC"]);
    let late = (0..40).map(|at| format!("w{at}\tO\n")).collect::<String>() + &"two words\tO\n".repeat(100);
    assert_eq!(tags(&late).unwrap(), ["O"]);
    assert_eq!(tags("-DOCSTART- -X- O\n\nOslo NNP LOC\n").unwrap(), ["LOC"]);
}

#[test]
fn remarks_without_end_are_counted() {
    let answer =
        |at: usize| format!("{{\"id\":{at},\"question\":\"q\",\"answers\":[{{\"text\":\"b\",\"answer_start\":9}}]}}");
    let qas: Vec<String> = (0..3000).map(answer).collect();
    let open = |path: &Path| read_squad(path, false, Purpose::Evaluation);
    let (questions, remarks) = read("f.json", one("a", &qas.join(",")), open).unwrap();
    assert_eq!((questions.len(), remarks.len()), (3000, 1001));
    assert_eq!(remarks[1000].kind, RemarkKind::Further { count: 2000 });
    assert!(remarks[1000].to_string().ends_with("2000 more remarks"));
}

#[test]
fn answers_may_overlap_and_start_anywhere() {
    // Characters of one to four bytes; every start, with a text that occurs at only one of them.
    let open = |path: &Path| read_squad(path, false, Purpose::Training);
    let question = |answers: &str| format!("{{\"id\":1,\"question\":\"q\",\"answers\":{answers}}}");
    for start in 0..8 {
        let answers = format!(
            "[{{\"text\":\"€😀\",\"answer_start\":{start}}},{{\"text\":\"é€\",\"answer_start\":1}},{{\"text\":\"\",\"answer_start\":2}}]"
        );
        let (questions, remarks) = read("f.json", one("aé€😀b", &question(&answers)), open).unwrap();
        let found: Vec<&str> = questions[0].answers.iter().map(|answer| answer.text.as_str()).collect();
        let expected: &[&str] = if start == 2 { &["€😀", "é€"] } else { &["é€"] };
        assert_eq!((&found[..], remarks.len()), (expected, 3 - expected.len()), "{start}");
    }
    for (start, expected) in [
        ("1.5", "f.json: question \"1\": invalid type"),
        ("null", "f.json: question \"1\": invalid type"),
        // With a wrong position: the only question is skipped.
        ("-1", "f.json: no example"),
        ("\"1\"", "f.json: no example"),
        ("1e3", "f.json: no example"),
    ] {
        let answers = format!("[{{\"text\":\"a\",\"answer_start\":{start}}}]");
        assert_refused("f.json", one("a", &question(&answers)), expected, open);
    }
}

#[test]
fn deep_json_is_refused_where_it_is_read_and_passed_over_elsewhere() {
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let found = texts("f.jsonl", format!("{{\"o\":{},\"text\":\"a\",\"label\":\"pos\"}}", deep(100_000))).unwrap();
    assert_eq!(found.len(), 1);
    let found = texts("f.jsonl", format!("{{\"text\":{},\"label\":\"pos\"}}", deep(100_000))).unwrap_err();
    assert!(found.starts_with("f.jsonl:1: "), "{found}");
    let file = format!("{{\"o\":{},\"data\":[{{\"p\":{},\"paragraphs\":[]}}]}}", deep(100_000), deep(100_000));
    let found = message(read("f.json", file, |path| read_squad(path, false, Purpose::Training)), "f.json");
    assert!(found.starts_with("f.json: no example"), "{found}");
}
