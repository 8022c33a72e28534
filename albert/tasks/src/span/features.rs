//! Windows over a passage with the position of the correct answer.
//!
//! ```text
//! passage     p0 p1 p2 p3 p4 p5 p6 p7 p8 p9        D = max_length - question - 3 pieces a window
//! window 0    p0 p1 p2 p3 p4 p5                    the next starts `stride` later,
//! window 1             p3 p4 p5 p6 p7 p8           until one reaches the end
//! window 2                      p6 p7 p8 p9
//!
//! ids         [CLS] question [SEP] p3 p4 p5 p6 p7 p8 [SEP]
//! segment       0      0       0    1  1  1  1  1  1   1
//! may answer   yes     no     no   yes ............    no
//! owned                              *  *  *           by the window with the most context on both sides
//! ```
//!
//! A window owns a piece if min(pieces before, pieces after) + 0.01·length is the largest among the windows with this piece;
//! ties are resolved in favor of the first. Answers start only at owned pieces, which have the most context.
//!
//! The correct answer consists of the pieces that overlap its bytes. A window that does not contain all of them, and
//! every window of a question without an answer, has its answer at `[CLS]`.
//!
//! Source: the released ALBERT `squad_utils.py`. Its alignment by common subsequences is quadratic and drops examples;
//! instead, the tokenizer provides the source bytes of each piece.

use std::ops::Range;

use albert::tokenizer::{Frame, Tokenizer, TokenizerError};
use serde::{Deserialize, Serialize};
use unicode_normalization::char::is_combining_mark;

use crate::files::{Answer, Question, Sequence};

/// Settings of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SpanSettings {
    /// Maximum number of pieces of a window, including special pieces: 384 for SQuAD 1.1, 512 for 2.0 in the paper.
    pub max_length: usize,
    /// Number of pieces between the starts of consecutive windows.
    pub stride: usize,
    /// Maximum number of pieces of a question; the rest is truncated.
    pub max_question: usize,
}

impl Default for SpanSettings {
    fn default() -> Self {
        Self { max_length: 384, stride: 128, max_question: 64 }
    }
}

/// Unusable settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SpanError {
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The question leaves no room for the passage.
    #[error(
        "max_length = {max_length}: no piece of the passage fits with a question of {question} pieces and its special \
         pieces; raise max_length or lower max_question"
    )]
    NoRoom {
        /// The setting.
        max_length: usize,
        /// Pieces of the question.
        question: usize,
    },
    /// The tokenizer does not add a piece before the question, which stands for "no answer".
    #[error("the tokenizer adds no piece before a pair (post_processor); questions need one for \"no answer\"")]
    NoFirstPiece,
    #[error("stride = 0: expected at least 1")]
    NoStride,
}

/// A window: model input and target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpanFeature {
    /// The pieces.
    pub sequence: Sequence,
    /// Index of the question.
    pub example: usize,
    /// Tokens of the passage in `sequence`.
    pub paragraph: Range<usize>,
    /// Bytes of the passage for each of these tokens; empty for a lone word mark.
    pub offsets: Vec<(usize, usize)>,
    /// True for each of these tokens that the window owns.
    pub is_max_context: Vec<bool>,
    /// First token of the answer; 0, which is `[CLS]`, if it is not in this window.
    pub start: usize,
    /// Last token of the answer; 0 if it is not in this window.
    pub end: usize,
    /// True if the answer is not in this window.
    pub is_impossible: bool,
}

impl SpanFeature {
    /// For each token, true if it cannot be part of an answer: all except those of the passage and `[CLS]`, which means "no answer".
    #[cfg(test)]
    pub(crate) fn is_hidden(&self) -> Vec<bool> {
        (0..self.sequence.ids.len()).map(|token| token != 0 && !self.paragraph.contains(&token)).collect()
    }

    /// Bytes of the passage from one token to another, with the combining marks after the last letter and without white space
    /// at the ends; `None` if empty.
    pub(crate) fn bytes(&self, passage: &str, start: usize, end: usize) -> Option<Range<usize>> {
        let first = self.paragraph.start;
        let (from, to) = (self.offsets[start - first].0, self.offsets[end - first].1);
        trimmed(passage, with_marks(passage, from..to.max(from)))
    }
}

/// Position of the correct answer among the pieces of the passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GoldSpan {
    /// No answer, or an unknown one.
    None,
    /// The answer is a range of pieces.
    Whole(Range<usize>),
    /// The answer starts or ends inside a piece or at a character without a piece, so the text of the pieces differs.
    Within {
        pieces: Range<usize>,
        /// Their bytes of the passage.
        covers: Range<usize>,
    },
    /// The answer has no piece: it consists of white space and control characters.
    Nowhere,
}

impl GoldSpan {
    /// Pieces of the answer.
    pub(crate) fn pieces(&self) -> Option<Range<usize>> {
        match self {
            Self::Whole(pieces) | Self::Within { pieces, .. } => Some(pieces.clone()),
            Self::None | Self::Nowhere => None,
        }
    }

    /// Remark on a question whose answer is not a range of pieces.
    #[cfg(test)]
    pub(crate) fn remark(&self, question: &Question) -> Option<String> {
        let (id, answer) = (&question.id, &answer_of(question)?.text);
        match self {
            Self::None | Self::Whole(_) => None,
            Self::Within { covers, .. } => {
                let text = &question.passage[covers.clone()];
                Some(format!("question {id:?}: the answer {answer:?} does not end at pieces; {text:?} is used instead"))
            }
            Self::Nowhere => {
                Some(format!("question {id:?}: the answer {answer:?} has no piece; it is trained as no answer"))
            }
        }
    }
}

/// Windows of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpanFeatures {
    /// Windows in the order of the passage; at least one.
    pub windows: Vec<SpanFeature>,
    /// Position of the correct answer. Callers report answers that are not [`GoldSpan::Whole`].
    pub gold: GoldSpan,
    /// Number of pieces truncated from the question; a passage is never truncated.
    pub truncated: usize,
}

/// The training target: the first answer whose text is at its position in the passage.
fn answer_of(question: &Question) -> Option<&Answer> {
    let is_there = |answer: &&Answer| {
        question.passage.get(answer.start..).is_some_and(|rest| rest.starts_with(&answer.text))
            && !answer.text.is_empty()
    };
    question.answers.iter().find(is_there).filter(|_| !question.is_impossible)
}

/// Windows of a question; the correct answer is the first whose text is at its position in the passage.
///
/// # Errors
/// No piece of the passage fits into a window, or the tokenizer failed.
pub(crate) fn features(
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
        windows_of(example, &asked, &passage.ids, &passage.offsets, gold.pieces(), tokenizer.frame(), settings)?;
    let truncated = asked.len().saturating_sub(settings.max_question);
    Ok(SpanFeatures { windows, gold, truncated })
}

/// Windows of the question `asked` over the passage `ids`, whose pieces have the source bytes `offsets`; `answer`
/// contains the pieces of the correct answer.
///
/// # Errors
/// No piece of the passage fits into a window, or the stride is 0.
pub(crate) fn windows_of(
    example: usize,
    asked: &[u32],
    ids: &[u32],
    offsets: &[(usize, usize)],
    answer: Option<Range<usize>>,
    frame: &Frame,
    settings: &SpanSettings,
) -> Result<Vec<SpanFeature>, SpanError> {
    let asked = &asked[..asked.len().min(settings.max_question)];
    let room = settings.max_length.saturating_sub(asked.len() + frame.around_two());
    if room == 0 {
        return Err(SpanError::NoRoom { max_length: settings.max_length, question: asked.len() });
    }
    if settings.stride == 0 {
        return Err(SpanError::NoStride);
    }
    if frame.pair[0].is_empty() {
        return Err(SpanError::NoFirstPiece);
    }
    let spans = spans(ids.len(), room, settings.stride);
    let owners = owners(ids.len(), &spans);
    let first = frame.pair[0].len() + asked.len() + frame.pair[1].len();
    let windows = spans.iter().enumerate().map(|(window, span)| {
        let (ids, second) = frame.two(asked, &ids[span.clone()]);
        let sequence = Sequence { ids, second };
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

/// Windows of at most `room` pieces over `count` pieces; one empty window if `count` is 0.
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

/// Pieces of the answer at bytes `answer` of a passage whose pieces have the source bytes `offsets`.
pub(crate) fn locate(passage: &str, offsets: &[(usize, usize)], answer: Range<usize>) -> GoldSpan {
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

/// Extends the bytes by the combining marks after them, which no piece covers.
fn with_marks(passage: &str, bytes: Range<usize>) -> Range<usize> {
    let marks = passage[bytes.end..].chars().take_while(|&c| is_combining_mark(c));
    bytes.start..bytes.end + marks.map(char::len_utf8).sum::<usize>()
}

/// Trims white space at the ends; `None` if empty.
fn trimmed(passage: &str, bytes: Range<usize>) -> Option<Range<usize>> {
    let text = &passage[bytes.clone()];
    let start = bytes.start + (text.len() - text.trim_start().len());
    let length = text.trim().len();
    (length > 0).then_some(start..start + length)
}
