//! Words of a SentencePiece model: Google's `preprocess_text`, then the model's normalizer.
//!
//! ```text
//! "  Héllo,\tﬁne "  -- preprocess -->  "hello, fine"  -- normalize -->  "▁hello,▁fine"
//! ```
//!
//! 1. Preprocess: runs of white space (Python's `str.split`) become one space, none at the ends; unless accents are kept, NFKD is applied
//!    and characters with a non-zero combining class are dropped; unless case is kept, `str.lower` is applied.
//! 2. Normalize, at each position: a user-defined symbol is kept; otherwise the longest rule of the charsmap applies;
//!    otherwise the character is kept. With `remove_extra_whitespaces` spaces are collapsed and trimmed once more (rules produce
//!    spaces); with `add_dummy_prefix` a word mark is prepended; spaces become word marks.
//!
//! Word marks are spaces here, as in the trie; a literal `▁` (U+2581) that the rules keep is also a word mark.
//!
//! ASCII without rules (`Charsmap::keeps_ascii`) costs one table look-up a byte. All other text runs through both steps up to
//! the end of its word. Words are processed separately unless a piece spans words or a rule has a space in its key.
//! Sources: the released ALBERT `tokenization.py`; Kudo and Richardson 2018.

use std::sync::Arc;

use unicode_normalization::char::{canonical_combining_class, decompose_compatible};

use super::super::clean::lower_sigmas;
use super::super::lattice::character_len;
use super::super::trie::Trie;
use super::super::vocabulary::Vocabulary;
use super::super::{Cleaning, PieceKind};
use super::charsmap::Charsmap;
use super::proto::ModelProto;

/// ASCII classes: the byte to emit, white space, or this value.
const SLOW: u8 = 0;
const SPACE: u8 = b' ';

/// The text rules of one model.
#[derive(Debug, Clone)]
pub(crate) struct Normalizer {
    /// Google's preprocessing; `None` for the parts of pieces encoded by the digit-comma rule.
    preprocess: Option<Cleaning>,
    charsmap: Option<Arc<Charsmap>>,
    /// User-defined symbols, which rules do not change.
    symbols: Trie,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    whitespace_as_suffix: bool,
    /// True if the whole text is one word: pieces may span word marks.
    whole: bool,
    ascii: [u8; 128],
}

/// Sink of normalized bytes.
pub(super) trait Sink {
    /// Appends bytes of a word, from source bytes `start..end`.
    fn bytes(&mut self, bytes: &[u8], start: usize, end: usize);
    /// Appends a word mark.
    fn mark(&mut self, start: usize, end: usize);
}

/// A character after preprocessing: its first byte in the buffer and its source.
struct Origin {
    at: usize,
    start: usize,
    end: usize,
}

/// State between the parts of a text.
struct State {
    /// White space follows the last word.
    gap: bool,
    /// The output is not empty.
    started: bool,
    /// The output ends in a space, so the next space is dropped.
    after_space: bool,
    /// Source end of the last word.
    end: usize,
}

/// White space of Python's `str.split`.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

impl Normalizer {
    /// Rules of `model` with the pieces of `vocabulary`, after `cleaning`.
    pub(crate) fn new(model: &ModelProto, vocabulary: &Vocabulary, cleaning: Cleaning) -> Result<Self, String> {
        let spec = &model.normalizer;
        let charsmap = if spec.charsmap.is_empty() { None } else { Some(Arc::new(Charsmap::read(&spec.charsmap)?)) };
        let mut keys: Vec<(&[u8], u32)> = (0u32..)
            .zip(&vocabulary.pieces)
            .filter(|(_, piece)| piece.kind == PieceKind::UserDefined)
            .map(|(id, piece)| (piece.text.as_bytes(), id))
            .collect();
        keys.sort_unstable();
        let mut normalizer = Self {
            preprocess: None,
            symbols: Trie::new(&keys),
            add_dummy_prefix: spec.add_dummy_prefix,
            remove_extra_whitespaces: spec.remove_extra_whitespaces,
            whitespace_as_suffix: model.trainer.whitespace_as_suffix,
            whole: vocabulary.spans_words || model.trainer.whitespace_as_suffix,
            ascii: [SLOW; 128],
            charsmap,
        };
        normalizer.preprocess(Some(cleaning), &keys);
        Ok(normalizer)
    }

    /// Preprocessing.
    pub(crate) fn cleaning(&self) -> Cleaning {
        self.preprocess.unwrap_or(Cleaning { lowercase: false, strip_accents: false, ..Cleaning::default() })
    }

    /// The same rules without preprocessing.
    pub(crate) fn bare(&self) -> Self {
        Self { preprocess: None, ascii: [SLOW; 128], ..self.clone() }
    }

    /// Sets the preprocessing, and so the ASCII bytes handled by the fast path.
    fn preprocess(&mut self, cleaning: Option<Cleaning>, symbols: &[(&[u8], u32)]) {
        self.preprocess = cleaning;
        self.ascii = std::array::from_fn(|byte| {
            let byte = byte as u8;
            let given = if cleaning.is_some_and(|c| c.lowercase) { byte.to_ascii_lowercase() } else { byte };
            // A longer symbol must be recognized from its first byte on.
            let starts_symbol = symbols.iter().any(|(key, _)| key.len() > 1 && key[0] == given);
            let keeps = self.charsmap.as_ref().is_none_or(|map| map.keeps_ascii(given));
            match byte {
                b'\t'..=b'\r' | 0x1c..=b' ' => SPACE,
                0 => SLOW,
                _ if keeps && !starts_symbol => given,
                _ => SLOW,
            }
        });
        if self.charsmap.as_ref().is_some_and(|map| map.has_space_in_key) {
            self.ascii = [SLOW; 128];
        }
    }

    /// Calls `each` with every word of `text`, in order, in the form of the trie. `word` is a scratch buffer.
    #[inline]
    pub(crate) fn for_each_word(&self, text: &str, word: &mut Vec<u8>, each: impl FnMut(&[u8])) {
        word.clear();
        let mut words = Words { word, pending: 0, whole: self.whole, each };
        self.run(text, &mut words);
        words.finish(self);
    }

    /// Normalized text with the source bytes of each of its bytes.
    pub(crate) fn with_source(&self, text: &str) -> (Vec<u8>, Vec<(usize, usize)>) {
        let mut sink = WithSource::default();
        self.run(text, &mut sink);
        let WithSource { mut bytes, mut source } = sink;
        if self.remove_extra_whitespaces {
            let kept = bytes.iter().rposition(|&byte| byte != SPACE).map_or(0, |last| last + 1);
            bytes.truncate(kept);
            source.truncate(kept);
        }
        if self.whitespace_as_suffix && self.add_dummy_prefix && !bytes.is_empty() {
            bytes.push(SPACE);
            source.push((text.len(), text.len()));
        }
        (bytes, source)
    }

    /// True if the search treats the whole text as one word.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    #[inline(always)]
    fn run(&self, text: &str, sink: &mut impl Sink) {
        let bytes = text.as_bytes();
        let mut state = State { gap: false, started: false, after_space: self.remove_extra_whitespaces, end: 0 };
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            let class = if byte < 128 { self.ascii[usize::from(byte)] } else { SLOW };
            if class == SPACE {
                state.gap = state.started;
                at += 1;
            } else if class > SPACE && bytes.get(at + 1).is_none_or(u8::is_ascii) {
                if state.gap || !state.started {
                    self.open_word(&mut state, at, sink);
                }
                sink.bytes(&[class], at, at + 1);
                state.after_space = false;
                at += 1;
                state.end = at;
            } else {
                at = self.rest_of_word(text, at, &mut state, sink);
            }
        }
    }

    /// Emits the dummy prefix or the space before a word that starts at source byte `at`.
    #[inline(always)]
    fn open_word(&self, state: &mut State, at: usize, sink: &mut impl Sink) {
        if !state.started {
            state.started = true;
            if self.add_dummy_prefix && !self.whitespace_as_suffix {
                sink.mark(at, at);
            }
        }
        if std::mem::take(&mut state.gap) && !state.after_space {
            sink.mark(state.end, at);
            state.after_space = self.remove_extra_whitespaces;
        }
    }

    /// Slow path for text with rules, to the end of the word; returns its end.
    #[cold]
    fn rest_of_word(&self, text: &str, from: usize, state: &mut State, sink: &mut impl Sink) -> usize {
        let rest = &text[from..];
        let splits = self.preprocess.is_some();
        let has_space_in_key = self.charsmap.as_ref().is_some_and(|map| map.has_space_in_key);
        let first = rest.chars().next().expect("the caller saw a byte");
        if splits && is_python_space(first) {
            state.gap = state.started;
            return from + first.len_utf8();
        }
        let len =
            if !splits || has_space_in_key { rest.len() } else { rest.find(is_python_space).unwrap_or(rest.len()) };
        self.open_word(state, from, sink);
        let (buffer, origins) = self.preprocessed(text, from, from + len);
        self.normalize(&buffer, &origins, state, sink);
        state.end = from + len;
        from + len
    }

    /// Preprocesses source bytes `from..to`; white space inside becomes single spaces and is dropped at the ends.
    fn preprocessed(&self, text: &str, from: usize, to: usize) -> (Vec<u8>, Vec<Origin>) {
        let mut characters: Vec<(char, usize, usize)> = Vec::with_capacity(to - from);
        let cleaning = self.cleaning();
        let mut gap = None;
        for (at, c) in text[from..to].char_indices() {
            let (start, end) = (from + at, from + at + c.len_utf8());
            if self.preprocess.is_some() && is_python_space(c) {
                gap = gap.or(Some(start));
                continue;
            }
            if let Some(gap) = gap.take().filter(|_| !characters.is_empty()) {
                characters.push((' ', gap, start));
            }
            if !cleaning.strip_accents || c.is_ascii() {
                characters.push((c, start, end));
            } else {
                decompose_compatible(c, |d| {
                    if canonical_combining_class(d) == 0 {
                        characters.push((d, start, end));
                    }
                });
            }
        }
        if cleaning.lowercase {
            // `str.lower`: Unicode's full mapping, with the final sigma determined by its context.
            lower_sigmas(&mut characters, text, from..to, cleaning.strip_accents);
            let lower = |(c, start, end): (char, usize, usize)| c.to_lowercase().map(move |l| (l, start, end));
            characters = characters.into_iter().flat_map(lower).collect();
        }
        let mut buffer = Vec::with_capacity(2 * characters.len());
        let origins = characters
            .into_iter()
            .map(|(c, start, end)| {
                let at = buffer.len();
                buffer.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                Origin { at, start, end }
            })
            .collect();
        (buffer, origins)
    }

    /// Applies the model's own normalizer to preprocessed text.
    fn normalize(&self, text: &[u8], origins: &[Origin], state: &mut State, sink: &mut impl Sink) {
        let (mut at, mut index) = (0, 0);
        while at < text.len() {
            let rest = &text[at..];
            let (len, becomes) = self.prefix(rest);
            // The characters with the first and the last byte of the match; odd rules may end inside one.
            while origins.get(index + 1).is_some_and(|origin| origin.at <= at) {
                index += 1;
            }
            let start = origins[index].start;
            at += len;
            while origins.get(index + 1).is_some_and(|origin| origin.at < at) {
                index += 1;
            }
            self.give(becomes, start, origins[index].end, state, sink);
        }
    }

    /// Length and replacement of the longest prefix of `text` with a rule.
    #[inline]
    fn prefix<'t>(&'t self, text: &'t [u8]) -> (usize, &'t [u8]) {
        let mut node = self.symbols.root();
        let mut symbol = 0;
        for (at, &byte) in text.iter().enumerate() {
            let Some(child) = self.symbols.step(node, byte) else { break };
            node = child;
            if node.id().is_some() {
                symbol = at + 1;
            }
        }
        if symbol > 0 {
            return (symbol, &text[..symbol]);
        }
        match self.charsmap.as_ref().and_then(|map| map.longest(text)) {
            Some((len, becomes)) => (len, becomes.as_bytes()),
            // The rest of a character that an odd rule split.
            None if text[0] & 0xc0 == 0x80 => (1, "\u{fffd}".as_bytes()),
            None => {
                let len = character_len(text[0]).min(text.len());
                (len, &text[..len])
            }
        }
    }

    /// Emits one replacement: its spaces as marks, collapsed if the model requires it.
    fn give(&self, mut bytes: &[u8], start: usize, end: usize, state: &mut State, sink: &mut impl Sink) {
        while let Some(rest) = bytes.strip_prefix(b" ").filter(|_| state.after_space) {
            bytes = rest;
        }
        if !bytes.is_empty() {
            state.after_space = bytes.ends_with(b" ");
            while !bytes.is_empty() {
                let word = bytes.iter().position(|&byte| byte == b' ' || byte == 0xe2).unwrap_or(bytes.len());
                if word > 0 {
                    sink.bytes(&bytes[..word], start, end);
                    bytes = &bytes[word..];
                } else if let Some(rest) = bytes.strip_prefix(b" ").or(bytes.strip_prefix("▁".as_bytes())) {
                    sink.mark(start, end);
                    bytes = rest;
                } else {
                    sink.bytes(&bytes[..1], start, end);
                    bytes = &bytes[1..];
                }
            }
        }
        state.after_space &= self.remove_extra_whitespaces;
    }
}

/// Passes on one word at a time.
struct Words<'w, F: FnMut(&[u8])> {
    word: &'w mut Vec<u8>,
    /// Word marks since the last word; all but the last are separate words.
    pending: usize,
    whole: bool,
    each: F,
}

impl<F: FnMut(&[u8])> Sink for Words<'_, F> {
    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8], _: usize, _: usize) {
        if self.pending > 0 {
            (1..std::mem::take(&mut self.pending)).for_each(|_| (self.each)(b" "));
            self.word.push(SPACE);
        }
        self.word.extend_from_slice(bytes);
    }

    #[inline(always)]
    fn mark(&mut self, _: usize, _: usize) {
        if self.whole {
            self.word.push(SPACE);
            return;
        }
        if !self.word.is_empty() {
            (self.each)(self.word);
            self.word.clear();
        }
        self.pending += 1;
    }
}

impl<F: FnMut(&[u8])> Words<'_, F> {
    fn finish(&mut self, rules: &Normalizer) {
        if self.whole {
            if rules.remove_extra_whitespaces {
                let kept = self.word.iter().rposition(|&byte| byte != SPACE).map_or(0, |last| last + 1);
                self.word.truncate(kept);
            }
            if rules.whitespace_as_suffix && rules.add_dummy_prefix && !self.word.is_empty() {
                self.word.push(SPACE);
            }
        }
        if !self.word.is_empty() {
            (self.each)(self.word);
        }
        if !rules.remove_extra_whitespaces {
            (0..self.pending).for_each(|_| (self.each)(b" "));
        }
    }
}

#[derive(Default)]
struct WithSource {
    bytes: Vec<u8>,
    source: Vec<(usize, usize)>,
}

impl Sink for WithSource {
    fn bytes(&mut self, bytes: &[u8], start: usize, end: usize) {
        self.bytes.extend_from_slice(bytes);
        self.source.extend(std::iter::repeat_n((start, end), bytes.len()));
    }

    fn mark(&mut self, start: usize, end: usize) {
        self.bytes.push(SPACE);
        self.source.push((start, end));
    }
}
