//! Conversion of examples to input sequences and targets.
//!
//! ```text
//! text       [CLS] a [SEP]              truncated at its end
//! pair       [CLS] a [SEP] b [SEP]      the longer is shortened by a piece until both fit; b if they are equal
//! choice     [CLS] passage [SEP] question with an option [SEP], one sequence per option
//!            the option replaces every `_` of the question; without `_`, the option follows the question;
//!            the last `max_question_length` pieces are kept, and the passage is truncated at its end
//! words      [CLS] pieces of words [SEP]; a word is predicted at its first piece, one without pieces (U+200B) has no class
//!            words that do not fit start another sequence: each is predicted once
//! question   windows over its passage, see `span`
//! ```
//!
//! Sources: the released `run_classifier.py` and `run_race.py`; Devlin et al. 2019, section 5.3 (words). Truncated
//! pieces are counted and reported.

use std::ops::Range;

use albert::tokenizer::{Frame, SpecialIds, Tokenizer};
use rayon::prelude::*;

use super::{Examples, FinetuneError};
use crate::files::{Choice, Label, Problem, Question, Sequence, Tagged, Text};
use crate::span::{self, GoldSpan, SpanFeature, SpanSettings};

/// Model input and target of an example.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Feature {
    /// Index of the example.
    pub example: usize,
    /// Input of the model.
    pub content: Content,
    /// Expected output.
    pub target: Target,
}

/// Input of the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    /// One sequence.
    One(Sequence),
    /// A sequence for each option; see [`Content::option`].
    Options {
        /// Pieces of the passage, not truncated.
        passage: Vec<u32>,
        /// Pieces of the question with each option.
        options: Vec<Vec<u32>>,
        /// Maximum sequence length.
        longest: usize,
    },
}

/// Expected output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// Index of the class or of the option; `None` if unknown.
    Class(Option<u32>),
    /// Regression target; `None` if unknown.
    Number(Option<f32>),
    /// A class for each of some words in order, without those that have no piece.
    Words {
        /// Index of each word in the example.
        words: Vec<u32>,
        /// Index of each word's first piece in the sequence.
        pieces: Vec<u32>,
        /// Classes of the words; empty if unknown.
        tags: Vec<u32>,
    },
    /// An answer span in a window.
    Span {
        /// Tokens of the first and last piece of the answer; both 0 if it is not in the window.
        answer: [u32; 2],
        /// True if the window does not contain the answer.
        is_impossible: bool,
        /// Tokens of the window that belong to the passage.
        paragraph: Range<usize>,
        /// Window for decoding; `None` in training.
        window: Option<Box<SpanFeature>>,
    },
}

impl Feature {
    /// Number of rows of its scores.
    pub(super) fn rows(&self) -> usize {
        match &self.target {
            Target::Words { pieces, .. } => pieces.len(),
            Target::Class(_) | Target::Number(_) | Target::Span { .. } => self.content.sequences(),
        }
    }
}

impl Content {
    /// Number of sequences.
    pub(crate) fn sequences(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Options { options, .. } => options.len(),
        }
    }

    /// Number of passage pieces that fit together with an option of `length` pieces.
    fn room(passage: usize, length: usize, longest: usize) -> usize {
        passage.min(longest - 3 - length)
    }

    /// Number of tokens of all sequences.
    pub(crate) fn tokens(&self) -> usize {
        match self {
            Self::One(sequence) => sequence.ids.len(),
            Self::Options { passage, options, longest } => {
                options.iter().map(|o| 3 + Self::room(passage.len(), o.len(), *longest) + o.len()).sum()
            }
        }
    }

    /// The sequence of option `at`, or the only sequence.
    pub(crate) fn option(&self, at: usize, specials: SpecialIds) -> Sequence {
        match self {
            Self::One(sequence) => sequence.clone(),
            Self::Options { passage, options, longest } => {
                let option = &options[at];
                let passage = &passage[..Self::room(passage.len(), option.len(), *longest)];
                joined(passage, Some(option), &Frame::of_bert(specials.cls, specials.sep))
            }
        }
    }
}

impl Target {
    /// True if the expected output is known.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Self::Class(class) => class.is_some(),
            Self::Number(number) => number.is_some(),
            Self::Words { tags, pieces, .. } => tags.len() == pieces.len(),
            Self::Span { .. } => true,
        }
    }

    /// Weight in a mean over examples: the number of words, or 1.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Class(_) | Self::Number(_) | Self::Span { .. } => 1,
            Self::Words { pieces, .. } => pieces.len(),
        }
    }
}

/// Converter of examples to features.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Featurizer<'t> {
    /// Tokenizer of the model.
    pub tokenizer: &'t Tokenizer,
    /// Problem of the task.
    pub problem: &'t Problem,
    /// Maximum sequence length in tokens, special tokens included; at least 8.
    pub max_sequence_length: usize,
    /// Maximum pieces of a question; for multiple choice, of the question with an option.
    pub max_question_length: usize,
    /// Offset in pieces between the starts of consecutive windows over a passage.
    pub stride: usize,
    /// True to keep the windows for decoding.
    pub keep_windows: bool,
}

/// Features with counts of the truncated pieces.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Features {
    /// Features in the order of the examples.
    pub list: Vec<Feature>,
    /// Number of truncated pieces of each example; with options, the maximum over the options.
    pub truncated: Vec<usize>,
    /// Indices of questions whose answer starts or ends inside a piece, or is not covered by pieces.
    pub inexact: Vec<usize>,
}

impl Features {
    /// Number of truncated examples.
    pub(crate) fn cut(&self) -> usize {
        self.truncated.iter().filter(|&&pieces| pieces > 0).count()
    }
}

/// Features of an example, and the number of its truncated pieces.
type Made = (Vec<Feature>, usize);

/// Limits on the bytes inserted into the gaps of a question: the larger of `GAPS.0` bytes and `GAPS.1` times the
/// question and the option together.
const GAPS: (usize, usize) = (1 << 20, 64);

impl Featurizer<'_> {
    /// Converts `examples` to features in their order, on all threads of the current pool.
    ///
    /// # Errors
    /// The examples belong to another problem, or a label is not one of its classes.
    pub(crate) fn features(&self, examples: &Examples) -> Result<Features, FinetuneError> {
        let of = |make: &(dyn Fn(usize) -> Result<Made, FinetuneError> + Sync)| {
            let made: Vec<_> = (0..examples.len()).into_par_iter().map(make).collect::<Result<_, _>>()?;
            let truncated = made.iter().map(|(_, truncated)| *truncated).collect();
            let list = made.into_iter().flat_map(|(features, _)| features).collect();
            Ok(Features { list, truncated, inexact: Vec::new() })
        };
        match (examples, self.problem) {
            (Examples::Texts(texts), Problem::Classes { .. } | Problem::Labels { .. } | Problem::Number) => {
                of(&|at| self.text(at, &texts[at]))
            }
            (Examples::Tagged(tagged), Problem::Tags { labels }) => of(&|at| self.words(at, &tagged[at], labels.len())),
            (Examples::Choices(choices), Problem::Choice) => of(&|at| self.choice(at, &choices[at])),
            (Examples::Questions(questions), Problem::Span { .. }) => {
                let made: Vec<_> = (0..questions.len())
                    .into_par_iter()
                    .map(|at| self.windows(at, &questions[at]))
                    .collect::<Result<_, _>>()?;
                let inexact = (0..made.len()).filter(|&at| made[at].1).collect();
                let truncated = made.iter().map(|((_, truncated), _)| *truncated).collect();
                let list = made.into_iter().flat_map(|((windows, _), _)| windows).collect();
                Ok(Features { list, truncated, inexact })
            }
            _ => Err(FinetuneError::Data(format!("{} cannot be examples of {}", examples.name(), self.problem.name()))),
        }
    }

    /// Number of text pieces that fit together with `around` special pieces.
    fn room(&self, around: usize) -> Result<usize, FinetuneError> {
        match self.max_sequence_length.checked_sub(around) {
            Some(room @ 1..) => Ok(room),
            _ => Err(FinetuneError::Data(format!(
                "sequences have at most {} pieces, and the tokenizer adds {around}; raise text.max_sequence_length",
                self.max_sequence_length
            ))),
        }
    }

    fn text(&self, example: usize, text: &Text) -> Result<Made, FinetuneError> {
        let mut first = self.tokenizer.encode(&text.first)?;
        let mut second = text.second.as_ref().map(|second| self.tokenizer.encode(second)).transpose()?;
        let before = first.len() + second.as_ref().map_or(0, Vec::len);
        match &mut second {
            None => self.tokenizer.cut(&mut first, self.room(self.tokenizer.frame().around_one())?),
            Some(second) => {
                let [a, b] = cut_pair(first.len(), second.len(), self.room(self.tokenizer.frame().around_two())?);
                self.tokenizer.cut(&mut first, a);
                self.tokenizer.cut(second, b);
            }
        }
        let truncated = before - first.len() - second.as_ref().map_or(0, Vec::len);
        let wrong = |problem: String| FinetuneError::Data(format!("example {:?}: {problem}", text.id));
        let target = match (self.problem, text.label) {
            (Problem::Number, None) => Target::Number(None),
            (Problem::Number, Some(Label::Number(number))) if number.is_finite() => Target::Number(Some(number)),
            (Problem::Number, Some(label)) => {
                return Err(wrong(format!("label {label:?}; expected a finite number")));
            }
            (_, None) => Target::Class(None),
            (Problem::Classes { labels }, Some(Label::Class(class))) if (class as usize) < labels.len() => {
                Target::Class(Some(class))
            }
            (_, Some(label)) => return Err(wrong(format!("label {label:?} is not one of the classes"))),
        };
        let sequence = joined(&first, second.as_deref(), self.tokenizer.frame());
        Ok((vec![Feature { example, content: Content::One(sequence), target }], truncated))
    }

    fn choice(&self, example: usize, choice: &Choice) -> Result<Made, FinetuneError> {
        let count = choice.options.len();
        if count < 2 || choice.answer.is_some_and(|answer| answer as usize >= count) {
            let answer = choice.answer.map_or("none".to_owned(), |answer| answer.to_string());
            return Err(FinetuneError::Data(format!(
                "example {:?} has {count} options and answer {answer}; expected at least two options and an answer \
                 among them",
                choice.id
            )));
        }
        let SpecialIds { cls, sep, .. } = self.tokenizer.specials();
        if *self.tokenizer.frame() != Frame::of_bert(cls, sep) {
            let problem = "multiple choice needs a tokenizer that encodes a pair as [CLS] A [SEP] B [SEP] in two segments; \
                           this one (post_processor, model_input_names) does not";
            return Err(FinetuneError::Data(problem.into()));
        }
        let longest = self.max_sequence_length;
        let passage = self.tokenizer.encode(&choice.passage)?;
        let (mut options, mut truncated) = (Vec::with_capacity(count), 0);
        for option in &choice.options {
            let text = with_option(&choice.question, option)
                .map_err(|problem| FinetuneError::Data(format!("example {:?}: {problem}", choice.id)))?;
            let mut pieces = self.tokenizer.encode(&text)?;
            let kept = pieces.len().min(self.max_question_length).min(longest - 3);
            let cut = pieces.len() - kept;
            truncated = truncated.max(cut + passage.len() - Content::room(passage.len(), kept, longest));
            pieces.drain(..cut);
            options.push(pieces);
        }
        let content = Content::Options { passage, options, longest };
        Ok((vec![Feature { example, content, target: Target::Class(choice.answer) }], truncated))
    }

    /// Windows of a question, and true if its answer does not consist of whole pieces.
    fn windows(&self, example: usize, question: &Question) -> Result<(Made, bool), FinetuneError> {
        let settings = SpanSettings {
            max_length: self.max_sequence_length,
            stride: self.stride,
            max_question: self.max_question_length,
        };
        let wrong = |error| FinetuneError::Data(format!("question {:?}: {error}", question.id));
        let made = span::features(self.tokenizer, example, question, &settings).map_err(wrong)?;
        let is_inexact = matches!(made.gold, GoldSpan::Within { .. } | GoldSpan::Nowhere);
        let windows = made.windows.into_iter().map(|window| Feature {
            example,
            content: Content::One(window.sequence.clone()),
            target: Target::Span {
                answer: [window.start as u32, window.end as u32],
                is_impossible: window.is_impossible,
                paragraph: window.paragraph.clone(),
                window: self.keep_windows.then(|| Box::new(window)),
            },
        });
        Ok(((windows.collect(), made.truncated), is_inexact))
    }

    fn words(&self, example: usize, tagged: &Tagged, labels: usize) -> Result<Made, FinetuneError> {
        let (words, tags) = (tagged.words.len(), tagged.tags.len());
        let wrong = |problem: String| Err(FinetuneError::Data(format!("example {:?}: {problem}", tagged.id)));
        if tags != 0 && tags != words {
            return wrong(format!("{words} words but {tags} tags; expected a tag for each word"));
        }
        if let Some(tag) = tagged.tags.iter().find(|tag| **tag as usize >= labels) {
            return wrong(format!("tag {tag} is out of range; expected one of {labels} classes"));
        }
        let [before, after] = &self.tokenizer.frame().single;
        let room = self.room(before.len() + after.len())?;
        let mut out = Vec::new();
        let mut truncated = 0;
        let (mut ids, mut pieces, mut words) = (before.clone(), Vec::new(), Vec::new());
        let mut close = |ids: &mut Vec<u32>, pieces: &mut Vec<u32>, words: &mut Vec<u32>| {
            ids.extend(after);
            let sequence = Sequence { second: ids.len(), ids: std::mem::replace(ids, before.clone()) };
            let (words, pieces) = (std::mem::take(words), std::mem::take(pieces));
            let tags = if tags == 0 { Vec::new() } else { words.iter().map(|&at| tagged.tags[at as usize]).collect() };
            let target = Target::Words { words, pieces, tags };
            out.push(Feature { example, content: Content::One(sequence), target });
        };
        for (at, word) in (0..).zip(&tagged.words) {
            let mut word = self.tokenizer.encode(word)?;
            if word.is_empty() {
                // Cleaning removed the whole word, and an extra token would change the tags of its neighbors.
                continue;
            }
            truncated += word.len().saturating_sub(room);
            word.truncate(room);
            if ids.len() - before.len() + word.len() > room {
                close(&mut ids, &mut pieces, &mut words);
            }
            words.push(at);
            pieces.push(ids.len() as u32);
            ids.extend(word);
        }
        if !pieces.is_empty() {
            close(&mut ids, &mut pieces, &mut words);
        }
        Ok((out, truncated))
    }
}

/// Sequence of one text or of a pair.
fn joined(first: &[u32], second: Option<&[u32]>, frame: &Frame) -> Sequence {
    match second {
        None => {
            let ids = frame.one(first);
            Sequence { second: ids.len(), ids }
        }
        Some(second) => {
            let (ids, second) = frame.two(first, second);
            Sequence { ids, second }
        }
    }
}

/// Lengths of a pair of `longest` pieces in total: the longer part is shortened by one piece at a time, the second
/// part if both are equal.
fn cut_pair(mut first: usize, mut second: usize, longest: usize) -> [usize; 2] {
    while first + second > longest {
        *(if first > second { &mut first } else { &mut second }) -= 1;
    }
    [first, second]
}

/// Inserts the option into the gaps of the question, or after it.
///
/// # Errors
/// The question has many gaps and the option is long, so that their product would exceed [`GAPS`].
fn with_option(question: &str, option: &str) -> Result<String, String> {
    let gaps = question.matches('_').count();
    if gaps == 0 {
        return Ok(format!("{question} {option}"));
    }
    let (length, both) = (gaps.saturating_mul(option.len()), question.len() + option.len());
    let (least, times) = GAPS;
    if length > least && length > times * both {
        return Err(format!(
            "the question has {gaps} gaps (`_`), which an option of {} bytes would fill with {length} bytes; expected \
             at most {times} times the text",
            option.len()
        ));
    }
    Ok(question.replace('_', option))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tokenizer;
    use super::*;

    fn featurizer<'t>(tokenizer: &'t Tokenizer, problem: &'t Problem, longest: usize) -> Featurizer<'t> {
        Featurizer {
            tokenizer,
            problem,
            max_sequence_length: longest,
            max_question_length: 4,
            stride: 4,
            keep_windows: true,
        }
    }

    fn text(first: &str, second: Option<&str>, label: Option<Label>) -> Examples {
        Examples::Texts(vec![Text { id: "7".into(), first: first.into(), second: second.map(str::to_owned), label }])
    }

    /// The pieces as text, to keep the test cases readable.
    fn shown(tokenizer: &Tokenizer, sequence: &Sequence) -> String {
        let pieces = sequence.ids.iter().map(|&id| tokenizer.piece(id).trim_start_matches('▁'));
        pieces.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn pairs_are_cut_from_the_end_of_the_longer() {
        let (tokenizer, problem) = (tokenizer(), Problem::Number);
        for (longest, first, second, expected) in [
            (32, "a b c", None, "[CLS] a b c [SEP]"),
            (8, "a b c d e f g h", None, "[CLS] a b c d e f [SEP]"),
            (32, "a b c", Some("d e"), "[CLS] a b c [SEP] d e [SEP]"),
            // The first is shortened until both have 3 pieces; then the second is shortened by one.
            (8, "a b c d e f", Some("g h i"), "[CLS] a b c [SEP] g h [SEP]"),
            (9, "a b c d e f", Some("g h i"), "[CLS] a b c [SEP] g h i [SEP]"),
            (8, "a", Some("b c d e f g"), "[CLS] a [SEP] b c d e [SEP]"),
            (8, "a b c d e f", Some(""), "[CLS] a b c d e [SEP] [SEP]"),
            (8, "", Some(""), "[CLS] [SEP] [SEP]"),
        ] {
            let features = featurizer(&tokenizer, &problem, longest).features(&text(first, second, None)).unwrap();
            let [Feature { content: Content::One(sequence), example: 0, target: Target::Number(None) }] =
                &features.list[..]
            else {
                panic!("{features:?}")
            };
            assert_eq!(shown(&tokenizer, sequence), expected);
            let middle = 1 + sequence.ids.iter().position(|&id| id == tokenizer.specials().sep).unwrap();
            assert_eq!(sequence.second, middle, "{expected}");
            let words = first.split_whitespace().count() + second.map_or(0, |second| second.split_whitespace().count());
            let truncated = (words + 2 + usize::from(second.is_some())).saturating_sub(longest);
            assert_eq!(features.truncated, [truncated], "{expected}");
        }
    }

    #[test]
    fn options_stand_in_every_gap_or_behind_the_question() {
        let (tokenizer, problem) = (tokenizer(), Problem::Choice);
        let specials = tokenizer.specials();
        let options = |passage: &str, question: &str, options: &[&str], longest: usize| {
            let choice = Choice {
                id: "1".into(),
                passage: passage.into(),
                question: question.into(),
                options: options.iter().map(|&option| option.to_owned()).collect(),
                answer: Some(1),
                level: None,
            };
            let features =
                featurizer(&tokenizer, &problem, longest).features(&Examples::Choices(vec![choice])).unwrap();
            let content = &features.list[0].content;
            let shown: Vec<_> =
                (0..content.sequences()).map(|at| shown(&tokenizer, &content.option(at, specials))).collect();
            let tokens = (0..content.sequences()).map(|at| content.option(at, specials).ids.len()).sum::<usize>();
            assert_eq!(content.tokens(), tokens);
            (shown, features.truncated[0])
        };
        let (shown, cut) = options("a b", "c _ d _", &["x", "y"], 32);
        assert_eq!((&shown[0][..], cut), ("[CLS] a b [SEP] c x d x [SEP]", 0));
        assert_eq!(shown[1], "[CLS] a b [SEP] c y d y [SEP]");
        let (shown, _) = options("a b", "c d", &["x", "y z"], 32);
        assert_eq!(shown, ["[CLS] a b [SEP] c d x [SEP]", "[CLS] a b [SEP] c d y z [SEP]"]);
        // The last four pieces of the question are kept; each option determines how much of the passage is truncated.
        let (shown, cut) = options("a b c d e f", "g h i j", &["x", "y z"], 9);
        assert_eq!(shown, ["[CLS] a b [SEP] h i j x [SEP]", "[CLS] a b [SEP] i j y z [SEP]"]);
        // The second option loses two pieces of the question and four of the passage.
        assert_eq!(cut, 6);
        let (shown, _) = options("a b c d e f", "g", &["x", "y z"], 9);
        assert_eq!(shown, ["[CLS] a b c d [SEP] g x [SEP]", "[CLS] a b c [SEP] g y z [SEP]"]);
    }

    #[test]
    fn every_word_is_predicted_once_at_its_first_piece() {
        let tokenizer = tokenizer();
        let problem = Problem::Tags { labels: vec!["O".into(), "X".into()] };
        let words: Vec<String> = ["a", "bc", "", "d", "e", "f", "g", "h"].map(str::to_owned).to_vec();
        let tags = vec![0, 1, 0, 1, 0, 1, 0, 1];
        let tagged = Tagged { id: "s".into(), words: words.clone(), tags: tags.clone() };
        let features = featurizer(&tokenizer, &problem, 8).features(&Examples::Tagged(vec![tagged])).unwrap();
        let (mut seen, mut all) = (Vec::<u32>::new(), Vec::<u32>::new());
        for feature in &features.list {
            let (Content::One(sequence), Target::Words { words: of, pieces, tags }) =
                (&feature.content, &feature.target)
            else {
                panic!("{feature:?}")
            };
            assert!(sequence.ids.len() <= 8 && sequence.second == sequence.ids.len());
            for (&word, &piece) in of.iter().zip(pieces) {
                assert_eq!(sequence.ids[piece as usize], tokenizer.encode(&words[word as usize]).unwrap()[0]);
            }
            all.extend(of);
            seen.extend(tags);
        }
        // The third word has no piece.
        assert_eq!(all, [0, 1, 3, 4, 5, 6, 7]);
        assert_eq!(seen, [0, 1, 1, 0, 1, 0, 1]);
        assert!(features.list.len() > 1);
    }

    #[test]
    fn gaps_times_options_are_bounded() {
        assert_eq!(with_option("a _ b", "x").unwrap(), "a x b");
        assert_eq!(with_option("a", "x").unwrap(), "a x");
        // 2 MB of input would become 10^12 bytes.
        let message = with_option(&"_".repeat(1_000_000), &"x".repeat(1_000_000)).unwrap_err();
        assert!(message.contains("1000000 gaps") && message.contains("1000000000000 bytes"), "{message}");
        assert!(with_option("_ and _", &"x".repeat(1_000_000)).is_ok());
    }

    #[test]
    fn refuses_labels_that_are_none() {
        let tokenizer = tokenizer();
        let classes = Problem::Classes { labels: vec!["no".into(), "yes".into()] };
        for (problem, examples, expected) in [
            (&classes, text("a", None, Some(Label::Class(2))), "is not one of the classes"),
            (&classes, text("a", None, Some(Label::Number(1.0))), "is not one of the classes"),
            (&Problem::Number, text("a", None, Some(Label::Number(f32::NAN))), "expected a finite number"),
            (&Problem::Choice, text("a", None, None), "texts cannot be examples of multiple choice"),
        ] {
            let message = featurizer(&tokenizer, problem, 8).features(&examples).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
