//! Embeds texts and finds the nearest neighbor of each.
//!
//! `cargo run --release -p albert-model --example embed -- MODEL_FOLDER "first text" "second text" ...`
//!
//! Without arguments, a tiny model is trained first.
mod tiny;

use albert::{Device, embed::Embedder};
use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((folder, texts)) if texts.len() > 1 => nearest(Path::new(folder), texts).map(drop),
        _ => nearest(tiny::folder()?.path(), &tiny::SENTENCES.map(str::to_owned)).map(drop),
    }
}

/// Returns the index of the nearest neighbor of each text, by cosine.
pub fn nearest(folder: &Path, texts: &[String]) -> Result<Vec<usize>, Box<dyn Error>> {
    let mut embedder = Embedder::load(folder, None, Device::cpu()?)?;
    let embedded = embedder.embed(texts, true)?; // [N, H], rows of length 1
    let vectors: Vec<&[f32]> = embedded.vectors.chunks_exact(embedded.width).collect();
    let cosine = |a: usize, b: usize| vectors[a].iter().zip(vectors[b]).map(|(x, y)| x * y).sum::<f32>();
    let mut nearest = Vec::new();
    for text in 0..texts.len() {
        let others = (0..texts.len()).filter(|&other| other != text);
        let best =
            others.max_by(|&a, &b| cosine(text, a).total_cmp(&cosine(text, b))).ok_or("give two texts or more")?;
        println!("{:24} {:.3}  {}", texts[text], cosine(text, best), texts[best]);
        nearest.push(best);
    }
    Ok(nearest)
}
