//! `mma` and `wgmma` in the bits of an H200: results that were recorded there, and the rule written out a second time, in
//! integers, with every part of it changed once.

use super::*;
use crate::{
    Sm,
    sim::{Fidelity, fidelity},
};
use std::{iter::zip, path::Path, process::Command};

/// 20 tiles and 16 rows of each recording; `examples/sample_recordings.rs` has the format and writes it.
static SAMPLE: &[u8] = include_bytes!("tensor_cores.bin");

/// Names of the recordings, with their instruction; A comes from registers where the name ends so.
const FORMS: [(&str, &str); 11] = [
    ("mma_m16n8k16_bf16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("mma_m16n8k16_f16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    ("mma_m16n8k8_tf32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    ("wgmma_m64n8k16_bf16", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"),
    ("wgmma_m64n8k16_bf16_areg", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"),
    ("wgmma_m64n8k16_f16", "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"),
    ("wgmma_m64n8k64_bf16_chain", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"),
    ("mma_m16n8k32_e4m3", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"),
    ("mma_m16n8k32_e5m2", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32"),
    ("wgmma_m64n8k32_e4m3", "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3"),
    ("wgmma_m64n8k32_e5m2", "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2"),
];
/// Bytes along K of one instruction.
const STEP: usize = 32;
/// Flags of a `wgmma`: whether C counts, the signs of A and B.
const PLAIN: &str = "1, 1, 1";

/// Results of one instruction, or of some that are chained.
#[derive(Clone)]
struct Recording {
    name: &'static str,
    form: &'static str,
    target: &'static str,
    gpu: Option<Sm>,
    flags: &'static str,
    m: usize,
    tiles: usize,
    /// Bytes of an element, and of a row.
    bytes: usize,
    row: usize,
    a: Vec<u8>,
    b: Vec<u8>,
    c: Vec<u32>,
    d: Vec<u32>,
}

impl Recording {
    /// The recording at the start of `rest`, which is moved behind it.
    fn read((name, form): (&'static str, &'static str), rest: &mut &[u8]) -> Self {
        let mut take = |count: usize| rest.split_off(..count).unwrap_or_else(|| panic!("{name} ends early"));
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(std::array::from_fn(|i| word[i]))).collect()
        };
        let header = words(take(24));
        let [m, n, k, tiles, bytes] = std::array::from_fn(|i| header[1 + i] as usize);
        let (row, target) = (k * bytes, "sm_90a");
        assert!(n == 8 && row % STEP == 0, "{name}: {header:?}");
        let (a, b) = (take(tiles * m * row).to_vec(), take(tiles * n * row).to_vec());
        let [c, d] = [(); 2].map(|()| words(take(4 * tiles * m * n)));
        Recording { name, form, target, gpu: None, flags: PLAIN, m, tiles, bytes, row, a, b, c, d }
    }

    fn is_warpgroup(&self) -> bool {
        self.form.starts_with("wgmma")
    }

    fn has_a_in_registers(&self) -> bool {
        !self.is_warpgroup() || self.name.ends_with("_areg")
    }

    /// Threads of a tile: a warp for 16 rows.
    fn threads(&self) -> usize {
        if self.is_warpgroup() { 128 } else { 32 }
    }

    fn text(&self) -> String {
        let Recording { form, target, flags, .. } = self;
        let steps = self.row / STEP;
        let source = if self.has_a_in_registers() { "{%a0, %a1, %a2, %a3}" } else { "%d4" };
        let c = "{%f0, %f1, %f2, %f3}";
        let transposed = match (self.bytes, self.has_a_in_registers()) {
            (2, true) => ", 0",
            (2, false) => ", 0, 0",
            _ => "",
        };
        let body = if self.is_warpgroup() {
            format!(
                "st.shared.v4.b32 [%r1], {{%a0, %a1, %a2, %a3}}; @%p0 st.shared.v4.b32 [%r1+2048], {{%b0, %b1, %b2, %b3}};\n\
                 fence.proxy.async; bar.sync 0; wgmma.fence.sync.aligned;\n\
                 {form} {c}, {source}, %d5, {flags}{transposed};\n\
                 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; bar.sync 0;\n"
            )
        } else {
            format!("{form} {c}, {source}, {{%b0, %b1}}, {c};\n")
        };
        format!(
            ".version 8.7\n.target {target}\n.address_size 64\n\
             .visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 c)\n{{\n\
             .reg .b64 %d<8>; .reg .b32 %r<8>, %a<4>, %b<4>; .reg .f32 %f<4>; .reg .pred %p<2>;\n\
             .shared .align 128 .b8 tile[2304];\n\
             ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [c];\n\
             mov.u32 %r0, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mul.lo.u32 %r4, %r2, %r3;\n\
             add.u32 %r5, %r4, %r0; mad.wide.u32 %d2, %r5, 16, %d2; ld.global.v4.f32 {c}, [%d2];\n\
             mul.lo.u32 %r5, %r4, {steps}; add.u32 %r5, %r5, %r0; mad.wide.u32 %d0, %r5, 16, %d0; mad.wide.u32 %d1, %r5, 16, %d1;\n\
             mov.u32 %r1, tile; shr.u32 %r6, %r1, 4; cvt.u64.u32 %d4, %r6; or.b64 %d4, %d4, {descriptor}; add.u64 %d5, %d4, 128;\n\
             mad.lo.u32 %r1, %r0, 16, %r1; setp.lt.u32 %p0, %r0, 16; mov.u32 %r7, 0;\n\
             $step: ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%d0]; ld.global.v4.b32 {{%b0, %b1, %b2, %b3}}, [%d1];\n\
             {body} add.u64 %d0, %d0, {next}; add.u64 %d1, %d1, {next}; add.u32 %r7, %r7, 1;\n\
             setp.lt.u32 %p1, %r7, {steps}; @%p1 bra $step;\n\
             st.global.v4.f32 [%d2], {c};\nret;\n}}\n",
            descriptor = (128_u64 >> 4) << 16 | (256_u64 >> 4) << 32,
            next = 16 * self.threads(),
        )
    }

    /// 16 bytes of A and of B for each tile, step and thread.
    fn operands(&self) -> [Vec<u8>; 2] {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for tile in 0..self.tiles {
            let a_of = |r: usize, at: usize, count| &self.a[(tile * self.m + r % self.m) * self.row + at..][..count];
            let b_of = |r: usize, at: usize, count| &self.b[(tile * 8 + r % 8) * self.row + at..][..count];
            for (step, thread) in (0..self.row / STEP).flat_map(|step| (0..self.threads()).map(move |t| (step, t))) {
                let at = step * STEP;
                let (g, q) = (thread % 32 / 4, 4 * (thread % 4));
                if self.has_a_in_registers() {
                    let row = 16 * (thread / 32) + g;
                    [(0, 0), (8, 0), (0, 16), (8, 16)].iter().for_each(|(r, k)| a.extend(a_of(row + r, at + k + q, 4)));
                } else {
                    a.extend(a_of(thread / 16 * 8 + thread % 8, at + thread / 8 % 2 * 16, 16));
                }
                if self.is_warpgroup() {
                    b.extend(b_of(thread, at + thread / 8 % 2 * 16, 16));
                } else {
                    [0, 16, 0, 16].iter().for_each(|k| b.extend(b_of(g, at + k + q, 4)));
                }
            }
        }
        [a, b]
    }

    /// Index in C and D of the accumulators of all threads; a warpgroup repeats the rows of a sample.
    fn places(&self) -> impl Iterator<Item = usize> {
        let of = |tile: usize, thread: usize, v: usize| {
            let row = 16 * (thread / 32) + thread % 32 / 4 + 8 * (v / 2);
            (tile * self.m + row % self.m) * 8 + 2 * (thread % 4) + v % 2
        };
        (0..self.tiles * self.threads() * 4).map(move |i| of(i / 4 / self.threads(), i / 4 % self.threads(), i % 4))
    }

    /// D of the simulator.
    fn simulated(&self) -> Vec<u32> {
        let mut memory = Memory::new();
        let [a, b] = self.operands();
        let (a, b) = (memory.allocate_from("a", &a), memory.allocate_from("b", &b));
        let c = memory.allocate_from("c", &self.places().map(|at| self.c[at]).collect::<Vec<_>>());
        let blocks = Launch { grid: [self.tiles as u32, 1, 1], block: [self.threads() as u32, 1, 1], shared_bytes: 0 };
        let options = Options { gpu: self.gpu, ..Options::default() };
        let report = launch(&self.text(), blocks, &[a, b, c].map(Argument::U64), &mut memory, &options);
        clean(Ok(report));
        let mut d = vec![0; self.d.len()];
        zip(self.places(), words_of(&memory, c)).for_each(|(at, value)| d[at] = value);
        d
    }

    /// The rule of the recorded device.
    fn rule(&self) -> Rule {
        let hopper = Rule {
            fraction_bits: 25,
            block: 32 / self.bytes.max(2),
            result_bits: 23,
            from_zero: false,
            pairs: false,
            normalizes: false,
            counts_zeros: false,
            rounds_terms: false,
            rounds: false,
            nan: 0x7FFF_FFFF,
        };
        match (self.bytes, self.is_warpgroup()) {
            (1, true) => Rule { fraction_bits: 13, block: 32, result_bits: 13, ..hopper },
            (1, false) => Rule { from_zero: true, pairs: true, ..hopper },
            _ => hopper,
        }
    }

    /// D of a rule.
    fn expected(&self, rule: &Rule) -> Vec<u32> {
        let word = |raw: &[u8]| raw.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let [exponent_bits, fraction_bits] = match self.form {
            form if form.contains("tf32") => [8, 23],
            form if form.contains("bf16") => [8, 7],
            form if form.contains("f16") => [5, 10],
            form if form.contains("e5m2") => [5, 2],
            _ => [4, 3],
        };
        let decode = |raw: &[u8]| {
            let number = Number::of(word(raw), exponent_bits, fraction_bits);
            if rule.pairs { number.as_f16() } else { number }
        };
        let [a, b] = [&self.a, &self.b].map(|bytes| bytes.chunks_exact(self.bytes).map(decode).collect::<Vec<_>>());
        let k = self.row / self.bytes;
        // The even pairs along K before the odd ones.
        let order = |numbers: &[Number]| -> Vec<Number> {
            let half = |odd: usize| numbers.chunks_exact(2).skip(odd).step_by(2).flatten().copied();
            if rule.pairs { half(0).chain(half(1)).collect() } else { numbers.to_vec() }
        };
        let of = |i: usize| {
            let (row, column) = (order(&a[i / 8 * k..][..k]), order(&b[(i / 8 / self.m * 8 + i % 8) * k..][..k]));
            let blocks = zip(row.chunks(rule.block), column.chunks(rule.block));
            let first = if rule.from_zero { 0 } else { self.c[i] };
            let sum = blocks.fold(first, |c, (x, y)| rule.sum(x, y, c));
            if !rule.from_zero {
                return sum;
            }
            let d = f32::from_bits(sum) + f32::from_bits(self.c[i]);
            if d.is_nan() { rule.nan } else { d.to_bits() }
        };
        (0..self.c.len()).map(of).collect()
    }

    /// Elements that differ from D.
    fn differences(&self, found: &[u32]) -> usize {
        zip(&self.d, found).filter(|(wanted, found)| wanted != found).count()
    }
}

/// ±mantissa · 2^(exponent - fraction bits).
#[derive(Clone, Copy)]
struct Number {
    negative: bool,
    exponent: i32,
    mantissa: i64,
    fraction_bits: i32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Finite,
    Infinite,
    Nan,
}

impl Number {
    fn of(bits: u32, exponent_bits: i32, fraction_bits: i32) -> Self {
        let field = (bits >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
        let fraction = i64::from(bits & ((1 << fraction_bits) - 1));
        let kind = match (field == (1 << exponent_bits) - 1, fraction) {
            (false, _) => Kind::Finite,
            // e4m3 has no infinity and one NaN.
            (true, 7) if exponent_bits == 4 => Kind::Nan,
            (true, _) if exponent_bits == 4 => Kind::Finite,
            (true, 0) => Kind::Infinite,
            (true, _) => Kind::Nan,
        };
        let mantissa = if field == 0 { fraction } else { fraction | 1 << fraction_bits };
        let exponent = field.max(1) - (1 << (exponent_bits - 1)) + 1;
        Number { negative: bits >> (exponent_bits + fraction_bits) & 1 == 1, exponent, mantissa, fraction_bits, kind }
    }

    /// The same number with the exponent of f16.
    fn as_f16(self) -> Self {
        let mut number = self;
        while number.mantissa != 0 && number.mantissa >> number.fraction_bits == 0 && number.exponent > -14 {
            (number.mantissa, number.exponent) = (2 * number.mantissa, number.exponent - 1);
        }
        number
    }

    fn times(self, other: Self) -> Self {
        let zero = self.mantissa == 0 || other.mantissa == 0;
        let kind = match (self.kind, other.kind) {
            (Kind::Finite, Kind::Finite) => Kind::Finite,
            (Kind::Nan, _) | (_, Kind::Nan) => Kind::Nan,
            _ if zero => Kind::Nan,
            _ => Kind::Infinite,
        };
        Number {
            negative: self.negative != other.negative,
            exponent: self.exponent + other.exponent,
            mantissa: self.mantissa * other.mantissa,
            fraction_bits: self.fraction_bits + other.fraction_bits,
            kind,
        }
    }
}

/// The rule and what can be changed about it.
#[derive(Clone, Copy, Debug)]
struct Rule {
    fraction_bits: i32,
    /// Products of a block.
    block: usize,
    /// Fraction bits of a sum.
    result_bits: i32,
    /// The sum starts from zero, and C is added to it in f32.
    from_zero: bool,
    /// The even pairs along K come before the odd ones, all as f16.
    pairs: bool,
    /// Products are normalized before they are aligned.
    normalizes: bool,
    /// Zeros take part in the largest exponent.
    counts_zeros: bool,
    /// Terms are rounded to nearest instead of cut.
    rounds_terms: bool,
    /// The result is rounded to nearest, ties away from zero, instead of cut.
    rounds: bool,
    nan: u32,
}

impl Rule {
    fn sum(&self, x: &[Number], y: &[Number], c: u32) -> u32 {
        let mut terms: Vec<Number> = zip(x, y).map(|(x, y)| x.times(*y)).chain([Number::of(c, 8, 23)]).collect();
        let infinite = |negative| terms.iter().any(|t| t.kind == Kind::Infinite && t.negative == negative);
        let (above, below) = (infinite(false), infinite(true));
        if terms.iter().any(|t| t.kind == Kind::Nan) || (above && below) {
            return self.nan;
        } else if above || below {
            return u32::from(below) << 31 | 0x7F80_0000;
        }
        if self.normalizes {
            for term in &mut terms {
                let carry: i32 = (term.mantissa >> (term.fraction_bits + 1) != 0).into();
                (term.exponent, term.fraction_bits) = (term.exponent + carry, term.fraction_bits + carry);
            }
        }
        let live = |t: &&Number| t.mantissa != 0 || self.counts_zeros;
        let Some(largest) = terms.iter().filter(live).map(|t| t.exponent).max() else { return 0 };
        let total = terms.iter().map(|t| {
            let shift = self.fraction_bits - t.fraction_bits + t.exponent - largest;
            let cut = match (shift, self.rounds_terms) {
                (0.., _) => t.mantissa << shift,
                (_, false) => t.mantissa >> (-shift).min(63),
                (_, true) => (t.mantissa + (1 << (-shift - 1).min(61))) >> (-shift).min(62),
            };
            if t.negative { -cut } else { cut }
        });
        self.to_f32(total.sum(), largest - self.fraction_bits)
    }

    /// total · 2^exponent
    fn to_f32(self, total: i64, exponent: i32) -> u32 {
        let (sign, n) = (u32::from(total < 0) << 31, total.unsigned_abs());
        if n == 0 {
            return 0;
        }
        let top = n.ilog2() as i32 + exponent;
        // Exponent of the last bit that is kept.
        let last = top.max(-126) - self.result_bits;
        let shift = last - exponent;
        let kept = match shift {
            ..=0 => n << -shift,
            1..=62 => (n + if self.rounds { 1 << (shift - 1) } else { 0 }) >> shift,
            _ => 0,
        };
        // A carry out of the mantissa adds one to the exponent, as does the unit bit of a normal number.
        let field = (top.max(-126) + 126) as u32;
        let bits = (field << 23).wrapping_add((kept as u32) << (23 - self.result_bits));
        sign | if top > 127 { 0x7F80_0000 } else { bits.min(0x7F80_0000) }
    }
}

fn sample() -> Vec<Recording> {
    let mut rest = SAMPLE;
    let recordings = FORMS.map(|form| Recording::read(form, &mut rest)).to_vec();
    assert!(rest.is_empty(), "the sample has {} more bytes", rest.len());
    recordings
}

#[test]
fn products_have_the_bits_of_an_h200() {
    for recording in sample() {
        let name = recording.name;
        assert_eq!(recording.differences(&recording.simulated()), 0, "{name}");
        assert_eq!(recording.differences(&recording.expected(&recording.rule())), 0, "{name}: the rule in integers");
    }
}

#[test]
fn no_other_rule_has_the_recorded_bits() {
    for recording in sample() {
        let rule = recording.rule();
        let differences = |changed: Rule| recording.differences(&recording.expected(&changed));
        let changes = [
            Rule { fraction_bits: rule.fraction_bits - 1, ..rule },
            Rule { fraction_bits: rule.fraction_bits + 1, ..rule },
            Rule { block: rule.block / 2, ..rule },
            Rule { result_bits: rule.result_bits - 1, ..rule },
            Rule { normalizes: true, ..rule },
            Rule { rounds_terms: true, ..rule },
            Rule { rounds: true, ..rule },
            Rule { nan: 0x7FC0_0000, ..rule },
        ];
        for changed in changes {
            assert_ne!(differences(changed), 0, "{}: {changed:?}", recording.name);
        }
        // Of the recorded tiles only these have zeros whose exponent is above that of C.
        let decides = recording.name.ends_with("_f16") || recording.bytes == 1 && recording.is_warpgroup();
        assert_eq!(differences(Rule { counts_zeros: true, ..rule }) != 0, decides, "{}: zeros", recording.name);
        if rule.pairs {
            for changed in [Rule { from_zero: false, ..rule }, Rule { pairs: false, ..rule }] {
                assert_ne!(differences(changed), 0, "{}: {changed:?}", recording.name);
            }
        }
    }
}

#[test]
fn ampere_follows_its_published_rule() {
    // Tensor cores of Ampere have no elements of 8 bits.
    for recording in sample().into_iter().filter(|recording| !recording.is_warpgroup() && recording.bytes > 1) {
        let ampere = Recording { target: "sm_80", ..recording };
        let rule = ampere.rule();
        let expected = ampere.expected(&Rule { fraction_bits: 24, block: rule.block / 2, ..rule });
        assert!(expected != ampere.d && ampere.simulated() == expected, "{}", ampere.name);
        // The same text on a Hopper GPU.
        let hopper = Recording { gpu: Some(Sm::Sm90a), ..ampere };
        assert!(hopper.simulated() == hopper.d, "{}", hopper.name);
    }
}

#[test]
fn flags_change_the_signs_and_omit_c() {
    for recording in sample().into_iter().filter(Recording::is_warpgroup) {
        let mut negated = recording.clone();
        negated.a.iter_mut().skip(recording.bytes - 1).step_by(recording.bytes).for_each(|byte| *byte ^= 0x80);
        for flags in ["1, -1, 1", "1, 1, -1"] {
            let simulated = Recording { flags, ..recording.clone() }.simulated();
            assert!(simulated == negated.expected(&recording.rule()), "{} {flags}", recording.name);
        }
        if recording.row == STEP {
            let simulated = Recording { flags: "0, -1, -1", ..recording.clone() }.simulated();
            let without = Recording { c: vec![0; recording.c.len()], ..recording.clone() };
            assert!(simulated == without.expected(&recording.rule()), "{} without C", recording.name);
        }
    }
}

#[test]
fn fidelity_depends_on_type_accumulators_and_target() {
    let of = |target: &str, text: &str| {
        let opcode = text.split_whitespace().find(|word| word.starts_with("mma.") || word.contains(".mma_async."));
        fidelity(opcode.expect("an instruction is a product"), target)
    };
    for recording in sample() {
        assert_eq!(of("sm_90a", &recording.text()), Fidelity::Exact, "{}", recording.name);
        if !recording.is_warpgroup() {
            assert_eq!(of("sm_80", &recording.text()), Fidelity::Unrecorded, "{}", recording.name);
        }
    }
    let wgmma = |form: &str, c: &str, more: &str| -> String {
        format!("wgmma.mma_async.sync.aligned.{form} {c}, {{%r4, %r5, %r6, %r7}}, %d, 1, 1, 1{more};")
    };
    let others = [
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1}, {%r2}, {%f0, %f1, %f2, %f3};".into(), Fidelity::Unrecorded),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r0, %r1}, {%r2, %r3}, {%r4}, {%r0, %r1};".into(), Fidelity::Approximate),
        ("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6}, {%r0, %r1, %r2, %r3};".into(), Fidelity::Exact),
        (wgmma("m64n8k16.f16.f16.f16", "{%r0, %r1}", ", 0"), Fidelity::Approximate),
        (wgmma("m64n8k8.f32.tf32.tf32", "{%f0, %f1, %f2, %f3}", ""), Fidelity::Unrecorded),
    ];
    for (product, expected) in others {
        assert_eq!(of("sm_90a", &product), expected, "{product}");
    }
}

/// Every element of every recording, in the folder `PTX_RECORDINGS`.
#[test]
#[ignore = "needs the recordings"]
fn products_have_all_recorded_bits() {
    let Ok(folder) = std::env::var("PTX_RECORDINGS") else {
        println!("SKIPPED: PTX_RECORDINGS is not set; expected the folder with the recordings");
        return;
    };
    let mut sampled = SAMPLE;
    for form in FORMS {
        let path = Path::new(&folder).join(format!("{}.bin.xz", form.0));
        let output = Command::new("xz").arg("-dc").arg(&path).output().expect("xz, which unpacks the recordings, runs");
        assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
        let recording = Recording::read(form, &mut &output.stdout[..]);
        let differences = recording.differences(&recording.simulated());
        println!("{}: {differences} of {} elements differ", recording.name, recording.d.len());
        assert_eq!(differences, 0, "{}", recording.name);
        let sample = Recording::read(form, &mut sampled);
        assert!(
            zip(&sample.a[..16 * sample.row], &recording.a).all(|(x, y)| x == y),
            "{}: another sample",
            recording.name
        );
    }
}
