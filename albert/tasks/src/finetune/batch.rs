//! Ragged batches of features, and the order of the training examples.
//!
//! ```text
//! epoch 0            epoch 1                 each a permutation by Philox(seed, epoch)
//! 3 0 2 4 1 │ 1 3 4 2 0 │ ...
//! └ step 0 ┘└ step 1 ┘└ step 2 ┘             n examples per step, across epoch boundaries: a step starts at
//!                                            step · n, and all steps have the same size
//! step: features in this order, split where the next would exceed the token budget
//! ```
//!
//! All randomness is a function of (seed, step), so resuming a run needs only its step.

use albert::model::Tokens;
use albert::tokenizer::SpecialIds;
use engine::philox::Stream;

use super::feature::{Content, Feature, Target};

/// Name of the Philox stream of the permutations.
const ORDER: u32 = u32::from_be_bytes(*b"ordr");

/// Maximum size of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum tokens.
    pub tokens: usize,
    /// Maximum sequences.
    pub sequences: usize,
}

impl Budget {
    /// This budget, raised so that each of `features` fits on its own.
    #[must_use]
    pub(crate) fn with_room_for<'f>(self, features: impl IntoIterator<Item = &'f Feature>) -> Self {
        features.into_iter().fold(self, |budget, feature| Self {
            tokens: budget.tokens.max(feature.content.tokens()),
            sequences: budget.sequences.max(feature.content.sequences()),
        })
    }
}

/// Features, concatenated without padding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Piece ids `[T]`.
    pub ids: Vec<u32>,
    /// Segments `[T]`.
    pub segments: Vec<u32>,
    /// Positions `[T]`.
    pub positions: Vec<u32>,
    /// First token of each sequence, and T [B + 1].
    pub cu_seqlens: Vec<u32>,
    /// First sequence of each example, and B [X + 1]; multiple choice only.
    pub options: Vec<u32>,
    /// First token of each word `[W]`; word tags only.
    pub words: Vec<u32>,
    /// Classes of sequences `[B]`, of words `[W]` or of examples with options `[X]`; 0 if unknown.
    pub classes: Vec<u32>,
    /// Regression targets `[B]`; 0 if unknown.
    pub numbers: Vec<f32>,
    /// First and last token of each answer `[B]`, within its sequence; answer spans only.
    pub answers: [Vec<u32>; 2],
    /// 1 if the window does not contain the answer, else 0 `[B]`; answer spans only.
    pub impossible: Vec<u32>,
    /// True for tokens that cannot be part of an answer `[T]`; answer spans only.
    pub hidden: Vec<bool>,
    /// Token row of the gold start of each token's sequence `[T]`; answer spans only.
    pub start_rows: Vec<u32>,
    /// Number of terms in the loss.
    pub weight: usize,
    /// Lane of the step.
    pub lane: usize,
}

impl<'a> From<&'a Batch> for Tokens<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self { ids: &batch.ids, segments: &batch.segments, positions: &batch.positions, cu_seqlens: &batch.cu_seqlens }
    }
}

impl Batch {
    /// Number of sequences, B.
    pub(crate) fn sequences(&self) -> usize {
        self.cu_seqlens.len().saturating_sub(1)
    }

    /// Number of tokens, T.
    pub(crate) fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Empties the batch; the buffers keep their capacity.
    pub(crate) fn clear(&mut self) {
        for vec in [
            &mut self.ids,
            &mut self.segments,
            &mut self.positions,
            &mut self.cu_seqlens,
            &mut self.options,
            &mut self.words,
            &mut self.classes,
            &mut self.impossible,
            &mut self.start_rows,
        ] {
            vec.clear();
        }
        self.answers.iter_mut().for_each(Vec::clear);
        self.hidden.clear();
        self.numbers.clear();
        self.cu_seqlens.push(0);
        self.options.push(0);
        self.weight = 0;
    }

    /// True if `feature` still fits; the first always does.
    pub(crate) fn has_room_for(&self, feature: &Feature, budget: Budget) -> bool {
        self.sequences() == 0
            || (self.tokens() + feature.content.tokens() <= budget.tokens
                && self.sequences() + feature.content.sequences() <= budget.sequences)
    }

    /// Appends a feature.
    pub(crate) fn push(&mut self, feature: &Feature, specials: SpecialIds) {
        let first = self.ids.len() as u32;
        for option in 0..feature.content.sequences() {
            let sequence = feature.content.option(option, specials);
            self.segments.extend(sequence.segments());
            self.positions.extend(0..sequence.ids.len() as u32);
            self.ids.extend(sequence.ids);
            self.cu_seqlens.push(self.ids.len() as u32);
        }
        match &feature.target {
            Target::Class(class) => self.classes.push(class.unwrap_or(0)),
            Target::Number(number) => self.numbers.push(number.unwrap_or(0.0)),
            Target::Words { pieces, tags, .. } => {
                self.words.extend(pieces.iter().map(|piece| first + piece));
                self.classes.extend(tags);
                self.classes.resize(self.words.len(), 0);
            }
            Target::Span { answer, is_impossible, paragraph, .. } => {
                let length = self.ids.len() - first as usize;
                self.answers.iter_mut().zip(answer).for_each(|(list, &token)| list.push(token));
                self.impossible.push(u32::from(*is_impossible));
                // [CLS] is the span that means "no answer".
                self.hidden.extend((0..length).map(|token| token != 0 && !paragraph.contains(&token)));
                self.start_rows.resize(self.ids.len(), first + answer[0]);
            }
        }
        if matches!(feature.content, Content::Options { .. }) {
            self.options.push(self.sequences() as u32);
        }
        self.weight += feature.target.weight();
    }

    /// Largest batch of a budget, for the memory planner: every vector has its maximum length. `like` determines
    /// which vectors are used and the minimum number of options of an example, `positions` the maximum length of a
    /// sequence.
    pub(crate) fn largest(budget: Budget, positions: usize, like: &Feature) -> Self {
        let mut batch = Self::default();
        batch.clear();
        // Whole examples only; a sequence has at least two tokens.
        let each = like.content.sequences();
        let sequences = budget.sequences.min(budget.tokens / 2).max(1).next_multiple_of(each);
        let tokens = budget.tokens.min(sequences * positions).max(sequences);
        for left in (0..sequences).rev() {
            // As long as possible, with one token left for each later sequence.
            let length = (tokens - batch.ids.len() - left).min(positions);
            batch.ids.resize(batch.ids.len() + length, 0);
            batch.positions.extend(0..length as u32);
            batch.cu_seqlens.push(batch.ids.len() as u32);
        }
        batch.segments.resize(batch.ids.len(), 0);
        match &like.target {
            Target::Words { .. } => {
                batch.words.extend(0..batch.ids.len() as u32);
                batch.classes.resize(batch.words.len(), 0);
            }
            Target::Number(_) => batch.numbers.resize(sequences, 0.0),
            Target::Span { .. } => {
                batch.answers.iter_mut().for_each(|list| list.resize(sequences, 0));
                batch.impossible.resize(sequences, 0);
                batch.hidden.resize(batch.ids.len(), false);
                batch.start_rows.resize(batch.ids.len(), 0);
            }
            Target::Class(_) => batch.classes.resize(sequences / each, 0),
        }
        if matches!(like.content, Content::Options { .. }) {
            batch.options.extend((1..=sequences / each).map(|example| (example * each) as u32));
        }
        batch.weight = batch.classes.len().max(batch.numbers.len()).max(batch.impossible.len());
        batch
    }
}

/// Permutations of n examples, one per epoch; the two newest are cached.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    seed: u64,
    count: usize,
    epochs: Vec<(u64, Vec<u32>)>,
}

impl Order {
    /// The order of `count` examples (at least one) for `seed`.
    pub(crate) fn new(seed: u64, count: usize) -> Self {
        assert!(count > 0, "`count` is 0; expected at least one example");
        Self { seed, count, epochs: Vec::new() }
    }

    /// The example at index `at` of the endless concatenation of epochs.
    pub(crate) fn at(&mut self, at: u64) -> usize {
        let (epoch, index) = (at / self.count as u64, (at % self.count as u64) as usize);
        if let Some((_, order)) = self.epochs.iter().find(|(known, _)| *known == epoch) {
            return order[index] as usize;
        }
        let mut order = if self.epochs.len() < 2 {
            (0..self.count as u32).collect()
        } else {
            let (_, mut oldest) = self.epochs.remove(0);
            oldest.iter_mut().zip(0..).for_each(|(slot, example)| *slot = example);
            oldest
        };
        let name = [epoch as u32, (epoch >> 32) as u32, ORDER];
        Stream::new(self.seed, name).shuffle(&mut order);
        let example = order[index] as usize;
        self.epochs.push((epoch, order));
        example
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Sequence;

    const SPECIALS: SpecialIds = SpecialIds { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };

    #[test]
    fn an_epoch_meets_every_example_once_in_an_order_of_its_own() {
        let mut order = Order::new(5, 97);
        let epochs: Vec<Vec<usize>> =
            (0..4).map(|epoch| (0..97).map(|at| order.at(epoch * 97 + at)).collect()).collect();
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..97).collect::<Vec<_>>());
        }
        assert_ne!(epochs[0], epochs[1]);
        // A run that starts in the middle has the same order.
        let mut later = Order::new(5, 97);
        assert_eq!((0..97).map(|at| later.at(2 * 97 + at)).collect::<Vec<_>>(), epochs[2]);
        assert_ne!((0..97).map(|at| Order::new(6, 97).at(at)).collect::<Vec<_>>(), epochs[0]);
        // Back and forth over the end of an epoch.
        assert_eq!([order.at(193), order.at(194), order.at(193)], [epochs[1][96], epochs[2][0], epochs[1][96]]);
    }

    #[test]
    fn a_batch_is_its_features_end_to_end() {
        let feature = |content, target| Feature { example: 0, content, target };
        let sequence = |ids: &[u32], second| Content::One(Sequence { ids: ids.to_vec(), second });
        let mut batch = Batch::default();
        batch.clear();
        let words = Target::Words { words: vec![0, 1], pieces: vec![1, 3], tags: vec![2, 0] };
        batch.push(&feature(sequence(&[2, 7, 8, 9, 3], 5), words.clone()), SPECIALS);
        batch.push(&feature(sequence(&[2, 7, 3, 8, 3], 3), words), SPECIALS);
        assert_eq!(batch.cu_seqlens, [0, 5, 10]);
        assert_eq!((&batch.words[..], &batch.classes[..], batch.weight), (&[1, 3, 6, 8][..], &[2, 0, 2, 0][..], 4));
        assert_eq!(batch.segments, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(batch.positions, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        batch.clear();
        let content = Content::Options { passage: vec![9; 20], options: vec![vec![5], vec![6, 6]], longest: 10 };
        let choice = feature(content, Target::Class(Some(1)));
        batch.push(&choice, SPECIALS);
        batch.push(&choice, SPECIALS);
        assert_eq!((&batch.options[..], &batch.classes[..]), (&[0, 2, 4][..], &[1, 1][..]));
        assert_eq!(batch.cu_seqlens, [0, 10, 20, 30, 40]);
        let budget = Budget { tokens: 59, sequences: 8 };
        assert!(!batch.has_room_for(&choice, budget));
        assert!(batch.has_room_for(&choice, Budget { tokens: 60, ..budget }));
        assert!(!batch.has_room_for(&choice, Budget { tokens: 60, sequences: 5 }));
        assert_eq!(Budget { tokens: 3, sequences: 1 }.with_room_for([&choice]), Budget { tokens: 20, sequences: 2 });
    }

    #[test]
    fn no_batch_is_larger_than_the_largest() {
        let content = Content::Options { passage: vec![9; 20], options: vec![vec![5]; 3], longest: 10 };
        let like = Feature { example: 0, content, target: Target::Class(None) };
        let batch = Batch::largest(Budget { tokens: 64, sequences: 8 }, 10, &like);
        assert_eq!((batch.sequences(), batch.tokens()), (9, 64));
        assert_eq!((&batch.options[..], batch.classes.len()), (&[0, 3, 6, 9][..], 3));
        assert!(batch.cu_seqlens.windows(2).all(|pair| pair[0] < pair[1] && pair[1] - pair[0] <= 10));
    }
}
