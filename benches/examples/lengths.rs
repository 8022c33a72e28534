//! Quantiles of the sequence lengths of an epoch, one per line, for `albert bench step --lengths-from`.
//!
//!     cargo run --release -p albert-benches --example lengths -- DATA TOKENIZER [quantiles 64] [limit 512]
//!
//! DATA is a folder written by `albert data build`. The i-th of n lengths is the quantile (i + 1/2)/n of the first epoch,
//! counted from 0, so that n sequences of these lengths are distributed as in a training run.

use albert::{
    data::{Batch, DataSettings, Dataset, Sampler, Vocabulary, split::Side},
    tokenizer::Tokenizer,
};
use anyhow::{Context, Result, ensure};
use std::{path::Path, sync::Arc};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |i: usize| arguments.get(i).context("lengths DATA TOKENIZER [quantiles 64] [limit 512]");
    let number = |i: usize, default| arguments.get(i).map_or(Ok(default), |text| text.parse::<usize>());
    let (quantiles, limit) = (number(2, 64)?, number(3, 512)?);
    ensure!(quantiles > 0, "0 quantiles: expected 1 or more");
    let tokenizer = Tokenizer::load(Path::new(given(1)?))?;
    let vocabulary = Arc::new(Vocabulary::of(&tokenizer)?);
    let dataset = Dataset::open(Path::new(given(0)?), &vocabulary)?;
    let mut settings = DataSettings::default();
    settings.instances.max_sequence_length = limit;
    settings.batch.max_tokens = settings.batch.max_tokens.max(limit);
    let mut sampler = Sampler::new(Arc::clone(dataset.side(Side::Train)), vocabulary, &settings, 12_345)?;
    let (mut batch, mut lengths) = (Batch::new(&settings), Vec::new());
    while sampler.cursor().epoch == 0 {
        sampler.fill(&mut batch);
        lengths.extend(batch.cu_seqlens.windows(2).map(|ends| (ends[1] - ends[0]) as usize));
    }
    lengths.sort_unstable();
    let tokens: usize = lengths.iter().sum();
    let (index, mean) = (dataset.index(), tokens as f64 / lengths.len() as f64);
    println!(
        "# Tokens of sentence pairs, [CLS] and [SEP] included: {quantiles} quantiles of {} sequences, {limit} at most,",
        lengths.len()
    );
    println!(
        "# {mean:.1} on average. Made by `cargo run --release -p albert-benches --example lengths -- DATA TOKENIZER {quantiles} {limit}`"
    );
    println!(
        "# from {} documents of {} tokens, vocabulary of {}.",
        index.train.documents, index.train.tokens, index.vocab_size
    );
    for i in 0..quantiles {
        println!("{}", lengths[(2 * i + 1) * lengths.len() / (2 * quantiles)]);
    }
    Ok(())
}
