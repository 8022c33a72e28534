//! ALBERT on one page: text, batches, model, losses, training and evaluation, with the operations of `engine` alone.
//!
//! ```text
//! text ─> pairs of segments ─> masked ids [B, S] ─> embedding [B, S, E] ─> [B, S, H] ─> one layer, applied N times
//!                                                           word logits [M, V] <─┤ rows of the masked words [M, H]
//!                                                          order logits [B, 2] <─┘ rows of [CLS] [B, H]
//! ```
//!
//! §: sections of Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
//! arXiv 1909.11942. The crate `albert` has the same model with ragged batches, fused operations and checkpoints.
//!
//! `cargo run --release -p albert-model --example tiny_albert`
use engine::nn::{Embedding, Graph, LayerNorm, Linear, Value};
use engine::ops::{self, CrossEntropyOutput, Transpose};
use engine::optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, Schedule, clip_global_norm};
use engine::{Device, Init, ParamBuilder, ParamId, Result, Tape, Workspace, philox::Stream};
use std::{iter::repeat_n, ops::Range};

// Sizes, and those of ALBERT-base (§3.2, §4.1).
const E: usize = 16; // width of the embedding tables: 128
const H: usize = 32; // hidden size: 768
const A: usize = 2; // attention heads: 12
const D: usize = H / A; // width of a head: 64
const F: usize = 4 * H; // inner width of the feed-forward block: 4·H
const N: usize = 3; // applications of the encoder layer: 12
const S: usize = 36; // tokens of a sequence, with padding: 512
const B: usize = 8; // sequences of a batch: 4096
const STEPS: u64 = 2000; // optimizer steps: 125,000

// ---------------------------------------------------------------------------------------------------------------- text

/// "The House That Jack Built", a nursery rhyme of the 18th century: the clauses of its last verse.
const RHYME: [&str; 12] = [
    "the horse and the hound and the horn",
    "that belonged to the farmer sowing his corn",
    "that kept the cock that crowed in the morn",
    "that waked the priest all shaven and shorn",
    "that married the man all tattered and torn",
    "that kissed the maiden all forlorn",
    "that milked the cow with the crumpled horn",
    "that tossed the dog",
    "that worried the cat",
    "that killed the rat",
    "that ate the malt",
    "that lay in the house that jack built",
];

const SPECIALS: [&str; 4] = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"];
const PAD: u32 = 0;
const CLS: u32 = 1;
const SEP: u32 = 2;
const MASK: u32 = 3;

/// A vocabulary of V words; the id of a word is its index. (The paper: 30,000 SentencePiece units, §3.2.)
struct Vocabulary(Vec<&'static str>);

impl Vocabulary {
    fn new() -> Self {
        let mut words: Vec<&str> = RHYME.iter().flat_map(|clause| clause.split(' ')).collect();
        words.sort_unstable();
        words.dedup();
        Self(SPECIALS.into_iter().chain(words).collect())
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        let id = |word: &str| self.0.iter().position(|&known| known == word).expect("a word of the rhyme") as u32;
        text.split(' ').map(id).collect()
    }
}

// ------------------------------------------------------------------------------------------------------------- batches

/// Two consecutive segments.
type Pair = [Vec<u32>; 2];

/// All pairs of clauses `[i, j)` and `[j, k)` with k - i ≤ 4, four in five for training. The rest are held out; their
/// clauses occur in training, in other pairs.
fn pairs(vocabulary: &Vocabulary) -> [Vec<Pair>; 2] {
    let segment = |range: Range<usize>| vocabulary.ids(&RHYME[range].join(" "));
    let mut pairs = Vec::new();
    for i in 0..RHYME.len() {
        for k in i + 2..=RHYME.len().min(i + 4) {
            pairs.extend((i + 1..k).map(|j| [segment(i..j), segment(j..k)]));
        }
    }
    Stream::new(1, [0; 3]).shuffle(&mut pairs);
    [pairs.split_off(pairs.len() / 5), pairs]
}

/// Sequences `[CLS] x₁ [SEP] x₂ [SEP] [PAD] ..` (§4.1), with the answers to both tasks.
#[derive(Default)]
struct Batch {
    ids: Vec<u32>,      // [B, S]
    segments: Vec<u32>, // [B, S]: 0 up to the first [SEP], then 1
    padding: Vec<f32>,  // [B, A, S, S]: 0, or -10⁹ where the key is padding
    masked: Vec<u32>,   // [M]: chosen words, as rows of [B·S, H]
    words: Vec<u32>,    // [M]: what they were
    swapped: Vec<u32>,  // [B]: 1 if the segments are swapped
}

impl Batch {
    /// A batch of pairs, each in order or swapped: sentence-order prediction (§3.1).
    fn new<'p>(pairs: impl Iterator<Item = (&'p Pair, bool)>, vocabulary: &Vocabulary, stream: &mut Stream) -> Self {
        let mut batch = Self::default();
        for ([x1, x2], swapped) in pairs {
            let tokens = batch.push(if swapped { [x2, x1] } else { [x1, x2] }, swapped);
            batch.mask(tokens, vocabulary, stream);
        }
        batch
    }

    /// Adds a sequence and returns the range of its tokens.
    fn push(&mut self, [x1, x2]: [&[u32]; 2], swapped: bool) -> Range<usize> {
        let start = self.ids.len();
        let tokens = [&[CLS], x1, &[SEP], x2, &[SEP]].concat();
        self.ids.extend(&tokens);
        self.ids.resize(start + S, PAD);
        self.segments.extend((0..S).map(|at| u32::from(at > x1.len() + 1)));
        let keys: Vec<f32> = (0..S).map(|key| if key < tokens.len() { 0.0 } else { -1e9 }).collect();
        self.padding.extend(repeat_n(keys, A * S).flatten());
        self.swapped.push(u32::from(swapped));
        start..start + tokens.len()
    }

    /// Chooses 15 % of the tokens, in spans of n words with p(n) = (1/n) / (1/1 + 1/2 + 1/3), n = 1, 2, 3 (§4.1).
    ///
    /// Of the chosen words 80 % become `[MASK]`, 10 % a random word, and 10 % do not change (Devlin et al. 2019).
    fn mask(&mut self, tokens: Range<usize>, vocabulary: &Vocabulary, stream: &mut Stream) {
        let goal = self.masked.len() + (0.15 * tokens.len() as f32).round() as usize;
        while self.masked.len() < goal {
            let n = [1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3][stream.below(11) as usize];
            let start = tokens.start + stream.below((tokens.len() - n) as u32) as usize;
            for at in (start..start + n).take(goal - self.masked.len()) {
                if self.ids[at] > MASK && !self.masked.contains(&(at as u32)) {
                    self.masked.push(at as u32);
                    self.words.push(self.ids[at]);
                    match stream.below(10) {
                        0 => {}
                        1 => self.ids[at] = MASK + 1 + stream.below(vocabulary.0.len() as u32 - MASK - 1),
                        _ => self.ids[at] = MASK,
                    }
                }
            }
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- model

/// The parameters of ALBERT. Shapes of weights are `[outputs, inputs]`.
struct Albert {
    /// Tables `[V, E]`, `[S, E]` and `[2, E]`, and the map `[H, E]` to the hidden size.
    word: Embedding,
    position: Embedding,
    segment: Embedding,
    embedding_norm: LayerNorm,
    map: Linear,
    /// The encoder layer: attention, four times `[H, H]`; feed-forward block, `[F, H]` and `[H, F]`.
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    attention_norm: LayerNorm,
    ffn: Linear,
    ffn_output: Linear,
    output_norm: LayerNorm,
    /// Masked-language-model head: `[E, H]`, and a bias `[V]` for the decoder, whose weight is the table of words.
    mlm: Linear,
    mlm_norm: LayerNorm,
    mlm_bias: ParamId,
    /// Sentence-order head: `[H, H]`, then `[2, H]`.
    pooler: Linear,
    order: Linear,
}

impl Albert {
    fn new(net: &mut ParamBuilder, v: usize) -> Result<Self> {
        const EPS: f32 = 1e-12;
        Ok(Self {
            word: Embedding::new(&mut net.scope("word"), v, E)?,
            position: Embedding::new(&mut net.scope("position"), S, E)?,
            segment: Embedding::new(&mut net.scope("segment"), 2, E)?,
            embedding_norm: LayerNorm::new(&mut net.scope("embedding_norm"), E, EPS)?,
            map: Linear::new(&mut net.scope("map"), E, H)?,
            query: Linear::new(&mut net.scope("query"), H, H)?,
            key: Linear::new(&mut net.scope("key"), H, H)?,
            value: Linear::new(&mut net.scope("value"), H, H)?,
            attention_output: Linear::new(&mut net.scope("attention_output"), H, H)?,
            attention_norm: LayerNorm::new(&mut net.scope("attention_norm"), H, EPS)?,
            ffn: Linear::new(&mut net.scope("ffn"), H, F)?,
            ffn_output: Linear::new(&mut net.scope("ffn_output"), F, H)?,
            output_norm: LayerNorm::new(&mut net.scope("output_norm"), H, EPS)?,
            mlm: Linear::new(&mut net.scope("mlm"), H, E)?,
            mlm_norm: LayerNorm::new(&mut net.scope("mlm_norm"), E, EPS)?,
            mlm_bias: net.add("mlm_bias", [v], Init::Zeros)?,
            pooler: Linear::new(&mut net.scope("pooler"), H, H)?,
            order: Linear::new(&mut net.scope("order"), H, 2)?,
        })
    }

    /// Factorized embedding (§3.1): V·E + E·H parameters instead of V·H.
    ///
    /// x = LayerNorm(word(id) + segment(s) + position(p))·Wᵀ + b, `[B, S, E]` to `[B, S, H]`
    fn embed<'t>(&self, t: Graph<'t>, batch: &Batch) -> Result<Value<'t>> {
        let b = batch.swapped.len();
        let positions: Vec<u32> = repeat_n(0..S as u32, b).flatten().collect();
        let lookup = |ids: &[u32], table: &Embedding| t.input([b, S], ids)?.apply(table); // [B, S, E]
        let x = lookup(&batch.ids, &self.word)?
            .add(&lookup(&batch.segments, &self.segment)?)?
            .add(&lookup(&positions, &self.position)?)?;
        x.apply(&self.embedding_norm)?.apply(&self.map)
    }

    /// The encoder layer (§3.1): that of BERT, with GELU.
    ///
    /// ```text
    /// q, k, v = x·Wᵀ + b                          per head [S, D]
    /// c = softmax(q·kᵀ/√D + padding)·v            scores [S, S], c [S, D]
    /// y = LayerNorm(x + c·Woᵀ + bo)               [S, H]
    /// z = LayerNorm(y + GELU(y·W1ᵀ + b1)·W2ᵀ + b2)        inside [S, F]
    /// ```
    fn layer<'t>(&self, x: &Value<'t>, padding: &Value<'t>) -> Result<Value<'t>> {
        let b = x.shape()[0];
        let heads = |linear: &Linear| x.apply(linear)?.reshape([b, S, A, D])?.transpose(1, 2); // [B, A, S, D]
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let scores = q.matmul(&k, Transpose::B)?.scale(1.0 / (D as f32).sqrt())?.add(padding)?; // [B, A, S, S]
        let c = scores.softmax()?.matmul(&v, Transpose::NONE)?.transpose(1, 2)?.reshape([b, S, H])?;
        let y = x.add(&c.apply(&self.attention_output)?)?.apply(&self.attention_norm)?;
        let f = y.apply(&self.ffn)?.gelu()?.apply(&self.ffn_output)?;
        y.add(&f)?.apply(&self.output_norm)
    }

    /// Cross-layer parameter sharing (§3.1): the same layer N times. `[B·S, H]`
    fn encode<'t>(&self, t: Graph<'t>, batch: &Batch) -> Result<Value<'t>> {
        let b = batch.swapped.len();
        let padding = t.input([b, A, S, S], &batch.padding)?;
        let mut x = self.embed(t, batch)?;
        for _ in 0..N {
            x = self.layer(&x, &padding)?;
        }
        x.reshape([b * S, H])
    }

    /// Logits of the masked words, with the table of words as decoder (Devlin et al. 2019).
    ///
    /// h = LayerNorm(GELU(x·Wᵀ + b)), `[M, H]` to `[M, E]`; z = h·wordᵀ + b, `[M, V]`
    fn word_logits<'t>(&self, t: Graph<'t>, x: &Value<'t>, batch: &Batch) -> Result<Value<'t>> {
        let x = x.gather_rows(&t.input([batch.masked.len()], &batch.masked)?)?; // [M, H]
        let h = x.apply(&self.mlm)?.gelu()?.apply(&self.mlm_norm)?;
        h.apply(&Linear { weight: self.word.table, bias: Some(self.mlm_bias) })
    }

    /// Logits of the order (§3.1), from `[CLS]`, the first token of each sequence.
    ///
    /// p = tanh(x·Wᵀ + b), `[B, H]`; z = p·Wᵀ + b, `[B, 2]`
    fn order_logits<'t>(&self, t: Graph<'t>, x: &Value<'t>, batch: &Batch) -> Result<Value<'t>> {
        let first: Vec<u32> = (0..batch.swapped.len()).map(|b| (b * S) as u32).collect();
        x.gather_rows(&t.input([first.len()], &first)?)?.apply(&self.pooler)?.tanh()?.apply(&self.order)
    }

    /// Mean cross-entropy -log softmax(z)(label) of words and order; their sum is ALBERT's loss (§3.1).
    fn losses<'t>(&self, t: Graph<'t>, batch: &Batch) -> Result<[CrossEntropyOutput; 2]> {
        let x = self.encode(t, batch)?;
        let loss = |logits: Value<'t>, labels: &[u32]| {
            let count = labels.len();
            let labels = t.input([count], labels)?;
            ops::cross_entropy(&t, &logits, &labels, count as f32)
        };
        Ok([
            loss(self.word_logits(t, &x, batch)?, &batch.words)?,
            loss(self.order_logits(t, &x, batch)?, &batch.swapped)?,
        ])
    }
}

// --------------------------------------------------------------------------------------------- training and evaluation

fn main() -> Result<()> {
    train().map(drop)
}

/// Trains the model and returns its accuracies on the held-out pairs: words and order.
pub fn train() -> Result<[f64; 2]> {
    let vocabulary = Vocabulary::new();
    let [pairs, held_out] = pairs(&vocabulary);
    let mut stream = Stream::new(2, [0; 3]);
    let both_orders = repeat_n(&held_out, 4).flatten().flat_map(|pair| [(pair, false), (pair, true)]);
    let evaluation = Batch::new(both_orders, &vocabulary, &mut stream);

    // Paper: 0.02, for H = 768. With it, a model this narrow first learns only word frequencies.
    let mut net = ParamBuilder::with_weights(Init::TruncatedNormal(0.1));
    let albert = Albert::new(&mut net, vocabulary.0.len())?;
    let device = Device::cpu()?;
    let mut params = net.build(device.processor(), 1)?;
    let mut gradients = params.gradients(&device)?;
    println!("{} parameters; {} pairs, {} held out", params.len(), pairs.len(), held_out.len());

    // LAMB (§4.1): Adam's update, scaled to the norm of each weight. Biases and gains: no decay, no scaling.
    let mut optimizer = Optimizer::new(&params, OptimizerKind::Lamb, AdamConfig::default(), |info| ParamOptions {
        weight_decay: info.is_weight(),
        trust_ratio: info.is_weight(),
    })?;
    let schedule = Schedule::smooth(0.01, STEPS, STEPS / 10); // warm-up, then linear decay to 0

    let mut workspace = Workspace::new(device);
    let mut accuracies = [0.0; 2];
    for step in 0..=STEPS {
        let chosen: Vec<usize> = (0..B).map(|_| stream.below(pairs.len() as u32) as usize).collect();
        let batch = chosen.iter().enumerate().map(|(at, &pair)| (&pairs[pair], at % 2 == 1));
        let batch = Batch::new(batch, &vocabulary, &mut stream);
        gradients.clear()?;
        let [words, order] = {
            let tape = workspace.train(&params, None);
            let t = Graph::new(&tape);
            let [words, order] = albert.losses(t, &batch)?.map(|output| t.value(output.loss)); // forward
            let loss = words.add(&order)?;
            tape.backward(&loss, &mut gradients)?; // backward
            [words.item()?, order.item()?]
        };
        if step % (STEPS / 10) == 0 {
            let tape = workspace.infer(&params, None);
            let [word, swap] = albert.losses(Graph::new(&tape), &evaluation)?;
            let right = [word.correct()?, swap.correct()?];
            accuracies = [right[0] as f64 / word.losses.len() as f64, right[1] as f64 / swap.losses.len() as f64];
            let [word, swap] = accuracies.map(|share| 100.0 * share);
            println!("step {step:4}  loss {words:.3} + {order:.3}  held out: words {word:3.0} %, order {swap:3.0} %");
        }
        clip_global_norm(&mut gradients, Some(1.0), step + 1)?; // g ← g / max(1, ‖g‖)
        optimizer.step(&mut params, &gradients, schedule.rate(step))?; // update
    }
    fill(&albert, &workspace.infer(&params, None), &vocabulary, ["that ate the [MASK]", RHYME[11]])?;

    // A model that ignores its input predicts the most frequent word.
    let all = vocabulary.ids(&RHYME.join(" "));
    let most = all.iter().map(|word| all.iter().filter(|&other| other == word).count()).max();
    let chance = most.expect("the rhyme has words") as f64 / all.len() as f64;
    println!("chance: words {:.0} %, order 50 %", 100.0 * chance);
    assert!(accuracies[0] > 2.5 * chance && accuracies[1] > 0.8, "{accuracies:?}: the model has not learned");
    Ok(accuracies)
}

/// Prints the three most probable words for the mask in a pair of segments.
fn fill(albert: &Albert, tape: &Tape<'_>, vocabulary: &Vocabulary, segments: [&str; 2]) -> Result<()> {
    let [x1, x2] = segments.map(|text| vocabulary.ids(text));
    let mut batch = Batch::default();
    batch.push([&x1, &x2], false);
    batch.masked.extend(batch.ids.iter().position(|&id| id == MASK).map(|at| at as u32));
    let t = Graph::new(tape);
    let x = albert.encode(t, &batch)?;
    let p = albert.word_logits(t, &x, &batch)?.softmax()?.value().to_vec()?; // [1, V]
    let mut ids: Vec<usize> = (0..p.len()).collect();
    ids.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
    let words = [0, 1, 2].map(|at| format!("{} {:.1} %", vocabulary.0[ids[at]], 100.0 * p[ids[at]]));
    println!("{}: {}", segments.join(" | "), words.join(", "));
    Ok(())
}
