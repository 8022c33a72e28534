//! Checksums: a fast 64-bit hash for files of our own, and CRC-32C for formats that ask for it.
//!
//! [`hash64`] is XXH64 (Yann Collet, xxHash specification 0.1.1): four lanes of multiply and rotate over 32-byte stripes,
//! about 8 bytes a cycle. It finds damage, not forgery. [`crc32c`] is the Castagnoli CRC that TFRecord framing uses, by
//! table, eight bytes at a time (Kounavis and Berry, "A systematic approach to building high performance software-based
//! CRC generators", 2005).

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

#[inline]
fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

#[inline]
fn word64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// XXH64 with seed 0 of bytes that come in parts.
#[derive(Clone, Debug)]
pub struct Hasher64 {
    lanes: [u64; 4],
    total: u64,
    stripe: [u8; 32],
    filled: usize,
}

impl Default for Hasher64 {
    fn default() -> Self {
        Self::new()
    }
}

impl Hasher64 {
    /// The hasher of nothing yet.
    pub fn new() -> Self {
        Self { lanes: [P1.wrapping_add(P2), P2, 0, 0u64.wrapping_sub(P1)], total: 0, stripe: [0; 32], filled: 0 }
    }

    fn consume(lanes: &mut [u64; 4], stripe: &[u8]) {
        for (lane, word) in lanes.iter_mut().zip(stripe.chunks_exact(8)) {
            *lane = round(*lane, word64(word));
        }
    }

    /// Adds `bytes`. How the whole is cut into calls does not matter.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if self.filled > 0 {
            let take = bytes.len().min(32 - self.filled);
            self.stripe[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
            self.filled += take;
            bytes = &bytes[take..];
            if self.filled < 32 {
                return;
            }
            Self::consume(&mut self.lanes, &self.stripe);
        }
        let mut stripes = bytes.chunks_exact(32);
        for stripe in stripes.by_ref() {
            Self::consume(&mut self.lanes, stripe);
        }
        let rest = stripes.remainder();
        self.stripe[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// The hash of everything added so far.
    pub fn finish(&self) -> u64 {
        let [a, b, c, d] = self.lanes;
        let mut hash = if self.total >= 32 {
            let joined = a.rotate_left(1);
            let joined = joined.wrapping_add(b.rotate_left(7)).wrapping_add(c.rotate_left(12));
            let joined = joined.wrapping_add(d.rotate_left(18));
            self.lanes.iter().fold(joined, |h, &lane| (h ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4))
        } else {
            P5
        };
        hash = hash.wrapping_add(self.total);
        let mut rest = &self.stripe[..self.filled];
        while rest.len() >= 8 {
            hash = (hash ^ round(0, word64(rest))).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
            rest = &rest[8..];
        }
        if rest.len() >= 4 {
            let word = u64::from(u32::from_le_bytes(rest[..4].try_into().expect("four bytes")));
            hash = (hash ^ word.wrapping_mul(P1)).rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
            rest = &rest[4..];
        }
        for &byte in rest {
            hash = (hash ^ u64::from(byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(P2);
        hash = (hash ^ (hash >> 29)).wrapping_mul(P3);
        hash ^ (hash >> 32)
    }
}

/// XXH64 of `bytes` with seed 0.
pub fn hash64(bytes: &[u8]) -> u64 {
    let mut hasher = Hasher64::new();
    hasher.update(bytes);
    hasher.finish()
}

/// `TABLES[k][b]` is the CRC of byte `b` followed by `k` zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// CRC-32C (Castagnoli polynomial, reflected) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    let mut eights = bytes.chunks_exact(8);
    for eight in eights.by_ref() {
        let word = word64(eight) ^ u64::from(crc);
        crc = (0..8).fold(0, |sum, k| sum ^ TABLES[7 - k][(word >> (8 * k)) as usize & 0xFF]);
    }
    for &byte in eights.remainder() {
        crc = (crc >> 8) ^ TABLES[0][((crc ^ u32::from(byte)) & 0xFF) as usize];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the CRC catalogue and the vectors of RFC 3720, section B.4.
    #[test]
    fn crc_gives_the_published_answers() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46DD_794E);
    }

    /// Answers of the reference implementation.
    #[test]
    fn hash_gives_the_published_answers() {
        assert_eq!(hash64(b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(hash64(b"a"), 0xD24E_C4F1_A98C_6E5B);
        assert_eq!(hash64(b"abc"), 0x44BC_2CF5_AD77_0999);
        assert_eq!(hash64(b"Nobody inspects the spammish repetition"), 0xFBCE_A83C_8A37_8BF1);
    }

    #[test]
    fn hash_does_not_depend_on_how_the_bytes_come() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * i) as u8).collect();
        let whole = hash64(&bytes);
        for part in [1, 7, 31, 32, 33, 64, 999] {
            let mut hasher = Hasher64::new();
            bytes.chunks(part).for_each(|chunk| hasher.update(chunk));
            assert_eq!(hasher.finish(), whole, "in parts of {part}");
        }
    }
}
