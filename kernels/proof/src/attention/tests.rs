use super::reference;
use crate::attention::as_operand;
use crate::check::*;
use half::bf16;
use kernels::attention::{Attention, Gradients, Operands, Ragged, Upstream, backward, backward_scratch_len, forward};
use kernels::dropout::Dropout;
use kernels::pool::Cpu;
use kernels::tiles::Tiles;
use kernels::{Element, simd::Isa};

/// Batch: lengths of the sequences, heads, head size, gap between rows of 3H elements.
pub(super) struct Case {
    pub(super) lengths: Vec<usize>,
    pub(super) spec: Attention,
    pub(super) gap: usize,
    /// q, k and v are uniform in ± this value.
    pub(super) size: f32,
    /// Keys of each sequence; empty: all tokens.
    pub(super) keys: Vec<u32>,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Attention { heads, head_size, dropout, .. } = self.spec;
        write!(f, "S {:?}, A {heads}, D {head_size}, gap {}, ±{}", self.lengths, self.gap, self.size)?;
        if !self.keys.is_empty() {
            write!(f, ", keys {:?}", self.keys)?;
        }
        dropout.map_or(Ok(()), |dropout| write!(f, ", dropout {}", dropout.rate))
    }
}

pub(super) fn case(lengths: &[usize], heads: usize, head_size: usize) -> Case {
    Case { lengths: lengths.to_vec(), spec: Attention::new(heads, head_size), gap: 0, size: 2.0, keys: Vec::new() }
}

impl Case {
    pub(super) fn dropout(mut self, rate: f32) -> Self {
        self.spec.dropout = Some(Dropout { seed: 0x1234_5678_9abc, site: 5, rate });
        self
    }
    pub(super) fn cu_seqlens(&self) -> Vec<u32> {
        let ends = self.lengths.iter().scan(0, |end, &n| {
            *end += n as u32;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }
    fn ragged<'a>(&'a self, cu_seqlens: &'a [u32]) -> Ragged<'a> {
        Ragged { cu_seqlens, keys: &self.keys }
    }
    pub(super) fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }
    pub(super) fn ld(&self) -> usize {
        3 * self.spec.hidden() + self.gap
    }
    fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }
    /// [q | k | v], NaN in the gaps between the rows.
    pub(super) fn qkv<X: Element>(&self) -> Vec<X> {
        let mut qkv = uniform::<X>(11, self.tokens() * self.ld(), self.size);
        for row in qkv.chunks_mut(self.ld()) {
            row[3 * self.spec.hidden()..].fill(X::from_f32(f32::NAN));
        }
        qkv
    }
    pub(super) fn dout<X: Element>(&self) -> Vec<X> {
        uniform::<X>(13, self.tokens() * self.spec.hidden(), 1.0)
    }
}

/// Splits [q | k | v] as an engine does.
fn cut<'a, X>(case: &Case, qkv: &'a [X]) -> [&'a [X]; 3] {
    let h = case.spec.hidden();
    [0, h, 2 * h].map(|start| qkv.get(start..).unwrap_or(&[]))
}

/// out and lse.
fn run_forward<X: Element>(cpu: &Cpu, case: &Case, qkv: &[X]) -> (Guarded<X>, Guarded<f32>) {
    let [q, k, v] = cut(case, qkv);
    let mut out = Guarded::poisoned(case.tokens() * case.spec.hidden());
    let mut lse = Guarded::poisoned(case.tokens() * case.spec.heads);
    let cu_seqlens = case.cu_seqlens();
    forward(
        cpu,
        &case.spec,
        Operands { sequences: case.ragged(&cu_seqlens), q, k, v, ld: case.ld() },
        &mut out,
        &mut lse,
    );
    out.assert_intact(case);
    lse.assert_intact(case);
    (out, lse)
}

/// [dq | dk | dv], gaps still NaN.
fn run_backward<X: Element>(cpu: &Cpu, case: &Case, qkv: &[X], out: &[X], lse: &[f32], dout: &[X]) -> Guarded<X> {
    let [q, k, v] = cut(case, qkv);
    let mut dqkv = Guarded::poisoned(case.tokens() * case.ld());
    let mut scratch = Guarded::<f32>::poisoned(backward_scratch_len(&case.spec, case.tokens(), case.longest()));
    let gradients = Gradients::fused(&mut dqkv, case.spec.hidden(), case.ld());
    let cu_seqlens = case.cu_seqlens();
    let sequences = case.ragged(&cu_seqlens);
    backward(
        cpu,
        &case.spec,
        Operands { sequences, q, k, v, ld: case.ld() },
        Upstream { out, lse, dout },
        gradients,
        &mut scratch,
    );
    dqkv.assert_intact(case);
    scratch.assert_intact(case);
    dqkv
}

/// Column block `i` of [dq | dk | dv]. Panics if a gap was written.
fn gradient<X: Element>(case: &Case, dqkv: &[X], i: usize) -> Vec<X> {
    let h = case.spec.hidden();
    let rows = dqkv.chunks(case.ld().max(1));
    rows.flat_map(|row| {
        assert!(row[3 * h..].iter().all(|x| x.to_f32().is_nan()), "{case}: written between rows");
        row[i * h..(i + 1) * h].to_vec()
    })
    .collect()
}

fn agrees<X: Element>(cpus: &[Cpu], case: &Case) {
    let (qkv, dout, cu_seqlens, ld) = (case.qkv::<X>(), case.dout::<X>(), case.cu_seqlens(), case.ld());
    let (exact, plain) = (widen::<f64, X>(&qkv), widen::<f32, X>(&qkv));
    let ([q, k, v], [fq, fk, fv]) = (cut(case, &exact), cut(case, &plain));
    let (spec, batch, wide_dout) = (&case.spec, || case.ragged(&cu_seqlens), widen(&dout));
    let (exact_out, exact_lse) = reference::forward(spec, batch(), q, k, v, ld);
    let (naive_out, naive_lse) = reference::forward(spec, batch(), fq, fk, fv, ld);
    let naive_out = store::<X>(&naive_out);
    let exact_gradients = reference::backward(spec, batch(), ([q, k, v], ld), None, &widen(&dout), |x| x);
    let stored = widen::<f32, X>(&naive_out);
    let saved = Some((&stored[..], &naive_lse[..]));
    let naive_gradients = reference::backward(spec, batch(), ([fq, fk, fv], ld), saved, &wide_dout, as_operand::<X>);
    for cpu in cpus {
        let name = format!("{} {} {case}", cpu.isa().kind(), X::DTYPE);
        let (out, lse) = run_forward(cpu, case, &qkv);
        assert_within(&name, "out", &out, &naive_out, &exact_out);
        assert_within(&name, "lse", &lse[..], &naive_lse, &exact_lse);
        let dqkv = run_backward(cpu, case, &qkv, &out, &lse, &dout);
        for (i, what) in ["dq", "dk", "dv"].into_iter().enumerate() {
            let naive = store::<X>(&naive_gradients[i]);
            assert_within(&name, what, &gradient(case, &dqkv, i), &naive, &exact_gradients[i]);
        }
    }
}

fn agrees_in_both_types(cases: &[Case]) {
    let cpus = testable_cpus();
    for case in cases {
        agrees::<f32>(&cpus, case);
        agrees::<bf16>(&cpus, case);
    }
}

#[test]
fn agrees_with_f64_for_every_head_size() {
    let sizes = [1, 4, 7, 8, 16, 31, 32, 63, 64, 65, 78, 80, 128, 129, 256];
    agrees_in_both_types(&sizes.map(|d| case(&[13, 0, 37], 2, d)));
    agrees_in_both_types(&sizes.map(|d| case(&[5, 34], 2, d).dropout(0.2)));
}

/// Around the heights of register tiles, panels of queries and tiles of keys (64), and blocks of queries (256).
#[test]
fn agrees_with_f64_for_every_length() {
    let lengths = [
        2, 3, 4, 5, 6, 7, 11, 12, 13, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97, 127, 128, 129, 1, 255, 256,
        257,
    ];
    // In batches, for two reasons: the greatest error of a naive implementation on few elements is a poor estimate, and the
    // gradients of a single key are 0, so they do not scale the bound.
    for lengths in [&lengths[..21], &lengths[21..26], &lengths[26..]] {
        agrees_in_both_types(&[case(lengths, 2, 20), case(lengths, 2, 16).dropout(0.1)]);
    }
}

#[test]
fn agrees_with_f64_for_ragged_batches() {
    let lengths = [0, 3, 0, 0, 131, 1, 16, 257, 2, 0];
    agrees_in_both_types(&[
        case(&lengths, 3, 12),
        Case { gap: 5, ..case(&lengths, 2, 16).dropout(0.3) },
        case(&[], 2, 8),
        case(&[0], 2, 8),
        case(&[0, 0], 1, 64),
    ]);
}

/// Tokens that are not keys have outputs like all others, and do not change the outputs of other tokens.
#[test]
fn agrees_with_f64_with_hidden_tokens() {
    let hidden = |lengths: &[usize], keys: &[u32], d: usize| Case { keys: keys.to_vec(), ..case(lengths, 2, d) };
    agrees_in_both_types(&[
        hidden(&[9, 0, 33, 130, 40], &[4, 0, 33, 5, 39], 16),
        hidden(&[140, 64, 300], &[129, 17, 256], 24).dropout(0.2),
        hidden(&[700], &[520], 8),
    ]);
    for cpu in testable_cpus() {
        let case = hidden(&[50], &[31], 12);
        let (mut qkv, dout, h) = (case.qkv::<f32>(), case.dout::<f32>(), case.spec.hidden());
        let (out, lse) = run_forward(&cpu, &case, &qkv);
        let dqkv = run_backward(&cpu, &case, &qkv, &out, &lse, &dout);
        for row in dqkv.chunks(case.ld()).skip(31) {
            assert!(row[h..3 * h].iter().all(|&x| x == 0.0), "{case}: a hidden token has a gradient as a key");
        }
        qkv.chunks_mut(case.ld()).skip(31).for_each(|row| row[h..3 * h].fill(f32::NAN));
        assert_eq!(run_forward(&cpu, &case, &qkv).0[..], out[..], "{case}: a hidden token is seen");
    }
}

/// Sequences with more keys than backward holds at once: dq is accumulated in the caller's scratch.
#[test]
fn agrees_with_f64_for_long_sequences() {
    let cpus: Vec<Cpu> = Isa::real().into_iter().map(|isa| Cpu::new(isa, 2).unwrap()).collect();
    for case in [case(&[1031], 1, 12), case(&[3, 523], 2, 5).dropout(0.1), case(&[300], 1, 256)] {
        agrees::<f32>(&cpus, &case);
        agrees::<bf16>(&cpus, &case);
    }
}

#[test]
fn scores_of_ten_thousand_do_not_overflow() {
    // Queries and keys in ±50: scores up to 50² · √64 = 20,000.
    let cases = [Case { size: 50.0, ..case(&[67], 2, 64) }, Case { size: 50.0, ..case(&[200], 1, 64).dropout(0.1) }];
    agrees_in_both_types(&cases);
}

#[test]
fn every_kind_of_tiles_gives_the_same_bits() {
    let cases = [
        case(&[70, 3, 129, 1, 32], 2, 64),
        case(&[40, 65], 2, 24).dropout(0.2),
        case(&[33], 1, 80),
        Case { keys: vec![33, 1], ..case(&[70, 40], 1, 64) },
    ];
    for case in &cases {
        let (qkv, dout) = (case.qkv::<bf16>(), case.dout::<bf16>());
        let mut first: Option<Vec<u32>> = None;
        for cpu in testable_cpus() {
            for tiles in Tiles::testable(cpu.isa()) {
                let cpu = cpu.clone().with_tiles(tiles.kind()).unwrap();
                let (out, lse) = run_forward(&cpu, case, &qkv);
                let dqkv = run_backward(&cpu, case, &qkv, &out, &lse, &dout);
                let found = out.iter().chain(&dqkv[..]).map(|x| u32::from(x.to_bits()));
                let found: Vec<u32> = found.chain(lse.iter().map(|x| x.to_bits())).collect();
                assert!(*first.get_or_insert_with(|| found.clone()) == found, "{cpu}, {} tiles: {case}", tiles.kind());
            }
        }
    }
}

/// Central differences of Σ out ∘ dout in f64, in every element.
#[test]
fn backward_of_the_reference_is_the_derivative_of_its_forward() {
    for case in [case(&[5, 1, 3], 2, 3), case(&[6], 2, 4).dropout(0.4)] {
        let (qkv, dout) = (widen::<f64, f32>(&case.qkv::<f32>()), widen::<f64, f32>(&case.dout::<f32>()));
        let (cu_seqlens, h) = (case.cu_seqlens(), case.spec.hidden());
        let loss = |qkv: &[f64]| {
            let [q, k, v] = cut(&case, qkv);
            let (out, _) = reference::forward(&case.spec, &cu_seqlens, q, k, v, case.ld());
            out.iter().zip(&dout).map(|(out, dout)| out * dout).sum::<f64>()
        };
        let [q, k, v] = cut(&case, &qkv);
        let gradients = reference::backward(&case.spec, &cu_seqlens, ([q, k, v], case.ld()), None, &dout, |x| x);
        for (i, numeric) in slopes(&qkv, 1e-5, loss).into_iter().enumerate() {
            let (row, column) = (i / case.ld(), i % case.ld());
            let analytic = gradients[column / h][row * h + column % h];
            assert!(
                (numeric - analytic).abs() <= 1e-8 * analytic.abs().max(1.0),
                "{case}: element {column} of row {row}: {analytic} by the formula, {numeric} by differences"
            );
        }
    }
}

/// A vector added to all keys shifts all scores of a query by the same amount, so the gradient of a bias of the keys is 0;
/// that of the queries is not.
#[test]
fn a_bias_of_the_keys_has_no_gradient() {
    for cpu in testable_cpus() {
        for case in [case(&[128, 65], 2, 64), case(&[100, 400], 1, 16).dropout(0.1)] {
            let (qkv, dout) = (case.qkv::<f32>(), case.dout::<f32>());
            let (out, lse) = run_forward(&cpu, &case, &qkv);
            let dqkv = run_backward(&cpu, &case, &qkv, &out, &lse, &dout);
            let h = case.spec.hidden();
            let norm = |i: usize| {
                let gradient = gradient(&case, &dqkv, i);
                let sums = (0..h).map(|x| gradient.chunks(h).map(|row| f64::from(row[x])).sum::<f64>());
                sums.map(|sum| sum * sum).sum::<f64>().sqrt()
            };
            let (query, key) = (norm(0), norm(1));
            assert!(key < 1e-6 * query, "{} {case}: key bias {key:e}, query bias {query:e}", cpu.isa().kind());
        }
    }
}
