//! Properties of the held-out evaluation, of the report, and of the path from English text to batches.

use std::collections::HashSet;
use std::sync::Arc;

use super::testing::{build_in, shards, text, vocabulary};
use super::*;
use crate::tokenizer::{Tokenizer, TrainerConfig, train};

const SIZE: usize = 400;

fn settings(objective: Objective) -> DataSettings {
    let mut settings = DataSettings::default();
    settings.instances.max_sequence_length = 64;
    settings.instances.objective = objective;
    settings.batch = BatchSettings { max_tokens: 640, max_sequences: 16, sequences_per_step: 0, lanes: 1 };
    settings
}

fn evaluation_set(shards: &Arc<Shards>, settings: &DataSettings) -> EvaluationSet {
    EvaluationSet::new(Arc::clone(shards), Arc::new(vocabulary(SIZE)), settings).unwrap()
}

fn all(set: &mut EvaluationSet) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut batch = Batch::new(set.settings());
    while set.fill(&mut batch) {
        batches.push(batch.clone());
    }
    assert_eq!(batch.tokens(), 0);
    batches
}

#[test]
fn every_evaluation_sees_the_same_batches() {
    let shards = shards(&text(1, SIZE as u32, 200, 12, 20), &vocabulary(SIZE));
    for objective in [Objective::Sop, Objective::Nsp, Objective::None] {
        let settings = settings(objective);
        let mut set = evaluation_set(&shards, &settings);
        let first = all(&mut set);
        assert_eq!(first.iter().map(Batch::sequences).sum::<usize>(), set.sequences());
        assert!(first.len() > 10);
        set.rewind();
        assert_eq!(all(&mut set), first);
        assert_eq!(all(&mut evaluation_set(&shards, &settings)), first);
        for batch in &first {
            assert!(batch.tokens() <= 640 && batch.sequences() <= 16);
        }
    }
}

#[test]
fn a_limit_takes_the_first_of_the_same_sequences() {
    let shards = shards(&text(2, SIZE as u32, 80, 12, 20), &vocabulary(SIZE));
    let mut settings = settings(Objective::Sop);
    settings.batch.max_sequences = 1;
    let whole = all(&mut evaluation_set(&shards, &settings));
    settings.evaluation.max_sequences = 10;
    assert_eq!(all(&mut evaluation_set(&shards, &settings)), whole[..10]);
    settings.evaluation.seed += 1;
    assert_ne!(all(&mut evaluation_set(&shards, &settings)), whole[..10]);
}

#[test]
fn sop_pairs_are_distinct_and_do_not_overlap() {
    // Every document three times, and lone sentences that training would split.
    let once = text(3, SIZE as u32, 60, 7, 20);
    let shards = shards(&[once.as_str(); 3].concat(), &vocabulary(SIZE));
    let mut settings = settings(Objective::Sop);
    settings.instances.lone_sentence = LoneSentence::Split;
    settings.instances.max_sequence_length = 512;
    settings.batch.max_tokens = 4096;
    settings.masking.mask_probability = 0.0;
    settings.masking.keep_probability = 1.0;
    let mut set = evaluation_set(&shards, &settings);
    let mut pairs = HashSet::new();
    let mut sentences = 0;
    for batch in all(&mut set) {
        for (bounds, &label) in batch.cu_seqlens.windows(2).zip(&batch.sop_labels) {
            let ids = &batch.ids[bounds[0] as usize + 1..bounds[1] as usize - 1];
            let middle = ids.iter().position(|&id| id == 3).unwrap();
            let (a, b) = (ids[..middle].to_vec(), ids[middle + 1..].to_vec());
            let ordered = if label == 0 { [a, b].concat() } else { [b, a].concat() };
            sentences += ordered.len();
            assert!(pairs.insert(ordered), "a pair comes twice");
        }
    }
    assert_eq!(pairs.len(), set.sequences());
    assert!(sentences as u64 <= shards.tokens() / 3, "{sentences} tokens of {}", shards.tokens() / 3);
    assert!(pairs.len() > 40, "{}", pairs.len());
}

#[test]
fn the_baseline_is_the_cross_entropy_under_training_frequencies() {
    let vocabulary = vocabulary(SIZE);
    let train = shards("6 6 6 8\n10 10\n", &vocabulary);
    let unigram = Unigram::of(&train, SIZE);
    let total = 6.0 + SIZE as f64;
    for (piece, count) in [(6, 3.0), (8, 1.0), (10, 2.0), (12, 0.0)] {
        let expected = -f64::ln((count + 1.0) / total);
        assert!((unigram.nats(piece) - expected).abs() < 1e-12, "piece {piece}");
    }
    let sum: f64 = (0..SIZE as u32).map(|piece| (-unigram.nats(piece)).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "probabilities sum to {sum}");

    let held_out = shards(&text(4, SIZE as u32, 50, 9, 20), &vocabulary);
    let unigram = Unigram::of(&shards(&text(5, SIZE as u32, 500, 9, 20), &vocabulary), SIZE);
    let mut set = evaluation_set(&held_out, &settings(Objective::Sop));
    let labels: Vec<u32> = all(&mut set).iter().flat_map(|b| b.masked_labels.clone()).collect();
    let expected = labels.iter().map(|&l| unigram.nats(l)).sum::<f64>() / labels.len() as f64;
    let baseline = set.baseline(&unigram);
    assert_eq!(baseline.all.count, labels.len() as u64);
    let nats = baseline.all.value().unwrap();
    assert!((nats - expected).abs() < 1e-12, "{nats} and {expected}");
    let share = baseline.hidden.count as f64 / baseline.all.count as f64;
    assert!((0.7..0.9).contains(&share), "{share} of the pieces are shown as [MASK]");
    // Word starts and continuations are uniform over about 200 pieces each, at odds of about 9 to 1.
    assert!((5.0..6.0).contains(&nats), "{nats}");
}

#[test]
fn an_evaluation_set_without_a_pair_says_what_to_do() {
    let vocabulary = vocabulary(SIZE);
    let lone = shards("6 8\n\n10 12\n\n14 16\n", &vocabulary);
    let error = |settings: &DataSettings| {
        EvaluationSet::new(Arc::clone(&lone), Arc::new(vocabulary.clone()), settings).unwrap_err().to_string()
    };
    let message = error(&settings(Objective::Sop));
    assert!(message.contains("none of its 3 documents has two sentences"), "{message}");
    let one = shards("6 8\n10\n", &vocabulary);
    let message = EvaluationSet::new(one, Arc::new(vocabulary.clone()), &settings(Objective::Nsp)).unwrap_err();
    assert!(message.to_string().contains("it has one document"), "{message}");
}

#[test]
fn the_report_counts_what_is_there() {
    let vocabulary = Arc::new(vocabulary(SIZE));
    let folder = tempfile::tempdir().unwrap();
    let source = format!("{}8 10\n\n", text(6, SIZE as u32, 120, 9, 20));
    let index = build_in(folder.path(), &[&source], &vocabulary);
    let dataset = Dataset::open(folder.path(), &vocabulary).unwrap();
    let pieces: Vec<String> = (0..SIZE).map(|id| format!("p{id}")).collect();
    for objective in [Objective::Sop, Objective::Nsp, Objective::None] {
        let settings = settings(objective);
        let piece = |id: u32| pieces[id as usize].as_str();
        let report = inspect(&dataset, &vocabulary, &settings, 7, 10_000, piece).unwrap();
        let sampler =
            Sampler::new(Arc::clone(dataset.side(Side::Train)), Arc::clone(&vocabulary), &settings, 7).unwrap();
        assert_eq!(report.epoch.instances, sampler.instances() as u64);
        assert_eq!(report.epoch.masking.sequences, report.epoch.instances);
        let sides = [&index.train, &index.held_out].map(|s| (s.documents, s.sentences, s.tokens));
        assert_eq!(report.sides.each_ref().map(|s| (s.documents, s.sentences, s.tokens)), sides);
        assert_eq!(report.epoch.label_one.is_some(), objective != Objective::None);
        if let Some(share) = report.epoch.label_one {
            assert!((0.3..0.7).contains(&share), "{share}");
        }
        // The example shows each piece of the first sequence, and masked pieces next to the model's input.
        assert!(report.example.contains("p2 ") && report.example.contains(" -> p"), "{}", report.example);
        assert_eq!(report.example.contains("label"), objective != Objective::None, "{}", report.example);
        let printed = report.to_string();
        for expected in ["train", "held_out", "documents have one sentence: 0.txt:", "% masked", "example: "] {
            assert!(printed.contains(expected), "{expected:?} is not in\n{printed}");
        }
        assert!(serde_json::to_string(&report).unwrap().contains("\"mean_sentence\""));
        assert!(!printed.contains("masking.max_predictions"), "{printed}");
        let mut capping = settings.clone();
        capping.masking.max_predictions = 2;
        let printed = inspect(&dataset, &vocabulary, &capping, 7, 10_000, piece).unwrap().to_string();
        let expected = "masking.max_predictions = 2 keeps ";
        assert!(printed.contains(expected) && printed.contains("below masking.probability = 15 %; "), "{printed}");
    }
}

#[test]
fn tokenizers_are_told_apart_by_their_fingerprints() {
    let text = include_str!("../../LICENSE-APACHE");
    let config = TrainerConfig { vocab_size: 400, ..Default::default() };
    let trained = |text: &str| train(text.lines(), &config, |_| {}).unwrap();
    let tokenizer = trained(text);
    let fingerprint = |tokenizer: &Tokenizer| Vocabulary::of(tokenizer).unwrap().fingerprint();
    assert_eq!(fingerprint(&tokenizer), fingerprint(&tokenizer.clone()));
    let other = trained(&text.replace("Licensor", "Grantor"));
    assert_ne!(fingerprint(&tokenizer), fingerprint(&other));
}
