//! Attention.

use super::{cpus, refuses, shortened, wraps_nine_rows};
use kernels::Cpu;
use kernels::attention::{Attention, Gradients, Operands, Ragged, Upstream, backward, backward_scratch_len, forward};
use kernels::dropout::Dropout;

const HEADS: usize = 2;
const SIZE: usize = 8;
const HIDDEN: usize = HEADS * SIZE;
const TOKENS: usize = 9;
const BOUNDS: [u32; 3] = [0, 4, 9];

/// Valid call of forward, in which each test changes one field.
struct Forward<'a> {
    spec: Attention,
    sequences: Ragged<'a>,
    ld: usize,
    inputs: [usize; 3],
    out: usize,
    lse: usize,
}

impl Default for Forward<'_> {
    fn default() -> Self {
        Self {
            spec: Attention::new(HEADS, SIZE),
            sequences: Ragged { cu_seqlens: &BOUNDS, keys: &[] },
            ld: HIDDEN,
            inputs: [TOKENS * HIDDEN; 3],
            out: TOKENS * HIDDEN,
            lse: TOKENS * HEADS,
        }
    }
}

impl Forward<'_> {
    #[track_caller]
    fn expect_refusal(self, cpu: &Cpu, case: &str, says: &str) {
        let Self { spec, sequences, ld, inputs, out, lse } = self;
        let [q, k, v] = inputs.map(|len| vec![1f32; len]);
        refuses(case, says, [out, lse], |[out, lse]| {
            forward(cpu, &spec, Operands { sequences, q: &q, k: &k, v: &v, ld }, out, lse)
        });
    }
}

#[test]
fn forward_rejects_what_does_not_fit() {
    let good = Attention::new(HEADS, SIZE);
    for cpu in cpus() {
        for (i, inputs) in shortened([TOKENS * HIDDEN; 3]) {
            let says = format!("{} holds", ["q", "k", "v"][i]);
            Forward { inputs, ..Default::default() }.expect_refusal(&cpu, "a short input", &says);
        }
        for ld in [wraps_nine_rows(HIDDEN), usize::MAX, 1 << 61, usize::MAX / 8] {
            let case = format!("rows {ld} apart");
            Forward { ld, inputs: [1000; 3], ..Default::default() }.expect_refusal(&cpu, &case, "q holds 1000");
        }
        Forward { ld: HIDDEN - 1, ..Default::default() }.expect_refusal(&cpu, "narrow rows", "apart");
        Forward { out: TOKENS * HIDDEN - 1, ..Default::default() }.expect_refusal(&cpu, "out", "out is not");
        Forward { lse: TOKENS * HEADS + 1, ..Default::default() }.expect_refusal(&cpu, "lse", "lse is not");
        let spec = |heads, head_size| Attention { heads, head_size, ..good };
        for (spec, says) in [
            (spec(0, SIZE), "no heads"),
            (spec(HEADS, 0), "head size"),
            (spec(HEADS, 257), "head size"),
            (spec(1 << 61, 8), "more elements than"),
            (spec((1 << 61) + 2, 8), "more elements than"),
            (Attention { scale: f32::NAN, ..good }, "scale"),
            (Attention { scale: 0.0, ..good }, "scale"),
            (Attention { dropout: Some(Dropout { seed: 1, site: 2, rate: 1.0 }), ..good }, "dropout rate"),
        ] {
            Forward { spec, ..Default::default() }.expect_refusal(&cpu, &format!("{spec:?}"), says);
        }
    }
}

#[test]
fn rejects_sequences_that_do_not_fit() {
    for cpu in cpus() {
        for (cu_seqlens, keys, says) in [
            (&[][..], &[][..], "begins with 0"),
            (&[1, 9], &[], "begins with 0"),
            (&[0, 5, 4, 9], &[], "falls"),
            (&[0, 4, 10], &[], "q holds"),
            (&[0, u32::MAX], &[], "q holds"),
            (&[0, 4, 9], &[4], "keys are not"),
            (&[0, 4, 9], &[4, 6], "keys in a sequence"),
            (&[0, 4, 9], &[0, 5], "keys in a sequence"),
        ] {
            let sequences = Ragged { cu_seqlens, keys };
            Forward { sequences, ..Default::default() }.expect_refusal(&cpu, &format!("{sequences:?}"), says);
        }
    }
}

/// Valid call of backward, in which each test changes one field.
struct Backward {
    ld: usize,
    inputs: [usize; 6],
    gradients: usize,
    gradients_ld: usize,
    /// H of a fused buffer; `None`: three buffers.
    fused: Option<usize>,
}

impl Default for Backward {
    fn default() -> Self {
        let n = TOKENS * HIDDEN;
        let inputs = [n, n, n, n, TOKENS * HEADS, n];
        Self { ld: HIDDEN, inputs, gradients: 3 * n, gradients_ld: 3 * HIDDEN, fused: Some(HIDDEN) }
    }
}

impl Backward {
    #[track_caller]
    fn expect_refusal(self, cpu: &Cpu, case: &str, says: &str) {
        let Self { ld, inputs, gradients: len, gradients_ld, fused } = self;
        let [q, k, v, out, lse, dout] = inputs.map(|len| vec![1f32; len]);
        let spec = Attention::new(HEADS, SIZE);
        let run = |gradients: Gradients<'_, f32>| {
            backward(
                cpu,
                &spec,
                Operands { sequences: (&BOUNDS[..]).into(), q: &q, k: &k, v: &v, ld },
                Upstream { out: &out, lse: &lse, dout: &dout },
                gradients,
                &mut [],
            );
        };
        match fused {
            Some(hidden) => refuses(case, says, [len], |[x]| run(Gradients::fused(x, hidden, gradients_ld))),
            None => {
                refuses(case, says, [len; 3], |[dq, dk, dv]| run(Gradients::separate(dq, dk, dv, gradients_ld)));
            }
        }
    }
}

#[test]
fn backward_rejects_what_does_not_fit() {
    for cpu in cpus() {
        let good = Backward::default;
        for (i, inputs) in shortened(good().inputs) {
            let says = ["q holds", "k holds", "v holds", "out is not", "lse is not", "dout is not"][i];
            Backward { inputs, ..good() }.expect_refusal(&cpu, "a short input", says);
        }
        for ld in [wraps_nine_rows(3 * HIDDEN), usize::MAX, 1 << 61] {
            Backward { ld, ..good() }.expect_refusal(&cpu, "inputs far apart", "q holds");
            Backward { gradients_ld: ld, ..good() }.expect_refusal(&cpu, "gradients far apart", "dq holds");
            let separate = Backward { gradients_ld: ld, fused: None, ..good() };
            separate.expect_refusal(&cpu, "gradients far apart", "dq holds");
        }
        Backward { gradients: 3 * TOKENS * HIDDEN - 1, ..good() }.expect_refusal(&cpu, "a short buffer", "dv holds");
        let short = Backward { gradients: TOKENS * HIDDEN - 1, gradients_ld: HIDDEN, fused: None, ..good() };
        short.expect_refusal(&cpu, "short buffers", "dq holds");
    }
}

#[test]
fn rejects_fused_gradients_that_overlap() {
    for cpu in cpus() {
        // With H = 0, dq, dk and dv would start at the same element.
        for (hidden, ld, says) in [
            (0, 3 * HIDDEN, "H is 0"),
            (0, 0, "H is 0"),
            (HIDDEN / 2, 3 * HIDDEN, "8 columns apart"),
            (HIDDEN, 3 * HIDDEN - 1, "apart"),
            (HIDDEN, HIDDEN, "apart"),
            (usize::MAX / 3 + 1, 3 * HIDDEN, "apart"),
            ((1 << 63) + 8, 3 * HIDDEN, "apart"),
        ] {
            let call = Backward { fused: Some(hidden), gradients_ld: ld, ..Backward::default() };
            call.expect_refusal(&cpu, &format!("H {hidden}, rows {ld} apart"), says);
        }
    }
}

#[test]
fn backward_rejects_scratch_that_is_too_short() {
    let tokens = 513;
    let spec = Attention::new(1, SIZE);
    let n = tokens * SIZE;
    let least = backward_scratch_len(&spec, tokens, tokens);
    assert!(least > 0, "a sequence of {tokens} tokens needs scratch");
    let (x, lse) = (vec![1f32; n], vec![1f32; tokens]);
    for cpu in cpus() {
        let bounds = [0, tokens as u32];
        refuses("scratch", "are needed", [3 * n, least - 1], |[gradients, scratch]| {
            let gradients = Gradients::fused(gradients, SIZE, 3 * SIZE);
            backward(
                &cpu,
                &spec,
                Operands { sequences: (&bounds[..]).into(), q: &x, k: &x, v: &x, ld: SIZE },
                Upstream { out: &x, lse: &lse, dout: &x },
                gradients,
                scratch,
            );
        });
    }
}
