//! Windows over a passage, and where the right answer is in them.
//!
//! ```text
//! passage     p0 p1 p2 p3 p4 p5 p6 p7 p8 p9        D = max_length - question - 3 pieces of it a window
//! window 0    p0 p1 p2 p3 p4 p5                    the next begins `stride` further on,
//! window 1             p3 p4 p5 p6 p7 p8           until one reaches the end
//! window 2                      p6 p7 p8 p9
//!
//! ids         [CLS] question [SEP] p3 p4 p5 p6 p7 p8 [SEP]
//! segment       0      0       0    1  1  1  1  1  1   1
//! may answer   yes     no     no   yes ............    no
//! owned                              *  *  *           by the window that has most on both sides of the piece
//! ```
//!
//! A window owns a piece if min(pieces before, pieces after) + 0.01·length is the largest of all windows that hold
//! it; of equal ones the first. Answers may only begin at owned pieces, so that none is judged by a window that cuts
//! it off from what surrounds it.
//!
//! The right answer is from the first piece that reaches beyond its first byte to the last that begins before its
//! last. A window without the whole of it, and every window of a question without an answer, has its answer at
//! `[CLS]`.
//!
//! Source: the released ALBERT `squad_utils.py`. In place of its alignment by common subsequences, which is quadratic
//! and leaves out examples that it cannot align, pieces carry the bytes that the normalizer made them from.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use unicode_normalization::char::is_combining_mark;

use crate::tasks::{Answer, Question, Sequence};
use crate::tokenizer::{SpecialIds, Tokenizer, TokenizerError};

/// How passages are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpanSettings {
    /// Most pieces of a window, special pieces included: 384 for SQuAD 1.1, 512 for 2.0 in the paper.
    pub max_length: usize,
    /// Pieces from the beginning of a window to that of the next.
    pub stride: usize,
    /// Most pieces of a question; what is longer is cut at its end.
    pub max_question: usize,
}

impl Default for SpanSettings {
    fn default() -> Self {
        Self { max_length: 384, stride: 128, max_question: 64 }
    }
}

/// Settings under which there is nothing to read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpanError {
    /// The tokenizer gives up on a question.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// No room beside the question.
    #[error(
        "max_length = {max_length}: no piece of the passage fits beside a question of {question} pieces and 3 special \
         pieces; make windows longer or max_question smaller"
    )]
    NoRoom {
        /// The setting.
        max_length: usize,
        /// Pieces of the question.
        question: usize,
    },
    /// Windows that do not move.
    #[error("stride = 0: windows must move on by at least one piece")]
    NoStride,
}

/// A window: what the model reads, and what it is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanFeature {
    /// The pieces.
    pub sequence: Sequence,
    /// Index of the question.
    pub example: usize,
    /// The tokens of `sequence` that are of the passage.
    pub paragraph: Range<usize>,
    /// For each of them, the bytes of the passage that it covers; none of a lone word mark.
    pub offsets: Vec<(usize, usize)>,
    /// For each of them, whether this window owns it.
    pub is_max_context: Vec<bool>,
    /// The token at which the answer starts; 0, which is `[CLS]`, if it is not in this window.
    pub start: usize,
    /// The last token of the answer; 0 as well.
    pub end: usize,
    /// Whether the answer is not in this window.
    pub is_impossible: bool,
}

impl SpanFeature {
    /// Whether an answer may be at a token: in the passage, or at `[CLS]`, where it means that there is none.
    pub fn may_answer(&self, token: usize) -> bool {
        token == 0 || self.paragraph.contains(&token)
    }

    /// For each token, whether no answer may be there.
    pub fn is_hidden(&self) -> Vec<bool> {
        (0..self.sequence.ids.len()).map(|token| !self.may_answer(token)).collect()
    }

    /// The bytes of the passage from a token to another, with the combining marks that follow the last letter, and
    /// white space at either end left out; `None` if that leaves nothing.
    pub fn bytes(&self, passage: &str, start: usize, end: usize) -> Option<Range<usize>> {
        let first = self.paragraph.start;
        let (from, to) = (self.offsets[start - first].0, self.offsets[end - first].1);
        trimmed(passage, with_marks(passage, from..to.max(from)))
    }
}

/// Where the right answer of a question is among the pieces of its passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GoldSpan {
    /// There is no answer, or none is known.
    None,
    /// The pieces from the first to the last are the answer.
    Whole(Range<usize>),
    /// The answer starts or ends inside a piece, or with a character that no piece covers, so that what the pieces
    /// cover is another text.
    Within {
        /// The pieces.
        pieces: Range<usize>,
        /// The bytes of the passage that they cover.
        covers: Range<usize>,
    },
    /// No piece covers any of the answer: it is of white space and control characters.
    Nowhere,
}

impl GoldSpan {
    /// The pieces, if there are any.
    pub fn pieces(&self) -> Option<Range<usize>> {
        match self {
            Self::Whole(pieces) | Self::Within { pieces, .. } => Some(pieces.clone()),
            Self::None | Self::Nowhere => None,
        }
    }

    /// What is to be said about a question whose answer is not of whole pieces.
    pub fn remark(&self, question: &Question) -> Option<String> {
        let (id, answer) = (&question.id, &answer_of(question)?.text);
        match self {
            Self::None | Self::Whole(_) => None,
            Self::Within { covers, .. } => {
                let text = &question.passage[covers.clone()];
                Some(format!("question {id:?}: the answer {answer:?} is not of whole pieces; {text:?} is taken for it"))
            }
            Self::Nowhere => {
                Some(format!("question {id:?}: no piece covers the answer {answer:?}; none is taken for it"))
            }
        }
    }
}

/// The windows of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanFeatures {
    /// The windows, in the order of the passage; at least one.
    pub windows: Vec<SpanFeature>,
    /// Where the right answer is. What is not [`GoldSpan::Whole`] though there is an answer is to be counted and
    /// listed.
    pub gold: GoldSpan,
    /// Pieces of the question that did not fit; a passage is never cut.
    pub truncated: usize,
}

/// The answer that a model learns: the first that is in the passage where it is said to be.
fn answer_of(question: &Question) -> Option<&Answer> {
    let is_there = |answer: &&Answer| {
        question.passage.get(answer.start..).is_some_and(|rest| rest.starts_with(&answer.text))
            && !answer.text.is_empty()
    };
    question.answers.iter().find(is_there).filter(|_| !question.is_impossible)
}

/// The windows of a question under a tokenizer; the right answer is the first that is in the passage where it is said
/// to be.
///
/// # Errors
/// If no piece of the passage fits into a window.
pub fn features(
    tokenizer: &Tokenizer,
    example: usize,
    question: &Question,
    settings: &SpanSettings,
) -> Result<SpanFeatures, SpanError> {
    let passage = tokenizer.encode_with_offsets(&question.passage)?;
    let asked = tokenizer.encode(&question.question)?;
    let gold = match answer_of(question) {
        Some(Answer { text, start }) => locate(&question.passage, &passage.offsets, *start..start + text.len()),
        None => GoldSpan::None,
    };
    let windows =
        windows_of(example, &asked, &passage.ids, &passage.offsets, gold.pieces(), tokenizer.specials(), settings)?;
    let truncated = asked.len().saturating_sub(settings.max_question);
    Ok(SpanFeatures { windows, gold, truncated })
}

/// The windows of a question of the pieces `asked` over a passage of the pieces `ids` that cover the bytes `offsets`;
/// the right answer is the pieces `answer`.
///
/// # Errors
/// If no piece of the passage fits into a window.
pub fn windows_of(
    example: usize,
    asked: &[u32],
    ids: &[u32],
    offsets: &[(usize, usize)],
    answer: Option<Range<usize>>,
    specials: SpecialIds,
    settings: &SpanSettings,
) -> Result<Vec<SpanFeature>, SpanError> {
    let asked = &asked[..asked.len().min(settings.max_question)];
    let room = settings.max_length.saturating_sub(asked.len() + 3);
    if room == 0 {
        return Err(SpanError::NoRoom { max_length: settings.max_length, question: asked.len() });
    }
    if settings.stride == 0 {
        return Err(SpanError::NoStride);
    }
    let spans = spans(ids.len(), room, settings.stride);
    let owners = owners(ids.len(), &spans);
    let first = asked.len() + 2;
    let windows = spans.iter().enumerate().map(|(window, span)| {
        let mut sequence = Sequence { ids: Vec::with_capacity(first + span.len() + 1), second: first };
        sequence.ids.push(specials.cls);
        sequence.ids.extend_from_slice(asked);
        sequence.ids.push(specials.sep);
        sequence.ids.extend_from_slice(&ids[span.clone()]);
        sequence.ids.push(specials.sep);
        let inside = answer.clone().filter(|answer| span.start <= answer.start && answer.end <= span.end);
        let (start, end) = match &inside {
            Some(answer) => (first + answer.start - span.start, first + answer.end - 1 - span.start),
            None => (0, 0),
        };
        SpanFeature {
            sequence,
            example,
            paragraph: first..first + span.len(),
            offsets: offsets[span.clone()].to_vec(),
            is_max_context: span.clone().map(|piece| owners[piece] == window).collect(),
            start,
            end,
            is_impossible: inside.is_none(),
        }
    });
    Ok(windows.collect())
}

/// Windows of at most `room` over `count` pieces; one empty window over none.
fn spans(count: usize, room: usize, stride: usize) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut start = 0;
    loop {
        let length = room.min(count - start);
        spans.push(start..start + length);
        if start + length == count {
            return spans;
        }
        start += length.min(stride);
    }
}

/// For each piece, the window that owns it.
fn owners(count: usize, spans: &[Range<usize>]) -> Vec<usize> {
    let mut best = vec![(f64::NEG_INFINITY, 0); count];
    for (window, span) in spans.iter().enumerate() {
        for piece in span.clone() {
            let nearer = (piece - span.start).min(span.end - 1 - piece);
            let score = nearer as f64 + 0.01 * span.len() as f64;
            if score > best[piece].0 {
                best[piece] = (score, window);
            }
        }
    }
    best.into_iter().map(|(_, window)| window).collect()
}

/// The pieces of an answer at the bytes `answer` of a passage whose pieces cover `offsets`.
pub fn locate(passage: &str, offsets: &[(usize, usize)], answer: Range<usize>) -> GoldSpan {
    let covers = |&(start, end): &(usize, usize)| start < end;
    let first = offsets.iter().position(|piece| covers(piece) && piece.1 > answer.start);
    let last = offsets.iter().rposition(|piece| covers(piece) && piece.0 < answer.end);
    let (Some(first), Some(last)) = (first, last) else { return GoldSpan::Nowhere };
    if first > last || offsets[first].0 >= answer.end || offsets[last].1 <= answer.start {
        return GoldSpan::Nowhere;
    }
    let pieces = first..last + 1;
    let covers = with_marks(passage, offsets[first].0..offsets[last].1);
    let is_whole = trimmed(passage, covers.clone()) == trimmed(passage, answer);
    if is_whole { GoldSpan::Whole(pieces) } else { GoldSpan::Within { pieces, covers } }
}

/// The bytes and the combining marks after them: a letter keeps its accents, though no piece covers them.
fn with_marks(passage: &str, bytes: Range<usize>) -> Range<usize> {
    let marks = passage[bytes.end..].chars().take_while(|&c| is_combining_mark(c));
    bytes.start..bytes.end + marks.map(char::len_utf8).sum::<usize>()
}

/// The bytes without white space at either end; `None` if that leaves nothing.
fn trimmed(passage: &str, bytes: Range<usize>) -> Option<Range<usize>> {
    let text = &passage[bytes.clone()];
    let start = bytes.start + (text.len() - text.trim_start().len());
    let length = text.trim().len();
    (length > 0).then_some(start..start + length)
}
