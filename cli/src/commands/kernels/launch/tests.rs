//! Launch files from anywhere: read, prepared and run without a panic, an abort or a hang.

use super::*;
use ptx::sim::{Module, Options};
use std::panic::{AssertUnwindSafe, catch_unwind};

const TEXT: &str = ".version 7.4\n.target sm_80\n.entry kernel(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 s, .param .align 64 .b8 m[128])\n\
    {\n.reg .b64 %d<4>; .reg .b32 %r<4>;\nld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.u32 %r0, [n];\n\
    mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d0; ld.global.u32 %r2, [%d2]; mad.wide.u32 %d3, %r1, 4, %d1;\n\
    st.global.u32 [%d3], %r2; ret;\n}\n";

const LAUNCH: &str = r#"{"entry": "kernel", "grid": [2, 1, 1], "block": [32, 1, 1], "shared_bytes": 64, "args": [
    {"buffer": "x", "dtype": "f32", "shape": [4, 8], "random": 1}, {"buffer": "y", "dtype": "u32", "shape": [32], "fill": 7},
    {"u32": 3}, {"f32": 0.5},
    {"tensor_map": "x", "box": [8, 4], "strides": [32], "swizzle": "32B", "interleave": "none"}]}"#;

/// How far a launch file comes: to a described launch, to memory and arguments, to a report.
fn launch(text: &str) -> [bool; 3] {
    let limits = Limits { memory_bytes: 1 << 16, ..Limits::SMALL };
    let Ok(description) = Description::parse(text) else { return [false; 3] };
    let Ok(mut prepared) = Prepared::new(&description, Path::new("."), &limits) else { return [true, false, false] };
    let module = Module::parse_within(TEXT, limits).expect("the text is read");
    let options = Options { max_instructions: 500, ..Options::default() };
    let report =
        module.launch(&description.entry, description.launch(), &prepared.arguments, &mut prepared.memory, &options);
    [true, true, report.is_ok()]
}

/// What a number or a word of a launch file may become.
const WORDS: [&str; 24] = [
    "0",
    "1",
    "-1",
    "31",
    "1024",
    "65535",
    "65536",
    "2147483647",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "1e300",
    "null",
    "true",
    "[]",
    "{}",
    "\"x\"",
    "\"bf16\"",
    "\"128B\"",
    "[4294967296, 4294967296]",
    "[0, 18446744073709551615]",
    "[256, 256, 256, 256, 256]",
    "\"/dev/zero\"",
    "\"from\"",
];

#[test]
fn mutated_launch_files_neither_panic_nor_hang() {
    assert_eq!(launch(LAUNCH), [true; 3]);
    let mut reached = [0; 3];
    for number in 0..20_000 {
        let mut stream = Stream::new(number, [1, 2, 3]);
        let mut below = |n: usize| ((u64::from(stream.next_u32()) * n as u64) >> 32) as usize;
        let mut text = LAUNCH.to_string();
        for _ in 0..1 + below(3) {
            // A value between two marks, or a few bytes.
            let start = below(text.len());
            let marks = |c: char| "[]{},: ".contains(c);
            let (start, end) = if below(4) > 0 {
                let start = text[..start].rfind(marks).map_or(0, |at| at + 1);
                (start, text[start..].find(marks).map_or(text.len(), |length| start + length))
            } else {
                (start, (start + below(8)).min(text.len()))
            };
            text.replace_range(start..end, if below(6) == 0 { "" } else { WORDS[below(WORDS.len())] });
        }
        let result = catch_unwind(AssertUnwindSafe(|| launch(&text)));
        let result = result.unwrap_or_else(|_| panic!("launch file {number} panics:\n{text}"));
        reached.iter_mut().zip(result).for_each(|(count, yes)| *count += usize::from(yes));
    }
    assert!(reached[0] > 500 && reached[2] > 50, "{reached:?}");
}

#[test]
fn buffers_beyond_the_limit_are_refused_with_a_sentence() {
    let refused = |shape: &str| {
        let text = LAUNCH.replace("\"shape\": [32]", &format!("\"shape\": {shape}"));
        let description = Description::parse(&text).expect("the launch is described");
        let prepared = Prepared::new(&description, Path::new("."), &Limits::default());
        format!("{:#}", prepared.err().expect("it is refused"))
    };
    for shape in ["[1073741824]", "[1125899906842624]", "[4294967296, 4294967296]", "[18446744073709551615]"] {
        let message = refused(shape);
        assert!(message.contains("args[1], buffer `y`") && message.contains("at most 4294967296 bytes"), "{message}");
    }
}

#[test]
fn a_numpy_file_with_a_header_of_gigabytes_is_refused_unread() {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("albert-header-{}.npy", std::process::id()));
    let mut bytes = b"\x93NUMPY\x02\x00".to_vec();
    bytes.extend(0xFFFF_FFF0_u32.to_le_bytes());
    std::fs::write(&path, &bytes).expect("the folder is writable");
    let message = format!("{:#}", load(&path, DType::F32, &[1]).expect_err("it is refused"));
    std::fs::remove_file(&path).expect("the file is there");
    assert!(message.contains("header has 4294967280 bytes; expected at most 4096"), "{message}");
    let message = format!("{:#}", load(&folder, DType::F32, &[1]).expect_err("it is refused"));
    assert!(message.contains("not a regular file"), "{message}");
}
