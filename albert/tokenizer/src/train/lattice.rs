//! Lattices of all segments: edges, expected counts (EM's E step), best paths.
//!
//! ```text
//! segment "cat":   0 ──c── 1 ──a── 2 ──t── 3        position = character
//!                  └───── ca ─────┘                  edge = piece | length in characters
//!
//! alpha[q] = Σ alpha[p]·P(piece)      beta[p] = Σ P(piece)·beta[q]      over edges p -> q
//! expected(piece) += count · alpha[p]·P(piece)·beta[q] / alpha[n]
//! ```
//!
//! Edges are found once, with the seed pieces; later rounds only remove pieces. Probabilities are multiplied directly,
//! without exp or log for each edge; if that underflows (a segment of hundreds of characters), the sums are recomputed
//! in logarithms. A character without a piece costs the lowest score - 10.
//!
//! Cost: 4 bytes an edge, a few nanoseconds an edge and E step.
//! Determinism: chunks are divided by number of positions, at most [`MAX_CHUNKS`] of them; each sums its segments in
//! order, and the sums of the chunks are added in order.

use rayon::prelude::*;

use super::Pieces;
use crate::lattice::UNKNOWN_PENALTY;
use crate::trie::Trie;

/// Each chunk requires 8 bytes a piece while counts are summed: 128 MB for a million seed pieces.
const MAX_CHUNKS: usize = 16;
/// Minimum number of positions of a chunk.
const CHUNK_POSITIONS: usize = 1 << 14;

/// Piece in the upper 24 bits, length in characters in the lower 8.
#[derive(Clone, Copy)]
struct Edge(u32);

impl Edge {
    fn new(piece: u32, len: usize) -> Self {
        Self(piece << 8 | len as u32)
    }

    fn piece(self) -> usize {
        (self.0 >> 8) as usize
    }

    fn len(self) -> usize {
        (self.0 & 0xff) as usize
    }
}

/// A run of segments.
#[derive(Default)]
struct Chunk {
    /// Characters and count of each segment.
    segments: Vec<(u32, f64)>,
    /// For each position of each segment except the last, the end of its edges.
    edge_ends: Vec<u32>,
    edges: Vec<Edge>,
}

/// One segment of a chunk.
struct Lattice<'c> {
    count: f64,
    edge_ends: &'c [u32],
    first_edge: usize,
    edges: &'c [Edge],
}

impl Lattice<'_> {
    fn len(&self) -> usize {
        self.edge_ends.len()
    }

    /// Edges that start at position `p`.
    #[inline(always)]
    fn edges(&self, p: usize) -> &[Edge] {
        let start = if p == 0 { self.first_edge } else { self.edge_ends[p - 1] as usize };
        &self.edges[start..self.edge_ends[p] as usize]
    }
}

impl Chunk {
    fn new(segments: &[(Box<[u8]>, u64)], trie: &Trie) -> Self {
        let mut chunk = Self::default();
        for (text, count) in segments {
            let before = chunk.edge_ends.len();
            for start in (0..text.len()).filter(|&at| is_start(text[at])) {
                for_each_piece(&text[start..], trie, |piece, characters, _| {
                    chunk.edges.push(Edge::new(piece, characters));
                });
                chunk.edge_ends.push(u32::try_from(chunk.edges.len()).expect("a chunk has fewer than 2^32 edges"));
            }
            chunk.segments.push(((chunk.edge_ends.len() - before) as u32, *count as f64));
        }
        chunk
    }

    fn lattices(&self) -> impl Iterator<Item = Lattice<'_>> {
        let (mut position, mut first_edge) = (0, 0);
        self.segments.iter().map(move |&(len, count)| {
            let edge_ends = &self.edge_ends[position..][..len as usize];
            let lattice = Lattice { count, edge_ends, first_edge, edges: &self.edges };
            position += len as usize;
            first_edge = edge_ends.last().map_or(first_edge, |&end| end as usize);
            lattice
        })
    }

    fn rename(&mut self, new_ids: &[Option<u32>]) {
        let (mut read, mut written) = (0, 0);
        for end in &mut self.edge_ends {
            while read < *end as usize {
                let edge = self.edges[read];
                if let Some(piece) = new_ids[edge.piece()] {
                    self.edges[written] = Edge::new(piece, edge.len());
                    written += 1;
                }
                read += 1;
            }
            *end = written as u32;
        }
        self.edges.truncate(written);
    }
}

/// True if `byte` starts a UTF-8 character.
pub(super) fn is_start(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// Calls `each` with every piece at the start of `text`, shortest first, with its length in characters and in bytes.
pub(super) fn for_each_piece(text: &[u8], trie: &Trie, mut each: impl FnMut(u32, usize, usize)) {
    let mut node = trie.root();
    let mut characters = 0;
    for (at, &byte) in text.iter().enumerate() {
        let Some(child) = trie.step(node, byte) else { break };
        node = child;
        characters += usize::from(is_start(byte));
        if let Some(piece) = node.id() {
            each(piece, characters, at + 1);
        }
    }
}

/// Lattices of all segments.
pub(super) struct Lattices {
    chunks: Vec<Chunk>,
}

/// Probabilities or log-probabilities of pieces, and of an unknown character.
struct Weights {
    pieces: Vec<f64>,
    unknown: f64,
}

impl Lattices {
    pub(super) fn new(segments: &[(Box<[u8]>, u64)], trie: &Trie) -> Self {
        let bytes: usize = segments.iter().map(|(text, _)| text.len()).sum();
        let size = (bytes / MAX_CHUNKS + 1).max(CHUNK_POSITIONS);
        let mut cuts = vec![0];
        let mut filled = 0;
        for (index, (text, _)) in segments.iter().enumerate() {
            filled += text.len();
            if filled >= size {
                cuts.push(index + 1);
                filled = 0;
            }
        }
        cuts.push(segments.len());
        let chunks = cuts.par_windows(2).map(|cut| Chunk::new(&segments[cut[0]..cut[1]], trie)).collect();
        Self { chunks }
    }

    /// Removes the pieces without a new id and renumbers the remaining ones.
    pub(super) fn rename(&mut self, new_ids: &[Option<u32>]) {
        self.chunks.par_iter_mut().for_each(|chunk| chunk.rename(new_ids));
    }

    /// E step: expected count of each piece, and log-likelihood of all segments, both over all segmentations.
    pub(super) fn expected_counts(&self, pieces: &Pieces) -> (Vec<f64>, f64) {
        let unknown = pieces.lowest_score() - UNKNOWN_PENALTY;
        let logs = Weights { pieces: pieces.scores.clone(), unknown };
        let probabilities = Weights {
            pieces: pieces.scores.par_iter().map(|&score| libm::exp(score)).collect(),
            unknown: libm::exp(unknown),
        };
        let one = |chunk: &Chunk| {
            let mut sums = ForwardBackward { expected: vec![0.0; pieces.len()], ..Default::default() };
            for lattice in chunk.lattices() {
                if !sums.add(&lattice, &probabilities) {
                    sums.add_in_logarithms(&lattice, &logs);
                }
            }
            (sums.expected, sums.log_likelihood)
        };
        let parts: Vec<(Vec<f64>, f64)> = self.chunks.par_iter().map(one).collect();
        let expected =
            (0..pieces.len()).into_par_iter().map(|id| parts.iter().map(|(part, _)| part[id]).sum()).collect();
        (expected, parts.iter().map(|(_, log_likelihood)| log_likelihood).sum())
    }

    /// Count of each piece in the best segmentations.
    pub(super) fn best_path_counts(&self, pieces: &Pieces) -> Vec<f64> {
        let weights = Weights { pieces: pieces.scores.clone(), unknown: pieces.lowest_score() - UNKNOWN_PENALTY };
        let one = |chunk: &Chunk| {
            let mut counts = vec![0.0; pieces.len()];
            let mut best = Vec::new();
            for lattice in chunk.lattices() {
                add_best_path(&lattice, &weights, &mut best, &mut counts);
            }
            counts
        };
        let parts: Vec<Vec<f64>> = self.chunks.par_iter().map(one).collect();
        (0..pieces.len()).into_par_iter().map(|id| parts.iter().map(|part| part[id]).sum()).collect()
    }
}

fn add_best_path(
    lattice: &Lattice,
    weights: &Weights,
    best: &mut Vec<(f64, usize, Option<usize>)>,
    counts: &mut [f64],
) {
    let n = lattice.len();
    best.clear();
    best.resize(n + 1, (f64::NEG_INFINITY, 0, None));
    best[0].0 = 0.0;
    for p in 0..n {
        let base = best[p].0;
        let mut covered = false;
        for edge in lattice.edges(p) {
            let score = base + weights.pieces[edge.piece()];
            let to = &mut best[p + edge.len()];
            if score > to.0 {
                *to = (score, p, Some(edge.piece()));
            }
            covered |= edge.len() == 1;
        }
        if !covered && base + weights.unknown > best[p + 1].0 {
            best[p + 1] = (base + weights.unknown, p, None);
        }
    }
    let mut q = n;
    while q > 0 {
        let (_, p, piece) = best[q];
        if let Some(piece) = piece {
            counts[piece] += lattice.count;
        }
        q = p;
    }
}

/// Sums of one chunk, with buffers.
#[derive(Default)]
struct ForwardBackward {
    expected: Vec<f64>,
    log_likelihood: f64,
    alpha: Vec<f64>,
    beta: Vec<f64>,
}

impl ForwardBackward {
    fn reset(&mut self, n: usize, value: f64) {
        for values in [&mut self.alpha, &mut self.beta] {
            values.clear();
            values.resize(n + 1, value);
        }
    }

    /// Adds one segment, in plain probabilities; returns false and adds nothing if they underflow.
    fn add(&mut self, lattice: &Lattice, probabilities: &Weights) -> bool {
        /// Far above the smallest normal number (2e-308), so that underflowing terms are negligible.
        const LEAST: f64 = 1e-250;
        let n = lattice.len();
        self.reset(n, 0.0);
        let (alpha, beta) = (&mut self.alpha[..], &mut self.beta[..]);
        alpha[0] = 1.0;
        for p in 0..n {
            let from = alpha[p];
            let mut covered = false;
            for edge in lattice.edges(p) {
                alpha[p + edge.len()] += from * probabilities.pieces[edge.piece()];
                covered |= edge.len() == 1;
            }
            if !covered {
                alpha[p + 1] += from * probabilities.unknown;
            }
        }
        let total = alpha[n];
        if total < LEAST {
            return false;
        }
        let scale = lattice.count / total;
        beta[n] = 1.0;
        for p in (0..n).rev() {
            let weight = alpha[p] * scale;
            let mut sum = 0.0;
            let mut covered = false;
            for edge in lattice.edges(p) {
                let onward = probabilities.pieces[edge.piece()] * beta[p + edge.len()];
                sum += onward;
                self.expected[edge.piece()] += weight * onward;
                covered |= edge.len() == 1;
            }
            if !covered {
                sum += probabilities.unknown * beta[p + 1];
            }
            beta[p] = sum;
        }
        self.log_likelihood += lattice.count * libm::log(total);
        true
    }

    /// As `add`, in logarithms: slow, for segments of any length.
    fn add_in_logarithms(&mut self, lattice: &Lattice, logs: &Weights) {
        let n = lattice.len();
        self.reset(n, f64::NEG_INFINITY);
        let (alpha, beta) = (&mut self.alpha[..], &mut self.beta[..]);
        alpha[0] = 0.0;
        for p in 0..n {
            let mut covered = false;
            for edge in lattice.edges(p) {
                let to = p + edge.len();
                alpha[to] = log_add(alpha[to], alpha[p] + logs.pieces[edge.piece()]);
                covered |= edge.len() == 1;
            }
            if !covered {
                alpha[p + 1] = log_add(alpha[p + 1], alpha[p] + logs.unknown);
            }
        }
        let total = alpha[n];
        beta[n] = 0.0;
        for p in (0..n).rev() {
            let mut covered = false;
            for edge in lattice.edges(p) {
                let onward = logs.pieces[edge.piece()] + beta[p + edge.len()];
                beta[p] = log_add(beta[p], onward);
                self.expected[edge.piece()] += lattice.count * libm::exp(alpha[p] + onward - total);
                covered |= edge.len() == 1;
            }
            if !covered {
                beta[p] = log_add(beta[p], logs.unknown + beta[p + 1]);
            }
        }
        self.log_likelihood += lattice.count * total;
    }
}

/// ln(e^a + e^b).
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + libm::log1p(libm::exp(low - high)) }
}
