//! Data loader on one thread, in tokens/s: plans and shuffles instances, reads tokens from the shards, masks, batches.
//!
//!     ALBERT_DATA=shards ALBERT_TOKENIZER=tokenizer.json cargo bench -p albert-benches --bench loader
//!
//! ALBERT_DATA is a folder written by `albert data build`; without it, the bench builds shards from the program's
//! built-in text, with a SentencePiece model. An iteration is the first two epochs, including planning, with the
//! default masking and limits (512 tokens a sequence, 4096 a batch) and with those of short sequences (128, 1024). In
//! training, `Prefetch` runs the same code on a separate thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use albert::data::{
    self, Batch, CorpusSettings, Cursor, DataSettings, Dataset, Sampler, Side, Source, SplitSettings, Vocabulary,
};
use albert::tokenizer::Tokenizer;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::Communicator;

/// Runs two epochs; returns their number of tokens.
fn two_epochs(sampler: &mut Sampler, batch: &mut Batch) -> u64 {
    sampler.seek(Cursor::default()).expect("the first instance is there");
    let mut tokens = 0;
    while sampler.cursor().epoch < 2 {
        sampler.fill(batch);
        tokens += batch.tokens() as u64;
    }
    tokens
}

fn loading(criterion: &mut Criterion) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file =
        std::env::var_os("ALBERT_TOKENIZER").map_or(root.join("tests/golden/tokenizer/spiece.model"), PathBuf::from);
    let tokenizer = Tokenizer::load(&file).expect("ALBERT_TOKENIZER is a tokenizer");
    let vocabulary = Arc::new(Vocabulary::of(&tokenizer).expect("the tokenizer has pieces"));
    let folder = std::env::var_os("ALBERT_DATA").map_or_else(
        || {
            let folder = std::env::temp_dir().join(format!("albert-loader-{}", std::process::id()));
            let text = vec![Source::File(root.join("cli/data/public_domain.txt"))];
            let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
            data::build(text, &folder, &corpus, &split, &tokenizer, &Communicator::default())
                .expect("the text is long enough for shards");
            folder
        },
        PathBuf::from,
    );
    let dataset = Dataset::open(&folder, &vocabulary).expect("ALBERT_DATA was built with ALBERT_TOKENIZER");
    let mut group = criterion.benchmark_group("loader");
    group.sample_size(10);
    for (sequence, tokens) in [(512, 4096), (128, 1024)] {
        let mut settings = DataSettings::default();
        settings.instances.max_sequence_length = sequence;
        settings.batch.max_tokens = tokens;
        let shards = Arc::clone(dataset.side(Side::Train));
        let mut sampler =
            Sampler::new(shards, Arc::clone(&vocabulary), &settings, 1).expect("the documents contain sentence pairs");
        let mut batch = Batch::new(&settings);
        group.throughput(Throughput::Elements(two_epochs(&mut sampler, &mut batch)));
        group.bench_function(format!("sequences of {sequence}"), |bench| {
            bench.iter(|| two_epochs(&mut sampler, &mut batch));
        });
    }
    group.finish();
    if std::env::var_os("ALBERT_DATA").is_none() {
        std::fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
    }
}

criterion_group!(benches, loading);
criterion_main!(benches);
