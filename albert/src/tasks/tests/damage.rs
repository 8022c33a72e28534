//! Damaged files: no example gets lost. A file that is read without an error gives an example or a remark for each of
//! its rows.

use crate::tasks::{
    GlueTask, Level, Problem, Purpose, Split, TextColumns, read_choices, read_race, read_squad, read_texts,
};

use super::golden;

/// A sequence of numbers that looks random (Knuth's constants).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// Some bytes of a file changed, taken out, doubled or put in; or its end cut off.
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

#[test]
fn damaged_tables_lose_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut numbers = Numbers(1);
    let (mut read, mut refused) = (0, 0);
    for task in GlueTask::ALL {
        for &split in task.splits() {
            let file = std::fs::read(task.path(&golden().join("glue"), split).unwrap()).unwrap();
            let header = usize::from(task != GlueTask::Cola || split == Split::Test);
            for _ in 0..50 {
                let damaged = numbers.damage(&file);
                let path = folder.path().join("f.tsv");
                std::fs::write(&path, &damaged).unwrap();
                match task.read_file(&path, split, Purpose::Training).unwrap().read_all() {
                    Err(_) => refused += 1,
                    Ok((examples, remarks)) => {
                        read += 1;
                        let rows = lines(&damaged) - header;
                        let text = String::from_utf8_lossy(&damaged);
                        assert_eq!(examples.len() + remarks.len(), rows, "{task} {split}: {text:?}");
                    }
                }
            }
        }
    }
    assert!(read > 300 && refused > 300, "{read} files read, {refused} refused");
}

#[test]
fn damaged_files_of_ones_own_lose_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut numbers = Numbers(2);
    let classes = Problem::Classes { labels: ["bad", "good"].map(str::to_owned).into() };
    let mut read = 0;
    for (name, problem, header) in [("reviews.tsv", classes, 1), ("scores.jsonl", Problem::Number, 0)] {
        let file = std::fs::read(golden().join("own").join(name)).unwrap();
        for _ in 0..300 {
            let damaged = numbers.damage(&file);
            let path = folder.path().join(name);
            std::fs::write(&path, &damaged).unwrap();
            let reader = read_texts(&path, &TextColumns::default(), &problem, Purpose::Training).unwrap();
            if let Ok((examples, _)) = reader.read_all() {
                read += 1;
                let text = String::from_utf8_lossy(&damaged);
                // Blank lines are not rows.
                let rows = text.split('\n').filter(|line| !line.trim().is_empty()).count();
                assert_eq!(examples.len(), rows - header, "{text:?}");
            }
        }
    }
    assert!(read > 100, "{read} files read");
}

#[test]
fn damaged_json_is_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut numbers = Numbers(3);
    let (mut read, mut refused) = (0, 0);
    let part = folder.path().join("train/high");
    std::fs::create_dir_all(&part).unwrap();
    for _ in 0..150 {
        for name in ["squad/train-v1.1.json", "squad/dev-v2.0.json", "own/choices.json", "race/RACE/train/high/2.txt"] {
            let damaged = numbers.damage(&std::fs::read(golden().join(name)).unwrap());
            let path = if name.ends_with(".txt") { part.join("1.txt") } else { folder.path().join("f.json") };
            std::fs::write(&path, &damaged).unwrap();
            let is_read = if name.starts_with("squad") {
                read_squad(&path, name.contains("v2"), Purpose::Training).unwrap().read_all().is_ok()
            } else if name.starts_with("own") {
                read_choices(&path, Purpose::Training).unwrap().read_all().is_ok()
            } else {
                let reader = read_race(folder.path(), Split::Train, &[Level::High], Purpose::Training).unwrap();
                reader.read_all().is_ok()
            };
            *if is_read { &mut read } else { &mut refused } += 1;
        }
    }
    assert!(read > 80 && refused > 80, "{read} files read, {refused} refused");
}
