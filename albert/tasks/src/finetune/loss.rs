//! Scores of the task head for a batch, and their loss.
//!
//! ```text
//! classes   z [B, n]   Σ_b -log softmax(z_b)[class_b] / denominator
//! number    z [B]      Σ_b (z_b - y_b)² / denominator
//! words     z [W, n]   Σ_w -log softmax(z_w)[class_w] / denominator      w the first piece of each word
//! options   z [C]      Σ_x -log softmax(z of x's options)[right_x] / denominator
//! answers   s, e [T]   see `heads`: two logits per token, or the released head of SQuAD 2.0
//! ```
//!
//! The denominator is that of the effective batch, so that the gradients of its micro-batches add up to its gradient.
//! Limits: the released head of SQuAD 2.0 runs in f32 only.

use albert::heads::{SquadV2Head, Task};
use albert::model::{ForwardOptions, Inputs, Model};
use engine::ops::{self, CrossEntropyOutput, Sequences};
use engine::{DType, EngineError, Tape, Var};

use super::batch::Batch;
use crate::span::{BeamStart, WindowScores, log_softmax, top};

/// A loss on the tape, with statistics for reports.
#[derive(Debug)]
pub(super) struct Loss {
    /// Σ / denominator, the root of backward.
    pub(super) total: Var,
    /// Statistics of the classification; `None` for numbers and answers.
    pub(super) classified: Option<CrossEntropyOutput>,
}

/// Scores of a batch, on the tape.
#[derive(Debug)]
// Only one exists at a time, and boxing would allocate in every step.
#[allow(clippy::large_enum_variant)]
pub(super) enum Scores {
    /// A row of logits per sequence or word, or one score per sequence or option.
    Values(Var),
    /// Start and end logits of every token.
    Answers {
        /// Start and end logits, [T] each.
        logits: [Var; 2],
        /// No-answer logits [B]; only for the released head of SQuAD 2.0.
        no_answer: Option<Var>,
        /// Offsets of the sequences.
        sequences: Sequences,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum WindowScore {
    /// Start and end logits of every token.
    Logits([Vec<f32>; 2]),
    /// The best starts, each with its best ends.
    Beam {
        /// Starts, best first.
        starts: Vec<BeamStart>,
        /// No-answer logit.
        no_answer: f32,
    },
}

impl Default for WindowScore {
    fn default() -> Self {
        Self::Logits([Vec::new(), Vec::new()])
    }
}

impl WindowScore {
    /// All elements that must be finite. Log-probabilities of -∞, of tokens that cannot be an answer, are omitted.
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

    /// Borrowed view for decoding.
    pub(super) fn borrowed(&self) -> WindowScores<'_> {
        match self {
            Self::Logits([start, end]) => WindowScores::Independent { start, end },
            Self::Beam { starts, no_answer } => WindowScores::Beam { starts, no_answer: *no_answer },
        }
    }
}

/// Beam width of the released head of SQuAD 2.0: number of starts, and of ends for each start.
const BEAM: usize = 5;

/// Computes the scores of `batch`, see the module. The released head of SQuAD 2.0 computes end logits from the gold starts.
pub(super) fn scores(
    model: &Model,
    tape: &Tape<'_>,
    batch: &Batch,
    options: &ForwardOptions,
) -> Result<Scores, EngineError> {
    let inputs = Inputs::new(tape, batch)?;
    let x = model.encode(tape, &inputs, options)?; // [T, H]
    let pooled = || {
        let pooler = model.pooler().expect("heads on the pooled token have a pooler");
        pooler.forward(tape, &x, &inputs.first_tokens) // [B, H]
    };
    Ok(match model.task().expect("a fine-tuned model has a task head") {
        Task::Sequence(head) if batch.numbers.is_empty() => {
            Scores::Values(head.logits(tape, &pooled()?, options.dropout)?)
        }
        Task::Sequence(head) | Task::Choice(head) => Scores::Values(head.scores(tape, &pooled()?, options.dropout)?),
        Task::Token(head) => {
            let words = tape.input([batch.words.len()], &batch.words)?;
            Scores::Values(head.logits(tape, &ops::gather_rows(tape, &x, &words)?, options.dropout)?)
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
            let none =
                head.answer_logits(tape, [&x, &start, &inputs.first_tokens], &batch.cu_seqlens, options.dropout)?;
            Scores::Answers { logits: [start, end], no_answer: Some(none), sequences: inputs.sequences }
        }
    })
}

/// Computes the loss of `scores`. `options` is the number of options if it is the same for all examples.
pub(super) fn loss(
    model: &Model,
    tape: &Tape<'_>,
    batch: &Batch,
    scores: &Scores,
    options: Option<usize>,
    denominator: f32,
) -> Result<Loss, EngineError> {
    match scores {
        Scores::Values(scores) if batch.numbers.is_empty() => {
            loss_of_classes(tape, batch, scores, options, denominator)
        }
        Scores::Values(scores) => loss_of_numbers(tape, batch, scores, denominator),
        Scores::Answers { logits, no_answer, sequences } => {
            let input = |list: &[u32]| tape.input([list.len()], list);
            let [starts, ends] = [input(&batch.answers[0])?, input(&batch.answers[1])?];
            let total = match (model.task(), no_answer) {
                (Some(Task::SquadV2(head)), Some(none)) => {
                    let impossible = input(&batch.impossible)?;
                    head.loss(tape, (logits, none), sequences, [&starts, &ends, &impossible], denominator)?
                }
                (Some(Task::Span(head)), _) => head.loss(tape, logits, sequences, [&starts, &ends], denominator)?,
                _ => unreachable!("only span heads compute answer scores"),
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
    options: Option<usize>,
    denominator: f32,
) -> Result<Loss, EngineError> {
    let classes = tape.input([batch.classes.len()], &batch.classes)?;
    let has_options = batch.options.len() > 1;
    let classified = match options.filter(|_| has_options) {
        Some(count) => {
            let rows = ops::reshape(tape, scores, [batch.classes.len(), count])?;
            ops::cross_entropy(tape, &rows, &classes, denominator)?
        }
        None if has_options => {
            let options = Sequences::new(tape, &batch.options)?;
            ops::sequence_cross_entropy(tape, scores, &options, &classes, denominator)?
        }
        None => ops::cross_entropy(tape, scores, &classes, denominator)?,
    };
    Ok(Loss { total: classified.loss.clone(), classified: Some(classified) })
}

/// Waits for results that are computed on a device.
pub(super) type Later<R> = Box<dyn FnOnce() -> Result<Vec<R>, EngineError>>;

/// Computes the scores of each window of `batch` without waiting; empty in a dry run. For the released head of SQuAD 2.0, the
/// ends depend on the starts, so it waits for both.
pub(super) fn window_scores(
    model: &Model,
    tape: &Tape<'_>,
    batch: &Batch,
    options: &ForwardOptions,
) -> Result<Later<WindowScore>, EngineError> {
    if let Some(Task::SquadV2(head)) = model.task() {
        let scores = beam_scores(model, head, tape, batch, options)?;
        return Ok(Box::new(|| Ok(scores)));
    }
    let Scores::Answers { logits: [start, end], .. } = scores(model, tape, batch, options)? else {
        unreachable!("only span heads score windows")
    };
    if tape.is_dry() {
        return Ok(Box::new(|| Ok(Vec::new())));
    }
    let (start, end, ends) = (start.value().to_vec_later()?, end.value().to_vec_later()?, batch.cu_seqlens.clone());
    Ok(Box::new(move || {
        let (start, end) = (start.wait()?, end.wait()?);
        let ranges = ends.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        Ok(ranges.map(|of| WindowScore::Logits([start[of.clone()].to_vec(), end[of].to_vec()])).collect())
    }))
}

fn beam_scores(
    model: &Model,
    head: &SquadV2Head,
    tape: &Tape<'_>,
    batch: &Batch,
    options: &ForwardOptions,
) -> Result<Vec<WindowScore>, EngineError> {
    let ranges = || batch.cu_seqlens.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
    let inputs = Inputs::new(tape, batch)?;
    let x = model.encode(tape, &inputs, options)?; // [T, H]
    let mask = SquadV2Head::mask(tape, &batch.hidden)?;
    let start = head.start_logits(tape, &x, &mask)?;
    let none = head.answer_logits(tape, [&x, &start, &inputs.first_tokens], &batch.cu_seqlens, options.dropout)?;
    // A dry run has no values; its allocation requests do not depend on them.
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
