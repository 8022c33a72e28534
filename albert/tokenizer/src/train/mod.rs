//! Vocabulary trainer: lines of text to pieces with log-probabilities.
//!
//! ```text
//! lines ─ clean ─> word counts ─ cut at changes of script ─> segment counts          (count.rs)
//!       ─ sorted suffixes ─> seed pieces, log-probability ~ frequency x length        (seeds.rs)
//!       ─ repeat: EM, EM, drop the pieces of least loss, keep 3/4          ─> 1.1 V   (lattice.rs, prune.rs)
//!       ─ required characters and the best of the rest ─> V pieces, best first
//! ```
//!
//! No valid piece contains two scripts, or a word mark except at its start, so words are split at both without changing a
//! segmentation: a few hundred thousand distinct segments represent a corpus, and the cost of training depends on them, not on
//! the length of the text. All text is used; SentencePiece samples sentences.
//!
//! Results depend only on the multiset of lines and on the settings, not on threads or hash tables: counts are integers,
//! segments and pieces are sorted by bytes, sums over segments are computed in chunks that depend only on the segments and
//! are added in order, and equal scores are ordered by bytes.
//!
//! Sources: Kudo 2018, section 3.2; SentencePiece's unigram trainer for the order of steps and the constants.
//! Differences from it: seeds also come from words that are always followed by a space, and by default no piece ends
//! in a digit and a comma (see [`TrainerConfig::digit_comma_pieces`]).

mod count;
mod lattice;
mod losses;
mod prune;
mod seeds;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::trie::Trie;
use super::vocabulary::{Piece, PieceKind, SPECIAL_PIECES};
use super::{Cleaning, Tokenizer, TokenizerError, WORD_MARK};
pub use count::WordCounts;
use lattice::Lattices;
pub use losses::{Loss, LossKind};

/// Count of each key.
type Counts<K> = FxHashMap<K, u64>;

/// Settings of the trainer. The defaults are those of the released English vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerConfig {
    /// Vocabulary size V, including special pieces.
    pub vocab_size: usize,
    /// Share of all characters that must be pieces; the rarest characters are unknown.
    pub character_coverage: f64,
    /// Maximum length of a piece in characters, including the word mark.
    pub max_piece_length: usize,
    /// Maximum number of seed pieces.
    pub seed_pieces: usize,
    /// Share of pieces kept by a round of pruning.
    pub shrinking_factor: f64,
    /// EM iterations between two rounds of pruning.
    pub sub_iterations: usize,
    /// Longer lines (in bytes) are skipped and counted.
    pub max_line_bytes: usize,
    /// True if every digit is a separate piece.
    pub split_digits: bool,
    /// True if pieces such as `▁2010,` may be learned. The encoder splits them (as the released code does), so they would
    /// waste ids; the released vocabulary has 141 of them.
    pub digit_comma_pieces: bool,
    /// Symbols that are always separate pieces, in the order of their ids, after the special pieces.
    pub user_defined_symbols: Vec<String>,
    /// Cleaning in training and encoding.
    pub cleaning: Cleaning,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            vocab_size: 30_000,
            character_coverage: 0.99995,
            max_piece_length: 16,
            seed_pieces: 1_000_000,
            shrinking_factor: 0.75,
            sub_iterations: 2,
            max_line_bytes: 4192,
            split_digits: false,
            digit_comma_pieces: false,
            user_defined_symbols: ["(", ")", "\"", "-", ".", "–", "£", "€"].map(String::from).to_vec(),
            cleaning: Cleaning::default(),
        }
    }
}

impl TrainerConfig {
    /// Checks every setting; [`train`] also does.
    ///
    /// # Errors
    /// [`TokenizerError::Setting`], which names the first one out of range.
    pub fn check(&self) -> Result<(), TokenizerError> {
        let fail = |name, value: String, expected| Err(TokenizerError::Setting { name, value, expected });
        if !(1..1 << 24).contains(&self.vocab_size) {
            return fail("vocab_size", self.vocab_size.to_string(), "expected 1 to 16777215");
        }
        if !(self.character_coverage > 0.0 && self.character_coverage <= 1.0) {
            return fail("character_coverage", self.character_coverage.to_string(), "expected more than 0, at most 1");
        }
        if !(1..=255).contains(&self.max_piece_length) {
            return fail("max_piece_length", self.max_piece_length.to_string(), "expected 1 to 255 characters");
        }
        if !(1..1 << 24).contains(&self.seed_pieces) {
            return fail("seed_pieces", self.seed_pieces.to_string(), "expected 1 to 16777215");
        }
        if !(self.shrinking_factor > 0.0 && self.shrinking_factor < 1.0) {
            return fail("shrinking_factor", self.shrinking_factor.to_string(), "expected more than 0, less than 1");
        }
        if !(1..=1000).contains(&self.sub_iterations) {
            return fail("sub_iterations", self.sub_iterations.to_string(), "expected 1 to 1000");
        }
        self.cleaning.check()?;
        let symbols = &self.user_defined_symbols;
        for (at, symbol) in symbols.iter().enumerate() {
            let taken = SPECIAL_PIECES.contains(&symbol.as_str()) || symbols[..at].contains(symbol);
            if taken || symbol.is_empty() || symbol.chars().any(|c| c == WORD_MARK || c == '\0' || c.is_whitespace()) {
                return fail(
                    "user_defined_symbols",
                    format!("{symbol:?}"),
                    "expected distinct symbols without white space, word marks or special pieces",
                );
            }
        }
        Ok(())
    }

    /// Special and user-defined pieces together.
    fn fixed_pieces(&self) -> usize {
        SPECIAL_PIECES.len() + self.user_defined_symbols.len()
    }
}

/// Progress of the trainer.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The text is read.
    Counted {
        /// Number of lines read, including skipped ones.
        lines: u64,
        /// Number of lines longer than [`TrainerConfig::max_line_bytes`].
        skipped: u64,
        /// Number of words in the remaining lines.
        words: u64,
        /// Number of distinct words.
        distinct: usize,
        /// Number of required characters.
        characters: usize,
    },
    /// Cleaning merges or changes many words of the text.
    Lost(Loss),
    /// Rare characters, outside the share [`TrainerConfig::character_coverage`], are unknown.
    Uncovered {
        /// The characters, most frequent first, with their counts.
        characters: Vec<(char, u64)>,
        /// Their share of the text's characters.
        share: f64,
    },
    /// Seed pieces are found.
    Seeded {
        /// Number of pieces.
        pieces: usize,
    },
    /// One EM iteration is done.
    Iterated {
        /// Number of rounds of pruning so far.
        round: usize,
        /// Number of remaining pieces.
        pieces: usize,
        /// Log-probability of the text before this iteration, in nats per word.
        log_likelihood_per_word: f64,
    },
    /// A round of pruning is done.
    Pruned {
        /// Number of rounds so far.
        round: usize,
        /// Number of remaining pieces.
        pieces: usize,
    },
}

/// Pieces in training, sorted by bytes; the word mark is a space.
#[derive(Debug, Clone, Default)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    scores: Vec<f64>,
}

impl Pieces {
    fn push(&mut self, text: &[u8], score: f64) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len() as u32);
        self.scores.push(score);
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn text(&self, id: usize) -> &[u8] {
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.bytes[start..self.ends[id] as usize]
    }

    fn trie(&self) -> Trie {
        let keys: Vec<(&[u8], u32)> = (0..self.len()).map(|id| (self.text(id), id as u32)).collect();
        Trie::new(&keys)
    }

    fn lowest_score(&self) -> f64 {
        self.scores.iter().copied().fold(0.0, f64::min)
    }

    /// Selects pieces with `keep`, in the same order; also returns the new id of each old one.
    fn keep(&self, keep: impl Fn(usize) -> bool) -> (Self, Vec<Option<u32>>) {
        let mut kept = Self::default();
        let new_ids = (0..self.len())
            .map(|id| {
                keep(id).then(|| {
                    kept.push(self.text(id), self.scores[id]);
                    kept.len() as u32 - 1
                })
            })
            .collect();
        (kept, new_ids)
    }
}

/// Trains a vocabulary on lines of text, on the threads of the current rayon pool.
///
/// `progress` is called from the calling thread after every step.
///
/// # Errors
/// A setting is out of range, there is no text, or the text is too small for the vocabulary size (the error contains the
/// maximum size).
pub fn train<I>(lines: I, config: &TrainerConfig, progress: impl FnMut(Progress)) -> Result<Tokenizer, TokenizerError>
where
    I: IntoIterator,
    I::Item: AsRef<str> + Sync,
{
    // Limits memory for an endless iterator.
    const BATCH: usize = 1 << 16;
    config.check()?;
    let mut words = WordCounts::default();
    let mut lines = lines.into_iter();
    loop {
        let batch: Vec<I::Item> = lines.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            break;
        }
        words.add(&batch, config);
    }
    train_on_words(words, config, progress)
}

/// As [`train`], on words counted with the same settings.
///
/// # Errors
/// As for [`train`].
pub fn train_on_words(
    words: WordCounts,
    config: &TrainerConfig,
    mut progress: impl FnMut(Progress),
) -> Result<Tokenizer, TokenizerError> {
    config.check()?;
    let losses = losses::find(&words.sample, words.lines, config.cleaning);
    let corpus = count::Corpus::new(words, config)?;
    progress(Progress::Counted {
        lines: corpus.lines,
        skipped: corpus.skipped,
        words: corpus.words,
        distinct: corpus.distinct_words,
        characters: corpus.characters.len(),
    });
    losses.into_iter().for_each(|loss| progress(Progress::Lost(loss)));
    if !corpus.uncovered.is_empty() {
        let sum = |counts: &mut dyn Iterator<Item = u64>| counts.sum::<u64>() as f64;
        let uncovered = sum(&mut corpus.uncovered.iter().map(|(_, count)| *count));
        let share = uncovered / (uncovered + sum(&mut corpus.character_counts.iter().copied()));
        progress(Progress::Uncovered { characters: corpus.uncovered.clone(), share });
    }
    expect_pieces(config, corpus.characters.len())?;
    let mut pieces = seeds::find(&corpus, config);
    progress(Progress::Seeded { pieces: pieces.len() });
    let mut lattices = Lattices::new(&corpus.segments, &pieces.trie());

    // As in SentencePiece, pruning stops 10 % above the size, and scores select the rest.
    let wanted = config.vocab_size + config.vocab_size / 10;
    let mut round = 0;
    loop {
        for _ in 0..config.sub_iterations {
            let (kept, log_likelihood) = iterate(&pieces, &mut lattices);
            pieces = kept;
            let log_likelihood_per_word = log_likelihood / corpus.words as f64;
            progress(Progress::Iterated { round, pieces: pieces.len(), log_likelihood_per_word });
        }
        if pieces.len() <= wanted {
            break;
        }
        let most = wanted.max((config.shrinking_factor * pieces.len() as f64) as usize);
        let keep = prune::choose(&pieces, &lattices, most);
        let (kept, new_ids) = pieces.keep(|id| keep[id]);
        lattices.rename(&new_ids);
        // No piece can be dropped: more rounds would change nothing.
        let stuck = kept.len() == pieces.len();
        pieces = kept;
        round += 1;
        progress(Progress::Pruned { round, pieces: pieces.len() });
        if stuck {
            break;
        }
    }
    finalize(&pieces, &corpus.characters, config)
}

/// Rejects a vocabulary without room for all characters.
fn expect_pieces(config: &TrainerConfig, characters: usize) -> Result<(), TokenizerError> {
    let (asked, special) = (config.vocab_size, config.fixed_pieces());
    let least = special + characters;
    if asked < least {
        let coverage = config.character_coverage;
        return Err(TokenizerError::TooFewPieces { asked, special, characters, coverage, least });
    }
    Ok(())
}

/// One EM iteration: expected counts, then new scores; also returns the log-likelihood of the text under the old scores.
fn iterate(pieces: &Pieces, lattices: &mut Lattices) -> (Pieces, f64) {
    const LEAST_EXPECTED: f64 = 0.5;
    let (expected, log_likelihood) = lattices.expected_counts(pieces);
    let (mut kept, new_ids) = pieces.keep(|id| expected[id] >= LEAST_EXPECTED);
    let counts: Vec<f64> = expected.into_iter().filter(|&count| count >= LEAST_EXPECTED).collect();
    let total: f64 = counts.iter().sum();
    // Digamma instead of log: variational Bayes with a sparse Dirichlet prior, which suppresses rare pieces.
    let log_total = digamma(total);
    kept.scores = counts.par_iter().map(|&count| digamma(count) - log_total).collect();
    lattices.rename(&new_ids);
    (kept, log_likelihood)
}

/// ψ(x) for x > 0: the recurrence ψ(x) = ψ(x+1) - 1/x up to x >= 7, then the asymptotic series at x - 1/2.
fn digamma(mut x: f64) -> f64 {
    let mut result = 0.0;
    while x < 7.0 {
        result -= 1.0 / x;
        x += 1.0;
    }
    let y = x - 0.5;
    let s = 1.0 / (y * y);
    result + libm::log(y) + s * (1.0 / 24.0 + s * (-7.0 / 960.0 + s * (31.0 / 8064.0 - s * 127.0 / 30720.0)))
}

/// Rounds to a negative multiple of 2⁻¹³. Sums of such scores are exact in f64, so equal segmentations are equal in every
/// program, and their decimals (at most 15 digits) are exact in the file. Scores change by at most 0.00006.
fn grid(score: f64) -> f64 {
    const STEPS: f64 = 8192.0;
    (score * STEPS).round().min(-1.0) / STEPS
}

/// Final vocabulary: fixed pieces, required characters, and the best of the rest, by descending score.
fn finalize(pieces: &Pieces, characters: &[char], config: &TrainerConfig) -> Result<Tokenizer, TokenizerError> {
    // A required character that EM dropped has a score just above the lowest.
    const STEP: f64 = 0.0001;
    let by_text: BTreeMap<&[u8], f64> = (0..pieces.len()).map(|id| (pieces.text(id), pieces.scores[id])).collect();
    let lowest = pieces.lowest_score();
    let mut missing = 0;
    let mut chosen: BTreeMap<Vec<u8>, f64> = BTreeMap::new();
    for character in characters {
        let text = character.to_string().into_bytes();
        let score = by_text.get(text.as_slice()).copied().unwrap_or_else(|| {
            missing += 1;
            lowest + STEP * f64::from(missing - 1)
        });
        chosen.insert(text, grid(score));
    }
    let mut ranked: Vec<usize> = (0..pieces.len()).filter(|&id| !chosen.contains_key(pieces.text(id))).collect();
    ranked.sort_by(|&a, &b| pieces.scores[b].total_cmp(&pieces.scores[a]).then(a.cmp(&b)));
    let places = config.vocab_size - config.fixed_pieces() - chosen.len();
    if places > ranked.len() {
        let most = config.fixed_pieces() + chosen.len() + ranked.len();
        return Err(TokenizerError::TooManyPieces { asked: config.vocab_size, most });
    }
    chosen.extend(ranked[..places].iter().map(|&id| (pieces.text(id).to_vec(), grid(pieces.scores[id]))));

    let mut normal: Vec<(Vec<u8>, f64)> = chosen.into_iter().collect();
    normal.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let special = SPECIAL_PIECES.iter().map(|&text| {
        let kind = if text == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
        Piece::new(text, 0.0, kind)
    });
    let symbols = config.user_defined_symbols.iter().map(|text| Piece::new(text, 0.0, PieceKind::UserDefined));
    let normal = normal.into_iter().map(|(text, score)| {
        let text = String::from_utf8(text).expect("segments are cut at characters");
        Piece::normal(text.replace(' ', "▁"), score)
    });
    Tokenizer::from_pieces(special.chain(symbols).chain(normal).collect(), config.cleaning)
}
