//! Small models on synthetic tasks: learning, determinism, random initialization, the simulated GPU.

use albert::checkpoint::{Heads, save_model};
use albert::config::AlbertConfig;
use albert::model::Model;
use albert::tokenizer::{Cleaning, Piece, PieceKind, SPECIAL_PIECES, Tokenizer};
use albert::train::{Setting, Trainer};
use engine::{Cpu, Device, Isa, philox::Stream};

use super::batch::Order;
use super::feature::{Feature, Target};
use super::loss::WindowScore;
use super::*;
use crate::files::{Answer, Label, Problem};
use crate::span::DecodeSettings;

/// Every letter is a word of one piece; words of several letters have one piece per letter.
pub(super) fn tokenizer() -> Tokenizer {
    let kind = |name: &str| if name == "<unk>" { PieceKind::Unknown } else { PieceKind::Control };
    let mut pieces: Vec<Piece> =
        SPECIAL_PIECES.iter().map(|name| Piece { text: (*name).to_owned(), score: 0.0, kind: kind(name) }).collect();
    for letter in 'a'..='z' {
        pieces.push(Piece { text: format!("▁{letter}"), score: -1.0, kind: PieceKind::Normal });
        pieces.push(Piece { text: letter.to_string(), score: -2.0, kind: PieceKind::Normal });
    }
    pieces.push(Piece { text: "▁".into(), score: -3.0, kind: PieceKind::Normal });
    Tokenizer::from_pieces(pieces, Cleaning::default()).unwrap()
}

pub(super) fn device(threads: usize) -> Device {
    Device::Cpu(Cpu::new(Isa::choose().unwrap(), threads).unwrap())
}

/// A model folder of two layers with random weights, and a pooler.
pub(super) fn pretrained() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer();
    let config = AlbertConfig {
        vocab_size: tokenizer.vocab_size(),
        embedding_size: 16,
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        max_position_embeddings: 32,
        initializer_range: 0.1,
        ..AlbertConfig::preset("tiny").unwrap()
    };
    let cpu = Cpu::new(Isa::choose().unwrap(), 1).unwrap();
    let (_, params) = Model::new(&config, Heads::PRE_TRAINING, &cpu, 3).unwrap();
    let values = |name: &str| params.values(params.find(name).unwrap());
    save_model(folder.path(), &config, Heads::PRE_TRAINING, &tokenizer.to_files().unwrap(), values).unwrap();
    folder
}

/// Creates `count` examples, each from its id and a separate random stream.
fn each<T>(count: usize, seed: u64, make: impl Fn(String, &mut Stream) -> T) -> Vec<T> {
    (0..count).map(|at| make(at.to_string(), &mut Stream::new(seed, [at as u32, 0, 0]))).collect()
}

/// A synthetic task: texts of random letters with their labels.
pub(super) fn made_up(problem: &Problem, count: usize, seed: u64) -> Examples {
    let letter = |s: &mut Stream, from: u8| char::from(from + s.below(13) as u8).to_string();
    let words =
        |s: &mut Stream, from: u8, count: u32| (0..count).map(|_| letter(s, from)).collect::<Vec<_>>().join(" ");
    match problem {
        // Letters from one half of the alphabet; for pairs, the label is whether both texts use the same half.
        Problem::Classes { labels } => Examples::Texts(each(count, seed, |id, s| {
            let is_pair = labels.len() == 3;
            let [a, b] = [(); 2].map(|()| s.below(2));
            let length = 2 + s.below(4);
            let first = words(s, b'a' + 13 * a as u8, length);
            let second = is_pair.then(|| words(s, b'a' + 13 * b as u8, 3));
            Text { id, first, second, label: Some(Label::Class(if is_pair { a + b } else { a })) }
        })),
        // The label is the share of letters from the first half.
        Problem::Number => Examples::Texts(each(count, seed, |id, s| {
            let early = s.below(5);
            let first = format!("{} {}", words(s, b'a', early), words(s, b'n', 4 - early)).trim().to_owned();
            Text { id, first, second: None, label: Some(Label::Number(early as f32 / 2.0 - 1.0)) }
        })),
        Problem::Labels { .. } => unreachable!("models of this kind are not trained"),
        Problem::Tags { .. } => Examples::Tagged(each(count, seed, |id, s| {
            let tags: Vec<u32> = (0..1 + s.below(40)).map(|_| s.below(2)).collect();
            let words = tags.iter().map(|&tag| letter(s, b'a' + 13 * tag as u8)).collect();
            Tagged { id, words, tags }
        })),
        // Only one option is from the second half.
        Problem::Choice => Examples::Choices(each(count, seed, |id, s| {
            let answer = s.below(3);
            let options = (0..3).map(|o| words(s, b'a' + 13 * u8::from(o == answer), 2)).collect();
            let (passage, question) = (words(s, b'a', 4).into(), "q _ r".to_owned());
            Choice { id, passage, question, options, answer: Some(answer), level: None }
        })),
        // Two letters from the second half among letters from the first, or none.
        Problem::Span { may_be_impossible } => Examples::Questions(each(count, seed, |id, s| {
            let (before, after) = (s.below(5), 10 + s.below(15));
            let is_impossible = *may_be_impossible && s.below(3) == 0;
            let before = words(s, b'a', 1 + before);
            let text = if is_impossible { String::new() } else { words(s, b'n', 2) };
            let passage = format!("{before} {text} {}", words(s, b'a', after)).into();
            let answers = if is_impossible { vec![] } else { vec![Answer { text, start: before.len() + 1 }] };
            Question { id, passage, question: "q".to_owned(), answers, is_impossible }
        })),
    }
}

pub(super) fn problems() -> [Problem; 7] {
    let labels = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    [
        Problem::Classes { labels: labels(&["early", "late"]) },
        Problem::Classes { labels: labels(&["none", "one", "both"]) },
        Problem::Number,
        Problem::Tags { labels: labels(&["O", "B-X"]) },
        Problem::Choice,
        Problem::Span { may_be_impossible: false },
        Problem::Span { may_be_impossible: true },
    ]
}

pub(super) fn recipe(folder: &std::path::Path, overrides: &[&str]) -> FinetuneRecipe {
    let config = albert::checkpoint::ModelFolder::open(folder).unwrap().config().config.clone();
    let mut all = vec![
        format!("input.model={}", folder.display()),
        "seed=7".into(),
        "batch.examples_per_step=16".into(),
        "batch.max_tokens=256".into(),
        "optimizer.learning_rate=0.003".into(),
        "schedule.steps=120".into(),
        "text.max_question_length=8".into(),
        "span.stride=8".into(),
    ];
    all.extend(overrides.iter().map(|&text| text.to_owned()));
    FinetuneRecipe::for_model(&config).with("", &Setting::all(&all).unwrap()).unwrap()
}

pub(super) fn features(problem: &Problem, examples: &Examples) -> Vec<Feature> {
    let tokenizer = tokenizer();
    let featurizer = Featurizer {
        tokenizer: &tokenizer,
        problem,
        max_sequence_length: 32,
        max_question_length: 8,
        stride: 8,
        keep_windows: true,
    };
    featurizer.features(examples).unwrap().list
}

/// A trainer on `examples`, without a dev set.
fn trainer_of(
    recipe: &FinetuneRecipe,
    problem: &Problem,
    examples: &Examples,
    device: Device,
) -> Result<Trainer<Finetuning>, FinetuneError> {
    let sources = FinetuneSources { task: &task(problem), train: examples, dev: None };
    Finetuning::trainer(recipe, &sources, device)
}

fn trainer(folder: &std::path::Path, problem: &Problem, overrides: &[&str], device: Device) -> Trainer<Finetuning> {
    trainer_of(&recipe(folder, overrides), problem, &made_up(problem, 200, 1), device).unwrap()
}

/// The task's first metric on new examples, from 0 to 1.
fn scores(trainer: &mut Trainer<Finetuning>, features: &[Feature]) -> Result<Vec<Vec<f32>>, FinetuneError> {
    let (objective, loaded, communicator) = trainer.parts();
    Ok(objective.scorer.scores(loaded, features, communicator)?()?)
}

fn window_scores(
    trainer: &mut Trainer<Finetuning>,
    features: &[Feature],
) -> Result<Vec<loss::WindowScore>, FinetuneError> {
    let (objective, loaded, communicator) = trainer.parts();
    Ok(objective.scorer.window_scores(loaded, features, communicator)?()?)
}

fn quality(trainer: &mut Trainer<Finetuning>, problem: &Problem) -> f64 {
    let examples = made_up(problem, 100, 2);
    let features = features(problem, &examples);
    let predictions = match &examples {
        Examples::Questions(questions) => {
            let scores = window_scores(trainer, &features).unwrap();
            prediction::answers(questions, &features, &scores, &DecodeSettings::default())
        }
        _ => prediction::predictions(problem, 0..100, &examples, &features, &scores(trainer, &features).unwrap()),
    };
    let measured = measure(&task(problem), &examples, &predictions).unwrap().unwrap();
    measured.main()
}

#[test]
fn learns_every_kind_of_problem() {
    let folder = pretrained();
    for problem in problems() {
        let mut trainer = trainer(folder.path(), &problem, &[], device(2));
        let before = quality(&mut trainer, &problem);
        let losses: Vec<f64> = (0..120).map(|_| trainer.train_step().unwrap().loss).collect();
        let after = quality(&mut trainer, &problem);
        println!("{problem:?}: loss {:.3} to {:.3}, quality {before:.3} to {after:.3}", losses[0], losses[119]);
        assert!(after > 0.95, "{problem:?}: {before} to {after}, losses {losses:.3?}");
        let report = trainer.workspace().arena().report();
        assert_eq!(report.misses, 0, "{problem:?}: {report:?}");
    }
}

#[test]
fn is_bit_identical_for_any_thread_count() {
    let folder = pretrained();
    for problem in problems() {
        let run = |threads| {
            let drop = ["dropout.encoder=0.1", "batch.max_sequences=5"];
            let mut trainer = trainer(folder.path(), &problem, &drop, device(threads));
            let losses: Vec<f64> = (0..4).map(|_| trainer.train_step().unwrap().loss).collect();
            (losses, trainer.params().all_values().to_vec(), quality(&mut trainer, &problem))
        };
        assert!(run(1) == run(2), "{problem:?}");
    }
}

#[test]
fn the_cut_into_micro_batches_changes_rounding_alone() {
    let folder = pretrained();
    for problem in problems() {
        let losses = |sequences: &str| {
            let undropped = ["dropout.encoder=0", "dropout.classifier=0", sequences];
            let mut trainer = trainer(folder.path(), &problem, &undropped, device(1));
            (0..6).map(|_| trainer.train_step().unwrap().loss).collect::<Vec<_>>()
        };
        let (whole, cut) = (losses("batch.max_sequences=64"), losses("batch.max_sequences=3"));
        for (step, (a, b)) in whole.iter().zip(&cut).enumerate() {
            assert!((a - b).abs() < 1e-4 * a, "{problem:?}, step {step}: {a} and {b} in smaller micro-batches");
        }
        assert!(whole[0] != whole[5]);
    }
}

/// Computes the loss of the first step from the scores, in f64. Span heads have separate tests.
#[test]
fn losses_are_those_of_the_equations_also_of_options_that_differ_in_number() {
    let folder = pretrained();
    let mut all: Vec<_> = problems().into_iter().map(|problem| (made_up(&problem, 200, 1), problem)).collect();
    all.retain(|(_, problem)| !matches!(problem, Problem::Span { .. }));
    all.push((uneven_choices(), Problem::Choice));
    for (examples, problem) in all {
        let undropped = ["dropout.encoder=0", "dropout.classifier=0", "batch.examples_per_step=200"];
        let mut trainer = trainer_of(&recipe(folder.path(), &undropped), &problem, &examples, device(1)).unwrap();
        let features = trainer.parts().0.features.clone();
        let scores = scores(&mut trainer, &features).unwrap();
        let (mut sum, mut count) = (0.0, 0);
        let nll = |scores: &[f32], class: u32| {
            scores.iter().map(|&z| f64::from(z).exp()).sum::<f64>().ln() - f64::from(scores[class as usize])
        };
        // There are as many features as examples only if no example was split; a step processes 200 features in any case.
        let met: Vec<usize> = (0..200).map(|at| Order::new(7, features.len()).at(at)).collect();
        for at in met {
            count += features[at].target.weight();
            sum += match &features[at].target {
                Target::Class(class) => nll(&scores[at], class.unwrap()),
                Target::Number(number) => f64::from(number.unwrap() - scores[at][0]).powi(2),
                Target::Words { tags, .. } => {
                    scores[at].chunks_exact(2).zip(tags).map(|(scores, &tag)| nll(scores, tag)).sum()
                }
                Target::Span { .. } => unreachable!("passed over"),
            };
        }
        let (expected, got) = (sum / count as f64, trainer.train_step().unwrap().loss);
        assert!((got - expected).abs() < 1e-5 * expected.abs(), "{problem:?}: {got}, expected {expected}");
        let report = trainer.workspace().arena().report();
        assert_eq!(report.misses, 0, "{problem:?}: {report:?}");
    }
}

#[test]
fn sixteen_bits_learn_as_thirty_two_but_for_rounding() {
    let folder = pretrained();
    for problem in problems() {
        let recipe = recipe(folder.path(), &["compute.precision=bf16"]);
        let made = trainer_of(&recipe, &problem, &made_up(&problem, 200, 1), device(1));
        if problem == (Problem::Span { may_be_impossible: true }) {
            let message = made.unwrap_err().to_string();
            assert!(message.contains("`compute.precision` must be \"f32\""), "{message}");
            continue;
        }
        let (mut half, mut whole) = (made.unwrap(), trainer(folder.path(), &problem, &[], device(1)));
        for step in 0..5 {
            let (a, b) = (half.train_step().unwrap().loss, whole.train_step().unwrap().loss);
            assert!((a - b).abs() < 0.05 * b.abs().max(0.2), "{problem:?}, step {step}: {a} and {b}");
        }
    }
}

#[test]
fn what_is_fresh_is_listed() {
    let folder = pretrained();
    let recipe = recipe(folder.path(), &[]);
    for (problem, fresh) in problems().iter().zip([2, 2, 2, 2, 2, 2, 11]) {
        let start = Start::load(&recipe, problem, device(1).processor()).unwrap();
        assert_eq!(start.report.fresh.len(), fresh, "{:?}", start.report.fresh);
        let heads = ["classifier.", "qa_outputs.", "start_logits.", "end_logits.", "answer_class."];
        let is_head = |name: &String| heads.iter().any(|head| name.starts_with(head));
        assert!(start.report.fresh.iter().all(is_head), "{:?}", start.report.fresh);
        assert!(start.report.ignored.iter().any(|name| name == "predictions.bias"), "{:?}", start.report.ignored);
    }
    let input = FinetuneInput { from_scratch: true, ..recipe.input.clone() };
    let (whole, scratch) = (recipe.clone(), FinetuneRecipe { input, ..recipe.clone() });
    let [whole, scratch] =
        [whole, scratch].map(|recipe| Start::load(&recipe, &problems()[0], device(1).processor()).unwrap());
    assert_eq!((scratch.report.loaded.len(), &scratch.config), (0, &whole.config));
    assert_eq!(scratch.report.fresh.len(), whole.report.loaded.len() + whole.report.fresh.len());
    let words = |start: &Start| {
        let id = start.params.find("albert.embeddings.word_embeddings.weight").unwrap();
        start.params.values(id).to_vec()
    };
    assert!(words(&whole).iter().zip(words(&scratch)).all(|(&a, b)| a != b), "the folder's weights were taken");
    let both = Setting::new("input.from", "x").unwrap();
    let message = recipe.with("[input]\nfrom_scratch = true", &[both]).unwrap_err().to_string();
    assert!(message.contains("`input.from_scratch`"), "{message}");
    let recipe = FinetuneRecipe { input: FinetuneInput::default(), ..recipe };
    let message = Start::load(&recipe, &problems()[0], device(1).processor()).unwrap_err().to_string();
    assert!(message.contains("give --model DIR"), "{message}");
}

pub(super) fn task(problem: &Problem) -> Task {
    let text = TextSettings { max_sequence_length: 32, max_question_length: 8 };
    let name = match problem {
        Problem::Number => TaskName::Regress,
        Problem::Tags { .. } => TaskName::Tag,
        Problem::Choice => TaskName::Choice,
        Problem::Span { may_be_impossible: false } => TaskName::Squad1,
        Problem::Span { may_be_impossible: true } => TaskName::Squad2,
        Problem::Classes { .. } | Problem::Labels { .. } => TaskName::Classify,
    };
    let (span, data) = (SpanRecipe { stride: 8, ..SpanRecipe::default() }, DataSettings::default());
    Task { name, problem: problem.clone(), metrics: name.metrics(), text, span, data, pairs: None }
}

/// Choices, every third of which has one option less.
fn uneven_choices() -> Examples {
    let Examples::Choices(mut list) = made_up(&Problem::Choice, 60, 1) else { unreachable!() };
    for choice in list.iter_mut().step_by(3) {
        let answer = choice.answer.unwrap() as usize;
        let wrong = (answer + 1) % choice.options.len();
        choice.options.remove(wrong);
        choice.answer = Some((answer - usize::from(wrong < answer)) as u32);
    }
    Examples::Choices(list)
}

#[test]
fn trains_and_scores_on_a_simulated_gpu_as_on_the_processor() {
    let folder = pretrained();
    let logits = "span.head=\"logits\"";
    let mut all: Vec<_> = problems().into_iter().map(|p| (made_up(&p, 60, 1), p, logits)).collect();
    all.push((uneven_choices(), Problem::Choice, logits));
    let spans = Problem::Span { may_be_impossible: true };
    all.push((made_up(&spans, 60, 1), spans, "span.head=\"released\""));
    for (examples, problem, head) in all {
        let run = |device: Device| {
            let recipe = recipe(folder.path(), &["batch.examples_per_step=2", head]);
            let few = features(&problem, &examples)[..2].to_vec();
            let mut trainer = trainer_of(&recipe, &problem, &examples, device).unwrap();
            let mut found: Vec<f64> = (0..2).map(|_| trainer.train_step().unwrap().loss).collect();
            if let Problem::Span { .. } = problem {
                let of_window = |score| match score {
                    WindowScore::Logits(both) => both.concat().into_iter().map(f64::from).collect(),
                    WindowScore::Beam { starts, no_answer } => {
                        let starts = starts.iter().map(|start| start.log_probability);
                        starts.chain([f64::from(no_answer)]).collect::<Vec<_>>()
                    }
                };
                let scores = window_scores(&mut trainer, &few).unwrap();
                found.extend(scores.into_iter().flat_map(of_window));
            } else {
                found.extend(scores(&mut trainer, &few).unwrap().concat().into_iter().map(f64::from));
            }
            found
        };
        let gpu = Device::named("cuda-sim", Cpu::new(Isa::choose().unwrap(), 1).unwrap()).unwrap();
        let (cpu, gpu) = (run(device(1)), run(gpu));
        assert_eq!(cpu.len(), gpu.len());
        for (a, b) in cpu.iter().zip(&gpu) {
            assert!((a - b).abs() < 1e-4 * (a.abs() + 1.0), "{problem:?}, {head}: {cpu:?} and {gpu:?}");
        }
    }
}
