use super::*;
use crate::shared_tests::refused;
use safetensors::SafeTensors;
use std::fs;

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 - 2.5) * 0.37).collect()
}

const HALVES: [f32; 4] = [1.0, 1.0 / 3.0, -65504.0, 1e-8];

fn example(folder: &Path) -> PathBuf {
    let path = folder.join("model.safetensors");
    let (a, b) = (floats(6), floats(5));
    let tensors = [
        TensorOut { name: "b.narrow".into(), shape: vec![5], data: Data::Bf16(&b) },
        TensorOut { name: "a.weight".into(), shape: vec![2, 3], data: Data::F32(&a) },
        TensorOut { name: "z.step".into(), shape: vec![], data: Data::I64(&[-7]) },
        TensorOut { name: "empty".into(), shape: vec![0, 4], data: Data::F32(&[]) },
        TensorOut { name: "half".into(), shape: vec![4], data: Data::F16(&HALVES) },
    ];
    save_safetensors(&path, &tensors, &[("format", "pt"), ("step", "12")]).unwrap();
    path
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = Safetensors::open_checked(example(folder.path())).unwrap();
    assert!(matches!(file.floats("a.weight", &[2, 3]).unwrap(), Cow::Borrowed(found) if found == floats(6)));
    assert_eq!(file.f32s("half", &[4]).unwrap(), HALVES.map(|x| f16::from_f32(x).to_f32()));
    let rounded: Vec<f32> = floats(5).iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    assert_eq!(file.f32s("b.narrow", &[5]).unwrap(), rounded);
    assert_eq!(file.i64s("z.step", &[]).unwrap(), [-7]);
    assert!(file.f32s("empty", &[0, 4]).unwrap().is_empty());
    assert_eq!(file.metadata()["step"], "12");
    assert_eq!(["b.narrow", "half"].map(|name| file.dtype(name)), [Some(FileDType::Bf16), Some(FileDType::F16)]);
    assert_eq!(file.shape("a.weight"), Some(&[2, 3][..]));
}

/// The format's own crate reads it too, and what that crate writes (F16 among it) is read here.
#[test]
fn agrees_with_the_format_crate_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(example(folder.path())).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    let expected: Vec<u8> = floats(6).iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(theirs.tensor("a.weight").unwrap().data(), expected);

    let halves: Vec<u8> = [1.5f32, -0.25, 65504.0].iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
    let view = safetensors::tensor::TensorView::new(Dtype::F16, vec![3], &halves).unwrap();
    let path = folder.path().join("theirs.safetensors");
    fs::write(&path, safetensors::serialize([("h", view)], None).unwrap()).unwrap();
    let file = Safetensors::open(&path).unwrap();
    assert_eq!(file.f32s("h", &[3]).unwrap(), [1.5, -0.25, 65504.0]);
    refused(Safetensors::open_checked(&path), "theirs.safetensors: the checksum is missing");
}

#[test]
fn every_flipped_bit_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = example(folder.path());
    let good = fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bad).unwrap();
        assert!(Safetensors::open_checked(&path).is_err(), "bit {} of byte {} of {}", bit % 8, bit / 8, good.len());
    }
}

#[test]
fn every_cut_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = example(folder.path());
    let good = fs::read(&path).unwrap();
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        let error = Safetensors::open(&path).unwrap_err().to_string();
        assert!(error.contains("model.safetensors: not a whole safetensors file"), "{length} bytes: {error}");
    }
}

#[test]
fn errors_name_file_tensor_and_expectation() {
    let folder = tempfile::tempdir().unwrap();
    let file = Safetensors::open(example(folder.path())).unwrap();
    refused(file.f32s("a.bias", &[3]), "model.safetensors: tensor a.bias [3] is missing; the file has");
    let expected = "model.safetensors: tensor a.weight has shape [2, 3], but [3, 2] was expected";
    refused(file.f32s("a.weight", &[3, 2]), expected);
    refused(file.f32s("z.step", &[]), "tensor z.step is of type I64, but F32, F16 or BF16 was expected");
    refused(file.i64s("a.weight", &[2, 3]), "tensor a.weight is of type F32, but I64 was expected");
}

#[test]
fn refuses_to_write_what_could_not_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.safetensors");
    let one = TensorOut { name: "a".into(), shape: vec![1], data: Data::F32(&[1.0]) };
    let wrong = TensorOut { shape: vec![2], ..one.clone() };
    for (tensors, expected) in
        [(vec![one.clone(), one.clone()], "the name a cannot"), (vec![wrong], "tensor a has 1 elements")]
    {
        refused(save_safetensors(&path, &tensors, &[]), expected);
        assert!(!path.exists());
    }
}

/// A file of this header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Contents of hostile files, and the expected messages.
#[test]
fn a_header_that_lies_is_told_what_is_wrong() {
    let tensor = |name: &str, dtype: &str, shape: &str, from: &str, to: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let (a, half) = (tensor("a", "F32", "[2]", "0", "8"), "9223372036854775808");
    let a_and_b = |from, to| format!("{a},{}", tensor("b", "F32", "[2]", from, to));
    // Their sizes add up to all that 64 bits hold.
    let vast = |at: u64| {
        let (from, to) = (at << 60, (at + 1).saturating_mul(1 << 60));
        tensor(&format!("{at:02}"), "U8", &format!("[{}]", to - from), &from.to_string(), &to.to_string())
    };
    let vast = (0..16).map(vast).collect::<Vec<_>>().join(",");
    Header::read(&file(&format!("{{{a}}}"), &[0; 8])).unwrap();
    for (entries, expected) in [
        (
            tensor("a", "F32", "[3]", "0", "8"),
            "tensor a of type F32 and shape [3] takes 12 bytes, but its offsets are 0",
        ),
        (tensor("a", "F32", "[2]", "8", "0"), "its offsets are 8 and 0"),
        (tensor("a", "F32", &format!("[{half},2]"), "0", "8"), "is larger than any file"),
        (tensor("a", "F32", &format!("[{half}]"), "0", "8"), "is larger than any file"),
        (tensor("a", "U8", &format!("[{half}]"), "0", half), "is larger than any file"),
        (tensor("a", "F32", "[18446744073709551616]", "0", "8"), "header cannot be read: tensor a"),
        (tensor("a", "F32", "[-2]", "0", "8"), "header cannot be read: tensor a"),
        (tensor("a", "F99", "[2]", "0", "8"), "header cannot be read: tensor a: unknown variant `F99`"),
        (tensor("a", "F32", "[2]", "4", "12"), "begins at byte 4 of the data, not at 0: it leaves a gap"),
        (a_and_b("4", "12"), "tensor b begins at byte 4 of the data, not at 8: it overlaps with tensor a"),
        (a_and_b("12", "20"), "it leaves a gap behind tensor a"),
        (format!("{a},{a}"), "tensor a is repeated"),
        (a_and_b("8", "16"), "end at byte 16 of the data, but 8 bytes of data are there"),
        (tensor("a", "F32", "[1]", "0", "4"), "end at byte 4 of the data, but 8 bytes of data are there"),
        (vast, "end at byte 18446744073709551615 of the data, but 8 bytes of data are there"),
        (r#""a":7"#.to_owned(), "header cannot be read: tensor a"),
        ("7".to_owned(), "header cannot be read"),
    ] {
        refused(Header::read(&file(&format!("{{{entries}}}"), &[0; 8])), expected);
    }
}

#[test]
fn a_file_of_another_kind_is_named() {
    for (bytes, said) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n"[..], "run `git lfs pull`"),
        (b"\x1f\x8b\x08\0\x04\x05\x06\x07\0\x03", "unpack it with `gunzip`"),
        (b"<!DOCTYPE html><html>", "it is a web page"),
        (b"abc", "it has 3 bytes, and its header alone takes 8"),
        (&(1u64 << 63).to_le_bytes(), "announce a header of 9223372036854775808 bytes, but 0 follow"),
        (&[2, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF], "its header is not text"),
    ] {
        refused(Header::read(bytes), said);
    }
}

#[test]
fn a_tensor_of_absurd_rank_is_refused_without_showing_its_shape() {
    let shape = vec!["0"; 100_000].join(",");
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,0]}}}}"#);
    let error = Header::read(&file(&header, &[])).unwrap_err();
    assert!(error.contains("tensor a has 100000 dimensions, expected 64 at most"), "{error}");
    assert!(error.len() < 200, "{} bytes of message", error.len());
}
