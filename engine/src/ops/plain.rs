//! Row kernels in plain loops, called like those of the `kernels` crate.
use kernels::Element;

fn dot<X: Element>(a: &[X], b: &[X]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a.to_f32() * b.to_f32()).sum()
}

/// out += column sums of x [rows, cols].
pub(super) fn column_sums<X: Element>(cols: usize, x: &[X], out: &mut [f32]) {
    for row in x.chunks_exact(cols.max(1)) {
        for (out, x) in out.iter_mut().zip(row) {
            *out += x.to_f32();
        }
    }
}

pub(super) fn softmax_forward<X: Element>(cols: usize, x: &[X], y: &mut [X]) {
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
        let max = x.iter().fold(f32::NEG_INFINITY, |m, x| m.max(x.to_f32()));
        let sum: f32 = x.iter().map(|x| (x.to_f32() - max).exp()).sum();
        x.iter().zip(y).for_each(|(x, y)| *y = X::from_f32((x.to_f32() - max).exp() / sum));
    }
}

pub(super) fn softmax_backward<X: Element>(cols: usize, y: &[X], dy: &[X], dx: &mut [X]) {
    for ((y, dy), dx) in y.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols)) {
        let inner = dot(y, dy);
        for j in 0..cols {
            dx[j] = X::from_f32(y[j].to_f32() * (dy[j].to_f32() - inner));
        }
    }
}

/// losses, lse and whether the greatest logit is the label's, of rows of logits.
pub(super) fn cross_entropy_rows<X: Element>(
    classes: usize,
    logits: &[X],
    labels: &[u32],
    losses: &mut [f32],
    lse: &mut [f32],
    correct: &mut [u32],
) {
    for (r, row) in logits.chunks_exact(classes).enumerate() {
        let (mut best, mut max) = (0, f32::NEG_INFINITY);
        for (j, x) in row.iter().enumerate() {
            if x.to_f32() > max {
                (best, max) = (j, x.to_f32());
            }
        }
        lse[r] = max + row.iter().map(|x| (x.to_f32() - max).exp()).sum::<f32>().ln();
        losses[r] = lse[r] - row[labels[r] as usize].to_f32();
        correct[r] = u32::from(best == labels[r] as usize);
    }
}

/// dlogits = scale * (softmax - onehot)
pub(super) fn cross_entropy_rows_backward<X: Element>(
    classes: usize,
    logits: &[X],
    labels: &[u32],
    lse: &[f32],
    scale: f32,
    dlogits: &mut [X],
) {
    for (r, (row, d)) in logits.chunks_exact(classes).zip(dlogits.chunks_exact_mut(classes)).enumerate() {
        for j in 0..classes {
            let p = (row[j].to_f32() - lse[r]).exp() - if j == labels[r] as usize { 1.0 } else { 0.0 };
            d[j] = X::from_f32(scale * p);
        }
    }
}

/// y = Σ_i table_i[ids_i]
pub(super) fn embedding_forward<X: Element>(width: usize, ids: &[&[u32]], tables: &[&[f32]], y: &mut [X]) {
    for (t, y) in y.chunks_exact_mut(width).enumerate() {
        for (j, y) in y.iter_mut().enumerate() {
            *y = X::from_f32(ids.iter().zip(tables).map(|(ids, table)| table[ids[t] as usize * width + j]).sum());
        }
    }
}

/// dtable[ids] += dy, in token order.
pub(super) fn embedding_backward<X: Element>(width: usize, ids: &[u32], dy: &[X], dtable: &mut [f32]) {
    for (&id, dy) in ids.iter().zip(dy.chunks_exact(width)) {
        let row = &mut dtable[id as usize * width..][..width];
        row.iter_mut().zip(dy).for_each(|(row, dy)| *row += dy.to_f32());
    }
}
