//! Writes the sample of recorded tensor core results that the tests of the simulator compare with.
//!
//! ```text
//! PTX_RECORDINGS=FOLDER cargo run -p ptx --example sample_recordings
//! ```
//!
//! FOLDER has a file `NAME.bin.xz` for each of [`NAMES`]: a header of six u32 (type, M, N, K, tiles, bytes of an element), then
//! A [tiles, M, K], B [tiles, N, K], and C and D = A·Bᵀ + C [tiles, M, N] in f32. Tile t has elements of kind t mod 10. The
//! sample has the first 20 tiles and 16 rows of each file, in the same form, one after the other. `xz` unpacks the files.

use std::{fs, path::Path, process::Command};

/// The files, in the order of the sample.
const NAMES: [&str; 11] = [
    "mma_m16n8k16_bf16",
    "mma_m16n8k16_f16",
    "mma_m16n8k8_tf32",
    "wgmma_m64n8k16_bf16",
    "wgmma_m64n8k16_bf16_areg",
    "wgmma_m64n8k16_f16",
    "wgmma_m64n8k64_bf16_chain",
    "mma_m16n8k32_e4m3",
    "mma_m16n8k32_e5m2",
    "wgmma_m64n8k32_e4m3",
    "wgmma_m64n8k32_e5m2",
];
const TILES: usize = 20;
const ROWS: usize = 16;

fn main() -> Result<(), String> {
    let folder = std::env::var("PTX_RECORDINGS").map_err(|_| "PTX_RECORDINGS is not set; expected a folder")?;
    let mut sample = Vec::new();
    for name in NAMES {
        let path = Path::new(&folder).join(format!("{name}.bin.xz"));
        let output = Command::new("xz").arg("-dc").arg(&path).output();
        let output = output.map_err(|error| format!("cannot run xz, which unpacks the recordings: {error}"))?;
        if !output.status.success() {
            return Err(format!("{}: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim()));
        }
        add(&mut sample, &output.stdout).ok_or_else(|| format!("{}: too short for its header", path.display()))?;
    }
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sim/tests/tensor_cores.bin");
    fs::write(&to, &sample).map_err(|error| format!("{}: {error}", to.display()))?;
    println!("{} bytes in {}", sample.len(), to.display());
    Ok(())
}

/// Appends the first tiles and rows of a recording.
fn add(sample: &mut Vec<u8>, mut rest: &[u8]) -> Option<()> {
    let (header, after) = rest.split_at_checked(24)?;
    rest = after;
    let [ty, m, n, k, tiles, bytes] =
        std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|b| header[4 * i + b])) as usize);
    for value in [ty, ROWS, n, k, TILES, bytes] {
        sample.extend((value as u32).to_le_bytes());
    }
    // Rows of a tile, and bytes of a row, of A, B, C and D.
    for (rows, row) in [(m, k * bytes), (n, k * bytes), (m, 4 * n), (m, 4 * n)] {
        let (part, after) = rest.split_at_checked(tiles * rows * row)?;
        rest = after;
        part.chunks_exact(rows * row).take(TILES).for_each(|tile| sample.extend(&tile[..rows.min(ROWS) * row]));
    }
    Some(())
}
