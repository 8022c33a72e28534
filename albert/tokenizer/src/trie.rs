//! Double-array trie over bytes: finds all pieces that start at a position with one memory access a byte.
//!
//! ```text
//! unit = id+1 (28 bits) | offset (28 bits) | label (8 bits)        next = offset(unit) ^ byte
//! the step is valid  <=>  label(units[next]) == byte and units[next] is in use
//! ```
//!
//! Every node has a distinct offset (0 for the root), so an equal label proves that a unit is a child. `offset ^ byte` is in
//! the offset's block of 256 units, so the array is a whole number of blocks. Byte 0 never occurs in a key (cleaning drops
//! it), so label 0 marks an empty unit.
//!
//! Cost: 8 bytes a unit, about 0.9 MB for 30,000 pieces; building places nodes breadth first, first fit.
//! Source: Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", 1989.
//! Limits: fewer than 2^28 units and ids; keys without byte 0.

const OFFSET_SHIFT: u32 = 8;
const ID_SHIFT: u32 = 36;
const FIELD: u64 = (1 << 28) - 1;
const BLOCK: usize = 256;
/// Offset of a node without children, outside the array: every step from it fails the bounds check.
const LEAF_OFFSET: usize = FIELD as usize & !(BLOCK - 1);

#[derive(Debug, Clone)]
pub(super) struct Trie {
    units: Vec<u64>,
}

/// A node of the trie, as its unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node(u64);

impl Node {
    /// Id of the key that ends here, if any.
    #[inline(always)]
    pub(super) fn id(self) -> Option<u32> {
        ((self.0 >> ID_SHIFT) as u32).checked_sub(1)
    }
}

/// A key and its id.
type Key<'k> = (&'k [u8], u32);

impl Trie {
    /// Builds the trie of `keys`, which must be sorted, distinct, not empty and without byte 0.
    pub(super) fn new(keys: &[Key]) -> Self {
        debug_assert!(keys.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let mut builder = Builder::new();
        builder.place_all(keys);
        Self { units: builder.units }
    }

    /// The node of the empty key.
    #[inline(always)]
    pub(super) fn root(&self) -> Node {
        Node(self.units[0])
    }

    /// The child of `node` along `byte`.
    #[inline(always)]
    pub(super) fn step(&self, node: Node, byte: u8) -> Option<Node> {
        let next = ((node.0 >> OFFSET_SHIFT) & FIELD) as usize ^ byte as usize;
        let unit = *self.units.get(next)?;
        (unit as u8 == byte && byte != 0).then_some(Node(unit))
    }
}

/// Assigns units to the nodes of a trie.
pub(super) struct Builder {
    units: Vec<u64>,
    /// Free units, one bit each.
    free: Vec<u64>,
    /// Free offsets, one bit each.
    unused: Vec<u64>,
    /// By the label of an only child: below this, no free unit has a free offset.
    open_from: [usize; BLOCK],
}

/// A unit in use, for tries written in another format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) label: u8,
    /// Children are at `offset ^ byte`.
    pub(super) offset: usize,
    /// Value of the key that ends here.
    pub(super) value: Option<u32>,
}

/// Number of blocks at the end of the array that are searched for free units; earlier gaps remain.
const OPEN_BLOCKS: usize = 4;

fn has(bits: &[u64], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 == 1
}

fn clear(bits: &mut [u64], at: usize) {
    bits[at / 64] &= !(1 << (at % 64));
}

/// Word `word` of the set whose bit `i` is bit `i ^ by` of `bits`.
fn exchanged(bits: &[u64], word: usize, by: usize) -> u64 {
    const LOWER: [u64; 6] =
        [u64::MAX / 3, u64::MAX / 5, u64::MAX / 17, u64::MAX / 257, u64::MAX / 65_537, u32::MAX as u64];
    let mut bits = bits[word ^ (by / 64)];
    for (stage, lower) in LOWER.iter().enumerate() {
        let swapped = (bits & lower) << (1 << stage) | bits >> (1 << stage) & lower;
        bits = std::hint::select_unpredictable(by >> stage & 1 == 1, swapped, bits);
    }
    bits
}

impl Builder {
    fn new() -> Self {
        let mut builder = Self { units: Vec::new(), free: Vec::new(), unused: Vec::new(), open_from: [0; BLOCK] };
        builder.add_block();
        clear(&mut builder.free, 0);
        clear(&mut builder.unused, 0);
        builder
    }

    /// All units of the trie of `keys`, which must be sorted and distinct; `None` for free units.
    pub(super) fn places(keys: &[Key]) -> Vec<Option<Place>> {
        let mut builder = Self::new();
        builder.place_all(keys);
        let place = |(index, &unit): (usize, &u64)| {
            let offset = ((unit >> OFFSET_SHIFT) & FIELD) as usize;
            (!has(&builder.free, index)).then(|| Place { label: unit as u8, offset, value: Node(unit).id() })
        };
        builder.units.iter().enumerate().map(place).collect()
    }

    fn add_block(&mut self) {
        let len = self.units.len() + BLOCK;
        assert!(len < FIELD as usize - BLOCK, "a trie has fewer than 2^28 units");
        self.units.resize(len, 0);
        self.free.resize(len / 64, u64::MAX);
        self.unused.resize(len / 64, u64::MAX);
    }

    /// Places the nodes level by level.
    fn place_all(&mut self, keys: &[Key]) {
        // Units without assigned children, and the keys below them, which are equal in their first `depth` bytes.
        let (mut level, mut below) = (vec![(0, keys)], Vec::new());
        let mut children = Vec::new();
        let mut depth = 0;
        while !level.is_empty() {
            for &(unit, mut keys) in &level {
                children.clear();
                while let (Some((first, _)), Some((last, _))) = (keys.first(), keys.last()) {
                    let byte = first[depth];
                    // A single child is the usual case.
                    let count = match last[depth] == byte {
                        true => keys.len(),
                        false => keys.iter().take_while(|(key, _)| key[depth] == byte).count(),
                    };
                    children.push((byte, &keys[..count]));
                    keys = &keys[count..];
                }
                let offset = if depth == 0 { 0 } else { self.find_offset(&children) };
                self.units[unit] |= (offset as u64) << OFFSET_SHIFT;
                for &(byte, mut keys) in &children {
                    let child = offset ^ byte as usize;
                    let mut content = u64::from(byte);
                    if keys[0].0.len() == depth + 1 {
                        content |= (u64::from(keys[0].1) + 1) << ID_SHIFT;
                        keys = &keys[1..];
                    }
                    if keys.is_empty() {
                        content |= (LEAF_OFFSET as u64) << OFFSET_SHIFT;
                    } else {
                        below.push((child, keys));
                    }
                    self.units[child] = content;
                    clear(&mut self.free, child);
                }
            }
            std::mem::swap(&mut level, &mut below);
            below.clear();
            depth += 1;
        }
    }

    /// Finds the offset for which the first child is on the first possible unit in the open blocks, and marks it as used.
    ///
    /// Used units and offsets never become free, so the search starts where the last one for an only child with the same
    /// label ended.
    fn find_offset(&mut self, children: &[(u8, &[Key])]) -> usize {
        let first = children[0].0 as usize;
        let mut unit = self.open_from[first].max(self.units.len().saturating_sub(OPEN_BLOCKS * BLOCK));
        loop {
            let word = unit / 64;
            if word == self.free.len() {
                self.add_block();
            }
            // Free units for the first child for which the units of all further children are also free.
            let mut fit = self.free[word] & u64::MAX << (unit % 64);
            for &(byte, _) in &children[1..] {
                if fit == 0 {
                    break;
                }
                fit &= exchanged(&self.free, word, first ^ byte as usize);
            }
            while fit != 0 {
                unit = word * 64 + fit.trailing_zeros() as usize;
                let offset = unit ^ first;
                if has(&self.unused, offset) {
                    if children.len() == 1 {
                        self.open_from[first] = unit;
                    }
                    clear(&mut self.unused, offset);
                    return offset;
                }
                fit &= fit - 1;
            }
            unit = (word + 1) * 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Draw;
    use std::collections::BTreeMap;

    /// Checks that every key is found with its id, and nothing else.
    fn check(keys: &BTreeMap<Vec<u8>, u32>, probes: impl Iterator<Item = Vec<u8>>) {
        let list: Vec<Key> = keys.iter().map(|(key, &id)| (key.as_slice(), id)).collect();
        let trie = Trie::new(&list);
        let find = |text: &[u8]| text.iter().try_fold(trie.root(), |node, &byte| trie.step(node, byte))?.id();
        for (key, id) in keys {
            assert_eq!(find(key), Some(*id), "key {key:?}");
        }
        for probe in probes {
            assert_eq!(find(&probe), keys.get(&probe).copied(), "probe {probe:?}");
        }
    }

    #[test]
    fn finds_exactly_its_keys() {
        check(&BTreeMap::new(), [vec![b'a'], vec![255; 3]].into_iter());
        let mut draw = Draw(1);
        for alphabet in [1, 2, 26, 255] {
            let mut random =
                |longest| -> Vec<u8> { (0..1 + draw.below(longest)).map(|_| 1 + draw.below(alphabet) as u8).collect() };
            let keys: BTreeMap<Vec<u8>, u32> = (0..3000).map(|id| (random(6), id)).collect();
            let probes: Vec<Vec<u8>> = (0..30_000).map(|_| random(7)).collect();
            let prefixes = keys.keys().map(|key| key[..key.len() - 1].to_vec()).filter(|key| !key.is_empty());
            check(&keys, probes.into_iter().chain(prefixes));
        }
    }
}
