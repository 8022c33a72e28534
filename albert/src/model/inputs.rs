//! A ragged batch on the tape.

use std::ops::Range;

use engine::ops::Sequences;
use engine::{EngineError, List, Tape, Var};

/// The integers of a ragged batch: T tokens of B sequences.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// `[T]` ids.
    pub ids: &'a [u32],
    /// `[T]` segments.
    pub segments: &'a [u32],
    /// `[T]` positions.
    pub positions: &'a [u32],
    /// `[B + 1]` first token of each sequence, and T.
    pub cu_seqlens: &'a [u32],
}

/// Inputs of the encoder: a batch on the tape.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// `[T]` ids.
    pub ids: Var,
    /// `[T]` segments.
    pub segments: Var,
    /// `[T]` positions.
    pub positions: Var,
    /// Offsets of the sequences, for attention.
    pub sequences: Sequences,
    /// `[B]` first token of each sequence.
    pub first_tokens: Var,
    /// Tokens of each sequence.
    pub lengths: Vec<u32>,
    /// Keys of each sequence, if an attention mask hides tokens; otherwise empty.
    pub keys: Vec<u32>,
}

impl Inputs {
    /// Copies the integers of a batch to the step's memory.
    ///
    /// # Errors
    /// The lengths do not fit together, or there is not enough memory.
    pub fn new<'a>(tape: &Tape<'_>, batch: impl Into<Tokens<'a>>) -> Result<Self, EngineError> {
        Self::with_lists(tape, batch, []).map(|(inputs, [])| inputs)
    }

    /// As [`Inputs::new`], and copies more integers, such as labels or rows, in the same transfer.
    ///
    /// # Errors
    /// As [`Inputs::new`].
    pub fn with_lists<'a, const N: usize>(
        tape: &Tape<'_>,
        batch: impl Into<Tokens<'a>>,
        more: [List<'_>; N],
    ) -> Result<(Self, [Var; N]), EngineError> {
        let Tokens { ids, segments, positions, cu_seqlens } = batch.into();
        let tokens = ids.len();
        let rises = cu_seqlens.windows(2).all(|pair| pair[0] < pair[1]);
        if cu_seqlens.first() != Some(&0) || cu_seqlens.last().map(|&t| t as usize) != Some(tokens) || !rises {
            return Err(EngineError::Shape {
                operation: "inputs".to_owned(),
                problem: format!(
                    "`cu_seqlens` must rise from 0 to the {tokens} tokens, and it goes from {:?} to {:?}",
                    cu_seqlens.first(),
                    cu_seqlens.last()
                ),
            });
        }
        let first = &cu_seqlens[..cu_seqlens.len() - 1];
        let lengths: Vec<u32> = cu_seqlens.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let rows = [ids, segments, positions, first].map(List::Rows);
        let plain = [cu_seqlens, &lengths].map(List::Plain);
        let lists = [&rows[..], &plain, &more].concat();
        let mut copied = tape.list_inputs(&lists)?;
        let more = copied.split_off(lists.len() - N).try_into().expect("one for each list");
        let [ids, segments, positions, first_tokens, offsets, keys] = copied.try_into().expect("one for each list");
        let sequences = Sequences::of(tape, cu_seqlens, [offsets, keys])?;
        Ok((Self { ids, segments, positions, sequences, first_tokens, lengths, keys: Vec::new() }, more))
    }

    /// Restricts the keys of sequence b to its first `keys[b]` tokens: tokens hidden by an attention mask come after
    /// them, with their own positions.
    ///
    /// # Errors
    /// `keys` does not fit the sequences, or there is not enough memory.
    pub fn with_keys(self, tape: &Tape<'_>, cu_seqlens: &[u32], keys: &[u32]) -> Result<Self, EngineError> {
        Ok(Self { sequences: Sequences::with_keys(tape, cu_seqlens, keys)?, keys: keys.to_vec(), ..self })
    }

    /// Rows of each sequence.
    pub(super) fn rows(&self) -> impl Iterator<Item = Range<usize>> {
        self.lengths.iter().scan(0, |start, &length| {
            let rows = *start..*start + length as usize;
            *start = rows.end;
            Some(rows)
        })
    }
}
