use super::*;
use safetensors::SafeTensors;
use std::fs;

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 - 2.5) * 0.37).collect()
}

fn example(folder: &Path) -> PathBuf {
    let path = folder.join("model.safetensors");
    let (a, b) = (floats(6), floats(5));
    let tensors = [
        TensorOut { name: "b.narrow".into(), shape: vec![5], data: Data::Bf16(&b) },
        TensorOut { name: "a.weight".into(), shape: vec![2, 3], data: Data::F32(&a) },
        TensorOut { name: "z.step".into(), shape: vec![], data: Data::I64(&[-7]) },
        TensorOut { name: "empty".into(), shape: vec![0, 4], data: Data::F32(&[]) },
    ];
    save_safetensors(&path, &tensors, &[("format", "pt"), ("step", "12")]).unwrap();
    path
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = Safetensors::open_checked(example(folder.path())).unwrap();
    assert_eq!(file.f32s("a.weight", &[2, 3]).unwrap(), floats(6));
    let rounded: Vec<f32> = floats(5).iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    assert_eq!(file.f32s("b.narrow", &[5]).unwrap(), rounded);
    assert_eq!(file.i64s("z.step", &[]).unwrap(), [-7]);
    assert!(file.f32s("empty", &[0, 4]).unwrap().is_empty());
    assert_eq!(file.metadata()["step"], "12");
    assert_eq!(file.dtype("b.narrow"), Some(FileDType::Bf16));
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
    let error = Safetensors::open_checked(&path).unwrap_err().to_string();
    assert!(error.contains("theirs.safetensors: the checksum is missing"), "{error}");
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
        let opened = Safetensors::open_checked(&path);
        assert!(opened.is_err(), "bit {} of byte {} of {}", bit % 8, bit / 8, good.len());
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
fn refuses_a_header_that_lies_about_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("liar.safetensors");
    let header = br#"{"a":{"dtype":"F32","shape":[4000000000,4000000000,4000000000],"data_offsets":[0,4]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    fs::write(&path, file).unwrap();
    assert!(Safetensors::open(&path).is_err());
    fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    assert!(Safetensors::open(&path).is_err());
}

#[test]
fn errors_name_file_tensor_and_expectation() {
    let folder = tempfile::tempdir().unwrap();
    let file = Safetensors::open(example(folder.path())).unwrap();
    for (error, expected) in [
        (file.f32s("a.bias", &[3]).unwrap_err(), "model.safetensors: tensor a.bias [3] is missing; the file has"),
        (
            file.f32s("a.weight", &[3, 2]).unwrap_err(),
            "model.safetensors: tensor a.weight has shape [2, 3], but [3, 2] was expected",
        ),
        (file.f32s("z.step", &[]).unwrap_err(), "tensor z.step is of type I64, but F32, F16 or BF16 was expected"),
        (file.i64s("a.weight", &[2, 3]).unwrap_err(), "tensor a.weight is of type F32, but I64 was expected"),
    ] {
        assert!(error.to_string().contains(expected), "{error}");
    }
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
        let error = save_safetensors(&path, &tensors, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!path.exists());
    }
}

/// What a hostile file could say, and the sentence that answers it.
#[test]
fn a_header_that_lies_is_told_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("liar.safetensors");
    let tensor = |name: &str, dtype: &str, shape: &str, from: &str, to: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let (a, half) = (tensor("a", "F32", "[2]", "0", "8"), "9223372036854775808");
    for (entries, expected) in [
        (a.clone(), ""),
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
        (
            format!("{a},{}", tensor("b", "F32", "[2]", "4", "12")),
            "tensor b begins at byte 4 of the data, not at 8: it overlaps with tensor a",
        ),
        (format!("{a},{}", tensor("b", "F32", "[2]", "12", "20")), "it leaves a gap behind tensor a"),
        (format!("{a},{a}"), "tensor a is repeated"),
        (
            format!("{a},{}", tensor("b", "F32", "[2]", "8", "16")),
            "end at byte 16 of the data, but 8 bytes of data are there",
        ),
        (tensor("a", "F32", "[1]", "0", "4"), "end at byte 4 of the data, but 8 bytes of data are there"),
        (r#""a":7"#.to_owned(), "header cannot be read: tensor a"),
        ("7".to_owned(), "header cannot be read"),
    ] {
        let header = format!("{{{entries}}}");
        fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat()).unwrap();
        match Safetensors::open(&path) {
            Ok(_) => assert_eq!(expected, "", "{header}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!expected.is_empty() && error.contains(expected), "{header}: {error}");
            }
        }
    }
    for (bytes, expected) in [
        (&b"abc"[..], "it has 3 bytes, and its header alone takes 8"),
        (&(1u64 << 63).to_le_bytes(), "announce a header of 9223372036854775808 bytes, but 0 follow"),
        (&[2, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF], "its header is not text"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = Safetensors::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Nine tensors of 2⁶¹ bytes end where 64 bits end again at the true end of the file: sums may not wrap.
#[test]
fn offsets_that_add_up_beyond_64_bits_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrap.safetensors");
    let size = 1u64 << 60;
    let entries: Vec<String> = (0..16u64)
        .map(|at| {
            let (from, to) = (at * size, (at + 1).saturating_mul(size));
            format!(r#""{at:02}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#, to - from)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let error = Safetensors::open(&path).unwrap_err().to_string();
    assert!(error.contains("not a whole safetensors file"), "{error}");
}

#[test]
fn aligned_f32_is_borrowed_and_halves_are_rounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.safetensors");
    let values = [1.0f32, 1.0 / 3.0, -65504.0, 1e-8];
    let tensors = [
        TensorOut { name: "h".into(), shape: vec![4], data: Data::F16(&values) },
        TensorOut { name: "f".into(), shape: vec![4], data: Data::F32(&values) },
    ];
    save_safetensors(&path, &tensors, &[]).unwrap();
    let file = Safetensors::open_checked(&path).unwrap();
    assert!(matches!(file.floats("f", &[4]).unwrap(), Cow::Borrowed(found) if found == values));
    assert_eq!(file.f32s("h", &[4]).unwrap(), values.map(|x| f16::from_f32(x).to_f32()));
    assert_eq!(file.dtype("h"), Some(FileDType::F16));
}

#[test]
fn a_file_of_another_kind_is_named() {
    for (bytes, said) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1\n"[..], "run `git lfs pull`"),
        (b"\x1f\x8b\x08\0\x04\x05\x06\x07\0\x03", "unpack it with `gunzip`"),
        (b"<!DOCTYPE html><html>", "it is a web page"),
    ] {
        let error = Header::read(bytes).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_tensor_of_absurd_rank_is_refused_without_showing_its_shape() {
    let shape = vec!["0"; 100_000].join(",");
    let header = format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{shape}],\"data_offsets\":[0,0]}}}}");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let error = Header::read(&bytes).unwrap_err();
    assert!(error.contains("tensor a has 100000 dimensions, expected 64 at most"), "{error}");
    assert!(error.len() < 200, "{} bytes of message", error.len());
}
