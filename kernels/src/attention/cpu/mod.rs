//! Attention on CPUs: partitioning into tasks and scratch; the tasks are in `forward` and `backward`.

mod backward;
mod exponential;
mod forward;
mod mask;
mod multiply;
mod pack;
mod prefetch;
mod product;
mod scores;

use super::{Attention, Gradients, Ragged};
use crate::dropout::Dropout;
use crate::pool::{Cpu, Disjoint};
use crate::simd::compiled_here;
use mask::PanelMask;
use multiply::Storage;
use pack::Rows;
use prefetch::PrefetchQueue;
use std::cell::RefCell;

pub(super) use backward::resident_keys;

/// One head of one sequence.
#[derive(Clone, Copy)]
struct Head {
    /// D: elements of the head.
    size: usize,
    scale: f32,
    /// S: tokens of the sequence.
    length: usize,
    /// Number of tokens, from the first on, that are keys.
    keys: usize,
    dropout: Option<Dropout>,
    /// Index of the sequence's first token.
    token: usize,
    index: usize,
    heads: usize,
}

impl Head {
    /// Mask of the panel of queries that starts at query `query` of the sequence.
    fn mask(&self, query: usize) -> Option<PanelMask> {
        let row = ((self.token + query) * self.heads + self.index) as u64;
        self.dropout.map(|dropout| PanelMask { dropout, row, heads: self.heads as u32 })
    }

    /// The head's columns in the rows of the sequence.
    fn rows<'a, X>(&self, values: &'a [X], ld: usize) -> Rows<'a, X> {
        Rows { values, start: self.token * ld + self.index * self.size, ld }
    }

    /// The head's columns in the rows of the sequence of an output with `width` elements per head.
    fn output<'a, X>(&self, values: Disjoint<'a, X>, ld: usize, width: usize) -> Output<'a, X> {
        Output { values, start: self.token * ld + self.index * width, ld }
    }
}

impl<'a, X> Rows<'a, X> {
    /// The rows after the first `rows`.
    #[inline(always)]
    fn skip(self, rows: usize) -> Self {
        Self { start: self.start + rows * self.ld, ..self }
    }
    /// Row `row`, `width` elements.
    #[inline(always)]
    fn row(self, row: usize, width: usize) -> &'a [X] {
        &self.values[self.start + row * self.ld..][..width]
    }
}

/// Columns of one head in the rows of one output, written by one task.
///
/// Neither `Copy` nor `Clone`, so that a row is borrowed once at a time.
struct Output<'a, X> {
    values: Disjoint<'a, X>,
    start: usize,
    ld: usize,
}

impl<X> Output<'_, X> {
    /// Row `row`, `width` elements.
    #[inline(always)]
    fn row(&mut self, row: usize, width: usize) -> &mut [X] {
        let start = self.start + row * self.ld;
        // SAFETY: a task borrows only rows of its own queries or keys and columns of its own head, which no other task
        // accesses (heads are `width` apart and ld >= heads * width, which does not wrap: `Attention::tokens`; fused
        // gradients are H apart and ld >= 3 H: `Gradients::fused`), and one row at a time (&mut self).
        unsafe { self.values.slice(start..start + width) }
    }
}

/// Floats between two scratch buffers. At a distance of a power of two a load from one would alias (4 KiB aliasing)
/// with an earlier store to another, because the CPU compares only the lower 12 bits of their addresses.
const GAP: usize = 5 * LINE;

/// Floats of scratch for buffers of these lengths, cut by [`split`].
fn scratch_of<const N: usize>(lengths: [usize; N]) -> usize {
    lengths.iter().sum::<usize>() + N * GAP
}

/// Splits scratch into buffers of these lengths.
// Once a task, and not part of the kernel's machine code.
#[inline(never)]
fn split<const N: usize>(scratch: &mut [f32], lengths: [usize; N]) -> [&mut [f32]; N] {
    let mut rest = scratch;
    lengths.map(|length| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(length + GAP);
        rest = tail;
        &mut part[..length]
    })
}

/// Floats in a cache line.
const LINE: usize = 16;

thread_local! {
    /// Scratch of this thread; grows to the size for D and is kept.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Runs `task` with `len` floats of this thread's scratch, aligned to a cache line, with unspecified values.
fn with_scratch(len: usize, task: impl FnOnce(&mut [f32])) {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < len + LINE {
            scratch.resize(len + LINE, 0.0);
        }
        let offset = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        task(&mut scratch[offset..offset + len]);
    });
}

/// Floats of scratch per thread for both passes.
fn thread_scratch_len(d: usize) -> usize {
    forward::scratch_len(d).max(backward::scratch_len(d))
}

/// Bytes of scratch per worker thread, held from its first task or [`warm_up`] on.
pub fn scratch_bytes(head_size: usize) -> usize {
    4 * (thread_scratch_len(head_size) + LINE)
}

/// Allocates the scratch of every worker thread for heads of this size, so that later calls allocate nothing.
pub fn warm_up(cpu: &Cpu, head_size: usize) {
    cpu.on_every_thread(|_| with_scratch(thread_scratch_len(head_size), |_| {}));
}

compiled_here! {
    /// [`super::forward`] with checked sizes; `qkv` are its q, k and v.
    pub(super) fn forward<X>(
        cpu: &Cpu,
        spec: &Attention,
        batch: Ragged<'_>,
        qkv: [&[X]; 3],
        ld: usize,
        out: &mut [X],
        lse: &mut [f32],
    ) = forward_body;
    /// [`super::backward`] with checked sizes.
    pub(super) fn backward<X>(
        cpu: &Cpu,
        spec: &Attention,
        batch: Ragged<'_>,
        saved: &Saved<'_, X>,
        gradients: &Gradients<'_, X>,
        scratch: &mut [f32],
    ) = backward_body;
}

fn forward_body<X: Storage>(
    cpu: &Cpu,
    spec: &Attention,
    batch: Ragged<'_>,
    [q, k, v]: [&[X]; 3],
    ld: usize,
    out: &mut [X],
    lse: &mut [f32],
) {
    if batch.tokens() == 0 {
        return;
    }
    let (heads, d) = (spec.heads, spec.head_size);
    let sequences = batch.count();
    // Sequence b has the slots from first_slot(b) on: at least as many as blocks of queries, computed without a table.
    let first_slot = |b: usize| batch.cu_seqlens[b] as usize / forward::BLOCK + b;
    let (out, lse) = (Disjoint::new(out), Disjoint::new(lse));
    // Head, first query and number of queries of a task; `None` for an unused slot.
    let place = |task: usize| {
        let (slot, index) = (task / heads, task % heads);
        let b = partition_point(sequences, |b| first_slot(b) <= slot) - 1;
        let (head, first) = (spec.head(batch, b, index), (slot - first_slot(b)) * forward::BLOCK);
        (first < head.length).then(|| (head, first, forward::BLOCK.min(head.length - first)))
    };
    let tasks = first_slot(sequences) * heads;
    let far = PrefetchQueue::is_far::<X>(4 * batch.tokens() * heads * d);
    cpu.for_each(tasks, |task| {
        let Some((head, first, queries)) = place(task) else { return };
        let mut prefetches = PrefetchQueue::new();
        if far
            && task + 1 < tasks
            && let Some((head, first, queries)) = place(task + 1)
        {
            prefetches = prefetches.and_write(&head.output(out, heads * d, d), queries, d);
            prefetches = prefetches.and_read(head.rows(v, ld), head.keys, d).and_read(head.rows(k, ld), head.keys, d);
            prefetches = prefetches.and_read(head.rows(q, ld).skip(first), queries, d);
        }
        with_scratch(forward::scratch_len(d), |scratch| {
            let task = forward::Forward {
                head,
                first,
                queries,
                q: head.rows(q, ld).skip(first),
                k: head.rows(k, ld),
                v: head.rows(v, ld),
                out: head.output(out, heads * d, d),
                lse: head.output(lse, heads, 1),
                prefetches,
                scratch,
            };
            X::run(cpu, task);
        });
    });
}

/// First i of 0..n for which `before` is false, or n.
fn partition_point(n: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low.midpoint(high);
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

impl Attention {
    fn head(&self, batch: Ragged<'_>, sequence: usize, index: usize) -> Head {
        let (token, end, keys) = batch.sequence(sequence);
        Head {
            size: self.head_size,
            scale: self.scale,
            length: end - token,
            keys,
            dropout: self.dropout,
            token,
            index,
            heads: self.heads,
        }
    }
}

/// Inputs of backward, some saved by forward.
pub(super) struct Saved<'a, X> {
    pub(super) q: &'a [X],
    pub(super) k: &'a [X],
    pub(super) v: &'a [X],
    pub(super) ld: usize,
    pub(super) out: &'a [X],
    pub(super) lse: &'a [f32],
    pub(super) dout: &'a [X],
}

fn backward_body<X: Storage>(
    cpu: &Cpu,
    spec: &Attention,
    batch: Ragged<'_>,
    saved: &Saved<'_, X>,
    gradients: &Gradients<'_, X>,
    scratch: &mut [f32],
) {
    if batch.tokens() == 0 {
        return;
    }
    let (heads, d) = (spec.heads, spec.head_size);
    let (hidden, sums) = (heads * d, Disjoint::new(scratch));
    let tasks = batch.count() * heads;
    let far = PrefetchQueue::is_far::<X>(8 * batch.tokens() * hidden);
    let gradient = |head: &Head, i: usize| Output {
        values: gradients.values[i],
        start: gradients.starts[i] + head.token * gradients.ld + head.index * d,
        ld: gradients.ld,
    };
    let Saved { q, k, v, ld, out, dout, .. } = *saved;
    cpu.for_each(tasks, |task| {
        let head = spec.head(batch, task / heads, task % heads);
        if head.length == 0 {
            return;
        }
        let mut prefetches = PrefetchQueue::new();
        if far && task + 1 < tasks {
            let head = spec.head(batch, (task + 1) / heads, (task + 1) % heads);
            for i in [2, 1, 0] {
                prefetches = prefetches.and_write(&gradient(&head, i), head.length, d);
            }
            for (matrix, ld) in [(out, hidden), (dout, hidden), (q, ld), (v, ld), (k, ld)] {
                prefetches = prefetches.and_read(head.rows(matrix, ld), head.length, d);
            }
        }
        with_scratch(backward::scratch_len(d), |scratch| {
            let task = backward::Backward {
                head,
                q: head.rows(q, ld),
                k: head.rows(k, ld),
                v: head.rows(v, ld),
                out: head.rows(out, hidden),
                dout: head.rows(dout, hidden),
                lse: Rows { values: saved.lse, start: head.token * heads + head.index, ld: heads },
                dq: gradient(&head, 0),
                dk: gradient(&head, 1),
                dv: gradient(&head, 2),
                dq_sums: (head.keys > resident_keys(d)).then(|| head.output(sums, hidden, d)),
                prefetches,
                scratch,
            };
            X::run(cpu, task);
        });
    });
}
