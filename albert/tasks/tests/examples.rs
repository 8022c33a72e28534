//! The example program works as described, with a model that it trains itself.
#![allow(clippy::duplicate_mod, reason = "the example loads the tiny model too")]

#[allow(dead_code, unreachable_pub)]
#[path = "../examples/finetune.rs"]
mod finetune;
#[allow(dead_code, unreachable_pub)]
#[path = "../examples/tiny/mod.rs"]
mod tiny;

#[test]
fn a_tiny_model_learns_which_sentences_are_true() {
    let (model, folder) = (tiny::folder().unwrap(), tempfile::tempdir().unwrap());
    finetune::write_examples(folder.path()).unwrap();
    let run = folder.path().join("run");
    let accuracy = finetune::train(model.path(), folder.path(), &run, &finetune::TINY).unwrap();
    assert!(accuracy > 0.8, "accuracy {accuracy}");
    assert_eq!(finetune::predict(&run, "a cat drinks milk").unwrap(), "true");
    assert_eq!(finetune::predict(&run, "a cat eats meat").unwrap(), "false");
}
