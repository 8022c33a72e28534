//! Statistics of a data folder and of the first training epoch, with an example.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

use serde::Serialize;

use super::batch::Batch;
use super::dataset::{BuildReport, Dataset, SourceCounts};
use super::error::DataError;
use super::masking::{MaskingStatistics, Span};
use super::sampler::Sampler;
use super::settings::{DataSettings, Objective};
use super::shards::Shards;
use super::split::Side;
use super::vocabulary::Vocabulary;

/// Maximum number of sources in the printed report.
const LISTED: usize = 20;

/// Statistics of one side of the split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideInspection {
    /// Side of the split.
    pub side: Side,
    /// Number of documents.
    pub documents: u64,
    /// Number of sentences.
    pub sentences: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Mean length of a sentence in tokens.
    pub mean_sentence: f64,
    /// Length of the longest sentence in tokens.
    pub longest_sentence: u64,
    /// Share of all tokens.
    pub share: f64,
}

/// Statistics of a training epoch, measured on its first sequences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochInspection {
    /// Instances in epoch 0.
    pub instances: u64,
    /// Share of label 1 (swapped, or from another document); `None` for the objective `none`.
    pub label_one: Option<f64>,
    /// Lone sentences dropped.
    pub skipped_sentences: u64,
    /// Share of the side's tokens in dropped lone sentences.
    pub skipped_share: f64,
    /// Lone sentences split in two.
    pub split_sentences: u64,
    /// Lone sentences paired with another document.
    pub random_documents: u64,
    /// Mean length of a sequence in tokens.
    pub mean_sequence: f64,
    /// Mean number of sequences in a batch.
    pub sequences_a_batch: f64,
    /// Mean number of tokens in a batch.
    pub tokens_a_batch: f64,
    /// Masking of the measured sequences.
    pub masking: MaskingStatistics,
    /// Share of predicted tokens (`masking.probability`).
    pub probability: f64,
    /// Cap on the predictions of a sequence (`masking.max_predictions`).
    pub max_predictions: usize,
    /// Smallest cap without effect on the longest sequence.
    pub uncapped_predictions: usize,
}

/// Result of [`inspect`]; its `Display` is a report for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Vocabulary size, V.
    pub vocab_size: usize,
    /// Both sides of the split.
    pub sides: [SideInspection; 2],
    /// Counts of each source.
    pub sources: Vec<SourceCounts>,
    /// Statistics of the build.
    pub report: BuildReport,
    /// The first epoch of training.
    pub epoch: EpochInspection,
    /// First sequence of the epoch, as original text and as model input.
    pub example: String,
}

/// Inspects `dataset` under `settings` and `seed`. Masking is measured on the first `sequences` sequences of the epoch (at
/// least one batch); `piece` returns the text of an id.
///
/// # Errors
/// As for [`Sampler::new`].
pub fn inspect<'p>(
    dataset: &Dataset,
    vocabulary: &Arc<Vocabulary>,
    settings: &DataSettings,
    seed: u64,
    sequences: usize,
    piece: impl Fn(u32) -> &'p str,
) -> Result<Inspection, DataError> {
    let total: u64 = Side::ALL.iter().map(|&side| dataset.side(side).tokens()).sum();
    let train = dataset.side(Side::Train);
    let mut sampler = Sampler::new(Arc::clone(train), Arc::clone(vocabulary), settings, seed)?;
    let counts = sampler.plan_counts();
    let example = example(sampler.clone(), vocabulary, settings, piece);
    let (mut batch, mut batches, mut measured, mut tokens) = (Batch::new(settings), 0u64, 0u64, 0u64);
    while batches == 0 || (measured < sequences as u64 && sampler.cursor().epoch == 0) {
        sampler.fill(&mut batch);
        batches += 1;
        measured += batch.sequences() as u64;
        tokens += batch.tokens() as u64;
    }
    let is_labeled = settings.instances.objective != Objective::None;
    let epoch = EpochInspection {
        instances: counts.instances,
        label_one: is_labeled.then(|| ratio(counts.label_one, counts.instances)),
        skipped_sentences: counts.skipped_sentences,
        skipped_share: ratio(counts.skipped_tokens, train.tokens()),
        split_sentences: counts.split_sentences,
        random_documents: counts.random_documents,
        mean_sequence: ratio(tokens, measured),
        sequences_a_batch: ratio(measured, batches),
        tokens_a_batch: ratio(tokens, batches),
        masking: sampler.masker().statistics().clone(),
        probability: settings.masking.probability,
        max_predictions: settings.masking.max_predictions,
        uncapped_predictions: settings.masking.share(settings.instances.max_sequence_length),
    };
    let index = dataset.index();
    Ok(Inspection {
        vocab_size: index.vocab_size,
        sides: Side::ALL.map(|side| inspect_side(dataset.side(side), total)),
        sources: index.sources.clone(),
        report: index.report.clone(),
        epoch,
        example,
    })
}

fn inspect_side(shards: &Shards, total: u64) -> SideInspection {
    let lengths = shards.walk().flat_map(|(_, bounds)| bounds.windows(2).map(|w| u64::from(w[1] - w[0])));
    let (sentences, tokens) = (u64::from(shards.sentences()), shards.tokens());
    SideInspection {
        side: shards.side(),
        documents: u64::from(shards.documents()),
        sentences,
        tokens,
        mean_sentence: ratio(tokens, sentences),
        longest_sentence: lengths.max().unwrap_or(0),
        share: ratio(tokens, total),
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The first sequence of the epoch: every span in brackets, original text and model input.
fn example<'p>(
    mut sampler: Sampler,
    vocabulary: &Vocabulary,
    settings: &DataSettings,
    piece: impl Fn(u32) -> &'p str,
) -> String {
    let mut settings = settings.clone();
    settings.batch.max_sequences = 1;
    sampler.limit_to_one_sequence();
    let mut batch = Batch::new(&settings);
    sampler.fill(&mut batch);
    let mut spans: Vec<Span> = sampler.masker().spans().to_vec();
    spans.sort_by_key(|span| span.start);

    let mut original = batch.ids.clone();
    for (&at, &label) in batch.masked_positions.iter().zip(&batch.masked_labels) {
        original[at as usize] = label;
    }
    let label = match (settings.instances.objective, batch.sop_labels.first()) {
        (Objective::Sop, Some(1)) => ", label 1: B comes before A in the text",
        (Objective::Nsp, Some(1)) => ", label 1: B is from another document",
        (_, Some(_)) => ", label 0: B follows A in the text",
        (_, None) => "",
    };
    let (tokens, predicted) = (batch.tokens(), batch.masked_labels.len());
    let mut out = format!("{tokens} tokens, {predicted} predicted in {} spans{label}\n", spans.len());
    let mut column = 0;
    let mut put = |word: &str, after_separator: bool| {
        let width = word.chars().count() + 1;
        if column + width > 100 || (after_separator && column > 0) {
            out.push('\n');
            column = 0;
        }
        if column > 0 {
            out.push(' ');
        }
        out.push_str(word);
        column += width;
    };
    let text = |ids: &[u32]| ids.iter().map(|&id| piece(id)).collect::<Vec<_>>().join(" ");
    let (mut at, mut is_after_separator) = (0, false);
    let mut next_span = spans.iter().peekable();
    while at < tokens {
        if let Some(span) = next_span.next_if(|span| span.start as usize == at) {
            let range = at..span.end as usize;
            put(&format!("[{} -> {}]", text(&original[range.clone()]), text(&batch.ids[range])), is_after_separator);
            at = span.end as usize;
            is_after_separator = false;
        } else {
            put(piece(batch.ids[at]), is_after_separator);
            is_after_separator = batch.ids[at] == vocabulary.specials().sep;
            at += 1;
        }
    }
    out
}

impl Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<9} {:>11} {:>12} {:>14} {:>7} {:>16} {:>9}",
            "split", "documents", "sentences", "tokens", "share", "tokens/sentence", "longest"
        )?;
        for side in &self.sides {
            writeln!(
                f,
                "{:<9} {:>11} {:>12} {:>14} {:>6.2}% {:>16.1} {:>9}",
                side.side.name(),
                side.documents,
                side.sentences,
                side.tokens,
                100.0 * side.share,
                side.mean_sentence,
                side.longest_sentence
            )?;
        }
        for source in self.sources.iter().take(LISTED) {
            let share = 100.0 * ratio(source.held_out_documents, source.documents);
            writeln!(
                f,
                "source {}: {} documents, {} tokens, {share:.2} % of the documents held out",
                source.name, source.documents, source.tokens
            )?;
        }
        if self.sources.len() > LISTED {
            writeln!(f, "... and {} more sources", self.sources.len() - LISTED)?;
        }
        write!(f, "{}", report_lines(&self.report))?;
        let epoch = &self.epoch;
        write!(f, "epoch: {} sequences of {:.1} tokens on average", epoch.instances, epoch.mean_sequence)?;
        if let Some(share) = epoch.label_one {
            write!(f, ", {:.2} % with label 1", 100.0 * share)?;
        }
        writeln!(f, "; batches of {:.1} sequences, {:.0} tokens", epoch.sequences_a_batch, epoch.tokens_a_batch)?;
        if epoch.skipped_sentences + epoch.split_sentences + epoch.random_documents > 0 {
            writeln!(
                f,
                "sentences without a partner: {} skipped ({:.2} % of the tokens), {} split, {} paired with another document",
                epoch.skipped_sentences,
                100.0 * epoch.skipped_share,
                epoch.split_sentences,
                epoch.random_documents
            )?;
        }
        write!(f, "{}", masking_lines(&epoch.masking))?;
        write!(f, "{}", cap_line(epoch))?;
        write!(f, "example: {}", self.example)?;
        writeln!(f)
    }
}

/// Lines of the report for the statistics of a build.
fn report_lines(report: &BuildReport) -> String {
    let mut out = String::new();
    let mut line = |count: u64, what: &str, places: &[String]| {
        if count > 0 {
            let more = if count as usize > places.len() { ", ..." } else { "" };
            let places = if places.is_empty() { String::new() } else { format!(": {}{more}", places.join(", ")) };
            writeln!(out, "{count} {what}{places}").expect("a string can be written to");
        }
    };
    line(report.duplicate_documents, "documents are copies of an earlier one", &[]);
    line(report.one_sentence_documents, "documents have one sentence", &report.one_sentence_places);
    line(report.cut_sentences, "sentences were too long and cut", &report.cut_places);
    line(report.empty_documents, "documents have no token", &[]);
    line(report.empty_sentences, "sentences have no token", &[]);
    line(report.repaired_lines, "lines had invalid UTF-8, replaced by U+FFFD", &[]);
    out
}

/// Line about sequences that the cap on predictions affects.
fn cap_line(epoch: &EpochInspection) -> String {
    let masking = &epoch.masking;
    if masking.capped == 0 {
        return String::new();
    }
    format!(
        "masking.max_predictions = {} keeps {:.1} % of the sequences below masking.probability = {:.0} %; {} or more would \
         keep none\n",
        epoch.max_predictions,
        100.0 * ratio(masking.capped, masking.sequences),
        100.0 * epoch.probability,
        epoch.uncapped_predictions
    )
}

fn masking_lines(masking: &MaskingStatistics) -> String {
    let spans: u64 = masking.spans.iter().sum();
    let shares: Vec<String> = masking.spans.iter().map(|&n| format!("{:.1}", 100.0 * ratio(n, spans))).collect();
    format!(
        "masking of {} sequences: {:.2} % of the tokens predicted; {:.1} % masked, {:.1} % kept, {:.1} % random; spans of \
         1 to {} words: {} %\n",
        masking.sequences,
        100.0 * ratio(masking.predicted, masking.tokens),
        100.0 * ratio(masking.masked, masking.predicted),
        100.0 * ratio(masking.kept, masking.predicted),
        100.0 * ratio(masking.random, masking.predicted),
        masking.spans.len(),
        shares.join(" / ")
    )
}
