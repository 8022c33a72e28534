//! Dev set for custom files without one: a share of the distinct texts of each class, in the order of a hash of the text,
//! so that copies of a text and all questions about a passage are on the same side.

use std::collections::{BTreeMap, HashMap, HashSet};

use engine::io::hash64;
use engine::philox::philox4x32;

use super::Examples;
use crate::files::{Choice, Label};

/// Selects texts to hold out, as hashes: the given share of the distinct texts of each class, at least one, but not all of a
/// class. `examples` are hashes with classes; a text of several classes counts for the first.
fn held_out(examples: &[(u64, u32)], share: f64, seed: u64) -> HashSet<u64> {
    let order = |hash: u64| {
        let name = u32::from_be_bytes(*b"dev ");
        philox4x32([hash as u32, (hash >> 32) as u32, 0, name], [seed as u32, (seed >> 32) as u32])[0]
    };
    let mut classes: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
    let mut class_of = HashMap::new();
    for &(hash, class) in examples {
        class_of.entry(hash).or_insert_with(|| classes.entry(class).or_default().push((order(hash), hash)));
    }
    let is_alone = classes.len() == 1;
    let (mut seen, mut chosen) = (0, HashSet::new());
    for texts in classes.values_mut() {
        texts.sort_unstable();
        seen += texts.len();
        // Rounded over all classes so far: small classes contribute their share together.
        let wanted = ((share * seen as f64).round() as usize).saturating_sub(chosen.len()).min(texts.len() - 1);
        chosen.extend(texts[..wanted].iter().map(|text| text.1));
    }
    if chosen.is_empty() {
        let largest = classes.values().max_by_key(|texts| texts.len());
        chosen.extend(largest.filter(|texts| texts.len() > 1 || !is_alone).map(|texts| texts[0].1));
    }
    chosen
}

/// Splits off about `share` of the examples, as (train, dev).
pub(super) fn split(examples: Examples, share: f64, seed: u64) -> (Examples, Examples) {
    fn of<E>(list: Vec<E>, share: f64, seed: u64, key: impl Fn(&E) -> (u64, u32)) -> (Vec<E>, Vec<E>) {
        let keys: Vec<_> = list.iter().map(&key).collect();
        let chosen = held_out(&keys, share, seed);
        list.into_iter().partition(|example| !chosen.contains(&key(example).0))
    }
    let hash = |text: &str| hash64(text.as_bytes());
    match examples {
        Examples::Texts(list) => {
            let class = |label| if let Some(Label::Class(class)) = label { class } else { 0 };
            let (train, dev) = of(list, share, seed, |text| (hash(&text.first), class(text.label)));
            (Examples::Texts(train), Examples::Texts(dev))
        }
        Examples::Tagged(list) => {
            let (train, dev) = of(list, share, seed, |tagged| (hash(&tagged.words.join(" ")), 0));
            (Examples::Tagged(train), Examples::Tagged(dev))
        }
        Examples::Choices(list) => {
            // Without a passage, the question is the key.
            let key = |choice: &Choice| match &*choice.passage {
                "" => (hash(&choice.question), 0),
                passage => (hash(passage), 0),
            };
            let (train, dev) = of(list, share, seed, key);
            (Examples::Choices(train), Examples::Choices(dev))
        }
        Examples::Questions(list) => {
            let (train, dev) = of(list, share, seed, |question| (hash(&question.passage), 0));
            (Examples::Questions(train), Examples::Questions(dev))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{made_up, problems};
    use super::*;

    #[test]
    fn a_share_is_held_out_with_all_copies() {
        let problem = &problems()[0];
        let Examples::Texts(mut list) = made_up(problem, 1000, 1) else { unreachable!() };
        list.extend(list.clone());
        let (train, dev) = split(Examples::Texts(list), 0.1, 5);
        let (Examples::Texts(train), Examples::Texts(dev)) = (train, dev) else { unreachable!() };
        assert_eq!(train.len() + dev.len(), 2000);
        assert!((150..=250).contains(&dev.len()), "{}", dev.len());
        assert!(dev.iter().all(|one| train.iter().all(|other| other.first != one.first)));
    }

    #[test]
    fn the_share_is_of_each_class_and_small_files_keep_some_of_all() {
        let of = |counts: &[usize], share: f64| -> Vec<usize> {
            let classes = counts.iter().enumerate();
            let all: Vec<(u64, u32)> = classes
                .flat_map(|(class, &count)| (0..count).map(move |at| ((class * 1000 + at) as u64, class as u32)))
                .collect();
            let chosen = held_out(&all, share, 3);
            assert_eq!(chosen, held_out(&all, share, 3));
            (0..counts.len()).map(|class| chosen.iter().filter(|&&hash| hash / 1000 == class as u64).count()).collect()
        };
        assert_eq!(of(&[20, 20], 0.1), [2, 2]);
        assert_eq!(of(&[200, 30, 10], 0.1), [20, 3, 1]);
        assert_eq!(of(&[5; 8], 0.1).iter().sum::<usize>(), 4);
        assert_eq!(of(&[1, 1, 1, 7], 0.5).iter().sum::<usize>(), 5);
        assert_eq!(of(&[2], 0.1), [1]);
        assert_eq!(of(&[1], 0.1), [0]);
    }
}
