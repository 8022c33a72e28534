//! Tokens of a text, one at a time; nothing but the text is kept in memory.

use crate::sim::Error;

/// A token and its location.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind<'a>,
    pub(crate) line: u32,
    /// Its first byte in the text.
    pub(crate) at: usize,
}

/// The kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind<'a> {
    /// A name with everything that PTX allows in one: `ld.global.v4.f32`, `%tid.x`, `$L0`. A directive ends before
    /// its second dot and before a percent sign, so that `.reg.b16%h` is `.reg`, `.b16` and `%h`.
    Word(&'a str),
    /// The bits of a number: an integer, or a float written as `0f3F800000` or `0d3FF0000000000000`.
    Number(u64),
    /// A string, without its quotes.
    Text(&'a str),
    /// Anything else, one character each.
    Mark(char),
}

/// The tokens of a text from some byte on; comments are dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    /// The tokens of `text` from byte `at`, which is on `line`.
    pub(crate) fn new(text: &'a str, at: usize, line: u32) -> Self {
        Lexer { text, at, line }
    }

    /// The next token; `None` at the end of the text.
    ///
    /// # Errors
    /// [`Error::Syntax`] for a comment or a string that does not end, and for what begins like a number and is none.
    pub(crate) fn next(&mut self) -> Result<Option<Token<'a>>, Error> {
        loop {
            let rest = &self.text[self.at..];
            let Some(c) = rest.chars().next() else { return Ok(None) };
            let skipped = match c {
                '\n' => {
                    self.line += 1;
                    1
                }
                c if c.is_whitespace() => c.len_utf8(),
                '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
                '/' if rest.starts_with("/*") => {
                    let end = rest.find("*/").ok_or_else(|| self.syntax("a comment does not end"))? + 2;
                    self.line += rest[..end].matches('\n').count() as u32;
                    end
                }
                c => return self.token(c, rest).map(Some),
            };
            self.at += skipped;
        }
    }

    fn token(&mut self, c: char, rest: &'a str) -> Result<Token<'a>, Error> {
        let (kind, length) = match c {
            '"' => {
                let end = rest[1..].find('"').ok_or_else(|| self.syntax("a string does not end"))? + 1;
                (Kind::Text(&rest[1..end]), end + 1)
            }
            c if c.is_ascii_digit() => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                let bits = number(&rest[..end]);
                let bits = bits.ok_or_else(|| self.syntax(&format!("`{}` is not a number", shown(&rest[..end]))))?;
                (Kind::Number(bits), end)
            }
            c if begins_word(c) => {
                let end = word_end(rest);
                (Kind::Word(&rest[..end]), end)
            }
            c => (Kind::Mark(c), c.len_utf8()),
        };
        let token = Token { kind, line: self.line, at: self.at };
        if let Kind::Text(text) = kind {
            self.line += text.matches('\n').count() as u32;
        }
        self.at += length;
        Ok(token)
    }

    fn syntax(&self, message: &str) -> Error {
        Error::Syntax { line: self.line, message: message.to_string() }
    }
}

/// The start of a word, for a message: words may be as long as the text.
pub(crate) fn shown(word: &str) -> &str {
    const MOST: usize = 80;
    word.char_indices().nth(MOST).map_or(word, |(end, _)| &word[..end])
}

fn begins_word(c: char) -> bool {
    c.is_ascii_alphabetic() || matches!(c, '_' | '$' | '%' | '.')
}

/// Length of the word at the start of `text`. A double colon belongs to it (`.L1::no_allocate`), a single one does not.
fn word_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let directive = bytes.first() == Some(&b'.');
    let mut end = 0;
    while end < bytes.len() {
        match bytes[end] {
            b'.' | b'%' if directive && end > 0 => break,
            c if c.is_ascii_digit() || begins_word(c as char) => end += 1,
            b':' if bytes.get(end + 1) == Some(&b':') => end += 2,
            _ => break,
        }
    }
    end
}

/// The bits of `12`, `0x1F`, `0b101`, `017`, `0f3F800000` or `0d3FF0000000000000`.
fn number(text: &str) -> Option<u64> {
    // The longest number has 66 characters; longer words are not copied.
    if text.len() > 80 {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches('u');
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).ok();
    if let Some(digits) = lower.strip_prefix("0f") {
        return (digits.len() == 8).then(|| radix(digits, 16)).flatten();
    }
    if let Some(digits) = lower.strip_prefix("0d") {
        return (digits.len() == 16).then(|| radix(digits, 16)).flatten();
    }
    match (digits.strip_prefix("0x"), digits.strip_prefix("0b"), digits.strip_prefix('0')) {
        (Some(digits), ..) => radix(digits, 16),
        (_, Some(digits), _) => radix(digits, 2),
        (.., Some(digits)) if !digits.is_empty() => radix(digits, 8),
        _ => digits.parse().ok(),
    }
}
