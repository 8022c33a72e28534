//! Layout and loading of the files of each task.
//!
//! ```text
//! cola ... ax       GLUE as published: DIR/CoLA/train.tsv, or DIR/train.tsv
//! race              DIR/RACE/train/middle/...
//! squad1 squad2     DIR/train-v1.1.json, DIR/dev-v1.1.json, and v2.0
//! classify regress  DIR/{train,dev,test}.{tsv,csv,jsonl}     named columns
//! tag               DIR/{train,dev,test}.{conll,txt,tsv,bio,jsonl} one word per line
//! choice            DIR/{train,dev,test}.{jsonl,json,csv}
//! qa                DIR/{train,dev,test}.{json,jsonl}        in SQuAD 2.0's layout, or flat
//! ```
//!
//! For custom files without a dev set, a share is held out (`held_out.rs`).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::held_out::split;
use super::{Examples, FinetuneError, TaskName};
use crate::files::{
    Label, Level, Problem, Purpose, Reader, Split, TagColumns, TaskError, TextColumns, Unusable, ending, labels_of,
    labels_of_words, read_choices, read_race, read_race_at, read_squad, read_tagged, read_texts,
};

/// Column names and split settings of the input files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// Column of an example's id; by default `id`, if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Column of the text, or of the first text of a pair.
    pub text: String,
    /// Column of the second text of a pair; by default `text_b`, if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_b: Option<String>,
    /// Column of the label or number.
    pub label: String,
    /// Column of a word, counted from 0.
    pub word: usize,
    /// Column of a word's tag, counted from 0; by default the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<usize>,
    /// Level of RACE to read; by default both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Share of the training set that is held out if there is no dev file, 0 to 0.5.
    pub dev_share: f64,
    /// Seed of the held-out split; not changed by the seeds of a run.
    pub dev_seed: u64,
    /// Maximum number of unusable examples that are skipped in each file of a run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_errors: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Default for DataSettings {
    fn default() -> Self {
        let TextColumns { id, text, text_b, label } = TextColumns::default();
        let (dev_share, dev_seed) = (0.1, 12_345);
        Self { id, text, text_b, label, word: 0, tag: None, level: None, dev_share, dev_seed, max_errors: 0 }
    }
}

impl DataSettings {
    fn texts(&self) -> TextColumns {
        let Self { id, text, text_b, label, .. } = self.clone();
        TextColumns { id, text, text_b, label }
    }

    fn tags(&self) -> TagColumns {
        TagColumns { word: self.word, tag: self.tag }
    }
}

/// Streaming reader of a file of examples of any kind.
pub enum ExampleReader {
    /// Texts or pairs.
    Texts(Reader<crate::files::Text>),
    /// Sentences of words.
    Tagged(Reader<crate::files::Tagged>),
    /// Questions with options.
    Choices(Reader<crate::files::Choice>),
    /// Questions about passages.
    Questions(Reader<crate::files::Question>),
}

/// Some examples of a file.
#[derive(Debug)]
pub struct Portion {
    /// Usable examples, in order.
    pub examples: Examples,
    /// Skipped examples, in order.
    pub unusable: Vec<Unusable>,
    /// The error that ends the file.
    pub error: Option<FinetuneError>,
}

impl ExampleReader {
    /// Reads up to `count` more examples; fewer only at the end of the file or before an error. Up to `skips` unusable
    /// examples are skipped.
    pub fn portion(&mut self, count: usize, skips: u64) -> Portion {
        fn some<E: crate::files::Example>(
            reader: &mut Reader<E>,
            (count, skips): (usize, u64),
            examples: impl FnOnce(Vec<E>) -> Examples,
        ) -> Portion {
            let (list, unusable, error) = reader.portion(count, skips);
            Portion { examples: examples(list), unusable, error: error.map(FinetuneError::from) }
        }
        let most = (count, skips);
        match self {
            Self::Texts(reader) => some(reader, most, Examples::Texts),
            Self::Tagged(reader) => some(reader, most, Examples::Tagged),
            Self::Choices(reader) => some(reader, most, Examples::Choices),
            Self::Questions(reader) => some(reader, most, Examples::Questions),
        }
    }

    /// Reads up to `count` more examples; fewer only at the end of the file.
    ///
    /// # Errors
    /// The file cannot be read, or an example is invalid.
    pub fn take(&mut self, count: usize) -> Result<Examples, FinetuneError> {
        let Portion { examples, error, .. } = self.portion(count, 0);
        error.map_or(Ok(examples), Err)
    }

    /// Reads all usable examples; up to `skips` unusable ones become remarks.
    ///
    /// # Errors
    /// The file cannot be read, or too many examples are invalid.
    pub fn take_usable(&mut self, skips: u64) -> Result<Examples, FinetuneError> {
        let Portion { examples, unusable, error } = self.portion(usize::MAX, skips);
        if let Some(error) = error {
            return Err(if skips > 0 && unusable.len() as u64 == skips {
                FinetuneError::Data(format!("{error}; {skips} examples before it cannot be used either (--max-errors)"))
            } else {
                error
            });
        }
        match self {
            Self::Texts(reader) => reader.remark(unusable),
            Self::Tagged(reader) => reader.remark(unusable),
            Self::Choices(reader) => reader.remark(unusable),
            Self::Questions(reader) => reader.remark(unusable),
        }
        Ok(examples)
    }

    /// Remarks for the user about the examples read so far.
    pub fn remarks(&self) -> Vec<String> {
        let remarks = match self {
            Self::Texts(reader) => reader.remarks(),
            Self::Tagged(reader) => reader.remarks(),
            Self::Choices(reader) => reader.remarks(),
            Self::Questions(reader) => reader.remarks(),
        };
        remarks.iter().map(ToString::to_string).collect()
    }

    fn all(mut self, skips: u64) -> Result<(Examples, Vec<String>), FinetuneError> {
        let examples = self.take_usable(skips)?;
        Ok((examples, self.remarks()))
    }
}

/// Loaded problem and examples of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// Problem of the task, with its labels.
    pub problem: Problem,
    /// Training examples.
    pub train: Examples,
    /// Dev examples, if there are any.
    pub dev: Option<Examples>,
    /// Remarks for the user about the files.
    pub remarks: Vec<String>,
}

/// A task with the settings of its files.
#[derive(Clone, Copy, Debug)]
pub struct DataSource<'s> {
    /// Name of the task.
    pub task: TaskName,
    /// Settings of its files.
    pub settings: &'s DataSettings,
}

/// Files of the examples of a run.
#[derive(Clone, Copy, Debug)]
pub enum DataFiles<'p> {
    /// In a folder, under the file names of the task.
    Folder(&'p Path),
    /// In files of any name.
    Files {
        /// Training examples.
        train: &'p Path,
        /// Dev examples.
        dev: Option<&'p Path>,
    },
}

impl DataFiles<'_> {
    /// Path of the training examples, for messages.
    fn name(&self) -> String {
        let (Self::Folder(path) | Self::Files { train: path, .. }) = self;
        path.display().to_string()
    }
}

impl DataSource<'_> {
    /// Loads the training and dev examples.
    ///
    /// # Errors
    /// A file is missing or invalid, or there are too few examples to hold out a dev set.
    pub fn load(&self, files: DataFiles<'_>) -> Result<Loaded, FinetuneError> {
        let problem = match files {
            DataFiles::Folder(folder) => self.problem(folder)?,
            DataFiles::Files { train, .. } => self.problem_of(|| Ok(train.to_owned()))?,
        };
        let open = |split: Split, purpose: Purpose| match files {
            DataFiles::Folder(folder) => {
                let has_file = self.task.own_endings().is_empty() || !self.own_files(folder, split).is_empty();
                let is_needed = has_file || split == Split::Train;
                is_needed.then(|| self.open(folder, split, &problem, purpose)).transpose()
            }
            DataFiles::Files { train, .. } if split == Split::Train => {
                self.open_file(train, &problem, purpose).map(Some)
            }
            DataFiles::Files { dev, .. } => dev.map(|dev| self.open_file(dev, &problem, purpose)).transpose(),
        };
        let train = open(Split::Train, Purpose::Training)?.expect("training examples are needed");
        let skips = self.settings.max_errors;
        let (train, mut remarks) = train.all(skips)?;
        remarks.extend(looks_like_an_identifier(&problem, &train, &self.settings.label));
        if let Some(dev) = open(Split::Dev, Purpose::Evaluation)? {
            let (dev, more) = dev.all(skips)?;
            remarks.extend(more);
            return Ok(Loaded { problem, train, dev: Some(dev), remarks });
        }
        let DataSettings { dev_share, dev_seed, .. } = *self.settings;
        if dev_share == 0.0 {
            return Ok(Loaded { problem, train, dev: None, remarks });
        }
        let (train, dev) = split(train, dev_share, dev_seed);
        let (name, count) = (files.name(), train.len() + dev.len());
        if train.is_empty() || dev.is_empty() {
            let reason = if count > 1 {
                format!("its {count} examples have one text (or passage), of which no part can be held out")
            } else {
                format!("{count} examples are too few to hold out a share of {dev_share} (data.dev_share)")
            };
            return Err(FinetuneError::Data(format!(
                "{name}: no dev file, and {reason}; add a dev file, or set data.dev_share=0 to train without evaluation"
            )));
        }
        remarks.push(format!(
            "{name}: no dev file; {} of {count} examples are held out from training, by class \
             (data.dev_share={dev_share})",
            dev.len()
        ));
        remarks.extend((dev.len() < FEW_DEV).then(|| {
            format!(
                "{} dev examples are too few to choose the best step by; raise data.dev_share or add a dev file",
                dev.len()
            )
        }));
        Ok(Loaded { problem, train, dev: Some(dev), remarks })
    }

    /// Problem of the task, with the labels of the training set in `folder`.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub(crate) fn problem(&self, folder: &Path) -> Result<Problem, FinetuneError> {
        self.problem_of(|| self.own_file(folder, Split::Train))
    }

    /// As `problem`, with the labels of the training file.
    fn problem_of(&self, train: impl Fn() -> Result<PathBuf, FinetuneError>) -> Result<Problem, FinetuneError> {
        Ok(match self.task {
            TaskName::Glue(task) => task.problem(),
            TaskName::Race | TaskName::Choice => Problem::Choice,
            TaskName::Regress => Problem::Number,
            TaskName::Squad1 => Problem::Span { may_be_impossible: false },
            TaskName::Squad2 | TaskName::Qa => Problem::Span { may_be_impossible: true },
            TaskName::Classify => {
                Problem::Classes { labels: labels_of(&train()?, &self.settings.texts(), self.settings.max_errors)? }
            }
            TaskName::Tag => {
                Problem::Tags { labels: labels_of_words(&train()?, self.settings.tags(), self.settings.max_errors)? }
            }
        })
    }

    /// Opens a split of the data in `folder`.
    ///
    /// # Errors
    /// The file of the split is missing, ambiguous or unreadable.
    pub fn open(
        &self,
        folder: &Path,
        split: Split,
        problem: &Problem,
        purpose: Purpose,
    ) -> Result<ExampleReader, FinetuneError> {
        match self.task {
            TaskName::Glue(task) => Ok(ExampleReader::Texts(task.read(folder, split)?)),
            TaskName::Race => {
                let levels = self.settings.level.map_or(Level::ALL.to_vec(), |level| vec![level]);
                Ok(ExampleReader::Choices(read_race(folder, split, &levels, purpose)?))
            }
            TaskName::Squad1 | TaskName::Squad2 => {
                let version = if self.task == TaskName::Squad1 { "v1.1" } else { "v2.0" };
                let name = format!("{split}-{version}.json");
                let found =
                    [folder.join(&name), folder.join("SQuAD").join(&name)].into_iter().find(|path| path.is_file());
                let path = found.ok_or_else(|| TaskError::Missing { folder: folder.to_owned(), file: name })?;
                self.open_own(&path, problem, purpose)
            }
            _ => self.open_own(&self.own_file(folder, split)?, problem, purpose),
        }
    }

    /// Opens a single file, in the published layout of the task or in the layout of custom files. RACE stores one file
    /// per passage, so a folder is also accepted (see [`read_race_at`]).
    ///
    /// # Errors
    /// The file cannot be opened, or its format is unknown.
    pub fn open_file(&self, path: &Path, problem: &Problem, purpose: Purpose) -> Result<ExampleReader, FinetuneError> {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_lowercase();
        let is_tsv = ending(path).as_deref() == Some("tsv");
        let is_passage = path.extension().is_some_and(|ending| ending == "txt");
        match self.task {
            TaskName::Race if is_passage || path.is_dir() => Ok(ExampleReader::Choices(read_race_at(path, purpose)?)),
            TaskName::Glue(task) if is_tsv => {
                let split = if stem.starts_with("train") {
                    Split::Train
                } else if stem.starts_with("dev") {
                    Split::Dev
                } else {
                    Split::Test
                };
                Ok(ExampleReader::Texts(task.read_file(path, split, purpose)?))
            }
            _ => self.open_own(path, problem, purpose),
        }
    }

    fn open_own(&self, path: &Path, problem: &Problem, purpose: Purpose) -> Result<ExampleReader, FinetuneError> {
        Ok(match problem {
            Problem::Labels { .. } if purpose != Purpose::Prediction => {
                return Err(FinetuneError::Data(
                    "a multi-label model cannot be evaluated: no file layout has several labels per example; use \
                     albert predict"
                        .into(),
                ));
            }
            // Labels are not read.
            Problem::Labels { .. } => {
                ExampleReader::Texts(read_texts(path, &self.settings.texts(), &Problem::Number, purpose)?)
            }
            Problem::Classes { .. } | Problem::Number => {
                ExampleReader::Texts(read_texts(path, &self.settings.texts(), problem, purpose)?)
            }
            Problem::Tags { labels } => {
                ExampleReader::Tagged(read_tagged(path, self.settings.tags(), labels, purpose)?)
            }
            Problem::Choice => ExampleReader::Choices(read_choices(path, purpose)?),
            Problem::Span { may_be_impossible } => {
                ExampleReader::Questions(read_squad(path, *may_be_impossible, purpose)?)
            }
        })
    }

    /// Existing custom files in `folder` for a split.
    fn own_files(&self, folder: &Path, split: Split) -> Vec<PathBuf> {
        let names: &[&str] = match split {
            Split::Train => &["train"],
            Split::Dev => &["dev", "valid", "validation", "val"],
            Split::Test => &["test"],
        };
        let endings = self.task.own_endings();
        let all = names.iter().flat_map(|name| endings.iter().map(move |ending| format!("{name}.{ending}")));
        let all = all.flat_map(|name| ["", ".gz", ".zst"].map(|compression| format!("{name}{compression}")));
        all.map(|name| folder.join(name)).filter(|path| path.is_file()).collect()
    }

    /// The custom file in `folder` for a split.
    fn own_file(&self, folder: &Path, split: Split) -> Result<PathBuf, FinetuneError> {
        let wrong = |problem: String| Err(FinetuneError::Data(problem));
        match &self.own_files(folder, split)[..] {
            [one] => Ok(one.clone()),
            [] => {
                let names: Vec<_> = self.task.own_endings().iter().map(|ending| format!("{split}.{ending}")).collect();
                let part = match split {
                    Split::Train => "training",
                    Split::Dev => "dev",
                    Split::Test => "test",
                };
                wrong(format!("{}: no {part} file; expected {}", folder.display(), names.join(" or ")))
            }
            [first, second, ..] => wrong(format!(
                "{} and {} both exist; keep one of them as the {split} set",
                first.display(),
                second.display()
            )),
        }
    }
}

/// Minimum number of labels for the identifier check; fewer may each occur once by chance.
const FEW_LABELS: usize = 20;

/// Warns if at least 90 % of the labels occur once: nothing can be learned from them, so the column is probably a
/// mistake.
fn looks_like_an_identifier(problem: &Problem, examples: &Examples, column: &str) -> Option<String> {
    let (Problem::Classes { labels }, Examples::Texts(texts)) = (problem, examples) else { return None };
    let mut counts = vec![0u64; labels.len()];
    for text in texts {
        if let Some(Label::Class(class)) = text.label {
            counts[class as usize] += 1;
        }
    }
    let once = counts.iter().filter(|&&count| count == 1).count();
    (labels.len() >= FEW_LABELS && 10 * once >= 9 * labels.len()).then(|| {
        format!(
            "{once} of {} labels occur once; the label column {column:?} looks like an identifier; choose another with \
             --set data.label=NAME, or use `regress` for numbers",
            labels.len()
        )
    })
}

/// Minimum number of dev examples for choosing a step without a warning.
const FEW_DEV: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_occur_once_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let settings = DataSettings { dev_share: 0.0, ..DataSettings::default() };
        let source = DataSource { task: TaskName::Classify, settings: &settings };
        let remarks = |label: &dyn Fn(usize) -> usize| {
            let rows: String = (0..200).map(|at| format!("text {at}\t{}\n", label(at))).collect();
            std::fs::write(folder.path().join("train.tsv"), format!("text\tlabel\n{rows}")).unwrap();
            source.load(DataFiles::Folder(folder.path())).unwrap().remarks
        };
        let told = remarks(&|at| at);
        assert!(told[0].contains("200 of 200 labels occur once") && told[0].contains("identifier"), "{told:?}");
        assert!(remarks(&|at| at / 2).is_empty());
        assert!(remarks(&|at| at % 7).is_empty());
        // A few rare labels among common ones.
        assert!(remarks(&|at| if at < 30 { at } else { 100 + at % 10 }).is_empty());
    }

    #[test]
    fn race_is_predicted_from_where_it_is_published() {
        let settings = DataSettings::default();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tasks");
        let of_race = DataSource { task: TaskName::Race, settings: &settings };
        for (path, count, level) in [
            ("race", 6, None),
            ("race/RACE", 6, None),
            ("race/RACE/dev", 6, None),
            ("race/RACE/test/middle", 3, Some(Level::Middle)),
            ("race/RACE/test/high/2.txt", 2, Some(Level::High)),
            ("race-all/RACE/dev/high/all.txt", 1, Some(Level::High)),
        ] {
            let path = Path::new(golden).join(path);
            let mut reader = of_race.open_file(&path, &Problem::Choice, Purpose::Prediction).unwrap();
            let Examples::Choices(list) = reader.take(usize::MAX).unwrap() else { unreachable!() };
            assert_eq!(list.len(), count, "{}", path.display());
            assert!(level.is_none() || list.iter().all(|choice| choice.level == level), "{}", path.display());
        }
        // Other files are read in the layout of custom multiple-choice files.
        let own = Path::new(golden).join("own/choices.jsonl");
        assert_eq!(of_race.open_file(&own, &Problem::Choice, Purpose::Prediction).unwrap().take(9).unwrap().len(), 2);
    }

    #[test]
    fn a_folder_without_a_dev_file_gives_a_part_of_the_training_set() {
        let folder = tempfile::tempdir().unwrap();
        let rows: String = (0..200).map(|at| format!("text {at}\t{}\n", ["no", "yes"][at % 2])).collect();
        std::fs::write(folder.path().join("train.tsv"), format!("text\tlabel\n{rows}")).unwrap();
        let settings = DataSettings::default();
        let source = DataSource { task: TaskName::Classify, settings: &settings };
        let loaded = source.load(DataFiles::Folder(folder.path())).unwrap();
        assert_eq!(loaded.problem, Problem::Classes { labels: vec!["no".into(), "yes".into()] });
        let dev = loaded.dev.unwrap();
        assert_eq!(loaded.train.len() + dev.len(), 200);
        let Examples::Texts(list) = &dev else { unreachable!() };
        assert_eq!(list.iter().filter(|text| text.label == Some(Label::Class(1))).count(), 10);
        assert_eq!(dev.len(), 20);
        assert!(loaded.remarks[0].contains("are held out from training"), "{:?}", loaded.remarks);
        std::fs::write(folder.path().join("dev.csv"), "text,label\nx,yes\n").unwrap();
        let loaded = source.load(DataFiles::Folder(folder.path())).unwrap();
        assert_eq!((loaded.train.len(), loaded.dev.unwrap().len()), (200, 1));
        std::fs::write(folder.path().join("dev.tsv"), "text\tlabel\nx\tyes\n").unwrap();
        // Two dev files are an error; neither is silently ignored.
        let message = source.open(folder.path(), Split::Dev, &loaded.problem, Purpose::Evaluation).err().unwrap();
        assert!(message.to_string().contains("both exist"), "{message}");
        let message = source.open(folder.path(), Split::Test, &loaded.problem, Purpose::Prediction).err().unwrap();
        let expected = ": no test file; expected test.tsv or test.csv or test.jsonl or test.ndjson";
        assert!(message.to_string().ends_with(expected), "{message}");
    }
}
