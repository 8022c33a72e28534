//! Parameter names used by other programs.
//!
//! ```text
//! ALBERT, Hugging Face   albert.encoder.albert_layer_groups.{g}.albert_layers.{j}.ffn.weight      (the names used here)
//! BERT, Hugging Face     bert.encoder.layer.{g}.intermediate.dense.weight
//! ALBERT, Google         bert/encoder/transformer/group_{g}/inner_group_{j}/ffn_1/intermediate/dense/kernel
//! BERT, Google           bert/encoder/layer_{g}/intermediate/dense/kernel
//! ```
//!
//! A BERT layer is a group with one inner layer. Also accepted: names without the prefix of the base model (a saved `AlbertModel`),
//! the prefixes `module.`, `_orig_mod.` and `model.` (wrapped models), and `gamma` and `beta` for the weight and bias of a
//! LayerNorm. The MLM decoder is the word table under another name; its bias is the head's. Google's matrices called `kernel` are
//! `[in, out]`; all other matrices are `[out, in]`, as everywhere here.

use crate::config::Family;

/// Role of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TensorRole {
    /// Values of a parameter.
    Parameter {
        /// Name in the model.
        name: String,
        /// True if the matrix is stored transposed.
        transposed: bool,
        /// True for a second name of a tied parameter.
        tied: bool,
    },
    /// Recognized but not needed: a constant buffer, an optimizer moment, a step count.
    Ignored,
}

const WORDS: &str = "albert.embeddings.word_embeddings.weight";
const GROUPS: &str = "albert.encoder.albert_layer_groups.";

/// Parts of a BERT layer and their names here.
const BERT: [(&str, &str); 8] = [
    ("attention.self.query.", "attention.query."),
    ("attention.self.key.", "attention.key."),
    ("attention.self.value.", "attention.value."),
    ("attention.output.dense.", "attention.dense."),
    ("attention.output.LayerNorm.", "attention.LayerNorm."),
    ("intermediate.dense.", "ffn."),
    ("output.dense.", "ffn_output."),
    ("output.LayerNorm.", "full_layer_layer_norm."),
];

/// Parts of a Google ALBERT layer, with dots for slashes, and their names here.
const GOOGLE: [(&str, &str); 8] = [
    ("attention_1.self.query.", "attention.query."),
    ("attention_1.self.key.", "attention.key."),
    ("attention_1.self.value.", "attention.value."),
    ("attention_1.output.dense.", "attention.dense."),
    ("LayerNorm.", "attention.LayerNorm."),
    ("ffn_1.intermediate.dense.", "ffn."),
    ("ffn_1.intermediate.output.dense.", "ffn_output."),
    ("LayerNorm_1.", "full_layer_layer_norm."),
];

/// Parts of BERT's heads and their names here.
const BERT_HEADS: [(&str, &str); 5] = [
    ("cls.predictions.transform.dense.", "predictions.dense."),
    ("cls.predictions.transform.LayerNorm.", "predictions.LayerNorm."),
    ("cls.predictions.decoder.", "predictions.decoder."),
    ("cls.predictions.bias", "predictions.bias"),
    ("cls.seq_relationship.", "sop_classifier.classifier."),
];

/// Replaces the first matching prefix of `name`.
fn replaced(name: &str, table: &[(&str, &str)]) -> Option<String> {
    table.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
}

/// Splits `7.rest` into 7 and `rest`.
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Prefixes of programs that wrap a model: several GPUs, torch.compile, Lightning.
const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "model."];

/// `name` without wrapper prefixes.
pub(super) fn without_wrappers(mut name: &str) -> &str {
    while let Some(rest) = WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper)) {
        name = rest;
    }
    name
}

/// Role of the Hugging Face tensor `name`.
pub(super) fn hugging_face(name: &str) -> TensorRole {
    let name = without_wrappers(name);
    let modern = |old: &str, new: &str| name.strip_suffix(old).map(|rest| format!("{rest}{new}"));
    let name = modern(".gamma", ".weight").or_else(|| modern(".beta", ".bias")).unwrap_or_else(|| name.to_owned());
    let name = replaced(&name, &BERT_HEADS).unwrap_or(name);
    let parameter = |name: String, tied| TensorRole::Parameter { name, transposed: false, tied };
    match name.as_str() {
        "predictions.decoder.weight" => return parameter(WORDS.to_owned(), true),
        "predictions.decoder.bias" => return parameter("predictions.bias".to_owned(), true),
        _ => {}
    }
    let base = name.strip_prefix("albert.").or_else(|| name.strip_prefix("bert.")).unwrap_or(&name);
    if base == "embeddings.position_ids" || base == "embeddings.token_type_ids" {
        return TensorRole::Ignored;
    }
    if let Some((layer, rest)) = base.strip_prefix("encoder.layer.").and_then(numbered)
        && let Some(rest) = replaced(rest, &BERT)
    {
        return parameter(format!("{GROUPS}{layer}.albert_layers.0.{rest}"), false);
    }
    if let Some(rest) = base.strip_prefix("pooler.dense.") {
        return parameter(format!("albert.pooler.{rest}"), false);
    }
    let of_base = ["embeddings.", "encoder.", "pooler."].iter().any(|part| base.starts_with(part));
    parameter(if of_base { format!("albert.{base}") } else { name }, false)
}

/// Role of the Google tensor `name`.
pub(super) fn google(name: &str) -> TensorRole {
    const SLOTS: [&str; 6] = ["adam_m", "adam_v", "lamb_m", "lamb_v", "Adam", "Adam_1"];
    let name = name.strip_prefix("module/").unwrap_or(name);
    let (scope, leaf) = name.rsplit_once('/').unwrap_or(("", name));
    let counter = matches!(name, "global_step" | "beta1_power" | "beta2_power" | "_CHECKPOINTABLE_OBJECT_GRAPH");
    if counter || SLOTS.contains(&leaf) {
        return TensorRole::Ignored;
    }
    let (scope, part) = match (scope, leaf) {
        ("", "output_weights") => ("classifier", "weight"),
        ("", "output_bias") => ("classifier", "bias"),
        ("cls/squad", "output_weights") => ("qa_outputs", "weight"),
        ("cls/squad", "output_bias") => ("qa_outputs", "bias"),
        (scope, "output_weights" | "kernel" | "gamma") => (scope, "weight"),
        (scope, "output_bias" | "bias" | "beta") => (scope, "bias"),
        // The tables are variables without an enclosing layer.
        _ => (name, "weight"),
    };
    let dotted = format!("{}.{part}", scope.replace('/', "."));
    let translated = layer_of_google(&dotted).unwrap_or(dotted);
    match hugging_face(&translated) {
        TensorRole::Parameter { name, tied, .. } => TensorRole::Parameter { name, transposed: leaf == "kernel", tied },
        TensorRole::Ignored => TensorRole::Ignored,
    }
}

/// `bert.encoder.transformer.group_0.inner_group_0.` or `bert.encoder.layer_0.` in Hugging Face's spelling.
fn layer_of_google(dotted: &str) -> Option<String> {
    let encoder = dotted.strip_prefix("bert.encoder.")?;
    if let Some(rest) = encoder.strip_prefix("layer_") {
        return Some(format!("bert.encoder.layer.{rest}"));
    }
    let (group, rest) = encoder.strip_prefix("transformer.group_").and_then(numbered)?;
    let (inner, rest) = rest.strip_prefix("inner_group_").and_then(numbered)?;
    Some(format!("{GROUPS}{group}.albert_layers.{inner}.{}", replaced(rest, &GOOGLE)?))
}

/// Name of a parameter in a file of `family`.
///
/// `parameter` is a name from [`crate::model::parameters`] or `super::stored::stored_tensors`; for a BERT its inner layer is 0.
pub fn stored_name(parameter: &str, family: Family) -> String {
    if family == Family::Albert {
        return parameter.to_owned();
    }
    let back = |name: &str, table: &[(&'static str, &'static str)]| {
        table.iter().find_map(|(bert, here)| name.strip_prefix(here).map(|rest| format!("{bert}{rest}")))
    };
    if let Some((layer, rest)) = parameter.strip_prefix(GROUPS).and_then(numbered)
        && let Some(rest) = rest.strip_prefix("albert_layers.0.").and_then(|rest| back(rest, &BERT))
    {
        return format!("bert.encoder.layer.{layer}.{rest}");
    }
    if let Some(rest) = parameter.strip_prefix("albert.pooler.") {
        return format!("bert.pooler.dense.{rest}");
    }
    match parameter.strip_prefix("albert.") {
        Some(rest) => format!("bert.{rest}"),
        None => back(parameter, &BERT_HEADS).unwrap_or_else(|| parameter.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AlbertConfig, Heads, TaskHead};
    use crate::model::parameters;

    fn parameter(name: &str, transposed: bool) -> TensorRole {
        TensorRole::Parameter { name: name.to_owned(), transposed, tied: false }
    }

    #[test]
    fn googles_names_of_groups_and_heads_are_understood_and_only_kernels_are_transposed() {
        for (theirs, ours, transposed) in [
            ("module/bert/embeddings/LayerNorm/beta", "albert.embeddings.LayerNorm.bias".to_owned(), false),
            (
                "bert/encoder/transformer/group_1/inner_group_2/LayerNorm_1/beta",
                format!("{GROUPS}1.albert_layers.2.full_layer_layer_norm.bias"),
                false,
            ),
            ("cls/squad/output_bias", "qa_outputs.bias".to_owned(), false),
            ("output_weights", "classifier.weight".to_owned(), false),
            ("end_logits/dense_0/kernel", "end_logits.dense_0.weight".to_owned(), true),
        ] {
            assert_eq!(google(theirs), parameter(&ours, transposed), "{theirs}");
            for slot in ["adam_m", "adam_v", "lamb_v"] {
                assert_eq!(google(&format!("{theirs}/{slot}")), TensorRole::Ignored);
            }
        }
    }

    #[test]
    fn googles_squad_head_has_all_its_parameters() {
        let config = AlbertConfig::preset("tiny").unwrap();
        let of_head = |name: &String| ["start", "end_", "answer"].iter().any(|part| name.starts_with(part));
        let ours: Vec<String> = parameters(&config, Heads::for_task(TaskHead::SquadV2))
            .into_iter()
            .map(|spec| spec.name)
            .filter(of_head)
            .collect();
        let theirs = "start_logits/dense/kernel start_logits/dense/bias end_logits/dense_0/kernel end_logits/dense_0/bias \
            end_logits/LayerNorm/gamma end_logits/LayerNorm/beta end_logits/dense_1/kernel end_logits/dense_1/bias \
            answer_class/dense_0/kernel answer_class/dense_0/bias answer_class/dense_1/kernel";
        let translated = theirs.split(' ').map(|name| match google(name) {
            TensorRole::Parameter { name, .. } => name,
            TensorRole::Ignored => panic!("{name} is needed"),
        });
        assert_eq!(ours, translated.collect::<Vec<_>>());
    }
}
