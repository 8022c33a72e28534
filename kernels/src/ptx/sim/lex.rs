//! Text to tokens.

use super::Error;

/// A token and the line that it stands on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) line: u32,
}

/// The kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind<'a> {
    /// A name with everything that PTX allows in one: `ld.global.v4.f32`, `%tid.x`, `$L0`, `.reg`.
    Word(&'a str),
    /// The bits of a number: an integer, or a float written as `0f3F800000` or `0d3FF0000000000000`.
    Number(u64),
    /// A string, without its quotes.
    Text(&'a str),
    /// Anything else, one character each.
    Mark(char),
}

/// Cuts `text` into tokens; comments are dropped.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Error> {
    let (mut found, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\n' => {
                line += 1;
                1
            }
            c if c.is_whitespace() => c.len_utf8(),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => {
                let end = rest.find("*/").ok_or_else(|| syntax(line, "a comment does not end"))? + 2;
                line += rest[..end].matches('\n').count() as u32;
                end
            }
            '"' => {
                let end = rest[1..].find('"').ok_or_else(|| syntax(line, "a string does not end"))? + 1;
                found.push(Token { kind: Kind::Text(&rest[1..end]), line });
                end + 1
            }
            c if c.is_ascii_digit() => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                let bits = number(&rest[..end]);
                let bits = bits.ok_or_else(|| syntax(line, &format!("`{}` is no number", &rest[..end])))?;
                found.push(Token { kind: Kind::Number(bits), line });
                end
            }
            c if begins_word(c) => {
                let end = word_end(rest);
                found.push(Token { kind: Kind::Word(&rest[..end]), line });
                end
            }
            c => {
                found.push(Token { kind: Kind::Mark(c), line });
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Ok(found)
}

fn begins_word(c: char) -> bool {
    c.is_ascii_alphabetic() || matches!(c, '_' | '$' | '%' | '.')
}

/// Where the word at the start of `text` ends. A double colon belongs to it (`.L1::no_allocate`), a single one does not.
fn word_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        match bytes[end] {
            c if c.is_ascii_digit() || begins_word(c as char) => end += 1,
            b':' if bytes.get(end + 1) == Some(&b':') => end += 2,
            _ => break,
        }
    }
    end
}

/// The bits of `12`, `0x1F`, `0b101`, `017`, `0f3F800000` or `0d3FF0000000000000`.
fn number(text: &str) -> Option<u64> {
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

fn syntax(line: u32, message: &str) -> Error {
    Error::Syntax { line, message: message.to_string() }
}
