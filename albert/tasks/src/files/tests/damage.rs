//! Damaged files: no example is lost silently. A file that is read without an error has an example or a remark for
//! each of its rows.

use std::path::Path;

use crate::files::{GlueTask, Problem, Purpose, Split, TaskError, TextColumns, read_texts};

use super::golden;

/// A pseudo-random sequence of numbers (Knuth's constants).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// Changes, removes, duplicates or inserts some bytes of a file, or truncates it.
    fn damage(&mut self, file: &[u8]) -> Vec<u8> {
        const LIKELY: &[u8] = b"\t\n\r\",{}[]0A\xff\xe9 ";
        let mut file = file.to_vec();
        for _ in 0..=self.below(3) {
            if file.is_empty() {
                break;
            }
            let at = self.below(file.len());
            let byte = LIKELY[self.below(LIKELY.len())];
            match self.below(5) {
                0 => file[at] = byte,
                1 => drop(file.remove(at)),
                2 => file.insert(at, file[at]),
                3 => file.insert(at, byte),
                _ => file.truncate(at.max(file.len() / 2)),
            }
        }
        file
    }
}

/// Lines as editors count them.
fn lines(file: &[u8]) -> usize {
    file.iter().filter(|&&byte| byte == b'\n').count() + usize::from(file.last().is_some_and(|&byte| byte != b'\n'))
}

/// Damages a file several times. Files accepted by `read` must have as many examples and remarks as `rows` counts. Returns
/// the number of accepted and of rejected files.
fn damaged(
    numbers: &mut Numbers,
    (file, times): (&Path, usize),
    read: impl Fn(&Path) -> Result<usize, TaskError>,
    rows: impl Fn(&[u8]) -> usize,
) -> (usize, usize) {
    let (folder, whole) = (tempfile::tempdir().unwrap(), std::fs::read(file).unwrap());
    let path = folder.path().join(file.file_name().unwrap());
    let mut taken = 0;
    for _ in 0..times {
        let damaged = numbers.damage(&whole);
        std::fs::write(&path, &damaged).unwrap();
        if let Ok(found) = read(&path) {
            taken += 1;
            assert_eq!(found, rows(&damaged), "{}: {:?}", file.display(), String::from_utf8_lossy(&damaged));
        }
    }
    (taken, times - taken)
}

#[test]
fn damaged_tables_lose_no_row() {
    let mut numbers = Numbers(1);
    let (mut read, mut refused) = (0, 0);
    for task in GlueTask::ALL {
        for &split in task.splits() {
            let header = usize::from(task != GlueTask::Cola || split == Split::Test);
            let all = |path: &Path| task.read_file(path, split, Purpose::Training).unwrap().read_all();
            let count = |path: &Path| all(path).map(|(examples, remarks)| examples.len() + remarks.len());
            let file = task.path(&golden().join("glue"), split).unwrap();
            let found = damaged(&mut numbers, (&file, 50), count, |file| lines(file) - header);
            (read, refused) = (read + found.0, refused + found.1);
        }
    }
    assert!(read > 300 && refused > 300, "{read} files read, {refused} refused");
}

#[test]
fn damaged_files_of_ones_own_lose_no_row() {
    let mut numbers = Numbers(2);
    let classes = Problem::Classes { labels: ["bad", "good"].map(str::to_owned).into() };
    let mut read = 0;
    for (name, problem, header) in [("reviews.tsv", classes, 1), ("scores.jsonl", Problem::Number, 0)] {
        let open = |path: &Path| read_texts(path, &TextColumns::default(), &problem, Purpose::Training).unwrap();
        let count = |path: &Path| open(path).read_all().map(|(examples, _)| examples.len());
        // Blank lines are not rows.
        let full = |file: &[u8]| {
            String::from_utf8_lossy(file).split('\n').filter(|line| !line.trim().is_empty()).count() - header
        };
        read += damaged(&mut numbers, (&golden().join("own").join(name), 300), count, full).0;
    }
    assert!(read > 100, "{read} files read");
}
