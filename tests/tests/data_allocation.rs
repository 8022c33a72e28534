//! Warm batches are filled without a heap allocation of 4 KiB or more, with and without a prefetching thread, even across
//! ends of epochs.

use std::fmt::Write;
use std::sync::Arc;

use albert::data::{
    Batch, BatchSettings, CorpusSettings, DataSettings, Dataset, LoneSentence, Objective, Prefetch, Sampler, Side,
    Source, SplitSettings, Vocabulary, build_with,
};
use albert::tokenizer::SpecialIds;
use albert_tests::allocator::{Counting, large_requests};
use engine::Communicator;
use engine::philox::Stream;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn filling_a_warm_batch_makes_no_large_allocation() {
    let specials = SpecialIds { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };
    let vocabulary = Arc::new(Vocabulary::new((0..500).map(|id| id % 3 != 0).collect(), specials, b"").unwrap());
    let mut text = String::new();
    let mut stream = Stream::new(1, [0; 3]);
    for _ in 0..400 {
        for _ in 0..1 + stream.below(12) {
            (0..1 + stream.below(40)).for_each(|_| write!(text, "{} ", 5 + stream.below(495)).unwrap());
            text.push('\n');
        }
        text.push('\n');
    }
    let source = Source::Memory { name: "numbers".into(), text: text.into_bytes().into() };
    let folder = std::env::temp_dir().join(format!("albert-data-allocations-{}", std::process::id()));
    let encode = |text: &str, ids: &mut Vec<u32>| {
        ids.extend(text.split_whitespace().map(|n| n.parse::<u32>().unwrap()));
        Ok(())
    };
    let (corpus, split) = (CorpusSettings::default(), SplitSettings::default());
    build_with(vec![source], &folder, (&corpus, &split), &vocabulary, || encode, &Communicator::default()).unwrap();
    let dataset = Dataset::open(&folder, &vocabulary).unwrap();

    for (objective, lone_sentence) in [
        (Objective::Sop, LoneSentence::Skip),
        (Objective::Sop, LoneSentence::Split),
        (Objective::Nsp, LoneSentence::RandomDocument),
        (Objective::None, LoneSentence::Skip),
    ] {
        for ahead in [0, 2] {
            let mut settings = DataSettings::default();
            settings.instances.objective = objective;
            settings.instances.lone_sentence = lone_sentence;
            settings.batch = BatchSettings { max_tokens: 8192, max_sequences: 64, sequences_per_step: 0, lanes: 1 };
            let train = Arc::clone(dataset.side(Side::Train));
            let sampler = Sampler::new(train, Arc::clone(&vocabulary), &settings, 3).unwrap();
            let mut batches = Prefetch::new(sampler, ahead).unwrap();
            let mut batch = Batch::new(&settings);
            batches.fill(&mut batch);
            let mut tokens = 0;
            let (count, largest) = large_requests(|| {
                while batches.cursor().epoch < 5 {
                    batches.fill(&mut batch);
                    tokens += batch.tokens();
                }
            });
            assert!(tokens > 200_000, "{tokens}");
            assert_eq!(count, 0, "{objective:?}, {ahead} ahead: the largest request is {largest} bytes");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
