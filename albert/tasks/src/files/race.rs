//! RACE: passages from English exams, with questions of four options.
//!
//! ```text
//! DIR/RACE/train/middle/1.txt      {"article", "questions": [], "options": [[4]], "answers": ["A"], "id"}
//!         /dev  /high             one passage a file, in the order of the numbers of the files
//!         /test       /all.txt    or one passage a line, in one file
//! ```
//!
//! A question's id is that of its passage, `#` and its number from 0.
//!
//! Source: Lai et al. 2017 and the public archive; `all.txt` is the format of the released ALBERT `run_race.py`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::io::limits::mended_surrogates;
use serde::Deserialize;

use super::choice::letter_index;
use super::error::{Place, TaskError};
use super::example::Choice;
use super::glue::Split;
use super::lines::Lines;
use super::reader::{Purpose, Reader, RemarkKind, Remarks, Rows};
use crate::metrics::Level;

const EXPECTED: &str =
    "{\"article\": \"...\", \"questions\": [...], \"options\": [[...]], \"answers\": [\"A\"], \"id\": \"...\"}";

/// Options of a question.
const OPTIONS: usize = 4;

impl Level {
    /// All levels.
    pub(crate) const ALL: [Self; 2] = [Self::Middle, Self::High];

    /// `middle` or `high`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Middle => "middle",
            Self::High => "high",
        }
    }

    /// Level named by a folder.
    fn of(folder: Option<&Path>) -> Option<Self> {
        let name = folder.and_then(Path::file_name).and_then(OsStr::to_str)?;
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// Reads the given levels of a split of RACE; `folder` is the archive's `RACE`, or the folder that contains it. Answers are
/// optional for prediction only.
///
/// # Errors
/// [`TaskError::Missing`] for a missing or empty folder. The reader returns all other errors.
pub fn read_race(folder: &Path, split: Split, levels: &[Level], purpose: Purpose) -> Result<Reader<Choice>, TaskError> {
    let inner = folder.join("RACE");
    let root = if inner.is_dir() { inner } else { folder.to_owned() };
    let parts: Vec<PathBuf> = levels.iter().map(|level| root.join(split.name()).join(level.name())).collect();
    read_parts(&root, &parts, purpose)
}

/// Reads RACE from `path`: a file of one passage or an `all.txt`, a folder of such files, a folder of levels (`middle`, `high`), or the
/// archive's `RACE` or the folder that contains it, whose test split is read. Folder names determine the levels.
///
/// # Errors
/// As [`read_race`].
pub fn read_race_at(path: &Path, purpose: Purpose) -> Result<Reader<Choice>, TaskError> {
    if path.is_file() {
        let files = vec![(path.to_owned(), Level::of(path.parent()))];
        return Ok(reader(path, files, Vec::new(), purpose));
    }
    let levels = |folder: &Path| {
        let parts = Level::ALL.into_iter().map(|level| folder.join(level.name()));
        parts.filter(|part| part.is_dir()).collect::<Vec<_>>()
    };
    let inner = path.join("RACE");
    let root = if inner.is_dir() { inner } else { path.to_owned() };
    for parts in [levels(path), levels(&root.join(Split::Test.name()))] {
        if !parts.is_empty() {
            return read_parts(path, &parts, purpose);
        }
    }
    read_parts(path, &[path.to_owned()], purpose)
}

/// Reads the passages of folders in order.
fn read_parts(root: &Path, parts: &[PathBuf], purpose: Purpose) -> Result<Reader<Choice>, TaskError> {
    let (mut files, mut beside) = (Vec::new(), Vec::new());
    for part in parts {
        let level = Level::of(Some(part));
        files.extend(passages(part, &mut beside)?.into_iter().map(|path| (path, level)));
    }
    files.reverse();
    Ok(reader(root, files, beside, purpose))
}

/// Creates a reader of `files`, in reverse order; `beside` are the `all.txt` files with the number of other files in their folders.
fn reader(root: &Path, files: Files, beside: Vec<(PathBuf, usize)>, purpose: Purpose) -> Reader<Choice> {
    let at = Place { path: root.into(), line: 0 };
    let rows = RaceRows { files, current: None, ready: Vec::new(), beside, needs: purpose.needs_labels(), at };
    Reader::new(root, rows)
}

/// Files of passages with their levels.
type Files = Vec<(PathBuf, Option<Level>)>;

/// Maximum length of a passage id in bytes; each question has a copy.
const LONGEST_ID: usize = 1000;

/// Files of a folder, by number.
fn passages(folder: &Path, beside: &mut Vec<(PathBuf, usize)>) -> Result<Vec<PathBuf>, TaskError> {
    let missing = |file: &str| TaskError::Missing { folder: folder.to_owned(), file: file.to_owned() };
    if !folder.is_dir() {
        return Err(missing("folder of passages"));
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(TaskError::io(folder, "list the folder"))? {
        let path = entry.map_err(TaskError::io(folder, "list the folder"))?.path();
        if path.extension().is_some_and(|ending| ending == "txt") && path.is_file() {
            files.push(path);
        }
    }
    let all = folder.join("all.txt");
    if files.contains(&all) {
        if files.len() > 1 {
            beside.push((all.clone(), files.len() - 1));
        }
        return Ok(vec![all]);
    }
    let number =
        |path: &PathBuf| path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
    files.sort_by_cached_key(|path| (number(path).is_none(), number(path), path.clone()));
    if files.is_empty() { Err(missing("file such as 1.txt, or all.txt")) } else { Ok(files) }
}

#[derive(Deserialize)]
struct Passage {
    article: String,
    questions: Vec<String>,
    options: Vec<Vec<String>>,
    answers: Option<Vec<String>>,
    id: String,
}

struct RaceRows {
    /// Remaining files, the next one last.
    files: Files,
    /// The open `all.txt`.
    current: Option<(Lines, Option<Level>)>,
    /// Examples of the last passage, the next one last.
    ready: Vec<Choice>,
    /// `all.txt` files in folders with other files, and the number of those files.
    beside: Vec<(PathBuf, usize)>,
    needs: bool,
    at: Place,
}

impl RaceRows {
    /// Reads the next passage and sets `at`.
    fn passage(&mut self) -> Result<Option<(Passage, Option<Level>)>, TaskError> {
        loop {
            if let Some((lines, level)) = &mut self.current {
                let level = *level;
                let line = lines.next().map(|line| line.map(|line| mended_surrogates(line).into_owned()));
                self.at = lines.place();
                match line? {
                    Some(line) if line.trim().is_empty() => continue,
                    Some(line) => return Ok(Some((self.checked(serde_json::from_str(&line))?, level))),
                    None => self.current = None,
                }
            }
            let Some((path, level)) = self.files.pop() else { return Ok(None) };
            if path.file_name().is_some_and(|name| name == "all.txt") {
                self.current = Some((Lines::open(&path)?, level));
                continue;
            }
            let bytes = std::fs::read(&path).map_err(TaskError::io(&path, "read"))?;
            self.at = Place { path: path.into(), line: 0 };
            let Ok(text) = String::from_utf8(bytes) else {
                return Err(self.at.clone().error("invalid UTF-8; save the file as UTF-8"));
            };
            let text = mended_surrogates(text.strip_prefix('\u{feff}').unwrap_or(&text));
            return Ok(Some((self.checked(serde_json::from_str(&text))?, level)));
        }
    }

    fn checked(&self, parsed: serde_json::Result<Passage>) -> Result<Passage, TaskError> {
        parsed.map_err(|error| self.at.clone().json_error(&error, EXPECTED))
    }

    /// Examples of a passage.
    fn examples(&self, passage: Passage, level: Option<Level>) -> Result<Vec<Choice>, TaskError> {
        let contradiction =
            |problem: String| Err(self.at.clone().contradiction(&format!("passage {:?}", passage.id), &problem));
        let count = passage.questions.len();
        if passage.id.len() > LONGEST_ID {
            return contradiction(format!("an id of {} bytes; expected at most {LONGEST_ID}", passage.id.len()));
        }
        let answers = match &passage.answers {
            _ if !self.needs => None,
            None if self.needs => return Err(self.at.clone().no_label()),
            Some(answers) if answers.len() != count => {
                return contradiction(format!("{count} questions, but {} answers; expected one each", answers.len()));
            }
            answers => answers.as_deref(),
        };
        if passage.options.len() != count {
            let found = passage.options.len();
            return contradiction(format!("{count} questions, but {found} lists of options; expected one each"));
        }
        let text: Arc<str> = passage.article.into();
        let mut examples = Vec::with_capacity(count);
        for (index, (question, options)) in passage.questions.into_iter().zip(passage.options).enumerate() {
            if options.len() != OPTIONS {
                return contradiction(format!("question {index} has {} options, expected {OPTIONS}", options.len()));
            }
            let answer = match answers.map(|answers| (answers[index].as_str(), letter_index(&answers[index]))) {
                None => None,
                Some((_, Some(index))) if index < OPTIONS as u64 => Some(index as u32),
                Some((letter, _)) => {
                    return contradiction(format!(
                        "the answer to question {index} is {letter:?}, expected A, B, C or D"
                    ));
                }
            };
            let id = format!("{}#{index}", passage.id);
            examples.push(Choice { id, passage: text.clone(), question, options, answer, level });
        }
        Ok(examples)
    }
}

impl Rows<Choice> for RaceRows {
    fn next(&mut self, remarks: &mut Remarks) -> Result<Option<Choice>, TaskError> {
        for (path, files) in self.beside.drain(..) {
            remarks.push(Place { path: path.into(), line: 0 }, || RemarkKind::BesideAll { files });
        }
        while self.ready.is_empty() {
            let Some((passage, level)) = self.passage()? else { return Ok(None) };
            self.ready = self.examples(passage, level)?;
            self.ready.reverse();
        }
        Ok(self.ready.pop())
    }

    fn place(&self) -> Place {
        self.at.clone()
    }

    fn resumes(&self) -> bool {
        true
    }
}
