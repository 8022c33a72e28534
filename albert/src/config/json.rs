//! `config.json` of Hugging Face and `albert_config.json` of the released code.
//!
//! Both are read leniently: keys without a meaning here are listed and skipped, and missing rates get the defaults of
//! the program that the file belongs to. Sizes are required: Hugging Face would silently build an xxlarge. Settings
//! that would change the computed function (relative positions, untied embeddings, an unknown activation) are
//! rejected.

use engine::io::limits;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Activation, AlbertConfig, ConfigError, EmbeddingMap, Family, Sharing};

/// A configuration and the remarks of its reader.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigReading {
    /// The configuration, validated.
    pub config: AlbertConfig,
    /// Family of tensor names, `model_type`.
    pub family: Family,
    /// Names of the labels of a task's head by their number (`id2label`, or else `label2id`); empty where the file has none.
    pub labels: Vec<String>,
    /// Reason why the file's names of labels cannot be used.
    pub labels_problem: Option<String>,
    /// Meaning of the scores of a sequence's head (`problem_type`), if the file states it.
    pub problem_type: Option<ProblemType>,
    /// The class that the file names first in `architectures`, such as `AlbertForMaskedLM`.
    pub architecture: Option<String>,
    /// Keys of the file without a meaning here, in the order of the file.
    pub ignored: Vec<String>,
    /// Remarks for the user: defaults used, known traps.
    pub notes: Vec<String>,
}

/// Meaning of the n scores of a sequence's head, named as in Hugging Face's `problem_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemType {
    /// Real values; the loss is the mean squared error.
    Regression,
    /// One of n classes: softmax, cross-entropy.
    SingleLabelClassification,
    /// Any subset of n labels, each independent: sigmoid, binary cross-entropy.
    MultiLabelClassification,
}

/// Contents of a `config.json` other than the configuration.
#[derive(Clone, Copy, Debug)]
pub struct ConfigIdentity<'a> {
    /// Family of tensor names.
    pub family: Family,
    /// The class, such as `AlbertForPreTraining`.
    pub architecture: &'a str,
    /// Element type of the stored weights, such as `float32`.
    pub torch_dtype: &'a str,
    /// Labels of the task's head, if there is one.
    pub num_labels: Option<usize>,
    /// Names of the labels; empty for `LABEL_0` and so on.
    pub labels: &'a [String],
    /// Meaning of the scores of a sequence's head; `None`: regression for one, one of the classes for several.
    pub problem_type: Option<ProblemType>,
}

/// Keys that are recognized but not stored: they are either fixed or concern other software.
const SILENT: &[&str] =
    &["model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "num_labels", "label2id"];

/// Program that the file belongs to, which decides the meaning of `"gelu"`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    HuggingFace,
    Google,
}

impl AlbertConfig {
    /// Reads the text of a Hugging Face `config.json`: `"gelu"` is the erf form.
    ///
    /// # Errors
    /// Text that is not a JSON object, a missing size, a value of the wrong type, or an unsupported one.
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

    /// Text of a `config.json` that Hugging Face reads as the same model, with `architecture` (such as `AlbertForPreTraining`) as its
    /// class. Three keys of our own, which Hugging Face ignores, make reading it back exact.
    pub fn to_hf_json(&self, architecture: &str) -> String {
        let (family, torch_dtype) = (Family::Albert, "float32");
        self.to_hf_json_as(&ConfigIdentity {
            family,
            architecture,
            torch_dtype,
            num_labels: None,
            labels: &[],
            problem_type: None,
        })
    }

    /// The configuration as `config.json`, with the identity of the model.
    pub fn to_hf_json_as(&self, identity: &ConfigIdentity<'_>) -> String {
        let mut keys = Map::new();
        let mut put = |key: &str, value: Value| keys.insert(key.to_owned(), value);
        put("architectures", json!([identity.architecture]));
        put("model_type", json!(identity.family));
        put("vocab_size", json!(self.vocab_size));
        if identity.family == Family::Albert {
            put("embedding_size", json!(self.embedding_size));
        }
        put("hidden_size", json!(self.hidden_size));
        put("num_hidden_layers", json!(self.num_hidden_layers));
        if identity.family == Family::Albert {
            put("num_hidden_groups", json!(self.num_hidden_groups()));
            put("inner_group_num", json!(self.inner_group_num));
        }
        put("num_attention_heads", json!(self.num_attention_heads));
        put("intermediate_size", json!(self.intermediate_size));
        put("hidden_act", json!(self.hidden_act.hf_name()));
        put("hidden_dropout_prob", json!(self.hidden_dropout_prob));
        put("attention_probs_dropout_prob", json!(self.attention_probs_dropout_prob));
        match identity.family {
            Family::Albert => put("classifier_dropout_prob", json!(self.classifier_dropout_prob)),
            Family::Bert => put("classifier_dropout", json!(self.classifier_dropout_prob)),
        };
        put("max_position_embeddings", json!(self.max_position_embeddings));
        put("type_vocab_size", json!(self.type_vocab_size));
        put("initializer_range", json!(self.initializer_range));
        put("layer_norm_eps", json!(self.layer_norm_eps));
        put("position_embedding_type", json!("absolute"));
        put("tie_word_embeddings", json!(true));
        put("torch_dtype", json!(identity.torch_dtype));
        put("pad_token_id", json!(self.pad_token_id));
        put("bos_token_id", json!(self.bos_token_id));
        put("eos_token_id", json!(self.eos_token_id));
        if let Some(count) = identity.num_labels {
            let name = |at: usize| identity.labels.get(at).cloned().unwrap_or_else(|| format!("LABEL_{at}"));
            put("id2label", (0..count).map(|at| (at.to_string(), json!(name(at)))).collect::<Map<_, _>>().into());
            put("label2id", (0..count).map(|at| (name(at), json!(at))).collect::<Map<_, _>>().into());
            if identity.architecture.ends_with("ForSequenceClassification") {
                let usual = match count {
                    1 => ProblemType::Regression,
                    _ => ProblemType::SingleLabelClassification,
                };
                put("problem_type", json!(identity.problem_type.unwrap_or(usual)));
            }
        }
        if identity.family == Family::Albert {
            put("sharing", json!(self.sharing.to_string()));
            put("embedding_map", json!(self.embedding_map));
        }
        put("ffn_output_dropout", json!(self.ffn_output_dropout));
        let mut text = serde_json::to_string_pretty(&keys).expect("a JSON value has a text");
        text.push('\n');
        text
    }
}

/// Removes keys from the object one by one; the remaining ones are unknown.
struct Reader {
    keys: Map<String, Value>,
    origin: Origin,
    family: Family,
    notes: Vec<String>,
}

impl Reader {
    fn new(text: &str, origin: Origin) -> Result<Self, ConfigError> {
        limits::check_json(text.as_bytes()).map_err(|error| ConfigError::Json(error.to_string()))?;
        match serde_json::from_str(text) {
            Ok(Value::Object(keys)) => Ok(Self { family: Family::Albert, keys, origin, notes: Vec::new() }),
            Ok(other) => Err(ConfigError::Json(format!("found {}", kind(&other)))),
            Err(error) => Err(ConfigError::Json(error.to_string())),
        }
    }

    fn read(mut self) -> Result<ConfigReading, ConfigError> {
        let classes = self.keys.get("architectures").and_then(Value::as_array);
        let architecture = classes.and_then(|classes| classes.first()?.as_str()).map(str::to_owned);
        self.family = self.family(architecture.as_deref())?;
        self.refuse_what_changes_the_function()?;
        let num_hidden_layers = self.size("num_hidden_layers")?;
        let vocab_size = self.size("vocab_size")?;
        let hidden_size = self.size("hidden_size")?;
        let hidden_dropout_prob = self.number_or("hidden_dropout_prob", self.default_dropout())?;
        let (cls, sep) = self.default_ids(vocab_size);
        let config = AlbertConfig {
            vocab_size,
            embedding_size: self.embedding_size(hidden_size)?,
            hidden_size,
            num_hidden_layers,
            sharing: self.sharing(num_hidden_layers)?,
            inner_group_num: self.count_or("inner_group_num", 1)?,
            num_attention_heads: self.size("num_attention_heads")?,
            intermediate_size: self.size("intermediate_size")?,
            hidden_act: self.activation()?,
            hidden_dropout_prob,
            attention_probs_dropout_prob: self.number_or("attention_probs_dropout_prob", self.default_dropout())?,
            classifier_dropout_prob: match self.family {
                Family::Albert => self.number_or("classifier_dropout_prob", 0.1)?,
                Family::Bert => self.number_or("classifier_dropout", hidden_dropout_prob)?,
            },
            ffn_output_dropout: self.flag_or("ffn_output_dropout", true)?,
            max_position_embeddings: self.count_or("max_position_embeddings", 512)?,
            type_vocab_size: self.count_or("type_vocab_size", 2)?,
            initializer_range: self.number_or("initializer_range", 0.02)?,
            layer_norm_eps: self.number_or("layer_norm_eps", 1e-12)?,
            embedding_map: self.embedding_map()?,
            pad_token_id: self.count_or("pad_token_id", 0)?,
            bos_token_id: self.count_or("bos_token_id", cls)?,
            eos_token_id: self.count_or("eos_token_id", sep)?,
        };
        config.validate()?;
        let (labels, labels_problem) = self.labels();
        let problem_type = self.problem_type()?;
        let ignored = self.keys.into_iter().map(|(key, _)| key).filter(|key| !SILENT.contains(&key.as_str())).collect();
        Ok(ConfigReading {
            config,
            family: self.family,
            labels,
            labels_problem,
            problem_type,
            architecture,
            ignored,
            notes: self.notes,
        })
    }

    /// `model_type`; if missing, inferred from the class or from the lack of an embedding size.
    fn family(&self, architecture: Option<&str>) -> Result<Family, ConfigError> {
        match self.keys.get("model_type") {
            None | Some(Value::Null) => {
                let named = architecture.is_some_and(|class| class.starts_with("Bert"));
                let bert_of_google = self.origin == Origin::Google && !self.keys.contains_key("embedding_size");
                Ok(if named || bert_of_google { Family::Bert } else { Family::Albert })
            }
            Some(Value::String(model)) if model == "albert" => Ok(Family::Albert),
            Some(Value::String(model)) if model == "bert" => Ok(Family::Bert),
            Some(other) => Err(ConfigError::WrongType {
                key: "model_type".to_owned(),
                found: other.to_string(),
                expected: "\"albert\" or \"bert\"",
            }),
        }
    }

    /// Hugging Face's default for a missing rate.
    fn default_dropout(&self) -> f64 {
        match self.family {
            Family::Albert => 0.0,
            Family::Bert => 0.1,
        }
    }

    /// Default ids of `[CLS]` and `[SEP]`: a BERT's are defined only in its vocabulary.
    fn default_ids(&self, vocab_size: usize) -> (usize, usize) {
        match self.family {
            Family::Albert => (2, 3),
            Family::Bert if vocab_size > 102 => (101, 102),
            Family::Bert => (0, 0),
        }
    }

    fn embedding_size(&mut self, hidden_size: usize) -> Result<usize, ConfigError> {
        if self.family == Family::Albert {
            return self.size("embedding_size");
        }
        match self.count_or("embedding_size", hidden_size)? {
            size if size == hidden_size => Ok(size),
            size => Err(ConfigError::Invalid(format!(
                "`embedding_size` is {size} and `hidden_size` {hidden_size}, but a BERT has one width for both"
            ))),
        }
    }

    /// Class names by number, from `id2label` or else `label2id`. The text is the reason why they cannot be used.
    fn labels(&mut self) -> (Vec<String>, Option<String>) {
        let (by_id, by_name) = (self.take("id2label"), self.keys.get("label2id"));
        let name_of = |value: &Value| match value {
            Value::String(name) => Some(name.clone()),
            // Python prints a number as JSON does.
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let (key, pairs): (_, Vec<_>) = match (by_id, by_name) {
            (Some(Value::Object(names)), _) => {
                ("id2label", names.iter().map(|(id, name)| (id.trim().parse().ok(), name_of(name))).collect())
            }
            (None, Some(Value::Object(ids))) => {
                let id = |id: &Value| id.as_u64().or_else(|| id.as_str()?.parse().ok());
                ("label2id", ids.iter().map(|(name, at)| (id(at), Some(name.clone()))).collect())
            }
            _ => return Default::default(),
        };
        let mut labels = vec![None; pairs.len()];
        for (id, name) in pairs {
            if let Some(place) = id.and_then(|id: u64| labels.get_mut(usize::try_from(id).ok()?)) {
                *place = name;
            }
        }
        let count = labels.len();
        match labels.into_iter().collect::<Option<Vec<String>>>() {
            Some(labels) => (labels, None),
            None => (Vec::new(), Some(format!("`{key}` does not name each class from 0 to {} once", count.max(1) - 1))),
        }
    }

    fn problem_type(&mut self) -> Result<Option<ProblemType>, ConfigError> {
        let Some(value) = self.take("problem_type") else { return Ok(None) };
        serde_json::from_value(value.clone()).map(Some).map_err(|_| ConfigError::WrongType {
            key: "problem_type".to_owned(),
            found: value.to_string(),
            expected: "\"regression\", \"single_label_classification\" or \"multi_label_classification\"",
        })
    }

    fn refuse_what_changes_the_function(&mut self) -> Result<(), ConfigError> {
        let wrong = |key: &str, found: &Value, expected| {
            Err(ConfigError::WrongType { key: key.to_owned(), found: found.to_string(), expected })
        };
        for key in ["is_decoder", "add_cross_attention"] {
            match self.take(key) {
                None | Some(Value::Bool(false)) => {}
                Some(other) => return wrong(key, &other, "false: attention is in both directions"),
            }
        }
        match self.take("pruned_heads") {
            None => {}
            Some(Value::Object(heads)) if heads.is_empty() => {}
            Some(other) => return wrong("pruned_heads", &other, "no heads: all of them are computed"),
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
        if self.family == Family::Bert {
            return Ok(Sharing::None);
        }
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
            if self.family == Family::Bert && self.origin == Origin::HuggingFace {
                self.notes.push("`hidden_act` is missing: the erf form of GELU is used".to_owned());
                return Ok(Activation::GeluErf);
            }
            self.notes.push("`hidden_act` is missing: the tanh form of GELU is used".to_owned());
            return Ok(Activation::GeluTanh);
        };
        match (value.as_str(), self.origin) {
            (Some("gelu"), Origin::Google) => Ok(Activation::GeluTanh),
            (Some("gelu"), Origin::HuggingFace) => {
                if self.family == Family::Albert {
                    self.notes.push(
                        "`hidden_act` = \"gelu\" is the erf form, as Hugging Face computes it; Google trained the v1 \
                         releases with the tanh form (\"gelu_new\")"
                            .to_owned(),
                    );
                }
                Ok(Activation::GeluErf)
            }
            // The last four are other spellings of the same function.
            (
                Some(
                    "gelu_new" | "gelu_pytorch_tanh" | "gelu_tanh" | "gelu_fast" | "gelu_python_tanh" | "gelu_accurate",
                ),
                _,
            ) => Ok(Activation::GeluTanh),
            (Some("gelu_erf" | "gelu_python"), _) => Ok(Activation::GeluErf),
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
            _ if self.family == Family::Bert => Ok(EmbeddingMap::WhenSizesDiffer),
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
