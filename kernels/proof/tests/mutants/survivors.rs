//! `survivors.txt`: surviving mutants, each with a reason; read at run time.

use crate::generate::Mutant;
use std::{fs, path::Path};

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    program: String,
    mutant: String,
    /// True if the reason is a proof that the mutant is equivalent.
    pub(crate) proves: bool,
}

impl Reason {
    fn read(line: &str) -> Self {
        let parts: Vec<&str> = line.splitn(3, " :: ").map(str::trim).collect();
        let [program, mutant, reason] = parts[..] else { panic!("survivors.txt: `{line}`: expected three fields") };
        let proves = reason.starts_with("equivalent:");
        Self { program: program.to_string(), mutant: mutant.to_string(), proves }
    }

    pub(crate) fn is_about(&self, program: &str, mutant: &Mutant) -> bool {
        fits(&self.program, program) && fits(&self.mutant, &mutant.exact())
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} :: {}", self.program, self.mutant)
    }
}

/// All reasons.
pub(crate) fn reasons() -> Vec<Reason> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutants/survivors.txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(Reason::read).collect()
}

/// True if `text` matches `pattern`, in which `*` matches any text and `#` a number.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| behind(first, text)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(found) = places(rest).find_map(|rest| behind(part, rest)) else { return false };
        rest = found;
    }
    places(rest).any(|rest| behind(last, rest) == Some(""))
}

/// Suffixes of `text`, the empty one last.
fn places(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, _)| &text[at..]).chain([""])
}

/// Rest of `text` after its prefix `part`; `None` if it has another prefix.
fn behind<'a>(part: &str, mut text: &'a str) -> Option<&'a str> {
    for (i, literal) in part.split('#').enumerate() {
        if i > 0 {
            let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
            if rest.len() == text.len() {
                return None;
            }
            text = rest;
        }
        text = text.strip_prefix(literal)?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_are_anything_and_hashes_are_numbers() {
        for (pattern, text) in [
            ("gemm.*", "gemm.nt"),
            ("*-sm90a-*", "gemm.nt-sm90a-128"),
            ("bar.sync #; below $L#:", "bar.sync 0; below $L12:"),
            ("wait_group 0; between * and %u#;", "wait_group 0; between $L4: and %u77;"),
            ("*", ""),
            ("a*b", "abab"),
        ] {
            assert!(fits(pattern, text), "{pattern} must match {text}");
        }
        for (pattern, text) in
            [("gemm", "gemm.nt"), ("wait_group 0;", "wait_group 1;"), ("%u#;", "%u;"), ("a*b", "ba"), ("a#b", "a1")]
        {
            assert!(!fits(pattern, text), "{pattern} must not match {text}");
        }
    }

    #[test]
    fn every_line_of_the_file_can_be_read_and_gives_a_reason() {
        assert!(reasons().iter().any(|reason| reason.proves));
    }
}
