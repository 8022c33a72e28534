//! A task whose labels come from the text itself: are the words of a sentence in their order, or were they shuffled?
//!
//! Every sentence occurs once, in one of the two forms, so its set of words says nothing about the label: a bag of words is at
//! chance. First and last word keep their places, because a capital or a full stop elsewhere would give the answer away.

use anyhow::{Context, Result};
use engine::io::{hash64, write_atomically};
use std::{collections::HashSet, fs, ops::RangeInclusive, path::Path};

/// Labels of the sentences as written, and of the others.
pub(super) const LABELS: [&str; 2] = ["ordered", "scrambled"];
/// Words of a sentence.
const WORDS: RangeInclusive<usize> = 8..=30;
/// One sentence in so many is for development.
const DEV: usize = 12;

/// A sentence, and the index of its label in [`LABELS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) text: String,
    pub(super) label: usize,
}

/// The examples of some sentences, in an order that mixes documents; those `seen` before are left out.
pub(super) fn examples(sentences: &[String], seen: &mut HashSet<String>) -> Vec<Example> {
    let mut all = Vec::new();
    for sentence in sentences {
        let words: Vec<&str> = sentence.split_whitespace().collect();
        if !WORDS.contains(&words.len()) || !seen.insert(sentence.to_lowercase()) {
            continue;
        }
        let mut random = Random(hash64(sentence.as_bytes()));
        let label = random.below(2);
        let text = if label == 0 { Some(words.join(" ")) } else { scrambled(words, &mut random) };
        all.extend(text.map(|text| (random.next(), Example { text, label })));
    }
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, example)| example).collect()
}

/// The words in another order, but for the first and the last; `None` if all orders look the same.
fn scrambled(mut words: Vec<&str>, random: &mut Random) -> Option<String> {
    let before = words.clone();
    let inner = words.len() - 2;
    // A shuffle may return the order that was there.
    for _ in 0..8 {
        for last in (1..inner).rev() {
            words.swap(1 + last, 1 + random.below(last + 1));
        }
        if words != before {
            return Some(words.join(" "));
        }
    }
    None
}

/// Random numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

/// Examples of the training documents for training and development, and of the held-out ones for the test.
pub(super) fn splits(training: &[String], held_out: &[String]) -> [Vec<Example>; 3] {
    let mut seen = HashSet::new();
    let test = examples(held_out, &mut seen);
    let mut dev = examples(training, &mut seen);
    let train = dev.split_off(dev.len() / DEV);
    [train, dev, test]
}

/// Writes the splits as `train.tsv`, `dev.tsv` and `test.tsv`.
pub(super) fn write(folder: &Path, splits: &[Vec<Example>; 3]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, examples) in ["train.tsv", "dev.tsv", "test.tsv"].into_iter().zip(splits) {
        write_atomically(folder.join(name), |out| {
            writeln!(out, "text\tlabel")?;
            examples.iter().try_for_each(|Example { text, label }| writeln!(out, "{text}\t{}", LABELS[*label]))
        })?;
    }
    Ok(())
}

/// Share of `test` that a bag of words gets right: logistic regression on the words that occur, by Adagrad.
pub(super) fn bag_of_words(train: &[Example], test: &[Example]) -> f64 {
    const EPOCHS: usize = 12;
    const RATE: f64 = 0.05;
    const BUCKETS: usize = 1 << 16;
    let buckets = |example: &Example| -> Vec<usize> {
        let lower = example.text.to_lowercase();
        let words = lower.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty());
        let unique: HashSet<usize> = words.map(|word| hash64(word.as_bytes()) as usize % BUCKETS).collect();
        let mut all: Vec<usize> = unique.into_iter().collect();
        all.sort_unstable();
        all
    };
    let (mut weights, mut squares, mut bias) = (vec![0.0f64; BUCKETS], vec![1e-6f64; BUCKETS], 0.0f64);
    let rows: Vec<(Vec<usize>, f64)> = train.iter().map(|example| (buckets(example), example.label as f64)).collect();
    for _ in 0..EPOCHS {
        for (row, target) in &rows {
            let score = bias + row.iter().map(|&at| weights[at]).sum::<f64>();
            let gradient = 1.0 / (1.0 + (-score).exp()) - target;
            bias -= 0.1 * RATE * gradient;
            for &at in row {
                let slope = gradient + 1e-4 * weights[at];
                squares[at] += slope * slope;
                weights[at] -= RATE * slope / squares[at].sqrt();
            }
        }
    }
    let is_right = |example: &&Example| {
        let score = bias + buckets(example).iter().map(|&at| weights[at]).sum::<f64>();
        usize::from(score > 0.0) == example.label
    };
    test.iter().filter(is_right).count() as f64 / test.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("First w{at} w1 w2 w3 w4 w5 w6 w7 w8 last{at}.")).collect()
    }

    #[test]
    fn every_sentence_occurs_once_with_its_words_and_its_ends() {
        let mut all = sentences(400);
        all.push(all[0].clone());
        all.push("Too short.".into());
        all.push("A b b b b b b b b b c".into());
        let mut seen = HashSet::new();
        let found = examples(&all, &mut seen);
        assert!((399..=401).contains(&found.len()), "{}", found.len());
        let originals: HashSet<&str> = all.iter().map(String::as_str).collect();
        for Example { text, label } in &found {
            assert_eq!(originals.contains(text.as_str()), *label == 0, "{text}");
            let words: Vec<&str> = text.split(' ').collect();
            assert!(["First", "A"].contains(&words[0]), "{text}");
            assert!(text.ends_with('.') || text.ends_with('c'), "{text}");
        }
        let scrambled = found.iter().filter(|example| example.label == 1).count();
        assert!((150..=250).contains(&scrambled), "{scrambled}");
        assert_eq!(examples(&all, &mut HashSet::new()), found);
        assert!(examples(&all, &mut seen).is_empty());
    }

    #[test]
    fn a_bag_of_words_learns_words_and_not_their_order() {
        let of = |text: &str, label| Example { text: text.into(), label };
        let by_word: Vec<Example> =
            (0..200).map(|at| of(if at % 2 == 0 { "a good day" } else { "a bad day" }, at % 2)).collect();
        assert_eq!(bag_of_words(&by_word, &by_word), 1.0);
        let by_order: Vec<Example> =
            (0..200).map(|at| of(if at % 2 == 0 { "one two" } else { "two one" }, at % 2)).collect();
        assert_eq!(bag_of_words(&by_order, &by_order), 0.5);
    }
}
