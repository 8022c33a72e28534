//! TensorBoard event files.
//!
//! A file is a sequence of TFRecords, each one serialized `Event` protocol buffer:
//!
//! ```text
//! TFRecord   u64 length | u32 mask(crc32c(length bytes)) | payload | u32 mask(crc32c(payload))      little-endian
//! mask(c)  = ((c >> 15) | (c << 17)) + 0xa282ead8  mod 2³²
//! Event      1: wall_time (double)  2: step (varint)  3: file_version (string)  5: Summary  7: SessionLog
//! Summary    1: repeated Value { 1: tag (string)  2: simple_value (float) }
//! SessionLog 1: status, START = 1
//! ```
//!
//! The first event of a file states the version `brain.Event:2`. A resumed run opens a new file whose `SessionLog`
//! START event makes TensorBoard drop this and later steps of older files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::io::masked_crc;
use engine::io::proto::{Value, write_field};

use super::ReportError;

/// `SessionLog { status: START }`.
const SESSION_START: [u8; 2] = [0x08, 1];

/// An open event file.
#[derive(Debug)]
pub(crate) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates a new event file in `folder` for a run that continues after `step` steps.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub(crate) fn create(folder: &Path, step: u64) -> Result<Self, ReportError> {
        let now = wall_time();
        // The name must contain "tfevents"; seconds order the files, and process ids distinguish starts within one second.
        let stem = format!("events.out.tfevents.{:010}.{}", now as u64, std::process::id());
        for attempt in 0u32.. {
            let name = if attempt == 0 { stem.clone() } else { format!("{stem}.{attempt}") };
            let path = folder.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    let mut events = Self { path, file };
                    events.write(&event(now, 0, |out| write_field(out, 3, Value::Bytes(b"brain.Event:2"))))?;
                    if step > 0 {
                        events.write(&event(now, step + 1, |out| {
                            write_field(out, 7, Value::Bytes(&SESSION_START));
                        }))?;
                    }
                    return Ok(events);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(ReportError::io(&path, "create the event file")(error)),
            }
        }
        unreachable!("some name is free")
    }

    /// Path of the file.
    #[cfg(test)]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds one event with `scalars` at `step`.
    ///
    /// # Errors
    /// The event cannot be written.
    pub(crate) fn scalars(&mut self, step: u64, scalars: &[(impl AsRef<str>, f64)]) -> Result<(), ReportError> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut entry = Vec::new();
            write_field(&mut entry, 1, Value::Bytes(tag.as_ref().as_bytes()));
            write_field(&mut entry, 2, Value::Fixed32((*value as f32).to_bits()));
            write_field(&mut summary, 1, Value::Bytes(&entry));
        }
        self.write(&event(wall_time(), step, |out| write_field(out, 5, Value::Bytes(&summary))))
    }

    fn write(&mut self, payload: &[u8]) -> Result<(), ReportError> {
        self.file.write_all(&tf_record(payload)).map_err(ReportError::io(&self.path, "add to the event file"))
    }
}

fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Frames one record.
fn tf_record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(payload.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(payload);
    record.extend(masked_crc(payload).to_le_bytes());
    record
}

/// Encodes an `Event` of `time` and `step` with the fields of `rest`.
fn event(time: f64, step: u64, rest: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write_field(&mut out, 1, Value::Fixed64(time.to_bits()));
    if step > 0 {
        write_field(&mut out, 2, Value::Varint(step));
    }
    rest(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretrain::{HeldOutFigures, PretrainRecord, Sentence, SentenceObjective};
    use crate::train::EvaluationRecord;

    /// An independent reader: parses frames and verifies both checksums bit by bit.
    fn frames(mut file: &[u8]) -> Vec<Vec<u8>> {
        // Written as in the definition of the format.
        #[allow(clippy::manual_rotate)]
        fn crc(bytes: &[u8]) -> u32 {
            let mut crc = !0u32;
            for byte in bytes {
                crc ^= u32::from(*byte);
                for _ in 0..8 {
                    crc = crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
                }
            }
            let crc = !crc;
            ((crc >> 15) | (crc << 17)).wrapping_add(0xa282_ead8)
        }
        let mut out = Vec::new();
        while !file.is_empty() {
            let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(file[8..12].try_into().unwrap()), crc(&file[..8]));
            let payload = &file[12..12 + length];
            assert_eq!(u32::from_le_bytes(file[12 + length..16 + length].try_into().unwrap()), crc(payload));
            out.push(payload.to_vec());
            file = &file[16 + length..];
        }
        out
    }

    #[test]
    fn bytes_are_those_of_the_format() {
        // Event { wall_time: 2.0, step: 300, summary { value { tag: "a", simple_value: 1.5 } } }, encoded by hand.
        let expected = [
            &[0x09][..],
            &2.0f64.to_le_bytes(),
            &[0x10, 0xac, 0x02, 0x2a, 0x0a, 0x0a, 0x08, 0x0a, 0x01, b'a', 0x15],
            &1.5f32.to_le_bytes(),
        ]
        .concat();
        let mut entry = Vec::new();
        write_field(&mut entry, 1, Value::Bytes(b"a"));
        write_field(&mut entry, 2, Value::Fixed32(1.5f32.to_bits()));
        let mut summary = Vec::new();
        write_field(&mut summary, 1, Value::Bytes(&entry));
        assert_eq!(event(2.0, 300, |out| write_field(out, 5, Value::Bytes(&summary))), expected);
    }

    #[test]
    fn a_file_opens_with_its_version_and_frames_every_event() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path(), 0).unwrap();
        events.scalars(7, &[("train/loss", 2.5), ("train/mlm_loss", 1.25)]).unwrap();
        for objective in [SentenceObjective::Sop, SentenceObjective::Nsp] {
            let sentence = Sentence { objective, loss: Some(0.5), ..Sentence::default() };
            let figures = HeldOutFigures { sentence, ..Default::default() };
            let record = EvaluationRecord { step: 8, figures, ..Default::default() };
            events.scalars(8, &PretrainRecord::Evaluation(record).scalars()).unwrap();
        }
        let name = events.path().file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.contains("tfevents"), "{name}");
        let frames = frames(&std::fs::read(events.path()).unwrap());
        assert_eq!(frames.len(), 4);
        assert!(frames[0].ends_with(b"\x1a\x0dbrain.Event:2"), "{:?}", frames[0]);
        let has = |frame: &[u8], part: &[u8]| frame.windows(part.len()).any(|window| window == part);
        assert!(has(&frames[1], b"\x10\x07") && has(&frames[1], b"train/mlm_loss"));
        assert!(has(&frames[2], b"evaluation/sop_loss") && !has(&frames[2], b"sop_accuracy"));
        assert!(has(&frames[3], b"evaluation/nsp_loss") && !has(&frames[3], b"sop_loss"));
    }

    #[test]
    fn a_resumed_run_opens_another_file_that_drops_later_steps() {
        let folder = tempfile::tempdir().unwrap();
        let first = EventFile::create(folder.path(), 0).unwrap();
        let second = EventFile::create(folder.path(), 100).unwrap();
        assert_ne!(first.path(), second.path());
        let frames = frames(&std::fs::read(second.path()).unwrap());
        // step 101, SessionLog { status: START }
        assert!(frames[1].ends_with(&[0x10, 101, 0x3a, 0x02, 0x08, 0x01]), "{:?}", frames[1]);
    }
}
