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

use situation::Verdict;
use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};
use world::Template;

#[test]
#[ignore = "some minutes; .ci/full runs it"]
fn every_situation_ends_as_it_should() {
    let template = Template::new();
    let wanted = std::env::var("ENVIRONMENT").unwrap_or_default();
    let rows = [streams::rows(), files::rows(), limits::rows(), runs::rows()].concat();
    let rows: Vec<_> =
        rows.into_iter().filter(|row| format!("{}: {}", row.group, row.name).contains(&wanted)).collect();
    println!("| # | situation | command | expected | found | |\n|---|---|---|---|---|---|");
    let (mut red, mut skipped) = (Vec::new(), 0);
    in_order(
        rows.len(),
        |at| rows[at].judge(&template),
        |at, verdict| {
            let row = &rows[at];
            let (found, mark) = match &verdict {
                Verdict::Green(found) => (found, "green"),
                Verdict::Red(found) => (found, "**red**"),
                Verdict::Skipped(reason) => (reason, "SKIPPED"),
            };
            let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ⏎ ");
            println!(
                "| {} | {}: {} | `{}` | {} | {} | {mark} |",
                at + 1,
                row.group,
                cell(&row.name),
                cell(&row.script),
                cell(&row.expected()),
                cell(found)
            );
            match verdict {
                Verdict::Green(_) => {}
                Verdict::Red(_) => red.push(format!("{}: {}", row.group, row.name)),
                Verdict::Skipped(_) => skipped += 1,
            }
        },
    );
    let changed = template.changed();
    println!(
        "\n{} situations, {} green, {} red, {skipped} skipped",
        rows.len(),
        rows.len() - red.len() - skipped,
        red.len()
    );
    assert!(changed.is_empty(), "inputs were changed: {changed:?}");
    assert!(red.is_empty(), "red:\n  {}", red.join("\n  "));
}

/// Number of concurrent situations: most of them wait.
const WORKERS: usize = 3;

/// Calls `work` for 0 to `count - 1`, some concurrently, and `done` with each result in order.
fn in_order<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync, mut done: impl FnMut(usize, T)) {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            let (send, next, work) = (send.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || send.send((at, work(at))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut early = BTreeMap::new();
        let mut expected = 0;
        for (at, result) in receive {
            early.insert(at, result);
            while let Some(result) = early.remove(&expected) {
                done(expected, result);
                expected += 1;
            }
        }
    });
}
