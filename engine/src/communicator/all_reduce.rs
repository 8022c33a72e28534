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
    Communicator,
    lanes::{self, subtrees_of_rank},
};
use crate::error::Result;
use kernels::{Cpu, elementwise::add_assign};
use std::{borrow::Cow, ops::Range};

/// Lengths of the two buffers for gradients of `len` elements.
pub(super) fn room(communicator: &Communicator, lanes: usize, len: usize) -> [usize; 2] {
    let (rank, size) = (communicator.rank(), communicator.size());
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

/// Sums `x` over 2^n ranks along the tree.
pub(super) fn halving(
    communicator: &Communicator,
    cpu: &Cpu,
    what: &str,
    x: &mut [f32],
    room: &mut [f32],
) -> Result<()> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let (mut mine, mut exchanged) = (0..x.len(), Vec::new());
    for distance in (0..size.ilog2()).map(|i| 1 << i) {
        let middle = mine.start + mine.len() / 2;
        let (low, high) = (mine.start..middle, middle..mine.end);
        let (kept, given) = if rank & distance == 0 { (low, high) } else { (high, low) };
        let partner = rank ^ distance;
        let theirs = &mut room[..kept.len()];
        let message = bytemuck::cast_slice(&x[given.clone()]);
        communicator.exchange(what, (partner, message), (partner, bytemuck::cast_slice_mut(theirs)))?;
        add_assign(cpu, theirs, &mut x[kept.clone()]);
        mine = kept.clone();
        exchanged.push((partner, kept, given));
    }
    for (partner, kept, given) in exchanged.into_iter().rev() {
        let (message, sums) = disjoint(x, kept, given);
        let message = bytemuck::cast_slice(message);
        communicator.exchange(what, (partner, message), (partner, bytemuck::cast_slice_mut(sums)))?;
    }
    Ok(())
}

/// Two ranges of `x`.
fn disjoint(x: &mut [f32], read: Range<usize>, written: Range<usize>) -> (&[f32], &mut [f32]) {
    let [read, written] = x.get_disjoint_mut([read, written]).expect("the slices of two ranks do not overlap");
    (read, written)
}

/// Slice of `len` elements that rank `rank` of `size` adds up.
fn slice(len: usize, rank: usize, size: usize) -> Range<usize> {
    len / size * rank + rank.min(len % size)..len / size * (rank + 1) + (rank + 1).min(len % size)
}

/// Sums over all lanes along the tree, into `last`, which holds the last part of this rank; `parts` are those before it.
pub(super) fn by_slices(
    communicator: &Communicator,
    cpu: &Cpu,
    what: &str,
    lanes: usize,
    parts: &[Cow<'_, [f32]>],
    last: &mut [f32],
    [room, outgoing]: &mut [Vec<f32>; 2],
) -> Result<()> {
    let (rank, size, len) = (communicator.rank(), communicator.size(), last.len());
    let mine = slice(len, rank, size);
    // Parts of this rank's slice, one after another in the order of lanes: those of each rank together.
    let counts: Vec<usize> = (0..size).map(|rank| subtrees_of_rank(rank, size, lanes).len()).collect();
    let start = |rank: usize| counts[..rank].iter().sum::<usize>() * mine.len();
    let gather = |out: &mut [f32], range: Range<usize>, last: &[f32]| {
        let all = parts.iter().map(|part| &part[..]).chain([last]);
        for (out, part) in out.chunks_exact_mut(range.len().max(1)).zip(all) {
            out.copy_from_slice(&part[range.clone()]);
        }
    };
    gather(&mut room[start(rank)..start(rank + 1)], mine.clone(), last);
    for step in 1..size {
        let (to, from) = ((rank + step) % size, (rank + size - step) % size);
        let theirs = slice(len, to, size);
        let outgoing = &mut outgoing[..theirs.len() * counts[rank]];
        gather(outgoing, theirs, last);
        let incoming = &mut room[start(from)..start(from + 1)];
        let message = bytemuck::cast_slice(outgoing);
        communicator.exchange(what, (to, message), (from, bytemuck::cast_slice_mut(incoming)))?;
    }
    if !mine.is_empty() {
        let ranges = (0..size).flat_map(|rank| subtrees_of_rank(rank, size, lanes));
        let mut sums: Vec<(Range<usize>, &mut [f32])> = ranges.zip(room.chunks_exact_mut(mine.len())).collect();
        while sums.len() > 1 {
            let at = (1..sums.len()).find(|&at| lanes::are_halves(&sums[at - 1].0, &sums[at].0));
            let at = at.expect("the parts of all ranks make the tree");
            let (right, addend) = sums.remove(at);
            let (left, sum) = &mut sums[at - 1];
            add_assign(cpu, addend, sum);
            left.end = right.end;
        }
        last[mine].copy_from_slice(sums[0].1);
    }
    pass_on(communicator, what, |rank| slice(len, rank, size), last)
}

/// Completes `x`, of which each rank has its slice: every rank passes on the slices that it has, to the next.
pub(super) fn pass_on(
    communicator: &Communicator,
    what: &str,
    slice: impl Fn(usize) -> Range<usize>,
    x: &mut [f32],
) -> Result<()> {
    let (rank, size) = (communicator.rank(), communicator.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    for step in 0..size - 1 {
        let [have, wanted] = [(rank + size - step) % size, (rank + 2 * size - step - 1) % size].map(&slice);
        let (message, sums) = disjoint(x, have, wanted);
        let message = bytemuck::cast_slice(message);
        communicator.exchange(what, (next, message), (previous, bytemuck::cast_slice_mut(sums)))?;
    }
    Ok(())
}
