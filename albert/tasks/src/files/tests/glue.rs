//! Reading the GLUE tasks.

use crate::files::{GlueTask, Label, Purpose, Reader, RemarkKind, Split, TaskError, Text, write_submission};

use super::{assert_alike, assert_refused, golden, message, read, text};

fn open(task: GlueTask, split: Split) -> impl Fn(&std::path::Path) -> Result<Reader<Text>, TaskError> {
    move |path| task.read_file(path, split, Purpose::Training)
}

#[test]
fn every_published_file_is_read() {
    let folder = golden().join("glue");
    let counts = [
        (GlueTask::Cola, [4, 2, 2]),
        (GlueTask::Sst2, [3, 2, 2]),
        (GlueTask::Mrpc, [2, 2, 2]),
        (GlueTask::Stsb, [3, 1, 2]),
        (GlueTask::Qqp, [2, 2, 2]),
        (GlueTask::Mnli, [3, 2, 2]),
        (GlueTask::MnliMismatched, [3, 1, 1]),
        (GlueTask::Qnli, [2, 1, 2]),
        (GlueTask::Rte, [2, 1, 2]),
        (GlueTask::Wnli, [2, 1, 2]),
        (GlueTask::Ax, [0, 0, 2]),
    ];
    assert_eq!(counts.map(|(task, _)| task), GlueTask::ALL);
    for (task, counts) in counts {
        for (split, count) in [Split::Train, Split::Dev, Split::Test].into_iter().zip(counts) {
            if !task.splits().contains(&split) {
                assert!(matches!(task.read(&folder, split), Err(TaskError::NoSplit { .. })), "{task} {split}");
                continue;
            }
            let (examples, _) = task.read(&folder, split).unwrap().read_all().unwrap();
            assert_eq!(examples.len(), count, "{task} {split}");
            for example in examples {
                assert!(!example.first.is_empty(), "{task} {split}");
                assert_eq!(example.second.is_some(), task.is_pair(), "{task} {split}");
                assert_eq!(example.label.is_some(), split != Split::Test, "{task} {split}");
            }
            // The task's own folder is also accepted.
            let path = task.path(&folder, split).unwrap();
            assert_eq!(task.path(path.parent().unwrap(), split).unwrap(), path);
        }
    }
}

#[test]
fn columns_and_labels_are_those_of_the_files() {
    let folder = golden().join("glue");
    let at = |task: GlueTask, split, index: usize| {
        task.read(&folder, split).unwrap().nth(index).expect("so many examples").unwrap()
    };
    let class = |index| Some(Label::Class(index));
    // Quotes are literal, white space is kept.
    assert_eq!(
        at(GlueTask::Cola, Split::Train, 2),
        text("2", "\"Who,\" she asked, \"left the gate open?", None, class(1))
    );
    assert_eq!(at(GlueTask::Cola, Split::Test, 1), text("1", "Ever has nobody seen wall the.", None, None));
    assert_eq!(at(GlueTask::Sst2, Split::Train, 2), text("2", "never dull ", None, class(1)));
    let (first, second) = ("Shares of the company rose 3 percent.", "The company has 300 employees.");
    assert_eq!(at(GlueTask::Mrpc, Split::Train, 1), text("1", first, Some(second), class(0)));
    let (first, second) = ("Storm nears the coast", "Storm approaches the islands");
    assert_eq!(at(GlueTask::Stsb, Split::Train, 2), text("2", first, Some(second), Some(Label::Number(2.75))));
    let (first, second) = ("Who wrote \"The Canal\"?", "Where is the canal?");
    assert_eq!(at(GlueTask::Qqp, Split::Train, 1), text("367", first, Some(second), class(0)));
    let (first, second) = ("The vote was close.", "The vote was not decided by a wide margin.");
    assert_eq!(at(GlueTask::Mnli, Split::Dev, 0), text("0", first, Some(second), class(1)));
    let (first, second) = ("Your gift will help the school.", "The school is old.");
    assert_eq!(at(GlueTask::MnliMismatched, Split::Dev, 0), text("0", first, Some(second), class(2)));
    let (first, second) = ("Who owns the \"old\" mill?", "The mill was built in 1790.");
    assert_eq!(at(GlueTask::Qnli, Split::Train, 1), text("1", first, Some(second), class(1)));
    assert_eq!(at(GlueTask::Rte, Split::Dev, 0).label, class(0));
    assert_eq!(at(GlueTask::Wnli, Split::Dev, 0).label, class(1));
    assert_eq!(at(GlueTask::Ax, Split::Test, 1).second.as_deref(), Some("Some of them stayed."));
}

#[test]
fn short_rows_of_qqp_are_listed() {
    let reader = GlueTask::Qqp.read(&golden().join("glue"), Split::Train).unwrap();
    let (_, remarks) = reader.read_all().unwrap();
    assert_eq!(remarks.len(), 1);
    assert_eq!((remarks[0].at.line, &remarks[0].kind), (3, &RemarkKind::ShortRow { columns: 4 }));
    assert!(remarks[0].to_string().contains("train.tsv:3: skipped: 4 columns"), "{}", remarks[0]);
}

#[test]
fn byte_order_marks_and_carriage_returns_change_nothing() {
    let plain = "index\tsentence1\tsentence2\tlabel\n7\ta b\tc\tentailment\n8\td\te\tnot_entailment\n";
    assert_alike("dev.tsv", plain, open(GlueTask::Rte, Split::Dev));
    // CoLA's training file has no header that would contain the mark.
    let (examples, _) = read("train.tsv", "\u{feff}s\t1\t\tA.\r\n", open(GlueTask::Cola, Split::Train)).unwrap();
    assert_eq!(examples, [text("0", "A.", None, Some(Label::Class(1)))]);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let header = "index\tsentence1\tsentence2\tlabel\n";
    let cases = [
        (GlueTask::Rte, String::new(), "f.tsv: no example in the file"),
        (GlueTask::Rte, header.to_owned(), "f.tsv: no example in the file"),
        (GlueTask::Rte, format!("{header}0\ta\tb\n"), "f.tsv:2: 3 columns, expected 4; columns are separated by TAB"),
        (GlueTask::Rte, format!("{header}0\ta\tb\tc\tentailment\n"), "f.tsv:2: 5 columns, expected 4"),
        (GlueTask::Rte, format!("{header}0\ta\tb\tentailment\n\n"), "f.tsv:3: 1 columns, expected 4"),
        (GlueTask::Rte, format!("{header}0\ta\tb\t\n"), "f.tsv:2: no label"),
        (GlueTask::Rte, format!("{header}0\ta\tb\tyes\n"), "f.tsv:2: unknown label \"yes\"; expected one of \"ent"),
        (
            GlueTask::Rte,
            format!("{header}0\ta\tb\tentailment\n1\ta\tb\tentailment\n0\tc\td\tentailment\n"),
            "f.tsv:4: duplicate id \"0\"",
        ),
        (GlueTask::Rte, "0\ta\tb\tentailment\n".to_owned(), "f.tsv:1: header column 1 is \"0\""),
        (GlueTask::Rte, "index\ta\tb\n".to_owned(), "f.tsv:1: 3 columns, expected 4"),
        (GlueTask::Cola, "s\t2\t\tA.\n".to_owned(), "f.tsv:1: unknown label \"2\"; expected one of \"0\", \"1\""),
        (GlueTask::Qqp, "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\tc\t0\n".to_owned(), {
            "f.tsv:2: 7 columns, expected 6"
        }),
    ];
    for (task, text, expected) in cases {
        assert_refused("f.tsv", text, expected, open(task, Split::Train));
    }
    let scores = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n";
    for (score, expected) in
        [("", "f.tsv:2: no label"), ("high", "f.tsv:2: \"high\" is not a number"), ("NaN", "f.tsv:2: ")]
    {
        let text = format!("{scores}0\t\t\t\t\t\t\ta\tb\t{score}\n");
        assert_refused("f.tsv", text, expected, open(GlueTask::Stsb, Split::Train));
    }
    let message = message(read("f.tsv", b"s\t1\t\tcaf\xe9\n", open(GlueTask::Cola, Split::Train)), "f.tsv");
    assert_eq!(message, "f.tsv:1: invalid UTF-8 at byte 9; save the file as UTF-8");
}

#[test]
fn a_missing_file_names_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let error = GlueTask::Mnli.read(folder.path(), Split::Dev).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "no MNLI/dev_matched.tsv (nor dev_matched.tsv) in this folder; give the folder that contains it, as published"
        ),
        "{error}"
    );
}

#[test]
fn names_are_found_again() {
    for task in GlueTask::ALL {
        for name in [task.name().to_owned(), task.title().to_owned(), task.name().to_uppercase()] {
            assert_eq!(name.parse(), Ok(task), "{name}");
        }
        let json = serde_json::to_string(&task).unwrap();
        assert_eq!(json, format!("{:?}", task.name()));
        assert_eq!(serde_json::from_str::<GlueTask>(&json).unwrap(), task);
    }
    assert!("squad".parse::<GlueTask>().unwrap_err().to_string().contains("\"squad\""));
}

#[test]
fn submissions_name_classes_and_keep_ids() {
    let folder = tempfile::tempdir().unwrap();
    let write = |task, predictions: &[(&str, Label)]| {
        write_submission(folder.path(), task, predictions.iter().copied()).map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())
        })
    };
    let (name, text) = write(GlueTask::Rte, &[("0", Label::Class(1)), ("1", Label::Class(0))]).unwrap();
    assert_eq!((name.as_str(), text.as_str()), ("RTE.tsv", "index\tprediction\n0\tnot_entailment\n1\tentailment\n"));
    let (name, text) = write(GlueTask::Stsb, &[("5", Label::Number(3.25)), ("6", Label::Number(0.1))]).unwrap();
    assert_eq!((name.as_str(), text.as_str()), ("STS-B.tsv", "index\tprediction\n5\t3.25\n6\t0.1\n"));
    let (name, text) = write(GlueTask::MnliMismatched, &[("9", Label::Class(0))]).unwrap();
    assert_eq!((name.as_str(), text.as_str()), ("MNLI-mm.tsv", "index\tprediction\n9\tcontradiction\n"));
    let refused = [
        (GlueTask::Rte, Label::Class(2)),
        (GlueTask::Rte, Label::Number(1.0)),
        (GlueTask::Stsb, Label::Class(1)),
        (GlueTask::Stsb, Label::Number(f32::NAN)),
    ];
    for (task, label) in refused {
        assert!(matches!(write(task, &[("0", label)]), Err(TaskError::Prediction { .. })), "{task} {label:?}");
    }
}
