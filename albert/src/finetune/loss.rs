//! What the head says of a batch, and the loss of it.
//!
//! ```text
//! classes   z [B, n]   Σ_b -log softmax(z_b)[class_b] / denominator
//! number    z [B]      Σ_b (z_b - y_b)² / denominator
//! words     z [W, n]   Σ_w -log softmax(z_w)[class_w] / denominator      w the first piece of each word
//! options   z [C]      Σ_x -log softmax(z of x's options)[right_x] / denominator
//! answers   s, e [T]   see `heads`: two logits a token, or the released head of SQuAD 2.0
//! ```
//!
//! The denominator is that of the effective batch, so that gradients of its micro-batches add up to its own.
//! Limits: the released head of SQuAD 2.0 in f32 alone.

use engine::ops::{self, CrossEntropyOutput, Sequences};
use engine::{DType, EngineError, Tape, Var};

use super::batch::Batch;
use crate::heads::{SquadV2Head, Task};
use crate::model::{ForwardOptions, Inputs, Model};
use crate::span::{BeamStart, WindowScores, log_softmax, top};

/// How scores become a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A class for each row.
    Classes,
    /// A number for each row.
    Number,
    /// One of as many options for each example.
    Options(usize),
    /// One of several options, of which examples have different numbers.
    Ragged,
    /// The first and the last token of an answer.
    Answers,
}

/// A loss on the tape, and what reports want to know.
#[derive(Debug)]
pub(super) struct Loss {
    /// Σ / denominator, what backward starts from.
    pub(super) total: Var,
    /// Classes beside the right ones; not for numbers and answers.
    pub(super) classified: Option<CrossEntropyOutput>,
}

/// What the head says of a batch, on the tape.
#[derive(Debug)]
// There is one at a time, and a step takes no memory of its own.
#[allow(clippy::large_enum_variant)]
pub(super) enum Scores {
    /// A row for each sequence or word, or a number for each sequence or option.
    Values(Var),
    /// Start and end logits of every token, and that there is no answer.
    Answers {
        /// [T] each.
        logits: [Var; 2],
        /// [B], of the released head of SQuAD 2.0 alone.
        no_answer: Option<Var>,
        /// Where the sequences begin.
        sequences: Sequences,
    },
}

/// What a model says of a window.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WindowScore {
    /// Logits of every token, of being the first and the last.
    Logits([Vec<f32>; 2]),
    /// The best starts with the best ends of each.
    Beam {
        /// The best first.
        starts: Vec<BeamStart>,
        /// The logit of there being no answer.
        no_answer: f32,
    },
}

impl Default for WindowScore {
    fn default() -> Self {
        Self::Logits([Vec::new(), Vec::new()])
    }
}

impl WindowScore {
    /// All its elements that a sound model keeps finite: the probability of a token that cannot be an answer is 0, whose
    /// logarithm is left out.
    pub(super) fn elements(&self) -> Vec<f32> {
        match self {
            Self::Logits(both) => both.concat(),
            Self::Beam { starts, no_answer } => {
                let of = |start: &BeamStart| {
                    let ends = start.ends.iter().map(|&(_, log_probability)| log_probability as f32);
                    ends.chain([start.log_probability as f32]).collect::<Vec<_>>()
                };
                let log_probabilities = starts.iter().flat_map(of).filter(|&value| value != f32::NEG_INFINITY);
                log_probabilities.chain([*no_answer]).collect()
            }
        }
    }

    /// As decoding takes it.
    pub(super) fn borrowed(&self) -> WindowScores<'_> {
        match self {
            Self::Logits([start, end]) => WindowScores::Independent { start, end },
            Self::Beam { starts, no_answer } => WindowScores::Beam { starts, no_answer: *no_answer },
        }
    }
}

/// Starts, and ends of each, that the released head of SQuAD 2.0 is asked for.
const BEAM: usize = 5;

/// The scores of `batch`: see the module. Ends are those given the right starts.
pub(super) fn scores(
    model: &Model,
    tape: &Tape<'_>,
    batch: &Batch,
    options: &ForwardOptions,
) -> Result<Scores, EngineError> {
    let inputs = Inputs::from_slices(tape, &batch.ids, &batch.segments, &batch.positions, &batch.cu_seqlens)?;
    let x = model.encode(tape, &inputs, options)?; // [T, H]
    let pooled = || {
        let pooler = model.pooler().expect("heads on the pooled token have a pooler");
        pooler.forward(tape, &x, &inputs.first_tokens) // [B, H]
    };
    Ok(match model.task().expect("a model that is fine-tuned has the head of a task") {
        Task::Sequence(head) if batch.numbers.is_empty() => Scores::Values(head.logits(tape, &pooled()?, options)?),
        Task::Sequence(head) | Task::Choice(head) => Scores::Values(head.scores(tape, &pooled()?, options)?),
        Task::Token(head) => {
            let words = tape.input([batch.words.len()], &batch.words)?;
            Scores::Values(head.logits(tape, &ops::gather_rows(tape, &x, &words)?, options)?)
        }
        Task::Span(head) => {
            let logits = head.logits(tape, &x)?;
            Scores::Answers { logits, no_answer: None, sequences: inputs.sequences }
        }
        Task::SquadV2(head) => {
            let mask = SquadV2Head::mask(tape, &batch.hidden)?;
            let rows = tape.input([batch.start_rows.len()], &batch.start_rows)?;
            let start = head.start_logits(tape, &x, &mask)?;
            let end = head.end_logits(tape, &x, &rows, &mask)?;
            let none = head.answer_logits(tape, &x, &start, &batch.cu_seqlens, &inputs.first_tokens, options)?;
            Scores::Answers { logits: [start, end], no_answer: Some(none), sequences: inputs.sequences }
        }
    })
}

/// The loss of `scores`.
pub(super) fn loss(
    model: &Model,
    tape: &Tape<'_>,
    batch: &Batch,
    scores: &Scores,
    kind: Kind,
    denominator: f32,
) -> Result<Loss, EngineError> {
    match scores {
        Scores::Values(scores) if kind == Kind::Number => loss_of_numbers(tape, batch, scores, denominator),
        Scores::Values(scores) => loss_of_classes(tape, batch, scores, kind, denominator),
        Scores::Answers { logits, no_answer, sequences } => {
            let input = |list: &[u32]| tape.input([list.len()], list);
            let [starts, ends] = [input(&batch.answers[0])?, input(&batch.answers[1])?];
            let total = match (model.task(), no_answer) {
                (Some(Task::SquadV2(head)), Some(none)) => {
                    let impossible = input(&batch.impossible)?;
                    head.loss(tape, logits, none, sequences, [&starts, &ends, &impossible], denominator)?
                }
                (Some(Task::Span(head)), _) => head.loss(tape, logits, sequences, [&starts, &ends], denominator)?,
                _ => unreachable!("scores of answers are of a head for answers"),
            };
            Ok(Loss { total, classified: None })
        }
    }
}

fn loss_of_numbers(tape: &Tape<'_>, batch: &Batch, scores: &Var, denominator: f32) -> Result<Loss, EngineError> {
    let target = match scores.value().dtype() {
        DType::Bf16 => {
            let rounded: Vec<_> = batch.numbers.iter().map(|&number| half::bf16::from_f32(number)).collect();
            tape.input([rounded.len()], &rounded)?
        }
        _ => tape.input([batch.numbers.len()], &batch.numbers)?,
    };
    let mean = ops::mean_squared_error(tape, scores, &target)?;
    let total = ops::scale(tape, &mean, batch.numbers.len() as f32 / denominator)?;
    Ok(Loss { total, classified: None })
}

fn loss_of_classes(
    tape: &Tape<'_>,
    batch: &Batch,
    scores: &Var,
    kind: Kind,
    denominator: f32,
) -> Result<Loss, EngineError> {
    let classes = tape.input([batch.classes.len()], &batch.classes)?;
    let classified = match kind {
        Kind::Options(count) => {
            let rows = ops::reshape(tape, scores, [batch.classes.len(), count])?;
            ops::cross_entropy(tape, &rows, &classes, denominator)?
        }
        Kind::Ragged => {
            let options = Sequences::new(tape, &batch.options)?;
            ops::sequence_cross_entropy(tape, scores, &options, &classes, denominator)?
        }
        Kind::Classes | Kind::Number | Kind::Answers => ops::cross_entropy(tape, scores, &classes, denominator)?,
    };
    Ok(Loss { total: classified.loss.clone(), classified: Some(classified) })
}

/// What the model says of each window of `batch`.
pub(super) fn window_scores(
    model: &Model,
    tape: &Tape<'_>,
    batch: &Batch,
    options: &ForwardOptions,
) -> Result<Vec<WindowScore>, EngineError> {
    let ranges = || batch.cu_seqlens.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
    let Some(Task::SquadV2(head)) = model.task() else {
        let Scores::Answers { logits: [start, end], .. } = scores(model, tape, batch, options)? else {
            unreachable!("windows are read by a head for answers")
        };
        if tape.is_dry() {
            return Ok(Vec::new());
        }
        let (start, end) = (start.value().to_vec()?, end.value().to_vec()?);
        return Ok(ranges().map(|of| WindowScore::Logits([start[of.clone()].to_vec(), end[of].to_vec()])).collect());
    };
    let inputs = Inputs::from_slices(tape, &batch.ids, &batch.segments, &batch.positions, &batch.cu_seqlens)?;
    let x = model.encode(tape, &inputs, options)?; // [T, H]
    let mask = SquadV2Head::mask(tape, &batch.hidden)?;
    let start = head.start_logits(tape, &x, &mask)?;
    let none = head.answer_logits(tape, &x, &start, &batch.cu_seqlens, &inputs.first_tokens, options)?;
    // A dry run has no values; what it is for are the requests, which do not depend on them.
    let (start, none) = match tape.is_dry() {
        true => (vec![0.0; batch.tokens()], vec![0.0; batch.sequences()]),
        false => (start.value().to_vec()?, none.value().to_vec()?),
    };
    let mut windows: Vec<(Vec<BeamStart>, f32)> = ranges()
        .zip(none)
        .map(|(of, none)| {
            let best = top(BEAM, &log_softmax(&start[of.clone()], &batch.hidden[of]));
            let starts =
                best.into_iter().map(|(token, log_probability)| BeamStart { token, log_probability, ends: Vec::new() });
            (starts.collect(), none)
        })
        .collect();
    for place in 0..BEAM {
        let mut rows = Vec::with_capacity(batch.tokens());
        for (of, (starts, _)) in ranges().zip(&windows) {
            let token = starts.get(place).map_or(0, |start| start.token);
            rows.resize(rows.len() + of.len(), (of.start + token) as u32);
        }
        let rows = tape.input([rows.len()], &rows)?;
        let end = head.end_logits(tape, &x, &rows, &mask)?;
        if tape.is_dry() {
            continue;
        }
        let end = end.value().to_vec()?;
        for (of, (starts, _)) in ranges().zip(&mut windows) {
            if let Some(start) = starts.get_mut(place) {
                start.ends = top(BEAM, &log_softmax(&end[of.clone()], &batch.hidden[of]));
            }
        }
    }
    Ok(windows.into_iter().map(|(starts, no_answer)| WindowScore::Beam { starts, no_answer }).collect())
}
