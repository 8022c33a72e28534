//! The definition of embedding.

use crate::check::Real;

/// out [T, width] of (ids `[T]`, table [V, width]) pairs, summed in their order.
pub fn forward<R: Real>(width: usize, lookups: &[(&[u32], &[R])]) -> Vec<R> {
    let tokens = lookups.first().map_or(0, |(ids, _)| ids.len());
    let element = |i: usize| {
        let row = |ids: &[u32]| ids[i / width] as usize * width + i % width;
        let parts = lookups.iter().map(|(ids, table)| table[row(ids)]);
        parts.reduce(|sum, x| sum + x).unwrap_or(R::of(0.0))
    };
    (0..tokens * width).map(element).collect()
}

/// `table` plus the rows of dout, token by token.
pub fn backward<R: Real>(width: usize, ids: &[u32], dout: &[R], table: &[R]) -> Vec<R> {
    let mut table = table.to_vec();
    for (&id, dout) in ids.iter().zip(dout.chunks(width)) {
        let row = &mut table[id as usize * width..][..width];
        row.iter_mut().zip(dout).for_each(|(d, &x)| *d = *d + x);
    }
    table
}
