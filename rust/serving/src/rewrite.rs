//! Another model, or another source of cached blocks, in the body of a request.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};

use crate::headers::Headers;
use crate::host::{LARGE_BODY_BYTES, Outgoing, Refusal, off_thread};

/// Headers that name a source to llm-d's sidecar.
pub const SOURCE_HEADERS: [&str; 2] = ["x-kv-cache-source-host-port", "x-kv-cache-source-p2p-port"];

/// Fields that name a source, and those inside of which engines look for them.
const SOURCES: [&str; 3] = ["kv_hint", "kv_hints", "remote_kv_source"];
const AROUND: [&str; 4] = ["extra_args", PARAMS, "sampling_params", "vllm_xargs"];
const PARAMS: &str = "kv_transfer_params";
/// Objects around a field that names a source.
const DEEPEST: usize = 3;

/// An object of JSON, its values as they are written. The last of several members with one name counts.
type Object = BTreeMap<String, Box<RawValue>>;

impl Outgoing {
    /// Returns the body to send in place of a client's, written anew: an engine finds no source in it that was not read
    /// here. A long one is read on another thread.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] of a body that is neither a form, as the `headers` have it, nor an object of JSON.
    pub async fn body(self, headers: &Headers, body: Bytes) -> Result<Bytes, Refusal> {
        let kind = headers.get("content-type");
        if kind.is_some_and(|kind| kind.starts_with("multipart/")) {
            return Ok(body);
        }
        let is_long = body.len() > LARGE_BODY_BYTES;
        let work = move || {
            let written = with_source(&body, self.params);
            written.map_err(|_| Refusal::bad_body("the body is no object of JSON"))
        };
        if is_long {
            off_thread(work).await
        } else {
            work()
        }
    }
}

/// Returns a body with `source` in place of those that it names.
fn with_source(body: &[u8], source: Option<String>) -> serde_json::Result<Bytes> {
    let mut object: Object = serde_json::from_slice(body)?;
    strip(&mut object, 0);
    if let Some(source) = source {
        let given = object.get(PARAMS).map_or("", |given| given.get());
        let mut params: Object = serde_json::from_str(given).unwrap_or_default();
        // Who decodes what another worker computed copies no prompt.
        if !params.contains_key("remote_prefiller") {
            let source = RawValue::from_string(source)?;
            params.insert("remote_kv_source".to_owned(), source);
            object.insert(PARAMS.to_owned(), to_raw_value(&params)?);
        }
    }
    serde_json::to_vec(&object).map(Bytes::from)
}

/// Removes the members that name a source.
fn strip(object: &mut Object, depth: usize) {
    object.retain(|name, _| !SOURCES.contains(&&**name));
    for name in AROUND.into_iter().filter(|_| depth < DEEPEST) {
        if let Some(value) = object.get_mut(name)
            && let Ok(mut inner) = serde_json::from_str(value.get())
        {
            strip(&mut inner, depth + 1);
            if let Ok(written) = to_raw_value(&inner) {
                *value = written;
            }
        }
    }
}

/// The members of an object, as they are written: text in requests may have halves of characters, which Rust's has not.
struct Members;

impl<'a> Visitor<'a> for Members {
    type Value = Vec<(&'a RawValue, &'a RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

/// Returns a body with another `model`, in each field of that name, and its other bytes as they are; `None` if it has that
/// one, or none can be put in.
#[must_use]
pub fn with_model(body: &[u8], model: &str) -> Option<Vec<u8>> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let members = reader.deserialize_map(Members).ok()?;
    reader.end().ok()?;
    let is = |text: &RawValue, name| {
        serde_json::from_str(text.get()).is_ok_and(|text: String| text == name)
    };
    let given = members.iter().filter(|(key, _)| is(key, "model"));
    let given: Vec<_> = given.map(|(_, value)| *value).collect();
    // The last of several counts.
    if given.last().is_some_and(|last| is(last, model)) {
        return None;
    }
    let (name, mut written, mut from) = (json_text(model), Vec::new(), 0);
    for value in given.iter().map(|value| value.get()) {
        let start = value.as_ptr() as usize - body.as_ptr() as usize;
        written.extend_from_slice(&body[from..start]);
        written.extend_from_slice(name.as_bytes());
        from = start + value.len();
    }
    if given.is_empty() {
        from = body.iter().rposition(|byte| *byte == b'}')?;
        let comma = if members.is_empty() { "" } else { ", " };
        written.extend_from_slice(&body[..from]);
        written.extend_from_slice(format!("{comma}\"model\": {name}").as_bytes());
    }
    written.extend_from_slice(&body[from..]);
    Some(written)
}

/// Writes a text as JSON.
#[must_use]
pub fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::{with_model, with_source};

    #[test]
    fn only_the_model_changes() {
        for (body, expected) in [
            (
                r#"{"model":"a" , "x":[1.50]}"#,
                Some(r#"{"model":"néw" , "x":[1.50]}"#),
            ),
            (
                r#"{"x": {"model": 1}}"#,
                Some(r#"{"x": {"model": 1}, "model": "néw"}"#),
            ),
            (" {} ", Some(r#" {"model": "néw"} "#)),
            (r#"{"\u006dodel": null}"#, Some(r#"{"\u006dodel": "néw"}"#)),
            (
                r#"{"model":"a","model":2}"#,
                Some(r#"{"model":"néw","model":"néw"}"#),
            ),
            (
                r#"{"\ud800": 1, "model": "a"}"#,
                Some(r#"{"\ud800": 1, "model": "néw"}"#),
            ),
            (r#"{"model":"a","model":"néw"}"#, None),
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

    #[test]
    fn a_body_names_the_source_of_its_decision_and_none_of_its_client() {
        let mine = r#"{"remote_host": "gpu1"}"#;
        let named = |rest: &str| {
            let named = format!(r#""remote_kv_source":{mine}"#);
            format!(r#"{{"kv_transfer_params":{{{rest}{named}}},"p":1}}"#)
        };
        for (body, without, with) in [
            (r#"{"p":1 }"#, r#"{"p":1}"#, named("")),
            (
                r#"{"p": 1, "kv_hints": {"actions": []}}"#,
                r#"{"p":1}"#,
                named(""),
            ),
            (
                r#"{"kv_transfer_params": {"kv_hint": 1, "remote_kv_source": {}, "a": 1.50}, "p": 1}"#,
                r#"{"kv_transfer_params":{"a":1.50},"p":1}"#,
                named(r#""a":1.50,"#),
            ),
            (
                r#"{"kv_transfer_params": {"\u0072emote_kv_source": 1}, "p": 2, "p": 1}"#,
                r#"{"kv_transfer_params":{},"p":1}"#,
                named(""),
            ),
            (
                r#"{"kv_transfer_params": {"kv_hint": 1}, "kv_transfer_params": null, "p": 1}"#,
                r#"{"kv_transfer_params":null,"p":1}"#,
                named(""),
            ),
        ] {
            let written = |source| with_source(body.as_bytes(), source).expect("is an object");
            assert_eq!(written(None), without, "{body}");
            assert_eq!(written(Some(mine.to_owned())), with, "{body}");
        }
        // Wherever an engine may look; a decode worker gets none.
        for (body, without) in [
            (
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{"remote_kv_source":1}}}}"#,
                r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}"#,
            ),
            (
                r#"{"m":"kv_hint","vllm_xargs":{"kv_transfer_params":{"kv_hint":1,"x":"\ud800"}}}"#,
                r#"{"m":"kv_hint","vllm_xargs":{"kv_transfer_params":{"x":"\ud800"}}}"#,
            ),
        ] {
            assert_eq!(
                with_source(body.as_bytes(), None).expect("is an object"),
                without
            );
        }
        let decodes = r#"{"kv_transfer_params":{"remote_prefiller":{}}}"#;
        let written = with_source(decodes.as_bytes(), Some(mine.to_owned()));
        assert_eq!(written.expect("is an object"), decodes);
        for body in [
            "",
            "[1]",
            r#"{"p": NaN}"#,
            "\u{feff}{}",
            r#"{"p": 1} x"#,
            "p=1",
        ] {
            assert!(with_source(body.as_bytes(), None).is_err(), "{body}");
        }
        let nested = r#"{"extra_args":"#.repeat(100_000);
        let deep = format!("{nested}1{}", "}".repeat(100_000));
        assert_eq!(
            with_source(deep.as_bytes(), None).expect("is an object"),
            deep
        );
    }
}
