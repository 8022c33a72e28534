//! Attention in f32 on the GPU (SIMT): for parity with the CPU, not for speed.
//!
//! Arguments and results are those of the tensor cores' kernels; a warp computes one query (or one key) of one head:
//!
//! ```text
//! forward   for each 32 keys: a lane a key:  s = scale · Σ_d q[d] k[key, d];   running maximum and sum by shuffles
//!                             a lane a column: o[d] = o[d] · shrink + Σ_j p of lane j · v[key j, d]
//! queries   likewise:  p = exp(s - lse);  ds = p (Σ_d dout[d] v[key, d] · M - δ);
//!                             dq[d] += Σ_j ds of lane j · k[key j, d]
//! keys      a lane a query of each 32:  dv[d] += Σ_j (p M) of lane j · dout[query j, d];
//!                             dk[d] += Σ_j ds of lane j · q[query j, d]
//! ```
//!
//! Each warp is the only writer of its row, and keys (queries) are added in order: no atomics, the same bits on every
//! run. Each lane reads a different row of keys, so loads are not coalesced and rely on the caches.

use super::{
    arguments::AttentionArgs,
    sm80::{Flash, ROWS},
    tile::{InputParams, Sequence, Sizes, SoftmaxMask, required},
};
use crate::arguments::Load;
use crate::dropout::Mask;
use ptx::{Compare, Entry, F32, Fold, Global, Precision, Pred, Ptr, Read, Reg, Special, Storage, U32};

/// State common to the three kernels: a warp's row and its sequence.
struct Row<'a> {
    k: &'a Entry,
    sequence: Sequence,
    sizes: Sizes,
    hidden: Reg<U32>,
    lane: Reg<U32>,
    /// Index of the row in its sequence.
    own: Reg<U32>,
    mask: Option<Mask>,
    /// Columns per lane: padded D / 32.
    columns: u32,
}

impl Row<'_> {
    /// Address of column 0 of the head in row `row` of the sequence.
    fn at(&self, matrix: Ptr<Global>, ld: Reg<U32>, row: Reg<U32>) -> Ptr<Global> {
        let k = self.k;
        let row = k.index(matrix, k.add(self.sequence.start, row), k.shl(ld, 2));
        k.index(row, self.sequence.column, 4u32)
    }

    /// Loads the element of a vector [T, A] for row `row` and the head.
    fn of_row(&self, vector: Ptr<Global>, row: Reg<U32>) -> Reg<F32> {
        let k = self.k;
        let token = k.add(self.sequence.start, row);
        let place = k.mad_lo(token, self.sequence.heads, self.sequence.head);
        k.load_elements(Storage::F32, k.index(vector, place, 4u32).at(0), 1, Read::Once)[0]
    }

    /// Σ_d a[d] · b[d] for `N` pairs of rows in one loop.
    fn dots<const N: usize>(&self, pairs: [(Ptr<Global>, Ptr<Global>); N]) -> [Reg<F32>; N] {
        let k = self.k;
        let sums = pairs.map(|_| k.variable("dot", 0.0f32));
        k.for_(0u32, self.sizes.head_size, 1u32, |d| {
            for ((a, b), sum) in pairs.into_iter().zip(sums) {
                let load = |row| k.load_elements(Storage::F32, k.index(row, d, 4u32).at(0), 1, Read::Again)[0];
                k.fma_into(sum, load(a), load(b), sum);
            }
        });
        sums
    }

    /// This lane's accumulators of a row, initialized to zero.
    fn sums(&self, name: &'static str) -> Vec<Reg<F32>> {
        let sums = self.k.registers::<F32>(name, self.columns as usize);
        sums.iter().for_each(|&sum| self.k.assign(sum, 0.0f32));
        sums
    }

    /// Adds Σ_j (weight of lane j) · (row `first` + j of the matrix) to this lane's columns, for rows below `end`.
    fn add_rows(
        &self,
        sums: &[Reg<F32>],
        weight: Reg<F32>,
        (matrix, ld): (Ptr<Global>, Reg<U32>),
        first: Reg<U32>,
        end: Reg<U32>,
    ) {
        let k = self.k;
        k.for_(0u32, k.min_u32(k.sub(end, first), 32u32), 1u32, |j| {
            let weight = k.shfl_from(weight, j);
            let from = k.index(self.at(matrix, ld, k.add(first, j)), self.lane, 4u32);
            for (i, &sum) in (0..).zip(sums) {
                let at = from.at(128 * i as i32);
                let value = k.load_number_if(Storage::F32, at, self.column_exists(i), Read::Again);
                k.fma_into(sum, weight, value, sum);
            }
        });
    }

    fn column_exists(&self, i: u32) -> Reg<Pred> {
        self.k.lt(self.k.add(self.lane, 32 * i), self.sizes.head_size)
    }

    /// Writes this lane's columns of the warp's row.
    fn store(&self, sums: &[Reg<F32>], matrix: Ptr<Global>, ld: Reg<U32>) {
        let k = self.k;
        let to = k.index(self.at(matrix, ld, self.own), self.lane, 4u32);
        for (i, &sum) in (0..).zip(sums) {
            k.when(self.column_exists(i), || k.st(to.at(128 * i as i32), [sum]));
        }
    }

    /// Dropout factor of the probability of (query, key); `None` without dropout.
    fn factor(&self, query: Reg<U32>, key: Reg<U32>) -> Option<Reg<F32>> {
        let (k, mask) = (self.k, self.mask.as_ref()?);
        let row = k.mad_lo(k.add(self.sequence.start, query), self.sequence.heads, self.sequence.head);
        let bits = |from: u32, count: u32| k.and(k.shr(key, from), (1 << count) - 1);
        let words = mask.words(k, row, k.mad_lo(k.shr(key, 6), 4, bits(1, 2)));
        let quarter = bits(4, 2);
        let pick = |word, (i, other)| k.selp(other, word, k.setp(Compare::Eq, quarter, i));
        let word = (1u32..).zip(words[1..].iter().copied()).fold(words[0], pick);
        Some(mask.multiplier(k, word, k.mad_lo(bits(3, 1), 2, bits(0, 1))))
    }

    fn times(&self, x: Reg<F32>, factor: Option<Reg<F32>>) -> Reg<F32> {
        factor.map_or(x, |factor| self.k.mul(x, factor))
    }
}

impl Flash {
    /// Finds the warp's row and runs `body` if it exists.
    fn of_row<'a>(
        &self,
        k: &'a Entry,
        inputs: &InputParams,
        sizes: Sizes,
        mask: SoftmaxMask,
        body: impl FnOnce(&Row<'a>),
    ) {
        let sequence = Sequence::find(k, inputs, &sizes);
        let thread = k.special(Special::TidX);
        let own = k.mad_lo(k.special(Special::CtaidX), ROWS, k.shr(thread, 5));
        let hidden = k.mul_lo(sequence.heads, sizes.head_size);
        let exists = k.lt(own, sequence.length);
        let (lane, mask) = (k.and(thread, 31u32), mask.mask(k));
        let row = Row { k, sequence, sizes, hidden, lane, own, mask, columns: self.padded / 32 };
        k.if_(exists, || body(&row));
    }

    pub(super) fn forward_f32(&self, k: &Entry) {
        let params = AttentionArgs::declare(k, &|name| self.parameters().has(name));
        let inputs = InputParams::new(&params);
        let (out, lse) = (required(&params.out).load(k), params.lse.load(k));
        let mask = SoftmaxMask::new(&params);
        let sizes = inputs.sizes(k);
        let scale = params.score_scale.load(k);
        let [q, keys, values] = [0, 1, 2].map(|i| inputs.matrix(k, i));
        self.of_row(k, &inputs, sizes, mask, |row| {
            let (ld, end) = (row.sizes.ld, row.sequence.keys);
            let query = row.at(q, ld, row.own);
            let (max, sum) = (k.variable("max", f32::NEG_INFINITY), k.variable("sum", 0.0f32));
            let o = row.sums("o");
            let last = k.sub(end, 1u32);
            k.for_(0u32, end, 32u32, |first| {
                let key = k.add(first, row.lane);
                let exists = k.lt(key, end);
                let [s] = row.dots([(query, row.at(keys, ld, k.min_u32(key, last)))]);
                let s = k.selp(k.mul(s, scale), f32::NEG_INFINITY, exists);
                let greatest = k.max(max, k.fold_lanes(s, 32, Fold::Max));
                let shrink = k.exp(k.sub(max, greatest), Precision::Single);
                let p = k.exp(k.sub(s, greatest), Precision::Single);
                k.assign(max, greatest);
                k.fma_into(sum, sum, shrink, k.fold_lanes(p, 32, Fold::Sum));
                o.iter().for_each(|&o| k.mul_into(o, o, shrink));
                let p = row.times(p, row.factor(row.own, key));
                row.add_rows(&o, p, (values, ld), first, end);
            });
            o.iter().for_each(|&o| k.assign(o, k.div(o, sum)));
            row.store(&o, out, row.hidden);
            let log = k.add(max, k.ln(sum, Precision::Single));
            let token = k.add(row.sequence.start, row.own);
            let at = k.index(lse, k.mad_lo(token, row.sequence.heads, row.sequence.head), 4u32);
            k.when(k.setp(Compare::Eq, row.lane, 0u32), || k.st(at.at(0), [log]));
        });
    }

    pub(super) fn queries_f32(&self, k: &Entry) {
        let params = AttentionArgs::declare(k, &|name| self.parameters().has(name));
        let inputs = InputParams::new(&params);
        let [lse, delta, dq] = [&params.lse, required(&params.delta), required(&params.dq)].map(|param| param.load(k));
        let mask = SoftmaxMask::new(&params);
        let sizes = inputs.sizes(k);
        let (scale, gradient_ld) = (params.score_scale.load(k), required(&params.gradient_ld).load(k));
        let [q, keys, values, dout] = [0, 1, 2, 3].map(|i| inputs.matrix(k, i));
        self.of_row(k, &inputs, sizes, mask, |row| {
            let (ld, end) = (row.sizes.ld, row.sequence.keys);
            let (query, dout) = (row.at(q, ld, row.own), row.at(dout, row.hidden, row.own));
            let (lse, delta) = (row.of_row(lse, row.own), row.of_row(delta, row.own));
            let sums = row.sums("dq");
            let last = k.sub(end, 1u32);
            k.for_(0u32, end, 32u32, |first| {
                let key = k.add(first, row.lane);
                let from = k.min_u32(key, last);
                let [s, dp] = row.dots([(query, row.at(keys, ld, from)), (dout, row.at(values, ld, from))]);
                let p = k.exp(k.sub(k.mul(s, scale), lse), Precision::Single);
                let dp = row.times(dp, row.factor(row.own, key));
                let ds = k.selp(k.mul(p, k.sub(dp, delta)), 0.0f32, k.lt(key, end));
                row.add_rows(&sums, ds, (keys, ld), first, end);
            });
            sums.iter().for_each(|&sum| k.mul_into(sum, sum, scale));
            row.store(&sums, dq, gradient_ld);
        });
    }

    pub(super) fn keys_f32(&self, k: &Entry) {
        let params = AttentionArgs::declare(k, &|name| self.parameters().has(name));
        let inputs = InputParams::new(&params);
        let [lse, delta, dk, dv] = [&params.lse, required(&params.delta), required(&params.dk), required(&params.dv)]
            .map(|param| param.load(k));
        let mask = SoftmaxMask::new(&params);
        let sizes = inputs.sizes(k);
        let (scale, gradient_ld) = (params.score_scale.load(k), required(&params.gradient_ld).load(k));
        let [q, keys, values, dout] = [0, 1, 2, 3].map(|i| inputs.matrix(k, i));
        self.of_row(k, &inputs, sizes, mask, |row| {
            let ld = row.sizes.ld;
            let (key, value) = (row.at(keys, ld, row.own), row.at(values, ld, row.own));
            let [dk_sums, dv_sums] = ["dk", "dv"].map(|name| row.sums(name));
            // The gradient of a token that is not a key is 0: the loop is empty.
            let end = k.selp(row.sequence.length, 0u32, k.lt(row.own, row.sequence.keys));
            let last = k.sub(row.sequence.length, 1u32);
            k.for_(0u32, end, 32u32, |first| {
                let query = k.add(first, row.lane);
                let from = k.min_u32(query, last);
                let [s, dp] = row.dots([(row.at(q, ld, from), key), (row.at(dout, row.hidden, from), value)]);
                let p = k.exp(k.sub(k.mul(s, scale), row.of_row(lse, from)), Precision::Single);
                let factor = row.factor(query, row.own);
                let ds = k.mul(p, k.sub(row.times(dp, factor), row.of_row(delta, from)));
                let exists = k.lt(query, end);
                let [ds, p] = [ds, row.times(p, factor)].map(|x| k.selp(x, 0.0f32, exists));
                row.add_rows(&dv_sums, p, (dout, row.hidden), first, end);
                row.add_rows(&dk_sums, ds, (q, ld), first, end);
            });
            dk_sums.iter().for_each(|&sum| k.mul_into(sum, sum, scale));
            row.store(&dk_sums, dk, gradient_ld);
            row.store(&dv_sums, dv, gradient_ld);
        });
    }
}
