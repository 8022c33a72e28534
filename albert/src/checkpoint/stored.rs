//! Tensors of `model.safetensors`.
//!
//! They are the parameters of the model under their own names ([`crate::model::parameters`]), with two exceptions that
//! make any program that reads the format compute the same function:
//!
//! * under attention-only and FFN-only sharing, which `num_hidden_groups` cannot express, every layer is a group with a
//!   copy of the shared half; reading checks that the copies are equal and uses the first;
//! * a model with E = H and no map is stored with an identity matrix and a zero bias, because Hugging Face always has a map.
//!
//! The word embeddings are also the MLM decoder and are stored once: every writer that supports shared tensors drops
//! `predictions.decoder.weight`. The head's bias is stored twice, as `predictions.bias` and `predictions.decoder.bias`:
//! transformers 4.46 loses an ALBERT's bias if only the first exists (it ties from the second, newly initialized to 0), and
//! a BERT's if only the second exists.

use engine::param::ParamInfo;

use crate::config::{AlbertConfig, BlockId, Family, Heads};
use crate::model::parameters;

/// Content of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Values of the parameter with this name.
    Parameter(String),
    /// The identity matrix.
    Identity,
    Zeros,
}

/// One tensor of `model.safetensors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredTensor {
    /// Name in the file.
    pub name: String,
    pub shape: Vec<usize>,
    pub content: Content,
}

const MAP: &str = "albert.encoder.embedding_hidden_mapping_in.";

/// All tensors of `model.safetensors` for the model in a folder of `family`, under ALBERT's names.
pub(crate) fn stored_tensors(config: &AlbertConfig, heads: Heads, family: Family) -> Vec<StoredTensor> {
    let parameters = parameters(config, heads);
    let stored = |name: String, parameter: &ParamInfo| StoredTensor {
        name,
        shape: parameter.shape.to_vec(),
        content: Content::Parameter(parameter.name.clone()),
    };
    let mut out: Vec<StoredTensor> = parameters.iter().map(|own| stored(own.name.clone(), own)).collect();
    if heads.mlm {
        let name = "predictions.decoder.bias".to_owned();
        let content = Content::Parameter("predictions.bias".to_owned());
        out.push(StoredTensor { name, shape: vec![config.vocab_size], content });
    }
    if family == Family::Bert {
        return out;
    }
    for block in config.blocks() {
        // The layer's own place in the file: the place of its unshared half.
        let own = block.attention.max(block.ffn);
        let mut copy = |from: BlockId, is_attention: bool| {
            if from != own {
                let prefix = format!("{from}.");
                for parameter in &parameters {
                    match parameter.name.strip_prefix(&prefix) {
                        Some(rest) if rest.starts_with("attention.") == is_attention => {
                            out.push(stored(format!("{own}.{rest}"), parameter));
                        }
                        _ => {}
                    }
                }
            }
        };
        copy(block.attention, true);
        copy(block.ffn, false);
    }
    if !config.has_embedding_map() {
        let h = config.hidden_size;
        out.push(StoredTensor { name: format!("{MAP}weight"), shape: vec![h, h], content: Content::Identity });
        out.push(StoredTensor { name: format!("{MAP}bias"), shape: vec![h], content: Content::Zeros });
    }
    out
}
