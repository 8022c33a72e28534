//! `ModelProto`, the message of a `spiece.model`.
//!
//! | field            | content                                                                  |
//! |------------------|--------------------------------------------------------------------------|
//! | 1 pieces         | repeated: 1 text, 2 score, 3 type (1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte) |
//! | 2 trainer_spec   | used: 3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback |
//! | 3 normalizer_spec| 1 name, 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces, 5 escape_whitespaces |
//!
//! All other fields are preserved: a file written by SentencePiece is reproduced byte for byte.
//! Source: `sentencepiece_model.proto`.

use super::super::{Piece, PieceKind};
use bounded_input::proto::{Reader, Value, write_field};

/// A SentencePiece model file without its pieces, which the vocabulary stores.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelProto {
    /// Unknown fields of pieces: piece id and fields.
    piece_extras: Vec<(u32, Box<[u8]>)>,
    pub(crate) trainer: TrainerSpec,
    pub(crate) normalizer: NormalizerSpec,
    /// Fields 2 and 3 as read, and all other fields.
    trainer_raw: Vec<u8>,
    normalizer_raw: Vec<u8>,
    rest: Vec<u8>,
}

/// Used fields of `trainer_spec`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrainerSpec {
    pub(crate) model_type: u64,
    pub(crate) whitespace_as_suffix: bool,
    pub(crate) byte_fallback: bool,
}

/// Used fields of `normalizer_spec`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NormalizerSpec {
    pub(crate) charsmap: Vec<u8>,
    pub(crate) add_dummy_prefix: bool,
    pub(crate) remove_extra_whitespaces: bool,
    pub(crate) escape_whitespaces: bool,
}

const TYPES: [PieceKind; 6] = [
    PieceKind::Normal,
    PieceKind::Unknown,
    PieceKind::Control,
    PieceKind::UserDefined,
    PieceKind::Unused,
    PieceKind::Byte,
];

impl ModelProto {
    /// Reads a model and its pieces; errors name the byte.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, Vec<Piece>), String> {
        let (mut pieces, mut piece_extras) = (Vec::new(), Vec::new());
        let (mut trainer_raw, mut normalizer_raw, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        let (mut trainer, mut normalizer) = (TrainerSpec::default(), NormalizerSpec::new(Vec::new()));
        for field in Reader::new(bytes, 0) {
            let field = field?;
            match field.number {
                1 => {
                    let (piece, extra) = read_piece(field.bytes()?, field.at)?;
                    if !extra.is_empty() {
                        piece_extras.push((pieces.len() as u32, extra.into()));
                    }
                    pieces.push(piece);
                }
                2 => {
                    trainer.read(field.bytes()?, field.at)?;
                    trainer_raw.extend_from_slice(field.bytes()?);
                }
                3 => {
                    normalizer.read(field.bytes()?, field.at)?;
                    normalizer_raw.extend_from_slice(field.bytes()?);
                }
                _ => rest.extend_from_slice(field.raw),
            }
        }
        if pieces.is_empty() {
            return Err("no pieces; the file is cut short or not a SentencePiece model".to_owned());
        }
        Ok((Self { piece_extras, trainer, normalizer, trainer_raw, normalizer_raw, rest }, pieces))
    }

    /// Creates a model of `pieces` (scores are rounded to f32) with the normalizer rules `charsmap`.
    pub(crate) fn new(pieces: &[Piece], charsmap: Vec<u8>) -> Self {
        let mut trainer_raw = Vec::new();
        write_field(&mut trainer_raw, 3, Value::Varint(1));
        write_field(&mut trainer_raw, 4, Value::Varint(pieces.len() as u64));
        let texts = |kind: PieceKind| pieces.iter().filter(move |piece| piece.kind == kind).map(|piece| &piece.text);
        for text in texts(PieceKind::Control).filter(|&text| text != "<pad>") {
            write_field(&mut trainer_raw, 30, Value::Bytes(text.as_bytes()));
        }
        for text in texts(PieceKind::UserDefined) {
            write_field(&mut trainer_raw, 31, Value::Bytes(text.as_bytes()));
        }
        let id = |text: &str| pieces.iter().position(|piece| piece.text == text).map_or(u64::MAX, |id| id as u64);
        for (field, id) in [(40, id("<unk>")), (41, u64::MAX), (42, u64::MAX), (43, id("<pad>"))] {
            write_field(&mut trainer_raw, field, Value::Varint(id));
        }
        let mut normalizer_raw = Vec::new();
        write_field(&mut normalizer_raw, 1, Value::Bytes(b"albert"));
        write_field(&mut normalizer_raw, 2, Value::Bytes(&charsmap));
        for field in 3..=5 {
            write_field(&mut normalizer_raw, field, Value::Varint(1));
        }
        Self {
            piece_extras: Vec::new(),
            trainer: TrainerSpec::default(),
            normalizer: NormalizerSpec::new(charsmap),
            trainer_raw,
            normalizer_raw,
            rest: Vec::new(),
        }
    }

    /// Rules of the normalizer.
    pub(crate) fn charsmap(&self) -> &[u8] {
        &self.normalizer.charsmap
    }

    /// Serializes the model with `pieces`.
    pub(crate) fn write(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut extras = self.piece_extras.iter().peekable();
        let mut message = Vec::new();
        for (id, piece) in pieces.iter().enumerate() {
            message.clear();
            write_field(&mut message, 1, Value::Bytes(piece.text.as_bytes()));
            write_field(&mut message, 2, Value::Fixed32((piece.score as f32).to_bits()));
            if piece.kind != PieceKind::Normal {
                let number = TYPES.iter().position(|&kind| kind == piece.kind).expect("every kind has a number");
                write_field(&mut message, 3, Value::Varint(number as u64 + 1));
            }
            if let Some((_, extra)) = extras.next_if(|(of, _)| *of as usize == id) {
                message.extend_from_slice(extra);
            }
            write_field(&mut out, 1, Value::Bytes(&message));
        }
        write_field(&mut out, 2, Value::Bytes(&self.trainer_raw));
        write_field(&mut out, 3, Value::Bytes(&self.normalizer_raw));
        out.extend_from_slice(&self.rest);
        out
    }
}

/// Parses a normal piece as written by SentencePiece: field 1 of less than 128 bytes, then field 2.
fn read_normal(message: &[u8]) -> Option<Piece> {
    let (&[0x0a, len @ 1..=0x7f], rest) = message.split_first_chunk()? else { return None };
    let (text, &[0x15, a, b, c, d]) = rest.split_at_checked(usize::from(len))? else { return None };
    Some(Piece::normal(std::str::from_utf8(text).ok()?, f64::from(f32::from_le_bytes([a, b, c, d]))))
}

/// Parses one piece and its unknown fields.
fn read_piece(message: &[u8], at: usize) -> Result<(Piece, Vec<u8>), String> {
    // Covers nearly all pieces, at a third of the cost of a general message.
    if let Some(piece) = read_normal(message) {
        return Ok((piece, Vec::new()));
    }
    let mut piece = Piece::normal("", 0.0);
    let mut extra = Vec::new();
    for field in Reader::new(message, at) {
        let field = field?;
        match field.number {
            1 => piece.text = field.text()?.to_owned(),
            2 => piece.score = f64::from(field.float()?),
            3 => {
                let number = field.varint()?;
                let kind = number.checked_sub(1).and_then(|index| TYPES.get(usize::try_from(index).ok()?));
                piece.kind = *kind.ok_or_else(|| format!("byte {}: piece type {number}; 1 to 6 exist", field.at))?;
            }
            _ => extra.extend_from_slice(field.raw),
        }
    }
    if piece.text.is_empty() {
        return Err(format!("byte {at}: a piece without text; the file is damaged"));
    }
    Ok((piece, extra))
}

impl Default for TrainerSpec {
    fn default() -> Self {
        Self { model_type: 1, whitespace_as_suffix: false, byte_fallback: false }
    }
}

impl TrainerSpec {
    fn read(&mut self, message: &[u8], at: usize) -> Result<(), String> {
        for field in Reader::new(message, at) {
            let field = field?;
            match field.number {
                3 => self.model_type = field.varint()?,
                24 => self.whitespace_as_suffix = field.varint()? != 0,
                35 => self.byte_fallback = field.varint()? != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

impl NormalizerSpec {
    fn new(charsmap: Vec<u8>) -> Self {
        Self { charsmap, add_dummy_prefix: true, remove_extra_whitespaces: true, escape_whitespaces: true }
    }

    fn read(&mut self, message: &[u8], at: usize) -> Result<(), String> {
        for field in Reader::new(message, at) {
            let field = field?;
            match field.number {
                2 => self.charsmap = field.bytes()?.to_vec(),
                3 => self.add_dummy_prefix = field.varint()? != 0,
                4 => self.remove_extra_whitespaces = field.varint()? != 0,
                5 => self.escape_whitespaces = field.varint()? != 0,
                _ => {}
            }
        }
        Ok(())
    }
}
