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
            let words = Trial::new(32, &body).agree();
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
        let words = Trial::new(32, &body).agree();
        assert!((0..128).all(|i| words[i] == (2 * i as u32) | (2 * i as u32 + 1) << 16), "{trans}");
        Trial::new(32, &body.replacen("bar.sync 0;\n", "", 1)).found(FindingKind::Race);
        Trial::new(32, &body.replace("\nbar.sync 0; ld", "\n ld")).found(FindingKind::Race);
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
    let words: Vec<u32> = (0..32)
        .flat_map(|lane| {
            let mut words: Vec<u32> =
                (0..na).map(|r| a(lane, r)).chain((0..nb).map(|r| b(lane, r))).chain((0..nc).map(&c)).collect();
            words.resize(16, 0);
            words
        })
        .collect();
    let bytes: Vec<String> = words.iter().map(|word| word.to_string()).collect();
    let mut trial = Trial::new(32, &format!("mov.u64 %d1, fragments;\n{body}"));
    trial.module = format!(".global .align 16 .u32 fragments[512] = {{{}}};", bytes.join(", "));
    trial.agree()
}

fn value(i: usize, j: usize) -> f32 {
    ((i * 7 + j * 13) % 17) as f32 - 8.0
}

#[test]
fn mma_multiplies_what_the_fragments_hold() {
    let pair = |x: f32, y: f32, short: &dyn Fn(f32) -> u16| u32::from(short(x)) | u32::from(short(y)) << 16;
    for (form, k, half) in [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, false),
        ("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", 8, false),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, true),
    ] {
        let short = |x: f32| if half { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() };
        // Tables of the ISA for .m16n8k16: a0,a1 (row g), a2,a3 (row g + 8), a4,a5 (row g, k + 8), a6,a7 (row g + 8, k
        // + 8).
        let a = |lane: usize, r: usize| {
            let (g, t) = (lane >> 2, lane & 3);
            let (row, column) = [(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)][r];
            pair(value(row, column), value(row, column + 1), &short)
        };
        let b = |lane: usize, r: usize| {
            let (g, t) = (lane >> 2, lane & 3);
            let row = [2 * t, 2 * t + 8][r];
            pair(value(row + 3, g), value(row + 4, g), &short)
        };
        let words = product(form, &a, &b, [k / 4, k / 8, 4], |i| (i as f32).to_bits());
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = ((lane >> 2) + if i < 2 { 0 } else { 8 }, (lane & 3) * 2 + (i & 1));
                let wanted: f32 = (0..k).map(|l| value(row, l) * value(l + 3, column)).sum::<f32>() + i as f32;
                assert_eq!(f32::from_bits(words[32 * i + lane]), wanted, "{form} lane {lane}, c{i}");
            }
        }
    }
}

#[test]
fn mma_of_tf32_and_of_bytes_follow_their_own_tables() {
    let a = |lane: usize, r: usize| {
        let (g, t) = (lane >> 2, lane & 3);
        let (row, column) = [(g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)][r];
        value(row, column).to_bits()
    };
    let b = |lane: usize, r: usize| value((lane & 3) + [0, 4][r] + 3, lane >> 2).to_bits();
    let words = product("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", &a, &b, [4, 2, 4], |_| 0);
    let bytes = |values: [f32; 4]| u32::from_le_bytes(values.map(|v| v as i8 as u8));
    let a8 = |lane: usize, r: usize| {
        let (g, t) = (lane >> 2, lane & 3);
        let (row, column) = [(g, 4 * t), (g + 8, 4 * t), (g, 4 * t + 16), (g + 8, 4 * t + 16)][r];
        bytes(std::array::from_fn(|i| value(row, column + i)))
    };
    let b8 = |lane: usize, r: usize| bytes(std::array::from_fn(|i| value(4 * (lane & 3) + 16 * r + i + 3, lane >> 2)));
    let whole = product("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", &a8, &b8, [4, 2, 4], |_| 5);
    for lane in 0..32 {
        for i in 0..4 {
            let (row, column) = ((lane >> 2) + if i < 2 { 0 } else { 8 }, (lane & 3) * 2 + (i & 1));
            let wanted = |k: usize| (0..k).map(|l| value(row, l) * value(l + 3, column)).sum::<f32>();
            assert_eq!(f32::from_bits(words[32 * i + lane]), wanted(8), "tf32 lane {lane}, c{i}");
            assert_eq!(whole[32 * i + lane].cast_signed(), wanted(32) as i32 + 5, "s8 lane {lane}, c{i}");
        }
    }
}

#[test]
fn matrix_instructions_need_the_whole_warp() {
    let body = format!("{FILL} setp.lt.u32 %p1, %t, 8; @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r0}}, [%r25];");
    Trial::new(32, &body).found(FindingKind::Divergence);
}
