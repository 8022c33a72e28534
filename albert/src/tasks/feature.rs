//! Examples as the model reads them.

/// The pieces of one input.
///
/// ```text
/// ids        [CLS] a a a [SEP] b b [SEP]
/// segments     0   0 0 0   0   1 1   1
///                              ^ second
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Piece ids, special pieces included; never empty.
    pub ids: Vec<u32>,
    /// Where segment 1 begins; the number of ids, if there is but one segment.
    pub second: usize,
}

impl Sequence {
    /// The segment of each piece.
    pub fn segments(&self) -> impl Iterator<Item = u32> {
        (0..self.ids.len()).map(|at| u32::from(at >= self.second))
    }
}
