//! Fills the masks of a text.
//!
//! `cargo run --release -p albert-model --example fill_mask -- MODEL_FOLDER "The capital of France is [MASK]."`
//!
//! Without arguments, a tiny model is trained first.
mod tiny;

use albert::{Device, fill_mask::MaskFiller};
use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [folder, text] => fill(Path::new(folder), text).map(drop),
        _ => fill(tiny::folder()?.path(), "the cat drinks [MASK]").map(drop),
    }
}

/// Returns the most probable piece of the first mask.
pub fn fill(folder: &Path, text: &str) -> Result<String, Box<dyn Error>> {
    let mut filler = MaskFiller::load(folder, Device::cpu()?)?;
    let masks = filler.fill(text, 5)?;
    println!("{text}");
    for candidates in &masks {
        for candidate in candidates {
            println!("  {:5.1} %  {}", 100.0 * candidate.probability, candidate.piece);
        }
    }
    Ok(masks[0][0].piece.clone())
}
