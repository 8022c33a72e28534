//! Text embeddings: one vector per text, pooled from the output of the encoder.
//!
//! ```text
//! mean      Σ_t x_t / S over all tokens of the text, [CLS] and [SEP] included
//! cls       x of the first token
//! pooler    tanh(x_cls·Wᵀ + b)
//! normalize v / ‖v‖₂, so that a dot product is a cosine
//! ```
//! and the other poolings of sentence-transformers; several are concatenated. A sentence-transformers folder may also set a
//! prompt before each text, the length, lower case and the number of columns ([`crate::sentence`]).
//!
//! Texts run in batches of similar length within a token budget, without padding. A text longer than the model's
//! positions is truncated and counted. Source of mean pooling: Reimers & Gurevych 2019, section 3.

use std::path::Path;

use engine::{Device, EngineError, Precision, Reading, Tape, Var, Workspace, profile::Profile};

use crate::checkpoint::ModelFolder;
use crate::config::Heads;
use crate::finite::check_finite;
use crate::loaded::{InferenceError, LoadedModel};
use crate::model::{ForwardOptions, Inputs, Model, Tokens};
pub use crate::sentence::Pooling;
use crate::sentence::SentenceSettings;
use crate::tokenizer::Tokenizer;

/// Maximum tokens of a batch of several texts.
const BUDGET: usize = 4096;

/// Elements of a batch above which several threads pool its texts.
const PARALLEL: usize = 1 << 20;

/// Name of the memory plan of a batch.
const PLAN: &str = "embed";

/// A model with its tokenizer, ready to embed texts.
#[derive(Debug)]
pub struct Embedder {
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    poolings: Vec<Pooling>,
    normalize: bool,
    /// Maximum number of tokens of a text, including special pieces.
    longest: usize,
    /// Settings of a sentence-transformers folder.
    sentences: Option<SentenceSettings>,
    /// Prefix of every text.
    prompt: String,
    /// Tokens at the start that are not pooled.
    skipped: usize,
    /// True once the memory for a full batch on a GPU is planned.
    is_planned: bool,
}

/// Choice of the prefix of every text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// A prompt of the folder, by name.
    Named(&'a str),
    /// A text of the caller's choice.
    Text(&'a str),
}

/// Vectors of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// `[N, H]`, in the order of the texts.
    pub vectors: Vec<f32>,
    /// Width of a vector, H.
    pub width: usize,
    /// Number of texts truncated to the model's positions.
    pub truncated: usize,
}

impl Embedder {
    /// Loads the encoder in `folder`, with the pooler if `pooling` requires it. The default of `pooling` is that of the
    /// sentence-transformers folder ([`crate::sentence`]), which may also normalize and truncate, or else the mean.
    ///
    /// # Errors
    /// A file is missing or damaged, or the tokenizer has another vocabulary size than the model.
    pub fn load(folder: &Path, pooling: Option<Pooling>, device: Device) -> Result<Self, InferenceError> {
        let sentences = SentenceSettings::of_folder(folder)?;
        let files = ModelFolder::open(sentences.as_ref().map_or(folder, |settings| &settings.model))?;
        let of_folder = sentences.as_ref().map(|settings| settings.poolings.clone());
        let poolings = pooling.map(|pooling| vec![pooling]).or(of_folder).unwrap_or_else(|| vec![Pooling::Mean]);
        let mut tokenizer = files.tokenizer()?;
        if sentences.as_ref().is_some_and(|settings| settings.lowercase) {
            tokenizer.lowercase_first()?;
        }
        let heads = if poolings.contains(&Pooling::Pooler) { Heads::MODEL } else { Heads::ENCODER };
        let (loaded, _) = LoadedModel::new(&files, heads, Workspace::new(device))?;
        let positions = loaded.model.config().max_position_embeddings;
        let longest = sentences.as_ref().and_then(|settings| settings.longest).or(tokenizer.longest());
        let (longest, around) = (longest.unwrap_or(positions).min(positions), tokenizer.frame().around_one());
        if longest < around {
            let problem = format!("{longest} tokens at most, but the tokenizer adds {around} to every text");
            return Err(InferenceError::Input(format!("{}: {problem}; raise max_seq_length", folder.display())));
        }
        let normalize = sentences.as_ref().is_some_and(|settings| settings.normalize);
        let (prompt, skipped, is_planned) = (String::new(), 0, false);
        let mut embedder =
            Self { loaded, tokenizer, poolings, normalize, longest, sentences, prompt, skipped, is_planned };
        if let Some(name) = embedder.sentences.as_ref().and_then(|settings| settings.default_prompt.clone()) {
            embedder.set_prompt(Prompt::Named(&name))?;
        }
        Ok(embedder)
    }

    /// Sets the prefix of every text; the default is the default prompt of a sentence-transformers folder.
    ///
    /// # Errors
    /// The folder has no prompt of this name, or the tokenizer failed.
    pub fn set_prompt(&mut self, prompt: Prompt<'_>) -> Result<(), InferenceError> {
        let text = match (prompt, &self.sentences) {
            (Prompt::Text(text), _) => text,
            (Prompt::Named(name), settings) => {
                let found = settings.as_ref().and_then(|settings| settings.prompt(name));
                let names = settings.as_ref().map_or("none".to_owned(), SentenceSettings::prompt_names);
                found.ok_or_else(|| {
                    InferenceError::Input(format!("the model has no prompt {name:?}; its prompts are: {names}"))
                })?
            }
        };
        let is_pooled = self.sentences.as_ref().is_none_or(|settings| settings.include_prompt);
        self.skipped = 0;
        if !is_pooled && !text.is_empty() {
            let ids = self.sequence(self.tokenizer.encode(text)?).0;
            let ends_special = ids.last().is_some_and(|&id| self.tokenizer.is_special(id));
            self.skipped = ids.len() - usize::from(ends_special);
        }
        self.prompt = text.to_owned();
        Ok(())
    }

    /// Returns the pieces of a text as the model's input, and whether it was truncated.
    fn sequence(&self, mut ids: Vec<u32>) -> (Vec<u32>, bool) {
        let frame = self.tokenizer.frame();
        let room = self.longest - frame.around_one();
        let is_truncated = ids.len() > room;
        self.tokenizer.cut(&mut ids, room);
        (frame.one(&ids), is_truncated)
    }

    /// Kernel timings; empty until profiling is switched on.
    pub fn profile(&self) -> &Profile {
        self.loaded.workspace.profile()
    }

    /// Sets the precision of later calls.
    ///
    /// # Errors
    /// A weight exceeds the range of bf16, or the device does not have the precision.
    pub fn set_precision(&mut self, precision: Precision) -> Result<(), InferenceError> {
        self.is_planned = false;
        Ok(self.loaded.set_precision(precision)?)
    }

    /// Width of a vector: H for each pooling, or the number of columns that the folder keeps.
    pub fn width(&self) -> usize {
        let full = self.full_width();
        self.sentences.as_ref().and_then(|settings| settings.width).unwrap_or(full).min(full)
    }

    fn full_width(&self) -> usize {
        self.loaded.model.config().hidden_size * self.poolings.len()
    }

    /// Embeds `texts`. The folder may scale each vector to length 1 before it drops columns; `normalize` does so afterwards (a
    /// zero vector is unchanged).
    ///
    /// # Errors
    /// A vector is not finite, or the engine failed.
    pub fn embed<T: AsRef<str> + Sync>(&mut self, texts: &[T], normalize: bool) -> Result<Embedded, InferenceError> {
        self.embed_later(texts, normalize)?(self)
    }

    /// Begins [`embed`](Self::embed); calling the result with this embedder finishes it. In between, a GPU computes the last batch.
    ///
    /// # Errors
    /// The engine failed.
    pub fn embed_later<T: AsRef<str> + Sync>(
        &mut self,
        texts: &[T],
        normalize: bool,
    ) -> Result<impl FnOnce(&Self) -> Result<Embedded, InferenceError> + use<T>, InferenceError> {
        let width = self.full_width();
        let prompted: Vec<String> = match self.prompt.as_str() {
            "" => Vec::new(),
            prompt => texts.iter().map(|text| format!("{prompt}{}", text.as_ref())).collect(),
        };
        let encoded = match prompted.is_empty() {
            true => self.tokenizer.encode_batch(texts)?,
            false => self.tokenizer.encode_batch(&prompted)?,
        };
        let (sequences, cut): (Vec<Vec<u32>>, Vec<bool>) = encoded.into_iter().map(|ids| self.sequence(ids)).unzip();
        let truncated = cut.into_iter().filter(|&cut| cut).count();
        // A text without tokens has a zero vector.
        let mut order: Vec<usize> = (0..texts.len()).filter(|&text| !sequences[text].is_empty()).collect();
        // A stable sort: the same texts always form the same batches.
        order.sort_by_key(|&text| sequences[text].len());
        self.plan(sequences.iter().map(Vec::len).sum())?;
        let (mut vectors, mut begun) = (vec![0.0; texts.len() * width], None);
        let mut rest = &order[..];
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = rest.iter().take_while(|&&text| {
                tokens += sequences[text].len();
                tokens <= BUDGET
            });
            let count = fits.count().max(1);
            let texts = rest.split_off(..count).expect("a prefix");
            let batch: Vec<&[u32]> = texts.iter().map(|&text| &sequences[text][..]).collect();
            let batch = Begun { texts: texts.to_vec(), ..self.begin(&batch)? };
            // A GPU computes this batch while the one before it is pooled.
            if let Some(earlier) = begun.replace(batch) {
                self.pool(earlier, &mut vectors)?;
            }
        }
        Ok(move |embedder: &Self| {
            begun.map_or(Ok(()), |last| embedder.pool(last, &mut vectors))?;
            embedder.finished(vectors, normalize, truncated)
        })
    }

    /// Converts the vectors to the form chosen by the folder and the caller.
    fn finished(&self, mut vectors: Vec<f32>, normalize: bool, truncated: usize) -> Result<Embedded, InferenceError> {
        let (width, kept) = (self.full_width(), self.width());
        check_finite(&vectors, width, &self.loaded.params, |text| format!("the embedding of text {}", text + 1))?;
        if self.normalize {
            scale_to_one(&mut vectors, width);
        }
        if kept < width {
            vectors = vectors.chunks_exact(width).flat_map(|vector| &vector[..kept]).copied().collect();
        }
        if normalize {
            scale_to_one(&mut vectors, kept);
        }
        Ok(Embedded { vectors, width: kept, truncated })
    }

    /// Plans the memory of batches on a GPU if `tokens` fill one: otherwise ragged batches would allocate tensors of new sizes there.
    fn plan(&mut self, tokens: usize) -> Result<(), InferenceError> {
        if self.is_planned || tokens < BUDGET || self.loaded.workspace.device().gpu().is_none() {
            return Ok(());
        }
        self.is_planned = true;
        let longest = self.longest.min(BUDGET);
        let texts = BUDGET / self.tokenizer.frame().around_one().max(1);
        let lengths = (0..texts).rev().scan(BUDGET, |left, later| {
            let length = (*left - later).min(longest);
            *left -= length;
            Some(vec![0; length])
        });
        let (sequences, LoadedModel { model, params, workspace }) = (lengths.collect::<Vec<_>>(), &mut self.loaded);
        let batch = sequences.iter().map(|ids| &ids[..]).collect::<Vec<_>>();
        let pooler = self.poolings.contains(&Pooling::Pooler);
        workspace.plan(PLAN, |workspace| run(model, &workspace.infer(params, None), &batch, pooler).map(|_| ()))?;
        Ok(())
    }

    /// Begins a batch.
    fn begin(&mut self, batch: &[&[u32]]) -> Result<Begun, InferenceError> {
        let pooler = self.poolings.contains(&Pooling::Pooler);
        let LoadedModel { model, params, workspace } = &mut self.loaded;
        let cpu = workspace.device().processor().clone();
        let rows =
            cpu.enter(|| run(model, &workspace.infer(params, Some(PLAN)), batch, pooler)?.value().to_vec_later())?;
        Ok(Begun { texts: Vec::new(), offsets: offsets(batch), rows })
    }

    /// Waits for the rows of a batch, and pools them into the rows of its texts in `vectors`.
    fn pool(&self, batch: Begun, vectors: &mut [f32]) -> Result<(), InferenceError> {
        let (rows, hidden, width) = (batch.rows.wait()?, self.loaded.model.config().hidden_size, self.full_width());
        let mut out = vec![0.0; batch.texts.len() * width];
        if self.poolings.contains(&Pooling::Pooler) {
            out.copy_from_slice(&rows);
        } else {
            let (poolings, skipped) = (&self.poolings, self.skipped);
            // Pooling a few texts takes less time than waking threads.
            let each = if rows.len() < PARALLEL { batch.texts.len() } else { 1 };
            self.loaded.workspace.device().processor().for_each_chunk(&mut out, each * width, |chunk, out| {
                for (text, out) in (chunk * each..).zip(out.chunks_exact_mut(width)) {
                    let [start, end] = [text, text + 1].map(|at| batch.offsets[at] as usize * hidden);
                    for (&pooling, out) in poolings.iter().zip(out.chunks_exact_mut(hidden)) {
                        out.copy_from_slice(&pooled(&rows[start..end], hidden, pooling, skipped));
                    }
                }
            });
        }
        for (row, text) in out.chunks_exact(width).zip(batch.texts) {
            vectors[text * width..][..width].copy_from_slice(row);
        }
        Ok(())
    }
}

/// A batch that a device computes.
struct Begun {
    /// Indices of its texts.
    texts: Vec<usize>,
    /// First token of each text, and their number.
    offsets: Vec<u32>,
    /// A row for each token, or for each text with the pooler.
    rows: Reading<f32>,
}

fn offsets(batch: &[&[u32]]) -> Vec<u32> {
    let ends = batch.iter().scan(0, |end, ids| {
        *end += ids.len() as u32;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

/// Computes the rows of the tokens of a batch `[T, H]`, or of its texts with the pooler `[B, H]`.
fn run(model: &Model, tape: &Tape<'_>, batch: &[&[u32]], pooler: bool) -> Result<Var, EngineError> {
    let ids = batch.concat();
    let segments = vec![0; ids.len()];
    let positions: Vec<u32> = batch.iter().flat_map(|ids| 0..ids.len() as u32).collect();
    let offsets = offsets(batch);
    let tokens = Tokens { ids: &ids, segments: &segments, positions: &positions, cu_seqlens: &offsets };
    let inputs = Inputs::new(tape, tokens)?;
    let x = model.encode(tape, &inputs, &ForwardOptions::evaluation(tape))?;
    if !pooler {
        return Ok(x);
    }
    let pooler = model.pooler().expect("the model was loaded with its pooler");
    pooler.forward(tape, &x, &inputs.first_tokens)
}

/// Pools the rows `tokens` without the first `skipped` into one vector; zeros if no row remains.
fn pooled(tokens: &[f32], width: usize, pooling: Pooling, skipped: usize) -> Vec<f32> {
    let rows = || tokens.chunks_exact(width).enumerate().skip(skipped);
    let average = |weight: fn(usize) -> f64, divisor: fn(f64) -> f64| {
        let (mut sums, mut total) = (vec![0.0f64; width], 0.0);
        for (at, row) in rows() {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += weight(at) * f64::from(x));
            total += weight(at);
        }
        let divisor = divisor(total).max(f64::MIN_POSITIVE);
        sums.into_iter().map(|sum| (sum / divisor) as f32).collect()
    };
    match pooling {
        Pooling::Mean => average(|_| 1.0, |count| count),
        Pooling::MeanSqrtLen => average(|_| 1.0, f64::sqrt),
        Pooling::WeightedMean => average(|at| (at + 1) as f64, |sum| sum),
        Pooling::Cls | Pooling::Pooler => rows().next().map_or(&tokens[..width], |(_, row)| row).to_vec(),
        Pooling::LastToken => rows().last().map_or(vec![0.0; width], |(_, row)| row.to_vec()),
        Pooling::Max => rows()
            .map(|(_, row)| row.to_vec())
            .reduce(|most, row| most.iter().zip(row).map(|(&a, b)| a.max(b)).collect())
            .unwrap_or_else(|| vec![0.0; width]),
    }
}

/// Scales each vector to length 1; a zero vector is unchanged.
fn scale_to_one(vectors: &mut [f32], width: usize) {
    for vector in vectors.chunks_exact_mut(width) {
        let norm = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if norm > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
        }
    }
}
