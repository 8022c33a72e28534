//! Meaning of the keys in third-party model folders.
//!
//! [`KEYS`] is the only table. `check` reads the files of a folder, rejects the values that the table refuses, and reports
//! unknown keys in one remark; `docs/folders.md` is the table as text. The reader of each file implements its obeyed keys.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use engine::io::limits;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{CheckpointError, modules::LIMITS};

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Results depend on it as in transformers and sentence-transformers; a value that cannot be obeyed is refused.
    Obeyed,
    /// No result depends on it.
    Irrelevant,
    /// Refused unless it is missing, `null` or one of these JSON texts.
    Refused(&'static [&'static str]),
    /// As `Refused`, but irrelevant where the folder has a `tokenizer.json`.
    RefusedWithoutPipeline(&'static [&'static str]),
}

/// Keys of one file with the same effect.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// File name, followed by the part for a `tokenizer.json`.
    pub file: &'static str,
    /// The keys, separated by spaces.
    pub keys: &'static str,
    /// Effect of the keys.
    pub used: Use,
    /// Purpose of the keys, or reason for refusing them.
    pub remark: &'static str,
}

use Use::{Irrelevant, Obeyed, Refused, RefusedWithoutPipeline};

const CONFIG: &str = "config.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIAL: &str = "special_tokens_map.json";
const PIPELINE: &str = "tokenizer.json";
const MODULES: &str = "modules.json";
const POOLING: &str = "1_Pooling/config.json";
const SENTENCE: &str = "sentence_bert_config.json";
const SENTENCE_TRANSFORMERS: &str = "config_sentence_transformers.json";
const FALSE: &[&str] = &["false"];
const TRUE: &[&str] = &["true"];

const fn row(file: &'static str, used: Use, keys: &'static str, remark: &'static str) -> Keys {
    Keys { file, keys, used, remark }
}

/// All known keys, by file.
pub const KEYS: &[Keys] = &[
    row(CONFIG, Obeyed, "model_type architectures", "family and class: `albert` or `bert`"),
    row(
        CONFIG,
        Obeyed,
        "vocab_size embedding_size hidden_size num_hidden_layers num_hidden_groups inner_group_num num_attention_heads \
         intermediate_size max_position_embeddings type_vocab_size layer_norm_eps",
        "shape",
    ),
    row(CONFIG, Obeyed, "hidden_act", "`relu` and all names of GELU's two forms; any other is refused"),
    row(
        CONFIG,
        Obeyed,
        "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob initializer_range \
         ffn_output_dropout",
        "training",
    ),
    row(CONFIG, Obeyed, "id2label label2id problem_type", "names of classes and what their scores mean"),
    row(CONFIG, Obeyed, "pad_token_id bos_token_id eos_token_id", "kept; ids in texts are the tokenizer's"),
    row(CONFIG, Obeyed, "sharing embedding_map", "our own: sharing beyond layer groups, E = H without a map"),
    row(CONFIG, Obeyed, "tokenizer_class", "where tokenizer_config.json names none"),
    row(CONFIG, Refused(FALSE), "is_decoder add_cross_attention is_encoder_decoder", "attention is in both directions"),
    row(CONFIG, Refused(&["{}"]), "pruned_heads", "all heads are computed"),
    row(CONFIG, Refused(&["\"absolute\""]), "position_embedding_type", "the only kind here"),
    row(CONFIG, Refused(TRUE), "tie_word_embeddings", "the MLM head uses the word embeddings"),
    row(
        CONFIG,
        Refused(&[]),
        "quantization_config",
        "quantized weights are not read; save the model in f32, bf16 or f16",
    ),
    row(CONFIG, Refused(&[]), "adapters", "adapters are not run; merge them into the weights"),
    row(
        CONFIG,
        Irrelevant,
        "num_labels _num_labels transformers_version torch_dtype dtype _name_or_path use_cache gradient_checkpointing \
         output_attentions output_hidden_states output_past return_dict use_return_dict torchscript use_bfloat16 \
         tf_legacy_loss finetuning_task chunk_size_feed_forward cross_attention_hidden_size _attn_implementation \
         _attn_implementation_autoset attn_implementation _attn_implementation_internal _commit_hash sentence_transformers \
         sbert_ce_default_activation_function pretraining_tp",
        "other software, or the same result",
    ),
    row(CONFIG, Irrelevant, "auto_map", "code in the folder is not run; transformers has these families itself"),
    row(
        CONFIG,
        Irrelevant,
        "net_structure_type gap_size num_memory_blocks down_scale_factor layers_to_keep directionality pooler_fc_size \
         pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type",
        "unused in Google's code as well",
    ),
    row(
        CONFIG,
        Irrelevant,
        "task_specific_params prefix max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty \
         temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size \
         encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate \
         forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens \
         begin_suppress_tokens decoder_start_token_id sep_token_id cls_token_id mask_token_id unk_token_id eos_token_ids",
        "generation of text",
    ),
    row(
        TOKENIZER_CONFIG,
        Obeyed,
        "tokenizer_class",
        "chooses the vocabulary file; from a vocab.txt or spiece.model alone, other classes than BERT's and ALBERT's are refused",
    ),
    row(
        TOKENIZER_CONFIG,
        Obeyed,
        "do_lower_case strip_accents tokenize_chinese_chars keep_accents",
        "the last for a spiece.model; a tokenizer.json is overridden by the first three of BERT's classes alone",
    ),
    row(
        TOKENIZER_CONFIG,
        Obeyed,
        "model_max_length max_len",
        "unless sentence_bert_config.json or task.json sets the length",
    ),
    row(TOKENIZER_CONFIG, Obeyed, "truncation_side", "texts and pairs; windows and options are cut as documented"),
    row(TOKENIZER_CONFIG, Obeyed, "model_input_names", "without token_type_ids, pairs have one segment"),
    row(TOKENIZER_CONFIG, Obeyed, "pad_token unk_token cls_token sep_token mask_token", "special pieces"),
    row(
        TOKENIZER_CONFIG,
        Obeyed,
        "added_tokens_decoder additional_special_tokens extra_special_tokens",
        "added words with their flags",
    ),
    row(TOKENIZER_CONFIG, Obeyed, "ids_by", "our own: the file with the rules"),
    row(
        TOKENIZER_CONFIG,
        RefusedWithoutPipeline(TRUE),
        "remove_space do_basic_tokenize",
        "runs of spaces, words of BERT",
    ),
    row(TOKENIZER_CONFIG, RefusedWithoutPipeline(&["[]"]), "never_split", "words are split"),
    row(TOKENIZER_CONFIG, RefusedWithoutPipeline(&["{}"]), "sp_model_kwargs", "no sampling"),
    row(TOKENIZER_CONFIG, RefusedWithoutPipeline(&["\"##\""]), "wordpieces_prefix", "continues a word"),
    row(TOKENIZER_CONFIG, Refused(FALSE), "split_special_tokens", "typed special pieces are found"),
    row(
        TOKENIZER_CONFIG,
        Irrelevant,
        "bos_token eos_token padding_side pad_token_id pad_token_type_id pad_to_multiple_of max_length stride \
         truncation_strategy name_or_path special_tokens_map_file tokenizer_file full_tokenizer_file vocab_file \
         transformers_version processor_class clean_up_tokenization_spaces clean_text legacy use_fast from_slow backend \
         is_local local_files_only verbose chat_template model_specific_special_tokens add_prefix_space \
         trim_offsets errors add_bos_token add_eos_token auto_map tokenizer_type device_map init_inputs return_token_type_ids padding truncation \
         trust_remote_code revision cache_dir use_auth_token token",
        "padding, decoding, other software",
    ),
    row(
        SPECIAL,
        Obeyed,
        "pad_token unk_token cls_token sep_token mask_token",
        "before those of tokenizer_config.json, unless that has added_tokens_decoder",
    ),
    row(SPECIAL, Obeyed, "additional_special_tokens extra_special_tokens", "added words"),
    row(SPECIAL, Irrelevant, "bos_token eos_token", "generation of text"),
    row("added_tokens.json", Obeyed, "*", "added words and their ids, unless added_tokens_decoder has them"),
    row(
        PIPELINE,
        Obeyed,
        "added_tokens normalizer pre_tokenizer post_processor model",
        "run by Hugging Face's library",
    ),
    row(PIPELINE, Irrelevant, "version decoder padding", "decoding follows it, results do not depend on it"),
    row(PIPELINE, Obeyed, "truncation", "its direction, where tokenizer_config.json has no side; not its length"),
    row("tokenizer.json added_tokens", Obeyed, "id content single_word lstrip rstrip normalized special", "each word"),
    row(
        "tokenizer.json normalizer",
        Obeyed,
        "type normalizers clean_text handle_chinese_chars strip_accents lowercase strip_left strip_right left right pattern \
         content precompiled_charsmap prepend",
        "all kinds of the library",
    ),
    row(
        "tokenizer.json pre_tokenizer",
        Obeyed,
        "type pretokenizers add_prefix_space trim_offsets use_regex replacement prepend_scheme split str_rep pattern behavior \
         invert individual_digits delimiter length",
        "all kinds of the library",
    ),
    row(
        "tokenizer.json post_processor",
        Obeyed,
        "type processors single pair special_tokens sep cls trim_offsets add_prefix_space use_regex",
        "special pieces around one text and a pair; segments other than 0, then 1 from the second text on are refused",
    ),
    row(
        "tokenizer.json model",
        Obeyed,
        "type vocab merges unk_token unk_id continuing_subword_prefix end_of_word_suffix max_input_chars_per_word \
         byte_fallback fuse_unk ignore_merges",
        "all kinds of the library",
    ),
    row("tokenizer.json model", Refused(&["0", "0.0"]), "dropout", "ids would be random"),
    row("tokenizer.json truncation", Obeyed, "direction", "the side"),
    row("tokenizer.json truncation", Irrelevant, "max_length strategy stride", "transformers does not use them either"),
    row(
        "tokenizer.json padding",
        Irrelevant,
        "strategy direction pad_to_multiple_of pad_id pad_type_id pad_token",
        "sequences are not padded",
    ),
    row(MODULES, Obeyed, "path type", "Transformer, Pooling, Normalize in this order; any other is refused"),
    row(MODULES, Irrelevant, "idx name", "the order is the list's"),
    row(MODULES, Refused(&["[]"]), "kwargs", "arguments of a module"),
    row(
        POOLING,
        Obeyed,
        "pooling_mode pooling_mode_cls_token pooling_mode_mean_tokens pooling_mode_max_tokens pooling_mode_mean_sqrt_len_tokens \
         pooling_mode_weightedmean_tokens pooling_mode_lasttoken include_prompt",
        "several are joined in this order",
    ),
    row(POOLING, Irrelevant, "word_embedding_dimension embedding_dimension", "the model's width"),
    row(SENTENCE, Obeyed, "max_seq_length do_lower_case", "length with special pieces; text in lower case first"),
    row(
        SENTENCE,
        Refused(&["{}"]),
        "model_args config_args tokenizer_args model_kwargs config_kwargs tokenizer_kwargs processor_kwargs processing_kwargs",
        "arguments of transformers",
    ),
    row(SENTENCE, Refused(&["\"feature-extraction\""]), "transformer_task", "the encoder's output is pooled"),
    row(SENTENCE, Refused(&["\"token_embeddings\""]), "module_output_name", "the encoder's output is pooled"),
    row(
        SENTENCE,
        Irrelevant,
        "modality_config unpad_inputs query_length document_length query_expansion",
        "texts alone",
    ),
    row(SENTENCE_TRANSFORMERS, Obeyed, "prompts default_prompt_name truncate_dim", "as `encode` does"),
    row(SENTENCE_TRANSFORMERS, Refused(&["\"SentenceTransformer\""]), "model_type", "other kinds of models"),
    row(SENTENCE_TRANSFORMERS, Irrelevant, "__version__ similarity_fn_name", "no similarities are computed"),
];

/// The table as Markdown, a section for each file.
pub fn as_markdown() -> String {
    let mut text = String::new();
    let mut file = "";
    for keys in KEYS {
        if keys.file != file {
            file = keys.file;
            write!(text, "\n## {file}\n\n| keys | effect | remark |\n|---|---|---|\n")
                .expect("a string can be written to");
        }
        let effect = match keys.used {
            Obeyed => "obeyed".to_owned(),
            Irrelevant => "irrelevant".to_owned(),
            Refused([]) => "refused".to_owned(),
            Refused(allowed) => format!("refused unless `{}`", allowed.join("` or `")),
            RefusedWithoutPipeline(allowed) => {
                format!("refused unless `{}` or there is a tokenizer.json", allowed.join("` or `"))
            }
        };
        let names: Vec<&str> = keys.keys.split_whitespace().collect();
        writeln!(text, "| `{}` | {effect} | {} |", names.join("`, `"), keys.remark)
            .expect("a string can be written to");
    }
    text
}

/// Receiver of remarks: path and text. An error refuses the folder.
type Receiver = fn(&Path, &str) -> Result<(), String>;

static RECEIVER: OnceLock<Receiver> = OnceLock::new();

/// Sets the receiver of remarks about third-party folders, once for the process; without it they are dropped.
pub fn on_remark(receiver: Receiver) {
    RECEIVER.get_or_init(|| receiver);
}

/// Passes a remark about `path` to the receiver.
///
/// # Errors
/// The receiver refuses the folder.
pub(crate) fn remark(path: &Path, text: &str) -> Result<(), CheckpointError> {
    let result = RECEIVER.get().map_or(Ok(()), |receiver| receiver(path, text));
    result.map_err(|problem| CheckpointError::Folder { path: path.to_owned(), problem })
}

/// The rows of a file or of a part.
fn rows(file: &str) -> impl Iterator<Item = &'static Keys> + use<'_> {
    KEYS.iter().filter(move |keys| keys.file == file)
}

fn find(file: &str, key: &str) -> Option<&'static Keys> {
    rows(file).find(|keys| keys.keys.split_whitespace().any(|known| known == key))
}

/// Checks all files of the model in `folder` against [`KEYS`]. Unknown keys become one remark of at most ten names.
///
/// # Errors
/// A key has a value that the table refuses, or the receiver of remarks refuses the folder. Damaged files are reported by
/// their readers.
pub(crate) fn check(folder: &Path) -> Result<(), CheckpointError> {
    let mut unknown = Vec::new();
    let has_pipeline = folder.join(PIPELINE).is_file();
    let config =
        [CONFIG, "albert_config.json", "bert_config.json"].into_iter().find(|name| folder.join(name).is_file());
    let own = [(config.unwrap_or(CONFIG), CONFIG)];
    let same = [TOKENIZER_CONFIG, SPECIAL, SENTENCE_TRANSFORMERS].map(|name| (name, name));
    let lengths = LIMITS.map(|name| (name, SENTENCE));
    for (name, file) in own.into_iter().chain(same).chain(lengths) {
        let path = folder.join(name);
        if let Some(object) = object(&path) {
            check_object(&path, file, &object, has_pipeline, &mut unknown)?;
        }
    }
    for module in object_list(&folder.join(MODULES)) {
        check_object(&folder.join(MODULES), MODULES, &module, has_pipeline, &mut unknown)?;
        let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
        let path = folder.join(text("path")).join(CONFIG);
        if let Some(object) = object(&path).filter(|_| text("type").ends_with("Pooling")) {
            check_object(&path, POOLING, &object, has_pipeline, &mut unknown)?;
        }
    }
    check_pipeline(&folder.join(PIPELINE), &mut unknown);
    unknown.dedup();
    if unknown.is_empty() {
        return Ok(());
    }
    const SHOWN: usize = 10;
    let shown = unknown.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match unknown.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    remark(folder, &format!("unknown keys, which have no effect: {shown}{more}"))
}

fn value(path: &Path) -> Option<Value> {
    let text = limits::read_text(path, limits::LARGEST_SETTINGS).ok()?;
    limits::check_json(text.as_bytes()).ok()?;
    serde_json::from_str(&text).ok()
}

fn object(path: &Path) -> Option<Map<String, Value>> {
    match value(path) {
        Some(Value::Object(object)) => Some(object),
        _ => None,
    }
}

fn object_list(path: &Path) -> Vec<Map<String, Value>> {
    let list = value(path).and_then(|value| value.as_array().cloned()).unwrap_or_default();
    list.into_iter().filter_map(|entry| entry.as_object().cloned()).collect()
}

fn check_object(
    path: &Path,
    file: &str,
    object: &Map<String, Value>,
    has_pipeline: bool,
    unknown: &mut Vec<String>,
) -> Result<(), CheckpointError> {
    let own_name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = if file == POOLING { POOLING } else { own_name.as_ref() };
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let Some(row) = find(file, key) else {
            unknown.push(format!("{key} ({name})"));
            continue;
        };
        let allowed = match row.used {
            Obeyed | Irrelevant => continue,
            RefusedWithoutPipeline(_) if has_pipeline => continue,
            Refused(allowed) | RefusedWithoutPipeline(allowed) => allowed,
        };
        let found = value.to_string();
        if !allowed.contains(&found.as_str()) {
            let found: String = found.chars().take(80).collect();
            let expected = if allowed.is_empty() { "none" } else { &allowed.join(" or ") };
            let problem = format!("`{key}` is {found}; expected {expected}: {}", row.remark);
            return Err(CheckpointError::Folder { path: PathBuf::from(path), problem });
        }
    }
    Ok(())
}

/// Names of the keys of a `tokenizer.json`, as `part key`, without the content of vocabularies.
#[derive(Default)]
struct Names(BTreeSet<String>);

/// Keys whose values are names of pieces, not settings.
const OPAQUE: [&str; 7] = ["vocab", "merges", "special_tokens", "single", "pair", "pattern", "strategy"];

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Names;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("JSON")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Names::default();
                while let Some(key) = map.next_key::<String>()? {
                    if OPAQUE.contains(&key.as_str()) {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let inner: Names = map.next_value()?;
                        names.0.extend(inner.0.into_iter().map(|name| format!("{key} {name}")));
                    }
                    names.0.insert(key);
                }
                Ok(names)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
                let mut names = Names::default();
                while let Some(inner) = list.next_element::<Names>()? {
                    names.0.extend(inner.0);
                }
                Ok(names)
            }

            fn visit_unit<E>(self) -> Result<Names, E> {
                Ok(Names::default())
            }

            fn visit_bool<E>(self, _: bool) -> Result<Names, E> {
                Ok(Names::default())
            }

            fn visit_i64<E>(self, _: i64) -> Result<Names, E> {
                Ok(Names::default())
            }

            fn visit_u64<E>(self, _: u64) -> Result<Names, E> {
                Ok(Names::default())
            }

            fn visit_f64<E>(self, _: f64) -> Result<Names, E> {
                Ok(Names::default())
            }

            fn visit_str<E>(self, _: &str) -> Result<Names, E> {
                Ok(Names::default())
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Reports the unknown keys of a `tokenizer.json`; the library checks its values.
fn check_pipeline(path: &Path, unknown: &mut Vec<String>) {
    let Ok(bytes) = limits::read(path, limits::LARGEST_FILE) else { return };
    if limits::check_json(&bytes).is_err() {
        return;
    }
    let Ok(Names(names)) = serde_json::from_slice(&bytes) else { return };
    for name in names {
        let mut parts = name.split(' ');
        let (part, key) = (parts.next().unwrap_or_default(), parts.next_back());
        let file = format!("{PIPELINE} {part}");
        let is_known = match key {
            None => find(PIPELINE, part).is_some(),
            // Parts without rows, and the content of unknown parts, have no effect.
            Some(key) => rows(&file).next().is_none() || find(&file, key).is_some(),
        };
        if !is_known {
            unknown.push(format!("{} ({PIPELINE})", name.replace(' ', ".")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_in_two_rows_of_a_file() {
        for (at, row) in KEYS.iter().enumerate() {
            let earlier = KEYS[..at].iter().filter(|other| other.file == row.file);
            let earlier: Vec<&str> = earlier.flat_map(|other| other.keys.split_whitespace()).collect();
            for (at, key) in row.keys.split_whitespace().enumerate() {
                let own = row.keys.split_whitespace().take(at).any(|other| other == key);
                assert!(!own && !earlier.contains(&key), "{} has {key} twice", row.file);
            }
        }
    }

    /// Every refused key is rejected by name, its allowed values are accepted, and an unknown key is reported.
    #[test]
    fn refused_keys_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        for row in KEYS.iter().filter(|row| !row.file.contains(' ')) {
            let (Refused(allowed) | RefusedWithoutPipeline(allowed)) = row.used else { continue };
            for key in row.keys.split_whitespace() {
                let path = folder.path().join(row.file);
                let write = |value: &str| {
                    let object = format!("{{\"{key}\": {value}}}");
                    std::fs::write(&path, if row.file == MODULES { format!("[{object}]") } else { object }).unwrap();
                };
                for value in allowed.iter().chain(&["null"]) {
                    write(value);
                    check(folder.path()).unwrap_or_else(|error| panic!("{key} = {value}: {error}"));
                }
                write("\"another value\"");
                let error = check(folder.path()).unwrap_err().to_string();
                assert!(error.contains(&format!("{}: `{key}` is \"another value\"; expected", row.file)), "{error}");
                if matches!(row.used, RefusedWithoutPipeline(_)) {
                    std::fs::write(folder.path().join(PIPELINE), "{}").unwrap();
                    check(folder.path()).unwrap();
                    std::fs::remove_file(folder.path().join(PIPELINE)).unwrap();
                }
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}
