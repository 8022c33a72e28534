//! Loss of rows of logits with SIMD: whole rows, or one chunk of classes after another.

use super::IGNORED;
use crate::extent::area;
use crate::num::functions;
use crate::pool::Cpu;
use crate::rows::{Max, Row, Rows, for_each_block, rows_per_task};
use crate::softmax::sum_of_exp;
use crate::{
    Element,
    simd::{Kernel, Simd, compiled_here},
};
use std::ops::Range;

/// Elements of a row's state: maximum logit so far, Σ exp(z - maximum), the label's logit.
pub(super) const STATE: usize = 3;
/// Elements of a row's normalizer: maximum logit, 1 / Σ exp(z - maximum).
pub(super) const NORM: usize = 2;
/// Initial state of a row.
const UNSEEN: [f32; STATE] = [f32::NEG_INFINITY, 0.0, 0.0];

/// Results of forward passes, for each of M rows.
#[derive(Debug)]
pub struct Losses<'a> {
    /// Losses `[M]`.
    pub losses: &'a mut [f32],
    /// Normalizers [M, 2] (see the module).
    pub norms: &'a mut [f32],
    /// Classes of the greatest logits `[M]`.
    pub predictions: &'a mut [u32],
}

/// Inputs of the backward pass: results of the forward pass, and the gradient that arrives.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// Normalizers of the forward pass, [M, 2].
    pub norms: &'a [f32],
    /// Gradients of the losses `[M]`.
    pub dlosses: &'a [f32],
}

compiled_here! {
    /// Computes the results of `logits` [M, classes] and `labels` `[M]`.
    ///
    /// # Panics
    /// If lengths do not match, or a label is neither below `classes` nor [`IGNORED`].
    pub fn rows_forward<X>(
        cpu: &Cpu,
        classes: usize,
        logits: &[X],
        labels: &[u32],
        results: Losses<'_>,
    ) = rows_forward_body;
}

fn rows_forward_body<X: Element>(
    cpu: &Cpu,
    classes: usize,
    logits: &[X],
    labels: &[u32],
    Losses { losses, norms, predictions }: Losses<'_>,
) {
    let rows = labels.len();
    check_labels(labels, classes);
    assert_eq!(logits.len(), area(rows, classes), "cross_entropy: logits are not [{rows}, {classes}]");
    assert!(losses.len() == rows && predictions.len() == rows, "cross_entropy: not {rows} rows");
    assert_eq!(norms.len(), area(NORM, rows), "cross_entropy: norms are not [{rows}, {NORM}]");
    let isa = cpu.isa();
    let outputs = (Rows::new(losses, 1), Rows::new(norms, NORM), Rows::new(predictions, 1));
    for_each_block(cpu, rows, rows_per_task(classes), outputs, |rows, (losses, norms, predictions)| {
        for (i, row) in rows.enumerate() {
            let mut state = UNSEEN;
            let z = &logits[row * classes..(row + 1) * classes];
            let chunk = Chunk { classes, first_class: 0, logits: z, labels: &labels[row..=row] };
            isa.run(Observe { chunk, state: &mut state, predictions: &mut predictions[i..=i] });
            let norm = &mut norms[NORM * i..][..NORM];
            losses[i] = isa.run(Finish { label: labels[row], state, norm });
        }
    });
}

compiled_here! {
    /// Computes the logits' gradient [M, classes].
    ///
    /// # Panics
    /// If lengths do not match, or a label is neither below `classes` nor [`IGNORED`].
    pub fn rows_backward<X>(
        cpu: &Cpu,
        classes: usize,
        logits: &[X],
        labels: &[u32],
        upstream: Upstream<'_>,
        dlogits: &mut [X],
    ) = rows_backward_body;
}

fn rows_backward_body<X: Element>(
    cpu: &Cpu,
    classes: usize,
    logits: &[X],
    labels: &[u32],
    upstream @ Upstream { norms, dlosses }: Upstream<'_>,
    dlogits: &mut [X],
) {
    let rows = labels.len();
    check_labels(labels, classes);
    let fits = |len: usize| len == area(rows, classes);
    assert!(fits(logits.len()) && fits(dlogits.len()), "cross_entropy: logits are not [{rows}, {classes}]");
    assert!(
        norms.len() == area(NORM, rows) && dlosses.len() == rows,
        "cross_entropy: norms or dlosses are not of {rows} rows"
    );
    differentiate(cpu, classes, 0, logits, labels, upstream, dlogits);
}

/// [`rows_forward`] for rows of different lengths: sequence b has `logits` `[T]` from `offsets`\[b\] to `offsets`\[b + 1\].
///
/// # Panics
/// If lengths do not match, a sequence is empty, or a label is neither in its sequence nor [`IGNORED`].
pub fn sequences_forward<X: Element>(
    cpu: &Cpu,
    offsets: &[u32],
    logits: &[X],
    labels: &[u32],
    Losses { losses, norms, predictions }: Losses<'_>,
) {
    let count = labels.len();
    assert!(losses.len() == count && predictions.len() == count, "cross_entropy: not {count} sequences");
    assert_eq!(norms.len(), area(count, NORM), "cross_entropy: norms are not [{count}, {NORM}]");
    for (b, tokens) in sequences(offsets, logits.len(), count).enumerate() {
        let (label, loss, norm) = (&labels[b..=b], &mut losses[b..=b], &mut norms[NORM * b..][..NORM]);
        rows_forward(
            cpu,
            tokens.len(),
            &logits[tokens],
            label,
            Losses { losses: loss, norms: norm, predictions: &mut predictions[b..=b] },
        );
    }
}

/// [`rows_backward`] for the rows of [`sequences_forward`].
///
/// # Panics
/// If lengths do not match, a sequence is empty, or a label is neither in its sequence nor [`IGNORED`].
pub fn sequences_backward<X: Element>(
    cpu: &Cpu,
    offsets: &[u32],
    logits: &[X],
    labels: &[u32],
    Upstream { norms, dlosses }: Upstream<'_>,
    dlogits: &mut [X],
) {
    let count = labels.len();
    assert!(
        norms.len() == area(count, NORM) && dlosses.len() == count && dlogits.len() == logits.len(),
        "cross_entropy: norms, dlosses or dlogits are not of {count} sequences"
    );
    for (b, tokens) in sequences(offsets, logits.len(), count).enumerate() {
        let (label, norm, dloss) = (&labels[b..=b], &norms[NORM * b..][..NORM], &dlosses[b..=b]);
        rows_backward(
            cpu,
            tokens.len(),
            &logits[tokens.clone()],
            label,
            Upstream { norms: norm, dlosses: dloss },
            &mut dlogits[tokens],
        );
    }
}

/// Tokens of each sequence.
fn sequences(offsets: &[u32], tokens: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let fits = offsets.len() == count + 1 && offsets[0] == 0 && offsets[count] as usize == tokens;
    assert!(
        fits && offsets.is_sorted_by(|a, b| a < b),
        "cross_entropy: {offsets:?} are not {count} of {tokens} tokens"
    );
    offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
}

pub(super) fn check_labels(labels: &[u32], classes: usize) {
    let bad = labels.iter().find(|&&label| label != IGNORED && label as usize >= classes);
    assert!(bad.is_none(), "cross_entropy: label {} of {classes} classes", bad.expect("just found"));
}

/// Resets the states of rows.
pub(super) fn reset(state: &mut [f32]) {
    state.chunks_mut(STATE).for_each(|state| state.copy_from_slice(&UNSEEN));
}

/// Updates the states and predictions of rows with the chunk [rows, classes] of logits from `first_class` on.
pub(super) fn observe(
    cpu: &Cpu,
    classes: usize,
    first_class: usize,
    logits: &[f32],
    labels: &[u32],
    state: &mut [f32],
    predictions: &mut [u32],
) {
    let isa = cpu.isa();
    let outputs = (Rows::new(state, STATE), Rows::new(predictions, 1));
    for_each_block(cpu, labels.len(), rows_per_task(classes), outputs, |rows, (state, predictions)| {
        let logits = &logits[rows.start * classes..rows.end * classes];
        isa.run(Observe { chunk: Chunk { classes, first_class, logits, labels: &labels[rows] }, state, predictions });
    });
}

/// Computes losses and normalizers from the states of rows after their last chunk.
pub(super) fn finish(cpu: &Cpu, labels: &[u32], state: &[f32], losses: &mut [f32], norms: &mut [f32]) {
    for (i, state) in state.chunks(STATE).enumerate() {
        let state = [state[0], state[1], state[2]];
        losses[i] = cpu.isa().run(Finish { label: labels[i], state, norm: &mut norms[NORM * i..][..NORM] });
    }
}

/// Computes the gradient of the chunk [rows, classes] of logits from `first_class` on.
pub(super) fn differentiate<X: Element>(
    cpu: &Cpu,
    classes: usize,
    first_class: usize,
    logits: &[X],
    labels: &[u32],
    Upstream { norms, dlosses }: Upstream<'_>,
    dlogits: &mut [X],
) {
    let isa = cpu.isa();
    for_each_block(cpu, labels.len(), rows_per_task(classes), Rows::new(dlogits, classes), |rows, dlogits| {
        let logits = &logits[rows.start * classes..rows.end * classes];
        let chunk = Chunk { classes, first_class, logits, labels: &labels[rows.clone()] };
        let norms = &norms[NORM * rows.start..NORM * rows.end];
        isa.run(Differentiate { chunk, norms, dlosses: &dlosses[rows], dlogits });
    });
}

/// Rows of logits of contiguous classes.
#[derive(Clone, Copy)]
struct Chunk<'a, X> {
    classes: usize,
    first_class: usize,
    logits: &'a [X],
    labels: &'a [u32],
}

/// Position of the label in a chunk of `classes` from `first` on, if it is in the chunk.
#[inline(always)]
fn place(label: u32, first: usize, classes: usize) -> Option<usize> {
    (label as usize).checked_sub(first).filter(|&place| label != IGNORED && place < classes)
}

struct Observe<'a, X> {
    chunk: Chunk<'a, X>,
    state: &'a mut [f32],
    predictions: &'a mut [u32],
}

impl<X: Element> Kernel for Observe<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Chunk { classes, first_class, logits, labels } = self.chunk;
        let states = self.state.chunks_mut(STATE).zip(self.predictions);
        let row = Row::new(simd, classes);
        for ((z, &label), (state, prediction)) in logits.chunks(classes).zip(labels).zip(states) {
            let before = state[0];
            let [greatest] = row.fold(
                Max,
                [z],
                #[inline(always)]
                |simd, [z], [max]| *max = simd.max(z, *max),
            );
            if greatest > before {
                state[0] = greatest;
                let first = z.iter().position(|z| z.to_f32() == greatest);
                *prediction = (first_class + first.expect("the greatest is one of them")) as u32;
            } else if before == f32::NEG_INFINITY {
                // All logits are NaN or -∞: the sum becomes NaN, and there is no valid prediction.
                *prediction = first_class as u32;
            }
            let shrink = exp_of(simd, before - state[0]);
            state[1] = state[1] * shrink + sum_of_exp(row, z, state[0]);
            if let Some(place) = place(label, first_class, classes) {
                state[2] = z[place].to_f32();
            }
        }
    }
}

/// Computes the loss and the normalizer of a state.
struct Finish<'a> {
    label: u32,
    state: [f32; STATE],
    norm: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let [greatest, sum, of_label] = self.state;
        self.norm.copy_from_slice(&[greatest, 1.0 / sum]);
        let log = simd.reduce_max(functions::ln(simd, simd.splat(sum)));
        if self.label == IGNORED { 0.0 } else { log + (greatest - of_label) }
    }
}

#[inline(always)]
fn exp_of<S: Simd>(simd: S, x: f32) -> f32 {
    simd.reduce_max(functions::exp(simd, simd.splat(x)))
}

struct Differentiate<'a, X> {
    chunk: Chunk<'a, X>,
    norms: &'a [f32],
    dlosses: &'a [f32],
    dlogits: &'a mut [X],
}

impl<X: Element> Kernel for Differentiate<'_, X> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Chunk { classes, first_class, logits, labels } = self.chunk;
        let row = Row::new(simd, classes);
        for (i, (z, dz)) in logits.chunks(classes).zip(self.dlogits.chunks_mut(classes)).enumerate() {
            if labels[i] == IGNORED {
                dz.fill(X::from_f32(0.0));
                continue;
            }
            // p · dloss with p = exp(z - greatest) · inverse, and (p - 1) · dloss at the label.
            let (greatest, inverse, dloss) = (self.norms[NORM * i], self.norms[NORM * i + 1], self.dlosses[i]);
            row.map(
                [z],
                [&mut *dz],
                #[inline(always)]
                |simd, [z]| {
                    let e = functions::exp(simd, simd.sub(z, simd.splat(greatest)));
                    [simd.mul(simd.mul(e, simd.splat(inverse)), simd.splat(dloss))]
                },
            );
            if let Some(place) = place(labels[i], first_class, classes) {
                let p = exp_of(simd, z[place].to_f32() - greatest) * inverse;
                dz[place] = X::from_f32((p - 1.0) * dloss);
            }
        }
    }
}
