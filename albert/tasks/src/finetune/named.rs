//! Values by name as a JSON object, in their order. Lists of pairs, which earlier versions wrote, can also be read.

use std::fmt::{self, Formatter};

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

pub(super) fn serialize<T: Serialize, S: Serializer>(values: &[(String, T)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(name, value)| (name, value)))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, f64)>, D::Error> {
    struct Values;

    impl<'de> Visitor<'de> for Values {
        type Value = Vec<(String, f64)>;

        fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str("an object of numbers, or a list of names and numbers")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
            let mut values = Vec::new();
            while let Some(entry) = object.next_entry()? {
                values.push(entry);
            }
            Ok(values)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
            let mut values = Vec::new();
            while let Some(pair) = pairs.next_element()? {
                values.push(pair);
            }
            Ok(values)
        }
    }

    deserializer.deserialize_any(Values)
}

#[cfg(test)]
mod tests {
    use super::super::Measured;

    #[test]
    fn figures_are_an_object_in_their_order_and_older_pairs_are_read() {
        let figures = vec![("f1".to_owned(), 0.1), ("accuracy".to_owned(), 0.5)];
        let measured = Measured { figures, ..Measured::default() };
        let text = serde_json::to_string(&measured).unwrap();
        assert!(text.starts_with(r#"{"figures":{"f1":0.1,"accuracy":0.5},"#), "{text}");
        assert_eq!(serde_json::from_str::<Measured>(&text).unwrap(), measured);

        let older = text.replace(r#"{"f1":0.1,"accuracy":0.5}"#, r#"[["f1",0.1],["accuracy",0.5]]"#);
        assert_ne!(older, text);
        assert_eq!(serde_json::from_str::<Measured>(&older).unwrap(), measured);
        let error = serde_json::from_str::<Measured>(&older.replace("0.5", "\"x\"")).unwrap_err().to_string();
        assert!(error.contains("expected f64"), "{error}");
    }
}
