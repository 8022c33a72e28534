//! Binary formats: safetensors, TensorFlow checkpoints, SentencePiece models, shards, resume states.

use super::{golden, golden_files, with_file, with_folder};
use crate::run_folder::copy;
use albert::{
    checkpoint::{Checkpoints, Heads, ModelFolder},
    data::shard::{HEADER_BYTES, Shard},
};
use engine::io::{Data, Safetensors, TensorOut, hash64, masked_crc, proto::write_varint, save_safetensors};
use std::{fs, path::Path};

/// Reads a tensor file: its structure, then every tensor as f32 and as i64.
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
    // Without the checksum, which no mutated file matches.
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

/// Reads a TensorFlow checkpoint. The first byte selects the kind of the rest: 0 an index, 1 a block of an index,
/// which is framed with correct lengths and checksums, 2 the data.
pub(super) fn tensorflow(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    with_folder(|folder| {
        let folder = folder.join("tensorflow");
        if !folder.is_dir() {
            copy(&golden().join("checkpoints/google-albert"), &folder);
        }
        let (index, data) = (INDEX, DATA);
        let (name, content) = match kind % 3 {
            0 => (index, bytes.to_vec()),
            1 => (index, tensorflow_index(bytes)),
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
    // The first data block is at the start of the file; its entries end before the restarts, which [`tensorflow_index`] writes.
    let block = index[..index.len().min(1500)].to_vec();
    [(0, index), (1, block)].into_iter().map(|(kind, bytes)| [&[kind][..], &bytes].concat()).collect()
}

fn varints(numbers: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|&number| write_varint(&mut out, number as u64));
    out
}

/// Index of a TensorFlow checkpoint with `entries` as the bytes of its only data block.
pub fn tensorflow_index(entries: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut block = |entries: &[u8]| {
        let start = file.len();
        file.extend([entries, &[0, 0, 0, 0, 1, 0, 0, 0, 0]].concat());
        let crc = masked_crc(&file[start..]);
        file.extend(crc.to_le_bytes());
        [start, entries.len() + 8]
    };
    let [data, metaindex] = [entries, &[]].map(&mut block);
    let handle = varints(&data);
    let index = block(&[&[0, 1, handle.len() as u8][..], b"~", &handle].concat());
    let mut footer = varints(&[metaindex, index].concat());
    footer.resize(40, 0);
    [file, footer, 0xdb47_7524_8b80_fb57u64.to_le_bytes().to_vec()].concat()
}

/// Reads a shard; both hashes are recomputed.
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
    let ids = (0..9u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    let starts =
        [&[0u32, 2, 5, 9][..], &[0, 1, 3], &[0, 1]].map(|starts| bytemuck::cast_slice::<u32, u8>(starts).to_vec());
    let hashes = [3u64, 4].map(u64::to_le_bytes).concat();
    for section in [&[ids][..], &starts, &[hashes]].concat() {
        bytes.extend(section);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    vec![bytes]
}

/// Reads a resume state: the input is the text of its header, written with correct checksums.
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
