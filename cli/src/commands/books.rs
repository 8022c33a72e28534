//! A classification task from the built-in text: to which of its books does a sentence belong?
//!
//! The book of a document follows from words in the whole document ([`MARKS`]); a document without them is skipped. The
//! input of the classifier is single sentences, usually without such a word, and few of them have labels: as in practice,
//! text is plentiful and labels are expensive.

use anyhow::{Context, Result};
use engine::io::{hash64, write_atomically};
use std::{collections::HashSet, fs, ops::RangeInclusive, path::Path};

/// Labels and the words that mark their documents, in order of precedence.
const MARKS: [(&str, &[&str]); 4] = [
    ("manual", &["SQLite", "SQL", "sqlite3_open", "database", "databases"]),
    ("novel", &["Mr", "Mrs", "Miss", "Sir", "Lady", "Captain", "Catherine"]),
    ("almanac", &["GDP", "economy", "economic", "independence", "1990s", "UN", "EU"]),
    ("scripture", &["God", "Lord", "LORD", "Yahweh", "Christ", "Jesus", "Israel", "Psalm"]),
];
/// Minimum number of marks in a document, and as a share of its sentences.
const LEAST_MARKS: usize = 2;
const MARKED_SHARE: f64 = 0.04;
/// Number of words of a sentence.
const WORDS: RangeInclusive<usize> = 8..=30;
/// Number of sentences of each label for training, for development, and the maximum for the test.
const LABELLED: usize = 50;
const TESTED: usize = 150;

/// A sentence, and the index of its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) text: String,
    label: usize,
}

impl Example {
    pub(super) fn label(&self) -> &'static str {
        MARKS[self.label].0
    }
}

/// Label of a document; `None` if its words do not determine it.
fn label_of(sentences: &[String]) -> Option<usize> {
    let least = (MARKED_SHARE * sentences.len() as f64).max(LEAST_MARKS as f64);
    MARKS.iter().position(|(_, marks)| {
        let words = sentences.iter().flat_map(|sentence| sentence.split(|c: char| !c.is_alphanumeric() && c != '_'));
        words.filter(|word| marks.contains(word)).count() as f64 >= least
    })
}

/// Draws at most `counts` examples of each label, one list for each count, from documents as lists of sentences. Each list
/// mixes labels and documents.
fn drawn<const N: usize>(documents: &[Vec<String>], counts: [usize; N]) -> [Vec<Example>; N] {
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    for document in documents {
        let Some(label) = label_of(document) else { continue };
        for sentence in document {
            let text = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
            if WORDS.contains(&text.split(' ').count()) && seen.insert(text.to_lowercase()) {
                all.push(Example { text, label });
            }
        }
    }
    all.sort_by_key(|example| hash64(example.text.as_bytes()));
    let mut lists = [(); N].map(|()| Vec::new());
    let mut taken = [0; MARKS.len()];
    for example in all {
        let at = &mut taken[example.label];
        let mut before = 0;
        let list = counts.iter().position(|count| {
            before += count;
            *at < before
        });
        *at += 1;
        if let Some(list) = list {
            lists[list].push(example);
        }
    }
    lists
}

/// Examples from the training documents for training and development, and from the held-out ones for the test.
pub(super) fn splits(training: &[Vec<String>], held_out: &[Vec<String>]) -> [Vec<Example>; 3] {
    let [train, dev] = drawn(training, [LABELLED, LABELLED]);
    let [test] = drawn(held_out, [TESTED]);
    [train, dev, test]
}

/// Writes the splits as `train.tsv`, `dev.tsv` and `test.tsv`.
pub(super) fn write(folder: &Path, splits: &[Vec<Example>; 3]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, examples) in ["train.tsv", "dev.tsv", "test.tsv"].into_iter().zip(splits) {
        write_atomically(folder.join(name), |out| {
            writeln!(out, "text\tlabel")?;
            examples.iter().try_for_each(|example| writeln!(out, "{}\t{}", example.text, example.label()))
        })?;
    }
    Ok(())
}

/// Accuracy of a bag of words on `test`: logistic regression on word occurrence, one label against the rest, trained by Adagrad.
pub(super) fn bag_of_words(train: &[Example], test: &[Example]) -> f64 {
    const EPOCHS: usize = 40;
    const RATE: f64 = 0.1;
    const BUCKETS: usize = 1 << 16;
    let buckets = |example: &Example| -> Vec<usize> {
        let lower = example.text.to_lowercase();
        let words = lower.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty());
        let unique: HashSet<usize> = words.map(|word| hash64(word.as_bytes()) as usize % BUCKETS).collect();
        let mut all: Vec<usize> = unique.into_iter().collect();
        all.sort_unstable();
        // The bias.
        all.push(BUCKETS);
        all
    };
    let rows: Vec<(Vec<usize>, usize)> = train.iter().map(|example| (buckets(example), example.label)).collect();
    let fitted = |label: usize| {
        let (mut weights, mut squares) = (vec![0.0f64; BUCKETS + 1], vec![1e-6f64; BUCKETS + 1]);
        for (row, own) in (0..EPOCHS).flat_map(|_| &rows) {
            let score = row.iter().map(|&at| weights[at]).sum::<f64>();
            let gradient = 1.0 / (1.0 + (-score).exp()) - f64::from(u8::from(*own == label));
            for &at in row {
                let slope = gradient + 1e-3 * weights[at];
                squares[at] += slope * slope;
                weights[at] -= RATE * slope / squares[at].sqrt();
            }
        }
        weights
    };
    let weights: Vec<Vec<f64>> = (0..MARKS.len()).map(fitted).collect();
    let is_right = |example: &&Example| {
        let row = buckets(example);
        let score = |label: usize| row.iter().map(|&at| weights[label][at]).sum::<f64>();
        (0..MARKS.len()).max_by(|&a, &b| score(a).total_cmp(&score(b))) == Some(example.label)
    };
    test.iter().filter(is_right).count() as f64 / test.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_labelled_by_their_words_and_sentences_by_their_document() {
        let document = |mark: &str, name: &str| -> Vec<String> {
            (0..300).map(|at| format!("{name} {at} says to {mark} five more words here.")).collect()
        };
        let all = [
            document("SQLite", "a"),
            document("Mrs", "b"),
            document("UN", "c"),
            document("God", "d"),
            document("no", "e"),
        ];
        let [train, dev, test] = splits(&all, &all[..1]);
        assert_eq!([train.len(), dev.len(), test.len()], [4 * LABELLED, 4 * LABELLED, TESTED]);
        for example in train.iter().chain(&dev).chain(&test) {
            let expected = ["manual", "novel", "almanac", "scripture"]["abcd".find(&example.text[..1]).unwrap()];
            assert_eq!(example.label(), expected, "{}", example.text);
        }
        assert!(train.iter().all(|example| !dev.contains(example)), "no sentence is in two splits");
        assert_eq!(splits(&all, &all[..1]), [train, dev, test]);
    }

    #[test]
    fn a_bag_of_words_learns_words_and_not_their_order() {
        let of = |text: &str, label| Example { text: text.into(), label };
        let by_word: Vec<Example> =
            (0..200).map(|at| of(["one day", "two days", "few nights", "no week"][at % 4], at % 4)).collect();
        assert_eq!(bag_of_words(&by_word, &by_word), 1.0);
        let by_order: Vec<Example> =
            (0..200).map(|at| of(if at % 2 == 0 { "one two" } else { "two one" }, at % 2)).collect();
        assert_eq!(bag_of_words(&by_order, &by_order), 0.5);
    }
}
