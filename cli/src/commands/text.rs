//! The built-in text.

use albert::data::Source;
use std::sync::Arc;

/// Public-domain English, one sentence per line, blank lines between documents: novels of Jane Austen, the CIA World
/// Factbook, the manual of SQLite, the World English Bible, Spurgeon's Treasury of David.
static TEXT: &str = include_str!("../../data/public_domain.txt");

/// Whole text as a source.
pub(super) fn all() -> Source {
    source(TEXT)
}

/// First lines of the text.
pub(super) fn first_lines(count: usize) -> &'static str {
    let end = TEXT.match_indices('\n').nth(count - 1).map_or(TEXT.len(), |(at, _)| at + 1);
    &TEXT[..end]
}

/// Part of the text as a source of documents.
pub(super) fn source(text: &'static str) -> Source {
    Source::Memory { name: "the program's public-domain text".to_owned(), text: Arc::from(text.as_bytes()) }
}
