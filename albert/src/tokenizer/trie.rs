//! A double-array trie over bytes: all pieces that start at a position, found with one memory access a byte.
//!
//! ```text
//! unit = id+1 (28 bits) | offset (28 bits) | label (8 bits)        next = offset(unit) ^ byte
//! the step is valid  <=>  label(units[next]) == byte and units[next] is in use
//! ```
//!
//! Every node has an offset of its own, so comparing the label alone proves parenthood. Offsets are multiples of
//! nothing in particular; `offset ^ byte` stays inside one 256-unit block of the offset, so the array's length is a
//! whole number of blocks. Byte 0 never occurs in a key (cleaning drops it), hence label 0 marks an empty unit.
//!
//! Cost: 8 bytes a unit, about 0.9 MB for 30,000 pieces; building places nodes breadth first, first fit.
//! Source: Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", 1989.
//! Limits: fewer than 2^28 units and ids; keys hold no byte 0.

const OFFSET_SHIFT: u32 = 8;
const ID_SHIFT: u32 = 36;
const FIELD: u64 = (1 << 28) - 1;
const BLOCK: usize = 256;

/// The trie. `Cursor`s walk it.
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
        let mut builder = Builder { units: vec![0; BLOCK], used_offset: vec![false; BLOCK], first_free: 1 };
        // Offset 0 of the root: its children lie in the first block, at their own byte's place.
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

struct Builder {
    units: Vec<u64>,
    used_offset: Vec<bool>,
    first_free: usize,
}

/// A node still to be given children: its unit and the keys below it, all equal in their first `depth` bytes.
struct Pending {
    unit: usize,
    depth: usize,
    keys: std::ops::Range<usize>,
}

impl Builder {
    fn place_all(&mut self, keys: &[(&[u8], u32)]) {
        let mut queue = std::collections::VecDeque::from([Pending { unit: 0, depth: 0, keys: 0..keys.len() }]);
        let mut children: Vec<(u8, std::ops::Range<usize>)> = Vec::new();
        while let Some(Pending { unit, depth, keys: range }) = queue.pop_front() {
            let mut at = range.start;
            if keys.get(at).is_some_and(|(key, _)| key.len() == depth) && at < range.end {
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
            if children.is_empty() {
                // Offset 0 with no child: the root's block answers, but labels of its units can never match a child
                // that does not exist unless the byte is one of the root's, so leaves point at a block of their own.
                self.units[unit] |= (self.leaf_offset() as u64) << OFFSET_SHIFT;
                continue;
            }
            let offset = if depth == 0 { 0 } else { self.find_offset(&children) };
            self.used_offset[offset] = true;
            self.units[unit] |= (offset as u64) << OFFSET_SHIFT;
            for (byte, range) in children.drain(..) {
                let child = offset ^ byte as usize;
                self.units[child] = u64::from(byte);
                queue.push_back(Pending { unit: child, depth: depth + 1, keys: range });
            }
        }
    }

    /// An offset far outside the array: every step from a leaf fails its bounds check.
    fn leaf_offset(&self) -> usize {
        FIELD as usize & !(BLOCK - 1)
    }

    /// The smallest offset at which all children fall on free units.
    fn find_offset(&mut self, children: &[(u8, std::ops::Range<usize>)]) -> usize {
        while self.first_free < self.units.len() && (self.units[self.first_free] != 0 || self.first_free == 0) {
            self.first_free += 1;
        }
        let first = children[0].0 as usize;
        let mut slot = self.first_free;
        let mut tries = 0usize;
        loop {
            if slot >= self.units.len() {
                self.units.resize(self.units.len() + BLOCK, 0);
                self.used_offset.resize(self.units.len(), false);
                assert!(self.units.len() < FIELD as usize - BLOCK, "a trie has fewer than 2^28 units");
            }
            let offset = slot ^ first;
            let fits = self.units[slot] == 0
                && !self.used_offset[offset]
                && children
                    .iter()
                    .all(|&(byte, _)| self.units[offset ^ byte as usize] == 0 && offset ^ byte as usize != 0);
            if fits {
                return offset;
            }
            slot += 1;
            tries += 1;
            // A crowded stretch is given up after a while: 16 blocks searched in vain cost more than the gaps save.
            if tries == 16 * BLOCK {
                self.first_free = slot - BLOCK.min(slot);
            }
        }
    }
}
