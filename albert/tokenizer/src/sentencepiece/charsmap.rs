//! Precompiled replacement rules of a SentencePiece normalizer.
//!
//! ```text
//! blob = size u32 | units u32 × size/4 | replacements, each ended by NUL
//! unit = offset (21 bits) | scale (bit 9) | has leaf (bit 8) | label (8 bits)       or, as a leaf, 1 | value (31 bits)
//! next = node ^ offset(node) ^ byte, valid if label(units[next]) == byte
//! the leaf of a node is units[node ^ offset(node)]; its value is the first byte of the replacement
//! ```
//!
//! The longest key that starts at a position is replaced. Reading visits every reachable node once, to reject rules that
//! point outside; steps are also bounds-checked.
//!
//! Cost: reading O(units); a look-up costs one access a byte. `nmt_nfkc` has 44,288 units (237,539 bytes in all).
//! Source: Aoe 1989; the layout is that of Darts-clone, which SentencePiece embeds.

use super::super::trie::Builder;

/// Replacement rules.
#[derive(Debug)]
pub(crate) struct Charsmap {
    units: Vec<u32>,
    replacements: String,
    /// True if a key contains a space: then words cannot be normalized one by one.
    pub(super) has_space_in_key: bool,
}

const LEAF: u32 = 1 << 31;
/// Maximum length of a key in bytes, which limits the cost of a look-up. SentencePiece's rules have 20.
const LONGEST_KEY: usize = 256;
/// Maximum length of a replacement in bytes, which limits the growth of a text. SentencePiece's rules have 33.
const LONGEST_REPLACEMENT: usize = 64;

/// State of a node during the check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// Nodes below it are being checked.
    Open,
    Done,
}
/// An unreachable unit: its label is not a byte.
const EMPTY: u32 = LEAF;

fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

fn label(unit: u32) -> u32 {
    unit & (LEAF | 0xff)
}

fn has_leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

impl Charsmap {
    /// Reads and checks the rules.
    pub(crate) fn read(blob: &[u8]) -> Result<Self, String> {
        let Some((size, rest)) = blob.split_first_chunk() else {
            return Err(format!("precompiled_charsmap of {} bytes; its size field takes four", blob.len()));
        };
        let size = u32::from_le_bytes(*size) as usize;
        if size > rest.len() || size < 1024 || !size.is_multiple_of(1024) {
            return Err(format!(
                "precompiled_charsmap: a trie of {size} bytes in {}; expected a multiple of 1024 that fits",
                rest.len()
            ));
        }
        let (trie, text) = rest.split_at(size);
        let replacements = String::from_utf8(text.to_vec())
            .map_err(|error| format!("precompiled_charsmap: the replacements are not UTF-8 ({error})"))?;
        if !replacements.ends_with('\0') {
            return Err("precompiled_charsmap: the last replacement has no end; the file is damaged".to_owned());
        }
        let units = trie.chunks_exact(4).map(|unit| u32::from_le_bytes(unit.try_into().expect("four bytes"))).collect();
        let mut charsmap = Self { units, replacements, has_space_in_key: false };
        charsmap.check()?;
        Ok(charsmap)
    }

    /// Visits every reachable node and checks the values of its leaves.
    ///
    /// Units are sorted by `index ^ label`: the children of a node have the key `node ^ offset(node)`.
    fn check(&mut self) -> Result<(), String> {
        let n = self.units.len();
        // Label 0 is used by leaves and by the root, which is not a child.
        let is_node = |&index: &usize| self.units[index] & LEAF == 0 && self.units[index] & 0xff != 0;
        let parent_key = |index: usize| index ^ (self.units[index] & 0xff) as usize;
        let mut first = vec![0u32; n + 1]; // first[k]: where the units under key k start in `sorted`, once it is filled
        (0..n).filter(is_node).for_each(|index| first[parent_key(index)] += 1);
        (0..n).for_each(|k| first[k + 1] += first[k]);
        let mut sorted = vec![0u32; first[n] as usize];
        for index in (0..n).rev().filter(is_node) {
            let slot = &mut first[parent_key(index)];
            *slot -= 1;
            sorted[*slot as usize] = index as u32;
        }
        // Depth first. Nodes may have several parents (Darts-clone shares suffixes), but there must be no cycle.
        let mut longest = vec![0u16; n]; // of the keys below a node, by the key of its children
        let mut state = vec![State::New; n];
        let mut stack = vec![0usize];
        while let Some(&node) = stack.last() {
            let key = node ^ offset(self.units[node]) as usize;
            if key >= n || state[key] == State::Done {
                stack.pop();
                continue;
            }
            let children = &sorted[first[key] as usize..first[key + 1] as usize];
            if state[key] == State::New {
                state[key] = State::Open;
                for &child in children {
                    let (unit, child) = (self.units[child as usize], child as usize);
                    self.has_space_in_key |= unit & 0xff == u32::from(b' ');
                    if has_leaf(unit) {
                        self.check_leaf(child ^ offset(unit) as usize)?;
                    }
                    let below = child ^ offset(unit) as usize;
                    match state.get(below) {
                        Some(State::New) => stack.push(child),
                        Some(State::Open) => return Err("precompiled_charsmap: its trie has a cycle".to_owned()),
                        _ => {}
                    }
                }
                continue;
            }
            let below = |&child: &u32| longest.get(child as usize ^ offset(self.units[child as usize]) as usize);
            let depth = children.iter().map(|child| 1 + below(child).copied().unwrap_or(0)).max().unwrap_or(0);
            if usize::from(depth) > LONGEST_KEY {
                return Err(format!("precompiled_charsmap: a rule for more than {LONGEST_KEY} bytes"));
            }
            (longest[key], state[key]) = (depth, State::Done);
            stack.pop();
        }
        Ok(())
    }

    fn check_leaf(&self, leaf: usize) -> Result<(), String> {
        let Some(&unit) = self.units.get(leaf) else {
            return Err(format!("precompiled_charsmap: a rule is outside its trie of {} units", self.units.len()));
        };
        let value = (unit & !LEAF) as usize;
        if value >= self.replacements.len() || !self.replacements.is_char_boundary(value) {
            return Err(format!(
                "precompiled_charsmap: a rule points to byte {value} of {} bytes of replacements",
                self.replacements.len()
            ));
        }
        let rest = &self.replacements.as_bytes()[value..];
        if !rest.iter().take(LONGEST_REPLACEMENT + 1).any(|&byte| byte == 0) {
            return Err(format!("precompiled_charsmap: a rule that makes more than {LONGEST_REPLACEMENT} bytes"));
        }
        Ok(())
    }

    /// Finds the longest rule for a prefix of `text`: length of its key, and the replacement.
    #[inline]
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut position = offset(self.units[0]) as usize;
        let mut found = None;
        for (at, &byte) in text.iter().enumerate() {
            position ^= usize::from(byte);
            let Some(&unit) = self.units.get(position) else { break };
            if label(unit) != u32::from(byte) || byte == 0 {
                break;
            }
            position ^= offset(unit) as usize;
            if has_leaf(unit) {
                found = Some((at + 1, position));
            }
        }
        let (len, leaf) = found?;
        let rest = &self.replacements[(*self.units.get(leaf)? & !LEAF) as usize..];
        Some((len, &rest[..rest.find('\0').unwrap_or(rest.len())]))
    }

    /// True if no rule applies to `byte` before an ASCII byte or the end.
    pub(super) fn keeps_ascii(&self, byte: u8) -> bool {
        self.longest(&[byte]).is_none() && (0..128).all(|next| !self.has_prefix(&[byte, next]))
    }

    fn has_prefix(&self, text: &[u8]) -> bool {
        let mut position = offset(self.units[0]) as usize;
        text.iter().all(|&byte| {
            position ^= usize::from(byte);
            let unit = self.units.get(position).copied().filter(|&unit| byte != 0 && label(unit) == u32::from(byte));
            position ^= unit.map_or(0, offset) as usize;
            unit.is_some()
        })
    }

    /// Serializes rules. Keys must be sorted, distinct, not empty and without NUL.
    pub(crate) fn write(rules: &[(&str, &str)]) -> Vec<u8> {
        let mut replacements = Vec::new();
        let mut keys: Vec<(Vec<u8>, u32)> = Vec::with_capacity(rules.len());
        for (key, replacement) in rules {
            // The NUL after a key reserves a unit for its leaf.
            keys.push(([key.as_bytes(), b"\0"].concat(), replacements.len() as u32));
            replacements.extend_from_slice(replacement.as_bytes());
            replacements.push(0);
        }
        let borrowed: Vec<(&[u8], u32)> = keys.iter().map(|(key, value)| (key.as_slice(), *value)).collect();
        let places = Builder::places(&borrowed);
        let mut units = vec![EMPTY; places.len()];
        for (index, place) in places.iter().enumerate() {
            let Some(place) = place else { continue };
            units[index] = match place.value {
                Some(value) => LEAF | value,
                None => {
                    let relative = (index ^ place.offset) as u32;
                    assert!(relative < 1 << 21, "rules of this program fit 2^21 units");
                    let has_leaf = places.get(place.offset).copied().flatten().is_some_and(|leaf| leaf.value.is_some());
                    relative << 10 | u32::from(has_leaf) << 8 | u32::from(place.label)
                }
            };
        }
        let mut blob = (units.len() as u32 * 4).to_le_bytes().to_vec();
        units.iter().for_each(|unit| blob.extend_from_slice(&unit.to_le_bytes()));
        blob.extend_from_slice(&replacements);
        blob
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_rules_are_found_longest_first_and_nothing_else_is() {
        let rules = [("\u{1}", ""), ("a", "b"), ("ab", "x"), ("abcd", "long"), ("é", "e"), ("日本", "japan")];
        let blob = Charsmap::write(&rules);
        let charsmap = Charsmap::read(&blob).expect("just written");
        assert!(!charsmap.has_space_in_key);
        for (key, replacement) in rules {
            assert_eq!(charsmap.longest(key.as_bytes()), Some((key.len(), replacement)), "{key:?}");
        }
        assert_eq!(charsmap.longest(b"abce"), Some((2, "x")));
        for none in ["", "\0", "b", "日", "e"] {
            assert_eq!(charsmap.longest(none.as_bytes()), None, "{none:?}");
        }
        assert!(charsmap.keeps_ascii(b'b') && !charsmap.keeps_ascii(b'a') && !charsmap.keeps_ascii(1));
        assert!(Charsmap::read(&Charsmap::write(&[("a b", "")])).expect("just written").has_space_in_key);
    }

    #[test]
    fn rules_that_point_outside_are_errors() {
        let blob = Charsmap::write(&[("a", ""), ("c", "b")]);
        let error = |blob: &[u8]| Charsmap::read(blob).expect_err("damaged");
        assert!(error(&blob[..3]).contains("takes four"), "{}", error(&blob[..3]));
        assert!(error(&blob[..500]).contains("a trie of 1024 bytes in 496"), "{}", error(&blob[..500]));
        assert!(error(&blob[..blob.len() - 1]).contains("has no end"));
        let units: Vec<usize> = (4..blob.len() - 4).step_by(4).collect();
        let leaf = units.iter().find(|&&at| blob[at..at + 4] == (LEAF | 1).to_le_bytes()).expect("the leaf of c");
        let mut far = blob.clone();
        far[*leaf..leaf + 4].copy_from_slice(&(LEAF | 99).to_le_bytes());
        assert!(error(&far).contains("points to byte 99 of 3"), "{}", error(&far));
    }

    #[test]
    fn rules_that_multiply_a_text_or_never_end_are_errors() {
        let error = |blob: &[u8]| Charsmap::read(blob).expect_err("hostile");
        let long = "x".repeat(LONGEST_REPLACEMENT);
        assert!(Charsmap::read(&Charsmap::write(&[("a", &long)])).is_ok());
        let longer = "x".repeat(LONGEST_REPLACEMENT + 1);
        assert!(error(&Charsmap::write(&[("a", &longer)])).contains("makes more than 64 bytes"));
        let key = "k".repeat(LONGEST_KEY);
        assert!(Charsmap::read(&Charsmap::write(&[(&key, "")])).is_ok());
        let key = "k".repeat(LONGEST_KEY + 1);
        assert!(error(&Charsmap::write(&[(&key, "")])).contains("a rule for more than 256 bytes"));
        // The node for "a" is its own child: each "a" of a text would be visited from every position before it.
        let mut units = vec![EMPTY; 256];
        units[0] = u32::from(b'b') << 10;
        let child = usize::from(b'b' ^ b'a');
        units[child] = ((child ^ usize::from(b'b')) as u32) << 10 | u32::from(b'a');
        let mut blob = 1024u32.to_le_bytes().to_vec();
        units.iter().for_each(|unit| blob.extend_from_slice(&unit.to_le_bytes()));
        blob.push(0);
        assert!(error(&blob).contains("its trie has a cycle"), "{}", error(&blob));
    }
}
