//! XXH64: the 64-bit hash that guards shard files and recognises equal documents.
//!
//! Four lanes take 8 bytes each of every 32-byte stripe, `lane = rotl(lane + word * P2, 31) * P1`; the lanes are merged
//! and avalanched at the end. It reads about 8 bytes a cycle, so checking a shard costs no more than reading it from
//! memory. Any change of one bit changes the hash but for a chance of about 2^-64.
//!
//! Source: Yann Collet's xxHash specification, XXH64 with seed 0. Not cryptographic: it finds accidents, not attacks.

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;
const STRIPE: usize = 32;

/// A hash that is fed piece by piece; how the bytes are cut into pieces does not change it.
#[derive(Clone, Debug)]
pub struct Xxh64 {
    lanes: [u64; 4],
    pending: [u8; STRIPE],
    pending_len: usize,
    total: u64,
}

impl Default for Xxh64 {
    fn default() -> Self {
        let lanes = [P1.wrapping_add(P2), P2, 0, 0u64.wrapping_sub(P1)];
        Self { lanes, pending: [0; STRIPE], pending_len: 0, total: 0 }
    }
}

impl Xxh64 {
    /// Adds `bytes` to what is hashed.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if self.pending_len > 0 {
            let take = bytes.len().min(STRIPE - self.pending_len);
            self.pending[self.pending_len..self.pending_len + take].copy_from_slice(&bytes[..take]);
            self.pending_len += take;
            bytes = &bytes[take..];
            if self.pending_len < STRIPE {
                return;
            }
            let stripe = self.pending;
            self.lanes = absorb(self.lanes, &stripe);
            self.pending_len = 0;
        }
        let whole = bytes.len() / STRIPE * STRIPE;
        self.lanes = absorb(self.lanes, &bytes[..whole]);
        let rest = &bytes[whole..];
        self.pending[..rest.len()].copy_from_slice(rest);
        self.pending_len = rest.len();
    }

    /// The hash of everything added so far.
    pub fn digest(&self) -> u64 {
        let [a, b, c, d] = self.lanes;
        let mut hash = if self.total >= STRIPE as u64 {
            let sum = a
                .rotate_left(1)
                .wrapping_add(b.rotate_left(7))
                .wrapping_add(c.rotate_left(12))
                .wrapping_add(d.rotate_left(18));
            self.lanes.iter().fold(sum, |h, &lane| (h ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4))
        } else {
            P5
        };
        hash = hash.wrapping_add(self.total);
        let (words, rest) = self.pending[..self.pending_len].as_chunks::<8>();
        for word in words {
            hash = (hash ^ round(0, u64::from_le_bytes(*word))).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        }
        let (halves, rest) = rest.as_chunks::<4>();
        for half in halves {
            let word = u64::from(u32::from_le_bytes(*half));
            hash = (hash ^ word.wrapping_mul(P1)).rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        }
        for &byte in rest {
            hash = (hash ^ u64::from(byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(P2);
        hash = (hash ^ (hash >> 29)).wrapping_mul(P3);
        hash ^ (hash >> 32)
    }
}

/// The hash of `bytes`.
pub fn xxh64(bytes: &[u8]) -> u64 {
    let mut hash = Xxh64::default();
    hash.update(bytes);
    hash.digest()
}

fn absorb(mut lanes: [u64; 4], stripes: &[u8]) -> [u64; 4] {
    let (words, rest) = stripes.as_chunks::<8>();
    debug_assert!(rest.is_empty() && words.len() % 4 == 0);
    for stripe in words.chunks_exact(4) {
        for (lane, word) in lanes.iter_mut().zip(stripe) {
            *lane = round(*lane, u64::from_le_bytes(*word));
        }
    }
    lanes
}

#[inline]
fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_answers() {
        let long = b"Nobody inspects the spammish repetition";
        for (text, expected) in [
            (&b""[..], 0xEF46_DB37_51D8_E999),
            (b"a", 0xD24E_C4F1_A98C_6E5B),
            (b"abc", 0x44BC_2CF5_AD77_0999),
            (long, 0xFBCE_A83C_8A37_8BF1),
        ] {
            assert_eq!(xxh64(text), expected, "of {:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn does_not_depend_on_how_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..300u32).map(|i| (i * 7 + i / 13) as u8).collect();
        for len in [1, 31, 32, 33, 63, 64, 65, 299, 300] {
            let whole = xxh64(&bytes[..len]);
            for cut in 1..len {
                let mut hash = Xxh64::default();
                hash.update(&bytes[..cut]);
                hash.update(&bytes[cut..len]);
                assert_eq!(hash.digest(), whole, "length {len} cut at {cut}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_changes_it() {
        let bytes: Vec<u8> = (0..97u32).map(|i| (i * 31 + 5) as u8).collect();
        let whole = xxh64(&bytes);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(xxh64(&flipped), whole, "bit {bit}");
        }
    }
}
