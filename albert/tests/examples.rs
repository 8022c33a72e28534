//! The example programs work as described, with a model that they train themselves.
#![allow(clippy::duplicate_mod, reason = "several examples load the tiny model")]

#[allow(dead_code, unreachable_pub)]
#[path = "../examples/embed.rs"]
mod embed;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/fill_mask.rs"]
mod fill_mask;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/tiny/mod.rs"]
mod tiny;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/tiny_albert.rs"]
mod tiny_albert;

#[test]
fn a_tiny_model_knows_its_sentences() {
    let folder = tiny::folder().unwrap();
    assert_eq!(fill_mask::fill(folder.path(), "the cat drinks [MASK]").unwrap(), "▁milk");
    assert_eq!(fill_mask::fill(folder.path(), "a [MASK] swims deep").unwrap(), "▁fish");
    // Each sentence has a counterpart that differs in its first word.
    let texts = tiny::SENTENCES.map(str::to_owned);
    assert_eq!(embed::nearest(folder.path(), &texts).unwrap(), [4, 5, 6, 7, 0, 1, 2, 3]);
}

#[test]
fn the_model_on_one_page_knows_the_rhyme() {
    let [words, order] = tiny_albert::train().unwrap();
    assert!(words > 0.5 && order > 0.8, "{words} of the masked words, {order} of the orders");
}
