//! Special pieces around a text and around a pair.
//!
//! ```text
//! BERT, ALBERT    [CLS] A [SEP]      [CLS] A [SEP] B [SEP]       segment 1 from B on
//! XLM-R           <s> A </s>         <s> A </s> </s> B </s>      segment 0 throughout
//! none            A                  A B                         segment 1 from B on
//! ```
//!
//! A third-party `tokenizer.json` defines its frame in `post_processor`; the library runs it once on two marker pieces.

/// Special pieces that the model expects around its texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Pieces before and after a single text.
    pub single: [Vec<u32>; 2],
    /// Pieces before the first text of a pair, between the two, and after the second.
    pub pair: [Vec<u32>; 3],
    /// True if the second text and the pieces after it are segment 1; false if everything is segment 0.
    pub has_segments: bool,
}

impl Frame {
    /// Frame `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`.
    pub fn of_bert(cls: u32, sep: u32) -> Self {
        Self { single: [vec![cls], vec![sep]], pair: [vec![cls], vec![sep], vec![sep]], has_segments: true }
    }

    /// Frame of a post-processor, from its ids and segments for one text and for a pair whose pieces are `marks`.
    ///
    /// # Errors
    /// The pieces or segments do not have the form above.
    pub(super) fn of_marks(marks: [u32; 2], single: (&[u32], &[u32]), pair: (&[u32], &[u32])) -> Result<Self, String> {
        let parts = |ids: &[u32]| ids.split(|id| marks.contains(id)).map(<[u32]>::to_vec).collect::<Vec<_>>();
        let order = |ids: &[u32]| ids.iter().copied().filter(|id| marks.contains(id)).collect::<Vec<_>>();
        let one = <[Vec<u32>; 2]>::try_from(parts(single.0)).ok().filter(|_| single.1.iter().all(|&s| s == 0));
        let two = <[Vec<u32>; 3]>::try_from(parts(pair.0)).ok().filter(|_| order(pair.0) == marks);
        let (Some(one), Some(two)) = (one, two) else {
            return Err("expected special pieces around one text in segment 0 and around a pair A B".to_owned());
        };
        let second = two[0].len() + 1 + two[1].len();
        let has_segments = pair.1[second] == 1;
        let expected = |at: usize| u32::from(has_segments && at >= second);
        match pair.1.iter().enumerate().all(|(at, &segment)| segment == expected(at)) {
            true => Ok(Self { single: one, pair: two, has_segments }),
            false => Err(format!("the segments of a pair are {:?}; expected 0 before the second text", pair.1)),
        }
    }

    /// Number of special pieces around one text.
    pub fn around_one(&self) -> usize {
        self.single.iter().map(Vec::len).sum()
    }

    /// Number of special pieces around a pair.
    pub fn around_two(&self) -> usize {
        self.pair.iter().map(Vec::len).sum()
    }

    /// Sequence of one text.
    pub fn one(&self, text: &[u32]) -> Vec<u32> {
        [&self.single[0], text, &self.single[1]].concat()
    }

    /// Sequence of a pair, and the index of its first token in segment 1.
    pub fn two(&self, first: &[u32], second: &[u32]) -> (Vec<u32>, usize) {
        let [before, between, after] = &self.pair;
        let ids = [before, first, between, second, after].concat();
        let middle = before.len() + first.len() + between.len();
        let start = if self.has_segments { middle } else { ids.len() };
        (ids, start)
    }
}
