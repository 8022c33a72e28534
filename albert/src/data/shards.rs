//! The shards of one side of the split as one sequence of documents and sentences.

use std::ops::Range;

use super::error::DataError;
use super::shard::Shard;
use super::split::Side;

/// All documents of one side, with consecutive numbers for sentences and documents.
#[derive(Debug)]
pub struct Shards {
    side: Side,
    shards: Vec<Shard>,
    /// Number of the first sentence of each shard, and the number after the last.
    sentence_bases: Vec<u32>,
    document_bases: Vec<u32>,
    tokens: u64,
}

impl Shards {
    /// Concatenates `shards`.
    ///
    /// # Errors
    /// [`DataError::Setting`] if they contain 2^32 sentences or more.
    pub(crate) fn new(side: Side, shards: Vec<Shard>) -> Result<Self, DataError> {
        let (mut sentences, mut documents, mut tokens) = (0u64, 0u64, 0u64);
        let (mut sentence_bases, mut document_bases) = (vec![0], vec![0]);
        for shard in &shards {
            sentences += shard.header().sentences;
            documents += shard.header().documents;
            tokens += shard.header().tokens;
            let base = u32::try_from(sentences)
                .map_err(|_| DataError::setting("sentences in a split", sentences, "less than 2^32"))?;
            sentence_bases.push(base);
            document_bases.push(documents as u32);
        }
        Ok(Self { side, shards, sentence_bases, document_bases, tokens })
    }

    /// Side of the split.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Error for settings under which these documents have no instance.
    pub(super) fn no_instances(&self) -> DataError {
        let reason = match self.documents() {
            0 => "it has no document; raise held_out or add documents".into(),
            n => format!(
                "none of its {n} documents has two sentences for a pair; set lone_sentence = \"split\" or \
                 objective = \"none\""
            ),
        };
        DataError::NoInstances { split: self.side.name(), reason }
    }

    /// Number of documents.
    pub(crate) fn documents(&self) -> u32 {
        self.document_bases[self.shards.len()]
    }

    /// Number of sentences.
    pub(crate) fn sentences(&self) -> u32 {
        self.sentence_bases[self.shards.len()]
    }

    /// Number of tokens, without special pieces.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The sentences of document `document`.
    pub(crate) fn document(&self, document: u32) -> Range<u32> {
        let shard = holder(&self.document_bases, document);
        let local = (document - self.document_bases[shard]) as usize;
        let (starts, base) = (self.shards[shard].document_starts(), self.sentence_bases[shard]);
        base + starts[local]..base + starts[local + 1]
    }

    /// Documents in order, each as the number of its first sentence and the token bounds of its sentences (one more than
    /// sentences).
    pub(crate) fn walk(&self) -> impl Iterator<Item = (u32, &[u32])> {
        self.shards.iter().zip(&self.sentence_bases).flat_map(|(shard, &base)| {
            let sentences = shard.sentence_starts();
            shard
                .document_starts()
                .windows(2)
                .map(move |bounds| (base + bounds[0], &sentences[bounds[0] as usize..=bounds[1] as usize]))
        })
    }

    /// Number of tokens in `count` sentences from `first`, all of one document.
    pub(crate) fn length(&self, first: u32, count: usize) -> usize {
        self.locate(first, count).1.len()
    }

    /// Appends the tokens of `count` sentences from `first`, all of one document, without the first `skip` and the last
    /// `drop` tokens.
    pub(crate) fn append(&self, first: u32, count: usize, skip: usize, drop: usize, out: &mut Vec<u32>) {
        let (shard, range) = self.locate(first, count);
        shard.ids().append_to(range.start + skip..range.end - drop, out);
    }

    /// The content hashes of all documents, in order.
    pub(crate) fn document_hashes(&self) -> impl Iterator<Item = u64> {
        self.shards.iter().flat_map(|shard| shard.document_hashes().iter().copied())
    }

    /// Token number `at` of sentence `sentence`.
    pub(crate) fn token(&self, sentence: u32, at: usize) -> u32 {
        let (shard, range) = self.locate(sentence, 1);
        shard.ids().get(range.start + at)
    }

    /// Finds the shard of `count` sentences from `first`, and their tokens in it.
    fn locate(&self, first: u32, count: usize) -> (&Shard, Range<usize>) {
        let at = holder(&self.sentence_bases, first);
        let starts = self.shards[at].sentence_starts();
        let local = (first - self.sentence_bases[at]) as usize;
        (&self.shards[at], starts[local] as usize..starts[local + count] as usize)
    }
}

/// Index of the shard of `item`, given the first item of each shard.
fn holder(bases: &[u32], item: u32) -> usize {
    bases.partition_point(|&base| base <= item) - 1
}
