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

use std::collections::VecDeque;
use std::ops::Range;

const OFFSET_SHIFT: u32 = 8;
const ID_SHIFT: u32 = 36;
const FIELD: u64 = (1 << 28) - 1;
const BLOCK: usize = 256;
/// Offset of a node without children, outside the array: every step from it fails the bounds check.
const LEAF_OFFSET: usize = FIELD as usize & !(BLOCK - 1);

/// The trie.
#[derive(Debug, Clone)]
pub(super) struct Trie {
    units: Vec<u64>,
}

/// A node of the trie: its unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node(u64);

impl Node {
    /// The id of the key that ends here, if one does.
    #[inline(always)]
    pub(super) fn id(self) -> Option<u32> {
        ((self.0 >> ID_SHIFT) as u32).checked_sub(1)
    }
}

impl Trie {
    /// Builds the trie of `keys`, which are sorted, distinct, not empty and without byte 0.
    pub(super) fn new(keys: &[(&[u8], u32)]) -> Self {
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
    used_offset: Vec<bool>,
    /// Union-find over units: leads from a unit to the first free one at or after it.
    next_free: Vec<u32>,
}

/// A unit in use, for tries that are written in another format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) label: u8,
    /// Children are at `offset ^ byte`.
    pub(super) offset: usize,
    /// Value of the key that ends here.
    pub(super) value: Option<u32>,
}

/// A node without assigned children: its unit and the keys below it, equal in their first `depth` bytes.
struct Pending {
    unit: usize,
    depth: usize,
    keys: Range<usize>,
}

/// Blocks at the end of the array that are searched for free units; earlier gaps stay.
const OPEN_BLOCKS: usize = 16;

impl Builder {
    fn new() -> Self {
        let mut builder = Self { units: Vec::new(), used_offset: Vec::new(), next_free: vec![0] };
        builder.add_block();
        builder.occupy(0, 0);
        builder.used_offset[0] = true;
        builder
    }

    /// All units of the trie of `keys`, which are sorted and distinct; `None` for free units.
    pub(super) fn places(keys: &[(&[u8], u32)]) -> Vec<Option<Place>> {
        let mut builder = Self::new();
        builder.place_all(keys);
        let in_use = |index: usize| builder.next_free[index] as usize != index;
        let place = |(index, &unit): (usize, &u64)| {
            let offset = ((unit >> OFFSET_SHIFT) & FIELD) as usize;
            in_use(index).then(|| Place { label: unit as u8, offset, value: Node(unit).id() })
        };
        builder.units.iter().enumerate().map(place).collect()
    }

    fn add_block(&mut self) {
        let len = self.units.len() + BLOCK;
        assert!(len < FIELD as usize - BLOCK, "a trie has fewer than 2^28 units");
        self.units.resize(len, 0);
        self.used_offset.resize(len, false);
        self.next_free.extend(self.next_free.len() as u32..=len as u32);
    }

    fn occupy(&mut self, unit: usize, label: u8) {
        self.units[unit] = u64::from(label);
        self.next_free[unit] = unit as u32 + 1;
    }

    /// The first free unit at or after `unit`; the array's length if there is none.
    fn free_from(&mut self, mut unit: usize) -> usize {
        while self.next_free[unit] as usize != unit {
            let next = self.next_free[unit] as usize;
            self.next_free[unit] = self.next_free[next];
            unit = self.next_free[unit] as usize;
        }
        unit
    }

    fn place_all(&mut self, keys: &[(&[u8], u32)]) {
        let mut queue = VecDeque::from([Pending { unit: 0, depth: 0, keys: 0..keys.len() }]);
        let mut children: Vec<(u8, Range<usize>)> = Vec::new();
        while let Some(Pending { unit, depth, keys: range }) = queue.pop_front() {
            let mut at = range.start;
            if at < range.end && keys[at].0.len() == depth {
                self.units[unit] |= (u64::from(keys[at].1) + 1) << ID_SHIFT;
                at += 1;
            }
            children.clear();
            while at < range.end {
                let byte = keys[at].0[depth];
                let end = at + keys[at..range.end].partition_point(|(key, _)| key[depth] == byte);
                children.push((byte, at..end));
                at = end;
            }
            let offset = match children.as_slice() {
                [] => LEAF_OFFSET,
                _ if depth == 0 => 0,
                _ => self.find_offset(&children),
            };
            self.units[unit] |= (offset as u64) << OFFSET_SHIFT;
            for (byte, range) in children.drain(..) {
                let child = offset ^ byte as usize;
                self.occupy(child, byte);
                queue.push_back(Pending { unit: child, depth: depth + 1, keys: range });
            }
        }
    }

    /// The first offset, in the open blocks, at which all children fall on free units; it is marked as used.
    fn find_offset(&mut self, children: &[(u8, Range<usize>)]) -> usize {
        let first = children[0].0 as usize;
        let mut slot = self.free_from(self.units.len().saturating_sub(OPEN_BLOCKS * BLOCK));
        loop {
            if slot == self.units.len() {
                self.add_block();
            }
            let offset = slot ^ first;
            let is_free = |&(byte, _): &(u8, Range<usize>)| {
                let unit = offset ^ byte as usize;
                self.next_free[unit] as usize == unit
            };
            if !self.used_offset[offset] && children.iter().all(is_free) {
                self.used_offset[offset] = true;
                return offset;
            }
            slot = self.free_from(slot + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Draw;
    use std::collections::BTreeMap;

    /// Every key is found, with its id, and nothing else is.
    fn check(keys: &BTreeMap<Vec<u8>, u32>, probes: impl Iterator<Item = Vec<u8>>) {
        let list: Vec<(&[u8], u32)> = keys.iter().map(|(key, &id)| (key.as_slice(), id)).collect();
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
