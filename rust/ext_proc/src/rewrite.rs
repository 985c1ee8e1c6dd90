//! Another model in the body of a request. The other bytes stay as they are.

use std::fmt;
use std::ops::Range;

use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::replies::json_text;

/// Returns a body with another `model`; `None` if it has that one, or none can be put in.
pub(crate) fn with_model(body: &[u8], model: &str) -> Option<Vec<u8>> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let found = reader.deserialize_map(Models { body }).ok()?;
    reader.end().ok()?;
    if found.last.as_deref() == Some(model) {
        return None;
    }
    let name = json_text(model);
    let mut written = Vec::with_capacity(body.len() + name.len() + 16);
    let mut from = 0;
    for value in &found.values {
        written.extend_from_slice(&body[from..value.start]);
        written.extend_from_slice(name.as_bytes());
        from = value.end;
    }
    if found.values.is_empty() {
        from = body.iter().rposition(|byte| *byte == b'}')?;
        written.extend_from_slice(&body[..from]);
        let comma = if found.is_empty { "" } else { ", " };
        written.extend_from_slice(format!("{comma}\"model\": {name}").as_bytes());
    }
    written.extend_from_slice(&body[from..]);
    Some(written)
}

/// Where an object has the field, of which a client may send several.
struct Found {
    values: Vec<Range<usize>>,
    /// The last of them, if it is text: the one that counts.
    last: Option<String>,
    is_empty: bool,
}

struct Models<'a> {
    body: &'a [u8],
}

impl<'a> Visitor<'a> for Models<'a> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Found, A::Error> {
        let mut found = Found {
            values: Vec::new(),
            last: None,
            is_empty: true,
        };
        // As they are written: text in requests may have halves of characters, which Rust's has not.
        while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            found.is_empty = false;
            if serde_json::from_str::<String>(key.get()).is_ok_and(|key| key == "model") {
                let start = value.get().as_ptr() as usize - self.body.as_ptr() as usize;
                found.values.push(start..start + value.get().len());
                found.last = serde_json::from_str(value.get()).ok();
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::with_model;

    #[test]
    fn only_the_model_changes() {
        for (body, expected) in [
            (
                r#"{"model":"a" , "x":[1.50]}"#,
                Some(r#"{"model":"n\u00e9w" , "x":[1.50]}"#),
            ),
            (
                r#"{"x": {"model": 1}}"#,
                Some(r#"{"x": {"model": 1}, "model": "n\u00e9w"}"#),
            ),
            (" {} ", Some(r#" {"model": "n\u00e9w"} "#)),
            (
                r#"{"\u006dodel": null}"#,
                Some(r#"{"\u006dodel": "n\u00e9w"}"#),
            ),
            (
                r#"{"model":"a","model":2}"#,
                Some(r#"{"model":"n\u00e9w","model":"n\u00e9w"}"#),
            ),
            (
                r#"{"\ud800": 1, "model": "a"}"#,
                Some(r#"{"\ud800": 1, "model": "n\u00e9w"}"#),
            ),
            (r#"{"model":"a","model":"n\u00e9w"}"#, None),
            ("[1]", None),
            (r#"{"model": "#, None),
            (r#"{"model": "a"} x"#, None),
            ("", None),
        ] {
            let written = with_model(body.as_bytes(), "néw").map(String::from_utf8);
            assert_eq!(
                written.transpose().expect("is UTF-8").as_deref(),
                expected,
                "{body}"
            );
        }
        let deep = format!("{{\"x\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let written = with_model(deep.as_bytes(), "m").expect("has a model");
        assert!(written.ends_with(b"]], \"model\": \"m\"}"));
        assert_eq!(with_model(b"{\"x\": \"\xff\"}", "m"), None);
    }
}
