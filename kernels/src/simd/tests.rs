//! Operations of each instruction set against plain Rust, and bounds of partial loads and stores.

use super::*;
use crate::num::functions;
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

/// Number of lanes that a kernel runs with.
struct Lanes;

impl Kernel for Lanes {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::LANES
    }
}

#[test]
fn kernels_run_with_the_lanes_of_their_instruction_set() {
    for isa in Isa::testable() {
        assert_eq!(isa.run(Lanes), isa.kind().lanes(), "{}", isa.kind());
    }
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

struct Folds<'a>(&'a [f32], &'a mut (f32, f32, [u32; 16]));

impl Kernel for Folds<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = s.load(self.0);
        let mut fused = [0f32; 16];
        s.store(&mut fused, s.mul_add(x, x, s.neg_mul_add(x, s.splat(3.0), x)));
        *self.1 = (s.reduce_sum(x), s.reduce_max(x), fused.map(f32::to_bits));
    }
}

#[test]
fn emulated_lanes_fold_and_fuse_as_real_lanes_do() {
    let mut stream = Stream::new(2, [0; 3]);
    for _ in 0..1000 {
        let x: Vec<f32> = (0..16).map(|_| stream.normal() as f32).collect();
        for kind in [IsaKind::Neon, IsaKind::Avx2, IsaKind::Avx512] {
            let Some(real) = Isa::new(kind) else { continue };
            let (mut a, mut b) = ((0.0, 0.0, [0; 16]), (0.0, 0.0, [0; 16]));
            real.run(Folds(&x, &mut a));
            match kind {
                IsaKind::Neon => Emulated::<4>.vectorize(Folds(&x, &mut b)),
                IsaKind::Avx2 => Emulated::<8>.vectorize(Folds(&x, &mut b)),
                _ => Emulated::<16>.vectorize(Folds(&x, &mut b)),
            }
            assert_eq!((a.0.to_bits(), a.1.to_bits(), a.2), (b.0.to_bits(), b.1.to_bits(), b.2), "{x:?}");
        }
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
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut rows = [s.zero(); 16];
        for (row, x) in rows.iter_mut().zip(self.0.chunks_exact(16)) {
            *row = s.load(x);
        }
        s.transpose(&mut rows);
        for (row, y) in rows.into_iter().zip(self.1.chunks_exact_mut(16)) {
            s.store(y, row);
        }
    }
}

#[test]
fn transposing_exchanges_rows_and_lanes() {
    let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
    for isa in Isa::testable() {
        let mut y = vec![f32::NAN; 256];
        isa.run(Transpose(&x, &mut y));
        for (row, lane) in (0..isa.lanes()).flat_map(|row| (0..isa.lanes()).map(move |lane| (row, lane))) {
            let (got, want) = (y[row * 16 + lane], x[lane * 16 + row]);
            assert_eq!(got, want, "{}: row {row} lane {lane}", isa.kind());
        }
    }
}

struct LoadTransposed<'a>(&'a [f32], usize, usize, &'a mut [f32]);

impl Kernel for LoadTransposed<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self(x, leading, rows, y) = self;
        assert!(rows == 0 || x.len() >= (rows - 1) * leading + S::LANES);
        // SAFETY: the assert.
        let columns = unsafe { s.load_transposed(x.as_ptr(), leading, rows) };
        for (column, y) in columns.into_iter().zip(y.chunks_exact_mut(16)).take(S::LANES) {
            s.store(y, column);
        }
    }
}

#[test]
fn columns_are_loaded_without_touching_rows_that_do_not_exist() {
    for isa in Isa::testable() {
        let (lanes, leading) = (isa.lanes(), isa.lanes() + 3);
        for rows in 0..=lanes {
            // No element past the rows.
            let x: Vec<f32> =
                (0..if rows == 0 { 0 } else { (rows - 1) * leading + lanes }).map(|i| i as f32 + 1.0).collect();
            let mut y = vec![f32::NAN; 256];
            isa.run(LoadTransposed(&x, leading, rows, &mut y));
            for (column, lane) in (0..lanes).flat_map(|column| (0..lanes).map(move |lane| (column, lane))) {
                let want = if lane < rows { x[lane * leading + column] } else { 0.0 };
                assert_eq!(y[column * 16 + lane], want, "{}: {rows} rows, column {column} lane {lane}", isa.kind());
            }
        }
    }
}

/// 2^y from its integer and fractional parts, and functions of several vectors.
struct Powers<'a> {
    y: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Powers<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (y, out) in self.y.chunks_exact(S::LANES).zip(self.out.chunks_exact_mut(S::LANES)) {
            s.store(out, functions::exp2(s, s.load(y)));
        }
    }
}

#[test]
fn powers_of_two_keep_their_bound_and_vanish_below() {
    let y: Vec<f32> = (0..4096).map(|i| -150.0 + i as f32 * (277.0 / 4096.0)).collect();
    for isa in Isa::testable() {
        let mut out = vec![f32::NAN; y.len()];
        isa.run(Powers { y: &y, out: &mut out });
        for (&y, &p) in y.iter().zip(&out) {
            let exact = f64::from(y).exp2();
            if y >= -126.0 {
                let error = (f64::from(p) - exact).abs() / exact;
                assert!(error <= 1.8e-7, "{}: 2^{y} = {p:e}, off by {error:e}", isa.kind());
            } else {
                assert!((0.0..=f32::MIN_POSITIVE * 2.0).contains(&p), "{}: 2^{y} = {p:e}", isa.kind());
            }
        }
        let special = [f32::NAN, f32::NEG_INFINITY, -1e9, 0.0].repeat(4);
        let mut out = vec![1.0f32; special.len()];
        isa.run(Powers { y: &special, out: &mut out });
        let tiny = 0.0..=f32::MIN_POSITIVE * 2.0;
        let right = out[0].is_nan() && tiny.contains(&out[1]) && tiny.contains(&out[2]) && out[3] == 1.0;
        assert!(right, "{}: {:?}", isa.kind(), &out[..4]);
    }
}

/// Operations of row kernels on single vectors and on `Wide`.
struct Combined<'a> {
    x: &'a [f32],
    out: &'a mut Vec<u32>,
    wide: bool,
}

impl Combined<'_> {
    #[inline(always)]
    fn collect<S: Simd>(self, s: S) {
        for x in self.x.chunks_exact(S::LANES) {
            let x = s.load(x);
            let (low, high) = s.mul_wide_u32(s.as_bits(x), s.splat_u32(0x9e37_79b9));
            let results = [
                functions::gelu_tanh(s, x),
                functions::gelu_tanh_derivative(s, x),
                functions::gelu_erf(s, x),
                functions::ln(s, s.abs(x)),
                functions::tanh(s, s.sqrt(s.abs(x))),
                s.select(s.lt_u32(low, high), s.min(x, s.splat(0.5)), s.neg(x)),
                s.round_bf16(s.div(x, s.splat(3.0))),
                s.select(s.first(S::LANES / 2), x, s.zero()),
            ];
            // Results of one vector after the other; the result of first(n) depends on the width.
            let mut lanes = [0f32; 64];
            for result in results {
                s.store(&mut lanes, result);
                self.out.extend(lanes[..S::LANES].iter().map(|lane| lane.to_bits()));
            }
        }
    }
}

impl Kernel for Combined<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.wide { self.collect(Wide(s)) } else { self.collect(s) }
    }
}

#[test]
fn vectors_side_by_side_give_the_bits_of_single_ones() {
    let mut stream = Stream::new(3, [0; 3]);
    let x: Vec<f32> = (0..256).map(|_| 4.0 * stream.normal() as f32).collect();
    for isa in Isa::testable() {
        let [mut single, mut wide] = [Vec::new(), Vec::new()];
        isa.run(Combined { x: &x, out: &mut single, wide: false });
        isa.run(Combined { x: &x, out: &mut wide, wide: true });
        let (lanes, results) = (isa.lanes(), 8);
        assert_eq!(single.len(), wide.len());
        for (i, &got) in wide.iter().enumerate() {
            // Element i of `wide` is lane `lane` of result `result` of a group of four vectors.
            let (group, rest) = (i / (WIDTH * lanes * results), i % (WIDTH * lanes * results));
            let (result, lane) = (rest / (WIDTH * lanes), rest % (WIDTH * lanes));
            let vector = group * WIDTH + lane / lanes;
            let want = single[(vector * results + result) * lanes + lane % lanes];
            if result == 7 {
                let kept = lane < WIDTH * lanes / 2;
                assert_eq!(f32::from_bits(got), if kept { x[vector * lanes + lane % lanes] } else { 0.0 });
            } else {
                assert_eq!(got, want, "{}: result {result} of element {lane}", isa.kind());
            }
        }
    }
}
