//! Mutated SentencePiece models: an error or a tokenizer, no panic, bounded memory.
//!
//! Mutations know the format: they change tags, lengths, numbers, texts, units of the charsmap and whole fields of valid
//! files, and correct the lengths half of the time, so that a change gets past the outer checks.

use std::path::Path;

use albert::tokenizer::{Cleaning, Piece, PieceKind, SPECIAL_PIECES, Tokenizer};
use albert_tests::allocator::{Counting, live_and_peak, reset_peak};
use engine::philox::Stream;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum memory of reading a file: a multiple of its size, and a fixed part.
const TIMES: usize = 64;
const BESIDES: usize = 1 << 16;

/// Valid models: small, one with byte fallback.
fn models() -> Vec<Vec<u8>> {
    let special = SPECIAL_PIECES.iter().map(|&text| {
        let kind = if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
        Piece::new(text, 0.0, kind)
    });
    let symbols = ["(", "–"].map(|text| Piece::new(text, 0.0, PieceKind::UserDefined));
    let normal = ["▁", "▁the", "a", "b", "1", ",", "1,", "▁20", "é", "日本", "ing"];
    let normal = normal.iter().zip(1i16..).map(|(&text, rank)| Piece::normal(text, -f64::from(rank)));
    let plain: Vec<Piece> = special.chain(symbols).chain(normal).collect();
    let tokenizer = Tokenizer::from_pieces(plain, Cleaning::default()).expect("valid");
    let small = tokenizer.to_spiece().expect("ours can be written");
    let mut bytes = small.clone();
    for byte in 0..=255u8 {
        let text = format!("<0x{byte:02X}>");
        bytes.extend_from_slice(&[0x0a, 15, 0x0a, 6]);
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&[0x15, 0, 0, 0, 0, 0x18, 6]);
    }
    bytes.extend_from_slice(&[0x12, 3, 0x98, 2, 1]);
    // SentencePiece's switches, all of them the other way.
    let mut switched = small.clone();
    switched.extend_from_slice(&[0x12, 3, 0xc0, 1, 1, 0x1a, 4, 0x18, 0, 0x20, 0]);
    vec![small, bytes, switched]
}

/// Offsets of the fields of a message: tag, payload and end. `None` if it is not a message.
fn fields(bytes: &[u8]) -> Option<Vec<(usize, usize, usize)>> {
    let varint = |mut at: usize| {
        let mut value = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = *bytes.get(at)?;
            at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some((value, at));
            }
        }
        None
    };
    let mut list = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let (tag, payload) = varint(at)?;
        let (start, end) = match tag & 7 {
            0 => (payload, varint(payload)?.1),
            1 => (payload, payload + 8),
            2 => {
                let (len, start) = varint(payload)?;
                (start, start.checked_add(len as usize)?)
            }
            5 => (payload, payload + 4),
            _ => return None,
        };
        if end > bytes.len() || tag >> 3 == 0 {
            return None;
        }
        list.push((at, start, end));
        at = end;
    }
    Some(list)
}

fn encode_varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

const NUMBERS: [u64; 12] = [0, 1, 2, 6, 7, 127, 128, 255, 1 << 31, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// Changes one thing somewhere in a message; below `depth` levels of messages only bytes.
fn mutate(message: &[u8], draw: &mut Stream, depth: u32) -> Vec<u8> {
    let list = if depth == 0 { None } else { fields(message).filter(|list| !list.is_empty()) };
    let Some(list) = list else { return mutate_bytes(message, draw) };
    // Most fields are pieces; the last ones are the specs, which are drawn as often as all pieces together.
    let index = match draw.below(2) {
        0 => draw.below(list.len() as u32) as usize,
        _ => list.len() - 1 - draw.below(list.len().min(3) as u32) as usize,
    };
    let (tag, start, end) = list[index];
    let (before, field, after) = (&message[..tag], &message[tag..end], &message[end..]);
    let payload = &message[start..end];
    let kind = field[0] & 7;
    let mut changed = field.to_vec();
    match draw.below(8) {
        0 => changed.clear(),
        1 => changed.extend_from_slice(field),
        2 => changed[0] = draw.below(256) as u8,
        3 if kind == 0 || kind == 2 => {
            // Another number, or a wrong length.
            changed = [&[field[0]][..], &encode_varint(NUMBERS[draw.below(12) as usize])].concat();
            if kind == 2 {
                changed.extend_from_slice(payload);
            }
        }
        4 => {
            let (_, from, to) = list[draw.below(list.len() as u32) as usize];
            changed.extend_from_slice(&message[from..to]);
        }
        _ if kind == 2 => {
            let inner = mutate(payload, draw, depth - 1);
            changed = [&[field[0]][..], &encode_varint(inner.len() as u64), &inner].concat();
        }
        _ => changed = [&[field[0]][..], &mutate_bytes(payload, draw)].concat(),
    }
    [before, &changed, after].concat()
}

fn mutate_bytes(bytes: &[u8], draw: &mut Stream) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + draw.below(3) {
        let at = draw.below(bytes.len().max(1) as u32) as usize;
        match draw.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), draw.below(256) as u8),
            2 if bytes.len() >= 4 => {
                // A unit of the charsmap, a score, or the charsmap's size.
                let at = at / 4 * 4 % (bytes.len() / 4 * 4);
                let value = (NUMBERS[draw.below(12) as usize] as u32) ^ (1 << draw.below(32));
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            3 if bytes.len() >= 2 => {
                let other = draw.below(bytes.len() as u32) as usize;
                bytes.swap(at, other);
            }
            _ if !bytes.is_empty() => bytes[at] ^= 1 << draw.below(8),
            _ => bytes.push(draw.below(256) as u8),
        }
    }
    bytes
}

/// Runs `count` inputs; returns how many were tokenizers.
fn run(count: u64, seed: u64) -> u64 {
    let models = models();
    let path = Path::new("x.model");
    let mut valid = 0;
    for index in 0..count {
        let mut draw = Stream::new(seed, [index as u32, (index >> 32) as u32, 0]);
        let mut bytes = models[draw.below(models.len() as u32) as usize].clone();
        for _ in 0..1 + draw.below(3) {
            bytes = mutate(&bytes, &mut draw, 3);
        }
        reset_peak();
        let (before, _) = live_and_peak();
        let result = Tokenizer::from_spiece(&bytes, Cleaning::default(), path);
        let (_, peak) = live_and_peak();
        let limit = TIMES * bytes.len() + BESIDES;
        assert!(peak - before <= limit, "input {index}: {} bytes for a file of {}", peak - before, bytes.len());
        match result {
            Ok(tokenizer) => {
                valid += 1;
                let text = " The\u{1} 日本é—(1,20,) 2010, x\u{200b}Σ\u{2581} ";
                let encoding = tokenizer.encode_with_offsets(text).unwrap();
                assert_eq!(encoding.ids, tokenizer.encode(text).unwrap(), "input {index}");
                assert_eq!(encoding.ids, tokenizer.encode_batch(&[text]).unwrap()[0], "input {index}: as a batch");
                tokenizer.check_ids(&encoding.ids).expect("ids of the vocabulary");
                assert!(encoding.offsets.iter().all(|&(start, end)| text.get(start..end).is_some()), "input {index}");
                tokenizer.decode(&encoding.ids).unwrap();
                let again = tokenizer.to_spiece().expect("it came from a model");
                assert!(Tokenizer::from_spiece(&again, Cleaning::default(), path).is_ok(), "input {index}");
            }
            Err(error) => {
                let message = error.to_string();
                assert!(message.starts_with("x.model: ") && !message.contains('\n'), "input {index}: {message:?}");
            }
        }
    }
    valid
}

#[test]
fn a_hundred_thousand_damaged_models_are_read_or_refused() {
    for model in models() {
        Tokenizer::from_spiece(&model, Cleaning::default(), Path::new("x.model")).expect("valid before it is damaged");
    }
    let valid = run(100_000, 1);
    // Both outcomes occur: many mutations are harmless (a score, a text), many are not.
    assert!((10_000..90_000).contains(&valid), "{valid} of 100000 were valid");
}

#[test]
#[ignore = "ten million inputs take long; run it in release"]
fn ten_million_damaged_models_are_read_or_refused() {
    let valid = run(10_000_000, 2);
    println!("{valid} of 10000000 were valid");
}
