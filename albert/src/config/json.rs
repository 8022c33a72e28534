//! `config.json` of Hugging Face and `albert_config.json` of the released code.
//!
//! Both are read leniently: keys that mean nothing here are listed and passed over, missing rates take the defaults of
//! the program that the file belongs to. The sizes must be there: Hugging Face would silently build an xxlarge. What
//! would change the function that is computed (relative positions, untied embeddings, an unknown activation) is
//! refused.

use serde_json::{Map, Value, json};

use super::{Activation, AlbertConfig, ConfigError, EmbeddingMap, Sharing};

/// A configuration and what was noticed while reading it.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigReading {
    /// The configuration, validated.
    pub config: AlbertConfig,
    /// The class that the file names first in `architectures`, such as `AlbertForMaskedLM`.
    pub architecture: Option<String>,
    /// Keys of the file that have no meaning here, in the order of the file.
    pub ignored: Vec<String>,
    /// Remarks for a person: defaults taken, known traps.
    pub notes: Vec<String>,
}

/// Keys that are understood without a value being kept: what they say is either fixed or about other software.
const SILENT: &[&str] = &[
    "model_type",
    "architectures",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "num_labels",
    "id2label",
    "label2id",
];

/// Whose reading of `"gelu"` holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    HuggingFace,
    Google,
}

impl AlbertConfig {
    /// Reads the text of a Hugging Face `config.json`: `"gelu"` is the erf form.
    ///
    /// # Errors
    /// Text that is no JSON object, a missing size, a value of the wrong type, or one that cannot be honoured.
    pub fn from_hf_json(text: &str) -> Result<ConfigReading, ConfigError> {
        Reader::new(text, Origin::HuggingFace)?.read()
    }

    /// Reads the text of Google's `albert_config.json`: `"gelu"` is the tanh form, and E = H has no map.
    ///
    /// # Errors
    /// As [`AlbertConfig::from_hf_json`].
    pub fn from_google_json(text: &str) -> Result<ConfigReading, ConfigError> {
        Reader::new(text, Origin::Google)?.read()
    }

    /// The text of a `config.json` that Hugging Face reads as the same model, with `architecture` (such as
    /// `AlbertForPreTraining`) as its class. Three keys of ours, which it passes over, make reading back exact.
    pub fn to_hf_json(&self, architecture: &str) -> String {
        let value = json!({
            "architectures": [architecture],
            "model_type": "albert",
            "vocab_size": self.vocab_size,
            "embedding_size": self.embedding_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_hidden_groups": self.num_hidden_groups(),
            "inner_group_num": self.inner_group_num,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": self.hidden_act.hf_name(),
            "hidden_dropout_prob": self.hidden_dropout_prob,
            "attention_probs_dropout_prob": self.attention_probs_dropout_prob,
            "classifier_dropout_prob": self.classifier_dropout_prob,
            "max_position_embeddings": self.max_position_embeddings,
            "type_vocab_size": self.type_vocab_size,
            "initializer_range": self.initializer_range,
            "layer_norm_eps": self.layer_norm_eps,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": true,
            "pad_token_id": self.pad_token_id,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "sharing": self.sharing.to_string(),
            "embedding_map": self.embedding_map,
            "ffn_output_dropout": self.ffn_output_dropout,
        });
        let mut text = serde_json::to_string_pretty(&value).expect("a JSON value has a text");
        text.push('\n');
        text
    }
}

/// Takes keys out of the object one by one; what is left was not understood.
struct Reader {
    keys: Map<String, Value>,
    origin: Origin,
    notes: Vec<String>,
}

impl Reader {
    fn new(text: &str, origin: Origin) -> Result<Self, ConfigError> {
        match serde_json::from_str(text) {
            Ok(Value::Object(keys)) => Ok(Self { keys, origin, notes: Vec::new() }),
            Ok(other) => Err(ConfigError::Json(format!("found {}", kind(&other)))),
            Err(error) => Err(ConfigError::Json(error.to_string())),
        }
    }

    fn read(mut self) -> Result<ConfigReading, ConfigError> {
        self.refuse_what_changes_the_function()?;
        let num_hidden_layers = self.size("num_hidden_layers")?;
        let config = AlbertConfig {
            vocab_size: self.size("vocab_size")?,
            embedding_size: self.size("embedding_size")?,
            hidden_size: self.size("hidden_size")?,
            num_hidden_layers,
            sharing: self.sharing(num_hidden_layers)?,
            inner_group_num: self.count_or("inner_group_num", 1)?,
            num_attention_heads: self.size("num_attention_heads")?,
            intermediate_size: self.size("intermediate_size")?,
            hidden_act: self.activation()?,
            hidden_dropout_prob: self.number_or("hidden_dropout_prob", 0.0)?,
            attention_probs_dropout_prob: self.number_or("attention_probs_dropout_prob", 0.0)?,
            classifier_dropout_prob: self.number_or("classifier_dropout_prob", 0.1)?,
            ffn_output_dropout: self.flag_or("ffn_output_dropout", true)?,
            max_position_embeddings: self.count_or("max_position_embeddings", 512)?,
            type_vocab_size: self.count_or("type_vocab_size", 2)?,
            initializer_range: self.number_or("initializer_range", 0.02)?,
            layer_norm_eps: self.number_or("layer_norm_eps", 1e-12)?,
            embedding_map: self.embedding_map()?,
            pad_token_id: self.count_or("pad_token_id", 0)?,
            bos_token_id: self.count_or("bos_token_id", 2)?,
            eos_token_id: self.count_or("eos_token_id", 3)?,
        };
        config.validate()?;
        let classes = self.keys.get("architectures").and_then(Value::as_array);
        let architecture = classes.and_then(|classes| classes.first()?.as_str()).map(str::to_owned);
        let ignored = self.keys.into_iter().map(|(key, _)| key).filter(|key| !SILENT.contains(&key.as_str())).collect();
        Ok(ConfigReading { config, architecture, ignored, notes: self.notes })
    }

    fn refuse_what_changes_the_function(&mut self) -> Result<(), ConfigError> {
        let wrong = |key: &str, found: &Value, expected| {
            Err(ConfigError::WrongType { key: key.to_owned(), found: found.to_string(), expected })
        };
        match self.keys.get("model_type") {
            None | Some(Value::Null) => {}
            Some(Value::String(model)) if model == "albert" => {}
            Some(other) => return wrong("model_type", other, "\"albert\""),
        }
        match self.take("position_embedding_type") {
            None => {}
            Some(Value::String(position)) if position == "absolute" => {}
            Some(other) => return wrong("position_embedding_type", &other, "\"absolute\", the only kind ALBERT has"),
        }
        match self.take("tie_word_embeddings") {
            None | Some(Value::Bool(true)) => Ok(()),
            Some(other) => wrong("tie_word_embeddings", &other, "true: the MLM head uses the word embeddings"),
        }
    }

    /// Removes a key; `null` counts as absent.
    fn take(&mut self, key: &str) -> Option<Value> {
        // `shift_remove` keeps the file's order for the list of ignored keys.
        self.keys.shift_remove(key).filter(|value| !value.is_null())
    }

    fn size(&mut self, key: &'static str) -> Result<usize, ConfigError> {
        let value = self.take(key).ok_or(ConfigError::Missing(key))?;
        as_count(key, &value)
    }

    fn count_or(&mut self, key: &str, default: usize) -> Result<usize, ConfigError> {
        match self.take(key) {
            Some(value) => as_count(key, &value),
            None => Ok(default),
        }
    }

    fn number_or(&mut self, key: &str, default: f64) -> Result<f64, ConfigError> {
        match self.take(key) {
            Some(value) => value.as_f64().ok_or_else(|| ConfigError::WrongType {
                key: key.to_owned(),
                found: value.to_string(),
                expected: "a number",
            }),
            None => Ok(default),
        }
    }

    fn flag_or(&mut self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.take(key) {
            Some(value) => value.as_bool().ok_or_else(|| ConfigError::WrongType {
                key: key.to_owned(),
                found: value.to_string(),
                expected: "true or false",
            }),
            None => Ok(default),
        }
    }

    fn sharing(&mut self, layers: usize) -> Result<Sharing, ConfigError> {
        let groups = self.count_or("num_hidden_groups", 1)?;
        let Some(value) = self.take("sharing") else {
            if groups == 0 || groups > layers {
                return Err(ConfigError::Invalid(format!(
                    "`num_hidden_groups` is {groups}, expected from 1 to `num_hidden_layers` = {layers}"
                )));
            }
            return Ok(Sharing::from_groups(groups, layers));
        };
        let text = value.as_str().unwrap_or_default();
        let sharing: Sharing = text.parse().map_err(ConfigError::Invalid)?;
        if sharing.groups(layers) != groups {
            return Err(ConfigError::Invalid(format!(
                "`sharing` = \"{sharing}\" makes {} layer groups of {layers} layers, but `num_hidden_groups` is {groups}",
                sharing.groups(layers)
            )));
        }
        Ok(sharing)
    }

    fn activation(&mut self) -> Result<Activation, ConfigError> {
        let Some(value) = self.take("hidden_act") else {
            self.notes.push("`hidden_act` is missing: the tanh form of GELU is used".to_owned());
            return Ok(Activation::GeluTanh);
        };
        match (value.as_str(), self.origin) {
            (Some("gelu"), Origin::Google) => Ok(Activation::GeluTanh),
            (Some("gelu"), Origin::HuggingFace) => {
                self.notes.push(
                    "`hidden_act` = \"gelu\" is the erf form, as Hugging Face computes it; Google trained the v1 \
                     releases with the tanh form (\"gelu_new\")"
                        .to_owned(),
                );
                Ok(Activation::GeluErf)
            }
            (Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_tanh"), _) => Ok(Activation::GeluTanh),
            (Some("gelu_erf"), _) => Ok(Activation::GeluErf),
            (Some("relu"), _) => Ok(Activation::Relu),
            _ => Err(ConfigError::WrongType {
                key: "hidden_act".to_owned(),
                found: value.to_string(),
                expected: "\"gelu_new\" (tanh form), \"gelu\" or \"relu\"",
            }),
        }
    }

    fn embedding_map(&mut self) -> Result<EmbeddingMap, ConfigError> {
        match self.take("embedding_map") {
            None if self.origin == Origin::Google => Ok(EmbeddingMap::WhenSizesDiffer),
            None => Ok(EmbeddingMap::Always),
            Some(value) => serde_json::from_value(value.clone()).map_err(|_| ConfigError::WrongType {
                key: "embedding_map".to_owned(),
                found: value.to_string(),
                expected: "\"always\" or \"when_sizes_differ\"",
            }),
        }
    }
}

fn as_count(key: &str, value: &Value) -> Result<usize, ConfigError> {
    value.as_u64().and_then(|count| usize::try_from(count).ok()).ok_or_else(|| ConfigError::WrongType {
        key: key.to_owned(),
        found: value.to_string(),
        expected: "a whole number of at least 0",
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
