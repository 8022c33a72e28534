//! Labeled data: tables, GLUE, CoNLL, choices, SQuAD, RACE.

use super::{golden_files, with_file, with_folder};
use albert_tasks::files::{
    GlueTask, Level, Problem, Purpose, Split, TagColumns, TextColumns, labels_of_tagged, labels_of_texts, read_choices,
    read_race, read_squad, read_tagged, read_texts,
};
use std::fs;

const PURPOSES: [Purpose; 3] = [Purpose::Training, Purpose::Evaluation, Purpose::Prediction];

/// Selects the format and the purpose by the first byte; the rest is the file.
fn chosen<'a>(bytes: &'a [u8], endings: &[&'static str]) -> Option<(&'static str, Purpose, &'a [u8])> {
    let (&first, rest) = bytes.split_first()?;
    let first = usize::from(first);
    Some((endings[first % endings.len()], PURPOSES[first / endings.len() % 3], rest))
}

/// Puts the byte for format number `format` and training before `file`.
fn choosing(format: u8, file: &[u8]) -> Vec<u8> {
    [&[format][..], file].concat()
}

pub(super) fn table(bytes: &[u8]) -> bool {
    let Some((ending, purpose, bytes)) = chosen(bytes, &["tsv", "csv", "jsonl"]) else { return false };
    with_file(&format!("table.{ending}"), bytes, |path| {
        let columns = TextColumns::default();
        let labels = labels_of_texts(path, &columns);
        let labels = labels.unwrap_or_else(|_| vec!["0".into(), "1".into()]);
        let numbers = read_texts(path, &columns, &Problem::Number, purpose).map(|reader| reader.read_all());
        let classes = read_texts(path, &columns, &Problem::Classes { labels }, purpose).map(|reader| reader.read_all());
        matches!(numbers, Ok(Ok(_))) | matches!(classes, Ok(Ok(_)))
    })
}

pub(super) fn table_seeds() -> Vec<Vec<u8>> {
    let files = golden_files(&["tasks/own/reviews.tsv", "tasks/own/pairs.csv", "tasks/own/scores.jsonl"]);
    let mut seeds: Vec<_> = (0..).zip(files).map(|(format, file)| choosing(format, &file)).collect();
    seeds.push(choosing(1, b"id,text,text_b,label\r\n1,\"a \"\"quoted\"\"\nline\",b,yes\r\n2,12\" disc,c,no\r\n"));
    seeds
}

pub(super) fn glue(bytes: &[u8]) -> bool {
    let Some((&first, bytes)) = bytes.split_first() else { return false };
    let tasks = [GlueTask::Cola, GlueTask::Sst2, GlueTask::Mrpc, GlueTask::Stsb, GlueTask::Qqp, GlueTask::Mnli];
    let task = tasks[usize::from(first) % tasks.len()];
    let split = [Split::Train, Split::Dev, Split::Test][usize::from(first) / tasks.len() % 3];
    with_file("glue.tsv", bytes, |path| {
        task.read_file(path, split, Purpose::Training).is_ok_and(|reader| reader.read_all().is_ok())
    })
}

pub(super) fn glue_seeds() -> Vec<Vec<u8>> {
    let parts = ["CoLA/train", "SST-2/train", "MRPC/train", "STS-B/train", "QQP/train", "MNLI/train"];
    let paths = parts.map(|part| format!("tasks/glue/{part}.tsv"));
    let files = golden_files(&paths.each_ref().map(String::as_str));
    (0..).zip(files).map(|(task, file)| choosing(task, &file)).collect()
}

pub(super) fn conll(bytes: &[u8]) -> bool {
    let Some((_, purpose, bytes)) = chosen(bytes, &["txt"]) else { return false };
    with_file("tags.txt", bytes, |path| {
        let columns = TagColumns::default();
        let labels = labels_of_tagged(path, columns).unwrap_or_default();
        read_tagged(path, columns, &labels, purpose).is_ok_and(|reader| reader.read_all().is_ok())
    })
}

pub(super) fn conll_seeds() -> Vec<Vec<u8>> {
    golden_files(&["tasks/conll/train.txt"]).iter().map(|file| choosing(0, file)).collect()
}

pub(super) fn choices(bytes: &[u8]) -> bool {
    let Some((ending, purpose, bytes)) = chosen(bytes, &["json", "jsonl"]) else { return false };
    with_file(&format!("choices.{ending}"), bytes, |path| {
        read_choices(path, purpose).is_ok_and(|reader| reader.read_all().is_ok())
    })
}

pub(super) fn choices_seeds() -> Vec<Vec<u8>> {
    let files = golden_files(&["tasks/own/choices.json", "tasks/own/choices.jsonl"]);
    (0..).zip(files).map(|(format, file)| choosing(format, &file)).collect()
}

pub(super) fn squad(bytes: &[u8]) -> bool {
    let Some((_, purpose, bytes)) = chosen(bytes, &["json"]) else { return false };
    with_file("squad.json", bytes, |path| {
        let read = |may_be_impossible| {
            read_squad(path, may_be_impossible, purpose).is_ok_and(|reader| reader.read_all().is_ok())
        };
        read(false) | read(true)
    })
}

pub(super) fn squad_seeds() -> Vec<Vec<u8>> {
    let files = golden_files(&["tasks/squad/train-v2.0.json", "tasks/squad/train-v1.1.json"]);
    files.iter().filter(|file| file.len() < 40_000).map(|file| choosing(0, file)).collect()
}

pub(super) fn race(bytes: &[u8]) -> bool {
    let Some((_, purpose, bytes)) = chosen(bytes, &["txt"]) else { return false };
    with_folder(|folder| {
        let folder = folder.join("race");
        let part = folder.join("train/middle");
        fs::create_dir_all(&part).expect("a folder");
        fs::write(part.join("2.txt"), bytes).expect("a file in the temporary folder");
        read_race(&folder, Split::Train, &[Level::Middle], purpose).is_ok_and(|reader| reader.read_all().is_ok())
    })
}

pub(super) fn race_seeds() -> Vec<Vec<u8>> {
    golden_files(&["tasks/race/RACE/train/middle/2.txt"]).iter().map(|file| choosing(0, file)).collect()
}
