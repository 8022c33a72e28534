//! Operations of each instruction set against plain Rust, and bounds of partial loads and stores.

use super::*;
use crate::num::philox::Stream;

/// Test values: specials, ties for rounding, and random bit patterns.
fn samples() -> Vec<f32> {
    let mut x = vec![0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, f32::MIN_POSITIVE, f32::MAX, 1e-40, f32::INFINITY];
    let mut stream = Stream::new(1, [0; 3]);
    while x.len() < 256 {
        let value = f32::from_bits(stream.next_u32());
        if !value.is_nan() {
            x.push(value);
        }
    }
    x
}

struct EveryOperation<'a> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut Vec<u32>,
}

impl Kernel for EveryOperation<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); 27];
        for (a, b) in self.a.chunks_exact(S::LANES).zip(self.b.chunks_exact(S::LANES)) {
            let (a, b) = (s.load(a), s.load(b));
            let (ua, ub) = (s.as_bits(a), s.as_bits(b));
            let (low, high) = s.mul_wide_u32(ua, ub);
            let small = s.mul(s.as_floats(s.and(ua, s.splat_u32(0xbfff_ffff))), s.splat(16.0));
            let one = s.splat(1.0);
            let results = [
                s.add(a, b),
                s.sub(a, b),
                s.mul(a, b),
                s.mul_add(a, b, small),
                s.neg_mul_add(a, b, small),
                s.div(a, b),
                s.max(a, b),
                s.min(a, b),
                s.sqrt(s.abs(a)),
                s.neg(a),
                s.copy_sign(s.abs(a), b),
                s.as_floats(s.round_to_int(small)),
                s.int_to_float(ua),
                s.as_floats(s.add_u32(ua, ub)),
                s.as_floats(low),
                s.as_floats(high),
                s.as_floats(s.xor(ua, ub)),
                s.as_floats(s.and(ua, ub)),
                s.as_floats(s.or(ua, ub)),
                s.as_floats(s.shl::<9>(ua)),
                s.as_floats(s.shr::<9>(ua)),
                s.select(s.lt(a, b), one, a),
                s.select(s.lt_u32(ua, ub), one, a),
                s.select(s.first(S::LANES / 2 + 1), one, one),
            ];
            for (row, value) in rows.iter_mut().zip(results) {
                let mut lanes = [0f32; 16];
                s.store(&mut lanes, value);
                row.extend(lanes[..S::LANES].iter().map(|lane| lane.to_bits()));
            }
            let mut narrow = [bf16::ZERO; 16];
            bf16::store(s, &mut narrow, a);
            rows[24].extend(narrow[..S::LANES].iter().map(|x| u32::from(x.to_bits())));
            let mut wide = [0f32; 16];
            s.store(&mut wide, bf16::load(s, &narrow));
            rows[25].extend(wide[..S::LANES].iter().map(|x| x.to_bits()));
            let mut rounded = [0f32; 16];
            s.store(&mut rounded, s.round_bf16(a));
            assert_eq!(rounded[..S::LANES], wide[..S::LANES], "rounded in registers and through memory");
            rows[26].extend(rounded[..S::LANES].iter().map(|x| x.to_bits()));
        }
        *self.out = rows.concat();
    }
}

fn every_operation(isa: Isa) -> Vec<u32> {
    let a = samples();
    let b: Vec<f32> = a.iter().rev().copied().collect();
    let mut out = Vec::new();
    isa.run(EveryOperation { a: &a, b: &b, out: &mut out });
    out
}

#[test]
fn every_operation_gives_the_bits_of_plain_rust() {
    let expected = every_operation(Isa::Scalar(Scalar::new()));
    for isa in Isa::testable() {
        let got = every_operation(isa);
        assert_eq!(got.len(), expected.len());
        for (i, (&got, &want)) in got.iter().zip(&expected).enumerate() {
            let both_nan = f32::from_bits(got).is_nan() && f32::from_bits(want).is_nan();
            assert!(got == want || both_nan, "{}: row {} item {}: {got:#x} {want:#x}", isa.kind(), i / 256, i % 256);
        }
    }
    for kind in IsaKind::REAL.iter().filter(|&&kind| Isa::new(kind).is_none()) {
        println!("SKIPPED: {kind} is missing on this machine; .ci/emulated.sh emulates its lanes");
    }
}

struct Partial<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    narrow: &'a mut [bf16],
}

impl Kernel for Partial<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.len().min(S::LANES);
        let value = s.load_partial(&self.x[..n]);
        s.store_partial(&mut self.y[..n], value);
        bf16::store_partial(s, &mut self.narrow[..n], value);
        assert_eq!(s.reduce_sum(value), self.x[..n].iter().sum::<f32>(), "lanes past the end are zero");
        let again = bf16::load_partial(s, &self.narrow[..n]);
        assert_eq!(s.reduce_sum(again), self.x[..n].iter().sum::<f32>());
    }
}

#[test]
fn partial_vectors_touch_no_memory_behind_the_end() {
    for isa in Isa::testable() {
        for n in 0..=isa.lanes() {
            // Small integers, so that sums are exact in any order and in bf16.
            let x: Vec<f32> = (1..=n).map(|i| i as f32).collect();
            let (mut y, mut narrow) = (vec![-7.0f32; 17], vec![bf16::from_f32(-7.0); 17]);
            isa.run(Partial { x: &x, y: &mut y, narrow: &mut narrow });
            assert_eq!(y[..n], x[..], "{} n = {n}", isa.kind());
            assert!(y[n..].iter().all(|&y| y == -7.0), "{} n = {n}: {y:?}", isa.kind());
            assert!(narrow[n..].iter().all(|y| y.to_f32() == -7.0), "{} n = {n}: {narrow:?}", isa.kind());
        }
    }
}

#[test]
fn the_environment_names_real_instruction_sets_only_once() {
    for kind in IsaKind::ALL {
        assert_eq!(kind.name().parse::<IsaKind>(), Ok(kind));
    }
    let error = "avx1024".parse::<IsaKind>().unwrap_err().to_string();
    assert!(error.contains("ALBERT_ISA=avx1024") && error.contains("scalar"), "{error}");
}

struct Transpose<'a>(&'a [f32], &'a mut [f32]);

impl Kernel for Transpose<'_> {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let mut rows = [s.zero(); 16];
        for (row, x) in rows.iter_mut().zip(self.0.chunks_exact(16)) {
            *row = s.load(x);
        }
        s.transpose(&mut rows);
        for (row, y) in rows.into_iter().zip(self.1.chunks_exact_mut(16)) {
            s.store(y, row);
        }
        S::LANES
    }
}

#[test]
fn transposing_exchanges_rows_and_lanes() {
    let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
    for isa in Isa::testable() {
        let mut y = vec![f32::NAN; 256];
        assert_eq!(isa.run(Transpose(&x, &mut y)), isa.kind().lanes(), "{}: lanes of a kernel", isa.kind());
        for (row, lane) in (0..isa.lanes()).flat_map(|row| (0..isa.lanes()).map(move |lane| (row, lane))) {
            let (got, want) = (y[row * 16 + lane], x[lane * 16 + row]);
            assert_eq!(got, want, "{}: row {row} lane {lane}", isa.kind());
        }
    }
}
