//! Embedding with SIMD.

use super::Lookup;
use crate::extent::area;
use crate::pool::Cpu;
use crate::rows::{Cached, Row, Rows, for_each_block, rows_per_task};
use crate::{
    Element,
    simd::{Kernel, Simd, compiled_here},
};
use std::ops::Range;

/// Computes out [T, width]: for each token the sum of one row of each table.
///
/// # Panics
/// If lengths do not match, or an id is not below its table's number of rows.
pub fn forward<X: Element, const N: usize>(cpu: &Cpu, width: usize, lookups: [Lookup<'_>; N], out: &mut [X]) {
    let tokens = lookups.first().expect("an embedding has a table").ids.len();
    assert_eq!(out.len(), area(tokens, width), "embedding: out is not {tokens} rows of {width}");
    for (k, Lookup { ids, table }) in lookups.iter().enumerate() {
        assert_eq!(ids.len(), tokens, "embedding: table {k} has {} ids for {tokens} tokens", ids.len());
        assert!(table.len().is_multiple_of(width.max(1)), "embedding: table {k} is no rows of {width}");
        check_ids(ids, table.len() / width.max(1));
    }
    let isa = cpu.isa();
    for_each_block(cpu, tokens, rows_per_task(width), Rows::new(out, width), |tokens, out| {
        isa.run(Gather { width, lookups, tokens, out });
    });
}

/// Panics unless every id is below `rows`; called before anything is written.
fn check_ids(ids: &[u32], rows: usize) {
    let bad = ids.iter().find(|&&id| id as usize >= rows);
    assert!(bad.is_none(), "embedding: id {} of a table of {rows} rows", bad.expect("just found"));
}

struct Gather<'a, X, const N: usize> {
    width: usize,
    lookups: [Lookup<'a>; N],
    tokens: Range<usize>,
    out: &'a mut [X],
}

impl<X: Element, const N: usize> Kernel for Gather<'_, X, N> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { width, lookups, tokens, out } = self;
        for (i, token) in tokens.enumerate() {
            let mut rows: [&[f32]; N] = [&[]; N];
            for (row, lookup) in rows.iter_mut().zip(&lookups) {
                let id = lookup.ids[token] as usize;
                *row = &lookup.table[id * width..(id + 1) * width];
            }
            let out = &mut out[i * width..(i + 1) * width];
            Row::new(simd, width).map(
                Cached(rows),
                [out],
                #[inline(always)]
                |simd, rows| {
                    let mut sum = rows[0];
                    for &row in &rows[1..] {
                        sum = simd.add(sum, row);
                    }
                    [sum]
                },
            );
        }
    }
}

/// Length of the scratch of [`backward`] for `tokens` tokens and a table of `vocabulary` rows.
pub const fn backward_scratch_len(tokens: usize, vocabulary: usize) -> usize {
    tokens.saturating_add(vocabulary).saturating_add(1)
}

compiled_here! {
    /// Adds each token's row of `dout` [T, width] to its row of dtable [V, width]; `scratch` of [`backward_scratch_len`].
    ///
    /// # Panics
    /// If lengths do not match, or an id is not below V.
    pub fn backward<X>(
        cpu: &Cpu,
        width: usize,
        ids: &[u32],
        dout: &[X],
        dtable: &mut [f32],
        scratch: &mut [u32],
    ) = backward_body;
}

fn backward_body<X: Element>(
    cpu: &Cpu,
    width: usize,
    ids: &[u32],
    dout: &[X],
    dtable: &mut [f32],
    scratch: &mut [u32],
) {
    let tokens = ids.len();
    assert_eq!(dout.len(), area(tokens, width), "embedding: dout is not {tokens} rows of {width}");
    let vocabulary = dtable.len().checked_div(width).unwrap_or(0);
    assert_eq!(dtable.len(), vocabulary * width, "embedding: dtable is no rows of {width}");
    check_ids(ids, vocabulary);
    let room = backward_scratch_len(tokens, vocabulary);
    assert!(scratch.len() >= room, "embedding: scratch holds {} words, {room} are needed", scratch.len());
    let (offsets, order) = scratch[..room].split_at_mut(vocabulary + 1);
    sort_by_id(ids, offsets, order);
    let (offsets, order) = (&*offsets, &*order);
    let isa = cpu.isa();
    for_each_block(cpu, vocabulary, rows_per_task(width), Rows::new(dtable, width), |ids, dtable| {
        if offsets[ids.start] < offsets[ids.end] {
            isa.run(Scatter { width, offsets: &offsets[ids.start..=ids.end], order, dout, dtable });
        }
    });
}

/// Sorts tokens by id, stably: `order` has the tokens of id v at offsets\[v\] .. offsets\[v+1\].
fn sort_by_id(ids: &[u32], offsets: &mut [u32], order: &mut [u32]) {
    offsets.fill(0);
    let vocabulary = offsets.len() - 1;
    for &id in ids {
        offsets[id as usize + 1] += 1;
    }
    for v in 0..vocabulary {
        offsets[v + 1] += offsets[v];
    }
    // This moves each offset from the start of its id's tokens to their end, the start of the next id's tokens, ...
    for (token, &id) in ids.iter().enumerate() {
        let place = &mut offsets[id as usize];
        order[*place as usize] = token as u32;
        *place += 1;
    }
    // ... so shifting the offsets by one restores them.
    offsets.copy_within(..vocabulary, 1);
    offsets[0] = 0;
}

/// Backward of a block of the table's rows.
struct Scatter<'a, X> {
    width: usize,
    offsets: &'a [u32],
    order: &'a [u32],
    dout: &'a [X],
    dtable: &'a mut [f32],
}

impl<X: Element> Kernel for Scatter<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { width, offsets, order, dout, dtable } = self;
        for (bounds, row) in offsets.windows(2).zip(dtable.chunks_mut(width)) {
            for &token in &order[bounds[0] as usize..bounds[1] as usize] {
                let dout = &dout[token as usize * width..][..width];
                Row::new(simd, width).update(
                    [dout],
                    [&mut *row],
                    #[inline(always)]
                    |simd, [x], [sum]| {
                        *sum = simd.add(*sum, x);
                    },
                );
            }
        }
    }
}
