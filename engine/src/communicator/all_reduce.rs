//! The rest of the tree over lanes, added while ranks exchange.
//!
//! **Halving**, for 2^n ranks, each with the sum of one subtree of equal size: partners at distance 1 exchange halves of their
//! sums and add, at distance 2 quarters, and so on, and return the same way. Each rank sends 2·(R - 1)/R of the gradients. The
//! nearest ranks exchange the largest messages, which stay in a node or a rack.
//!
//! ```text
//! rank   0      1      2      3
//!        ab <-> ab     ab <-> ab      0 keeps a, 1 keeps b
//!        a             a              a of 0 + a of 2: 0 keeps the first half
//!        └──── <-> ────┘
//! ```
//!
//! **By slices**, for other numbers of ranks: each rank gets every part of one slice of the gradients, adds along the tree, and
//! all get all slices.
//!
//! x + y and y + x have the same bits, so partners agree.

use super::{
    arrays::{Arrays, Part},
    tree::{are_halves, subtrees_of_rank},
};
use crate::error::Result;
use std::ops::Range;

/// The gradients, and in the end their sum.
pub(super) const SUM: usize = 0;
/// Messages received.
pub(super) const ROOM: usize = 1;
/// The message to send.
pub(super) const OUTGOING: usize = 2;
/// The first of the sums over this rank's subtrees but the last, which is in [`SUM`].
pub(super) const PARTS: usize = 3;

fn part(array: usize, range: Range<usize>) -> Part {
    Part { array, range }
}

/// Lengths of [`ROOM`] and [`OUTGOING`] of rank `rank` of `size` for gradients of `len` elements.
pub(super) fn room(rank: usize, size: usize, lanes: usize, len: usize) -> [usize; 2] {
    if size == 1 {
        return [0; 2];
    }
    if size.is_power_of_two() {
        return [len.div_ceil(2), 0];
    }
    let counts: Vec<usize> = (0..size).map(|rank| subtrees_of_rank(rank, size, lanes).len()).collect();
    // The first slice is the longest.
    [counts.iter().sum::<usize>() * slice(len, rank, size).len(), counts[rank] * slice(len, 0, size).len()]
}

/// Sums `len` elements of [`SUM`] over 2^n ranks along the tree.
pub(super) fn halving(arrays: &mut impl Arrays, rank: usize, size: usize, len: usize) -> Result<()> {
    let (mut mine, mut exchanged) = (0..len, Vec::new());
    for distance in (0..size.ilog2()).map(|i| 1 << i) {
        let middle = mine.start + mine.len() / 2;
        let (low, high) = (mine.start..middle, middle..mine.end);
        let (kept, given) = if rank & distance == 0 { (low, high) } else { (high, low) };
        let partner = rank ^ distance;
        let theirs = part(ROOM, 0..kept.len());
        arrays.exchange((partner, part(SUM, given.clone())), (partner, theirs.clone()))?;
        arrays.add(theirs, part(SUM, kept.clone()))?;
        mine = kept.clone();
        exchanged.push((partner, kept, given));
    }
    for (partner, kept, given) in exchanged.into_iter().rev() {
        arrays.exchange((partner, part(SUM, kept)), (partner, part(SUM, given)))?;
    }
    Ok(())
}

/// Slice of `len` elements that rank `rank` of `size` adds up.
fn slice(len: usize, rank: usize, size: usize) -> Range<usize> {
    len / size * rank + rank.min(len % size)..len / size * (rank + 1) + (rank + 1).min(len % size)
}

/// Sums `len` elements over all lanes along the tree, into [`SUM`], which holds the last part of this rank.
pub(super) fn by_slices(arrays: &mut impl Arrays, rank: usize, size: usize, lanes: usize, len: usize) -> Result<()> {
    let mine = slice(len, rank, size);
    // Parts of this rank's slice, one after another in the order of lanes: those of each rank together.
    let counts: Vec<usize> = (0..size).map(|rank| subtrees_of_rank(rank, size, lanes).len()).collect();
    let start = |rank: usize| counts[..rank].iter().sum::<usize>() * mine.len();
    // Copies this rank's parts of a slice, one after another.
    let gather = |arrays: &mut dyn Arrays, range: Range<usize>, array: usize, mut at: usize| -> Result<()> {
        for own in (PARTS..).take(counts[rank] - 1).chain([SUM]) {
            arrays.copy(part(own, range.clone()), part(array, at..at + range.len()))?;
            at += range.len();
        }
        Ok(())
    };
    gather(arrays, mine.clone(), ROOM, start(rank))?;
    for step in 1..size {
        let (to, from) = ((rank + step) % size, (rank + size - step) % size);
        let theirs = slice(len, to, size);
        let message = part(OUTGOING, 0..theirs.len() * counts[rank]);
        gather(arrays, theirs, OUTGOING, 0)?;
        arrays.exchange((to, message), (from, part(ROOM, start(from)..start(from + 1))))?;
    }
    let place = |i: usize| part(ROOM, i * mine.len()..(i + 1) * mine.len());
    let ranges = (0..size).flat_map(|rank| subtrees_of_rank(rank, size, lanes));
    let mut sums: Vec<(Range<usize>, Part)> = ranges.zip((0..).map(place)).collect();
    while sums.len() > 1 {
        let at = (1..sums.len()).find(|&at| are_halves(&sums[at - 1].0, &sums[at].0));
        let at = at.expect("the parts of all ranks make the tree");
        let (right, addend) = sums.remove(at);
        let (left, sum) = &mut sums[at - 1];
        arrays.add(addend, sum.clone())?;
        left.end = right.end;
    }
    arrays.copy(sums.swap_remove(0).1, part(SUM, mine))?;
    let exchange = |(to, have), (from, wanted)| arrays.exchange((to, part(SUM, have)), (from, part(SUM, wanted)));
    pass_on(rank, size, |rank| slice(len, rank, size), exchange)
}

/// Lets every rank pass on the ranges that it has, to the next, until all have those of all; `range` is that of a rank at first.
pub(super) fn pass_on(
    rank: usize,
    size: usize,
    range: impl Fn(usize) -> Range<usize>,
    mut exchange: impl FnMut((usize, Range<usize>), (usize, Range<usize>)) -> Result<()>,
) -> Result<()> {
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    for step in 0..size - 1 {
        let [have, wanted] = [rank + size - step, rank + 2 * size - step - 1].map(|of| range(of % size));
        exchange((next, have), (previous, wanted))?;
    }
    Ok(())
}
