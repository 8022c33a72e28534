//! Every instruction of the assembler runs here and has the value that PTX defines.

use super::*;
use crate::{B16, B32, Bf16x2, Cache, Compare, Entry, F32, Precision, Reg, Sm, Special, U32, U64};

/// Runs `body` on one thread and returns its word.
fn word<T: crate::Type>(approximation: Approximation, body: impl Fn(&Entry) -> Reg<T>) -> u32 {
    let mut module = crate::Module::new(Sm::Sm80);
    module.entry("kernel", [1, 1, 1], |k| {
        let out = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("out")));
        k.st(out.at(0), [body(k)]);
    });
    let mut memory = Memory::new();
    let out = memory.allocate("out", 4);
    let module = Module::parse(&module.text()).expect("the assembler's text is read");
    let options = Options { approximation, ..Options::default() };
    clean(module.launch("kernel", ONE, &[Argument::U64(out)], &mut memory, &options));
    memory.read::<u32>(out).expect("the kernel wrote its result")[0]
}

/// The float that `body` returns.
fn float(body: impl Fn(&Entry) -> Reg<F32>) -> f32 {
    f32::from_bits(word(Approximation::Exact, body))
}

/// The integer that `body` returns.
fn integer(body: impl Fn(&Entry) -> Reg<U32>) -> u32 {
    word(Approximation::Exact, body)
}

#[test]
fn float_arithmetic_rounds_once_and_to_nearest() {
    let third = 1.0 / 3.0f32;
    assert_eq!(float(|k| k.add(k.mov(1e8f32), 3.0f32)), 1e8 + 3.0);
    assert_eq!(float(|k| k.sub(k.mov(1.0f32), third)), 1.0 - third);
    assert_eq!(float(|k| k.mul(k.mov(third), third)), third * third);
    assert_eq!(float(|k| k.fma(k.mov(third), third, -third * third)), third.mul_add(third, -third * third));
    assert_ne!(third.mul_add(third, -third * third), 0.0, "the fused form keeps what two roundings lose");
    assert_eq!(float(|k| k.div(k.mov(1.0f32), k.mov(3.0f32))), third);
    assert_eq!(float(|k| k.neg(k.mov(2.5f32))), -2.5);
    assert_eq!(float(|k| k.abs(k.mov(-2.5f32))), 2.5);
    assert_eq!(float(|k| k.copysign(k.mov(-1.0f32), k.mov(7.0f32))), -7.0);
    assert_eq!(float(|k| k.copysign(k.mov(1.0f32), k.mov(-7.0f32))), 7.0);
}

#[test]
fn minima_and_maxima_treat_nan_and_zeros_as_the_device_does() {
    let nan = f32::NAN;
    assert_eq!(float(|k| k.min(k.mov(2.0f32), -3.0f32)), -3.0);
    assert_eq!(float(|k| k.max(k.mov(2.0f32), -3.0f32)), 2.0);
    assert_eq!(float(|k| k.max(k.mov(nan), -3.0f32)), -3.0);
    assert_eq!(float(|k| k.min(k.mov(-3.0f32), nan)), -3.0);
    assert!(float(|k| k.max_nan(k.mov(nan), -3.0f32)).is_nan());
    assert!(float(|k| k.max_nan(k.mov(-3.0f32), nan)).is_nan());
    assert_eq!(float(|k| k.max_nan(k.mov(-3.0f32), 0.5f32)), 0.5);
    assert_eq!(float(|k| k.max(k.mov(-0.0f32), 0.0f32)).to_bits(), 0);
    assert_eq!(float(|k| k.min(k.mov(0.0f32), -0.0f32)).to_bits(), (-0.0f32).to_bits());
    assert_eq!(word(Approximation::Exact, |k| k.add(k.mov::<F32>(nan), 1.0f32)), 0x7FFF_FFFF);
}

#[test]
fn integer_arithmetic_wraps() {
    assert_eq!(integer(|k| k.add(k.mov(u32::MAX), 3u32)), 2);
    assert_eq!(integer(|k| k.sub(k.mov(2u32), 3u32)), u32::MAX);
    assert_eq!(integer(|k| k.mad_lo(k.mov(0x1_0001u32), 0x1_0001u32, 5u32)), 0x2_0006);
    assert_eq!(integer(|k| k.shl(k.mov(0x8000_0001u32), 4)), 0x10);
    assert_eq!(integer(|k| k.shl(k.mov(1u32), 32)), 0);
    assert_eq!(integer(|k| k.and(k.mov(0xF0F0u32), k.mov(0xFF00u32))), 0xF000);
    assert_eq!(integer(|k| k.or(k.mov(0xF0F0u32), k.mov(0xFF00u32))), 0xFFF0);
}

#[test]
fn wide_products_and_addresses_keep_64_bits() {
    // 70,000 · 70,000 has more than 32 bits: the address would be wrong if they were lost.
    let mut module = crate::Module::new(Sm::Sm80);
    module.entry("kernel", [1, 1, 1], |k| {
        let out = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("out")));
        let n = k.mov::<U32>(70_000u32);
        let wide = k.mad_wide(n, 70_000u32, k.mul_wide(n, 3u32));
        let sum: Reg<U64> = k.sub(k.add(wide, 1u64), 2u64);
        k.st(k.offset(out, k.mul_wide(k.mov(8u32), 1u32)).at(-8), [sum]);
        k.st(k.index(out, k.mov(2u32), 4u32).at(0), [k.mov::<U32>(7u32)]);
    });
    let mut memory = Memory::new();
    let out = memory.allocate("out", 12);
    let module = Module::parse(&module.text()).expect("the text is read");
    clean(module.launch("kernel", ONE, &[Argument::U64(out)], &mut memory, &Options::default()));
    let words = memory.read::<u32>(out).expect("all bytes are written");
    let product = 70_000u64 * 70_000 + 70_000 * 3 - 1;
    assert_eq!(words, [product as u32, (product >> 32) as u32, 7]);
}

#[test]
fn comparisons_of_floats_are_false_on_nan() {
    let test = |compare, a: f32, b: f32| float(|k| k.selp(1.0f32, 0.0f32, k.setp(compare, k.mov::<F32>(a), b))) == 1.0;
    let all = [Compare::Eq, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge];
    assert_eq!(all.map(|compare| test(compare, 1.0, 2.0)), [false, true, true, false, false]);
    assert_eq!(all.map(|compare| test(compare, 2.0, 2.0)), [true, false, true, false, true]);
    assert_eq!(all.map(|compare| test(compare, 3.0, 2.0)), [false, false, false, true, true]);
    assert_eq!(all.map(|compare| test(compare, f32::NAN, 2.0)), [false; 5]);
}

#[test]
fn bf16_is_rounded_to_even_and_widened_exactly() {
    let through = |x: f32| float(|k| k.widen_bf16(k.cvt_bf16(k.mov(x))));
    for x in [1.0f32, -3.5, 1.003_906_2, 1.011_718_8, 3e38, 3.4e38, -0.0, 1e-40, f32::INFINITY] {
        assert_eq!(through(x).to_bits(), half::bf16::from_f32(x).to_f32().to_bits(), "{x:e}");
    }
    assert!(through(f32::NAN).is_nan());
    let pair: u32 = word(Approximation::Exact, |k| k.cvt_bf16x2(k.mov(1.0f32), k.mov(-2.0f32)));
    assert_eq!(pair, 0xC000_3F80, "the lower half is the value at the lower address");
    assert_eq!(float(|k| k.widen_bf16x2(k.cvt_bf16x2(k.mov(1.0f32), k.mov(-2.0f32)))[0]), 1.0);
    assert_eq!(float(|k| k.widen_bf16x2(k.cvt_bf16x2(k.mov(1.0f32), k.mov(-2.0f32)))[1]), -2.0);
}

#[test]
fn approximate_instructions_move_within_their_documented_error() {
    type Instruction = fn(&Entry, Reg<F32>) -> Reg<F32>;
    let cases: [(Instruction, f64, f64); 3] = [
        (|k, x| k.ex2_approx(x), 1.7f64.exp2(), f64::exp2(-22.0)),
        (|k, x| k.rcp_approx(x), 1.0 / 1.7, f64::exp2(-23.0)),
        (|k, x| k.tanh_approx(x), 1.7f64.tanh(), f64::exp2(-11.0)),
    ];
    for (i, (instruction, exact, bound)) in cases.into_iter().enumerate() {
        let at = |how| f64::from(f32::from_bits(word(how, |k| instruction(k, k.mov(1.7f32)))));
        let (middle, high, low) = (at(Approximation::Exact), at(Approximation::High), at(Approximation::Low));
        let ulp = exact * f64::exp2(-23.0);
        assert!((middle - exact).abs() <= 1.1 * ulp, "instruction {i}: {middle} for {exact}");
        assert!(low < middle && middle < high, "instruction {i}: {low} {middle} {high}");
        assert!(
            high - exact <= bound * exact + ulp && exact - low <= bound * exact + ulp,
            "instruction {i}: {low} {high}"
        );
    }
    assert_eq!(float(|k| k.rcp_approx(k.mov(f32::INFINITY))), 0.0);
    assert_eq!(float(|k| k.rcp_approx(k.mov(1e-40f32))), f32::INFINITY, "a subnormal counts as zero");
    assert_eq!(float(|k| k.ex2_approx(k.mov(-130.0f32))), 0.0, "a subnormal result is flushed");
}

#[test]
fn exp_and_erf_agree_with_f64_for_every_device_that_keeps_its_documentation() {
    let arguments = (-400..=400).map(|i| i as f32 * 0.2137);
    for x in arguments {
        for how in Approximation::ALL {
            let at = |body: &dyn Fn(&Entry, Reg<F32>) -> Reg<F32>| {
                f64::from(f32::from_bits(word(how, |k| body(k, k.mov(x)))))
            };
            let exact = f64::from(x).exp();
            let exp = at(&|k, x| k.exp(x, Precision::Single));
            assert!((exp - exact).abs() <= 1.5 * f64::exp2(-23.0) * exact, "exp {x} = {exp}, exactly {exact}");
            let half = at(&|k, x| k.exp(x, Precision::Half));
            let bound = (3.0 + f64::from(x.abs())) * f64::exp2(-23.0) * exact;
            assert!((half - exact).abs() <= bound, "approximate exp {x} = {half}, exactly {exact}, bound {bound}");
            let (sigmoid, exact) =
                (at(&|k, x| k.sigmoid(x, Precision::Single).value), 1.0 / (1.0 + (-f64::from(x)).exp()));
            assert!(
                (sigmoid - exact).abs() <= 2.5 * f64::exp2(-23.0) * exact,
                "sigmoid {x} = {sigmoid}, exactly {exact}"
            );
            let erf = at(&|k, x| k.erf(x, Precision::Single));
            let exact = libm::erf(f64::from(x));
            assert!((erf - exact).abs() <= 2.0 * f64::exp2(-23.0) * exact.abs(), "erf {x} = {erf}, exactly {exact}");
        }
    }
    assert_eq!(float(|k| k.exp(k.mov(89.0f32), Precision::Single)), f32::INFINITY);
    assert_eq!(float(|k| k.exp(k.mov(-100.0f32), Precision::Single)), 0.0);
}

#[test]
fn branches_loops_and_guards_take_the_right_way() {
    let sum = |start: u32, end: u32, step: u32| {
        integer(|k| {
            let sum = k.mov::<U32>(0u32);
            k.for_(start, end, step, |i| k.add_into(sum, sum, i));
            sum
        })
    };
    assert_eq!(sum(0, 10, 3), 3 + 6 + 9);
    assert_eq!(sum(4, 5, 3), 4);
    assert_eq!(sum(5, 5, 1), 0);
    assert_eq!(sum(6, 5, 1), 0);
    let way = |n: u32| {
        integer(|k| {
            let (n, way) = (k.mov::<U32>(n), k.mov::<U32>(0u32));
            k.if_else(k.lt(n, 5u32), || k.add_into(way, way, 1u32), || k.add_into(way, way, 2u32));
            k.if_(k.lt(n, 3u32), || k.add_into(way, way, 10u32));
            k.when(k.lt(n, 1u32), || k.add_into(way, way, 100u32));
            way
        })
    };
    assert_eq!([0, 2, 4, 6].map(way), [111, 11, 1, 2]);
}

#[test]
fn vectors_move_their_values_in_order_of_address() {
    let mut module = crate::Module::new(Sm::Sm80);
    module.entry("kernel", [1, 1, 1], |k| {
        let (x, y) = (k.pointer_param("x"), k.pointer_param("y"));
        let [x, y] = [x, y].map(|param| k.cvta_to_global(k.ld_param_pointer(param)));
        let [a, b, c, d] = k.ld_nc::<B32, 4>(x.at(0), Cache::Stream);
        k.st(y.at(0), [d, c, b, a]);
        k.st(y.at(16), k.ld::<Bf16x2, 2>(x.at(8)));
        k.st(y.at(24), k.ld::<B16, 2>(x.at(4)));
        k.st(y.at(28), k.ld_nc::<F32, 1>(x.at(0), Cache::Keep));
    });
    let mut memory = Memory::new();
    let x = memory.allocate_from("x", &[1u32, 0x0002_0003, 4, 5]);
    let y = memory.allocate("y", 32);
    let module = Module::parse(&module.text()).expect("the text is read");
    let arguments = [Argument::U64(x), Argument::U64(y)];
    let counts = clean(module.launch("kernel", ONE, &arguments, &mut memory, &Options::default()));
    assert_eq!(memory.read::<u32>(y).expect("all bytes are written"), [5, 4, 0x0002_0003, 1, 4, 5, 0x0002_0003, 1]);
    assert_eq!(memory.touched(), Touched { read: 16, written: 32 });
    assert_eq!(counts.instructions["ld.global.nc.L1::no_allocate.v4.b32"], 1);
}

#[test]
fn threads_know_where_they_are() {
    let mut module = crate::Module::new(Sm::Sm80);
    module.entry("kernel", [3, 1, 1], |k| {
        let out = k.cvta_to_global(k.ld_param_pointer(k.pointer_param("out")));
        let row = k.mad_lo(k.special(Special::CtaidY), k.special(Special::NtidX), k.special(Special::TidX));
        let at = k.mad_lo(k.special(Special::CtaidX), 6u32, row);
        k.st(k.index(out, at, 4u32).at(0), [k.mad_lo(k.special(Special::NctaidY), 100u32, at)]);
    });
    let mut memory = Memory::new();
    let out = memory.allocate("out", 4 * 2 * 2 * 3);
    let launch = Launch { grid: [2, 2, 1], block: [3, 1, 1], shared_bytes: 0 };
    let module = Module::parse(&module.text()).expect("the text is read");
    clean(module.launch("kernel", launch, &[Argument::U64(out)], &mut memory, &Options::default()));
    assert_eq!(memory.read::<u32>(out).expect("all are written"), (200..212).collect::<Vec<_>>());
}
