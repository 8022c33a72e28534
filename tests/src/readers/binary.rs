//! Binary formats: safetensors, TensorFlow checkpoints, SentencePiece models, shards, resume states.

use super::{golden, golden_files, with_file, with_folder};
use albert::{
    checkpoint::{Checkpoints, Heads, ModelFolder},
    data::shard::{HEADER_BYTES, Shard},
};
use engine::io::{Data, Safetensors, TensorOut, hash64, masked_crc, proto::write_varint, save_safetensors};
use std::{fs, path::Path};

/// A tensor file: structure, then every tensor as f32 and as i64.
pub(super) fn safetensors(bytes: &[u8]) -> bool {
    with_file("model.safetensors", bytes, |path| {
        let Ok(file) = Safetensors::open(path) else { return false };
        for name in file.names() {
            let shape = file.shape(&name).expect("a name of the file").to_vec();
            let _ = (file.floats(&name, &shape).is_ok(), file.i64s(&name, &shape).is_ok());
        }
        true
    })
}

pub(super) fn safetensors_seeds() -> Vec<Vec<u8>> {
    let small = with_folder(|folder| {
        let path = folder.join("seed.safetensors");
        let tensors = [
            TensorOut { name: "a".into(), shape: vec![2, 3], data: Data::F32(&[0.5; 6]) },
            TensorOut { name: "b".into(), shape: vec![2], data: Data::I64(&[-1, 7]) },
            TensorOut { name: "none".into(), shape: vec![0, 4], data: Data::F32(&[]) },
        ];
        save_safetensors(&path, &tensors, &[("format", "pt")]).expect("a seed");
        fs::read(&path).expect("a seed")
    });
    // Without the checksum, which no mutated file has.
    let start = 8 + u64::from_le_bytes(small[..8].try_into().expect("8 bytes")) as usize;
    let header = String::from_utf8_lossy(&small[8..start]).replace("checksum", "chksum__");
    let mut plain = (header.len() as u64).to_le_bytes().to_vec();
    plain.extend_from_slice(header.as_bytes());
    plain.extend_from_slice(&small[start..]);
    let mut seeds = golden_files(&["checkpoints/bert-ForPreTraining-f16/model.safetensors"]);
    seeds.retain(|seed| seed.len() < 40_000);
    seeds.extend([small, plain]);
    seeds
}

/// A checkpoint of TensorFlow. The first byte chooses what the others are: 0 an index, 1 a block of an index, which is
/// framed with correct lengths and checksums, 2 the data.
pub(super) fn tensorflow(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    with_folder(|folder| {
        let folder = folder.join("tensorflow");
        if !folder.is_dir() {
            fs::create_dir(&folder).expect("a folder");
            for file in fs::read_dir(golden().join("checkpoints/google-albert")).expect("golden files") {
                let file = file.expect("a golden file");
                fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
            }
        }
        let (index, data) = (INDEX, DATA);
        let (name, content) = match kind % 3 {
            0 => (index, bytes.to_vec()),
            1 => (index, frame(bytes)),
            _ => (data, bytes.to_vec()),
        };
        let other = if name == index { data } else { index };
        fs::copy(golden().join("checkpoints/google-albert").join(other), folder.join(other)).expect("a copy");
        fs::write(folder.join(name), content).expect("a file in the temporary folder");
        let Ok(model) = ModelFolder::open(&folder) else { return false };
        model.load(Heads::PRE_TRAINING, &["cls"], |_, _| Ok(())).is_ok()
    })
}

const INDEX: &str = "model.ckpt-best.index";
const DATA: &str = "model.ckpt-best.data-00000-of-00001";

pub(super) fn tensorflow_seeds() -> Vec<Vec<u8>> {
    let index = fs::read(golden().join("checkpoints/google-albert").join(INDEX)).expect(INDEX);
    // The first data block begins the file; its entries end before the restarts, which `frame` writes.
    let block = index[..index.len().min(1500)].to_vec();
    [(0, index), (1, block)].into_iter().map(|(kind, bytes)| [&[kind][..], &bytes].concat()).collect()
}

/// A table with `entries` as the bytes of its only data block.
fn frame(entries: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let block = |file: &mut Vec<u8>, entries: &[u8]| {
        let start = file.len();
        file.extend_from_slice(entries);
        file.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
        let size = file.len() - start;
        file.push(0);
        let crc = masked_crc(&file[start..]);
        file.extend_from_slice(&crc.to_le_bytes());
        (start as u64, size as u64)
    };
    let data = block(&mut file, entries);
    let metaindex = block(&mut file, &[]);
    let mut handle = Vec::new();
    write_varint(&mut handle, data.0);
    write_varint(&mut handle, data.1);
    let entry = [&[0, 1, handle.len() as u8][..], b"~", &handle].concat();
    let index = block(&mut file, &entry);
    let mut footer = Vec::new();
    for number in [metaindex.0, metaindex.1, index.0, index.1] {
        write_varint(&mut footer, number);
    }
    footer.resize(40, 0);
    file.extend_from_slice(&footer);
    file.extend_from_slice(&0xdb47_7524_8b80_fb57u64.to_le_bytes());
    file
}

/// A shard; both hashes are computed anew.
pub(super) fn shard(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= HEADER_BYTES {
        let content = hash64(&bytes[HEADER_BYTES..]);
        bytes[64..72].copy_from_slice(&content.to_le_bytes());
        let header = hash64(&bytes[..72]);
        bytes[72..80].copy_from_slice(&header.to_le_bytes());
    }
    with_file("train-00000.shard", &bytes, |path| {
        let Ok(shard) = Shard::open(path) else { return false };
        let tokens = shard.ids().len();
        let mut ids = Vec::new();
        for pair in shard.sentence_starts().windows(2) {
            shard.ids().append_to(pair[0] as usize..pair[1] as usize, &mut ids);
        }
        assert_eq!(ids.len(), tokens, "sentences cover all tokens");
        let sentences = shard.sentence_starts().len();
        assert!(shard.document_starts().iter().all(|&start| (start as usize) < sentences));
        true
    })
}

pub(super) fn shard_seeds() -> Vec<Vec<u8>> {
    // Two documents, three sentences, nine tokens of two bytes.
    let mut bytes = b"ALBSHARD".to_vec();
    for half in [1u32, 2] {
        bytes.extend_from_slice(&half.to_le_bytes());
    }
    for word in [7u64, 100, 2, 3, 9] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.resize(80, 0);
    let mut section = |items: &[u8]| {
        bytes.extend_from_slice(items);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    };
    section(&(0..9u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>());
    section(&[0u32, 2, 5, 9].iter().flat_map(|start| start.to_le_bytes()).collect::<Vec<_>>());
    section(&[0u32, 1, 3].iter().flat_map(|start| start.to_le_bytes()).collect::<Vec<_>>());
    section(&[0u32, 1].iter().flat_map(|source| source.to_le_bytes()).collect::<Vec<_>>());
    section(&[3u64, 4].iter().flat_map(|hash| hash.to_le_bytes()).collect::<Vec<_>>());
    vec![bytes]
}

/// A resume state: the input is the text of its header, written with correct checksums.
pub(super) fn state(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    with_folder(|folder| {
        let run = folder.join("run");
        let checkpoints = Checkpoints::of_run(&run);
        let path = checkpoints.path(3);
        fs::create_dir_all(path.parent().expect("a folder of checkpoints")).expect("a folder");
        let tensors = [TensorOut { name: "params/w".into(), shape: vec![2], data: Data::F32(&[1.0, 2.0]) }];
        save_safetensors(Path::new(&path), &tensors, &[("state", text)]).expect("a state");
        let Ok(Some(found)) = checkpoints.newest() else { return false };
        let now = serde_json::json!({"model": {"hidden_size": 32}, "seed": 7});
        let _ = (found.expect_config(&now).is_ok(), found.expect_inputs(&now).is_ok());
        let mut out = [0.0; 2];
        found.read("params", "w", &[2], &mut out).is_ok()
    })
}

pub(super) fn state_seeds() -> Vec<Vec<u8>> {
    let text = r#"{"version":1,"step":3,"config":{"model":{"hidden_size":32},"seed":7},"cursor":{"epoch":0,"position":4},"inputs":{"tokenizer":"00ff"},"progress":{"tokens":12,"best":4.5}}"#;
    vec![text.as_bytes().to_vec()]
}
