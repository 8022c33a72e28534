//! The special function unit against recordings of an H200. Each `.bin` file has pairs of input and result bits: random
//! inputs, subnormal ones, and for each segment its ends and the two results that bound its coefficients most closely.
//! `examples/sfu.rs` writes these files and compares the functions with the whole recordings.

use ptx::Launch;
use ptx::sim::{Argument, Fidelity, Memory, Module, Options, fidelity};

const SAMPLES: [(&str, &[u8]); 7] = [
    ("ex2.approx.ftz.f32", include_bytes!("ex2_approx_ftz.bin")),
    ("rcp.approx.ftz.f32", include_bytes!("rcp_approx_ftz.bin")),
    ("rsqrt.approx.ftz.f32", include_bytes!("rsqrt_approx_ftz.bin")),
    ("lg2.approx.ftz.f32", include_bytes!("lg2_approx_ftz.bin")),
    ("tanh.approx.f32", include_bytes!("tanh_approx.bin")),
    ("ex2.approx.f32", include_bytes!("ex2_approx.bin")),
    ("rcp.approx.f32", include_bytes!("rcp_approx.bin")),
];

/// Results of an instruction on a simulated GPU.
fn results(opcode: &str, inputs: &[u32]) -> Vec<u32> {
    let text = format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel(.param .u64 x, .param .u64 y)\n{{\n\
         .reg .b64 %d<4>;\n.reg .b32 %r<2>;\n.reg .f32 %f<2>;\nld.param.u64 %d0, [x];\nld.param.u64 %d1, [y];\n\
         mov.u32 %r0, %ctaid.x;\nmul.wide.u32 %d2, %r0, 4;\nadd.u64 %d0, %d0, %d2;\nadd.u64 %d1, %d1, %d2;\n\
         ld.global.f32 %f0, [%d0];\n{opcode} %f1, %f0;\nst.global.f32 [%d1], %f1;\nret;\n}}\n"
    );
    let mut memory = Memory::new();
    let (x, y) = (memory.allocate_from("x", inputs), memory.allocate("y", 4 * inputs.len()));
    let launch = Launch { grid: [inputs.len() as u32, 1, 1], block: [1, 1, 1], shared_bytes: 0 };
    let arguments = [x, y].map(Argument::U64);
    let module = Module::parse(&text).expect("the text is PTX");
    let report = module.launch("kernel", launch, &arguments, &mut memory, &Options::default());
    report.expect("the launch fits").clean().expect("the kernel has no defect");
    memory.read::<u32>(y).expect("the kernel writes all results")
}

#[test]
fn results_equal_the_recorded_bits() {
    for (opcode, bytes) in SAMPLES {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let (inputs, recorded): (Vec<u32>, Vec<u32>) =
            bytes.chunks_exact(8).map(|pair| (word(&pair[..4]), word(&pair[4..]))).unzip();
        assert!(inputs.len() >= 400, "{opcode}: {} pairs", inputs.len());
        for ((x, y), expected) in inputs.iter().zip(results(opcode, &inputs)).zip(recorded) {
            assert_eq!(y, expected, "{opcode} of {x:08x}: expected {expected:08x}, found {y:08x}");
        }
    }
}

const INFINITY: u32 = 0x7F80_0000;
const NAN: u32 = 0x7FFF_FFFF;
const ONE: u32 = 0x3F80_0000;
const SIGN: u32 = 1 << 31;

const fn bits(x: f32) -> u32 {
    x.to_bits()
}

/// Single inputs with their results: part of the recorded checksums over all 2^32 inputs.
#[rustfmt::skip]
const SPECIAL: [(&str, &[(u32, u32)]); 7] = [
    ("ex2.approx.ftz.f32", &[
        (0, ONE), (SIGN, ONE), (SIGN | 1, ONE), (INFINITY, INFINITY), (SIGN | INFINITY, 0), (INFINITY | 1, NAN),
        (bits(128.0), INFINITY), (bits(127.0), 0x7F00_0000), (bits(-1.0), bits(0.5)), (bits(-1e-8), ONE),
        (bits(-126.0), 0x0080_0000), (bits(-126.000_01), 0),
    ]),
    ("ex2.approx.f32", &[(bits(-127.0), 0x003F_FFFF), (bits(-149.0), 1), (bits(-151.0), 0), (bits(-1e9), 0)]),
    ("rcp.approx.ftz.f32", &[
        (0, INFINITY), (SIGN | 1, SIGN | INFINITY), (SIGN | INFINITY, SIGN), (SIGN | INFINITY | 1, NAN),
        (0x7E80_0000, 0x0080_0000), (0x7E80_0001, 0), (bits(-4.0), bits(-0.25)),
    ]),
    ("rcp.approx.f32", &[(SIGN, SIGN | INFINITY), (0x0040_0000, 0x7F00_0000), (0x7F00_0000, 0x0040_0000)]),
    ("rsqrt.approx.ftz.f32", &[
        (0, INFINITY), (SIGN | 1, SIGN | INFINITY), (SIGN | INFINITY, NAN), (bits(-1.0), NAN), (INFINITY, 0),
        (bits(16.0), bits(0.25)), (0x0080_0000, 0x5F00_0000),
    ]),
    ("lg2.approx.ftz.f32", &[
        (1, SIGN | INFINITY), (bits(-1.0), NAN), (INFINITY, INFINITY), (ONE, 0), (bits(0.5), 0xBF7F_FFFE),
        (bits(2.0), ONE),
    ]),
    ("tanh.approx.f32", &[
        (0, 0), (SIGN, SIGN), (SIGN | 5, SIGN | 5), (INFINITY, ONE), (SIGN | INFINITY, SIGN | ONE),
        (SIGN | INFINITY | 1, NAN), (bits(-8.0), SIGN | ONE),
    ]),
];

#[test]
fn special_inputs_have_the_bits_of_the_device() {
    for (opcode, pairs) in SPECIAL {
        let (inputs, expected): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
        assert_eq!(results(opcode, &inputs), expected, "{opcode}");
    }
}

#[test]
fn fidelity_is_of_the_instruction_and_the_target() {
    let both = |opcode| ["sm_80", "sm_90a"].map(|target| fidelity(opcode, target));
    for opcode in [
        "ex2.approx.ftz.f32",
        "ex2.approx.f32",
        "rcp.approx.f32",
        "rsqrt.approx.ftz.f32",
        "lg2.approx.ftz.f32",
        "tanh.approx.f32",
    ] {
        assert_eq!(both(opcode), [Fidelity::Unrecorded, Fidelity::Exact], "{opcode}");
    }
    assert_eq!(["rsqrt.approx.f32", "lg2.approx.f32"].map(both), [[Fidelity::Unrecorded; 2]; 2]);
    for opcode in
        ["fma.rn.f32", "rcp.rn.f32", "wgmma.fence.sync.aligned", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"]
    {
        assert_eq!(both(opcode), [Fidelity::Exact; 2], "{opcode}");
    }
    for opcode in ["sin.approx.f32", "div.full.f32", "tanh.approx.bf16"] {
        assert_eq!(both(opcode), [Fidelity::Approximate; 2], "{opcode}");
    }
}
