//! Pruning: selects the pieces to keep.
//!
//! Without piece x, each of its occurrences would become the best segmentation a₁..aₖ of x:
//!
//! ```text
//! loss(x) = f(x) · ( log f(x)/F  -  Σᵢ log (f(aᵢ) + f(x)) / (F + f(x)·(k-1)) )        f = count in best segmentations
//! ```
//!
//! Pieces that no best segmentation uses are dropped, and pieces that are not their own best segmentation. Pieces
//! without a replacement are kept. All further pieces are kept by descending loss.
//!
//! Cost: one Viterbi search over all segments and one over each piece.
//! Source: Kudo 2018, section 3.2; SentencePiece for the closed form of the loss.

use rayon::prelude::*;

use super::Pieces;
use super::lattice::{Lattices, for_each_piece, is_start};
use crate::trie::Trie;

/// Decision about a piece.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Drop,
    Keep,
    /// Ranked by the loss of log-likelihood without it.
    Loss(f64),
}

/// Returns true for each piece to keep; about `most` are kept.
pub(super) fn choose(pieces: &Pieces, lattices: &Lattices, most: usize) -> Vec<bool> {
    let counts = lattices.best_path_counts(pieces);
    let total: f64 = counts.iter().sum();
    let trie = pieces.trie();
    let fates: Vec<Fate> = (0..pieces.len())
        .into_par_iter()
        .with_min_len(256)
        .map_init(Vec::new, |best, id| {
            if counts[id] == 0.0 {
                return Fate::Drop;
            }
            match alternative(pieces, &trie, id, best) {
                Alternative::None => Fate::Keep,
                Alternative::Better => Fate::Drop,
                Alternative::Pieces(parts) => {
                    let logarithm = libm::log(counts[id]) - libm::log(total);
                    let log_total = libm::log(total + counts[id] * (parts.len() as f64 - 1.0));
                    let instead: f64 = parts.iter().map(|&part| libm::log(counts[part] + counts[id]) - log_total).sum();
                    Fate::Loss(counts[id] * (logarithm - instead))
                }
            }
        })
        .collect();
    let mut keep: Vec<bool> = fates.iter().map(|&fate| fate == Fate::Keep).collect();
    let mut ranked: Vec<(f64, usize)> = fates
        .iter()
        .enumerate()
        .filter_map(|(id, &fate)| if let Fate::Loss(loss) = fate { Some((loss, id)) } else { None })
        .collect();
    ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let places = most.saturating_sub(keep.iter().filter(|&&keep| keep).count());
    for &(_, id) in ranked.iter().take(places) {
        keep[id] = true;
    }
    keep
}

/// Segmentation of a piece without itself.
enum Alternative {
    /// There is none: a character has no piece.
    None,
    /// Parts with a higher score than the piece.
    Better,
    /// Parts with these ids.
    Pieces(Vec<usize>),
}

/// Finds the best segmentation of piece `id` without itself; `best` is a scratch buffer.
fn alternative(pieces: &Pieces, trie: &Trie, id: usize, best: &mut Vec<(f64, usize, usize)>) -> Alternative {
    let text = pieces.text(id);
    let n = text.len();
    best.clear();
    best.resize(n + 1, (f64::NEG_INFINITY, 0, 0));
    best[0].0 = 0.0;
    for start in (0..n).filter(|&at| is_start(text[at])) {
        let base = best[start].0;
        if base == f64::NEG_INFINITY {
            continue;
        }
        for_each_piece(&text[start..], trie, |piece, _, bytes| {
            let piece = piece as usize;
            let score = base + pieces.scores[piece];
            if piece != id && score > best[start + bytes].0 {
                best[start + bytes] = (score, start, piece);
            }
        });
    }
    if best[n].0 == f64::NEG_INFINITY {
        return Alternative::None;
    }
    if best[n].0 > pieces.scores[id] {
        return Alternative::Better;
    }
    let mut parts = Vec::new();
    let mut end = n;
    while end > 0 {
        parts.push(best[end].2);
        end = best[end].1;
    }
    Alternative::Pieces(parts)
}
