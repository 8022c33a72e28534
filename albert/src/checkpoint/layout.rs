//! The parameters of a model by name and shape, and how they lie in `model.safetensors`.
//!
//! Names and shapes are Hugging Face's, Linear weights `[out, in]`. In memory a shared tensor exists once, under the
//! name of the first layer that uses it. On disk two things differ, so that any program that reads the format computes
//! the same function:
//!
//! * under attention-only and FFN-only sharing, which `num_hidden_groups` cannot express, every layer is a group with a
//!   copy of the shared half; reading checks that the copies are equal and takes the first;
//! * a model with E = H and no map gets an identity matrix and a zero bias as its map, which Hugging Face always has.
//!
//! The word embeddings are also the MLM decoder: stored once, as `predictions.decoder.weight` is dropped by every
//! writer that knows shared tensors. The head's bias is stored twice, as `predictions.bias` and `predictions.decoder.bias`:
//! transformers 4.46 loses an ALBERT's that has the first name alone (it ties from the second, freshly made 0) and a BERT's
//! that has the second alone.

use crate::config::{AlbertConfig, BlockId, Family, Heads, TaskHead};

/// What a parameter starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A normal of deviation `initializer_range`, cut at two deviations.
    TruncatedNormal,
    /// 0: biases.
    Zeros,
    /// 1: LayerNorm gains.
    Ones,
}

/// One parameter of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    /// Its name, that of the first layer that uses it.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it starts from.
    pub start: Start,
}

impl ParameterSpec {
    fn new(name: impl Into<String>, shape: &[usize], start: Start) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), start }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements (never true of a valid configuration).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether weight decay and the trust ratio apply: to matrices and tables, not to biases and LayerNorms.
    pub fn is_regularized(&self) -> bool {
        self.start == Start::TruncatedNormal
    }
}

/// What a stored tensor holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The values of the parameter of this name.
    Parameter(String),
    /// The identity matrix.
    Identity,
    /// Zeros.
    Zeros,
}

/// One tensor of `model.safetensors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where its values are from.
    pub content: Content,
}

/// `albert.encoder.albert_layer_groups.{g}.albert_layers.{j}.` of a set of weights.
pub(crate) fn block_prefix(id: BlockId) -> String {
    format!("albert.encoder.albert_layer_groups.{}.albert_layers.{}.", id.group, id.inner)
}

const MAP: &str = "albert.encoder.embedding_hidden_mapping_in.";

/// The parameters of the model in the order in which they lie in memory: embeddings, map, then for each block in the
/// order of its first use query, key and value next to each other, and the heads.
pub fn parameters(config: &AlbertConfig, heads: Heads) -> Vec<ParameterSpec> {
    use Start::TruncatedNormal as Normal;
    let (v, e, h) = (config.vocab_size, config.embedding_size, config.hidden_size);
    let mut out = vec![
        ParameterSpec::new("albert.embeddings.word_embeddings.weight", &[v, e], Normal),
        ParameterSpec::new(
            "albert.embeddings.position_embeddings.weight",
            &[config.max_position_embeddings, e],
            Normal,
        ),
        ParameterSpec::new("albert.embeddings.token_type_embeddings.weight", &[config.type_vocab_size, e], Normal),
    ];
    layer_norm(&mut out, "albert.embeddings.LayerNorm.", e);
    if config.has_embedding_map() {
        linear(&mut out, MAP, h, e);
    }
    let (mut attention_done, mut ffn_done) = (Vec::new(), Vec::new());
    for block in config.blocks() {
        if !attention_done.contains(&block.attention) {
            attention_done.push(block.attention);
            attention(&mut out, config, &block_prefix(block.attention));
        }
        if !ffn_done.contains(&block.ffn) {
            ffn_done.push(block.ffn);
            feed_forward(&mut out, config, &block_prefix(block.ffn));
        }
    }
    if heads.pooler {
        linear(&mut out, "albert.pooler.", h, h);
    }
    if heads.mlm {
        linear(&mut out, "predictions.dense.", e, h);
        layer_norm(&mut out, "predictions.LayerNorm.", e);
        out.push(ParameterSpec::new("predictions.bias", &[v], Start::Zeros));
    }
    if heads.sop {
        linear(&mut out, "sop_classifier.classifier.", 2, h);
    }
    if let Some(task) = heads.task {
        task_head(&mut out, task, h);
    }
    out
}

fn task_head(out: &mut Vec<ParameterSpec>, task: TaskHead, h: usize) {
    match task {
        TaskHead::Sequence { .. } | TaskHead::Token { .. } | TaskHead::Choice => {
            linear(out, "classifier.", task.labels(), h);
        }
        TaskHead::Span => linear(out, "qa_outputs.", 2, h),
        TaskHead::SquadV2 => {
            linear(out, "start_logits.dense.", 1, h);
            linear(out, "end_logits.dense_0.", h, 2 * h);
            layer_norm(out, "end_logits.LayerNorm.", h);
            linear(out, "end_logits.dense_1.", 1, h);
            linear(out, "answer_class.dense_0.", h, 2 * h);
            out.push(ParameterSpec::new("answer_class.dense_1.weight", &[1, h], Start::TruncatedNormal));
        }
    }
}

/// Everything that `model.safetensors` holds for the model in a folder of `family`, under the names of this module.
pub fn stored_tensors(config: &AlbertConfig, heads: Heads, family: Family) -> Vec<StoredTensor> {
    let mut out: Vec<StoredTensor> = parameters(config, heads)
        .into_iter()
        .map(|spec| StoredTensor { content: Content::Parameter(spec.name.clone()), name: spec.name, shape: spec.shape })
        .collect();
    if heads.mlm {
        let name = "predictions.decoder.bias".to_owned();
        let content = Content::Parameter("predictions.bias".to_owned());
        out.push(StoredTensor { name, shape: vec![config.vocab_size], content });
    }
    if family == Family::Bert {
        return out;
    }
    for block in config.blocks() {
        // The layer's own place in the file: that of the half which is not shared.
        let own = block.attention.max(block.ffn);
        let mut copy = |from: BlockId, half: fn(&mut Vec<ParameterSpec>, &AlbertConfig, &str)| {
            if from != own {
                let (mut originals, mut copies) = (Vec::new(), Vec::new());
                half(&mut originals, config, &block_prefix(from));
                half(&mut copies, config, &block_prefix(own));
                out.extend(copies.into_iter().zip(originals).map(|(copy, original)| StoredTensor {
                    name: copy.name,
                    shape: copy.shape,
                    content: Content::Parameter(original.name),
                }));
            }
        };
        copy(block.attention, attention);
        copy(block.ffn, feed_forward);
    }
    if !config.has_embedding_map() {
        let h = config.hidden_size;
        out.push(StoredTensor { name: format!("{MAP}weight"), shape: vec![h, h], content: Content::Identity });
        out.push(StoredTensor { name: format!("{MAP}bias"), shape: vec![h], content: Content::Zeros });
    }
    out
}

fn linear(out: &mut Vec<ParameterSpec>, prefix: &str, outputs: usize, inputs: usize) {
    out.push(ParameterSpec::new(format!("{prefix}weight"), &[outputs, inputs], Start::TruncatedNormal));
    out.push(ParameterSpec::new(format!("{prefix}bias"), &[outputs], Start::Zeros));
}

fn layer_norm(out: &mut Vec<ParameterSpec>, prefix: &str, width: usize) {
    out.push(ParameterSpec::new(format!("{prefix}weight"), &[width], Start::Ones));
    out.push(ParameterSpec::new(format!("{prefix}bias"), &[width], Start::Zeros));
}

fn attention(out: &mut Vec<ParameterSpec>, config: &AlbertConfig, prefix: &str) {
    let h = config.hidden_size;
    // The three weights, then the three biases, lie next to each other: together they are one [3H, H] projection.
    for (part, shape, start) in [("weight", &[h, h][..], Start::TruncatedNormal), ("bias", &[h], Start::Zeros)] {
        for which in ["query", "key", "value"] {
            out.push(ParameterSpec::new(format!("{prefix}attention.{which}.{part}"), shape, start));
        }
    }
    linear(out, &format!("{prefix}attention.dense."), h, h);
    layer_norm(out, &format!("{prefix}attention.LayerNorm."), h);
}

fn feed_forward(out: &mut Vec<ParameterSpec>, config: &AlbertConfig, prefix: &str) {
    let (h, f) = (config.hidden_size, config.intermediate_size);
    linear(out, &format!("{prefix}ffn."), f, h);
    linear(out, &format!("{prefix}ffn_output."), h, f);
    layer_norm(out, &format!("{prefix}full_layer_layer_norm."), h);
}
