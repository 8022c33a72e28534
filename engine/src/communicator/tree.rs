//! Shape of the tree over lanes: lanes of a rank, and the subtrees that they form.

use std::ops::Range;

/// Lanes of rank `rank` of `size`.
pub(super) fn of_rank(rank: usize, size: usize, lanes: usize) -> Range<usize> {
    rank * lanes / size..(rank + 1) * lanes / size
}

/// The largest subtrees of the tree over all lanes that lie in `lanes`, from the left.
pub(super) fn subtrees(lanes: Range<usize>) -> Vec<Range<usize>> {
    let (mut start, mut all) = (lanes.start, Vec::new());
    while start < lanes.end {
        let mut width = 1;
        while start.is_multiple_of(2 * width) && start + 2 * width <= lanes.end {
            width *= 2;
        }
        all.push(start..start + width);
        start += width;
    }
    all
}

/// The largest subtrees that lie in the lanes of rank `rank` of `size`, from the left.
pub(super) fn subtrees_of_rank(rank: usize, size: usize, lanes: usize) -> Vec<Range<usize>> {
    subtrees(of_rank(rank, size, lanes))
}

/// True if the subtrees are the halves of another.
pub(super) fn are_halves(left: &Range<usize>, right: &Range<usize>) -> bool {
    left.len() == right.len() && left.end == right.start && left.start.is_multiple_of(2 * left.len())
}
