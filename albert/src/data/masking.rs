//! Whole-word n-gram masking.
//!
//! A word is a run of pieces from a word start to the next; `[CLS]` and `[SEP]` belong to none. Words are visited in random
//! order; at each, a length n is drawn with
//!
//! ```text
//! p(n) = (1/n) / (1/1 + 1/2 + ... + 1/N),  n = 1..N           N = 3: 6/11, 3/11, 2/11
//! ```
//! and the span of n words from there is chosen if none of its words is chosen already and its pieces fit in the budget of
//! the sequence (`MaskingSettings::predictions`); otherwise n - 1, n - 2, .. words are tried. A span ends at the end of the
//! sequence. Each chosen piece becomes `[MASK]` with 80 %, is kept with 10 % and becomes a random piece with 10 %.
//!
//! Cost: one pass over the sequence and a few random numbers a span, about 10 µs for 512 tokens; the shuffle stops at the last
//! visited word. Buffers grow to the longest sequence and are reused.
//!
//! Source: Lan et al. 2020, section 4.1, equation 2 (after Joshi et al. 2020); released `create_masked_lm_predictions`.
//! Differences from the released code, each a setting or without effect on the distribution: the length comes from the
//! seeded stream (instead of an unseeded one); random pieces exclude the special ones unless `random_includes_specials`;
//! a word ends at `[SEP]` (in the released code, a continuation piece right after `[SEP]` joins the word before it).

use engine::philox::Stream;
use serde::Serialize;

use super::settings::MaskingSettings;
use super::vocabulary::Vocabulary;

/// A chosen span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First token of the span in the sequence.
    pub start: u32,
    /// Token after its last.
    pub end: u32,
    /// Words in it.
    pub words: u32,
}

/// Statistics of all sequences that a `Masker` has masked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MaskingStatistics {
    /// Sequences masked.
    pub sequences: u64,
    /// Sequences in which `max_predictions` reduced the number of predictions.
    pub capped: u64,
    /// Tokens in all sequences, including special pieces.
    pub tokens: u64,
    /// Predicted pieces.
    pub predicted: u64,
    /// Predicted pieces that became `[MASK]`.
    pub masked: u64,
    /// Predicted pieces that were kept.
    pub kept: u64,
    /// Predicted pieces that became a random piece.
    pub random: u64,
    /// Lengths drawn; entry n - 1 counts n.
    pub drawn: Vec<u64>,
    /// Lengths of the chosen spans in words; entry n - 1 counts n.
    pub spans: Vec<u64>,
}

/// Masks sequences under fixed settings and owns the buffers.
#[derive(Clone, Debug)]
pub(crate) struct Masker {
    settings: MaskingSettings,
    /// `law[n - 1]` is the probability of a length of at most n.
    law: Vec<f64>,
    /// Bounds of word w: tokens `words[w].0..words[w].1`.
    words: Vec<(u32, u32)>,
    order: Vec<u32>,
    chosen: Vec<bool>,
    spans: Vec<Span>,
    statistics: MaskingStatistics,
}

impl Masker {
    /// Creates a masker with buffers for sequences of `longest` tokens.
    pub(crate) fn new(settings: &MaskingSettings, longest: usize) -> Self {
        let n = settings.ngram;
        let weight = |i: usize| 1.0 / if settings.favor_shorter_ngram { i + 1 } else { n - i } as f64;
        let total: f64 = (0..n).map(weight).sum();
        let mut sum = 0.0;
        let law = (0..n)
            .map(|i| {
                sum += weight(i);
                sum / total
            })
            .collect();
        let statistics = MaskingStatistics { drawn: vec![0; n], spans: vec![0; n], ..Default::default() };
        Self {
            settings: settings.clone(),
            law,
            words: Vec::with_capacity(longest),
            order: Vec::with_capacity(longest),
            chosen: Vec::with_capacity(longest),
            spans: Vec::with_capacity(longest),
            statistics,
        }
    }

    /// Masks the sequence `ids` in place with random numbers from `stream`. Appends the chosen positions plus `base`,
    /// ascending, to `positions`, and their original pieces to `labels`.
    pub(crate) fn mask(
        &mut self,
        vocabulary: &Vocabulary,
        stream: &mut Stream,
        ids: &mut [u32],
        base: u32,
        positions: &mut Vec<u32>,
        labels: &mut Vec<u32>,
    ) {
        let second_segment = self.find_words(vocabulary, ids);
        let budget = self.settings.predictions(ids.len());
        self.choose_spans(stream, budget, second_segment);
        self.statistics.sequences += 1;
        self.statistics.capped += u64::from(budget < self.settings.share(ids.len()));
        self.statistics.tokens += ids.len() as u64;
        for (word, _) in self.words.iter().zip(&self.chosen).filter(|&(_, &chosen)| chosen) {
            for at in word.0..word.1 {
                let id = &mut ids[at as usize];
                positions.push(base + at);
                labels.push(*id);
                let (settings, statistics) = (&self.settings, &mut self.statistics);
                statistics.predicted += 1;
                let u = stream.next_f64();
                if u < settings.mask_probability {
                    *id = vocabulary.specials().mask;
                    statistics.masked += 1;
                } else if u < settings.mask_probability + settings.keep_probability {
                    statistics.kept += 1;
                } else {
                    *id = match settings.random_includes_specials {
                        true => stream.below(vocabulary.size() as u32),
                        false => vocabulary.nth_ordinary(stream.below(vocabulary.ordinary())),
                    };
                    statistics.random += 1;
                }
            }
        }
    }

    /// Spans of the last masked sequence, in the order in which they were chosen.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Counts over all sequences so far.
    pub(crate) fn statistics(&self) -> &MaskingStatistics {
        &self.statistics
    }

    /// Fills `words`; returns the first word of the second segment (the number of words if there is none).
    fn find_words(&mut self, vocabulary: &Vocabulary, ids: &[u32]) -> usize {
        let specials = vocabulary.specials();
        self.words.clear();
        let (mut second_segment, mut separators) = (None, 0);
        let mut is_inside = false;
        for (at, &id) in (0u32..).zip(ids) {
            if id == specials.cls || id == specials.sep {
                is_inside = false;
                separators += usize::from(id == specials.sep);
                continue;
            }
            if is_inside && self.settings.whole_word && !vocabulary.is_word_start(id) {
                self.words.last_mut().expect("inside a word").1 = at + 1;
            } else {
                if separators == 1 && second_segment.is_none() {
                    second_segment = Some(self.words.len());
                }
                self.words.push((at, at + 1));
            }
            is_inside = true;
        }
        second_segment.unwrap_or(self.words.len())
    }

    /// Fills `chosen` and `spans` with at most `budget` pieces.
    fn choose_spans(&mut self, stream: &mut Stream, budget: usize, second_segment: usize) {
        let count = self.words.len();
        self.spans.clear();
        self.chosen.clear();
        self.chosen.resize(count, false);
        self.order.clear();
        self.order.extend(0..count as u32);
        let mut picked = 0;
        for visited in 0..count {
            if picked >= budget {
                break;
            }
            // A shuffle, one step at a time: most words are never visited.
            let other = visited + stream.below((count - visited) as u32) as usize;
            self.order.swap(visited, other);
            let word = self.order[visited] as usize;
            let u = stream.next_f64();
            let drawn = self.law.iter().position(|&p| u < p).unwrap_or(self.law.len() - 1) + 1;
            self.statistics.drawn[drawn - 1] += 1;
            let limit =
                if word < second_segment && !self.settings.spans_cross_separator { second_segment } else { count };
            let pieces = |end: usize| self.words[word..end].iter().map(|w| (w.1 - w.0) as usize).sum::<usize>();
            let longest = limit.min(word + drawn);
            let Some(end) = (word + 1..=longest).rev().find(|&end| picked + pieces(end) <= budget) else { continue };
            if self.chosen[word..end].contains(&true) {
                continue;
            }
            picked += pieces(end);
            self.chosen[word..end].fill(true);
            self.statistics.spans[end - word - 1] += 1;
            let (start, end_token) = (self.words[word].0, self.words[end - 1].1);
            self.spans.push(Span { start, end: end_token, words: (end - word) as u32 });
        }
    }
}
