//! Recipes as TOML: merging of tables, overrides, fingerprints.

use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// An invalid setting or stored value, described in a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);

/// Parses the text of a recipe.
///
/// # Errors
/// Message with the line.
pub fn parse(text: &str) -> Result<Table, SettingError> {
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        SettingError(format!("not TOML: line {line}: {}", error.message()))
    })?;
    for ([section, before], now) in RENAMED {
        if let Some(section) = table.get_mut(section).and_then(Value::as_table_mut)
            && let Some(value) = section.remove(before)
        {
            section.entry(now).or_insert(value);
        }
    }
    Ok(table)
}

/// Keys of earlier versions, as section and name, and their new names.
const RENAMED: [([&str; 2], &str); 1] = [(["compute", "activations"], "precision")];

/// Returns the message in one line; the parser puts the key on a separate one.
fn one_line(error: &toml::de::Error) -> String {
    error.to_string().trim().replace('\n', " ")
}

/// Override of a recipe's setting: its key, such as `optimizer.learning_rate`, and its value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Setting {
    keys: Vec<String>,
    value: Value,
}

impl Setting {
    /// Creates the setting `key`, a section and a name separated by a dot.
    ///
    /// # Errors
    /// The key is empty, or the value cannot be expressed in TOML, such as a path that is not UTF-8.
    pub fn new(key: &str, value: impl Serialize) -> Result<Self, SettingError> {
        let value = Value::try_from(value).map_err(|error| SettingError(format!("`{key}`: {error}")))?;
        let mut keys: Vec<_> = key.trim().split('.').map(str::to_owned).collect();
        if keys.iter().any(String::is_empty) {
            return Err(SettingError(format!("`{key}={value}`: the key is empty; write section.key=value")));
        }
        if let Some((_, now)) = RENAMED.iter().find(|(before, _)| keys == before) {
            keys[1] = (*now).to_owned();
        }
        Ok(Self { keys, value })
    }

    /// Parses several settings `section.key=value`.
    ///
    /// # Errors
    /// As [`Setting::from_str`].
    pub fn all<T: AsRef<str>>(words: &[T]) -> Result<Vec<Self>, SettingError> {
        words.iter().map(|word| word.as_ref().parse()).collect()
    }

    /// Key of the setting, with dots.
    pub fn key(&self) -> String {
        self.keys.join(".")
    }

    /// Writes the setting to a recipe.
    pub fn write_to(&self, table: &mut Table) -> Result<(), SettingError> {
        insert(table, &self.keys, self.value.clone())
    }
}

impl FromStr for Setting {
    type Err = SettingError;

    /// Parses `section.key=value`; text that is not a TOML value is used as a string without quotes.
    fn from_str(text: &str) -> Result<Self, SettingError> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(SettingError(format!("`{text}` is not a setting; write section.key=value")));
        };
        let value = value.trim();
        let value = match format!("v = {value}").parse::<Table>() {
            Ok(mut parsed) if parsed.len() == 1 => parsed.remove("v").expect("the only key is v"),
            // A typing error in a list or in quotes must not become part of the text.
            Err(error) if value.starts_with(['"', '\'', '[', '{']) => {
                return Err(SettingError(format!("`{text}`: the value is not TOML: {}", error.message())));
            }
            _ => Value::String(value.to_owned()),
        };
        Self::new(key, value)
    }
}

impl TryFrom<String> for Setting {
    type Error = SettingError;

    fn try_from(text: String) -> Result<Self, SettingError> {
        Self::from_str(&text)
    }
}

/// Overrides `settings` with `over`.
///
/// # Errors
/// A key is unknown, or a value has another type.
pub fn with_settings<S: Serialize + DeserializeOwned>(settings: &S, over: &[Setting]) -> Result<S, SettingError> {
    let mut table = Table::try_from(settings).expect("settings are a table");
    over.iter().try_for_each(|setting| setting.write_to(&mut table))?;
    recipe_of(table)
}

pub(crate) fn insert<K: AsRef<str>>(table: &mut Table, keys: &[K], value: Value) -> Result<(), SettingError> {
    let (last, sections) = keys.split_last().expect("a key has a name");
    let mut at = table;
    for section in sections.iter().map(K::as_ref) {
        let entry = at.entry(section).or_insert_with(|| Value::Table(Table::new()));
        at = entry.as_table_mut().ok_or_else(|| {
            let key: Vec<_> = keys.iter().map(K::as_ref).collect();
            SettingError(format!("`{}`: `{section}` is a value, not a section", key.join(".")))
        })?;
    }
    at.insert(last.as_ref().to_owned(), value);
    Ok(())
}

/// Removes a value, if it is there.
pub(crate) fn remove(table: &mut Table, keys: &[&str]) {
    if let Some((last, sections)) = keys.split_last() {
        let found = sections.iter().try_fold(table, |table, section| table.get_mut(*section)?.as_table_mut());
        if let Some(table) = found {
            table.remove(*last);
        }
    }
}

pub(crate) fn lookup<'t>(table: &'t Table, keys: &[&str]) -> Option<&'t Value> {
    let (first, rest) = keys.split_first()?;
    rest.iter().try_fold(table.get(*first)?, |value, key| value.get(*key))
}

/// Inserts the values of `over` into `table`, recursively. A key removes its alternative, the other key of its pair.
pub fn lay_over(table: &mut Table, over: Table, alternatives: &[[&str; 2]]) {
    for (key, value) in over {
        for [a, b] in alternatives {
            for (one, other) in [(a, b), (b, a)] {
                if key == *one {
                    table.remove(*other);
                }
            }
        }
        match (table.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => lay_over(old, new, alternatives),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

/// Converts a table to a recipe.
///
/// # Errors
/// Message with the key that is unknown, missing or of another type.
pub fn recipe_of<R: DeserializeOwned>(table: Table) -> Result<R, SettingError> {
    Value::Table(table).try_into().map_err(|error: toml::de::Error| SettingError(one_line(&error)))
}

/// Settings of a recipe that determine the results of a run, as JSON: all except `input` and `run`.
pub fn fingerprint(recipe: &impl Serialize) -> serde_json::Value {
    let mut value = serde_json::to_value(recipe).expect("a recipe has string keys");
    if let Some(keys) = value.as_object_mut() {
        keys.shift_remove("input");
        keys.shift_remove("run");
    }
    // Converted through text, as a checkpoint stores it, so that both sides of a comparison come from the same parser.
    serde_json::from_str(&value.to_string()).expect("serialized JSON parses")
}
