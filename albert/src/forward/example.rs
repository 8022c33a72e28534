//! One line of input: ids, mask, segments and labels of a sequence, or of the choices of a question.
//!
//! ```json
//! {"input_ids": [2, 51, 88, 3], "attention_mask": [1, 1, 1, 1], "token_type_ids": [0, 0, 0, 0], "labels": 1}
//! {"input_ids": [[2, 51, 3], [2, 88, 3]], "labels": 0}
//! ```
//!
//! Names are those of Hugging Face's forward functions. A list of lists contains the choices of one question.

use serde::Deserialize;

use super::InferenceError;
use crate::config::AlbertConfig;

/// A list, or a list of lists.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a list of whole numbers was expected, or a list of such lists")]
enum Rows {
    One(Vec<i64>),
    Many(Vec<Vec<i64>>),
}

impl Rows {
    fn into_rows(self) -> Vec<Vec<i64>> {
        match self {
            Self::One(row) => vec![row],
            Self::Many(rows) => rows,
        }
    }
}

/// Labels of a line: a class, a number, or a class for each token.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "`labels` must be a class, a number or a list of whole numbers")]
pub(super) enum Labels {
    /// A class, or the index of the right choice.
    Class(i64),
    /// The target of a regression.
    Number(f64),
    /// A class or piece for each token, -100 for ignored tokens; 0 or 1 for each of several labels.
    Tokens(Vec<i64>),
    /// 0 or 1 for each of several labels, in the form that `transformers` requires: 1.0.
    Flags(Vec<f64>),
}

/// A line as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    input_ids: Rows,
    attention_mask: Option<Rows>,
    token_type_ids: Option<Rows>,
    labels: Option<Labels>,
    #[serde(alias = "next_sentence_label")]
    sentence_order_label: Option<i64>,
    start_positions: Option<i64>,
    end_positions: Option<i64>,
    is_impossible: Option<i64>,
    p_mask: Option<Vec<i64>>,
}

/// A token of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) id: u32,
    pub(super) segment: u32,
    pub(super) position: u32,
    pub(super) is_seen: bool,
}

/// An example: token ids and optional labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// One row, or one for each choice; all have equal lengths.
    pub(super) rows: Vec<Vec<Token>>,
    pub(super) labels: Option<Labels>,
    pub(super) sentence_label: Option<u32>,
    pub(super) span: Option<[u32; 2]>,
    pub(super) is_impossible: Option<u32>,
    /// Tokens that cannot be an answer.
    pub(super) is_no_answer: Option<Vec<bool>>,
}

/// Label of an ignored token.
pub(super) const IGNORED: i64 = -100;

impl Example {
    /// Parses a line of JSON and checks it against the model.
    ///
    /// # Errors
    /// The line is not JSON of this form, lists differ in length, or a number is out of the model's range. The message
    /// does not name the line; the caller adds it.
    pub fn from_json(line: &str, config: &AlbertConfig) -> Result<Self, InferenceError> {
        let line: Line =
            serde_json::from_str(line).map_err(|error| InferenceError::Input(format!("not as expected: {error}")))?;
        let ids = line.input_ids.into_rows();
        let length = ids.first().map_or(0, Vec::len);
        if length == 0 {
            return Err(InferenceError::Input("`input_ids` is empty".into()));
        }
        if length > config.max_position_embeddings {
            return Err(InferenceError::Input(format!(
                "`input_ids` has {length} tokens, but the model has {} positions",
                config.max_position_embeddings
            )));
        }
        let masks = beside("attention_mask", line.attention_mask, &ids)?;
        let segments = beside("token_type_ids", line.token_type_ids, &ids)?;
        let mut rows = Vec::with_capacity(ids.len());
        for (r, ids) in ids.iter().enumerate() {
            if ids.len() != length {
                return Err(InferenceError::Input(format!(
                    "choices must have one length, but `input_ids` has {length} and {} tokens; pad and mask the shorter",
                    ids.len()
                )));
            }
            let token = |(i, &id): (usize, &i64)| {
                Ok(Token {
                    id: below("input_ids", id, i, config.vocab_size, "pieces")?,
                    segment: match &segments {
                        Some(rows) => below("token_type_ids", rows[r][i], i, config.type_vocab_size, "segments")?,
                        None => 0,
                    },
                    position: i as u32,
                    is_seen: match &masks {
                        Some(rows) => below("attention_mask", rows[r][i], i, 2, "values")? == 1,
                        None => true,
                    },
                })
            };
            let row = ids.iter().enumerate().map(token).collect::<Result<Vec<_>, InferenceError>>()?;
            if !row.iter().any(|token| token.is_seen) {
                return Err(InferenceError::Input("`attention_mask` hides every token".into()));
            }
            rows.push(row);
        }
        let at =
            |name, value: Option<i64>, limit: usize, what| value.map(|v| below(name, v, 0, limit, what)).transpose();
        let start = at("start_positions", line.start_positions, length, "tokens")?;
        let end = at("end_positions", line.end_positions, length, "tokens")?;
        if line.p_mask.as_ref().is_some_and(|mask| mask.len() != length) {
            return Err(InferenceError::Input(format!("`p_mask` must have {length} numbers, one a token")));
        }
        Ok(Self {
            rows,
            labels: line.labels,
            sentence_label: at("sentence_order_label", line.sentence_order_label, 2, "classes")?,
            span: start.zip(end).map(|(start, end)| [start, end]),
            is_impossible: at("is_impossible", line.is_impossible, 2, "values")?,
            is_no_answer: line.p_mask.map(|mask| mask.iter().map(|&hidden| hidden != 0).collect()),
        })
    }

    /// Creates an example from ids alone.
    ///
    /// # Errors
    /// `ids` is empty or longer than the model's positions, or an id is beyond its vocabulary.
    pub fn from_ids(ids: &[u32], segments: &[u32], config: &AlbertConfig) -> Result<Self, InferenceError> {
        Self::from_json(&serde_json::json!({ "input_ids": ids, "token_type_ids": segments }).to_string(), config)
    }

    /// Tokens of each row.
    pub(super) fn length(&self) -> usize {
        self.rows[0].len()
    }
}

/// Returns the rows of `name`, which must have the shape of `ids`.
fn beside(name: &str, rows: Option<Rows>, ids: &[Vec<i64>]) -> Result<Option<Vec<Vec<i64>>>, InferenceError> {
    let Some(rows) = rows.map(Rows::into_rows) else { return Ok(None) };
    if rows.len() == ids.len() && rows.iter().zip(ids).all(|(row, ids)| row.len() == ids.len()) {
        return Ok(Some(rows));
    }
    let shape = |rows: &[Vec<i64>]| rows.iter().map(|row| row.len().to_string()).collect::<Vec<_>>().join(", ");
    Err(InferenceError::Input(format!(
        "`{name}` has {} numbers and `input_ids` {}; both must be alike",
        shape(&rows),
        shape(ids)
    )))
}

fn below(name: &str, value: i64, at: usize, limit: usize, what: &str) -> Result<u32, InferenceError> {
    match u32::try_from(value) {
        Ok(value) if (value as usize) < limit => Ok(value),
        _ => Err(InferenceError::Input(format!(
            "`{name}` contains {value} (number {at}), but the model has {limit} {what}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> AlbertConfig {
        AlbertConfig { vocab_size: 100, max_position_embeddings: 8, ..AlbertConfig::preset("tiny").unwrap() }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        for (line, said) in [
            ("", "not as expected"),
            ("[1]", "not as expected"),
            (r#"{"ids": [1]}"#, "unknown field"),
            (r#"{"input_ids": []}"#, "is empty"),
            (r#"{"input_ids": [100]}"#, "`input_ids` contains 100 (number 0), but the model has 100 pieces"),
            (r#"{"input_ids": [-1]}"#, "contains -1"),
            (r#"{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}"#, "9 tokens, but the model has 8 positions"),
            (r#"{"input_ids": [1, 2], "attention_mask": [1]}"#, "both must be alike"),
            (r#"{"input_ids": [1, 2], "attention_mask": [0, 0]}"#, "hides every token"),
            (r#"{"input_ids": [1, 2], "attention_mask": [1, 2]}"#, "`attention_mask` contains 2"),
            (r#"{"input_ids": [[1, 2], [1]]}"#, "choices must have one length"),
            (r#"{"input_ids": [1], "start_positions": 1, "end_positions": 0}"#, "`start_positions` contains 1"),
            (r#"{"input_ids": [1], "p_mask": [1, 0]}"#, "`p_mask` must have 1 numbers"),
        ] {
            let error = Example::from_json(line, &config()).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
