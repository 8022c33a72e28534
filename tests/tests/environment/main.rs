//! The program under conditions set by the machine, the shell or other processes: full disks and devices, read-only folders,
//! limits, closed and full pipes, FIFOs and devices as files, planted links, several processes in one folder, signals, unusual
//! environments and names. Prints one table in Markdown.
//!
//! ```sh
//! cargo test -p albert-tests --test environment -- --ignored --nocapture          # all, some minutes
//! ENVIRONMENT=signal cargo test -p albert-tests --test environment -- --ignored --nocapture   # rows that contain the word
//! ```
//! Rows that need root (mounts, another user) are reported as skipped without it.
#![cfg(target_os = "linux")]

mod files;
mod limits;
mod runs;
mod situation;
mod streams;
mod world;

use situation::{Situation, Verdict};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use world::Template;

#[test]
#[ignore = "some minutes; .ci/full runs it"]
fn every_situation_ends_as_it_should() {
    let wanted = std::env::var("ENVIRONMENT").unwrap_or_default();
    let rows = [streams::rows(), files::rows(), limits::rows(), runs::rows()].concat();
    judge(rows.into_iter().filter(|row| format!("{}: {}", row.group, row.name).contains(&wanted)).collect());
}

/// Rows about terminals require a program that is not installed on every machine.
#[test]
fn streams_and_files_that_cannot_be_written_and_a_hangup_that_is_ignored_end_as_they_should() {
    let mut rows = streams::rows();
    rows.retain(|row| row.group != "terminal");
    let others = [files::rows(), limits::rows(), runs::rows()].concat();
    let is_chosen =
        |row: &Situation| ["file size", "files of 0 bytes at most"].contains(&row.group) || row.name.contains("nohup");
    rows.extend(others.into_iter().filter(is_chosen));
    judge(rows);
}

/// Number of concurrent situations, which mostly wait.
const WORKERS: usize = 3;

fn judge(rows: Vec<Situation>) {
    let (template, next, verdicts) = (Template::new(), AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(row) = rows.get(at)
        {
            let verdict = row.judge(&template);
            verdicts.lock().expect("no situation panics").insert(at, verdict);
        }
    };
    thread::scope(|scope| (0..WORKERS).for_each(|_| drop(scope.spawn(work))));
    println!("| # | situation | command | expected | found | |\n|---|---|---|---|---|---|");
    let (mut red, mut skipped) = (Vec::new(), 0);
    for (number, (row, verdict)) in
        (1..).zip(rows.iter().zip(verdicts.into_inner().expect("no situation panics").into_values()))
    {
        let (found, mark) = match verdict {
            Verdict::Green(found) => (found, "green"),
            Verdict::Red(found) => (found, "**red**"),
            Verdict::Skipped(reason) => (reason, "SKIPPED"),
        };
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ⏎ ");
        let name = format!("{}: {}", row.group, row.name);
        let [shown, script, expected, found] = [&name, &row.script, &row.expected(), &found].map(|text| cell(text));
        println!("| {number} | {shown} | `{script}` | {expected} | {found} | {mark} |");
        skipped += usize::from(mark == "SKIPPED");
        red.extend((mark == "**red**").then_some(name));
    }
    let (all, reds) = (rows.len(), red.len());
    println!("\n{all} situations, {} green, {reds} red, {skipped} skipped", all - reds - skipped);
    let changed = template.changed();
    assert!(changed.is_empty(), "inputs were changed: {changed:?}");
    assert!(red.is_empty(), "red:\n  {}", red.join("\n  "));
}
