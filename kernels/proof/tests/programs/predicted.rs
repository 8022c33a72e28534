//! Check that `docs/results/predicted.md` has the sums and the hash of the output of `albert kernels predict`.

use std::{fs, path::Path};
use twox_hash::XxHash64;

/// Start of the table of sums in the page.
const TABLE: &str = "| group |";
/// Text before the hash of all tables in the page.
const HASH: &str = "XXH64 of the tables: `";

/// One row per group: its title and the sums at the end of its table.
fn sums(report: &str) -> String {
    let row = |group: &str| {
        let title = group.lines().next().expect("a group has a title");
        let all = group.lines().find(|line| line.starts_with("| **all**")).expect("a table ends with its sums");
        let cells: Vec<&str> = all.split('|').map(|cell| cell.trim().trim_matches('*')).collect();
        format!("| {title} | {} | {} | {} |\n", cells[4], cells[5], cells[6])
    };
    let rows: String = report.split("## ").skip(1).map(row).collect();
    format!("{TABLE} floor, µs | predicted, µs | reached |\n|---|--:|--:|--:|\n{rows}")
}

#[test]
fn predictions_are_those_of_the_page_and_none_is_faster_than_its_floor() {
    let predictions = kernels_proof::predicted::predict_all(|_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    for row in &predictions[2] {
        let (what, floor, seconds) = (row.workload.what, row.floor, row.seconds);
        assert!(seconds >= 0.999 * floor, "{what}: {seconds} s predicted, {floor} s at least");
        assert!(row.shares.iter().all(|share| (0.0..=1.001).contains(share)), "{what}: {:?}", row.shares);
        assert!(row.bank_ratio <= 1.01, "{what}: {} wavefronts for each that is needed", row.bank_ratio);
    }

    let report = kernels_proof::predicted::report(&predictions);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/predicted.md");
    let page = fs::read_to_string(&path).expect("the page exists");
    let (before, rest) = page.split_at(page.find(TABLE).expect("the page has the table of sums"));
    let (table, rest) = rest.split_at(rest.find("\n\n").expect("the table ends with an empty line") + 1);
    let at = rest.find(HASH).expect("the page has the hash") + HASH.len();
    let (text, after) = (&rest[..at], &rest[at + 16..]);
    let now = format!("{before}{}{text}{:016x}{after}", sums(&report), XxHash64::oneshot(0, report.as_bytes()));
    if std::env::var_os("ALBERT_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, now).expect("the page can be written");
        return;
    }
    assert_eq!(table, sums(&report), "other sums than {}; `albert kernels predict` prints the tables", path.display());
    assert!(
        page == now,
        "other predictions than those of {}; compare `albert kernels predict` before and after the change; if it is \
         intended: ALBERT_BLESS=1 cargo test -p albert-kernels-proof --test programs predictions",
        path.display()
    );
}
