//! Settings of the data path, with the released values as defaults.
//!
//! Sources: `create_pretraining_data.py` of the released ALBERT code ("released"), Lan et al. 2020 ("paper"). Defects of the
//! released code are fixed by default, and a setting restores each; [`DataSettings::released`] restores all. Unknown keys are
//! rejected.

use serde::{Deserialize, Serialize};

use super::error::DataError;

/// Layout of documents and sentences in the input files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextLayout {
    /// One sentence a line, blank lines between documents (the released format).
    Sentences,
    /// Running text: a blank line ends a paragraph, which `split_sentences` splits.
    Paragraphs,
}

/// Treatment of exact copies of earlier documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// A copy is kept as another document, on the same side of the split as the first.
    #[default]
    Keep,
    /// Copies are dropped and counted.
    Drop,
}

impl Duplicates {
    fn are_kept(&self) -> bool {
        *self == Self::Keep
    }
}

/// Settings for reading a corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CorpusSettings {
    /// Layout of the text files.
    pub layout: TextLayout,
    /// Consecutive blank lines that end a document in the layout `paragraphs`. Ignored for `sentences`, where one is enough.
    pub blank_lines_between_documents: usize,
    /// Field of JSON Lines with the text of a document; without it the files are text. Each line is a document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Treatment of exact copies of earlier documents.
    #[serde(skip_serializing_if = "Duplicates::are_kept")]
    pub duplicates: Duplicates,
    /// Replace invalid UTF-8 by U+FFFD and count it, instead of an error.
    pub lossy: bool,
    /// A sentence of more tokens is cut at word starts into pieces of about equal length; each counts as a sentence.
    /// The released code instead loses all but `max_sequence_length` tokens of it. For text with long lines, half of
    /// `max_sequence_length` is best: two pieces then fill a sequence, and nothing is trimmed.
    pub longest_sentence: usize,
    /// A shard file is closed at the first document that ends beyond this many tokens; until then it is in memory.
    pub tokens_per_shard: usize,
}

impl Default for CorpusSettings {
    fn default() -> Self {
        Self {
            layout: TextLayout::Sentences,
            blank_lines_between_documents: 2,
            field: None,
            duplicates: Duplicates::Keep,
            lossy: false,
            longest_sentence: 256,
            tokens_per_shard: 1 << 25,
        }
    }
}

/// Settings of the held-out split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SplitSettings {
    /// Share of held-out documents, 0 to 0.5. The released code evaluates on its training file.
    pub held_out: f64,
    /// Seed of the choice of documents.
    pub seed: u64,
}

impl Default for SplitSettings {
    fn default() -> Self {
        Self { held_out: 0.1, seed: 12345 }
    }
}

/// Sentence-level objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Sentence-order prediction (paper, section 3.1): two consecutive segments, label 0 in order, 1 swapped.
    Sop,
    /// BERT's next-sentence prediction: label 0 the true continuation, 1 a segment of another document. Released flag
    /// `random_next_sentence`.
    Nsp,
    /// Masked language modeling alone: `[CLS] A [SEP]`, no label.
    None,
}

/// Treatment of a chunk of a single sentence, which cannot form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoneSentence {
    /// A chunk grows to two sentences; a single sentence at the end of a document is dropped and counted. One-sentence
    /// documents have no instance.
    Skip,
    /// The sentence is cut at a random word start, and the halves are the pair.
    Split,
    /// The released behavior: B comes from a random other document with label 1, even under SOP. Label 1 is then more
    /// frequent than one half, and the topic reveals the label (google-research/albert 234).
    RandomDocument,
}

/// Settings of instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceSettings {
    /// Maximum length of a sequence, including `[CLS]` and `[SEP]`; 8 to 32,768. Released: 512.
    pub max_sequence_length: usize,
    /// The sentence-level objective. Released default: SOP.
    pub objective: Objective,
    /// Probability of a shorter target length, drawn uniformly from 2 to the longest. Released: 0.1.
    pub short_sequence_probability: f64,
    /// Draw the target length once a document, as released, instead of once an instance.
    pub target_length_once_per_document: bool,
    /// Treatment of a chunk of one sentence.
    pub lone_sentence: LoneSentence,
}

impl Default for InstanceSettings {
    fn default() -> Self {
        Self {
            max_sequence_length: 512,
            objective: Objective::Sop,
            short_sequence_probability: 0.1,
            target_length_once_per_document: false,
            lone_sentence: LoneSentence::Skip,
        }
    }
}

/// Whole-word n-gram masking (paper, section 4.1, equation 2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaskingSettings {
    /// Share of predicted tokens of a sequence (including special pieces). Released `masked_lm_prob`: 0.15.
    pub probability: f64,
    /// Cap on predictions a sequence. Released `max_predictions_per_seq`: 20, which is 3.9 % of 512 tokens; 77 predicts
    /// the 15 % that the paper states.
    pub max_predictions: usize,
    /// Maximum length of a span, in words. Paper and released: 3.
    pub ngram: usize,
    /// p(n) proportional to 1/n (paper). False reverses the distribution, like code from before November 2019 and its forks.
    pub favor_shorter_ngram: bool,
    /// Spans are made of whole words. False: every piece is its own word.
    pub whole_word: bool,
    /// A span may cross the `[SEP]` between the segments (which is never masked), as released. A word never does.
    pub spans_cross_separator: bool,
    /// Probability that a chosen piece becomes `[MASK]`. Released: 0.8.
    pub mask_probability: f64,
    /// Probability that a chosen piece is kept; the rest becomes a random piece. Released: 0.1.
    pub keep_probability: f64,
    /// Random pieces may be `<pad>`, `<unk>`, `[CLS]`, `[SEP]` or `[MASK]`, as released.
    pub random_includes_specials: bool,
}

impl Default for MaskingSettings {
    fn default() -> Self {
        Self {
            probability: 0.15,
            max_predictions: 20,
            ngram: 3,
            favor_shorter_ngram: true,
            whole_word: true,
            spans_cross_separator: true,
            mask_probability: 0.8,
            keep_probability: 0.1,
            random_includes_specials: false,
        }
    }
}

/// Batch budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchSettings {
    /// Maximum number of tokens in a batch; at least the maximum length of a sequence.
    pub max_tokens: usize,
    /// Maximum number of sequences in a batch.
    pub max_sequences: usize,
    /// Sequences of an optimizer step: no batch crosses a multiple of it, so accumulated batches have exactly this many. 0:
    /// every batch is a step.
    pub sequences_per_step: usize,
    /// Equal parts of a step whose gradients are summed in a tree, a power of two; a rank computes whole lanes, so this is the
    /// maximum number of ranks. No batch crosses a lane.
    #[serde(skip_serializing_if = "is_one")]
    pub lanes: usize,
}

/// True for the default number of lanes, which recipes omit.
pub fn is_one(lanes: &usize) -> bool {
    *lanes == 1
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self { max_tokens: 4096, max_sequences: 32, sequences_per_step: 0, lanes: 1 }
    }
}

/// Settings for the evaluation on held-out documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSettings {
    /// Seed of instances and masks; fixed, so that evaluations are comparable.
    pub seed: u64,
    /// Maximum number of sequences; 0: all. Released: 100 batches of 64.
    pub max_sequences: usize,
}

impl Default for EvaluationSettings {
    fn default() -> Self {
        Self { seed: 12345, max_sequences: 0 }
    }
}

/// All settings that determine the batches of a run, given shards and a seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSettings {
    /// Settings of instances.
    pub instances: InstanceSettings,
    /// Settings of masking.
    pub masking: MaskingSettings,
    /// Settings of batches.
    pub batch: BatchSettings,
    /// Settings of the evaluation on held-out documents.
    pub evaluation: EvaluationSettings,
}

impl DataSettings {
    /// The released behavior with its defects: negatives from other documents for single sentences, one target length a
    /// document, random pieces that may be special ones.
    pub fn released() -> Self {
        let mut settings = Self::default();
        settings.instances.lone_sentence = LoneSentence::RandomDocument;
        settings.instances.target_length_once_per_document = true;
        settings.masking.random_includes_specials = true;
        settings
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`DataError::Setting`] naming the first one out of range.
    pub(crate) fn validate(&self) -> Result<(), DataError> {
        self.instances.validate()?;
        self.masking.validate()?;
        let BatchSettings { max_tokens, max_sequences, sequences_per_step, lanes } = self.batch;
        let longest = self.instances.max_sequence_length;
        check(
            (longest..=1 << 30).contains(&max_tokens),
            "data.batch.max_tokens",
            max_tokens,
            format!("{longest} (data.instances.max_sequence_length) to 2^30"),
        )?;
        check((1..=1 << 24).contains(&max_sequences), "data.batch.max_sequences", max_sequences, "1 to 2^24")?;
        // All batches of a step are drawn before the first one runs.
        check(sequences_per_step <= 1 << 20, "data.batch.sequences_per_step", sequences_per_step, "0 to 2^20")?;
        let is_cut = lanes == 1 || (lanes > 0 && sequences_per_step > 0 && sequences_per_step.is_multiple_of(lanes));
        check(is_cut, "data.batch.lanes", lanes, "a divisor of data.batch.sequences_per_step")
    }
}

impl CorpusSettings {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`DataError::Setting`] naming the first one out of range.
    pub(crate) fn validate(&self) -> Result<(), DataError> {
        let (longest, shard, blank) =
            (self.longest_sentence, self.tokens_per_shard, self.blank_lines_between_documents);
        check((4..=1 << 20).contains(&longest), "longest_sentence", longest, "4 to 2^20 tokens")?;
        check((1..=1 << 31).contains(&shard), "tokens_per_shard", shard, "1 to 2^31")?;
        check(blank >= 1, "blank_lines_between_documents", blank, "at least 1")
    }
}

impl SplitSettings {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`DataError::Setting`] naming the first one out of range.
    pub(crate) fn validate(&self) -> Result<(), DataError> {
        check((0.0..=0.5).contains(&self.held_out), "held_out", self.held_out, "a share of 0 to 0.5")
    }
}

impl InstanceSettings {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`DataError::Setting`] naming the first one out of range.
    pub(crate) fn validate(&self) -> Result<(), DataError> {
        let longest = self.max_sequence_length;
        check((8..=32_768).contains(&longest), "data.instances.max_sequence_length", longest, "8 to 32768")?;
        check_probability("data.instances.short_sequence_probability", self.short_sequence_probability)
    }

    /// Tokens of text, without `[CLS]` and `[SEP]`.
    pub(super) fn text_tokens(&self) -> usize {
        self.max_sequence_length - self.special_tokens()
    }

    /// `[CLS]` and one `[SEP]` a segment.
    pub(super) fn special_tokens(&self) -> usize {
        if self.objective == Objective::None { 2 } else { 3 }
    }
}

impl MaskingSettings {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`DataError::Setting`] naming the first one out of range.
    pub(crate) fn validate(&self) -> Result<(), DataError> {
        check_probability("data.masking.probability", self.probability)?;
        check_probability("data.masking.mask_probability", self.mask_probability)?;
        check_probability("data.masking.keep_probability", self.keep_probability)?;
        check(
            self.mask_probability + self.keep_probability <= 1.0 + 1e-9,
            "data.masking.mask_probability + keep_probability",
            self.mask_probability + self.keep_probability,
            "at most 1",
        )?;
        check((1..=64).contains(&self.ngram), "data.masking.ngram", self.ngram, "1 to 64 words")?;
        check(self.max_predictions >= 1, "data.masking.max_predictions", self.max_predictions, "at least 1")
    }

    /// Predicted pieces of a sequence of `tokens` tokens (specials counted):
    /// `min(max_predictions, max(1, round(tokens * probability)))`, halves rounded to even as Python does.
    pub(crate) fn predictions(&self, tokens: usize) -> usize {
        self.share(tokens).min(self.max_predictions)
    }

    /// The same without the cap: `max(1, round(tokens * probability))`.
    pub(crate) fn share(&self, tokens: usize) -> usize {
        ((tokens as f64 * self.probability).round_ties_even() as usize).max(1)
    }
}

fn check(ok: bool, name: &'static str, value: impl ToString, expected: impl Into<String>) -> Result<(), DataError> {
    if ok { Ok(()) } else { Err(DataError::setting(name, value, expected)) }
}

fn check_probability(name: &'static str, value: f64) -> Result<(), DataError> {
    check((0.0..=1.0).contains(&value), name, value, "a probability of 0 to 1")
}
