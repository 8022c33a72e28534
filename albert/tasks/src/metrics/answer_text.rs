//! Normalization of answers in the official SQuAD evaluation.
//!
//! ```text
//! "The  U.S.A.'s — a café"  ->  "usas — café"
//! ```
//!
//! In this order: lower case; ASCII punctuation is deleted; the words a, an and the become a space; white space is collapsed.
//! As in Python's `re`, a word is a run of letters and numbers (of any script) and `_`; a combining mark ends it. White space
//! is Python's: Unicode's and U+001C to U+001F.
//!
//! Source: Rajpurkar et al. 2016. Limits: lower case follows the standard library's version of Unicode.

use std::collections::HashMap;

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// The normalized answer.
pub(crate) fn normalize_answer(answer: &str) -> String {
    let mut text = answer.to_lowercase();
    text.retain(|c| !c.is_ascii_punctuation());
    let text = without_articles(&text);
    let mut normal = String::with_capacity(text.len());
    for word in text.split(is_space).filter(|word| !word.is_empty()) {
        if !normal.is_empty() {
            normal.push(' ');
        }
        normal.push_str(word);
    }
    normal
}

/// Replaces articles by spaces.
fn without_articles(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = is_word_character(first);
        let end = rest.find(|c| is_word_character(c) != is_word).unwrap_or(rest.len());
        out.push_str(if matches!(&rest[..end], "a" | "an" | "the") { " " } else { &rest[..end] });
        rest = &rest[end..];
    }
    out
}

/// `\w` in Python's `re`.
fn is_word_character(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || c == '_'
        || (!c.is_ascii()
            && matches!(c.general_category_group(), GeneralCategoryGroup::Letter | GeneralCategoryGroup::Number))
}

/// `str.isspace` in Python.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Word counts of two normalized answers: shared, of the first, of the second.
pub(super) fn shared_words(a: &str, b: &str) -> (u64, u64, u64) {
    let words =
        |text: &'_ str| -> Vec<String> { text.split(' ').filter(|w| !w.is_empty()).map(str::to_owned).collect() };
    let (a, b) = (words(a), words(b));
    let mut left: HashMap<&str, u64> = HashMap::new();
    for word in &a {
        *left.entry(word).or_default() += 1;
    }
    let mut shared = 0;
    for word in &b {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            shared += 1;
        }
    }
    (shared, a.len() as u64, b.len() as u64)
}
