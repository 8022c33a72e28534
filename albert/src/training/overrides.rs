//! `section.key=value` over the table of a recipe, and what its parser says in one line.

use toml::{Table, Value};

/// The table of a recipe's text.
///
/// # Errors
/// A sentence that names the line.
pub(crate) fn parse(text: &str) -> Result<Table, String> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        format!("not TOML: line {line}: {}", error.message())
    })
}

/// The message with the key that it is about, which the parser puts on a line of its own.
pub(crate) fn one_line(error: &toml::de::Error) -> String {
    error.to_string().trim().replace('\n', " ")
}

/// Applies one `section.key=value`.
pub(crate) fn set(table: &mut Table, text: &str) -> Result<(), String> {
    let Some((path, value)) = text.split_once('=') else {
        return Err(format!("`{text}` is no override; write section.key=value"));
    };
    let keys: Vec<&str> = path.trim().split('.').collect();
    if keys.iter().any(|key| key.is_empty()) {
        return Err(format!("`{text}`: the key is empty; write section.key=value"));
    }
    let value = value.trim();
    // What TOML does not understand as a value is a string without its quotes.
    let parsed = format!("v = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("v"));
    insert(table, &keys, parsed.unwrap_or_else(|| Value::String(value.to_owned())))
}

pub(crate) fn insert(table: &mut Table, keys: &[&str], value: Value) -> Result<(), String> {
    let (last, sections) = keys.split_last().expect("a key has a name");
    let mut at = table;
    for section in sections {
        let entry = at.entry(*section).or_insert_with(|| Value::Table(Table::new()));
        at = entry
            .as_table_mut()
            .ok_or_else(|| format!("`{}`: `{section}` is a value, not a section", keys.join(".")))?;
    }
    at.insert((*last).to_owned(), value);
    Ok(())
}

pub(crate) fn lookup<'t>(table: &'t Table, keys: &[&str]) -> Option<&'t Value> {
    let (first, rest) = keys.split_first()?;
    rest.iter().try_fold(table.get(*first)?, |value, key| value.get(*key))
}
