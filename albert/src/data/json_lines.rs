//! Fields of JSON Lines.

use engine::io::limits;
use serde_json::Value;

/// Text of the field `name` of the object in `line`; `a.b` is field `b` of the object in field `a`, unless a field has that name.
///
/// # Errors
/// The line is not an object, the field is missing, or it is not text.
pub(super) fn field(line: &str, name: &str) -> Result<String, String> {
    const REMEDY: &str = "expected an object on each line";
    limits::check_json(line.as_bytes()).map_err(|error| error.to_string())?;
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}; {REMEDY}"))?;
    let Value::Object(object) = &value else { return Err(format!("{}; {REMEDY}", kind(&value))) };
    let nested = || name.split('.').try_fold(&value, |value, part| value.get(part));
    match object.get(name).or_else(nested) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("field `{name}` is {}; expected text", kind(other))),
        None => {
            let known: Vec<&str> = object.keys().map(String::as_str).collect();
            Err(format!("no field `{name}`; found {}", known.join(", ")))
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn a_field_is_text_or_the_error_says_what_it_is() {
        assert_eq!(field(r#"{"a": "x\ny", "b": {"c": "z"}, "d.e": "w"}"#, "a").unwrap(), "x\ny");
        assert_eq!(field(r#"{"b": {"c": "z"}}"#, "b.c").unwrap(), "z");
        assert_eq!(field(r#"{"d.e": "w"}"#, "d.e").unwrap(), "w");
        for (line, said) in [
            (r#"{"title": "x", "body": "y"}"#, "no field `a`; found title, body"),
            (r#"{"a": 3}"#, "field `a` is a number; expected text"),
            ("[1]", "a list; expected an object on each line"),
            ("{\"a\"", "not JSON: "),
        ] {
            let problem = field(line, "a").unwrap_err();
            assert!(problem.starts_with(said), "{problem}");
        }
        assert!(field(&"[".repeat(1000), "a").unwrap_err().contains("levels of nesting"));
    }
}
