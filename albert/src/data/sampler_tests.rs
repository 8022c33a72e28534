//! Properties of instances and batches.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::testing::{SPECIALS, shards, text, try_build, vocabulary};
use super::*;

const SIZE: usize = 900;

fn settings(max_sequence_length: usize, objective: Objective) -> DataSettings {
    let mut settings = DataSettings::default();
    settings.instances.max_sequence_length = max_sequence_length;
    settings.instances.objective = objective;
    settings.batch =
        BatchSettings { max_tokens: 3 * max_sequence_length + 11, max_sequences: 7, sequences_per_step: 0, lanes: 1 };
    settings
}

/// Settings that mask nothing.
fn unmasked(mut settings: DataSettings) -> DataSettings {
    settings.masking.mask_probability = 0.0;
    settings.masking.keep_probability = 1.0;
    settings
}

fn sampler(shards: &Arc<Shards>, settings: &DataSettings, seed: u64) -> Sampler {
    Sampler::new(Arc::clone(shards), Arc::new(vocabulary(SIZE)), settings, seed).unwrap()
}

/// The batches of `epochs` epochs.
fn batches(sampler: &mut Sampler, settings: &DataSettings, epochs: u32) -> Vec<Batch> {
    let mut all = Vec::new();
    while sampler.cursor().epoch < epochs {
        let mut batch = Batch::new(settings);
        sampler.fill(&mut batch);
        all.push(batch);
    }
    all
}

/// One sequence of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sequence {
    a: Vec<u32>,
    b: Vec<u32>,
    label: u32,
    masked: Vec<(u32, u32)>,
}

impl Sequence {
    /// Both segments as in the text.
    fn in_order(&self) -> [&[u32]; 2] {
        if self.label == 0 { [&self.a, &self.b] } else { [&self.b, &self.a] }
    }
}

/// Splits a batch into sequences and checks its shape.
fn sequences(batch: &Batch) -> Vec<Sequence> {
    let bounds = &batch.cu_seqlens;
    assert_eq!((bounds[0], *bounds.last().unwrap() as usize), (0, batch.tokens()));
    assert_eq!((batch.segments.len(), batch.positions.len()), (batch.tokens(), batch.tokens()));
    assert_eq!(batch.masked_labels.len(), batch.masked_positions.len());
    assert!(batch.masked_positions.is_sorted_by(|a, b| a < b));
    let cut = |i: usize| {
        let range = bounds[i] as usize..bounds[i + 1] as usize;
        let (ids, segments) = (&batch.ids[range.clone()], &batch.segments[range.clone()]);
        assert!(batch.positions[range.clone()].iter().copied().eq(0..range.len() as u32));
        assert_eq!((ids[0], ids[ids.len() - 1]), (SPECIALS.cls, SPECIALS.sep));
        let middle = ids.iter().position(|&id| id == SPECIALS.sep).unwrap();
        assert!(segments[..=middle].iter().all(|&s| s == 0) && segments[middle + 1..].iter().all(|&s| s == 1));
        let b = if middle + 1 == ids.len() { vec![] } else { ids[middle + 1..ids.len() - 1].to_vec() };
        let masked = batch.masked_positions.iter().zip(&batch.masked_labels);
        let masked = masked.filter(|(at, _)| range.contains(&(**at as usize)));
        Sequence {
            a: ids[1..middle].to_vec(),
            b,
            label: batch.sop_labels.get(i).copied().unwrap_or(u32::MAX),
            masked: masked.map(|(&at, &label)| (at - bounds[i], label)).collect(),
        }
    };
    (0..batch.sequences()).map(cut).collect()
}

/// The documents of `shards` as runs of tokens.
fn documents(shards: &Shards) -> Vec<Vec<u32>> {
    let read = |document| {
        let (range, mut ids) = (shards.document(document), Vec::new());
        shards.append(range.start, range.len(), 0, 0, &mut ids);
        ids
    };
    (0..shards.documents()).map(read).collect()
}

fn find(haystack: &[u32], needle: &[u32]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

#[test]
fn batches_keep_to_the_budget_and_visit_each_instance_once() {
    let shards = shards(&text(1, SIZE as u32, 120, 12, 30), &vocabulary(SIZE));
    for (length, max_tokens, max_sequences, per_step) in
        [(8, 8, 100, 0), (64, 64, 1, 0), (64, 1000, 5, 0), (128, 500, 100, 12), (512, 2048, 64, 3)]
    {
        let mut settings = settings(length, Objective::Sop);
        settings.batch = BatchSettings { max_tokens, max_sequences, sequences_per_step: per_step, lanes: 1 };
        let capacity = BatchCapacity::of(&settings);
        let mut sampler = sampler(&shards, &settings, 5);
        let (mut at, mut in_step) = (Cursor::default(), 0);
        for batch in batches(&mut sampler, &settings, 2) {
            let sequences = sequences(&batch);
            assert_eq!(batch.start, at);
            assert!(!sequences.is_empty() && sequences.len() <= max_sequences && batch.tokens() <= max_tokens);
            assert!(batch.longest() <= length);
            assert!(
                sequences.len() <= capacity.sequences && batch.masked_labels.len() <= capacity.masked,
                "{} sequences, {} masked, {capacity:?}",
                sequences.len(),
                batch.masked_labels.len()
            );
            in_step += sequences.len();
            let is_new_epoch = batch.next.epoch > at.epoch;
            if per_step == 0 {
                assert!(batch.ends_step);
                in_step = 0;
            } else if batch.ends_step {
                assert!(in_step == per_step || is_new_epoch, "a step of {in_step} sequences, expected {per_step}");
                in_step = 0;
            }
            assert!(in_step < per_step.max(1), "a step of more than {per_step} sequences");
            if is_new_epoch {
                assert_eq!(batch.next, Cursor { epoch: at.epoch + 1, index: 0 });
            } else {
                assert_eq!(batch.next, Cursor { epoch: at.epoch, index: at.index + sequences.len() as u32 });
            }
            at = batch.next;
        }
    }
}

#[test]
fn resumed_at_any_cursor_it_gives_the_same_batches_and_a_cursor_of_other_data_is_refused() {
    let shards = shards(&text(2, SIZE as u32, 60, 9, 25), &vocabulary(SIZE));
    for objective in [Objective::Sop, Objective::Nsp, Objective::None] {
        let settings = settings(96, objective);
        let all = batches(&mut sampler(&shards, &settings, 8), &settings, 3);
        assert!(all.len() > 20);
        let mut resumed = sampler(&shards, &settings, 8);
        for (first, batch) in all.iter().enumerate() {
            resumed.seek(batch.start).unwrap();
            for expected in all[first..].iter().take(4) {
                let mut again = Batch::new(&settings);
                resumed.fill(&mut again);
                assert_eq!(&again, expected, "{objective:?}, resumed at {:?}", batch.start);
            }
        }
        let error = resumed.seek(Cursor { epoch: 1, index: 10_000 }).unwrap_err().to_string();
        assert!(error.starts_with("data cursor = 10000: expected less than the"), "{error}");
    }
}

#[test]
fn an_instance_does_not_depend_on_how_batches_are_cut() {
    let shards = shards(&text(3, SIZE as u32, 60, 9, 25), &vocabulary(SIZE));
    let run = |max_tokens, max_sequences, per_step| {
        let mut settings = settings(96, Objective::Sop);
        settings.batch = BatchSettings { max_tokens, max_sequences, sequences_per_step: per_step, lanes: 1 };
        let all = batches(&mut sampler(&shards, &settings, 8), &settings, 2);
        all.iter().flat_map(sequences).collect::<Vec<_>>()
    };
    let expected = run(96, 1, 0);
    for (max_tokens, max_sequences, per_step) in [(5000, 3, 0), (200, 50, 0), (1000, 1000, 10)] {
        assert!(run(max_tokens, max_sequences, per_step) == expected, "{max_tokens} {max_sequences} {per_step}");
    }
}

#[test]
fn an_instance_does_not_depend_on_how_shards_are_cut() {
    let (text, vocabulary) = (text(14, SIZE as u32, 150, 9, 25), vocabulary(SIZE));
    let run = |tokens_per_shard: usize, objective| {
        let folder = tempfile::tempdir().unwrap();
        let corpus = CorpusSettings { tokens_per_shard, ..Default::default() };
        let split = SplitSettings::default();
        let index = try_build(folder.path(), &[&text], &corpus, &split, &vocabulary).unwrap();
        let dataset = Dataset::open(folder.path(), &vocabulary).unwrap();
        let settings = settings(96, objective);
        let batches = batches(&mut sampler(dataset.side(Side::Train), &settings, 8), &settings, 2);
        (index.train.shards.len(), batches)
    };
    for objective in [Objective::Sop, Objective::Nsp, Objective::None] {
        let (one, expected) = run(1 << 20, objective);
        assert_eq!(one, 1);
        for (tokens_per_shard, least) in [(1, 130), (777, 5)] {
            let (shards, batches) = run(tokens_per_shard, objective);
            assert!(shards >= least, "{shards} shards of {tokens_per_shard} tokens");
            assert!(batches == expected, "{objective:?}, {shards} shards");
        }
    }
}

#[test]
fn seeds_and_epochs_differ() {
    let shards = shards(&text(4, SIZE as u32, 60, 9, 25), &vocabulary(SIZE));
    let settings = settings(96, Objective::Sop);
    let epoch = |seed, epoch| {
        let mut sampler = sampler(&shards, &settings, seed);
        sampler.seek(Cursor { epoch, index: 0 }).unwrap();
        let all = batches(&mut sampler, &settings, epoch + 1);
        all.iter().flat_map(sequences).collect::<HashSet<_>>()
    };
    let base = epoch(1, 0);
    for (other, name) in [(epoch(1, 1), "epoch"), (epoch(2, 0), "seed")] {
        let shared = base.intersection(&other).count();
        assert!(shared * 50 < base.len(), "{shared} of {} instances are the same under another {name}", base.len());
    }
}

#[test]
fn sop_pairs_are_consecutive_and_swapped_half_the_time() {
    let shards = shards(&text(5, SIZE as u32, 700, 14, 12), &vocabulary(SIZE));
    let documents = documents(&shards);
    let settings = unmasked(settings(64, Objective::Sop));
    let mut sampler = sampler(&shards, &settings, 3);
    let counts = sampler.plan_counts();
    let (mut ones, mut total, mut trimmed) = (0u64, 0u64, 0);
    for sequence in batches(&mut sampler, &settings, 1).iter().flat_map(sequences) {
        total += 1;
        ones += u64::from(sequence.label);
        let [first, second] = sequence.in_order();
        assert!(!first.is_empty() && !second.is_empty());
        let full = sequence.a.len() + sequence.b.len() == 61;
        // Trimming may remove tokens where the segments meet, so a trimmed pair need not be adjacent.
        let is_pair = |document: &Vec<u32>| match full {
            true => find(document, first).is_some_and(|at| find(&document[at + first.len()..], second).is_some()),
            false => find(document, &[first, second].concat()).is_some(),
        };
        assert!(documents.iter().any(is_pair), "not consecutive in any document: {sequence:?}");
        trimmed += usize::from(full);
    }
    assert!(trimmed > 50 && (trimmed as u64) < total, "{trimmed} of {total}");
    assert_eq!((counts.instances, counts.label_one), (total, ones));
    let error = (ones as f64 / total as f64 - 0.5).abs() / (0.25 / total as f64).sqrt();
    assert!(error < 4.0, "{ones} of {total} are swapped: {error:.1} standard errors from one half");
}

#[test]
fn every_sentence_is_used_at_most_once_an_epoch_and_the_rest_is_counted() {
    let shards = shards(&text(6, SIZE as u32, 300, 9, 20), &vocabulary(SIZE));
    for (objective, lone) in [
        (Objective::Sop, LoneSentence::Skip),
        (Objective::Sop, LoneSentence::Split),
        (Objective::None, LoneSentence::Skip),
    ] {
        let mut instances = InstanceSettings { objective, lone_sentence: lone, ..Default::default() };
        instances.max_sequence_length = 64;
        for epoch in 0..3 {
            let mut table = Vec::new();
            let counts = instances::plan_epoch(&shards, &instances, 4, epoch, |_| true, &mut table);
            let mut used = vec![0; shards.sentences() as usize];
            for instance in &table {
                for (first, count) in [(instance.a, instance.a_count), (instance.b, instance.b_count)] {
                    (first..first + u32::from(count)).for_each(|s| used[s as usize] += 1);
                }
            }
            assert!(used.iter().all(|&n| n <= 1), "{objective:?} {lone:?}");
            let unused = used.iter().filter(|&&n| n == 0).count() as u64;
            assert_eq!(unused, counts.skipped_sentences, "{objective:?} {lone:?}");
            assert_eq!(lone == LoneSentence::Skip && objective == Objective::Sop, unused > 20, "{unused}");
        }
    }
}

#[test]
fn lone_sentences_are_split_at_word_starts() {
    let text: String = text(7, SIZE as u32, 400, 1, 30);
    let (shards, vocabulary) = (shards(&text, &vocabulary(SIZE)), vocabulary(SIZE));
    let documents = documents(&shards);
    let mut settings = unmasked(settings(256, Objective::Sop));
    let error = Sampler::new(Arc::clone(&shards), Arc::new(vocabulary.clone()), &settings, 1).unwrap_err().to_string();
    assert!(error.contains("none of its 400 documents has two sentences"), "{error}");
    settings.instances.lone_sentence = LoneSentence::Split;
    let mut sampler = sampler(&shards, &settings, 1);
    assert_eq!(sampler.plan_counts().split_sentences, sampler.instances() as u64);
    let mut ones = 0;
    for sequence in batches(&mut sampler, &settings, 1).iter().flat_map(sequences) {
        let parts = sequence.in_order();
        let whole = parts.concat();
        assert!(documents.contains(&whole), "{sequence:?}");
        let has_inner_start = whole[1..].iter().any(|&id| vocabulary.is_word_start(id));
        assert!(vocabulary.is_word_start(parts[1][0]) || !has_inner_start, "{sequence:?}");
        ones += sequence.label;
    }
    assert!((130..270).contains(&ones), "{ones} of 400 swapped");
}

#[test]
fn nsp_negatives_come_from_other_documents_half_the_time() {
    let shards = shards(&text(8, SIZE as u32, 300, 14, 12), &vocabulary(SIZE));
    let documents = documents(&shards);
    let settings = unmasked(settings(64, Objective::Nsp));
    let mut sampler = sampler(&shards, &settings, 3);
    let (mut ones, mut total) = (0u32, 0u32);
    for sequence in batches(&mut sampler, &settings, 1).iter().flat_map(sequences) {
        let holders = |part: &[u32]| (0..documents.len()).filter(|&d| find(&documents[d], part).is_some()).collect();
        let [a, b]: [HashSet<usize>; 2] = [holders(&sequence.a), holders(&sequence.b)];
        assert!(!a.is_empty() && !b.is_empty());
        match sequence.label {
            0 => assert!(!a.is_disjoint(&b), "{sequence:?}"),
            // A short run may be in several documents.
            _ => assert!(a != b || a.len() > 1, "{sequence:?}"),
        }
        ones += sequence.label;
        total += 1;
    }
    let error = (f64::from(ones) / f64::from(total) - 0.5).abs() / (0.25 / f64::from(total)).sqrt();
    assert!(error < 4.0, "{ones} of {total}");
}

#[test]
fn released_settings_bring_the_defects_back() {
    let shards = shards(&text(9, SIZE as u32, 400, 3, 12), &vocabulary(SIZE));
    let released = DataSettings::released();
    assert_eq!(released.instances.lone_sentence, LoneSentence::RandomDocument);
    let sampler = sampler(&shards, &released, 3);
    let counts = sampler.plan_counts();
    assert!(counts.random_documents > 80, "{counts:?}");
    assert_eq!(counts.skipped_sentences, 0);
    let share = counts.label_one as f64 / counts.instances as f64;
    assert!(share > 0.6, "label 1 has a share of {share}");
}

#[test]
fn target_lengths_are_short_one_time_in_ten_and_drawn_as_asked() {
    // Documents of 60 sentences of one token each: chunk lengths are the targets.
    let text = format!("{}\n", "6\n".repeat(60)).repeat(1500);
    let vocabulary = vocabulary(SIZE);
    let shards = shards(&text, &vocabulary);
    for once in [false, true] {
        let mut instances = InstanceSettings { objective: Objective::None, ..Default::default() };
        instances.max_sequence_length = 22;
        instances.target_length_once_per_document = once;
        let mut table = Vec::new();
        instances::plan_epoch(&shards, &instances, 1, 0, |_| true, &mut table);
        let mut by_document: HashMap<u32, Vec<u16>> = HashMap::new();
        for instance in &table {
            // The last chunk of a document is the remainder.
            if instance.a % 60 + u32::from(instance.a_count) < 60 {
                by_document.entry(instance.a / 60).or_default().push(instance.a_count);
            }
        }
        let is_constant = by_document.values().filter(|counts| counts.iter().all(|c| *c == counts[0])).count();
        if once {
            assert_eq!(is_constant, by_document.len());
        } else {
            assert!(is_constant < by_document.len() - 150, "{is_constant}");
        }
        // First chunks are unbiased: no earlier chunk has influenced them.
        let first: Vec<u16> = table.iter().filter(|i| i.a % 60 == 0).map(|i| i.a_count).collect();
        assert_eq!(first.len(), 1500);
        let short = first.iter().filter(|&&n| n < 20).count() as f64;
        let expected = 1500.0 * 0.1 * 18.0 / 19.0;
        assert!((short - expected).abs() < 4.5 * expected.sqrt(), "{short} short ones, expected {expected}");
        assert!(first.iter().all(|n| (2..=20).contains(n)), "a target out of range");
        assert!(first.contains(&2) && first.contains(&19), "the ends of the range are never drawn");
    }
}

#[test]
fn objective_none_takes_whole_chunks_without_labels() {
    let shards = shards(&text(10, SIZE as u32, 100, 9, 20), &vocabulary(SIZE));
    let settings = unmasked(settings(64, Objective::None));
    let mut tokens = 0;
    for batch in batches(&mut sampler(&shards, &settings, 3), &settings, 1) {
        assert!(batch.sop_labels.is_empty());
        for sequence in sequences(&batch) {
            assert!(sequence.b.is_empty() && (1..=62).contains(&sequence.a.len()));
            tokens += sequence.a.len() as u64;
        }
    }
    assert!(tokens > shards.tokens() * 3 / 5 && tokens < shards.tokens(), "{tokens} of {}", shards.tokens());
}

#[test]
fn trimming_takes_from_both_ends_of_the_longer_segment() {
    let sentence = |from: u32| (0..40).map(|i| format!("{} ", from + 2 * i)).collect::<String>();
    let text: String = (0..400).map(|_| format!("{}\n{}\n\n", sentence(6), sentence(106))).collect();
    let shards = shards(&text, &vocabulary(SIZE));
    let mut settings = unmasked(settings(43, Objective::Sop));
    settings.instances.short_sequence_probability = 0.0;
    let (mut front, mut total) = (0, 0);
    for sequence in batches(&mut sampler(&shards, &settings, 3), &settings, 1).iter().flat_map(sequences) {
        assert_eq!((sequence.a.len(), sequence.b.len()), (20, 20));
        for (part, start) in
            [(&sequence.a, [6, 106][sequence.label as usize]), (&sequence.b, [106, 6][sequence.label as usize])]
        {
            front += (part[0] - start) / 2;
            total += 20;
        }
    }
    let error = (f64::from(front) / f64::from(total) - 0.5) / (0.25 / f64::from(total)).sqrt();
    assert!(error.abs() < 4.5, "{front} of {total} tokens were taken from the front");
}

#[test]
fn settings_out_of_range_are_refused_and_others_survive_toml() {
    let shards = shards(&text(13, SIZE as u32, 20, 9, 25), &vocabulary(SIZE));
    type Change = fn(&mut DataSettings);
    let changes: [(Change, &str); 8] = [
        (|s| s.instances.max_sequence_length = 7, "data.instances.max_sequence_length = 7"),
        (|s| s.instances.max_sequence_length = 40_000, "data.instances.max_sequence_length = 40000"),
        (|s| s.instances.short_sequence_probability = -0.5, "data.instances.short_sequence_probability = -0.5"),
        (|s| s.batch.max_tokens = 95, "data.batch.max_tokens = 95"),
        (|s| s.batch.max_sequences = 0, "data.batch.max_sequences = 0"),
        (|s| s.masking.probability = f64::NAN, "data.masking.probability = NaN"),
        (|s| s.masking.keep_probability = 0.3, "data.masking.mask_probability + keep_probability"),
        (|s| s.masking.ngram = 0, "data.masking.ngram = 0"),
    ];
    for (change, expected) in changes {
        let mut settings = settings(96, Objective::Sop);
        change(&mut settings);
        let error = Sampler::new(Arc::clone(&shards), Arc::new(vocabulary(SIZE)), &settings, 1).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let parse = toml::from_str::<DataSettings>;
    assert_eq!(parse("").unwrap(), DataSettings::default());
    let text = toml::to_string(&DataSettings::released()).unwrap();
    assert_eq!(parse(&text).unwrap(), DataSettings::released());
}
