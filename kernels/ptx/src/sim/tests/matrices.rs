//! `ldmatrix`, `stmatrix` and `mma`: the lane maps of the ISA's tables, written out a second time in another form.

use super::*;
use half::{bf16, f16};

/// Rows of 16 bytes of a tile of half-words that hold their own number.
const FILL: &str = ".shared .align 16 .b8 tile[2048];\nmov.u32 %r20, tile; mov.u32 %r21, %t;\n\
    $fill: shl.b32 %r22, %r21, 2; add.u32 %r22, %r22, %r20; shl.b32 %r23, %r21, 1; add.u32 %r24, %r23, 1; shl.b32 %r24, %r24, 16;\n\
    or.b32 %r23, %r23, %r24; st.shared.u32 [%r22], %r23; add.u32 %r21, %r21, 32; setp.lt.u32 %p0, %r21, 512; @%p0 bra $fill;\nbar.sync 0;\n\
    shl.b32 %r25, %t, 4; add.u32 %r25, %r25, %r20;\n";

#[test]
fn ldmatrix_gives_lanes_their_fragments() {
    for (count, list) in [(1, "{%r0}"), (2, "{%r0, %r1}"), (4, "{%r0, %r1, %r2, %r3}")] {
        for transposed in [false, true] {
            let trans = if transposed { ".trans" } else { "" };
            let stores: String = (0..count).map(|i| format!("st.global.u32 [%own+{}], %r{i};\n", 128 * i)).collect();
            let body =
                format!("{FILL} ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {list}, [%r25];\n{stores}");
            let words = block::<32>(&body).agree();
            for matrix in 0..count {
                for lane in 0..32 {
                    // The tile's rows are the lanes' addresses: row 8m + i, value j is number 8(8m + i) + j.
                    let number = |row: u32, column: u32| 8 * (8 * matrix + row) + column;
                    let wanted = [0, 1].map(|k| {
                        let (row, column) = (lane / 4, 2 * (lane % 4) + k);
                        if transposed { number(column, row) } else { number(row, column) }
                    });
                    let word = words[(32 * matrix + lane) as usize];
                    assert_eq!([word & 0xFFFF, word >> 16], wanted, "x{count}{trans}, matrix {matrix}, lane {lane}");
                }
            }
        }
    }
}

#[test]
fn stmatrix_is_the_inverse_of_ldmatrix() {
    for trans in ["", ".trans"] {
        let body = format!(
            "{FILL} ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r0, %r1, %r2, %r3}}, [%r25]; bar.sync 0;\n\
             add.u32 %r26, %r25, 1024; stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r26], {{%r0, %r1, %r2, %r3}};\n\
             bar.sync 0; ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r26]; mul.wide.u32 %d0, %t, 16; add.u64 %d0, %d0, %y;\n\
             st.global.v4.u32 [%d0], {{%r4, %r5, %r6, %r7}};"
        );
        let words = block::<32>(&body).agree();
        assert!((0..128).all(|i| words[i] == (2 * i as u32) | (2 * i as u32 + 1) << 16), "{trans}");
        block::<32>(&body.replacen("bar.sync 0;\n", "", 1)).races();
        block::<32>(&body.replace("\nbar.sync 0; ld", "\n ld")).races();
    }
}

/// D = A · B + C on one warp: the kernel loads fragments as the ISA's tables say, here by explicit lists.
fn product(
    form: &str,
    a: &dyn Fn(usize, usize) -> u32,
    b: &dyn Fn(usize, usize) -> u32,
    registers: [usize; 3],
    c: impl Fn(usize) -> u32,
) -> Vec<u32> {
    let [na, nb, nc] = registers;
    let mut body = String::from("mul.wide.u32 %d0, %t, 64; add.u64 %d0, %d0, %d1;\n");
    let list = |start: usize, n: usize| {
        format!("{{{}}}", (start..start + n).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", "))
    };
    for i in 0..na + nb + nc {
        body += &format!("ld.global.u32 %r{i}, [%d0+{}];\n", 4 * i);
    }
    body += &format!("{form} {}, {}, {}, {};\n", list(20, nc), list(0, na), list(na, nb), list(na + nb, nc));
    for i in 0..nc {
        body += &format!("st.global.u32 [%own+{}], %r{};\n", 128 * i, 20 + i);
    }
    let words = (0..32).flat_map(|lane| {
        let operands = (0..na).map(move |r| a(lane, r)).chain((0..nb).map(move |r| b(lane, r))).chain((0..nc).map(&c));
        operands.chain(std::iter::repeat(0)).take(16)
    });
    let bytes: Vec<String> = words.map(|word| word.to_string()).collect();
    let module = format!(".global .align 16 .u32 fragments[512] = {{{}}};", bytes.join(", "));
    block::<32>(&format!("mov.u64 %d1, fragments;\n{body}")).on(1, &module).agree()
}

fn value(i: usize, j: usize) -> f32 {
    ((i * 7 + j * 13) % 17) as f32 - 8.0
}

#[test]
fn mma_multiplies_what_the_fragments_hold() {
    type Case = (&'static str, usize, usize, fn(usize) -> [usize; 2], fn([f32; 4]) -> u32);
    let bf16s =
        |[x, y, ..]: [f32; 4]| u32::from(bf16::from_f32(x).to_bits()) | u32::from(bf16::from_f32(y).to_bits()) << 16;
    let f16s =
        |[x, y, ..]: [f32; 4]| u32::from(f16::from_f32(x).to_bits()) | u32::from(f16::from_f32(y).to_bits()) << 16;
    let bytes = |values: [f32; 4]| u32::from_le_bytes(values.map(|v| v as i8 as u8));
    // The ISA's tables: K, registers of B, first places along K of a lane's registers by t = lane % 4, what they hold.
    let cases: [Case; 5] = [
        ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, 2, |t| [2 * t, 2 * t + 8], bf16s),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", 8, 1, |t| [2 * t, 2 * t + 8], bf16s),
        ("m16n8k16.row.col.f32.f16.f16.f32", 16, 2, |t| [2 * t, 2 * t + 8], f16s),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", 8, 2, |t| [t, t + 4], |[x, ..]| x.to_bits()),
        ("m16n8k32.row.col.s32.s8.s8.s32", 32, 2, |t| [4 * t, 4 * t + 16], bytes),
    ];
    for (form, k, count, places, pack) in cases {
        // Rows of A alternate between g = lane / 4 and g + 8.
        let a = |lane: usize, r: usize| {
            let (row, column) = ((lane >> 2) + [0, 8, 0, 8][r], places(lane & 3)[r / 2]);
            pack(std::array::from_fn(|i| value(row, column + i)))
        };
        let b = |lane: usize, r: usize| pack(std::array::from_fn(|i| value(places(lane & 3)[r] + i + 3, lane >> 2)));
        let whole = form.ends_with("s32");
        let c = |i: usize| if whole { i as u32 } else { (i as f32).to_bits() };
        let words = product(&format!("mma.sync.aligned.{form}"), &a, &b, [2 * count, count, 4], c);
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = ((lane >> 2) + if i < 2 { 0 } else { 8 }, (lane & 3) * 2 + (i & 1));
                let wanted: f32 = (0..k).map(|l| value(row, l) * value(l + 3, column)).sum::<f32>() + i as f32;
                let word = words[32 * i + lane];
                let found = if whole { word.cast_signed() as f32 } else { f32::from_bits(word) };
                assert_eq!(found, wanted, "{form} lane {lane}, c{i}");
            }
        }
    }
}

#[test]
fn accumulators_of_f16_are_pairs() {
    let pack = |x: f32, y: f32| u32::from(f16::from_f32(x).to_bits()) | u32::from(f16::from_f32(y).to_bits()) << 16;
    let a = |lane: usize, r: usize| {
        let (row, k) = (lane / 4 + 8 * (r % 2), 2 * (lane % 4) + 8 * (r / 2));
        pack(value(row, k), value(row, k + 1))
    };
    let b = |lane: usize, r: usize| {
        let k = 2 * (lane % 4) + 8 * r;
        pack(value(k + 3, lane / 4), value(k + 4, lane / 4))
    };
    let form = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16";
    let words = product(form, &a, &b, [4, 2, 2], |i| pack(2.0 * i as f32, 2.0 * i as f32 + 1.0));
    for (lane, i) in (0..32).flat_map(|lane| (0..4).map(move |i| (lane, i))) {
        let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
        let wanted: f32 = (0..16).map(|k| value(row, k) * value(k + 3, column)).sum::<f32>() + i as f32;
        let bits = (words[32 * (i / 2) + lane] >> (16 * (i % 2))) as u16;
        assert_eq!(f16::from_bits(bits).to_f32(), wanted, "lane {lane}, value {i}");
    }
}
