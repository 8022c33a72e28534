//! Recipes as TOML: tables over tables, `section.key=value` over a table, fingerprints.

use serde::Serialize;
use serde::de::DeserializeOwned;

use toml::{Table, Value};

/// A setting or a stored value that cannot be used, as a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingError(pub String);

/// Parses the text of a recipe.
///
/// # Errors
/// A sentence that names the line.
pub(crate) fn parse(text: &str) -> Result<Table, SettingError> {
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

/// Keys of earlier versions, section and name, and their names now.
const RENAMED: [([&str; 2], &str); 1] = [(["compute", "activations"], "precision")];

/// The message on one line; the parser puts the key on a line of its own.
fn one_line(error: &toml::de::Error) -> String {
    error.to_string().trim().replace('\n', " ")
}

/// Applies one `section.key=value`.
pub(crate) fn set(table: &mut Table, text: &str) -> Result<(), SettingError> {
    let Some((path, value)) = text.split_once('=') else {
        return Err(SettingError(format!("`{text}` is no override; write section.key=value")));
    };
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    if let Some((_, now)) = RENAMED.iter().find(|(before, _)| keys == before) {
        keys[1] = now;
    }
    if keys.iter().any(|key| key.is_empty()) {
        return Err(SettingError(format!("`{text}`: the key is empty; write section.key=value")));
    }
    let value = value.trim();
    let value = match format!("v = {value}").parse::<Table>() {
        Ok(mut parsed) if parsed.len() == 1 => parsed.remove("v").expect("the only key is v"),
        // A typing error in a list or in quotes must not become part of the text.
        Err(error) if value.starts_with(['"', '\'', '[', '{']) => {
            return Err(SettingError(format!("`{text}`: the value is not TOML: {}", error.message())));
        }
        // Text that is not a TOML value is a string without quotes.
        _ => Value::String(value.to_owned()),
    };
    insert(table, &keys, value)
}

/// The override `key=value`, quoted as TOML.
///
/// # Errors
/// The value is not TOML: a path that is not UTF-8, for instance.
pub fn setting(key: &str, value: impl Serialize) -> Result<String, SettingError> {
    let value = Value::try_from(value).map_err(|error| SettingError(format!("`{key}`: {error}")))?;
    Ok(format!("{key}={value}"))
}

/// `settings` with `section.key=value` over it.
///
/// # Errors
/// A key is unknown, or a value has another type.
pub fn with_settings<S: Serialize + DeserializeOwned>(settings: &S, over: &[&str]) -> Result<S, SettingError> {
    let mut table = Table::try_from(settings).expect("settings are a table");
    for text in over {
        set(&mut table, text)?;
    }
    recipe_of(table)
}

pub(crate) fn insert(table: &mut Table, keys: &[&str], value: Value) -> Result<(), SettingError> {
    let (last, sections) = keys.split_last().expect("a key has a name");
    let mut at = table;
    for section in sections {
        let entry = at.entry(*section).or_insert_with(|| Value::Table(Table::new()));
        at = entry
            .as_table_mut()
            .ok_or_else(|| SettingError(format!("`{}`: `{section}` is a value, not a section", keys.join("."))))?;
    }
    at.insert((*last).to_owned(), value);
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

/// Inserts the values of `over` into `table`, recursively. A key removes its alternative, the other one of a pair.
pub(crate) fn lay_over(table: &mut Table, over: Table, alternatives: &[[&str; 2]]) {
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

/// The recipe of a table.
///
/// # Errors
/// A sentence with the key that is unknown, missing or of another type.
pub(crate) fn recipe_of<R: DeserializeOwned>(table: Table) -> Result<R, SettingError> {
    Value::Table(table).try_into().map_err(|error: toml::de::Error| SettingError(one_line(&error)))
}

/// All settings of a recipe that determine the results of a run, as JSON: all but `input` and `run`.
pub(crate) fn fingerprint(recipe: &impl Serialize) -> serde_json::Value {
    let mut value = serde_json::to_value(recipe).expect("a recipe has string keys");
    if let Some(keys) = value.as_object_mut() {
        keys.shift_remove("input");
        keys.shift_remove("run");
    }
    // Through text, as a checkpoint stores it, so that both sides of a comparison were read by the same parser.
    serde_json::from_str(&value.to_string()).expect("serialized JSON parses")
}
