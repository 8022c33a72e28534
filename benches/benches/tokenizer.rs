//! Encoding of prose on one thread, in MB/s, with a SentencePiece model or a tokenizer.json.
//!
//!     ALBERT_TEXT=corpus.txt ALBERT_TOKENIZERS=spiece.model:tokenizer.json cargo bench -p albert-benches --bench tokenizer
//!
//! The first 5 MB of the text are encoded line by line; without ALBERT_TEXT, the program's built-in text. `plain` is
//! `Tokenizer::encode_into`, `memo` is `Encoder`, which caches words, `offsets` also returns byte offsets.

use std::path::{Path, PathBuf};

use albert::tokenizer::{Encoder, Tokenizer};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn encoding(criterion: &mut Criterion) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::env::var_os("ALBERT_TEXT").map_or(root.join("cli/data/public_domain.txt"), PathBuf::from);
    let files = std::env::var("ALBERT_TOKENIZERS")
        .unwrap_or_else(|_| root.join("tests/golden/tokenizer/spiece.model").display().to_string());
    let mut bytes = std::fs::read(&text).expect("ALBERT_TEXT can be read");
    bytes.truncate(5_000_000);
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    for file in files.split(':') {
        let tokenizer = Tokenizer::load(Path::new(file)).expect("ALBERT_TOKENIZERS are tokenizers");
        let mut group = criterion.benchmark_group(file);
        group.throughput(Throughput::Bytes(text.len() as u64)).sample_size(10);
        let mut ids = Vec::new();
        group.bench_function("plain", |bench| {
            bench.iter(|| {
                ids.clear();
                lines.iter().for_each(|line| tokenizer.encode_into(line, &mut ids).unwrap());
                ids.len()
            });
        });
        group.bench_function("memo", |bench| {
            bench.iter(|| {
                ids.clear();
                let mut encoder = Encoder::new(&tokenizer);
                lines.iter().for_each(|line| encoder.encode_into(line, &mut ids).unwrap());
                ids.len()
            });
        });
        group.bench_function("offsets", |bench| {
            bench.iter(|| {
                lines.iter().map(|line| tokenizer.encode_with_offsets(line).unwrap().ids.len()).sum::<usize>()
            });
        });
        group.finish();
    }
}

criterion_group!(benches, encoding);
criterion_main!(benches);
