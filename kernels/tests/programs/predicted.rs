//! `docs/predicted.md` holds what the kernels give today.

use std::{fs, path::Path};

/// Where the tables begin in the page.
const FIRST: &str = "\n## ALBERT";

#[test]
fn predictions_are_those_of_the_page_and_none_is_faster_than_its_floor() {
    let predictions = kernels::predicted::predict_all(|_, _| ()).unwrap_or_else(|error| panic!("{error}"));
    for row in &predictions[2] {
        let (what, floor, seconds) = (row.workload.what, row.floor, row.seconds);
        assert!(seconds >= 0.999 * floor, "{what}: {seconds} s predicted, {floor} s at least");
        assert!(row.shares.iter().all(|share| (0.0..=1.001).contains(share)), "{what}: {:?}", row.shares);
        assert!(row.bank_ratio <= 1.01, "{what}: {} wavefronts for each that is needed", row.bank_ratio);
    }

    let report = kernels::predicted::report(&predictions);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/predicted.md");
    let page = fs::read_to_string(&path).expect("the page is there");
    let at = page.find(FIRST).expect("the tables begin with a heading") + 1;
    if std::env::var_os("ALBERT_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, format!("{}{report}", &page[..at])).expect("the page can be written");
        return;
    }
    let different = page[at..].lines().zip(report.lines()).find(|(held, now)| held != now);
    assert!(
        page[at..] == report,
        "the kernels give other predictions than {}; if that is meant, ALBERT_BLESS=1 cargo test -p kernels --test programs\n{different:#?}",
        path.display()
    );
}
