//! The reader against `serde_json`: what is valid, and which value it has.

use std::fmt;

use proptest::prelude::*;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::canon::number::put_number;
use crate::canon::{ARRAY, CLOSE, Canon, KEY, OBJECT, SCALAR, TEXT};
use crate::scan::{Reader, check};

/// Canonical bytes of a value, written from what `serde_json` reads: keys where they come first, with their last value.
#[derive(Debug, Clone, PartialEq)]
struct Model(Vec<u8>);

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Model;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Model, E> {
                Ok(scalar(value.to_string().as_bytes()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Model, E> {
                Ok(scalar(value.to_string().as_bytes()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Model, E> {
                Ok(scalar(value.to_string().as_bytes()))
            }
            fn visit_unit<E>(self) -> Result<Model, E> {
                Ok(scalar(b"null"))
            }
            fn visit_str<E>(self, value: &str) -> Result<Model, E> {
                Ok(Model([&[TEXT], value.as_bytes()].concat()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Model, A::Error> {
                let mut out = vec![ARRAY];
                while let Some(Model(value)) = seq.next_element()? {
                    out.extend(value);
                }
                out.push(CLOSE);
                Ok(Model(out))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Model, A::Error> {
                let mut entries: Vec<(String, Model)> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "$serde_json::private::Number" {
                        let mut out = vec![SCALAR];
                        put_number(map.next_value::<String>()?.as_bytes(), &mut out);
                        return Ok(Model(out));
                    }
                    let value = map.next_value()?;
                    match entries.iter_mut().find(|entry| entry.0 == key) {
                        Some(entry) => entry.1 = value,
                        None => entries.push((key, value)),
                    }
                }
                let mut out = vec![OBJECT];
                for (key, Model(value)) in entries {
                    out.push(KEY);
                    out.extend(key.into_bytes());
                    out.extend(value);
                }
                out.push(CLOSE);
                Ok(Model(out))
            }
        }
        fn scalar(text: &[u8]) -> Model {
            Model([&[SCALAR], text].concat())
        }
        deserializer.deserialize_any(Values)
    }
}

/// Canonical bytes of a value, by `serde_json`.
pub(super) fn expected(bytes: &[u8]) -> Option<Vec<u8>> {
    let model = serde_json::from_slice::<Model>(bytes).ok();
    model.map(|model| model.0)
}

/// The canonical bytes of the reader.
pub(super) fn read(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut canon = Canon::default();
    let mut reader = Reader::new(bytes, 128);
    canon.put_value(&mut reader).ok()?;
    reader.end().ok()?;
    Some(canon.bytes().to_vec())
}

fn compare(bytes: &[u8]) {
    let shown = String::from_utf8_lossy(bytes);
    assert_eq!(read(bytes), expected(bytes), "{shown}");
    let valid = serde_json::from_slice::<serde_json::Value>(bytes).is_ok();
    assert_eq!(check(bytes, 128).is_ok(), valid, "{shown}");
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[a-z ]{0,12}",
        1 => "[a-z ]{30,90}",
        1 => Just("\\n".to_owned()),
        1 => Just("\\\\\\\"".to_owned()),
        1 => Just("\\u00e9\\/".to_owned()),
        1 => Just("\\ud83d\\ude00".to_owned()),
        1 => Just("\\ud83d".to_owned()),
        1 => Just("é😀".to_owned()),
    ];
    proptest::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,24})",
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,3})?",
        "-?[0-9]{1,3}\\.?[0-9]{0,2}[eE]?",
    ]
}

/// JSON, most of it valid, with keys that come twice.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        text().prop_map(|text| format!("\"{text}\"")),
        number(),
        Just("true".to_owned()),
        Just("false".to_owned()),
        Just("null".to_owned()),
        Just("NaN".to_owned()),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        let entry =
            ("[a-c]{1,2}", inner.clone()).prop_map(|(key, value)| format!("\"{key}\" :{value}"));
        let many =
            ("[a-d]{1,2}", inner.clone()).prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            proptest::collection::vec(inner, 0..6).prop_map(|all| format!("[{}]", all.join(", "))),
            proptest::collection::vec(entry, 0..8).prop_map(|all| format!("{{{}}}", all.join(","))),
            proptest::collection::vec(many, 12..24)
                .prop_map(|all| format!("{{{}}}", all.join(",\n"))),
        ]
    })
}

proptest! {
    #[test]
    fn values_and_validity_are_those_of_serde_json(text in json()) {
        compare(text.as_bytes());
    }

    #[test]
    fn so_they_are_after_changes(
        text in json(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            any::<u8>(), proptest::sample::select(b"\"\\{}[],:0-.eE+u \x00\x1f\x7f\xc3\xff".to_vec()),
        ], 0..3), 1..4),
    ) {
        let mut bytes = text.into_bytes();
        for (at, byte, what) in changes {
            let at = at.index(bytes.len().max(1));
            match what {
                _ if bytes.is_empty() => bytes.push(byte),
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        compare(&bytes);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        compare(&bytes);
    }
}

#[test]
fn truncated_at_every_byte() {
    let text = r#" {"a": [1, -2.5e+3, true, null, "x\u00e9\ud83d\ude00\n", "é"], "b": {"c": {}, "a": [], "a": 1}} "#;
    for end in 0..=text.len() {
        compare(&text.as_bytes()[..end]);
    }
}

#[test]
fn strings_around_words_and_blocks() {
    for len in 0..200 {
        for special in ["", "\\n", "é", "\u{1}", "\\u12", "\u{7f}", "\"", "\\"] {
            let body = format!("\"{}{special}{}\"", "x".repeat(len), "y".repeat(len % 7));
            compare(body.as_bytes());
        }
        let mut broken = format!("\"{}\"", "x".repeat(len)).into_bytes();
        broken.insert(1 + len / 2, 0xC3);
        compare(&broken);
    }
}

#[test]
fn depth_is_a_limit() {
    for open in ["[", "{\"a\":"] {
        let close = if open == "[" { "]" } else { "}" };
        for (depth, valid) in [(127, true), (128, true), (129, false)] {
            let inner = if open == "[" { "" } else { "1" };
            let body = format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
            assert_eq!(check(body.as_bytes(), 128).is_ok(), valid, "{depth} {open}");
            assert_eq!(read(body.as_bytes()).is_some(), valid, "{depth} {open}");
        }
    }
}
