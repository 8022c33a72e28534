//! Sets of finished operations, by their numbers.

/// A set of numbers from 1 on, as ranges. Operations that end roughly in the order of their starts leave few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// All of 1 ..= floor are in the set.
    floor: u32,
    /// Further ranges, first and last included, in order, apart from each other and from the floor.
    above: Vec<(u32, u32)>,
}

impl Done {
    pub(crate) fn contains(&self, number: u32) -> bool {
        if number <= self.floor {
            return true;
        }
        let behind = self.above.partition_point(|(first, _)| *first <= number);
        behind > 0 && self.above[behind - 1].1 >= number
    }

    /// Adds `first ..= last`.
    pub(crate) fn insert(&mut self, first: u32, last: u32) {
        if last <= self.floor {
            return;
        }
        // Ranges that overlap or touch the new one become part of it.
        let start = self.above.partition_point(|(_, end)| end.saturating_add(1) < first);
        let stop = self.above.partition_point(|(begin, _)| *begin <= last.saturating_add(1));
        let merged =
            self.above[start..stop].iter().fold((first, last), |all, range| (all.0.min(range.0), all.1.max(range.1)));
        if merged.0 <= self.floor.saturating_add(1) {
            self.floor = merged.1;
            self.above.drain(..stop);
        } else {
            self.above.splice(start..stop, [merged]);
        }
    }

    pub(crate) fn join(&mut self, other: &Done) {
        self.insert(1, other.floor);
        for &(first, last) in &other.above {
            self.insert(first, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_what_was_inserted_and_nothing_else() {
        // Every order of inserting four ranges of a small universe, against a plain list of flags.
        let ranges = [(1, 1), (2, 4), (6, 6), (8, 9), (5, 5), (3, 7)];
        for a in ranges {
            for b in ranges {
                for c in ranges {
                    let (mut set, mut other, mut flags) = (Done::default(), Done::default(), [false; 12]);
                    set.insert(a.0, a.1);
                    set.insert(b.0, b.1);
                    other.insert(c.0, c.1);
                    set.join(&other);
                    for (first, last) in [a, b, c] {
                        flags[first as usize..=last as usize].fill(true);
                    }
                    for number in 1..12 {
                        assert_eq!(set.contains(number), flags[number as usize], "{a:?} {b:?} {c:?} {number} {set:?}");
                    }
                    let touching = set.above.windows(2).any(|pair| pair[0].1 + 1 >= pair[1].0);
                    assert!(!touching && set.above.first().is_none_or(|(first, _)| *first > set.floor + 1), "{set:?}");
                }
            }
        }
    }
}
