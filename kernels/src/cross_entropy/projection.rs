//! Loss with its projection: chunks of logits by GEMM, kept for backward or in scratch of bounded size.

use super::cpu::{Losses, NORM, STATE, Upstream, check_labels, differentiate, finish, observe, reset};
use crate::Element;
use crate::elementwise::cast;
use crate::extent::area;
use crate::gemm::{Epilogue, Gemm, Precision, gemm};
use crate::pool::Cpu;
use crate::reduce::{column_sums, column_sums_scratch_len};
use std::ops::Range;

/// Rows of a chunk; W is read once per chunk of rows.
const CHUNK_ROWS: usize = 512;
/// Classes of a chunk: 512 x 512 logits are 1 MiB and stay in L2.
const CHUNK_CLASSES: usize = 512;

/// Inputs of the loss.
#[derive(Clone, Copy, Debug)]
pub struct Projection<'a, X, W> {
    /// E
    pub width: usize,
    /// h [M, E]: the rows that have a label
    pub hidden: &'a [X],
    /// W [V, E]: the word embeddings if they are tied
    pub weight: &'a [W],
    /// b `[V]`
    pub bias: &'a [f32],
    /// `[M]`, each below V or [`IGNORED`](super::IGNORED)
    pub labels: &'a [u32],
    /// Of the products
    pub precision: Precision,
}

impl<X: Element, W: Element> Projection<'_, X, W> {
    /// (M, V), with all lengths checked.
    fn shape(&self) -> (usize, usize) {
        let (rows, classes) = (self.labels.len(), self.bias.len());
        assert_eq!(self.hidden.len(), area(rows, self.width), "cross_entropy: hidden is not [{rows}, {}]", self.width);
        assert_eq!(
            self.weight.len(),
            area(classes, self.width),
            "cross_entropy: weight is not [{classes}, {}]",
            self.width
        );
        check_labels(self.labels, classes);
        (rows, classes)
    }

    /// Computes z of some rows and classes.
    fn chunk(&self, cpu: &Cpu, rows: &Span, classes: &Span, logits: &mut [f32]) {
        let spec = Gemm::nt(rows.len, classes.len, self.width).with_precision(self.precision);
        let (hidden, weight) = (rows.of(self.hidden, self.width), classes.of(self.weight, self.width));
        gemm(cpu, &spec, hidden, weight, logits, Epilogue::bias(classes.of(self.bias, 1)));
    }
}

/// Range of the chunk of `rows` and `classes` in the kept logits of V `vocabulary` classes. Chunks are contiguous, in the
/// order in which they are computed.
fn place_of(rows: &Span, classes: &Span, vocabulary: usize) -> Range<usize> {
    let start = rows.start * vocabulary + rows.len * classes.start;
    start..start + rows.len * classes.len
}

/// Contiguous rows or classes.
struct Span {
    start: usize,
    len: usize,
}

impl Span {
    /// Splits 0 .. n into spans of `size`.
    fn all(n: usize, size: usize) -> impl Iterator<Item = Self> {
        (0..n).step_by(size).map(move |start| Self { start, len: size.min(n - start) })
    }
    /// Part of `x` of these rows or classes, `width` elements each.
    fn of<'a, T>(&self, x: &'a [T], width: usize) -> &'a [T] {
        &x[self.start * width..][..self.len * width]
    }
    /// Mutable [`of`](Self::of).
    fn of_mut<'a, T>(&self, x: &'a mut [T], width: usize) -> &'a mut [T] {
        &mut x[self.start * width..][..self.len * width]
    }
}

/// Elements of scratch for the logits, the rows' states or gradients, and column sums.
const fn scratch_parts(rows: usize, width: usize, classes: usize) -> [usize; 3] {
    let rows = if rows < CHUNK_ROWS { rows } else { CHUNK_ROWS };
    let classes = if classes < CHUNK_CLASSES { classes } else { CHUNK_CLASSES };
    [area(rows, classes), area(rows, if width > STATE { width } else { STATE }), column_sums_scratch_len(rows, classes)]
}

/// Length of the scratch of [`forward`] and [`backward`] for M `rows` of `width` E and V `classes`.
pub const fn scratch_len(rows: usize, width: usize, classes: usize) -> usize {
    let [logits, of_rows, sums] = scratch_parts(rows, width, classes);
    logits.saturating_add(of_rows).saturating_add(sums)
}

fn cut(scratch: &mut [f32], parts: [usize; 3]) -> [&mut [f32]; 3] {
    let room = parts[0].saturating_add(parts[1]).saturating_add(parts[2]);
    assert!(scratch.len() >= room, "cross_entropy: scratch holds {} floats, {room} are needed", scratch.len());
    let (logits, rest) = scratch.split_at_mut(parts[0]);
    let (of_rows, rest) = rest.split_at_mut(parts[1]);
    [logits, of_rows, &mut rest[..parts[2]]]
}

/// Gradients of [`backward`].
#[derive(Debug)]
pub struct TableGradients<'a, X> {
    /// Gradient of the hidden rows [M, E], written.
    pub dhidden: &'a mut [X],
    /// Gradient of the table [V, E], added to.
    pub dweight: &'a mut [f32],
    /// Gradient of the bias `[V]`, added to.
    pub dbias: &'a mut [f32],
}

/// Computes losses, normalizers and predictions. `kept`, if [`backward`] follows, receives its M·V logits in
/// order of chunks. `scratch` of [`scratch_len`].
///
/// # Panics
/// If lengths do not match, or a label is neither below V nor [`IGNORED`](super::IGNORED).
pub fn forward<X: Element, W: Element>(
    cpu: &Cpu,
    projection: &Projection<'_, X, W>,
    Losses { losses, norms, predictions }: Losses<'_>,
    mut kept: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    let (rows, classes) = projection.shape();
    assert!(losses.len() == rows && predictions.len() == rows, "cross_entropy: not {rows} rows");
    assert_eq!(norms.len(), area(NORM, rows), "cross_entropy: norms are not [{rows}, {NORM}]");
    assert!(
        kept.as_ref().is_none_or(|kept| kept.len() == area(rows, classes)),
        "cross_entropy: kept is not [{rows}, {classes}]"
    );
    let vocabulary = classes;
    let [logits, state, _] = cut(scratch, scratch_parts(rows, projection.width, classes));
    for rows in Span::all(rows, CHUNK_ROWS) {
        let labels = rows.of(projection.labels, 1);
        let state = &mut state[..rows.len * STATE];
        let predictions = rows.of_mut(predictions, 1);
        reset(state);
        for classes in Span::all(classes, CHUNK_CLASSES) {
            let z = match &mut kept {
                Some(kept) => &mut kept[place_of(&rows, &classes, vocabulary)],
                None => &mut logits[..rows.len * classes.len],
            };
            projection.chunk(cpu, &rows, &classes, z);
            observe(cpu, classes.len, classes.start, z, labels, state, predictions);
        }
        finish(cpu, labels, state, rows.of_mut(losses, 1), rows.of_mut(norms, NORM));
    }
}

/// Computes the gradients. The logits `kept` are those of forward; `scratch` of [`scratch_len`].
///
/// # Panics
/// If lengths do not match, or a label is neither below V nor [`IGNORED`](super::IGNORED).
pub fn backward<X: Element, W: Element>(
    cpu: &Cpu,
    projection: &Projection<'_, X, W>,
    Upstream { norms, dlosses }: Upstream<'_>,
    kept: &[f32],
    TableGradients { dhidden, dweight, dbias }: TableGradients<'_, X>,
    scratch: &mut [f32],
) {
    let (rows, classes) = projection.shape();
    let width = projection.width;
    assert!(
        norms.len() == area(NORM, rows) && dlosses.len() == rows,
        "cross_entropy: norms or dlosses are not of {rows} rows"
    );
    assert_eq!(kept.len(), area(rows, classes), "cross_entropy: kept is not [{rows}, {classes}]");
    let vocabulary = classes;
    assert_eq!(dhidden.len(), area(rows, width), "cross_entropy: dhidden is not [{rows}, {width}]");
    assert!(dweight.len() == area(classes, width) && dbias.len() == classes, "cross_entropy: not {classes} classes");
    let [logits, dh, sums] = cut(scratch, scratch_parts(rows, width, classes));
    for rows in Span::all(rows, CHUNK_ROWS) {
        let hidden = rows.of(projection.hidden, width);
        let (labels, norms, dlosses) = (rows.of(projection.labels, 1), rows.of(norms, NORM), rows.of(dlosses, 1));
        // Accumulated over classes in f32 for every storage of dhidden.
        let dh = &mut dh[..rows.len * width];
        dh.fill(0.0);
        for classes in Span::all(classes, CHUNK_CLASSES) {
            let dz = &mut logits[..rows.len * classes.len];
            let z = &kept[place_of(&rows, &classes, vocabulary)];
            differentiate(cpu, classes.len, classes.start, z, labels, Upstream { norms, dlosses }, dz);
            let weight = classes.of(projection.weight, width);
            let product = |spec: Gemm| spec.accumulate().with_precision(projection.precision);
            gemm(cpu, &product(Gemm::nn(rows.len, width, classes.len)), dz, weight, dh, Epilogue::NONE);
            let dw = classes.of_mut(dweight, width);
            gemm(cpu, &product(Gemm::tn(classes.len, width, rows.len)), dz, hidden, dw, Epilogue::NONE);
            column_sums(cpu, rows.len, classes.len, dz, classes.of_mut(dbias, 1), sums);
        }
        cast(cpu, dh, rows.of_mut(dhidden, width));
    }
}
