//! Heads of a model on top of its encoder: the classes of Hugging Face, and the released graph for SQuAD 2.0.

use std::fmt;

use super::Family;

/// A head for a task, trained on top of a pre-trained encoder. n is the number of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskHead {
    /// `classifier` [n, H] on the pooler: one label a sequence or pair; n = 1 is a regression.
    Sequence {
        /// Number of labels, n.
        labels: usize,
    },
    /// `classifier` [n, H] on every token; no pooler.
    Token {
        /// Number of labels, n.
        labels: usize,
    },
    /// `classifier` [1, H] on the pooler: a score for each choice.
    Choice,
    /// `qa_outputs` [2, H] on every token, row 0 the start and row 1 the end of the answer; no pooler.
    Span,
    /// The released graph for SQuAD 2.0: start logits, end logits given a start, and whether there is an answer.
    SquadV2,
}

impl TaskHead {
    /// Number of labels; a span has two rows, a choice one score.
    pub fn labels(self) -> usize {
        match self {
            Self::Sequence { labels } | Self::Token { labels } => labels,
            Self::Choice => 1,
            Self::Span | Self::SquadV2 => 2,
        }
    }
}

/// Heads of a model.
///
/// ```text
/// pooler       albert.pooler             [H, H]     tanh(x·Wᵀ + b) of the first token
/// mlm          predictions               dense [E, H], LayerNorm [E], bias [V]; the decoder is the word table
/// sop          sop_classifier.classifier [2, H]     on the pooler
/// task         Sequence                  classifier [n, H], on the pooler
///              Token                     classifier [n, H], on every token
///              Choice                    classifier [1, H], on the pooler
///              Span                      qa_outputs [2, H], on every token
///              SquadV2                   start_logits.dense [1, H]
///                                        end_logits.dense_0 [H, 2H], .LayerNorm [H], .dense_1 [1, H]
///                                        answer_class.dense_0 [H, 2H], .dense_1 [1, H] without bias
/// ```
///
/// All are Hugging Face's classes except `SquadV2`, which Hugging Face lacks and which keeps Google's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// tanh(x·Wᵀ + b) of the first token.
    pub pooler: bool,
    /// Masked language modeling.
    pub mlm: bool,
    /// Sentence order, on the pooler.
    pub sop: bool,
    /// The head of a task.
    pub task: Option<TaskHead>,
}

impl Heads {
    /// `AlbertModel`.
    pub const MODEL: Self = Self { pooler: true, mlm: false, sop: false, task: None };
    /// The encoder alone.
    pub const ENCODER: Self = Self { pooler: false, ..Self::MODEL };
    /// `AlbertForMaskedLM`: no pooler.
    pub const MASKED_LM: Self = Self { mlm: true, ..Self::ENCODER };
    /// `AlbertForPreTraining`.
    pub const PRE_TRAINING: Self = Self { mlm: true, sop: true, ..Self::MODEL };
    /// `AlbertForMultipleChoice`.
    pub const MULTIPLE_CHOICE: Self = Self::for_task(TaskHead::Choice);
    /// `AlbertForQuestionAnswering`.
    pub const QUESTION_ANSWERING: Self = Self::for_task(TaskHead::Span);
    /// The released graph for SQuAD 2.0, which has an unused pooler.
    pub const SQUAD_V2: Self = Self::for_task(TaskHead::SquadV2);

    /// `AlbertForSequenceClassification` with `labels` labels; 1 is a regression.
    pub const fn sequence_classification(labels: usize) -> Self {
        Self::for_task(TaskHead::Sequence { labels })
    }

    /// `AlbertForTokenClassification` with `labels` labels.
    pub const fn token_classification(labels: usize) -> Self {
        Self::for_task(TaskHead::Token { labels })
    }

    /// The task's head, and the pooler if its class has one.
    pub const fn for_task(task: TaskHead) -> Self {
        let pooler = !matches!(task, TaskHead::Token { .. } | TaskHead::Span);
        Self { pooler, task: Some(task), ..Self::ENCODER }
    }

    /// Class name for `config.json`.
    pub fn architecture(self, family: Family) -> &'static str {
        let (albert, bert) = match self {
            Self { sop: true, mlm: true, .. } => ("AlbertForPreTraining", "BertForPreTraining"),
            Self { sop: true, .. } => ("AlbertForPreTraining", "BertForNextSentencePrediction"),
            Self { mlm: true, .. } => ("AlbertForMaskedLM", "BertForMaskedLM"),
            Self { task: None, .. } => ("AlbertModel", "BertModel"),
            Self { task: Some(task), .. } => match task {
                TaskHead::Sequence { .. } => ("AlbertForSequenceClassification", "BertForSequenceClassification"),
                TaskHead::Token { .. } => ("AlbertForTokenClassification", "BertForTokenClassification"),
                TaskHead::Choice => ("AlbertForMultipleChoice", "BertForMultipleChoice"),
                TaskHead::Span => ("AlbertForQuestionAnswering", "BertForQuestionAnswering"),
                TaskHead::SquadV2 => ("AlbertForSquadV2", "BertForSquadV2"),
            },
        };
        match family {
            Family::Albert => albert,
            Family::Bert => bert,
        }
    }
}

impl fmt::Display for Heads {
    /// Hugging Face's class name, with distinguishing details.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.task) {
            (Self::ENCODER, _) => return f.write_str("encoder without pooler"),
            (_, Some(TaskHead::SquadV2)) => return f.write_str("SQuAD v2, as released"),
            _ => f.write_str(self.architecture(Family::Albert))?,
        }
        match self.task {
            Some(TaskHead::Sequence { labels: 1 }) => f.write_str(", regression"),
            Some(TaskHead::Sequence { labels } | TaskHead::Token { labels }) => write!(f, ", {labels} classes"),
            _ => Ok(()),
        }
    }
}
