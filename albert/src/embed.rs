//! Text embeddings: one vector per text, pooled from the output of the encoder.
//!
//! ```text
//! mean      Σ_t x_t / S over all tokens of the text, [CLS] and [SEP] included
//! cls       x of the first token
//! pooler    tanh(x_cls·Wᵀ + b)
//! normalize v / ‖v‖₂, so that a dot product is a cosine
//! ```
//!
//! Texts are run in batches of similar length within a token budget, without padding. A text longer than the model's
//! positions is truncated, and counted. Mean pooling is that of Reimers & Gurevych 2019, section 3.

use std::path::Path;

use engine::{Device, Precision, Workspace, profile::Profile};

use crate::checkpoint::ModelFolder;
use crate::config::Heads;
use crate::finite::check_finite;
use crate::loaded::{InferenceError, LoadedModel};
use crate::model::{ForwardOptions, Inputs, Tokens};
pub use crate::sentence::Pooling;
use crate::sentence::SentenceSettings;
use crate::tokenizer::Tokenizer;

/// Maximum tokens of a batch of several texts.
const BUDGET: usize = 4096;

/// A model with its tokenizer, ready to embed texts.
#[derive(Debug)]
pub struct Embedder {
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    pooling: Pooling,
    normalize: bool,
    /// Most tokens of a text, specials included.
    longest: usize,
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
    /// Loads the encoder in `folder`, with the pooler if `pooling` needs it. Without `pooling` it is that of a folder of
    /// sentence-transformers ([`crate::sentence`]), which may also normalize and truncate, or the mean.
    ///
    /// # Errors
    /// A file is missing or damaged, or the tokenizer has another vocabulary size than the model.
    pub fn load(folder: &Path, pooling: Option<Pooling>, device: Device) -> Result<Self, InferenceError> {
        let sentences = SentenceSettings::of_folder(folder)?;
        let files = ModelFolder::open(sentences.as_ref().map_or(folder, |settings| &settings.model))?;
        let of_folder = sentences.as_ref().map(|settings| settings.pooling);
        let pooling = pooling.or(of_folder).unwrap_or(Pooling::Mean);
        let tokenizer = files.tokenizer()?;
        let heads = if pooling == Pooling::Pooler { Heads::MODEL } else { Heads::ENCODER };
        let (loaded, _) = LoadedModel::new(&files, heads, Workspace::new(device))?;
        let positions = loaded.model.config().max_position_embeddings;
        let longest = sentences.as_ref().and_then(|settings| settings.longest).unwrap_or(positions);
        let normalize = sentences.is_some_and(|settings| settings.normalize);
        Ok(Self { loaded, tokenizer, pooling, normalize, longest: longest.clamp(2, positions) })
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
        Ok(self.loaded.set_precision(precision)?)
    }

    /// Width of a vector, H.
    pub fn width(&self) -> usize {
        self.loaded.model.config().hidden_size
    }

    /// Embeds `texts`. `normalize`, or the folder, scales each vector to length 1 (a zero vector is left as it is).
    ///
    /// # Errors
    /// A vector is not finite, or the engine failed.
    pub fn embed<T: AsRef<str> + Sync>(&mut self, texts: &[T], normalize: bool) -> Result<Embedded, InferenceError> {
        let (width, longest) = (self.width(), self.longest);
        let normalize = normalize || self.normalize;
        let specials = self.tokenizer.specials();
        let mut truncated = 0;
        let sequences: Vec<Vec<u32>> = self
            .tokenizer
            .encode_batch(texts)?
            .into_iter()
            .map(|ids| {
                let room = longest - 2;
                truncated += usize::from(ids.len() > room);
                [&[specials.cls], &ids[..ids.len().min(room)], &[specials.sep]].concat()
            })
            .collect();
        let mut order: Vec<usize> = (0..texts.len()).collect();
        // A stable sort: the batches of the same texts are always the same.
        order.sort_by_key(|&text| sequences[text].len());
        let mut vectors = vec![0.0; texts.len() * width];
        let mut rest = &order[..];
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = rest.iter().take_while(|&&text| {
                tokens += sequences[text].len();
                tokens <= BUDGET
            });
            let count = fits.count().max(1);
            let batch: Vec<&[u32]> = rest[..count].iter().map(|&text| &sequences[text][..]).collect();
            let rows = self.run(&batch)?;
            for (row, &text) in rows.chunks_exact(width).zip(rest) {
                vectors[text * width..][..width].copy_from_slice(row);
            }
            rest = &rest[count..];
        }
        check_finite(&vectors, width, &self.loaded.params, |text| format!("the embedding of text {}", text + 1))?;
        if normalize {
            for vector in vectors.chunks_exact_mut(width) {
                let norm = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
                if norm > 0.0 {
                    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
                }
            }
        }
        Ok(Embedded { vectors, width, truncated })
    }

    /// Vectors of one batch, `[B, H]`.
    fn run(&mut self, batch: &[&[u32]]) -> Result<Vec<f32>, InferenceError> {
        let ids = batch.concat();
        let segments = vec![0; ids.len()];
        let positions: Vec<u32> = batch.iter().flat_map(|ids| 0..ids.len() as u32).collect();
        let mut offsets = vec![0];
        offsets.extend(batch.iter().scan(0, |end, ids| {
            *end += ids.len() as u32;
            Some(*end)
        }));
        let pooling = self.pooling;
        self.loaded.infer(|model, tape| {
            let tokens = Tokens { ids: &ids, segments: &segments, positions: &positions, cu_seqlens: &offsets };
            let inputs = Inputs::new(tape, tokens)?;
            let x = model.encode(tape, &inputs, &ForwardOptions::evaluation(tape))?; // [T, H]
            let width = model.config().hidden_size;
            if pooling == Pooling::Pooler {
                let pooler = model.pooler().expect("the model was loaded with its pooler");
                return Ok(pooler.forward(tape, &x, &inputs.first_tokens)?.value().to_vec()?);
            }
            let x = x.value().to_vec()?;
            let rows = offsets.windows(2).flat_map(|pair| {
                let tokens = &x[pair[0] as usize * width..pair[1] as usize * width];
                match pooling {
                    Pooling::Mean => mean(tokens, width),
                    Pooling::Cls | Pooling::Pooler => tokens[..width].to_vec(),
                }
            });
            Ok(rows.collect())
        })
    }
}

/// Mean of rows, accumulated in f64.
fn mean(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; width];
    for row in rows.chunks_exact(width) {
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    let count = (rows.len() / width) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}
