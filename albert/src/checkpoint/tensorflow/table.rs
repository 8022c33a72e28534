//! Sorted table of a TensorFlow index, in LevelDB's file format.
//!
//! ```text
//! | data block | data block | .. | metaindex block | index block | footer, 48 bytes |
//! block    entries, then u32 restart offsets, then their count u32;  after it 1 byte compression, u32 masked CRC-32C
//! entry    varints shared, own, value length; then own bytes of key (the first `shared` are those of the key before)
//!          and the value
//! index    an entry for each data block, its value the block's place: varints offset and size
//! footer   places of metaindex and index, padded to 40 bytes; magic u64 0xdb4775248b80fb57
//! ```
//!
//! Every block's checksum is verified. A key is rebuilt from the one before, so a small file can describe long keys:
//! their total length is limited to a multiple of the file size. For the same reason, blocks must not overlap.
//! Source: LevelDB's doc/table_format.md. Limits: no compression, as TensorFlow writes its indexes.

use engine::io::{limits, masked_crc, proto::Reader};

const FOOTER: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// Compression and checksum behind a block.
const TRAILER: usize = 5;
/// Limit of the total length of all keys, as a multiple of the file size.
const KEY_BUDGET: usize = 16;

#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    size: usize,
}

impl Place {
    fn read(bytes: &mut Reader<'_>) -> Result<Self, String> {
        let [offset, size] = [bytes.varint()?, bytes.varint()?]
            .map(|number| usize::try_from(number).map_err(|_| "a block is beyond the end of any file".to_owned()));
        Ok(Self { offset: offset?, size: size? })
    }
}

/// Passes every key and value of the table in `file` to `take`, in order.
pub(super) fn read(file: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Result<(), String>) -> Result<(), String> {
    let start = file.len().checked_sub(FOOTER).ok_or_else(|| {
        format!("it has {} bytes, and the footer of an index alone has {FOOTER}; it was cut short", file.len())
    })?;
    let (body, footer) = file.split_at(start);
    let magic = footer.last_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    if magic != Some(MAGIC) {
        let what = limits::mistaken(file).unwrap_or("it was cut short or is not an index");
        return Err(format!("it does not end with the magic number of an index; {what}"));
    }
    let mut places = Reader::new(&footer[..FOOTER - 8], 0);
    let _metaindex = Place::read(&mut places)?;
    let index = block(body, Place::read(&mut places)?)?;
    let mut budget = KEY_BUDGET * file.len();
    let mut end = 0;
    entries(index, &mut budget.clone(), |_, value| {
        let place = Place::read(&mut Reader::new(value, 0))?;
        if place.offset < end {
            return Err(format!("the block at byte {} overlaps with the one before", place.offset));
        }
        let data = block(body, place)?;
        end = place.offset + place.size;
        entries(data, &mut budget, &mut take)
    })
}

/// Entries of a block, without its trailer; the checksum is verified.
fn block(body: &[u8], place: Place) -> Result<&[u8], String> {
    let Place { offset, size } = place;
    let whole = size.checked_add(TRAILER).and_then(|size| offset.checked_add(size));
    let Some(bytes) = whole.and_then(|end| body.get(offset..end)) else {
        return Err(format!(
            "a block of {size} bytes at byte {offset} reaches beyond the file of {} bytes",
            body.len()
        ));
    };
    let (checked, crc) = bytes.split_at(size + 1);
    let stated = u32::from_le_bytes(crc.try_into().expect("four bytes"));
    let found = masked_crc(checked);
    if stated != found {
        return Err(format!(
            "the checksum of the block at byte {offset} is {found:08x}, but the file says {stated:08x}: it is damaged, \
             fetch it again"
        ));
    }
    let (contents, compression) = checked.split_at(size);
    if compression != [0] {
        return Err(format!(
            "the block at byte {offset} is compressed (type {}); write the checkpoint again with a TensorFlow that does \
             not compress indexes",
            compression[0]
        ));
    }
    let (rest, count) = contents.split_last_chunk().ok_or("a block without restart points")?;
    let restarts = u32::from_le_bytes(*count) as usize;
    restarts.checked_mul(4).and_then(|bytes| rest.len().checked_sub(bytes)).map(|end| &rest[..end]).ok_or_else(|| {
        format!("the block at byte {offset} announces {restarts} restart points, more than it has room for")
    })
}

fn entries(
    block: &[u8],
    budget: &mut usize,
    mut take: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let mut bytes = Reader::new(block, 0);
    let mut key: Vec<u8> = Vec::new();
    while !bytes.is_empty() {
        let [shared, own, length] = [bytes.varint()?, bytes.varint()?, bytes.varint()?];
        if shared > key.len() as u64 {
            return Err(format!("a key shares {shared} bytes with the one before, which has {}", key.len()));
        }
        let shared = shared as usize;
        let own = bytes.bytes(own)?;
        if key.get(shared..).is_some_and(|before| before > own) {
            return Err("its keys are not in order".to_owned());
        }
        key.truncate(shared);
        key.extend_from_slice(own);
        *budget = budget.checked_sub(key.len()).ok_or("its keys are too long for the size of the file")?;
        take(&key, bytes.bytes(length)?)?;
    }
    Ok(())
}
