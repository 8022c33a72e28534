//! Output of the assembler runs here and computes what its methods promise.

use super::*;
use crate::{B16, B32, Bf16x2, Cache, Compare, Entry, F32, Precision, Reg, Sm, U32};

/// Runs `body` on one thread.
fn run(
    body: impl FnOnce(&Entry),
    arguments: &[Argument],
    memory: &mut Memory,
    approximation: Approximation,
) -> Metrics {
    let mut module = crate::Module::new(Sm::Sm80);
    module.entry("kernel", [1, 1, 1], body);
    let module = Module::parse(&module.text()).expect("the assembler's text is read");
    clean(module.launch("kernel", ONE, arguments, memory, &Options { approximation, ..Options::default() }))
}

/// Runs `body` on one thread and returns its word.
fn word<T: crate::Type>(approximation: Approximation, body: impl Fn(&Entry) -> Reg<T>) -> u32 {
    let mut memory = Memory::new();
    let out = memory.allocate("out", 4);
    let body = |k: &Entry| k.st(k.load_pointer("out").at(0), [body(k)]);
    run(body, &[Argument::U64(out)], &mut memory, approximation);
    memory.read::<u32>(out).expect("the kernel wrote its result")[0]
}

/// The float that `body` returns.
fn float(approximation: Approximation, body: impl Fn(&Entry) -> Reg<F32>) -> f32 {
    f32::from_bits(word(approximation, body))
}

#[test]
fn comparisons_of_floats_are_false_on_nan() {
    let test = |compare, a: f32, b: f32| {
        word(Approximation::Device, |k| k.selp::<U32>(1u32, 0u32, k.setp(compare, k.mov::<F32>(a), b))) == 1
    };
    let all = [Compare::Eq, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge];
    assert_eq!(all.map(|compare| test(compare, 1.0, 2.0)), [false, true, true, false, false]);
    assert_eq!(all.map(|compare| test(compare, 2.0, 2.0)), [true, false, true, false, true]);
    assert_eq!(all.map(|compare| test(compare, 3.0, 2.0)), [false, false, false, true, true]);
    assert_eq!(all.map(|compare| test(compare, f32::NAN, 2.0)), [false; 5]);
}

#[test]
fn exp_and_erf_agree_with_f64_for_every_device_that_keeps_its_documentation() {
    type Function = fn(&Entry, Reg<F32>) -> Reg<F32>;
    for x in (-400..=400).map(|i| i as f32 * 0.2137) {
        let wide = f64::from(x);
        let cases: [(&str, Function, f64, f64); 4] = [
            ("exp", |k, x| k.exp(x, Precision::Single), wide.exp(), 1.5),
            ("approximate exp", |k, x| k.exp(x, Precision::Half), wide.exp(), 3.0 + wide.abs()),
            ("sigmoid", |k, x| k.sigmoid(x, Precision::Single).value, 1.0 / (1.0 + (-wide).exp()), 2.5),
            ("erf", |k, x| k.erf(x, Precision::Single), libm::erf(wide), 2.0),
        ];
        for (name, function, exact, bound) in cases {
            for how in Approximation::ALL {
                let value = float(how, |k| function(k, k.mov(x)));
                let bound = bound * f64::exp2(-23.0) * exact.abs();
                assert!((f64::from(value) - exact).abs() <= bound, "{name} {x} = {value}, exactly {exact}, {how:?}");
            }
        }
    }
    let exp = |x: f32| float(Approximation::Device, |k| k.exp(k.mov(x), Precision::Single));
    assert_eq!([89.0, -100.0].map(exp), [f32::INFINITY, 0.0]);
}

#[test]
fn branches_loops_and_guards_take_the_right_way() {
    let sum = |(start, end, step): (u32, u32, u32)| {
        word(Approximation::Device, |k| {
            let sum = k.mov::<U32>(0u32);
            k.for_(start, end, step, |i| k.add_into(sum, sum, i));
            sum
        })
    };
    assert_eq!([(0, 10, 3), (4, 5, 3), (5, 5, 1), (6, 5, 1)].map(sum), [3 + 6 + 9, 4, 0, 0]);
    let way = |n: u32| {
        word(Approximation::Device, |k| {
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
    let mut memory = Memory::new();
    let x = memory.allocate_from("x", &[1u32, 0x0002_0003, 4, 5]);
    let y = memory.allocate("y", 32);
    let body = |k: &Entry| {
        let [x, y] = ["x", "y"].map(|name| k.load_pointer(name));
        let [a, b, c, d] = k.ld_nc::<B32, 4>(x.at(0), Cache::Stream);
        k.st(y.at(0), [d, c, b, a]);
        k.st(k.offset(y, 32u64).at(-16), k.ld::<Bf16x2, 2>(x.at(8)));
        k.st(y.at(24), k.ld::<B16, 2>(x.at(4)));
        k.st(y.at(28), k.ld_nc::<F32, 1>(x.at(0), Cache::Keep));
    };
    let counts = run(body, &[x, y].map(Argument::U64), &mut memory, Approximation::Device);
    assert_eq!(memory.read::<u32>(y).expect("all bytes are written"), [5, 4, 0x0002_0003, 1, 4, 5, 0x0002_0003, 1]);
    assert_eq!(memory.touched(), Touched { read: 16, written: 32 });
    assert_eq!(counts.instructions["ld.global.nc.L1::no_allocate.v4.b32"], 1);
}
