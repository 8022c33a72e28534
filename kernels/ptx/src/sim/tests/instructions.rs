//! Forms that our assembler does not write and other compilers do: each against a value computed by hand or by Rust.

use super::*;

/// The words that `body` leaves in `%out0…` after running on one warp; `{i}` registers are declared for it.
pub(super) fn words<const N: usize>(body: &str) -> [u64; N] {
    words_with(body, Approximation::Device)
}

fn words_with<const N: usize>(body: &str, approximation: Approximation) -> [u64; N] {
    let stores: String = (0..N).map(|i| format!("st.global.u64 [%base+{}], %out{i};\n", 8 * i)).collect();
    let text = format!(
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry kernel(.param .u64 out)\n{{\n\
         .reg .b64 %base, %out<{N}>, %d<16>;\n.reg .b32 %r<32>;\n.reg .b16 %h<16>;\n.reg .f32 %f<16>;\n.reg .f64 %g<8>;\n\
         .reg .pred %p<8>;\nld.param.u64 %base, [out];\n{body}\n{stores}ret;\n}}\n"
    );
    let mut memory = Memory::new();
    let out = memory.allocate("out", 8 * N);
    let options = Options { approximation, ..Options::default() };
    let report = launch(&text, ONE, &[Argument::U64(out)], &mut memory, &options);
    report.clean().unwrap_or_else(|findings| panic!("{findings}\n{body}"));
    memory.read::<u64>(out).expect("all is written").try_into().expect("as many as asked for")
}

/// The result of a form with 32-bit operands and result.
fn word(form: &str, operands: &[u32]) -> u32 {
    let moves: String = operands.iter().enumerate().map(|(i, v)| format!("mov.b32 %r{}, {v};\n", i + 1)).collect();
    let names: String = (1..=operands.len()).map(|i| format!(", %r{i}")).collect();
    let [out] = words(&format!("{moves}{form} %r0{names};\ncvt.u64.u32 %out0, %r0;"));
    out as u32
}

/// The result of a form with 64-bit operands and result.
fn long(form: &str, operands: &[u64]) -> u64 {
    let moves: String = operands.iter().enumerate().map(|(i, v)| format!("mov.b64 %d{}, {v};\n", i + 1)).collect();
    let names: String = (1..=operands.len()).map(|i| format!(", %d{i}")).collect();
    let [out] = words(&format!("{moves}{form} %d0{names};\nmov.b64 %out0, %d0;"));
    out
}

const SAMPLES: [u32; 8] = [0, 1, 7, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x1234_5678, 0xDEAD_BEEF];

#[test]
fn integers_of_32_bits_agree_with_rust() {
    for a in SAMPLES {
        for b in SAMPLES {
            let (sa, sb) = (a.cast_signed(), b.cast_signed());
            let wide = u64::from(a) * u64::from(b);
            let signed = i64::from(sa) * i64::from(sb);
            for (form, wanted) in [
                ("add.s32", a.wrapping_add(b)),
                ("sub.u32", a.wrapping_sub(b)),
                ("add.sat.s32", sa.saturating_add(sb).cast_unsigned()),
                ("mul.lo.s32", a.wrapping_mul(b)),
                ("mul.hi.u32", (wide >> 32) as u32),
                ("mul.hi.s32", (signed >> 32) as u32),
                ("min.u32", a.min(b)),
                ("max.u32", a.max(b)),
                ("min.s32", sa.min(sb).cast_unsigned()),
                ("max.s32", sa.max(sb).cast_unsigned()),
                ("max.relu.s32", sa.max(sb).max(0).cast_unsigned()),
                ("and.b32", a & b),
                ("or.b32", a | b),
                ("xor.b32", a ^ b),
                ("shl.b32", if b > 31 { 0 } else { a << b }),
                ("shr.u32", if b > 31 { 0 } else { a >> b }),
                ("shr.s32", (sa >> b.min(31)).cast_unsigned()),
            ] {
                assert_eq!(word(form, &[a, b]), wanted, "{form} {a:#x}, {b:#x}");
            }
            if b != 0 {
                assert_eq!(word("div.u32", &[a, b]), a / b);
                assert_eq!(word("rem.u32", &[a, b]), a % b);
                assert_eq!(word("div.s32", &[a, b]), sa.wrapping_div(sb).cast_unsigned());
                assert_eq!(word("rem.s32", &[a, b]), sa.wrapping_rem(sb).cast_unsigned());
            }
        }
        let signed = a.cast_signed();
        for (form, wanted) in [
            ("not.b32", !a),
            ("neg.s32", signed.wrapping_neg().cast_unsigned()),
            ("abs.s32", signed.wrapping_abs().cast_unsigned()),
            ("popc.b32", a.count_ones()),
            ("clz.b32", a.leading_zeros()),
            ("brev.b32", a.reverse_bits()),
            ("bfind.u32", 31_u32.wrapping_sub(a.leading_zeros())),
            ("cnot.b32", u32::from(a == 0)),
        ] {
            assert_eq!(word(form, &[a]), wanted, "{form} {a:#x}");
        }
    }
    assert_eq!(word("bfind.s32", &[0xFFFF_FF00]), 7);
    assert_eq!(word("bfind.shiftamt.u32", &[0x0000_8000]), 16);
    assert_eq!(word("sad.u32", &[3, 10, 5]), 12);
    assert_eq!(word("mad.hi.u32", &[0x8000_0000, 6, 5]), 8);
    assert_eq!(word("mad.lo.s32", &[0xFFFF_FFFF, 6, 5]), 0xFFFF_FFFF);
    assert_eq!(word("mad.lo.u32", &[0x1_0001, 0x1_0001, 5]), 0x2_0006);
    assert_eq!(word("mul24.lo.u32", &[0xFF00_0003, 5]), 15);
    assert_eq!(word("dp4a.u32.u32", &[0x0102_0304, 0x0506_0708, 10]), 5 + 12 + 21 + 32 + 10);
    assert_eq!(word("dp4a.s32.s32", &[0xFF02_0304, 0x0506_0708, 10]), 12 + 21 + 32 + 10 - 5);
}

#[test]
fn integers_of_64_and_16_bits_keep_their_width() {
    let (a, b) = (0x1234_5678_9ABC_DEF0_u64, 0xFEDC_BA98_7654_3210_u64);
    assert_eq!(long("mul.hi.u64", &[a, b]), ((u128::from(a) * u128::from(b)) >> 64) as u64);
    let signed = (i128::from(a.cast_signed()) * i128::from(b.cast_signed())) >> 64;
    assert_eq!(long("mul.hi.s64", &[a, b]), signed as u64);
    assert_eq!(long("mad.lo.s64", &[a, b, 9]), a.wrapping_mul(b).wrapping_add(9));
    assert_eq!(long("shr.s64", &[b, 4]), (b.cast_signed() >> 4).cast_unsigned());
    assert_eq!(long("rem.u64", &[b, 1000]), b % 1000);
    assert_eq!(long("clz.b64", &[0xFF]), 56);
    assert_eq!(long("min.s64", &[a, b]), b);
    let [wide] = words("mov.b32 %r0, 70000; mul.wide.u32 %d0, %r0, 3; mad.wide.u32 %out0, %r0, %r0, %d0;");
    assert_eq!(wide, 70_000 * 70_000 + 70_000 * 3);
    let [wide, short, high] = words(
        "mov.b16 %h0, 0xFFFF; mov.b16 %h1, 3;\nmul.wide.u16 %r0, %h0, %h1; cvt.u64.u32 %out0, %r0;\n\
         mul.lo.s16 %h2, %h0, %h1; cvt.u64.u16 %out1, %h2;\nmul.wide.s16 %r1, %h0, %h1; cvt.s64.s32 %out2, %r1;",
    );
    assert_eq!([wide, short, high], [0xFFFF * 3, 0xFFFD, (-3_i64).cast_unsigned()]);
}

#[test]
fn carries_run_through_a_chain() {
    let [low, high] = words(
        "mov.b32 %r0, 0xFFFFFFFF; mov.b32 %r1, 2; mov.b32 %r2, 7;\nadd.cc.u32 %r3, %r0, %r1; addc.u32 %r4, %r2, %r2;\n\
         cvt.u64.u32 %out0, %r3; sub.cc.u32 %r5, %r1, %r2; subc.u32 %r6, %r2, %r1;\n\
         shl.b32 %r6, %r6, 8; or.b32 %r4, %r4, %r6; cvt.u64.u32 %out1, %r4;",
    );
    assert_eq!([low, high], [1, 15 | 4 << 8], "0xFFFFFFFF + 2 carries; 2 - 7 borrows");
    let [product] = words(
        "mov.b32 %r0, 0xFFFFFFFF; mov.b32 %r1, 0x10; mov.b32 %r2, 0xFFFFFFFF; mov.b32 %r3, 5;\n\
         mad.lo.cc.u32 %r4, %r0, %r1, %r2; madc.hi.u32 %r5, %r0, %r1, %r3; mov.b64 %out0, {%r4, %r5};",
    );
    assert_eq!(product, 0xFFFF_FFFF * 0x10 + 0xFFFF_FFFF + (5 << 32));
}

#[test]
fn bit_fields_permutations_and_tables() {
    assert_eq!(word("bfe.u32", &[0x1234_5678, 8, 12]), 0x456);
    assert_eq!(word("bfe.s32", &[0x0000_0F00, 8, 4]), 0xFFFF_FFFF);
    assert_eq!(word("bfe.s32", &[0x8000_0000, 28, 16]), 0xFFFF_FFF8, "beyond the top it is the sign");
    assert_eq!(word("bfe.u32", &[0xFFFF_FFFF, 40, 4]), 0);
    assert_eq!(word("bfi.b32", &[0xAB, 0xFFFF_FFFF, 8, 8]), 0xFFFF_ABFF);
    for (table, f) in [
        (0xE8_u32, (|a, b, c| a & b | a & c | b & c) as fn(u32, u32, u32) -> u32),
        (0x96, |a, b, c| a ^ b ^ c),
        (0xCA, |a, b, c| a & b | !a & c),
        (0xF8, |a, b, c| a | b & c),
    ] {
        let (a, b, c) = (0x1234_5678, 0x0F0F_F0F0, 0xDEAD_BEEF);
        let [out] = words(&format!(
            "mov.b32 %r1, {a}; mov.b32 %r2, {b}; mov.b32 %r3, {c}; lop3.b32 %r0, %r1, %r2, %r3, {table}; cvt.u64.u32 %out0, %r0;"
        ));
        assert_eq!(out as u32, f(a, b, c), "lop3 {table:#x}");
    }
    assert_eq!(word("prmt.b32", &[0x3322_1100, 0x7766_5544, 0x5410]), 0x5544_1100);
    assert_eq!(word("prmt.b32", &[0x0000_0080, 0, 0x0008]), 0x8080_80FF, "8 copies the sign of byte 0");
    assert_eq!(word("prmt.b32.f4e", &[0x3322_1100, 0x7766_5544, 2]), 0x5544_3322);
    assert_eq!(word("shf.l.wrap.b32", &[0x8000_0001, 0x0000_00FF, 4]), 0x0000_0FF8);
    assert_eq!(word("shf.r.wrap.b32", &[0x8000_0001, 0x0000_00FF, 4]), 0xF800_0000);
    assert_eq!(word("shf.r.clamp.b32", &[0x8000_0001, 0x0000_00FF, 40]), 0xFF);
}

#[test]
fn floats_are_rounded_once_in_their_direction() {
    let (tiny, third, nan) = (2.0_f32.powi(-30), 1.0_f32 / 3.0, f32::from_bits(0x7FFF_FFFF));
    let exact = f64::from(1.1_f32) * f64::from(1.1_f32);
    assert!(exact > f64::from(1.21_f32) && exact < f64::from(1.21_f32.next_up()) && f64::from(third) > 1.0 / 3.0);
    let fused = third.mul_add(third, -third * third);
    assert_ne!(fused, 0.0, "the fused form keeps what two roundings lose");
    for (form, operands, wanted) in [
        ("add.rn.f32", &[1.0, tiny][..], 1.0_f32),
        ("add.rp.f32", &[1.0, tiny], 1.0_f32.next_up()),
        ("add.rz.f32", &[1.0, -tiny], 1.0_f32.next_down()),
        ("add.rm.f32", &[-1.0, -tiny], (-1.0_f32).next_down()),
        ("add.rn.f32", &[f32::NAN, 1.0], nan),
        ("add.ftz.f32", &[1e-40, 1e-40], 0.0),
        ("sub.rn.f32", &[1.0, third], 1.0 - third),
        ("mul.rn.f32", &[third, third], third * third),
        ("mul.rz.f32", &[1.1, 1.1], 1.21),
        ("mul.rp.f32", &[1.1, 1.1], 1.21_f32.next_up()),
        ("mul.sat.f32", &[3.0, 1.0], 1.0),
        ("fma.rn.f32", &[third, third, -third * third], fused),
        ("fma.rm.f32", &[1.0, 1.0, -tiny], 1.0_f32.next_down()),
        ("div.rn.f32", &[1.0, 3.0], third),
        ("div.rz.f32", &[1.0, 3.0], third.next_down()),
        ("rcp.rn.f32", &[3.0], third),
        ("rcp.approx.ftz.f32", &[f32::INFINITY], 0.0),
        ("rcp.approx.ftz.f32", &[1e-40], f32::INFINITY),
        ("ex2.approx.ftz.f32", &[-130.0], 0.0),
        ("sqrt.rn.f32", &[2.0], 2.0_f32.sqrt()),
        ("neg.f32", &[2.0], -2.0),
        ("abs.f32", &[-2.5], 2.5),
        ("copysign.f32", &[-1.0, 7.0], -7.0),
        ("copysign.f32", &[1.0, -7.0], 7.0),
        ("min.f32", &[2.0, -3.0], -3.0),
        ("min.f32", &[-3.0, f32::NAN], -3.0),
        ("min.f32", &[0.0, -0.0], -0.0),
        ("min.NaN.f32", &[3.0, f32::NAN], nan),
        ("max.f32", &[2.0, -3.0], 2.0),
        ("max.f32", &[f32::NAN, -3.0], -3.0),
        ("max.f32", &[-0.0, 0.0], 0.0),
        ("max.NaN.f32", &[f32::NAN, -3.0], nan),
        ("max.NaN.f32", &[-3.0, f32::NAN], nan),
        ("max.NaN.f32", &[-3.0, 0.5], 0.5),
    ] {
        let bits: Vec<u32> = operands.iter().map(|x| x.to_bits()).collect();
        assert_eq!(word(form, &bits), wanted.to_bits(), "{form} {operands:?}");
    }
}

#[test]
fn approximations_stay_within_their_documented_errors() {
    for (form, x, exact, bound) in [
        ("lg2.approx.f32", 10.0_f32, 10.0_f64.log2(), f64::exp2(-22.0)),
        ("rsqrt.approx.f32", 3.0, 1.0 / 3.0_f64.sqrt(), f64::exp2(-22.4)),
        ("sqrt.approx.f32", 3.0, 3.0_f64.sqrt(), f64::exp2(-23.0)),
        ("ex2.approx.f32", 3.3, f64::from(3.3_f32).exp2(), f64::exp2(-22.0)),
        ("sin.approx.f32", 1.0, 1.0_f64.sin(), 1.2 * f64::exp2(-20.5)),
        ("cos.approx.f32", 1.0, 1.0_f64.cos(), 2.0 * f64::exp2(-20.5)),
        ("rcp.approx.f32", 7.0, 1.0 / 7.0, f64::exp2(-23.0)),
        ("tanh.approx.f32", 1.7, f64::from(1.7_f32).tanh(), f64::exp2(-11.0)),
    ] {
        let at = |how| {
            let body = format!(
                "mov.f32 %f1, 0f{:08X}; {form} %f0, %f1; mov.b32 %r0, %f0; cvt.u64.u32 %out0, %r0;",
                x.to_bits()
            );
            let [out] = words_with(&body, how);
            f64::from(f32::from_bits(out as u32))
        };
        let [device, high, low] = Approximation::ALL.map(at);
        assert!(low < high && (low..=high).contains(&device), "{form}: {low} {device} {high}");
        for value in [device, high, low] {
            assert!((value / exact - 1.0).abs() <= bound + f64::exp2(-23.5), "{form}: {value} for {exact}");
        }
    }
}

#[test]
fn conversions_round_clamp_and_extend() {
    let to_int = |form: &str, x: f32| {
        let [out] = words(&format!("mov.f32 %f0, 0f{:08X}; {form} %r0, %f0; cvt.u64.u32 %out0, %r0;", x.to_bits()));
        (out as u32).cast_signed()
    };
    assert_eq!([2.5, -2.5, 3.5].map(|x| to_int("cvt.rni.s32.f32", x)), [2, -2, 4]);
    assert_eq!([2.9, -2.9].map(|x| to_int("cvt.rzi.s32.f32", x)), [2, -2]);
    assert_eq!([2.1, -2.1].map(|x| to_int("cvt.rmi.s32.f32", x)), [2, -3]);
    assert_eq!([2.1, -2.1].map(|x| to_int("cvt.rpi.s32.f32", x)), [3, -2]);
    assert_eq!([1e20, -1e20, f32::NAN].map(|x| to_int("cvt.rzi.s32.f32", x)), [i32::MAX, i32::MIN, 0]);
    assert_eq!(to_int("cvt.rzi.u32.f32", -5.0), 0);
    let to_float = |form: &str, bits: u64| {
        let [out] = words(&format!(
            "mov.b64 %d0, {bits}; cvt.u32.u64 %r1, %d0; {form} %f0, {}; mov.b32 %r0, %f0; cvt.u64.u32 %out0, %r0;",
            if form.ends_with("64") { "%d0" } else { "%r1" }
        ));
        f32::from_bits(out as u32)
    };
    assert_eq!(to_float("cvt.rn.f32.s32", 0xFFFF_FFFF), -1.0);
    assert_eq!(to_float("cvt.rn.f32.u32", 0xFFFF_FFFF), 4_294_967_296.0);
    assert_eq!(to_float("cvt.rz.f32.u32", 0xFFFF_FFFF), 4_294_967_040.0);
    let odd = (1_u64 << 53) + (1 << 29) + 1;
    assert_eq!(to_float("cvt.rn.f32.u64", odd), odd as f32, "a tie in f64 that its lowest bit breaks");
    let [signed, byte, clamped] = words(
        "mov.b32 %r0, 0x1F0; cvt.s32.s8 %r1, %r0; cvt.s64.s32 %out0, %r1; cvt.u32.u8 %r2, %r0; cvt.u64.u32 %out1, %r2;\n\
         mov.b32 %r3, 1000; cvt.sat.u8.u32 %r4, %r3; cvt.u64.u32 %out2, %r4;",
    );
    assert_eq!([signed, byte, clamped], [(-16_i64).cast_unsigned(), 0xF0, 255]);
    let narrow = |form: &str, x: f32| {
        let [out] = words(&format!("mov.f32 %f0, 0f{:08X}; {form} %h0, %f0; cvt.u64.u16 %out0, %h0;", x.to_bits()));
        out as u16
    };
    for x in [1.0 / 3.0, -7.1e4, 1e-7, 65504.0, 65519.9, 3.0e-8, f32::INFINITY] {
        assert_eq!(narrow("cvt.rn.f16.f32", x), half::f16::from_f32(x).to_bits(), "{x}");
        assert_eq!(narrow("cvt.rn.bf16.f32", x), half::bf16::from_f32(x).to_bits(), "{x}");
        assert_eq!(narrow("cvt.rz.bf16.f32", x), (x.to_bits() >> 16) as u16, "{x}");
    }
    for x in [1.003_906_2, 1.011_718_8, 3e38, 3.4e38, -0.0, 1e-40] {
        assert_eq!(narrow("cvt.rn.bf16.f32", x), half::bf16::from_f32(x).to_bits(), "{x}");
    }
    assert!(half::bf16::from_bits(narrow("cvt.rn.bf16.f32", f32::NAN)).is_nan());
    assert_eq!(narrow("cvt.rn.relu.bf16.f32", -3.0), 0);
    let pair = [2.0_f32, -1.5].map(f32::to_bits);
    assert_eq!([word("cvt.rn.f16x2.f32", &pair), word("cvt.rn.bf16x2.f32", &pair)], [0x4000_BE00, 0x4000_BFC0]);
    assert_eq!(word("cvt.rna.tf32.f32", &[0x3F80_1000]), 0x3F80_2000);
    assert_eq!(word("cvt.rn.tf32.f32", &[0x3F80_1000]), 0x3F80_0000, "a tie goes to even");
    let [double] = words(
        "mov.f32 %f0, 0f3DCCCCCD; cvt.f64.f32 %g0, %f0; mul.f64 %g1, %g0, 0d4000000000000000; mov.b64 %out0, %g1;",
    );
    assert_eq!(f64::from_bits(double), f64::from(0.1_f32) * 2.0);
}

#[test]
fn pairs_of_short_floats_are_rounded_once() {
    use half::{bf16, f16};
    let pair = |a: f32, b: f32| u32::from(bf16::from_f32(a).to_bits()) | u32::from(bf16::from_f32(b).to_bits()) << 16;
    let (x, y, z) = (pair(1.5, -2.0), pair(3.0, 0.25), pair(0.007_812_5, 100.0));
    let fma = |a: f32, b: f32, c: f32| bf16::from_f64(f64::from(a) * f64::from(b) + f64::from(c)).to_f32();
    assert_eq!(word("fma.rn.bf16x2", &[x, y, z]), pair(fma(1.5, 3.0, 0.007_812_5), fma(-2.0, 0.25, 100.0)));
    assert_eq!(word("mul.rn.bf16x2", &[x, y]), pair(4.5, -0.5));
    assert_eq!(word("add.rn.bf16x2", &[x, y]), pair(4.5, -1.75));
    assert_eq!(word("max.bf16x2", &[x, y]), pair(3.0, 0.25));
    assert_eq!(word("neg.bf16x2", &[x]), pair(-1.5, 2.0));
    assert_eq!(word("fma.rn.relu.bf16x2", &[x, y, pair(0.0, 0.0)]), pair(4.5, 0.0));
    let half = |x: f32| u32::from(f16::from_f32(x).to_bits());
    let both = half(1.0) | half(2048.0) << 16;
    assert_eq!(word("add.f16x2", &[both, half(0.5) | half(1.0) << 16]), half(1.5) | half(2048.0) << 16);
}

#[test]
fn predicates_combine_and_choose() {
    let [out] = words(
        "mov.b32 %r0, 5; setp.lt.s32 %p0, %r0, 9; setp.gt.and.u32 %p1|%p2, %r0, 7, %p0; setp.eq.or.s32 %p3, %r0, 6, !%p1;\n\
         selp.u32 %r1, 1, 0, %p0; selp.u32 %r2, 2, 0, %p1; selp.u32 %r3, 4, 0, %p2; selp.u32 %r4, 8, 0, %p3;\n\
         xor.pred %p4, %p0, %p1; not.pred %p5, %p4; selp.u32 %r5, 16, 0, %p4; selp.u32 %r6, 32, 0, %p5;\n\
         or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; or.b32 %r1, %r1, %r4; or.b32 %r1, %r1, %r5; or.b32 %r1, %r1, %r6; cvt.u64.u32 %out0, %r1;",
    );
    assert_eq!(out, 1 | 4 | 8 | 16);
    let [set, float] = words(
        "mov.b32 %r0, 5; set.lt.u32.s32 %r1, %r0, 9; cvt.u64.u32 %out0, %r1; set.gt.f32.u32 %f0, %r0, 3; mov.b32 %r2, %f0; cvt.u64.u32 %out1, %r2;",
    );
    assert_eq!([set, float], [0xFFFF_FFFF, u64::from(1.0_f32.to_bits())]);
}

#[test]
fn registers_are_packed_and_unpacked_from_the_low_end() {
    let [out, halves, turned] = words(
        "mov.b32 %r0, 0x11112222; mov.b32 %r1, 0x33334444; mov.b64 %out0, {%r0, %r1};\n\
         mov.b32 {%h0, %h1}, %r0; mov.b64 {_, %r2}, %out0; mov.b64 %out1, {%h1, %h0, %h0, %h1}; cvt.u64.u32 %d1, %r2; xor.b64 %out1, %out1, %d1;\n\
         mov.b64 {%h2, %h3, %h4, %h5}, %out0; mov.b64 %out2, {%h5, %h4, %h3, %h2};",
    );
    assert_eq!(out, 0x3333_4444_1111_2222);
    assert_eq!(halves, 0x1111_2222_2222_1111 ^ 0x3333_4444);
    assert_eq!(turned, 0x2222_1111_4444_3333);
}
