//! Checksums: XXH64 for files of this program, masked CRC-32C for TensorFlow's formats. They find damage, not forgery.

use twox_hash::XxHash64;

/// XXH64 of `bytes` with seed 0.
pub fn hash64(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

/// CRC-32C of `bytes` as TFRecord and LevelDB store it: rotated and shifted, so that the CRC of bytes that contain CRCs stays
/// useful.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the CRC catalogue and vectors of RFC 3720, section B.4, before the mask.
    #[test]
    fn crc_gives_the_published_answers() {
        for (bytes, crc) in
            [(&b""[..], 0u32), (b"123456789", 0xE306_9283), (&[0; 32], 0x8A91_36AA), (&[0xFF; 32], 0x62A8_AB43)]
        {
            assert_eq!(masked_crc(bytes), crc.rotate_right(15).wrapping_add(0xa282_ead8));
        }
    }

    /// Answers of the reference implementation.
    #[test]
    fn hash_gives_the_published_answers() {
        assert_eq!(hash64(b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(hash64(b"a"), 0xD24E_C4F1_A98C_6E5B);
        assert_eq!(hash64(b"abc"), 0x44BC_2CF5_AD77_0999);
        assert_eq!(hash64(b"Nobody inspects the spammish repetition"), 0xFBCE_A83C_8A37_8BF1);
    }
}
