//! Model inputs.

/// Pieces of one input.
///
/// ```text
/// ids        [CLS] a a a [SEP] b b [SEP]
/// segments     0   0 0 0   0   1 1   1
///                              ^ second
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// Piece ids, special pieces included; never empty.
    pub ids: Vec<u32>,
    /// Start of segment 1; the number of ids for a single segment.
    pub second: usize,
}

impl Sequence {
    /// Segment of each piece.
    pub(crate) fn segments(&self) -> impl Iterator<Item = u32> {
        (0..self.ids.len()).map(|at| u32::from(at >= self.second))
    }
}
