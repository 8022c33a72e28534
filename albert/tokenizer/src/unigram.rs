//! Unigram model: text rules, lattice and digit-comma rule.
//!
//! Our vocabularies and SentencePiece models differ only in the text rules ([`TextRules`]) and the arithmetic of the lattice.
//!
//! The digit-comma rule replaces a piece such as `▁2010,` by the pieces of the number and a comma. The replacement does not
//! depend on the surrounding text, so it is computed once.

use std::cell::RefCell;

use super::lattice::{Arithmetic, Cell, Lattice, Step};
use super::sentencepiece::{ModelProto, Normalizer};
use super::vocabulary::{Piece, PieceKind, Vocabulary};
use super::{Cleaning, DigitComma, Encoding, TokenizerError, WORD_MARK};

/// Rules for splitting text into words.
#[derive(Debug, Clone)]
pub(super) enum TextRules {
    /// Our own cleaning.
    Own(Cleaning),
    /// Google's preprocessing and a SentencePiece normalizer; the file is kept for writing.
    SentencePiece { normalizer: Box<Normalizer>, file: Box<ModelProto> },
}

/// Encoder of a unigram vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Unigram {
    pub(super) text: TextRules,
    lattice: Lattice,
    /// Replacement of each piece; ends count bytes of the number, without the word mark.
    digit_comma: Vec<Option<Box<[Step]>>>,
}

/// Buffers of the search.
#[derive(Default)]
pub(super) struct Scratch {
    cells: Vec<Cell>,
    steps: Vec<Step>,
    /// Current word.
    pub(super) word: Vec<u8>,
    /// Pieces of the current word.
    pub(super) pieces: Vec<Step>,
}

impl Scratch {
    /// Frees memory after a very long word.
    pub(super) fn shrink(&mut self) {
        const KEEP: usize = 1 << 16;
        if self.cells.capacity().max(self.word.capacity()).max(self.pieces.capacity()) > KEEP {
            *self = Self::default();
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Runs `run` with the buffers of this thread.
fn with_scratch<R>(run: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        let result = run(scratch);
        scratch.shrink();
        result
    })
}

impl Unigram {
    /// Creates a model of checked pieces.
    pub(super) fn new(vocabulary: &Vocabulary, text: TextRules, rule: DigitComma) -> Result<Self, TokenizerError> {
        let arithmetic = match text {
            TextRules::Own(_) => Arithmetic::Double,
            TextRules::SentencePiece { .. } => Arithmetic::Single,
        };
        let lattice = Lattice::new(vocabulary, arithmetic)?;
        let mut model = Self { text, lattice, digit_comma: Vec::new() };
        model.set_digit_comma(vocabulary, rule);
        Ok(model)
    }

    /// Computes the replacement of each piece that ends in a digit and a comma.
    pub(super) fn set_digit_comma(&mut self, vocabulary: &Vocabulary, rule: DigitComma) {
        self.digit_comma = Vec::new();
        if rule == DigitComma::Off {
            return;
        }
        let bare = match &self.text {
            TextRules::Own(_) => None,
            TextRules::SentencePiece { normalizer, .. } => Some(normalizer.bare()),
        };
        let of_piece = |piece: &Piece| -> Option<Box<[Step]>> {
            let number = piece.text.strip_suffix(',')?;
            let matched = matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined);
            let applies = matched && number.chars().next_back().is_some_and(is_digit);
            applies.then(|| self.without_comma(vocabulary, bare.as_ref(), number, rule))
        };
        let table: Vec<_> = vocabulary.pieces.iter().map(of_piece).collect();
        if table.iter().any(Option::is_some) {
            self.digit_comma = table;
        }
    }

    /// Pieces of `number` (with or without word mark) under the digit-comma rule, then the comma.
    fn without_comma(
        &self,
        vocabulary: &Vocabulary,
        rules: Option<&Normalizer>,
        number: &str,
        rule: DigitComma,
    ) -> Box<[Step]> {
        let unk = vocabulary.specials.unk;
        let bare = number.replace(WORD_MARK, "");
        let (mut found, mut steps, mut cells) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sum, mut before) = (0.0, 0);
        let letters = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte != b' ').count() as u32;
        let mut segment = |word: &[u8]| {
            sum = self.lattice.segment(word, self.lattice.carried(sum), &mut cells, &mut steps);
            found.extend(steps.iter().map(|s| Step { id: s.id, end: before + letters(&word[..s.end as usize]) }));
            before += letters(word);
        };
        match rules {
            None => segment(&[b" ", bare.as_bytes()].concat()),
            Some(rules) => rules.for_each_word(&bare, &mut Vec::new(), segment),
        }
        if rule == DigitComma::Intended && !number.starts_with(WORD_MARK) && !found.is_empty() {
            // Encoding added a word mark: remove it.
            match vocabulary.pieces[found[0].id as usize].text.strip_prefix(WORD_MARK) {
                Some("") => drop(found.remove(0)),
                Some(rest) => found[0].id = vocabulary.id(rest).unwrap_or(unk),
                None => {}
            }
        }
        found.push(Step { id: vocabulary.id(",").unwrap_or(unk), end: bare.len() as u32 + 1 });
        found.into()
    }

    /// True if the digit-comma rule splits this piece.
    pub(super) fn is_cut(&self, id: u32) -> bool {
        self.digit_comma.get(id as usize).is_some_and(Option::is_some)
    }

    /// Calls `each` with every word of `text`, with marks as spaces.
    #[inline]
    pub(super) fn for_each_word(&self, text: &str, word: &mut Vec<u8>, each: impl FnMut(&[u8])) {
        match &self.text {
            TextRules::Own(cleaning) => cleaning.for_each_word(text, word, each),
            TextRules::SentencePiece { normalizer, .. } => normalizer.for_each_word(text, word, each),
        }
    }

    /// As [`Lattice::advance`].
    #[inline]
    pub(super) fn advance(&self, base: f64, ids: &[u32]) -> f64 {
        self.lattice.advance(base, ids)
    }

    /// Writes the pieces of one word to `out` and returns the largest base (in magnitude) for which they are valid; if
    /// negative, `out` is invalid.
    pub(super) fn segment_anywhere(&self, word: &[u8], scratch: &mut Scratch, out: &mut Vec<Step>) -> f32 {
        let reach = self.lattice.segment_anywhere(word, &mut scratch.cells, &mut scratch.steps);
        let is_cut = scratch.steps.iter().any(|step| self.is_cut(step.id));
        self.cut(word, &scratch.steps, out);
        // `advance` cannot compute the sum of a word with replaced pieces.
        if is_cut && reach.is_finite() { -1.0 } else { reach }
    }

    /// As [`Lattice::carried`].
    #[inline]
    pub(super) fn carried(&self, sum: f64) -> f64 {
        self.lattice.carried(sum)
    }

    /// Log-probability of the best segmentation of `text`, before the digit-comma rule.
    pub(super) fn log_likelihood(&self, text: &str) -> f64 {
        let mut total = 0.0;
        let mut cells = Vec::new();
        self.for_each_word(text, &mut Vec::new(), |word| total += self.lattice.search(word, 0.0, &mut cells));
        total
    }

    /// Appends the ids of `text` to `out`.
    pub(super) fn encode_into(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let (first, unk) = (out.len(), vocabulary.specials.unk);
        with_scratch(|scratch| {
            let (mut buffer, mut pieces) = (std::mem::take(&mut scratch.word), std::mem::take(&mut scratch.pieces));
            let mut sum = 0.0;
            self.for_each_word(text, &mut buffer, |word| {
                sum = self.segment_word(word, self.carried(sum), scratch, &mut pieces);
                append(out, first, pieces.iter().map(|step| step.id), unk);
            });
            (scratch.word, scratch.pieces) = (buffer, pieces);
        });
    }

    /// Writes the pieces of one word under the digit-comma rule to `out`; returns their sum.
    pub(super) fn segment_word(&self, word: &[u8], base: f64, scratch: &mut Scratch, out: &mut Vec<Step>) -> f64 {
        let total = self.lattice.segment(word, base, &mut scratch.cells, &mut scratch.steps);
        self.cut(word, &scratch.steps, out);
        total
    }

    /// Applies the digit-comma rule to the pieces of a word.
    fn cut(&self, word: &[u8], steps: &[Step], out: &mut Vec<Step>) {
        out.clear();
        let mut start = 0;
        for &step in steps {
            match self.digit_comma.get(step.id as usize).and_then(Option::as_deref) {
                None => out.push(step),
                Some(replacement) => place(replacement, word, start, step.end, out),
            }
            start = step.end;
        }
    }

    /// Appends the pieces of a part of a text, which starts at source byte `base`, with their positions. In our vocabularies
    /// its first word has a word mark if `starts_word` is true or after white space.
    pub(super) fn encode_part(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        base: usize,
        starts_word: bool,
        encoding: &mut Encoding,
    ) {
        let (bytes, source) = match &self.text {
            TextRules::Own(cleaning) => {
                let cleaned = cleaning.clean(text);
                let (mut bytes, mut source) = (cleaned.text.into_bytes(), cleaned.source);
                if !bytes.is_empty() && (starts_word || text.starts_with(|c| cleaning.is_space(c))) {
                    bytes.insert(0, b' ');
                    source.insert(0, (0, 0));
                }
                (bytes, source)
            }
            TextRules::SentencePiece { normalizer, .. } => normalizer.with_source(text),
        };
        let splits = match &self.text {
            TextRules::Own(_) => true,
            TextRules::SentencePiece { normalizer, .. } => !normalizer.is_whole(),
        };
        let (first, unk) = (encoding.ids.len(), vocabulary.specials.unk);
        let mut steps = Vec::new();
        let (mut at, mut sum) = (0, 0.0);
        while at < bytes.len() {
            let rest = &bytes[at..];
            let len = if splits { rest.iter().skip(1).position(|&b| b == b' ').map(|n| n + 1) } else { None };
            let word = &rest[..len.unwrap_or(rest.len())];
            sum = with_scratch(|scratch| self.segment_word(word, self.carried(sum), scratch, &mut steps));
            let mut start = at;
            for (index, step) in steps.iter().enumerate() {
                let end = (at + step.end as usize).max(start);
                let (from, to) = covered(&bytes, &source, start, end);
                // As in `append`.
                if index == 0 && step.id == unk && encoding.ids[first..].last() == Some(&unk) {
                    if let Some(last) = encoding.offsets.last_mut() {
                        last.1 = last.1.max(base + to);
                    }
                } else {
                    encoding.ids.push(step.id);
                    encoding.offsets.push((base + from, base + to));
                }
                start = end;
            }
            at += word.len();
        }
    }
}

/// Source of normalized bytes `start..end` without word marks at the ends; empty at its position if all are marks.
fn covered(bytes: &[u8], source: &[(usize, usize)], start: usize, end: usize) -> (usize, usize) {
    let is_content = |&at: &usize| bytes[at] != b' ';
    match ((start..end).find(is_content), (start..end).rfind(is_content)) {
        (Some(first), Some(last)) => (source[first].0, source[last].1.max(source[first].0)),
        _ => {
            let at = match source.get(end).or(source.last()) {
                Some(&(start_of_next, _)) if end < source.len() => start_of_next,
                Some(&(_, end_of_last)) => end_of_last,
                None => 0,
            };
            (at, at)
        }
    }
}

/// Appends a digit-comma replacement of the bytes `start..end` of the word.
fn place(replacement: &[Step], word: &[u8], start: u32, end: u32, out: &mut Vec<Step>) {
    let number = start + u32::from(word.get(start as usize) == Some(&b' '));
    out.extend(replacement.iter().map(|step| Step { id: step.id, end: (number + step.end).min(end) }));
}

/// Appends the ids of a word, merging consecutive unknown pieces from `first` on. Unknown pieces of two words are adjacent
/// only if the vocabulary has no piece for the word mark.
#[inline]
pub(super) fn append(out: &mut Vec<u32>, first: usize, ids: impl IntoIterator<Item = u32>, unk: u32) {
    let mut ids = ids.into_iter();
    if let Some(id) = ids.next() {
        if id != unk || out.len() == first || out.last() != Some(&unk) {
            out.push(id);
        }
        out.extend(ids);
    }
}

/// Python's `str.isdigit` on decomposed text: decimal digits of any script.
fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric() && !c.is_alphabetic())
}
