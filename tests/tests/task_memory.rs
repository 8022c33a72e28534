//! Readers of examples on hostile files: memory is at most 64 times the size of a file plus 64 MiB, and time is linear. One
//! test, because the allocator counts the whole process.

use std::path::Path;
use std::time::{Duration, Instant};

use albert::tasks::{
    Example, GlueTask, Problem, Purpose, Reader, Split, TagColumns, TaskError, TextColumns, labels_of_tagged,
    labels_of_texts, read_choices, read_race_at, read_squad, read_tagged, read_texts,
};
use albert_tests::allocator::{Counting, live_and_peak, reset_peak};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Approximate size of a file: 64 times as much is well above the fixed 64 MiB.
const SIZE: usize = 4 << 20;

/// Linear readers take seconds; a quadratic one would take hours.
const PATIENCE: Duration = Duration::from_secs(120);

/// True if a file is read without an error; all its examples are kept in memory.
type Read = fn(&Path) -> Result<usize, TaskError>;

fn count<E: Example>(reader: Reader<E>) -> Result<usize, TaskError> {
    reader.read_all().map(|(examples, _)| examples.len())
}

fn texts(path: &Path) -> Result<usize, TaskError> {
    let labels = vec!["x".to_owned(), "y".to_owned()];
    count(read_texts(path, &TextColumns::default(), &Problem::Classes { labels }, Purpose::Training)?)
}

fn distinct_labels(path: &Path) -> Result<usize, TaskError> {
    let labels = labels_of_texts(path, &TextColumns::default())?;
    count(read_texts(path, &TextColumns::default(), &Problem::Classes { labels }, Purpose::Training)?)
}

fn tagged(path: &Path) -> Result<usize, TaskError> {
    let labels = labels_of_tagged(path, TagColumns::default())?;
    count(read_tagged(path, TagColumns::default(), &labels, Purpose::Training)?)
}

fn qqp(path: &Path) -> Result<usize, TaskError> {
    count(GlueTask::Qqp.read_file(path, Split::Train, Purpose::Training)?)
}

fn squad(path: &Path) -> Result<usize, TaskError> {
    count(read_squad(path, true, Purpose::Training)?)
}

fn race(path: &Path) -> Result<usize, TaskError> {
    count(read_race_at(path, Purpose::Training)?)
}

fn choices(path: &Path) -> Result<usize, TaskError> {
    count(read_choices(path, Purpose::Training)?)
}

/// `before`, `part` of 0, 1, ... until the file has its size, `after`.
fn file(before: &str, part: impl Fn(usize) -> String, after: &str) -> String {
    let mut text = before.to_owned();
    for number in 0.. {
        if text.len() >= SIZE {
            break;
        }
        text += &part(number);
    }
    text + after
}

/// `before`, `part` repeated, `after`.
fn again(before: &str, part: &str, after: &str) -> String {
    format!("{before}{}{after}", part.repeat(SIZE / part.len()))
}

/// (name, content, reader, true if accepted). A rejection must keep the same bounds.
fn tables() -> Vec<(&'static str, String, Read, bool)> {
    const QQP: &str = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
    vec![
        ("columns.tsv", file("text\tlabel", |n| format!("\t{n:x}"), "\na\tx\n"), texts, false),
        ("same-columns.tsv", again("text\tlabel", "\t", "\n"), texts, false),
        ("rows.tsv", again("text\tlabel\n", "a\tx\n", ""), texts, true),
        ("wide-row.tsv", again("text\tlabel\n", "\t", "\n"), texts, false),
        ("line.tsv", again("text\tlabel\n", "a", "\tx\n"), texts, true),
        ("label.tsv", again("text\tlabel\na\t", "y", "\n"), texts, false),
        ("nul.tsv", again("text\tlabel\n\0", "\0", "\tx\n"), texts, true),
        ("labels.tsv", file("text\tlabel\n", |n| format!("a\t{n}\n"), ""), distinct_labels, true),
        ("ids.tsv", file("id\ttext\tlabel\n", |n| format!("{n:x}\ta\tx\n"), ""), texts, true),
        ("columns.csv", file("text,label", |n| format!(",{n:x}"), "\na,x\n"), texts, false),
        ("same-columns.csv", again("text,label", ",", "\n"), texts, false),
        ("wide-row.csv", again("text,label\n", ",", "\n"), texts, false),
        ("quote.csv", again("text,label\na,x\n\"", "b,x\n", ""), texts, false),
        ("quotes.csv", again("text,label\n\"", "\"\"", "\",x\n"), texts, true),
        ("array.jsonl", again("{\"text\":\"a\",\"label\":\"x\",\"o\":[0", ",0", "]}"), texts, true),
        ("keys.jsonl", file("{\"text\":\"a\",\"label\":\"x\"", |n| format!(",\"{n:x}\":0"), "}"), texts, true),
        ("objects.jsonl", again("{\"text\":\"a\",\"label\":\"x\",\"o\":[{}", ",{}", "]}"), texts, true),
        ("deep.jsonl", again("{\"text\":\"a\",\"label\":\"x\",\"o\":", "[", ""), texts, false),
        ("deep-text.jsonl", again("{\"label\":\"x\",\"text\":", "[", ""), texts, false),
        ("wide-text.jsonl", again("{\"label\":\"x\",\"text\":[0", ",0", "]}"), texts, false),
        ("deep-keys.jsonl", again("", "{\"a\":", ""), texts, false),
        ("rows.jsonl", again("", "{\"text\":\"a\",\"label\":\"x\"}\n", ""), texts, true),
        ("fields.conll", again("", "a ", "\n"), tagged, true),
        ("words.conll", again("", "a O\n", ""), tagged, true),
        ("sentences.conll", again("", "a O\n\n", ""), tagged, true),
        ("blank.conll", again("", "\n", ""), tagged, false),
        ("tags.conll", file("", |n| format!("a {n:x}\n"), ""), tagged, true),
        ("blank.tsv", again(QQP, "\n", ""), qqp, false),
        ("tabs.tsv", again(QQP, "\t", "\n"), qqp, false),
        ("rows.tsv", again(QQP, "1\t\t\ta\tb\t1\n", ""), qqp, false),
    ]
}

fn documents() -> Vec<(&'static str, String, Read, bool)> {
    let long = "i".repeat(1 << 20);
    let squad_of = |before: &str, part: &str, after: &str| {
        let open = "{\"data\":[{\"paragraphs\":[{\"context\":\"a\",\"qas\":[";
        again(&format!("{open}{before}"), part, &format!("{after}]}}]}}]}}"))
    };
    let answers = format!("{{\"id\":\"{long}\",\"question\":\"q\",\"answers\":[{{\"text\":\"a\",\"answer_start\":0}}");
    let passage =
        format!("{{\"article\":\"a\",\"id\":\"{long}\",\"answers\":[\"A\"],\"options\":[[\"a\",\"b\",\"c\",\"d\"]]");
    vec![
        ("elsewhere.json", squad_of(&answers, ",{\"text\":\"b\",\"answer_start\":9}", "]}"), squad, true),
        (
            "questions.json",
            file(
                "{\"data\":[{\"paragraphs\":[{\"context\":\"a\",\"qas\":[{\"id\":-1,\"question\":\"\",\"answers\":[]}",
                |n| format!(",{{\"id\":{n},\"question\":\"\",\"answers\":[]}}"),
                "]}]}]}",
            ),
            squad,
            true,
        ),
        (
            "one-id.json",
            squad_of("{\"id\":1,\"question\":\"\",\"answers\":[]}", ",{\"id\":1,\"question\":\"\",\"answers\":[]}", ""),
            squad,
            false,
        ),
        ("deep-id.json", squad_of("{\"id\":", "[", ""), squad, false),
        ("wide-id.json", squad_of("{\"id\":[0", ",0", "]"), squad, false),
        (
            "paragraphs.json",
            again(
                "{\"data\":[{\"paragraphs\":[{\"context\":\"\",\"qas\":[]}",
                ",{\"context\":\"\",\"qas\":[]}",
                "]}]}",
            ),
            squad,
            false,
        ),
        ("articles.json", again("{\"data\":[{\"paragraphs\":[]}", ",{\"paragraphs\":[]}", "]}"), squad, false),
        ("before.json", again("{\"a\":[0", ",0", "],\"data\":[]}"), squad, false),
        ("deep-before.json", again("{\"a\":", "[", ""), squad, false),
        ("deep.json", again("{\"data\":", "[", ""), squad, false),
        ("key.json", again("{\"", "k", "\":0}"), squad, false),
        ("id.txt", again(&format!("{passage},\"questions\":[\"\""), ",\"\"", "]}"), race, false),
        (
            "questions.txt",
            again("{\"article\":\"a\",\"id\":\"i\",\"answers\":[],\"options\":[],\"questions\":[\"\"", ",\"\"", "]}"),
            race,
            false,
        ),
        (
            "options.txt",
            again("{\"article\":\"a\",\"id\":\"i\",\"answers\":[],\"questions\":[],\"options\":[[]", ",[]", "]}"),
            race,
            false,
        ),
        (
            "answer.jsonl",
            again("{\"question\":\"q\",\"options\":[\"a\",\"b\"],\"answer\":[0", ",0", "]}"),
            choices,
            false,
        ),
        ("options.jsonl", again("{\"question\":\"q\",\"answer\":0,\"options\":[\"\"", ",\"\"", "]}"), choices, true),
        ("rows.jsonl", again("", "{\"question\":\"\",\"options\":[\"\",\"\"],\"answer\":0}\n", ""), choices, true),
        (
            "array.json",
            again(
                "[{\"question\":\"\",\"options\":[\"\",\"\"],\"answer\":0}",
                ",{\"question\":\"\",\"options\":[\"\",\"\"],\"answer\":0}",
                "]",
            ),
            choices,
            true,
        ),
    ]
}

#[test]
fn no_reader_takes_more_than_its_file_allows() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, read, is_read) in tables().into_iter().chain(documents()) {
        let path = folder.path().join(name);
        std::fs::write(&path, &text).unwrap();
        let size = text.len();
        drop(text);
        reset_peak();
        let (before, start) = (live_and_peak().0, Instant::now());
        let result = read(&path);
        let (taken, peak) = (start.elapsed(), live_and_peak().1.saturating_sub(before));
        let times = peak as f64 / size as f64;
        let said = result.as_ref().map_or_else(ToString::to_string, |count| format!("{count} examples"));
        println!(
            "{name}: {size} bytes, {times:.1} times as much memory, {taken:.2?}: {}",
            &said[..said.len().min(160)]
        );
        assert_eq!(result.is_ok(), is_read, "{name}: {said}");
        assert!(peak <= 64 * size + (64 << 20), "{name}: {peak} bytes for a file of {size}");
        assert!(taken < PATIENCE, "{name}: {taken:?}");
        assert!(said.len() < 2000, "{name}: a message of {} bytes", said.len());
        std::fs::remove_file(&path).unwrap();
    }
}
