//! Buffers and files that are too large. Fuzzing of launch files: the reader `launch` of `tests/src/readers`.

use super::*;

const LAUNCH: &str = r#"{"entry": "kernel", "grid": [2, 1, 1], "block": [32, 1, 1], "shared_bytes": 64, "args": [
    {"buffer": "x", "dtype": "f32", "shape": [4, 8], "random": 1}, {"buffer": "y", "dtype": "u32", "shape": [32], "fill": 7},
    {"u32": 3}, {"f32": 0.5},
    {"tensor_map": "x", "box": [8, 4], "strides": [32], "swizzle": "32B", "interleave": "none"}]}"#;

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
